#pragma once

#include <cstdint>

/// Column sums: a block of threads takes a strip of adjacent columns, which adjacent threads read
/// coalesced; several lines of threads share the terms of a column.
namespace longspan::cuda {

inline constexpr int strip_columns = 32, strip_lines = 8;
inline constexpr int strip_threads = strip_columns * strip_lines;

/// Number of strips of n columns, as a grid size.
inline unsigned strips_of(int64_t n) {
  return static_cast<unsigned>((n + strip_columns - 1) / strip_columns);
}

/// The column of a strip that this thread works on.
__device__ inline int64_t strip_column(int64_t strip) {
  return strip * strip_columns + static_cast<int>(threadIdx.x) % strip_columns;
}

/// Computes `count` sums of every column of a strip. add(i, sums) adds term i of this thread's
/// column, for terms first <= i < end; then one thread of the column calls take(k, sum) once for
/// each sum k. The order of the terms depends on their number only. `exists` says whether the
/// thread's column exists. All threads of the block must call this, with a barrier between two
/// calls.
template <class A, int count = 1, class Index, class Add, class Take>
__device__ void sum_columns(bool exists, Index first, Index end, Add add, Take take) {
  __shared__ A shared[count][strip_lines][strip_columns];
  const int c = static_cast<int>(threadIdx.x) % strip_columns;
  const int line = static_cast<int>(threadIdx.x) / strip_columns;
  A sums[count] = {};
  if (exists) {
    for (Index i = first + line; i < end; i += strip_lines) add(i, sums);
  }
#pragma unroll
  for (int k = 0; k < count; ++k) shared[k][line][c] = sums[k];
  __syncthreads();
  if (!exists || line >= count) return;
  A sum = shared[line][0][c];
#pragma unroll
  for (int l = 1; l < strip_lines; ++l) sum += shared[line][l][c];
  take(line, sum);
}

}  // namespace longspan::cuda
