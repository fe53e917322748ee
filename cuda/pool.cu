#include "core/kernels/pool.h"

#include <algorithm>

#include "core/memory.h"
#include "cuda/columns.cuh"
#include "cuda/elementwise.cuh"
#include "cuda/register.h"

namespace longspan::cuda {
namespace {

using kernels::Taps;

/// Sizes of a call: x [B, L, D], y [B, T, D].
struct Sizes {
  int64_t B, L, D, T;
};

__device__ int64_t input_of(const Taps& w, int64_t t, int64_t k) {
  return t * w.stride + k * w.dilation - w.before;
}
/// Returns the window whose tap k is at input l, or -1.
__device__ int64_t window_of(const Taps& w, int64_t l, int64_t k, int64_t T) {
  const int64_t at = l + w.before - k * w.dilation;
  return at >= 0 && at % w.stride == 0 && at / w.stride < T ? at / w.stride : -1;
}
/// Calls f(k, l) for the taps of window t that exist.
template <class F>
__device__ void for_taps(const Taps& w, const Sizes& s, int64_t t, F f) {
  for (int64_t k = 0; k < w.size; ++k) {
    const int64_t l = input_of(w, t, k);
    if (l >= 0 && l < s.L) f(k, l);
  }
}
/// Calls f(k, t) for the windows that contain input l.
template <class F>
__device__ void for_windows(const Taps& w, const Sizes& s, int64_t l, F f) {
  for (int64_t k = 0; k < w.size; ++k) {
    const int64_t t = window_of(w, l, k, s.T);
    if (t >= 0) f(k, t);
  }
}

/// Calls f(b, i, d) for the elements of [B, n, D]; adjacent threads take adjacent d.
template <class F>
__global__ void __launch_bounds__(elementwise_threads)
    places_kernel(F f, int64_t count, int64_t n, int64_t D) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    f(i / (n * D), i / D % n, i % D);
  }
}
template <class F>
void for_places(const char* name, const View& y, F f) {
  launch(name, places_kernel<F>, blocks_for(y.numel(), elementwise_threads), elementwise_threads, 0,
         f, y.numel(), y.dim(1), y.dim(2));
}

template <class T>
struct MeanForward {
  using A = Accumulator<T>;
  const T* x;
  T* y;
  Taps w;
  Sizes s;
  __device__ void operator()(int64_t b, int64_t t, int64_t d) const {
    A sum = 0;
    int64_t count = 0;
    for_taps(w, s, t, [&](int64_t, int64_t l) {
      sum += static_cast<A>(x[(b * s.L + l) * s.D + d]);
      ++count;
    });
    y[(b * s.T + t) * s.D + d] = T(sum * (A(1) / static_cast<A>(count)));
  }
};
template <class T>
struct MeanBackward {
  using A = Accumulator<T>;
  const T* dy;
  T* dx;
  Taps w;
  Sizes s;
  __device__ void operator()(int64_t b, int64_t l, int64_t d) const {
    A sum = 0;
    for_windows(w, s, l, [&](int64_t, int64_t t) {
      int64_t count = 0;
      for_taps(w, s, t, [&](int64_t, int64_t) { ++count; });
      sum += A(1) / static_cast<A>(count) * static_cast<A>(dy[(b * s.T + t) * s.D + d]);
    });
    dx[(b * s.L + l) * s.D + d] = T(sum);
  }
};
template <class T, class P>
struct MaxForward {
  using A = Accumulator<T>;
  const T* x;
  T* y;
  P* which;
  Taps w;
  Sizes s;
  __device__ void operator()(int64_t b, int64_t t, int64_t d) const {
    A best = 0;
    int64_t place = -1;
    for_taps(w, s, t, [&](int64_t k, int64_t l) {
      const A next = static_cast<A>(x[(b * s.L + l) * s.D + d]);
      if (place < 0 || next > best || (next != next && best == best)) {
        best = next;
        place = k;
      }
    });
    const int64_t at = (b * s.T + t) * s.D + d;
    y[at] = T(best);
    which[at] = static_cast<P>(place);
  }
};
template <class T, class P>
struct MaxBackward {
  using A = Accumulator<T>;
  const T* dy;
  const P* which;
  T* dx;
  Taps w;
  Sizes s;
  __device__ void operator()(int64_t b, int64_t l, int64_t d) const {
    A sum = 0;
    for_windows(w, s, l, [&](int64_t k, int64_t t) {
      const int64_t at = (b * s.T + t) * s.D + d;
      if (which[at] == static_cast<P>(k)) sum += static_cast<A>(dy[at]);
    });
    dx[(b * s.L + l) * s.D + d] = T(sum);
  }
};
template <class T>
struct DepthwiseForward {
  using A = Accumulator<T>;
  const T *x, *weight, *bias;
  T* y;
  Taps w;
  Sizes s;
  __device__ void operator()(int64_t b, int64_t t, int64_t d) const {
    A sum = bias != nullptr ? static_cast<A>(bias[d]) : A(0);
    for_taps(w, s, t, [&](int64_t k, int64_t l) {
      sum += static_cast<A>(x[(b * s.L + l) * s.D + d]) * static_cast<A>(weight[k * s.D + d]);
    });
    y[(b * s.T + t) * s.D + d] = T(sum);
  }
};
template <class T>
struct DepthwiseBackward {
  using A = Accumulator<T>;
  const T *dy, *weight;
  T* dx;
  Taps w;
  Sizes s;
  __device__ void operator()(int64_t b, int64_t l, int64_t d) const {
    A sum = 0;
    for_windows(w, s, l, [&](int64_t k, int64_t t) {
      sum += static_cast<A>(dy[(b * s.T + t) * s.D + d]) * static_cast<A>(weight[k * s.D + d]);
    });
    dx[(b * s.L + l) * s.D + d] = T(sum);
  }
};

/// parts[piece, k, d] = the sum over a piece of the windows [B T]. The grid axes are strips of D,
/// taps, pieces.
template <class T>
__global__ void __launch_bounds__(strip_threads)
    tap_kernel(const T* dy, const T* x, Taps w, Sizes s, int64_t length, Accumulator<T>* parts) {
  using A = Accumulator<T>;
  const int64_t d = strip_column(blockIdx.x), k = blockIdx.y, piece = blockIdx.z;
  const int64_t windows = s.B * s.T, first = piece * length;
  const int64_t end = first + length < windows ? first + length : windows;
  const auto add = [&](int64_t i, A(&sum)[1]) {
    const int64_t l = input_of(w, i % s.T, k);
    if (l < 0 || l >= s.L) return;
    sum[0] += static_cast<A>(dy[i * s.D + d]) * static_cast<A>(x[(i / s.T * s.L + l) * s.D + d]);
  };
  sum_columns<A>(d < s.D, first, end, add,
                 [&](int, A sum) { parts[(piece * w.size + k) * s.D + d] = sum; });
}

/// dw[k, d] = the sum of the pieces, added in order.
template <class T>
struct Fold {
  const Accumulator<T>* parts;
  T* dw;
  int64_t pieces, taps, D;
  __device__ void operator()(int64_t, int64_t k, int64_t d) const {
    Accumulator<T> sum = 0;
    for (int64_t p = 0; p < pieces; ++p) sum += parts[(p * taps + k) * D + d];
    dw[k * D + d] = T(sum);
  }
};

Sizes sizes_of(const ConstView& x, const ConstView& y) {
  return {x.dim(0), x.dim(1), x.dim(2), y.dim(1)};
}

void mean_pool_forward(ConstView x, Taps w, View y) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_places("mean_pool_forward", y, MeanForward<T>{x.as<T>(), y.as<T>(), w, sizes_of(x, y)});
  });
}

void mean_pool_backward(ConstView dy, Taps w, View dx) {
  visit_floating(dx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_places("mean_pool_backward", dx,
               MeanBackward<T>{dy.as<T>(), dx.as<T>(), w, sizes_of(dx, dy)});
  });
}

/// Calls f(TypeTag<P>{}) for the storage type of argmax indices.
template <class F>
void visit_places(DType t, F&& f) {
  if (t == DType::u8) {
    f(TypeTag<uint8_t>{});
  } else {
    f(TypeTag<int32_t>{});
  }
}

void max_pool_forward(ConstView x, Taps w, View y, View which) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    visit_places(which.dtype, [&](auto place) {
      using P = typename decltype(place)::type;
      for_places("max_pool_forward", y,
                 MaxForward<T, P>{x.as<T>(), y.as<T>(), which.as<P>(), w, sizes_of(x, y)});
    });
  });
}

void max_pool_backward(ConstView dy, ConstView which, Taps w, View dx) {
  visit_floating(dx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    visit_places(which.dtype, [&](auto place) {
      using P = typename decltype(place)::type;
      for_places("max_pool_backward", dx,
                 MaxBackward<T, P>{dy.as<T>(), which.as<P>(), dx.as<T>(), w, sizes_of(dx, dy)});
    });
  });
}

void depthwise_forward(ConstView x, ConstView weight, ConstView bias, Taps w, View y) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_places(
        "depthwise_forward", y,
        DepthwiseForward<T>{x.as<T>(), weight.as<T>(), bias.as<T>(), y.as<T>(), w, sizes_of(x, y)});
  });
}

void depthwise_backward_x(ConstView dy, ConstView weight, Taps w, View dx) {
  visit_floating(dx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_places("depthwise_backward_x", dx,
               DepthwiseBackward<T>{dy.as<T>(), weight.as<T>(), dx.as<T>(), w, sizes_of(dx, dy)});
  });
}

void depthwise_backward_w(ConstView dy, ConstView x, Taps w, View dw) {
  const Sizes s = sizes_of(x, dy);
  if (dw.numel() == 0) return;
  const int64_t windows = s.B * s.T;
  const int64_t pieces = std::clamp<int64_t>(windows / 256, 1, 64);
  const int64_t length = (windows + pieces - 1) / pieces;
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const Scratch parts(pieces * dw.numel() * int64_t{sizeof(A)}, dw.device);
    const dim3 grid(strips_of(s.D), static_cast<unsigned>(w.size), static_cast<unsigned>(pieces));
    launch("depthwise_backward_w", tap_kernel<T>, grid, strip_threads, 0, dy.as<T>(), x.as<T>(), w,
           s, length, parts.as<A>());
    View rows = dw;
    rows.shape.insert(0, 1);
    rows.strides.insert(0, dw.numel());
    for_places("depthwise_backward_w", rows,
               Fold<T>{parts.as<A>(), dw.as<T>(), pieces, w.size, s.D});
  });
}

}  // namespace

void register_pool() {
  kernels::mean_pool_forward.set(DeviceKind::cuda, mean_pool_forward);
  kernels::mean_pool_backward.set(DeviceKind::cuda, mean_pool_backward);
  kernels::max_pool_forward.set(DeviceKind::cuda, max_pool_forward);
  kernels::max_pool_backward.set(DeviceKind::cuda, max_pool_backward);
  kernels::depthwise_forward.set(DeviceKind::cuda, depthwise_forward);
  kernels::depthwise_backward_x.set(DeviceKind::cuda, depthwise_backward_x);
  kernels::depthwise_backward_w.set(DeviceKind::cuda, depthwise_backward_w);
}

}  // namespace longspan::cuda
