#pragma once

#include <cstdint>

#include "core/kernels/matmul.h"

namespace longspan::cpu {

/// Applies function, factor and positive in place to n sums of a matmul, in row `row` from column
/// `column` on. A is double for an epilogue whose views are f64, else float; `dtype` is the dtype
/// of c.
template <class A>
void finish_sums(const kernels::Epilogue& e, DType dtype, int64_t row, int64_t column, int64_t n,
                 A* sums);

}  // namespace longspan::cpu
