#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/dtype.h"
#include "core/kernels/matmul.h"

namespace longspan::cpu {

/// One product c[m, n] = a[m, k] b[k, n] (+ bias[n]) (+ c). Strides in elements.
struct Gemm {
  int64_t m, n, k;
  const void* a;
  int64_t a_row, a_col;
  const void* b;
  int64_t b_row, b_col;
  const void* bias;  // [n], or [m] if `transposed`, or null; f64 for f64 operands, else f32
  void* c;           // unit stride along n, or along m if `transposed`
  int64_t c_row;     // elements between rows of c, or between its columns
  DType dtype;       // of a and b
  DType c_dtype;     // `dtype`, or f32 for f16 and bf16
  bool accumulate;
  bool dot = false;         // bf16 or f32 operands: pairs rounded to bf16, if bf16_dot() allows
  bool openblas = false;    // use OpenBLAS, if fits_openblas() allows
  bool transposed = false;  // c is stored as its transpose
  bool splits_k = false;    // tasks may be segments of k
  const kernels::Epilogue* finish = nullptr;  // what changes the sums in the end, or null
  void* a_sums = nullptr;  // [blocks of k, m], gets the sums of a's rows if GemmPlan::sums_a
};

/// A product of at most so many rows reads b in place where it can.
inline constexpr int64_t few = 4;

/// Returns the problem c^T = b^T a^T, which sets c to the same bits.
inline Gemm transposed(Gemm g) {
  std::swap(g.m, g.n);
  std::swap(g.a, g.b);
  std::swap(g.a_row, g.b_col);
  std::swap(g.a_col, g.b_row);
  g.transposed = !g.transposed;
  return g;
}

/// Elements [begin, begin + size) of a row of them.
struct Part {
  int64_t begin, size;
};
/// Returns part i of n elements that are divided into `parts`, whose sizes are multiples of `unit`
/// (but the last one's) and as equal as these allow.
inline Part part_of(int64_t n, int64_t unit, int64_t parts, int64_t i) {
  if (parts == 1) return {0, n};  // a small product takes no longer than a few divisions
  const int64_t units = (n + unit - 1) / unit;
  const int64_t begin = units * i / parts * unit;
  return {begin, std::min(n, units * (i + 1) / parts * unit) - begin};
}
/// Returns the size of the largest part.
inline int64_t largest_part(int64_t n, int64_t unit, int64_t parts) {
  if (parts == 1) return n;
  return std::min(n, ((n + unit - 1) / unit + parts - 1) / parts * unit);
}

/// How a product is divided into tasks: parts of its rows and columns, and segments of k. The
/// first segment of k is summed in c; the sums of every later block of k are stored apart, and
/// added in order by add_partial_sums(). So no plan changes the bits of a result, except with
/// OpenBLAS.
struct GemmPlan {
  int64_t row_unit = 1, column_unit = 1;  // parts have multiples of them
  int64_t down = 1, beside = 1;           // parts of rows and of columns
  int64_t segments = 1;                   // of k
  int64_t block = 1;                      // elements of a block of k
  int64_t scratch = 0;                    // bytes for each working thread
  bool sums_a = false;                    // the sums of a's rows are made while it is packed

  int64_t tasks() const { return segments * down * beside; }
  Part rows(const Gemm& g, int64_t task) const {
    return part_of(g.m, row_unit, down, down == 1 ? 0 : task / beside % down);
  }
  Part columns(const Gemm& g, int64_t task) const {
    return part_of(g.n, column_unit, beside, beside == 1 ? 0 : task % beside);
  }
  Part blocks(const Gemm& g, int64_t task) const {
    return part_of(blocks_of(g), 1, segments, segments == 1 ? 0 : task / (beside * down));
  }
  int64_t most_rows(const Gemm& g) const { return largest_part(g.m, row_unit, down); }
  int64_t most_columns(const Gemm& g) const { return largest_part(g.n, column_unit, beside); }
  int64_t blocks_of(const Gemm& g) const { return g.k <= block ? 1 : (g.k + block - 1) / block; }
  /// The first block of k whose sums are stored apart.
  int64_t first_partial(const Gemm& g) const { return part_of(blocks_of(g), 1, segments, 0).size; }
  /// The number of sums that are stored apart.
  int64_t partial_sums(const Gemm& g) const {
    return segments > 1 ? (blocks_of(g) - first_partial(g)) * g.m * g.n : 0;
  }
};

}  // namespace longspan::cpu
