// Patterns of one call that share a pair, against sets of all pairs.

#include "ops/patterns/disjoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <vector>

#include "autograd/mode.h"
#include "core/generator.h"
#include "nn/outline.h"
#include "ops/attention/block_attention.h"
#include "ops/copy.h"
#include "ops/patterns/blocks.h"
#include "ops/patterns/chunks.h"
#include "ops/patterns/layout_cache.h"
#include "ops/patterns/pairs.h"
#include "ops/patterns/segments.h"
#include "ops/patterns/window.h"
#include "ops/random.h"
#include "tests/harness/messages.h"

namespace longspan::test {
namespace {

using Parts = std::vector<AttentionPattern>;

/// Returns whether the patterns of a call were refused. Any message names a pair that both show.
bool refused(const Parts& parts, int64_t queries, int64_t keys, int64_t side_keys, int64_t batch,
             int64_t heads) {
  Parts resolved;
  for (const AttentionPattern& p : parts) {
    resolved.push_back(resolve(p, queries, keys, p.layout ? p.layout->side_keys : side_keys));
  }
  std::string message;
  try {
    require_disjoint("call", resolved, batch, heads);
    return false;
  } catch (const ValueError& error) {
    message = error.what();
  }
  long row = 0, key = 0, sample = 0, head = 0;
  EXPECT_EQ(std::sscanf(message.c_str(), "call: query %ld sees key %ld", &row, &key), 2);
  const size_t at = message.find("(sample ");
  EXPECT_NE(at, std::string::npos) << message;
  EXPECT_EQ(std::sscanf(message.c_str() + at, "(sample %ld, head %ld)", &sample, &head), 2);
  const int named = contains(message, "of the second segment") ? 1 : 0;
  int shown = 0;
  for (const AttentionPattern& p : resolved) {
    count_pairs(p, queries, keys, p.layout->side_keys, sample, head,
                [&](int64_t i, int segment, int64_t j) {
                  shown += i == row && segment == named && j == key ? 1 : 0;
                });
  }
  EXPECT_GE(shown, 2) << message;
  return true;
}

/// Returns whether some pair of the call is in two patterns, by listing all pairs.
bool shares_a_pair(const Parts& parts, int64_t queries, int64_t keys, int64_t side_keys,
                   int64_t batch, int64_t heads) {
  bool shared = false;
  for (int64_t sample = 0; sample < batch; ++sample) {
    for (int64_t head = 0; head < heads; ++head) {
      std::vector<bool> seen(static_cast<size_t>(queries * (keys + side_keys)), false);
      for (const AttentionPattern& p : parts) {
        count_pairs(p, queries, keys, p.layout ? p.layout->side_keys : side_keys, sample, head,
                    [&](int64_t i, int segment, int64_t j) {
                      const int64_t column = segment > 0 ? keys + j : j;
                      const auto at = static_cast<size_t>(i * (keys + side_keys) + column);
                      shared = shared || seen[at];
                      seen[at] = true;
                    });
      }
    }
  }
  return shared;
}

constexpr int64_t kBatch = 2, kHeads = 2;

/// Returns 0 to n - 1 in some order that ascends within groups of `group`.
std::vector<int32_t> some_order(int64_t n, int64_t group, uint64_t seed) {
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = n - 1; i > 0; --i) {
    std::swap(order[static_cast<size_t>(i)],
              order[philox_word(seed, i) % static_cast<uint32_t>(i + 1)]);
  }
  for (int64_t i = 0; i < n; i += group) {
    std::sort(order.begin() + i, order.begin() + std::min(n, i + group));
  }
  return order;
}

/// Returns a pattern whose rows and keys are in orders without any step.
AttentionPattern shuffled(int64_t n, int64_t dilation) {
  std::vector<TileRuns> tiles;
  for (int64_t i = 0; i < n; i += 9) {
    std::vector<KeyRun> runs;
    for (int64_t j = i % 2 * 8; j < n; j += 16) {
      runs.push_back(run_of(j, std::min(n, j + 8), j % 3 == 0 ? RunKind::full : RunKind::partial));
    }
    tiles.push_back(tile_of(i, std::min(n, i + 9), std::move(runs)));
  }
  AttentionPattern p;
  p.layout = make_layout(n, n, {tiles},
                         {.order_q = Tensor::from(some_order(n, 9, 1), {n}),
                          .order_k = Tensor::from(some_order(n, 8, 2), {n})});
  p.rules = {Rule{.window = {kUnlimited, 3, dilation}}};
  p.name = "shuffled";
  return p;
}

/// Patterns of all kinds for self-attention; most pairs of them overlap in few places or not at
/// all.
Parts all_kinds(int64_t n) {
  using namespace patterns;
  Parts all{causal(),
            local(1),
            local(4),
            local_bidirectional(4),
            local_block(5),
            dilated(kUnlimited, -4, 1),
            dilated(kUnlimited, -1, 4),
            dilated(-1, 7, 1),
            dilated(3, -1, 2),
            dilated(40, -5, 6),
            strided(3),
            fixed_block(7),
            fixed_summary(7, 2, 0),
            fixed_summary(7, 2, 1),
            fixed(7, 3),
            by_head({local(3), strided(4)}, n, n),
            by_head({dilated(kUnlimited, -3, 1), dilated(kUnlimited, -4, 4)}, n, n),
            chunks(n, n, {.chunk = 6, .before = 1, .after = 0, .circle = true})};
  const std::vector<int64_t> cut{n / 3, n - n / 3};
  all.push_back(segments(cut));
  all.push_back(causal_segments(cut));
  const Tensor which = Tensor::from(std::vector<int32_t>{0, 1, 1, 0}, {2, 2});
  const auto table = [n](std::vector<std::vector<int64_t>> seen) {
    return BlockTable{.bounds = equal_block_bounds(n, 4, n), .keys = std::move(seen)};
  };
  all.push_back(block_lists(n, {table({{1, 1}, {0}, {3}, {2}}), table({{3}, {2}, {1}, {0, 0, 2}})},
                            which, "lists"));
  all.push_back(shuffled(n, 1));
  all.push_back(shuffled(n, 3));
  return all;
}

/// Adds masks of one kind to a pattern.
void add_masks(int kind, int64_t n, AttentionPattern& p) {
  const auto rows = [n](const auto& f) {
    std::vector<int32_t> values;
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<int32_t>(f(b, i)));
    }
    return Tensor::from(values, {kBatch, n});
  };
  if (kind == 1) {
    p = with_lengths(p, Tensor::from(std::vector<int64_t>{n, n / 2}, {kBatch}),
                     Tensor::from(std::vector<int64_t>{n / 2, n / 3}, {kBatch}));
  } else if (kind == 2) {
    p.mask.q_from = rows([](int64_t b, int64_t i) { return i % 3 == b ? i : 0; });
    p.mask.q_to = rows([](int64_t, int64_t i) { return i % 5 == 0 ? 0 : i; });
  } else if (kind == 3) {
    std::vector<uint8_t> hidden;
    for (int64_t j = 0; j < n; ++j) hidden.push_back(j % 4 != 3);
    p.mask.k_hidden = Tensor::from(hidden, {1, n});
  } else if (kind == 4) {
    p.mask.q_class = rows([](int64_t b, int64_t i) { return (i + b) % 2; });
    p.mask.k_class = rows([](int64_t, int64_t j) { return j % 3 == 0; });
    p.mask.class_id = Tensor::from(std::vector<int32_t>{-1, 0, 0, -1}, {1, 2, 2});
    p.mask.k_begin = Tensor::from(std::vector<int64_t>{0, n / 4}, {kBatch});
  }
}

TEST(DisjointPatterns, AreThoseWithoutASharedPair) {
  int shared = 0, apart = 0;
  for (const int64_t n : {1, 5, 41, 211}) {
    const Parts all = all_kinds(n);
    for (size_t a = 0; a < all.size(); ++a) {
      for (size_t b = a; b < all.size(); ++b) {
        const Parts parts{all[a], all[b]};
        const bool truth = shares_a_pair(parts, n, n, 0, kBatch, kHeads);
        EXPECT_EQ(refused(parts, n, n, 0, kBatch, kHeads), truth)
            << n << ": " << all[a].name << " and " << all[b].name;
        ++(truth ? shared : apart);
      }
    }
  }
  EXPECT_GT(shared, 100);
  EXPECT_GT(apart, 40);
}

// A pair that a mask hides counts in no pattern, and masks are read anew in every call.
TEST(DisjointPatterns, MayOverlapWhereMasksHidePairs) {
  int only_masks = 0;
  for (const int64_t n : {5, 41}) {
    const Parts all = all_kinds(n);
    for (size_t a = 0; a < all.size(); a += 2) {
      for (size_t b = 0; b < all.size(); ++b) {
        const bool unmasked = shares_a_pair({all[a], all[b]}, n, n, 0, kBatch, kHeads);
        for (const int first : {0, 1, 2, 3, 4}) {
          const int second = (first * 3 + static_cast<int>(a + b)) % 5;
          Parts parts{all[a], all[b]};
          add_masks(first, n, parts[0]);
          add_masks(second, n, parts[1]);
          const bool truth = shares_a_pair(parts, n, n, 0, kBatch, kHeads);
          EXPECT_EQ(refused(parts, n, n, 0, kBatch, kHeads), truth)
              << n << ": " << all[a].name << " " << first << " and " << all[b].name << " "
              << second;
          only_masks += unmasked && !truth ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(only_masks, 20);
}

TEST(DisjointPatterns, OfFewerQueriesThanKeys) {
  using namespace patterns;
  for (const auto& [queries, keys] : {std::pair{1, 40}, {3, 50}, {20, 33}, {9, 4}}) {
    const Parts all{
        causal(),   local(3),       dilated(kUnlimited, -3, 1), dilated(kUnlimited, -1, 3),
        strided(3), fixed_block(7), fixed_summary(7, 2)};
    for (const AttentionPattern& a : all) {
      for (const AttentionPattern& b : all) {
        EXPECT_EQ(refused({a, b}, queries, keys, 0, 1, 1),
                  shares_a_pair({a, b}, queries, keys, 0, 1, 1))
            << queries << " of " << keys << ": " << a.name << " and " << b.name;
      }
    }
  }
}

// Keys of the second segment are compared with each other, not with those of the first; globals are
// hidden from windows by masks.
TEST(DisjointPatterns, OfTwoSegments) {
  constexpr int64_t n = 40;
  const auto side = [](int64_t from, int64_t to) {
    AttentionPattern p;
    p.name = "side";
    p.layout = make_layout(n, n,
                           {{tile_of(0, 20,
                                     {{static_cast<int32_t>(from), static_cast<int32_t>(to - from),
                                       1, RunKind::full}}),
                             tile_of(20, n)}},
                           {.side_keys = 6});
    return p;
  };
  EXPECT_FALSE(refused({side(0, 2), side(2, 6)}, n, n, 6, 1, 1));
  EXPECT_TRUE(refused({side(0, 3), side(2, 6)}, n, n, 6, 1, 1));
  const AttentionPattern windows = patterns::window_and_globals(n, 3, {1, 2}, {{0, 7}, {3, 4, 5}});
  AttentionPattern far = resolve(patterns::dilated(-7, kUnlimited, 1), n, n);
  EXPECT_FALSE(refused({windows, far}, n, n, 0, 2, 2));
  far = resolve(patterns::dilated(-6, kUnlimited, 1), n, n);  // the last of head 1's window
  EXPECT_TRUE(refused({windows, far}, n, n, 0, 2, 2));
  // All keys of globals, which the windows hide, and rows of globals, which see nothing.
  AttentionPattern globals = resolve(patterns::dense(), n, n);
  std::vector<uint8_t> others(static_cast<size_t>(2 * n), 1);
  for (const int64_t j : {0, 7}) others[static_cast<size_t>(j)] = 0;
  for (const int64_t j : {3, 4, 5}) others[static_cast<size_t>(n + j)] = 0;
  globals.mask.k_hidden = Tensor::from(others, {2, n});
  EXPECT_FALSE(refused({windows, globals}, n, n, 0, 2, 2));
  others[static_cast<size_t>(n + 6)] = 0;
  globals.mask.k_hidden = Tensor::from(others, {2, n});
  EXPECT_TRUE(refused({windows, globals}, n, n, 0, 2, 2));
}

TEST(DisjointPatterns, TheSecondAndThirdOfThree) {
  using namespace patterns;
  const Parts apart{local(2), dilated(4, -2, 1), dilated(kUnlimited, -5, 1)};
  EXPECT_FALSE(refused(apart, 30, 30, 0, 1, 1));
  EXPECT_TRUE(refused({local(2), dilated(5, -2, 1), dilated(kUnlimited, -5, 1)}, 30, 30, 0, 1, 1));
}

// Once known, a combination stays known for its own rules, batch and heads only.
TEST(DisjointPatterns, AreKnownByLayoutsAndRules) {
  AttentionPattern near = resolve(patterns::local(4), 33, 33);
  AttentionPattern far = resolve(patterns::dilated(kUnlimited, -4, 1), 33, 33);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(refused({near, far}, 33, 33, 0, 1, 1));
  EXPECT_FALSE(refused({far, near}, 33, 33, 0, 1, 1));
  far.rules[0].window.right = -3;  // the same layout, whose partial runs hold this distance too
  EXPECT_TRUE(refused({near, far}, 33, 33, 0, 1, 1));
  EXPECT_TRUE(refused({near, far}, 33, 33, 0, 1, 1));
}

// The diagonal is in both patterns: the softmax would count it twice.
TEST(DisjointPatterns, AttentionRefusesAPairInTwo) {
  const NoGrad off;
  const Generator gen{1};
  const Shape shape{1, 1, 4, 2};
  const Tensor q = normal(shape, gen.fork("q")), k = normal(shape, gen.fork("k")),
               v = normal(shape, gen.fork("v"));
  const Keys keys[] = {{k, v}};
  const Parts twice{patterns::causal(), patterns::local(1)};
  const std::string message =
      message_of<ValueError>([&] { block_attention(q, keys, std::span(twice)); });
  EXPECT_TRUE(contains(message,
                       "block_attention: query 0 sees key 0 in two patterns of one call, "
                       "causal and local(1)"))
      << message;
  const Parts apart{patterns::dilated(kUnlimited, -1, 1), patterns::local(1)};
  const AttentionResult whole = block_attention(q, k, v, patterns::causal());
  const auto expected = whole.lse.to_vector<float>();
  const auto found = block_attention(q, keys, std::span(apart)).lse.to_vector<float>();
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-6);
}

// The same holds for what `longspan draw` counts and draws.
TEST(DisjointPatterns, OutlinesRefuseAPairInTwo) {
  LayerContext ctx;
  ctx.pattern = patterns::local(3);
  ctx.also = {patterns::dilated(kUnlimited, -3, 1)};
  EXPECT_EQ(count_pairs(outline_of(ctx, 0, 2, 9, 9), 0).attended, 45);
  ctx.also = {patterns::dilated(kUnlimited, -2, 1)};
  const std::string message =
      message_of<ValueError>([&] { count_pairs(outline_of(ctx, 0, 2, 9, 9), 0); });
  EXPECT_TRUE(contains(message, "attention outline: query 2 sees key 0 in two patterns"))
      << message;
}

// A multiplicity that a run cannot hold is an error, not another number.
TEST(DisjointPatterns, MultiplicitiesHaveABound) {
  EXPECT_EQ(run_of(0, 4, RunKind::full, 255).multiplicity, 255);
  for (const int64_t times : {0, 256, 300}) {
    EXPECT_THROW(run_of(0, 4, RunKind::full, times), ValueError) << times;
  }
  EXPECT_THROW(patterns::chunks(8, 8, {.chunk = 4, .before = 300, .after = 300, .circle = true}),
               ValueError);
}

}  // namespace
}  // namespace longspan::test
