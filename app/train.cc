#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <utility>
#include <vector>

#include "app/commands.h"
#include "app/provenance.h"
#include "app/rate.h"
#include "app/run_folder.h"
#include "app/step.h"
#include "autograd/checkpoint_scope.h"
#include "autograd/engine.h"
#include "autograd/mode.h"
#include "core/error.h"
#include "core/graph.h"
#include "data/io/files.h"
#include "nn/reversible.h"
#include "ops/elementwise.h"
#include "train/log.h"
#include "train/optimizer.h"
#include "train/state.h"
#include "train/step_graph.h"

namespace longspan {
namespace {

/// Relative error of the inversion of reversible layers beyond which a run says so.
constexpr double kDrift = 1e-2;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct StepResult {
  double loss = 0;  // in nats
  int64_t tokens = 0;
  double rescale = 1;  // what the gradients are still to be multiplied by
};

/// The forward and backward passes of the steps of a run.
class Steps {
 public:
  Steps(const TrainingRun& run, const TaskData& task_data, Optimizer& optimizer)
      : run_(run), task_data_(task_data), graph_(run.device, optimizer) {}

  /// Of step `step` of `last`, with gradients multiplied by `factor`.
  StepResult gradients(int64_t step, int64_t last, double factor) {
    const RunConfig& c = run_.config;
    const Pass pass{.training = true,
                    .gen = run_.generator().fork("step").fork(uint64_t(step)),
                    .progress = static_cast<float>(step) / static_cast<float>(last)};
    return c.graph ? recorded(step, pass, factor) : run(step, pass, factor);
  }

  /// The loss of the batch that step `step` begins with, without a gradient.
  double loss_of(int64_t step) const {
    const NoGrad off;
    return task_data_.forward(step * run_.config.accumulate, Pass{}).losses.loss.item();
  }

  void update(double lr) { graph_.update(lr); }
  /// Why passes, or updates, are not submitted as a whole.
  const std::string& refusal() const { return refusal_.empty() ? graph_.refusal() : refusal_; }
  const std::string& update_refusal() const { return graph_.update_refusal(); }

 private:
  /// The loss is the mean over all that counts in the batches together: each weighs as many targets
  /// as it has. How many all have is known after the last; until then the unit is the first's.
  StepResult run(int64_t step, const Pass& pass, double factor) const {
    const RunConfig& c = run_.config;
    StepResult done;
    double unit = 0, all = 0;
    for (int64_t i = 0; i < c.accumulate; ++i) {
      const auto [result, tokens, counted] =
          task_data_.forward(step * c.accumulate + i, pass.at(i));
      if (unit == 0) unit = static_cast<double>(counted);
      all += static_cast<double>(counted);
      const double weight = unit > 0 ? share() * (static_cast<double>(counted) / unit) : 0;
      done.loss += backward_of(result, weight * factor).item() * weight;
      done.tokens += tokens;
    }
    if (all > 0) done.rescale = static_cast<double>(c.accumulate) * unit / all;
    done.loss *= done.rescale;
    return done;
  }

  /// The same where all batches weigh alike.
  StepResult recorded(int64_t step, const Pass& pass, double factor) {
    const RunConfig& c = run_.config;
    StepResult done;
    std::vector<Tensor> inputs;
    for (int64_t i = 0; i < c.accumulate; ++i) {
      const auto batch = task_data_.batch(step * c.accumulate + i);
      if (!batch.has_value()) {
        refusal_ = fmt::format(
            "the batches of {} differ in shape, are more than tokens and targets, or weigh "
            "differently in a step",
            c.task);
        return run(step, pass, factor);
      }
      done.tokens += batch->tokens.numel();
      inputs.insert(inputs.end(), {batch->tokens, batch->targets});
    }
    if (std::exchange(factor_, factor) != factor) graph_.forget();  // it is a part of the step
    const auto body = [&](const std::vector<Tensor>& in, Generator gen) {
      std::vector<Tensor> losses;
      for (size_t i = 0; i < in.size() / 2; ++i) {
        Pass own = pass;
        own.gen = gen;
        const auto result = losses_of(run_, {in[2 * i], in[2 * i + 1]}, own.at(uint64_t{i}));
        losses.push_back(backward_of(result, share() * factor));
      }
      return losses;
    };
    for (const Tensor& loss : graph_.gradients(inputs, pass.gen, body)) {
      done.loss += loss.item() * share();
    }
    return done;
  }

  double share() const { return 1.0 / static_cast<double>(run_.config.accumulate); }

  /// Adds the gradients of a batch, multiplied; returns its loss.
  Tensor backward_of(const LanguageModel::Losses& result, double by) const {
    Tensor loss = result.auxiliary ? add(result.loss, result.auxiliary) : result.loss;
    if (by != 1) loss = mul(loss, by);
    backward(loss);
    if (!result.states.empty()) {
      graph::refuse("absorb", "the model takes statistics in on the host");
      run_.model->absorb(result.states);
    }
    return result.loss.detach();
  }

  const TrainingRun& run_;
  const TaskData& task_data_;
  StepGraph graph_;
  std::string refusal_;  // why nothing is recorded
  double factor_ = 1;
};

/// A line for each of the tensors that take most, to go on with a message.
std::string what_takes_it(RunConfig& c) {
  try {
    return "\n" + largest_terms(StepPlanner(c));
  } catch (const std::exception&) {  // the message is good without
    return {};
  }
}

/// Where a run is to begin, by its command line.
struct Beginning {
  std::string out;
  std::string checkpoint = {};  // empty where it starts from nothing
  std::string newest = {};      // checkpoint in the folder
  bool resume = false, chosen = false, rewarm = false, other_data = false;
};

bool is_on(const CommandLine& line, std::string_view flag) {
  const std::string* value = line.value(flag);
  return value != nullptr && *value == "true";
}

Beginning beginning_of(const CommandLine& line) {
  const std::string* folder = line.value("--out");
  require(folder != nullptr && !folder->empty(), "train",
          "no run folder given; expected --out DIR");
  Beginning b{.out = *folder,
              .resume = is_on(line, "--resume"),
              .rewarm = is_on(line, "--rewarm"),
              .other_data = is_on(line, "--other-data")};
  const std::string* step = line.value("--step");
  b.chosen = step != nullptr;
  for (const auto& [name, given] :
       {std::pair{"--step", b.chosen}, {"--rewarm", b.rewarm}, {"--other-data", b.other_data}}) {
    require(b.resume || !given, name, "is for runs that go on; expected --resume too{}",
            b.chosen ? ", or --steps for the number of steps" : "");
  }
  require_own_folder(b.out, "train");
  b.newest = newest_checkpoint(b.out);
  if (!b.resume) require_no_run(b.out);
  b.checkpoint = choose_checkpoint(b.out, step);
  return b;
}

/// The number of a setting of config.toml, 0 where there is none.
double number_of(const Settings& settings, std::string_view key) {
  const Setting* setting = last_setting(settings, key);
  return setting != nullptr && setting->value.is_number() ? setting->value.number() : 0;
}

/// The validation score that a run's rows have of a step already, as text; "" where there is none.
std::string validation_of(const std::string& out, int64_t step) {
  std::string found;
  for (const Json& row : read_rows(out + "/metrics.jsonl")) {
    const Json* score = row.find("valid_bpb");
    if (score != nullptr && row["step"] == Json(step)) found = to_string(*score);
  }
  return found;
}

/// "nan" whatever its sign, "inf" or "-inf".
std::string nonfinite_text(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{}", value);
}

/// The norm of the gradients, clipped and rescaled; nothing where a step in f16 has to be skipped.
/// Throws ValueError where they are not finite.
std::optional<double> take_gradients(Optimizer& optimizer, LossScale& scale, double rescale,
                                     double clip) {
  if (!scale.accept(optimizer)) return std::nullopt;
  optimizer.scale_gradients(rescale);
  return clip_gradients(optimizer, clip);
}

}  // namespace

int train_command(int argc, const char* const* argv) {
  const Flag own[] = {
      {"--out", "", "the run folder"},
      {"--resume", "", "go on from the newest checkpoint in --out", true},
      {"--step", "", "with --resume: go on from the checkpoint of this step"},
      {"--rewarm", "", "with --resume: begin the schedule of the learning rate anew", true},
      {"--other-data", "", "with --resume: go on with other data than before", true},
      {"--budget", "",
       "bytes that a step may need, as 4GiB: choose the --memory that fits and runs "
       "the least again"}};
  const CommandLine line = read_command_line(
      argc, argv, own,
      "longspan train --model NAME --data bytes=FILE --out DIR: trains a model and leaves a run "
      "folder with checkpoints, figures and pictures.");
  const Beginning beginning = beginning_of(line);
  const std::string& out = beginning.out;
  const std::string& checkpoint = beginning.checkpoint;

  // A run that goes on has the configuration that it had, where the command line does not change
  // it.
  Settings settings;
  const std::string config_path = out + "/config.toml";
  if (beginning.resume && kind_of_path(config_path, "train") != PathKind::nothing) {
    settings = read_toml(config_path);
  }
  const double planned_seconds = number_of(settings, "seconds");
  require_same_model(settings, line.settings, out);
  settings.insert(settings.end(), line.settings.begin(), line.settings.end());
  const std::optional<Choice> automatic = take_auto(settings);
  require(
      automatic != Choice::any || checkpoint.empty(), "--memory",
      "auto:reversible may choose another network than that of the run in {}; expected auto, or "
      "the policy it has",
      out);
  RunConfig config = make_config(settings);
  to_toml(to_json(config));  // says now what cannot be written to config.toml
  set_process(config);       // what a step needs depends on it
  const std::string* budget = line.value("--budget");
  require(!automatic || budget != nullptr, "--memory",
          "auto needs to know what may be used; expected --budget SIZE, as 4GiB");
  std::string chosen;
  if (budget != nullptr) {
    const bool given = last_setting(settings, "model.memory") != nullptr;
    const Choice from = automatic.value_or(given ? Choice::own : Choice::same);
    const Strategy s = choose_strategy(config, parse_bytes(*budget, "--budget"), from);
    chosen =
        fmt::format("{}: a step needs {} of {}, and runs {:.2f} forward passes again", s.options(),
                    bytes_text(s.memory->peak()), *budget, s.memory->extra_forward());
    if (from != Choice::own && s.shape.memory.starts_with("reversible")) {
      chosen += "\n" + reversible_note(StepPlanner(config));
    }
  }
  TrainingRun run(std::move(config), out);
  RunConfig& c = run.config;

  const std::unique_ptr<TaskData> task_data = open_task_data(run);
  task_data->prepare();
  const TensorList weights = named_parameters(*run.model);
  const std::unique_ptr<Optimizer> optimizer = make_optimizer(c.optimizer, weights);
  LossScale loss_scale = make_loss_scale(c);

  const Provenance provenance = provenance_of(c);
  Position at;
  ScheduleState schedule;
  std::vector<std::string> remarks;  // on what the run goes on with
  if (!checkpoint.empty()) {
    const Json values = read_state(checkpoint, weights, optimizer->state());
    at = Position::read(values, checkpoint);
    loss_scale.restore(values);
    require_finite(out, checkpoint, weights, optimizer->state());
    remarks = compare_provenance(values, provenance, checkpoint, beginning.other_data);
    schedule = ScheduleState::read(values, at.seconds, planned_seconds);
    if (beginning.rewarm) schedule = {.start = at.step, .began = at.seconds, .rate = schedule.rate};
  }
  const LossUnit unit = task_data->loss_unit();
  at.unit = unit;
  const bool started = checkpoint.empty() && !c.start.from.empty();
  const Started from = started ? start_from_run(run) : Started{};
  require(c.steps == 0 || at.step <= c.steps, "steps",
          "got {}, and the run in {} has {} behind it; expected as many or more", c.steps, out,
          at.step);

  const StopSignal stop;  // from here on something is written
  const FolderLock lock(out, "train");
  require<IoError>(newest_checkpoint(out) == beginning.newest, "train",
                   "another process has just written {}: start again", newest_checkpoint(out));
  const std::string aside = beginning.chosen ? set_aside(out, at.step) : "";
  Log log(out, {.resume_step = checkpoint.empty() ? -1 : at.step});
  log.write_config(to_json(c));
  for (const char* part : {"/checkpoints", "/pictures"}) sweep(out + part);
  for (const std::string& warning : task_data->warnings()) log.say(warning);
  const int64_t to_validate = task_data->size("valid");
  log.say(fmt::format("{}: {} parameters, {} {} to train on, {} to validate", c.model_name,
                      parameter_count(*run.model), task_data->size("train"), task_data->items(),
                      to_validate));
  if (c.matmul_library == MatmulLibrary::openblas) {
    log.say(fmt::format("products by {}: bits depend on it, and on the row's position",
                        openblas_description()));
  }
  if (!chosen.empty()) log.say(chosen);
  if (const std::string remark = run.model->remark(c.length); !remark.empty()) log.say(remark);
  if (started) log.say(fmt::format("starting from step {} of {}", from.step, c.start.from));
  if (const std::string remark = c.remark_on_positions(); !remark.empty()) log.say(remark);
  if (unit.per_target != 1) {
    log.say(fmt::format("a token stands for {:.3f} {}s; losses are nats per token", unit.per_target,
                        unit.name));
  }
  if (!from.heads.empty()) {
    log.say(fmt::format("drawn anew: {}", fmt::join(from.heads.begin(), from.heads.end(), ", ")));
  }
  LearningRate learning_rate(c, schedule, at.seconds);
  if (at.step > 0) log.say(fmt::format("continuing from step {}", at.step));
  if (!aside.empty()) log.say(fmt::format("what lay beyond step {} is in {}", at.step, aside));
  for (const std::string& remark : remarks) log.say(remark);
  if (at.step > 0 && at.step != c.steps) log.say(learning_rate.outlook(at.step));
  if (at.step > 0 && at.step == c.steps) log.say("no step is left: more with --steps");

  MemoryTracker& tracker = memory_tracker(run.device);
  tracker.reset_peak();
  at.see(tracker.peak());
  const Position first = at;
  const double begin = now();
  double paused = 0;  // time that is not training's
  double valid = std::nan("");
  double loss = 0, norm = 0, rate = 0, speed = 0;  // of the last step
  int64_t valid_step = -1;
  Checkpoints checkpoints(out, c.keep, weights, *optimizer, checkpoint.empty() ? -1 : at.step);
  Steps steps(run, *task_data, *optimizer);

  // A run may have been killed between a checkpoint and its validation, or after both.
  const std::string known_valid = checkpoint.empty() ? "" : validation_of(out, at.step);
  const bool owed =
      at.step > 0 && c.eval_every > 0 && at.step % c.eval_every == 0 && known_valid.empty();

  const auto save = [&] {
    Members values = at.values();
    for (const JsonMember& m : loss_scale.values()) values.push_back(m);
    values.emplace_back("schedule", learning_rate.state().value());
    for (const JsonMember& m : provenance.values()) values.push_back(m);
    checkpoints.save(at.step, values, rate);
  };
  const auto require_numbers = [&] {  // a score that nothing counts in is none either
    const double next = std::isfinite(valid) ? valid : steps.loss_of(at.step);
    if (!std::isfinite(next)) {
      checkpoints.diverged(
          fmt::format("after step {} the loss is {}", at.step, nonfinite_text(next)), rate);
    }
  };
  const auto validate = [&] {
    if (valid_step == at.step || to_validate == 0) return;
    at.see(tracker.peak());
    valid = task_data->bits("valid");
    tracker.reset_peak();
    valid_step = at.step;
    if (at.step != first.step || to_string(Json(valid)) != known_valid) {
      log.row(at.step, {{"valid_bpb", valid}, {"unit", unit.name}});
    }
    log.say(fmt::format("step {}: {:.4f} bits per {} on {} {} of validation", at.step, valid,
                        unit.name, to_validate, task_data->items()));
    require_numbers();
  };

  int64_t logged_step = at.step;
  ReconstructionErrorMonitor inversion;
  std::optional<autograd::CheckReplays> replays;
  if (c.check_replays) replays.emplace();
  std::string unsaid;  // why steps are not replayed, or updates are not, once it has been said
  const auto say_why_not = [&] {
    const bool steps_run = !steps.refusal().empty();
    const std::string& why = steps_run ? steps.refusal() : steps.update_refusal();
    if (why == unsaid) return;
    unsaid = why;
    log.say(fmt::format("{} run kernel by kernel: {}", steps_run ? "steps" : "updates", why));
  };
  bool drift_said = false;
  const auto log_step = [&] {
    if (logged_step == at.step) return;
    Members values{{"loss", loss},
                   {"bpb", unit.bits(loss)},
                   {"unit", unit.name},
                   {"gradient_norm", norm},
                   {"lr", rate},
                   {"tokens", at.tokens},
                   {"seconds", at.seconds},
                   {"tokens_per_second", speed},
                   {"peak_bytes", at.peak.total()}};
    if (inversion.inversions > 0) values.emplace_back("inversion_error", inversion.largest);
    log.row(at.step, values);
    if (inversion.largest > kDrift && !drift_said) {
      drift_said = true;
      log.say(
          fmt::format("inverting the layers ends {:.2g} beside their input, relative to it, and "
                      "gradients are no better: --memory reversible:exact, or reversible:K "
                      "with a small K, prevents it",
                      inversion.largest));
    }
    inversion.largest = 0;
    inversion.inversions = 0;  // replayed steps are not watched
    logged_step = at.step;
  };

  if (started || owed) {  // started: what the other run's parameters are worth here
    const double pause = now();
    validate();
    paused += now() - pause;
  }
  while (true) {
    const double elapsed = now() - begin;
    const bool enough = c.steps > 0 && at.step >= c.steps;
    const bool late = c.seconds > 0 && elapsed >= c.seconds;
    if (enough || late || stop.requested()) break;

    rate = learning_rate.at(at.step, elapsed);
    const StepResult done = [&] {
      std::optional<AnomalyMode> anomaly;
      if (c.anomaly) anomaly.emplace();
      try {
        return with_memory_for("train", [&] {
          return steps.gradients(at.step, learning_rate.last(), loss_scale.value());
        });
      } catch (const OutOfMemory& e) {
        throw OutOfMemory(e.what() + what_takes_it(c));
      }
    }();
    if (!std::isfinite(done.loss)) {
      log_step();
      checkpoints.diverged(
          fmt::format("the loss of step {} is {}", at.step + 1, nonfinite_text(done.loss)), rate);
    }
    const std::optional<double> taken = [&] {
      try {
        return take_gradients(*optimizer, loss_scale, done.rescale, c.optimizer.clip);
      } catch (const ValueError& e) {
        log_step();
        checkpoints.diverged(fmt::format("step {}: {}", at.step + 1, e.what()), rate);
      }
    }();
    loss = done.loss;
    norm = taken.value_or(std::nan(""));
    if (taken) {
      checkpoints.confirm(at.step);  // of before the update
      steps.update(rate);
    }
    if (c.graph) say_why_not();
    ++at.step;
    at.tokens += done.tokens;
    at.add(loss);
    at.see(tracker.peak());
    at.seconds = first.seconds + (now() - begin - paused);

    speed =
        static_cast<double>(at.tokens - first.tokens) / std::max(1e-9, at.seconds - first.seconds);
    if (at.step % c.log_every == 0 || at.step == c.steps) log_step();
    const double left_by_steps = c.steps > 0 ? static_cast<double>(c.steps - at.step) *
                                                   (at.seconds - first.seconds) /
                                                   static_cast<double>(at.step - first.step)
                                             : HUGE_VAL;
    const double left_by_time = c.seconds > 0 ? c.seconds - (now() - begin) : HUGE_VAL;
    log.show({.step = at.step,
              .steps = c.steps,
              .loss = loss,
              .unit = &unit,
              .gradient_norm = norm,
              .learning_rate = rate,
              .tokens_per_second = speed,
              .seconds_left = std::max(0.0, std::min(left_by_steps, left_by_time)),
              .peak_bytes = at.peak.total()},
             at.step == c.steps);
    const double pause = now();
    if (c.save_every > 0 && at.step % c.save_every == 0) save();
    if (c.eval_every > 0 && at.step % c.eval_every == 0) validate();
    paused += now() - pause;
  }
  if (stop.requested()) log.say(fmt::format("stopped after step {}", at.step));

  log_step();
  save();
  validate();
  if (at.step > first.step ||
      !checkpoint.empty()) {  // a kill may have come before the older ones went
    require_numbers();
    checkpoints.confirm(at.step);
  }
  if (at.step > 0 || valid_step >= 0) draw_loss(run, unit);
  draw_attention(run, *task_data);
  finish(out, summary(run, at, valid));
  return 0;
}

}  // namespace longspan
