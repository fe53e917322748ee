#include "ops/patterns/pairs.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <vector>

#include "core/generator.h"
#include "ops/patterns/layout_cache.h"
#include "ops/patterns/window.h"

namespace longspan {
namespace {

using Pair = std::tuple<int64_t, int, int64_t>;

std::set<Pair> counted_pairs(const AttentionPattern& p, int64_t queries, int64_t keys,
                             int64_t side_keys, int64_t sample, int64_t head) {
  std::set<Pair> pairs;
  const PairCount n =
      count_pairs(p, queries, keys, side_keys, sample, head, [&](int64_t i, int s, int64_t j) {
        EXPECT_TRUE(pairs.insert({i, s, j}).second);
      });
  EXPECT_EQ(n.attended, static_cast<int64_t>(pairs.size()));
  EXPECT_EQ(count_pairs(p, queries, keys, side_keys, sample, head).attended, n.attended);
  EXPECT_GE(n.computed, n.attended);
  return pairs;
}

TEST(CountPairs, AgreesWithVisiblePairs) {
  const std::vector<AttentionPattern> all{patterns::dense(),     patterns::causal(),
                                          patterns::local(5),    patterns::local_block(4),
                                          patterns::strided(3),  patterns::dilated(2, 1, 3),
                                          patterns::fixed(6, 2), patterns::fixed_summary(6, 2, 1)};
  for (const AttentionPattern& p : all) {
    for (const auto& [queries, keys] : {std::pair{1, 1}, {17, 17}, {100, 100}, {7, 40}, {0, 3}}) {
      const PairCount n = count_pairs(p, queries, keys, 0, 0, 0);
      EXPECT_EQ(n.attended, visible_pairs(p, queries, keys)) << p.name;
      EXPECT_EQ(n.computed, covered_pairs(p, queries, keys)) << p.name;
      counted_pairs(p, queries, keys, 0, 0, 0);
    }
  }
}

// Counts the pairs of a rule over partial and full runs by distance, and compares with counting
// them one by one.
TEST(CountPairs, ByDistanceOrOneByOne) {
  constexpr int64_t queries = 29, keys = 41;
  const auto everything = make_layout(
      queries, keys,
      {{tile_of(0, 16, {run_of(0, keys, RunKind::partial)}),
        tile_of(16, queries, {run_of(3, 20, RunKind::partial), run_of(22, keys, RunKind::full)})}});
  for (const bool causal : {false, true}) {
    for (const int64_t left : {int64_t{0}, int64_t{3}, int64_t{-2}, kUnlimited}) {
      for (const int64_t right : {int64_t{2}, int64_t{-1}, kUnlimited}) {
        for (const auto& [dilation, stride] : {std::pair{1, 0}, {1, 4}, {3, 0}, {2, 3}, {4, 6}}) {
          for (const int64_t start : {-7, 0, 5, 100}) {
            Rule rule{causal, {left, right, dilation}, stride, start};
            AttentionPattern p = patterns::dense();
            p.layout = everything;
            p.rules = {rule};
            counted_pairs(p, queries, keys, 0, 0, 0);
          }
        }
      }
    }
  }
}

TEST(CountPairs, OfKnownLayoutsAreCountedOnce) {
  PairsOfLayouts known;
  const AttentionPattern mine = patterns::by_head({patterns::local(2), patterns::causal()}, 9, 9);
  EXPECT_EQ(known.count(mine, 3, 2, 9, 9), 3 * (17 + 45));
  EXPECT_EQ(known.count(mine, 3, 2, 9, 9), 3 * (17 + 45));
  EXPECT_EQ(known.count(mine, 1, 2, 9, 9), 17 + 45);
  AttentionPattern other = mine;  // the same layout with other rules
  for (Rule& rule : other.rules) rule.window.left = 0;
  EXPECT_EQ(known.count(other, 3, 2, 9, 9), attended_pairs(other, 3, 2, 9, 9));
  EXPECT_NE(known.count(other, 3, 2, 9, 9), 3 * (17 + 45));
  EXPECT_EQ(known.count(patterns::causal(), 1, 1, 9, 9), 45);
  EXPECT_EQ(known.count(patterns::causal(), 1, 1, 10, 10), 55);
}

TEST(CountPairs, HeadsHaveTheirOwn) {
  const AttentionPattern p = patterns::by_head({patterns::local(2), patterns::causal()}, 9, 9);
  EXPECT_EQ(count_pairs(p, 9, 9, 0, 0, 0).attended, 17);
  EXPECT_EQ(count_pairs(p, 9, 9, 0, 0, 1).attended, 45);
}

// Every count treats keys of a second segment like those of the first.
TEST(CountPairs, OfLayoutsWithSideKeys) {
  AttentionPattern p = patterns::by_head({patterns::local(2), patterns::causal()}, 9, 9);
  p.layout = with_side_keys(p.layout, 4);
  EXPECT_EQ(visible_pairs(p, 9, 9, 0), 17 + 36);
  EXPECT_EQ(visible_pairs(p, 9, 9, 1), 45 + 36);
  EXPECT_EQ(covered_pairs(p, 9, 9, 1), count_pairs(p, 9, 9, 4, 0, 1).computed);
  EXPECT_EQ(attended_pairs(p, 3, 2, 9, 9), 3 * (17 + 45 + 2 * 36));
  EXPECT_THROW(with_side_keys(p.layout, 1), ShapeError);

  p = patterns::window_and_globals(9, 1, {1}, {{0, 4}, {3}});
  EXPECT_EQ(attended_pairs(p, 1, 1, 9, 9), 25 + 2 * 9);  // without the masks of samples
}

// Checks all masks at once, on both segments and two samples, against the definition in PairMask.
TEST(CountPairs, HonoursLengthsBoundsHiddenKeysAndClasses) {
  constexpr int64_t L = 13, T = 13, S = 5, C = 3;
  const auto numbers = [](uint64_t key, int64_t n, int64_t below) {
    std::vector<int32_t> v;
    for (int64_t i = 0; i < n; ++i) {
      v.push_back(static_cast<int32_t>(philox_word(key, i) % static_cast<uint64_t>(below)));
    }
    return v;
  };
  const std::vector<int64_t> q_valid{13, 9}, k_valid{12, 10}, side_valid{5, 3}, k_begin{2, 0},
      side_begin{0, 1};
  const auto from = numbers(1, 2 * L, 4), q_class = numbers(2, L, C), k_class = numbers(3, S, C);
  std::vector<int32_t> to = numbers(4, 2 * L, 8), id = numbers(5, C * C, 3);
  for (int32_t& t : to) t += 5;
  for (int32_t& t : id) t -= 1;
  std::vector<uint8_t> hidden(static_cast<size_t>(T), 0);
  hidden[4] = hidden[7] = 1;

  AttentionPattern p;
  TileRuns tile{0, L, {}};
  tile.runs.push_back({0, T, 0, RunKind::partial});
  tile.runs.push_back({0, S, 1, RunKind::full});
  p.layout = make_layout(L, T, {{tile}}, {.side_keys = S});
  Rule near;
  near.window = {3, 2};
  p.rules = {near};
  p.q_valid = Tensor::from(q_valid, {2});
  p.mask.k_valid = Tensor::from(k_valid, {2});
  p.mask.k_begin = Tensor::from(k_begin, {2});
  p.mask.q_from = Tensor::from(from, {2, L});
  p.mask.q_to = Tensor::from(to, {2, L});
  p.mask.k_hidden = Tensor::from(hidden, {1, T});
  p.side_mask.k_valid = Tensor::from(side_valid, {2});
  p.side_mask.k_begin = Tensor::from(side_begin, {2});
  p.side_mask.q_class = Tensor::from(q_class, {1, L});
  p.side_mask.k_class = Tensor::from(k_class, {1, S});
  p.side_mask.class_id = Tensor::from(id, {1, C, C});

  for (size_t b = 0; b < 2; ++b) {
    std::set<Pair> expected;
    for (int64_t i = 0; i < q_valid[b]; ++i) {
      const auto row = b * L + static_cast<size_t>(i), q = static_cast<size_t>(i);
      for (int64_t j = k_begin[b]; j < k_valid[b]; ++j) {
        const bool inside = i - j <= 3 && j - i <= 2 && j >= from[row] && j < to[row];
        if (inside && hidden[static_cast<size_t>(j)] == 0) expected.insert({i, 0, j});
      }
      for (int64_t j = side_begin[b]; j < side_valid[b]; ++j) {
        if (id[static_cast<size_t>(q_class[q] * C + k_class[static_cast<size_t>(j)])] >= 0) {
          expected.insert({i, 1, j});
        }
      }
    }
    EXPECT_EQ(counted_pairs(p, L, T, S, static_cast<int64_t>(b), 0), expected);
  }
}

}  // namespace
}  // namespace longspan
