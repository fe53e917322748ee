#include "train/owned_parameters.h"

#include <gtest/gtest.h>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "tests/harness/rank_threads.h"

namespace longspan::test {
namespace {

/// Parameters of many sizes: more than a piece, none, one element.
TensorList parameters_of_two_groups() {
  TensorList all;
  for (const int64_t n : {70'000, 3, 0, 40'000, 1, 33'000}) {
    Tensor w = uniform({n}, Generator{3}.fork(static_cast<uint64_t>(n)), -1, 1);
    set_requires_grad(w);
    all.push_back({fmt::format("w{}", n), w, n == 3 || n == 40'000 ? "apart" : ""});
  }
  return all;
}

/// The loss of batch i; odd ones do not read the parameter of 40,000 elements, and none of the
/// second dozen that of 33,000.
Tensor loss_of(const TensorList& parameters, int64_t i) {
  Tensor loss;
  for (const NamedTensor& p : parameters) {
    const int64_t n = p.tensor.numel();
    if (n == 0 || (n == 40'000 && i % 2 == 1) || (n == 33'000 && i / 12 == 1)) continue;
    const Tensor x = uniform(p.tensor.shape(), Generator{5}.fork(static_cast<uint64_t>(i)), -1, 1);
    const Tensor part = sum(mul(mul(p.tensor, x), p.tensor));
    loss = loss ? add(loss, part) : part;
  }
  return loss;
}

using Make = std::function<std::unique_ptr<Optimizer>(const std::vector<ParameterGroup>&)>;

/// What training leaves: parameters and the optimizer's state, and the norms of all steps.
struct Trained {
  std::vector<std::vector<float>> tensors;
  std::vector<std::string> names;
  std::vector<double> norms;
};

void note(Trained& t, const TensorList& tensors) {
  for (const NamedTensor& x : tensors) {
    if (x.tensor.dtype() != DType::f32) continue;
    t.names.push_back(x.name);
    t.tensors.push_back(x.tensor.detach().to_vector<float>());
  }
}

Trained train_alone(const Make& make, int64_t batches, int64_t steps) {
  const TensorList parameters = parameters_of_two_groups();
  const auto optimizer = make(one_group(parameters));
  Trained t;
  for (int64_t step = 0; step < steps; ++step) {
    GradientFold fold(parameters, batches);
    for (int64_t i = 0; i < batches; ++i) fold.backward(loss_of(parameters, step * batches + i));
    for (const GroupNorm& n : clip_by_group(*optimizer, 0.5)) t.norms.push_back(n.norm);
    optimizer->step(0.01);
  }
  note(t, parameters);
  note(t, optimizer->state());
  return t;
}

void train_on(Communicator& ranks, const Make& make, bool divisible, int64_t batches, int64_t steps,
              const Trained& expected) {
  const TensorList parameters = parameters_of_two_groups();
  OwnedParameters owned(ranks);
  const auto optimizer = make(owned.divide(one_group(parameters), divisible));
  optimizer->share(&owned);
  Trained t;
  for (int64_t step = 0; step < steps; ++step) {
    owned.begin(batches);
    for (int64_t i = ranks.rank(); i < batches; i += ranks.size()) {
      owned.backward(loss_of(parameters, step * batches + i));
    }
    for (const GroupNorm& n : clip_by_group(*optimizer, 0.5)) t.norms.push_back(n.norm);
    optimizer->step(0.01);
    owned.spread();
  }
  EXPECT_EQ(t.norms, expected.norms);
  note(t, parameters);
  TensorList states = optimizer->state();
  states.erase(states.begin());  // the count of steps
  const TensorList whole = owned.whole(states, "states");
  if (ranks.rank() != 0) {
    EXPECT_TRUE(whole.empty());
    t.names = {expected.names.begin(), expected.names.begin() + std::ssize(t.names)};
    for (size_t i = 0; i < t.tensors.size(); ++i) EXPECT_EQ(t.tensors[i], expected.tensors[i]);
    return;
  }
  note(t, whole);
  EXPECT_EQ(t.names, expected.names);
  EXPECT_TRUE(t.tensors == expected.tensors);
}

TEST(OwnedParameters, TrainAsOneProcessDoes) {
  const Make adam = [](const auto& groups) { return std::make_unique<Adam>(groups); };
  const Make sgd = [](const auto& groups) {
    return std::make_unique<Sgd>(groups, SgdOptions{.momentum = 0.9});
  };
  const Make lamb = [](const auto& groups) { return std::make_unique<Lamb>(groups); };
  const Make factored = [](const auto& groups) { return std::make_unique<Adafactor>(groups); };
  for (const auto& [make, divisible] : std::vector<std::pair<Make, bool>>{
           {adam, true}, {sgd, true}, {lamb, false}, {factored, false}}) {
    const Trained expected = train_alone(make, 12, 3);
    for (const int size : {2, 3, 4}) {
      SCOPED_TRACE(size);
      on_rank_threads(size, [&, &of = make, &whole_pieces = divisible](Communicator& ranks) {
        train_on(ranks, of, whole_pieces, 12, 3, expected);
      });
    }
  }
}

TEST(OwnedParameters, AreDealtInPiecesOfNearlyEqualSize) {
  on_rank_threads(3, [](Communicator& ranks) {
    OwnedParameters owned(ranks);
    const TensorList parameters = parameters_of_two_groups();
    int64_t all = 0, mine = 0;
    for (const NamedTensor& p : parameters) all += p.tensor.numel();
    const auto groups = owned.divide(one_group(parameters), true);
    ASSERT_EQ(groups[0].parameters.size(), parameters.size());
    for (const NamedTensor& p : groups[0].parameters) mine += p.tensor.numel();
    EXPECT_NEAR(static_cast<double>(mine), static_cast<double>(all) / 3, 32'768);
    int64_t sum = 0;
    for (const std::string& n : ranks.gather(std::to_string(mine), "sizes")) sum += std::stoll(n);
    EXPECT_EQ(sum, all);
  });
}

TEST(OwnedParameters, TakeTheirPartsOfWholeTensors) {
  on_rank_threads(2, [](Communicator& ranks) {
    const TensorList parameters = parameters_of_two_groups();
    OwnedParameters owned(ranks);
    const Adam adam(owned.divide(one_group(parameters), true));
    TensorList states = adam.state(), whole;
    states.erase(states.begin());
    for (const NamedTensor& p : parameters) {
      for (const char* suffix : {".m", ".v"}) {
        whole.push_back({p.name + suffix, uniform(p.tensor.shape(), Generator{8})});
      }
    }
    owned.take(whole, states);
    const TensorList again = owned.whole(states, "states");
    for (size_t i = 0; i < again.size(); ++i) {
      EXPECT_EQ(again[i].name, whole[i].name);
      EXPECT_TRUE(same_bits(again[i].tensor, whole[i].tensor)) << again[i].name;
    }
    whole.erase(whole.begin());
    if (ranks.rank() == 0) {
      EXPECT_TRUE(contains(message_of<ValueError>([&] { owned.take(whole, states); }), "w70000.m"));
    }
  });
}

TEST(OwnedParameters, NameTheFirstGradientThatIsNotFinite) {
  on_rank_threads(2, [](Communicator& ranks) {
    const TensorList parameters = parameters_of_two_groups();
    OwnedParameters owned(ranks);
    Adam adam(owned.divide(one_group(parameters), true));
    adam.share(&owned);
    owned.begin(2);
    Tensor loss = loss_of(parameters, 0);
    if (ranks.rank() == 1) loss = mul(loss, HUGE_VAL);
    owned.backward(loss);
    EXPECT_TRUE(contains(message_of<ValueError>([&] { clip_gradients(adam, 1); }), "\"w70000\""));
  });
}

}  // namespace
}  // namespace longspan::test
