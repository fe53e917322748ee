// Tests the default weights of layers.

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "models/longformer/longformer.h"
#include "nn/attention/lsh.h"
#include "nn/attention/multi_head.h"
#include "nn/attention/relative.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "tests/harness/model_info.h"

namespace longspan {
namespace {

constexpr int64_t kWidth = 16, kHeads = 2, kLength = 12;

const Init defaults_init{.gen = Generator{5}};

/// Checks that every matrix has Glorot's uniform distribution and gets a gradient, and that the
/// output is not near zero.
void expect_alive(Layer& layer, const LayerContext& ctx) {
  const Tensor x = normal({2, kLength, kWidth}, Generator{9});
  const Tensor y = layer.forward(x, ctx, {}).y;
  EXPECT_GT(sum(mul(y, y)).item(), 0.1);
  backward(sum(mul(y, normal(y.shape(), Generator{8}))));
  int matrices = 0;
  for (const NamedTensor& p : named_parameters(layer)) {
    SCOPED_TRACE(p.name);
    if (!p.name.ends_with("weight")) continue;
    if (p.name.find("_global") != std::string::npos) continue;  // for global tokens, absent here
    const Tensor g = grad(p.tensor);
    ASSERT_TRUE(g);
    EXPECT_GT(sum(mul(g, g)).item(), 1e-6);
    const std::vector<float> values = p.tensor.to_vector<float>();
    const double bound = std::sqrt(6.0 / static_cast<double>(p.tensor.dim(0) + p.tensor.dim(1)));
    double squares = 0;
    for (const float v : values) {
      EXPECT_LE(std::abs(double{v}), bound);
      squares += double{v} * double{v};
    }
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(values.size())), bound / std::sqrt(3.0),
                0.1 * bound);
    ++matrices;
  }
  EXPECT_GE(matrices, 2);
}

TEST(DefaultWeights, OfMultiHead) {
  LayerContext ctx;
  ctx.pattern = patterns::causal();
  MultiHead layer({.d_model = kWidth, .n_head = kHeads}, ShawTables{}, defaults_init);
  expect_alive(layer, ctx);
}

TEST(DefaultWeights, OfFeedForward) {
  FeedForward layer({.d_model = kWidth, .d_ff = 32}, defaults_init);
  expect_alive(layer, {});
}

TEST(DefaultWeights, OfRelativeMultiHead) {
  LayerContext ctx;
  ctx.pattern = patterns::causal();
  const Tensor u = defaults_init.at("u").make({kHeads, kWidth / kHeads}, Scheme::normal(0.5));
  const Tensor v = defaults_init.at("v").make({kHeads, kWidth / kHeads}, Scheme::normal(0.5));
  RelativeMultiHead layer({.d_model = kWidth, .n_head = kHeads}, kLength, u, v, defaults_init);
  ctx.own.set(Distances{DistanceTable(kLength, kWidth, defaults_init).rows(kLength)});
  expect_alive(layer, ctx);
}

TEST(DefaultWeights, OfLshAttention) {
  LshAttentionOptions o;
  o.d_model = kWidth;
  o.n_head = kHeads;
  o.n_max = 32;
  o.pairs.chunk = 4;
  LshAttention layer(o, defaults_init);
  expect_alive(layer, {});
}

TEST(DefaultWeights, OfLongformerAttention) {
  LongformerAttention layer({.d_model = kWidth, .n_head = kHeads, .one_sided_window = 3},
                            defaults_init);
  expect_alive(layer, {});
}

TEST(DefaultWeights, OfALinearLayerWithoutAScheme) {
  const Linear layer(kWidth, 8, true, defaults_init, {});
  EXPECT_GT(sum(mul(layer.weight.detach(), layer.weight.detach())).item(), 1);
  EXPECT_EQ(sum(mul(layer.bias.detach(), layer.bias.detach())).item(), 0);
}

}  // namespace
}  // namespace longspan
