#pragma once

#include "core/tensor.h"

/// Helpers that present tensors to row-wise kernels. x is row-major; results have no history.
namespace longspan::detail {

/// Number of rows of x [..., n]: the product of all sizes but the last.
inline int64_t rows_of(const Tensor& x) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < x.rank(); ++i) rows *= x.dim(i);
  return rows;
}

/// x [..., n] as [rows, n].
inline Tensor as_rows(const Tensor& x) {
  const int64_t n = x.dim(-1);
  return x.alias({rows_of(x), n}, {n, 1}, 0);
}

/// x flattened to [numel].
inline Tensor as_line(const Tensor& x) { return x.alias({x.numel()}, {1}, 0); }

}  // namespace longspan::detail
