// Matrix products of bf16, and of f32 rounded to bf16, with and without the processor's bf16 dot
// products.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "autograd/engine.h"
#include "autograd/record.h"
#include "core/kernels/matmul.h"
#include "core/parallel.h"
#include "core/precision.h"
#include "cpu/bf16_dot.h"
#include "ops/copy.h"
#include "ops/matmul.h"
#include "ops/shape.h"
#include "tests/harness/input_spec.h"
#include "tests/ops/laid.h"

namespace longspan::test {
namespace {

/// How products are computed. f32 operands are multiplied with MatmulPrecision::bf16.
struct NarrowProduct {
  const char* name;
  DType operands, result;
  bool dot;
};
void PrintTo(const NarrowProduct& way, std::ostream* out) { *out << way.name; }

class MatmulBf16 : public testing::TestWithParam<NarrowProduct> {
 protected:
  void SetUp() override {
    cpu::set_bf16_dot(GetParam().dot);
    if (GetParam().dot && !cpu::bf16_dot()) GTEST_SKIP() << "the processor has no such products";
  }
  void TearDown() override { cpu::set_bf16_dot(true); }

  /// Rounds an operand as this way of computing does.
  float rounded(float x) const {
    return GetParam().operands == DType::bf16 || GetParam().dot ? float{bf16(x)} : x;
  }
  const WithMatmulPrecision precision{MatmulPrecision::bf16};
};
INSTANTIATE_TEST_SUITE_P(
    Ways, MatmulBf16,
    testing::Values(NarrowProduct{"bf16_by_dot", DType::bf16, DType::bf16, true},
                    NarrowProduct{"bf16_to_f32_by_dot", DType::bf16, DType::f32, true},
                    NarrowProduct{"f32_by_dot", DType::f32, DType::f32, true},
                    NarrowProduct{"bf16_widened", DType::bf16, DType::bf16, false},
                    NarrowProduct{"bf16_to_f32_widened", DType::bf16, DType::f32, false},
                    NarrowProduct{"f32", DType::f32, DType::f32, false}),
    [](const auto& way) { return std::string(way.param.name); });

std::vector<float> normal_floats(int64_t n, uint64_t seed) {
  const Making plain{DType::f32, DType::f32, Layout::contiguous, {}};
  return make(randn({n}), Generator{seed}, plain).to_vector<float>();
}

struct Size {
  int64_t m, n, k;
};

/// Compares a product in every layout with the f64 sum of the products of the rounded operands.
class Checked {
 public:
  Checked(const NarrowProduct& way, Size size, float (*round)(float))
      : way_(way),
        s_(size),
        a_(normal_floats(s_.m * s_.k, 1)),
        b_(normal_floats(s_.k * s_.n, 2)),
        bias_(normal_floats(s_.n, 3)),
        before_(normal_floats(s_.m * s_.n, 4)),
        sums_(before_.size(), 0),
        sizes_(before_.size(), 0) {
    if (way.result == DType::bf16) {
      for (float& x : bias_) x = float{bf16(x)};
      for (float& x : before_) x = float{bf16(x)};
    }
    for (int64_t i = 0; i < s_.m; ++i) {
      for (int64_t p = 0; p < s_.k; ++p) {
        const double a = round(a_[static_cast<size_t>(i * s_.k + p)]);
        for (int64_t j = 0; j < s_.n; ++j) {
          const double product = a * round(b_[static_cast<size_t>(p * s_.n + j)]);
          sums_[static_cast<size_t>(i * s_.n + j)] += product;
          sizes_[static_cast<size_t>(i * s_.n + j)] += std::abs(product);
        }
      }
    }
  }

  void check(Lies how_a, Lies how_b, bool with_bias, bool accumulate) const {
    const Tensor a = laid(a_, s_.m, s_.k, how_a, way_.operands);
    const Tensor b = laid(b_, s_.k, s_.n, how_b, way_.operands);
    const Tensor bias = cast(Tensor::from(bias_, {s_.n}), way_.result);
    Tensor c = cast(Tensor::from(before_, {s_.m, s_.n}), way_.result);
    kernels::matmul(c.device(), a.view(), b.view(), c.mut(),
                    {.accumulate = accumulate, .bias = with_bias ? bias.view() : ConstView{}});
    const std::vector<float> got = floats_of(c);
    for (size_t i = 0; i < got.size(); ++i) {
      const double bias_here = with_bias ? bias_[i % bias_.size()] : 0;
      const double before = accumulate ? before_[i] : 0;
      const double want = sums_[i] + bias_here + before;
      const double size = sizes_[i] + std::abs(bias_here) + std::abs(before);
      // Rounding errors of an f32 sum are nearly random, so their sum grows as the square root of
      // k.
      double bound = (2 + std::sqrt(static_cast<double>(s_.k))) * 0x1p-24 * size;
      if (way_.result == DType::bf16) bound += 0x1p-8 * std::abs(want);
      ASSERT_NEAR(got[i], want, bound) << fmt::format(
          "{} x {} x {}, element {}, a {} b {}{}{}", s_.m, s_.n, s_.k, i, static_cast<int>(how_a),
          static_cast<int>(how_b), with_bias ? ", bias" : "", accumulate ? ", added" : "");
    }
  }

 private:
  NarrowProduct way_;
  Size s_;
  std::vector<float> a_, b_, bias_, before_;
  std::vector<double> sums_, sizes_;
};

TEST_P(MatmulBf16, EverySizeInEveryLayout) {
  std::vector<Size> sizes = {{30, 40, 2051}, {100, 300, 1027}, {3, 257, 1100}, {2, 4100, 33},
                             {150, 20, 90},  {61, 520, 7},     {12, 64, 1024}, {49, 33, 1025}};
  for (const int64_t m : {1, 2, 3, 4, 5, 13, 37}) {
    for (const int64_t n : {1, 9, 32, 33, 70}) {
      for (const int64_t k : {1, 2, 3, 16, 31, 64, 130}) sizes.push_back({m, n, k});
    }
  }
  const bool rounds = rounded(1.001f) != 1.001f;
  int turn = 0;
  for (const Size& size : sizes) {
    const Checked product(GetParam(), size, [](float x) { return x; });
    const Checked of_rounded(GetParam(), size, [](float x) { return float{bf16(x)}; });
    for (const Lies a : {Lies::rows, Lies::columns, Lies::apart}) {
      for (const Lies b : {Lies::rows, Lies::columns, Lies::apart}) {
        (rounds ? of_rounded : product).check(a, b, turn % 2 == 1, turn % 3 == 1);
        ++turn;
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(MatmulBf16, NothingGivesTheBias) {
  for (const Size& size : {Size{3, 5, 0}, Size{0, 5, 3}, Size{3, 0, 5}}) {
    const Checked product(GetParam(), size, [](float x) { return x; });
    for (const bool accumulate : {false, true}) {
      product.check(Lies::rows, Lies::columns, true, accumulate);
    }
  }
}

// A row has the same bits for any number of other rows, in every layout.
TEST_P(MatmulBf16, RowDependsOnItsRowAlone) {
  const int64_t rows = 150;
  for (const int64_t n : {1, 31, 100}) {
    for (const int64_t k : {1, 64, 257, 1201}) {
      const std::vector<float> values = normal_floats(rows * k, 1),
                               others = normal_floats(k * n, 2);
      std::vector<float> first;
      for (const Lies how_a : {Lies::rows, Lies::columns, Lies::apart}) {
        for (const Lies how_b : {Lies::rows, Lies::columns}) {
          const Tensor a = laid(values, rows, k, how_a, GetParam().operands);
          const Tensor b = laid(others, k, n, how_b, GetParam().operands);
          const auto product = [&](const Tensor& left) {
            Tensor c = Tensor::empty({left.dim(0), n}, GetParam().result, Device{});
            kernels::matmul(c.device(), left.view(), b.view(), c.mut(), kernels::no_epilogue);
            return floats_of(c);
          };
          const std::vector<float> all = product(a);
          if (first.empty()) first = all;
          SCOPED_TRACE(fmt::format("n {} k {} a {} b {}", n, k, static_cast<int>(how_a),
                                   static_cast<int>(how_b)));
          expect_same_bits(all, first);  // layouts do not matter either
          for (const int64_t m : {1, 2, 3, 4, 5, 11, 12, 13, 24, 29, 64, 149}) {
            const std::vector<float> last(all.begin() + (rows - m) * n, all.end());
            SCOPED_TRACE(m);
            expect_same_bits(product(narrow(a, 0, rows - m, m)), last);
          }
        }
      }
    }
  }
}

TEST_P(MatmulBf16, MatricesOfABatchAreThoseAlone) {
  const DType dtype = GetParam().operands;
  const Tensor a = cast(Tensor::from(normal_floats(3 * 13 * 37, 1), {3, 13, 37}), dtype);
  const Tensor b = cast(Tensor::from(normal_floats(3 * 37 * 21, 2), {3, 37, 21}), dtype);
  const Tensor all = matmul(a, b), one = matmul(a, select(b, 0, 1));
  for (int64_t i = 0; i < 3; ++i) {
    expect_same_bits(floats_of(contiguous(select(all, 0, i))),
                     floats_of(matmul(select(a, 0, i), select(b, 0, i))));
    expect_same_bits(floats_of(contiguous(select(one, 0, i))),
                     floats_of(matmul(select(a, 0, i), select(b, 0, 1))));
  }
}

TEST_P(MatmulBf16, BitsForAnyNumberOfThreads) {
  const int before = num_threads();
  const int64_t rows = 1111, in = 601, out = 520;
  const DType dtype = GetParam().operands;
  std::vector<std::vector<float>> first;
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    Tensor x = cast(Tensor::from(normal_floats(rows * in, 1), {rows, in}), dtype);
    Tensor weight = cast(Tensor::from(normal_floats(out * in, 2), {out, in}), dtype);
    for (Tensor* t : {&x, &weight}) set_requires_grad(*t);
    const Tensor y = linear(x, weight);
    backward(y, cast(Tensor::from(normal_floats(rows * out, 3), {rows, out}), dtype));
    const std::vector<std::vector<float>> all = {floats_of(y), floats_of(grad(x)),
                                                 floats_of(grad(weight))};
    if (threads == 1) first = all;
    for (size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(fmt::format("{} threads, result {}", threads, i));
      expect_same_bits(all[i], first[i]);
    }
  }
  set_num_threads(before);
}

TEST_P(MatmulBf16, WhatIsNotFiniteStaysInItsRow) {
  for (const int64_t k : {20, 21}) {
    std::vector<float> values(static_cast<size_t>(13 * k), 1.0f);
    values[static_cast<size_t>(3 * k + 5)] = NAN;
    values[static_cast<size_t>(6 * k + k - 1)] = INFINITY;
    values[static_cast<size_t>(8 * k)] = -INFINITY;
    for (const Lies how : {Lies::rows, Lies::columns, Lies::apart}) {
      const Tensor a = laid(values, 13, k, how, GetParam().operands);
      const Tensor b = laid(std::vector<float>(static_cast<size_t>(k * 33), 1.0f), k, 33, how,
                            GetParam().operands);
      const std::vector<float> y = floats_of(matmul(a, b));
      for (int64_t i = 0; i < 13; ++i) {
        for (int64_t j = 0; j < 33; ++j) {
          const float v = y[static_cast<size_t>(i * 33 + j)];
          const float want = i == 6 ? INFINITY : i == 8 ? -INFINITY : static_cast<float>(k);
          EXPECT_TRUE(i == 3 ? std::isnan(v) : v == want) << i << ", " << j << ": " << v;
        }
      }
    }
  }
}

/// Computes x times 1 as a product of f32 operands with k terms, all others being 0.
float times_one(float x, int64_t k) {
  std::vector<float> a(static_cast<size_t>(k), 0.0f);
  a.back() = x;
  const std::vector<float> ones(static_cast<size_t>(k), 1.0f);
  return floats_of(matmul(Tensor::from(a, {1, k}), Tensor::from(ones, {k, 1})))[0];
}

TEST(MatmulPrecision, Bf16RoundsToNearestEvenAndDropsSubnormals) {
  if (!cpu::bf16_dot()) GTEST_SKIP() << "the processor has no such products";
  const WithMatmulPrecision precision(MatmulPrecision::bf16);
  for (const int64_t k : {1, 2, 16, 33}) {
    EXPECT_EQ(times_one(1 + 0x1p-8f, k), 1);
    EXPECT_EQ(times_one(1 + 0x3p-8f, k), 1 + 0x1p-6f);
    EXPECT_EQ(times_one(1 + 0x1p-8f + 0x1p-20f, k), 1 + 0x1p-7f);
    EXPECT_EQ(times_one(-3.14159274f, k), -3.140625f);
    EXPECT_EQ(times_one(std::numeric_limits<float>::max(), k), INFINITY);
    EXPECT_EQ(times_one(std::numeric_limits<float>::min(), k), 0x1p-126f);
    EXPECT_EQ(times_one(0x1p-127f, k), 0);
  }
}

TEST(MatmulPrecision, SaysWhatF32ProductsRoundTo) {
  const Tensor a = Tensor::from(normal_floats(30 * 50, 1), {30, 50});
  const Tensor b = Tensor::from(normal_floats(50 * 40, 2), {50, 40});
  const auto product = [&](MatmulPrecision precision, DType dtype) {
    const WithMatmulPrecision with(precision);
    const Tensor y = matmul(cast(a, dtype), cast(b, dtype));
    EXPECT_EQ(y.dtype(), dtype);
    return cast(y, DType::f64).to_vector<double>();
  };
  const auto f32 = product(MatmulPrecision::f32, DType::f32);
  EXPECT_EQ(product(MatmulPrecision::tf32, DType::f32), f32);
  EXPECT_EQ(product(MatmulPrecision::bf16, DType::f32) == f32, !cpu::bf16_dot());
  for (const DType dtype : {DType::f64, DType::f16, DType::bf16}) {  // no other dtype changes
    EXPECT_EQ(product(MatmulPrecision::bf16, dtype), product(MatmulPrecision::f32, dtype));
  }
  // The operands are rounded exactly as bf16 tensors are: bf16 tensors give the same f32 sums.
  if (cpu::bf16_dot()) {
    Tensor c = Tensor::empty({30, 40}, DType::f32, Device{});
    kernels::matmul(c.device(), cast(a, DType::bf16).view(), cast(b, DType::bf16).view(), c.mut(),
                    {});
    EXPECT_EQ(cast(c, DType::f64).to_vector<double>(), product(MatmulPrecision::bf16, DType::f32));
  }
}

}  // namespace
}  // namespace longspan::test
