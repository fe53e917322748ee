#pragma once

#include <cstdint>
#include <limits>

#include "core/dtype.h"
#include "core/kernels/maths.h"
#include "cuda/elementwise.cuh"
#include "cuda/launch.h"

/// Row functions: a team of threads, a warp or a block, works on one row at a time.
namespace longspan::cuda {

inline constexpr int row_threads = 256;    // of a block
inline constexpr int64_t warp_row = 1024;  // longest row that a single warp takes
inline constexpr int team_numbers =
    2 * row_threads / 32;  // of the workspace that a team of warps shares

/// The threads that share a row. The order of every reduction depends on the team size only.
template <int size>
struct Team {
  static_assert(size == 32 || size == row_threads);
  double* shared;  ///< workspace for two values of each warp; unused by a single warp

  __device__ int rank() const { return static_cast<int>(threadIdx.x) % size; }

  /// Folds f over the values of all threads; every thread gets the result.
  template <class A, class F>
  __device__ A fold(A value, F f) const {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      value = f(value, __shfl_xor_sync(0xffffffffu, value, step));
    }
    if constexpr (size > 32) {
      A* parts = reinterpret_cast<A*>(shared);
      __syncthreads();  // the workspace may still be read
      if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
      __syncthreads();
      value = parts[0];
#pragma unroll
      for (int w = 1; w < size / 32; ++w) value = f(value, parts[w]);
    }
    return value;
  }
  /// Finds the pair for which better(other, mine) holds for no other pair. Every thread gets it.
  template <class A, class F>
  __device__ void best(A& value, int64_t& place, F better) const {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const A other = __shfl_xor_sync(0xffffffffu, value, step);
      const int64_t there = __shfl_xor_sync(0xffffffffu, place, step);
      if (better(other, there, value, place)) {
        value = other;
        place = there;
      }
    }
    if constexpr (size > 32) {
      A* values = reinterpret_cast<A*>(shared);
      auto* places = reinterpret_cast<int64_t*>(shared + size / 32);
      __syncthreads();
      if (threadIdx.x % 32 == 0) {
        values[threadIdx.x / 32] = value;
        places[threadIdx.x / 32] = place;
      }
      __syncthreads();
      for (int w = 0; w < size / 32; ++w) {
        if (better(values[w], places[w], value, place)) {
          value = values[w];
          place = places[w];
        }
      }
    }
  }
  template <class A>
  __device__ A sum(A value) const {
    return fold(value, [](A a, A b) { return a + b; });
  }
  template <class A>
  __device__ A max(A value) const {
    return fold(value, [](A a, A b) { return a > b ? a : b; });
  }
};

/// Calls body(i) with the indices in [0, n) that belong to this thread, `width` adjacent ones each.
template <int width, int size, class F>
__device__ void for_row(const Team<size>& team, int64_t n, F body) {
  for (int64_t i = int64_t{team.rank()} * width; i < n; i += int64_t{size} * width) body(i);
}

/// Loads `width` adjacent elements as type A.
template <int width, class T, class A>
__device__ void load_pack(const T* from, A (&to)[width]) {
  const auto pack = *reinterpret_cast<const Pack<T, width>*>(from);
#pragma unroll
  for (int k = 0; k < width; ++k) to[k] = static_cast<A>(pack.value[k]);
}
template <int width, class T, class A>
__device__ void store_pack(const A (&from)[width], T* to) {
  Pack<T, width> pack;
#pragma unroll
  for (int k = 0; k < width; ++k) pack.value[k] = T(from[k]);
  *reinterpret_cast<Pack<T, width>*>(to) = pack;
}

template <int size, class F>
__global__ void __launch_bounds__(row_threads) rows_kernel(F f, int64_t rows) {
  __shared__ double shared[team_numbers];
  const Team<size> team{shared};
  constexpr int per_block = row_threads / size;
  for (int64_t r = int64_t{blockIdx.x} * per_block + threadIdx.x / size; r < rows;
       r += int64_t{gridDim.x} * per_block) {
    f(r, team);
  }
}

/// Calls f(row, team) on the device for rows of n elements.
template <class F>
void for_rows(const char* name, int64_t rows, int64_t n, F f) {
  if (n <= warp_row) {
    launch(name, rows_kernel<32, F>, blocks_for(rows, row_threads / 32), row_threads, 0, f, rows);
  } else {
    launch(name, rows_kernel<row_threads, F>, blocks_for(rows, 1), row_threads, 0, f, rows);
  }
}

/// The same with F<T, width>{args...}: packs of `width` elements if the rows are packed, else
/// single elements.
template <template <class, int> class F, class T, class... Args>
void for_packed_rows(const char* name, bool packed, int64_t rows, int64_t n, Args... args) {
  if (packed) {
    for_rows(name, rows, n, F<T, pack_width<T>>{args...});
  } else {
    for_rows(name, rows, n, F<T, 1>{args...});
  }
}

/// Whether rows of n elements of T at these addresses can be moved in packs of 16 bytes.
template <class T, class... Pointers>
bool rows_are_packed(int64_t n, Pointers... data) {
  constexpr int width = pack_width<T>;
  return n % width == 0 && (... && (reinterpret_cast<uintptr_t>(data) % 16 == 0));
}

/// The initial value of a maximum.
template <class A>
__device__ constexpr A least() {
  return -std::numeric_limits<A>::infinity();
}
/// e^(x - shift) of a sum whose logarithm is taken: 1 where both are inf, so that shift + log(sum)
/// is inf and not NaN.
template <class A>
__device__ A term_for_log(A x, A shift) {
  return x == shift ? A(1) : kernels::exponential(x - shift);
}
/// The value subtracted before exponentials are taken: the maximum, or 0 if that is -inf, because
/// inf - inf would be NaN.
template <class A>
__device__ A shift_of(A largest) {
  return largest == least<A>() ? A(0) : largest;
}

}  // namespace longspan::cuda
