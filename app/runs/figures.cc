#include "app/runs/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "app/make_config.h"
#include "core/error.h"
#include "data/io/files.h"
#include "data/io/json.h"
#include "models/capabilities.h"
#include "nn/nearest.h"
#include "train/log.h"

namespace longspan {
namespace {

double number(const Json& row, const char* name) {
  const Json* const value = row.find(name);
  return value != nullptr && value->is_number() ? value->number() : std::nan("");
}

/// Reads the curves. Validations have no tokens and seconds of their own: they have those of the
/// rows of training around them.
void read_curves(RunFigures& run) {
  const std::string path = run.folder + "/metrics.jsonl";
  require<IoError>(std::filesystem::exists(path), "compare",
                   "{} has no metrics.jsonl; expected the folder of a run that has begun to train",
                   run.folder);
  for (const Json& row : read_rows(path)) {
    const double step = number(row, "step");
    if (std::isnan(step)) continue;
    RunFigures::Point p{.step = static_cast<int64_t>(step)};
    if (!std::isnan(number(row, "valid_bpb"))) {
      const double perplexity = number(row, "valid_perplexity");
      run.valid_perplexity = std::isnan(perplexity) ? 0 : perplexity;
      p.bits = number(row, "valid_bpb");
      run.validations.push_back(p);
      if (run.best_step < 0 || p.bits < run.best) {
        run.best = p.bits;
        run.best_step = p.step;
      }
    } else if (!std::isnan(number(row, "loss"))) {
      p.bits = number(row, "bpb");
      p.tokens = number(row, "tokens");
      p.seconds = number(row, "seconds");
      const double per_target = number(row, "loss") / std::log(2.0) / p.bits;
      if (std::isfinite(per_target) && per_target > 0) run.unit.per_target = per_target;
      run.peak = std::max(run.peak, static_cast<int64_t>(number(row, "peak_bytes")));
      run.training.push_back(p);
    }
    if (const Json* unit = row.find("unit")) run.unit.name = unit->string();
  }
  require<IoError>(!run.training.empty() || !run.validations.empty(), "compare",
                   "{} has no figures yet", run.folder);
  for (RunFigures::Point& v : run.validations) {
    RunFigures::Point before, after{};
    for (const RunFigures::Point& t : run.training) {
      if (t.step <= v.step) before = t;
      if (t.step >= v.step) {
        after = t;
        break;
      }
    }
    const bool between = after.step > before.step && after.step >= v.step;
    const double share = between ? static_cast<double>(v.step - before.step) /
                                       static_cast<double>(after.step - before.step)
                                 : 0;
    v.tokens = before.tokens + share * (after.tokens - before.tokens);
    v.seconds = before.seconds + share * (after.seconds - before.seconds);
  }
}

}  // namespace

double RunFigures::perplexity() const {
  return valid_perplexity > 0 ? valid_perplexity : unit.perplexity(valid);
}

RunFigures figures_of(const std::string& folder) {
  RunFigures run;
  run.folder = folder;
  require<IoError>(kind_of_path(folder + "/config.toml", "compare") == PathKind::file, "compare",
                   "{} is no run folder; expected one that longspan train has made", folder);
  RunConfig config = make_config(settings_of_run(folder));
  for (const Key& key : keys_of(config)) run.keys.emplace_back(key.name, key.value);
  run.model = config.model_name;
  run.planned = config.steps;
  const auto model = config.model->build(Init{.meta = true});
  run.parameters = parameter_count(*model);
  const int64_t length = std::min(config.length, max_input_length(*model));
  try {
    run.macs_per_token =
        static_cast<double>(forward_macs(*model, length)) / static_cast<double>(length);
  } catch (const Error&) {
    run.macs_per_token = std::nan("");  // a model that reads other inputs
  }
  run.train = run.valid = run.best = std::nan("");
  read_curves(run);
  if (!run.training.empty()) {
    const RunFigures::Point& last = run.training.back();
    run.steps = last.step;
    run.tokens = static_cast<int64_t>(last.tokens);
    run.seconds = last.seconds;
    run.train = last.bits;
  }
  if (!run.validations.empty()) run.valid = run.validations.back().bits;
  const std::string path = folder + "/summary.json";
  if (std::filesystem::exists(path)) {
    const Json summary = parse_json(read_file(path, "compare"));
    run.ended = number(summary, "steps") >= static_cast<double>(run.steps) &&
                summary.find("stopped") == nullptr;
    if (run.ended) {
      run.train = number(summary, "train_bpb");
      run.valid = number(summary, "valid_bpb");
      run.unit.per_target = number(summary, "units_per_target");
    }
  }
  run.speed = run.seconds > 0 ? static_cast<double>(run.tokens) / run.seconds : 0;
  return run;
}

Axis axis_of(const std::string& name) {
  for (size_t i = 0; i < std::size(axis_names); ++i) {
    if (name == axis_names[i]) return static_cast<Axis>(i);
  }
  fail("--over", "got {}; expected one of {}", name,
       fmt::join(std::begin(axis_names), std::end(axis_names), ", "));
}

LinePlot curves_of(const std::vector<RunFigures>& runs, const std::vector<std::string>& labels,
                   Axis axis) {
  constexpr const char* titles[] = {"steps", "tokens", "seconds of training",
                                    "multiply-adds (three forward passes a token)"};
  LinePlot plot{.title = "Validation", .x_label = titles[static_cast<size_t>(axis)]};
  const bool validated = std::all_of(runs.begin(), runs.end(),
                                     [](const RunFigures& r) { return r.validations.size() > 1; });
  if (!validated) plot.title = "Training";
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunFigures& run = runs[i];
    require(run.unit.name == runs[0].unit.name, "compare",
            "{} counts bits per {}, and {} per {}; curves of one unit can be drawn together",
            runs[0].folder, runs[0].unit.name, run.folder, run.unit.name);
    plot.y_label = "bits per " + run.unit.name;
    Series s{.name = labels[i], .markers = validated, .colour = static_cast<int>(i)};
    for (const RunFigures::Point& p : validated ? run.validations : run.training) {
      const double x[] = {static_cast<double>(p.step), p.tokens, p.seconds,
                          3 * run.macs_per_token * p.tokens};
      s.x.push_back(x[static_cast<size_t>(axis)]);
      s.y.push_back(p.bits);
    }
    if (!validated) s = smoothed(s);
    plot.series.push_back(std::move(s));
  }
  return plot;
}

std::vector<std::string> short_names(const std::vector<std::string>& folders) {
  std::vector<std::string> names;
  for (std::string folder : folders) {
    while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
    names.push_back(std::move(folder));
  }
  if (names.size() < 2) return names;
  size_t common = 0;
  for (size_t i = 0; i < names[0].size(); ++i) {
    if (!std::all_of(names.begin(), names.end(),
                     [&](const std::string& n) { return i < n.size() && n[i] == names[0][i]; })) {
      break;
    }
    if (names[0][i] == '/') common = i + 1;
  }
  for (std::string& name : names) name.erase(0, common);
  return names;
}

std::vector<std::pair<std::string, std::vector<std::string>>> differing_keys(
    const std::vector<RunFigures>& runs) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<std::string>> values;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const auto& [name, value] : runs[i].keys) {
      const auto [at, fresh] = values.try_emplace(name, runs.size(), "-");
      if (fresh) order.push_back(name);
      at->second[i] = value;
    }
  }
  std::vector<std::pair<std::string, std::vector<std::string>>> differing;
  for (const std::string& name : order) {
    const std::vector<std::string>& all = values[name];
    if (std::adjacent_find(all.begin(), all.end(), std::not_equal_to<>()) != all.end()) {
      differing.emplace_back(name, all);
    }
  }
  return differing;
}

void write_own_picture(const std::string& path, const LinePlot& plot) {
  require(path.ends_with(".png") || path.ends_with(".svg") || path.ends_with(".pdf"), "--out",
          "got {}; expected FILE.png, FILE.svg or FILE.pdf", path);
  require<IoError>(!std::filesystem::exists(path) || is_own_picture(path), "--out",
                   "{} is there already and is no picture of Longspan; choose another file", path);
  write_line_plot(path, plot);
}

}  // namespace longspan
