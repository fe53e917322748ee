#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

/// y = scale * x summed over the axes that have size 1 in y but not in x, in an order that depends
/// only on shapes and strides; f16 and bf16 are summed in f32 and rounded once. Same rank and
/// floating dtype; y contiguous, x of any strides.
inline constinit Kernel<void(ConstView x, double scale, View y)> reduce_sum{"reduce_sum"};

/// y[r] = the largest (or smallest) of x[r, :] and index[r] its index, the first of equal ones; NaN
/// counts as both. x [rows, n] with n >= 1, y [rows] of the same dtype, any; index i64 [rows]; all
/// contiguous.
inline constinit Kernel<void(bool largest, ConstView x, View y, View index)> reduce_extremum{
    "reduce_extremum"};
/// dx[r, index[r]] = dy[r], all other elements 0. Floating; contiguous.
inline constinit Kernel<void(ConstView index, ConstView dy, View dx)> reduce_extremum_backward{
    "reduce_extremum_backward"};

/// y[r, i] = sum of x[r, j] over j <= i (with `reverse`, over j >= i), in that order. x [rows, n]
/// and y contiguous; y has the dtype of x, i64 for integers. Floating values are summed in f64.
inline constinit Kernel<void(ConstView x, bool reverse, View y)> cumulative_sum{"cumulative_sum"};

}  // namespace longspan::kernels
