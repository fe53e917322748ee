#include "app/training_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "core/graph.h"
#include "ops/elementwise.h"

namespace longspan {

namespace {

/// Adds the gradients of a batch, multiplied by `by`.
void backward_of(const LanguageModel::Losses& result, double by) {
  const Tensor loss = result.total();
  backward(by != 1 ? mul(loss, by) : loss);
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

}  // namespace

StepResult TrainingSteps::gradients(int64_t step, int64_t last, double factor) {
  const RunConfig& c = run_.config;
  statistics_.clear();  // of a step without an update
  const Pass pass{.training = true,
                  .gen = run_.generator().fork("step").fork(uint64_t(step)),
                  .progress = static_cast<float>(step) / static_cast<float>(last)};
  return c.graph ? recorded(step, pass, factor) : run(step, pass, factor);
}

void TrainingSteps::update(int64_t step, double lr) {
  const Generator gen = run_.generator().fork("after_step").fork(uint64_t(step));
  EndOfStep end(*run_.model, step, gen, std::move(statistics_));
  statistics_.clear();
  graph_.update(lr);
  end.run();
}

double TrainingSteps::loss_of(int64_t step) const {
  const NoGrad off;
  return task_data_.forward(step * run_.config.accumulate, Pass{}).losses.loss.item();
}

// The loss of a step is the mean over all targets of its batches together: each batch is weighted
// by its number of targets. The total is known after the last batch only; until then the number of
// the first batch is the unit.
StepResult TrainingSteps::run(int64_t step, const Pass& pass, double factor) {
  const RunConfig& c = run_.config;
  StepResult done;
  double unit = 0, all = 0;
  for (int64_t i = 0; i < c.accumulate; ++i) {
    auto [result, tokens, counted] = task_data_.forward(step * c.accumulate + i, pass.at(i));
    if (unit == 0) unit = static_cast<double>(counted);
    all += static_cast<double>(counted);
    const double weight = unit > 0 ? share() * (static_cast<double>(counted) / unit) : 0;
    backward_of(result, weight * factor);
    add_statistics(statistics_, std::move(result.statistics));
    done.loss += result.loss.item() * weight;
    for (const AuxiliaryLoss& a : result.auxiliary) {
      add_to(done.auxiliary, a.name, a.value.item() * weight);
    }
    done.tokens += tokens;
  }
  if (all > 0) done.rescale = static_cast<double>(c.accumulate) * unit / all;
  done.loss *= done.rescale;
  for (auto& [name, value] : done.auxiliary) value *= done.rescale;
  return done;
}

// Does the same on a recorded step, whose batches all have the same weight.
StepResult TrainingSteps::recorded(int64_t step, const Pass& pass, double factor) {
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
  if (std::exchange(factor_, factor) != factor)
    graph_.forget();  // the factor is part of the recorded step
  const auto body = [&](const std::vector<Tensor>& in, Generator gen) {
    std::vector<Tensor> results;
    std::vector<Statistics> sums;
    recorded_.clear();
    for (size_t i = 0; i < in.size() / 2; ++i) {
      Pass own = pass;
      own.gen = gen;
      auto result = losses_of(run_, {in[2 * i], in[2 * i + 1]}, own.at(uint64_t{i}));
      backward_of(result, share() * factor);
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
    return results;
  };
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
  return done;
}

}  // namespace longspan
