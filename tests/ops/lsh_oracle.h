#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "ops/attention/lsh.h"

/// LSH attention from its definition, dense and in f64: N_ij is counted chunk by chunk, and one
/// softmax runs over all pairs.
namespace longspan::lsh_test {

struct Sizes {
  int64_t batch = 1, heads = 1, rounds = 1, length = 1, width = 1, value_width = 1;
  int64_t all_heads() const { return batch * heads; }
};

/// Returns N [L, L] of one head with bucket ids [R, L].
inline std::vector<double> count_pairs(const int32_t* ids, int64_t rounds, int64_t length,
                                       const LshOptions& o) {
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };
  const int64_t chunks = (length + o.chunk - 1) / o.chunk, all = rounds * chunks;
  // The tokens of every chunk of every round, and the chunk of every token.
  std::vector<std::vector<int64_t>> members(at(all));
  std::vector<int64_t> chunk_of(at(rounds * length));
  for (int64_t r = 0; r < rounds; ++r) {
    std::vector<int64_t> order(at(length));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return ids[r * length + a] < ids[r * length + b];
    });
    for (int64_t p = 0; p < length; ++p) {
      const int64_t flat = r * chunks + p / o.chunk;
      members[at(flat)].push_back(order[at(p)]);
      chunk_of[at(r * length + order[at(p)])] = flat;
    }
  }
  std::vector<double> count(at(length * length), 0);
  for (int64_t r = 0; r < rounds; ++r) {
    for (int64_t i = 0; i < length; ++i) {
      std::vector<int64_t> seen;
      for (int64_t offset = -o.before; offset <= o.after; ++offset) {
        const int64_t own = chunk_of[at(r * length + i)], local = own - r * chunks + offset;
        if (o.wrap == LshWrap::none) {
          if (local >= 0 && local < chunks) seen.push_back(own + offset);
        } else if (o.wrap == LshWrap::round) {
          seen.push_back(r * chunks + ((local % chunks) + chunks) % chunks);
        } else {
          seen.push_back((((own + offset) % all) + all) % all);
        }
      }
      if (!o.repeat_chunks) {
        const std::set<int64_t> once(seen.begin(), seen.end());
        seen.assign(once.begin(), once.end());
      }
      for (const int64_t flat : seen) {
        const int64_t s = flat / chunks;
        for (const int64_t j : members[at(flat)]) {
          if (o.same_bucket && (s != r || ids[r * length + i] != ids[s * length + j])) continue;
          if (i != j) {
            if (ids[i] == o.buckets || ids[j] == o.buckets) continue;
            if (o.causal && j > i) continue;
          }
          count[at(i * length + j)] += 1;
        }
      }
    }
  }
  return count;
}

struct Solution {
  std::vector<double> out, lse, dq, dv;
};

/// Solves the problem. Inputs are row-major [B, H, L, ..]; an empty dout or dlse means zero. `drop`
/// returns the dropout factor of a pair (head, i, j).
template <class Drop>
Solution solve(const Sizes& n, const std::vector<double>& q, const std::vector<double>& v,
               const std::vector<int32_t>& ids, const LshOptions& o,
               const std::vector<double>& dout, const std::vector<double>& dlse, Drop drop) {
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };
  const int64_t L = n.length, d = n.width, e = n.value_width;
  const double scale = o.scale == LshScale::official ? 1 : 1 / std::sqrt(static_cast<double>(d));
  Solution y;
  y.out.assign(at(n.all_heads() * L * e), 0);
  y.lse.assign(at(n.all_heads() * L), 0);
  y.dq.assign(q.size(), 0);
  y.dv.assign(v.size(), 0);
  for (int64_t h = 0; h < n.all_heads(); ++h) {
    const std::vector<double> count =
        count_pairs(ids.data() + at(h * n.rounds * L), n.rounds, L, o);
    const double *x = q.data() + h * L * d, *value = v.data() + h * L * e;
    double *dx = y.dq.data() + h * L * d, *dvalue = y.dv.data() + h * L * e;
    std::vector<double> rho(at(L)), dkey(at(L * d), 0);
    for (int64_t j = 0; j < L; ++j) {
      double sum = static_cast<double>(d) * 1e-6;
      for (int64_t c = 0; c < d; ++c) sum += x[j * d + c] * x[j * d + c];
      rho[at(j)] = std::sqrt(sum);
    }
    for (int64_t i = 0; i < L; ++i) {
      std::vector<double> p(at(L), 0), s(at(L), 0);
      double top = -INFINITY, total = 0;
      for (int64_t j = 0; j < L; ++j) {
        for (int64_t c = 0; c < d; ++c)
          s[at(j)] += scale * x[i * d + c] * x[j * d + c] / rho[at(j)];
        if (i == j) s[at(j)] = o.self;
        if (count[at(i * L + j)] > 0) top = std::max(top, s[at(j)]);
      }
      for (int64_t j = 0; j < L; ++j) {
        const double times = count[at(i * L + j)];
        if (times == 0) continue;
        p[at(j)] = (o.duplicates == LshDuplicates::off ? times : 1) * std::exp(s[at(j)] - top);
        total += p[at(j)];
      }
      double* const out = y.out.data() + (h * L + i) * e;
      y.lse[at(h * L + i)] = top + std::log(total);
      for (int64_t j = 0; j < L; ++j) {
        p[at(j)] /= total;
        for (int64_t c = 0; c < e; ++c) out[c] += p[at(j)] * drop(h, i, j) * value[j * e + c];
      }
      if (dout.empty()) continue;
      const double* const g = dout.data() + (h * L + i) * e;
      double delta = dlse.empty() ? 0 : -dlse[at(h * L + i)];
      for (int64_t c = 0; c < e; ++c) delta += g[c] * out[c];
      for (int64_t j = 0; j < L; ++j) {
        double dp = 0;
        for (int64_t c = 0; c < e; ++c) {
          dp += drop(h, i, j) * g[c] * value[j * e + c];
          dvalue[j * e + c] += p[at(j)] * drop(h, i, j) * g[c];
        }
        const double ds = i == j ? 0 : scale * p[at(j)] * (dp - delta);
        for (int64_t c = 0; c < d; ++c) {
          dx[i * d + c] += ds * x[j * d + c] / rho[at(j)];
          dkey[at(j * d + c)] += ds * x[i * d + c];
        }
      }
    }
    for (int64_t j = 0; j < L; ++j) {
      double along = 0;
      for (int64_t c = 0; c < d; ++c) along += x[j * d + c] * dkey[at(j * d + c)];
      along /= rho[at(j)] * rho[at(j)] * rho[at(j)];
      for (int64_t c = 0; c < d; ++c) {
        dx[j * d + c] += dkey[at(j * d + c)] / rho[at(j)] - x[j * d + c] * along;
      }
    }
  }
  return y;
}

inline Solution solve(const Sizes& n, const std::vector<double>& q, const std::vector<double>& v,
                      const std::vector<int32_t>& ids, const LshOptions& o,
                      const std::vector<double>& dout = {}, const std::vector<double>& dlse = {}) {
  return solve(n, q, v, ids, o, dout, dlse, [](int64_t, int64_t, int64_t) { return 1.0; });
}

}  // namespace longspan::lsh_test
