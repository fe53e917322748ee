// Compares our matrix products with OpenBLAS's over shapes, layouts, biases and accumulation.
// Checks which guarantees of our products OpenBLAS must keep, and which products stay with our own
// kernels.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "autograd/engine.h"
#include "autograd/record.h"
#include "core/kernels/matmul.h"
#include "core/matmul_library.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/precision.h"
#include "ops/copy.h"
#include "ops/matmul.h"
#include "ops/shape.h"
#include "tests/harness/input_spec.h"
#include "tests/ops/laid.h"

namespace longspan::test {
namespace {

std::vector<double> normal_doubles(int64_t n, uint64_t seed) {
  const Making plain{DType::f64, DType::f64, Layout::contiguous, {}};
  return make(randn({n}), Generator{seed}, plain).to_vector<double>();
}

std::vector<double> doubles_of(const Tensor& x) { return cast(x, DType::f64).to_vector<double>(); }

/// Computes c = a b (+ bias) (+ c) with a library. The memory around c holds NaN, which must not
/// change. The previous content of c matters only with `accumulate`.
std::vector<double> openblas_product(MatmulLibrary library, const Tensor& a, const Tensor& b,
                                     const Tensor& bias, const std::vector<double>& before,
                                     bool accumulate) {
  const WithMatmulLibrary setting(library);
  const int64_t m = a.dim(0), n = b.dim(1), row = n + 5;
  std::vector<double> all(static_cast<size_t>(m * row + 8), NAN);
  for (int64_t i = 0; accumulate && i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      all[static_cast<size_t>(3 + i * row + j)] = before[static_cast<size_t>(i * n + j)];
    }
  }
  const Tensor buffer = cast(Tensor::from(all, {static_cast<int64_t>(all.size())}), a.dtype());
  Tensor c = buffer.alias({m, n}, {row, 1}, 3);
  kernels::matmul(c.device(), a.view(), b.view(), c.mut(),
                  {.accumulate = accumulate, .bias = bias ? bias.view() : ConstView{}});
  const std::vector<double> after = doubles_of(buffer);
  for (size_t i = 0; i < after.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i) - 3;
    const bool inside = at >= 0 && at / row < m && at % row < n;
    if (!inside && !std::isnan(after[i])) {
      ADD_FAILURE() << "wrote outside of c, element " << at;
      break;
    }
  }
  return doubles_of(c);
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

struct BlasSize {
  int64_t m, n, k;
};

class MatmulOpenBlas : public testing::TestWithParam<DType> {
 protected:
  /// Returns the product of the operands from our own kernels (the default) and from OpenBLAS.
  std::pair<std::vector<double>, std::vector<double>> both(const Tensor& a, const Tensor& b) const {
    return {openblas_product(MatmulLibrary::own, a, b, {}, {}, false),
            openblas_product(MatmulLibrary::openblas, a, b, {}, {}, false)};
  }
  Tensor matrix(BlasSize s, uint64_t seed, Lies how = Lies::rows) const {
    return laid(normal_doubles(s.m * s.n, seed), s.m, s.n, how, GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(DTypes, MatmulOpenBlas, testing::Values(DType::f32, DType::f64),
                         [](const auto& type) { return std::string(name_of(type.param)); });

/// Compares both libraries with a long double sum, and with each other, in every layout.
void check_size(BlasSize s, DType dtype) {
  const auto as = [dtype](std::vector<double> x) {
    if (dtype == DType::f32) {
      for (double& v : x) v = static_cast<double>(static_cast<float>(v));
    }
    return x;
  };
  const std::vector<double> a = as(normal_doubles(s.m * s.k, 1)),
                            b = as(normal_doubles(s.k * s.n, 2)), bias = as(normal_doubles(s.n, 3)),
                            before = as(normal_doubles(s.m * s.n, 4));
  std::vector<long double> sums(before.size(), 0), sizes(before.size(), 0);
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t p = 0; p < s.k; ++p) {
      const long double x = a[static_cast<size_t>(i * s.k + p)];
      for (int64_t j = 0; j < s.n; ++j) {
        const long double term = x * b[static_cast<size_t>(p * s.n + j)];
        sums[static_cast<size_t>(i * s.n + j)] += term;
        sizes[static_cast<size_t>(i * s.n + j)] += std::abs(term);
      }
    }
  }
  // Rounding errors of a sum are nearly random, so their sum grows as the square root of k.
  const double unit = dtype == DType::f32 ? 0x1p-24 : 0x1p-53;
  const double roundings = (2 + std::sqrt(static_cast<double>(s.k))) * unit;
  const Tensor bias_tensor = cast(Tensor::from(bias, {s.n}), dtype);
  for (const Lies how_a : {Lies::rows, Lies::columns, Lies::apart}) {
    for (const Lies how_b : {Lies::rows, Lies::columns, Lies::apart}) {
      const Tensor left = laid(a, s.m, s.k, how_a, dtype), right = laid(b, s.k, s.n, how_b, dtype);
      for (const int mode : {0, 1, 2, 3}) {
        // All pairs of layout and mode for small results, some for large ones.
        if (s.m * s.n > 10000 && mode != (static_cast<int>(how_a) + static_cast<int>(how_b)) % 4) {
          continue;
        }
        const bool with_bias = (mode & 1) != 0, accumulate = (mode & 2) != 0;
        const Tensor extra = with_bias ? bias_tensor : Tensor{};
        const auto own =
            openblas_product(MatmulLibrary::own, left, right, extra, before, accumulate);
        const auto other =
            openblas_product(MatmulLibrary::openblas, left, right, extra, before, accumulate);
        const std::string what = fmt::format(
            "{} x {} x {}, a {} b {}{}{}", s.m, s.n, s.k, static_cast<int>(how_a),
            static_cast<int>(how_b), with_bias ? ", bias" : "", accumulate ? ", added" : "");
        for (size_t i = 0; i < own.size(); ++i) {
          const double beside = with_bias ? bias[i % bias.size()] : 0;
          const double was = accumulate ? before[i] : 0;
          const auto want = static_cast<double>(sums[i] + beside + was);
          const double bound =
              roundings * (static_cast<double>(sizes[i]) + std::abs(beside) + std::abs(was));
          const bool good = std::abs(own[i] - want) <= bound &&
                            std::abs(other[i] - want) <= bound &&
                            std::abs(own[i] - other[i]) <= bound;
          ASSERT_TRUE(good) << what << ", element " << i << ": own " << own[i] << ", OpenBLAS "
                            << other[i] << ", exact " << want << ", bound " << bound;
        }
      }
    }
  }
}

TEST_P(MatmulOpenBlas, BothGiveTheSameToRounding) {
  for (const BlasSize s :
       {BlasSize{1, 1, 1},     BlasSize{2, 2, 2},      BlasSize{3, 7, 5},
        BlasSize{1, 33, 17},   BlasSize{33, 1, 17},    BlasSize{17, 33, 1},
        BlasSize{1, 1, 4000},  BlasSize{0, 3, 4},      BlasSize{4, 0, 3},
        BlasSize{3, 2, 0},     BlasSize{1, 2133, 125}, BlasSize{4, 300, 600},
        BlasSize{13, 64, 64},  BlasSize{64, 64, 64},   BlasSize{129, 67, 300},
        BlasSize{2000, 3, 5},  BlasSize{3, 2000, 5},   BlasSize{5, 3, 3000},
        BlasSize{700, 24, 16}, BlasSize{530, 1030, 7}, BlasSize{257, 129, 411}}) {
    check_size(s, GetParam());
  }
}

// OpenBLAS computes the product in every layout that it can read. If an operand is strided along
// both axes, the result has the bits of our own kernels.
TEST_P(MatmulOpenBlas, TakesWhatItCanRead) {
  for (const Lies how_a : {Lies::rows, Lies::columns, Lies::apart}) {
    for (const Lies how_b : {Lies::rows, Lies::columns, Lies::apart}) {
      const auto [own, other] =
          both(matrix({129, 3000, 0}, 1, how_a), matrix({3000, 67, 0}, 2, how_b));
      const bool apart = how_a == Lies::apart || how_b == Lies::apart;
      EXPECT_EQ(same_bits(own, other), apart)
          << static_cast<int>(how_a) << ' ' << static_cast<int>(how_b);
    }
  }
}

// Strides of axes of size 1 mean nothing. OpenBLAS cannot read repeated or overlapping rows as they
// are.
TEST_P(MatmulOpenBlas, ReadsAxesOfOneElementAndRepeatedRows) {
  const Tensor row = matrix({1, 40, 0}, 1), column = matrix({40, 1, 0}, 2);
  const Tensor square = matrix({40, 40, 0}, 3);
  const auto close = [](const std::pair<std::vector<double>, std::vector<double>>& x) {
    ASSERT_EQ(x.first.size(), x.second.size());
    for (size_t i = 0; i < x.first.size(); ++i) EXPECT_NEAR(x.first[i], x.second[i], 1e-4) << i;
  };
  for (const int64_t stride : {0, 1, 7, 1000}) {
    close(both(row.alias({1, 40}, {stride, 1}, 0), square));
    close(both(square, column.alias({40, 1}, {column.strides()[0], stride}, 0)));
    close(both(column.alias({1, 40}, {stride, column.strides()[0]}, 0), square));
    close(both(column, row.alias({1, 40}, {stride, 1}, 0)));
  }
  const Tensor repeated = row.alias({30, 40}, {0, 1}, 0);
  close(both(repeated, square));
  close(both(square, transpose(repeated)));
  const Tensor overlapping = contiguous(square).alias({40, 40}, {3, 1}, 0);
  close(both(overlapping, square));
  close(both(square, transpose(overlapping)));
}

// 0 times NaN or infinity is NaN, and the previous content of c is read only with `accumulate`.
TEST_P(MatmulOpenBlas, NotANumberAndInfinityComeOutAlike) {
  const auto kind = [](double x) {
    return std::isnan(x) ? 'n' : std::isinf(x) ? (x > 0 ? '+' : '-') : '.';
  };
  for (const BlasSize s : {BlasSize{1, 1, 3}, BlasSize{1, 40, 20}, BlasSize{40, 1, 20},
                           BlasSize{13, 33, 20}, BlasSize{200, 150, 90}, BlasSize{3, 5, 1}}) {
    std::vector<double> a = normal_doubles(s.m * s.k, 1), b = normal_doubles(s.k * s.n, 2),
                        c = normal_doubles(s.m * s.n, 3);
    a[0] = NAN;
    a[a.size() / 2] = inf;
    for (int64_t p = 0; p < s.k; ++p) a[static_cast<size_t>((s.m - 1) * s.k + p)] = 0;
    b[b.size() - 1] = -inf;
    b[b.size() / 3] = NAN;
    for (int64_t p = 0; p < s.k; ++p) b[static_cast<size_t>(p * s.n)] = 0;
    c[0] = inf;
    c[c.size() / 2] = NAN;
    for (const Lies how_a : {Lies::rows, Lies::columns}) {
      for (const Lies how_b : {Lies::rows, Lies::columns}) {
        const Tensor left = laid(a, s.m, s.k, how_a, GetParam());
        const Tensor right = laid(b, s.k, s.n, how_b, GetParam());
        for (const bool accumulate : {false, true}) {
          const auto own = openblas_product(MatmulLibrary::own, left, right, {}, c, accumulate);
          const auto other =
              openblas_product(MatmulLibrary::openblas, left, right, {}, c, accumulate);
          for (size_t i = 0; i < own.size(); ++i) {
            ASSERT_EQ(kind(own[i]), kind(other[i]))
                << fmt::format("{} x {} x {}, element {}", s.m, s.n, s.k, i);
          }
        }
      }
    }
  }
}

// Leading axes: batches, several axes and broadcast operands.
TEST_P(MatmulOpenBlas, Batches) {
  const auto tensor = [](const Shape& shape, uint64_t seed) {
    return cast(Tensor::from(normal_doubles(numel(shape), seed), shape), GetParam());
  };
  const std::pair<Tensor, Tensor> pairs[] = {
      {tensor({6, 33, 65}, 1), tensor({6, 65, 31}, 2)},
      {tensor({2, 3, 17, 300}, 1), tensor({2, 3, 300, 40}, 2)},
      {tensor({5, 65, 33}, 1), tensor({33, 65}, 2)},
      {tensor({20, 50}, 1), tensor({40, 50, 30}, 2)},
      {tensor({2, 1, 30, 50}, 1), tensor({1, 3, 50, 20}, 2)},
      {tensor({0, 4, 5}, 1), tensor({0, 5, 2}, 2)},
      {transpose(tensor({64, 70, 65}, 1), -1, -2), tensor({64, 70, 31}, 2)}};
  for (const auto& [a, b] : pairs) {
    const std::vector<double> own = doubles_of(matmul(a, b));
    const WithMatmulLibrary openblas(MatmulLibrary::openblas);
    const std::vector<double> other = doubles_of(matmul(a, b));
    ASSERT_EQ(own.size(), other.size());
    const double bound = GetParam() == DType::f32 ? 1e-4 : 1e-13;
    for (size_t i = 0; i < own.size(); ++i) ASSERT_NEAR(own[i], other[i], bound) << i;
  }
}

// The same product has the same bits wherever its operands are in memory and on any number of
// threads, even on more than OpenBLAS serves at a time.
TEST_P(MatmulOpenBlas, TheSameBitsAgainAndOnAnyNumberOfThreads) {
  const int before = num_threads();
  const WithMatmulLibrary openblas(MatmulLibrary::openblas);
  for (const BlasSize s :
       {BlasSize{300, 1100, 200}, BlasSize{1111, 24, 40}, BlasSize{256, 256, 2000}}) {
    const std::vector<double> a = normal_doubles(s.m * s.k, 1), b = normal_doubles(s.k * s.n, 2);
    std::vector<double> first;
    for (const int threads : {1, 2, 3, 70}) {
      set_num_threads(threads);
      for (int64_t shift = 0; shift < 3; ++shift) {
        const auto moved = [&](const std::vector<double>& x, int64_t rows, int64_t columns) {
          std::vector<double> all(static_cast<size_t>(shift), NAN);
          all.insert(all.end(), x.begin(), x.end());
          const Tensor buffer =
              cast(Tensor::from(all, {static_cast<int64_t>(all.size())}), GetParam());
          return buffer.alias({rows, columns}, {columns, 1}, shift);
        };
        const std::vector<double> c = doubles_of(matmul(moved(a, s.m, s.k), moved(b, s.k, s.n)));
        if (first.empty()) first = c;
        EXPECT_TRUE(same_bits(c, first)) << threads << " threads, moved by " << shift;
      }
    }
  }
  set_num_threads(before);
}

TEST_P(MatmulOpenBlas, CallsFromSeveralThreadsDoNotDisturbEachOther) {
  const WithMatmulLibrary openblas(MatmulLibrary::openblas);
  const Tensor a = matrix({150, 700, 0}, 1), b = matrix({700, 90, 0}, 2);
  const std::vector<double> alone = doubles_of(matmul(a, b));
  std::vector<int> wrong(6, 0);
  std::vector<std::thread> callers;
  for (int& count : wrong) {
    callers.emplace_back([&] {
      for (int i = 0; i < 20; ++i) count += same_bits(doubles_of(matmul(a, b)), alone) ? 0 : 1;
    });
  }
  for (std::thread& t : callers) t.join();
  for (const int count : wrong) EXPECT_EQ(count, 0);
}

// OpenBLAS products do not take the scratch memory of our kernels, neither on the CPU nor on the
// meta device, which predicts it.
TEST_P(MatmulOpenBlas, TakesNoScratchAndThePlanAgrees) {
  const auto peak = [](Device device, MatmulLibrary library) {
    const WithMatmulLibrary setting(library);
    const Tensor a = Tensor::empty({300, 900}, GetParam(), device),
                 b = Tensor::empty({900, 200}, GetParam(), device);
    const Tensor bias = Tensor::empty({400}, GetParam(), device).alias({200}, {2}, 0);
    Tensor c = Tensor::empty({300, 200}, GetParam(), device);
    MemoryTracker& tracker = memory_tracker(device);
    std::array<int64_t, 2> bytes{};
    for (size_t i = 0; i < 2; ++i) {
      tracker.reset_peak();
      kernels::matmul(device, a.view(), b.view(), c.mut(),
                      {.bias = i == 1 ? bias.view() : ConstView{}});
      bytes[i] = tracker.peak()[Category::workspace];
    }
    return bytes;
  };
  const auto own = peak({}, MatmulLibrary::own), other = peak({}, MatmulLibrary::openblas);
  EXPECT_GT(own[0], 0);
  EXPECT_EQ(other[0], 0);
  EXPECT_EQ(other[1], memory::block_bytes(200 * size_of(GetParam())));  // the bias, made contiguous
  EXPECT_EQ(peak(meta_device, MatmulLibrary::own), own);
  EXPECT_EQ(peak(meta_device, MatmulLibrary::openblas), other);
}

// The gradients of a layer equal those of our own kernels, up to rounding.
TEST_P(MatmulOpenBlas, GradientsOfALayer) {
  const auto gradients_by = [](MatmulLibrary library) {
    const WithMatmulLibrary setting(library);
    const auto leaf = [](const Shape& shape, uint64_t seed) {
      Tensor x = cast(Tensor::from(normal_doubles(numel(shape), seed), shape), GetParam());
      return set_requires_grad(x);
    };
    const Tensor x = leaf({7, 30, 65}, 1), w = leaf({40, 65}, 2), bias = leaf({40}, 3);
    const Tensor y = linear(x, w, bias);
    backward(y, cast(Tensor::from(normal_doubles(y.numel(), 4), y.shape()), GetParam()));
    std::vector<std::vector<double>> all{doubles_of(y)};
    for (const Tensor& t : {x, w, bias}) all.push_back(doubles_of(grad(t)));
    return all;
  };
  const auto own = gradients_by(MatmulLibrary::own), other = gradients_by(MatmulLibrary::openblas);
  const double bound = GetParam() == DType::f32 ? 2e-4 : 1e-12;
  for (size_t t = 0; t < own.size(); ++t) {
    ASSERT_EQ(own[t].size(), other[t].size());
    for (size_t i = 0; i < own[t].size(); ++i) {
      ASSERT_NEAR(own[t][i], other[t][i], bound) << t << ' ' << i;
    }
  }
}

// Products of bf16, f16 and rounded f32 do not go to OpenBLAS: no bit changes.
TEST(MatmulOpenBlasLeaves, ProductsOfFewerBitsToOurKernels) {
  const std::vector<double> a = normal_doubles(129 * 3000, 1), b = normal_doubles(3000 * 67, 2);
  struct Way {
    DType dtype;
    MatmulPrecision precision;
  };
  for (const auto [dtype, precision] :
       {Way{DType::bf16, MatmulPrecision::f32}, Way{DType::f16, MatmulPrecision::f32},
        Way{DType::f32, MatmulPrecision::bf16}, Way{DType::f32, MatmulPrecision::tf32}}) {
    const WithMatmulPrecision rounding(precision);
    const Tensor left = cast(Tensor::from(a, {129, 3000}), dtype);
    const Tensor right = cast(Tensor::from(b, {3000, 67}), dtype);
    const std::vector<double> own = doubles_of(matmul(left, right));
    const WithMatmulLibrary openblas(MatmulLibrary::openblas);
    EXPECT_TRUE(same_bits(doubles_of(matmul(left, right)), own)) << name_of(dtype);
  }
}

}  // namespace
}  // namespace longspan::test
