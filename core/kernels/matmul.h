#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace longspan {

/// The loops of kernels::measure_peak(). The kernels of matrix products share no code with them.
///   registers  f32 multiply-adds on registers alone
///   loads      f32 multiply-adds whose factors are loaded, as a tile of sums of a matrix product
///              does: one vector panel from L2, broadcast values of a strip from L1
///   dots       dot products of bf16 on registers alone if the processor has them and LONGSPAN_SIMD
///              allows them; otherwise as registers
enum class PeakLoop { registers, loads, dots };

}  // namespace longspan

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

/// *macs = the multiply-adds per second that so many threads reach together in such a loop, and
/// *instructions the name of the instruction set. The best of several runs, which take about
/// `seconds` of each thread's CPU time; at least one run. A run takes about half a millisecond by
/// the wall clock, so that other processes interrupt few of them.
inline constinit Kernel<void(int threads, PeakLoop loop, double seconds, double* macs,
                             const char** instructions)>
    measure_peak{"measure_peak", true};

}  // namespace longspan::kernels
