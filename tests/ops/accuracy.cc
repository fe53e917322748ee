// Measures the error of elementwise functions in f32, in units in the last place (ULP) of the true
// value.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/copy.h"
#include "ops/elementwise.h"

namespace longspan::test {
namespace {

struct MeasuredFunction {
  const char* name;
  Tensor (*run)(const Tensor&);
  double (*exact)(double);
  double low, high;  // range of x
  double most;       // largest allowed error, in ULP
};

double unit_in_last_place(double y) {
  const int exponent = y == 0 ? -126 : std::max(std::ilogb(y), -126);
  return std::ldexp(1.0, exponent - 23);
}

/// Returns values of both signs within [low, high]: some of every magnitude, some evenly spaced.
std::vector<float> points(double low, double high) {
  std::vector<float> x;
  const auto take = [&](double value) {
    if (value >= low && value <= high) x.push_back(static_cast<float>(value));
  };
  for (uint32_t bits = 1; bits < 0x7f800000u; bits += 40'009) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    take(value);
    take(-value);
  }
  const double width = std::min(high, 200.0) - std::max(low, -200.0);
  for (int i = 0; i <= 200'000; ++i) take(std::max(low, -200.0) + width * i / 200'000);
  return x;
}

const MeasuredFunction kFunctions[] = {
    {"exp", [](const Tensor& x) { return exp(x); }, [](double x) { return std::exp(x); }, -100, 88,
     2},
    {"log", [](const Tensor& x) { return log(x); }, [](double x) { return std::log(x); }, 0, 3e38,
     2},
    {"log1p", [](const Tensor& x) { return log1p(x); }, [](double x) { return std::log1p(x); },
     -0.9999999, 3e38, 2},
    {"expm1, as elu", [](const Tensor& x) { return elu(x); },
     [](double x) { return std::expm1(x); }, -200, 0, 2},
    {"sin", [](const Tensor& x) { return sin(x); }, [](double x) { return std::sin(x); }, -1e6, 1e6,
     2},
    {"cos", [](const Tensor& x) { return cos(x); }, [](double x) { return std::cos(x); }, -1e6, 1e6,
     2},
    {"tanh", [](const Tensor& x) { return tanh(x); }, [](double x) { return std::tanh(x); }, -200,
     200, 2},
    {"sigmoid", [](const Tensor& x) { return sigmoid(x); },
     [](double x) { return 1 / (1 + std::exp(-x)); }, -80, 200, 5},
    {"softplus", [](const Tensor& x) { return softplus(x); },
     [](double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }, -80,
     200, 3},
    {"erf", [](const Tensor& x) { return erf(x); }, [](double x) { return std::erf(x); }, -200, 200,
     4},
};

TEST(Accuracy, FunctionsOfF32) {
  for (const MeasuredFunction& f : kFunctions) {
    const std::vector<float> x = points(f.low, f.high);
    const auto n = static_cast<int64_t>(x.size());
    ASSERT_GT(n, 10'000) << f.name;
    const Tensor y = f.run(Tensor::from(x, {n}));
    const auto* got = static_cast<const float*>(y.view().data);
    double worst = 0;
    float at = 0;
    for (int64_t i = 0; i < n; ++i) {
      const float xi = x[static_cast<size_t>(i)];
      const double exact = f.exact(static_cast<double>(xi));
      const double error =
          std::abs(static_cast<double>(got[i]) - exact) / unit_in_last_place(exact);
      if (!(error <= worst)) {
        worst = error;
        at = xi;
      }
    }
    EXPECT_LE(worst, f.most) << fmt::format("{} at {}", f.name, at);
    RecordProperty(f.name, fmt::format("{:.2f}", worst));
  }
}

TEST(Accuracy, WhereFunctionsEnd) {
  struct Case {
    const char* name;
    Tensor (*run)(const Tensor&);
    float x, y;
  };
  const auto exp_ = [](const Tensor& x) { return exp(x); };
  const auto log_ = [](const Tensor& x) { return log(x); };
  const auto log1p_ = [](const Tensor& x) { return log1p(x); };
  const auto elu_ = [](const Tensor& x) { return elu(x); };
  const auto sin_ = [](const Tensor& x) { return sin(x); };
  const auto cos_ = [](const Tensor& x) { return cos(x); };
  const auto tanh_ = [](const Tensor& x) { return tanh(x); };
  const auto sigmoid_ = [](const Tensor& x) { return sigmoid(x); };
  const auto softplus_ = [](const Tensor& x) { return softplus(x); };
  const auto erf_ = [](const Tensor& x) { return erf(x); };
  const Case cases[] = {{"exp", exp_, -INFINITY, 0},
                        {"exp", exp_, INFINITY, INFINITY},
                        {"exp", exp_, 89, INFINITY},
                        {"exp", exp_, NAN, NAN},
                        {"log", log_, 0, -INFINITY},
                        {"log", log_, INFINITY, INFINITY},
                        {"log", log_, -1, NAN},
                        {"log", log_, NAN, NAN},
                        {"log1p", log1p_, -1, -INFINITY},
                        {"log1p", log1p_, INFINITY, INFINITY},
                        {"log1p", log1p_, -2, NAN},
                        {"log1p", log1p_, NAN, NAN},
                        {"elu", elu_, -INFINITY, -1},
                        {"elu", elu_, INFINITY, INFINITY},
                        {"elu", elu_, NAN, NAN},
                        {"sin", sin_, INFINITY, NAN},
                        {"sin", sin_, NAN, NAN},
                        {"cos", cos_, -INFINITY, NAN},
                        {"cos", cos_, 0, 1},
                        {"tanh", tanh_, INFINITY, 1},
                        {"tanh", tanh_, -INFINITY, -1},
                        {"tanh", tanh_, NAN, NAN},
                        {"sigmoid", sigmoid_, INFINITY, 1},
                        {"sigmoid", sigmoid_, -INFINITY, 0},
                        {"sigmoid", sigmoid_, NAN, NAN},
                        {"softplus", softplus_, INFINITY, INFINITY},
                        {"softplus", softplus_, -INFINITY, 0},
                        {"softplus", softplus_, NAN, NAN},
                        {"erf", erf_, INFINITY, 1},
                        {"erf", erf_, -INFINITY, -1},
                        {"erf", erf_, NAN, NAN}};
  for (const Case& c : cases) {
    // Tests the value at index 3, in a full vector, and at index 20, in a partial one.
    std::vector<float> x(21, 0.5f);
    x[3] = x[20] = c.x;
    const Tensor y = c.run(Tensor::from(x, {21}));
    const auto* got = static_cast<const float*>(y.view().data);
    for (const int i : {3, 20}) {
      if (std::isnan(c.y)) {
        EXPECT_TRUE(std::isnan(got[i])) << c.name << " of " << c.x << " is " << got[i];
      } else {
        EXPECT_EQ(got[i], c.y) << c.name << " of " << c.x;
      }
    }
    EXPECT_EQ(got[0], got[19]) << c.name;
  }
}

/// maximum() and minimum() return NaN if either operand is NaN.
TEST(Accuracy, LargerAndSmallerOfNaN) {
  const std::vector<float> a(37, NAN), b(37, 1.0f);
  const Tensor x = Tensor::from(a, {37}), y = Tensor::from(b, {37});
  for (const Tensor& z : {maximum(x, y), maximum(y, x), minimum(x, y), minimum(y, x)}) {
    for (int i = 0; i < 37; ++i) {
      EXPECT_TRUE(std::isnan(static_cast<const float*>(z.view().data)[i])) << i;
    }
  }
}

TEST(Accuracy, SixteenBitsOfNaN) {
  for (const uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xffffffffu, 0xffc12345u}) {
    float nan;
    std::memcpy(&nan, &bits, sizeof nan);
    const Tensor x = Tensor::from(std::vector<float>(37, nan), {37});
    for (const DType t : {DType::bf16, DType::f16}) {
      const Tensor back = cast(cast(x, t), DType::f32);
      for (int i = 0; i < 37; ++i) {
        EXPECT_TRUE(std::isnan(static_cast<const float*>(back.view().data)[i])) << bits;
      }
    }
  }
}

}  // namespace
}  // namespace longspan::test
