#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace longspan::cpu {

/// One product c[m, n] = a[m, k] b[k, n] (+ bias[n]) (+ c). Strides in elements.
struct Gemm {
  int64_t m, n, k;
  const void* a;
  int64_t a_row, a_col;
  const void* b;
  int64_t b_row, b_col;
  const void* bias;  // [n], or null; f64 for f64 operands, else f32
  void* c;           // unit stride along n
  int64_t c_row;
  DType dtype;    // of a and b
  DType c_dtype;  // the same, or f32 for f16 and bf16
  bool accumulate;
  bool dot = false;       // bf16 or f32 operands: pairs rounded to bf16, if bf16_dot() allows
  bool openblas = false;  // use OpenBLAS, if fits_openblas() allows
};

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
