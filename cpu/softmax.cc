#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/softmax.cc"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include "core/parallel.h"
#include "cpu/register.h"
#include "cpu/simd-inl.h"
#include "ops/kernels/softmax.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<Accumulator<T>>;

/// The largest of a row; -inf of an empty one.
template <class T>
HWY_INLINE Accumulator<T> row_max(const T* x, size_t n) {
  const Tag<T> d;
  const size_t N = hn::Lanes(d);
  const auto least = simd::constant(d, -std::numeric_limits<double>::infinity());
  auto m0 = least, m1 = least;
  size_t i = 0;
  for (; i + 2 * N <= n; i += 2 * N) {
    m0 = hn::Max(m0, simd::load(d, x + i, N));
    m1 = hn::Max(m1, simd::load(d, x + i + N, N));
  }
  for (; i < n; i += N) {
    const auto v = simd::load(d, x + i, n - i);
    m0 = hn::Max(m0, i + N <= n ? v : hn::IfThenElse(hn::FirstN(d, n - i), v, least));
  }
  return simd::max_lanes(d, hn::Max(m0, m1));
}

/// What is subtracted before exponentials are taken: the largest, or 0 where that is -inf.
template <class A>
HWY_INLINE A shift_of(A largest) {
  return largest == -std::numeric_limits<A>::infinity() ? A{0} : largest;
}

/// e^(x - shift), zero beyond the row.
template <class T, class V>
HWY_INLINE V weight_at(const T* x, size_t left, V shift) {
  const Tag<T> d;
  const auto e = simd::exp_nonpositive(d, hn::Sub(simd::load(d, x, left), shift));
  return left >= hn::Lanes(d) ? e : hn::IfThenElseZero(hn::FirstN(d, left), e);
}

/// The sum of e^(x - shift) over a row; with a destination the terms are kept there.
template <class T>
HWY_INLINE Accumulator<T> row_weights(const T* x, Accumulator<T> shift, T* y, size_t n) {
  const Tag<T> d;
  const size_t N = hn::Lanes(d);
  const auto s = hn::Set(d, shift);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d);
  for (size_t i = 0; i < n; i += 2 * N) {
    const auto e = weight_at(x + i, n - i, s);
    s0 = hn::Add(s0, e);
    if (y != nullptr) simd::store(e, d, y + i, n - i);
    if (i + N >= n) break;
    const auto f = weight_at(x + i + N, n - i - N, s);
    s1 = hn::Add(s1, f);
    if (y != nullptr) simd::store(f, d, y + i + N, n - i - N);
  }
  return simd::sum_lanes(d, hn::Add(s0, s1));
}

template <class T>
HWY_INLINE void softmax_row(const T* x, T* y, size_t n) {
  using A = Accumulator<T>;
  const Tag<T> d;
  const size_t N = hn::Lanes(d);
  const A shift = shift_of(row_max(x, n));
  if constexpr (std::is_same_v<T, A>) {
    const A sum = row_weights(x, shift, y, n);
    const auto scale = hn::Set(d, sum == 0 ? A{0} : A{1} / sum);
    for (size_t i = 0; i < n; i += N) {
      simd::store(hn::Mul(simd::load(d, y + i, n - i), scale), d, y + i, n - i);
    }
  } else {  // what is kept is rounded once: exponentials are taken again
    const A sum = row_weights<T>(x, shift, nullptr, n);
    const auto scale = hn::Set(d, sum == 0 ? A{0} : A{1} / sum);
    const auto s = hn::Set(d, shift);
    for (size_t i = 0; i < n; i += N) {
      simd::store(hn::Mul(weight_at(x + i, n - i, s), scale), d, y + i, n - i);
    }
  }
}

template <class T>
HWY_INLINE Accumulator<T> logsumexp_row(const T* x, size_t n) {
  const auto shift = shift_of(row_max(x, n));
  return shift + std::log(row_weights<T>(x, shift, nullptr, n));
}

template <class T>
HWY_INLINE void log_softmax_row(const T* x, T* y, size_t n) {
  const Tag<T> d;
  const size_t N = hn::Lanes(d);
  const auto total = logsumexp_row(x, n);
  const auto least = -std::numeric_limits<Accumulator<T>>::infinity();
  const auto s = hn::Set(d, total == least ? Accumulator<T>{0} : total);
  for (size_t i = 0; i < n; i += N) {
    simd::store(hn::Sub(simd::load(d, x + i, n - i), s), d, y + i, n - i);
  }
}

template <class T>
HWY_INLINE void softmax_gradient_row(const T* y, const T* dy, T* dx, size_t n) {
  const Tag<T> d;
  const size_t N = hn::Lanes(d);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d);
  for (size_t i = 0; i < n; i += 2 * N) {
    s0 = hn::MulAdd(simd::load(d, y + i, n - i), simd::load(d, dy + i, n - i), s0);
    if (i + N >= n) break;
    s1 = hn::MulAdd(simd::load(d, y + i + N, n - i - N), simd::load(d, dy + i + N, n - i - N), s1);
  }
  const auto sum = hn::Set(d, simd::sum_lanes(d, hn::Add(s0, s1)));
  for (size_t i = 0; i < n; i += N) {
    const auto g = hn::Sub(simd::load(d, dy + i, n - i), sum);
    simd::store(hn::Mul(simd::load(d, y + i, n - i), g), d, dx + i, n - i);
  }
}

template <class T>
HWY_INLINE void log_softmax_gradient_row(const T* y, const T* dy, T* dx, size_t n) {
  const Tag<T> d;
  const size_t N = hn::Lanes(d);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d);
  for (size_t i = 0; i < n; i += 2 * N) {
    s0 = hn::Add(s0, simd::load(d, dy + i, n - i));
    if (i + N >= n) break;
    s1 = hn::Add(s1, simd::load(d, dy + i + N, n - i - N));
  }
  const auto sum = hn::Set(d, simd::sum_lanes(d, hn::Add(s0, s1)));
  for (size_t i = 0; i < n; i += N) {
    const auto p = simd::exp_nonpositive(d, simd::load(d, y + i, n - i));
    simd::store(hn::NegMulAdd(p, sum, simd::load(d, dy + i, n - i)), d, dx + i, n - i);
  }
}

template <class T>
void softmax_rows(bool log, const T* x, T* y, int64_t rows, size_t n) {
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    if (log) {
      log_softmax_row(x, y, n);
    } else {
      softmax_row(x, y, n);
    }
  }
}

template <class T>
void softmax_gradient_rows(bool log, const T* y, const T* dy, T* dx, int64_t rows, size_t n) {
  for (int64_t r = 0; r < rows; ++r, y += n, dy += n, dx += n) {
    if (log) {
      log_softmax_gradient_row(y, dy, dx, n);
    } else {
      softmax_gradient_row(y, dy, dx, n);
    }
  }
}

template <class T>
void logsumexp_rows(const T* x, T* y, int64_t rows, size_t n) {
  for (int64_t r = 0; r < rows; ++r, x += n) y[r] = T(logsumexp_row(x, n));
}

template <class T>
void logsumexp_gradient_rows(const T* x, const T* y, const T* dy, T* dx, int64_t rows, size_t n) {
  using A = Accumulator<T>;
  const Tag<T> d;
  const size_t N = hn::Lanes(d);
  for (int64_t r = 0; r < rows; ++r, x += n, dx += n) {
    const A total = static_cast<A>(y[r]);
    const bool empty = total == -std::numeric_limits<A>::infinity();
    const auto shift = hn::Set(d, empty ? A{0} : total);
    const auto g = hn::Set(d, static_cast<A>(dy[r]));
    for (size_t i = 0; i < n; i += N) {
      // y is rounded, so x - y may be a little above 0.
      const auto p = simd::exp(d, hn::Sub(simd::load(d, x + i, n - i), shift));
      simd::store(hn::Mul(p, g), d, dx + i, n - i);
    }
  }
}

constexpr int64_t grain = 1 << 14;  // elements of a task

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

void sum_backward(const ConstView& x, const ConstView& y, const ConstView& dy, const View& dx) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_rows(x.shape, [&](int64_t at, int64_t rows, size_t n) {
      const int64_t first = at / static_cast<int64_t>(n);
      logsumexp_gradient_rows(x.as<T>() + at, y.as<T>() + first, dy.as<T>() + first,
                              dx.as<T>() + at, rows, n);
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
  kernels::logsumexp_backward.set(DeviceKind::cpu,
                                  [](ConstView x, ConstView y, ConstView dy, View dx) {
                                    HWY_DYNAMIC_DISPATCH(sum_backward)(x, y, dy, dx);
                                  });
}

}  // namespace longspan::cpu
#endif
