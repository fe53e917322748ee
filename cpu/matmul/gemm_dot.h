#pragma once

#include "cpu/matmul/gemm_problem.h"

namespace longspan::cpu {

// plan_gemm() and run_gemm() for Gemm::dot.
GemmPlan plan_gemm_dot(const Gemm& g, int threads);
void run_gemm_dot(const Gemm& g, const GemmPlan& plan, int64_t task, void* scratch, void* partial);

}  // namespace longspan::cpu
