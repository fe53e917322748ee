// Rows of alpha-entmax, shared by the op and by attention. Included once per SIMD target.

#if defined(LONGSPAN_CPU_ENTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_ENTMAX_INL_H_
#undef LONGSPAN_CPU_ENTMAX_INL_H_
#else
#define LONGSPAN_CPU_ENTMAX_INL_H_
#endif

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/kernels/entmax.h"
#include "cpu/rows-inl.h"
#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace entmax {

namespace hn = hwy::HWY_NAMESPACE;

using kernels::EntmaxSums;
using rows::Tag;

/// Which powers a value of alpha needs; those of `any` take a logarithm and an exponential.
enum class Power : uint8_t { softmax, any, square, sparse };

template <class A>
Power power_of(A alpha) {
  if (!(alpha >= static_cast<A>(kernels::kEntmaxSoftmax))) return Power::softmax;
  if (alpha >= 2) return Power::sparse;
  return alpha == A{1.5} ? Power::square : Power::any;
}

/// Calls f with the power of alpha as a constant.
template <class A, class F>
HWY_INLINE void visit_power(A alpha, F&& f) {
  switch (power_of(alpha)) {
    case Power::softmax:
      return f(std::integral_constant<Power, Power::softmax>{});
    case Power::any:
      return f(std::integral_constant<Power, Power::any>{});
    case Power::square:
      return f(std::integral_constant<Power, Power::square>{});
    case Power::sparse:
      return f(std::integral_constant<Power, Power::sparse>{});
  }
}

/// Returns u^p for u > 0, and u elsewhere, which is 0 or NaN.
template <class D>
HWY_INLINE hn::Vec<D> positive_power(D d, hn::Vec<D> u, hn::Vec<D> p) {
  const auto zero = hn::Zero(d);
  const auto there = hn::Gt(u, zero);
  const auto log = simd::log(d, hn::IfThenElse(there, u, hn::Set(d, simd::Lane<D>{1})));
  return hn::IfThenElse(there, simd::exp(d, hn::Mul(p, log)), u);
}

/// A row that is shifted and scaled so that its maximum is 0: z = (alpha - 1) (x - maximum).
template <Power power, class T>
struct Row {
  using A = Accumulator<T>;
  using V = hn::Vec<Tag<T>>;

  const T* x;
  size_t n;
  A scale, shift, p;  // alpha - 1, the maximum, 1 / (alpha - 1)

  /// Returns max(z - tau, 0), 0 beyond the row.
  HWY_INLINE V above(size_t i, size_t left, V tau) const {
    const Tag<T> d;
    const auto u = hn::Max(hn::Sub(z(i, left), tau), hn::Zero(d));
    return left >= hn::Lanes(d) ? u : hn::IfThenElseZero(hn::FirstN(d, left), u);
  }
  HWY_INLINE V z(size_t i, size_t left) const {
    const Tag<T> d;
    return hn::Mul(hn::Sub(simd::load(d, x + i, left), hn::Set(d, shift)), hn::Set(d, scale));
  }
  /// Returns the mean of z. The mean of x less its maximum would lose digits if the maximum is
  /// large.
  HWY_INLINE A mean() const {
    const Tag<T> d;
    const size_t N = hn::Lanes(d);
    auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    size_t i = 0;
    for (; i + 4 * N <= n; i += 4 * N) {
      s0 = hn::Add(s0, z(i, N));
      s1 = hn::Add(s1, z(i + N, N));
      s2 = hn::Add(s2, z(i + 2 * N, N));
      s3 = hn::Add(s3, z(i + 3 * N, N));
    }
    for (; i < n; i += N) {
      const auto v = z(i, n - i);
      s0 = hn::Add(s0, i + N <= n ? v : hn::IfThenElseZero(hn::FirstN(d, n - i), v));
    }
    const auto all = hn::Add(hn::Add(s0, s1), hn::Add(s2, s3));
    return simd::sum_lanes(d, all) / static_cast<A>(n);
  }
  /// Returns u^p of above().
  HWY_INLINE V weight(V u) const {
    const Tag<T> d;
    if constexpr (power == Power::sparse) return u;
    if constexpr (power == Power::square) return hn::Mul(u, u);
    return positive_power(d, u, hn::Set(d, p));
  }
  /// Adds u^p and u^(p - 1).
  HWY_INLINE void add(V u, V& weights, V& slopes) const {
    const Tag<T> d;
    const auto zero = hn::Zero(d);
    if constexpr (power == Power::sparse) {
      weights = hn::Add(weights, u);
      slopes = hn::Add(slopes, hn::IfThenElseZero(hn::Gt(u, zero), hn::Set(d, A{1})));
    } else if constexpr (power == Power::square) {
      weights = hn::MulAdd(u, u, weights);
      slopes = hn::Add(slopes, u);
    } else {
      if (hn::AllFalse(d, hn::Gt(u, zero))) return;
      const auto slope = positive_power(d, u, hn::Set(d, p - 1));
      weights = hn::MulAdd(u, slope, weights);
      slopes = hn::Add(slopes, slope);
    }
  }
  HWY_INLINE EntmaxSums<A> sums(A tau) const {
    const Tag<T> d;
    const size_t N = hn::Lanes(d);
    const auto t = hn::Set(d, tau);
    auto w0 = hn::Zero(d), w1 = w0, s0 = w0, s1 = w0;
    size_t i = 0;
    for (; i + 2 * N <= n; i += 2 * N) {
      add(above(i, N, t), w0, s0);
      add(above(i + N, N, t), w1, s1);
    }
    for (; i < n; i += N) add(above(i, n - i, t), w0, s0);
    return {simd::sum_lanes(d, hn::Add(w0, w1)), simd::sum_lanes(d, hn::Add(s0, s1))};
  }
  HWY_INLINE A root(A weights) const {
    if constexpr (power == Power::sparse) return A{1};
    if constexpr (power == Power::square) return std::sqrt(weights);
    return std::pow(weights, 1 - 1 / p);
  }
};

template <class T>
HWY_INLINE void fill(T* y, size_t n, Accumulator<T> value) {
  const Tag<T> d;
  simd::for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
    simd::store(hn::Set(d, value), d, y + i, left);
  });
}

/// Whether a row has a NaN or +inf, for which there are no probabilities.
template <class T>
HWY_INLINE bool has_no_maximum(const T* x, size_t n) {
  using A = Accumulator<T>;
  const Tag<T> d;
  const auto most = hn::Set(d, std::numeric_limits<A>::max());
  auto fine = hn::FirstN(d, hn::Lanes(d));
  simd::for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
    fine = hn::And(fine, hn::Le(simd::load(d, x + i, left), most));
  });
  return !hn::AllTrue(d, fine);
}

/// Returns the sum of e^(x - shift), by which it divides.
template <class T>
HWY_INLINE Accumulator<T> softmax_row(const T* x, Accumulator<T> shift, T* y, size_t n) {
  using A = Accumulator<T>;
  const Tag<T> d;
  const auto s = hn::Set(d, shift);
  const A sum = rows::sum_weights<T>(x, shift, nullptr, n);
  const auto factor = hn::Set(d, A{1} / sum);
  simd::for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
    simd::store(hn::Mul(rows::weight_at(x + i, left, s), factor), d, y + i, left);
  });
  return sum;
}

/// Writes the probabilities of a row; y may be x. Returns the threshold tau of the row from its
/// maximum m: the probabilities are [(alpha - 1) (x - m) - tau]_+^(1 / (alpha - 1)), or where alpha
/// counts as 1 e^(x - m - tau); inf for a row of only -inf, NaN where they are NaN.
template <class T>
Accumulator<T> forward_row(const T* x, Accumulator<T> alpha, T* y, size_t n) {
  using A = Accumulator<T>;
  const Tag<T> d;
  const A shift = rows::largest(x, n);
  if (has_no_maximum(x, n)) {
    fill(y, n, std::numeric_limits<A>::quiet_NaN());
    return std::numeric_limits<A>::quiet_NaN();
  }
  if (shift == -std::numeric_limits<A>::infinity()) {
    fill(y, n, A{0});
    return std::numeric_limits<A>::infinity();
  }
  A threshold = 0;
  visit_power(alpha, [&](auto constant) HWY_ATTR {
    constexpr Power power = decltype(constant)::value;
    if constexpr (power == Power::softmax) {
      threshold = std::log(softmax_row(x, shift, y, n));
    } else {
      const A scale = power == Power::sparse ? A{1} : alpha - 1;
      const Row<power, T> row{x, n, scale, shift, 1 / scale};
      const auto count = static_cast<A>(n);
      const A small = power == Power::sparse ? 1 / count : std::pow(count, -scale);
      const A first = kernels::entmax_lower_bound(row.mean(), small);
      const auto [tau, sum] = kernels::entmax_threshold(
          first, [&](A t) HWY_ATTR { return row.sums(t); },
          [&](A w) HWY_ATTR { return row.root(w); });
      const auto factor = hn::Set(d, 1 / sum), t = hn::Set(d, tau);
      simd::for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
        simd::store(hn::Mul(row.weight(row.above(i, left, t)), factor), d, y + i, left);
      });
      threshold = tau;
    }
  });
  return threshold;
}

/// Writes the probabilities of a row whose threshold is known; y may be x.
template <class T>
void probabilities_row(const T* x, Accumulator<T> alpha, Accumulator<T> threshold, T* y, size_t n) {
  using A = Accumulator<T>;
  const Tag<T> d;
  if (!(threshold < std::numeric_limits<A>::infinity())) {
    return fill(y, n, threshold != threshold ? threshold : A{0});
  }
  const A shift = rows::largest(x, n);
  const auto t = hn::Set(d, threshold), most = hn::Set(d, shift);
  visit_power(alpha, [&](auto constant) HWY_ATTR {
    constexpr Power power = decltype(constant)::value;
    const A scale = power == Power::sparse ? A{1} : alpha - 1;
    const Row<power, T> row{x, n, scale, shift, 1 / scale};
    simd::for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
      if constexpr (power == Power::softmax) {
        const auto z = hn::Sub(simd::load(d, x + i, left), most);
        simd::store(simd::exp(d, hn::Sub(z, t)), d, y + i, left);
      } else {
        simd::store(row.weight(row.above(i, left, t)), d, y + i, left);
      }
    });
  });
}

/// Returns (e^t - 1 - t) / t^2 for t in [0, 1/2].
template <class D>
HWY_INLINE hn::Vec<D> exp_rest(D d, hn::Vec<D> t) {
  constexpr int terms = sizeof(simd::Lane<D>) == 8 ? 14 : 8;
  // 1/2 + t/6 + t^2/24 + ...: 1/2 (1 + t/3 (1 + t/4 (..))).
  const auto one = hn::Set(d, simd::Lane<D>{1});
  auto sum = one;
  for (int k = terms + 1; k > 2; --k) {
    sum = hn::MulAdd(hn::Mul(t, simd::constant(d, 1.0 / k)), sum, one);
  }
  return hn::Mul(sum, simd::constant(d, 0.5));
}

template <Power power, class T>
struct GradientRow {
  using A = Accumulator<T>;
  using V = hn::Vec<Tag<T>>;

  const T *y, *dy;
  size_t n;
  A alpha;

  /// Returns y^(2 - alpha) where y > 0, else y, which is 0 or NaN.
  HWY_INLINE V s(V p) const {
    const Tag<T> d;
    if constexpr (power == Power::softmax) return p;
    if constexpr (power == Power::square) return hn::Sqrt(p);
    if constexpr (power == Power::sparse) {
      return hn::IfThenElse(hn::Gt(p, hn::Zero(d)), hn::Set(d, A{1}), p);
    }
    return positive_power(d, p, hn::Set(d, 2 - alpha));
  }
  /// Returns sum s g / sum s.
  HWY_INLINE A mean() const {
    const Tag<T> d;
    auto sum_s = hn::Zero(d), sum_sg = hn::Zero(d);
    simd::for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
      const auto p = simd::load(d, y + i, left), g = simd::load(d, dy + i, left), q = s(p);
      sum_s = hn::Add(sum_s, q);
      sum_sg = hn::MulAdd(q, g, sum_sg);
    });
    const A all = simd::sum_lanes(d, sum_s);
    return all == 0 ? A{0} : simd::sum_lanes(d, sum_sg) / all;
  }
  /// Writes the gradient of the scores.
  HWY_INLINE void of_scores(A mean, T* dx) const {
    const Tag<T> d;
    const auto m = hn::Set(d, mean);
    simd::for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
      const auto p = simd::load(d, y + i, left), g = simd::load(d, dy + i, left);
      simd::store(hn::Mul(s(p), hn::Sub(g, m)), d, dx + i, left);
    });
  }
  /// Returns the gradient of alpha (core/kernels/entmax.h, entmax_alpha_slope). A common offset of
  /// g is no part of it, and is taken out first.
  HWY_INLINE A of_alpha(A mean) const {
    const Tag<T> d;
    const auto zero = hn::Zero(d), one = hn::Set(d, A{1}), m = hn::Set(d, mean);
    const A b = alpha - 1;
    const auto minus_b = hn::Set(d, -b), per_square = hn::Set(d, 1 / (b * b));
    auto sum_s = zero, sum_g = zero, sum_e = zero, sum_eg = zero, sum_r = zero, sum_rg = zero;
    simd::for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
      const auto p = simd::load(d, y + i, left), q = s(p);
      const auto g = hn::Sub(simd::load(d, dy + i, left), m);  // p, e and r are 0 beyond the row
      const auto log = simd::log(d, hn::IfThenElse(hn::Gt(p, zero), p, one));
      const auto e = hn::Mul(p, log), t = hn::Mul(log, minus_b);
      const auto near = hn::Mul(hn::Mul(e, log), exp_rest(d, hn::Min(t, hn::Set(d, A{0.5}))));
      const auto far = hn::Mul(hn::Sub(hn::Sub(q, p), hn::Mul(p, t)), per_square);
      const auto r = hn::IfThenElse(hn::Gt(t, hn::Set(d, A{0.5})), far, near);
      sum_s = hn::Add(sum_s, q);
      sum_g = hn::MulAdd(p, g, sum_g);
      sum_e = hn::Add(sum_e, e);
      sum_eg = hn::MulAdd(e, g, sum_eg);
      sum_r = hn::Add(sum_r, r);
      sum_rg = hn::MulAdd(r, g, sum_rg);
    });
    const auto all = [&](V v) HWY_ATTR { return simd::sum_lanes(d, v); };
    return kernels::entmax_alpha_slope<A>(b, all(sum_s), all(sum_g), all(sum_e), all(sum_eg),
                                          all(sum_r), all(sum_rg));
  }
};

/// Writes the gradient of a row's scores from its probabilities y; dx may be dy.
template <class T>
void backward_row(const T* y, Accumulator<T> alpha, const T* dy, T* dx, Accumulator<T>* dalpha,
                  size_t n) {
  visit_power(alpha, [&](auto constant) HWY_ATTR {
    constexpr Power power = decltype(constant)::value;
    const bool learns = dalpha != nullptr && power != Power::softmax && alpha <= 2;
    const GradientRow<power, T> row{y, dy, n, alpha};
    const auto mean = row.mean();
    if (dalpha != nullptr) *dalpha = learns ? row.of_alpha(mean) : 0;
    row.of_scores(mean, dx);
  });
}

}  // namespace entmax
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif
