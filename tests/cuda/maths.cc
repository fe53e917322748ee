#include "core/kernels/maths.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/tensor.h"

namespace longspan {
namespace {

using kernels::Binary;
using kernels::Comparison;
using kernels::Unary;

/// A function with parameters and its domain.
struct UnaryCase {
  Unary f;
  double alpha = 0, beta = 0;
  bool positive = false;     // defined above zero only
  bool from_result = false;  // its backward is given y
};

std::vector<UnaryCase> unary_cases() {
  return {{Unary::affine, 1.5, -0.25},
          {.f = Unary::exp, .from_result = true},
          {.f = Unary::log, .positive = true},
          {.f = Unary::log1p, .positive = true},
          {.f = Unary::sqrt, .positive = true, .from_result = true},
          {.f = Unary::rsqrt, .positive = true, .from_result = true},
          {.f = Unary::square},
          {.f = Unary::abs},
          {.f = Unary::reciprocal, .from_result = true},
          {.f = Unary::power, .alpha = 2.5, .positive = true},
          {.f = Unary::power, .alpha = 3},
          {.f = Unary::clamp, .alpha = -1, .beta = 2},
          {.f = Unary::sin},
          {.f = Unary::cos},
          {.f = Unary::tanh, .from_result = true},
          {.f = Unary::erf},
          {.f = Unary::sigmoid, .from_result = true},
          {.f = Unary::softplus},
          {.f = Unary::relu, .from_result = true},
          {.f = Unary::relu_squared},
          {.f = Unary::leaky_relu, .alpha = 0.1},
          {.f = Unary::elu, .alpha = 0.7, .from_result = true},
          {.f = Unary::silu},
          {.f = Unary::gelu_erf},
          {.f = Unary::gelu_tanh},
          {.f = Unary::gelu_sigmoid}};
}

std::vector<double> numbers(const UnaryCase& c) {
  std::vector<double> x;
  for (int i = -40; i <= 40; ++i) {
    const double v = 0.173 * i + 0.011;
    if (!c.positive || v > 0) x.push_back(v);
  }
  for (const double v : {1e-6, 30.0, -30.0, 1.0, -1.0, 2.0}) {
    if (!c.positive || v > 0) x.push_back(v);
  }
  return x;
}

/// Returns the CPU kernel's results in f64, which have tests of their own.
template <class F>
std::vector<double> on_cpu(size_t n, F&& run) {
  Tensor y = Tensor::empty({static_cast<int64_t>(n)}, DType::f64);
  run(y);
  const double* v = y.view().as<double>();
  return {v, v + n};
}

Tensor tensor_of(const std::vector<double>& v) {
  return Tensor::from(v, {static_cast<int64_t>(v.size())});
}

void expect_close(double got, double expected, double tolerance, int f, double x) {
  EXPECT_LE(std::abs(got - expected), tolerance * (1 + std::abs(expected)))
      << "function " << f << " of " << x << ": " << got << " instead of " << expected;
}

TEST(Maths, FunctionsOfOneNumberAgreeWithTheCpuKernels) {
  for (const UnaryCase& c : unary_cases()) {
    const std::vector<double> x = numbers(c);
    const Tensor tx = tensor_of(x);
    const auto y = on_cpu(x.size(), [&](Tensor& to) {
      kernels::unary_forward(Device{}, c.f, c.alpha, c.beta, tx.view(), to.mut());
    });
    const std::vector<double> v = c.from_result ? y : x;
    const Tensor tv = tensor_of(v), dy = tensor_of(std::vector<double>(x.size(), 1.25));
    const auto dx = on_cpu(x.size(), [&](Tensor& to) {
      kernels::unary_backward(Device{}, c.f, c.alpha, c.beta, tv.view(), dy.view(), to.mut());
    });
    const int f = static_cast<int>(c.f);
    for (size_t i = 0; i < x.size(); ++i) {
      expect_close(kernels::unary_value(c.f, c.alpha, c.beta, x[i]), y[i], 1e-12, f, x[i]);
      expect_close(kernels::unary_gradient(c.f, c.alpha, c.beta, v[i], 1.25), dx[i], 1e-12, f,
                   x[i]);
      const auto a = static_cast<float>(c.alpha), b = static_cast<float>(c.beta);
      if (c.f == Unary::exp && x[i] > 20) continue;  // the rounding of x alone is larger
      expect_close(kernels::unary_value(c.f, a, b, static_cast<float>(x[i])), y[i], 2e-5, f, x[i]);
    }
  }
}

TEST(Maths, ValueAndSlopeTogetherAreWhatTheyAreAlone) {
  for (const Unary f : {Unary::silu, Unary::gelu_erf, Unary::gelu_tanh, Unary::gelu_sigmoid}) {
    for (const double x : numbers({.f = f})) {
      double y = 0, slope = 0;
      kernels::unary_both(f, x, y, slope);
      EXPECT_NEAR(y, kernels::unary_value(f, 0.0, 0.0, x), 1e-13 * (1 + std::abs(y)));
      const double h = 1e-5;
      const double across =
          kernels::unary_value(f, 0.0, 0.0, x + h) - kernels::unary_value(f, 0.0, 0.0, x - h);
      EXPECT_NEAR(slope, across / (2 * h), 1e-9) << x;
    }
  }
}

TEST(Maths, FlatPlacesStopGradients) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(kernels::unary_gradient(Unary::relu, 0.0, 0.0, 0.0, nan), 0);
  EXPECT_EQ(kernels::unary_gradient(Unary::clamp, -1.0, 1.0, 3.0, nan), 0);
  EXPECT_EQ(kernels::unary_gradient(Unary::power, 0.0, 0.0, 0.0, 1.0), 0);
  EXPECT_TRUE(std::isnan(kernels::unary_value(Unary::relu, 0.0, 0.0, nan)));
  EXPECT_TRUE(std::isnan(kernels::unary_value(Unary::clamp, -1.0, 1.0, nan)));
}

TEST(Maths, FunctionsOfTwoNumbers) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(kernels::binary_value(Binary::add, 2.0, 3.0), 5);
  EXPECT_EQ(kernels::binary_value(Binary::sub, 2.0, 3.0), -1);
  EXPECT_EQ(kernels::binary_value(Binary::mul, 2.0, 3.0), 6);
  EXPECT_EQ(kernels::binary_value(Binary::div, 3.0, 2.0), 1.5);
  EXPECT_EQ(kernels::binary_value(Binary::maximum, 2.0, 3.0), 3);
  EXPECT_EQ(kernels::binary_value(Binary::minimum, 2.0, 3.0), 2);
  for (const Binary f : {Binary::maximum, Binary::minimum}) {
    EXPECT_TRUE(std::isnan(kernels::binary_value(f, nan, 1.0)));
    EXPECT_TRUE(std::isnan(kernels::binary_value(f, 1.0, nan)));
  }
  EXPECT_TRUE(kernels::holds(Comparison::less_equal, 2, 2));
  EXPECT_FALSE(kernels::holds(Comparison::less, 2, 2));
  EXPECT_FALSE(kernels::holds(Comparison::equal, nan, nan));
  EXPECT_TRUE(kernels::holds(Comparison::not_equal, nan, nan));
}

}  // namespace
}  // namespace longspan
