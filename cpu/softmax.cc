#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/softmax.cc"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include "core/kernels/softmax.h"
#include "core/parallel.h"
#include "cpu/register.h"
#include "cpu/rows-inl.h"
#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using rows::Tag;

/// Multiplies the weights; they are stored in y, or recomputed for 16-bit types.
template <class T>
HWY_INLINE void scale_row(const T* x, Accumulator<T> shift, Accumulator<T> factor, T* y, size_t n) {
  using A = Accumulator<T>;
  const Tag<T> d;
  const auto scale = hn::Set(d, factor), s = hn::Set(d, shift);
  simd::for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
    if constexpr (std::is_same_v<T, A>) {
      simd::store(hn::Mul(simd::load(d, y + i, left), scale), d, y + i, left);
    } else {  // recompute, so that the result is rounded once
      simd::store(hn::Mul(rows::weight_at(x + i, left, s), scale), d, y + i, left);
    }
  });
}

template <class T>
HWY_INLINE Accumulator<T> logsumexp_row(const T* x, size_t n) {
  const auto shift = rows::shift_of(rows::largest(x, n));
  return shift + std::log(rows::sum_for_log<T>(x, shift, nullptr, n));
}

/// Subtracts the maximum and the logarithm of the sum one after the other: beside a large maximum
/// their sum would lose the digits of the logarithm.
template <class T>
HWY_INLINE void log_softmax_row(const T* x, T* y, size_t n) {
  using A = Accumulator<T>;
  const Tag<T> d;
  const A shift = rows::shift_of(rows::largest(x, n));
  const A sum = rows::sum_weights<T>(x, shift, nullptr, n);
  const auto s = hn::Set(d, shift), log = hn::Set(d, sum == 0 ? A{0} : std::log(sum));
  simd::for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
    simd::store(hn::Sub(hn::Sub(simd::load(d, x + i, left), s), log), d, y + i, left);
  });
}

/// dx = y (dy - sum of y dy), or with `log` dx = dy - e^y (sum of dy).
template <class T>
HWY_INLINE void gradient_row(bool log, const T* y, const T* dy, T* dx, size_t n) {
  const Tag<T> d;
  const size_t N = hn::Lanes(d);
  const auto term = [&](size_t i, size_t left) HWY_ATTR {
    const auto g = simd::load(d, dy + i, left);
    return log ? g : hn::Mul(simd::load(d, y + i, left), g);
  };
  auto s0 = hn::Zero(d), s1 = hn::Zero(d);
  size_t j = 0;
  for (; j + 2 * N <= n; j += 2 * N) {
    s0 = hn::Add(s0, term(j, N));
    s1 = hn::Add(s1, term(j + N, N));
  }
  for (; j < n; j += N) s0 = hn::Add(s0, term(j, n - j));
  const auto sum = hn::Set(d, simd::sum_lanes(d, hn::Add(s0, s1)));
  simd::for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
    const auto v = simd::load(d, y + i, left), g = simd::load(d, dy + i, left);
    const auto result =
        log ? hn::NegMulAdd(simd::exp_nonpositive(d, v), sum, g) : hn::Mul(v, hn::Sub(g, sum));
    simd::store(result, d, dx + i, left);
  });
}

template <class T>
void softmax_rows(bool log, const T* x, T* y, int64_t count, size_t n) {
  using A = Accumulator<T>;
  if (log) {
    for (int64_t r = 0; r < count; ++r, x += n, y += n) log_softmax_row(x, y, n);
    return;
  }
  rows::for_steps(0, count, n, [&](int64_t first, int64_t some) HWY_ATTR {
    const auto at = [&](int64_t r) { return static_cast<size_t>(first + r) * n; };
    A shift[rows::most_together], sum[rows::most_together];
    for (int64_t r = 0; r < some; ++r) shift[r] = rows::shift_of(rows::largest(x + at(r), n));
    for (int64_t r = 0; r < some; ++r) {
      T* kept = std::is_same_v<T, A> ? y + at(r) : nullptr;
      sum[r] = rows::sum_weights(x + at(r), shift[r], kept, n);
    }
    for (int64_t r = 0; r < some; ++r) {
      scale_row(x + at(r), shift[r], sum[r] == 0 ? A{0} : A{1} / sum[r], y + at(r), n);
    }
  });
}

template <class T>
void softmax_gradient_rows(bool log, const T* y, const T* dy, T* dx, int64_t count, size_t n) {
  for (int64_t r = 0; r < count; ++r, y += n, dy += n, dx += n) {
    if (log) {
      gradient_row(true, y, dy, dx, n);
    } else {
      gradient_row(false, y, dy, dx, n);
    }
  }
}

template <class T>
void logsumexp_rows(const T* x, T* y, int64_t rows, size_t n) {
  for (int64_t r = 0; r < rows; ++r, x += n) y[r] = T(logsumexp_row(x, n));
}

template <class T>
void logsumexp_gradient_rows(const T* x, const T* dy, T* dx, int64_t count, size_t n) {
  using A = Accumulator<T>;
  rows::for_steps(0, count, n, [&](int64_t first, int64_t some) HWY_ATTR {
    const auto at = [&](int64_t r) { return static_cast<size_t>(first + r) * n; };
    A shift[rows::most_together], sum[rows::most_together];
    for (int64_t r = 0; r < some; ++r) shift[r] = rows::shift_of(rows::largest(x + at(r), n));
    for (int64_t r = 0; r < some; ++r) {
      T* kept = std::is_same_v<T, A> ? dx + at(r) : nullptr;
      sum[r] = rows::sum_for_log(x + at(r), shift[r], kept, n);
    }
    for (int64_t r = 0; r < some; ++r) {
      const A factor = sum[r] == 0 ? A{0} : static_cast<A>(dy[first + r]) / sum[r];
      scale_row(x + at(r), shift[r], factor, dx + at(r), n);
    }
  });
}

constexpr int64_t grain = 1 << 14;  // elements per task

template <class F>
void for_rows(const Shape& shape, F&& f) {
  const int64_t n = shape[1];
  if (shape[0] == 0 || n == 0) return;
  parallel_ranges(shape[0], std::max<int64_t>(1, grain / n),
                  [&](int64_t r, int64_t end) { f(r * n, end - r, static_cast<size_t>(n)); });
}

void forward(bool log, const ConstView& x, const View& y) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_rows(x.shape, [&](int64_t at, int64_t rows, size_t n) {
      softmax_rows(log, x.as<T>() + at, y.as<T>() + at, rows, n);
    });
  });
}

void backward(bool log, const ConstView& y, const ConstView& dy, const View& dx) {
  visit_floating(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_rows(y.shape, [&](int64_t at, int64_t rows, size_t n) {
      softmax_gradient_rows(log, y.as<T>() + at, dy.as<T>() + at, dx.as<T>() + at, rows, n);
    });
  });
}

void sum_forward(const ConstView& x, const View& y) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (x.shape[1] == 0) {
      for (int64_t r = 0; r < x.shape[0]; ++r) {
        y.as<T>()[r] = T(-std::numeric_limits<Accumulator<T>>::infinity());
      }
    }
    for_rows(x.shape, [&](int64_t at, int64_t rows, size_t n) {
      logsumexp_rows(x.as<T>() + at, y.as<T>() + at / static_cast<int64_t>(n), rows, n);
    });
  });
}

void sum_backward(const ConstView& x, const ConstView& dy, const View& dx) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_rows(x.shape, [&](int64_t at, int64_t rows, size_t n) {
      const int64_t first = at / static_cast<int64_t>(n);
      logsumexp_gradient_rows(x.as<T>() + at, dy.as<T>() + first, dx.as<T>() + at, rows, n);
    });
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::cpu {

HWY_EXPORT(forward);
HWY_EXPORT(backward);
HWY_EXPORT(sum_forward);
HWY_EXPORT(sum_backward);

void register_softmax() {
  kernels::softmax_forward.set(DeviceKind::cpu, [](bool log, ConstView x, View y) {
    HWY_DYNAMIC_DISPATCH(forward)(log, x, y);
  });
  kernels::softmax_backward.set(DeviceKind::cpu, [](bool log, ConstView y, ConstView dy, View dx) {
    HWY_DYNAMIC_DISPATCH(backward)(log, y, dy, dx);
  });
  kernels::logsumexp_forward.set(DeviceKind::cpu, [](ConstView x, View y) {
    HWY_DYNAMIC_DISPATCH(sum_forward)(x, y);
  });
  kernels::logsumexp_backward.set(DeviceKind::cpu, [](ConstView x, ConstView dy, View dx) {
    HWY_DYNAMIC_DISPATCH(sum_backward)(x, dy, dx);
  });
}

}  // namespace longspan::cpu
#endif
