#include "core/kernels/norm.h"

#include "cuda/columns.cuh"
#include "cuda/register.h"
#include "cuda/rows.cuh"

namespace longspan::cuda {
namespace {

template <class T, int width>
struct Forward {
  using A = Accumulator<T>;
  const T *x, *weight, *bias;
  T* y;
  A *mean, *rstd;
  int64_t n;
  A eps;

  template <int size>
  __device__ void operator()(int64_t row, const Team<size>& team) const {
    const T* from = x + row * n;
    const A count = static_cast<A>(n);
    A center = 0;
    if (mean != nullptr) {
      A part = 0;
      for_row<width>(team, n, [&](int64_t i) {
        A v[width];
        load_pack(from + i, v);
#pragma unroll
        for (int k = 0; k < width; ++k) part += v[k];
      });
      center = team.sum(part) / count;
    }
    A part = 0;
    for_row<width>(team, n, [&](int64_t i) {
      A v[width];
      load_pack(from + i, v);
#pragma unroll
      for (int k = 0; k < width; ++k) part += (v[k] - center) * (v[k] - center);
    });
    const A scale = A(1) / sqrt(team.sum(part) / count + eps);
    if (team.rank() == 0) {
      if (mean != nullptr) mean[row] = center;
      rstd[row] = scale;
    }
    for_row<width>(team, n, [&](int64_t i) {
      A v[width], w[width], b[width];
      load_pack(from + i, v);
      if (weight != nullptr) load_pack(weight + i, w);
      if (bias != nullptr) load_pack(bias + i, b);
#pragma unroll
      for (int k = 0; k < width; ++k) {
        v[k] = (v[k] - center) * scale;
        if (weight != nullptr) v[k] *= w[k];
        if (bias != nullptr) v[k] += b[k];
      }
      store_pack(v, y + row * n + i);
    });
  }
};

/// a + b, rounded by itself: not contracted with the product that made an operand.
__device__ inline float rounded_sum(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double rounded_sum(double a, double b) { return __dadd_rn(a, b); }

template <class T, int width>
struct Backward {
  using A = Accumulator<T>;
  const T *x, *weight, *dy;
  const A *mean, *rstd;
  bool adds;
  T* dx;
  int64_t n;

  template <int size>
  __device__ void operator()(int64_t row, const Team<size>& team) const {
    const A center = mean != nullptr ? mean[row] : A(0), scale = rstd[row];
    /// Computes g = dy * weight and h = (x - mean) * rstd of the pack at i.
    const auto load = [&](int64_t i, A(&g)[width], A(&h)[width]) {
      load_pack(x + row * n + i, h);
      load_pack(dy + row * n + i, g);
      A w[width];
      if (weight != nullptr) load_pack(weight + i, w);
#pragma unroll
      for (int k = 0; k < width; ++k) {
        h[k] = (h[k] - center) * scale;
        if (weight != nullptr) g[k] *= w[k];
      }
    };
    A part_g = 0, part_gh = 0;
    for_row<width>(team, n, [&](int64_t i) {
      A g[width], h[width];
      load(i, g, h);
#pragma unroll
      for (int k = 0; k < width; ++k) {
        part_g += g[k];
        part_gh += g[k] * h[k];
      }
    });
    const A inverse = A(1) / static_cast<A>(n);
    const A mean_gh = team.sum(part_gh) * inverse;
    const A mean_g = mean != nullptr ? team.sum(part_g) * inverse : A(0);
    for_row<width>(team, n, [&](int64_t i) {
      A g[width], h[width];
      load(i, g, h);
#pragma unroll
      for (int k = 0; k < width; ++k) g[k] = scale * (g[k] - mean_g - h[k] * mean_gh);
      if (adds) {
        load_pack(dx + row * n + i, h);
#pragma unroll
        for (int k = 0; k < width; ++k) g[k] = rounded_sum(h[k], g[k]);
      }
      store_pack(g, dx + row * n + i);
    });
  }
};

/// work[run, 0, c] = the sum of dy * h over the run's rows, work[run, 1, c] = the sum of dy.
template <class T>
__global__ void __launch_bounds__(strip_threads)
    columns_kernel(const T* x, const T* dy, const Accumulator<T>* mean, const Accumulator<T>* rstd,
                   Accumulator<T>* work, int64_t rows, int64_t length, int64_t n) {
  using A = Accumulator<T>;
  const int64_t run = blockIdx.y, column = strip_column(blockIdx.x);
  const int64_t first = run * length, end = first + length < rows ? first + length : rows;
  const auto add = [&](int64_t r, A(&sums)[2]) {
    const A center = mean != nullptr ? mean[r] : A(0);
    const A g = static_cast<A>(dy[r * n + column]);
    sums[0] += g * ((static_cast<A>(x[r * n + column]) - center) * rstd[r]);
    sums[1] += g;
  };
  sum_columns<A, 2>(column < n, first, end, add,
                    [&](int k, A sum) { work[(2 * run + k) * n + column] = sum; });
}

/// dweight[c] and dbias[c] = the sums of the runs, added in order.
template <class T>
__global__ void __launch_bounds__(elementwise_threads)
    add_runs_kernel(const Accumulator<T>* work, int64_t runs, int64_t n, T* dweight, T* dbias) {
  using A = Accumulator<T>;
  const int64_t c = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c >= n) return;
  A sum_h = 0, sum = 0;
  for (int64_t r = 0; r < runs; ++r) {
    sum_h += work[2 * r * n + c];
    sum += work[(2 * r + 1) * n + c];
  }
  if (dweight != nullptr) dweight[c] = T(sum_h);
  if (dbias != nullptr) dbias[c] = T(sum);
}

void norm_forward(bool center, double eps, ConstView x, ConstView weight, ConstView bias, View y,
                  View mean, View rstd) {
  const int64_t rows = x.dim(0), n = x.dim(1);
  if (rows == 0 || n == 0) return;
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    for_packed_rows<Forward, T>(
        "norm_forward", rows_are_packed<T>(n, x.data, weight.data, bias.data, y.data), rows, n,
        x.as<T>(), weight.as<T>(), bias.as<T>(), y.as<T>(), center ? mean.as<A>() : nullptr,
        rstd.as<A>(), n, static_cast<A>(eps));
  });
}

void norm_backward(bool center, ConstView x, ConstView weight, ConstView mean, ConstView rstd,
                   ConstView dy, bool adds, View dx, View dweight, View dbias, View work) {
  const int64_t rows = x.dim(0), n = x.dim(1);
  if (n == 0) return;
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const A* centers = center ? mean.as<A>() : nullptr;
    if (dx && rows > 0) {
      for_packed_rows<Backward, T>(
          "norm_backward", rows_are_packed<T>(n, x.data, weight.data, dy.data, dx.data), rows, n,
          x.as<T>(), weight.as<T>(), dy.as<T>(), centers, rstd.as<A>(), adds, dx.as<T>(), n);
    }
    if (!dweight && !dbias) return;
    const int64_t runs = kernels::norm_work(rows);
    if (runs > 0) {
      const dim3 grid(strips_of(n), static_cast<unsigned>(runs));
      launch("norm_backward", columns_kernel<T>, grid, strip_threads, 0, x.as<T>(), dy.as<T>(),
             centers, rstd.as<A>(), work.as<A>(), rows, (rows + runs - 1) / runs, n);
    }
    const auto blocks = static_cast<unsigned>((n + elementwise_threads - 1) / elementwise_threads);
    launch("norm_backward", add_runs_kernel<T>, dim3(blocks), elementwise_threads, 0,
           static_cast<const A*>(work.as<A>()), runs, n, dweight.as<T>(), dbias.as<T>());
  });
}

}  // namespace

void register_norm() {
  kernels::norm_forward.set(DeviceKind::cuda, norm_forward);
  kernels::norm_backward.set(DeviceKind::cuda, norm_backward);
}

}  // namespace longspan::cuda
