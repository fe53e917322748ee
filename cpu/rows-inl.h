// Reductions along rows shared by softmax, norms and losses. A row's bits depend only on the row.
// Included once per SIMD target.

#if defined(LONGSPAN_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_ROWS_INL_H_
#undef LONGSPAN_CPU_ROWS_INL_H_
#else
#define LONGSPAN_CPU_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace rows {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<Accumulator<T>>;

/// Rows of n that a step processes together, one pass after the other, so that the sum of one row
/// hides the latency of another: as many as stay in the L1 cache.
constexpr int64_t most_together = 8;
inline int64_t together(size_t n) {
  return std::clamp<int64_t>(4096 / std::max<int64_t>(static_cast<int64_t>(n), 1), 1,
                             most_together);
}

/// Calls step(first row, number of rows) over [row, end).
template <class F>
HWY_INLINE void for_steps(int64_t row, int64_t end, size_t n, F&& step) {
  for (const int64_t most = together(n); row < end; row += most) {
    step(row, std::min(most, end - row));
  }
}

/// Returns the maximum of a row, -inf for an empty one; if a row has NaN, NaN or the maximum of
/// other elements.
template <class T>
HWY_INLINE Accumulator<T> largest(const T* x, size_t n) {
  const Tag<T> d;
  const size_t N = hn::Lanes(d);
  const auto least = simd::constant(d, -std::numeric_limits<double>::infinity());
  auto m0 = least, m1 = least, m2 = least, m3 = least;
  size_t i = 0;
  for (; i + 4 * N <= n; i += 4 * N) {
    m0 = hn::Max(m0, simd::load(d, x + i, N));
    m1 = hn::Max(m1, simd::load(d, x + i + N, N));
    m2 = hn::Max(m2, simd::load(d, x + i + 2 * N, N));
    m3 = hn::Max(m3, simd::load(d, x + i + 3 * N, N));
  }
  for (; i < n; i += N) {
    const auto v = simd::load(d, x + i, n - i);
    m0 = hn::Max(m0, i + N <= n ? v : hn::IfThenElse(hn::FirstN(d, n - i), v, least));
  }
  return simd::max_lanes(d, hn::Max(hn::Max(m0, m1), hn::Max(m2, m3)));
}

/// Returns the shift to subtract before exponentials: the maximum, or 0 if that is -inf.
template <class A>
HWY_INLINE A shift_of(A greatest) {
  return greatest == -std::numeric_limits<A>::infinity() ? A{0} : greatest;
}

/// Returns e^(x - shift), zero beyond the row.
template <class T, class V>
HWY_INLINE V weight_at(const T* x, size_t left, V shift) {
  const Tag<T> d;
  const auto e = simd::exp_nonpositive(d, hn::Sub(simd::load(d, x, left), shift));
  return left >= hn::Lanes(d) ? e : hn::IfThenElseZero(hn::FirstN(d, left), e);
}

/// Returns the sum of e^(x - shift) over a row; stores the terms in y unless it is null. y may be
/// x. *differences, if given, becomes the sum of x - shift.
template <class T>
HWY_INLINE Accumulator<T> sum_weights(const T* x, Accumulator<T> shift, T* y, size_t n,
                                      Accumulator<T>* differences = nullptr) {
  const Tag<T> d;
  const size_t N = hn::Lanes(d);
  const auto s = hn::Set(d, shift);
  auto s0 = hn::Zero(d), s1 = s0, d0 = s0, d1 = s0;
  const auto minus = [&](size_t at, size_t left) HWY_ATTR {
    const auto v = hn::Sub(simd::load(d, x + at, left), s);
    return left >= N ? v : hn::IfThenElseZero(hn::FirstN(d, left), v);
  };
  size_t i = 0;
  for (; i + 2 * N <= n; i += 2 * N) {
    const auto e = weight_at(x + i, N, s), f = weight_at(x + i + N, N, s);
    s0 = hn::Add(s0, e);
    s1 = hn::Add(s1, f);
    if (differences != nullptr) {
      d0 = hn::Add(d0, minus(i, N));
      d1 = hn::Add(d1, minus(i + N, N));
    }
    if (y != nullptr) {
      simd::store(e, d, y + i, N);
      simd::store(f, d, y + i + N, N);
    }
  }
  for (; i < n; i += N) {
    const auto e = weight_at(x + i, n - i, s);
    s0 = hn::Add(s0, e);
    if (differences != nullptr) d0 = hn::Add(d0, minus(i, n - i));
    if (y != nullptr) simd::store(e, d, y + i, n - i);
  }
  if (differences != nullptr) *differences = simd::sum_lanes(d, hn::Add(d0, d1));
  return simd::sum_lanes(d, hn::Add(s0, s1));
}

/// Returns how many elements of a row are inf, or NaN if one of them is NaN.
template <class T>
HWY_NOINLINE Accumulator<T> count_infinite(const T* x, size_t n) {
  using A = Accumulator<T>;
  A count = 0;
  for (size_t i = 0; i < n; ++i) {
    const A v = static_cast<A>(x[i]);
    count += v == std::numeric_limits<A>::infinity() ? A{1} : v != v ? v : A{0};
  }
  return count;
}

/// sum_weights() for a logarithm: beside a shift of inf the elements that are inf count as 1, so
/// that shift + log(sum) is inf and not NaN.
template <class T>
HWY_INLINE Accumulator<T> sum_for_log(const T* x, Accumulator<T> shift, T* y, size_t n,
                                      Accumulator<T>* differences = nullptr) {
  const bool infinite = shift == std::numeric_limits<Accumulator<T>>::infinity();
  const Accumulator<T> count = HWY_UNLIKELY(infinite) ? count_infinite(x, n) : 0;  // y may be x
  const Accumulator<T> sum = sum_weights(x, shift, y, n, differences);
  return HWY_UNLIKELY(infinite) ? count : sum;
}

}  // namespace rows
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif
