// Sums of attention over queries, against the weights themselves.

#include "ops/attention/attention_mass.h"

#include <gtest/gtest.h>

#include "autograd/mode.h"
#include "autograd/node.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/model_info.h"

namespace longspan::test {
namespace {

Tensor named_numbers(const Shape& shape, const char* name, DType dtype = DType::f64) {
  return cast(normal(shape, Generator{4}.fork(name), 0.0, 1.0, DType::f64), dtype);
}

/// Returns the sums over queries of the weights, which unit vectors as values give.
Tensor by_weights(const Tensor& q, const Tensor& k, const AttentionPattern& pattern,
                  const ScoreTerms& terms) {
  const int64_t keys = k.dim(2);
  const Tensor at = iota(keys);
  const Tensor unit = cast(equal(unsqueeze(at, 1), unsqueeze(at, 0)), q.dtype());  // [T, T]
  const Tensor v = contiguous(expand(unit, {k.dim(0), k.dim(1), keys, keys}));
  return sum(block_attention(q, k, v, pattern, terms).out, {2});
}

TEST(AttentionMass, IsTheSumOfTheWeightsOfAllQueries) {
  for (const auto& [queries, keys] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 7}, {5, 130}, {100, 100}, {0, 4}}) {
    const Tensor q = named_numbers({2, 3, queries, 4}, "q"),
                 k = named_numbers({2, 3, keys, 4}, "k");
    ScoreTerms terms;
    terms.id = {keys - 1, 0};
    terms.relation_key = named_numbers({3, keys, 4}, "a");
    terms.relation_query = named_numbers({2, 3, queries, 4}, "r");
    for (const bool masked : {false, true}) {
      AttentionPattern pattern = patterns::causal();
      if (masked) pattern.mask.k_begin = Tensor::from(std::vector<int64_t>{keys / 2, keys}, {2});
      const Tensor mass = attention_mass(q, k, pattern, terms);
      ASSERT_EQ(mass.shape(), (Shape{2, 3, keys}));
      EXPECT_LT(distance(mass, by_weights(q, k, pattern, terms)), 1e-12);
      const auto of_heads = contiguous(sum(mass, {2})).to_vector<double>();
      for (size_t i = 0; i < of_heads.size(); ++i) {
        if (!masked) {
          EXPECT_NEAR(of_heads[i], static_cast<double>(queries), 1e-12);
        } else if (i >= 3) {
          EXPECT_EQ(of_heads[i], 0);  // no key exists in the second sample
        }
      }
    }
  }
}

TEST(AttentionMass, LeavesNoGradientAndRecordsNothing) {
  Tensor q = named_numbers({1, 2, 5, 4}, "q", DType::f32),
         k = named_numbers({1, 2, 5, 4}, "k", DType::f32);
  set_requires_grad(q);
  set_requires_grad(k);
  const Tensor mass = attention_mass(q, k, patterns::dense());
  EXPECT_FALSE(requires_grad(mass));
  EXPECT_FALSE(grad(q));
  EXPECT_FALSE(grad(k));
  const NoGrad off;
  EXPECT_TRUE(same_bits(attention_mass(q, k, patterns::dense()), mass));
}

TEST(AttentionMass, SaysWhatDoesNotFit) {
  const Tensor q = named_numbers({1, 2, 5, 4}, "q");
  EXPECT_THROW(attention_mass(q, named_numbers({1, 2, 4}, "k"), patterns::dense()), ShapeError);
  EXPECT_THROW(attention_mass(q, named_numbers({1, 2, 5, 3}, "k"), patterns::dense()), ShapeError);
}

}  // namespace
}  // namespace longspan::test
