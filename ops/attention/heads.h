#pragma once

#include "core/kernels/copy.h"
#include "core/tensor.h"

namespace longspan::detail {

/// Returns x without history and with last stride 1; a copy if the last stride is not 1 already.
inline Tensor last_dim_contiguous(const Tensor& x) {
  if (x.dim(-1) <= 1 || x.strides().back() == 1) return x.detach();
  Tensor y = Tensor::like(x);
  kernels::copy(x.device(), x.view(), y.mut());
  return y;
}

/// Allocates [B, H, rows, width] stored as [B, rows, H, width], with B, H, dtype and device of
/// `like`.
inline Tensor empty_blhd(const Tensor& like, int64_t rows, int64_t width) {
  const int64_t batch = like.dim(0), heads = like.dim(1);
  return Tensor::empty({batch, rows, heads, width}, like.dtype(), like.device())
      .alias({batch, heads, rows, width}, {rows * heads * width, width, heads * width, 1}, 0);
}

/// Allocates a gradient of x [B, H, rows, width]: row-major if x is, as leaves need it, else as the
/// views that split heads need it.
inline Tensor empty_gradient(const Tensor& x) {
  if (x.contiguous()) return Tensor::empty(x.shape(), x.dtype(), x.device());
  return empty_blhd(x, x.dim(2), x.dim(3));
}

}  // namespace longspan::detail
