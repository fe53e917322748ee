// Checks on a device what the table of ops does not reach: draws (which have the CPU's bits), LSH's
// hash, the search for NaN and Inf, long rows, tensor cores and other matmul precisions.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "core/kernels/gradient.h"
#include "core/precision.h"
#include "ops/attention/block_attention.h"
#include "ops/attention/edge_attention.h"
#include "ops/attention/lsh.h"
#include "ops/copy.h"
#include "ops/matmul.h"
#include "ops/patterns/tree.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/device.h"

namespace longspan::test {
namespace {

std::vector<uint8_t> bytes_of(const Tensor& x) {
  std::vector<uint8_t> bytes(static_cast<size_t>(x.nbytes()));
  if (!bytes.empty()) copy_to_host(x.device(), bytes.data(), x.view().data, x.nbytes());
  return bytes;
}

// Checks that draw(shape, generator, device) gives the same bits on the CPU and on the device.
template <class F>
void expect_same_draws(const std::string& what, F draw) {
  uint64_t seed = 0;
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{1}, Shape{2}, Shape{3}, Shape{5}, Shape{7, 3},
                             Shape{1027}, Shape{2, 3, 513}}) {
    const Generator gen = Generator{++seed}.fork("draws");
    EXPECT_TRUE(bytes_of(draw(shape, gen, Device{})) == bytes_of(draw(shape, gen, cuda)))
        << what << " " << to_string(shape);
  }
}

TEST(OnADevice, TensorsPrintAndGiveElements_parity) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  const Tensor x = reshape(longspan::iota(2000, DType::i32, cuda), {2, 1000});
  std::ostringstream out;
  out << x;
  EXPECT_EQ(out.str(), "i32[2, 1000] " + name_of(cuda) +
                           "\n[[   0,    1,    2,    3,    4, ...,  995,  996,  997,  998,  999],"
                           "\n [1000, 1001, 1002, 1003, 1004, ..., 1995, 1996, 1997, 1998, 1999]]");
  EXPECT_EQ(x[-1][7].item(), 1007);
}

TEST(OnADevice, DrawsHaveTheSameBits_parity) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  for (const DType t : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const std::string type(name_of(t));
    expect_same_draws("uniform " + type, [&](const Shape& s, Generator g, Device d) {
      return uniform(s, g, -2, 0.75, t, d);
    });
    expect_same_draws("normal " + type, [&](const Shape& s, Generator g, Device d) {
      return normal(s, g, 0.5, 3, t, d);
    });
    expect_same_draws("truncated_normal " + type, [&](const Shape& s, Generator g, Device d) {
      return truncated_normal(s, g, 1, 0.02, -0.5, 1.5, t, d);
    });
  }
  for (const DType t : {DType::f32, DType::bf16, DType::u8, DType::i64}) {
    expect_same_draws("bernoulli", [&](const Shape& s, Generator g, Device d) {
      return bernoulli(s, g, 0.3, t, d);
    });
  }
  constexpr int64_t all = std::numeric_limits<int64_t>::max();
  expect_same_draws("randint i64", [&](const Shape& s, Generator g, Device d) {
    return randint(s, g, -all, all, DType::i64, d);
  });
  expect_same_draws("randint i32", [&](const Shape& s, Generator g, Device d) {
    return randint(s, g, -3, 1000, DType::i32, d);
  });
  expect_same_draws("randint u8", [&](const Shape& s, Generator g, Device d) {
    return randint(s, g, 0, 256, DType::u8, d);
  });
  for (const Shape& shape : {Shape{4, 9}, Shape{9, 4}, Shape{1, 1}}) {
    const Generator gen = Generator{5}.fork("draws");
    EXPECT_TRUE(bytes_of(orthogonal(shape, gen)) ==
                bytes_of(orthogonal(shape, gen, 1, DType::f32, cuda)));
  }
  EXPECT_TRUE(bytes_of(permutation(1027, Generator{3})) ==
              bytes_of(permutation(1027, Generator{3}, DType::i64, cuda)));
}

TEST(OnADevice, LshHashesAlike_parity) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  for (const DType t : {DType::f64, DType::f32, DType::bf16}) {
    for (const LshBuckets& buckets : {LshBuckets{16, 10}, LshBuckets{4}}) {
      const DType of_rotations = t == DType::bf16 ? DType::f32 : t;
      const Tensor rotations = lsh_rotations(Generator{4}, 3, 4, 20, buckets, of_rotations);
      const Tensor there = lsh_rotations(Generator{4}, 3, 4, 20, buckets, of_rotations, cuda);
      EXPECT_TRUE(bytes_of(rotations) == bytes_of(there));
      const Tensor q = normal({2, 3, 301, 20}, Generator{5}, 0, 1, t);
      EXPECT_EQ(lsh_buckets(q, rotations, buckets).to_vector<int32_t>(),
                lsh_buckets(to_device(q, cuda), there, buckets).to_vector<int32_t>())
          << name_of(t);
    }
  }
}

TEST(OnADevice, WhatIsNotFiniteIsFound_parity) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  const auto finite = [](const std::vector<float>& values, DType t, bool strided) {
    Tensor x =
        to_device(cast(Tensor::from(values, {static_cast<int64_t>(values.size())}), t), cuda);
    if (strided) x = x.alias({x.dim(0) / 2}, {2}, 0);
    bool found = false;
    kernels::all_finite(cuda, x.view(), &found);
    return found;
  };
  const float infinity = std::numeric_limits<float>::infinity();
  for (const DType t : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    EXPECT_TRUE(finite({}, t, false));
    for (const float bad : {NAN, infinity, -infinity}) {
      for (const size_t at : {0, 1, 999, 1000}) {
        std::vector<float> values(1001, 3);
        EXPECT_TRUE(finite(values, t, false));
        values[at] = bad;
        EXPECT_FALSE(finite(values, t, false)) << at;
        EXPECT_EQ(finite(values, t, true), at % 2 != 0 || at == 1000) << at;
      }
    }
  }
}

// The rows are so long that several warps share each of them.
TEST(OnADevice, ExtremaOfLongRows_parity) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  for (const DType t : {DType::f32, DType::bf16, DType::i64}) {
    std::vector<float> values(3 * 3001);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(philox_word(7, static_cast<int64_t>(i)) % 50);
    }
    if (t != DType::i64) values[3001 + 2500] = values[3001 + 2600] = NAN;
    const Tensor x = cast(Tensor::from(values, {3, 3001}), t), there = to_device(x, cuda);
    EXPECT_EQ(argmax(x, 1).to_vector<int64_t>(), argmax(there, 1).to_vector<int64_t>());
    EXPECT_EQ(argmin(x, 1).to_vector<int64_t>(), argmin(there, 1).to_vector<int64_t>());
  }
}

// Returns the largest difference relative to the largest value of b.
double relative_distance(const Tensor& a, const Tensor& b) {
  const std::vector<float> x = cast(to_device(a, {}), DType::f32).to_vector<float>(),
                           y = cast(to_device(b, {}), DType::f32).to_vector<float>();
  if (x.size() != y.size()) return std::numeric_limits<double>::infinity();
  double worst = 0, largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double difference = std::abs(x[i] - y[i]);
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, difference);
    largest = std::max(largest, static_cast<double>(std::abs(y[i])));
  }
  return worst / largest;
}

// Rows of a multiple of 16 bytes go to tensor cores.
TEST(OnADevice, AttentionOnTensorCores_parity) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  struct Call {
    const char* name;
    AttentionPattern pattern;
    int64_t queries, keys;
    double p;
  };
  const Call calls[] = {{"causal", patterns::causal(), 150, 150, 0},
                        {"dropout", patterns::causal(), 150, 150, 0.25},
                        {"local", patterns::local(20), 203, 203, 0},
                        {"few queries", patterns::dense(), 3, 1700, 0},
                        {"few keys", patterns::dense(), 1700, 3, 0}};
  for (const DType t : {DType::bf16, DType::f16}) {
    for (const Call& c : calls) {
      const auto run = [&](Device where) {
        std::vector<Tensor> all;
        for (const int64_t rows : {c.queries, c.keys, c.keys}) {
          const Generator gen = Generator{9}.fork(all.size());
          all.push_back(to_device(cast(normal({2, 2, rows, 40}, gen), t), where));
          set_requires_grad(all.back());
        }
        Dropout dropout;
        if (c.p > 0) dropout = {static_cast<float>(c.p), {true, {42}}};
        const Tensor out = block_attention(all[0], all[1], all[2], c.pattern, {}, dropout).out;
        backward(out, to_device(cast(normal(out.shape(), Generator{10}), t), where));
        std::vector<Tensor> results = {out.detach()};
        for (const Tensor& x : all) results.push_back(grad(x));
        return results;
      };
      const std::vector<Tensor> here = run({}), there = run(cuda);
      for (size_t i = 0; i < here.size(); ++i) {
        EXPECT_LE(relative_distance(there[i], here[i]), t == DType::bf16 ? 2e-2 : 3e-3)
            << c.name << " " << name_of(t) << " " << i;
      }
    }
  }
}

// Rows and keys that are cut into pieces, with dropped pairs.
TEST(OnADevice, EdgeAttentionDropsTheSamePairs_parity) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  const TreeOptions o{.k = 3, .clip = 2};
  const auto layout = tree_edges(std::vector<int64_t>{2500}, o);
  const auto run = [&](Device where) {
    const Shape shape = {1, 2, layout->n_rows, 9};
    std::vector<Tensor> all = {normal(shape, Generator{1}, 0, 1, DType::f64),
                               normal(shape, Generator{2}, 0, 1, DType::f64),
                               normal(shape, Generator{3}, 0, 1, DType::f64),
                               normal({o.labels(), 9}, Generator{4}, 0, 1, DType::f64)};
    for (Tensor& x : all) {
      x = to_device(x, where);
      set_requires_grad(x);
    }
    const Tensor out =
        edge_attention(all[0], all[1], all[2], all[3], layout, 0, {0.25F, {true, {42}}});
    backward(out, to_device(normal(out.shape(), Generator{5}, 0, 1, DType::f64), where));
    std::vector<Tensor> results = {out.detach()};
    for (const Tensor& x : all) results.push_back(grad(x));
    return results;
  };
  const std::vector<Tensor> here = run({}), there = run(cuda);
  for (size_t i = 0; i < here.size(); ++i) {
    const std::vector<double> a = contiguous(to_device(there[i], {})).to_vector<double>(),
                              b = contiguous(here[i]).to_vector<double>();
    ASSERT_EQ(a.size(), b.size());
    double worst = 0, largest = 0;
    for (size_t j = 0; j < a.size(); ++j) {
      worst = std::max(worst, std::abs(a[j] - b[j]));
      largest = std::max(largest, std::abs(b[j]));
    }
    EXPECT_LE(worst, 1e-12 * largest) << i;
  }
}

TEST(OnADevice, ProductsInEveryPrecision_parity) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  const Tensor a = normal({33, 50}, Generator{1}), b = normal({50, 21}, Generator{2});
  const Tensor exact = matmul(a, b);
  for (const auto& [precision, tolerance] : {std::pair{MatmulPrecision::f32, 1e-6},
                                             {MatmulPrecision::tf32, 2e-3},
                                             {MatmulPrecision::bf16, 1e-2}}) {
    const WithMatmulPrecision with(precision);
    EXPECT_LE(relative_distance(matmul(to_device(a, cuda), to_device(b, cuda)), exact), tolerance);
  }
}

}  // namespace
}  // namespace longspan::test
