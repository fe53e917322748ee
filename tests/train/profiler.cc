// Profiles: what belongs to which op, direction, layer and phase, and that the parts are the whole.
#include "train/profiler.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "data/io/files.h"
#include "data/io/json.h"
#include "models/transformer/transformer.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/matmul.h"
#include "ops/reduce.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "tests/harness/scratch.h"

namespace longspan::test {
namespace {

const Profile::Row* row_of(const std::vector<Profile::Row>& rows, std::string_view name,
                           Direction direction) {
  for (const Profile::Row& row : rows) {
    if (row.name == name && row.direction == direction) return &row;
  }
  return nullptr;
}

TEST(Profiler, CountsProductsOfAnOpAndItsGradient) {
  Tensor x = Tensor::zeros({6, 4}), w = Tensor::zeros({5, 4});
  set_requires_grad(x);
  set_requires_grad(w);
  Profiler profiler;
  Tensor loss;
  {
    const Phase phase("forward");
    const Scope scope("layers", 3);
    loss = sum(linear(x, w, {}));
  }
  {
    const Phase phase("backward");
    backward(loss);
  }
  const Profile p = profiler.profile();
  const Profile::Row* const forward = row_of(p.ops, "linear", Direction::forward);
  const Profile::Row* const back = row_of(p.ops, "linear", Direction::backward);
  ASSERT_NE(forward, nullptr);
  ASSERT_NE(back, nullptr);
  EXPECT_EQ(forward->calls, 1);
  EXPECT_EQ(forward->macs, 6 * 4 * 5);
  EXPECT_EQ(forward->bytes, 4 * (6 * 4 + 5 * 4 + 6 * 5));
  EXPECT_EQ(back->macs, 2 * 6 * 4 * 5);
  EXPECT_NE(row_of(p.ops, "sum", Direction::forward), nullptr);
  ASSERT_NE(row_of(p.layers, "layers.3", Direction::backward), nullptr);
  EXPECT_EQ(row_of(p.layers, "layers.3", Direction::backward)->macs, 2 * 6 * 4 * 5);
  ASSERT_EQ(p.phases.size(), 2u);
  EXPECT_EQ(p.phases[0].name, "forward");
  EXPECT_EQ(p.phases[1].calls, 1);
  const auto merged = merged_layers(p.layers);
  EXPECT_NE(row_of(merged, "layers.*", Direction::forward), nullptr);
}

TransformerConfig small() {
  TransformerConfig c;
  c.vocab = 31;
  c.n_layer = 2;
  c.n_head = 2;
  c.d_model = 16;
  c.d_ff = 32;
  c.n_max = 24;
  c.dropout = 0.1f;
  c.token_head.loss_gradient =
      LossGradient::recompute;  // no product of a gradient in the forward pass
  return c;
}

/// Takes a training step under a profile, or without one.
Tensor gradient_of_step(const Transformer& model, bool profiled, Profile* profile) {
  std::optional<Profiler> profiler;
  if (profiled) profiler.emplace();
  Tensor loss;
  {
    const Phase phase("forward");
    const Tensor tokens = some_tokens(2, 24, 31);
    loss = model.loss(tokens, tokens, {}, Pass{.training = true, .gen = Generator{3}}).loss;
  }
  {
    const Phase phase("backward");
    backward(loss);
  }
  if (profiler) *profile = profiler->profile();
  TensorList parameters = named_parameters(const_cast<Transformer&>(model));
  Tensor g = clone(grad(parameters[0].tensor));
  for (const NamedTensor& p : parameters) set_grad(p.tensor, {});
  return g;
}

TEST(Profiler, PartsAreTheWholeAndBitsStay) {
  for (const char* memory : {"standard", "checkpoint:1", "reversible"}) {
    TransformerConfig c = small();
    c.memory.set(memory);
    const Transformer model(c, Init{.gen = Generator{3}});
    Profile p;
    const Tensor plain = gradient_of_step(model, false, nullptr);
    const Tensor profiled = gradient_of_step(model, true, &p);
    EXPECT_EQ(plain.to_vector<float>(), profiled.to_vector<float>()) << memory;
    double kernels = 0, layers = 0, phases = 0;
    int64_t macs = 0, again = 0;
    for (const Profile::Row& row : p.ops) {
      kernels += row.seconds;
      if (row.direction == Direction::forward) macs += row.macs;
      if (row.direction == Direction::again) again += row.macs;
      EXPECT_GE(row.seconds, 0) << row.name;
    }
    for (const Profile::Row& row : p.layers) layers += row.seconds;
    for (const Profile::PhaseRow& row : p.phases) phases += row.seconds;
    EXPECT_NEAR(kernels, layers, 1e-9);
    double in_phases = 0;
    for (const Profile::PhaseRow& row : p.phases) in_phases += row.in_kernels;
    EXPECT_NEAR(kernels, in_phases, 1e-9);  // none lies outside
    EXPECT_LE(kernels, phases);
    EXPECT_LE(phases, p.seconds);
    const MacCount counted;
    {
      const NoGrad off;
      const Tensor tokens = some_tokens(2, 24, 31);
      model.loss(tokens, tokens, {}, Pass{});
    }
    EXPECT_EQ(macs, counted.total()) << memory;
    const Profile::Row* const scores = row_of(p.ops, "block_attention", Direction::forward);
    const Profile::Row* const slopes = row_of(p.ops, "block_attention", Direction::backward);
    ASSERT_TRUE(scores != nullptr && slopes != nullptr);
    EXPECT_EQ(2 * slopes->macs, 5 * scores->macs) << memory;
    if (std::string_view(memory) == "standard") {
      EXPECT_EQ(again, 0);
    } else {
      EXPECT_GT(again, counted.total() / 2) << memory;
    }
  }
}

TEST(Profiler, ThreadsThatWaitAreIdle) {
  const int before = num_threads();
  set_num_threads(2);
  {
    Profiler profiler;
    parallel_for(2, [](int64_t i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(i == 0 ? 5 : 60));
    });
    const Profile p = profiler.profile();
    ASSERT_EQ(p.threads.size(), 2u);
    // One of the two had the long job, and the other waited.
    EXPECT_GT(std::max(p.threads[0].idle, p.threads[1].idle), 0.02);
    EXPECT_GT(std::max(p.threads[0].busy, p.threads[1].busy), 0.05);
  }
  set_num_threads(before);
}

TEST(Profiler, WritesATrace) {
  const Folder folder;
  Profiler profiler;
  Tensor x = Tensor::zeros({6, 4});
  set_requires_grad(x);
  {
    const Phase phase("a \"quoted\" phase");
    backward(sum(linear(x, Tensor::zeros({5, 4}), {})));
  }
  profiler.write_trace(folder / "trace.json");
  const Json trace = parse_json(read_file(folder / "trace.json", "test"));
  int kernels = 0, nodes = 0, counters = 0, phases = 0;
  for (const Json& e : trace["traceEvents"].array()) {
    const std::string& kind = e["ph"].string();
    counters += kind == "C";
    if (kind != "X") continue;
    kernels += e["cat"].string() == "kernel";
    nodes += e["name"].string() == "linear backward";
    phases += e["name"].string() == "a \"quoted\" phase";
  }
  EXPECT_GT(kernels, 3);
  EXPECT_EQ(counters, kernels);
  EXPECT_EQ(nodes, 1);
  EXPECT_EQ(phases, 1);
}

TEST(Profiler, OutlivesWhatBeganBeforeItAndWhatThrows) {
  std::optional<Profiler> profiler;
  {
    const Scope scope("before");
    profiler.emplace();
  }
  try {
    const Phase phase("forward");
    const Scope scope("layer");
    linear(Tensor::zeros({2, 3}), Tensor::zeros({2, 4}), {});
  } catch (const ShapeError&) {
  }
  {
    const Phase phase("forward");
    linear(Tensor::zeros({2, 3}), Tensor::zeros({2, 3}), {});
  }
  const Profile p = profiler->profile();
  ASSERT_EQ(p.phases.size(), 1u);
  EXPECT_EQ(p.phases[0].calls, 2);
  EXPECT_EQ(row_of(p.ops, "linear", Direction::forward)->macs, 2 * 3 * 2);
}

TEST(Profiler, IsRefusedTwice) {
  const Profiler first;
  EXPECT_EQ(message_of<ValueError>([] { const Profiler second; }),
            "profile: this thread is being profiled already");
}

}  // namespace
}  // namespace longspan::test
