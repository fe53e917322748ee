#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

/// y += x. y contiguous, x of any strides; one shape, one dtype.
inline constinit Kernel<void(ConstView x, View y)> accumulate{"accumulate"};
/// *finite = no element of x is NaN or Inf. x floating, any strides. Waits for the device.
inline constinit Kernel<void(ConstView x, bool* finite)> all_finite{"all_finite"};

}  // namespace longspan::kernels
