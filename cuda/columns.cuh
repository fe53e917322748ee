#pragma once

#include <cstdint>

/// Sums of columns: a block of threads takes a strip of neighbouring columns, which neighbouring
/// threads read side by side; several lines of threads share a column's terms.
namespace longspan::cuda {

inline constexpr int strip_columns = 32, strip_lines = 8;
inline constexpr int strip_threads = strip_columns * strip_lines;

/// Strips that n columns are cut into, as a size of a grid.
inline unsigned strips_of(int64_t n) {
  return static_cast<unsigned>((n + strip_columns - 1) / strip_columns);
}

/// The column of a strip that this thread works on.
__device__ inline int64_t strip_column(int64_t strip) {
  return strip * strip_columns + static_cast<int>(threadIdx.x) % strip_columns;
}

/// `count` sums of every column of a strip: add(i, sums) adds term i of this thread's column to
/// them, for terms first <= i < end; then take(k, sum) is called once for each sum k, by one thread
/// of its column. The order of the terms depends on their number alone. `exists` says whether the
/// thread's column does. All threads of the block must come here, and meet before they come again.
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
