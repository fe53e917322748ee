#pragma once

#include "ops/attention/block_attention.h"

namespace longspan {

/// out [B, H, L, dv]; tau [B, H, L], the thresholds of the rows, from the largest score of each, so
/// that a common offset of scores takes no digits from them; without history.
struct EntmaxResult {
  Tensor out, tau;
};

/// Attention whose probabilities are those of alpha-entmax (ops/entmax.h), with exact zeros:
///   P_i. = entmax_alpha(scale q_i . k_j for the visible j)
///   out_i = sum_j P_ij keep_ij / (1 - p) v_j
/// \cite correia2019 (sec. 3). A query that sees no key gets 0 and no gradient. Scores are computed
/// in tiles of rows, in the backward pass again: nothing of size L x T is kept, but time stays
/// quadratic. In 16 bits scores and probabilities are f32. On the CPU inf and NaN reach no row that
/// does not see them; a device multiplies them by 0.
///   q        [B, H, L, d]  f64 f32 f16 bf16
///   k, v     [B, H, T, d], [B, H, T, dv]; dtype of q
///   pattern  one of patterns::dense, causal, local and local_bidirectional; of its masks lengths
///            (k_valid, q_valid) and k_begin count
///   alpha    [H] or of one element, any floating dtype, differentiable; what counts as 1 and as 2
///            as in entmax()
///   scale    0: 1 / sqrt(d)
///   dropout  of probabilities, as in block_attention()
///   returns  out in the dtype of q; tau f32 (f64 for f64)
///   saves    q, k, v, tau, alpha and the lengths
///   throws   ShapeError, DTypeError, DeviceError; NotImplemented for another pattern or mask
EntmaxResult entmax_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                              const AttentionPattern& pattern, const Tensor& alpha,
                              double scale = 0, const Dropout& dropout = {});

/// Returns how many keys of each query have a probability above 0, divided by how many it sees:
/// [B, H, L] f32 (f64 for f64), without history; 0 for a query that sees none. The other arguments
/// are those of entmax_attention().
Tensor entmax_density(const Tensor& q, const Tensor& k, const AttentionPattern& pattern,
                      const Tensor& alpha, double scale = 0);

}  // namespace longspan
