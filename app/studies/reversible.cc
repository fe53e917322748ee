// longspan study reversible: how far the gradients of reversible layers are from those of layers
// that save everything.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/step.h"
#include "app/studies/study.h"
#include "core/backends.h"
#include "core/error.h"
#include "models/studies/gradient_distance.h"
#include "nn/memory_policy.h"
#include "nn/reversible.h"

namespace longspan {
namespace {

struct ReversibleStudyOptions {
  std::vector<int64_t> depths = {2, 4, 8, 16, 32};
  std::string dtypes = "f32 bf16", strategies = "reversible reversible:exact";
  void visit(auto& v) { v("depths", depths)("dtypes", dtypes)("strategies", strategies); }
};

/// What was found of one policy, depth and dtype.
struct Found {
  std::string strategy, dtype;
  int64_t layers = 0;
  double streams = 0;            ///< the largest error of the streams that were computed again
  GradientDistance stored = {};  ///< from gradients of the same function that saves everything
  GradientDistance f64 = {};     ///< from gradients in f64
  double rounding = 0;           ///< of the one that saves everything, from those in f64
};

/// What is measured, and of what.
struct ReversibleStudy {
  RunConfig& config;
  const StepPlanner& planner;
  Device device;
  std::vector<Found> rows = {};
};

std::unique_ptr<LanguageModel> build(const ReversibleStudy& s, const StepShape& shape,
                                     const std::string& dtype) {
  const bool parameters = dtype == "f64";  // others have parameters in f32
  set_fields(*s.config.model,
             Settings{{"precision", Json(parameters ? "f32" : dtype), "--dtypes"}});
  return s.planner.build(shape, Init{.gen = Generator{s.config.seed}.fork("init"),
                                     .device = s.device,
                                     .dtype = parameters ? DType::f64 : DType::f32});
}

TensorList gradients_of_step(const ReversibleStudy& s, LanguageModel& model) {
  const Pass pass{.training = true, .gen = Generator{s.config.seed}.fork("step")};
  return gradients_of(model, s.planner.synthetic_loss(model, s.device, pass));
}

Found measure(const ReversibleStudy& s, const std::string& strategy, int64_t layers,
              const std::string& dtype) {
  StepShape shape = s.planner.own();
  shape.layers = layers;
  shape.memory = strategy;
  Found found{.strategy = strategy, .dtype = dtype, .layers = layers};
  const auto inverting = build(s, shape, dtype);
  TensorList gradients;
  {
    const ReconstructionErrorMonitor watch(-1);
    gradients = gradients_of_step(s, *inverting);
    found.streams = watch.largest;
  }
  shape.memory = strategy + ":stored";
  const auto stored = build(s, shape, dtype);
  const TensorList saved = gradients_of_step(s, *stored);
  shape.memory = "reversible:stored";
  const auto precise = build(s, shape, "f64");
  copy_state(*precise, *stored);
  const TensorList reference = gradients_of_step(s, *precise);
  found.stored = gradient_distance(gradients, saved);
  found.f64 = gradient_distance(gradients, reference);
  found.rounding = gradient_distance(saved, reference).relative;
  return found;
}

std::string csv_of(const ReversibleStudy& s) {
  CsvTable table(
      "strategy,dtype,layers,length,batch,stream_error,error,largest_error,parameter,error_f64,"
      "stored_error_f64");
  const auto text = [](double x) { return fmt::format("{:.6g}", x); };
  for (const Found& r : s.rows) {
    table.add(r.strategy, r.dtype, r.layers, s.planner.own().length, s.planner.own().batch,
              text(r.streams), text(r.stored.relative), text(r.stored.largest), r.stored.parameter,
              text(r.f64.relative), text(r.rounding));
  }
  return table.text();
}

/// Plots the errors against the depth: full lines for what inversion adds, pale ones for what
/// rounding costs the same layers where everything is saved.
LinePlot plot_of(const ReversibleStudy& s, const std::vector<std::string>& strategies,
                 const std::vector<std::string>& dtypes) {
  LinePlot plot{.title = "Errors of gradients of reversible layers; pale: of rounding alone",
                .x_label = "layers",
                .y_label = "relative error"};
  plot.log_x = plot.log_y = true;
  int colour = 0;
  for (const std::string& strategy : strategies) {
    for (const std::string& dtype : dtypes) {
      Series error{
          .name = fmt::format("{}, {}", strategy, dtype), .markers = true, .colour = colour};
      Series rounding{.faint = true, .colour = colour++};
      for (const Found& r : s.rows) {
        if (r.strategy != strategy || r.dtype != dtype) continue;
        error.x.push_back(static_cast<double>(r.layers));
        error.y.push_back(r.stored.relative);
        rounding.x.push_back(static_cast<double>(r.layers));
        rounding.y.push_back(r.rounding);
      }
      const bool none =
          std::all_of(error.y.begin(), error.y.end(), [](double y) { return y == 0; });
      if (none) error.name += ": exactly 0";
      plot.series.push_back(std::move(error));
      plot.series.push_back(std::move(rounding));
    }
  }
  return plot;
}

std::vector<std::string> reversible_strategies(const std::string& text) {
  std::vector<std::string> words = words_of(text);
  require(!words.empty(), "--strategies",
          "got none; expected reversible, reversible:exact or both");
  for (const std::string& word : words) {
    const bool valid = MemoryPolicy::valid(word);
    const MemoryPolicy policy = valid ? MemoryPolicy(word.c_str()) : MemoryPolicy();
    require(valid && is_reversible(policy) && !policy.stored, "--strategies",
            "got \"{}\"; expected reversible, reversible:K, reversible:exact or "
            "reversible:exact:G, with commas or spaces between them",
            word);
  }
  return words;
}

std::vector<std::string> dtypes_of(const std::string& text) {
  std::vector<std::string> words = words_of(text);
  require(!words.empty(), "--dtypes", "got none; expected some of f32, bf16, f16, f64");
  for (const std::string& word : words) {
    require(word == "f32" || word == "bf16" || word == "f16" || word == "f64", "--dtypes",
            "got \"{}\"; expected some of f32, bf16, f16, f64", word);
  }
  return words;
}

/// Throws ValueError if the model has no reversible layers in one of these depths, or computes in
/// one dtype.
void require_reversible(const ReversibleStudy& s, const std::string& strategy,
                        const std::vector<int64_t>& depths) {
  const Json fields = to_json(*s.config.model);
  require(fields.find("precision") != nullptr, "study",
          "study reversible does not suit {}: it has no model.precision", s.config.model_name);
  StepShape shape = s.planner.own();
  shape.memory = strategy;
  std::string reason;
  for (const int64_t layers : depths) {
    shape.layers = layers;
    const bool suits = s.planner.predict(shape, &reason, false).has_value();
    require(suits, "study", "study reversible does not suit {} of {} layers: {}",
            s.config.model_name, layers, reason);
  }
}

}  // namespace

int study_reversible(int argc, const char* const* argv) {
  const Flag own[] = {
      study_out,
      study_format,
      {"--depths", "study.depths", "numbers of layers; 2,4,8,16,32 where none are given"},
      {"--dtypes", "study.dtypes", "that layers compute in: f32, bf16, f16, f64; f32,bf16"},
      {"--strategies", "study.strategies",
       "reversible, reversible:exact, or with :K and :G; both"}};
  CommandLine line = read_command_line(
      argc, argv, own,
      "longspan study reversible --model NAME --out DIR: how far the gradients of a step of "
      "reversible layers, which compute their inputs again, are from those of the same layers "
      "that save everything, by depth and dtype: reversible.csv and a picture.",
      2);
  ReversibleStudyOptions o;
  set_fields(o, taken(line, "study."));
  require_values(o.depths, "--depths", 1, 10'000);
  const std::vector<std::string> strategies = reversible_strategies(o.strategies),
                                 dtypes = dtypes_of(o.dtypes);
  StudyFolder out(line);
  RunConfig config = planned_config(line);
  const StepPlanner planner(config);
  ReversibleStudy study{config, planner, parse_device(config.device)};
  for (const std::string& strategy : strategies) require_reversible(study, strategy, o.depths);
  out.open();

  say_progress(fmt::format("{:<20} {:<6} {:>6} {:>12} {:>12} {:>12} {:>12}", "strategy", "dtype",
                           "layers", "streams", "error", "beside f64", "stored"));
  for (const std::string& strategy : strategies) {
    for (const std::string& dtype : dtypes) {
      for (const int64_t layers : o.depths) {
        study.rows.push_back(measure(study, strategy, layers, dtype));
        const Found& r = study.rows.back();
        say_progress(fmt::format("{:<20} {:<6} {:>6} {:>12.3g} {:>12.3g} {:>12.3g} {:>12.3g}",
                                 r.strategy, r.dtype, r.layers, r.streams, r.stored.relative,
                                 r.f64.relative, r.rounding));
      }
    }
  }
  out.write("reversible.csv", csv_of(study));
  out.draw("errors", plot_of(study, strategies, dtypes));
  out.say_files();
  return 0;
}

}  // namespace longspan
