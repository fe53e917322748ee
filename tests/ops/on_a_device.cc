// What the table of ops does not reach on a device: draws, which have the same bits there, LSH's
// hash, and the search for what is not finite.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/copy.h"
#include "ops/kernels/gradient.h"
#include "ops/lsh.h"
#include "ops/random.h"
#include "ops/shape.h"

namespace longspan::test {
namespace {

constexpr Device device{DeviceKind::cuda, 0};

bool has_device() { return is_available(device); }

std::vector<uint8_t> bytes_of(const Tensor& x) {
  std::vector<uint8_t> bytes(static_cast<size_t>(x.nbytes()));
  if (!bytes.empty()) copy_to_host(x.device(), bytes.data(), x.view().data, x.nbytes());
  return bytes;
}

// draw(shape, generator, device) gives the same bits here and there.
template <class F>
void expect_same_draws(const std::string& what, F draw) {
  uint64_t seed = 0;
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{1}, Shape{2}, Shape{3}, Shape{5}, Shape{7, 3},
                             Shape{1027}, Shape{2, 3, 513}}) {
    const Generator gen = Generator{++seed}.fork("draws");
    EXPECT_TRUE(bytes_of(draw(shape, gen, Device{})) == bytes_of(draw(shape, gen, device)))
        << what << " " << to_string(shape);
  }
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
                bytes_of(orthogonal(shape, gen, 1, DType::f32, device)));
  }
  EXPECT_TRUE(bytes_of(permutation(1027, Generator{3})) ==
              bytes_of(permutation(1027, Generator{3}, DType::i64, device)));
}

TEST(OnADevice, LshHashesAlike_parity) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  for (const DType t : {DType::f64, DType::f32, DType::bf16}) {
    for (const LshBuckets& buckets : {LshBuckets{16, 10}, LshBuckets{4}}) {
      const DType of_rotations = t == DType::bf16 ? DType::f32 : t;
      const Tensor rotations = lsh_rotations(Generator{4}, 3, 4, 20, buckets, of_rotations);
      const Tensor there = lsh_rotations(Generator{4}, 3, 4, 20, buckets, of_rotations, device);
      EXPECT_TRUE(bytes_of(rotations) == bytes_of(there));
      const Tensor q = normal({2, 3, 301, 20}, Generator{5}, 0, 1, t);
      EXPECT_EQ(lsh_buckets(q, rotations, buckets).to_vector<int32_t>(),
                lsh_buckets(to_device(q, device), there, buckets).to_vector<int32_t>())
          << name_of(t);
    }
  }
}

TEST(OnADevice, WhatIsNotFiniteIsFound_parity) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  const auto finite = [](const std::vector<float>& values, DType t, bool strided) {
    Tensor x =
        to_device(cast(Tensor::from(values, {static_cast<int64_t>(values.size())}), t), device);
    if (strided) x = x.alias({x.dim(0) / 2}, {2}, 0);
    bool found = false;
    kernels::all_finite(device, x.view(), &found);
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

}  // namespace
}  // namespace longspan::test
