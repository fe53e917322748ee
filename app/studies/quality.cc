// longspan study quality: what models and strategies learn in equal time, beside their memory.

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "app/make_config.h"
#include "app/runs/figures.h"
#include "app/runs/launch.h"
#include "app/studies/study.h"
#include "core/error.h"
#include "core/parallel.h"

namespace longspan {
namespace {

struct QualityStudyOptions {
  std::string models, strategies;
  void visit(auto& v) { v("models", models)("strategies", strategies); }
};

/// A run of the study.
struct QualityRun {
  std::string name, model, strategy;
  std::vector<std::string> arguments = {};  // of longspan train, without --out
  std::optional<RunFigures> figures = {};
  std::string failed = {};  // why; empty: it has not
};

/// Returns bits per unit: of the validation, or of training where there is none.
double quality_of(const RunFigures& f) { return std::isfinite(f.valid) ? f.valid : f.train; }

/// Returns the arguments that all runs have: those that were typed.
std::vector<std::string> common_arguments(const CommandLine& line, int argc,
                                          const char* const* argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    constexpr std::string_view flag = "--config", joined = "--config=";
    if (word != flag && !word.starts_with(joined)) continue;
    const std::string path(word == flag ? argv[i + 1] : word.substr(joined.size()));
    words = {"--config", std::filesystem::absolute(path).string()};
  }
  for (const Setting& s : line.settings) {
    if (s.text) words.insert(words.end(), {"--set", s.key + "=" + s.value.string()});
  }
  return words;
}

/// Returns the runs, of which each has been seen to build its model; prints why others do not.
std::vector<QualityRun> runs_of(const CommandLine& line, const std::vector<std::string>& common,
                                const std::vector<std::string>& models,
                                const std::vector<std::string>& strategies) {
  std::vector<QualityRun> runs;
  for (const std::string& model : models) {
    for (const std::string& strategy : strategies) {
      QualityRun run{.name = strategies.size() == 1 ? model
                             : models.size() == 1   ? strategy
                                                    : model + " " + strategy,
                     .model = model,
                     .strategy = strategy};
      Settings settings = line.settings;
      settings.push_back({"model.name", Json(model), "--models", true});
      RunConfig config = make_config(settings);
      require_data(config);
      const auto same = [&](const QualityRun& other) { return other.name == run.name; };
      require(std::none_of(runs.begin(), runs.end(), same), "study",
              "two runs would be called \"{}\"; expected models and strategies that differ",
              run.name);
      require(config.seconds > 0, "--seconds", "got {}; expected the seconds that each run trains",
              config.seconds);
      require(config.steps == 0, "--steps",
              "study quality compares at equal time; leave it out, and say --seconds");
      const StepShape shape = shape_with(shape_of(config), strategy, config);
      settings.push_back({"model.memory", Json(shape.memory), "--strategies", true});
      try {
        const RunConfig whole = make_config(settings);
        whole.model->build(Init{.meta = true});
      } catch (const Error& e) {
        const std::string why = e.what();
        say_progress(fmt::format("{}: left out: {}", run.name, why.substr(0, why.find('\n'))));
        continue;
      }
      run.arguments = common;
      run.arguments.insert(run.arguments.end(), {"--model", model, "--memory", shape.memory,
                                                 "--chunks", std::to_string(shape.chunks)});
      runs.push_back(std::move(run));
    }
  }
  require(!runs.empty(), "study", "no strategy builds a model");
  return runs;
}

/// Trains with all processors and reads what came out.
void train(QualityRun& run, const std::string& out, const std::vector<int>& processors) {
  std::vector<std::string> words = {"train", "--out", out + "/runs/" + run.name};
  words.insert(words.end(), run.arguments.begin(), run.arguments.end());
  const std::string log = fmt::format("{}/logs/{}.txt", out, run.name);
  const pid_t pid = launch({.arguments = std::move(words),
                            .log = log,
                            .folder = std::filesystem::current_path().string(),
                            .processors = processors},
                           "study");
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    require(errno == EINTR, "study", "waiting for a run failed: {}", error_text());
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    run.failed = WIFEXITED(status) ? last_line_of(log) : fmt::format("signal {}", WTERMSIG(status));
    return;
  }
  try {
    run.figures = figures_of(out + "/runs/" + run.name);
  } catch (const Error& e) {
    run.failed = e.what();
  }
}

std::string csv_of(const std::vector<QualityRun>& runs) {
  CsvTable table(
      "run,model,strategy,parameters,steps,tokens,seconds,tokens_per_second,peak,unit,"
      "train_bits,valid_bits,best_bits");
  for (const QualityRun& r : runs) {
    if (!r.figures) continue;
    const RunFigures& f = *r.figures;
    table.add(r.name, r.model, r.strategy, f.parameters, f.steps, f.tokens,
              fmt::format("{:.2f}", f.seconds), fmt::format("{:.1f}", f.speed), f.peak, f.unit.name,
              fmt::format("{:.5f}", f.train), fmt::format("{:.5f}", f.valid),
              fmt::format("{:.5f}", f.best));
  }
  return table.text();
}

LinePlot plot_of(const std::vector<QualityRun>& runs, double seconds) {
  LinePlot plot;
  plot.x_label = "peak of the run, MiB";
  for (const QualityRun& r : runs) {
    if (!r.figures) continue;
    plot.title = fmt::format("What {:g} seconds of training reach, against memory", seconds);
    plot.y_label = "bits per " + r.figures->unit.name;
    plot.points.push_back({.name = r.name,
                           .x = static_cast<double>(r.figures->peak) / (1 << 20),
                           .y = quality_of(*r.figures),
                           .colour = static_cast<int>(plot.points.size())});
  }
  return plot;
}

/// Draws the figures that runs reach, and their curves over time, if all have one unit.
void draw(StudyFolder& out, const std::vector<QualityRun>& runs, double seconds) {
  std::vector<RunFigures> figures;
  std::vector<std::string> names;
  for (const QualityRun& r : runs) {
    if (!r.figures) continue;
    figures.push_back(*r.figures);
    names.push_back(r.name);
  }
  const auto same = [&](const RunFigures& f) { return f.unit.name == figures[0].unit.name; };
  if (!std::all_of(figures.begin(), figures.end(), same)) {
    say_progress("these runs count bits per different units, so that no picture compares them");
    return;
  }
  if (figures.empty()) return;
  out.draw("quality", plot_of(runs, seconds));
  out.draw("curves", curves_of(figures, names, Axis::seconds));
}

void print_quality_row(const QualityRun& r) {
  if (!r.figures) {
    say_progress(fmt::format("{:<32} failed: {}", r.name, r.failed));
    return;
  }
  const RunFigures& f = *r.figures;
  say_progress(fmt::format("{:<32} {:>8} {:>10} {:>11} {:>8.1f} {:>12}", r.name, f.steps, f.tokens,
                           bytes_text(f.peak), f.seconds, fmt::format("{:.4f}", quality_of(f))));
}

}  // namespace

int study_quality(int argc, const char* const* argv) {
  const std::vector<int> processors = allowed_processors();
  const Flag own[] = {
      study_out,
      study_format,
      {"--models", "study.models", "some, with commas between them, in place of --model"},
      {"--strategies", "study.strategies",
       "those of --memory, or these with +chunks; without them, of one model standard, checkpoint, "
       "reversible and reversible+chunks, of several standard"}};
  CommandLine line = read_command_line(
      argc, argv, own,
      "longspan study quality --models NAME,NAME --data bytes=FILE --out DIR: trains models, or "
      "one with several strategies, for --seconds each, one after the other, and writes what they "
      "reach beside the memory that they need: quality.csv, pictures, and runs/ with the runs. "
      "Other options are those of longspan train.",
      2, "study quality");
  QualityStudyOptions o;
  set_fields(o, taken(line, "study."));
  std::vector<std::string> models = words_of(o.models);
  if (last_setting(line.settings, "seconds") == nullptr) {
    line.settings.push_back({"seconds", Json("60"), "--seconds", true});
  }
  const Setting* const model = last_setting(line.settings, "model.name");
  require(model == nullptr || models.empty(), "--models", "is in place of --model; leave one out");
  if (models.empty())
    models = {model != nullptr ? model->value.string() : make_config({}).model_name};
  std::erase_if(line.settings, [](const Setting& s) { return s.key == "model.name"; });
  if (o.strategies.empty()) o.strategies = models.size() > 1 ? "standard" : usual_strategies;
  const std::vector<std::string> strategies = strategies_of(o.strategies);
  StudyFolder out(line);
  std::vector<QualityRun> runs =
      runs_of(line, common_arguments(line, argc, argv), models, strategies);
  out.open();
  make_folders(out.path() + "/logs", "study");
  make_folders(out.path() + "/runs", "study");

  const double seconds =
      std::strtod(last_setting(line.settings, "seconds")->value.string().c_str(), nullptr);
  say_progress(fmt::format("{} runs of {:g} s each, one after the other", runs.size(), seconds));
  say_progress(fmt::format("{:<32} {:>8} {:>10} {:>11} {:>8} {:>12}", "run", "steps", "tokens",
                           "peak", "seconds", "bits"));
  for (QualityRun& run : runs) {
    train(run, std::filesystem::absolute(out.path()).string(), processors);
    print_quality_row(run);
    replace_file(out.path() + "/quality.csv", csv_of(runs), "study");  // a stop loses no row
  }
  out.write("quality.csv", csv_of(runs));
  draw(out, runs, seconds);
  out.say_files();
  const auto failed = [](const QualityRun& r) { return !r.figures; };
  return std::any_of(runs.begin(), runs.end(), failed) ? 1 : 0;
}

}  // namespace longspan
