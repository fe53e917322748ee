// Vector functions shared by kernels, for vectors of f32 and f64. The f32 ones are polynomials with
// errors of one or two units in the last place; the f64 ones call the C library lane by lane. Every
// function treats lanes independently and uses fused operations only explicitly, so an element's
// bits do not depend on its lane.
//
// Included once per SIMD target.

#if defined(LONGSPAN_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_SIMD_INL_H_
#undef LONGSPAN_CPU_SIMD_INL_H_
#else
#define LONGSPAN_CPU_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace simd {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using Lane = hn::TFromD<D>;
template <class D>
inline constexpr bool is_f64 = sizeof(Lane<D>) == 8;

// ------------------------------------------------------------------------------- load and store

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || (HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2)
template <class T>
inline constexpr bool masks_are_safe = false;  // masked loads touch all lanes
#elif HWY_TARGET == HWY_AVX2
template <class T>
inline constexpr bool masks_are_safe = sizeof(T) >= 4;
#else
template <class T>
inline constexpr bool masks_are_safe = true;
#endif

/// Loads the first n < N lanes from p, with zeros in the others; reads nothing beyond them.
template <class D>
HWY_INLINE hn::Vec<D> load_part(D d, const Lane<D>* p, size_t n) {
  if constexpr (masks_are_safe<Lane<D>>) {
    return hn::MaskedLoad(hn::FirstN(d, n), d, p);
  } else {
    HWY_ALIGN Lane<D> buffer[HWY_MAX_BYTES / sizeof(Lane<D>)] = {};
    std::memcpy(buffer, p, n * sizeof(Lane<D>));
    return hn::Load(d, buffer);
  }
}

/// Stores the first n < N lanes.
template <class D>
HWY_INLINE void store_part(hn::Vec<D> v, D d, Lane<D>* p, size_t n) {
  if constexpr (masks_are_safe<Lane<D>>) {
    hn::BlendedStore(v, hn::FirstN(d, n), d, p);
  } else {
    HWY_ALIGN Lane<D> buffer[HWY_MAX_BYTES / sizeof(Lane<D>)];
    hn::Store(v, d, buffer);
    std::memcpy(p, buffer, n * sizeof(Lane<D>));
  }
}

/// Loads a vector from p, or the `left` elements that remain if they are fewer.
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const Lane<D>* p, size_t left) {
  return HWY_LIKELY(left >= hn::Lanes(d)) ? hn::LoadU(d, p) : load_part(d, p, left);
}
template <class D>
HWY_INLINE void store(hn::Vec<D> v, D d, Lane<D>* p, size_t left) {
  if (HWY_LIKELY(left >= hn::Lanes(d))) {
    hn::StoreU(v, d, p);
  } else {
    store_part(v, d, p, left);
  }
}

/// Calls f(i, left) for the vectors of n elements: the index of the first element and the number of
/// elements, which is the vector size except in the last call.
template <class D, class F>
HWY_INLINE void for_vectors(D d, size_t n, F&& f) {
  const size_t N = hn::Lanes(d);
  size_t i = 0;
  for (; i + N <= n; i += N) f(i, N);
  if (i < n) f(i, n - i);
}

// ------------------------------------------------------------------------------------ functions

/// Applies the scalar function f to each lane.
template <class D, class F>
HWY_INLINE hn::Vec<D> per_lane(D d, hn::Vec<D> x, F f) {
  HWY_ALIGN Lane<D> buffer[HWY_MAX_BYTES / sizeof(Lane<D>)];
  hn::Store(x, d, buffer);
  for (size_t i = 0; i < hn::Lanes(d); ++i) buffer[i] = f(buffer[i]);
  return hn::Load(d, buffer);
}

#define LONGSPAN_LIBRARY(name) \
  struct name##_of {           \
    template <class T>         \
    T operator()(T x) const {  \
      return std::name(x);     \
    }                          \
  };
LONGSPAN_LIBRARY(exp)
LONGSPAN_LIBRARY(log)
LONGSPAN_LIBRARY(log1p)
LONGSPAN_LIBRARY(expm1)
LONGSPAN_LIBRARY(tanh)
LONGSPAN_LIBRARY(erf)
LONGSPAN_LIBRARY(erfc)
LONGSPAN_LIBRARY(sin)
LONGSPAN_LIBRARY(cos)
#undef LONGSPAN_LIBRARY

template <class D>
HWY_INLINE hn::Vec<D> constant(D d, double value) {
  return hn::Set(d, static_cast<Lane<D>>(value));
}

/// Returns 2^n for integer n in [-126, 127], as f32.
template <class DI>
HWY_INLINE auto power_of_two(DI di, hn::Vec<DI> n) {
  const hn::Rebind<float, DI> df;
  return hn::BitCast(df, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
}

/// Returns (e^r - 1 - r) / r^2 for |r| <= ln(2)/2, so that e^r has an error of 8e-9.
template <class D>
HWY_INLINE hn::Vec<D> exp_series(D d, hn::Vec<D> r) {
  auto p = hn::MulAdd(hn::Set(d, 1.39262134663e-3f), r, hn::Set(d, 8.36320297158e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.16665544377e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666576846e-1f));
  return hn::MulAdd(p, r, hn::Set(d, 0.5f));
}

/// Returns x - n ln 2 for integer n, in two steps.
template <class D>
HWY_INLINE hn::Vec<D> minus_ln2(D d, hn::Vec<D> x, hn::Vec<D> n) {
  const auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  return hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
}

/// Clamps x to [low, high]; NaN stays NaN.
template <class D>
HWY_INLINE hn::Vec<D> bounded_to(D d, hn::Vec<D> x, float low, float high) {
  const auto least = hn::Set(d, low), most = hn::Set(d, high);
  return hn::IfThenElse(hn::Gt(x, most), most, hn::IfThenElse(hn::Lt(x, least), least, x));
}

/// Returns e^x over the whole range, including subnormal results.
template <class D>
HWY_INLINE hn::Vec<D> exp(D d, hn::Vec<D> x) {
  if constexpr (is_f64<D>) {
    return per_lane(d, x, exp_of{});
  } else {
    const hn::RebindToSigned<D> di;
    const auto bounded = bounded_to(d, x, -105.0f, 90.0f);
    const auto n = hn::Round(hn::Mul(bounded, hn::Set(d, 1.44269504f)));
    const auto r = minus_ln2(d, bounded, n);
    const auto p = hn::MulAdd(hn::Mul(r, r), exp_series(d, r), hn::Add(r, hn::Set(d, 1.0f)));
    const auto whole = hn::ConvertTo(di, n);
    const auto half = hn::ShiftRight<1>(whole);
    return hn::Mul(hn::Mul(p, power_of_two(di, half)), power_of_two(di, hn::Sub(whole, half)));
  }
}

/// Returns e^x for x <= 0, and 0 below -87. NaN stays NaN if its lowest 9 bits are 0, as in NaNs
/// that arithmetic produces. Error 1e-7, towards -87 3e-7.
template <class D>
HWY_INLINE hn::Vec<D> exp_nonpositive(D d, hn::Vec<D> x) {
  if constexpr (is_f64<D>) {
    return per_lane(d, x, exp_of{});
  } else {
    const hn::RebindToSigned<D> di;
    // Adding 1.5 2^23 leaves the nearest integer in the low bits.
    const auto round = hn::Set(d, 12582912.0f);
    const auto shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), round);
    const auto n = hn::Sub(shifted, round);
#if HWY_NATIVE_FMA
    const auto r = hn::NegMulAdd(n, hn::Set(d, 0.693147181f), x);
#else
    const auto r = minus_ln2(d, x, n);  // the product is rounded, so split ln 2 into exact parts
#endif
    auto p = hn::MulAdd(hn::Set(d, 8.2902782928e-3f), r, hn::Set(d, 4.1898072641e-2f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.16667637528f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.49999148463f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.99999970661f));
    p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
    const auto y = hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
    return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), hn::BitCast(d, y));
  }
}

/// Returns the natural logarithm.
template <class D>
HWY_INLINE hn::Vec<D> log(D d, hn::Vec<D> x) {
  if constexpr (is_f64<D>) {
    return per_lane(d, x, log_of{});
  } else {
    const hn::RebindToSigned<D> di;
    const auto small = hn::Lt(x, hn::Set(d, std::numeric_limits<float>::min()));
    const auto scaled = hn::IfThenElse(small, hn::Mul(x, hn::Set(d, 16777216.0f)), x);
    // x = 2^e m with m in [sqrt(1/2), sqrt(2))
    const auto bits = hn::BitCast(di, scaled);
    const auto e = hn::ShiftRight<23>(hn::Sub(bits, hn::Set(di, 0x3f3504f3)));
    const auto m = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(e)));
    const auto f = hn::Sub(m, hn::Set(d, 1.0f));
    const auto whole = hn::Sub(hn::ConvertTo(d, e), hn::IfThenElseZero(small, hn::Set(d, 24.0f)));
    auto p = hn::MulAdd(hn::Set(d, 0.0697161147145f), f, hn::Set(d, -0.114797338466f));
    p = hn::MulAdd(p, f, hn::Set(d, 0.116854199235f));
    p = hn::MulAdd(p, f, hn::Set(d, -0.124256873315f));
    p = hn::MulAdd(p, f, hn::Set(d, 0.142490576457f));
    p = hn::MulAdd(p, f, hn::Set(d, -0.166678023195f));
    p = hn::MulAdd(p, f, hn::Set(d, 0.200007157489f));
    p = hn::MulAdd(p, f, hn::Set(d, -0.24999996958f));
    p = hn::MulAdd(p, f, hn::Set(d, 0.3333333118f));
    const auto f2 = hn::Mul(f, f);
    auto y = hn::MulAdd(whole, hn::Set(d, -2.12194440e-4f), hn::Mul(hn::Mul(f2, f), p));
    y = hn::NegMulAdd(hn::Set(d, 0.5f), f2, y);
    y = hn::MulAdd(whole, hn::Set(d, 0.693359375f), hn::Add(f, y));
    const auto infinity = hn::Set(d, std::numeric_limits<float>::infinity());
    y = hn::IfThenElse(hn::Eq(x, infinity), infinity, y);
    y = hn::IfThenElse(hn::Eq(x, hn::Zero(d)), hn::Neg(infinity), y);
    const auto nan = hn::Set(d, std::numeric_limits<float>::quiet_NaN());
    return hn::IfThenElse(hn::Ge(x, hn::Zero(d)), y, nan);
  }
}

/// Returns ln(1 + x), correct to rounding even near 0: the logarithm of the rounded sum, corrected
/// by the rounding error.
template <class D>
HWY_INLINE hn::Vec<D> log1p(D d, hn::Vec<D> x) {
  if constexpr (is_f64<D>) {
    return per_lane(d, x, log1p_of{});
  } else {
    const auto one = hn::Set(d, 1.0f);
    const auto sum = hn::Add(one, x);
    const auto lost = hn::Div(hn::Sub(x, hn::Sub(sum, one)), sum);
    // Above 2^26 the rounding error is negligible, and infinity would give NaN.
    const auto seen = hn::And(hn::Gt(sum, hn::Zero(d)), hn::Lt(sum, hn::Set(d, 67108864.0f)));
    const auto y = hn::Add(simd::log(d, sum), hn::IfThenElseZero(seen, lost));
    return hn::IfThenElse(hn::Eq(sum, one), x, y);
  }
}

/// Returns e^x - 1, as 2^n (e^r - 1) + (2^n - 1) with x = n ln 2 + r.
template <class D>
HWY_INLINE hn::Vec<D> expm1(D d, hn::Vec<D> x) {
  if constexpr (is_f64<D>) {
    return per_lane(d, x, expm1_of{});
  } else {
    const hn::RebindToSigned<D> di;
    const auto bounded = bounded_to(d, x, -30.0f, 90.0f);
    const auto n = hn::Round(hn::Mul(bounded, hn::Set(d, 1.44269504f)));
    const auto r = minus_ln2(d, bounded, n);
    const auto q = hn::MulAdd(hn::Mul(r, r), exp_series(d, r), r);
    // 2^n is split into two factors, since n may be 128 or more.
    const auto whole = hn::ConvertTo(di, n);
    const auto half = hn::ShiftRight<1>(whole), rest = hn::Sub(whole, half);
    const auto a = power_of_two(di, half), b = power_of_two(di, rest);
    const auto inverse = power_of_two(di, hn::Neg(rest));
    return hn::Mul(hn::MulAdd(q, a, hn::Sub(a, inverse)), b);
  }
}

/// Returns sin(x) for quarter 0, cos(x) = sin(x + pi / 2) for quarter 1.
template <int quarter, class D>
HWY_INLINE hn::Vec<D> sine(D d, hn::Vec<D> x) {
  using Exact = std::conditional_t<quarter == 0, sin_of, cos_of>;
  if constexpr (is_f64<D>) {
    return per_lane(d, x, Exact{});
  } else {
    const hn::RebindToSigned<D> di;
    // x = n pi / 2 + r. The first terms of pi / 2 have 11 bits, so that n times them is exact.
    const auto n = hn::Round(hn::Mul(x, hn::Set(d, 0.636619772f)));
    auto r = hn::NegMulAdd(n, hn::Set(d, 1.5703125f), x);
    r = hn::NegMulAdd(n, hn::Set(d, 4.8375129699707031e-4f), r);
    r = hn::NegMulAdd(n, hn::Set(d, 7.5495336204767227e-8f), r);
    r = hn::NegMulAdd(n, hn::Set(d, 2.56334415e-12f), r);
    const auto u = hn::Mul(r, r);
    auto p = hn::MulAdd(hn::Set(d, -1.9516977429e-4f), u, hn::Set(d, 8.3321758460e-3f));
    p = hn::MulAdd(p, u, hn::Set(d, -1.6666654909e-1f));
    const auto s = hn::MulAdd(hn::Mul(u, r), p, r);
    auto q = hn::MulAdd(hn::Set(d, 2.4438090854e-5f), u, hn::Set(d, -1.3887364484e-3f));
    q = hn::MulAdd(q, u, hn::Set(d, 4.1666646807e-2f));
    const auto c =
        hn::MulAdd(hn::Mul(u, u), q, hn::NegMulAdd(u, hn::Set(d, 0.5f), hn::Set(d, 1.0f)));
    const auto turn = hn::Add(hn::ConvertTo(di, n), hn::Set(di, quarter));
    const auto odd = hn::Eq(hn::And(turn, hn::Set(di, 1)), hn::Set(di, 1));
    const auto sign = hn::ShiftLeft<30>(hn::And(turn, hn::Set(di, 2)));
    const auto y = hn::Xor(hn::IfThenElse(hn::RebindMask(d, odd), c, s), hn::BitCast(d, sign));
    const auto far = hn::Gt(hn::Abs(x), hn::Set(d, 8192.0f));
    if (HWY_LIKELY(hn::AllFalse(d, far))) return y;
    return hn::IfThenElse(far, per_lane(d, x, Exact{}), y);
  }
}
template <class D>
HWY_INLINE hn::Vec<D> sin(D d, hn::Vec<D> x) {
  return sine<0>(d, x);
}
template <class D>
HWY_INLINE hn::Vec<D> cos(D d, hn::Vec<D> x) {
  return sine<1>(d, x);
}

/// Returns 1 / (1 + e^-x), as t / (1 + t) or 1 / (1 + t) with t = e^-|x|.
template <class D>
HWY_INLINE hn::Vec<D> sigmoid(D d, hn::Vec<D> x) {
  const auto one = constant(d, 1);
  const auto t = simd::exp_nonpositive(d, hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), t, one), hn::Add(one, t));
}

template <class D>
HWY_INLINE hn::Vec<D> tanh(D d, hn::Vec<D> x) {
  if constexpr (is_f64<D>) {
    return per_lane(d, x, tanh_of{});
  } else {
    const auto u = hn::Mul(x, x);
    auto p = hn::MulAdd(hn::Set(d, -6.04516509652e-3f), u, hn::Set(d, 2.09613291086e-2f));
    p = hn::MulAdd(p, u, hn::Set(d, -5.38432631753e-2f));
    p = hn::MulAdd(p, u, hn::Set(d, 0.133327188456f));
    p = hn::MulAdd(p, u, hn::Set(d, -0.333333284333f));
    const auto near = hn::MulAdd(hn::Mul(u, x), p, x);
    const auto size = hn::Abs(x);
    const auto t = simd::exp_nonpositive(d, hn::Mul(size, hn::Set(d, -2.0f)));
    const auto one = hn::Set(d, 1.0f);
    const auto far = hn::CopySign(hn::Div(hn::Sub(one, t), hn::Add(one, t)), x);
    return hn::IfThenElse(hn::Lt(size, hn::Set(d, 0.63f)), near, far);
  }
}

/// Returns e^(-x^2 / 2), and 0 beyond |x| = 13. f32: an error of 2e-7 near 0, of 1e-6 at values
/// near 1e-5.
template <class D>
HWY_INLINE hn::Vec<D> bell(D d, hn::Vec<D> x) {
  if constexpr (is_f64<D>) {
    return per_lane(d, hn::Mul(hn::Mul(x, x), hn::Set(d, -0.5)), exp_of{});
  } else {  // 2^(-y^2)
    const hn::RebindToSigned<D> di;
    const auto round = hn::Set(d, 12582912.0f);
    const auto y = hn::Mul(x, hn::Set(d, 0.84932180028801904f));  // sqrt(log2(e) / 2)
    const auto shifted = hn::NegMulAdd(y, y, round);
    const auto r = hn::NegMulSub(y, y, hn::Sub(shifted, round));
    auto p = hn::MulAdd(hn::Set(d, 1.3264655282e-3f), r, hn::Set(d, 9.6715563631e-3f));
    p = hn::MulAdd(p, r, hn::Set(d, 5.5507343159e-2f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.2402224141f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.69314697707f));
    p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
    const auto e = hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
    return hn::IfThenZeroElse(hn::Gt(hn::Abs(x), hn::Set(d, 13.0f)), hn::BitCast(d, e));
  }
}

/// Returns e^(x^2 / 2) Phi(-x) for x >= 0, with Phi the normal distribution function, as t p(t)
/// with t = 1 / (1 + 0.28 x). The error in Phi is below 2e-8, and below 6e-5 of Phi up to x = 7.
/// f32 only.
template <class D>
HWY_INLINE hn::Vec<D> scaled_tail(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0f);
  const auto t = hn::Div(one, hn::MulAdd(x, hn::Set(d, 0.28f), one));
  auto p = hn::MulAdd(hn::Set(d, -0.1041115088f), t, hn::Set(d, 0.3829205725f));
  p = hn::MulAdd(p, t, hn::Set(d, -0.2256669573f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.2597457902f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.0711789498f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.1159331716f));
  return hn::Mul(p, t);
}

template <class D>
HWY_INLINE hn::Vec<D> erf(D d, hn::Vec<D> x) {
  if constexpr (is_f64<D>) {
    return per_lane(d, x, erf_of{});
  } else {
    const auto u = hn::Mul(x, x);
    auto p = hn::MulAdd(hn::Set(d, 7.87587506269e-5f), u, hn::Set(d, -8.01686428717e-4f));
    p = hn::MulAdd(p, u, hn::Set(d, 5.18908742343e-3f));
    p = hn::MulAdd(p, u, hn::Set(d, -2.68542120106e-2f));
    p = hn::MulAdd(p, u, hn::Set(d, 0.112835947152f));
    p = hn::MulAdd(p, u, hn::Set(d, -0.376126266667f));
    p = hn::MulAdd(p, u, hn::Set(d, 1.12837916585f));
    const auto near = hn::Mul(x, p);
    const auto size = hn::Abs(x);
    const auto twice =
        hn::Mul(hn::Set(d, 2.0f), scaled_tail(d, hn::Mul(size, hn::Set(d, 1.41421356f))));
    const auto tail = hn::Mul(simd::exp_nonpositive(d, hn::Neg(u)), twice);
    const auto far = hn::CopySign(hn::Sub(hn::Set(d, 1.0f), tail), x);
    return hn::IfThenElse(hn::Lt(size, hn::Set(d, 1.0f)), near, far);
  }
}

struct normal_integral_of {
  double operator()(double x) const { return 0.5 * std::erfc(-0.70710678118654752440 * x); }
};

/// Returns Phi(x), the normal distribution function.
template <class D>
HWY_INLINE hn::Vec<D> normal_integral(D d, hn::Vec<D> x) {
  if constexpr (is_f64<D>) {
    return per_lane(d, x, normal_integral_of{});
  } else {
    const auto tail = hn::Mul(bell(d, x), scaled_tail(d, hn::Abs(x)));
    return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(hn::Set(d, 1.0f), tail));
  }
}

/// Computes x Phi(x) and its derivative Phi(x) + x phi(x), with the normal density phi.
template <class D>
HWY_INLINE void gelu(D d, hn::Vec<D> x, hn::Vec<D>& y, hn::Vec<D>& slope) {
  constexpr double root = 0.39894228040143267794;  // 1 / sqrt(2 pi)
  const auto b = bell(d, x);
  if constexpr (is_f64<D>) {
    const auto integral = normal_integral(d, x);
    y = hn::Mul(x, integral);
    slope = hn::MulAdd(hn::Mul(x, b), hn::Set(d, root), integral);
  } else {
    const auto size = hn::Abs(x), one = hn::Set(d, 1.0f);
    const auto tail = hn::Mul(b, scaled_tail(d, size));
    const auto q = hn::NegMulAdd(b, hn::Mul(size, hn::Set(d, static_cast<float>(root))), tail);
    const auto negative = hn::Lt(x, hn::Zero(d));
    y = hn::Mul(x, hn::IfThenElse(negative, tail, hn::Sub(one, tail)));
    slope = hn::IfThenElse(negative, q, hn::Sub(one, q));
  }
}

/// Return the sum and the maximum of all lanes. The order is fixed.
template <class D>
HWY_INLINE Lane<D> sum_lanes(D d, hn::Vec<D> v) {
  return hn::GetLane(hn::SumOfLanes(d, v));
}
template <class D>
HWY_INLINE Lane<D> max_lanes(D d, hn::Vec<D> v) {
  return hn::GetLane(hn::MaxOfLanes(d, v));
}

// ----------------------------------------------------------------------------- f16 and bf16 as f32

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
inline constexpr bool has_f16 = true;
#else
inline constexpr bool has_f16 = false;  // converts lane by lane
#endif

/// Convert f32 from bf16 and back, to nearest even; NaN stays NaN.
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const bf16* p, size_t left) {
  const hn::Rebind<uint16_t, D> dh;
  const hn::RebindToUnsigned<D> du;
  const auto bits = simd::load(dh, reinterpret_cast<const uint16_t*>(p), left);
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}
template <class D>
HWY_INLINE void store(hn::Vec<D> v, D /*d*/, bf16* p, size_t left) {
  const hn::Rebind<uint16_t, D> dh;
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto even = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40));
  const auto nan = hn::RebindMask(du, hn::IsNaN(v));
  const auto half = hn::BitCast(di, hn::IfThenElse(nan, quiet, even));
  simd::store(hn::DemoteTo(dh, half), dh, reinterpret_cast<uint16_t*>(p), left);
}

/// The same conversions for f16.
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const f16* p, size_t left) {
  if constexpr (has_f16) {
    const hn::Rebind<uint16_t, D> dh;
    const hn::Rebind<hwy::float16_t, D> df;
    const auto bits = simd::load(dh, reinterpret_cast<const uint16_t*>(p), left);
    return hn::PromoteTo(d, hn::BitCast(df, bits));
  } else {
    HWY_ALIGN float buffer[HWY_MAX_BYTES / sizeof(float)] = {};
    const size_t n = left < hn::Lanes(d) ? left : hn::Lanes(d);
    for (size_t i = 0; i < n; ++i) buffer[i] = f16::to_float(p[i].bits);
    return hn::Load(d, buffer);
  }
}
template <class D>
HWY_INLINE void store(hn::Vec<D> v, D d, f16* p, size_t left) {
  if constexpr (has_f16) {
    const hn::Rebind<uint16_t, D> dh;
    const hn::Rebind<hwy::float16_t, D> df;
    simd::store(hn::BitCast(dh, hn::DemoteTo(df, v)), dh, reinterpret_cast<uint16_t*>(p), left);
  } else {
    HWY_ALIGN float buffer[HWY_MAX_BYTES / sizeof(float)];
    hn::Store(v, d, buffer);
    const size_t n = left < hn::Lanes(d) ? left : hn::Lanes(d);
    for (size_t i = 0; i < n; ++i) p[i].bits = f16::from_float(buffer[i]);
  }
}

}  // namespace simd
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif
