#pragma once

#include "core/tensor.h"

namespace longspan {

/// y = e^x.
///   x        any shape and strides  f64 f32 f16 bf16
///   returns  the same shape and dtype, row-major
///   saves    y
///   throws   DTypeError on integers
Tensor exp(const Tensor& x);

}  // namespace longspan
