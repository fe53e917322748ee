// Common offsets of the scores of attention, and NaN in its rows.
//
// A score is a product, which is rounded: beside an offset c by up to u |c|, with the unit roundoff
// u of the dtype that it is computed in. A row's lse is one number, rounded by as much. So the
// probabilities, of the forward pass and those that the backward pass recomputes from lse, are
// those without the offset up to a factor 1 + O(u |c|). In a call of one pattern the factors of lse
// are common to the gradients of a row's scores, so that their sum stays 0.

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "ops/attention/block_attention.h"
#include "ops/attention/edge_attention.h"
#include "ops/attention/entmax_attention.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/patterns/tree.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/model_info.h"
#include "tests/harness/op_info.h"

namespace longspan::test {
namespace {

constexpr int64_t kLength = 70;
const double kOffsets[] = {1e2, 1e4, 1e6};

Tensor normal_leaf(const Shape& shape, uint64_t seed, DType dtype = DType::f32) {
  Tensor x = make(randn(shape), Generator{seed}, {dtype, DType::f64, Layout::contiguous, {}});
  return set_requires_grad(x);
}

/// What attention gives with an offset of all scores.
struct Outcome {
  Tensor out, dq, dk, dv, doffset;
};

double largest(const Tensor& x) { return longspan::max(flatten(abs(x)), 0).values.item(); }

/// Checks that the outcome with an offset is the one without it up to `times` roundings of scores.
void check_bound(const Outcome& with, const Outcome& without, double offset, double times,
                 const std::string& what) {
  const double bound = times * 0x1p-24 * offset;
  const auto near = [&](const Tensor& a, const Tensor& b, const char* name) {
    EXPECT_LE(distance(a, b), bound * largest(b)) << what << " " << name << " at " << offset;
  };
  near(with.out, without.out, "out");
  near(with.dq, without.dq, "dq");
  near(with.dk, without.dk, "dk");
  near(with.dv, without.dv, "dv");
}

Outcome attend_with_offset(double offset, const std::vector<AttentionPattern>& patterns) {
  const Tensor q = normal_leaf({1, 2, kLength, 8}, 1), k = normal_leaf({1, 2, kLength, 8}, 2),
               v = normal_leaf({1, 2, kLength, 5}, 3);
  Tensor c = longspan::full({1}, offset);
  set_requires_grad(c);
  ScoreTerms terms;
  terms.scale = 1;
  terms.relation_bias = c;
  const Keys keys{k, v};
  const Tensor out = block_attention(q, {&keys, 1}, patterns, terms).out;
  backward(out, normal_leaf({1, 2, kLength, 5}, 4).detach());
  return {out.detach(), grad(q), grad(k), grad(v), grad(c)};
}

TEST(AttentionOffset, OfBlocksIsBoundByTheRoundingOfScores) {
  AttentionPattern early = patterns::causal(), late = patterns::causal();
  early.rules.front().window.right = -9;  // keys 9 or more before the query
  late.rules.front().window.left = 8;     // the others
  const std::vector<AttentionPattern> all[] = {
      {patterns::causal()}, {patterns::dense()}, {early, late}};
  for (const auto& patterns : all) {
    const Outcome without = attend_with_offset(0, patterns);
    for (const double offset : kOffsets) {
      const Outcome with = attend_with_offset(offset, patterns);
      if (offset < 1e6) {
        check_bound(with, without, offset, 8, fmt::format("{} patterns", patterns.size()));
      }
      // The sum of the gradients of all scores.
      const double most = patterns.size() == 1 ? 1e-5 : 8 * 0x1p-24 * offset;
      EXPECT_LE(std::abs(with.doffset.item()), most * largest(without.dq)) << offset;
    }
  }
}

TEST(AttentionOffset, OfMergedPartsLeavesSharesWhoseSumIsOne) {
  for (const double offset : {0.0, 1e2, 1e4, 1e6, 1e8}) {
    std::vector<AttentionResult> parts;
    for (const double lse : {0.0, 0.0, 1024.0}) {
      parts.push_back({longspan::full({1, 1, 1, 2}, 1), longspan::full({1, 1, 1}, offset + lse)});
    }
    const Tensor last = merge_attention(parts).out;
    EXPECT_EQ(flatten(last).to_vector<float>(), (std::vector<float>{1, 1})) << offset;
    parts.pop_back();
    set_requires_grad(parts[0].lse);
    parts[1].out = longspan::full({1, 1, 1, 2}, 3);
    const AttentionResult merged = merge_attention(parts);
    EXPECT_EQ(flatten(merged.out).to_vector<float>(), (std::vector<float>{2, 2})) << offset;
    EXPECT_NEAR(merged.lse.item(), offset + std::log(2.0), 0x1p-23 * (1 + offset));
    backward(sum(merged.out));
    EXPECT_EQ(grad(parts[0].lse).item(), -1) << offset;  // 1/4 (1 - 3) twice
  }
}

TEST(AttentionOffset, OfEdgesIsBoundByTheRoundingOfScores) {
  const auto layout = tree_edges(std::vector<int64_t>{37}, {.k = 2, .clip = 1});
  const int64_t nodes = layout->n_rows;
  const auto run = [&](double offset) {
    const Tensor q = normal_leaf({1, 2, nodes, 8}, 1), k = normal_leaf({1, 2, nodes, 8}, 2),
                 v = normal_leaf({1, 2, nodes, 5}, 3);
    // A further column of ones in q and of the offset in k.
    const Tensor more = longspan::full({1, 2, nodes, 1}, offset);
    const Tensor wide_q = concat({q, ones_like(more)}, 3);
    Tensor c = more.detach();
    set_requires_grad(c);
    const Tensor out = edge_attention(wide_q, concat({k, c}, 3), v, {}, layout, 1);
    backward(out, normal_leaf({1, 2, nodes, 5}, 4).detach());
    return Outcome{out.detach(), grad(q), grad(k), grad(v), grad(c)};
  };
  const Outcome without = run(0);
  for (const double offset : kOffsets) {
    const Outcome with = run(offset);
    if (offset < 1e6) check_bound(with, without, offset, 8, "edges");
    EXPECT_LE(std::abs(longspan::sum(with.doffset).item()), 2e-5 * largest(without.dq)) << offset;
  }
}

TEST(AttentionOffset, OfEntmaxIsBoundByTheRoundingOfScores) {
  for (const double alpha : {1.0, 1.3, 1.5, 2.0}) {
    const auto run = [&](double offset) {
      const Tensor q = normal_leaf({1, 2, kLength, 8}, 1), k = normal_leaf({1, 2, kLength, 8}, 2),
                   v = normal_leaf({1, 2, kLength, 5}, 3);
      const Tensor more = longspan::full({1, 2, kLength, 1}, offset);
      // On a grid of 1/64 scores with an offset of 2^10 are exact.
      const auto grid = [](const Tensor& x) { return round_to_grid(x, 3); };
      const Tensor y =
          entmax_attention(concat({grid(q), ones_like(more)}, 3), concat({grid(k), more}, 3),
                           grid(v), patterns::causal(), longspan::full({1}, alpha), 1)
              .out;
      backward(y, normal_leaf({1, 2, kLength, 5}, 4).detach());
      return Outcome{y.detach(), grad(q), grad(k), grad(v), {}};
    };
    // Thresholds count from the largest score, so that nothing at all changes.
    const Outcome without = run(0), with = run(1024);
    EXPECT_LE(distance(with.out, without.out), 1e-6 * largest(without.out)) << alpha;
    EXPECT_LE(distance(with.dq, without.dq), 1e-5 * largest(without.dq)) << alpha;
    EXPECT_LE(distance(with.dk, without.dk), 1e-5 * largest(without.dk)) << alpha;
    EXPECT_LE(distance(with.dv, without.dv), 1e-5 * largest(without.dv)) << alpha;
  }
}

// NaN in a query reaches its own row, forward and back, and no other row; a row that sees no key
// stays 0.
TEST(AttentionOffset, NaNReachesItsRowAndNoOther) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const int64_t at : {int64_t{0}, int64_t{5}, kLength - 1}) {
      const Tensor k = normal_leaf({1, 1, kLength, 8}, 2, dtype),
                   v = normal_leaf({1, 1, kLength, 5}, 3, dtype);
      std::vector<double> values =
          flatten(cast(normal_leaf({1, 1, kLength, 8}, 1, dtype).detach(), DType::f64))
              .to_vector<double>();
      values[static_cast<size_t>(at * 8 + 3)] = std::nan("");
      Tensor q = cast(Tensor::from(values, {1, 1, kLength, 8}), dtype).detach();
      set_requires_grad(q);
      AttentionPattern pattern = patterns::causal();
      pattern.mask.k_begin = Tensor::from(std::vector<int64_t>{3}, {1});
      const AttentionResult y = block_attention(q, k, v, pattern);
      backward(y.out, normal_leaf({1, 1, kLength, 5}, 4, dtype).detach());
      const auto numbers = [](const Tensor& x) {
        return flatten(cast(x.detach(), DType::f64)).to_vector<double>();
      };
      const std::vector<double> out = numbers(y.out), lse = numbers(y.lse), dq = numbers(grad(q));
      for (int64_t i = 0; i < kLength; ++i) {
        const auto row = static_cast<size_t>(i);
        const bool expected = i == at && i >= 3;
        EXPECT_EQ(std::isnan(lse[row]), expected) << i;
        for (size_t c = 0; c < 5; ++c) EXPECT_EQ(std::isnan(out[5 * row + c]), expected) << i;
        for (size_t c = 0; c < 8; ++c) EXPECT_EQ(std::isnan(dq[8 * row + c]), expected) << i;
      }
    }
  }
}

}  // namespace
}  // namespace longspan::test
