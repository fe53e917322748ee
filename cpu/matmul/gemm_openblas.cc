// Matrix products by OpenBLAS: one call for each task, in the thread that runs the task.

#include "cpu/matmul/gemm_openblas.h"

#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <string_view>

#include "cpu/matmul/gemm_epilogue.h"

namespace longspan::cpu {
namespace {

/// An operand of rows x columns, as passed to OpenBLAS.
struct Operand {
  CBLAS_TRANSPOSE transpose;
  int64_t apart;  // elements between rows, or between columns if transposed
};

/// `apart` is 0 if OpenBLAS cannot read the operand in place.
Operand operand(int64_t rows, int64_t columns, int64_t row, int64_t column) {
  // The stride of an axis of one element does not matter.
  if ((column == 1 || columns == 1) && (rows == 1 || row >= columns)) {
    return {CblasNoTrans, rows == 1 ? columns : row};
  }
  if ((row == 1 || rows == 1) && (columns == 1 || column >= rows)) {
    return {CblasTrans, columns == 1 ? rows : column};
  }
  return {CblasNoTrans, 0};
}
Operand operand_a(const Gemm& g) { return operand(g.m, g.k, g.a_row, g.a_col); }
Operand operand_b(const Gemm& g) { return operand(g.k, g.n, g.b_row, g.b_col); }

template <class T, class F>
void multiply(const Gemm& g, int64_t i0, int64_t j0, int64_t m, int64_t n, F gemm) {
  const Operand a = operand_a(g), b = operand_b(g);
  T* c = static_cast<T*>(g.c) + i0 * g.c_row + j0;
  const int64_t c_apart = g.m == 1 ? g.n : g.c_row;
  const auto size = [](int64_t x) { return static_cast<blasint>(x); };
  gemm(CblasRowMajor, a.transpose, b.transpose, size(m), size(n), size(g.k), T{1},
       static_cast<const T*>(g.a) + i0 * g.a_row, size(a.apart),
       static_cast<const T*>(g.b) + j0 * g.b_col, size(b.apart), g.accumulate ? T{1} : T{0}, c,
       size(c_apart));
  if (g.bias == nullptr) return;
  const T* bias = static_cast<const T*>(g.bias) + j0;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) c[i * g.c_row + j] += bias[j];
  }
}

/// Applies the epilogue to the sums of a task.
template <class T>
void finish_rows(const Gemm& g, const Part& rows, const Part& columns) {
  if (g.finish == nullptr) return;
  for (int64_t i = rows.begin; i < rows.begin + rows.size; ++i) {
    finish_sums(*g.finish, g.c_dtype, i, columns.begin, columns.size,
                static_cast<T*>(g.c) + i * g.c_row + columns.begin);
  }
}

}  // namespace

bool fits_openblas(const Gemm& g) {
  if ((g.dtype != DType::f32 && g.dtype != DType::f64) || g.c_dtype != g.dtype) return false;
  const int64_t c_apart = g.m == 1 ? g.n : g.c_row, a = operand_a(g).apart, b = operand_b(g).apart;
  constexpr int64_t most = std::numeric_limits<blasint>::max();
  return a > 0 && b > 0 && c_apart >= g.n && std::max({g.m, g.n, g.k, a, b, c_apart}) <= most;
}

GemmPlan plan_gemm_openblas(const Gemm& g) {
  // Every task packs its operands again, at a cost that falls as its sides grow; but a product that
  // is large enough for several threads is split into tasks for them.
  constexpr int64_t largest = 512, smallest = 128, wanted = 8;
  GemmPlan plan;
  plan.row_unit = plan.column_unit = largest;
  const auto fit = [&] {
    plan.down = (g.m + plan.row_unit - 1) / plan.row_unit;
    plan.beside = (g.n + plan.column_unit - 1) / plan.column_unit;
    return plan.tasks();
  };
  while (fit() < wanted && plan.column_unit > smallest) {
    (plan.row_unit < plan.column_unit ? plan.column_unit : plan.row_unit) /= 2;
  }
  return plan;
}

void run_gemm_openblas(const Gemm& g, const GemmPlan& plan, int64_t task) {
  // OpenBLAS's own threads would spin beside ours.
  static std::once_flag once;
  std::call_once(once, [] { openblas_set_num_threads(1); });
  const Part rows = plan.rows(g, task), columns = plan.columns(g, task);
  if (g.dtype == DType::f64) {
    multiply<double>(g, rows.begin, columns.begin, rows.size, columns.size, cblas_dgemm);
    finish_rows<double>(g, rows, columns);
  } else {
    multiply<float>(g, rows.begin, columns.begin, rows.size, columns.size, cblas_sgemm);
    finish_rows<float>(g, rows, columns);
  }
}

std::string openblas_name() {
  const std::string_view config = openblas_get_config();  // "OpenBLAS 0.3.21 NO_LAPACKE ..."
  const size_t version = config.find(' ');
  return fmt::format("{}, {}", config.substr(0, config.find(' ', version + 1)),
                     openblas_get_corename());
}

}  // namespace longspan::cpu
