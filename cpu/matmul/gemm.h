#pragma once

#include <cstdint>

#include "cpu/matmul/gemm_problem.h"

namespace longspan::cpu {

/// Whether a product should be transposed. Weights are stored as [n, k], so b = W^T must be
/// transposed while it is packed, which takes longer than the products of few rows if W comes from
/// main memory. The rows of W are the rows of b^T, which are read in place and in order.
bool pays_to_transpose(const Gemm& g);

/// Returns a plan for `threads` threads. m, n, k > 0.
GemmPlan plan_gemm(const Gemm& g, int threads);

/// Computes task i of plan.tasks(). `partial` has room for plan.partial_sums(g) sums, in the dtype
/// of c; null if there are none.
void run_gemm(const Gemm& g, const GemmPlan& plan, int64_t i, void* scratch,
              void* partial = nullptr);

/// Adds the sums that tasks stored in `partial` to row `row` of c, in the order of k; to be called
/// when all tasks are done.
void add_partial_sums(const Gemm& g, const GemmPlan& plan, const void* partial, int64_t row);

}  // namespace longspan::cpu
