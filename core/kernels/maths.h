#pragma once

#include <cmath>

#include "core/host_device.h"
#include "core/kernels/elementwise.h"

/// The functions of elementwise.h for one element, on the host and on the device. A is float or
/// double.
namespace longspan::kernels {

/// Tells the branches of a function which of the two types A is.
template <class A>
inline constexpr bool is_double = sizeof(A) == sizeof(double);

#if defined(__CUDA_ARCH__)
#define LONGSPAN_MATHS(name, x) \
  (is_double<A> ? static_cast<A>(::name(double(x))) : static_cast<A>(::name##f(float(x))))
#else
#define LONGSPAN_MATHS(name, x) (std::name(x))
#endif

/// e^x.
template <class A>
LONGSPAN_HD inline A exponential(A x) {
  return LONGSPAN_MATHS(exp, x);
}
/// 1 / (1 + e^-x), without overflow.
template <class A>
LONGSPAN_HD inline A logistic(A x) {
  const A t = exponential(x < 0 ? x : -x);
  return (x < 0 ? t : A(1)) / (A(1) + t);
}

/// f(x).
template <class A>
LONGSPAN_HD inline A unary_value(Unary f, A alpha, A beta, A x) {
  switch (f) {
    case Unary::affine:
      return alpha * x + beta;
    case Unary::exp:
      return exponential(x);
    case Unary::log:
      return LONGSPAN_MATHS(log, x);
    case Unary::log1p:
      return LONGSPAN_MATHS(log1p, x);
    case Unary::sqrt:
      return LONGSPAN_MATHS(sqrt, x);
    case Unary::rsqrt:
      return A(1) / LONGSPAN_MATHS(sqrt, x);
    case Unary::square:
      return x * x;
    case Unary::abs:
      return LONGSPAN_MATHS(fabs, x);
    case Unary::reciprocal:
      return A(1) / x;
    case Unary::power:
#if defined(__CUDA_ARCH__)
      return is_double<A> ? static_cast<A>(::pow(double(x), double(alpha)))
                          : static_cast<A>(::powf(float(x), float(alpha)));
#else
      return std::pow(x, alpha);
#endif
    case Unary::clamp: {  // NaN passes
      const A y = x < alpha ? alpha : x;
      return y > beta ? beta : y;
    }
    case Unary::sin:
      return LONGSPAN_MATHS(sin, x);
    case Unary::cos:
      return LONGSPAN_MATHS(cos, x);
    case Unary::tanh:
      return LONGSPAN_MATHS(tanh, x);
    case Unary::erf:
      return LONGSPAN_MATHS(erf, x);
    case Unary::sigmoid:
      return logistic(x);
    case Unary::softplus: {
      const A t = exponential(x < 0 ? x : -x);
      return (x < 0 ? A(0) : x) + LONGSPAN_MATHS(log1p, t);
    }
    case Unary::relu:
      return x < 0 ? A(0) : x;
    case Unary::relu_squared:
      return x < 0 ? A(0) : x * x;
    case Unary::leaky_relu:
      return x > 0 ? x : alpha * x;
    case Unary::elu:
      return x > 0 ? x : alpha * LONGSPAN_MATHS(expm1, x);
    case Unary::silu:
      return x * logistic(x);
    case Unary::gelu_erf:
      return x * A(0.5) * LONGSPAN_MATHS(erfc, x * A(-0.70710678118654752440));
    case Unary::gelu_tanh:
      return x * logistic(x * A(1.59576912160573071176) * (A(1) + A(0.044715) * x * x));
    case Unary::gelu_sigmoid:
      return x * logistic(A(1.702) * x);
    case Unary::grid:
      return LONGSPAN_MATHS(rint, x * alpha) * beta + A(0);
  }
  return x;
}

/// Computes f(x) and f'(x), for silu and the gelus, where both share the expensive part.
template <class A>
LONGSPAN_HD inline void unary_both(Unary f, A x, A& y, A& slope) {
  if (f == Unary::gelu_erf) {
    const A phi = A(0.5) * LONGSPAN_MATHS(erfc, x * A(-0.70710678118654752440));
    const A bell = exponential(A(-0.5) * x * x) * A(0.39894228040143267794);
    y = x * phi;
    slope = phi + x * bell;
    return;
  }
  A inside = x, inside_slope = 1;
  if (f == Unary::gelu_tanh) {
    constexpr A root = A(1.59576912160573071176), cubic = A(0.044715);
    inside = x * root * (A(1) + cubic * x * x);
    inside_slope = root * (A(1) + A(3) * cubic * x * x);
  } else if (f == Unary::gelu_sigmoid) {
    inside = A(1.702) * x;
    inside_slope = A(1.702);
  }
  const A s = logistic(inside);
  y = x * s;
  slope = s + x * (s * (A(1) - s)) * inside_slope;
}

/// Returns f'(x) from v, which is x or y as listed in elementwise.h.
template <class A>
LONGSPAN_HD inline A unary_slope_of(Unary f, A alpha, A beta, A v) {
  switch (f) {
    case Unary::affine:
      return alpha;
    case Unary::exp:
      return v;
    case Unary::log:
      return A(1) / v;
    case Unary::log1p:
      return A(1) / (A(1) + v);
    case Unary::sqrt:
      return A(0.5) / v;
    case Unary::rsqrt:
      return A(-0.5) * v * v * v;
    case Unary::square:
      return v + v;
    case Unary::abs:
      return v > 0 ? A(1) : v < 0 ? A(-1) : A(0);
    case Unary::reciprocal:
      return -(v * v);
    case Unary::power:  // the slope of a constant is 0 even at v = 0, where 0^-1 is infinite
      return alpha == 0 ? A(0) : alpha * unary_value(Unary::power, alpha - A(1), A(0), v);
    case Unary::clamp:
      return v >= alpha && v <= beta ? A(1) : A(0);
    case Unary::sin:
      return LONGSPAN_MATHS(cos, v);
    case Unary::cos:
      return -LONGSPAN_MATHS(sin, v);
    case Unary::tanh:
      return A(1) - v * v;
    case Unary::erf:
      return exponential(-(v * v)) * A(1.12837916709551257390);
    case Unary::sigmoid:
      return v * (A(1) - v);
    case Unary::softplus:
      return logistic(v);
    case Unary::relu:
      return v > 0 ? A(1) : A(0);
    case Unary::relu_squared:
      return v > 0 ? v + v : A(0);
    case Unary::leaky_relu:
      return v > 0 ? A(1) : alpha;
    case Unary::elu:
      return v > 0 ? A(1) : v + alpha;
    case Unary::grid:
      return A(1);
    default: {
      A y, slope;
      unary_both(f, v, y, slope);
      return slope;
    }
  }
}

/// dx = f'(x) dy. If f is flat at x, dx is 0 for every dy, even NaN.
template <class A>
LONGSPAN_HD inline A unary_gradient(Unary f, A alpha, A beta, A v, A dy) {
  const A slope = unary_slope_of(f, alpha, beta, v);
  const bool flat = slope == 0 && (f == Unary::abs || f == Unary::clamp || f == Unary::relu ||
                                   f == Unary::relu_squared || f == Unary::power);
  return flat ? A(0) : slope * dy;
}

/// a f b. maximum and minimum give NaN if either is NaN.
template <class A>
LONGSPAN_HD inline A binary_value(Binary f, A a, A b) {
  switch (f) {
    case Binary::add:
      return a + b;
    case Binary::sub:
      return a - b;
    case Binary::mul:
      return a * b;
    case Binary::div:
      return a / b;
    case Binary::maximum:
      return a > b || a != a ? a : b;
    case Binary::minimum:
      break;
  }
  return a < b || a != a ? a : b;
}

/// Evaluates a f b with the built-in comparison.
template <class A>
LONGSPAN_HD inline bool holds(Comparison f, A a, A b) {
  switch (f) {
    case Comparison::equal:
      return a == b;
    case Comparison::not_equal:
      return a != b;
    case Comparison::less:
      return a < b;
    case Comparison::less_equal:
      return a <= b;
    case Comparison::greater:
      return a > b;
    case Comparison::greater_equal:
      break;
  }
  return a >= b;
}

#undef LONGSPAN_MATHS

}  // namespace longspan::kernels
