#pragma once

#include <cstdint>

#include "core/generator.h"
#include "core/kernels/lsh.h"
#include "core/tensor.h"
#include "ops/attention/block_attention.h"

namespace longspan {

// Attention by locality-sensitive hashing \cite kitaev2020 : tokens are sorted by the bucket that
// they hash to and cut into chunks; a chunk attends to itself and its neighbours. Buckets are
// drawn, sorted and saved separately from the attention, so that a recomputation reuses them.

/// How to treat pairs that several rounds see: `first` and `log_count` make one softmax over the
/// union, `off` counts such a pair once per round.
using kernels::LshDuplicates;
/// What a window sees beyond the ends of a round: nothing (`none`), the other end (`round`), or
/// chunks of the adjacent rounds (`global`).
using kernels::LshWrap;

/// The buckets of a round: first * second, each factor hashed by its own projections. Both are
/// even; second is 1 if there is only one factor.
struct LshBuckets {
  int64_t first = 2, second = 1;

  int64_t count() const { return first * second; }
  /// Projections of a token: w of lsh_rotations.
  int64_t projections() const { return first / 2 + (second > 1 ? second / 2 : 0); }
  friend bool operator==(const LshBuckets&, const LshBuckets&) = default;
};

/// Chooses two buckets per chunk, so that a bucket fills half a chunk (sec. 2: m = 2 L / nb); above
/// 128 buckets, two factors near the square root, so that hashing costs O(L sqrt(L)) and not
/// O(L^2).
///   throws  ValueError unless length >= 0 and chunk >= 1
LshBuckets lsh_auto_buckets(int64_t length, int64_t chunk);
/// The rule of Reformer in transformers: 2 L / m rounded down to a power of two, and two factors if
/// that is more than 2 max(sqrt(max_length / m), m).
LshBuckets lsh_auto_buckets_hf(int64_t length, int64_t chunk, int64_t max_length);

/// Draws random rotations: i.i.d. N(0, 1). Round r is drawn from gen.fork(r), so that adding rounds
/// keeps the first ones.
///   returns [batch, heads, rounds, width, buckets.projections()], f32 or f64
Tensor lsh_rotations(Generator gen, int64_t heads, int64_t rounds, int64_t width,
                     const LshBuckets& buckets, DType dtype = DType::f32, Device device = {},
                     int64_t batch = 1);

/// Hashes tokens to buckets by angle (eq. 4 of \cite kitaev2020): p = q R, id = argmax of (p, -p),
/// the first one on ties; with two factors id = argmax(p1, -p1) + first * argmax(p2, -p2), where p1
/// and p2 come from the first and the remaining columns of R. No gradient reaches q.
///   q          [B, H, L, d]  f64 f32 f16 bf16; copied unless the last stride is 1
///   rotations  [1 or B, 1 or H, R, d, w]  f64 for f64 q, else f32
///   lengths    i64 [B], optional: tokens from this index on do not exist
///   hidden     u8 [1 or B, L], optional: 1 where a token does not exist
///   returns    i32 [B, H, R, L]; tokens that do not exist get the id buckets.count()
///   throws     ShapeError, DTypeError, DeviceError, ValueError on odd factors
/// Never allocates anything of size R L w.
Tensor lsh_buckets(const Tensor& q, const Tensor& rotations, const LshBuckets& buckets,
                   const Tensor& lengths = {}, const Tensor& hidden = {});

/// The positions of a round sorted by id, and the inverse: order[.., place[.., i]] = i.
struct LshOrder {
  Tensor order, place;  ///< i32, shape of ids
};
/// Sorts each row of ids by a stable counting sort; ids are below `values`.
///   ids  [.., L]  i32
LshOrder lsh_sort(const Tensor& ids, int64_t values);

/// What the logit of a pair is divided by, besides the norm of the key: nothing, as in the official
/// code, or sqrt(d), as in lucidrains' reformer-pytorch.
enum class LshScale : uint8_t { official, rsqrt_d };

/// Says which pairs exist. The defaults are the paper's.
struct LshOptions {
  int64_t buckets = 2;            ///< nb of the ids; nb itself marks tokens that do not exist
  int64_t chunk = 64;             ///< m
  int64_t before = 1, after = 0;  ///< a, z: chunks that a query sees besides its own
  LshWrap wrap = LshWrap::none;
  LshDuplicates duplicates = LshDuplicates::first;
  bool same_bucket = true;  ///< a query sees keys of its own bucket only
  bool causal = false;      ///< j <= i
  /// A chunk that a window reaches twice around the circle counts twice (as in transformers); only
  /// with duplicates off.
  bool repeat_chunks = false;
  LshScale scale = LshScale::official;
  double self = -1e5;  ///< logit of a token with itself, in place of the dot product
  float dropout = 0;   ///< of probabilities, if pass.training
  Pass pass = {};
  /// One mask [m, W] for all chunks and rounds of a head, as in trax; otherwise each pair has its
  /// own.
  bool dropout_broadcast = false;
};

/// Attention of queries to the keys that share a chunk window with them in any of R rounds:
///   k_j   = q_j / sqrt(|q_j|^2 + d 1e-6)
///   s_ij  = q_i . k_j, or that / sqrt(d); s_ii = options.self
///   N_ij  = sum_r [j in the chunks c_r(i) - before .. c_r(i) + after of round r, in the same
///           bucket, j <= i if causal, both exist]
///   out_i = sum_j w_ij exp(s_ij - lse_i) keep_ij / (1 - p) v_j,   lse_i = log sum_j w_ij exp(s_ij)
/// with w_ij = 1 where N_ij > 0, the softmax over the union of all rounds (duplicates `first` and
/// `log_count`: the paper's eq. 3 with its correction log N_ij), or w_ij = N_ij (`off`). A token
/// sees itself, so a token without another visible key gets out = v_i; so does a token that does
/// not exist.
///   q, v     [B, H, L, d], [B, H, L, dv]  f64 f32 f16 bf16, any strides with the last one 1
///   ids      i32 [B, H, R, L] in [0, options.buckets], from lsh_buckets; no gradient
///   returns  out in the dtype of q, stored as [B, L, H, dv], so that merging heads is a view;
///            lse [B, H, L], f32 (f64 for f64)
///   saves    q, v, ids, out, lse
///   throws   ShapeError, DTypeError, DeviceError, ValueError
/// The gradient of q is the sum of its gradients as query and, through the norm, as key. The self
/// logit is a constant and gives q no gradient. Logits and accumulators are f32 (f64 for f64).
/// Memory is linear in L; no length needs to be a multiple of the chunk. Which keys are visible
/// depends on all tokens through the chunk borders, including later tokens; the summed terms do
/// not.
AttentionResult lsh_attention(const Tensor& q, const Tensor& v, const Tensor& ids,
                              const LshOptions& options);

/// Counts attended pairs: the entries of sum_r vis_r(i, j), self pairs included, and how many of
/// them are distinct. Counts from ids by definition, at a cost of R L window.
struct LshPairs {
  int64_t visits = 0, distinct = 0;
};
LshPairs count_lsh_pairs(const Tensor& ids, const LshOptions& options);

/// Returns which keys each query attends to, by definition: u8 [B, H, L, L] on the host, 1 where
/// N_ij > 0. It has L^2 bytes for each head, so it is for studies and tests.
Tensor lsh_visible(const Tensor& ids, const LshOptions& options);

}  // namespace longspan
