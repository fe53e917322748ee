#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

/// c = a b (+ bias) (+ c), for each index of the leading axes, which are equal for all three.
///   a [..., M, K], b [..., K, N]  any strides (0 repeats a matrix), one floating dtype
///   bias [N] any stride, or empty; the dtype of a
///   c [..., M, N]  unit stride along N; the dtype of a, or f32 for f16 and bf16
/// Sums run over k in order, in f64 for f64 and f32 otherwise: the bits of an element of c depend
/// only on its row of a, its column of b and K. With MatmulLibrary::openblas, if that library can
/// read the operands, they also depend on the element's index and on the sizes of c.
inline constinit Kernel<void(ConstView a, ConstView b, ConstView bias, View c, bool accumulate)>
    matmul{"matmul"};

/// y[j] = sum over i of x[i, j].  x [rows, n] of any strides, y [n] contiguous, same floating
/// dtype. Partial sums over fixed runs of rows are added in order.
inline constinit Kernel<void(ConstView x, View y)> sum_rows{"sum_rows"};

/// *macs = the multiply-adds of f32 per second that so many threads reach with nothing but
/// registers, or with `dots` those of bf16 dot products where the processor has them, and
/// *instructions the name of the instruction set. Takes about 20 ms; counts CPU time.
inline constinit Kernel<void(int threads, bool dots, double* macs, const char** instructions)>
    measure_peak{"measure_peak", true};

}  // namespace longspan::kernels
