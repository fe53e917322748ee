// Cases of block attention beyond one rule for all heads: features of layouts, masks and score
// terms. Every test below runs on each case.
#include <gtest/gtest.h>

#include <cstring>

#include "autograd/gradcheck.h"
#include "core/parallel.h"
#include "ops/elementwise.h"
#include "tests/ops/attention_laws.h"

namespace longspan::attention_test {

namespace {

constexpr int64_t kHeads = 2;

Tensor table(const Shape& shape, const std::function<int64_t(int64_t, int64_t)>& f) {
  std::vector<int32_t> values;  // f(row, column)
  const int64_t columns = shape[1] * (shape.rank() > 2 ? shape[2] : 1);
  for (int64_t i = 0; i < shape[0] * columns; ++i) {
    values.push_back(static_cast<int32_t>(f(i / columns, i % columns)));
  }
  return Tensor::from(values, shape);
}

// Returns tiles of 40 rows with one partial run per segment, which covers all its keys.
std::vector<TileRuns> whole(int64_t queries, int64_t keys, int64_t side_keys) {
  std::vector<TileRuns> tiles;
  for (int64_t q = 0; q < queries; q += 40) {
    tiles.push_back(
        {static_cast<int32_t>(q), static_cast<int32_t>(std::min<int64_t>(40, queries - q)), {}});
    if (keys > 0) {
      tiles.back().runs.push_back({0, static_cast<int32_t>(keys), 0, RunKind::partial});
    }
    if (side_keys > 0) {
      tiles.back().runs.push_back({0, static_cast<int32_t>(side_keys), 1, RunKind::partial});
    }
  }
  return tiles;
}

AttentionPattern everything(int64_t queries, int64_t keys, int64_t side_keys) {
  AttentionPattern p;
  p.layout =
      make_layout(queries, keys, {whole(queries, keys, side_keys)}, {.side_keys = side_keys});
  p.rules.emplace_back();
  return p;
}

Case plain(int64_t length, int64_t batch, int64_t side_keys = 0, int64_t width = 6) {
  Case c;
  c.x = problem({batch, kHeads, length, length, width, 5}, [](int64_t, int64_t) { return true; });
  if (side_keys > 0) {
    c.x.side.keys = side_keys;
    c.x.side.k = random_values(batch * kHeads * side_keys * width, 21);
    c.x.side.v = random_values(batch * kHeads * side_keys * 5, 22);
  }
  c.pattern = everything(length, length, side_keys);
  return c;
}

// Head 0 uses a strided rule and head 1 a local one; odd samples swap them.
Case rules_by_head(int64_t length, int64_t batch) {
  Case c = plain(length, batch);
  const AttentionPattern strided = resolve(patterns::strided(3), length, length);
  const AttentionPattern local = resolve(patterns::local(4), length, length);
  const auto member = [](int64_t b, int64_t h) { return (b + h) % 2; };
  c.pattern.layout =
      make_layout(length, length, {tiles_of(*strided.layout, 0), tiles_of(*local.layout, 0)},
                  {.layout_index = table({batch, kHeads}, member),
                   .order_q = strided.layout->order_q,
                   .order_k = strided.layout->order_k,
                   .members = {{0, 0, 0}, {1, -1, -1}}});
  c.pattern.rules = {strided.rules[0], local.rules[0]};
  c.x.sees = [](int64_t, int64_t i, int64_t j) { return j <= i; };
  c.x.pair_sees = [member](int64_t b, int64_t h, int64_t i, int64_t j) {
    return member(b, h) == 0 ? (i - j) % 3 == 0 : i - j < 4;
  };
  return c;
}

// Each query attends only to keys 3 or more positions before it.
Case earlier(int64_t length, int64_t batch) {
  Case c = plain(length, batch);
  c.pattern.rules[0].window.right = -3;
  c.x.sees = [](int64_t, int64_t i, int64_t j) { return j <= i - 3; };
  return c;
}

Case side_keys(int64_t length, int64_t batch) {
  Case c = plain(length, batch, 7);
  c.pattern.rules[0] = {.causal = true, .window = {.left = 9}};
  c.x.sees = [](int64_t, int64_t i, int64_t j) { return j <= i && i - j <= 9; };
  return c;
}

Case long_side_with_a_rule(int64_t length, int64_t batch) {
  Case c = plain(length, batch, 2 * length + 1);
  c.pattern.side_rules = {{.window = {.left = 5, .right = 30}, .q_start = 0}};
  c.x.side.sees = [](int64_t, int64_t i, int64_t j) { return i - j <= 5 && j - i <= 30; };
  return c;
}

// Each query attends to its sentence of 7 keys in the first segment and to 2 keys of the second.
// Every fifth query attends to no key of the first segment, every tenth to no key at all.
Case row_bounds(int64_t length, int64_t batch) {
  Case c = plain(length, batch, 9);
  const auto from = [](int64_t b, int64_t i) { return (i + b) / 7 * 7; };
  const auto to = [from](int64_t b, int64_t i) { return i % 5 == 4 ? 0 : from(b, i) + 7; };
  const auto side_from = [](int64_t i) { return i % 8; };
  c.pattern.mask.q_from = table({batch, length}, from);
  c.pattern.mask.q_to = table({batch, length}, to);
  c.pattern.side_mask.q_from = table({1, length}, [&](int64_t, int64_t i) { return side_from(i); });
  c.pattern.side_mask.q_to =
      table({1, length}, [&](int64_t, int64_t i) { return i % 10 == 4 ? 0 : side_from(i) + 2; });
  c.x.sees = [=](int64_t b, int64_t i, int64_t j) { return from(b, i) <= j && j < to(b, i); };
  c.x.side.sees = [=](int64_t, int64_t i, int64_t j) {
    return i % 10 != 4 && side_from(i) <= j && j < side_from(i) + 2;
  };
  return c;
}

// The first third of the keys of sample 0 does not exist, of sample 1 all but the last key; the
// side keys of sample 1 neither.
std::function<int64_t(int64_t)> some_begins(int64_t length) {
  return [length](int64_t b) { return b == 0 ? length / 3 : length - 1; };
}

Tensor begins_of(int64_t batch, const std::function<int64_t(int64_t)>& begin) {
  std::vector<int64_t> all;
  for (int64_t b = 0; b < batch; ++b) all.push_back(begin(b));
  return Tensor::from(all, {batch});
}

Case begins(int64_t length, int64_t batch) {
  Case c = plain(length, batch, 9);
  const auto begin = some_begins(length);
  c.pattern.rules[0].causal = true;
  c.pattern.mask.k_begin = begins_of(batch, begin);
  c.pattern.side_mask.k_begin = begins_of(batch, [](int64_t b) { return b == 0 ? 2 : 99; });
  c.x.sees = [begin](int64_t b, int64_t i, int64_t j) { return begin(b) <= j && j <= i; };
  c.x.side.sees = [](int64_t b, int64_t, int64_t j) { return b == 0 && j >= 2; };
  return c;
}

Case begins_with_an_order(int64_t length, int64_t batch) {
  Case c = rules_by_head(length, batch);
  const auto begin = some_begins(length);
  c.pattern.mask.k_begin = begins_of(batch, begin);
  c.x.sees = [begin](int64_t b, int64_t i, int64_t j) { return begin(b) <= j && j <= i; };
  return c;
}

Case row_bounds_with_an_order(int64_t length, int64_t batch) {
  Case c = rules_by_head(length, batch);
  const auto from = [](int64_t b, int64_t i) { return (i * 5 + b) % 11; };
  const auto to = [](int64_t b, int64_t i) { return 300 - (i * 13 + b) % 290; };
  c.pattern.mask.q_from = table({batch, length}, from);
  c.pattern.mask.q_to = table({batch, length}, to);
  c.x.sees = [=](int64_t b, int64_t i, int64_t j) {
    return j <= i && from(b, i) <= j && j < to(b, i);
  };
  return c;
}

Tensor hidden_keys(int64_t batch, int64_t keys, const std::function<bool(int64_t, int64_t)>& f) {
  std::vector<uint8_t> values;
  for (int64_t i = 0; i < batch * keys; ++i) {
    values.push_back(static_cast<uint8_t>(f(i / keys, i % keys)));
  }
  return Tensor::from(values, {batch, keys});
}

// Longformer: global tokens are hidden in the band and appear as side keys instead.
Case hidden(int64_t length, int64_t batch) {
  Case c = plain(length, batch, 3);
  const auto hides = [](int64_t b, int64_t j) { return j % 5 == b || j % 7 == 3; };
  c.pattern.rules[0].window = {.left = 11, .right = 11};
  c.pattern.mask.k_hidden = hidden_keys(batch, length, hides);
  c.pattern.side_mask.k_hidden = hidden_keys(1, 3, [](int64_t, int64_t j) { return j == 1; });
  c.x.sees = [=](int64_t b, int64_t i, int64_t j) { return std::abs(i - j) <= 11 && !hides(b, j); };
  c.x.side.sees = [](int64_t, int64_t, int64_t j) { return j != 1; };
  return c;
}

struct Classes {
  int64_t queries, keys;  // numbers of classes
  std::function<int64_t(int64_t, int64_t)> of_query, of_key;
  std::function<int64_t(int64_t, int64_t, int64_t)> id;  // sample, query class, key class

  Problem::Label label() const {
    return [c = *this](int64_t b, int64_t i, int64_t j) {
      return c.id(b, c.of_query(b, i), c.of_key(b, j));
    };
  }
  void fill(PairMask& mask, int64_t batch, int64_t length, int64_t n) const {
    mask.q_class = table({batch, length}, of_query);
    mask.k_class = table({batch, n}, of_key);
    mask.class_id = table({batch, queries, keys},
                          [this](int64_t b, int64_t at) { return id(b, at / keys, at % keys); });
  }
};

Case class_mask(int64_t length, int64_t batch) {
  Case c = plain(length, batch, 6);
  const Classes main = {3, 4, [](int64_t b, int64_t i) { return (i / 5 + b) % 3; },
                        [](int64_t, int64_t j) { return j / 3 % 4; },
                        [](int64_t, int64_t q, int64_t k) { return (q + k) % 3 - 1; }};
  const Classes side = {
      2, 6, [](int64_t, int64_t i) { return i % 2; }, [](int64_t, int64_t j) { return j; },
      [](int64_t b, int64_t q, int64_t k) { return (q + k + b) % 2 == 0 ? 0 : -1; }};
  main.fill(c.pattern.mask, batch, length, length);
  side.fill(c.pattern.side_mask, batch, length, 6);
  c.x.label = main.label();
  c.x.side.label = side.label();
  return c;
}

// ETC: a band labelled by distance and global keys labelled by class share the tables. Only classes
// use the last three rows of the tables.
Case class_labels(int64_t length, int64_t batch) {
  Case c = plain(length, batch, 40);
  c.pattern.rules[0].window = {.left = 20, .right = 20};
  c.x.sees = [](int64_t, int64_t i, int64_t j) { return std::abs(i - j) <= 20; };
  const Classes side = {12, 40, [](int64_t, int64_t i) { return i / 6 % 12; },
                        [](int64_t, int64_t j) { return j; },
                        [](int64_t b, int64_t q, int64_t k) -> int64_t {
                          if (k % 9 == 5) return -1;
                          if (q == k + b) return 10;  // linked
                          return k < 30 ? 9 : k == 31 ? 3 : 11;
                        }};
  side.fill(c.pattern.side_mask, batch, length, 40);
  c.x.side.label = side.label();
  c.x.ids = 4 + 4 + 1 + 3;
  add_relations(c.x, {4, 4}, true, true, true, true);
  return c;
}

// Labels pairs of the first segment by class, with relation tables of 120 rows.
Case many_labels(int64_t length, int64_t batch) {
  Case c = plain(length, batch);
  const Classes main = {
      5, 7, [](int64_t, int64_t i) { return i * 3 % 5; },
      [](int64_t b, int64_t j) { return (j + b) % 7; },
      [](int64_t, int64_t q, int64_t k) { return q == k ? -1 : (q * 7 + k) * 3; }};
  main.fill(c.pattern.mask, batch, length, length);
  c.x.label = main.label();
  c.x.ids = 120;
  add_relations(c.x, {2, 0}, false, true, true, true);
  return c;
}

Case relations_with_an_order(int64_t length, int64_t batch) {
  Case c = rules_by_head(length, batch);
  add_relations(c.x, {6, 0}, true, true, true, true);
  return c;
}

Case relation_query(int64_t length, int64_t batch) {
  Case c = plain(length, batch);
  c.pattern = patterns::local(12);
  c.x.sees = [](int64_t, int64_t i, int64_t j) { return j <= i && i - j < 12; };
  add_relations(c.x, {11, 0}, true, true, true, false);
  c.x.relation_query = random_values(batch * kHeads * length * 6, 31);
  return c;
}

// Exact runs of 11 keys, whose multiplicity cycles through 0, 1, 2 and 3.
Case multiplicity(int64_t length, int64_t batch) {
  Case c = plain(length, batch);
  const auto times = [](int64_t i, int64_t j) { return (j / 11 + i / 40) % 4; };
  std::vector<TileRuns> tiles = whole(length, length, 0);
  for (TileRuns& t : tiles) {
    t.runs.clear();
    for (int32_t k = 0; k < length; k += 11) {
      const auto n = static_cast<uint8_t>(times(t.q0, k));
      const int32_t kn = std::min<int32_t>(11, static_cast<int32_t>(length) - k);
      if (n > 0) t.runs.push_back({k, kn, 0, RunKind::full, n});
    }
  }
  c.pattern.layout = make_layout(length, length, {tiles});
  c.x.sees = [=](int64_t, int64_t i, int64_t j) { return times(i, j) > 0; };
  c.x.times = times;
  return c;
}

// Devices look at multiplicities only where a layout says that there are some.
TEST(AttentionFeatures, ALayoutKnowsOfItsMultiplicities) {
  const auto multiplied = [](uint8_t first, uint8_t last) {
    std::vector<TileRuns> tiles = whole(20, 20, 0);
    tiles[0].runs = {{0, 10, 0, RunKind::full, first}, {10, 10, 0, RunKind::full, last}};
    return make_layout(20, 20, {tiles})->multiplied;
  };
  EXPECT_FALSE(multiplied(1, 1));
  EXPECT_TRUE(multiplied(2, 1));
  EXPECT_TRUE(multiplied(1, 2));
}

// Adaptive span: one span for each head.
Case span_of_heads(int64_t length, int64_t batch) {
  Case c = plain(length, batch);
  c.pattern = patterns::causal();
  c.x.sees = [](int64_t, int64_t i, int64_t j) { return j <= i; };
  c.x.span = {3.25, 40.7};
  c.x.span_shape = {1, kHeads, 1};
  c.x.ramp = 8.5;
  c.x.offset = 8.5;
  return c;
}

// Expire-span: one span for each key of each sample.
Case span_of_keys(int64_t length, int64_t batch) {
  Case c = plain(length, batch, 4);
  c.pattern.rules[0].causal = true;
  c.x.sees = [](int64_t, int64_t i, int64_t j) { return j <= i; };
  c.x.span = random_values(batch * length, 41);
  for (double& s : c.x.span) s = 15 + 20 * s;  // spans are f32 also where q has 16 bits
  c.x.span_shape = {batch, 1, length};
  c.x.ramp = 5.5;
  c.x.offset = 5.625;  // so that no pair is exactly at an end of the ramp
  return c;
}

// Dynamic span: one span for each query of each head.
Case span_of_queries(int64_t length, int64_t batch) {
  Case c = plain(length, batch, 4);
  c.pattern.rules[0].causal = true;
  c.x.sees = [](int64_t, int64_t i, int64_t j) { return j <= i; };
  c.x.query_span = random_values(batch * kHeads * length, 43);
  for (double& s : c.x.query_span) s = 12 + 20 * s;  // some queries see no key of the first segment
  c.x.query_span_shape = {batch, kHeads, length};
  c.x.ramp = 5.5;
  c.x.offset = 5.625;
  return c;
}

// Spans of keys and of queries together; heads, or samples, share them.
Case spans_of_both(int64_t length, int64_t batch) {
  Case c = span_of_keys(length, batch);
  c.x.query_span = random_values(length, 44);
  for (double& s : c.x.query_span) s = 30 * s;
  c.x.query_span_shape = {1, 1, length};
  return c;
}

Case spans_of_heads_and_queries(int64_t length, int64_t batch) {
  Case c = span_of_heads(length, batch);
  c.x.query_span = random_values(batch * length, 45);
  for (double& s : c.x.query_span) s = 5 + 5 * s;
  c.x.query_span_shape = {batch, 1, length};
  add_relations(c.x, {30, 0}, true, true, false, true);
  return c;
}

Case all_at_once(int64_t length, int64_t batch) {
  Case c = class_labels(length, batch);
  const Case runs = multiplicity(length, batch);
  std::vector<TileRuns> tiles = tiles_of(*runs.pattern.layout, 0);
  for (TileRuns& t : tiles) t.runs.push_back({3, 30, 1, RunKind::full, 2});
  c.pattern.layout = make_layout(length, length, {tiles}, {.side_keys = 40});
  c.pattern.mask.q_from = table({1, length}, [](int64_t, int64_t i) { return i / 50 * 50; });
  c.pattern.mask.q_to = table({1, length}, [](int64_t, int64_t i) { return i / 50 * 50 + 70; });
  c.pattern.mask.k_hidden =
      hidden_keys(batch, length, [](int64_t b, int64_t j) { return j % 6 == b; });
  c.x.sees = [=](int64_t b, int64_t i, int64_t j) {
    return runs.x.sees(b, i, j) && j >= i / 50 * 50 && j < i / 50 * 50 + 70 && j % 6 != b;
  };
  c.x.side.sees = [](int64_t, int64_t, int64_t j) { return j >= 3 && j < 33; };
  c.pattern.rules[0] = {};
  c.x.times = runs.x.times;
  c.x.side_times = 2;
  c.x.relation_query = random_values(batch * kHeads * length * 6, 31);
  c.x.span = random_values(length, 41);
  for (double& s : c.x.span) s = 15 + 20 * s;  // spans are f32 also where q has 16 bits
  c.x.span_shape = {1, 1, length};
  c.x.ramp = 5.5;
  c.x.offset = 2.125;
  c.x.query_span = random_values(kHeads * length, 46);
  for (double& s : c.x.query_span) s = 4 * s;
  c.x.query_span_shape = {1, kHeads, length};
  return c;
}

}  // namespace

const std::vector<Feature>& features() {
  static const std::vector<Feature> all = {
      {"rules by head", rules_by_head},
      {"earlier", earlier},
      {"side keys", side_keys},
      {"long side with a rule", long_side_with_a_rule},
      {"row bounds", row_bounds},
      {"row bounds with an order", row_bounds_with_an_order},
      {"begins", begins},
      {"begins with an order", begins_with_an_order},
      {"hidden keys", hidden},
      {"class mask", class_mask},
      {"class labels", class_labels},
      {"many labels", many_labels},
      {"relations with an order", relations_with_an_order},
      {"relation query", relation_query},
      {"multiplicity", multiplicity},
      {"span of heads", span_of_heads},
      {"span of keys", span_of_keys},
      {"span of queries", span_of_queries},
      {"spans of both", spans_of_both},
      {"spans of heads and queries", spans_of_heads_and_queries},
      {"all at once", all_at_once}};
  return all;
}

namespace {

void check_all(DType dtype) {
  for (const Feature& f : features()) {
    for (const int64_t length : kLengths) {
      for (const int64_t batch : {1, 2}) {  // four heads take the single-pass backward
        const Case c = f.make(length, batch);
        expect_near(run(c.x, c.pattern, dtype), solve(c.x), dtype,
                    fmt::format("{} L {} B {}", f.name, length, batch));
      }
    }
  }
}

TEST(AttentionFeatures, EqualsMaskedOracleF64) { check_all(DType::f64); }
TEST(AttentionFeatures, EqualsMaskedOracleF32) { check_all(DType::f32); }
TEST(AttentionFeatures, EqualsMaskedOracleBf16) {
  for (const Feature& f : features()) {
    Case c = f.make(100, 2);
    expect_near(run(c.x, c.pattern, DType::bf16), solve(c.x), DType::bf16, f.name);
  }
}

// Heads wider than a panel, in tiles of fewer rows than a tile can have.
TEST(AttentionFeatures, RelationsOfWideHeads) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const int64_t length : {16, 40, 100}) {
      for (const int64_t batch : {1, 2}) {  // with two samples, one pass over whole heads
        Problem x = problem({batch, kHeads, length, length, 70, 40},
                            [](int64_t i, int64_t j) { return j <= i && i - j < 12; });
        add_relations(x, {11, 0}, true, true, true, false);
        x.relation_query = random_values(batch * kHeads * length * 70, 31);
        expect_near(run(x, patterns::local(12), dtype), solve(x), dtype,
                    fmt::format("L {} B {}", length, batch));
      }
    }
  }
}

TEST(AttentionFeatures, ManyBlocks) {
  for (const Feature& f : features()) {
    const Case c = f.make(620, 2);
    expect_near(run(c.x, c.pattern, DType::f64), solve(c.x), DType::f64, f.name);
  }
}

TEST(AttentionFeatures, Gradcheck) {
  for (const Feature& f : features()) {
    const Case c = f.make(13, 1);
    const Problem& x = c.x;
    const auto& n = x.n;
    std::vector<Tensor> in;
    const auto add = [&](const std::vector<double>& values, const Shape& shape) {
      if (!values.empty()) in.push_back(Tensor::from(values, shape));
    };
    const auto tables = [&](int64_t width) {
      Shape shape{x.table_rows()};
      if (width > 0) shape.push_back(width);
      if (x.per_head) shape.insert(0, n.heads);
      return shape;
    };
    add(x.q, {1, n.heads, n.queries, n.width});
    add(x.k, {1, n.heads, n.keys, n.width});
    add(x.v, {1, n.heads, n.keys, n.value_width});
    add(x.side.k, {1, n.heads, x.side.keys, n.width});
    add(x.side.v, {1, n.heads, x.side.keys, n.value_width});
    add(x.relation_query, {1, n.heads, n.queries, n.width});
    add(x.key, tables(n.width));
    add(x.bias, tables(0));
    add(x.value, tables(n.value_width));
    add(x.span, x.span_shape);
    add(x.query_span, x.query_span_shape);
    for (const double p : {0.0, 0.25}) {
      const auto attend = [&](const std::vector<Tensor>& given) -> std::vector<Tensor> {
        size_t at = 0;
        const auto next = [&](const std::vector<double>& values) {
          return values.empty() ? Tensor{} : given[at++];
        };
        const Tensor q = next(x.q), k = next(x.k), v = next(x.v), side_k = next(x.side.k),
                     side_v = next(x.side.v);
        ScoreTerms terms;
        terms.id = x.id;
        terms.relation_query = next(x.relation_query);
        terms.relation_key = next(x.key);
        terms.relation_bias = next(x.bias);
        terms.relation_value = next(x.value);
        terms.span = next(x.span);
        terms.query_span = next(x.query_span);
        terms.ramp = x.ramp;
        terms.offset = x.offset;
        const Keys keys[] = {{k, v}, {side_k, side_v}};
        const Dropout dropout{static_cast<float>(p), {true, Generator{7}}};
        const auto [out, lse] = block_attention(
            q, std::span<const Keys>(keys, x.side.keys > 0 ? 2 : 1), c.pattern, terms, dropout);
        // Rows without visible keys have an lse of -inf, whatever the inputs.
        return {out, clamp(lse, -1e3, 1e3)};
      };
      const GradcheckResult r = gradcheck(attend, in);
      EXPECT_TRUE(r.ok) << f.name << " p " << p << ": " << r.message;
      EXPECT_GT(r.checked, 100);
    }
  }
}

TEST(AttentionFeatures, EmptyRowsAreZero) {
  // Adds lengths per sample: sample 0 has no keys at all, sample 1 ends early.
  const std::vector<int64_t> q_valid = {100, 60}, k_valid = {0, 37}, side_valid = {0, 2};
  for (const Feature& f : features()) {
    Case c = f.make(100, 2);
    c.pattern.q_valid = Tensor::from(q_valid, {2});
    c.pattern.mask.k_valid = Tensor::from(k_valid, {2});
    if (c.x.side.keys > 0) c.pattern.side_mask.k_valid = Tensor::from(side_valid, {2});
    const auto sees = c.x.sees, side_sees = c.x.side.sees;
    const auto within = [&](int64_t b, int64_t i, int64_t j, const std::vector<int64_t>& keys) {
      return i < q_valid[static_cast<size_t>(b)] && j < keys[static_cast<size_t>(b)];
    };
    c.x.sees = [&](int64_t b, int64_t i, int64_t j) {
      return within(b, i, j, k_valid) && sees(b, i, j);
    };
    c.x.side.sees = [&](int64_t b, int64_t i, int64_t j) {
      return within(b, i, j, side_valid) && (!side_sees || side_sees(b, i, j));
    };
    const Solution truth = solve(c.x), ours = run(c.x, c.pattern, DType::f32);
    expect_near(run(c.x, c.pattern, DType::f64), truth, DType::f64, f.name);
    expect_near(ours, truth, DType::f32, f.name);
    int64_t empty = 0;
    for (size_t i = 0; i < ours.lse.size(); ++i) {
      if (truth.lse[i] != -kInfinity) continue;
      ++empty;
      for (size_t col = 0; col < 5; ++col) ASSERT_EQ(ours.out[i * 5 + col], 0) << f.name;
      for (size_t col = 0; col < 6; ++col) ASSERT_EQ(ours.dq[i * 6 + col], 0) << f.name;
    }
    EXPECT_GE(empty, 280) << f.name;
  }
}

TEST(AttentionFeatures, SameBitsForAnyThreads) {
  const int before = num_threads();
  for (const Feature& f : features()) {
    for (const int64_t batch : {1, 2}) {
      Case c = f.make(700, batch);
      c.x.p = 0.125;
      c.x.dropout_key = 5;
      set_num_threads(1);
      const Solution one = run(c.x, c.pattern, DType::f32);
      for (const int threads : {1, 2, 3}) {
        set_num_threads(threads);
        expect_same_bits(run(c.x, c.pattern, DType::f32), one,
                         fmt::format("{} B {} threads {}", f.name, batch, threads));
      }
    }
  }
  set_num_threads(before);
}

TEST(AttentionFeatures, Dropout) {
  for (const Feature& f : features()) {
    Case c = f.make(130, 2);
    c.x.p = 0.375;
    c.x.dropout_key = 0x123456789ABCDEF0u;
    expect_near(run(c.x, c.pattern, DType::f64), solve(c.x), DType::f64, f.name);
    expect_near(run(c.x, c.pattern, DType::f32), solve(c.x), DType::f32, f.name);
  }
}

// Hidden keys reach no result: NaN in their k and Inf in their v change no bit.
TEST(AttentionFeatures, HiddenKeysMayHoldAnything) {
  for (const auto& [make, hides] :
       std::vector<std::pair<std::function<Case(int64_t, int64_t)>, std::function<bool(int64_t)>>>{
           {hidden, [](int64_t j) { return j % 5 == 0 || j % 7 == 3; }}}) {
    Case c = make(150, 1);
    const Solution clean = run(c.x, c.pattern, DType::f32);
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t j = 0; j < 150; ++j) {
        if (!hides(j)) continue;
        std::fill_n(c.x.k.begin() + (h * 150 + j) * 6, 6, std::nan(""));
        std::fill_n(c.x.v.begin() + (h * 150 + j) * 5, 5, kInfinity);
      }
    }
    expect_same_bits(run(c.x, c.pattern, DType::f32), clean, "hidden");
  }
}

// The same holds for keys that have mu = 0 for every query: NaN or Inf in them changes no bit.
TEST(AttentionFeatures, KeysWithMuOfZeroMayHoldAnything) {
  constexpr int64_t length = 150;
  for (const int64_t batch : {1, 2}) {  // both schedules of backward
    Case c = span_of_keys(length, batch);
    const auto gone = [](int64_t j) { return j % 7 == 3; };
    for (int64_t at = 0; at < batch * length; ++at) {
      if (gone(at % length)) c.x.span[static_cast<size_t>(at)] = -1000;
    }
    const Solution clean = run(c.x, c.pattern, DType::f32);
    for (int64_t at = 0; at < batch * kHeads * length; ++at) {
      if (!gone(at % length)) continue;
      std::fill_n(c.x.k.begin() + at * 6, 6, std::nan(""));
      std::fill_n(c.x.v.begin() + at * 5, 5, at % 2 == 0 ? std::nan("") : kInfinity);
    }
    expect_same_bits(run(c.x, c.pattern, DType::f32), clean, "mu of 0");
  }
}

// A query and a key with mu = 0 (ramp value of 0 or less, including exactly 0) do not affect each
// other's bits, whatever values they hold.
TEST(AttentionFeatures, PairsWithMuOfZeroKeepTheirBits) {
  constexpr int64_t length = 150, spoilt_key = 5, spoilt_query = 140;
  for (const int64_t batch : {1, 2}) {
    Case c = span_of_heads(length, batch);
    c.x.span = {3.5, 40.5};  // with the offset, mu is 0 at distances of 12 and 49
    const Solution clean = run(c.x, c.pattern, DType::f32);
    const Case given = c;
    const auto expect_kept = [](const std::vector<double>& a, const std::vector<double>& b,
                                int64_t row, int64_t width, const std::string& what) {
      EXPECT_EQ(std::memcmp(a.data() + row * width, b.data() + row * width,
                            static_cast<size_t>(width) * sizeof(double)),
                0)
          << what << " " << row;
    };
    for (const double bad : {std::nan(""), kInfinity}) {
      c = given;
      for (int64_t bh = 0; bh < batch * kHeads; ++bh) {
        std::fill_n(c.x.k.begin() + (bh * length + spoilt_key) * 6, 6, bad);
        std::fill_n(c.x.v.begin() + (bh * length + spoilt_key) * 5, 5, bad);
      }
      Solution y = run(c.x, c.pattern, DType::f32);
      for (int64_t bh = 0; bh < batch * kHeads; ++bh) {
        EXPECT_FALSE(std::isfinite(y.out[static_cast<size_t>((bh * length + spoilt_key) * 5)]));
        for (int64_t i = spoilt_key + (bh % 2 == 0 ? 12 : 49); i < length; ++i) {
          const int64_t row = bh * length + i;
          expect_kept(y.out, clean.out, row, 5, "out");
          expect_kept(y.lse, clean.lse, row, 1, "lse");
          expect_kept(y.dq, clean.dq, row, 6, "dq");
        }
      }
      c = given;
      for (int64_t bh = 0; bh < batch * kHeads; ++bh) {
        std::fill_n(c.x.q.begin() + (bh * length + spoilt_query) * 6, 6, bad);
        std::fill_n(c.x.dout.begin() + (bh * length + spoilt_query) * 5, 5, bad);
      }
      y = run(c.x, c.pattern, DType::f32);
      for (int64_t bh = 0; bh < batch * kHeads; ++bh) {
        for (int64_t j = 0; j <= spoilt_query - (bh % 2 == 0 ? 12 : 49); ++j) {
          expect_kept(y.dk, clean.dk, bh * length + j, 6, "dk");
          expect_kept(y.dv, clean.dv, bh * length + j, 5, "dv");
        }
      }
    }
  }
}

// Spans of queries that are equal in every row are spans of heads, to the bit.
TEST(AttentionFeatures, EqualSpansOfQueriesAreASpanOfTheHead) {
  for (const int64_t length : {1, 17, 150, 620}) {
    for (const int64_t batch : {1, 2}) {
      for (const DType dtype : {DType::f64, DType::f32}) {
        Case c = span_of_heads(length, batch);
        const Solution by_head = run(c.x, c.pattern, dtype);
        for (const double span : std::exchange(c.x.span, {})) {
          c.x.query_span.insert(c.x.query_span.end(), static_cast<size_t>(length), span);
        }
        c.x.query_span_shape = {1, kHeads, length};
        const Solution y = run(c.x, c.pattern, dtype);
        const std::string what = fmt::format("L {} B {}", length, batch);
        expect_same_bits(y.out, by_head.out, what + " out");
        expect_same_bits(y.lse, by_head.lse, what + " lse");
        expect_same_bits(y.dq, by_head.dq, what + " dq");
        expect_same_bits(y.dk, by_head.dk, what + " dk");
        expect_same_bits(y.dv, by_head.dv, what + " dv");
        std::vector<double> sums(kHeads, 0.0);
        for (size_t i = 0; i < y.dquery_span.size(); ++i) {
          sums[i / static_cast<size_t>(length)] += y.dquery_span[i];
        }
        EXPECT_LE(distance(sums, by_head.dspan), tolerance_of(dtype).gradient) << what;
      }
    }
  }
}

// With whole numbers the mask is exactly 0 and exactly 1 at some keys, and both count.
TEST(AttentionFeatures, SpansOfQueriesCountAtTheEndsOfTheRamp) {
  for (const int64_t batch : {1, 2}) {
    Case c = plain(100, batch);
    c.pattern.rules[0].causal = true;
    c.x.sees = [](int64_t, int64_t i, int64_t j) { return j <= i; };
    for (int64_t i = 0; i < 100; ++i) c.x.query_span.push_back(static_cast<double>(i * 7 % 40 - 9));
    c.x.query_span_shape = {1, 1, 100};
    c.x.ramp = 4;
    c.x.offset = 5;
    expect_near(run(c.x, c.pattern, DType::f64), solve(c.x), DType::f64, "f64");
    expect_near(run(c.x, c.pattern, DType::f32), solve(c.x), DType::f32, "f32");
    const std::vector<double> at_ends = run(c.x, c.pattern, DType::f64).dquery_span;
    for (double& s : c.x.query_span) s -= 1e-9;  // no key is at an end any more
    EXPECT_GT(distance(run(c.x, c.pattern, DType::f64).dquery_span, at_ends), 1e-3);
  }
}

TEST(AttentionFeatures, SpansOfQueriesMayHideAllKeys) {
  for (const int64_t batch : {1, 2}) {
    Case c = span_of_queries(250, batch);
    c.x.side = {};
    c.pattern = patterns::causal();
    for (size_t i = 0; i < c.x.query_span.size(); i += 3) c.x.query_span[i] = -1000;
    const Solution y = run(c.x, c.pattern, DType::f64);
    expect_near(y, solve(c.x), DType::f64, "some rows");
    EXPECT_EQ(y.lse[3], -kInfinity);
    EXPECT_EQ(y.dquery_span[3], 0.0);
    c.x.query_span.assign(c.x.query_span.size(), -1000);
    const Solution none = run(c.x, c.pattern, DType::f64);
    EXPECT_EQ(none.out, std::vector<double>(none.out.size(), 0.0));
    EXPECT_EQ(none.lse, std::vector<double>(none.lse.size(), -kInfinity));
    for (const auto* d : {&none.dq, &none.dk, &none.dv, &none.dquery_span}) {
      EXPECT_EQ(*d, std::vector<double>(d->size(), 0.0));
    }
  }
}

TEST(AttentionFeatures, SpansOfQueriesWithoutSamplesOrWithOneKey) {
  const auto zeros_of = [](const Shape& shape) { return leaf(Tensor::zeros(shape, DType::f64)); };
  const Tensor q = zeros_of({0, 2, 7, 4}), k = zeros_of({0, 2, 9, 4});
  ScoreTerms terms;
  terms.query_span = zeros_of({1, 2, 7});
  const AttentionResult y = block_attention(q, k, k, patterns::dense(), terms);
  backward(y.out, Tensor::zeros(y.out.shape(), DType::f64));
  EXPECT_EQ(grad(terms.query_span).to_vector<double>(), std::vector<double>(14, 0.0));
  Problem x = problem({2, kHeads, 6, 1, 3, 5}, [](int64_t, int64_t) { return true; });
  x.query_span = {-4, -3.5, -3, -2, -1.25, 0};  // the key comes after no row: distances -5 to 0
  x.query_span_shape = {1, 1, 6};
  x.ramp = 2.5;
  x.offset = 0.75;
  expect_near(run(x, patterns::dense(), DType::f64), solve(x), DType::f64, "one key");
}

}  // namespace

void expect_no_first_keys(DType dtype) {
  for (const int64_t batch : {1, 2}) {
    const int64_t rows = 30, keys = 9;
    const auto of = [&](int64_t n, int64_t width, uint64_t key) {
      return leaf(
          make(random_values(batch * kHeads * n * width, key), {batch, kHeads, n, width}, dtype));
    };
    const Tensor dy =
        make(random_values(batch * kHeads * rows * 5, 54), {batch, kHeads, rows, 5}, dtype);
    std::vector<std::vector<double>> all[2];
    for (const bool two : {false, true}) {
      const Tensor q = of(rows, 6, 51), k = of(keys, 6, 52), v = of(keys, 5, 53);
      const Keys segments[] = {{of(0, 6, 1), of(0, 5, 1)}, {k, v}};
      const AttentionResult y = two ? block_attention(q, segments, everything(rows, 0, keys))
                                    : block_attention(q, k, v, patterns::dense());
      backward(y.out, dy);
      all[two ? 1 : 0] = {values_of(y.out), values_of(grad(q)), values_of(grad(k)),
                          values_of(grad(v))};
    }
    EXPECT_EQ(all[0], all[1]) << batch;
  }
}

namespace {

TEST(AttentionFeatures, TheFirstSegmentMayHaveNoKeys) { expect_no_first_keys(DType::f32); }

}  // namespace

void expect_few_queries(DType dtype, bool relations) {
  struct Counts {
    int64_t batch, queries, keys, side_keys;
  };
  const auto all = [](int64_t, int64_t) { return true; };
  for (const Counts& n :
       {Counts{2, 1, 1536, 0}, {1, 40, 1700, 900}, {1, 100, 3100, 0}, {1, 3, 200, 1800}}) {
    const std::string what = fmt::format("L {} T {} + {}", n.queries, n.keys, n.side_keys);
    Problem x = problem({n.batch, kHeads, n.queries, n.keys, 6, 5}, all);
    if (n.side_keys > 0) {
      x.side.keys = n.side_keys;
      x.side.k = random_values(n.batch * kHeads * n.side_keys * 6, 21);
      x.side.v = random_values(n.batch * kHeads * n.side_keys * 5, 22);
    }
    const AttentionPattern p = everything(n.queries, n.keys, n.side_keys);
    expect_near(run(x, p, dtype), solve(x), dtype, what);
    x.p = 0.375;
    x.dropout_key = 42;
    expect_near(run(x, p, dtype), solve(x), dtype, what + " dropout");
    if (!relations || n.side_keys > 0) continue;
    add_relations(x, {1000, 3}, true, true, true, true);
    x.relation_query = random_values(n.batch * kHeads * n.queries * 6, 31);
    expect_near(run(x, p, dtype), solve(x), dtype, what + " relations");
  }
  // Covers splits without visible keys, for some rows or for all, and runs that begin before a
  // split.
  const auto near = [](int64_t p, int64_t j) { return j <= p && p - j < 50; };
  const auto strided = [](int64_t p, int64_t j) { return j <= p && (p - j) % 7 == 0; };
  Problem x = problem({1, kHeads, 20, 1600, 6, 5}, near);
  expect_near(run(x, patterns::local(50), dtype), solve(x), dtype, "local");
  x = problem({1, kHeads, 20, 1600, 6, 5}, strided);
  expect_near(run(x, patterns::strided(7), dtype), solve(x), dtype, "strided");
  const std::vector<int64_t> q_valid = {20, 10, 20}, k_valid = {700, 1600, 0};
  x = problem({3, kHeads, 20, 1600, 6, 5}, all);
  x.sees = [&](int64_t b, int64_t i, int64_t j) {
    const auto n = static_cast<size_t>(b);
    return i < q_valid[n] && j < k_valid[n];
  };
  const AttentionPattern lengths =
      with_lengths(patterns::dense(), Tensor::from(q_valid, {3}), Tensor::from(k_valid, {3}));
  expect_near(run(x, lengths, dtype), solve(x), dtype, "lengths");
}

Case globals_beside_windows(int64_t side_keys) {
  constexpr int64_t length = 1600, rows = kernels::kAttentionTileRows, globals = 70, reach = 40;
  // window_of() returns the window of keys of row i, which depends on its tile. row() and key()
  // return whether a row or a key is global.
  const auto window_of = [=](int64_t i) {
    return std::pair{std::max<int64_t>(i / rows * rows - reach, 0),
                     std::min((i / rows + 1) * rows + reach, length)};
  };
  const auto row = [](int64_t h, int64_t i) { return i / rows == (h == 0 ? 0 : length / rows); };
  const auto key = [](int64_t h, int64_t j) {
    return h == 0 ? j < globals : j >= length - globals;
  };
  Case c = plain(length, 1, side_keys);
  c.x.pair_sees = [=](int64_t, int64_t h, int64_t i, int64_t j) {
    const auto [from, to] = window_of(i);
    return row(h, i) || key(h, j) || (j >= from && j < to);
  };
  std::vector<std::vector<TileRuns>> layouts(2);
  for (size_t h = 0; h < 2; ++h) {
    for (int64_t q0 = 0; q0 < length; q0 += rows) {
      TileRuns t = tile_of(q0, std::min(q0 + rows, length));
      for (int64_t j = 0; j < length; ++j) {
        if (!c.x.pair_sees(0, static_cast<int64_t>(h), q0, j)) continue;
        if (t.runs.empty() || t.runs.back().k0 + t.runs.back().kn < j) {
          t.runs.push_back(run_of(j, j, RunKind::full));
        }
        ++t.runs.back().kn;
      }
      if (side_keys > 0) t.runs.push_back({0, static_cast<int32_t>(side_keys), 1, RunKind::full});
      layouts[h].push_back(t);
    }
  }
  c.pattern.layout =
      make_layout(length, length, layouts,
                  {.layout_index = table({1, 2}, [](int64_t, int64_t h) { return h; }),
                   .members = {{}, {}},
                   .side_keys = side_keys});
  return c;
}

void expect_globals_beside_windows(DType dtype) {
  Case c = globals_beside_windows(33);
  expect_near(run(c.x, c.pattern, dtype), solve(c.x), dtype, "globals");
  c = globals_beside_windows(0);
  add_relations(c.x, {60, 20}, true, true, true, true);
  c.x.relation_query = random_values(kHeads * 1600 * 6, 31);
  c.x.span = random_values(1600, 32);
  c.x.span_shape = {1, 1, 1600};
  c.x.ramp = 30;
  c.x.offset = 35;
  c.x.query_span = random_values(kHeads * 1600, 33);
  for (double& s : c.x.query_span) s = 200 + 200 * s;  // every row sees many keys
  c.x.query_span_shape = {1, kHeads, 1600};
  c.x.p = 0.375;
  c.x.dropout_key = 42;
  expect_near(run(c.x, c.pattern, dtype), solve(c.x), dtype, "terms");
}

namespace {

TEST(AttentionFeatures, GlobalsBesideWindows) { expect_globals_beside_windows(DType::f64); }

TEST(AttentionFeatures, FewQueries) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) expect_few_queries(dtype, true);
}

// Splits the pairs of a pattern into two patterns. In one tile of three both patterns get a share
// of every run; in the other tiles one pattern gets all of them.
std::vector<AttentionPattern> two_parts(const AttentionPattern& whole, int64_t queries,
                                        int64_t keys, int64_t side_keys) {
  const AttentionPattern p = resolve(whole, queries, keys, side_keys);
  const BlockLayout& layout = *p.layout;
  std::vector<LayoutMember> members;
  const auto table = layout.members.to_vector<int32_t>();
  for (size_t n = 0; n < table.size(); n += 3) {
    members.push_back({table[n], table[n + 1], table[n + 2]});
  }
  std::vector<AttentionPattern> parts;
  for (const bool first : {true, false}) {
    std::vector<std::vector<TileRuns>> tiles;
    for (int64_t n = 0; n < layout.layouts(); ++n) {
      tiles.push_back(tiles_of(layout, n));
      for (size_t t = 0; t < tiles.back().size(); ++t) {
        std::vector<KeyRun>& runs = tiles.back()[t].runs;
        for (KeyRun& r : runs) {
          const int32_t some = t % 3 == 0 ? r.kn / 3 : t % 3 == 1 ? r.kn : 0;
          if (!first) r.k0 += some;
          r.kn = first ? some : r.kn - some;
        }
        std::erase_if(runs, [](const KeyRun& r) { return r.kn == 0; });
      }
    }
    parts.push_back(p);
    parts.back().layout = make_layout(queries, keys, tiles,
                                      {.layout_index = layout.layout_index,
                                       .order_q = layout.order_q,
                                       .order_k = layout.order_k,
                                       .members = members,
                                       .side_keys = side_keys});
  }
  return parts;
}

}  // namespace

std::vector<AttentionPattern> parts_of(const Case& c) {
  return two_parts(c.pattern, c.x.n.queries, c.x.n.keys, c.x.side.keys);
}

namespace {

// Attention over disjoint patterns equals one softmax over their union, in either order.
TEST(AttentionFeatures, PartsEqualTheWhole) {
  for (const Feature& f : features()) {
    for (const int64_t batch : {1, 2}) {  // both schedules of backward
      Case c = f.make(257, batch);
      c.x.p = 0.125;
      c.x.dropout_key = 5;
      const Solution truth = solve(c.x);
      std::vector<AttentionPattern> parts = parts_of(c);
      for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
        expect_near(run(c.x, parts, dtype), truth, dtype, fmt::format("{} B {}", f.name, batch));
        std::swap(parts[0], parts[1]);
      }
    }
  }
}

TEST(AttentionFeatures, PartsGiveTheSameBitsForAnyThreads) {
  const int before = num_threads();
  for (const Feature& f : features()) {
    for (const int64_t batch : {1, 2}) {
      const Case c = f.make(700, batch);
      const std::vector<AttentionPattern> parts = parts_of(c);
      set_num_threads(1);
      const Solution one = run(c.x, parts, DType::f32);
      set_num_threads(3);
      expect_same_bits(run(c.x, parts, DType::f32), one, fmt::format("{} B {}", f.name, batch));
    }
  }
  set_num_threads(before);
}

// A row without visible keys in a later pattern keeps every bit, whatever its neighbours attend to.
TEST(AttentionFeatures, PartsLeaveOtherRowsAlone) {
  for (const int64_t batch : {1, 2}) {
    const Case c = plain(150, batch);
    std::vector<AttentionPattern> parts = {patterns::local(5),
                                           resolve(patterns::dilated(60, -5, 1), 150, 150)};
    const Solution alone = run(c.x, parts[0], DType::f32);
    const auto sees_more = [](int64_t i) { return i % 7 == 3; };
    parts[1].mask.q_from = table({1, 150}, [](int64_t, int64_t) { return 0; });
    parts[1].mask.q_to =
        table({1, 150}, [&](int64_t, int64_t i) { return sees_more(i) ? i + 1 : 0; });
    const Solution both = run(c.x, parts, DType::f32);
    for (int64_t i = 0; i < batch * kHeads * 150; ++i) {
      const bool same =
          std::memcmp(&both.lse[static_cast<size_t>(i)], &alone.lse[static_cast<size_t>(i)],
                      sizeof(double)) == 0 &&
          std::memcmp(&both.out[static_cast<size_t>(5 * i)], &alone.out[static_cast<size_t>(5 * i)],
                      5 * sizeof(double)) == 0;
      EXPECT_EQ(same, i % 150 < 5 || !sees_more(i % 150)) << i;
    }
  }
}

// A band, the keys before it and the side keys, computed separately and merged, equal one softmax.
TEST(AttentionMerge, PartsEqualTheWhole) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Tolerance t = tolerance_of(dtype);
    for (const int64_t length : kLengths) {
      Case c = plain(length, 2, 3);
      c.pattern.rules[0].causal = true;
      c.x.sees = [](int64_t, int64_t i, int64_t j) { return j <= i; };
      const std::vector<int64_t> lengths = {length, length / 2};  // rows beyond are empty
      const auto side_sees = [](int64_t, int64_t, int64_t j) { return j != 1; };
      c.x.sees = [&](int64_t b, int64_t i, int64_t j) {
        return j <= i && i < lengths[static_cast<size_t>(b)] && i % 4 != 3;
      };
      c.x.side.sees = [&](int64_t b, int64_t i, int64_t j) {
        return side_sees(b, i, j) && i < lengths[static_cast<size_t>(b)] && i % 3 != 0;
      };
      const Solution truth = solve(c.x);
      const auto& n = c.x.n;
      const Tensor q = leaf(make(c.x.q, {2, kHeads, length, n.width}, dtype));
      const Tensor k = leaf(make(c.x.k, {2, kHeads, length, n.width}, dtype));
      const Tensor v = leaf(make(c.x.v, {2, kHeads, length, n.value_width}, dtype));
      const Tensor side_k = leaf(make(c.x.side.k, {2, kHeads, 3, n.width}, dtype));
      const Tensor side_v = leaf(make(c.x.side.v, {2, kHeads, 3, n.value_width}, dtype));
      const Tensor valid = Tensor::from(lengths, {2});
      const auto rows = [&](int64_t period, int64_t keys) {  // one row of each period is empty
        AttentionPattern p = everything(length, keys, 0);
        p.q_valid = valid;
        p.rules[0].q_start = 0;
        p.mask.q_from = table({1, length}, [](int64_t, int64_t) { return 0; });
        p.mask.q_to = table({1, length}, [=](int64_t, int64_t i) {
          return i % period == period - 1 - (period == 3 ? 2 : 0) ? 0 : keys;
        });
        return p;
      };
      AttentionPattern near = rows(4, length), far = near, side = rows(3, 3);
      near.rules[0].causal = true;
      near.rules[0].window.left = 4;
      far.rules[0].window.right = -5;
      side.mask.k_hidden = hidden_keys(1, 3, [](int64_t, int64_t j) { return j == 1; });
      const AttentionResult parts[] = {block_attention(q, k, v, far),
                                       block_attention(q, k, v, near),
                                       block_attention(q, side_k, side_v, side)};
      const auto [out, lse] = merge_attention(parts);
      const Tensor outputs[] = {out, lse};
      const Tensor dy[] = {make(c.x.dout, out.shape(), dtype),
                           make(c.x.dlse, lse.shape(), lse.dtype())};
      backward(outputs, dy);
      const std::string what = fmt::format("L {} {}", length, name_of(dtype));
      EXPECT_LE(distance(values_of(out), truth.out), t.forward) << what;
      EXPECT_LE(distance(values_of(lse), truth.lse), t.forward) << what;
      EXPECT_LE(distance(values_of(grad(q)), truth.dq), t.gradient) << what;
      EXPECT_LE(distance(values_of(grad(k)), truth.dk), t.gradient) << what;
      EXPECT_LE(distance(values_of(grad(v)), truth.dv), t.gradient) << what;
      EXPECT_LE(distance(values_of(grad(side_k)), truth.dside_k), t.gradient) << what;
      EXPECT_LE(distance(values_of(grad(side_v)), truth.dside_v), t.gradient) << what;
    }
  }
}

TEST(AttentionMerge, RejectsBadInput) {
  const Tensor out = Tensor::zeros({1, 2, 3, 4}), lse = Tensor::zeros({1, 2, 3});
  EXPECT_THROW(merge_attention({}), ValueError);
  const AttentionResult missing[] = {{out, {}}}, rank[] = {{lse, lse}},
                        rows[] = {{out, Tensor::zeros({1, 2, 4})}},
                        shapes[] = {{out, lse}, {Tensor::zeros({1, 2, 3, 5}), lse}},
                        dtypes[] = {{out, lse}, {Tensor::zeros({1, 2, 3, 4}, DType::f64), lse}};
  EXPECT_THROW(merge_attention(missing), ValueError);
  EXPECT_THROW(merge_attention(rank), ShapeError);
  EXPECT_THROW(merge_attention(rows), ShapeError);
  EXPECT_THROW(merge_attention(shapes), ShapeError);
  EXPECT_THROW(merge_attention(dtypes), DTypeError);
  const AttentionResult one[] = {{out, lse}};
  EXPECT_EQ(merge_attention(one).out.view().data, out.view().data);
}

}  // namespace
}  // namespace longspan::attention_test
