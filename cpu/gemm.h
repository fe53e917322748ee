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
  const void* bias;  // [n], or null; in the type of c's sums
  void* c;           // unit stride along n; f32, or f64 for f64 operands
  int64_t c_row;
  DType dtype;  // of a and b
  bool accumulate;
};

/// Bytes of scratch that gemm() wants with `workers` threads at work (1 where parallel is false).
int64_t gemm_scratch_bytes(const Gemm& g, int workers);

/// Packs both operands and runs register tiles over them. Where `parallel`, tiles of c are handed
/// to the thread pool. An element's bits depend on neither.
void gemm(const Gemm& g, void* scratch, bool parallel);

}  // namespace longspan::cpu
