// Linear attention under every memory policy.

#include "ops/attention/linear_attention.h"

#include "nn/layers.h"
#include "ops/attention/random_features.h"
#include "ops/shape.h"
#include "tests/nn/small_stack.h"

namespace longspan::test {
namespace {

/// A layer of causal linear attention in two heads.
struct FeatureAttention final : Layer {
  FeatureAttention(FeatureMap features, const Init& init)
      : map(features),
        inputs(D, 3 * D, true, init.at("inputs"), Scheme::normal(0.3)),
        projection(random_projection(9, D / 2, init.gen.fork("projection"))) {}

  Output forward(const Tensor& x, const LayerContext&, Pass) const override {
    const int64_t batch = x.dim(0), length = x.dim(1);
    const Tensor all = inputs.forward(x);
    const auto heads = [&](int64_t part) {
      const Tensor y = narrow(all, 2, part * D, D);
      return transpose(reshape(y, {batch, length, 2, D / 2}), 1, 2);
    };
    LinearAttentionOptions options{.features = map, .causal = true};
    const Tensor out = linear_attention(heads(0), heads(1), heads(2), projection, options).out;
    Output y;
    y.y = reshape(transpose(out, 1, 2), {batch, length, D});
    return y;
  }
  void visit(Visitor& v) override { v("inputs", inputs); }

  FeatureMap map;
  Linear inputs;
  Tensor projection;
};

TEST(LinearAttention, EveryPolicyGivesTheSameBits) {
  const Init& init = in_f32;
  for (const FeatureMap map : {FeatureMap::positive, FeatureMap::trigonometric, FeatureMap::relu}) {
    const auto run = [&](const MemoryPolicy& policy) {
      std::vector<Block> blocks;
      for (int64_t i = 0; i < 3; ++i) {
        std::vector<Branch> list;
        list.push_back({"attention", Normalization(NormKind::layer, D, 1e-5, init.at(i).at("norm")),
                        std::make_unique<FeatureAttention>(map, init.at(i))});
        blocks.emplace_back(NormPlace::pre, 0.1f, std::move(list));
      }
      Stack stack(std::move(blocks), std::nullopt, policy);
      return outcome(stack, init,
                     [&](const Tensor& x) { return stack.forward(x, {}, {}, training).y; });
    };
    const std::vector<Tensor> standard = run("standard");
    for (const char* policy :
         {"lean", "selective", "checkpoint", "checkpoint:2", "checkpoint:3:2:1"}) {
      SCOPED_TRACE(policy);
      expect_same(standard, run(policy));
    }
  }
}

}  // namespace
}  // namespace longspan::test
