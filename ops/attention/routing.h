#pragma once

#include <cstdint>

#include "core/tensor.h"
#include "ops/attention/block_attention.h"

namespace longspan {

// Clusters of tokens around centroids, for attention within clusters \cite roy2021 . The scores of
// a token are its dot products with the centroids of its head; they are computed in pieces and
// never stored. A score that is NaN or -inf counts as the lowest finite number. Nothing here has a
// gradient. Tokens from lengths[b] on do not exist.
//   x          [B, H, L, d]  f32 or f64
//   centroids  [H, k, d]     dtype of x, k >= 1
//   lengths    i64 [B], or undefined: all tokens exist
// They throw ShapeError, DTypeError and DeviceError, and NotImplemented on a device without the
// kernels.

/// Returns for each centroid the `window` tokens with the largest scores, or all if there are
/// fewer; of equal scores those of earlier tokens come first. A token may be chosen by several
/// centroids, or by none.
///   returns  i32 [B, H, k, min(window, L)]: positions in ascending order, then -1 in free places
///   throws   ValueError if window is below 1
Tensor routing_members(const Tensor& x, const Tensor& centroids, int64_t window,
                       const Tensor& lengths = {});

/// Returns for each token the centroid with the largest score, of equal ones the first.
///   returns  i32 [B, H, L]; -1 for tokens that do not exist
Tensor nearest_centroids(const Tensor& x, const Tensor& centroids, const Tensor& lengths = {});

/// Tokens in the order of their clusters, i32 [..., L].
struct TokensByCluster {
  Tensor order;  ///< positions, those of one cluster in ascending order; -1 at the end, one for
                 ///< each token without a cluster
  Tensor begin;  ///< the place in `order` where the cluster of each place begins; the place itself
                 ///< where there is no token
};
/// Sorts tokens by cluster.
///   clusters  i32 [..., L] in [-1, count); -1: none
///   throws    DTypeError; ValueError on a cluster out of range
TokensByCluster cluster_order(const Tensor& clusters, int64_t count);

/// Returns how many keys of a group are not after each of its queries: what causal attention shows
/// them, if queries and keys are chosen apart.
///   queries, keys  i32 [..., w]: positions in ascending order, then -1
///   returns        i32 [..., w]; 0 where there is no query
Tensor keys_not_after(const Tensor& queries, const Tensor& keys);

/// Attention within groups of tokens, and how the groups of a token are put together.
struct GroupAttention {
  Tensor out;  ///< [B, H, L, dv]: the sum of a token's results over its n groups / (n + epsilon),
               ///< 0 if it is in none
  Tensor groups;  ///< n [B, H, L, 1], f32 (f64 for f64), without history
};
/// What a token sees of itself in its groups.
enum class OwnKey : uint8_t {
  seen,
  alone  ///< its own key only where it sees no other, however large the logits are
};
/// Causal attention within groups. Relative positions of the terms are differences of places in a
/// group.
///   q, k     [B, H, L, d], v [B, H, L, dv]  as block_attention takes them; k undefined: q
///   queries  i32 [B, H, c, w]: the positions of a group's queries, ascending, then -1
///   keys     the same for keys; undefined: those of queries
///   own      OwnKey::alone needs keys that are undefined
///   saves    the rows of all groups, what block_attention saves, and the lists
///   throws   ShapeError, DTypeError, DeviceError; ValueError on a position out of range and, on
///   the
///            CPU, on a list that does not ascend
GroupAttention attend_in_groups(const Tensor& q, const Tensor& k, const Tensor& v,
                                const Tensor& queries, const Tensor& keys, double epsilon,
                                const ScoreTerms& terms = {}, const Dropout& dropout = {},
                                OwnKey own = OwnKey::seen);
/// Attention of each token to the last `window` tokens of its cluster, itself included.
///   clusters  i32 [B, H, L] in [-1, count); the result of a token with -1 is 0
GroupAttention attend_to_recent(const Tensor& q, const Tensor& k, const Tensor& v,
                                const Tensor& clusters, int64_t count, int64_t window,
                                double epsilon, const ScoreTerms& terms = {},
                                const Dropout& dropout = {}, OwnKey own = OwnKey::seen);

namespace detail {
/// Puts what a token sees that sees only itself, v + a_v[distance 0] after dropout, into the rows
/// of `others` [G, 1, n, dv] for which `alone` is 1, u8 [1 or G, 1, n, 1].
Tensor with_alone(const Tensor& others, const Tensor& v, const Tensor& alone,
                  const ScoreTerms& terms, const Dropout& dropout = {});
/// Returns sum / (n + epsilon), 0 where n = 0; n has no history.
Tensor over_groups(const Tensor& sum, const Tensor& n, double epsilon);
/// Gathers the rows of x [B, H, L, d] in lists [B, H, .., w] as samples of one head, [G, 1, w, d].
Tensor gathered(const Tensor& x, const Tensor& lists);
}  // namespace detail

}  // namespace longspan
