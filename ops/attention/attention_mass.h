#pragma once

#include "ops/attention/block_attention.h"

namespace longspan {

/// Sums the attention that each key gets from all queries: y_j = sum over i of p_ij, p as in
/// block_attention() without dropout.
///   returns  [B, H, T] in the dtype of q; no gradient
/// The sums are the gradient of values of width 1 when every row of the result has gradient 1. The
/// cost is one forward and one backward pass of block_attention() with such values.
Tensor attention_mass(const Tensor& q, const Tensor& k, const AttentionPattern& pattern,
                      const ScoreTerms& terms = {});

}  // namespace longspan
