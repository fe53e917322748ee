#pragma once

#include <cstdint>

#include "cpu/matmul/gemm_problem.h"

namespace longspan::cpu {

/// Returns a plan for `threads` threads. m, n, k > 0.
GemmPlan plan_gemm(const Gemm& g, int threads);

/// Computes task i of plan.tasks(g): a block of rows and columns of c.
void run_gemm(const Gemm& g, const GemmPlan& plan, int64_t i, void* scratch);

}  // namespace longspan::cpu
