#pragma once

#include <cstdint>
#include <utility>

#include "core/dtype.h"

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
  DType c_dtype;     // the same, or f32 for f16 and bf16
  bool accumulate;
  bool dot = false;         // bf16 or f32 operands: pairs rounded to bf16, if bf16_dot() allows
  bool openblas = false;    // use OpenBLAS, if fits_openblas() allows
  bool transposed = false;  // c is stored as its transpose
};

/// A product of at most so many rows reads b in place where it can.
inline constexpr int64_t few = 4;

/// Returns the same product as c^T = b^T a^T, which gives c the same bits.
inline Gemm transposed(Gemm g) {
  std::swap(g.m, g.n);
  std::swap(g.a, g.b);
  std::swap(g.a_row, g.b_col);
  std::swap(g.a_col, g.b_row);
  g.transposed = !g.transposed;
  return g;
}

/// How a product is split into tasks. Result bits do not depend on it, except with OpenBLAS.
struct GemmPlan {
  int64_t rows = 0, columns = 0;  // of a task
  int64_t scratch = 0;            // bytes for each working thread
  int64_t tasks(const Gemm& g) const {
    return rows >= g.m && columns >= g.n
               ? 1
               : (g.m + rows - 1) / rows * ((g.n + columns - 1) / columns);
  }
};

}  // namespace longspan::cpu
