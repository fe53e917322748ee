#include "ops/cost.h"

#include <gtest/gtest.h>

#include <thread>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "ops/attention/lsh.h"
#include "ops/copy.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/patterns/layout.h"
#include "ops/pool.h"

namespace longspan {
namespace {

Tensor on(Device device, const Shape& shape, DType dtype = DType::f32) {
  return zeros(shape, dtype, device);
}

/// Counts what `f` runs, on the host and on the meta device.
template <class F>
void expect_counts(int64_t products, int64_t attention, F f) {
  for (const Device device : {Device{}, meta_device}) {
    const MacCount macs;
    f(device);
    EXPECT_EQ(macs.products(), products) << name_of(device);
    EXPECT_EQ(macs.attention(), attention) << name_of(device);
    EXPECT_EQ(macs.total(), products + attention);
  }
}

TEST(MacCount, CountsProducts) {
  expect_counts(4 * 5 * 3 * 2, 0, [](Device d) { linear(on(d, {4, 5, 3}), on(d, {2, 3})); });
  expect_counts(2 * 6 * 4 * 5 * 3, 0, [](Device d) {
    matmul(on(d, {2, 1, 4, 5}), on(d, {6, 5, 3}));
  });
  expect_counts(2 * 5 * 3 * 7, 0, [](Device d) {
    linear_cross_entropy(on(d, {2, 5, 3}), on(d, {7, 3}), {}, on(d, {2, 5}, DType::i64));
  });
  // Two groups of 2 channels, 3 taps, 6 outputs for each of 2 x 7 windows.
  expect_counts(2 * 7 * 6 * 3 * 2, 0, [](Device d) {
    conv1d(on(d, {2, 9, 4}), on(d, {6, 3, 2}), {}, {}, 2);
  });
}

TEST(MacCount, CountsVisiblePairs) {
  const auto attend = [](Device d, const AttentionPattern& pattern) {
    block_attention(on(d, {2, 3, 11, 4}), on(d, {2, 3, 11, 4}), on(d, {2, 3, 11, 5}), pattern);
  };
  expect_counts(0, 2 * 3 * 66 * 9, [&](Device d) { attend(d, patterns::causal()); });
  expect_counts(0, 2 * 3 * 121 * 9, [&](Device d) { attend(d, patterns::dense()); });
  // A mask hides keys; the count does not depend on values.
  const Tensor two = Tensor::from(std::vector<int64_t>{2, 2}, {2});
  expect_counts(0, 2 * 3 * 121 * 9, [&](Device d) {
    const Tensor lengths = to_device(two, d);
    attend(d, with_lengths(patterns::dense(), lengths, lengths));
  });
  // The union of two patterns without a common pair.
  expect_counts(0, 2 * 3 * (11 + 55) * 9, [](Device d) {
    const Tensor q = on(d, {2, 3, 11, 4}), v = on(d, {2, 3, 11, 5});
    const Keys keys{q, v};
    const AttentionPattern parts[] = {patterns::local(1), patterns::dilated(kUnlimited, -1, 1)};
    block_attention(q, std::span<const Keys>(&keys, 1), parts);
  });
}

TEST(MacCount, CountsHashingAndWindowsOfBuckets) {
  const LshBuckets buckets{4, 1};
  expect_counts(2 * 3 * 5 * 8 * 4 * 2, 0, [&](Device d) {
    lsh_buckets(on(d, {2, 3, 8, 4}), on(d, {1, 3, 5, 4, 2}), buckets);
  });
  LshOptions options;
  options.buckets = 4;
  options.chunk = 2;
  options.before = 1;
  options.after = 0;
  const auto attend = [&](Device d, int64_t length) {
    lsh_attention(on(d, {2, 3, length, 4}), on(d, {2, 3, length, 6}),
                  on(d, {2, 3, 5, length}, DType::i32), options);
  };
  expect_counts(0, 2 * 3 * 5 * 8 * 4 * 10, [&](Device d) { attend(d, 8); });
  expect_counts(0, 2 * 3 * 5 * 3 * 3 * 10, [&](Device d) { attend(d, 3); });  // a window of all
}

TEST(MacCount, NestsAndCountsNothingInBackward) {
  EXPECT_FALSE(MacCount::active());
  linear(on({}, {4, 3}), on({}, {2, 3}));  // before any counter
  Tensor weight = on({}, {2, 3});
  set_requires_grad(weight, true);
  const MacCount outer;
  EXPECT_TRUE(MacCount::active());
  {
    const MacCount inner;
    backward(linear(on({}, {4, 3}), weight), on({}, {4, 2}));
    EXPECT_EQ(inner.total(), 4 * 3 * 2);
  }
  linear(on({}, {1, 3}), weight);
  EXPECT_EQ(outer.total(), 5 * 3 * 2);
  std::thread([] {
    EXPECT_FALSE(MacCount::active());
    linear(on({}, {4, 3}), on({}, {2, 3}));
  }).join();
  EXPECT_EQ(outer.total(), 5 * 3 * 2);
}

}  // namespace
}  // namespace longspan
