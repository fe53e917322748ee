#include "train/gradient_fold.h"

#include <gtest/gtest.h>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "core/error.h"
#include "core/memory.h"
#include "models/all/registry.h"
#include "models/capabilities.h"
#include "nn/module.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "train/config.h"

namespace longspan::test {
namespace {

using Values = std::vector<std::vector<float>>;  // of each parameter; empty: none

/// The gradients of the parameters, which lose them.
Values taken(const TensorList& parameters) {
  Values all;
  for (const NamedTensor& p : parameters) {
    all.push_back(grad(p.tensor) ? grad(p.tensor).to_vector<float>() : std::vector<float>{});
    set_grad(p.tensor, {});
  }
  return all;
}

void add(Values& sum, const Values& other) {
  if (sum.empty()) sum.resize(other.size());
  for (size_t p = 0; p < other.size(); ++p) {
    if (sum[p].empty()) {
      sum[p] = other[p];
      continue;
    }
    for (size_t k = 0; k < other[p].size(); ++k) sum[p][k] += other[p][k];
  }
}

/// The law: batches by themselves, in groups of 8 from the left, then the groups, then what waits.
Values expected_sum(const std::vector<Values>& batches, const Values& waiting) {
  Values groups, all = waiting;
  for (size_t begin = 0; begin < batches.size(); begin += 8) {
    Values group;
    for (size_t i = begin; i < std::min(begin + 8, batches.size()); ++i) add(group, batches[i]);
    add(groups, group);
  }
  add(all, groups);
  return all;
}

/// A small net whose first weight is read twice and whose last by odd batches alone.
struct Net {
  Net() {
    const auto weight = [this](const char* name, int64_t n) {
      Tensor w = uniform({n, n}, Generator{1}.fork(parameters.size()), -1, 1);
      set_requires_grad(w);
      parameters.push_back({name, w});
    };
    weight("a", 5);
    weight("b", 5);
    weight("c", 5);
  }
  Tensor loss(int64_t i) const {
    const Tensor x = uniform({3, 5}, Generator{2}.fork(static_cast<uint64_t>(i)));
    Tensor y = matmul(exp(matmul(matmul(x, parameters[0].tensor), parameters[1].tensor)),
                      parameters[0].tensor);
    if (i % 2 == 1) y = matmul(y, parameters[2].tensor);
    return mean(y);
  }
  TensorList parameters;
};

TEST(GradientFold, SumsBatchesByThemselvesAndInGroups) {
  for (const int64_t count : {1, 2, 3, 7, 8, 9, 10, 16, 17, 26}) {
    for (const bool waits : {false, true}) {
      SCOPED_TRACE(fmt::format("{} batches, {}", count, waits));
      const Net net;
      std::vector<Values> alone;
      for (int64_t i = 0; i < count; ++i) {
        backward(net.loss(i));
        alone.push_back(taken(net.parameters));
      }
      Values waiting;
      if (waits) {
        backward(net.loss(77));
        backward(net.loss(78));
        waiting = taken(net.parameters);
        for (size_t p = 0; p < waiting.size(); ++p) {
          set_grad(net.parameters[p].tensor, Tensor::from(waiting[p], {5, 5}));
        }
      }
      GradientFold fold(net.parameters, count);
      for (int64_t i = 0; i < count; ++i) fold.backward(net.loss(i));
      EXPECT_EQ(taken(net.parameters), expected_sum(alone, waiting));
      EXPECT_THROW(fold.backward(net.loss(0)), ValueError);
    }
  }
}

TEST(GradientFold, NeverWritesWhatACallerHolds) {
  const Net net;
  const Tensor mine = zeros_like(net.parameters[0].tensor);
  set_grad(net.parameters[0].tensor, mine);
  GradientFold fold(net.parameters, 1);
  fold.backward(net.loss(0));
  for (const float x : mine.to_vector<float>()) EXPECT_EQ(x, 0);
  EXPECT_FALSE(same_bits(grad(net.parameters[0].tensor), mine));
}

TEST(GradientFold, GivesBackWhatWaitsIfAStepIsInterrupted) {
  const Net net;
  backward(net.loss(0));
  const Values before = taken(net.parameters);
  backward(net.loss(0));
  {
    GradientFold fold(net.parameters, 3);
    fold.backward(net.loss(1));
    EXPECT_FALSE(grad(net.parameters[0].tensor));
  }
  EXPECT_EQ(taken(net.parameters), before);
}

TEST(GradientFold, ParametersThatAreFrozenHaveNoPart) {
  Net net;
  set_requires_grad(net.parameters[1].tensor, false);
  GradientFold fold(net.parameters, 2);
  for (int64_t i = 0; i < 2; ++i) fold.backward(net.loss(i));
  EXPECT_TRUE(grad(net.parameters[0].tensor));
  EXPECT_FALSE(grad(net.parameters[1].tensor));
}

/// The largest number of bytes in gradients during a step of so many batches.
int64_t peak_of(int64_t batches, int64_t group, bool waits) {
  const Net net;
  if (waits) {
    backward(net.loss(1));
  }
  memory_tracker({}).reset_peak();
  const Usage before = memory_tracker({}).live();
  GradientFold fold(net.parameters, batches, group);
  for (int64_t i = 0; i < batches; ++i) fold.backward(net.loss(2 * i + 1));
  return memory_tracker({}).peak().total() - before.total();
}

TEST(GradientFold, ARehearsalHoldsAsMuchAsTheStep) {
  EXPECT_EQ(GradientFold::rehearsal(1), 1);
  EXPECT_EQ(GradientFold::rehearsal(100'000), 9);
  for (int64_t batches = 1; batches < 30; ++batches) {
    for (const bool waits : {false, true}) {
      EXPECT_EQ(peak_of(batches, 8, waits),
                peak_of(GradientFold::rehearsal(batches), GradientFold::rehearsed_group, waits))
          << batches << " batches, " << waits;
    }
  }
  EXPECT_LT(peak_of(1, 8, false), peak_of(8, 8, false));
  EXPECT_LT(peak_of(8, 8, false), peak_of(17, 8, false));
}

TEST(GradientFold, HoldsTwoCopiesOnlyOfGradientsThatAreOpen) {
  constexpr int64_t n = 16'384, bytes = n * 4, count = 8;
  TensorList parameters;
  for (int64_t i = 0; i < count; ++i) {
    Tensor w = zeros({n});
    set_requires_grad(w);
    parameters.push_back({std::to_string(i), w});
  }
  const auto loss = [&] {
    Tensor sums;
    for (const NamedTensor& p : parameters) {
      const Tensor one = sum(p.tensor);
      sums = sums ? add(sums, one) : one;
    }
    return sums;
  };
  GradientFold fold(parameters, 2);
  fold.backward(loss());
  const Tensor second = loss();
  memory_tracker({}).reset_peak();
  const int64_t before = memory_tracker({}).live().total();
  fold.backward(second);
  EXPECT_LT(memory_tracker({}).peak().total() - before, 3 * bytes);
}

/// The loss of batch i of a model's tiny configuration under a policy.
struct TinyModel {
  TinyModel(const ModelEntry& entry, const char* policy, int64_t chunks) {
    const auto spec = entry.make("tiny");
    set_fields(*spec,
               {{"memory", policy, "test"}, {"chunks", chunks, "test"}, {"dropout", 0.1, "test"}});
    model = spec->build(Init{.gen = Generator{1}});
    length = std::min({spec->defaults().length, model->max_length(), max_input_length(*model)});
    parameters = named_parameters(*model);
  }
  Tensor loss(int64_t i) const {
    const auto seed = static_cast<uint64_t>(i);
    const Tensor tokens = some_tokens(2, length, model->vocab(), 10 + seed);
    const Pass pass{.training = true, .gen = Generator{2}.fork(seed)};
    if (model->objective() == Objective::sequence) {
      return need<WritesSequences>(*model)
          .sequence_loss({some_tokens(2, length, model->vocab(), 50 + seed)}, tokens, tokens, pass)
          .total();
    }
    return model->loss(tokens, tokens, empty_memory(*model, 2), pass).total();
  }
  std::unique_ptr<LanguageModel> model;
  int64_t length = 0;
  TensorList parameters;
};

TEST(GradientFold, HoldsForEveryModelUnderEveryPolicy) {
  constexpr int64_t batches = 3;
  for (const ModelEntry& entry : models()) {
    for (const auto& [policy, chunks] :
         std::vector<std::pair<const char*, int64_t>>{{"standard", 1},
                                                      {"standard", 3},
                                                      {"checkpoint", 1},
                                                      {"checkpoint:2", 1},
                                                      {"lean", 1},
                                                      {"selective", 1},
                                                      {"reversible", 1},
                                                      {"reversible:exact", 1}}) {
      SCOPED_TRACE(fmt::format("{}, {}, {} chunks", entry.name, policy, chunks));
      const TinyModel tiny(entry, policy, chunks);
      std::vector<Values> alone;
      for (int64_t i = 0; i < batches; ++i) {
        backward(tiny.loss(i));
        alone.push_back(taken(tiny.parameters));
      }
      GradientFold fold(tiny.parameters, batches);
      for (int64_t i = 0; i < batches; ++i) fold.backward(tiny.loss(i));
      EXPECT_TRUE(taken(tiny.parameters) == expected_sum(alone, {}));
    }
  }
}

}  // namespace
}  // namespace longspan::test
