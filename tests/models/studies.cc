// What the functions of studies measure, against what theory says.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/node.h"
#include "core/error.h"
#include "models/studies/entmax_sparsity.h"
#include "models/studies/feature_error.h"
#include "models/studies/gradient_distance.h"
#include "models/studies/lsh_recall.h"
#include "nn/layers.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/reduce.h"

namespace longspan {
namespace {

Tensor vectors(int64_t heads, int64_t length, int64_t width, double deviation = 1) {
  return normal({1, heads, length, width}, Generator{7}, 0, deviation, DType::f64);
}

Tensor bucket_ids(const Tensor& q, int64_t rounds, const LshBuckets& buckets) {
  const Tensor rotations =
      lsh_rotations(Generator{3}, q.dim(1), rounds, q.dim(3), buckets, DType::f64);
  return lsh_buckets(q, rotations, buckets);
}

TEST(LshRecall, IsOneWhereAllTokensShareAChunk) {
  const Tensor q = vectors(2, 24, 8);
  const LshBuckets buckets{4, 1};
  for (const bool causal : {false, true}) {
    LshOptions options{.buckets = 4, .chunk = 24, .same_bucket = false, .causal = causal};
    const LshRecall all = lsh_recall(q, bucket_ids(q, 1, buckets), options, 5);
    for (const double x : {all.keys, all.mass, all.largest, all.top}) EXPECT_DOUBLE_EQ(x, 1);
    // Of the own bucket there are fewer.
    options.same_bucket = true;
    EXPECT_LT(lsh_recall(q, bucket_ids(q, 1, buckets), options, 5).keys, 0.6);
  }
}

/// The kernel says the same: lse of LSH attention beside that of all keys in one chunk.
TEST(LshRecall, AgreesWithTheAttentionThatItDescribes) {
  const int64_t length = 96;
  const Tensor q = vectors(2, length, 16, 1.5), v = vectors(2, length, 4);
  const LshBuckets buckets{12, 1};
  const Tensor ids = bucket_ids(q, 3, buckets);
  const Tensor one = Tensor::zeros({1, 2, 1, length}, DType::i32);
  for (const bool causal : {false, true}) {
    for (const bool same_bucket : {false, true}) {
      const LshOptions options{
          .buckets = 12, .chunk = 8, .same_bucket = same_bucket, .causal = causal};
      const LshOptions full{.chunk = length, .before = 0, .same_bucket = false, .causal = causal};
      const Tensor seen = lsh_attention(q, v, ids, options).lse;
      const Tensor all = lsh_attention(q, v, one, full).lse;
      const std::vector<double> share = exp(sub(seen, all)).to_vector<double>();
      double sum = 0;
      for (size_t i = 0; i < share.size(); ++i) {
        const bool alone = causal && i % static_cast<size_t>(length) == 0;  // only itself
        if (!alone) sum += share[i];
      }
      const auto queries = static_cast<double>(2 * (causal ? length - 1 : length));
      EXPECT_NEAR(lsh_recall(q, ids, options).mass, sum / queries, 1e-9) << causal << same_bucket;
    }
  }
}

TEST(LshRecall, SeesWhatIsCounted) {
  const int64_t length = 40;
  const Tensor q = vectors(3, length, 8);
  const LshOptions options{.buckets = 6, .chunk = 4, .same_bucket = false};
  const Tensor ids = bucket_ids(q, 2, {6, 1});
  const Tensor visible = lsh_visible(ids, options);
  EXPECT_EQ(visible.shape(), (Shape{1, 3, length, length}));
  int64_t seen = 0;
  for (const uint8_t x : visible.to_vector<uint8_t>()) seen += x;
  EXPECT_EQ(seen, count_lsh_pairs(ids, options).distinct);
  // Each token sees itself, which is no other key.
  const auto others = static_cast<double>(seen - 3 * length);
  EXPECT_NEAR(lsh_recall(q, ids, options).keys, others / (3.0 * length * (length - 1)), 1e-12);
}

TEST(LshRecall, GrowsWithRoundsAndWithChunks) {
  LshRecallOptions o{.chunks = {4, 16}, .rounds = {1, 2, 4}};
  o.length = 128;
  o.width = 16;
  o.heads = 2;
  o.clusters = 8;
  size_t told = 0;
  const std::vector<LshRecallRow> rows = study_lsh_recall(o, [&](const LshRecallRow&) { ++told; });
  ASSERT_EQ(rows.size(), 2U * 2 * 3 * 2);
  EXPECT_EQ(told, rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const LshRecallRow& r = rows[i];
    EXPECT_EQ(r.buckets, lsh_auto_buckets(128, r.chunk).count());
    // A clustered vector's weights are on its cluster, which hashes together: more than chance.
    if (r.vectors == LshVectors::clustered) {
      EXPECT_GT(r.recall.mass, r.recall.keys + 0.1);
    }
    if (r.same_bucket) {
      EXPECT_LE(r.recall.mass, rows[i - 1].recall.mass);
    }
    // More rounds keep the first ones.
    if (r.rounds > 1) {
      EXPECT_GT(r.recall.mass, rows[i - 2].recall.mass) << i;
    }
    if (r.chunk == 16) {
      EXPECT_GT(r.recall.mass, rows[i - 6].recall.mass) << i;
    }
  }
}

TEST(LshRecall, SaysWhatDoesNotFit) {
  const Tensor q = vectors(1, 8, 4);
  const Tensor ids = bucket_ids(q, 1, {2, 1});
  EXPECT_THROW(lsh_recall(q, ids, {}, 0), ValueError);
  EXPECT_THROW(lsh_recall(vectors(1, 9, 4), ids, {}), ShapeError);
  EXPECT_THROW(lsh_visible(q, {}), DTypeError);
  LshRecallOptions o;
  o.spread = 2;
  EXPECT_THROW(study_lsh_recall(o), ValueError);
}

FeatureErrorRow error_of(FeatureMap map, ProjectionRows rows, int64_t count, double deviation) {
  FeatureErrorOptions o{
      .features = {map}, .rows = {rows}, .counts = {count}, .deviations = {deviation}};
  o.length = 64;
  o.draws = 30;
  const std::vector<FeatureErrorRow> all = study_feature_errors(o);
  EXPECT_EQ(all.size(), 1U);
  return all[0];
}

/// The error of a mean of M features falls as 1 / sqrt(M): to a quarter for 16 times as many.
TEST(FeatureError, FallsAsTheRootOfTheNumberOfFeatures) {
  for (const FeatureMap map :
       {FeatureMap::positive, FeatureMap::hyperbolic, FeatureMap::trigonometric}) {
    const double few = error_of(map, ProjectionRows::iid, 128, 0.3).mean;
    const double many = error_of(map, ProjectionRows::iid, 2048, 0.3).mean;
    EXPECT_NEAR(few / many, 4, 1) << name_of_value(map);
  }
}

TEST(FeatureError, IsSmallerWithOrthogonalRows) {
  for (const FeatureMap map : {FeatureMap::positive, FeatureMap::trigonometric}) {
    EXPECT_LT(error_of(map, ProjectionRows::gram_schmidt, 64, 0.3).mean,
              0.9 * error_of(map, ProjectionRows::iid, 64, 0.3).mean)
        << name_of_value(map);
  }
}

TEST(FeatureError, IsNothingWhereAllLogitsAreZero) {
  const FeatureErrorRow row = error_of(FeatureMap::positive, ProjectionRows::iid, 16, 0);
  EXPECT_LT(row.mean, 1e-12);
  EXPECT_LT(row.spread, 1e-12);
}

TEST(FeatureError, SaysWhatDoesNotFit) {
  FeatureErrorOptions o{.features = {FeatureMap::relu}};
  EXPECT_THROW(study_feature_errors(o), ValueError);
  o = {.features = {FeatureMap::trigonometric}, .counts = {7}};
  EXPECT_THROW(check_feature_errors(o), ValueError);
  o = {};
  o.draws = 0;
  EXPECT_THROW(check_feature_errors(o), ValueError);
}

TEST(EntmaxSparsity, IsThatOfSoftmaxAndSparsemax) {
  // sparsemax([0, t]) is [(1 - t) / 2, (1 + t) / 2] up to t = 1, and [0, 1] from there on.
  const Tensor logits = Tensor::from(std::vector<double>{0, 0.5, 0, 3}, {2, 2});
  const EntmaxSparsity sparsemax = entmax_sparsity(logits, 2);
  EXPECT_DOUBLE_EQ(sparsemax.zeros, 0.25);
  EXPECT_DOUBLE_EQ(sparsemax.keys, 1.5);
  EXPECT_DOUBLE_EQ(sparsemax.largest, (0.75 + 1) / 2);
  const EntmaxSparsity softmax = entmax_sparsity(logits, 1);
  EXPECT_EQ(softmax.zeros, 0);
  EXPECT_EQ(softmax.keys, 2);
  EXPECT_THROW(entmax_sparsity(Tensor::zeros({0, 3}), 1.5), ShapeError);
}

TEST(EntmaxSparsity, GrowsWithAlphaAndScale) {
  EntmaxSparsityOptions o{.alphas = {1, 1.25, 1.5, 2}, .lengths = {64}, .scales = {0, 1, 2}};
  o.rows = 16;
  const std::vector<EntmaxSparsityRow> rows = study_entmax_sparsity(o);
  ASSERT_EQ(rows.size(), 12U);
  for (size_t i = 0; i < rows.size(); ++i) {
    const EntmaxSparsityRow& r = rows[i];
    if (r.alpha == 1) {
      EXPECT_EQ(r.sparsity.zeros, 0);
    }
    if (r.scale == 0) {  // uniform
      EXPECT_EQ(r.sparsity.zeros, 0);
      EXPECT_NEAR(r.sparsity.largest, 1.0 / 64, 1e-12);
      continue;
    }
    if (r.alpha > 1) {
      EXPECT_GT(r.sparsity.zeros, rows[i - 1].sparsity.zeros);
    }
    if (r.scale == 2 && r.alpha > 1) {
      EXPECT_GT(r.sparsity.zeros, rows[i - 4].sparsity.zeros);
    }
  }
}

TEST(GradientDistance, IsRelativeToTheReference) {
  const auto list = [](std::vector<double> a, std::vector<double> b) {
    return TensorList{{"a", Tensor::from(a, {2})}, {"b", Tensor::from(b, {1})}};
  };
  const TensorList reference = list({3, 0}, {4});
  const GradientDistance none = gradient_distance(reference, reference);
  EXPECT_EQ(none.relative, 0);
  EXPECT_EQ(none.largest, 0);
  const GradientDistance d = gradient_distance(list({3, 3}, {4}), reference);
  EXPECT_DOUBLE_EQ(d.relative, 3.0 / 5);
  EXPECT_DOUBLE_EQ(d.largest, 1);
  EXPECT_EQ(d.parameter, "a");
  EXPECT_THROW(gradient_distance({reference[0]}, reference), ValueError);
  EXPECT_THROW(gradient_distance(reference, list({0, 0}, {0})), ValueError);
}

TEST(GradientDistance, TakesGradientsOfAModuleAndLeavesNone) {
  const Scheme scheme = Scheme::normal(1);
  Linear narrow(3, 2, true, Init{.gen = Generator{1}}, scheme);
  Linear wide(3, 2, true, Init{.gen = Generator{2}, .dtype = DType::f64}, scheme);
  copy_state(wide, narrow);
  const Tensor x = normal({4, 3}, Generator{5});
  const TensorList f32 = gradients_of(narrow, sum(square(narrow.forward(x))));
  const TensorList f64 = gradients_of(wide, sum(square(wide.forward(cast(x, DType::f64)))));
  const GradientDistance d = gradient_distance(f32, f64);
  EXPECT_GT(d.relative, 0);
  EXPECT_LT(d.relative, 1e-6);
  for (const NamedTensor& p : named_parameters(narrow)) EXPECT_FALSE(grad(p.tensor)) << p.name;
}

}  // namespace
}  // namespace longspan
