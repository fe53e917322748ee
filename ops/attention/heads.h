#pragma once

#include "core/kernels/copy.h"
#include "core/tensor.h"

namespace longspan::detail {

/// The same numbers with the last stride 1, without history: a copy where they lie otherwise.
inline Tensor last_dim_contiguous(const Tensor& x) {
  if (x.dim(-1) <= 1 || x.strides().back() == 1) return x.detach();
  Tensor y = Tensor::like(x);
  kernels::copy(x.device(), x.view(), y.mut());
  return y;
}

/// [B, H, rows, width] over memory [B, rows, H, width], with B, H, dtype and device of `like`.
inline Tensor empty_blhd(const Tensor& like, int64_t rows, int64_t width) {
  const int64_t batch = like.dim(0), heads = like.dim(1);
  return Tensor::empty({batch, rows, heads, width}, like.dtype(), like.device())
      .alias({batch, heads, rows, width}, {rows * heads * width, width, heads * width, 1}, 0);
}

}  // namespace longspan::detail
