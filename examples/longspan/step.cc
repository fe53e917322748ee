#include "examples/longspan/step.h"

#include <algorithm>
#include <cmath>

#include "autograd/engine.h"
#include "core/error.h"
#include "examples/longspan/run.h"
#include "ops/elementwise.h"
#include "train/config.h"

namespace longspan {
namespace {

constexpr int64_t default_target = 512;

/// Ids that every model has, as a batch of a run would be: i32[rows, length].
Tensor some_ids(int64_t rows, int64_t length, Device device) {
  std::vector<int32_t> ids(static_cast<size_t>(rows * length));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 13 + 5);
  Tensor x = Tensor::from(ids, {rows, length}, device);
  x.set_category(Category::data);
  return x;
}

/// The forward passes of the steps of a run, on made-up tokens.
std::function<Tensor()> forward_of(const LanguageModel& model, const RunConfig& c, Device device) {
  const int64_t longest = std::min(default_target, model.max_length());
  const bool sequence = model.objective() == Objective::sequence;
  const int64_t length = !sequence ? c.length : c.target_length > 0 ? c.target_length : longest;
  const Tensor tokens = some_ids(c.batch, length, device);
  const Tensor targets = some_ids(c.batch, length, device);
  const Tensor source = sequence ? some_ids(c.batch, c.length, device) : Tensor{};
  const Pass pass{.training = true, .gen = Generator{c.seed}.fork("step")};
  return [=, &model, batch = c.batch]() -> Tensor {
    const LanguageModel::Losses l =
        sequence ? model.sequence_loss({source}, tokens, targets, pass)
                 : model.loss(tokens, targets, model.empty_memory(batch), pass);
    return l.auxiliary ? add(l.loss, l.auxiliary) : l.loss;
  };
}

int64_t field_of(const Json& fields, const char* name, int64_t otherwise) {
  const Json* value = fields.find(name);
  return value == nullptr ? otherwise : value->integer();
}

/// What a step runs again, and then what it needs: of two strategies that fit the first is better.
bool cheaper(const StepMemory& a, const StepMemory& b) {
  if (a.again != b.again) return a.again < b.again;
  return a.peak() < b.peak();
}

}  // namespace

StepShape shape_of(RunConfig& c) {
  const Json fields = to_json(*c.model);
  StepShape s;
  s.memory = fields["memory"].string();
  s.chunks = field_of(fields, "chunks", 1);
  s.layers = fields["n_layer"].integer();
  s.length = c.length;
  s.batch = c.batch;
  return s;
}

void StepPlanner::apply(const StepShape& shape) const {
  Settings settings{{"memory", Json(shape.memory), "--memory"},
                    {"n_layer", Json(shape.layers), "--layers"}};
  if (to_json(*config_.model).find("chunks") != nullptr) {
    settings.push_back({"chunks", Json(shape.chunks), "--chunks"});
  }
  set_fields(*config_.model, settings);
  config_.length = shape.length;
  config_.batch = shape.batch;
}

StepMemory StepPlanner::step(
    const StepShape& shape, Device device,
    const std::function<void(const MemoryTrace&, const Usage&)>& look) const {
  apply(shape);
  const RunConfig& c = config_;
  const Usage base = memory_tracker(device).live();
  const std::unique_ptr<LanguageModel> model =
      c.model->build(Init{Generator{c.seed}.fork("init"), device});
  require_length(c, *model);
  const std::unique_ptr<Optimizer> optimizer =
      make_optimizer(c.optimizer, named_parameters(*model));
  const std::function<Tensor()> forward = forward_of(*model, c, device);
  if (device != plan_device) measure_step(device, *optimizer, forward, c.optimizer.clip, base);
  if (c.accumulate > 1) backward(forward());
  Usage before = memory_tracker(device).live();
  for (size_t i = 0; i < before.bytes.size(); ++i) before.bytes[i] -= base.bytes[i];
  std::optional<MemoryTrace> trace;
  if (look) trace.emplace(device);
  StepMemory m =
      measure_step(device, *optimizer, forward, c.optimizer.clip, base, trace ? &*trace : nullptr);
  if (look) look(*trace, before);
  return m;
}

std::optional<StepMemory> StepPlanner::predict(const StepShape& shape, std::string* reason) const {
  try {
    return step(shape);
  } catch (const Error& e) {
    if (reason != nullptr) *reason = e.what();
    return std::nullopt;
  }
}

/// Peaks are close to straight lines in length, batch and depth, so the next guess lies where the
/// line through the two points around the budget meets it.
int64_t StepPlanner::largest(StepShape shape, int64_t StepShape::*part, int64_t unit, int64_t limit,
                             int64_t budget) const {
  limit -= limit % unit;
  const auto peak = [&](int64_t size) {
    shape.*part = size;
    const std::optional<StepMemory> m = predict(shape);
    return m ? m->peak() : -1;
  };
  int64_t low = 0, low_bytes = 0, high = -1, high_bytes = 0;
  int64_t x = std::clamp(shape.*part / unit * unit, unit, limit);
  for (int tries = 0; tries < 40 && low < limit && low + unit != high; ++tries) {
    const int64_t bytes = peak(x);
    if (bytes < 0) return low;
    if (bytes <= budget) {
      const double slope = static_cast<double>(bytes - low_bytes) / static_cast<double>(x - low);
      const int64_t before = low;
      low = x;
      low_bytes = bytes;
      if (high < 0) {
        const double more = before > 0 && slope > 0 ? static_cast<double>(budget - bytes) / slope
                                                    : static_cast<double>(x);
        x = std::min(limit,
                     x + std::max(unit, static_cast<int64_t>(std::min(more, 1e15)) / unit * unit));
        continue;
      }
    } else {
      high = x;
      high_bytes = bytes;
    }
    if (low + unit >= high) break;
    const double share = low > 0 ? static_cast<double>(budget - low_bytes) /
                                       static_cast<double>(high_bytes - low_bytes)
                                 : 0.5;
    const int64_t guess = low + static_cast<int64_t>(share * static_cast<double>(high - low));
    x = std::clamp(guess / unit * unit, low + unit, high - unit);
  }
  return low;
}

int64_t StepPlanner::longest_possible() const {
  return config_.model->build(Init{.plan = true})->max_source_length();
}

std::string Strategy::name() const {
  return shape.chunks > 1 ? fmt::format("{}, {} chunks", shape.memory, shape.chunks) : shape.memory;
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

/// "--length 4096", for messages.
std::string setting(const char* flag, int64_t value) { return fmt::format("{} {}", flag, value); }

}  // namespace

Strategy choose_strategy(RunConfig& config, int64_t budget, bool any_strategy) {
  std::optional<Strategy> best, smallest;
  StepShape shape;
  std::vector<std::string> fits;
  {
    const StepPlanner planner(config);
    shape = planner.own();
    std::vector<Strategy> all;
    if (any_strategy) {
      all = strategies(planner);
    } else {
      Strategy own{shape, {}, ""};
      own.memory = planner.predict(shape, &own.refused);
      all = {own};
    }
    for (const Strategy& s : all) {
      if (!s.memory) continue;
      if (!smallest || s.memory->peak() < smallest->memory->peak()) smallest = s;
      const bool within = s.memory->peak() <= budget;
      if (within && (!best || cheaper(*s.memory, *best->memory))) best = s;
    }
    require(smallest.has_value(), "--budget", "no strategy builds this model: {}", all[0].refused);
    if (!best) {
      const StepShape& s = smallest->shape;
      const auto offer = [&](const char* flag, int64_t StepShape::*part, int64_t unit) {
        const int64_t n = planner.largest(s, part, unit, s.*part, budget);
        if (n > 0) fits.push_back(setting(flag, n));
      };
      offer("--length", &StepShape::length, std::min<int64_t>(64, s.length));
      offer("--batch", &StepShape::batch, 1);
      offer("--layers", &StepShape::layers, 1);
    }
  }
  if (!best) {
    std::string text;
    for (const std::string& f : fits) {
      text += fmt::format("\n  --memory {} {}", smallest->shape.memory, f);
    }
    fail<ValueError>("--budget",
                     "a step needs {} with {}, the least of all strategies; the budget is {}. {}{}",
                     bytes_text(smallest->memory->peak()), smallest->name(), bytes_text(budget),
                     fits.empty() ? "Its parameters alone pass that: choose a smaller model"
                                  : "These would fit:",
                     text);
  }
  set_fields(*config.model, {{"memory", Json(best->shape.memory), "--budget"}});
  return *best;
}

}  // namespace longspan
