#include "nn/layers.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "nn/position.h"
#include "ops/copy.h"
#include "ops/random.h"
#include "ops/shape.h"
#include "tests/harness/model_info.h"
#include "tests/nn/numbers.h"

namespace longspan {
namespace {

using test::distance;
using test::hashed_numbers;
using test::layer_init;
using test::same_bits;

TEST(Linear, IsAMatrixProductAndABias) {
  Linear layer(3, 2, true, layer_init, Scheme::normal(1));
  test::randomise(layer, 1, 2);
  const Tensor x = hashed_numbers({4, 5, 3});
  const std::vector<double> in = x.to_vector<double>(), w = layer.weight.to_vector<double>(),
                            b = layer.bias.to_vector<double>();
  std::vector<double> y;
  for (size_t r = 0; r < 20; ++r) {
    for (size_t o = 0; o < 2; ++o) {
      double sum = b[o];
      for (size_t i = 0; i < 3; ++i) sum += in[r * 3 + i] * w[o * 3 + i];
      y.push_back(sum);
    }
  }
  EXPECT_LT(distance(layer.forward(x), Tensor::from(y, {4, 5, 2})), 1e-14);
}

TEST(Linear, CastsItsWeightToTheInput) {
  Linear layer(8, 4, true, Init{.gen = Generator{1}}, Scheme::normal(1));
  for (const DType t : {DType::bf16, DType::f16}) {
    const Tensor x = cast(hashed_numbers({3, 8}), t);
    const Tensor y = layer.forward(x);
    EXPECT_EQ(y.dtype(), t);
    backward(y, ones_like(y));
    EXPECT_EQ(grad(layer.weight).dtype(), DType::f32);
    EXPECT_EQ(grad(layer.bias).dtype(), DType::f32);
    set_grad(layer.weight, {});
    set_grad(layer.bias, {});
    EXPECT_LT(distance(y, layer.forward(cast(x, DType::f32))), 0.1);
  }
}

// What forward_each() returns and leaves in the weights is what each layer's forward() does: also
// of weights that are cast, of one without a bias, of constants, and of a layer that is given
// twice.
TEST(Linear, ForwardEachIsForwardOfEach) {
  const Init init{Generator{3}, Device{}};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<std::vector<float>> found[2];
    for (const bool each : {true, false}) {
      const Linear a(4, 3, true, init.at("a"), Scheme::normal(0.5), Scheme::normal(0.5));
      const Linear b(4, 6, false, init.at("b"), Scheme::normal(0.5));
      Tensor x = cast(normal({2, 5, 4}, Generator{5}, 0, 1), dtype);
      set_requires_grad(x);
      const Linear constant = b.detached();
      const auto y =
          each ? forward_each(x, a, b, constant, a)
               : std::array{a.forward(x), b.forward(x), constant.forward(x), a.forward(x)};
      std::vector<Tensor> dy;
      for (const Tensor& one : y) {
        EXPECT_EQ(one.dtype(), dtype);
        dy.push_back(cast(normal(one.shape(), Generator{dy.size()}, 0, 1), dtype));
        found[each].push_back(cast(one.detach(), DType::f32).to_vector<float>());
      }
      backward(y, dy);
      EXPECT_FALSE(grad(constant.weight));
      for (const Tensor& leaf : {a.weight, a.bias, b.weight}) {
        EXPECT_EQ(grad(leaf).dtype(), DType::f32);
        found[each].push_back(grad(leaf).to_vector<float>());
      }
      // The gradient of x is rounded at other places in 16 bits.
      if (dtype == DType::f32) found[each].push_back(grad(x).to_vector<float>());
    }
    EXPECT_EQ(found[0], found[1]) << name_of(dtype);
  }
}

TEST(Embedding, TakesRowsAndRefusesIdsOutside) {
  const Embedding table(5, 3, layer_init, Scheme::normal(1));
  const Tensor y = table.forward(Tensor::from(std::vector<int64_t>{4, 0, 4}, {1, 3}));
  EXPECT_TRUE(same_bits(select(y, 1, 0), unsqueeze(contiguous(select(table.weight, 0, 4)), 0)));
  EXPECT_TRUE(same_bits(select(y, 1, 0), select(y, 1, 2)));
  try {
    table.forward(Tensor::from(std::vector<int64_t>{1, 5}, {1, 2}));
    FAIL() << "an id beyond the table was taken";
  } catch (const ValueError& e) {
    EXPECT_NE(std::string(e.what()).find('5'), std::string::npos) << e.what();
  }
  EXPECT_THROW(table.forward(hashed_numbers({1, 2})), DTypeError);
}

TEST(Normalization, LayerAndRms) {
  for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
    Normalization norm(kind, 4, 1e-5, layer_init);
    test::randomise(norm, 0.5, 4);
    const std::vector<double> x{1, -2, 3, 0.5}, g = norm.weight.to_vector<double>();
    const std::vector<double> b =
        norm.bias ? norm.bias.to_vector<double>() : std::vector<double>(4, 0.0);
    const double mean = kind == NormKind::layer ? (1 - 2 + 3 + 0.5) / 4 : 0;
    double square = 0;
    for (const double v : x) square += (v - mean) * (v - mean) / 4;
    std::vector<double> y;
    for (size_t i = 0; i < 4; ++i) {
      y.push_back((x[i] - mean) / std::sqrt(square + 1e-5) * g[i] + b[i]);
    }
    EXPECT_LT(distance(norm.forward(Tensor::from(x, {1, 4})), Tensor::from(y, {1, 4})), 1e-14);
    EXPECT_EQ(norm.bias ? 2u : 1u, parameters(norm).size());
  }
}

TEST(Activation, EachIsItsFormula) {
  const auto phi = [](double x) { return 0.5 * (1 + std::erf(x / std::sqrt(2.0))); };
  const auto sigma = [](double x) { return 1 / (1 + std::exp(-x)); };
  const std::vector<double> x{-3, -0.4, 0.2, 1.7};
  const auto check = [&](Activation f, auto formula) {
    std::vector<double> y;
    for (const double v : x) y.push_back(formula(v));
    EXPECT_LT(distance(activate(f, Tensor::from(x, {4})), Tensor::from(y, {4})), 1e-14)
        << name_of_value(f);
  };
  check(Activation::relu, [](double v) { return v > 0 ? v : 0; });
  check(Activation::gelu_erf, [&](double v) { return v * phi(v); });
  check(Activation::gelu_tanh, [](double v) {
    return 0.5 * v * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v)));
  });
  check(Activation::gelu_sigmoid, [&](double v) { return v * sigma(1.702 * v); });
  check(Activation::silu, [&](double v) { return v * sigma(v); });
  EXPECT_LT(
      distance(activate(Activation::geglu, Tensor::from(x, {4})),
               Tensor::from(std::vector<double>{-3 * 0.2 * phi(0.2), -0.4 * 1.7 * phi(1.7)}, {2})),
      1e-14);
  const Tensor gate = activate(Activation::gelu_tanh, Tensor::from(x, {4}));
  const std::vector<double> of_tanh = gate.to_vector<double>();
  EXPECT_LT(distance(activate(Activation::geglu_tanh, Tensor::from(x, {4})),
                     Tensor::from(std::vector<double>{x[0] * of_tanh[2], x[1] * of_tanh[3]}, {2})),
            1e-14);
}

TEST(FeedForward, MayHaveNoBiases) {
  FeedForward ff({.d_model = 6, .d_ff = 8, .activation = Activation::geglu_tanh, .bias = false},
                 layer_init);
  std::vector<std::string> names;
  for (const NamedTensor& p : named_parameters(ff)) names.push_back(p.name);
  EXPECT_EQ(names, (std::vector<std::string>{"in.weight", "out.weight"}));
  const Tensor zero = zeros({1, 3, 6}, DType::f64);
  EXPECT_EQ(distance(ff.forward(zero, {}, Pass{}).y, zero), 0);
}

TEST(FeedForward, DropsItsActivationsInTrainingOnly) {
  const FeedForward ff({.d_model = 6,
                        .d_ff = 64,
                        .activation = Activation::gelu_erf,
                        .dropout = 0.5f,
                        .weights = Scheme::normal(1),
                        .out_weights = Scheme::normal(1)},
                       layer_init);
  const Tensor x = hashed_numbers({2, 3, 6});
  const Pass a{.training = true, .gen = Generator{1}}, b{.training = true, .gen = Generator{2}};
  EXPECT_TRUE(same_bits(ff.forward(x, {}, Pass{}).y, ff.forward(x, {}, Pass{}).y));
  EXPECT_TRUE(same_bits(ff.forward(x, {}, a).y, ff.forward(x, {}, a).y));
  EXPECT_FALSE(same_bits(ff.forward(x, {}, a).y, ff.forward(x, {}, b).y));
  EXPECT_FALSE(same_bits(ff.forward(x, {}, a).y, ff.forward(x, {}, Pass{}).y));
}

TEST(Positions, SinusoidIsItsFormula) {
  const Tensor pe = sinusoid(5, 3, 6, SinusoidLayout::interleaved, DType::f64, {});
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t k = 0; k < 3; ++k) {
      const double angle = static_cast<double>(5 + r) * std::pow(10000.0, -2.0 * double(k) / 6);
      EXPECT_NEAR(pe.view().as<double>()[r * 6 + 2 * k], std::sin(angle), 1e-15);
      EXPECT_NEAR(pe.view().as<double>()[r * 6 + 2 * k + 1], std::cos(angle), 1e-15);
    }
  }
  EXPECT_THROW(sinusoid(0, 3, 5, SinusoidLayout::halves, DType::f64, {}), ValueError);
}

TEST(Positions, LearnedTableNamesItsLimit) {
  const LearnedPositions table(8, 4, layer_init, Scheme::normal(1));
  EXPECT_TRUE(same_bits(table.forward(3, 5), contiguous(narrow(table.weight, 0, 3, 5))));
  try {
    table.forward(4, 5);
    FAIL() << "position 8 of 8 was taken";
  } catch (const ValueError& e) {
    EXPECT_NE(std::string(e.what()).find("position 8 is beyond the learned table of 8 positions"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace longspan
