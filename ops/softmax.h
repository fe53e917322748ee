#pragma once

#include "core/tensor.h"

namespace longspan {

/// y_i = exp(x_i - m) / sum_j exp(x_j - m),  m = max_j x_j, over the last axis. A row of only -inf
/// gives zeros.
///   x        [..., n]  f64 f32 f16 bf16
///   returns  [..., n]  dtype of x
///   saves    y
///   throws   ShapeError on a scalar, DTypeError on integers
Tensor softmax(const Tensor& x);

/// y_i = x_i - m - ln(sum_j exp(x_j - m)), over the last axis. A row of only -inf stays -inf, and
/// its gradient passes unchanged.
///   x        [..., n]  f64 f32 f16 bf16
///   returns  [..., n]  dtype of x
///   saves    y
///   throws   ShapeError on a scalar, DTypeError on integers
Tensor log_softmax(const Tensor& x);

}  // namespace longspan
