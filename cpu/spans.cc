#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/spans.cc"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include "cpu/simd-inl.h"
#include "cpu/spans.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using kernels::Binary;
using kernels::Unary;

// Each f has forward(d, x, a, b), and backward(d, v, dy, a, b), with v = x or y. a and b are
// vectors of the parameters.
#define LONGSPAN_FORWARD      \
  template <class D, class V> \
  static HWY_INLINE V forward(D d, V x, V a, V b)
#define LONGSPAN_BACKWARD     \
  template <class D, class V> \
  static HWY_INLINE V backward(D d, V v, V dy, V a, V b)
#define LONGSPAN_IGNORE (void)d, (void)a, (void)b
// Functions whose value and derivative share their expensive part: both() computes both.
#define LONGSPAN_SLOPE        \
  template <class D, class V> \
  static HWY_INLINE void both(D d, V x, V& y, V& slope)
#define LONGSPAN_FROM_SLOPE    \
  LONGSPAN_BACKWARD {          \
    LONGSPAN_IGNORE;           \
    V y, slope;                \
    both(d, v, y, slope);      \
    return hn::Mul(slope, dy); \
  }

struct Affine {
  LONGSPAN_FORWARD { return (void)d, hn::MulAdd(a, x, b); }
  LONGSPAN_BACKWARD { return (void)d, (void)v, (void)b, hn::Mul(a, dy); }
};
struct Grid {
  LONGSPAN_FORWARD { return (void)d, hn::MulAdd(hn::Round(hn::Mul(x, a)), b, hn::Zero(d)); }
  LONGSPAN_BACKWARD { return LONGSPAN_IGNORE, (void)v, dy; }
};
struct Exp {
  LONGSPAN_FORWARD { return LONGSPAN_IGNORE, simd::exp(d, x); }
  LONGSPAN_BACKWARD { return LONGSPAN_IGNORE, hn::Mul(v, dy); }
};
struct Log {
  LONGSPAN_FORWARD { return LONGSPAN_IGNORE, simd::log(d, x); }
  LONGSPAN_BACKWARD { return LONGSPAN_IGNORE, hn::Div(dy, v); }
};
struct Log1p {
  LONGSPAN_FORWARD { return LONGSPAN_IGNORE, simd::log1p(d, x); }
  LONGSPAN_BACKWARD { return LONGSPAN_IGNORE, hn::Div(dy, hn::Add(v, simd::constant(d, 1))); }
};
struct Sqrt {
  LONGSPAN_FORWARD { return LONGSPAN_IGNORE, hn::Sqrt(x); }
  LONGSPAN_BACKWARD { return LONGSPAN_IGNORE, hn::Div(hn::Mul(dy, simd::constant(d, 0.5)), v); }
};
struct Rsqrt {
  LONGSPAN_FORWARD { return LONGSPAN_IGNORE, hn::Div(simd::constant(d, 1), hn::Sqrt(x)); }
  LONGSPAN_BACKWARD {
    LONGSPAN_IGNORE;
    return hn::Mul(hn::Mul(hn::Mul(v, v), v), hn::Mul(dy, simd::constant(d, -0.5)));
  }
};
struct Square {
  LONGSPAN_FORWARD { return LONGSPAN_IGNORE, hn::Mul(x, x); }
  LONGSPAN_BACKWARD { return LONGSPAN_IGNORE, hn::Mul(hn::Add(v, v), dy); }
};
struct Abs {
  LONGSPAN_FORWARD { return LONGSPAN_IGNORE, hn::Abs(x); }
  LONGSPAN_BACKWARD {
    LONGSPAN_IGNORE;
    const auto zero = hn::Zero(d);
    return hn::IfThenElse(hn::Gt(v, zero), dy, hn::IfThenElseZero(hn::Lt(v, zero), hn::Neg(dy)));
  }
};
struct Reciprocal {
  LONGSPAN_FORWARD { return LONGSPAN_IGNORE, hn::Div(simd::constant(d, 1), x); }
  LONGSPAN_BACKWARD { return LONGSPAN_IGNORE, hn::Neg(hn::Mul(hn::Mul(v, v), dy)); }
};
struct Power {
  template <class T>
  struct Scalar {
    T exponent;
    T operator()(T x) const { return std::pow(x, exponent); }
  };
  LONGSPAN_FORWARD {
    (void)b;
    return simd::per_lane(d, x, Scalar<simd::Lane<D>>{hn::GetLane(a)});
  }
  LONGSPAN_BACKWARD {
    (void)b;
    const auto slope = simd::per_lane(d, v, Scalar<simd::Lane<D>>{hn::GetLane(a) - 1});
    // The slope of a constant is 0 even at x = 0, where 0^-1 is infinite.
    return hn::IfThenZeroElse(hn::Eq(a, hn::Zero(d)), hn::Mul(hn::Mul(a, slope), dy));
  }
};
struct Clamp {
  LONGSPAN_FORWARD {
    (void)d;
    const auto y = hn::IfThenElse(hn::Lt(x, a), a, x);  // NaN passes through
    return hn::IfThenElse(hn::Gt(y, b), b, y);
  }
  LONGSPAN_BACKWARD {
    (void)d;
    return hn::IfThenElseZero(hn::And(hn::Ge(v, a), hn::Le(v, b)), dy);
  }
};
struct Sin {
  LONGSPAN_FORWARD { return LONGSPAN_IGNORE, simd::sin(d, x); }
  LONGSPAN_BACKWARD { return LONGSPAN_IGNORE, hn::Mul(dy, simd::cos(d, v)); }
};
struct Cos {
  LONGSPAN_FORWARD { return LONGSPAN_IGNORE, simd::cos(d, x); }
  LONGSPAN_BACKWARD { return LONGSPAN_IGNORE, hn::Neg(hn::Mul(dy, simd::sin(d, v))); }
};
struct Tanh {
  LONGSPAN_FORWARD { return LONGSPAN_IGNORE, simd::tanh(d, x); }
  LONGSPAN_BACKWARD {
    return LONGSPAN_IGNORE, hn::Mul(hn::NegMulAdd(v, v, simd::constant(d, 1)), dy);
  }
};
struct Erf {
  LONGSPAN_FORWARD { return LONGSPAN_IGNORE, simd::erf(d, x); }
  LONGSPAN_BACKWARD {
    LONGSPAN_IGNORE;
    const auto bell = simd::exp_nonpositive(d, hn::Neg(hn::Mul(v, v)));
    return hn::Mul(hn::Mul(bell, simd::constant(d, 1.12837916709551257390)), dy);
  }
};
struct Sigmoid {
  LONGSPAN_FORWARD { return LONGSPAN_IGNORE, simd::sigmoid(d, x); }
  LONGSPAN_BACKWARD { return LONGSPAN_IGNORE, hn::Mul(hn::NegMulAdd(v, v, v), dy); }
};
struct Softplus {
  LONGSPAN_FORWARD {  // max(x, 0) + ln(1 + e^-|x|)
    LONGSPAN_IGNORE;
    const auto t = simd::exp(d, hn::Neg(hn::Abs(x)));
    const auto positive = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);
    return hn::Add(positive, simd::log1p(d, t));
  }
  LONGSPAN_BACKWARD { return LONGSPAN_IGNORE, hn::Mul(simd::sigmoid(d, v), dy); }
};
struct Relu {
  LONGSPAN_FORWARD {
    LONGSPAN_IGNORE;
    return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);  // NaN passes through
  }
  LONGSPAN_BACKWARD { return LONGSPAN_IGNORE, hn::IfThenElseZero(hn::Gt(v, hn::Zero(d)), dy); }
};
struct ReluSquared {
  LONGSPAN_FORWARD {
    LONGSPAN_IGNORE;
    return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), hn::Mul(x, x));
  }
  LONGSPAN_BACKWARD {
    LONGSPAN_IGNORE;
    return hn::IfThenElseZero(hn::Gt(v, hn::Zero(d)), hn::Mul(hn::Add(v, v), dy));
  }
};
struct LeakyRelu {
  LONGSPAN_FORWARD {
    (void)b;
    return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), x, hn::Mul(a, x));
  }
  LONGSPAN_BACKWARD {
    (void)b;
    return hn::IfThenElse(hn::Gt(v, hn::Zero(d)), dy, hn::Mul(a, dy));
  }
};
struct Elu {
  LONGSPAN_FORWARD {
    (void)b;
    const auto negative = hn::Mul(a, simd::expm1(d, x));
    return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), x, negative);
  }
  LONGSPAN_BACKWARD {
    (void)b;
    return hn::IfThenElse(hn::Gt(v, hn::Zero(d)), dy, hn::Mul(hn::Add(v, a), dy));
  }
};
struct Silu {
  LONGSPAN_FORWARD { return LONGSPAN_IGNORE, hn::Mul(x, simd::sigmoid(d, x)); }
  LONGSPAN_SLOPE {  // s + x s (1 - s)
    const auto s = simd::sigmoid(d, x);
    y = hn::Mul(x, s);
    slope = hn::MulAdd(x, hn::NegMulAdd(s, s, s), s);
  }
  LONGSPAN_FROM_SLOPE
};
struct GeluErf {
  LONGSPAN_FORWARD { return LONGSPAN_IGNORE, hn::Mul(x, simd::normal_integral(d, x)); }
  LONGSPAN_SLOPE { simd::gelu(d, x, y, slope); }
  LONGSPAN_FROM_SLOPE
};
struct GeluTanh {                                         // (1 + tanh(u)) / 2 = s(2 u)
  static constexpr double root = 1.59576912160573071176;  // 2 sqrt(2 / pi)
  static constexpr double cubic = 0.044715;
  LONGSPAN_FORWARD {
    LONGSPAN_IGNORE;
    const auto w =
        hn::MulAdd(hn::Mul(x, x), simd::constant(d, root * cubic), simd::constant(d, root));
    return hn::Mul(x, simd::sigmoid(d, hn::Mul(x, w)));
  }
  LONGSPAN_SLOPE {
    const auto x2 = hn::Mul(x, x);
    const auto w = hn::MulAdd(x2, simd::constant(d, root * cubic), simd::constant(d, root));
    const auto s = simd::sigmoid(d, hn::Mul(x, w));
    const auto inner = hn::MulAdd(x2, simd::constant(d, 3 * root * cubic), simd::constant(d, root));
    y = hn::Mul(x, s);
    slope = hn::MulAdd(hn::Mul(x, inner), hn::NegMulAdd(s, s, s), s);
  }
  LONGSPAN_FROM_SLOPE
};
struct GeluSigmoid {
  LONGSPAN_FORWARD {
    LONGSPAN_IGNORE;
    return hn::Mul(x, simd::sigmoid(d, hn::Mul(x, simd::constant(d, 1.702))));
  }
  LONGSPAN_SLOPE {
    const auto u = hn::Mul(x, simd::constant(d, 1.702));
    const auto s = simd::sigmoid(d, u);
    y = hn::Mul(x, s);
    slope = hn::MulAdd(u, hn::NegMulAdd(s, s, s), s);
  }
  LONGSPAN_FROM_SLOPE
};
#undef LONGSPAN_FORWARD
#undef LONGSPAN_BACKWARD
#undef LONGSPAN_SLOPE
#undef LONGSPAN_FROM_SLOPE
#undef LONGSPAN_IGNORE

template <class F, class T>
HWY_NOINLINE void forward_loop(double alpha, double beta, const T* x, T* y, size_t n) {
  const hn::ScalableTag<T> d;
  const size_t N = hn::Lanes(d);
  const auto a = simd::constant(d, alpha), b = simd::constant(d, beta);
  for (size_t i = 0; i < n; i += N) {
    simd::store(F::forward(d, simd::load(d, x + i, n - i), a, b), d, y + i, n - i);
  }
}

template <class F, class T>
HWY_NOINLINE void backward_loop(double alpha, double beta, const T* v, const T* dy, T* dx,
                                size_t n) {
  const hn::ScalableTag<T> d;
  const size_t N = hn::Lanes(d);
  const auto a = simd::constant(d, alpha), b = simd::constant(d, beta);
  for (size_t i = 0; i < n; i += N) {
    const auto left = n - i;
    simd::store(F::backward(d, simd::load(d, v + i, left), simd::load(d, dy + i, left), a, b), d,
                dx + i, left);
  }
}

#define LONGSPAN_UNARY(X)                                                                        \
  X(affine, Affine)                                                                              \
  X(exp, Exp)                                                                                    \
  X(log, Log)                                                                                    \
  X(log1p, Log1p)                                                                                \
  X(sqrt, Sqrt)                                                                                  \
  X(rsqrt, Rsqrt)                                                                                \
  X(square, Square)                                                                              \
  X(abs, Abs)                                                                                    \
  X(reciprocal, Reciprocal)                                                                      \
  X(power, Power)                                                                                \
  X(clamp, Clamp)                                                                                \
  X(sin, Sin) X(cos, Cos) X(tanh, Tanh) X(erf, Erf) X(sigmoid, Sigmoid) X(softplus, Softplus)    \
      X(relu, Relu) X(relu_squared, ReluSquared) X(leaky_relu, LeakyRelu) X(elu, Elu)            \
          X(silu, Silu) X(gelu_erf, GeluErf) X(gelu_tanh, GeluTanh) X(gelu_sigmoid, GeluSigmoid) \
              X(grid, Grid)

template <class T>
void unary(Unary f, double alpha, double beta, const T* x, T* y, size_t n) {
  switch (f) {
#define LONGSPAN_CASE(name, type) \
  case Unary::name:               \
    return forward_loop<type>(alpha, beta, x, y, n);
    LONGSPAN_UNARY(LONGSPAN_CASE)
#undef LONGSPAN_CASE
  }
}

template <class T>
void unary_gradient(Unary f, double alpha, double beta, const T* v, const T* dy, T* dx, size_t n) {
  switch (f) {
#define LONGSPAN_CASE(name, type) \
  case Unary::name:               \
    return backward_loop<type>(alpha, beta, v, dy, dx, n);
    LONGSPAN_UNARY(LONGSPAN_CASE)
#undef LONGSPAN_CASE
  }
}

template <class F, class T>
HWY_NOINLINE void slope_loop(const T* x, T* y, T* slope, size_t n) {
  const hn::ScalableTag<T> d;
  const size_t N = hn::Lanes(d);
  for (size_t i = 0; i < n; i += N) {
    hn::Vec<decltype(d)> value, derivative;
    F::both(d, simd::load(d, x + i, n - i), value, derivative);
    simd::store(value, d, y + i, n - i);
    simd::store(derivative, d, slope + i, n - i);
  }
}

template <class T>
void unary_slope(Unary f, const T* x, T* y, T* slope, size_t n) {
  switch (f) {
    case Unary::silu:
      return slope_loop<Silu>(x, y, slope, n);
    case Unary::gelu_erf:
      return slope_loop<GeluErf>(x, y, slope, n);
    case Unary::gelu_tanh:
      return slope_loop<GeluTanh>(x, y, slope, n);
    default:
      return slope_loop<GeluSigmoid>(x, y, slope, n);
  }
}

struct Maximum {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {  // NaN if either is NaN
    return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b);
  }
};
struct Minimum {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(a)), a, b);
  }
};
#define LONGSPAN_ARITHMETIC(Name)         \
  struct Name {                           \
    template <class V>                    \
    static HWY_INLINE V apply(V a, V b) { \
      return hn::Name(a, b);              \
    }                                     \
  };
namespace arithmetic {
LONGSPAN_ARITHMETIC(Add)
LONGSPAN_ARITHMETIC(Sub)
LONGSPAN_ARITHMETIC(Mul)
LONGSPAN_ARITHMETIC(Div)
}  // namespace arithmetic
#undef LONGSPAN_ARITHMETIC

template <class F, class T>
HWY_NOINLINE void binary_loop(const T* a, const T* b, T* y, size_t n) {
  const hn::ScalableTag<T> d;
  const size_t N = hn::Lanes(d);
  for (size_t i = 0; i < n; i += N) {
    const auto left = n - i;
    simd::store(F::apply(simd::load(d, a + i, left), simd::load(d, b + i, left)), d, y + i, left);
  }
}

template <class T>
void binary(Binary f, const T* a, const T* b, T* y, size_t n) {
  switch (f) {
    case Binary::add:
      return binary_loop<arithmetic::Add>(a, b, y, n);
    case Binary::sub:
      return binary_loop<arithmetic::Sub>(a, b, y, n);
    case Binary::mul:
      return binary_loop<arithmetic::Mul>(a, b, y, n);
    case Binary::div:
      return binary_loop<arithmetic::Div>(a, b, y, n);
    case Binary::maximum:
      return binary_loop<Maximum>(a, b, y, n);
    case Binary::minimum:
      return binary_loop<Minimum>(a, b, y, n);
  }
}

void unary_f32(Unary f, double a, double b, const float* x, float* y, size_t n) {
  unary(f, a, b, x, y, n);
}
void unary_f64(Unary f, double a, double b, const double* x, double* y, size_t n) {
  unary(f, a, b, x, y, n);
}
void unary_gradient_f32(Unary f, double a, double b, const float* v, const float* dy, float* dx,
                        size_t n) {
  unary_gradient(f, a, b, v, dy, dx, n);
}
void unary_gradient_f64(Unary f, double a, double b, const double* v, const double* dy, double* dx,
                        size_t n) {
  unary_gradient(f, a, b, v, dy, dx, n);
}
void unary_slope_f32(Unary f, const float* x, float* y, float* slope, size_t n) {
  unary_slope(f, x, y, slope, n);
}
void unary_slope_f64(Unary f, const double* x, double* y, double* slope, size_t n) {
  unary_slope(f, x, y, slope, n);
}
void binary_f32(Binary f, const float* a, const float* b, float* y, size_t n) {
  binary(f, a, b, y, n);
}
void binary_f64(Binary f, const double* a, const double* b, double* y, size_t n) {
  binary(f, a, b, y, n);
}
template <class From, class To>
void convert(const From* x, To* y, size_t n) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    simd::store(simd::load(d, x + i, n - i), d, y + i, n - i);
  }
}
void widen_f16(const f16* x, float* y, size_t n) { convert(x, y, n); }
void widen_bf16(const bf16* x, float* y, size_t n) { convert(x, y, n); }
void narrow_f16(const float* x, f16* y, size_t n) { convert(x, y, n); }
void narrow_bf16(const float* x, bf16* y, size_t n) { convert(x, y, n); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::cpu {

HWY_EXPORT(unary_f32);
HWY_EXPORT(unary_f64);
HWY_EXPORT(unary_gradient_f32);
HWY_EXPORT(unary_gradient_f64);
HWY_EXPORT(unary_slope_f32);
HWY_EXPORT(unary_slope_f64);
HWY_EXPORT(binary_f32);
HWY_EXPORT(binary_f64);
HWY_EXPORT(widen_f16);
HWY_EXPORT(widen_bf16);
HWY_EXPORT(narrow_f16);
HWY_EXPORT(narrow_bf16);

template <>
void unary_span(kernels::Unary f, double a, double b, const float* x, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(unary_f32)(f, a, b, x, y, static_cast<size_t>(n));
}
template <>
void unary_span(kernels::Unary f, double a, double b, const double* x, double* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(unary_f64)(f, a, b, x, y, static_cast<size_t>(n));
}
template <>
void unary_gradient_span(kernels::Unary f, double a, double b, const float* v, const float* dy,
                         float* dx, int64_t n) {
  HWY_DYNAMIC_DISPATCH(unary_gradient_f32)(f, a, b, v, dy, dx, static_cast<size_t>(n));
}
template <>
void unary_gradient_span(kernels::Unary f, double a, double b, const double* v, const double* dy,
                         double* dx, int64_t n) {
  HWY_DYNAMIC_DISPATCH(unary_gradient_f64)(f, a, b, v, dy, dx, static_cast<size_t>(n));
}
template <>
void unary_slope_span(kernels::Unary f, const float* x, float* y, float* slope, int64_t n) {
  HWY_DYNAMIC_DISPATCH(unary_slope_f32)(f, x, y, slope, static_cast<size_t>(n));
}
template <>
void unary_slope_span(kernels::Unary f, const double* x, double* y, double* slope, int64_t n) {
  HWY_DYNAMIC_DISPATCH(unary_slope_f64)(f, x, y, slope, static_cast<size_t>(n));
}
template <>
void binary_span(kernels::Binary f, const float* a, const float* b, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(binary_f32)(f, a, b, y, static_cast<size_t>(n));
}
template <>
void binary_span(kernels::Binary f, const double* a, const double* b, double* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(binary_f64)(f, a, b, y, static_cast<size_t>(n));
}
void widen_span(const f16* x, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(widen_f16)(x, y, static_cast<size_t>(n));
}
void widen_span(const bf16* x, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(widen_bf16)(x, y, static_cast<size_t>(n));
}
void narrow_span(const float* x, f16* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(narrow_f16)(x, y, static_cast<size_t>(n));
}
void narrow_span(const float* x, bf16* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(narrow_bf16)(x, y, static_cast<size_t>(n));
}

}  // namespace longspan::cpu
#endif
