#include "app/step.h"

#include <algorithm>
#include <cmath>

#include "app/pictures.h"
#include "app/run.h"
#include "app/runs/samples.h"
#include "app/tasks/table.h"
#include "app/training_steps.h"
#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/backends.h"
#include "core/error.h"
#include "core/graph.h"
#include "models/capabilities.h"
#include "models/evaluate.h"
#include "models/scoring.h"
#include "nn/memory_policy.h"
#include "nn/reversible.h"
#include "ops/elementwise.h"
#include "ops/patterns/layout_cache.h"
#include "train/config.h"
#include "train/gradient_fold.h"
#include "train/segments.h"
#include "train/weight_average.h"

namespace longspan {
namespace {

/// What a run holds until the backward pass of a batch ends.
struct HeldByPass {
  LanguageModel::Losses losses;
  std::vector<Tensor> batch;  // of a recorded step; else only the graph holds its tokens
};

/// Returns the task whose forward pass stands for the steps of a configuration: its own, or the
/// first that the model suits where nobody has said what it is for.
std::shared_ptr<const Task> planned_task(const RunConfig& c, const LanguageModel& model) {
  if (c.of_task->suits(model)) return {c.of_task.get(), [](const Task*) {}};
  return make_task(task_for(model, c.task));
}

/// Returns the forward pass of the steps of a run, or of its validation, on synthetic inputs.
///   segment  tokens of a sample, where it is one sequence
std::function<Tensor()> forward_of(const LanguageModel& model, const RunConfig& c, Device device,
                                   bool recorded, HeldByPass& held,
                                   std::vector<SegmentMemory>& memories, Pass pass,
                                   int64_t segment) {
  const auto passes = static_cast<double>(c.accumulate * c.optimizer.update_period);
  const double by = pass.training ? make_loss_scale(c).value() / passes : 1;  // 1: no product
  return [=, &model, &c, &held, &memories, task = planned_task(c, model)]() -> Tensor {
    held.losses = task->synthetic_loss({.model = model,
                                        .config = c,
                                        .device = device,
                                        .length = segment,
                                        .memory = memories.front(),
                                        .pass = pass,
                                        .kept = recorded ? &held.batch : nullptr});
    const Tensor loss = held.losses.total();
    return by != 1 ? mul(loss, by) : loss;
  };
}

/// Runs batches of validation as a run does: of no more rows than a step. Each reads the memory of
/// the one before. A memory of projected keys and values grows, and moves to new memory of twice
/// the size that it needs then (nn/attention/decoding_memory.h), until it moves from one of full
/// size to another. Where segments are much shorter than it is, longer ones stand for them.
void validate_on(const LanguageModel& model, const RunConfig& c, Device device) {
  const NoGrad off;
  const Scoring exact;
  HeldByPass held;
  std::vector<SegmentMemory> memory;
  memory.push_back(scoring_memory(model, c.batch));
  int64_t length = c.length, segments = 2;
  if (memory.front().projected) {
    const int64_t rows = memory_length(model);
    length = std::max(length, std::min(rows / 12, model.max_length()));
    segments = 8 + 4 * rows / length;
  }
  const auto forward = forward_of(model, c, device, false, held, memory,
                                  Pass{.split = DividedScoring::split()}, length);
  for (int64_t i = 0; i < segments; ++i) {
    forward();
    memory.front() = std::move(held.losses.memory);
    held = {};
  }
}

/// The memories of the batches of a step. As in training steps they are replaced together, after
/// the update. The next memories exist also for passes that are not run.
struct MemoriesOfStep {
  MemoriesOfStep(const LanguageModel& model, const RunConfig& c, Device device, int64_t passes)
      : left_out(static_cast<size_t>(c.accumulate - passes)) {
    const auto live = [&] { return memory_tracker(device).live()[Category::memory]; };
    const int64_t before = live();
    for (int64_t i = 0; i < c.accumulate; ++i) now.push_back(empty_memory(model, c.batch));
    bytes = live() - before;
    for (size_t i = 0; i < left_out; ++i) next.push_back(empty_memory(model, c.batch));
  }
  void pass_on() {
    now[0] = std::move(next.back());
    next.resize(left_out);
  }
  size_t left_out;
  int64_t bytes = 0;  // of `now`
  std::vector<SegmentMemory> now, next;
};

/// What passes leave allocated for the passes after them, as in training steps.
struct PassResults {
  PassResults(LanguageModel& of, const RunConfig& c, Device device, int64_t passes)
      : model(of), memories(of, c, device, passes) {}
  void after_pass() {
    bytes = memory::block_bytes(held.losses.loss.nbytes());
    bytes *= 1 + std::ssize(held.losses.auxiliary);
    add_statistics(statistics, std::move(held.losses.statistics));
    memories.next.push_back(std::move(held.losses.memory));
    held = {};
  }
  void after_update() {
    end_step(model, 0, {}, statistics);
    statistics.clear();
    memories.pass_on();
  }
  LanguageModel& model;
  HeldByPass held;
  std::vector<Statistics> statistics;
  MemoriesOfStep memories;
  int64_t bytes = 0;  // of the losses of a pass
};

/// Bytes of the optimizer's states of all parameters, which the first of several processes gathers.
int64_t bytes_of_states(const RunConfig& c, const TensorList& weights) {
  int64_t bytes = 0;
  TensorList plain;
  for (const NamedTensor& w : weights) {
    Tensor meta = Tensor::empty(w.tensor.shape(), w.tensor.dtype(), meta_device);
    set_requires_grad(meta);
    plain.push_back({w.name, meta, w.clip_group});
  }
  for (const NamedTensor& t : make_optimizer(c.optimizer, plain)->state()) {
    bytes += memory::block_bytes(t.tensor.nbytes());
  }
  return bytes;
}

void apply(RunConfig& config, const StepShape& shape) {
  set_fields(*config.model, Settings{{"memory", Json(shape.memory), "--memory"},
                                     {"chunks", Json(shape.chunks), "--chunks"},
                                     {"n_layer", Json(shape.layers), "--layers"}});
  config.length = shape.length;
  config.batch = shape.batch;
  config.follow_length();
}

}  // namespace

StepShape shape_of(RunConfig& c) {
  const Json fields = to_json(*c.model);
  for (const char* name : {"n_layer", "memory", "chunks"}) {
    require(fields.find(name) != nullptr, "memory",
            "the configuration of {} has no field \"{}\"; expected its visit() to name n_layer, "
            "memory (a MemoryPolicy) and chunks (a member of the policy), which predictions vary; "
            "docs/your-own-program.md",
            c.model_name, name);
  }
  StepShape s;
  s.memory = fields["memory"].string();
  s.chunks = fields["chunks"].integer();
  s.layers = fields["n_layer"].integer();
  s.length = c.length;
  s.batch = c.batch;
  return s;
}

StepPlanner::~StepPlanner() { apply(config_, own_); }

StepMemory StepPlanner::step(const StepShape& shape, Device device, const Inspect& inspect,
                             bool macs) const {
  apply(config_, shape);
  if (config_.processes == 1) return step_of(nullptr, device, inspect, macs);
  // The first process gathers checkpoints; the last owns the parameters that backward passes reach
  // first, while most is saved. Of many processes, the others are like their neighbours.
  const auto size = static_cast<int>(config_.processes);
  constexpr int few = 8;
  StepMemory largest;
  for (int rank = 0; rank < size; ++rank) {
    if (size > few && rank > 0 && rank + 1 < size) continue;
    const auto ranks = Communicator::rehearsed(rank, size);
    SharedTraining shared(*ranks, static_cast<int>(config_.ranks.sequence));
    StepMemory m = step_of(&shared, device, inspect, macs);
    if (rank == 0 || m.peak() > largest.peak()) largest = std::move(m);
  }
  return largest;
}

namespace {

/// Counts what a process sends in a step, of whose rounds of batches fewer may be rehearsed.
class SentInStep {
 public:
  explicit SentInStep(const SharedTraining* shared) : shared_(shared) {}
  void begin() {
    before_ = before_round_ = now();
    rounds_ = 0;
  }
  void after_round() {
    const Sent all = now();
    of_round_ = {all.bytes - before_round_.bytes, all.messages - before_round_.messages};
    before_round_ = all;
    ++rounds_;
  }
  void end(StepMemory& m, int64_t rounds) const {
    const Sent all = now();
    m.sent_bytes = all.bytes - before_.bytes + (rounds - rounds_) * of_round_.bytes;
    m.sent_messages = all.messages - before_.messages + (rounds - rounds_) * of_round_.messages;
  }

 private:
  struct Sent {
    int64_t bytes = 0, messages = 0;
  };
  Sent now() const {
    return shared_ != nullptr ? Sent{shared_->sent_bytes(), shared_->sent_messages()} : Sent{};
  }
  const SharedTraining* shared_;
  Sent before_, before_round_, of_round_;
  int64_t rounds_ = 0;
};

/// What a run has between steps.
struct BetweenSteps {
  LanguageModel& model;
  const RunConfig& c;
  Device device;
  const Usage& base;
  std::optional<WeightAverage>& average;
  const SharedTraining* shared;
  int64_t gathered;  ///< bytes of what the first of several processes gathers for a checkpoint
};

/// Adds the peaks of validation, of pictures, and of a checkpoint of several processes.
void add_peaks_between_steps(StepMemory& m, const BetweenSteps& b) {
  const int64_t states =
      memory_tracker(b.device).live()[Category::optimizer] - b.base[Category::optimizer];
  const bool waits = b.c.optimizer.update_period > 1;
  const int64_t beside = m.optimizer - states + m.graph + (waits ? m.gradient : 0);
  const auto peak_of = [&](const std::function<void()>& work) {
    return beside + measure_peak(b.device, b.base, work);
  };
  m.evaluation_peak = peak_of([&] {
    const WeightAverage::Instead instead(b.average);
    std::optional<DividedScoring> divided;
    if (b.shared != nullptr) divided.emplace(b.shared->ranks, b.shared->sequence);
    validate_on(b.model, b.c, b.device);
  });
  // The first process draws.
  const bool draws = b.shared == nullptr || b.shared->ranks.rank() == 0;
  if (draws) {
    m.picture_peak = peak_of([&] {
      rehearse_pictures(b.model, b.c.length);
      const WeightAverage::Instead instead(b.average);
      rehearse_sample(b.model, b.c.length);
    });
  }
  if (b.gathered > 0) {
    m.evaluation_peak = std::max(m.evaluation_peak, peak_of([] {}) + b.gathered);
  }
}

}  // namespace

StepMemory StepPlanner::step_of(SharedTraining* shared, Device device, const Inspect& inspect,
                                bool macs) const {
  const RunConfig& c = config_;
  OwnedParameters* const owned = shared != nullptr ? &shared->owned : nullptr;
  const Usage base = memory_tracker(device).live();
  const std::unique_ptr<LanguageModel> model =
      c.model->build(Init{Generator{c.seed}.fork("init"), device});
  require_length(c, *model);
  require_sequence(c, *model);
  int64_t gathered = owned == nullptr || owned->ranks().rank() != 0
                         ? 0
                         : bytes_of_states(c, named_parameters(*model));
  const auto optimizer = make_optimizer(c.optimizer, named_parameters(*model), owned);
  std::optional<WeightAverage> average =
      average_of(c, owned != nullptr ? owned->parameters() : optimizer->parameters());
  const int64_t passes = inspect ? 1 : c.accumulate;
  PassResults results(*model, c, device, rehearsed_passes(passes, owned != nullptr));
  const bool waits = c.optimizer.update_period > 1;
  const bool graph = recorded_ && !inspect && !waits && owned == nullptr;
  const std::function<Tensor()> forward =
      forward_of(*model, c, device, graph, results.held, results.memories.now,
                 Pass{.training = true,
                      .gen = Generator{c.seed}.fork("step"),
                      .split = shared != nullptr ? shared->split() : nullptr},
                 c.length);
  const ReconstructionErrorMonitor inversion;  // as in training runs
  SentInStep sent(shared);
  MeasureOptions options{.clip = c.optimizer.clip,
                         .base = base,
                         .macs = macs,
                         .passes = passes,
                         .owned = owned,
                         .after_pass = [&] { results.after_pass(), sent.after_round(); },
                         .after_update = [&] { results.after_update(); },
                         .graph = graph};
  const auto round = [&] {
    if (owned != nullptr) {
      owned->begin(c.groups());
      owned->backward(forward());
    } else {
      backward(forward());
    }
    results.after_pass();
    results.memories.pass_on();
  };
  if (device != meta_device) measure_step(device, *optimizer, forward, options);
  if (owned != nullptr) {  // the first round is unlike all others
    round();
    optimizer->step(0);
  }
  // One round leaves gradients: of an earlier step that waits, or of the batches before the
  // inspected one.
  if (waits || passes < c.accumulate) round();
  Usage before = memory_tracker(device).live();
  for (size_t i = 0; i < before.bytes.size(); ++i) before.bytes[i] -= base.bytes[i];
  std::optional<MemoryTrace> trace;
  if (inspect) options.trace = &trace.emplace(device);
  sent.begin();
  StepMemory m = measure_step(device, *optimizer, forward, options);
  sent.end(m, passes);
  if (graph) {
    // What the recording reads, and copies of its results.
    m.hold(Category::memory, 2 * results.memories.bytes);
    m.hold(Category::other, (c.accumulate - 1) * results.bytes);
  }
  if (inspect) {
    inspect(*trace, before);
    return m;
  }
  results.memories.next.clear();
  if (gathered > 0) {
    gathered += waits ? m.parameter : 0;
    gathered += results.memories.bytes * (c.groups() - 1);
  }
  add_peaks_between_steps(m, {*model, c, device, base, average, shared, gathered});
  return m;
}

namespace {

/// A model that trains on synthetic inputs.
struct Rehearsal {
  Rehearsal(const RunConfig& config, Device device)
      : c(config),
        model(c.model->build(Init{Generator{c.seed}.fork("init"), device})),
        optimizer(make_optimizer(c.optimizer, named_parameters(*model), nullptr)),
        results(*model, c, device, c.accumulate) {
    require_length(c, *model);
    forward = forward_of(*model, c, device, false, results.held, results.memories.now,
                         Pass{.training = true, .gen = Generator{c.seed}.fork("step")}, c.length);
  }

  void step() {
    std::optional<GradientFold> fold;
    if (c.accumulate > 1) fold.emplace(optimizer->parameters(), c.accumulate);
    for (int64_t i = 0; i < c.accumulate; ++i) {
      Tensor loss;
      {
        const Phase phase("forward");
        loss = forward();
      }
      const Phase phase("backward");
      if (fold) {
        fold->backward(loss);
      } else {
        backward(loss);
      }
      loss = {};
      results.after_pass();
    }
    const Phase phase("update");
    clip_gradients(*optimizer, c.optimizer.clip);
    optimizer->step(0);
    results.after_update();
  }

  const RunConfig& c;
  std::unique_ptr<LanguageModel> model;
  std::unique_ptr<Optimizer> optimizer;
  PassResults results;
  std::function<Tensor()> forward;
  ReconstructionErrorMonitor inversion;  // as in training runs
};

}  // namespace

std::function<void()> StepPlanner::steps_on(const StepShape& shape, Device device) const {
  apply(config_, shape);
  const auto rehearsal = std::make_shared<Rehearsal>(config_, device);
  return [rehearsal] { rehearsal->step(); };
}

std::unique_ptr<LanguageModel> StepPlanner::build(const StepShape& shape, const Init& init) const {
  apply(config_, shape);
  std::unique_ptr<LanguageModel> model = config_.model->build(init);
  require_length(config_, *model);
  return model;
}

Tensor StepPlanner::synthetic_loss(const LanguageModel& model, Device device,
                                   const Pass& pass) const {
  const SegmentMemory memory = empty_memory(model, config_.batch);
  return planned_task(config_, model)
      ->synthetic_loss({.model = model,
                        .config = config_,
                        .device = device,
                        .length = config_.length,
                        .memory = memory,
                        .pass = pass})
      .total();
}

std::optional<StepMemory> StepPlanner::predict(const StepShape& shape, std::string* reason,
                                               bool macs) const {
  try {
    return step(shape, meta_device, {}, macs);
  } catch (const Error& e) {
    if (reason != nullptr) *reason = e.what();
    return std::nullopt;
  }
}

int64_t StepPlanner::largest(StepShape shape, int64_t StepShape::*part, int64_t unit, int64_t limit,
                             int64_t budget) const {
  const auto peak = [&](int64_t size) {
    shape.*part = size;
    const std::optional<StepMemory> m = predict(shape, nullptr, false);
    return m ? m->peak() : -1;
  };
  return largest_fitting(peak, shape.*part, unit, limit, budget);
}

int64_t StepPlanner::longest_possible() const {
  apply(config_, own_);
  const int64_t longest = max_input_length(*config_.model->build(Init{.meta = true}));
  constexpr int64_t extended = 65'536;  // planning some layouts takes minutes beyond this length
  if (config_.free_positions.empty() || longest >= extended) return longest;
  StepShape shape = own_;
  shape.length = extended;
  try {
    apply(config_, shape);
  } catch (const ValueError&) {  // a grid whose axes the user must choose
    apply(config_, own_);
    return longest;
  }
  apply(config_, own_);
  return extended;
}

bool StepPlanner::reversible_layers() const {
  apply(config_, own_);
  return ask<ReversibleLayers>(*config_.model->build(Init{.meta = true})) != nullptr;
}

std::string StepPlanner::remark() const {
  apply(config_, own_);
  return longspan::remark(*config_.model->build(Init{.meta = true}), config_.length);
}

int64_t StepPlanner::memory_of_streams(Device device) const {
  apply(config_, own_);
  const auto model = config_.model->build(Init{.device = device});
  const auto live = [&] { return memory_tracker(device).live()[Category::memory]; };
  const int64_t before = live();
  const SegmentMemory memory = empty_memory(*model, config_.batch);
  return live() - before;
}

int64_t longest_tried(const StepPlanner& planner) {
  constexpr int64_t enough = int64_t{1} << 22;
  return std::min(planner.longest_possible(), enough);
}

Largest largest_within(const StepPlanner& planner, const StepShape& shape, int64_t whole_budget) {
  const int64_t budget = whole_budget - process_bytes(planner.config());
  const int64_t length = longest_tried(planner), unit = std::min<int64_t>(64, shape.length);
  return {planner.largest(shape, &StepShape::length, unit, length, budget),
          planner.largest(shape, &StepShape::layers, 1, most_layers, budget)};
}

DType element_of(const Json& fields) {
  const Json* precision = fields.find("precision");
  const bool narrow = precision != nullptr && precision->string() != "f32";
  return !narrow ? DType::f32 : precision->string() == "bf16" ? DType::bf16 : DType::f16;
}

int64_t usual_chunks(const RunConfig& config) {
  const Json fields = to_json(*config.model);
  const Json *inner = fields.find("d_ff"), *width = fields.find("d_model");
  if (inner == nullptr || width == nullptr) return 2;
  return std::max<int64_t>(2, (inner->integer() + width->integer() - 1) / width->integer());
}

std::string Strategy::name() const {
  return shape.chunks > 1 ? fmt::format("{}, {} chunks", shape.memory, shape.chunks) : shape.memory;
}

std::string Strategy::options() const {
  std::string text = "--memory " + shape.memory;
  if (shape.chunks > 1) text += fmt::format(" --chunks {}", shape.chunks);
  return text;
}

std::vector<Strategy> strategies(const StepPlanner& planner) {
  const StepShape& own = planner.own();
  std::vector<std::string> names = {"standard", "lean", "selective", "checkpoint"};
  const auto root = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(own.layers))));
  if (root > 1) names.push_back(fmt::format("checkpoint:{}", root));
  names.insert(names.end(), {"reversible", "reversible:exact"});
  if (std::find(names.begin(), names.end(), own.memory) == names.end()) names.push_back(own.memory);
  std::vector<Strategy> all;
  for (const std::string& name : names) {
    Strategy s;
    s.shape = own;
    s.shape.memory = name;
    s.memory = planner.predict(s.shape, &s.refused);
    all.push_back(std::move(s));
  }
  return all;
}

namespace {

/// Bytes that each block saves with the strategy `standard`, and all bytes saved outside blocks.
struct BlockBytes {
  std::vector<BlockCost> blocks;
  int64_t outside = 0;
};

BlockBytes block_bytes_of(const StepPlanner& planner, StepShape shape) {
  BlockBytes bytes;
  bytes.blocks.resize(static_cast<size_t>(shape.layers));
  shape.memory = "standard";
  const auto inspect = [](const MemoryTrace&, const Usage&) {};
  for (const SavedTerm& t : planner.step(shape, meta_device, inspect).terms) {
    constexpr std::string_view layers = "layers.";
    const size_t at = t.part.find(layers);
    const int64_t block = at == std::string::npos
                              ? shape.layers
                              : std::strtoll(t.part.c_str() + at + layers.size(), nullptr, 10);
    (block < shape.layers ? bytes.blocks[static_cast<size_t>(block)].kept : bytes.outside) +=
        t.bytes;
  }
  shape.memory = "checkpoint";
  const std::optional<StepMemory> cut = planner.predict(shape, nullptr, false);
  const int64_t inputs = cut ? cut->saved - bytes.outside : 0;
  for (BlockCost& b : bytes.blocks) b.input = inputs / shape.layers;
  return bytes;
}

/// Returns checkpoint segments of blocks that fit the budget: plan_segments() with the memory that
/// the rest of a step leaves, which a binary search over predictions finds.
std::optional<Strategy> cut_to(const StepPlanner& planner, StepShape shape, int64_t budget) {
  const BlockBytes bytes = block_bytes_of(planner, shape);
  int64_t low = 0, high = bytes.outside;
  for (const BlockCost& b : bytes.blocks) high += b.kept;
  std::optional<Strategy> best;
  for (int tries = 0; tries < 16 && low < high; ++tries) {
    const int64_t kept = low + (high - low + 1) / 2;
    const std::vector<int64_t> sizes = plan_segments(bytes.blocks, kept);
    if (sizes == std::vector<int64_t>{0}) {
      low = kept;
      continue;
    }
    MemoryPolicy policy;
    if (!sizes.empty()) policy.kind = MemoryKind::checkpoint;
    policy.cut = sizes;
    shape.memory = policy.text();
    Strategy s{shape, {}, ""};
    s.memory = planner.predict(shape, &s.refused, false);
    if (s.memory && s.memory->peak() <= budget) {
      low = kept;
      best = s;
    } else {
      high = kept - 1;
    }
  }
  if (best) best->memory = planner.predict(best->shape);
  return best;
}

bool is_reversible_name(const std::string& memory) { return memory.starts_with("reversible"); }

/// The strategies that may replace a configuration's own.
struct Candidates {
  Candidates(const StepPlanner& planner, Choice choice)
      : own(planner.own().memory),
        from(choice),
        natural(planner.reversible_layers()),
        narrow(element_of(to_json(*planner.config().model)) != DType::f32) {}

  /// In bf16, the streams of reversible layers drift unless they are rounded to a fixed grid. That
  /// is another function, even if the layers are reversible ones.
  bool allow(const std::string& memory) const {
    if (memory == own) return true;
    const bool all_equal = natural && own.find(":exact") == std::string::npos;
    if (!is_reversible_name(memory)) return !is_reversible_name(own) || all_equal;
    const bool exact = memory == "reversible:exact";
    return exact == narrow && (from == Choice::any || (all_equal && !exact));
  }

  std::string own;
  Choice from;
  bool natural, narrow;
};

/// Returns the strategies that may be chosen, each also with chunked feed-forward layers.
std::vector<Strategy> candidates(const StepPlanner& planner, int64_t budget, Choice from) {
  const StepShape& own = planner.own();
  const Candidates may(planner, from);
  std::vector<Strategy> all;
  if (may.allow("checkpoint")) {
    std::optional<Strategy> cut = cut_to(planner, own, budget);
    if (cut) all.push_back(std::move(*cut));
  }
  for (Strategy& s : strategies(planner)) {
    if (!may.allow(s.shape.memory)) continue;
    all.push_back(s);
    if (own.chunks > 1) continue;
    s.shape.chunks = usual_chunks(planner.config());
    s.memory = planner.predict(s.shape, &s.refused);
    all.push_back(std::move(s));
  }
  return all;
}

/// Returns the strategy with the least recomputation; ties go to the first, which saves more.
const Strategy* cheapest_within(const std::vector<Strategy>& all, int64_t budget) {
  const Strategy* best = nullptr;
  for (const Strategy& s : all) {
    if (!s.memory || s.memory->peak() > budget) continue;
    if (best == nullptr || s.memory->again < best->memory->again) best = &s;
  }
  return best;
}

const Strategy* smallest(const std::vector<Strategy>& all) {
  const Strategy* best = nullptr;
  for (const Strategy& s : all) {
    if (s.memory && (best == nullptr || s.memory->peak() < best->memory->peak())) best = &s;
  }
  return best;
}

/// Returns up to three shapes that fit, as command lines: fewer tokens, samples or layers, or two
/// of these if one is not enough.
std::vector<std::string> offers_within(const StepPlanner& planner, const StepShape& least,
                                       int64_t budget) {
  struct Offer {
    int64_t StepShape::*part;
    int64_t StepShape::*halved;
  };
  constexpr auto length = &StepShape::length, batch = &StepShape::batch,
                 layers = &StepShape::layers;
  constexpr Offer ways[] = {{length, nullptr}, {batch, nullptr}, {layers, nullptr},
                            {length, batch},   {length, layers}, {batch, layers}};
  std::vector<std::string> offers;
  for (const Offer& way : ways) {
    if (offers.size() == 3) break;
    StepShape shape = least;
    if (way.halved != nullptr) shape.*way.halved = std::max<int64_t>(1, shape.*way.halved / 2);
    const int64_t unit = way.part == length ? std::min<int64_t>(64, shape.length) : 1;
    shape.*way.part = planner.largest(shape, way.part, unit, shape.*way.part, budget);
    if (shape.*way.part == 0) continue;
    std::string text = Strategy{shape, {}, ""}.options();
    if (shape.length != least.length) text += fmt::format(" --length {}", shape.length);
    if (shape.batch != least.batch) text += fmt::format(" --batch {}", shape.batch);
    if (shape.layers != least.layers) text += fmt::format(" --layers {}", shape.layers);
    if (std::find(offers.begin(), offers.end(), text) == offers.end()) offers.push_back(text);
  }
  return offers;
}

/// Throws, with suggestions that would fit, if no strategy fits the bytes that a budget leaves for
/// tensors.
[[noreturn]] void refuse(const StepPlanner& planner, const Strategy& least, int64_t budget,
                         Choice from) {
  const int64_t process = process_bytes(planner.config());
  std::string text = fmt::format(
      "a step needs {} at least ({}), and the budget is {}{}; ", bytes_text(least.memory->peak()),
      least.options(), bytes_text(budget + process),
      process > 0 ? fmt::format(", of which the process itself takes {}", bytes_text(process))
                  : "");
  const std::vector<Strategy> any =
      from == Choice::same ? candidates(planner, budget, Choice::any) : std::vector<Strategy>{};
  if (const Strategy* other = cheapest_within(any, budget)) {
    text += fmt::format(
        "as another network, of two streams, it would fit with {} (or "
        "--memory auto:reversible); ",
        other->options());
  }
  const std::vector<std::string> offers = offers_within(planner, least.shape, budget);
  text += offers.empty() ? "fewer tokens, samples or layers are not enough: expected a smaller "
                           "model.d_model or vocabulary"
                         : "expected a larger one, or one of";
  for (const std::string& offer : offers) text += "\n  " + offer;
  fail<ValueError>("--budget", "{}", text);
}

/// Whether the device of a run supports recording steps.
bool has_recordings(const RunConfig& config) {
  return begin_recording.has(parse_device(config.device).kind);
}

}  // namespace

int64_t process_bytes(const RunConfig& config) {
  constexpr int64_t on_the_host = int64_t{48} << 20;
  return parse_device(config.device).kind == DeviceKind::cpu ? on_the_host : 0;
}

Strategy choose_strategy(RunConfig& config, int64_t whole_budget, Choice from) {
  const int64_t budget = whole_budget - process_bytes(config);
  const auto choose = [&] {
    const StepPlanner planner(config, config.graph && has_recordings(config));
    std::vector<Strategy> all;
    if (from == Choice::own) {
      Strategy own{planner.own(), {}, ""};
      own.memory = planner.predict(own.shape, &own.refused);
      all = {own};
    } else {
      all = candidates(planner, budget, from);
    }
    const Strategy* least = smallest(all);
    require(least != nullptr, "--budget", "{}", all[0].refused);
    const Strategy* best = cheapest_within(all, budget);
    if (best == nullptr) refuse(planner, *least, budget, from);
    return *best;
  };
  Strategy best = choose();
  if (budget < whole_budget) config.tensor_limit = budget;
  config.planned_peak = best.memory->peak();
  apply(config, best.shape);
  clear_layout_cache();  // of what was tried
  return best;
}

std::string reversible_note(const StepPlanner& planner) {
  const Candidates of(planner, Choice::same);
  if (!of.natural) {
    return "reversible: another network than standard, of two streams, with the same parameters; "
           "auto takes it only as auto:reversible";
  }
  if (of.narrow) {
    return "reversible: the function of standard, but inverting beside layers in fewer bits than "
           "f32 drifts; reversible:exact rounds the streams: auto takes it only as auto:reversible";
  }
  return "reversible: the function of standard, with gradients equal to rounding, not to the bit; "
         "auto may take it. reversible:exact rounds the streams";
}

std::string largest_terms(const StepPlanner& planner) {
  const auto inspect = [](const MemoryTrace&, const Usage&) {};
  const StepMemory m = planner.step(planner.own(), meta_device, inspect);
  const TermNames names{planner.own().batch, planner.own().length, DType::f32, {}, nullptr};
  std::string text = fmt::format(
      "a step needs {} forward, {} backward and {} in the update; of what "
      "the forward pass keeps most are",
      bytes_text(m.forward_peak), bytes_text(m.backward_peak), bytes_text(m.update_peak));
  std::vector<SavedTerm> terms = collect_terms(m.terms, names);
  constexpr size_t shown = 6;
  if (terms.size() > shown) terms.resize(shown);
  for (const SavedTerm& t : terms) {
    text += fmt::format("\n  {:>10}  {} x {}{} kept by {} in {}", bytes_text(t.count * t.bytes),
                        t.count, name_of(t.dtype), to_string(t.shape), t.op, t.part);
  }
  return text;
}

std::optional<Choice> take_auto(Settings& settings) {
  const Setting* last = last_setting(settings, "model.memory");
  if (last == nullptr) return std::nullopt;
  const auto automatic = [](const Json& value) {
    return value.is_string() && value.string().starts_with("auto");
  };
  if (!automatic(last->value)) return std::nullopt;
  const bool any = last->value == Json("auto:reversible");
  require(any || last->value == Json("auto"), "--memory",
          "got {}; expected auto, auto:reversible or a policy", last->value.string());
  std::erase_if(settings,
                [&](const Setting& s) { return s.key == "model.memory" && automatic(s.value); });
  return any ? Choice::any : Choice::same;
}

}  // namespace longspan
