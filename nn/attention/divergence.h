#pragma once

#include "core/tensor.h"

namespace longspan {

/// Returns how differently the heads of a layer attend, as \cite roy2021 compares local and routing
/// heads: for each pair of heads the Jensen-Shannon divergence of their rows p and q,
///   JSD(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2,  H(p) = -sum_j p_j ln p_j,
/// in nats, averaged over rows. It is 0 if both always attend alike, and ln 2 if they never attend
/// to the same key. Rows are divided by their sums first; a row in which a head sees nothing does
/// not count for its pairs. Computed on the host, of H (H - 1) / 2 L T logarithms.
///   probabilities  [H, L, T], not negative, as LanguageModel::attention_map() returns them
///   returns        [H, H] f64 on the host, 0 on the diagonal; NaN for a pair without any row
///   throws         ShapeError; DTypeError unless floating
Tensor head_divergence(const Tensor& probabilities);

}  // namespace longspan
