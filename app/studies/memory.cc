// longspan study memory: predicts and measures what strategies save and need, and how long their
// steps take, over depth and length.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>

#include "app/runs/timeline_page.h"
#include "app/step.h"
#include "app/studies/study.h"
#include "core/backends.h"
#include "core/error.h"
#include "train/step_time.h"

namespace longspan {
namespace {

struct MemoryStudyOptions {
  std::vector<int64_t> depths, lengths;
  std::string strategies{usual_strategies};
  int64_t repeats = 5;
  void visit(auto& v) {
    v("depths", depths)("lengths", lengths)("strategies", strategies);
    v("repeats", repeats, range::between(1, 1000));
  }
};

/// A shape with its predicted and measured memory, and its time.
struct Measured {
  std::string strategy;
  bool over_depth;
  StepShape shape;
  StepMemory predicted, measured;
  StepTimes times;
};

std::string csv_of(const std::vector<Measured>& rows) {
  CsvTable table(
      "over,strategy,memory,chunks,layers,length,batch,predicted_saved,saved,predicted_peak,peak,"
      "parameter,gradient,optimizer,extra_forward,seconds,median_seconds,timed_steps");
  for (const Measured& r : rows) {
    table.add(r.over_depth ? "depth" : "length", r.strategy, r.shape.memory, r.shape.chunks,
              r.shape.layers, r.shape.length, r.shape.batch, r.predicted.saved, r.measured.saved,
              r.predicted.peak(), r.measured.peak(), r.measured.parameter, r.measured.gradient,
              r.measured.optimizer, fmt::format("{:.4f}", r.measured.extra_forward()),
              fmt::format("{:.6g}", r.times.best()), fmt::format("{:.6g}", r.times.median()),
              r.times.seconds.size());
  }
  return table.text();
}

double mebibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// What one picture shows of a row: a line, and discs that lie on it if they are predicted well.
struct Shown {
  std::string title, y_label;
  std::function<double(const Measured&)> line, disc = {};
};

LinePlot plot_of(const std::vector<Measured>& rows, const std::vector<std::string>& strategies,
                 bool over_depth, const Shown& shown) {
  LinePlot plot;
  plot.title = shown.title;
  plot.x_label = over_depth ? "layers" : "tokens";
  plot.y_label = shown.y_label;
  plot.log_x = plot.log_y = !over_depth;
  for (size_t i = 0; i < strategies.size(); ++i) {
    Series lines{.name = strategies[i], .colour = static_cast<int>(i)};
    Series discs{.markers = true, .colour = static_cast<int>(i)};
    for (const Measured& r : rows) {
      if (r.strategy != strategies[i] || r.over_depth != over_depth) continue;
      const auto x = static_cast<double>(over_depth ? r.shape.layers : r.shape.length);
      lines.x.push_back(x);
      lines.y.push_back(shown.line(r));
      discs.x.push_back(x);
      discs.y.push_back((shown.disc ? shown.disc : shown.line)(r));
    }
    const size_t before = plot.series.size();
    add_curve(plot, std::move(lines));
    if (plot.series.size() > before) plot.series.push_back(std::move(discs));
  }
  return plot;
}

/// Plots the bytes of each strategy against its seconds, at the deepest model that was measured.
LinePlot trade_off_of(const std::vector<Measured>& rows) {
  const Measured* deepest = nullptr;
  for (const Measured& r : rows) {
    if (!r.over_depth) continue;
    if (deepest == nullptr || r.shape.layers > deepest->shape.layers) deepest = &r;
  }
  LinePlot plot;
  if (deepest == nullptr) return plot;
  plot.title = fmt::format("Peak against time of a step: {} layers, {} tokens x {}",
                           deepest->shape.layers, deepest->shape.length, deepest->shape.batch);
  plot.x_label = "seconds of a step";
  plot.y_label = "peak, MiB";
  for (const Measured& r : rows) {
    if (!r.over_depth || r.shape.layers != deepest->shape.layers) continue;
    const double again = r.measured.extra_forward();
    plot.points.push_back(
        {.name = again > 0 ? fmt::format("{}, {:.2f} again", r.strategy, again) : r.strategy,
         .x = r.times.best(),
         .y = mebibytes(r.measured.peak()),
         .colour = static_cast<int>(plot.points.size())});
  }
  return plot;
}

void print_memory_row(const Measured& r) {
  say_progress(fmt::format("{:<20} {:>6} {:>8} {:>11} {:>11} {:>11} {:>11} {:>8.4f} {:>6.2f}",
                           r.strategy, r.shape.layers, r.shape.length,
                           bytes_text(r.predicted.saved), bytes_text(r.measured.saved),
                           bytes_text(r.predicted.peak()), bytes_text(r.measured.peak()),
                           static_cast<double>(r.predicted.peak()) /
                               static_cast<double>(std::max<int64_t>(1, r.measured.peak())),
                           r.measured.extra_forward()));
}

/// What is measured, and of what.
struct MemoryStudy {
  const RunConfig& config;
  const StepPlanner& planner;
  Device device;
  std::vector<std::string> strategies;
  std::vector<int64_t> depths, lengths;
  int64_t repeats;
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

/// Predicts a step of every depth and every length with one strategy, or prints why it builds no
/// model. Throws ValueError if one of the shapes cannot be built.
void plan_strategy(MemoryStudy& s, const std::string& strategy) {
  const StepShape base = shape_with(s.planner.own(), strategy, s.config);
  std::string reason;
  if (!s.planner.predict(base, &reason)) {
    say_progress(fmt::format("{:<20} {}", strategy, reason.substr(0, reason.find('\n'))));
    return;
  }
  const auto plan = [&](int64_t StepShape::*part, int64_t value) {
    Measured r{strategy, part == &StepShape::layers, base, {}, {}, {}};
    r.shape.*part = value;
    const std::optional<StepMemory> predicted = s.planner.predict(r.shape, &reason);
    require(predicted.has_value(), "study", "{} layers of {} tokens: {}", r.shape.layers,
            r.shape.length, reason);
    r.predicted = *predicted;
    s.rows.push_back(std::move(r));
  };
  for (const int64_t n : s.depths) plan(&StepShape::layers, n);
  for (const int64_t n : s.lengths) plan(&StepShape::length, n);
}

/// Measures the steps that were planned, prints a row for each, and keeps a timeline of each
/// strategy.
void measure_steps(MemoryStudy& s) {
  std::string strategy;
  for (Measured& r : s.rows) {
    if (r.strategy != strategy) {
      strategy = r.strategy;
      const StepShape base = shape_with(s.planner.own(), strategy, s.config);
      s.timelines.push_back(
          timeline_of(s.planner, base, s.device,
                      fmt::format("{}, {} layers, {} tokens", strategy, base.layers, base.length)));
    }
    r.measured = s.planner.step(r.shape, s.device);
    print_memory_row(r);
  }
}

/// Times all shapes in turns, one step each after a warm-up, so that other work on the machine is
/// spread over all of them.
void time_in_turns(MemoryStudy& s) {
  constexpr double enough = 150;  // seconds after which no further turn begins
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t turn = 0; turn < s.repeats; ++turn) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (took.count() > enough) {
      say_progress(
          fmt::format("timed {} of {} turns, which took {:.0f} s", turn, s.repeats, took.count()));
      break;
    }
    say_progress(fmt::format("timing steps, turn {} of {}", turn + 1, s.repeats));
    for (Measured& r : s.rows) {
      const StepTimes once =
          time_steps(s.device, s.planner.steps_on(r.shape, s.device), {.steps = 1});
      r.times.seconds.push_back(once.seconds[0]);
    }
  }
  say_progress(fmt::format("{:<20} {:>6} {:>8} {:>11} {:>11}", "strategy", "layers", "tokens",
                           "seconds:", "median"));
  for (const Measured& r : s.rows) {
    say_progress(fmt::format("{:<20} {:>6} {:>8} {:>11.4f} {:>11.4f}", r.strategy, r.shape.layers,
                             r.shape.length, r.times.best(), r.times.median()));
  }
}

void write_study(const MemoryStudy& s, StudyFolder& out) {
  out.write("memory.csv", csv_of(s.rows));
  const Shown saved{"Saved bytes of a training step: predicted (lines) and measured (discs)", "MiB",
                    [](const Measured& r) { return mebibytes(r.predicted.saved); },
                    [](const Measured& r) { return mebibytes(r.measured.saved); }};
  const Shown peak{"Peak of a training step: predicted (lines) and measured (discs)", "MiB",
                   [](const Measured& r) { return mebibytes(r.predicted.peak()); },
                   [](const Measured& r) { return mebibytes(r.measured.peak()); }};
  const Shown time{fmt::format("Seconds of a training step, the best of {}", s.repeats), "seconds",
                   [](const Measured& r) { return r.times.best(); }};
  for (const bool depth : {true, false}) {
    const std::string axis = depth ? "depth" : "length";
    out.draw("saved_" + axis, plot_of(s.rows, s.strategies, depth, saved));
    out.draw("peak_" + axis, plot_of(s.rows, s.strategies, depth, peak));
    out.draw("time_" + axis, plot_of(s.rows, s.strategies, depth, time));
  }
  out.draw("trade_off", trade_off_of(s.rows));
  write_timelines(out.add("timeline.html"), s.config.model_name + ": live bytes of a training step",
                  s.timelines);
  out.say_files();
}

}  // namespace

int study_memory(int argc, const char* const* argv) {
  const Flag own[] = {
      study_out,
      study_format,
      {"--depths", "study.depths", "numbers of layers; 2,4,8,16 where none are given"},
      {"--lengths", "study.lengths", "lengths; without them the run's, and half and twice it"},
      {"--strategies", "study.strategies", "those of --memory, or these with +chunks"},
      {"--repeats", "study.repeats", "timed steps of each shape, of which the fastest counts; 5"}};
  CommandLine line = read_command_line(
      argc, argv, own,
      "longspan study memory --model NAME --out DIR: takes training steps with each strategy, over "
      "depth and over length, and writes what they keep and need, predicted beside measured, and "
      "how long they take: memory.csv, pictures, and timeline.html with the live bytes of a step.",
      2);
  MemoryStudyOptions o;
  const Settings typed = taken(line, "study.");
  set_fields(o, typed);
  check_ranges(o, typed);
  const std::vector<std::string> strategies = strategies_of(o.strategies);
  StudyFolder out(line);
  RunConfig config = planned_config(line);
  const Device device = parse_device(config.device);
  const StepPlanner planner(config);
  if (o.depths.empty()) o.depths = {2, 4, 8, 16};
  if (o.lengths.empty()) o.lengths = usual_lengths(planner);
  MemoryStudy study{config, planner, device, strategies, o.depths, o.lengths, o.repeats};
  for (const std::string& strategy : strategies) plan_strategy(study, strategy);
  require(!study.rows.empty(), "study", "no strategy builds this model");
  out.open();

  say_progress(fmt::format("{:<20} {:>6} {:>8} {:>11} {:>11} {:>11} {:>11} {:>8} {:>6}", "strategy",
                           "layers", "tokens", "saved:", "measured", "peak:", "measured", "ratio",
                           "again"));
  measure_steps(study);
  time_in_turns(study);
  write_study(study, out);
  return 0;
}

}  // namespace longspan
