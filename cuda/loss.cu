#include "core/kernels/loss.h"

#include "core/kernels/maths.h"
#include "core/memory.h"
#include "cuda/ids.cuh"
#include "cuda/register.h"
#include "cuda/rows.cuh"

namespace longspan::cuda {
namespace {

/// Returns the maximum of a row.
template <int width, class T, int size>
__device__ Accumulator<T> largest_of(const Team<size>& team, const T* x, int64_t n) {
  using A = Accumulator<T>;
  A high = least<A>();
  for_row<width>(team, n, [&](int64_t i) {
    A v[width];
    load_pack(x + i, v);
#pragma unroll
    for (int k = 0; k < width; ++k) high = v[k] > high || v[k] != v[k] ? v[k] : high;
  });
  return team.max(high);
}

template <class T, int width>
struct Scan {
  const T* logits;
  Ids targets;
  int64_t n, first;
  bool totals;
  T* state;

  template <int size>
  __device__ void operator()(int64_t row, const Team<size>& team) const {
    const T* x = logits + row * n;
    T* s = state + row * 4;
    const T high = first == 0 ? least<T>() : s[0], sum = first == 0 ? T(0) : s[1];
    const T own = first == 0 ? T(0) : s[2], all = first == 0 ? T(0) : s[3];
    const T largest = largest_of<width>(team, x, n);
    const T m = high > largest ? high : largest, before = shift_of(high), shift = shift_of(m);
    T part = 0, apart = 0;
    for_row<width>(team, n, [&](int64_t i) {
      T v[width];
      load_pack(x + i, v);
#pragma unroll
      for (int k = 0; k < width; ++k) {
        part += term_for_log(v[k], shift);
        if (totals) apart += v[k] - shift;
      }
    });
    part = team.sum(part);  // every thread has read the old state by now
    apart = team.sum(apart);
    if (team.rank() != 0) return;
    const int64_t t = targets[row] - first;
    s[0] = m;
    // A sum of 0 stays 0, and one beside an earlier inf stays; NaN stays NaN.
    s[1] = (sum == 0 ? T(0) : sum * term_for_log(before, shift)) + part;
    s[2] = t >= 0 && t < n ? x[t] : own;
    s[3] = apart;
    if (totals && first > 0) s[3] += all + static_cast<T>(first) * (before - shift);
  }
};

/// Computes the state of a row and, unless weights is null, its exp(logit - maximum). weights may
/// be logits.
template <class T, int width>
struct Weights {
  using A = Accumulator<T>;
  const T* logits;
  Ids targets;
  int64_t n;
  bool totals;
  T* weights;
  A* state;

  template <int size>
  __device__ void operator()(int64_t row, const Team<size>& team) const {
    const T* x = logits + row * n;
    const int64_t t = targets[row];
    const A own = t >= 0 && t < n ? static_cast<A>(x[t]) : A(0);  // before the first store
    const A largest = largest_of<width>(team, x, n), shift = shift_of(largest);
    A part = 0, apart = 0;
    for_row<width>(team, n, [&](int64_t i) {
      A v[width];
      load_pack(x + i, v);
#pragma unroll
      for (int k = 0; k < width; ++k) {
        if (totals) apart += v[k] - shift;
        part += term_for_log(v[k], shift);
        v[k] = kernels::exponential(v[k] - shift);
      }
      if (weights != nullptr) store_pack(v, weights + row * n + i);
    });
    part = team.sum(part);
    apart = team.sum(apart);
    if (team.rank() != 0) return;
    A* s = state + row * 4;
    s[0] = largest;
    s[1] = part;
    s[2] = own;
    s[3] = apart;
  }
};

/// Turns the weights of a row into the gradient of its loss.
template <class T, int width>
struct WeightsGradient {
  using A = Accumulator<T>;
  T* weights;
  Ids targets;
  const A *state, *scale;
  int64_t n;
  A uniform, own, z_loss;  // smoothing / classes, 1 - smoothing

  template <int size>
  __device__ void operator()(int64_t row, const Team<size>& team) const {
    const A g = scale[row], sum = state[row * 4 + 1];
    A factor = sum == 0 ? A(0) : g / sum;
    if (z_loss != 0) {
      const A lse = state[row * 4] + kernels::unary_value(kernels::Unary::log, A(0), A(0), sum);
      factor *= 1 + 2 * z_loss * lse;
    }
    const int64_t t = targets[row];
    for_row<width>(team, n, [&](int64_t i) {
      A v[width];
      load_pack(weights + row * n + i, v);
#pragma unroll
      for (int k = 0; k < width; ++k) {
        v[k] = g == 0 ? A(0) : v[k] * factor - g * uniform - (i + k == t ? g * own : A(0));
      }
      store_pack(v, weights + row * n + i);
    });
  }
};

template <class T, int width>
struct MultiplyRow {
  using A = Accumulator<T>;
  const T* x;
  const A* factor;
  int64_t step, n;  // step: 0 if there is one factor
  T* y;

  template <int size>
  __device__ void operator()(int64_t row, const Team<size>& team) const {
    const A f = factor[row * step];
    if (f == 1 && x == y) return;
    for_row<width>(team, n, [&](int64_t i) {
      A v[width];
      load_pack(x + row * n + i, v);
#pragma unroll
      for (int k = 0; k < width; ++k) v[k] = f == 0 ? A(0) : v[k] * f;
      store_pack(v, y + row * n + i);
    });
  }
};

template <class T, int width>
struct Gradient {
  T* logits;
  Ids targets;
  int64_t n, first;
  const T *totals, *scale;
  T uniform, own, z_loss;  // smoothing / classes, 1 - smoothing

  template <int size>
  __device__ void operator()(int64_t row, const Team<size>& team) const {
    const T g = scale[row], shift = shift_of(totals[2 * row]), sum = totals[2 * row + 1];
    T factor = sum == 0 ? T(0) : g / sum;
    if (z_loss != 0) {
      const T lse = totals[2 * row] + kernels::unary_value(kernels::Unary::log, T(0), T(0), sum);
      factor *= 1 + 2 * z_loss * lse;
    }
    const int64_t t = targets[row] - first;
    for_row<width>(team, n, [&](int64_t i) {
      T v[width];
      load_pack(logits + row * n + i, v);
#pragma unroll
      for (int k = 0; k < width; ++k) {
        const T p = factor * kernels::exponential(v[k] - shift);
        v[k] = g == 0 ? T(0) : p - g * uniform - (i + k == t ? g * own : T(0));
      }
      store_pack(v, logits + row * n + i);
    });
  }
};

/// Calls make(TypeTag<T>{}) with the accumulator type: f32 or f64.
template <class F>
void visit_sums(DType t, F&& make) {
  if (t == DType::f64) {
    make(TypeTag<double>{});
  } else {
    make(TypeTag<float>{});
  }
}

void scan(ConstView logits, ConstView targets, int64_t first, bool totals, View state) {
  visit_sums(logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t n = logits.dim(1);
    for_packed_rows<Scan, T>("cross_entropy_scan", rows_are_packed<T>(n, logits.data),
                             logits.dim(0), n, logits.as<T>(), Ids(targets), n, first, totals,
                             state.as<T>());
  });
}

void rows_of_all(ConstView logits, ConstView targets, ConstView scale, double smoothing,
                 double z_loss, View gradient, View state) {
  visit_floating(logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const int64_t rows = logits.dim(0), n = logits.dim(1);
    for_packed_rows<Weights, T>(
        "cross_entropy_rows", rows_are_packed<T>(n, logits.data, gradient.data), rows, n,
        logits.as<T>(), Ids(targets), n, smoothing != 0, gradient.as<T>(), state.as<A>());
    if (!gradient) return;
    for_packed_rows<WeightsGradient, T>(
        "cross_entropy_rows", rows_are_packed<T>(n, gradient.data), rows, n, gradient.as<T>(),
        Ids(targets), state.as<A>(), scale.as<A>(), n,
        static_cast<A>(smoothing / static_cast<double>(n > 0 ? n : 1)),
        static_cast<A>(1 - smoothing), static_cast<A>(z_loss));
  });
}

void multiply_rows(ConstView x, ConstView factor, View y) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t n = x.dim(1);
    for_packed_rows<MultiplyRow, T>("multiply_rows", rows_are_packed<T>(n, x.data, y.data),
                                    x.dim(0), n, x.as<T>(), factor.as<Accumulator<T>>(),
                                    factor.dim(0) == 1 ? int64_t{0} : int64_t{1}, n, y.as<T>());
  });
}

void gradient(View logits, ConstView targets, int64_t first, ConstView totals, ConstView scale,
              double smoothing, double z_loss, int64_t classes) {
  visit_sums(logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t n = logits.dim(1);
    for_packed_rows<Gradient, T>(
        "cross_entropy_gradient", rows_are_packed<T>(n, logits.data), logits.dim(0), n,
        logits.as<T>(), Ids(targets), n, first, totals.as<T>(), scale.as<T>(),
        static_cast<T>(smoothing / static_cast<double>(classes > 0 ? classes : 1)),
        static_cast<T>(1 - smoothing), static_cast<T>(z_loss));
  });
}

template <class T>
__global__ void __launch_bounds__(elementwise_threads)
    finish_kernel(const T* state, Ids targets, int64_t ignore, T smoothing, T z_loss, T classes,
                  T* totals, T* loss, int64_t rows) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows; i += step) {
    const T* s = state + 4 * i;
    const T log_sum = kernels::unary_value(kernels::Unary::log, T(0), T(0), s[1]);
    const T own = s[0] - s[2] + log_sum, z = s[0] + log_sum;
    const T value =
        smoothing == 0 ? own : (1 - smoothing) * own + smoothing * (log_sum - s[3] / classes);
    loss[i] = targets[i] == ignore ? T(0) : z_loss == 0 ? value : value + z_loss * z * z;
    if (totals == nullptr) continue;
    totals[2 * i] = s[0];
    totals[2 * i + 1] = s[1];
  }
}

void finish(ConstView state, ConstView targets, int64_t ignore, double smoothing, double z_loss,
            int64_t classes, View totals, View loss) {
  visit_sums(state.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t rows = state.dim(0);
    launch("cross_entropy_finish", finish_kernel<T>, blocks_for(rows, elementwise_threads),
           elementwise_threads, 0, state.as<T>(), Ids(targets), ignore, static_cast<T>(smoothing),
           static_cast<T>(z_loss), static_cast<T>(classes), totals.as<T>(), loss.as<T>(), rows);
  });
}

/// For a fixed share of the rows per block, sums[2 block] = the sum of the losses (0 if loss is
/// null) and sums[2 block + 1] = the number of targets that are not ignored.
template <class T>
__global__ void __launch_bounds__(row_threads)
    kept_kernel(const T* loss, Ids targets, int64_t ignore, int64_t rows, double* sums) {
  __shared__ double shared[team_numbers];
  const Team<row_threads> team{shared};
  double sum = 0, count = 0;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows; i += step) {
    if (loss != nullptr) sum += static_cast<double>(loss[i]);
    if (targets[i] != ignore) count += 1;
  }
  sum = team.sum(sum);
  count = team.sum(count);
  if (team.rank() == 0) {
    sums[2 * blockIdx.x] = sum;
    sums[2 * blockIdx.x + 1] = count;
  }
}

constexpr int kept_blocks = 128;  // fixed, so that the order of summation is

/// Adds the blocks' sums in order.
__device__ double add_blocks(const double* sums, int which) {
  double total = 0;
  for (int b = 0; b < kept_blocks; ++b) total += sums[2 * b + which];
  return total;
}

template <class T>
__global__ void total_kernel(const double* sums, bool mean, T* y) {
  const double count = add_blocks(sums, 1);
  *y = static_cast<T>(add_blocks(sums, 0) / (mean && count > 1 ? count : 1.0));
}

template <class T>
__global__ void __launch_bounds__(elementwise_threads)
    scale_kernel(const double* sums, const T* dy, int64_t dy_step, Ids targets, int64_t ignore,
                 bool mean, T* scale, int64_t rows) {
  const double kept = mean ? add_blocks(sums, 1) : 1.0, count = kept > 1 ? kept : 1.0;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows; i += step) {
    scale[i] =
        targets[i] == ignore ? T(0) : static_cast<T>(static_cast<double>(dy[i * dy_step]) / count);
  }
}

template <class T>
void sum_kept(const char* name, const T* loss, const ConstView& targets, int64_t ignore,
              const Scratch& sums) {
  launch(name, kept_kernel<T>, dim3(kept_blocks), row_threads, 0, loss, Ids(targets), ignore,
         targets.dim(0), sums.as<double>());
}

void scale_rows(ConstView dy, ConstView targets, int64_t ignore, bool mean, View scale) {
  visit_sums(scale.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t rows = targets.dim(0);
    const Scratch sums(2 * kept_blocks * int64_t{sizeof(double)}, scale.device);
    if (mean) sum_kept<T>("cross_entropy_scale", nullptr, targets, ignore, sums);
    launch("cross_entropy_scale", scale_kernel<T>, blocks_for(rows, elementwise_threads),
           elementwise_threads, 0, sums.as<double>(), dy.as<T>(),
           dy.dim(0) == 1 ? int64_t{0} : int64_t{1}, Ids(targets), ignore, mean, scale.as<T>(),
           rows);
  });
}

void total(ConstView loss, ConstView targets, int64_t ignore, bool mean, View y) {
  visit_sums(loss.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Scratch sums(2 * kept_blocks * int64_t{sizeof(double)}, y.device);
    sum_kept<T>("cross_entropy_total", loss.as<T>(), targets, ignore, sums);
    launch("cross_entropy_total", total_kernel<T>, dim3(1), 1, 0, sums.as<double>(), mean,
           y.as<T>());
  });
}

using kernels::PairLoss;

/// Value and slope of the loss of x with target t.
template <class A>
__device__ A pair_value(PairLoss f, A weight, A x, A t) {
  if (f == PairLoss::squared) return (x - t) * (x - t);
  const A plus = kernels::unary_value(kernels::Unary::softplus, A(0), A(0), x);
  const A minus = kernels::unary_value(kernels::Unary::softplus, A(0), A(0), -x);
  return (1 - t) * plus + weight * t * minus;
}
template <class A>
__device__ A pair_slope(PairLoss f, A weight, A x, A t) {
  if (f == PairLoss::squared) return 2 * (x - t);
  return (1 - t) * kernels::logistic(x) - weight * t * kernels::logistic(-x);
}

template <class A>
struct Pair {
  PairLoss f;
  A weight;
  __device__ void operator()(const A (&x)[2], A (&loss)[1]) const {
    loss[0] = pair_value(f, weight, x[0], x[1]);
  }
};

void pair_loss(PairLoss f, double weight, ConstView x, ConstView t, View loss) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    elementwise<A, T, A, 2, 1>("pair_loss", {x, t}, {loss}, Pair<A>{f, static_cast<A>(weight)});
  });
}

template <class T>
__global__ void __launch_bounds__(elementwise_threads)
    pair_gradient_kernel(PairLoss f, Accumulator<T> weight, const T* x, const T* t,
                         const Accumulator<T>* dy, int64_t dy_step, Accumulator<T> scale, T* dx,
                         int64_t n) {
  using A = Accumulator<T>;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    dx[i] = T(scale * dy[i * dy_step] *
              pair_slope(f, weight, static_cast<A>(x[i]), static_cast<A>(t[i])));
  }
}

void pair_loss_gradient(PairLoss f, double weight, ConstView x, ConstView t, ConstView dy,
                        double scale, View dx) {
  const int64_t n = x.dim(0);
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    launch("pair_loss_gradient", pair_gradient_kernel<T>, blocks_for(n, elementwise_threads),
           elementwise_threads, 0, f, static_cast<A>(weight), x.as<T>(), t.as<T>(), dy.as<A>(),
           dy.dim(0) == 1 ? int64_t{0} : int64_t{1}, static_cast<A>(scale), dx.as<T>(), n);
  });
}

template <class T>
__global__ void __launch_bounds__(elementwise_threads)
    outside_kernel(const T* x, double low, double high, int64_t n, int64_t* first) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    const auto value = static_cast<double>(static_cast<Accumulator<T>>(x[i]));
    if (!(value >= low && value <= high)) lower(first, i);
  }
}

/// found[1] = the bits of the value at index found[0], if there is one.
template <class T>
__global__ void name_outside_kernel(const T* x, int64_t* found) {
  if (found[0] < 0) return;
  found[1] = __double_as_longlong(static_cast<double>(static_cast<Accumulator<T>>(x[found[0]])));
}

void find_outside(ConstView x, double low, double high, View found) {
  constexpr const char* name = "find_outside";
  auto* const to = found.as<int64_t>();
  check(cudaMemsetAsync(to, 0xff, 2 * sizeof(int64_t), stream()), name);  // -1
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(name, outside_kernel<T>, blocks_for(x.dim(0), elementwise_threads), elementwise_threads,
           0, x.as<T>(), low, high, x.dim(0), to);
    launch(name, name_outside_kernel<T>, dim3(1), 1, 0, x.as<T>(), to);
  });
}

}  // namespace

void register_loss() {
  kernels::cross_entropy_scan.set(DeviceKind::cuda, scan);
  kernels::cross_entropy_rows.set(DeviceKind::cuda, rows_of_all);
  kernels::multiply_rows.set(DeviceKind::cuda, multiply_rows);
  kernels::cross_entropy_gradient.set(DeviceKind::cuda, gradient);
  kernels::cross_entropy_finish.set(DeviceKind::cuda, finish);
  kernels::cross_entropy_scale.set(DeviceKind::cuda, scale_rows);
  kernels::cross_entropy_total.set(DeviceKind::cuda, total);
  kernels::pair_loss.set(DeviceKind::cuda, pair_loss);
  kernels::pair_loss_gradient.set(DeviceKind::cuda, pair_loss_gradient);
  kernels::find_outside.set(DeviceKind::cuda, find_outside);
}

}  // namespace longspan::cuda
