// Tests stacks whose memory policy is reversible.

#include <gtest/gtest.h>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/memory.h"
#include "nn/attention/multi_head.h"
#include "nn/reversible.h"
#include "nn/segment.h"
#include "nn/stack.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/nn/small_stack.h"

namespace longspan::test {
namespace {

constexpr int64_t kLength = 9, kWidth = 8;

struct Made {
  NormPlace place = NormPlace::pre;
  int64_t layers = 3;
  bool cross = false, positions = false;
  float dropout = 0.1f;
};

Normalization norm_of(const Init& init) { return {NormKind::layer, kWidth, 1e-5, init}; }

/// Returns a stack in which every norm has its own gain, so that none can replace another
/// unnoticed.
Stack make(const Made& m, const MemoryPolicy& policy) {
  const Scheme weights = Scheme::normal(0.3);
  std::vector<Block> blocks;
  for (int64_t i = 0; i < m.layers; ++i) {
    const Init at = in_f32.at(i);
    AttentionOptions attention{.d_model = kWidth,
                               .n_head = 2,
                               .dropout = m.dropout,
                               .weights = weights,
                               .out_weights = weights};
    std::vector<Branch> list;
    const auto heads = [&](const char* name) {
      list.push_back({name, norm_of(at.at(name).at("norm")),
                      std::make_unique<MultiHead>(attention, ShawTables{}, at.at(name))});
    };
    heads("attention");
    attention.cross = true;
    if (m.cross) heads("cross");
    const FeedForwardOptions ff{
        .d_model = kWidth, .d_ff = 2 * kWidth, .weights = weights, .out_weights = weights};
    list.push_back({"ff", norm_of(at.at("norm")), std::make_unique<FeedForward>(ff, at.at("ff"))});
    LearnedPositions positions;
    if (m.positions)
      positions = LearnedPositions(64, kWidth, at.at("position"), Scheme::normal(0.3));
    blocks.emplace_back(m.place, m.dropout, std::move(list), std::move(positions));
  }
  std::optional<Normalization> final_norm;
  if (m.place == NormPlace::pre) final_norm = norm_of(in_f32.at("final"));
  Stack stack(std::move(blocks), std::move(final_norm), policy);
  randomise(stack, 0.3, 5);
  return stack;
}

/// Returns all results of a training step: outputs of all layers, memory, gradients.
std::vector<Tensor> step(const Made& m, const MemoryPolicy& policy, DType compute = DType::f32) {
  Stack stack = make(m, policy);
  const Tensor x = leaf({B, kLength, kWidth}, "x"), context = leaf({B, 4, kWidth}, "context");
  LayerContext ctx;
  ctx.pattern = patterns::local(4);
  ctx.encoder_pattern = patterns::dense();
  if (m.cross) ctx.encoder_output = cast(mul(context, 0.5), compute);
  SegmentMemory memory;
  ctx.mem_len = 3;
  memory.layers.resize(static_cast<size_t>(m.layers));
  for (LayerMemory& l : memory.layers)
    l.set(InputRows{.states = numbers({B, 2, kWidth}, "states", in_f32)});
  std::vector<Tensor> each;
  const Stack::Result r = stack.forward(cast(x, compute), ctx, memory, training, &each);
  backward(add(sum(square(cast(r.y, DType::f32))), sum(cast(each[0], DType::f32))));
  std::vector<Tensor> all{r.y.detach(), grad(x), grad(context)};
  for (const Tensor& y : each) all.push_back(y.detach());
  for (const LayerMemory& l : r.memory.layers) all.push_back(l.get<InputRows>().states);
  for (const Tensor& w : parameters(stack)) all.push_back(grad(w));
  return all;
}

TEST(Memory, StacksOfTwoStreamsHaveTheGradientsOfTheStoredOnes) {
  for (const NormPlace place : {NormPlace::pre, NormPlace::post}) {
    for (const bool more : {false, true}) {
      const Made m{.place = place, .cross = more, .positions = more};
      const auto expected = step(m, "reversible:exact:stored");
      expect_same(step(m, "reversible:exact"), expected);
      expect_same(step(m, "reversible:exact", DType::bf16),
                  step(m, "reversible:exact:stored", DType::bf16));
      const auto inverted = step(m, "reversible"), other = step(m, "reversible:stored");
      ASSERT_EQ(inverted.size(), other.size());
      for (size_t i = 0; i < inverted.size(); ++i) {
        if (!other[i]) continue;
        const double scale = 1e-2 + max(flatten(abs(other[i].detach())), 0).values.item();
        EXPECT_LE(distance(inverted[i], other[i]), 1e-5 * scale) << i;
        EXPECT_LE(distance(expected[i], other[i]), 1e-3 * scale) << i;  // the grid is fine
      }
    }
  }
}

TEST(Memory, NormsBehindSumsStandBeforeWhatReadsThem) {
  for (const NormPlace place : {NormPlace::pre, NormPlace::post}) {
    const Made m{.place = place, .layers = 2};
    const Stack stack = make(m, "reversible");
    const Tensor x = numbers({B, kLength, kWidth}, "x", in_f32);
    LayerContext ctx;
    ctx.pattern = patterns::causal();
    const NoGrad off;
    const bool pre = place == NormPlace::pre;
    const auto f = [&](int64_t i, const char* name, const Normalization* norm, const Tensor& z) {
      const Layer& layer = *stack.block(i).branch(name).layer;
      return layer.forward(norm != nullptr ? norm->forward(z) : z, ctx, Pass{}).y;
    };
    const auto norm = [&](int64_t i, const char* name) {
      return &stack.block(i).branch(name).norm;
    };
    Tensor x1 = x, x2 = x;
    x1 = x1 + f(0, "attention", pre ? norm(0, "attention") : nullptr, x2);
    x2 = x2 + f(0, "ff", pre ? norm(0, "ff") : norm(0, "attention"), x1);
    const Tensor in = (pre ? norm(1, "attention") : norm(0, "ff"))->forward(x2);
    x1 = x1 + f(1, "attention", pre ? norm(1, "attention") : norm(0, "ff"), x2);
    x2 = x2 + f(1, "ff", pre ? norm(1, "ff") : norm(1, "attention"), x1);
    const Tensor y = (pre ? &*stack.final_norm() : norm(1, "ff"))->forward(mul(x1 + x2, 0.5));
    EXPECT_TRUE(same_bits(stack.forward(x, ctx, {}, Pass{}).y, y));
    const Layer& attention = *stack.block(1).branch("attention").layer;
    EXPECT_TRUE(same_bits(stack.attention_map(1, x, ctx),
                          contiguous(select(attention.probabilities(in, ctx), 0, 0))));
  }
}

TEST(Memory, TwoStreamsDecodeTokenByToken) {
  for (const char* policy : {"reversible", "reversible:exact"}) {
    const Stack stack = make({.cross = true, .positions = true, .dropout = 0}, policy);
    const Tensor x = numbers({B, kLength, kWidth}, "x", in_f32);
    LayerContext ctx;
    ctx.pattern = patterns::causal();
    ctx.encoder_pattern = patterns::dense();
    ctx.encoder_output = numbers({B, 4, kWidth}, "context", in_f32);
    const NoGrad off;
    const Tensor whole = stack.forward(x, ctx, {}, Pass{}).y;
    SegmentMemory memory;
    ctx.decoding = true;
    for (int64_t t = 0; t < kLength; ++t) {
      ctx.position = t;
      Stack::Result r = stack.forward(narrow(x, 1, t, 1), ctx, memory, Pass{});
      memory = std::move(r.memory);
      EXPECT_LT(distance(r.y, narrow(whole, 1, t, 1)), 1e-4) << t;
    }
  }
}

TEST(Memory, SavedBytesOfStacksDoNotDependOnDepth) {
  const int64_t stream = memory::block_bytes(B * kLength * kWidth * 4);
  const auto saved = [&](int64_t layers, const char* policy) {
    const Stack stack = make({.place = NormPlace::post, .layers = layers}, policy);
    const Tensor x = leaf({B, kLength, kWidth}, "x");
    LayerContext ctx;
    ctx.pattern = patterns::local(4);
    const int64_t before = memory_tracker().live()[Category::saved];
    const Stack::Result r = stack.forward(x, ctx, {}, training);
    return memory_tracker().live()[Category::saved] - before;
  };
  const int64_t four = saved(4, "reversible:exact");
  EXPECT_EQ(saved(64, "reversible:exact"), four);
  EXPECT_EQ(saved(64, "reversible"), four);
  EXPECT_EQ(saved(64, "reversible:16"), four + 3 * 2 * stream);
  EXPECT_GT(saved(4, "reversible:stored"), 8 * four);
}

TEST(Memory, NumbersBeyondTheGridAreAnError) {
  const Tensor x = mul(leaf({B, kLength, kWidth}, "x"), 1000.0);
  LayerContext ctx;
  ctx.pattern = patterns::causal();
  const Stack fine = make({}, "reversible:exact"), coarse = make({}, "reversible:exact:8");
  EXPECT_THROW(fine.forward(x, ctx, {}, training), ValueError);
  EXPECT_NO_THROW(coarse.forward(x, ctx, {}, training));
}

}  // namespace
}  // namespace longspan::test
