#include "models/studies/lsh_recall.h"

#include <algorithm>
#include <cmath>

#include "autograd/mode.h"
#include "core/error.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {
namespace {

/// Sums over queries.
struct RecallSums {
  double queries = 0;
  LshRecall sum;

  /// Adds a query, of whose other keys `allowed` exist. `logits` and `seen` are rows of all keys.
  void add(const double* logits, const uint8_t* seen, std::vector<int64_t>& allowed, int64_t top) {
    if (allowed.empty()) return;
    const int64_t count = std::min<int64_t>(top, std::ssize(allowed));
    // Equal logits: the earlier key.
    std::partial_sort(allowed.begin(), allowed.begin() + count, allowed.end(),
                      [&](int64_t a, int64_t b) {
                        return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                      });
    const double largest = logits[allowed[0]];
    double all = 0, mass = 0, keys = 0, found = 0;
    for (int64_t n = 0; n < std::ssize(allowed); ++n) {
      const int64_t j = allowed[static_cast<size_t>(n)];
      const double weight = std::exp(logits[j] - largest), sees = seen[j] != 0 ? 1 : 0;
      all += weight;
      mass += sees * weight;
      keys += sees;
      if (n < count) found += sees;
    }
    queries += 1;
    sum.keys += keys / static_cast<double>(allowed.size());
    sum.mass += mass / all;
    sum.largest += seen[allowed[0]] != 0 ? 1 : 0;
    sum.top += found / static_cast<double>(count);
  }

  LshRecall mean() const {
    const double n = std::max(queries, 1.0);
    return {sum.keys / n, sum.mass / n, sum.largest / n, sum.top / n};
  }
};

/// Returns all logits s_ij of one head, [L, L] in f64.
Tensor logits_of(const Tensor& q, LshScale scale) {
  const auto width = static_cast<double>(q.dim(1));
  const Tensor norm = sqrt(add(sum(square(q), {1}, true), width * 1e-6));
  const Tensor logits = matmul(q, transpose(div(q, norm), 0, 1));
  return scale == LshScale::rsqrt_d ? div(logits, std::sqrt(width)) : logits;
}

}  // namespace

LshRecall lsh_recall(const Tensor& q, const Tensor& ids, const LshOptions& options, int64_t top) {
  constexpr const char* op = "lsh_recall";
  require(top >= 1, op, "top is {}; expected 1 or more", top);
  require_rank_is(op, q, 4, "q");
  require_rank_is(op, ids, 4, "ids");
  require<ShapeError>(ids.dim(0) == q.dim(0) && ids.dim(1) == q.dim(1) && ids.dim(3) == q.dim(2),
                      op, "ids have shape {}, and q {}; expected [B, H, R, L] and [B, H, L, d]",
                      to_string(ids.shape()), to_string(q.shape()));
  const NoGrad off;
  const int64_t length = q.dim(2);
  RecallSums sums;
  std::vector<int64_t> allowed;
  for (int64_t b = 0; b < q.dim(0); ++b) {
    for (int64_t h = 0; h < q.dim(1); ++h) {
      const Tensor own = cast(q[b][h], DType::f64);
      const std::vector<double> logits = logits_of(own, options.scale).to_vector<double>();
      const Tensor head = narrow(narrow(ids, 0, b, 1), 1, h, 1);
      const std::vector<uint8_t> seen = lsh_visible(contiguous(head), options).to_vector<uint8_t>();
      for (int64_t i = 0; i < length; ++i) {
        allowed.clear();
        for (int64_t j = 0; j < (options.causal ? i : length); ++j) {
          if (j != i) allowed.push_back(j);
        }
        sums.add(&logits[static_cast<size_t>(i * length)], &seen[static_cast<size_t>(i * length)],
                 allowed, top);
      }
    }
  }
  return sums.mean();
}

std::string_view name_of_value(LshVectors vectors) {
  return vectors == LshVectors::random ? "random" : "clustered";
}

Tensor lsh_vectors(LshVectors vectors, const LshRecallOptions& o) {
  const Generator gen = o.gen.fork("vectors");
  const Tensor own = normal({1, o.heads, o.length, o.width}, gen.fork("own"), 0, 1, DType::f64);
  if (vectors == LshVectors::random) return mul(own, o.scale);
  const Tensor centres =
      normal({1, o.heads, o.clusters, o.width}, gen.fork("centres"), 0, 1, DType::f64);
  std::vector<int64_t> cluster(static_cast<size_t>(o.length));
  for (size_t i = 0; i < cluster.size(); ++i) cluster[i] = static_cast<int64_t>(i) % o.clusters;
  const Tensor shared = take(centres, Tensor::from(cluster, {o.length}), 2);
  return mul(add(mul(shared, std::sqrt(1 - o.spread * o.spread)), mul(own, o.spread)), o.scale);
}

namespace {

void require_consistent(const LshRecallOptions& o) {
  constexpr const char* op = "study_lsh_recall";
  require(
      o.length >= 2 && o.width >= 1 && o.heads >= 1 && o.clusters >= 1, op,
      "length {}, width {}, heads {}, clusters {}; expected a length of 2 or more, and 1 or more "
      "of the others",
      o.length, o.width, o.heads, o.clusters);
  require(o.spread >= 0 && o.spread <= 1, op, "spread is {}; expected 0 to 1", o.spread);
  for (const int64_t n : o.chunks) require(n >= 1, op, "a chunk of {}; expected 1 or more", n);
  for (const int64_t n : o.rounds) require(n >= 1, op, "{} rounds; expected 1 or more", n);
}

}  // namespace

std::vector<LshRecallRow> study_lsh_recall(const LshRecallOptions& o,
                                           const std::function<void(const LshRecallRow&)>& each) {
  require_consistent(o);
  const NoGrad off;
  std::vector<LshRecallRow> rows;
  for (const LshVectors vectors : o.vectors) {
    const Tensor q = lsh_vectors(vectors, o);
    for (const int64_t chunk : o.chunks) {
      const LshBuckets buckets = lsh_auto_buckets(o.length, chunk);
      for (const int64_t rounds : o.rounds) {
        const Tensor rotations =
            lsh_rotations(o.gen.fork("rotations"), o.heads, rounds, o.width, buckets, DType::f64);
        const Tensor ids = lsh_buckets(q, rotations, buckets);
        for (const bool same_bucket : {false, true}) {
          const LshOptions pairs{.buckets = buckets.count(),
                                 .chunk = chunk,
                                 .same_bucket = same_bucket,
                                 .causal = o.causal};
          rows.push_back({vectors, chunk, rounds, buckets.count(), same_bucket,
                          lsh_recall(q, ids, pairs, o.top)});
          if (each) each(rows.back());
        }
      }
    }
  }
  return rows;
}

}  // namespace longspan
