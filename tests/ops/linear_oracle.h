#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/attention/linear_attention.h"
#include "tests/harness/input_spec.h"

/// Linear attention from its definition, dense and in f64: the kernel of every pair, then the
/// quotient. Exponential kernels are summed as logarithms, so that they hold for inputs of any
/// size.
namespace longspan::linear_test {

using test::Array;

/// An array that is not given.
inline Array absent() {
  Array x;
  x.defined = false;
  return x;
}

/// The inputs of a call, with projections and phases for all heads or for each.
struct Problem {
  Array q, k, v;
  Array projection = absent(), phase = absent(), lengths = absent(), hidden = absent();
  Array sums = absent(), top = absent();
  FeatureMap map = FeatureMap::positive;
  bool causal = false;
  double scale = 1, epsilon = 0, floor = 0;

  int64_t m() const { return projection ? projection.dim(-2) : q.dim(3); }
  int64_t features() const { return m() * kernels::feature_halves(map); }
};

/// Results: out, the normalizer, and the sums of the state after all keys, times 2^top.
struct Solution {
  Array out, normalizer, sums;
};

inline double feature(FeatureMap map, double u) {
  switch (map) {
    case FeatureMap::relu:
      return std::max(u, 0.0);
    case FeatureMap::elu_plus_one:
      return u > 0 ? u + 1 : std::exp(u);
    case FeatureMap::abs:
      return std::abs(u);
    case FeatureMap::square:
      return u * u;
    case FeatureMap::gelu:
      return u * 0.5 * std::erfc(-u / std::sqrt(2.0));
    case FeatureMap::sigmoid:
      return 1 / (1 + std::exp(-u));
    case FeatureMap::tanh:
      return std::tanh(u);
    default:
      return u;
  }
}

/// The features of one row. `exponent` is a base-2 logarithm: of each feature if they are
/// exponential, else of a common factor.
struct Row {
  std::vector<double> feature, exponent;
};

inline Row row_of(const Problem& x, const Array& rows, int64_t b, int64_t h, int64_t i, bool key) {
  const int64_t d = rows.dim(3), m = x.m();
  const double* const from = rows.values.data() + ((b * rows.dim(1) + h) * rows.dim(2) + i) * d;
  const int64_t per_head = x.projection && x.projection.shape.rank() == 3 ? h : 0;
  const int64_t phase_head = x.phase && x.phase.shape.rank() == 2 ? h : 0;
  double norm = 0;
  for (int64_t c = 0; c < d; ++c) norm += x.scale * x.scale * from[c] * from[c] / 2;
  const double log2e = 1 / std::log(2.0);
  const double own = key ? kernels::norm_sign(x.map) * norm * log2e : 0;
  const double a = !x.projection ? 1 : 1 / std::sqrt(static_cast<double>(m));
  Row y;
  std::vector<double> second;
  for (int64_t r = 0; r < m; ++r) {
    double u = 0;
    if (x.projection) {
      for (int64_t c = 0; c < d; ++c)
        u += x.projection[(per_head * m + r) * d + c] * x.scale * from[c];
    } else {
      u = x.scale * from[r];
    }
    if (kernels::is_exponential(x.map)) {
      y.exponent.push_back(u * log2e + own);
      second.push_back(-u * log2e + own);
    } else if (x.map == FeatureMap::trigonometric) {
      y.feature.push_back(a * std::cos(u));
      second.push_back(a * std::sin(u));
    } else if (x.map == FeatureMap::phase) {
      y.feature.push_back(std::sqrt(2.0) * a * std::cos(u + x.phase[phase_head * m + r]));
    } else {
      y.feature.push_back(a * feature(x.map, u) + x.epsilon);
    }
  }
  if (x.map == FeatureMap::hyperbolic) {
    y.exponent.insert(y.exponent.end(), second.begin(), second.end());
  } else if (x.map == FeatureMap::trigonometric) {
    y.feature.insert(y.feature.end(), second.begin(), second.end());
  }
  if (!kernels::is_exponential(x.map)) y.exponent.assign(y.feature.size(), own);
  if (kernels::is_exponential(x.map)) y.feature.assign(y.exponent.size(), 1);
  return y;
}

inline bool exists(const Problem& x, int64_t b, int64_t j) {
  if (x.lengths && j >= static_cast<int64_t>(x.lengths[b])) return false;
  return !x.hidden || x.hidden[(x.hidden.dim(0) == 1 ? 0 : b * x.k.dim(2)) + j] == 0;
}

/// One thing that a query sees: a key, or one feature of the state.
struct Term {
  double log = 0, factor = 0;  // weight factor 2^log
  const double* value = nullptr;
  double one = 1;  // its share of the denominator, per weight
};

/// Solves one row from its terms: log of the largest weight, then the quotient.
inline void solve_row(const Problem& x, const std::vector<Term>& terms, double reference,
                      double* out, double& normalizer) {
  const int64_t width = x.v.dim(3);
  const bool exponential = kernels::is_exponential(x.map);
  double top = exponential ? -std::numeric_limits<double>::infinity() : reference;
  for (const Term& t : terms) {
    if (exponential) top = std::max(top, t.log);
  }
  std::vector<double> n(static_cast<size_t>(width), 0);
  double r = 0;
  for (const Term& t : terms) {
    const double weight = t.factor * std::exp2(t.log - top);
    for (int64_t c = 0; c < width; ++c) n[static_cast<size_t>(c)] += weight * t.value[c];
    r += weight * t.one;
  }
  if (!exponential && r != 0 && std::abs(r) < x.floor) r = std::copysign(x.floor, r);
  normalizer = exponential
                   ? (terms.empty() ? -std::numeric_limits<double>::infinity() : std::log2(r) + top)
                   : r;
  for (int64_t c = 0; c < width; ++c) out[c] = r == 0 ? 0 : n[static_cast<size_t>(c)] / r;
}

inline Solution solve(const Problem& x) {
  const int64_t batch = x.q.dim(0), heads = x.q.dim(1), L = x.q.dim(2), T = x.k.dim(2);
  const int64_t width = x.v.dim(3), features = x.features();
  Solution y{Array({batch, heads, L, width}), Array({batch, heads, L}),
             Array({batch, heads, features, width + 1})};
  for (int64_t bh = 0; bh < batch * heads; ++bh) {
    const int64_t b = bh / heads, h = bh % heads;
    std::vector<Row> keys;
    for (int64_t j = 0; j < T; ++j) keys.push_back(row_of(x, x.k, b, h, j, true));
    const double* const state =
        x.sums ? x.sums.values.data() + bh * features * (width + 1) : nullptr;
    const double* const top = x.top ? x.top.values.data() + bh * features : nullptr;
    double* const sums = y.sums.values.data() + bh * features * (width + 1);
    for (int64_t r = 0; r < features; ++r) {
      for (int64_t c = 0; c <= width; ++c) {
        double& sum = sums[r * (width + 1) + c];
        if (state != nullptr) sum += state[r * (width + 1) + c] * std::exp2(top[r]);
        for (int64_t j = 0; j < T; ++j) {
          if (!exists(x, b, j)) continue;
          const double value = c < width ? x.v[(bh * T + j) * width + c] : 1;
          const auto at = static_cast<size_t>(r);
          sum += keys[static_cast<size_t>(j)].feature[at] *
                 std::exp2(keys[static_cast<size_t>(j)].exponent[at]) * value;
        }
      }
    }
    for (int64_t i = 0; i < L; ++i) {
      const Row q = row_of(x, x.q, b, h, i, false);
      std::vector<Term> terms;
      double reference = kernels::is_oscillating(x.map) ? (top != nullptr ? top[0] : -1e30) : 0;
      for (int64_t r = 0; state != nullptr && r < features; ++r) {
        const double* const row = state + r * (width + 1);
        const auto at = static_cast<size_t>(r);
        terms.push_back({q.exponent[at] + top[r], q.feature[at], row, row[width]});
      }
      for (int64_t j = 0; j < (x.causal ? i + 1 : T); ++j) {
        if (!exists(x, b, j)) continue;
        const Row& k = keys[static_cast<size_t>(j)];
        const double* const value = x.v.values.data() + (bh * T + j) * width;
        if (kernels::is_oscillating(x.map)) reference = std::max(reference, k.exponent[0]);
        for (size_t r = 0; r < k.feature.size(); ++r) {
          terms.push_back({q.exponent[r] + k.exponent[r], q.feature[r] * k.feature[r], value, 1});
        }
      }
      solve_row(x, terms, reference, y.out.values.data() + (bh * L + i) * width,
                y.normalizer[bh * L + i]);
    }
  }
  return y;
}

}  // namespace longspan::linear_test
