#include "core/kernels/reduce.h"

#include <algorithm>

#include "core/kernels/gradient.h"
#include "core/kernels/matmul.h"
#include "core/memory.h"
#include "cuda/columns.cuh"
#include "cuda/register.h"
#include "cuda/rows.cuh"

namespace longspan::cuda {
namespace {

using Index = int64_t;
using Walk = kernels::Offsets<1, Index>;

__device__ Index place(const Walk& walk, Index i) {
  Index offset[1];
  walk.at(i, offset);
  return offset[0];
}

/// parts[piece, output] = the sum over a piece of an output's terms, which are contiguous; one team
/// of threads each.
template <class T, int size>
__global__ void __launch_bounds__(row_threads)
    lines_kernel(const T* x, const __grid_constant__ Walk kept, const __grid_constant__ Walk summed,
                 int64_t outputs, int64_t terms, int64_t pieces, int64_t length,
                 Accumulator<T>* parts) {
  using A = Accumulator<T>;
  __shared__ double shared[team_numbers];
  const Team<size> team{shared};
  constexpr int per_block = row_threads / size;
  for (int64_t task = int64_t{blockIdx.x} * per_block + threadIdx.x / size; task < outputs * pieces;
       task += int64_t{gridDim.x} * per_block) {
    const int64_t output = task % outputs, piece = task / outputs;
    const int64_t first = piece * length, end = first + length < terms ? first + length : terms;
    const T* from = x + place(kept, output);
    A sum = 0;
    for (int64_t i = first + team.rank(); i < end; i += size) {
      sum += static_cast<A>(from[place(summed, i)]);
    }
    sum = team.sum(sum);
    if (team.rank() == 0) parts[task] = sum;
  }
}

/// The same for contiguous outputs.
template <class T>
__global__ void __launch_bounds__(strip_threads)
    columns_kernel(const T* x, const __grid_constant__ Walk kept,
                   const __grid_constant__ Walk summed, int64_t outputs, int64_t terms,
                   int64_t length, Accumulator<T>* parts) {
  using A = Accumulator<T>;
  const int64_t output = strip_column(blockIdx.x), piece = blockIdx.y;
  const int64_t first = piece * length, end = first + length < terms ? first + length : terms;
  const T* from = output < outputs ? x + place(kept, output) : x;
  sum_columns<A>(
      output < outputs, first, end,
      [&](int64_t i, A(&sum)[1]) { sum[0] += static_cast<A>(from[place(summed, i)]); },
      [&](int, A sum) { parts[piece * outputs + output] = sum; });
}

/// y = scale * the sum of the pieces, added in order.
template <class T>
__global__ void __launch_bounds__(elementwise_threads)
    fold_kernel(const Accumulator<T>* parts, int64_t outputs, int64_t pieces, Accumulator<T> scale,
                T* y) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < outputs; i += step) {
    Accumulator<T> sum = 0;
    for (int64_t p = 0; p < pieces; ++p) sum += parts[p * outputs + i];
    y[i] = T(sum * scale);
  }
}

template <class T>
void sum_as(const ConstView& x, double scale, const View& y) {
  using A = Accumulator<T>;
  const kernels::SummedAxes axes(x.shape, x.strides, y.shape);
  const int64_t outputs = axes.kept.numel, terms = axes.summed.numel;
  if (outputs == 0) return;
  // Enough pieces to fill a large device, each of at least 512 terms. The number depends on the
  // shapes only.
  const int64_t wanted = std::clamp<int64_t>(65536 / outputs, 1, 256);
  const int64_t pieces = std::clamp<int64_t>(terms / 512, 1, wanted);
  const int64_t length = (terms + pieces - 1) / pieces;
  const Scratch parts(outputs * pieces * int64_t{sizeof(A)}, y.device);
  const Walk kept(axes.kept), summed(axes.summed);
  const bool side_by_side = axes.kept.step(0) == 1 && outputs > 1;
  const bool along = axes.summed.step(0) == 1 && terms > 1;
  if (side_by_side && !along) {
    const dim3 grid(strips_of(outputs), static_cast<unsigned>(pieces));
    launch("reduce_sum", columns_kernel<T>, grid, strip_threads, 0, x.as<T>(), kept, summed,
           outputs, terms, length, parts.as<A>());
  } else if (length <= warp_row) {
    launch("reduce_sum", lines_kernel<T, 32>, blocks_for(outputs * pieces, row_threads / 32),
           row_threads, 0, x.as<T>(), kept, summed, outputs, terms, pieces, length, parts.as<A>());
  } else {
    launch("reduce_sum", lines_kernel<T, row_threads>, blocks_for(outputs * pieces, 1), row_threads,
           0, x.as<T>(), kept, summed, outputs, terms, pieces, length, parts.as<A>());
  }
  launch("reduce_sum", fold_kernel<T>, blocks_for(outputs, elementwise_threads),
         elementwise_threads, 0, static_cast<const A*>(parts.as<A>()), outputs, pieces,
         static_cast<A>(scale), y.as<T>());
}

void sum(ConstView x, double scale, View y) {
  visit_floating(x.dtype, [&](auto tag) { sum_as<typename decltype(tag)::type>(x, scale, y); });
}

void sum_rows(ConstView x, View y) {
  y.shape.insert(0, 1);
  y.strides.insert(0, y.shape[1]);
  sum(x, 1.0, y);
}

/// The type in which values of T are compared.
template <class T>
using Compared = std::conditional_t<std::is_integral_v<T>, T, Accumulator<T>>;

template <class T>
struct Extremum {
  bool largest;
  const T* x;
  int64_t n;
  T* y;
  int64_t* index;

  template <int size>
  __device__ void operator()(int64_t row, const Team<size>& team) const {
    using C = Compared<T>;
    const bool high = largest;
    // NaN precedes everything; among equal values the first wins.
    const auto better = [high](C a, int64_t i, C b, int64_t j) {
      if (i < 0 || j < 0) return j < 0 && i >= 0;
      const bool a_nan = a != a, b_nan = b != b;
      if (a_nan || b_nan) return a_nan && (!b_nan || i < j);
      if (a == b) return i < j;
      return high ? a > b : a < b;
    };
    C value = 0;
    int64_t at = -1;
    for_row<1>(team, n, [&](int64_t i) {
      const C v = static_cast<C>(x[row * n + i]);
      if (better(v, i, value, at)) {
        value = v;
        at = i;
      }
    });
    team.best(value, at, better);
    if (team.rank() == 0) {
      y[row] = x[row * n + at];
      index[row] = at;
    }
  }
};

void extremum(bool largest, ConstView x, View y, View index) {
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_rows("reduce_extremum", x.dim(0), x.dim(1),
             Extremum<T>{largest, x.as<T>(), x.dim(1), y.as<T>(), index.as<int64_t>()});
  });
}

template <class T>
struct ExtremumBackward {
  const int64_t* index;
  const T* dy;
  T* dx;
  int64_t n;

  template <int size>
  __device__ void operator()(int64_t row, const Team<size>& team) const {
    const int64_t at = index[row];
    for_row<1>(team, n, [&](int64_t i) { dx[row * n + i] = i == at ? dy[row] : T(0.0f); });
  }
};

void extremum_backward(ConstView index, ConstView dy, View dx) {
  visit_floating(dy.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_rows("reduce_extremum_backward", dx.dim(0), dx.dim(1),
             ExtremumBackward<T>{index.as<int64_t>(), dy.as<T>(), dx.as<T>(), dx.dim(1)});
  });
}

/// The accumulator type of values of T along a row.
template <class T>
using Running = std::conditional_t<std::is_integral_v<T>, int64_t, double>;

/// y[r, i] = the sum up to i; a warp per row takes 32 elements at a time, in order.
template <class T, class To>
__global__ void __launch_bounds__(row_threads)
    running_kernel(const T* x, bool reverse, int64_t rows, int64_t n, To* y) {
  using S = Running<T>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int per_block = row_threads / 32;
  for (int64_t r = int64_t{blockIdx.x} * per_block + threadIdx.x / 32; r < rows;
       r += int64_t{gridDim.x} * per_block) {
    S before = 0;
    for (int64_t k = 0; k < n; k += 32) {
      const int64_t place = k + lane, i = reverse ? n - 1 - place : place;
      S sum = place < n ? static_cast<S>(x[r * n + i]) : S(0);
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const S left = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += left;
      }
      sum += before;
      if (place < n) {
        y[r * n + i] = To(static_cast<std::conditional_t<sizeof(To) == 2, float, To>>(sum));
      }
      before = __shfl_sync(0xffffffffu, sum, 31);
    }
  }
}

void cumulative_sum(ConstView x, bool reverse, View y) {
  const int64_t rows = x.dim(0), n = x.dim(1);
  if (n == 0) return;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using To = std::conditional_t<std::is_integral_v<T>, int64_t, T>;
    launch("cumulative_sum", running_kernel<T, To>, blocks_for(rows, row_threads / 32), row_threads,
           0, x.as<T>(), reverse, rows, n, y.as<To>());
  });
}

template <class T>
__global__ void __launch_bounds__(elementwise_threads)
    finite_kernel(const T* x, const __grid_constant__ Walk walk, int64_t n, int* bad) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  bool ok = true;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    ok = ok && isfinite(static_cast<Accumulator<T>>(x[place(walk, i)]));
  }
  if (!ok) *bad = 1;  // every writer writes the same value
}

void all_finite(ConstView x, bool* finite) {
  const Scratch bad(sizeof(int), x.device);
  check(cudaMemsetAsync(bad.data(), 0, sizeof(int), stream()), "all_finite");
  const kernels::Layouts<1> layout(x.shape, {&x.strides});
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch("all_finite", finite_kernel<T>, blocks_for(layout.numel, elementwise_threads),
           elementwise_threads, 0, x.as<T>(), Walk(layout), layout.numel, bad.as<int>());
  });
  int found = 0;
  copy_to_host(x.device, &found, bad.data(), sizeof(int));
  *finite = found == 0;
}

}  // namespace

void register_reduce() {
  kernels::reduce_sum.set(DeviceKind::cuda, sum);
  kernels::sum_to.set(DeviceKind::cuda, [](ConstView x, View y) { sum(x, 1.0, y); });
  kernels::sum_rows.set(DeviceKind::cuda, sum_rows);
  kernels::reduce_extremum.set(DeviceKind::cuda, extremum);
  kernels::reduce_extremum_backward.set(DeviceKind::cuda, extremum_backward);
  kernels::cumulative_sum.set(DeviceKind::cuda, cumulative_sum);
  kernels::all_finite.set(DeviceKind::cuda, all_finite);
}

}  // namespace longspan::cuda
