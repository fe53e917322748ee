#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "ops/attention/block_attention.h"

/// A dense, masked oracle of block attention in f64, and comparisons with it.
namespace longspan::attention_test {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Lengths of the kernel spec's first test.
inline const std::vector<int64_t> kLengths = {1, 2, 15, 16, 17, 63, 64, 65, 100, 257};

// ---------------------------------------------------------------------------------------- inputs

inline std::vector<double> random_values(int64_t count, uint64_t seed) {
  std::vector<double> x(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    x[static_cast<size_t>(i)] = 2.0 * to_uniform(philox_word(Generator{seed}.fork("x").key, i)) - 1;
  }
  return x;
}

inline Tensor make(const std::vector<double>& values, const Shape& shape, DType dtype) {
  switch (dtype) {
    case DType::f64:
      return Tensor::from(values, shape);
    case DType::f32: {
      const std::vector<float> x(values.begin(), values.end());
      return Tensor::from(x, shape);
    }
    case DType::bf16: {
      std::vector<bf16> x;
      for (const double v : values) x.push_back(bf16(static_cast<float>(v)));
      return Tensor::from(x, shape);
    }
    default: {
      std::vector<f16> x;
      for (const double v : values) x.push_back(f16(static_cast<float>(v)));
      return Tensor::from(x, shape);
    }
  }
}

inline std::vector<double> values_of(const Tensor& x) {
  std::vector<double> out;
  switch (x.dtype()) {
    case DType::f64:
      return x.to_vector<double>();
    case DType::f32:
      for (const float v : x.to_vector<float>()) out.push_back(static_cast<double>(v));
      return out;
    case DType::bf16:
      for (const bf16 v : x.to_vector<bf16>()) out.push_back(static_cast<double>(float{v}));
      return out;
    default:
      for (const f16 v : x.to_vector<f16>()) out.push_back(static_cast<double>(float{v}));
      return out;
  }
}

// Views x [B, L, H, d] as [B, H, L, d], which is how the output of a merged projection is stored.
inline Tensor heads_view(const Tensor& x) {
  const int64_t b = x.dim(0), l = x.dim(1), h = x.dim(2), d = x.dim(3);
  return x.alias({b, h, l, d}, {l * h * d, d, h * d, 1}, 0);
}

inline Tensor leaf(Tensor x) {
  set_requires_grad(x);
  return x;
}

// ---------------------------------------------------------------------------------------- oracle

struct Sizes {
  int64_t batch = 1, heads = 1, queries = 1, keys = 1, width = 1, value_width = 1;
};

/// A dense problem: one or two key segments in one softmax, with every term and mask of the op as a
/// function of indices. An empty member means that the term or mask is absent.
struct Problem {
  using Sees = std::function<bool(int64_t, int64_t, int64_t)>;      // sample, query, key
  using Label = std::function<int64_t(int64_t, int64_t, int64_t)>;  // same arguments; -1: hidden
  struct Side {
    int64_t keys = 0;
    std::vector<double> k, v;
    Sees sees;
    Label label;
  };

  Sizes n;
  std::vector<double> q, k, v, dout, dlse;  // [B, H, rows, width]
  Relation id;
  int64_t ids = 0;                       // rows of the tables; 0: one per distance
  std::vector<double> key, bias, value;  // empty: none
  std::vector<double> relation_query;    // empty: q
  bool per_head = false;
  Sees sees;  // for the first segment
  // A further condition for the first segment: sample, head, query, key.
  std::function<bool(int64_t, int64_t, int64_t, int64_t)> pair_sees;
  Label label;  // id of a pair of the first segment, in place of its clipped distance
  std::function<int64_t(int64_t, int64_t)> times;  // query, key: multiplicity of the pair
  Side side;
  double side_times = 1;     // multiplicity of the side keys
  std::vector<double> span;  // [span_shape]
  Shape span_shape;
  std::vector<double> query_span;  // [query_span_shape]
  Shape query_span_shape;
  double ramp = 1, offset = 0;
  double p = 0;
  uint64_t dropout_key = 0;

  int64_t table_rows() const { return ids > 0 ? ids : id.left + id.right + 1; }
};

struct Solution {
  std::vector<double> out, lse, dq, dk, dv, dkey = {}, dbias = {}, dvalue = {};
  std::vector<double> dside_k = {}, dside_v = {}, drelation_query = {}, dspan = {};
  std::vector<double> dquery_span = {};
};

// Solves the problem densely, with masks and in f64, straight from the equations.
inline Solution solve(const Problem& x) {
  const auto& n = x.n;
  const double scale = 1 / std::sqrt(static_cast<double>(n.width));
  const int64_t ids = x.table_rows(), all_keys = n.keys + x.side.keys;
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };
  const std::vector<double>& relation_query = x.relation_query.empty() ? x.q : x.relation_query;
  Solution y;
  y.out.resize(at(n.batch * n.heads * n.queries * n.value_width));
  y.lse.assign(at(n.batch * n.heads * n.queries), -kInfinity);
  y.dq.resize(x.q.size());
  y.dk.resize(x.k.size());
  y.dv.resize(x.v.size());
  y.dkey.resize(x.key.size());
  y.dbias.resize(x.bias.size());
  y.dvalue.resize(x.value.size());
  y.dside_k.resize(x.side.k.size());
  y.dside_v.resize(x.side.v.size());
  y.drelation_query.resize(x.relation_query.size());
  y.dspan.resize(x.span.size());
  y.dquery_span.resize(x.query_span.size());
  std::vector<double>& dr = x.relation_query.empty() ? y.dq : y.drelation_query;
  for (int64_t bh = 0; bh < n.batch * n.heads; ++bh) {
    const int64_t b = bh / n.heads, h = bh % n.heads, table = x.per_head ? h * ids : 0;
    // Key j, counted over both segments: its segment and index, and its rows of k, v, dk and dv.
    struct Key {
      int64_t segment, index;
      const double *k, *v;
      double *dk, *dv;
    };
    const auto key_of = [&](int64_t j) -> Key {
      const bool main = j < n.keys;
      const int64_t index = main ? j : j - n.keys;
      const int64_t row = bh * (main ? n.keys : x.side.keys) + index;
      return {main ? 0 : 1,
              index,
              &(main ? x.k : x.side.k)[at(row * n.width)],
              &(main ? x.v : x.side.v)[at(row * n.value_width)],
              &(main ? y.dk : y.dside_k)[at(row * n.width)],
              &(main ? y.dv : y.dside_v)[at(row * n.value_width)]};
    };
    for (int64_t i = 0; i < n.queries; ++i) {
      const int64_t position = i + n.keys - n.queries;
      const double* q = &x.q[at((bh * n.queries + i) * n.width)];
      const double* r = &relation_query[at((bh * n.queries + i) * n.width)];
      double* dq = &y.dq[at((bh * n.queries + i) * n.width)];
      double* dr_row = &dr[at((bh * n.queries + i) * n.width)];
      const double* dout = &x.dout[at((bh * n.queries + i) * n.value_width)];
      double* out = &y.out[at((bh * n.queries + i) * n.value_width)];
      const auto id_of = [&](const Key& key) {
        const Problem::Label& label = key.segment == 0 ? x.label : x.side.label;
        if (label) return label(b, i, key.index);
        const int64_t p = key.segment == 0 ? position : i;
        return std::clamp(key.index - p, -x.id.left, x.id.right) + x.id.left;
      };
      const auto sees = [&](const Key& key) {
        if (key.segment == 1) {
          return (!x.side.sees || x.side.sees(b, i, key.index)) && id_of(key) >= 0;
        }
        return x.sees(b, i, key.index) && (!x.pair_sees || x.pair_sees(b, h, i, key.index)) &&
               id_of(key) >= 0;
      };
      const auto span_at = [&](int64_t j) {
        const auto index = [&](int axis, int64_t k) { return x.span_shape[axis] > 1 ? k : 0; };
        return (index(0, b) * x.span_shape[1] + index(1, h)) * x.span_shape[2] + index(2, j);
      };
      const auto query_span_at = [&] {
        const auto index = [&](int axis, int64_t k) {
          return x.query_span_shape[axis] > 1 ? k : 0;
        };
        return (index(0, b) * x.query_span_shape[1] + index(1, h)) * n.queries + i;
      };
      const bool soft = !x.span.empty() || !x.query_span.empty();
      // Returns the ramp of the spans before clamping; 1 without any and for the second segment.
      const auto ramp_of = [&](const Key& key) {
        if (!soft || key.segment == 1) return 1.0;
        double span = x.offset;
        if (!x.span.empty()) span += x.span[at(span_at(key.index))];
        if (!x.query_span.empty()) span += x.query_span[at(query_span_at())];
        return (span - static_cast<double>(position - key.index)) / x.ramp;
      };
      std::vector<double> s(at(all_keys), -kInfinity), keep(at(all_keys), 1), mu(at(all_keys), 0);
      double top = -kInfinity, sum = 0;
      for (int64_t j = 0; j < all_keys; ++j) {
        const Key key = key_of(j);
        if (x.p > 0) {
          const Philox4 words =
              philox(x.dropout_key, static_cast<uint32_t>(key.index / 4), static_cast<uint32_t>(i),
                     static_cast<uint32_t>(bh), static_cast<uint32_t>(key.segment));
          keep[at(j)] = words.word[key.index % 4] >= drop_threshold(x.p) ? 1 / (1 - x.p) : 0;
        }
        if (!sees(key)) continue;
        const int64_t id = x.key.empty() && x.bias.empty() ? 0 : id_of(key);
        double score = 0;
        for (int64_t c = 0; c < n.width; ++c) {
          score += q[c] * key.k[c];
          if (!x.key.empty()) score += r[c] * x.key[at((table + id) * n.width + c)];
        }
        if (!x.bias.empty()) score += x.bias[at(table + id)];
        s[at(j)] = scale * score;
        mu[at(j)] = std::clamp(ramp_of(key), 0.0, 1.0);
        if (x.times && key.segment == 0) {
          mu[at(j)] *= static_cast<double>(x.times(i, key.index));
        }
        if (key.segment == 1) mu[at(j)] *= x.side_times;
        if (mu[at(j)] > 0) top = std::max(top, s[at(j)]);
      }
      if (top == -kInfinity) continue;
      for (int64_t j = 0; j < all_keys; ++j) {
        if (mu[at(j)] > 0) sum += mu[at(j)] * std::exp(s[at(j)] - top);
      }
      const double lse = top + std::log(sum);
      y.lse[at(bh * n.queries + i)] = lse;
      const auto value = [&](const Key& key, int64_t c) {
        double v = key.v[c];
        if (!x.value.empty()) v += x.value[at((table + id_of(key)) * n.value_width + c)];
        return v;
      };
      double delta = 0;
      std::vector<double> plain(at(all_keys)), dp(at(all_keys));  // without mu
      for (int64_t j = 0; j < all_keys; ++j) {
        if (s[at(j)] == -kInfinity) continue;
        const Key key = key_of(j);
        plain[at(j)] = std::exp(s[at(j)] - lse);
        const double p = mu[at(j)] * plain[at(j)];
        for (int64_t c = 0; c < n.value_width; ++c) {
          out[c] += p * keep[at(j)] * value(key, c);
          dp[at(j)] += keep[at(j)] * dout[c] * value(key, c);
        }
        delta += p * dp[at(j)];
      }
      for (int64_t j = 0; j < all_keys; ++j) {
        if (s[at(j)] == -kInfinity) continue;
        const Key key = key_of(j);
        const double d_plain = plain[at(j)] * (dp[at(j)] - delta + x.dlse[at(bh * n.queries + i)]);
        const double ramp = ramp_of(key);
        if (soft && key.segment == 0 && ramp >= 0 && ramp <= 1) {
          const double often = x.times ? static_cast<double>(x.times(i, key.index)) : 1;
          const double d_span = often * d_plain / x.ramp;
          if (!x.span.empty()) y.dspan[at(span_at(key.index))] += d_span;
          if (!x.query_span.empty()) y.dquery_span[at(query_span_at())] += d_span;
        }
        const double p = mu[at(j)] * plain[at(j)], ds = mu[at(j)] * d_plain * scale;
        const int64_t id = x.key.empty() && x.bias.empty() && x.value.empty() ? 0 : id_of(key);
        for (int64_t c = 0; c < n.width; ++c) {
          dq[c] += ds * key.k[c];
          key.dk[c] += ds * q[c];
          if (!x.key.empty()) {
            const size_t entry = at((table + id) * n.width + c);
            dr_row[c] += ds * x.key[entry];
            y.dkey[entry] += ds * r[c];
          }
        }
        if (!x.bias.empty()) y.dbias[at(table + id)] += ds;
        for (int64_t c = 0; c < n.value_width; ++c) {
          const double g = p * keep[at(j)] * dout[c];
          key.dv[c] += g;
          if (!x.value.empty()) y.dvalue[at((table + id) * n.value_width + c)] += g;
        }
      }
    }
  }
  return y;
}

inline Problem problem(const Sizes& n, std::function<bool(int64_t, int64_t)> sees_position) {
  Problem x;
  x.n = n;
  const int64_t heads = n.batch * n.heads;
  x.q = random_values(heads * n.queries * n.width, 1);
  x.k = random_values(heads * n.keys * n.width, 2);
  x.v = random_values(heads * n.keys * n.value_width, 3);
  x.dout = random_values(heads * n.queries * n.value_width, 4);
  x.dlse = random_values(heads * n.queries, 5);
  for (double& value : x.q) value *= 3;
  const int64_t memory = n.keys - n.queries;
  x.sees = [memory, sees_position](int64_t, int64_t i, int64_t j) {
    return sees_position(i + memory, j);
  };
  return x;
}

inline void add_relations(Problem& x, const Relation& id, bool per_head, bool key, bool bias,
                          bool value) {
  x.id = id;
  x.per_head = per_head;
  const int64_t rows = x.table_rows() * (per_head ? x.n.heads : 1);
  if (key) x.key = random_values(rows * x.n.width, 6);
  if (bias) x.bias = random_values(rows, 7);
  if (value) x.value = random_values(rows * x.n.value_width, 8);
}

// Runs the op on a problem, forward and backward, with its pairs in one or several patterns.
inline Solution run(const Problem& x, std::span<const AttentionPattern> parts, DType dtype) {
  const auto& n = x.n;
  const auto tensor = [&](const std::vector<double>& values, const Shape& shape) {
    return values.empty() && numel(shape) > 0 ? Tensor{} : leaf(make(values, shape, dtype));
  };
  const Tensor q = tensor(x.q, {n.batch, n.heads, n.queries, n.width});
  Keys keys[] = {{tensor(x.k, {n.batch, n.heads, n.keys, n.width}),
                  tensor(x.v, {n.batch, n.heads, n.keys, n.value_width})},
                 {}};
  if (x.side.keys > 0) {
    keys[1] = {tensor(x.side.k, {n.batch, n.heads, x.side.keys, n.width}),
               tensor(x.side.v, {n.batch, n.heads, x.side.keys, n.value_width})};
  }
  const auto table = [&](const std::vector<double>& values, int64_t width) {
    if (values.empty()) return Tensor{};
    Shape shape{x.table_rows()};
    if (width > 0) shape.push_back(width);
    if (x.per_head) shape.insert(0, n.heads);
    return leaf(make(values, shape, dtype));
  };
  ScoreTerms terms;
  terms.id = x.id;
  terms.relation_key = table(x.key, n.width);
  terms.relation_bias = table(x.bias, 0);
  terms.relation_value = table(x.value, n.value_width);
  if (!x.relation_query.empty()) terms.relation_query = tensor(x.relation_query, q.shape());
  if (!x.span.empty()) terms.span = leaf(make(x.span, x.span_shape, accumulator_of(dtype)));
  if (!x.query_span.empty()) {
    terms.query_span = leaf(make(x.query_span, x.query_span_shape, accumulator_of(dtype)));
  }
  if (terms.span || terms.query_span) {
    terms.ramp = x.ramp;
    terms.offset = x.offset;
  }
  Dropout dropout;
  if (x.p > 0) dropout = {static_cast<float>(x.p), {true, {x.dropout_key}}};

  const auto [out, lse] = block_attention(q, std::span<const Keys>(keys, x.side.keys > 0 ? 2 : 1),
                                          parts, terms, dropout);
  const Tensor outputs[] = {out, lse};
  const Tensor dy[] = {make(x.dout, out.shape(), dtype), make(x.dlse, lse.shape(), lse.dtype())};
  backward(outputs, dy);
  const auto gradient = [](const Tensor& t) {
    return t ? values_of(grad(t)) : std::vector<double>{};
  };
  return {values_of(out),
          values_of(lse),
          gradient(q),
          gradient(keys[0].k),
          gradient(keys[0].v),
          gradient(terms.relation_key),
          gradient(terms.relation_bias),
          gradient(terms.relation_value),
          gradient(keys[1].k),
          gradient(keys[1].v),
          gradient(terms.relation_query),
          gradient(terms.span),
          gradient(terms.query_span)};
}

inline Solution run(const Problem& x, const AttentionPattern& pattern, DType dtype) {
  return run(x, std::span<const AttentionPattern>(&pattern, 1), dtype);
}

// Returns the largest difference relative to the largest value of b. Returns infinity if sizes or
// infinities differ, or if a difference is NaN.
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return kInfinity;
  double worst = 0, largest = 1e-30;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isinf(a[i]) || std::isinf(b[i])) {
      if (a[i] != b[i]) return kInfinity;
      continue;
    }
    if (!(std::abs(a[i] - b[i]) <= kInfinity)) return kInfinity;  // NaN
    worst = std::max(worst, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return worst / std::max(largest, 1e-6);
}

struct Tolerance {
  double forward, gradient;
};

inline Tolerance tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return {1e-12, 1e-12};
    case DType::f32:
      return {2e-5, 1e-4};
    case DType::bf16:  // inputs and results are rounded to 8 bits
      return {2e-2, 4e-2};
    default:  // 11 bits
      return {3e-3, 6e-3};
  }
}

inline void expect_near(const Solution& ours, const Solution& truth, DType dtype,
                        const std::string& what) {
  const Tolerance t = tolerance_of(dtype);
  EXPECT_LE(distance(ours.out, truth.out), t.forward) << what << " out";
  EXPECT_LE(distance(ours.lse, truth.lse), t.forward) << what << " lse";
  EXPECT_LE(distance(ours.dq, truth.dq), t.gradient) << what << " dq";
  EXPECT_LE(distance(ours.dk, truth.dk), t.gradient) << what << " dk";
  EXPECT_LE(distance(ours.dv, truth.dv), t.gradient) << what << " dv";
  EXPECT_LE(distance(ours.dkey, truth.dkey), t.gradient) << what << " drelation_key";
  EXPECT_LE(distance(ours.dbias, truth.dbias), t.gradient) << what << " drelation_bias";
  EXPECT_LE(distance(ours.dvalue, truth.dvalue), t.gradient) << what << " drelation_value";
  EXPECT_LE(distance(ours.dside_k, truth.dside_k), t.gradient) << what << " dk of the side";
  EXPECT_LE(distance(ours.dside_v, truth.dside_v), t.gradient) << what << " dv of the side";
  EXPECT_LE(distance(ours.drelation_query, truth.drelation_query), t.gradient)
      << what << " drelation_query";
  EXPECT_LE(distance(ours.dspan, truth.dspan), t.gradient) << what << " dspan";
  EXPECT_LE(distance(ours.dquery_span, truth.dquery_span), t.gradient) << what << " dquery_span";
}

inline void expect_same_bits(const std::vector<double>& a, const std::vector<double>& b,
                             const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  if (a.empty()) return;
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(double)), 0) << what;
}

inline void expect_same_bits(const Solution& a, const Solution& b, const std::string& what) {
  expect_same_bits(a.out, b.out, what + " out");
  expect_same_bits(a.lse, b.lse, what + " lse");
  expect_same_bits(a.dq, b.dq, what + " dq");
  expect_same_bits(a.dk, b.dk, what + " dk");
  expect_same_bits(a.dv, b.dv, what + " dv");
  expect_same_bits(a.dkey, b.dkey, what + " drelation_key");
  expect_same_bits(a.dbias, b.dbias, what + " drelation_bias");
  expect_same_bits(a.dvalue, b.dvalue, what + " drelation_value");
  expect_same_bits(a.dside_k, b.dside_k, what + " dk of the side");
  expect_same_bits(a.dside_v, b.dside_v, what + " dv of the side");
  expect_same_bits(a.drelation_query, b.drelation_query, what + " drelation_query");
  expect_same_bits(a.dspan, b.dspan, what + " dspan");
  expect_same_bits(a.dquery_span, b.dquery_span, what + " dquery_span");
}

}  // namespace longspan::attention_test
