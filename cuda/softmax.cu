#include "core/kernels/softmax.h"

#include "core/kernels/maths.h"
#include "cuda/register.h"
#include "cuda/rows.cuh"

namespace longspan::cuda {
namespace {

/// The maximum so far and the sum of e^(x - maximum) of all values added, or with `for_log` of
/// term_for_log().
template <class A, bool for_log>
struct Total {
  A largest = least<A>(), sum = 0;

  __device__ static A term(A x, A shift) {
    return for_log ? term_for_log(x, shift) : kernels::exponential(x - shift);
  }
  template <int width>
  __device__ void add(const A (&x)[width]) {
    A next = largest;
#pragma unroll
    for (int k = 0; k < width; ++k) next = x[k] > next || x[k] != x[k] ? x[k] : next;
    if (next == least<A>()) return;
    sum *= term(largest, next);
    largest = next;
#pragma unroll
    for (int k = 0; k < width; ++k) sum += term(x[k], next);
  }
  template <int size>
  __device__ void join(const Team<size>& team) {
    const A all = team.max(largest);
    sum = team.sum(largest == least<A>() ? A(0) : sum * term(largest, all));
    largest = all;
  }
};

template <int width, bool for_log, class T, int size>
__device__ auto total_of(const Team<size>& team, const T* x, int64_t n) {
  using A = Accumulator<T>;
  Total<A, for_log> total;
  for_row<width>(team, n, [&](int64_t i) {
    A v[width];
    load_pack(x + i, v);
    total.add(v);
  });
  total.join(team);
  return total;
}

template <class T, int width>
struct Forward {
  const T* x;
  T* y;
  int64_t n;
  bool log;

  template <int size>
  __device__ void operator()(int64_t row, const Team<size>& team) const {
    using A = Accumulator<T>;
    const T* from = x + row * n;
    T* to = y + row * n;
    const auto total = total_of<width, false>(team, from, n);
    const A shift = shift_of(total.largest), factor = total.sum == 0 ? A(0) : A(1) / total.sum;
    // Beside a large maximum the sum of the two would lose the digits of the logarithm.
    const A log_sum =
        total.sum == 0 ? A(0) : kernels::unary_value(kernels::Unary::log, A(0), A(0), total.sum);
    for_row<width>(team, n, [&](int64_t i) {
      A v[width];
      load_pack(from + i, v);
#pragma unroll
      for (int k = 0; k < width; ++k) {
        v[k] = log ? v[k] - shift - log_sum : kernels::exponential(v[k] - shift) * factor;
      }
      store_pack(v, to + i);
    });
  }
};

template <class T, int width>
struct Backward {
  const T *y, *dy;
  T* dx;
  int64_t n;
  bool log;

  template <int size>
  __device__ void operator()(int64_t row, const Team<size>& team) const {
    using A = Accumulator<T>;
    A part = 0;
    for_row<width>(team, n, [&](int64_t i) {
      A p[width], g[width];
      load_pack(y + row * n + i, p);
      load_pack(dy + row * n + i, g);
#pragma unroll
      for (int k = 0; k < width; ++k) part += log ? g[k] : p[k] * g[k];
    });
    const A sum = team.sum(part);
    for_row<width>(team, n, [&](int64_t i) {
      A p[width], g[width];
      load_pack(y + row * n + i, p);
      load_pack(dy + row * n + i, g);
#pragma unroll
      for (int k = 0; k < width; ++k) {
        g[k] = log ? g[k] - kernels::exponential(p[k]) * sum : p[k] * (g[k] - sum);
      }
      store_pack(g, dx + row * n + i);
    });
  }
};

template <class T, int width>
struct LogSumExp {
  const T* x;
  T* y;
  int64_t n;

  template <int size>
  __device__ void operator()(int64_t row, const Team<size>& team) const {
    using A = Accumulator<T>;
    const auto total = total_of<width, true>(team, x + row * n, n);
    const A lse =
        shift_of(total.largest) + kernels::unary_value(kernels::Unary::log, A(0), A(0), total.sum);
    if (team.rank() == 0) y[row] = T(lse);
  }
};

template <class T, int width>
struct LogSumExpBackward {
  const T *x, *dy;
  T* dx;
  int64_t n;

  template <int size>
  __device__ void operator()(int64_t row, const Team<size>& team) const {
    using A = Accumulator<T>;
    const auto total = total_of<width, true>(team, x + row * n, n);
    const A shift = shift_of(total.largest),
            factor = total.sum == 0 ? A(0) : static_cast<A>(dy[row]) / total.sum;
    for_row<width>(team, n, [&](int64_t i) {
      A v[width];
      load_pack(x + row * n + i, v);
#pragma unroll
      for (int k = 0; k < width; ++k) v[k] = kernels::exponential(v[k] - shift) * factor;
      store_pack(v, dx + row * n + i);
    });
  }
};

void softmax_forward(bool log, ConstView x, View y) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t n = x.dim(1);
    for_packed_rows<Forward, T>("softmax_forward", rows_are_packed<T>(n, x.data, y.data), x.dim(0),
                                n, x.as<T>(), y.as<T>(), n, log);
  });
}

void softmax_backward(bool log, ConstView y, ConstView dy, View dx) {
  visit_floating(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t n = y.dim(1);
    for_packed_rows<Backward, T>("softmax_backward",
                                 rows_are_packed<T>(n, y.data, dy.data, dx.data), y.dim(0), n,
                                 y.as<T>(), dy.as<T>(), dx.as<T>(), n, log);
  });
}

void logsumexp_forward(ConstView x, View y) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t n = x.dim(1);
    for_packed_rows<LogSumExp, T>("logsumexp_forward", rows_are_packed<T>(n, x.data), x.dim(0), n,
                                  x.as<T>(), y.as<T>(), n);
  });
}

void logsumexp_backward(ConstView x, ConstView dy, View dx) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t n = x.dim(1);
    for_packed_rows<LogSumExpBackward, T>("logsumexp_backward",
                                          rows_are_packed<T>(n, x.data, dx.data), x.dim(0), n,
                                          x.as<T>(), dy.as<T>(), dx.as<T>(), n);
  });
}

}  // namespace

void register_softmax() {
  kernels::softmax_forward.set(DeviceKind::cuda, softmax_forward);
  kernels::softmax_backward.set(DeviceKind::cuda, softmax_backward);
  kernels::logsumexp_forward.set(DeviceKind::cuda, logsumexp_forward);
  kernels::logsumexp_backward.set(DeviceKind::cuda, logsumexp_backward);
}

}  // namespace longspan::cuda
