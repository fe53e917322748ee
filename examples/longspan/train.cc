#include <chrono>
#include <cmath>
#include <deque>
#include <filesystem>

#include "autograd/engine.h"
#include "core/error.h"
#include "examples/longspan/commands.h"
#include "ops/elementwise.h"
#include "train/files.h"
#include "train/log.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "train/state.h"

namespace longspan {
namespace {

constexpr size_t recent_steps = 100;  // that train_bpb is the mean of

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// What a run goes on from besides tensors.
struct Position {
  int64_t step = 0;
  double seconds = 0;         ///< spent training, earlier parts of the run included
  std::deque<double> recent;  ///< losses of the last steps, in nats

  void add(double loss) {
    recent.push_back(loss);
    if (recent.size() > recent_steps) recent.pop_front();
  }
  double train_bpb() const {
    double sum = 0;
    for (const double loss : recent) sum += loss;
    return recent.empty() ? std::nan("") : bits(sum / static_cast<double>(recent.size()));
  }
  Members values() const {
    return {{"seconds", seconds},
            {"train_bpb", train_bpb()},
            {"recent", Json::Array(recent.begin(), recent.end())}};
  }
  static Position read(const Json& values) {
    Position p{values["step"].integer(), values["seconds"].number(), {}};
    for (const Json& loss : values["recent"].array()) p.recent.push_back(loss.number());
    return p;
  }
};

/// The learning rate of a step, were `steps` the last one.
double learning_rate(const RunConfig& c, int64_t step, int64_t steps) {
  const RunConfig::Schedule& s = c.schedule;
  const double peak = c.optimizer.lr;
  switch (s.name) {
    case ScheduleName::cosine:
      return Cosine{peak, s.warmup, steps, s.floor}(step);
    case ScheduleName::linear:
      return LinearDecay{peak, s.warmup, steps, s.floor}(step);
    case ScheduleName::inverse_sqrt:
      return InverseSqrt{peak, s.warmup}(step);
    case ScheduleName::step:
      return Stepwise{peak, s.warmup, s.every, s.factor}(step);
    case ScheduleName::constant:
      break;
  }
  return Constant{peak, s.warmup}(step);
}

std::unique_ptr<Optimizer> make_optimizer(const RunConfig::Optimizer& o,
                                          const TensorList& weights) {
  const AdamOptions adam{o.beta1, o.beta2, o.eps, o.weight_decay};
  switch (o.name) {
    case OptimizerName::adamw:
      return std::make_unique<AdamW>(decay_matrices(weights), adam);
    case OptimizerName::adafactor:
      return std::make_unique<Adafactor>(weights, AdafactorOptions{.weight_decay = o.weight_decay});
    case OptimizerName::adagrad:
      return std::make_unique<Adagrad>(weights, AdagradOptions{.weight_decay = o.weight_decay});
    case OptimizerName::sgd:
      return std::make_unique<Sgd>(weights, SgdOptions{o.momentum, o.weight_decay});
    case OptimizerName::adam:
      break;
  }
  return std::make_unique<Adam>(weights, adam);
}

/// f16 needs a factor on the loss; f32 and bf16 do not.
LossScale make_loss_scale(const RunConfig& c) {
  if (c.optimizer.loss_scale > 0) return LossScale::fixed(c.optimizer.loss_scale);
  const Json fields = to_json(*c.model);
  const Json* precision = fields.find("precision");
  const bool f16 = precision != nullptr && *precision == Json("f16");
  return f16 ? LossScale::dynamic() : LossScale::fixed(1);
}

/// The forward and backward passes of step `step` of `last`, with gradients multiplied by `factor`.
/// Returns the mean loss in nats.
double accumulate_gradients(const Run& run, const SegmentBatches& batches, int64_t step,
                            int64_t last, double factor) {
  const RunConfig& c = run.config;
  const Pass pass{.training = true,
                  .gen = run.generator().fork("step").fork(uint64_t(step)),
                  .progress = static_cast<float>(step) / static_cast<float>(last)};
  const double share = 1.0 / static_cast<double>(c.accumulate);
  double sum = 0;
  for (int64_t i = 0; i < c.accumulate; ++i) {
    const Batch batch = batches.at(step * c.accumulate + i);
    const LanguageModel::Losses result =
        run.model->loss(batch.tokens, batch.targets, run.model->empty_memory(c.batch), pass.at(i));
    Tensor loss = result.auxiliary ? add(result.loss, result.auxiliary) : result.loss;
    if (share * factor != 1) loss = mul(loss, share * factor);
    backward(loss);
    run.model->absorb(result.states);
    sum += result.loss.item() * share;
  }
  return sum;
}

}  // namespace

int train_command(int argc, const char* const* argv) {
  const Flag own[] = {{"--out", "", "the run folder"},
                      {"--resume", "", "go on from the newest checkpoint in --out", true}};
  const CommandLine line = read_command_line(
      argc, argv, own,
      "longspan train --model NAME --data bytes=FILE --out DIR: trains a model and leaves a run "
      "folder with checkpoints, figures and pictures.");
  const std::string* folder = line.value("--out");
  require(folder != nullptr && !folder->empty(), "train",
          "no run folder given; expected --out DIR");
  const std::string out = *folder;
  const std::string* resume_value = line.value("--resume");
  const bool resume = resume_value != nullptr && *resume_value == "true";
  const std::string checkpoint = newest_checkpoint(out);
  require(resume || checkpoint.empty(), "train",
          "{} holds a run already ({}): add --resume to go on with it, or choose another --out",
          out, checkpoint);

  // A run that goes on has the configuration that it had, where the command line does not change
  // it.
  Settings settings;
  const std::string config_path = out + "/config.toml";
  if (resume && std::filesystem::exists(config_path)) settings = read_toml(config_path);
  settings.insert(settings.end(), line.settings.begin(), line.settings.end());
  Run run(make_config(settings), out);
  RunConfig& c = run.config;

  const ByteCorpus corpus = run.corpus();
  const SegmentBatches batches(corpus.train(), c.batch, c.length, run.batches());
  const TensorList weights = named_parameters(*run.model);
  const std::unique_ptr<Optimizer> optimizer = make_optimizer(c.optimizer, weights);
  LossScale loss_scale = make_loss_scale(c);

  Position at;
  if (!checkpoint.empty()) {
    const Json values = read_state(checkpoint, weights, optimizer->state());
    at = Position::read(values);
    loss_scale.restore(values);
  }
  require(c.steps == 0 || at.step <= c.steps, "steps",
          "got {}, and the run in {} has {} behind it; expected more", c.steps, out, at.step);

  Log log(out, {.resume_step = checkpoint.empty() ? -1 : at.step});
  log.write_config(to_json(c));
  sweep(out + "/checkpoints");  // what a writer that was killed has left
  const int64_t parameters = parameter_count(*run.model);
  log.say(fmt::format("{}: {} parameters, {} bytes to train on, {} to validate", c.model_name,
                      parameters, corpus.train().size(), corpus.valid().size()));
  if (at.step > 0) log.say(fmt::format("going on from step {}", at.step));

  const StopSignal stop;
  MemoryTracker& tracker = memory_tracker(run.device);
  tracker.reset_peak();
  Usage peak = tracker.peak();
  const auto tokens_of = [&](int64_t steps) { return steps * c.accumulate * c.batch * c.length; };
  const double begin = now();
  const double seconds_before = at.seconds;
  double paused = 0;  // time that is not training's
  double valid = std::nan("");
  int64_t saved_step = checkpoint.empty() ? -1 : at.step, valid_step = -1;

  const auto save = [&] {
    if (saved_step == at.step) return;
    Members values = at.values();
    for (const JsonMember& m : loss_scale.values()) values.push_back(m);
    write_state(out, at.step, weights, optimizer->state(), values, static_cast<int>(c.keep));
    saved_step = at.step;
  };
  const auto validate = [&] {
    if (valid_step == at.step) return;
    if (tracker.peak().total() > peak.total()) peak = tracker.peak();
    valid = bits_per_byte(run, corpus.valid());
    valid_step = at.step;
    tracker.reset_peak();
    log.row(at.step, {{"valid_bpb", valid}});
  };

  const int64_t first = at.step;
  while (true) {
    const double elapsed = now() - begin;
    const bool enough = c.steps > 0 ? at.step >= c.steps : false;
    const bool late = c.seconds > 0 && elapsed >= c.seconds;
    if (enough || late || stop.requested()) break;

    // By time alone, the last step is the one that the pace so far leads to.
    int64_t last = c.steps;
    if (last == 0) {
      const double fraction = (seconds_before + elapsed) / (seconds_before + c.seconds);
      last = fraction > 0 ? static_cast<int64_t>(static_cast<double>(at.step) / fraction) : 0;
      last = std::max(last, at.step + 1);
    }
    const double rate = learning_rate(c, at.step, last);
    const double loss = accumulate_gradients(run, batches, at.step, last, loss_scale.value());
    require(std::isfinite(loss), "train",
            "the loss of step {} is {}; start again from an earlier checkpoint with a lower --lr",
            at.step, loss);
    double norm = std::nan("");
    if (loss_scale.accept(*optimizer)) {
      norm = clip_gradients(*optimizer, c.optimizer.clip);
      optimizer->step(rate);
    }
    ++at.step;
    at.add(loss);
    at.seconds = seconds_before + (now() - begin - paused);

    const double speed = static_cast<double>(tokens_of(at.step - first)) /
                         std::max(1e-9, at.seconds - seconds_before);
    const bool end = at.step == c.steps;
    if (at.step % c.log_every == 0 || end) {
      log.row(at.step, {{"loss", loss},
                        {"bpb", bits(loss)},
                        {"gradient_norm", norm},
                        {"lr", rate},
                        {"tokens", tokens_of(at.step)},
                        {"seconds", at.seconds},
                        {"tokens_per_second", speed},
                        {"peak_bytes", std::max(peak.total(), tracker.peak().total())}});
    }
    const double left_by_steps =
        c.steps > 0 ? static_cast<double>(tokens_of(c.steps - at.step)) / speed : HUGE_VAL;
    const double left_by_time = c.seconds > 0 ? c.seconds - (now() - begin) : HUGE_VAL;
    log.show({.step = at.step,
              .steps = c.steps,
              .loss = loss,
              .bits_per_byte = bits(loss),
              .gradient_norm = norm,
              .learning_rate = rate,
              .tokens_per_second = speed,
              .seconds_left = std::max(0.0, std::min(left_by_steps, left_by_time)),
              .peak_bytes = std::max(peak.total(), tracker.peak().total())},
             end);
    const double pause = now();
    if (c.save_every > 0 && at.step % c.save_every == 0) save();
    if (c.eval_every > 0 && at.step % c.eval_every == 0) {
      validate();
      log.say(fmt::format("step {}: {:.4f} bits per byte on {} bytes of validation", at.step, valid,
                          corpus.valid().size()));
    }
    paused += now() - pause;
  }
  if (stop.requested()) log.say(fmt::format("stopped after step {}", at.step));

  save();
  validate();
  log.say(fmt::format("step {}: {:.4f} bits per byte on {} bytes of validation", at.step, valid,
                      corpus.valid().size()));
  draw_loss(run);
  draw_attention(run, corpus.valid());
  finish(out, {.model = c.model_name,
               .parameters = parameters,
               .steps = at.step,
               .tokens = tokens_of(at.step),
               .train_bpb = at.train_bpb(),
               .valid_bpb = valid,
               .seconds = at.seconds,
               .peak = peak});
  return 0;
}

}  // namespace longspan
