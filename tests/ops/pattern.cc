#include "ops/patterns/pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <vector>

#include "ops/patterns/blocks.h"
#include "ops/patterns/layout_cache.h"
#include "ops/patterns/pairs.h"
#include "tests/harness/messages.h"

namespace longspan {
namespace {

struct PatternCase {
  std::string name;
  AttentionPattern pattern;
  // Visibility of the pair (position of the query, key), straight from the definition.
  std::function<bool(int64_t, int64_t)> sees;
};

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

std::vector<PatternCase> cases() {
  std::vector<PatternCase> all;
  all.push_back({"dense", patterns::dense(), [](int64_t, int64_t) { return true; }});
  all.push_back({"causal", patterns::causal(), [](int64_t p, int64_t j) { return j <= p; }});
  for (const int64_t w : {1, 7, 64, 100, 300}) {
    all.push_back({"local", patterns::local(w),
                   [w](int64_t p, int64_t j) { return p - j >= 0 && p - j < w; }});
  }
  for (const int64_t w : {0, 5, 64, 190}) {
    all.push_back({"bidirectional", patterns::local_bidirectional(w),
                   [w](int64_t p, int64_t j) { return std::abs(p - j) <= w / 2; }});
  }
  for (const int64_t b : {1, 7, 16, 50, 128, 200}) {
    all.push_back({"block", patterns::local_block(b), [b](int64_t p, int64_t j) {
                     const int64_t own = floor_div(p, b), key = j / b;
                     return (key == own || key == own - 1) && j <= p;
                   }});
  }
  for (const int64_t s : {1, 3, 16, 1000}) {
    all.push_back({"dilated", patterns::dilated(4, 2, s), [s](int64_t p, int64_t j) {
                     const int64_t delta = p - j;
                     return delta % s == 0 && delta <= 4 * s && -delta <= 2 * s;
                   }});
    all.push_back({"dilated, earlier only", patterns::dilated(kUnlimited, -2, s),
                   [s](int64_t p, int64_t j) { return j <= p - 2 * s && (p - j) % s == 0; }});
    all.push_back({"strided", patterns::strided(s),
                   [s](int64_t p, int64_t j) { return j <= p && (p - j) % s == 0; }});
  }
  for (const auto& [l, c, s] : {std::array<int64_t, 3>{1, 1, 0},
                                {5, 2, 0},
                                {5, 2, 1},
                                {16, 16, 0},
                                {32, 8, 3},
                                {130, 50, 1}}) {
    const auto column = [l = l, c = c, s = s](int64_t j) {
      return j % l >= l - (s + 1) * c && j % l < l - s * c;
    };
    const auto own = [l = l](int64_t p, int64_t j) { return j <= p && floor_div(p, l) == j / l; };
    all.push_back({"fixed_block", patterns::fixed_block(l), own});
    all.push_back({"fixed_summary", patterns::fixed_summary(l, c, s),
                   [column](int64_t p, int64_t j) { return j <= p && column(j); }});
    all.push_back({"fixed", patterns::fixed(l, c, s), [column, own](int64_t p, int64_t j) {
                     return own(p, j) || (j <= p && column(j));
                   }});
  }
  return all;
}

const std::vector<std::pair<int64_t, int64_t>> kLengthPairs = {
    {1, 1},    {2, 2},    {15, 15},   {16, 16},   {17, 17},   {63, 63},
    {64, 64},  {65, 65},  {96, 96},   {100, 100}, {257, 257}, {1, 130},
    {65, 400}, {130, 64}, {200, 500}, {0, 5},     {5, 0}};

// Maps positions in the layout's order to indices; without an order it is the identity.
std::vector<int32_t> order_or_identity(const Tensor& order, int64_t n) {
  if (order) return order.to_vector<int32_t>();
  std::vector<int32_t> identity(static_cast<size_t>(n));
  for (size_t i = 0; i < identity.size(); ++i) identity[i] = static_cast<int32_t>(i);
  return identity;
}

// The analytic builders against brute force.
TEST(Pattern, LayoutAndRuleEqualBruteForce) {
  for (const PatternCase& c : cases()) {
    for (const auto& [queries, keys] : kLengthPairs) {
      const AttentionPattern p = resolve(c.pattern, queries, keys);
      const auto q = order_or_identity(p.layout->order_q, queries);
      const auto k = order_or_identity(p.layout->order_k, keys);
      std::vector<char> seen(static_cast<size_t>(queries * keys));
      int64_t visible = 0;
      for (const TileRuns& t : tiles_of(*p.layout, 0)) {
        for (const longspan::KeyRun& r : t.runs) {
          for (int32_t row = t.q0; row < t.q0 + t.qn; ++row) {
            for (int32_t place = r.k0; place < r.k0 + r.kn; ++place) {
              const int64_t i = q[static_cast<size_t>(row)], j = k[static_cast<size_t>(place)];
              const bool truth = c.sees(i + keys - queries, j);
              const bool ours = r.kind == RunKind::full || rule_allows(p.rules[0], i, j);
              ASSERT_EQ(ours, truth) << p.name << " L " << queries << " T " << keys << " pair " << i
                                     << ", " << j << (r.kind == RunKind::full ? " full" : "");
              seen[static_cast<size_t>(i * keys + j)] = 1;
              visible += truth;
            }
          }
        }
      }
      for (int64_t i = 0; i < queries; ++i) {
        for (int64_t j = 0; j < keys; ++j) {
          if (c.sees(i + keys - queries, j)) {
            ASSERT_TRUE(seen[static_cast<size_t>(i * keys + j)])
                << p.name << " L " << queries << " T " << keys << " misses " << i << ", " << j;
          }
        }
      }
      EXPECT_EQ(visible_pairs(c.pattern, queries, keys), visible);
      EXPECT_GE(covered_pairs(c.pattern, queries, keys), visible);
    }
  }
}

// The row table and the column table hold the same set of tile, key and kind.
TEST(Pattern, TransposeHoldsTheSameSet) {
  for (const PatternCase& c : cases()) {
    for (const auto& [queries, keys] : kLengthPairs) {
      const AttentionPattern p = resolve(c.pattern, queries, keys);
      const BlockLayout& layout = *p.layout;
      std::set<std::array<int32_t, 3>> rows, columns;
      const auto tiles = tiles_of(layout, 0);
      for (size_t t = 0; t < tiles.size(); ++t) {
        for (const longspan::KeyRun& r : tiles[t].runs) {
          for (int32_t j = r.k0; j < r.k0 + r.kn; ++j) {
            rows.insert({static_cast<int32_t>(t), j, static_cast<int32_t>(r.kind)});
          }
        }
      }
      const auto start = layout.col_start.to_vector<int32_t>();
      const auto runs = layout.col_runs.to_vector<int32_t>();
      constexpr auto fields = static_cast<size_t>(kernels::kColumnRunFields);
      int64_t count = 0;
      for (size_t column = 0; column + 1 < start.size(); ++column) {
        for (auto i = static_cast<size_t>(start[column]);
             i < static_cast<size_t>(start[column + 1]); ++i) {
          for (int32_t t = runs[fields * i]; t < runs[fields * i] + runs[fields * i + 1]; ++t) {
            for (int32_t j = runs[fields * i + 2]; j < runs[fields * i + 2] + runs[fields * i + 3];
                 ++j) {
              EXPECT_EQ(static_cast<size_t>(j / kernels::kAttentionColumnKeys), column);
              columns.insert({t, j, runs[fields * i + 5]});
              ++count;
            }
          }
        }
      }
      EXPECT_EQ(rows, columns) << p.name << " L " << queries << " T " << keys;
      EXPECT_EQ(count, static_cast<int64_t>(rows.size())) << "a pair lies in two column runs";
    }
  }
}

// Numbers of pairs equal closed formulas.
TEST(Pattern, PairCountsEqualClosedFormulas) {
  const int64_t length = 4096;
  EXPECT_EQ(visible_pairs(patterns::dense(), length, length), length * length);
  EXPECT_EQ(visible_pairs(patterns::causal(), length, length), length * (length + 1) / 2);
  const int64_t memory = 500;
  EXPECT_EQ(visible_pairs(patterns::causal(), length, length + memory),
            length * (length + 1) / 2 + length * memory);
  for (const int64_t w : {85, 170, 256, 512}) {
    EXPECT_EQ(visible_pairs(patterns::local(w), length, length), length * w - w * (w - 1) / 2);
    const int64_t r = w / 2;
    EXPECT_EQ(visible_pairs(patterns::local_bidirectional(w), length, length),
              length * (2 * r + 1) - r * (r + 1));
  }
  const int64_t b = 128, blocks = length / b;
  EXPECT_EQ(visible_pairs(patterns::local_block(b), length, length),
            blocks * b * (b + 1) / 2 + (blocks - 1) * b * b);
  const int64_t s = 64, members = length / s;
  EXPECT_EQ(visible_pairs(patterns::strided(s), length, length), s * members * (members + 1) / 2);
}

// Bounds the pairs that runs cover beyond the visible ones. The kernel clips each register tile
// once more.
TEST(Pattern, CoveredPairsAreBounded) {
  const int64_t length = 4096;
  const auto ratio = [length](const AttentionPattern& p) {
    return static_cast<double>(covered_pairs(p, length, length)) /
           static_cast<double>(visible_pairs(p, length, length));
  };
  EXPECT_LT(ratio(patterns::causal()), 1.04);
  EXPECT_LT(ratio(patterns::local_bidirectional(2 * 84)), 1.70);
  EXPECT_LT(ratio(patterns::local_bidirectional(2 * 256)), 1.25);
  EXPECT_LT(ratio(patterns::local(256)), 1.45);
  EXPECT_LT(ratio(patterns::local_block(256)), 1.15);
  EXPECT_DOUBLE_EQ(ratio(patterns::dense()), 1.0);
}

// bench/growth.py measures time; this test counts the covered pairs, which determine it.
TEST(Pattern, WorkOfABandDoublesWithTheLength) {
  for (const AttentionPattern& p : {patterns::local(256), patterns::local_bidirectional(512),
                                    patterns::dilated(128, 128, 4), patterns::local_block(128)}) {
    for (const int64_t length : {2048, 4096, 8192, 16384}) {
      const auto ratio = static_cast<double>(covered_pairs(p, 2 * length, 2 * length)) /
                         static_cast<double>(covered_pairs(p, length, length));
      EXPECT_GT(ratio, 1.8) << p.name << " " << length;
      EXPECT_LT(ratio, 2.2) << p.name << " " << length;
    }
  }
}

TEST(Pattern, LayoutGrowsLinearly) {
  const auto entries = [](const AttentionPattern& p, int64_t length) {
    const auto layout = resolve(p, length, length).layout;
    return layout->runs.numel() + layout->col_runs.numel() + layout->tiles.numel();
  };
  for (const AttentionPattern& p :
       {patterns::dense(), patterns::causal(), patterns::local(256), patterns::local_block(256)}) {
    EXPECT_LT(static_cast<double>(entries(p, 65536)) / static_cast<double>(entries(p, 16384)), 4.2)
        << p.name;
  }
}

TEST(Pattern, LayoutsAreSharedByContent) {
  const auto a = resolve(patterns::local(32), 200, 200).layout;
  EXPECT_EQ(a, resolve(patterns::local(32), 200, 200).layout);
  EXPECT_NE(a, resolve(patterns::local(33), 200, 200).layout);  // equal length, another pattern
  EXPECT_NE(a, resolve(patterns::local(32), 200, 201).layout);
  EXPECT_NE(a, resolve(patterns::local_bidirectional(62), 200, 200).layout);
  EXPECT_NE(resolve(patterns::local_block(32), 200, 200).layout,
            resolve(patterns::local_block(32, 8), 200, 200).layout);
}

std::vector<std::array<int64_t, 2>> sorted_pairs(const AttentionPattern& p, int64_t queries,
                                                 int64_t keys, int64_t head = 0) {
  std::vector<std::array<int64_t, 2>> pairs;
  count_pairs(p, queries, keys, 0, 0, head, [&pairs](int64_t i, int, int64_t j) {
    pairs.push_back({i, j});
  });
  std::sort(pairs.begin(), pairs.end());
  return pairs;
}

TEST(Pattern, HeadsSeeWhatTheirOwnPatternsSay) {
  const std::vector<AttentionPattern> heads{
      patterns::fixed(8, 2, 0), patterns::fixed_block(8),         patterns::fixed(8, 2, 3),
      patterns::fixed(8, 2, 0), patterns::fixed_summary(8, 2, 1), patterns::causal()};
  const AttentionPattern p = patterns::by_head(heads, 37, 50);
  EXPECT_EQ(p.layout->layouts(), 5);  // two are equal
  for (size_t h = 0; h < heads.size(); ++h) {
    const auto head = static_cast<int64_t>(h);
    EXPECT_EQ(sorted_pairs(p, 37, 50, head), sorted_pairs(heads[h], 37, 50)) << h;
    EXPECT_EQ(tiles_of(*p.layout, p.layout->layout_index.to_vector<int32_t>()[h]).size(),
              tiles_of(*resolve(heads[h], 37, 50).layout, 0).size());
  }
  EXPECT_EQ(patterns::by_head({heads[0], heads[0]}, 37, 37).layout->layouts(), 1);
  EXPECT_THROW(patterns::by_head({}, 4, 4), ValueError);
  EXPECT_THROW(patterns::by_head({p}, 37, 50), NotImplemented);

  const std::vector<AttentionPattern> mixed{patterns::local(5), patterns::strided(5),
                                            patterns::local(5), patterns::dilated(3, -1, 2),
                                            patterns::causal(), patterns::strided(3)};
  const AttentionPattern m = patterns::by_head(mixed, 37, 50);
  EXPECT_EQ(m.layout->layouts(), 5);
  EXPECT_EQ(m.layout->order_q.dim(0), 3);
  for (size_t h = 0; h < mixed.size(); ++h) {
    EXPECT_EQ(sorted_pairs(m, 37, 50, static_cast<int64_t>(h)), sorted_pairs(mixed[h], 37, 50))
        << h;
  }
}

TEST(Pattern, HeadsTakeTheRuleOfTheirMember) {
  AttentionPattern p;
  p.layout =
      make_layout(9, 9, {{{0, 9, {{0, 9, 0, RunKind::partial}}}}}, {.members = {{1, -1, -1}}});
  p.rules = {patterns::local(2).rules[0], patterns::causal().rules[0]};
  const AttentionPattern heads = patterns::by_head({p, patterns::dense()}, 9, 9);
  EXPECT_EQ(visible_pairs(heads, 9, 9, 0), 45);
  EXPECT_EQ(visible_pairs(heads, 9, 9, 1), 81);
}

TEST(Pattern, CausalTablesOfBlocks) {
  // Block 1 attends to no key of its own block; queries of block 2 attend to all keys up to
  // themselves.
  BlockTable table{.bounds = {0, 3, 5, 9}, .keys = {{0}, {0}, {0, 1, 2}}, .causal = true};
  EXPECT_EQ(table.pairs(), 6 + 6 + 20 + 10);
  EXPECT_EQ(visible_pairs(patterns::block_lists(9, {table}, {}, "causal"), 9, 9), table.pairs());
  table.keys[1] = {0, 2};
  EXPECT_THROW(patterns::block_lists(9, {table}, {}, "causal"), ShapeError);
  table.causal = false;
  EXPECT_NO_THROW(patterns::block_lists(9, {table}, {}, "not causal"));
}

// Queries at positions far from those of the keys have the same classes.
TEST(Pattern, ClassesOfDistantPositions) {
  AttentionPattern p = patterns::strided(40);
  p.rules[0].q_start = 80;
  const int64_t queries = 3, keys = 3;
  int64_t seen = 0;
  for (int64_t i = 0; i < queries; ++i) {
    for (int64_t j = 0; j < keys; ++j) seen += rule_allows(p.rules[0], i, j) ? 1 : 0;
  }
  EXPECT_EQ(seen, 3);
  EXPECT_EQ(visible_pairs(p, queries, keys), seen);
}

// No query attends to keys of a block beyond the last key, even if the block begins before it.
TEST(Pattern, FixedWithPositionsBeyondTheKeys) {
  constexpr int64_t l = 8, c = 2, queries = 13, keys = 11;
  for (const int64_t q_start : {-20, -5, 0, 7, 11, 12, 40, 1000}) {
    for (const bool own : {false, true}) {
      for (const int64_t sub_block : {0, 3}) {
        AttentionPattern p =
            own ? patterns::fixed(l, c, sub_block) : patterns::fixed_summary(l, c, sub_block);
        p.rules[0].q_start = q_start;
        std::vector<std::array<int64_t, 2>> truth;
        for (int64_t i = 0; i < queries; ++i) {
          for (int64_t j = 0; j <= std::min(keys - 1, i + q_start); ++j) {
            const bool column = j % l >= l - (sub_block + 1) * c && j % l < l - sub_block * c;
            if (column || (own && j / l == (i + q_start) / l)) truth.push_back({i, j});
          }
        }
        EXPECT_EQ(sorted_pairs(p, queries, keys), truth) << p.name << " from " << q_start;
      }
    }
  }
}

TEST(Pattern, OrdersAscendWithinTilesAndRuns) {
  const Tensor order = Tensor::from(std::vector<int32_t>{0, 2, 1, 3}, {4});
  const std::vector<TileRuns> whole = {{0, 4, {{0, 4, 0, RunKind::full}}}};
  const std::vector<TileRuns> parts = {{0, 2, {{0, 2, 0, RunKind::full}, {2, 2, 0, RunKind::full}}},
                                       {2, 2, {}}};
  EXPECT_THROW(make_layout(4, 4, {whole}, {.order_q = order}), ValueError);
  EXPECT_THROW(make_layout(4, 4, {whole}, {.order_k = order}), ValueError);
  EXPECT_NO_THROW(make_layout(4, 4, {parts}, {.order_q = order, .order_k = order}));
  EXPECT_NO_THROW(make_layout(4, 4, {whole}, {.order_q = order, .members = {{0, -1, -1}}}));
}

// A slice allows exactly the pairs of the whole layout among its first rows and keys.
TEST(Pattern, SlicesSeeWhatTheWholeSees) {
  const int64_t length = 257;
  std::vector<std::vector<TileRuns>> members(2);
  for (int32_t q = 0; q < length; q += 50) {
    const int32_t rows = std::min<int32_t>(50, static_cast<int32_t>(length) - q);
    members[0].push_back({q,
                          rows,
                          {{q / 2, 70, 0, RunKind::full, 2},
                           {200, 57, 0, RunKind::partial},
                           {3, 9, 1, RunKind::full}}});
    members[1].push_back({q, rows, {{0, 9, 1, RunKind::full}}});
  }
  const Tensor which = Tensor::from(std::vector<int32_t>{1, 0}, {1, 2});
  const auto layout =
      make_layout(length, length, members,
                  {.layout_index = which, .members = {{0, -1, -1}, {1, -1, -1}}, .side_keys = 12});
  using Pair = std::array<int64_t, 4>;  // query, key, segment, kind and multiplicity
  const auto pairs = [](const BlockLayout& of, int64_t member) {
    std::set<Pair> all;
    for (const TileRuns& t : tiles_of(of, member)) {
      for (const longspan::KeyRun& r : t.runs) {
        for (int32_t i = t.q0; i < t.q0 + t.qn; ++i) {
          for (int32_t j = r.k0; j < r.k0 + r.kn; ++j) {
            all.insert({i, j, r.segment, static_cast<int64_t>(r.kind) * 10 + r.multiplicity});
          }
        }
      }
    }
    return all;
  };
  for (const int64_t n : {0, 1, 49, 50, 51, 205, 257}) {
    const auto slice = slice_layout(*layout, n, n, std::min<int64_t>(n, 5));
    EXPECT_EQ(slice->queries, n);
    EXPECT_EQ(slice->layout_index.to_vector<int32_t>(), layout->layout_index.to_vector<int32_t>());
    EXPECT_EQ(slice->members.to_vector<int32_t>(), layout->members.to_vector<int32_t>());
    for (const int64_t member : {0, 1}) {
      std::set<Pair> truth = pairs(*layout, member);
      std::erase_if(truth, [n](const Pair& p) {
        return p[0] >= n || p[1] >= (p[2] == 0 ? n : std::min<int64_t>(n, 5));
      });
      EXPECT_EQ(pairs(*slice, member), truth) << n;
    }
  }
  EXPECT_THROW(slice_layout(*layout, 258, 257, 0), ShapeError);
  EXPECT_THROW(slice_layout(*layout, 257, 257, 13), ShapeError);
  EXPECT_THROW(slice_layout(*resolve(patterns::strided(3), 9, 9).layout, 5, 5), NotImplemented);
}

TEST(Pattern, DescribeShowsTheVisibleSet) {
  EXPECT_EQ(describe(patterns::local(2), 4, 4),
            "local(2): 4 queries, 4 keys, 7 of 16 pairs visible, 16 in runs\n"
            "#...\n##..\n.##.\n..##\n");
  EXPECT_EQ(describe(patterns::local_block(2), 5, 5),
            "local_block(2): 5 queries, 5 keys, 13 of 25 pairs visible, 23 in runs\n"
            "#....\n##...\n###..\n####.\n..###\n");
  EXPECT_NE(describe(patterns::strided(2), 2, 4).find("#.#.\n.#.#\n"), std::string::npos);
  EXPECT_EQ(describe(patterns::causal(), 100, 100).find('#'), std::string::npos);
  AttentionPattern side = resolve(patterns::local(2), 3, 3);
  side.layout = with_side_keys(side.layout, 2);
  EXPECT_EQ(describe(side, 3, 3),
            "local(2): 3 queries, 5 keys, 11 of 15 pairs visible, 15 in runs\n"
            "#..|##\n##.|##\n.##|##\n");
}

// The number that stands for no bound is not shown.
TEST(Pattern, NamesSayThatABoundIsMissing) {
  EXPECT_EQ(patterns::dilated(kUnlimited, -2, 16).name, "dilated(unbounded, -2, 16)");
  EXPECT_EQ(patterns::dilated(3, kUnlimited, 1).name, "dilated(3, unbounded, 1)");
  EXPECT_EQ(patterns::dilated(3, -1, 1).name, "dilated(3, -1, 1)");
  for (const PatternCase& p : cases()) {
    EXPECT_EQ(p.pattern.name.find(std::to_string(kUnlimited)), std::string::npos) << p.pattern.name;
  }
}

TEST(Pattern, RejectsBadLayouts) {
  const auto run = [](int32_t k0, int32_t kn) {
    return longspan::KeyRun{k0, kn, 0, RunKind::full};
  };
  EXPECT_THROW(make_layout(4, 4, {}), ShapeError);
  EXPECT_THROW(make_layout(4, 4, {{{0, 3, {}}}}), ShapeError);           // rows missing
  EXPECT_THROW(make_layout(4, 4, {{{1, 3, {}}}}), ShapeError);           // a gap
  EXPECT_THROW(make_layout(97, 4, {{{0, 97, {}}}}), ShapeError);         // tile too tall
  EXPECT_THROW(make_layout(4, 4, {{{0, 4, {run(0, 5)}}}}), ShapeError);  // beyond the keys
  EXPECT_THROW(make_layout(4, 4, {{{0, 4, {run(0, 3), run(2, 2)}}}}), ShapeError);  // overlap
  EXPECT_THROW(make_layout(4, 4, {{{0, 4, {run(2, 1), run(0, 1)}}}}), ShapeError);  // not sorted
  const Tensor repeated = Tensor::from(std::vector<int32_t>{0, 1, 1, 2}, {4});
  EXPECT_THROW(make_layout(4, 4, {{{0, 4, {}}}}, {.order_q = repeated}), NotImplemented);
  EXPECT_THROW(make_layout(4, 4, {{{0, 4, {}}}}, {.order_k = repeated}), NotImplemented);
  const Tensor which = Tensor::from(std::vector<int32_t>{1}, {1, 1});
  EXPECT_THROW(make_layout(4, 4, {{{0, 4, {}}}}, {.layout_index = which}), ValueError);
  AttentionPattern fixed;
  fixed.layout = make_layout(4, 4, {{{0, 4, {run(0, 4)}}}});
  EXPECT_THROW(resolve(fixed, 4, 5), ShapeError);
  EXPECT_THROW(resolve(AttentionPattern{}, 4, 4), ValueError);
  EXPECT_THROW(block_bounds(8, 0), ValueError);
  EXPECT_THROW(equal_block_bounds(8, 0, 8), ValueError);
  EXPECT_THROW(equal_block_bounds(8, 2, 7), ValueError);
  EXPECT_THROW(bigbird_blocks(3, 4, {{0}}), ValueError);
  EXPECT_THROW(patterns::local(0), ValueError);
  EXPECT_THROW(patterns::local_bidirectional(-1), ValueError);
  EXPECT_THROW(patterns::local_block(0), ValueError);
  EXPECT_THROW(patterns::dilated(1, 1, 0), ValueError);
  EXPECT_THROW(patterns::dilated(-2, 1, 1), ValueError);
  EXPECT_THROW(patterns::strided(0), ValueError);
  EXPECT_THROW(patterns::fixed_block(0), ValueError);
  EXPECT_THROW(patterns::fixed(4, 0), ValueError);
  EXPECT_THROW(patterns::fixed(4, 5), ValueError);
  EXPECT_THROW(patterns::fixed(4, 2, 2), ValueError);
  EXPECT_THROW(patterns::fixed_summary(4, 3, -1), ValueError);
}

TEST(Pattern, OneThatWasNotGivenIsAnErrorThatSaysSo) {
  for (const int64_t side : {0, 3}) {
    const std::string text =
        test::message_of<ValueError>([&] { resolve(AttentionPattern{}, 4, 4, side); });
    EXPECT_NE(text.find("no pattern was given"), std::string::npos) << text;
    EXPECT_NE(text.find("patterns::causal()"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace longspan
