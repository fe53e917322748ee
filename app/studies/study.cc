// longspan study: the table of studies, and what they have in common.
#include "app/studies/study.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "app/run_folder.h"
#include "core/error.h"
#include "nn/memory_policy.h"
#include "nn/nearest.h"

namespace longspan {
namespace {

constexpr Study studies[] = {
    {"memory", "bytes and seconds of a training step by strategy, depth and length", study_memory},
    {"budget", "the longest sequence and the deepest model that fit, by budget and strategy",
     study_budget},
    {"reversible", "errors of the gradients of reversible layers, by depth and dtype",
     study_reversible},
    {"lsh", "which share of the softmax LSH attention sees, by rounds and chunk size", study_lsh},
    {"features", "errors of attention by random features, by their number and kind",
     study_features},
    {"entmax", "how many keys alpha-entmax leaves, by alpha, length and scale", study_entmax},
    {"quality", "what models and strategies learn in equal time, beside their memory",
     study_quality},
};

std::string list_of_studies(const char* program) {
  std::string text =
      fmt::format("usage: {0} NAME --out DIR [options]; {0} NAME --help lists them\n", program);
  for (const Study& s : studies) text += fmt::format("  {:<12}{}\n", s.name, s.about);
  return text;
}

const Study* find_study(std::string_view name) {
  for (const Study& s : studies) {
    if (s.name == name) return &s;
  }
  return nullptr;
}

}  // namespace

int study_command(int argc, const char* const* argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (first == "--help" || first == "-h" || first == "help") {
    std::fputs(list_of_studies(argv[0]).c_str(), stdout);
    return 0;
  }
  // The name may stand behind options, as it could when there was one study.
  const Study* study = find_study(first);
  for (int i = 2; i < argc && study == nullptr && first.starts_with('-'); ++i) {
    study = find_study(argv[i]);
  }
  if (study != nullptr) return study->run(argc, argv);
  std::vector<std::string> names;
  for (const Study& s : studies) names.emplace_back(s.name);
  if (first.empty() || first.starts_with('-')) {
    fail("study", "no study given; expected longspan study NAME, one of {}",
         fmt::join(names, ", "));
  }
  const std::string name(first), near = nearest(name, names);
  fail("study", "there is no study \"{}\"; {}expected one of {}", name,
       near.empty() ? "" : fmt::format("did you mean {}? ", near), fmt::join(names, ", "));
}

StudyFolder::StudyFolder(const CommandLine& line) {
  require(line.others.size() == 1, "study",
          "\"{}\" belongs to no option; see longspan study --help",
          line.others.size() > 1 ? line.others[1] : "");
  const std::string* const out = line.value("--out");
  require(out != nullptr && !out->empty(), "study", "no folder given; expected --out DIR");
  path_ = *out;
  if (const std::string* const formats = line.value("--format")) {
    require(PictureFormats::valid(*formats), "--format", "got \"{}\"; expected {}", *formats,
            PictureFormats::expected);
    formats_.set(*formats);
  }
  require_empty_folder(path_, "study");  // checked before the long computation
}

void StudyFolder::open() {
  lock_.emplace(path_, "study");
  require_empty_folder(path_, "study");
}

void StudyFolder::write(const std::string& name, const std::string& text) {
  replace_file(add(name), text, "study");
}

void StudyFolder::draw(const std::string& name, const LinePlot& plot) {
  const auto has_point = [&](const Series& s) {
    for (size_t i = 0; i < s.x.size(); ++i) {
      const bool x = std::isfinite(s.x[i]) && (!plot.log_x || s.x[i] > 0);
      if (x && std::isfinite(s.y[i]) && (!plot.log_y || s.y[i] > 0)) return true;
    }
    return false;
  };
  if (plot.points.empty() && std::none_of(plot.series.begin(), plot.series.end(), has_point))
    return;
  for (const std::string& file : formats_.paths(name)) write_line_plot(add(file), plot);
}

std::string StudyFolder::add(const std::string& name) {
  files_.push_back(path_ + "/" + name);
  return files_.back();
}

void StudyFolder::say_files() const {
  std::string text = "wrote ";
  for (size_t i = 0; i < files_.size(); ++i) {
    if (i > 0) text += i + 1 == files_.size() ? " and " : ", ";
    text += files_[i];
  }
  std::puts(text.c_str());
}

void add_curve(LinePlot& plot, Series curve, double share) {
  if (curve.x.empty()) return;
  const auto alike = [&](const Series& s) {
    if (s.name.empty() || s.x != curve.x) return false;
    for (size_t i = 0; i < s.y.size(); ++i) {
      if (std::abs(s.y[i] - curve.y[i]) > share * std::abs(s.y[i])) return false;
    }
    return true;
  };
  const auto same = std::find_if(plot.series.begin(), plot.series.end(), alike);
  if (same != plot.series.end()) {
    same->name += ", " + curve.name;
  } else {
    plot.series.push_back(std::move(curve));
  }
}

void say_progress(const std::string& text) {
  std::puts(text.c_str());
  std::fflush(stdout);
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  size_t at = 0;
  while ((at = text.find_first_not_of(" ,", at)) != std::string::npos) {
    const size_t end = std::min(text.find_first_of(" ,", at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

namespace {

/// Returns the part of a strategy's name that --memory accepts.
std::string_view policy_of(std::string_view strategy) {
  constexpr std::string_view chunked = "+chunks";
  if (strategy.ends_with(chunked)) strategy.remove_suffix(chunked.size());
  return strategy;
}

}  // namespace

std::vector<std::string> strategies_of(const std::string& text) {
  const std::vector<std::string> words = words_of(text);
  const std::vector<std::string> known = {"standard",   "lean",       "selective",
                                          "checkpoint", "reversible", "reversible:exact"};
  require(!words.empty(), "--strategies", "got none; expected some of {}", fmt::join(known, ", "));
  for (const std::string& word : words) {
    const std::string_view policy = policy_of(word);
    if (MemoryPolicy::valid(policy)) continue;
    const std::string near = nearest(policy, known);
    fail("--strategies",
         "there is no strategy \"{}\"; {}expected those of --memory, with commas or spaces between "
         "them: {}; each may have +chunks behind it",
         word, near.empty() ? "" : fmt::format("did you mean {}? ", near), MemoryPolicy::expected);
  }
  return words;
}

StepShape shape_with(StepShape shape, const std::string& strategy, const RunConfig& config) {
  shape.memory = policy_of(strategy);
  if (shape.memory != strategy) shape.chunks = usual_chunks(config);
  return shape;
}

namespace {

template <class T>
void require_all(const std::vector<T>& values, std::string_view option, T least, T most) {
  require(!values.empty(), option, "got no number; expected some, with commas between them");
  for (const T value : values) {
    require(value >= least && value <= most, option, "got {}; expected {} to {}", value, least,
            most);
  }
}

}  // namespace

void require_values(const std::vector<int64_t>& values, std::string_view option, int64_t least,
                    int64_t most) {
  require_all(values, option, least, most);
}

std::vector<double> numbers_of(const std::string& text, std::string_view option, double least,
                               double most) {
  std::vector<double> values;
  for (const std::string& word : words_of(text)) {
    double value = 0;
    const char* const end = word.data() + word.size();
    const auto [at, error] = std::from_chars(word.data(), end, value);
    require(error == std::errc{} && at == end, option, "got \"{}\"; expected numbers", word);
    values.push_back(value);
  }
  require_all(values, option, least, most);
  return values;
}

}  // namespace longspan
