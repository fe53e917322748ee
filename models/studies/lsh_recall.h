#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "ops/attention/lsh.h"

namespace longspan {

/// What LSH attention sees of full attention, as means over queries. A query that may attend to no
/// other key does not count.
struct LshRecall {
  double keys = 0;     ///< fraction of the other keys that is seen: the recall of a random choice
  double mass = 0;     ///< probability of the keys seen, under the softmax over all other keys
  double largest = 0;  ///< how often the key of the largest weight is seen
  double top = 0;      ///< share of the keys of the largest weights that is seen
};

/// Compares LSH attention with attention to all keys (with options.causal, all earlier ones) of the
/// same logits s_ij (lsh_attention()), a token's own key left out.
///   q        [B, H, L, d]  f64 f32 f16 bf16; computed in f64
///   ids      i32 [B, H, R, L], from lsh_buckets()
///   options  as for lsh_attention(); dropout and self are not read
///   top      how many keys of the largest weights LshRecall::top means; fewer where a query has
///            fewer
///   throws   ShapeError, DTypeError, ValueError as lsh_attention(), and unless top >= 1
/// It takes time and memory in proportion to L^2.
LshRecall lsh_recall(const Tensor& q, const Tensor& ids, const LshOptions& options,
                     int64_t top = 16);

/// Vectors that recall is measured on.
enum class LshVectors : uint8_t {
  random,    ///< independent normal entries
  clustered  ///< of clusters of equal size around random centres
};
std::string_view name_of_value(LshVectors vectors);

/// What study_lsh_recall() measures: all combinations.
struct LshRecallOptions {
  std::vector<LshVectors> vectors = {LshVectors::random, LshVectors::clustered};
  std::vector<int64_t> chunks = {16, 32, 64, 128}, rounds = {1, 2, 4, 8};
  int64_t length = 1024, width = 64;
  int64_t heads = 4;      ///< independent draws of vectors and rotations
  int64_t clusters = 32;  ///< of clustered vectors
  double spread = 0.3;    ///< share of the standard deviation that is a clustered vector's own
  double scale = 1;       ///< standard deviation of the entries of all vectors
  int64_t top = 16;
  bool causal = false;
  Generator gen = Generator{1};
};

/// Draws vectors with entries of mean 0 and standard deviation `scale`: token i of a clustered head
/// belongs to cluster i mod `clusters`.
///   returns  [1, heads, length, width], f64
Tensor lsh_vectors(LshVectors vectors, const LshRecallOptions& options);

/// A combination and what was found.
struct LshRecallRow {
  LshVectors vectors = LshVectors::random;
  int64_t chunk = 0, rounds = 0, buckets = 0;
  bool same_bucket = false;  ///< whether a query sees keys of its own bucket only, as in Reformer
  LshRecall recall;
};

/// Measures recall with the number of buckets that lsh_auto_buckets() chooses, the rest of
/// LshOptions as in the paper, once for all keys of the chunks that a query sees and once for those
/// of its own bucket. `each`, if set, is called with each row. Throws ValueError if an option is
/// out of range.
std::vector<LshRecallRow> study_lsh_recall(
    const LshRecallOptions& options, const std::function<void(const LshRecallRow&)>& each = {});

}  // namespace longspan
