#include "nn/init.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/node.h"
#include "core/memory.h"
#include "ops/matmul.h"
#include "ops/shape.h"
#include "tests/harness/model_info.h"

namespace longspan {
namespace {

using test::distance;
using test::same_bits;

const Init seeded_init{.gen = Generator{42}};

struct Moments {
  double mean = 0, deviation = 0, largest = 0;
};

Moments moments(const Tensor& x) {
  Moments m;
  const std::vector<float> v = x.to_vector<float>();
  for (const float a : v) m.mean += a;
  m.mean /= static_cast<double>(v.size());
  for (const float a : v) {
    m.deviation += (a - m.mean) * (a - m.mean);
    m.largest = std::max(m.largest, std::abs(double{a}));
  }
  m.deviation = std::sqrt(m.deviation / static_cast<double>(v.size()));
  return m;
}

TEST(Init, MakesParameters) {
  const int64_t before = memory_tracker().live()[Category::parameter];
  const Tensor x = seeded_init.make({3, 5}, Scheme::normal(1));
  EXPECT_TRUE(requires_grad(x));
  EXPECT_EQ(memory_tracker().live()[Category::parameter] - before, 64);
  EXPECT_EQ(seeded_init.make({2}, Scheme::zeros()).to_vector<float>(), (std::vector<float>{0, 0}));
  EXPECT_EQ(seeded_init.make({2}, Scheme::constant(1.5)).to_vector<float>(),
            (std::vector<float>{1.5f, 1.5f}));
}

TEST(Init, DistributionsHaveTheirMoments) {
  const Moments normal = moments(seeded_init.make({400, 300}, Scheme::normal(0.02)));
  EXPECT_NEAR(normal.mean, 0, 3e-4);
  EXPECT_NEAR(normal.deviation, 0.02, 2e-4);
  EXPECT_GT(normal.largest, 0.07);

  // A normal truncated at two deviations has 0.8796 of its deviation.
  const Moments cut = moments(seeded_init.make({400, 300}, Scheme::truncated_normal(0.02)));
  EXPECT_NEAR(cut.deviation, 0.8796 * 0.02, 2e-4);
  EXPECT_LE(cut.largest, 0.04 + 1e-7);

  const double bound = std::sqrt(6.0 / (200 + 100));
  const Moments xavier = moments(seeded_init.make({200, 100}, Scheme::xavier_uniform()));
  EXPECT_LE(xavier.largest, bound);
  EXPECT_GT(xavier.largest, 0.99 * bound);
  EXPECT_NEAR(xavier.deviation, bound / std::sqrt(3.0), 0.01 * bound);
  EXPECT_NEAR(moments(seeded_init.make({400, 300}, Scheme::normal(0.02).scaled(0.5))).deviation,
              0.01, 1e-4);
}

TEST(Init, OrthogonalRowsOrColumns) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{7, 12}, {12, 7}, {9, 9}}) {
    Init in = seeded_init;
    in.dtype = DType::f64;
    const Tensor q = in.make({rows, columns}, Scheme::orthogonal(2)).detach();
    const Tensor square = rows <= columns ? matmul(q, transpose(q)) : matmul(transpose(q), q);
    const int64_t n = std::min(rows, columns);
    std::vector<double> expected(static_cast<size_t>(n * n), 0.0);
    for (int64_t i = 0; i < n; ++i) expected[static_cast<size_t>(i * n + i)] = 4;
    EXPECT_LT(distance(square, Tensor::from(expected, {n, n})), 1e-12);
  }
}

TEST(Init, DependsOnSeedAndLabelsAlone) {
  const Scheme s = Scheme::normal(1);
  EXPECT_TRUE(same_bits(seeded_init.at("a").make({9, 4}, s), seeded_init.at("a").make({9, 4}, s)));
  EXPECT_FALSE(same_bits(seeded_init.at("a").make({9, 4}, s), seeded_init.at("b").make({9, 4}, s)));
  EXPECT_FALSE(same_bits(seeded_init.at(1).make({9, 4}, s), seeded_init.at(2).make({9, 4}, s)));
  EXPECT_FALSE(same_bits(Init{.gen = Generator{1}}.make({9, 4}, s),
                         Init{.gen = Generator{2}}.make({9, 4}, s)));
}

TEST(Init, PlansWithoutMemory) {
  const int64_t before = memory_tracker().live().total();
  const Tensor x = Init{.meta = true}.make({100'000, 100'000}, Scheme::normal(1));
  EXPECT_EQ(x.numel(), 10'000'000'000);
  EXPECT_LE(memory_tracker().live().total() - before, 64);
}

TEST(Init, RefusesSchemesThatNeedAMatrix) {
  EXPECT_THROW(seeded_init.make({4}, Scheme::xavier_uniform()), ShapeError);
  EXPECT_THROW(seeded_init.make({4}, Scheme::orthogonal()), ShapeError);
}

}  // namespace
}  // namespace longspan
