#pragma once

#include <optional>
#include <span>

#include "core/kernel.h"
#include "core/kernels/elementwise.h"
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

/// What a product does with its sums s = a b before it stores them: what is given, in this order.
/// All but `accumulate` and `bias` are for a single matrix c; their views have its dtype, [M, N]
/// those of its shape and unit stride along N. f16 and bf16 are rounded after `bias`,
/// `function`, `factor` and `positive`, as if these were kernels of their own.
struct Epilogue {
  bool accumulate = false;             ///< s += c
  ConstView bias = {};                 ///< [N] any stride, the dtype of a: s += bias
  std::optional<Unary> function = {};  ///< s = f(s); not for a c that is wider than a
  View slope = {};                     ///< [M, N] is set to f'(s), for silu and the gelus
  ConstView factor = {};               ///< [M, N]: s *= factor
  ConstView positive = {};             ///< [M, N]: s = 0 where it is not above 0
  ConstView addend = {};               ///< [M, N]: s += addend
  View a_sums = {};                    ///< [M] contiguous, the dtype of a: its sums over k
  /// Whether s changes after `bias`.
  bool changes_sums() const { return function || factor || positive || addend; }
  /// Calls f(tensor) for each of its tensors.
  template <class F, class E>
  static void visit_tensors(F&& f, E& e) {
    f(e.bias), f(e.slope), f(e.factor), f(e.positive), f(e.addend), f(e.a_sums);
  }
};

/// The epilogue that changes nothing. It is a constant because making one takes a twentieth of the
/// time of a small matmul.
inline constexpr Epilogue no_epilogue{};

/// Returns the maximum k for which accumulating a matmul into c gives the same bits as storing its
/// result and adding it to c later; 0 for 16-bit dtypes, whose sums are not rounded before they are
/// added.
constexpr int64_t longest_exact_addition(DType dtype) {
  return dtype == DType::f64 ? 256 : dtype == DType::f32 ? 512 : 0;
}

/// c = a b, and then what the epilogue says, for each index of the leading axes, which are equal
/// for all three.
///   a [..., M, K], b [..., K, N]  any strides (0 repeats a matrix), one floating dtype
///   c [..., M, N]  unit stride along N; the dtype of a, or f32 for f16 and bf16
/// Sums run over k in order, in f64 for f64 and f32 otherwise: the bits of an element of c depend
/// only on its row of a, its column of b and K. With MatmulLibrary::openblas, if that library can
/// read the operands, they also depend on the element's index and on the sizes of c. a_sums are
/// those of sum_rows(), or partial sums over four interleaved parts of 512 of k, added in order;
/// which, depends on shapes, strides and dtypes.
inline constinit Kernel<void(ConstView a, ConstView b, View c, const Epilogue& epilogue)> matmul{
    "matmul"};

/// A product c = a b with its epilogue, as matmul() takes it.
struct Product {
  ConstView a, b;
  View c;
  Epilogue epilogue = {};
  /// Calls f(tensor) for each of its tensors.
  template <class F, class P>
  static void visit_tensors(F&& f, P& p) {
    f(p.a), f(p.b), f(p.c);
    Epilogue::visit_tensors(f, p.epilogue);
  }
  /// The number of tensors of a product, given or not.
  static size_t tensors() {
    size_t n = 0;
    const Product none;
    visit_tensors([&](const auto&) { ++n; }, none);
    return n;
  }
};

/// Several matmuls, each with the bits of a call of matmul(). Matmuls with the same c must be
/// adjacent and are computed in their order, all others in any order; otherwise no matmul may read
/// or write what another one writes.
inline constinit Kernel<void(std::span<const Product> all)> products{"products"};

/// Applies an epilogue's function, factor, positive and addend to the stored c, by kernels of their
/// own.
inline void finish_apart(const Epilogue& e, const View& c) {
  if (e.slope) {
    unary_slope(c.device, *e.function, c, c, e.slope);
  } else if (e.function) {
    unary_forward(c.device, *e.function, 0, 0, c, c);
  }
  if (e.factor) binary(c.device, Binary::mul, c, e.factor, c);
  if (e.positive) unary_backward(c.device, Unary::relu, 0, 0, e.positive, c, c);
  if (e.addend) binary(c.device, Binary::add, e.addend, c, c);
}

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
