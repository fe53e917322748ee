#pragma once

// A small stack with dropout everywhere, and helpers for tests of memory policies.

#include <gtest/gtest.h>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "nn/attention/multi_head.h"
#include "nn/stack.h"
#include "tests/harness/model_info.h"

namespace longspan::test {

inline constexpr int64_t B = 2, L = 13, D = 16, F = 32;
inline const Pass training{.training = true, .gen = Generator{5}};

inline Block small_block(const Init& init, bool cross) {
  const Scheme weights = Scheme::normal(0.3);
  const auto norm = [&](const char* label) {
    return Normalization(NormKind::layer, D, 1e-5, init.at(label));
  };
  AttentionOptions options{
      .d_model = D, .n_head = 2, .dropout = 0.2f, .weights = weights, .out_weights = weights};
  std::vector<Branch> list;
  list.push_back({"attention", norm("norm1"),
                  std::make_unique<MultiHead>(options, ShawTables{}, init.at("attention"))});
  if (cross) {
    options.cross = true;
    list.push_back({"cross", norm("norm2"),
                    std::make_unique<MultiHead>(options, ShawTables{}, init.at("cross"))});
  }
  const FeedForwardOptions ff{.d_model = D,
                              .d_ff = F,
                              .activation = Activation::gelu_tanh,
                              .dropout = 0.1f,
                              .weights = weights,
                              .out_weights = weights};
  list.push_back({"ff", norm("norm3"), std::make_unique<FeedForward>(ff, init.at("ff"))});
  return {NormPlace::pre, 0.1f, std::move(list)};
}

inline Stack small_stack(const MemoryPolicy& policy, int64_t layers, const Init& init,
                         bool cross = false) {
  std::vector<Block> blocks;
  for (int64_t i = 0; i < layers; ++i) blocks.push_back(small_block(init.at(i), cross));
  return {std::move(blocks), Normalization(NormKind::layer, D, 1e-5, init.at("final")), policy};
}

inline Tensor numbers(const Shape& shape, const char* label, const Init& init) {
  return init.at(label).make(shape, Scheme::normal(1)).detach();
}

inline Tensor leaf(const Shape& shape, const char* label = "x", const Init& init = in_f32) {
  Tensor x = numbers(shape, label, init);
  set_requires_grad(x);
  return x;
}

inline LayerContext causal() {
  LayerContext ctx;
  ctx.pattern = patterns::local(5);
  return ctx;
}

inline void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(static_cast<bool>(a[i]), static_cast<bool>(b[i])) << i;
    if (a[i]) {
      EXPECT_TRUE(same_bits(a[i], b[i])) << i;
    }
  }
}

/// Returns the output and the gradients of the input and of every parameter.
template <class Run>
std::vector<Tensor> outcome(Module& module, const Init& init, Run&& run) {
  for (const Tensor& w : parameters(module)) set_grad(w, {});
  const Tensor x = leaf({B, L, D}, "x", init);
  const Tensor y = run(x);
  backward(y, numbers(y.shape(), "dy", init));
  std::vector<Tensor> all{y.detach(), grad(x)};
  for (const Tensor& w : parameters(module)) all.push_back(grad(w));
  return all;
}

}  // namespace longspan::test
