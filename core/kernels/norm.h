#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

/// y = (x - mean) * rstd * weight + bias for each row, with rstd = 1 / sqrt(variance + eps) and the
/// biased variance. Without `center`, mean is 0 and the variance is the mean of the squares.
///   x, y          [rows, n], contiguous, one floating dtype
///   weight, bias  [n], contiguous, the same dtype, or empty
///   mean, rstd    [rows], contiguous, f64 for f64, else f32; mean empty without center
inline constinit Kernel<void(bool center, double eps, ConstView x, ConstView weight, ConstView bias,
                             View y, View mean, View rstd)>
    norm_forward{"norm_forward"};
/// With g = dy * weight and h = (x - mean) * rstd:
///   dx      = rstd * (g - mean(g) - h * mean(g * h)), without center rstd * (g - h * mean(g * h));
///           with `adds`, for f32 and f64 alone, this is added to the dx that is there, with the
///           bits of an addition of its own
///   dweight = sum over rows of dy * h,  dbias = sum over rows of dy
/// dx, dweight and dbias may be empty if they are not required.
///   work    of norm_work(rows) rows: [norm_work, 2, n], contiguous, the dtype of rstd; empty if
///           dweight and dbias are
inline constinit Kernel<void(bool center, ConstView x, ConstView weight, ConstView mean,
                             ConstView rstd, ConstView dy, bool adds, View dx, View dweight,
                             View dbias, View work)>
    norm_backward{"norm_backward"};

/// Rows of a run; norm_backward sums each run separately.
inline constexpr int64_t norm_run = 32;
/// Returns the number of separate sums; the rows of a run are added in order, then the runs.
constexpr int64_t norm_work(int64_t rows) {
  const int64_t runs = (rows + norm_run - 1) / norm_run;
  return runs < 64 ? runs : 64;
}

}  // namespace longspan::kernels
