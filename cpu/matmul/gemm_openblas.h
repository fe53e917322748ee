#pragma once

#include <string>

#include "cpu/matmul/gemm_problem.h"

namespace longspan::cpu {

/// Whether OpenBLAS can compute the product: f32 or f64, each operand with unit stride along rows
/// or columns, rows that do not overlap, and sizes that fit in its 32-bit integers. Depends only on
/// shapes, strides and dtypes.
bool fits_openblas(const Gemm& g);

// plan_gemm() and run_gemm() for Gemm::openblas. The tasks depend only on the shape, never on the
// number of threads, since the bits of a row do depend on its position in a task.
GemmPlan plan_gemm_openblas(const Gemm& g);
void run_gemm_openblas(const Gemm& g, const GemmPlan& plan, int64_t task);

/// Maximum number of concurrent tasks: OpenBLAS has buffers for a fixed number of callers, and ends
/// the process if there are more.
constexpr int64_t openblas_callers = 64;

/// Returns version and kind of kernels, for example "OpenBLAS 0.3.21, Haswell".
std::string openblas_name();

}  // namespace longspan::cpu
