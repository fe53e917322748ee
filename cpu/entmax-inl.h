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

/// Returns u^p for u > 0, and 0 elsewhere.
template <class D>
HWY_INLINE hn::Vec<D> positive_power(D d, hn::Vec<D> u, hn::Vec<D> p) {
  const auto zero = hn::Zero(d);
  const auto there = hn::Gt(u, zero);
  const auto log = simd::log(d, hn::IfThenElse(there, u, hn::Set(d, simd::Lane<D>{1})));
  return hn::IfThenElseZero(there, simd::exp(d, hn::Mul(p, log)));
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
    const auto z =
        hn::Mul(hn::Sub(simd::load(d, x + i, left), hn::Set(d, shift)), hn::Set(d, scale));
    const auto u = hn::Max(hn::Sub(z, tau), hn::Zero(d));
    return left >= hn::Lanes(d) ? u : hn::IfThenElseZero(hn::FirstN(d, left), u);
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

/// Writes the probabilities of a row; y may be x. Returns the threshold tau: the probabilities are
/// [(alpha - 1) x - tau]_+^(1 / (alpha - 1)), or where alpha counts as 1 e^(x - tau); inf for a row
/// of only -inf.
template <class T>
Accumulator<T> forward_row(const T* x, Accumulator<T> alpha, T* y, size_t n) {
  using A = Accumulator<T>;
  const Tag<T> d;
  A total;
  const A shift = rows::largest(x, n, &total);
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
      threshold = shift + std::log(softmax_row(x, shift, y, n));
    } else {
      const A scale = power == Power::sparse ? A{1} : alpha - 1;
      const Row<power, T> row{x, n, scale, shift, 1 / scale};
      const auto count = static_cast<A>(n);
      const A small = power == Power::sparse ? 1 / count : std::pow(count, -scale);
      const A first = kernels::entmax_lower_bound(scale * (total / count - shift), small);
      const auto [tau, sum] = kernels::entmax_threshold(
          first, [&](A t) HWY_ATTR { return row.sums(t); },
          [&](A w) HWY_ATTR { return row.root(w); });
      const auto factor = hn::Set(d, 1 / sum), t = hn::Set(d, tau);
      simd::for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
        simd::store(hn::Mul(row.weight(row.above(i, left, t)), factor), d, y + i, left);
      });
      threshold = tau + scale * shift;
    }
  });
  return threshold;
}

/// Writes the probabilities of a row whose threshold is known; y may be x.
template <class T>
void probabilities_row(const T* x, Accumulator<T> alpha, Accumulator<T> threshold, T* y, size_t n) {
  using A = Accumulator<T>;
  const Tag<T> d;
  const auto t = hn::Set(d, threshold);
  visit_power(alpha, [&](auto constant) HWY_ATTR {
    constexpr Power power = decltype(constant)::value;
    const A scale = power == Power::sparse ? A{1} : alpha - 1;
    const Row<power, T> row{x, n, scale, A{0}, 1 / scale};
    simd::for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
      if constexpr (power == Power::softmax) {
        simd::store(simd::exp(d, hn::Sub(simd::load(d, x + i, left), t)), d, y + i, left);
      } else {
        simd::store(row.weight(row.above(i, left, t)), d, y + i, left);
      }
    });
  });
}

/// Sums over a row that its gradients need: of s, s g, y g, y ln y, and y ln y g.
template <class A>
struct GradientSums {
  A s, sg, yg, e, eg;
};

template <Power power, class T>
struct GradientRow {
  using A = Accumulator<T>;
  using V = hn::Vec<Tag<T>>;

  const T *y, *dy;
  size_t n;
  A alpha;

  /// Returns y^(2 - alpha) where y > 0, else 0.
  HWY_INLINE V s(V p) const {
    const Tag<T> d;
    if constexpr (power == Power::softmax) return p;
    if constexpr (power == Power::square) return hn::Sqrt(p);
    if constexpr (power == Power::sparse) {
      return hn::IfThenElseZero(hn::Gt(p, hn::Zero(d)), hn::Set(d, A{1}));
    }
    return positive_power(d, p, hn::Set(d, 2 - alpha));
  }
  HWY_INLINE GradientSums<A> sums(bool of_alpha) const {
    const Tag<T> d;
    const auto zero = hn::Zero(d), one = hn::Set(d, A{1});
    auto sum_s = zero, sum_sg = zero, sum_yg = zero, sum_e = zero, sum_eg = zero;
    simd::for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
      const auto p = simd::load(d, y + i, left), g = simd::load(d, dy + i, left), q = s(p);
      sum_s = hn::Add(sum_s, q);
      sum_sg = hn::MulAdd(q, g, sum_sg);
      if (!of_alpha) return;
      const auto e = hn::Mul(p, simd::log(d, hn::IfThenElse(hn::Gt(p, zero), p, one)));
      sum_yg = hn::MulAdd(p, g, sum_yg);
      sum_e = hn::Add(sum_e, e);
      sum_eg = hn::MulAdd(e, g, sum_eg);
    });
    const auto all = [&](V v) HWY_ATTR { return simd::sum_lanes(d, v); };
    return {all(sum_s), all(sum_sg), all(sum_yg), all(sum_e), all(sum_eg)};
  }
  /// Returns the gradient of alpha.
  HWY_INLINE A run(T* dx, bool of_alpha) const {
    const Tag<T> d;
    const GradientSums<A> all = sums(of_alpha);
    const A mean = all.s == 0 ? A{0} : all.sg / all.s;
    const auto m = hn::Set(d, mean);
    simd::for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
      const auto p = simd::load(d, y + i, left), g = simd::load(d, dy + i, left);
      simd::store(hn::Mul(s(p), hn::Sub(g, m)), d, dx + i, left);
    });
    const A by = alpha - 1;
    return (all.yg - mean) / (by * by) - (all.eg - mean * all.e) / by;
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
    const auto slope = row.run(dx, learns);
    if (dalpha != nullptr) *dalpha = learns ? slope : 0;
  });
}

}  // namespace entmax
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif
