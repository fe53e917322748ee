#pragma once

#include "ops/attention/block_attention.h"

namespace longspan {

/// Sums the attention that each key gets from all queries: y_j = sum over i of p_ij, p as in
/// block_attention() without dropout.
///   returns  [B, H, T] in the dtype of q; no gradient
/// The backward kernel computes it: these sums are the gradient of values of width 1 for a gradient
/// of 1 in every row of the result. So it costs a forward and a backward pass with such values.
Tensor attention_mass(const Tensor& q, const Tensor& k, const AttentionPattern& pattern,
                      const ScoreTerms& terms = {});

}  // namespace longspan
