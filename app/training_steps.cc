#include "app/training_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "core/error.h"
#include "core/graph.h"
#include "core/ranks/packed.h"
#include "models/evaluate.h"
#include "nn/module_list.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "train/gradient_fold.h"

namespace longspan {

namespace {

/// Returns the loss of a batch, multiplied by `by`.
Tensor total_of(const LanguageModel::Losses& result, double by) {
  Tensor loss = result.total();
  if (by != 1) loss = mul(loss, by);  // which replaces the sum
  return loss;
}

/// Adds a value to the number of that name.
void add_to(NamedNumbers& numbers, const std::string& name, double value) {
  const auto at = std::find_if(numbers.begin(), numbers.end(),
                               [&](const auto& known) { return known.first == name; });
  if (at == numbers.end()) {
    numbers.emplace_back(name, value);
  } else {
    at->second += value;
  }
}

/// Appends the tensors of a memory, each once.
void append(const SegmentMemory& memory, std::vector<Tensor>& all) {
  replaced(memory, [&](const std::string& /*name*/, const Tensor& x) {
    all.push_back(x);
    return x;
  });
}

/// Returns the memory with the tensors that append() gave, from `at` on.
SegmentMemory taken(const SegmentMemory& memory, std::vector<Tensor>::const_iterator& at) {
  return replaced(memory, [&](const std::string&, const Tensor&) { return *at++; });
}

}  // namespace

StepResult TrainingSteps::gradients(int64_t step, int64_t last, double factor) {
  const RunConfig& c = run_.config;
  if (!c.optimizer.period().waits(step)) {
    statistics_.clear();  // of a step whose update was left out
    targets_ = 0;
  }
  next_.clear();
  begin_streams(step);
  const Pass pass{.training = true,
                  .gen = run_.generator().fork("step").fork(uint64_t(step)),
                  .progress = static_cast<float>(step) / static_cast<float>(last)};
  const bool waits = c.optimizer.update_period > 1;
  if (shared_ != nullptr) refusal_ = "several processes share them";
  if (waits) refusal_ = "gradients of several steps are added up (optimizer.update_period)";
  return c.graph && !waits && shared_ == nullptr ? recorded(step, pass, factor)
                                                 : run(step, pass, factor);
}

void TrainingSteps::update(int64_t step, double lr) {
  const Generator gen = run_.generator().fork("after_step").fork(uint64_t(step));
  end_.prepare(step, gen, std::exchange(statistics_, {}));
  graph_.update(lr);
  if (shared_ != nullptr) shared_->owned.spread();
  end_.run();
  pass_memories_on();
}

TrainingSteps::Waiting TrainingSteps::waiting() const {
  Waiting w{.unit = unit_of(run_.config, task_data_), .all = targets_};
  for (const auto& [name, module] : modules_.modules) {
    for (const Statistics& s : statistics_) {
      for (size_t i = 0; s.of == module && i < s.sums.size(); ++i) {
        w.statistics.push_back({name + Waiting::mark + std::to_string(i), contiguous(s.sums[i])});
      }
    }
  }
  return w;
}

void TrainingSteps::wait_for_update(const Waiting& w) {
  targets_ = w.all;
  std::unordered_map<std::string, TensorList> sums_of;  // a checkpoint orders them otherwise
  for (const NamedTensor& t : w.statistics) {
    sums_of[t.name.substr(0, t.name.rfind(Waiting::mark))].push_back(t);
  }
  for (const auto& [name, module] : modules_.modules) {
    const auto found = sums_of.find(name);
    if (found == sums_of.end()) continue;
    Statistics s{.of = module, .sums = std::vector<Tensor>(found->second.size())};
    for (const NamedTensor& t : found->second) {
      const size_t i = std::stoul(t.name.substr(t.name.rfind('.') + 1));
      require<IoError>(i < s.sums.size(), "state", "\"{}\" is one of {} sums", t.name,
                       s.sums.size());
      s.sums[i] = t.tensor;
    }
    statistics_.push_back(std::move(s));
    sums_of.erase(found);
  }
  require<IoError>(sums_of.empty(), "state", "the checkpoint has sums of \"{}\", which is no layer",
                   sums_of.empty() ? "" : sums_of.begin()->first);
}

void TrainingSteps::pass_memories_on() {
  if (!next_.empty()) memories_ = std::move(next_);
  next_.clear();
}

// In place of the old memories, which would otherwise live until the end of the step. A step that
// fails can be taken again: streams that have begun only begin once more.
void TrainingSteps::begin_streams(int64_t step) {
  for (size_t i = 0; i < memories_.size(); ++i) {
    if (!is_own_batch(shared_, static_cast<int64_t>(i))) continue;
    const Tensor reset =
        task_data_.reset(step * run_.config.batches_per_step() + static_cast<int64_t>(i));
    if (!reset) continue;
    memories_[i] = forget(memories_[i], reset);
  }
}

const SegmentMemory& TrainingSteps::memory_of(int64_t i) const {
  static const SegmentMemory none;
  return memories_.empty() ? none : memories_[static_cast<size_t>(i)];
}

double TrainingSteps::loss_of(int64_t step) const {
  const NoGrad off;
  const int64_t own = shared_ == nullptr ? 0 : shared_->index();
  Pass pass;
  if (shared_ != nullptr) pass.split = shared_->split();
  const double loss =
      task_data_.forward(step * run_.config.batches_per_step() + own, memory_of(own), pass)
          .losses.loss.item();
  return shared_ == nullptr ? loss : sum_over(*shared_->group, loss, "the loss of a batch");
}

double TrainingSteps::unit_of(const RunConfig& c, const TaskData& data) {
  if (c.batches_per_step() == 1 && c.optimizer.update_period == 1) return 0;
  return static_cast<double>(data.targets_of_batch(c));
}

// The loss of a step is the mean over all targets of its batches together: each batch is weighted
// by its number of targets. The total is known after the last batch only; until then a number that
// depends on no batch is the unit. The gradients of several steps before an update are added up in
// the same way.
StepResult TrainingSteps::run(int64_t step, const Pass& pass, double factor) {
  const RunConfig& c = run_.config;
  StepResult done;
  const auto steps = static_cast<double>(c.optimizer.period().at(step));
  const int64_t batches = c.batches_per_step();
  double unit = unit_of(c, task_data_), all = 0;
  std::optional<GradientFold> fold;
  if (shared_ != nullptr) {
    shared_->owned.begin(batches);
  } else {
    fold.emplace(parameters_, batches);
  }
  if (!memories_.empty()) next_.resize(memories_.size());
  for (int64_t i = 0; i < batches; ++i) {
    if (!is_own_batch(shared_, i)) continue;
    auto [result, tokens, counted] = [&] {
      const Phase phase("forward");
      return task_data_.forward(step * batches + i, memory_of(i), pass_of(pass, i));
    }();
    if (unit == 0) unit = static_cast<double>(counted);
    const double weight = unit > 0 ? share() * (static_cast<double>(counted) / unit) : 0;
    const Tensor total = total_of(result, weight / steps * factor);
    const Phase phase("backward");
    if (fold) {
      fold->backward(total);
    } else {
      shared_->owned.backward(total);
    }
    if (!memories_.empty()) next_[static_cast<size_t>(i)] = std::move(result.memory);
    BatchReport own{.loss = result.loss.item(),
                    .tokens = tokens,
                    .counted = counted,
                    .peak = memory_tracker(run_.device).peak().total()};
    for (const AuxiliaryLoss& a : result.auxiliary)
      own.auxiliary.emplace_back(a.name, a.value.item());
    own.statistics = std::move(result.statistics);
    add_reports(std::move(own), unit, done, all);
  }
  targets_ += all;
  done.scored = all > 0;
  done.trains = targets_ > 0;
  const auto count = static_cast<double>(batches);
  const double own = all > 0 ? count * unit / all : 1;
  if (done.trains) done.rescale = count * steps * unit / targets_;
  done.loss *= own;
  for (auto& [name, value] : done.auxiliary) value *= own;
  return done;
}

std::string SharedTraining::open(Device device) {
  if (device.kind != DeviceKind::cuda) return {};
  std::string problem = ranks.open(device);
  if (problem.empty()) problem = group->open(device);
  if (!problem.empty()) problem = "the devices exchange by way of the host: " + problem;
  return problem;
}

bool is_own_batch(const SharedTraining* shared, int64_t i) {
  return shared == nullptr || i % shared->owned.groups() == shared->index();
}

Pass TrainingSteps::pass_of(const Pass& step, int64_t batch) const {
  Pass pass = step.at(static_cast<uint64_t>(batch));
  if (shared_ != nullptr) pass.split = shared_->split();
  return pass;
}

void TrainingSteps::add_reports(BatchReport own, double unit, StepResult& done, double& all) {
  if (shared_ == nullptr) return add_report(std::move(own), unit, done, all);
  std::vector<BatchReport> reports =
      exchanged(shared_->ranks, std::move(own), modules_, run_.device);
  const auto together = static_cast<size_t>(shared_->sequence.size());
  for (size_t first = 0; first < reports.size(); first += together) {
    add_report(sum_of_shares(std::span(reports).subspan(first, together)), unit, done, all);
  }
}

void TrainingSteps::add_report(BatchReport report, double unit, StepResult& done, double& all) {
  const auto counted = static_cast<double>(report.counted);
  const double weight = unit > 0 ? share() * (counted / unit) : 0;
  all += counted;
  add_statistics(statistics_, std::move(report.statistics));
  done.loss += report.loss * weight;
  for (const auto& [name, value] : report.auxiliary) add_to(done.auxiliary, name, value * weight);
  done.tokens += report.tokens;
  if (shared_ != nullptr) done.peak = std::max(done.peak, report.peak);
}

// Takes the batches of a step whose inputs are the tokens and targets of each batch, then the
// tensors of the memories. Returns the losses, the statistics and the tensors of the next memories.
std::vector<Tensor> TrainingSteps::record(const std::vector<Tensor>& in,
                                          const std::vector<SegmentMemory>& before,
                                          const Pass& pass, double factor) {
  std::vector<Tensor> results, after;
  std::vector<Statistics> sums;
  recorded_.clear();
  auto memory = in.begin() + 2 * std::ssize(before);
  GradientFold fold(parameters_, std::ssize(before));
  for (size_t i = 0; i < before.size(); ++i) {
    auto result =
        losses_of(run_, {in[2 * i], in[2 * i + 1]}, taken(before[i], memory), pass.at(uint64_t{i}));
    append(result.memory, after);
    fold.backward(total_of(result, share() * factor));
    add_statistics(sums, std::move(result.statistics));
    results.push_back(result.loss.detach());
    recorded_.emplace_back();
    for (const AuxiliaryLoss& a : result.auxiliary) {
      results.push_back(a.value.detach());
      recorded_.push_back(a.name);
    }
  }
  counted_.clear();
  for (const Statistics& s : sums) {
    counted_.push_back({s.of, s.sums.size()});
    results.insert(results.end(), s.sums.begin(), s.sums.end());
  }
  results.insert(results.end(), after.begin(), after.end());
  return results;
}

// As run(), by a recorded step, whose batches have equal weights.
StepResult TrainingSteps::recorded(int64_t step, const Pass& pass, double factor) {
  const RunConfig& c = run_.config;
  StepResult done;
  std::vector<Tensor> inputs, kept;
  std::vector<SegmentMemory> before;
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
    before.push_back(memory_of(i));
    append(before.back(), kept);
  }
  const auto batches = static_cast<size_t>(c.accumulate);
  inputs.insert(inputs.end(), kept.begin(), kept.end());
  if (std::exchange(factor_, factor) != factor)
    graph_.forget();  // the factor is part of the recorded step
  const auto body = [&](const std::vector<Tensor>& in, Generator gen) {
    Pass own = pass;
    own.gen = gen;
    return record(in, before, own, factor);
  };
  if (task_data_.batches_may_lack_targets()) {
    done.scored = false;
    for (size_t i = 0; i < batches; ++i) done.scored |= count_targets(inputs[2 * i + 1]) > 0;
    done.trains = done.scored;
  }
  const std::vector<Tensor> results = graph_.gradients(inputs, pass.gen, body);
  for (size_t i = 0; i < recorded_.size(); ++i) {
    const double value = results[i].item() * share();
    if (recorded_[i].empty()) {
      done.loss += value;
    } else {
      add_to(done.auxiliary, recorded_[i], value);
    }
  }
  auto sum = results.begin() + std::ssize(recorded_);
  for (const auto& [of, count] : counted_) {
    const auto end = sum + static_cast<std::ptrdiff_t>(count);
    statistics_.push_back({of, {sum, end}});
    sum = end;
  }
  // The next step overwrites the results, and a new recording frees them.
  std::vector<Tensor> after;
  for (; sum != results.end(); ++sum) {
    after.push_back(clone(*sum));
    after.back().set_category(Category::memory);
  }
  auto memory = after.cbegin();
  for (size_t i = 0; i < memories_.size(); ++i) {
    next_.push_back(taken(before[i], memory));
    next_[i].position += inputs[2 * i].dim(1);
  }
  return done;
}

}  // namespace longspan
