#include <gtest/gtest.h>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "core/generator.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"

namespace longspan {
namespace {

using test::message_of;

std::vector<int64_t> hashed_ids(int64_t n, int64_t below, uint64_t key) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(philox_word(key, i) % static_cast<uint32_t>(below));
  return ids;
}

TEST(Ids, OutOfRangeIsNamedBeforeAnyWork) {
  const Tensor weight = zeros({10, 4});
  const Tensor ids = Tensor::from(std::vector<int32_t>{1, 2, 3, 4, 10, -1}, {2, 3});
  const int64_t before = memory_tracker().allocations();
  const std::string text = message_of<ValueError>([&] { embedding(weight, ids); });
  EXPECT_EQ(memory_tracker().allocations(), before);
  EXPECT_EQ(text,
            "embedding: ids holds 10 at [1, 1]; it must be at least 0 and less than 10\n"
            "  ids  i32[2, 3]  cpu");
  // Also reports the right index through a strided view, and the first of several bad ids.
  EXPECT_NE(
      message_of<ValueError>([&] { embedding(weight, transpose(ids)); }).find("holds 10 at [1, 1]"),
      std::string::npos);
  EXPECT_NE(message_of<ValueError>([&] {
              take(weight, slice(reshape(ids, {6}), 0, 5));
            }).find("holds -1 at [0]"),
            std::string::npos);
}

TEST(Ids, FirstBadPlaceOfManyForAnyThreads) {
  std::vector<int64_t> values(200'000, 3);
  values[150'001] = values[70'000] = values[199'999] = 9;
  const Tensor ids = Tensor::from(values, {400, 500}), weight = zeros({9, 1});
  const int threads = num_threads();
  for (const int n : {1, 2, 3}) {
    set_num_threads(n);
    EXPECT_NE(message_of<ValueError>([&] { embedding(weight, ids); }).find("at [140, 0]"),
              std::string::npos);
    EXPECT_NE(message_of<ValueError>([&] {
                embedding(weight, reshape(ids, {200'000}));
              }).find("at [70000]"),
              std::string::npos);
  }
  set_num_threads(threads);
}

TEST(Ids, EmbeddingGradientTouchesOnlyItsRowsAndSumsInPlace) {
  const int64_t V = 5000, D = 64, n = 700;
  Tensor weight = zeros({V, D});
  set_requires_grad(weight);
  const auto ids = hashed_ids(n, 100, 7);
  const Tensor y = embedding(weight, Tensor::from(ids, {7, 100}));
  const Tensor dy = reshape(arange(0, n * D, 1, DType::f32), {7, 100, D});
  backward(y, dy, {.retain = true});
  const Tensor first = clone(grad(weight));
  std::vector<double> expected(static_cast<size_t>(V * D));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < D; ++c) {
      expected[static_cast<size_t>(ids[static_cast<size_t>(i)] * D + c)] +=
          static_cast<double>(i * D + c);
    }
  }
  const auto got = cast(first, DType::f64).to_vector<double>();
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], expected[i] * 1e-6);
  // A second pass adds into the same gradient and allocates no other of its size.
  memory_tracker().reset_peak();
  const int64_t live = memory_tracker().live().total();
  backward(y, dy);
  EXPECT_LT(memory_tracker().peak().total() - live, V * D * 4 / 2);
  EXPECT_EQ(grad(weight).to_vector<float>()[static_cast<size_t>(ids[0] * D)],
            2 * first.to_vector<float>()[static_cast<size_t>(ids[0] * D)]);
}

// The gradient of a sum is one tensor for both terms. Rows that are taken of one term add to its
// gradient in place, and must leave the other's alone.
TEST(Ids, RowsAddToNoGradientThatIsShared) {
  Tensor a = ones({4, 3}), b = ones({4, 3});
  set_requires_grad(a);
  set_requires_grad(b);
  const Tensor x = mul(a, 2.0), y = mul(b, 3.0);
  const Tensor rows = take(x, Tensor::from(std::vector<int64_t>{1, 1}, {2}));  // runs last
  const Tensor all = add(x, y);
  backward(add(sum(all), sum(rows)));
  const std::vector<float> twice{2, 2, 2, 6, 6, 6, 2, 2, 2, 2, 2, 2};
  EXPECT_EQ(grad(a).to_vector<float>(), twice);
  EXPECT_EQ(grad(b).to_vector<float>(), std::vector<float>(12, 3));
}

TEST(Ids, GradientsAreTheSameForAnyThreads) {
  const int64_t V = 256, D = 96, n = 4096;
  const Tensor ids = Tensor::from(hashed_ids(n, 40, 3), {n});
  std::vector<float> noise;
  for (int64_t i = 0; i < n * D; ++i) noise.push_back(to_uniform(philox_word(5, i)) - 0.5f);
  const Tensor dy = Tensor::from(noise, {n, D});
  const int threads = num_threads();
  std::vector<std::vector<float>> results;
  for (const int count : {1, 2, 3}) {
    set_num_threads(count);
    Tensor weight = zeros({V, D});
    set_requires_grad(weight);
    backward(embedding(weight, ids), dy);
    results.push_back(grad(weight).to_vector<float>());
  }
  set_num_threads(threads);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(Ids, PermutingThereAndBack) {
  const int64_t B = 2, H = 3, L = 7, D = 4;
  const Tensor x = reshape(arange(0, B * H * L * D, 1, DType::f32), {B, H, L, D});
  std::vector<int64_t> order;
  for (int64_t g = 0; g < H; ++g) {
    for (int64_t i = 0; i < L; ++i) order.push_back((i * 3 + g) % L);
  }
  const Tensor lists = Tensor::from(order, {1, H, L});
  EXPECT_EQ(scatter_rows(permute_rows(x, lists), lists, L).to_vector<float>(),
            x.to_vector<float>());
  // An empty slot gives a row of zeros and passes no gradient on.
  const Tensor gaps = Tensor::from(std::vector<int64_t>{-1, 2, 2}, {3});
  const auto y = permute_rows(x, gaps).to_vector<float>();
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[static_cast<size_t>(D)], 2 * D);
  EXPECT_EQ(y[static_cast<size_t>(2 * D)], 2 * D);
  EXPECT_EQ(bincount(Tensor::from(order, {H, L}), L).to_vector<int64_t>(),
            std::vector<int64_t>(static_cast<size_t>(H * L), 1));
}

}  // namespace
}  // namespace longspan
