#include "ops/attention/block_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "autograd/engine.h"
#include "autograd/gradcheck.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "ops/patterns/blocks.h"
#include "tests/harness/op_info.h"
#include "tests/ops/attention_laws.h"

namespace longspan::attention_test {

std::vector<PatternCase> cases() {
  std::vector<PatternCase> all;
  all.push_back({patterns::dense(), [](int64_t, int64_t) { return true; }});
  all.push_back({patterns::causal(), [](int64_t p, int64_t j) { return j <= p; }});
  for (const int64_t w : {1, 20, 100}) {
    all.push_back({patterns::local(w), [w](int64_t p, int64_t j) { return j <= p && p - j < w; }});
  }
  for (const int64_t w : {4, 70}) {
    all.push_back({patterns::local_bidirectional(w),
                   [w](int64_t p, int64_t j) { return std::abs(p - j) <= w / 2; }});
  }
  for (const int64_t b : {5, 32, 60}) {
    all.push_back({patterns::local_block(b), [b](int64_t p, int64_t j) {
                     return j <= p && p >= 0 && (j / b == p / b || j / b == p / b - 1);
                   }});
  }
  all.push_back({patterns::dilated(5, 3, 3), [](int64_t p, int64_t j) {
                   return (p - j) % 3 == 0 && p - j <= 15 && j - p <= 9;
                 }});
  all.push_back({patterns::dilated(40, 0, 2),
                 [](int64_t p, int64_t j) { return (p - j) % 2 == 0 && p - j <= 80 && j <= p; }});
  all.push_back(
      {patterns::strided(7), [](int64_t p, int64_t j) { return j <= p && (p - j) % 7 == 0; }});
  return all;
}

namespace {

std::vector<double> first_head(const std::vector<double>& x, int64_t heads) {
  return {x.begin(), x.begin() + static_cast<int64_t>(x.size()) / heads};
}

// Returns runs of many sizes; some blocks of keys contain several.
std::vector<KeyRun> scattered_runs() {
  std::vector<KeyRun> runs;
  for (const auto& [k0, kn] : {std::pair{3, 17},
                               {40, 16},
                               {64, 16},
                               {100, 80},
                               {185, 15},
                               {200, 70},
                               {383, 17},
                               {420, 90},
                               {590, 1},
                               {620, 200},
                               {850, 110},
                               {990, 10}}) {
    runs.push_back({k0, kn, 0, RunKind::full});
  }
  return runs;
}

void check_patterns(DType dtype) {
  for (const PatternCase& c : cases()) {
    for (const int64_t length : kLengths) {
      // Four heads take the single-pass backward, two heads the two-pass one.
      for (const int64_t batch : {1, 2}) {
        const Problem x = problem({batch, 2, length, length, 9, 5}, c.sees);
        expect_near(run(x, c.pattern, dtype), solve(x), dtype,
                    fmt::format("{} L {} B {}", c.pattern.name, length, batch));
      }
    }
  }
}

// ------------------------------------------------------------------------------ kernel spec, 1 to
// 9

TEST(BlockAttention, EqualsMaskedOracleF64) { check_patterns(DType::f64); }
TEST(BlockAttention, EqualsMaskedOracleF32) { check_patterns(DType::f32); }
TEST(BlockAttention, EqualsMaskedOracleBf16) { check_patterns(DType::bf16); }
TEST(BlockAttention, EqualsMaskedOracleF16) { check_patterns(DType::f16); }

TEST(BlockAttention, Rectangular) {
  const std::vector<std::pair<int64_t, int64_t>> lengths = {
      {1, 17}, {5, 130}, {100, 165}, {64, 400}, {130, 64}, {1, 257}, {200, 199}};
  for (const PatternCase& c : cases()) {
    for (const auto& [queries, keys] : lengths) {
      const Problem x = problem({2, 2, queries, keys, 7, 12}, c.sees);
      const std::string what = fmt::format("{} L {} T {}", c.pattern.name, queries, keys);
      expect_near(run(x, c.pattern, DType::f64), solve(x), DType::f64, what);
      expect_near(run(x, c.pattern, DType::f32), solve(x), DType::f32, what);
    }
  }
}

TEST(BlockAttention, EveryWidth) {
  const auto causal = [](int64_t p, int64_t j) { return j <= p; };
  for (const int64_t width : {1, 3, 8, 16, 31, 32, 33, 64, 65, 128, 200}) {
    for (const int64_t value_width : {1, 32, 48, 130}) {
      const Problem x = problem({1, 4, 70, 70, width, value_width}, causal);
      const std::string what = fmt::format("d {} dv {}", width, value_width);
      expect_near(run(x, patterns::causal(), DType::f64), solve(x), DType::f64, what);
      expect_near(run(x, patterns::causal(), DType::f32), solve(x), DType::f32, what);
    }
  }
}

TEST(BlockAttention, RelationTerms) {
  const std::vector<Relation> relations = {{0, 0}, {3, 3}, {5, 0}, {40, 40}, {70, 2}, {300, 300}};
  for (const PatternCase& c : cases()) {
    if (c.pattern.layout_spec.kind == LayoutSpec::Kind::classes) continue;
    for (const Relation& id : relations) {
      for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{17, 17}, {110, 250}}) {
        for (int which = 1; which < 8; ++which) {
          const bool per_head = which % 2 == 0;
          Problem x = problem({1, which == 7 ? 4 : 2, queries, keys, 6, 9}, c.sees);
          add_relations(x, id, per_head, which & 1, which & 2, which & 4);
          const std::string what = fmt::format("{} L {} T {} clip {} {} terms {}", c.pattern.name,
                                               queries, keys, id.left, id.right, which);
          expect_near(run(x, c.pattern, DType::f64), solve(x), DType::f64, what);
        }
        Problem x = problem({2, 2, queries, keys, 6, 9}, c.sees);
        add_relations(x, id, true, true, true, true);
        x.p = 0.25;
        x.dropout_key = 99;
        const std::string what = fmt::format("{} L {} T {} clip {} {} with dropout", c.pattern.name,
                                             queries, keys, id.left, id.right);
        expect_near(run(x, c.pattern, DType::f64), solve(x), DType::f64, what);
        expect_near(run(x, c.pattern, DType::f32), solve(x), DType::f32, what);
      }
    }
  }
}

TEST(BlockAttention, LayoutsOfOnesOwn) {
  // Two layouts of exact, unaligned runs, assigned by sample and head; only the layout knows the
  // mask.
  const int64_t length = 230;
  std::vector<std::vector<TileRuns>> layouts(2);
  std::vector<std::vector<std::vector<bool>>> mask(
      2, std::vector<std::vector<bool>>(length, std::vector<bool>(length)));
  for (size_t m = 0; m < 2; ++m) {
    for (int32_t q0 = 0, i = 0; q0 < length; ++i) {
      const int32_t qn = std::min<int32_t>(m == 0 ? 50 : 33, static_cast<int32_t>(length) - q0);
      TileRuns t{q0, qn, {}};
      for (int32_t k0 = (i * 7) % 13; k0 < length && i != 2;) {
        const int32_t kn =
            std::min<int32_t>(11 + (k0 * 5 + i) % 60, static_cast<int32_t>(length) - k0);
        t.runs.push_back({k0, kn, 0, RunKind::full});
        for (int32_t r = q0; r < q0 + qn; ++r) {
          for (int32_t j = k0; j < k0 + kn; ++j) {
            mask[m][static_cast<size_t>(r)][static_cast<size_t>(j)] = true;
          }
        }
        k0 += kn + (m == 0 ? 0 : 9 + i);
      }
      layouts[m].push_back(t);
      q0 += qn;
    }
  }
  AttentionPattern pattern;
  pattern.layout =
      make_layout(length, length, layouts,
                  {.layout_index = Tensor::from(std::vector<int32_t>{0, 1, 1, 0}, {2, 2})});
  Problem x = problem({2, 2, length, length, 12, 8}, [](int64_t, int64_t) { return true; });
  Solution truth = solve(x);
  for (int64_t bh = 0; bh < 4; ++bh) {
    Problem one = problem({1, 1, length, length, 12, 8}, [](int64_t, int64_t) { return true; });
    const auto part = [bh](const std::vector<double>& from) {
      const auto size = static_cast<std::ptrdiff_t>(from.size() / 4);
      return std::vector<double>(from.begin() + bh * size, from.begin() + (bh + 1) * size);
    };
    one.q = part(x.q);
    one.k = part(x.k);
    one.v = part(x.v);
    one.dout = part(x.dout);
    one.dlse = part(x.dlse);
    const size_t m = bh == 1 || bh == 2 ? 1 : 0;
    one.sees = [&mask, m](int64_t, int64_t i, int64_t j) {
      return mask[m][static_cast<size_t>(i)][static_cast<size_t>(j)];
    };
    const Solution y = solve(one);
    const auto put = [bh](const std::vector<double>& from, std::vector<double>& to) {
      std::copy(from.begin(), from.end(),
                to.begin() + bh * static_cast<std::ptrdiff_t>(from.size()));
    };
    put(y.out, truth.out);
    put(y.lse, truth.lse);
    put(y.dq, truth.dq);
    put(y.dk, truth.dk);
    put(y.dv, truth.dv);
  }
  expect_near(run(x, pattern, DType::f64), truth, DType::f64, "own layouts");
  expect_near(run(x, pattern, DType::f32), truth, DType::f32, "own layouts");
}

TEST(BlockAttention, Gradcheck) {
  for (const PatternCase& c : cases()) {
    const bool by_class = c.pattern.layout_spec.kind == LayoutSpec::Kind::classes;
    for (const double p : {0.0, 0.25}) {
      const auto f = [&](const std::vector<Tensor>& in) -> std::vector<Tensor> {
        ScoreTerms terms;
        if (!by_class) {
          terms.id = {4, 2};
          terms.relation_key = in[3];
          terms.relation_bias = in[4];
          terms.relation_value = in[5];
        }
        const Dropout dropout{static_cast<float>(p), {true, Generator{7}}};
        const auto [out, lse] = block_attention(in[0], in[1], in[2], c.pattern, terms, dropout);
        return {out, lse};
      };
      std::vector<Tensor> in = {make(random_values(2 * 13 * 3, 1), {1, 2, 13, 3}, DType::f64),
                                make(random_values(2 * 13 * 3, 2), {1, 2, 13, 3}, DType::f64),
                                make(random_values(2 * 13 * 4, 3), {1, 2, 13, 4}, DType::f64)};
      if (!by_class) {
        in.push_back(make(random_values(7 * 3, 4), {7, 3}, DType::f64));
        in.push_back(make(random_values(2 * 7, 5), {2, 7}, DType::f64));
        in.push_back(make(random_values(7 * 4, 6), {7, 4}, DType::f64));
      }
      const GradcheckResult r = gradcheck(f, in);
      EXPECT_TRUE(r.ok) << c.pattern.name << " p " << p << ": " << r.message;
      EXPECT_GT(r.checked, 100);
    }
  }
}

TEST(BlockAttention, EmptyRows) {
  // Sample 0 is empty, sample 1 has queries and keys that end early.
  const int64_t length = 150;
  const std::vector<int64_t> q_valid = {0, 120}, k_valid = {0, 37};
  for (const PatternCase& c : cases()) {
    Problem x = problem({2, 2, length, length, 5, 6}, c.sees);
    x.sees = [&](int64_t b, int64_t i, int64_t j) {
      return c.sees(i, j) && i < q_valid[static_cast<size_t>(b)] &&
             j < k_valid[static_cast<size_t>(b)];
    };
    const AttentionPattern p =
        with_lengths(c.pattern, Tensor::from(q_valid, {2}), Tensor::from(k_valid, {2}));
    const Solution truth = solve(x);
    expect_near(run(x, p, DType::f64), truth, DType::f64, c.pattern.name);
    const Solution ours = run(x, p, DType::f32);
    expect_near(ours, truth, DType::f32, c.pattern.name);
    for (size_t i = 0; i < ours.lse.size(); ++i) {
      if (truth.lse[i] != -kInfinity) continue;
      for (size_t col = 0; col < 6; ++col) ASSERT_EQ(ours.out[i * 6 + col], 0);
      for (size_t col = 0; col < 5; ++col) ASSERT_EQ(ours.dq[i * 5 + col], 0);
    }
    for (size_t i = 0; i < ours.dk.size() / 2; ++i) ASSERT_EQ(ours.dk[i], 0);
  }
}

TEST(BlockAttention, ScoresOfMinusInfinity) {
  // Keys 0 to 199 have scores of -inf by value, not by mask: first some keys of each row, then,
  // with 150 valid keys, all of them.
  Tensor q = make(std::vector<double>(40 * 2, 1.0), {1, 1, 40, 2}, DType::f32);
  std::vector<double> keys(300 * 2, 0.5);
  for (size_t j = 0; j < 200; ++j) keys[2 * j] = -kInfinity;
  const Tensor k = make(keys, {1, 1, 300, 2}, DType::f32);
  const Tensor v = make(random_values(300 * 3, 1), {1, 1, 300, 3}, DType::f32);
  const auto [some, some_lse] = block_attention(q, k, v, patterns::dense());
  for (const double x : values_of(some)) EXPECT_TRUE(std::isfinite(x));
  const AttentionPattern p =
      with_lengths(patterns::dense(), {}, Tensor::from(std::vector<int64_t>{150}, {1}));
  const auto [out, lse] = block_attention(q, k, v, p);
  for (const double x : values_of(out)) EXPECT_EQ(x, 0);
  for (const double x : values_of(lse)) EXPECT_EQ(x, -kInfinity);
}

TEST(BlockAttention, SameBitsForAnyThreads) {
  const int before = num_threads();
  for (const PatternCase& c : cases()) {
    for (const int64_t heads : {1, 5}) {
      Problem x = problem({1, heads, 700, 700, 16, 16}, c.sees);
      if (c.pattern.layout_spec.kind != LayoutSpec::Kind::classes) {
        add_relations(x, {20, 0}, false, true, true, true);
      }
      x.p = 0.125;
      x.dropout_key = 5;
      set_num_threads(1);
      const Solution one = run(x, c.pattern, DType::f32);
      for (const int threads : {1, 2, 3}) {
        set_num_threads(threads);
        expect_same_bits(run(x, c.pattern, DType::f32), one,
                         fmt::format("{} H {} threads {}", c.pattern.name, heads, threads));
      }
    }
  }
  set_num_threads(before);
}

TEST(BlockAttention, Dropout) {
  for (const PatternCase& c : cases()) {
    Problem x = problem({2, 2, 130, 203, 8, 8}, c.sees);
    x.p = 0.375;
    x.dropout_key = 0x123456789ABCDEF0u;
    expect_near(run(x, c.pattern, DType::f64), solve(x), DType::f64, c.pattern.name);
    expect_near(run(x, c.pattern, DType::f32), solve(x), DType::f32, c.pattern.name);
  }
  // Nothing is dropped outside training.
  const Tensor q = make(random_values(20 * 4, 1), {1, 1, 20, 4}, DType::f32);
  const Tensor plain = block_attention(q, q, q, patterns::causal()).out;
  const Dropout off{0.5f, {false, Generator{1}}};
  expect_same_bits(values_of(block_attention(q, q, q, patterns::causal(), {}, off).out),
                   values_of(plain), "outside training");
}

TEST(BlockAttention, MaskDoesNotDependOnTheTiling) {
  // 96 queries over 400 keys need the same dropout mask for any query tiling: its index i counts
  // queries.
  Problem x = problem({1, 1, 96, 400, 8, 8}, [](int64_t p, int64_t j) { return j <= p; });
  x.p = 0.5;
  x.dropout_key = 3;
  const Solution whole = run(x, patterns::causal(), DType::f32);
  std::vector<TileRuns> tiles;  // another query tiling of the same pattern
  for (int32_t q0 = 0; q0 < 96; q0 += 7) {
    const int32_t qn = std::min(7, 96 - q0);
    tiles.push_back({q0, qn, {{0, 304 + q0 + qn, 0, RunKind::partial}}});
  }
  AttentionPattern p = patterns::causal();
  p.layout = make_layout(96, 400, {tiles});
  expect_same_bits(run(x, p, DType::f32).out, whole.out, "out");
}

TEST(BlockAttention, ShiftsAndLargeLogits) {
  // Column 0 of k is constant over keys, so column 0 of q shifts all scores of a row by one
  // constant.
  const int64_t length = 100, width = 8;
  Problem x =
      problem({1, 1, length, length, width, 4}, [](int64_t p, int64_t j) { return j <= p; });
  const double scale = std::sqrt(static_cast<double>(width));
  for (int64_t i = 0; i < length; ++i) {
    x.k[static_cast<size_t>(i * width)] = 1;
    x.q[static_cast<size_t>(i * width)] = 0;
  }
  Problem shifted = x;
  for (int64_t i = 0; i < length; ++i) shifted.q[static_cast<size_t>(i * width)] = 1e4 * scale;
  const Solution a = run(x, patterns::causal(), DType::f64);
  const Solution b = run(shifted, patterns::causal(), DType::f64);
  EXPECT_LE(distance(b.out, a.out), 1e-11);
  // In f32 scores near 1e4 are multiples of 1e-3.
  EXPECT_LE(distance(run(shifted, patterns::causal(), DType::f32).out, a.out), 2e-3);

  Problem large = x;
  for (double& q : large.q) q *= 80 * scale / (3 * width);
  const Solution truth = solve(large);
  const Solution ours = run(large, patterns::causal(), DType::f32);
  EXPECT_LE(distance(ours.out, truth.out), 2e-5);
  for (int64_t i = 0; i < length; ++i) {  // alternating extremes within one row
    for (int64_t c = 0; c < width; ++c) {
      large.k[static_cast<size_t>(i * width + c)] = (i % 2 == 0 ? 1.0 : -1.0) * (c == 0);
      large.q[static_cast<size_t>(i * width + c)] = c == 0 ? 80 * scale : 0;
    }
  }
  expect_near(run(large, patterns::causal(), DType::f32), solve(large), DType::f32, "80");
}

/// Returns the peak of a backward pass with 16 columns: the gradients and the workspace.
int64_t backward_peak(const AttentionPattern& p, int64_t heads, int64_t length) {
  const Tensor q = leaf(Tensor::zeros({1, heads, length, 16}));
  const Tensor k = leaf(Tensor::zeros({1, heads, length, 16}));
  const Tensor v = leaf(Tensor::zeros({1, heads, length, 16}));
  const Tensor out = block_attention(q, k, v, p).out;
  const Tensor dy = Tensor::zeros(out.shape());
  memory_tracker().reset_peak();
  const int64_t before = memory_tracker().live().total();
  backward(out, dy);
  return memory_tracker().peak().total() - before;
}

TEST(BlockAttention, WorkspaceIsLinear) {
  const auto peak_forward = [](const AttentionPattern& p, int64_t heads, int64_t length) {
    const Tensor q = Tensor::zeros({1, heads, length, 16});
    memory_tracker().reset_peak();
    const int64_t before = memory_tracker().live().total();
    block_attention(q, q, q, p);
    return memory_tracker().peak().total() - before;
  };
  const int before_test = num_threads();
  set_num_threads(3);
  for (const PatternCase& c : cases()) {
    for (const int64_t heads : {1, 4}) {
      EXPECT_LT(static_cast<double>(backward_peak(c.pattern, heads, 8192)) /
                    static_cast<double>(backward_peak(c.pattern, heads, 2048)),
                4.2)
          << c.pattern.name;
      EXPECT_LT(static_cast<double>(peak_forward(c.pattern, heads, 8192)) /
                    static_cast<double>(peak_forward(c.pattern, heads, 2048)),
                4.2)
          << c.pattern.name;
    }
  }
  set_num_threads(before_test);
}

TEST(BlockAttention, WorkspaceOfASmallTileHasItsRowsOnly) {
  // Every block of 16 rows sees the first keys and the last, so all tiles are in flight.
  const auto ends = [](int64_t length) {
    BlockTable table{.bounds = block_bounds(length, 16), .keys = {}};
    for (int64_t i = 0; i < length / 16; ++i) table.keys.push_back({0, length / 16 - 1});
    return patterns::block_lists(length, {table}, {}, "ends");
  };
  const int before_test = num_threads();
  set_num_threads(1);
  const int64_t heads = 4, rows = heads * 4096;
  const int64_t more =
      backward_peak(ends(8192), heads, 8192) - backward_peak(ends(4096), heads, 4096);
  set_num_threads(before_test);
  // Of a row: 3 gradients of 16 columns, delta, and the sums of dQ in the tiles of one head, which
  // have 32 columns at most.
  const int64_t gradients = 3 * 16 * 4, delta = 4, sums = 32 * 4;
  EXPECT_GE(more, rows * (gradients + delta));
  EXPECT_LE(more, rows * (gradients + delta) + rows / heads * (sums + 16));
}

// -------------------------------------------------------------------------------------- spec 00

TEST(BlockAttention, Baselines1FullLocalAndBlockAreOne) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const int64_t length : {1, 17, 96, 257, 700}) {
      const Problem x =
          problem({1, 4, length, length, 24, 24}, [](int64_t p, int64_t j) { return j <= p; });
      const Solution full = run(x, patterns::causal(), dtype);
      const std::string what = fmt::format("L {}", length);
      expect_same_bits(run(x, patterns::local(length), dtype), full, what + " local");
      expect_same_bits(run(x, patterns::local(2 * length), dtype), full, what + " local, wider");
      expect_same_bits(run(x, patterns::local_block((length + 1) / 2), dtype), full,
                       what + " block");
      expect_same_bits(run(x, patterns::local_block(length), dtype), full, what + " one block");
    }
  }
}

TEST(BlockAttention, Baselines1ProbabilitiesSumToOne) {
  // With values of 1 the output is the sum of a row's probabilities.
  Problem x = problem({1, 2, 500, 500, 16, 3}, [](int64_t p, int64_t j) { return j <= p; });
  std::fill(x.v.begin(), x.v.end(), 1.0);
  // Two sums of up to 500 terms, in different orders.
  for (const double sum : run(x, patterns::causal(), DType::f32).out) EXPECT_NEAR(sum, 1, 2e-6);
  for (const double sum : run(x, patterns::causal(), DType::f64).out) EXPECT_NEAR(sum, 1, 2e-15);
}

TEST(BlockAttention, Baselines2FutureIndependence) {
  const int64_t length = 300, width = 16;
  for (const PatternCase& c : cases()) {
    if (c.sees(100, 101)) continue;  // not causal
    if (c.sees(100, 103)) continue;
    const Problem x = problem({1, 1, length, length, width, width}, c.sees);
    const Tensor q = make(x.q, {1, 1, length, width}, DType::f32);
    const Tensor k = make(x.k, {1, 1, length, width}, DType::f32);
    const Tensor v = make(x.v, {1, 1, length, width}, DType::f32);
    const auto base = values_of(block_attention(q, k, v, c.pattern).out);
    for (const int64_t t : {1, 64, 95, 96, 200, 299}) {
      Problem changed = x;
      for (int64_t col = 0; col < width; ++col) {
        for (auto* values : {&changed.q, &changed.k, &changed.v}) {
          (*values)[static_cast<size_t>(t * width + col)] += 1;
        }
      }
      auto ours = values_of(block_attention(make(changed.q, q.shape(), DType::f32),
                                            make(changed.k, q.shape(), DType::f32),
                                            make(changed.v, q.shape(), DType::f32), c.pattern)
                                .out);
      EXPECT_NE(ours, base);
      ours.resize(static_cast<size_t>(t * width));
      expect_same_bits(ours, {base.begin(), base.begin() + t * width},
                       fmt::format("{} token {}", c.pattern.name, t));
    }
  }
}

TEST(BlockAttention, Baselines3LastRowsAloneHaveTheSameBits) {
  // Compares incremental decoding (the last rows over all keys) with the same rows of the full
  // forward pass.
  const int64_t length = 300, width = 24;
  for (const PatternCase& c : cases()) {
    if (c.pattern.layout_spec.kind == LayoutSpec::Kind::classes)
      continue;  // positions determine the order of sums
    const Problem x = problem({1, 2, length, length, width, width}, c.sees);
    const Tensor q = make(x.q, {1, 2, length, width}, DType::f32);
    const Tensor k = make(x.k, {1, 2, length, width}, DType::f32);
    const Tensor v = make(x.v, {1, 2, length, width}, DType::f32);
    const auto full = block_attention(q, k, v, c.pattern);
    for (const int64_t rows : {1, 5, 100}) {
      const int64_t from = length - rows;
      const auto tail = [&](const Tensor& t, int64_t w) {
        return t.alias({1, 2, rows, w}, t.strides(), from * t.strides()[2]);
      };
      const auto part = block_attention(tail(q, width), k, v, c.pattern);
      expect_same_bits(values_of(part.out), values_of(tail(full.out, width)),
                       fmt::format("{} last {}", c.pattern.name, rows));
    }
  }
}

TEST(BlockAttention, Baselines5ShawLaws) {
  const auto causal = [](int64_t p, int64_t j) { return j <= p; };
  Problem x = problem({1, 2, 150, 150, 16, 16}, causal);
  const Solution none = run(x, patterns::causal(), DType::f32);
  Problem zero = x;
  add_relations(zero, {30, 0}, false, true, false, true);
  std::fill(zero.key.begin(), zero.key.end(), 0.0);
  std::fill(zero.value.begin(), zero.value.end(), 0.0);
  expect_same_bits(run(zero, patterns::causal(), DType::f32).out, none.out, "zero tables");
  Problem keys_only = x;
  add_relations(keys_only, {30, 0}, false, true, false, false);
  Problem zero_values = keys_only;
  zero_values.value.assign(31 * 16, 0.0);
  expect_same_bits(run(zero_values, patterns::causal(), DType::f32).out,
                   run(keys_only, patterns::causal(), DType::f32).out, "zero values");
  // Unused rows of a two-sided table get a gradient of exactly zero.
  Problem both = x;
  add_relations(both, {30, 30}, false, true, true, true);
  const Solution y = run(both, patterns::causal(), DType::f32);
  for (size_t i = 31 * 16; i < y.dkey.size(); ++i) ASSERT_EQ(y.dkey[i], 0);
  for (size_t i = 31; i < y.dbias.size(); ++i) ASSERT_EQ(y.dbias[i], 0);
  for (size_t i = 31 * 16; i < y.dvalue.size(); ++i) ASSERT_EQ(y.dvalue[i], 0);
}

TEST(BlockAttention, Baselines7PaddedBatchEqualsSamplesAlone) {
  const std::vector<int64_t> lengths = {200, 131, 1, 0};
  const int64_t longest = 200, width = 16;
  for (const PatternCase& c : cases()) {
    const Problem x = problem({4, 1, longest, longest, width, width}, c.sees);
    const Tensor valid = Tensor::from(lengths, {4});
    const Solution batch = run(x, with_lengths(c.pattern, valid, valid), DType::f32);
    for (size_t b = 0; b < 4; ++b) {
      Problem one = problem({1, 1, lengths[b], lengths[b], width, width}, c.sees);
      const auto from = static_cast<std::ptrdiff_t>(b) * longest * width;
      const auto cut = [&](const std::vector<double>& all) {
        return std::vector<double>(all.begin() + from, all.begin() + from + lengths[b] * width);
      };
      one.q = cut(x.q);
      one.k = cut(x.k);
      one.v = cut(x.v);
      one.dout = cut(x.dout);
      const auto row = static_cast<std::ptrdiff_t>(b) * longest;
      one.dlse = {x.dlse.begin() + row, x.dlse.begin() + row + lengths[b]};
      const std::string what = fmt::format("{} sample {}", c.pattern.name, b);
      const Solution alone = run(one, c.pattern, DType::f32);
      if (c.pattern.layout_spec.kind == LayoutSpec::Kind::classes) {
        // Classes of another length begin at other indices, so sums run in another order.
        expect_near({cut(batch.out), {}, cut(batch.dq), cut(batch.dk), cut(batch.dv), {}, {}, {}},
                    {alone.out, {}, alone.dq, alone.dk, alone.dv, {}, {}, {}}, DType::f32, what);
        continue;
      }
      expect_same_bits(cut(batch.out), alone.out, what + " out");
      expect_same_bits(cut(batch.dq), alone.dq, what + " dq");
      expect_same_bits(cut(batch.dk), alone.dk, what + " dk");
      expect_same_bits(cut(batch.dv), alone.dv, what + " dv");
    }
    for (int64_t i = 131 * width; i < longest * width; ++i) {
      ASSERT_EQ(batch.out[static_cast<size_t>(longest * width + i)], 0) << c.pattern.name;
    }
  }
}

TEST(BlockAttention, Baselines8OneKeyReturnsItsValue) {
  const Tensor q = make(random_values(2 * 3 * 40 * 8, 1), {2, 3, 40, 8}, DType::f32);
  const Tensor k = make(random_values(2 * 3 * 8, 2), {2, 3, 1, 8}, DType::f32);
  const Tensor v = make(random_values(2 * 3 * 5, 3), {2, 3, 1, 5}, DType::f32);
  const auto out = values_of(block_attention(q, k, v, patterns::dense()).out);
  const auto value = values_of(v);
  for (size_t bh = 0; bh < 6; ++bh) {
    for (size_t i = 0; i < 40; ++i) {
      for (size_t c = 0; c < 5; ++c) ASSERT_EQ(out[(bh * 40 + i) * 5 + c], value[bh * 5 + c]);
    }
  }
}

// ------------------------------------------------------------------------------------------ laws

// Compares four heads, which take the single-pass backward, with each head alone, which takes two
// passes.
void expect_heads_alone_agree(const PatternCase& c, int64_t length, int64_t width) {
  const Problem x = problem({1, 4, length, length, width, width}, c.sees);
  const Solution all = run(x, c.pattern, DType::f32);
  for (int64_t h = 0; h < 4; ++h) {
    Problem one = problem({1, 1, length, length, width, width}, c.sees);
    const auto cut = [h](const std::vector<double>& values) {
      const auto n = static_cast<std::ptrdiff_t>(values.size() / 4);
      return std::vector<double>(values.begin() + h * n, values.begin() + (h + 1) * n);
    };
    one.q = cut(x.q);
    one.k = cut(x.k);
    one.v = cut(x.v);
    one.dout = cut(x.dout);
    one.dlse = cut(x.dlse);
    const Solution alone = run(one, c.pattern, DType::f32);
    const std::string what = fmt::format("{} head {}", c.pattern.name, h);
    expect_same_bits(cut(all.out), alone.out, what + " out");
    expect_same_bits(cut(all.dq), alone.dq, what + " dq");
    expect_same_bits(cut(all.dk), alone.dk, what + " dk");
    expect_same_bits(cut(all.dv), alone.dv, what + " dv");
  }
}

TEST(BlockAttention, HeadsTogetherAndAloneAgreeInEveryBit) {
  for (const PatternCase& c : cases()) expect_heads_alone_agree(c, 500, 16);
}

TEST(BlockAttention, LargeResultsAreWrittenAlike) {
  // Results of 4 MiB (four heads) are written past the caches; results of 1 MiB (one head) are not.
  expect_heads_alone_agree(
      {patterns::local(20), [](int64_t p, int64_t j) { return j <= p && p - j < 20; }}, 4096, 64);
}

TEST(BlockAttention, BitsDependOnTheKeysSeenAndNotOnRunsAndTiles) {
  // Gives the same visible keys as runs of tiles of several heights, and as all keys with the
  // others hidden. Scores are large, so that the softmax reference of a row rises many times.
  const int64_t queries = 200, keys = 1000, width = 16;
  const auto runs = scattered_runs();
  std::vector<uint8_t> hidden(static_cast<size_t>(keys), 1);
  for (const auto& r : runs) std::fill_n(hidden.begin() + r.k0, r.kn, uint8_t{0});
  const auto sees = [&](int64_t, int64_t j) { return hidden[static_cast<size_t>(j)] == 0; };
  Problem x = problem({1, 4, queries, keys, width, width}, sees);
  for (double& q : x.q) q *= 30;
  AttentionPattern whole = patterns::dense();
  whole.mask.k_hidden = Tensor::from(hidden, {1, keys});
  const Solution truth = run(x, whole, DType::f32);
  for (const int32_t height : {7, 16, 32, 96}) {
    std::vector<TileRuns> tiles;
    for (int32_t q0 = 0; q0 < queries; q0 += height) {
      tiles.push_back({q0, std::min(height, static_cast<int32_t>(queries) - q0), runs});
    }
    AttentionPattern apart;
    apart.layout = make_layout(queries, keys, {tiles});
    apart.rules.emplace_back();
    const Solution y = run(x, apart, DType::f32);
    const std::string what = fmt::format("tiles of {}", height);
    expect_same_bits(y.out, truth.out, what + " out");
    expect_same_bits(y.lse, truth.lse, what + " lse");
    expect_same_bits(y.dq, truth.dq, what + " dq");
    expect_same_bits(y.dk, truth.dk, what + " dk");
    expect_same_bits(y.dv, truth.dv, what + " dv");
  }
}

TEST(BlockAttention, StridedViewsGiveTheSameBits) {
  const int64_t batch = 2, length = 120, heads = 3, width = 20;
  // One projection holds q, k and v side by side: [B, L, 3, H, d].
  const Tensor qkv = make(random_values(batch * length * 3 * heads * width, 1),
                          {batch, length, 3 * heads, width}, DType::f32);
  const auto part = [&](int64_t n) {
    return qkv.alias({batch, heads, length, width},
                     {length * 3 * heads * width, width, 3 * heads * width, 1}, n * heads * width);
  };
  const auto copy = [](const Tensor& x) { return make(values_of(x), x.shape(), DType::f32); };
  const Tensor dy = make(random_values(batch * heads * length * width, 2),
                         {batch, length, heads, width}, DType::f32);
  const auto gradients_of = [&](const Tensor& q, const Tensor& k, const Tensor& v,
                                const Tensor& g) {
    const Tensor a = leaf(q), b = leaf(k), c = leaf(v);
    const Tensor out = block_attention(a, b, c, patterns::local(50)).out;
    backward(out, g);
    return std::vector<std::vector<double>>{values_of(out), values_of(grad(a)), values_of(grad(b)),
                                            values_of(grad(c))};
  };
  const Tensor g = heads_view(dy);
  const auto views = gradients_of(part(0), part(1), part(2), g);
  EXPECT_EQ(views, gradients_of(copy(part(0)), copy(part(1)), copy(part(2)), copy(g)));
  // A tensor whose last stride is not 1 is copied, not misread.
  const Tensor t = make(random_values(width * length, 3), {1, 1, width, length}, DType::f32);
  const Tensor columns =
      t.alias({1, 1, length, width}, {width * length, width * length, 1, length}, 0);
  EXPECT_EQ(
      values_of(block_attention(columns, columns, columns, patterns::causal()).out),
      values_of(
          block_attention(copy(columns), copy(columns), copy(columns), patterns::causal()).out));
}

TEST(BlockAttention, MergingHeadsIsAView) {
  const Tensor q = leaf(make(random_values(2 * 3 * 10 * 4, 1), {2, 3, 10, 4}, DType::f32));
  const Tensor out = block_attention(q, q, q, patterns::causal()).out;
  EXPECT_EQ(out.strides(), (Strides{10 * 3 * 4, 4, 3 * 4, 1}));
  EXPECT_TRUE(out.alias({2, 10, 3, 4}, {120, 12, 4, 1}, 0).contiguous());
}

TEST(BlockAttention, GradientsAreLaidAsTheirTensors) {
  // Then no leaf copies its gradient, and no projection that of its heads.
  const Tensor q = leaf(make(random_values(2 * 3 * 10 * 4, 1), {2, 3, 10, 4}, DType::f32));
  const Tensor kv = make(random_values(2 * 10 * 3 * 4, 2), {2, 10, 3, 4}, DType::f32);
  const Tensor k = leaf(heads_view(kv)), v = leaf(heads_view(kv));
  const Tensor out = block_attention(q, k, v, patterns::causal()).out;
  const Tensor dy[] = {Tensor::zeros(out.shape()), Tensor{}};
  const NoGrad off;
  const Grads dx = autograd::edge_of(out).node->backward(dy);
  const Strides rows = {3 * 10 * 4, 10 * 4, 4, 1}, tokens = {10 * 3 * 4, 4, 3 * 4, 1};
  EXPECT_EQ(dx[0].strides(), rows);
  EXPECT_EQ(dx[1].strides(), tokens);
  EXPECT_EQ(dx[2].strides(), tokens);
}

TEST(BlockAttention, GradientsWantedOneByOne) {
  for (const int64_t heads : {2, 4}) {  // two passes, and one
    const Problem x =
        problem({1, heads, 90, 90, 8, 8}, [](int64_t p, int64_t j) { return j <= p; });
    const Solution all = run(x, patterns::causal(), DType::f32);
    Problem other = x;  // so that no workspace holds what this one needs
    for (double& g : other.dout) g *= 2;
    const Shape size = {1, heads, 90, 8};
    for (int wanted = 0; wanted < 3; ++wanted) {
      run(other, patterns::causal(), DType::f32);
      std::array<Tensor, 3> in = {make(x.q, size, DType::f32), make(x.k, size, DType::f32),
                                  make(x.v, size, DType::f32)};
      set_requires_grad(in[static_cast<size_t>(wanted)]);
      const auto [out, lse] = block_attention(in[0], in[1], in[2], patterns::causal());
      const Tensor outputs[] = {out, lse};
      const Tensor dy[] = {make(x.dout, out.shape(), DType::f32),
                           make(x.dlse, lse.shape(), DType::f32)};
      backward(outputs, dy);
      const std::vector<double>* truth[] = {&all.dq, &all.dk, &all.dv};
      expect_same_bits(values_of(grad(in[static_cast<size_t>(wanted)])), *truth[wanted], "alone");
    }
  }
  // The gradient of lse alone, and no gradient at all.
  const Problem x = problem({1, 2, 90, 90, 8, 8}, [](int64_t p, int64_t j) { return j <= p; });
  const Tensor q = leaf(make(x.q, {1, 2, 90, 8}, DType::f64));
  const Tensor k = make(x.k, {1, 2, 90, 8}, DType::f64);
  const auto f = [&k](const std::vector<Tensor>& in) {
    return block_attention(in[0], k, k, patterns::local(9)).lse;
  };
  EXPECT_TRUE(gradcheck(std::function<Tensor(const std::vector<Tensor>&)>(f), {q.detach()}).ok);
  const NoGrad off;
  EXPECT_FALSE(requires_grad(block_attention(q, k, k, patterns::causal()).out));
}

TEST(BlockAttention, NaNIsNotHidden) {
  auto values = random_values(200 * 4, 1);
  values[100 * 4] = std::nan("");
  const Tensor x = make(values, {1, 1, 200, 4}, DType::f32);
  const auto out = values_of(block_attention(x, x, x, patterns::causal()).out);
  for (size_t i = 0; i < 100 * 4; ++i) ASSERT_TRUE(std::isfinite(out[i])) << i;
  for (size_t i = 100; i < 200; ++i) ASSERT_TRUE(std::isnan(out[i * 4])) << i;
}

// NaN or Inf in a key or a query affects only the rows or keys that the pattern pairs with it. All
// others keep their bits, also in gradients.
TEST(BlockAttention, WhatARowDoesNotSeeCannotReachIt) {
  const int64_t length = 110, width = 5;
  const auto expect_kept = [&](const std::vector<double>& a, const std::vector<double>& b,
                               int64_t row, const std::string& what) {
    const auto n = static_cast<int64_t>(a.size()) / length;
    EXPECT_EQ(std::memcmp(&a[static_cast<size_t>(row * n)], &b[static_cast<size_t>(row * n)],
                          static_cast<size_t>(n) * sizeof(double)),
              0)
        << what << " row " << row;
  };
  for (const int64_t heads : {1, 4}) {  // both schedules of backward
    for (const PatternCase& c : cases()) {
      const Problem clean_problem = problem({1, heads, length, length, width, width}, c.sees);
      const auto sees = [&](int64_t i, int64_t j) { return clean_problem.sees(0, i, j); };
      const Solution clean = run(clean_problem, c.pattern, DType::f32);
      for (const double bad : {std::nan(""), kInfinity}) {
        for (const int64_t bad_row : {3, 50, 107}) {
          const std::string what = fmt::format("{} {} at {}", c.pattern.name, bad, bad_row);
          Problem x = clean_problem;  // a key and its value, in the first head
          x.k[static_cast<size_t>(bad_row * width + 1)] = bad;
          x.v[static_cast<size_t>(bad_row * width + 2)] = bad;
          Solution y = run(x, c.pattern, DType::f32);
          for (int64_t i = 0; i < length; ++i) {
            if (sees(i, bad_row)) {
              EXPECT_FALSE(std::isfinite(y.out[static_cast<size_t>(i * width + 2)])) << what << i;
              continue;
            }
            expect_kept(first_head(y.out, heads), first_head(clean.out, heads), i, what + " out");
            expect_kept(first_head(y.lse, heads), first_head(clean.lse, heads), i, what + " lse");
            expect_kept(first_head(y.dq, heads), first_head(clean.dq, heads), i, what + " dq");
          }
          x = clean_problem;  // a query and the gradient of its row
          x.q[static_cast<size_t>(bad_row * width + 1)] = bad;
          x.dout[static_cast<size_t>(bad_row * width + 2)] = bad;
          y = run(x, c.pattern, DType::f32);
          for (int64_t j = 0; j < length; ++j) {
            if (j != bad_row) {
              expect_kept(first_head(y.out, heads), first_head(clean.out, heads), j, what + " out");
              expect_kept(first_head(y.dq, heads), first_head(clean.dq, heads), j, what + " dq");
            }
            if (sees(bad_row, j)) continue;
            expect_kept(first_head(y.dk, heads), first_head(clean.dk, heads), j, what + " dk");
            expect_kept(first_head(y.dv, heads), first_head(clean.dv, heads), j, what + " dv");
          }
        }
      }
    }
  }
}

TEST(BlockAttention, PaddingMayHoldAnything) {
  const int64_t length = 150, width = 6;
  for (const PatternCase& c : cases()) {
    Problem x = problem({1, 1, length, length, width, width}, c.sees);
    const std::vector<int64_t> valid = {101};
    const Tensor lengths = Tensor::from(valid, {1});
    const AttentionPattern p = with_lengths(c.pattern, lengths, lengths);
    const Solution clean = run(x, p, DType::f32);
    for (auto* values : {&x.q, &x.k, &x.v, &x.dout}) {
      std::fill(values->begin() + 101 * width, values->end(), std::nan(""));
    }
    expect_same_bits(run(x, p, DType::f32), clean, c.pattern.name);
  }
}

TEST(BlockAttention, EmptyLengths) {
  const Tensor q = Tensor::zeros({2, 2, 3, 4}), none = Tensor::zeros({2, 2, 0, 4});
  const auto [out, lse] = block_attention(leaf(q.detach()), none, none, patterns::dense());
  for (const double x : values_of(out)) EXPECT_EQ(x, 0);
  for (const double x : values_of(lse)) EXPECT_EQ(x, -kInfinity);
  Tensor k = leaf(Tensor::zeros({2, 2, 3, 4}));
  const Tensor empty = block_attention(none, k, k, patterns::causal()).out;
  EXPECT_EQ(empty.shape(), (Shape{2, 2, 0, 4}));
  backward(empty, Tensor::zeros({2, 2, 0, 4}));
  for (const double x : values_of(grad(k))) EXPECT_EQ(x, 0);
  EXPECT_EQ(block_attention(Tensor::zeros({0, 2, 3, 4}), Tensor::zeros({0, 2, 3, 4}),
                            Tensor::zeros({0, 2, 3, 4}), patterns::causal())
                .out.numel(),
            0);
}

TEST(BlockAttention, SavesWhatItSays) {
  const int64_t bytes = 2 * 100 * 16 * 4;
  const Tensor q = leaf(Tensor::zeros({1, 2, 100, 16})), k = leaf(Tensor::zeros({1, 2, 100, 16})),
               v = leaf(Tensor::zeros({1, 2, 100, 16}));
  const auto pattern = resolve(patterns::causal(), 100, 100);
  const int64_t before = memory_tracker().live()[Category::saved];
  const auto result = block_attention(q, k, v, pattern);
  const int64_t lse = memory::block_bytes(2 * 100 * 4);
  EXPECT_EQ(memory_tracker().live()[Category::saved] - before, 4 * bytes + lse);
}

template <class E, class F>
void expect_error(F&& f, const std::string& part) {
  try {
    f();
    FAIL() << "nothing thrown; expected: " << part;
  } catch (const E& e) {
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(BlockAttention, RejectsBadInput) {
  const auto zeros = [](const Shape& s, DType t = DType::f32) { return Tensor::zeros(s, t); };
  const Tensor q = zeros({2, 2, 8, 4}), k = zeros({2, 2, 9, 4});
  const auto dense = patterns::dense();
  const auto call = [&](const Tensor& a, const Tensor& b, const Tensor& c) {
    return [=] { block_attention(a, b, c, dense); };
  };
  expect_error<ValueError>(call({}, k, k), "q is not given");
  expect_error<ShapeError>(call(zeros({2, 8, 4}), k, k), "q");
  expect_error<DTypeError>(call(zeros({2, 2, 8, 4}, DType::i32), k, k), "q");
  expect_error<DTypeError>(call(q, zeros({2, 2, 9, 4}, DType::f64), k), "k");
  expect_error<ShapeError>(call(q, zeros({1, 2, 9, 4}), k), "batch, heads and width of q");
  expect_error<ShapeError>(call(q, zeros({2, 3, 9, 4}), k), "batch, heads and width of q");
  expect_error<ShapeError>(call(q, zeros({2, 2, 9, 5}), k), "batch, heads and width of q");
  expect_error<ShapeError>(call(q, k, zeros({2, 2, 8, 4})), "length of k");
  expect_error<ShapeError>(call(zeros({2, 2, 8, 0}), zeros({2, 2, 9, 0}), k), "widths");
  expect_error<ShapeError>(call(q, k, zeros({2, 2, 9, 2000})), "widths must be 1 to 1024");

  const auto with = [&](const ScoreTerms& terms) {
    return [=] { block_attention(q, k, k, dense, terms); };
  };
  const auto term = [&](auto change) {
    ScoreTerms terms;
    terms.id = {2, 2};
    change(terms);
    return terms;
  };
  expect_error<ShapeError>(with(term([&](auto& t) {
                             t.relation_key = zeros({4, 4});
                           })),
                           "relation_key has shape [4, 4]; expected [5, 4] or [2, 5, 4]");
  expect_error<ShapeError>(with(term([&](auto& t) {
                             t.relation_key = zeros({3, 5, 4});
                           })),
                           "relation_key");
  expect_error<ShapeError>(with(term([&](auto& t) {
                             t.relation_value = zeros({5, 3});
                           })),
                           "relation_value");
  expect_error<ShapeError>(with(term([&](auto& t) { t.relation_bias = zeros({6}); })),
                           "relation_bias has shape [6]; expected [5] or [2, 5]");
  expect_error<DTypeError>(with(term([&](auto& t) { t.relation_bias = zeros({5}, DType::f64); })),
                           "relation_bias");
  expect_error<ValueError>(with(term([](auto& t) { t.id.left = -1; })), "relation ids");
  expect_error<ValueError>(with(term([](auto& t) { t.scale = NAN; })), "scale");
  expect_error<ShapeError>(with(term([&](auto& t) { t.span = zeros({2}); })),
                           "span has shape [2]; expected [1 or 2, 1 or 2, 1 or 9]");
  expect_error<ShapeError>(with(term([&](auto& t) { t.span = zeros({1, 3, 1}); })), "span");
  expect_error<DTypeError>(with(term([&](auto& t) {
                             t.span = zeros({1, 1, 1}, DType::f64);
                           })),
                           "span");
  expect_error<ShapeError>(with(term([&](auto& t) {
                             t.query_span = zeros({2, 2, 1});
                           })),
                           "query_span has shape [2, 2, 1]; expected [1 or 2, 1 or 2, 8]");
  expect_error<ShapeError>(with(term([&](auto& t) {
                             t.query_span = zeros({3, 1, 8});
                           })),
                           "query_span");
  expect_error<ShapeError>(with(term([&](auto& t) { t.query_span = zeros({8}); })), "query_span");
  expect_error<DTypeError>(with(term([&](auto& t) {
                             t.query_span = zeros({1, 1, 8}, DType::f64);
                           })),
                           "query_span is not f32");
  expect_error<ValueError>(with(term([&](auto& t) {
                             t.query_span = zeros({1, 1, 8});
                             t.ramp = -1;
                           })),
                           "ramp is -1; expected more than 0");
  expect_error<ValueError>(with(term([&](auto& t) {
                             t.span = zeros({1, 1, 1});
                             t.ramp = 0;
                           })),
                           "ramp is 0; expected more than 0");
  expect_error<ValueError>(with(term([&](auto& t) { t.relation_query = q; })),
                           "relation_query is given without relation_key");
  expect_error<ShapeError>(with(term([&](auto& t) {
                             t.relation_key = zeros({5, 4});
                             t.relation_query = zeros({2, 2, 9, 4});
                           })),
                           "relation_query must have the shape of q");

  const auto ruled = [&](auto change) {
    AttentionPattern p = patterns::dense();
    change(p);
    return [=] { block_attention(q, k, k, p); };
  };
  expect_error<ValueError>(ruled([](auto& p) { p.rules[0].stride = 2; }), "an order by class");
  expect_error<ValueError>(ruled([](auto& p) { p.rules[0].window.dilation = 2; }),
                           "an order by class");
  expect_error<ValueError>(ruled([](auto& p) {
                             p.rules[0].window = {-3, 2};
                           }),
                           "the window of rule 0 is -3 to the left and 2 to the right");
  expect_error<ValueError>(ruled([](auto& p) { p.rules.resize(9); }), "9 rules");
  expect_error<ValueError>(ruled([](auto& p) {
                             p.rules.resize(2);
                             p.rules[1].q_start = 3;
                           }),
                           "rule 1 has q_start 3, rule 0 1");
  const auto i32 = [](const Shape& s) { return Tensor::zeros(s, DType::i32); };
  expect_error<DTypeError>(ruled([&](auto& p) { p.mask.k_valid = i32({2}); }),
                           "k_valid is not i64");
  expect_error<ShapeError>(ruled([&](auto& p) { p.mask.k_begin = zeros({3}, DType::i64); }),
                           "k_begin is not [B]");
  expect_error<ShapeError>(ruled([&](auto& p) { p.q_valid = zeros({3}, DType::i64); }),
                           "q_valid is not [B]");
  expect_error<ValueError>(ruled([&](auto& p) {
                             p.mask.q_from = i32({1, 8});
                           }),
                           "q_from and q_to bound a row together");
  expect_error<ShapeError>(ruled([&](auto& p) {
                             p.mask.q_from = p.mask.q_to = i32({1, 9});
                           }),
                           "q_from has shape [1, 9]; expected [1 or 2, 8], row-major");
  expect_error<DTypeError>(ruled([&](auto& p) {
                             p.mask.q_from = p.mask.q_to = zeros({1, 8}, DType::i64);
                           }),
                           "q_from is not i32");
  expect_error<ShapeError>(ruled([&](auto& p) {
                             p.mask.q_from = i32({1, 8});
                             p.mask.q_to = i32({2, 8});
                           }),
                           "q_from is for 1 samples and q_to for 2");
  expect_error<ShapeError>(ruled([&](auto& p) {
                             p.mask.k_hidden = zeros({2, 8}, DType::u8);
                           }),
                           "k_hidden has shape [2, 8]; expected [1 or 2, 9]");
  expect_error<DTypeError>(ruled([&](auto& p) {
                             p.mask.k_hidden = i32({1, 9});
                           }),
                           "k_hidden is not u8");
  const auto classes = [&](auto change) {
    return ruled([&](auto& p) {
      p.mask.q_class = i32({1, 8});
      p.mask.k_class = i32({1, 9});
      p.mask.class_id = i32({1, 2, 3});
      change(p.mask);
    });
  };
  const auto filled = [](const Shape& s, int32_t value) {
    return Tensor::from(std::vector<int32_t>(static_cast<size_t>(numel(s)), value), s);
  };
  expect_error<ValueError>(classes([](auto& m) { m.k_class = {}; }), "2 of the three are given");
  expect_error<ShapeError>(classes([&](auto& m) { m.q_class = i32({1, 9}); }), "q_class has shape");
  expect_error<ShapeError>(classes([&](auto& m) { m.class_id = i32({2, 3}); }), "class_id");
  expect_error<ValueError>(classes([&](auto& m) {
                             m.q_class = filled({1, 8}, 2);
                           }),
                           "q_class holds 2");
  expect_error<ValueError>(classes([&](auto& m) {
                             m.k_class = filled({1, 9}, -1);
                           }),
                           "k_class holds -1");
  expect_error<ValueError>(classes([&](auto& m) {
                             m.class_id = filled({1, 2, 3}, -2);
                           }),
                           "class_id holds -2");

  const Keys keys[] = {{k, k}, {k, k}, {k, k}};
  expect_error<ValueError>([&] { block_attention(q, keys, dense); }, "3 key segments are given");
  expect_error<ValueError>(
      [&] { block_attention(q, std::span(keys, 2), dense); },
      "dense has a layout_spec for one key segment, and 9 keys of a second one");
  const Tensor wide = zeros({2, 2, 9, 5});
  const Keys unequal[] = {{k, k}, {k, wide}};
  expect_error<ShapeError>([&] { block_attention(q, unequal, dense); }, "values of one width");
  expect_error<ValueError>(
      [&] {
        block_attention(q, k, k, dense, {}, {1.0f, {true, {}}});
      },
      "dropout is 1");
  expect_error<NotImplemented>(
      [&] {
        block_attention(q, k, k, dense, {}, {0.5f, {true, {}, 3}});
      },
      "pass.row");
}

// ------------------------------------------------------------------------------- the table of ops

// Builds a pattern from the scalar arguments of a sample: kind of pattern, parameter.
PatternCase pattern_of(double which, double parameter) {
  const auto n = static_cast<int64_t>(parameter);
  switch (static_cast<int>(which)) {
    case 0:
      return {patterns::dense(), [](int64_t, int64_t) { return true; }};
    case 1:
      return {patterns::causal(), [](int64_t p, int64_t j) { return j <= p; }};
    case 2:
      return {patterns::local(n), [n](int64_t p, int64_t j) { return j <= p && p - j < n; }};
    case 3:
      return {patterns::local_bidirectional(n),
              [n](int64_t p, int64_t j) { return std::abs(p - j) <= n / 2; }};
    case 4:
      return {patterns::local_block(n), [n](int64_t p, int64_t j) {
                return j <= p && (j / n == p / n || j / n == p / n - 1);
              }};
    case 5:
      return {patterns::dilated(2, 1, n), [n](int64_t p, int64_t j) {
                return (p - j) % n == 0 && p - j <= 2 * n && j - p <= n;
              }};
    default:
      return {patterns::strided(n),
              [n](int64_t p, int64_t j) { return j <= p && (p - j) % n == 0; }};
  }
}

// The inputs are q, k, v and, if there are six, Shaw terms that clip at 2.
std::vector<Tensor> attend(test::Inputs in) {
  ScoreTerms terms;
  if (in.size() > 3) {
    terms.id = {2, 2};
    terms.relation_key = in[3];
    terms.relation_bias = in[4];
    terms.relation_value = in[5];
  }
  const auto [out, lse] =
      block_attention(in[0], in[1], in[2], pattern_of(in.number(0), in.number(1)).pattern, terms);
  return {out, lse};
}

std::vector<test::Array> attend_naively(test::Arrays in) {
  const PatternCase c = pattern_of(in.number(0), in.number(1));
  const test::Array &q = in[0], &k = in[1], &v = in[2];
  Problem x = problem({q.dim(0), q.dim(1), q.dim(2), k.dim(2), q.dim(3), v.dim(3)}, c.sees);
  x.q = q.values;
  x.k = k.values;
  x.v = v.values;
  if (in.size() > 3) {
    x.id = {2, 2};
    x.per_head = in[3].shape.rank() == 3;
    x.key = in[3].values;
    x.bias = in[4].values;
    x.value = in[5].values;
  }
  Solution y = solve(x);
  return {test::Array({q.dim(0), q.dim(1), q.dim(2), v.dim(3)}, std::move(y.out)),
          test::Array({q.dim(0), q.dim(1), q.dim(2)}, std::move(y.lse))};
}

std::vector<int64_t> attention_keeps(test::Inputs in) {
  std::vector<int64_t> bytes;
  for (const Tensor& x : in.all()) bytes.push_back(x.nbytes());
  const Shape& q = in[0].shape();
  const int64_t rows = q[0] * q[1] * q[2];
  bytes.push_back(rows * in[2].dim(-1) * size_of(in[0].dtype()));
  bytes.push_back(rows * (in[0].dtype() == DType::f64 ? 8 : 4));
  return bytes;
}

std::vector<test::Sample> attention_samples(bool relations) {
  using test::randn;
  std::vector<test::Sample> samples;
  const auto add = [&](const std::string& name, const Sizes& n, std::vector<double> numbers) {
    std::vector<test::InputSpec> inputs = {randn({n.batch, n.heads, n.queries, n.width}),
                                           randn({n.batch, n.heads, n.keys, n.width}),
                                           randn({n.batch, n.heads, n.keys, n.value_width})};
    if (relations) {
      const bool per_head = samples.size() % 2 == 0;
      inputs.push_back(randn(per_head ? Shape{n.heads, 5, n.width} : Shape{5, n.width}));
      inputs.push_back(randn(per_head ? Shape{n.heads, 5} : Shape{5}));
      inputs.push_back(
          randn(per_head ? Shape{n.heads, 5, n.value_width} : Shape{5, n.value_width}));
    }
    samples.push_back({name, std::move(inputs), std::move(numbers)});
  };
  add("dense", {2, 2, 4, 4, 3, 2}, {0, 0});
  add("one", {1, 1, 1, 1, 1, 1}, {0, 0});
  add("cross", {1, 2, 3, 6, 2, 4}, {0, 0});
  add("causal", {1, 2, 6, 6, 3, 3}, {1, 0});
  add("memory", {1, 1, 4, 9, 2, 3}, {1, 0});
  add("local", {1, 1, 9, 9, 2, 3}, {2, 3});
  add("bidirectional", {1, 1, 9, 9, 3, 2}, {3, 4});
  add("block", {1, 1, 8, 8, 2, 2}, {4, 3});
  if (!relations) {
    add("dilated", {1, 1, 9, 9, 2, 2}, {5, 2});
    add("strided", {1, 1, 9, 9, 2, 2}, {6, 3});
    add("no queries", {1, 2, 0, 3, 2, 2}, {0, 0});
    add("no batch", {0, 2, 3, 3, 2, 2}, {1, 0});
  }
  return samples;
}

std::vector<test::Sample> large_attention(bool relations) {
  using test::randn;
  const Shape size = {1, 2, 260, 17};
  std::vector<test::InputSpec> inputs = {randn(size), randn(size), randn(size)};
  if (relations) {
    inputs.insert(inputs.end(), {randn({5, 17}), randn({5}), randn({5, 17})});
  }
  return {{"large", inputs, {1, 0}}, {"band", inputs, {2, 100}}};
}

test::OpInfo attention_info(const std::string& name, bool relations) {
  test::OpInfo op;
  op.name = name;
  op.run = [](test::Inputs in) { return test::Results<Tensor>(attend(in)); };
  op.reference = [](test::Arrays in) { return test::Results<test::Array>(attend_naively(in)); };
  op.samples = attention_samples(relations);
  op.large = large_attention(relations);
  const auto q = test::randn({1, 2, 3, 4});
  op.rejects = {
      test::rejects<ShapeError>("rank 3", {test::randn({2, 3, 4}), q, q}, "q", {0, 0}),
      test::rejects<ShapeError>("widths", {q, test::randn({1, 2, 3, 5}), q}, "width of q", {0, 0}),
      test::rejects<DTypeError>("dtypes", {q, test::as(DType::i64, test::iota({1, 2, 3, 4})), q},
                                "k", {0, 0})};
  op.saved_bytes = attention_keeps;
  if (relations) {
    op.tolerance = 4;
    op.reason =
        "a score is a sum of three terms, which cancel; lse shows it where there is one key";
  }
  return op;
}

const test::Registered plain_info = attention_info("block_attention", false);
const test::Registered shaw_info = attention_info("block_attention_relations", true);

}  // namespace
}  // namespace longspan::attention_test
