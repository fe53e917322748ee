#pragma once

#include <string>

#include "cpu/matmul/gemm.h"

namespace longspan::cpu {

/// Whether OpenBLAS can compute the product: f32 or f64, with rows or columns of each operand side
/// by side, rows apart, and sizes that its 32 bits hold. Depends on shapes, strides and dtypes
/// alone.
bool fits_openblas(const Gemm& g);

// plan_gemm() and run_gemm() where Gemm::openblas. The tasks depend on the shape alone, never on
// threads, since the bits of a row do depend on its place in a task.
GemmPlan plan_gemm_openblas(const Gemm& g);
void run_gemm_openblas(const Gemm& g, const GemmPlan& plan, int64_t task);

/// So many tasks may run at a time: OpenBLAS has room for the buffers of a fixed number of callers,
/// and ends the process beyond.
constexpr int64_t openblas_callers = 64;

/// Version and kind of kernels, as "OpenBLAS 0.3.21, Haswell".
std::string openblas_name();

}  // namespace longspan::cpu
