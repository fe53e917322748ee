#pragma once

#include <cmath>
#include <limits>

#include "core/kernels/lsh_maths.h"
#include "cuda/attention/general.h"

/// LSH attention in scalar arithmetic. Each token has a block of threads, which first computes it
/// as a query and, in the backward pass, then accumulates its gradients as a key. Every sum is one
/// chain in an order that the ids determine.
namespace longspan::cuda {

LONGSPAN_HD inline float natural_exp(float x) { return expf(x); }
LONGSPAN_HD inline double natural_exp(double x) { return exp(x); }
LONGSPAN_HD inline float natural_log(float x) { return logf(x); }
LONGSPAN_HD inline double natural_log(double x) { return log(x); }
LONGSPAN_HD inline float root(float x) { return sqrtf(x); }
LONGSPAN_HD inline double root(double x) { return sqrt(x); }

/// The arguments of the kernels of one call.
template <class T, class A = Accumulator<T>>
struct LshArguments {
  kernels::LshHead head;  // of the first head
  kernels::LshKeep keep;  // of the first head
  int64_t heads = 0, head_count = 0;
  HeadRows<const T> q, v, dout;
  HeadRows<T> out, dq, dv;
  A* lse = nullptr;          // [B, H, L]
  const A* delta = nullptr;  // [B, H, L]: dout . out - dlse

  LONGSPAN_HD int64_t blocks() const { return head_count * head.length; }
};

/// Pairs that a block processes together.
inline constexpr int lsh_pairs = 256;

/// One token's work.
template <class T>
class LshToken {
 public:
  using A = Accumulator<T>;

  /// Bytes of shared memory.
  static int64_t bytes(int64_t width, int64_t value_width) {
    return static_cast<int64_t>(sizeof(A)) *
               (3 * width + 3 * value_width + 3 * lsh_pairs + kStatistics) +
           4 * lsh_pairs;
  }

  LONGSPAN_HD LshToken(const LshArguments<T>& arguments, A* shared, int64_t index)
      : x(arguments),
        bh(index / arguments.head.length),
        token(index % arguments.head.length),
        b(bh / arguments.heads),
        h(bh % arguments.heads),
        head(arguments.head),
        keep(arguments.keep),
        width(arguments.q.width),
        value_width(arguments.v.width) {
    const int64_t ids = bh * head.rounds * head.length;
    head.ids += ids;
    head.order += ids;
    head.place += ids;
    keep.head += static_cast<uint32_t>(bh);
    q = shared;
    dq = q + width;
    dk = dq + width;
    gradient = dk + width;
    sums = gradient + value_width;
    value = sums + value_width;
    score = value + value_width;
    second = score + lsh_pairs;
    factor = second + lsh_pairs;
    statistics = factor + lsh_pairs;
    other = reinterpret_cast<int32_t*>(statistics + kStatistics);
  }

  LONGSPAN_HD void forward() {
    load(x.q, token, width, q);
    each(value_width, [&](int c) { sums[c] = A(0); });
    each(1, [&](int) {
      statistics[0] = -std::numeric_limits<A>::infinity();  // reference
      statistics[1] = statistics[2] = statistics[3] = A(0);
    });
    as_query([&](int64_t round, int64_t key_round, int64_t slot, int64_t first, int count) {
      each(count, [&](int n) {
        const int64_t j = head.at(key_round, first + n);
        const auto weight = static_cast<A>(head.weight(round, token, key_round, j));
        other[n] = weight > A(0) ? static_cast<int32_t>(j) : -1;
        if (other[n] < 0) return;
        score[n] = logit(j, false);
        second[n] = weight;
        factor[n] = static_cast<A>(keep.factor(head, round, token, key_round, j, slot));
      });
      each(1, [&](int) { add_probabilities(count); });
      each(value_width, [&](int c) {
        A total = sums[c] * statistics[2];
        for (int n = 0; n < count; ++n) {
          if (other[n] >= 0) total = fused(score[n], at(x.v, other[n], c), total);
        }
        sums[c] = total;
      });
    });
    const A total = statistics[1];
    const bool alone = statistics[3] == A(0) && !keep.active();
    each(value_width, [&](int c) {
      row(x.out, token)[c] = static_cast<T>(alone ? at(x.v, token, c) : sums[c] / total);
    });
    each(1, [&](int) { x.lse[bh * head.length + token] = statistics[0] + natural_log(total); });
  }

  LONGSPAN_HD void backward() {
    load(x.q, token, width, q);
    load(x.v, token, value_width, value);
    load(x.dout, token, value_width, gradient);
    each(width, [&](int c) { dq[c] = dk[c] = A(0); });
    each(value_width, [&](int c) { sums[c] = A(0); });
    as_query([&](int64_t round, int64_t key_round, int64_t slot, int64_t first, int count) {
      each(count, [&](int n) {
        const int64_t j = head.at(key_round, first + n);
        other[n] = -1;
        if (j == token) return;
        const auto weight = static_cast<A>(head.weight(round, token, key_round, j));
        if (weight == A(0)) return;
        const auto kept = static_cast<A>(keep.factor(head, round, token, key_round, j, slot));
        const A p = weight * probability(token, j, logit(j, false));
        other[n] = static_cast<int32_t>(j);
        score[n] = p * (kept * dot(x.v, j, gradient, value_width) - delta(token)) * inverse(j);
      });
      each(width, [&](int c) {
        for (int n = 0; n < count; ++n) {
          if (other[n] >= 0) dq[c] = fused(score[n] * scale(), at(x.q, other[n], c), dq[c]);
        }
      });
    });
    as_key([&](int64_t round, int64_t key_round, int64_t slot, int64_t first, int count) {
      each(count, [&](int n) {
        const int64_t i = head.at(round, first + n);
        const auto weight = static_cast<A>(head.weight(round, i, key_round, token));
        other[n] = weight > A(0) ? static_cast<int32_t>(i) : -1;
        if (other[n] < 0) return;
        const auto kept = static_cast<A>(keep.factor(head, round, i, key_round, token, slot));
        const A p = weight * probability(i, token, logit(i, true));
        score[n] = p * kept;
        second[n] = i == token
                        ? A(0)
                        : p * scale() * (kept * dot(x.dout, i, value, value_width) - delta(i));
      });
      each(value_width, [&](int c) {
        for (int n = 0; n < count; ++n) {
          if (other[n] >= 0) sums[c] = fused(score[n], at(x.dout, other[n], c), sums[c]);
        }
      });
      each(width, [&](int c) {
        for (int n = 0; n < count; ++n) {
          if (other[n] >= 0) dk[c] = fused(second[n], at(x.q, other[n], c), dk[c]);
        }
      });
    });
    each(1, [&](int) {
      A along = 0;
      for (int64_t c = 0; c < width; ++c) along = fused(q[c], dk[c], along);
      statistics[0] = inverse(token);
      statistics[1] = along * statistics[0] * statistics[0] * statistics[0];
    });
    each(width, [&](int c) {
      row(x.dq, token)[c] = static_cast<T>(dq[c] + dk[c] * statistics[0] - q[c] * statistics[1]);
    });
    each(value_width, [&](int c) { row(x.dv, token)[c] = static_cast<T>(sums[c]); });
  }

 private:
  static constexpr int kStatistics = 8;

  template <class U>
  LONGSPAN_HD U* row(const HeadRows<U>& rows, int64_t i) const {
    return rows.of(b, h) + i * rows.row;
  }
  LONGSPAN_HD A at(const HeadRows<const T>& rows, int64_t i, int64_t c) const {
    return static_cast<A>(row(rows, i)[c]);
  }
  LONGSPAN_HD void load(const HeadRows<const T>& rows, int64_t i, int n, A* to) const {
    each(n, [&](int c) { to[c] = at(rows, i, c); });
  }
  LONGSPAN_HD A dot(const HeadRows<const T>& rows, int64_t i, const A* with, int64_t n) const {
    A total = 0;
    for (int64_t c = 0; c < n; ++c) total = fused(at(rows, i, c), with[c], total);
    return total;
  }
  LONGSPAN_HD A scale() const { return static_cast<A>(head.rule.scale); }
  LONGSPAN_HD A delta(int64_t i) const { return x.delta[bh * head.length + i]; }
  /// 1 / rho.
  LONGSPAN_HD A inverse(int64_t j) const {
    A total = static_cast<A>(static_cast<double>(width) * head.rule.epsilon);
    for (int64_t c = 0; c < width; ++c) total = fused(at(x.q, j, c), at(x.q, j, c), total);
    return A(1) / root(total);
  }
  /// The logit of this token as query (or key) with another token as key (or query).
  LONGSPAN_HD A logit(int64_t i, bool as_the_key) const {
    if (i == token) return static_cast<A>(head.rule.self);
    return scale() * dot(x.q, i, q, width) * inverse(as_the_key ? token : i);
  }
  LONGSPAN_HD A probability(int64_t i, int64_t j, A s) const {
    const A lse = x.lse[bh * head.length + i];
    if (i == j && head.alone(static_cast<double>(lse))) {
      return A(1) / static_cast<A>(head.self_weight(i));
    }
    return natural_exp(s - lse);
  }

  /// Calls f(round, round of the keys, slot, first sorted index, count) over the window of this
  /// token.
  template <class F>
  LONGSPAN_HD void as_query(F f) const {
    for (int64_t r = 0; r < head.rounds; ++r) {
      for (int64_t slot = 0; slot < head.slots(); ++slot) {
        const kernels::LshChunk keys = head.keys_of({r, head.chunk_of(r, token)}, slot);
        if (!keys.exists()) continue;
        const int64_t end = head.chunk_end(keys.chunk);
        for (int64_t p = keys.chunk * head.rule.chunk; p < end; p += lsh_pairs) {
          f(r, keys.round, slot, p, static_cast<int>(min<int64_t>(lsh_pairs, end - p)));
        }
      }
    }
  }
  /// Calls f(round, round of the key, slot, first sorted index, count) over the windows that
  /// contain this token.
  template <class F>
  LONGSPAN_HD void as_key(F f) const {
    for (int64_t r = 0; r < head.rounds; ++r) {
      for (int64_t slot = 0; slot < head.slots(); ++slot) {
        const kernels::LshChunk queries = head.queries_of({r, head.chunk_of(r, token)}, slot);
        if (!queries.exists()) continue;
        const int64_t end = head.chunk_end(queries.chunk);
        for (int64_t p = queries.chunk * head.rule.chunk; p < end; p += lsh_pairs) {
          f(queries.round, r, slot, p, static_cast<int>(min<int64_t>(lsh_pairs, end - p)));
        }
      }
    }
  }

  /// Turns scores into probabilities relative to the largest score so far.
  LONGSPAN_HD void add_probabilities(int count) {
    A top = statistics[0];
    for (int n = 0; n < count; ++n) {
      if (other[n] >= 0) top = max(top, score[n]);
    }
    const bool none = top == -std::numeric_limits<A>::infinity();
    statistics[2] = none ? A(1) : natural_exp(statistics[0] - top);
    A total = statistics[1] * statistics[2];
    for (int n = 0; n < count; ++n) {
      if (other[n] < 0) continue;
      const A p = second[n] * natural_exp(score[n] - top);
      total += p;
      score[n] = p * factor[n];
      if (other[n] != token) statistics[3] = A(1);
    }
    statistics[0] = top;
    statistics[1] = total;
  }

  const LshArguments<T>& x;
  const int64_t bh, token, b, h;
  kernels::LshHead head;
  kernels::LshKeep keep;
  const int width, value_width;
  A *q, *dq, *dk, *gradient, *sums, *value;  // of this token
  A *score, *second, *factor;                // of pairs
  A* statistics;
  int32_t* other;  // the other token of a pair, -1 if there is none
};

/// Arguments of hashing, which uses one thread per token and round. Projections are never stored.
template <class T, class A = Accumulator<T>>
struct LshHashArguments {
  HeadRows<const T> q;
  const A* rotation;
  int64_t rotation_batch, rotation_head;  // strides; 0 for a broadcast axis
  int64_t heads, rounds, length, rows;    // rows: B H
  int64_t first, second, projections;
  const int64_t* lengths;  // or null
  const uint8_t* hidden;   // or null
  int64_t hidden_batch;
  int32_t* ids;

  LONGSPAN_HD int64_t count() const { return rows * rounds * length; }
  LONGSPAN_HD void hash(int64_t i) const {
    const int64_t token = i % length, r = i / length % rounds, bh = i / length / rounds;
    const int64_t b = bh / heads, h = bh % heads;
    const bool there = (lengths == nullptr || token < lengths[b]) &&
                       (hidden == nullptr || hidden[b * hidden_batch + token] == 0);
    if (!there) {
      ids[i] = static_cast<int32_t>(first * second);
      return;
    }
    const T* const x = q.of(b, h) + token * q.row;
    const A* const matrix =
        rotation + b * rotation_batch + h * rotation_head + r * q.width * projections;
    const auto project = [&](int64_t k) {
      A p = 0;
      for (int64_t c = 0; c < q.width; ++c) {
        p = fused(static_cast<A>(x[c]), matrix[c * projections + k], p);
      }
      return p;
    };
    ids[i] = kernels::lsh_bucket(project, first, second);
  }
};

template <class T>
LshHashArguments<T> lsh_hash_arguments(const ConstView& q, const ConstView& rotation, int64_t first,
                                       int64_t second, const ConstView& lengths,
                                       const ConstView& hidden, const View& ids) {
  const int64_t head = rotation.dim(2) * rotation.dim(3) * rotation.dim(4);
  return {head_rows<const T>(q),
          rotation.as<Accumulator<T>>(),
          rotation.dim(0) == 1 ? 0 : head * rotation.dim(1),
          rotation.dim(1) == 1 ? 0 : head,
          q.dim(1),
          rotation.dim(2),
          q.dim(2),
          q.dim(0) * q.dim(1),
          first,
          second,
          rotation.dim(4),
          lengths.as<int64_t>(),
          hidden.as<uint8_t>(),
          hidden && hidden.dim(0) > 1 ? hidden.dim(1) : 0,
          ids.as<int32_t>()};
}

/// Stable counting sort of a row by one block. `start` [values + 1] holds counts, `shared` holds
/// lsh_pairs ids and ranks.
__device__ inline void lsh_sort_row(const int32_t* ids, int64_t n, int64_t values, int32_t* start,
                                    int32_t* order, int32_t* place, int32_t* shared) {
  int32_t *const id = shared, *const rank = shared + lsh_pairs;
  for (int64_t v = 0; v <= values; v += lsh_pairs) {
    each(static_cast<int>(min<int64_t>(lsh_pairs, values + 1 - v)),
         [&](int k) { start[v + k] = 0; });
  }
  for (int64_t i = 0; i < n; i += lsh_pairs) {
    each(static_cast<int>(min<int64_t>(lsh_pairs, n - i)),
         [&](int k) { atomicAdd(start + ids[i + k] + 1, 1); });
  }
  each(1, [&](int) {
    for (int64_t v = 0; v < values; ++v) start[v + 1] += start[v];
  });
  for (int64_t i = 0; i < n; i += lsh_pairs) {
    const int count = static_cast<int>(min<int64_t>(lsh_pairs, n - i));
    each(count, [&](int k) { id[k] = ids[i + k]; });
    each(count, [&](int k) {
      int before = 0;
      for (int u = 0; u < k; ++u) before += id[u] == id[k] ? 1 : 0;
      const int32_t p = start[id[k]] + before;
      order[p] = static_cast<int32_t>(i) + k;
      place[i + k] = p;
      rank[k] = before;
    });
    each(count, [&](int k) {  // the last token of an id advances its start
      for (int u = k + 1; u < count; ++u) {
        if (id[u] == id[k]) return;
      }
      start[id[k]] += rank[k] + 1;
    });
  }
}

/// Builds the arguments of a call from its tensors.
template <class T>
LshArguments<T> lsh_arguments(const kernels::LshInputs& in) {
  LshArguments<T> x;
  x.head = kernels::lsh_head(in, 0, 0);
  x.keep = kernels::lsh_keep(in, 0);
  x.heads = in.q.dim(1);
  x.head_count = in.q.dim(0) * in.q.dim(1);
  x.q = head_rows<const T>(in.q);
  x.v = head_rows<const T>(in.v);
  return x;
}

}  // namespace longspan::cuda
