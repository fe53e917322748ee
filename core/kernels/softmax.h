#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

/// Softmax over the last axis, or with `log` its logarithm. x, y [rows, n], contiguous, same
/// floating dtype; y may be x. A row of only -inf gives zeros (with log: -inf).
inline constinit Kernel<void(bool log, ConstView x, View y)> softmax_forward{"softmax_forward"};
/// dx = y * (dy - sum(y * dy)) per row; with log dx = dy - e^y * sum(dy). dx may be dy.
inline constinit Kernel<void(bool log, ConstView y, ConstView dy, View dx)> softmax_backward{
    "softmax_backward"};
/// y[r] = ln(sum of e^x[r, :]); -inf for a row of only -inf, inf for one with an inf and no NaN.
/// x [rows, n], y [rows], contiguous, same dtype.
inline constinit Kernel<void(ConstView x, View y)> logsumexp_forward{"logsumexp_forward"};
/// dx[r, i] = dy[r] e^x[r, i] / sum of e^x[r, :], from x alone: beside a large maximum y has too
/// few digits for e^(x - y). 0 in a row of -inf. dx must not be x.
inline constinit Kernel<void(ConstView x, ConstView dy, View dx)> logsumexp_backward{
    "logsumexp_backward"};

}  // namespace longspan::kernels
