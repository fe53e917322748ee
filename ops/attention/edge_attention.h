#pragma once

#include <memory>

#include "ops/attention/block_attention.h"
#include "ops/patterns/edges.h"

namespace longspan {

/// Attention over the pairs of an edge layout, such as that of a tree:
///   S_ij  = scale q_i . (k_j + relation[label(i, j)])
///   out_i = sum_j softmax_j(S_i.) keep_ij / (1 - p) v_j
/// \cite ye2019 (eq. 2 and 3). A row without keys gets 0 and no gradient. Keys are read run by run;
/// nothing is kept for a pair. Rows that share keys are computed together, where a hidden pair has
/// the factor 0: inf and NaN of a key may make NaN of such a row that does not see it.
///   q         [B, H, R, d]  any floating dtype; 16-bit ones are computed in f32. R is the number
///             of rows of the layout
///   k, v      [B, H, N, d], [B, H, N, dv]; dtype of q; N is the number of its keys
///   relation  [labels, d], dtype of q, shared by all heads; undefined: no term of labels
///   edges     e.g. tree_edges(); the same for all samples
///   scale     0: 1 / sqrt(d)
///   dropout   of probabilities, drawn by (b, h, row, key)
///   returns   out [B, H, R, dv] in the dtype of q, stored as [B, R, H, dv]
///   saves     q, k, v, relation, out, and the logarithm of each row's sum
///   throws    ShapeError, DTypeError, DeviceError; ValueError without a layout
Tensor edge_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& relation,
                      const std::shared_ptr<const EdgeLayout>& edges, double scale = 0,
                      const Dropout& dropout = {});

}  // namespace longspan
