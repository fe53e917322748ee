#include "nn/attention/divergence.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "ops/copy.h"
#include "ops/shape.h"

namespace longspan {
namespace {

std::vector<double> divergences(const std::vector<double>& p, const Shape& shape,
                                DType dtype = DType::f64) {
  return head_divergence(cast(Tensor::from(p, shape), dtype)).to_vector<double>();
}

double entropy(const std::vector<double>& p) {
  double sum = 0;
  for (const double x : p) sum -= x > 0 ? x * std::log(x) : 0;
  return sum;
}

TEST(HeadDivergence, IsZeroForEqualHeadsAndLn2ForThoseThatNeverMeet) {
  const std::vector<double> d =
      divergences({0.5, 0.5, 0, 0, /**/ 0.5, 0.5, 0, 0, /**/ 0, 0, 0.25, 0.75}, {3, 1, 4});
  const double ln2 = std::log(2.0);
  const std::vector<double> expected{0, 0, ln2, 0, 0, ln2, ln2, ln2, 0};
  for (size_t i = 0; i < d.size(); ++i) EXPECT_NEAR(d[i], expected[i], 1e-15) << i;
}

TEST(HeadDivergence, IsTheEntropyOfTheMiddleWithoutTheMeanOfEntropies) {
  const std::vector<double> p{0.1, 0.2, 0.7, 0}, q{0.3, 0, 0.3, 0.4};
  std::vector<double> middle;
  for (size_t j = 0; j < p.size(); ++j) middle.push_back((p[j] + q[j]) / 2);
  const double expected = entropy(middle) - (entropy(p) + entropy(q)) / 2;
  std::vector<double> both = p;
  both.insert(both.end(), q.begin(), q.end());
  const std::vector<double> d = divergences(both, {2, 1, 4});
  EXPECT_NEAR(d[1], expected, 1e-15);
  EXPECT_EQ(d[1], d[2]);
  EXPECT_NEAR(divergences(both, {2, 1, 4}, DType::f32)[1], expected, 1e-6);
}

TEST(HeadDivergence, IsTheMeanOverRowsThatBothSee) {
  // Rows: alike, apart, and one in which the second head sees nothing.
  const std::vector<double> p{1, 0, /**/ 1, 0, /**/ 0, 1, /**/ 1, 0, /**/ 0, 1, /**/ 0, 0};
  EXPECT_NEAR(divergences(p, {2, 3, 2})[1], std::log(2.0) / 2, 1e-15);
}

TEST(HeadDivergence, SumsOfRowsDoNotMatter) {
  const std::vector<double> whole{0.25, 0.75, 0.5, 0.5}, part{0.025, 0.075, 0.4, 0.4};
  EXPECT_NEAR(divergences(whole, {2, 1, 2})[1], divergences(part, {2, 1, 2})[1], 1e-15);
}

TEST(HeadDivergence, NothingToCompare) {
  EXPECT_TRUE(std::isnan(divergences({0, 0, 0, 1}, {2, 1, 2})[1]));
  EXPECT_TRUE(std::isnan(divergences({}, {2, 0, 3})[1]));
  EXPECT_EQ(divergences({0.5, 0.5}, {1, 1, 2}), std::vector<double>{0});
  EXPECT_TRUE(divergences({}, {0, 1, 2}).empty());
}

TEST(HeadDivergence, ReadsStridedProbabilities) {
  const std::vector<double> p{0.1, 0.9, 0.6, 0.4, 0.2, 0.8, 0.7, 0.3};
  const Tensor swapped = Tensor::from(p, {2, 2, 2});  // [L, H, T]
  const Tensor strided = transpose(swapped, 0, 1);
  EXPECT_EQ(head_divergence(strided).to_vector<double>(),
            head_divergence(contiguous(strided)).to_vector<double>());
}

TEST(HeadDivergence, Rejects) {
  EXPECT_THROW(head_divergence(Tensor::from(std::vector<double>{1, 1}, {1, 2})), ShapeError);
  EXPECT_THROW(head_divergence(Tensor::from(std::vector<int32_t>{1, 1}, {1, 1, 2})), DTypeError);
}

}  // namespace
}  // namespace longspan
