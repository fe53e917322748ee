#pragma once

#include <cstdint>

#include "core/ranks/sequence_split.h"
#include "core/tensor.h"

namespace longspan {

// Ops of processes that compute one sequence together (core/ranks/sequence_split.h). Every process
// makes the same calls in the same order, in the backward pass too. B must be 1. They move values
// without changing a bit; the first two are each other's gradients.

/// Takes all heads of this process's rows to all rows of its heads.
///   x        [1, H, n, d]   any dtype and strides; n rows of `rows`, as split.rows(rows) says
///   returns  [1, H / S, rows, d], stored as [rows, H / S, d]
///   saves    nothing
///   throws   ShapeError, ValueError unless S divides H; RankLost
Tensor rows_to_heads(const Tensor& x, const SequenceSplit& split, int64_t rows);

/// Takes all rows of this process's heads to all heads of its rows.
///   x        [1, H / S, rows, d]   any dtype and strides
///   returns  [1, H, n, d], stored as [n, H, d], so that merging heads is a view
///   saves    nothing
///   throws   ShapeError; RankLost
Tensor heads_to_rows(const Tensor& x, const SequenceSplit& split);

/// Returns the rows of all processes. The gradient of a row is the sum of those that the processes
/// have for it, in their order.
///   x        [1, n, D]   floating; n rows of `rows`
///   returns  [1, rows, D]
///   saves    nothing
///   throws   ShapeError; RankLost
Tensor rows_of_all(const Tensor& x, const SequenceSplit& split, int64_t rows);

}  // namespace longspan
