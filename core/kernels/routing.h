#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

// Clusters of tokens by their scores a[b, h, i, c] = x[b, h, i] . centroids[h, :, c]. A score is
// the sum over the width in order, in fused steps, and its bits depend on nothing else. A score
// that is NaN or below the lowest finite number counts as that number. Tokens from lengths[b] on do
// not exist.
//   x          [B, H, L, d] f32 or f64, any strides with the last one 1
//   centroids  [H, d, k] dtype of x, contiguous
//   lengths    i64 [B], or empty: all tokens exist

/// members[b, h, c] = the tokens with the largest scores of centroid c, as many as there are up to
/// w, ascending, then -1. Of equal scores the earlier token comes first.
///   work     i64 [B, H, k, 2 w] for f32, [B, H, k, 4 w] for f64, contiguous
///   members  i32 [B, H, k, w], contiguous
inline constinit Kernel<void(ConstView x, ConstView centroids, ConstView lengths, View work,
                             View members)>
    routing_members{"routing_members"};

/// nearest[b, h, i] = the centroid with the largest score of token i, of equal ones the first; -1
/// for tokens that do not exist. k >= 1.
///   nearest  i32 [B, H, L], contiguous
inline constinit Kernel<void(ConstView x, ConstView centroids, ConstView lengths, View nearest)>
    nearest_centroid{"nearest_centroid"};

/// Sorts tokens by cluster, stably. order[r] = the tokens in the order of their clusters, then -1
/// for each token without one; begin[r, s] = the place in that order where the cluster of the token
/// at place s begins, s itself where there is no token.
///   clusters  i32 [rows, L], in [-1, k)
///   starts    i32 [rows, k + 1], overwritten
///   order, begin  i32 [rows, L]; all contiguous
inline constinit Kernel<void(ConstView clusters, View starts, View order, View begin)>
    cluster_order{"cluster_order"};

/// counts[r, i] = how many of keys[r] are not after queries[r, i]; both ascend, with -1 at the end,
/// which counts as no token: for a query that is -1 the count is 0.
///   queries, keys, counts  i32 [rows, w], contiguous
inline constinit Kernel<void(ConstView queries, ConstView keys, View counts)> keys_not_after{
    "keys_not_after"};

}  // namespace longspan::kernels
