#pragma once

#include "core/tensor.h"

namespace longspan {

/// y = (x - mean) / sqrt(variance + eps) * weight + bias over the last axis, with the biased
/// variance. Statistics are f32 (f64 for f64). A row's bits do not depend on other rows.
/// \cite ba2016
///   x        [..., n]  f64 f32 f16 bf16
///   weight   [n]  dtype of x; may be undefined: 1
///   bias     [n]  dtype of x; may be undefined: 0
///   returns  [..., n]  dtype of x
///   saves    x, weight, and mean and 1 / sqrt(variance + eps) of each row
///   throws   ShapeError on a scalar or if weight or bias do not fit, DTypeError, DeviceError,
///            ValueError if eps is negative
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {},
                  double eps = 1e-5);

/// y = x / sqrt(mean(x^2) + eps) * weight over the last axis. \cite zhang2019
///   as layer_norm, without bias and mean
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double eps = 1e-5);

}  // namespace longspan
