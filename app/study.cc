// longspan study memory: predicts and measures what strategies save and need over depth and length.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "app/commands.h"
#include "app/run_folder.h"
#include "app/runs/timeline_page.h"
#include "app/step.h"
#include "core/backends.h"
#include "core/error.h"
#include "data/io/files.h"
#include "nn/memory_policy.h"
#include "nn/nearest.h"
#include "train/plot.h"

namespace longspan {
namespace {

struct Options {
  std::vector<int64_t> depths, lengths;
  std::string strategies = "standard checkpoint reversible reversible+chunks";
  void visit(auto& v) { v("depths", depths)("lengths", lengths)("strategies", strategies); }
};

/// A shape with its predicted and measured memory.
struct Measured {
  std::string strategy;
  bool over_depth;
  StepShape shape;
  StepMemory predicted, measured;
};

/// Returns the part of a strategy's name that --memory accepts.
std::string_view policy_of(std::string_view strategy) {
  constexpr std::string_view chunked = "+chunks";
  if (strategy.ends_with(chunked)) strategy.remove_suffix(chunked.size());
  return strategy;
}

/// Returns the shape of a strategy: "reversible+chunks" is "reversible" with feed-forward layers in
/// F / D chunks.
StepShape shape_with(StepShape shape, const std::string& strategy, const RunConfig& config) {
  shape.memory = policy_of(strategy);
  if (shape.memory != strategy) shape.chunks = usual_chunks(config);
  return shape;
}

/// Throws ValueError if a word is not a strategy.
void require_strategies(const std::vector<std::string>& words) {
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

std::string csv_of(const std::vector<Measured>& rows) {
  std::string text =
      "over,strategy,memory,chunks,layers,length,batch,predicted_saved,saved,predicted_peak,peak,"
      "parameter,gradient,optimizer,extra_forward\n";
  for (const Measured& r : rows) {
    text +=
        fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{:.4f}\n",
                    r.over_depth ? "depth" : "length", r.strategy, r.shape.memory, r.shape.chunks,
                    r.shape.layers, r.shape.length, r.shape.batch, r.predicted.saved,
                    r.measured.saved, r.predicted.peak(), r.measured.peak(), r.measured.parameter,
                    r.measured.gradient, r.measured.optimizer, r.measured.extra_forward());
  }
  return text;
}

/// Plots predictions as lines and measurements as discs.
LinePlot plot_of(const std::vector<Measured>& rows, const std::vector<std::string>& strategies,
                 bool over_depth, int64_t StepMemory::*bytes, const std::string& what) {
  LinePlot plot;
  plot.title = what + " of a training step: predicted (lines) and measured (discs)";
  plot.x_label = over_depth ? "layers" : "tokens";
  plot.y_label = "MiB";
  plot.log_x = plot.log_y = !over_depth;
  for (size_t i = 0; i < strategies.size(); ++i) {
    Series lines{.name = strategies[i], .colour = static_cast<int>(i)};
    Series discs{.markers = true, .colour = static_cast<int>(i)};
    const auto value = [&](const StepMemory& m) {
      const int64_t n = bytes != nullptr ? m.*bytes : m.peak();
      return static_cast<double>(n) / (1 << 20);
    };
    for (const Measured& r : rows) {
      if (r.strategy != strategies[i] || r.over_depth != over_depth) continue;
      const auto x = static_cast<double>(over_depth ? r.shape.layers : r.shape.length);
      lines.x.push_back(x);
      lines.y.push_back(value(r.predicted));
      discs.x.push_back(x);
      discs.y.push_back(value(r.measured));
    }
    if (lines.x.empty()) continue;
    const auto same = std::find_if(plot.series.begin(), plot.series.end(), [&](const Series& s) {
      return !s.name.empty() && s.x == lines.x && s.y == lines.y;
    });
    if (same != plot.series.end()) {  // identical curves would hide each other
      same->name += ", " + lines.name;
      continue;
    }
    plot.series.push_back(lines);
    plot.series.push_back(discs);
  }
  return plot;
}

void print_row(const Measured& r) {
  std::puts(fmt::format("{:<20} {:>6} {:>8} {:>11} {:>11} {:>11} {:>11} {:>8.4f} {:>6.2f}",
                        r.strategy, r.shape.layers, r.shape.length, bytes_text(r.predicted.saved),
                        bytes_text(r.measured.saved), bytes_text(r.predicted.peak()),
                        bytes_text(r.measured.peak()),
                        static_cast<double>(r.predicted.peak()) /
                            static_cast<double>(std::max<int64_t>(1, r.measured.peak())),
                        r.measured.extra_forward())
                .c_str());
  std::fflush(stdout);
}

/// What a study measures, and of what.
struct Study {
  const RunConfig& config;
  const StepPlanner& planner;
  Device device;
  std::vector<std::string> strategies;
  std::vector<int64_t> depths, lengths;
  std::vector<Measured> rows = {};
  std::vector<Timeline> timelines = {};
};

/// Returns the lengths that are measured if none were given: the run's, half of it, and twice if
/// the model is long enough.
std::vector<int64_t> usual_lengths(const StepPlanner& planner) {
  const int64_t length = planner.own().length;
  std::vector<int64_t> lengths = {length};
  if (length > 1) lengths.insert(lengths.begin(), length / 2);
  if (2 * length <= planner.longest_possible()) lengths.push_back(2 * length);
  return lengths;
}

/// Measures a step of every depth and every length with one strategy, and prints a row for each.
void measure_strategy(Study& s, const std::string& strategy) {
  const StepShape base = shape_with(s.planner.own(), strategy, s.config);
  std::string reason;
  if (!s.planner.predict(base, &reason)) {
    std::puts(fmt::format("{:<20} {}", strategy, reason.substr(0, reason.find('\n'))).c_str());
    return;
  }
  const auto measure = [&](int64_t StepShape::*part, int64_t value) {
    Measured r{strategy, part == &StepShape::layers, base, {}, {}};
    r.shape.*part = value;
    const std::optional<StepMemory> predicted = s.planner.predict(r.shape, &reason);
    require(predicted.has_value(), "study", "{}", reason);
    r.predicted = *predicted;
    r.measured = s.planner.step(r.shape, s.device);
    print_row(r);
    s.rows.push_back(std::move(r));
  };
  for (const int64_t n : s.depths) measure(&StepShape::layers, n);
  for (const int64_t n : s.lengths) measure(&StepShape::length, n);
  s.timelines.push_back(
      timeline_of(s.planner, base, s.device,
                  fmt::format("{}, {} layers, {} tokens", strategy, base.layers, base.length)));
}

void write_study(const Study& s, const std::string& out) {
  require(!s.rows.empty(), "study", "no strategy builds this model");
  replace_file(out + "/memory.csv", csv_of(s.rows), "study");
  for (const bool depth : {true, false}) {
    const std::string axis = depth ? "depth" : "length";
    write_line_plot(out + "/saved_" + axis + ".png",
                    plot_of(s.rows, s.strategies, depth, &StepMemory::saved, "Saved bytes"));
    write_line_plot(out + "/peak_" + axis + ".png",
                    plot_of(s.rows, s.strategies, depth, nullptr, "Peak"));
  }
  write_timelines(out + "/timeline.html", s.config.model_name + ": live bytes of a training step",
                  s.timelines);
  std::puts(fmt::format("wrote {0}/memory.csv, {0}/saved_depth.png, {0}/saved_length.png, "
                        "{0}/peak_depth.png, {0}/peak_length.png and {0}/timeline.html",
                        out)
                .c_str());
}

}  // namespace

int study_command(int argc, const char* const* argv) {
  const Flag own[] = {
      {"--out", "", "the folder for table, pictures and timeline"},
      {"--depths", "study.depths", "numbers of layers; 2,4,8,16 where none are given"},
      {"--lengths", "study.lengths", "lengths; without them the run's, and half and twice it"},
      {"--strategies", "study.strategies", "those of --memory, or these with +chunks"}};
  CommandLine line = read_command_line(
      argc, argv, own,
      "longspan study memory --model NAME --out DIR: takes training steps with each strategy, over "
      "depth and over length, and writes what they keep and need, predicted beside measured: "
      "memory.csv, pictures, and timeline.html with the live bytes of a step.",
      1);
  require(line.others.size() == 1 && line.others[0] == "memory", "study",
          "got \"{}\"; expected longspan study memory", line.others.empty() ? "" : line.others[0]);
  Options o;
  set_fields(o, taken(line, "study."));
  const std::vector<std::string> strategies = words_of(o.strategies);
  require_strategies(strategies);
  const std::string* out = line.value("--out");
  require(out != nullptr && !out->empty(), "study", "no folder given; expected --out DIR");
  require_empty_folder(*out, "study");  // checked before the long computation
  RunConfig config = planned_config(line);
  const Device device = parse_device(config.device);
  const StepPlanner planner(config);
  if (o.depths.empty()) o.depths = {2, 4, 8, 16};
  if (o.lengths.empty()) o.lengths = usual_lengths(planner);
  const FolderLock lock(*out, "study");
  require_empty_folder(*out, "study");

  Study study{config, planner, device, strategies, o.depths, o.lengths};
  std::puts(fmt::format("{:<20} {:>6} {:>8} {:>11} {:>11} {:>11} {:>11} {:>8} {:>6}", "strategy",
                        "layers", "tokens", "saved:", "measured", "peak:", "measured", "ratio",
                        "again")
                .c_str());
  for (const std::string& strategy : strategies) measure_strategy(study, strategy);
  write_study(study, *out);
  return 0;
}

}  // namespace longspan
