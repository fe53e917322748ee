// Matrix products by FMA; f16 and bf16 are widened during packing.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul/gemm.cc"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include "cpu/matmul/gemm.h"

#include <algorithm>

#include "cpu/matmul/gemm_dot.h"
#include "cpu/matmul/gemm_openblas.h"
#include "cpu/matmul/gemm_task-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {

void RunGemm(const Gemm& g, const GemmPlan& plan, int64_t task, void* scratch, void* partial) {
  visit_floating(g.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    using T = Accumulator<S>;
    Task<T, S>(g, plan, task, static_cast<T*>(scratch), partial).run();
  });
}

void AddPartialSums(const Gemm& g, const GemmPlan& plan, const void* partial, int64_t row) {
  if (g.c_dtype == DType::f64) {
    add_partial_row<double>(g, plan, static_cast<const double*>(partial), row);
  } else {
    add_partial_row<float>(g, plan, static_cast<const float*>(partial), row);
  }
}

GemmPlan PlanGemm(const Gemm& g, int threads) {
  return g.dtype == DType::f64 ? plan_for<double>(g, threads) : plan_for<float>(g, threads);
}

}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::cpu {

HWY_EXPORT(RunGemm);
HWY_EXPORT(PlanGemm);
HWY_EXPORT(AddPartialSums);

bool pays_to_transpose(const Gemm& g) {
  // A smaller W usually comes from a cache. For more rows packing is cheap beside the products, and
  // a transposed product computes whole vectors of rows.
  constexpr int64_t far = int64_t{1} << 19, many = 256;
  return g.dtype == DType::f32 && g.c_dtype == DType::f32 && !g.dot && !g.openblas &&
         g.b_row == 1 && g.b_col != 1 && g.m > few && g.m <= std::min(many, g.n) &&
         g.n * g.k * size_of(g.dtype) >= far;
}

GemmPlan plan_gemm(const Gemm& g, int threads) {
  if (g.openblas) return plan_gemm_openblas(g);
  return g.dot ? plan_gemm_dot(g, threads) : HWY_DYNAMIC_DISPATCH(PlanGemm)(g, threads);
}

void run_gemm(const Gemm& g, const GemmPlan& plan, int64_t task, void* scratch, void* partial) {
  if (g.openblas) return run_gemm_openblas(g, plan, task);
  if (g.dot) return run_gemm_dot(g, plan, task, scratch, partial);
  HWY_DYNAMIC_DISPATCH(RunGemm)(g, plan, task, scratch, partial);
}

void add_partial_sums(const Gemm& g, const GemmPlan& plan, const void* partial, int64_t row) {
  HWY_DYNAMIC_DISPATCH(AddPartialSums)(g, plan, partial, row);
}

}  // namespace longspan::cpu
#endif
