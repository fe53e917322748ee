#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

/// y = x, converted to the dtype of y. Same shape; any strides on both sides (y without overlap).
/// Floating to integer truncates.
inline constinit Kernel<void(ConstView x, View y)> copy{"copy"};
/// y = value, converted to the dtype of y; any strides.
inline constinit Kernel<void(View y, double value)> fill{"fill"};
/// y[i] = begin + i * step, computed in f64. y [n], contiguous, any dtype.
inline constinit Kernel<void(View y, double begin, double step)> arange{"arange"};

}  // namespace longspan::kernels
