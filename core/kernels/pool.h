#pragma once

#include <cstdint>

#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

/// Tap k of window t reads index t * stride + k * dilation - before; taps outside [0, L) do not
/// exist.
struct Taps {
  int64_t size = 1, stride = 1, dilation = 1, before = 0;
};

// x [B, L, D], y [B, T, D] of the same floating dtype, contiguous. Sums run in the order of the
// taps, in the accumulator type.

/// y = mean over the taps that exist; every window has at least one.
inline constinit Kernel<void(ConstView x, Taps, View y)> mean_pool_forward{"mean_pool_forward"};
inline constinit Kernel<void(ConstView dy, Taps, View dx)> mean_pool_backward{"mean_pool_backward"};

/// y = the maximum; which = its tap, the first of equal ones; NaN is above all. which [B, T, D], u8
/// if no window has more than 256 taps, else i32.
inline constinit Kernel<void(ConstView x, Taps, View y, View which)> max_pool_forward{
    "max_pool_forward"};
inline constinit Kernel<void(ConstView dy, ConstView which, Taps, View dx)> max_pool_backward{
    "max_pool_backward"};

/// y[b, t, d] = bias[d] + sum over k of x[b, tap k of t, d] w[k, d].   w [size, D]; bias [D] or
/// empty
inline constinit Kernel<void(ConstView x, ConstView w, ConstView bias, Taps, View y)>
    depthwise_forward{"depthwise_forward"};
/// dx[b, l, d] = sum over the taps (t, k) that read l of dy[b, t, d] w[k, d].
inline constinit Kernel<void(ConstView dy, ConstView w, Taps, View dx)> depthwise_backward_x{
    "depthwise_backward_x"};
/// dw[k, d] = sum over b and t of dy[b, t, d] x[b, tap k of t, d], in fixed runs of rows.
inline constinit Kernel<void(ConstView dy, ConstView x, Taps, View dw)> depthwise_backward_w{
    "depthwise_backward_w"};

}  // namespace longspan::kernels
