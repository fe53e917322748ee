#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

/// y += x. Any strides, y without overlap; same shape and dtype.
inline constinit Kernel<void(ConstView x, View y)> accumulate{"accumulate"};
/// y = x summed over the axes that have size 1 in y but not in x, in an order that depends only on
/// shapes. Same rank and floating dtype; y contiguous, x of any strides.
inline constinit Kernel<void(ConstView x, View y)> sum_to{"sum_to"};
/// *finite = whether no element of x is NaN or Inf. x floating, any strides. Waits for the device.
inline constinit Kernel<void(ConstView x, bool* finite)> all_finite{"all_finite", true};

}  // namespace longspan::kernels
