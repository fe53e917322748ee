#pragma once

#include "core/tensor.h"

namespace longspan {

// Elementwise functions. Unless an entry says otherwise:
//   x        any shape and strides  f64 f32 f16 bf16
//   returns  the same shape and dtype, row-major
//   throws   DTypeError on integers, ShapeError if shapes do not broadcast
// f16 and bf16 are computed in f32 and rounded once.

/// y = a + b, a - b, a b, a / b. Axes of size 1, and axes missing in front, are repeated.
///   a, b     of one dtype and device
///   returns  the shape that both broadcast to
///   saves    add, sub: nothing; mul: b if a requires grad, and a if b does; div: b, and y if b
///            requires grad
///   throws   also DTypeError, DeviceError if a and b differ
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
/// The larger or smaller of a and b, broadcast; NaN if either is NaN. The gradient goes to the
/// chosen one, and to a on ties. Saves a and b.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);

/// y = x + c, x - c, c - x, c x, x / c, -x. Saves nothing.
Tensor add(const Tensor& x, double c);
Tensor sub(const Tensor& x, double c);
Tensor sub(double c, const Tensor& x);
Tensor mul(const Tensor& x, double c);
Tensor div(const Tensor& x, double c);
Tensor neg(const Tensor& x);
/// y = c / x. Saves 1 / x.
Tensor div(double c, const Tensor& x);

/// The functions above as operators.
inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& x, double c) { return add(x, c); }
inline Tensor operator+(double c, const Tensor& x) { return add(x, c); }
inline Tensor operator-(const Tensor& x, double c) { return sub(x, c); }
inline Tensor operator-(double c, const Tensor& x) { return sub(c, x); }
inline Tensor operator*(const Tensor& x, double c) { return mul(x, c); }
inline Tensor operator*(double c, const Tensor& x) { return mul(x, c); }
inline Tensor operator/(const Tensor& x, double c) { return div(x, c); }
inline Tensor operator/(double c, const Tensor& x) { return div(c, x); }
inline Tensor operator-(const Tensor& x) { return neg(x); }

/// e^x, sqrt(x), 1 / sqrt(x), 1 / x. Save y.
Tensor exp(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);
Tensor reciprocal(const Tensor& x);
/// ln x, ln(1 + x), x^2, sin x, cos x, and erf x = 2 / sqrt(pi) times the integral of e^(-t^2) from
/// 0 to x. Save x.
Tensor log(const Tensor& x);
Tensor log1p(const Tensor& x);
Tensor square(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor erf(const Tensor& x);
/// |x|; the gradient at 0 is 0. Saves x.
Tensor abs(const Tensor& x);
/// x^p for a number p. Saves x.
Tensor pow(const Tensor& x, double p);
/// min(max(x, low), high); the gradient passes where low <= x <= high. Saves x. Throws ValueError
/// if low > high.
Tensor clamp(const Tensor& x, double low, double high);

/// y = rint(x 2^bits) 2^-bits, ties to even: the nearest multiple of 2^-bits, never -0. The
/// gradient passes unchanged (straight-through). Saves nothing. In f32, sums and differences of
/// such multiples are exact while their magnitude is at most 2^(24 - bits). Throws ValueError
/// unless 0 <= bits <= 100.
Tensor round_to_grid(const Tensor& x, int bits);

/// tanh x and s(x) = 1 / (1 + e^-x). Save y.
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
/// ln(1 + e^x). Saves x.
Tensor softplus(const Tensor& x);
/// max(x, 0); the gradient at 0 is 0. Saves y.
Tensor relu(const Tensor& x);
/// max(x, 0)^2. Saves x.
Tensor relu_squared(const Tensor& x);
/// x where x > 0, else slope x. Saves x.
Tensor leaky_relu(const Tensor& x, double slope = 0.01);
/// x where x > 0, else alpha (e^x - 1), alpha > 0. Saves y. Throws ValueError for other alpha.
Tensor elu(const Tensor& x, double alpha = 1.0);
/// x s(x). Saves the derivative at x in place of x, of the same size, as the three below do.
Tensor silu(const Tensor& x);
/// x Phi(x), where Phi is the normal cumulative distribution. \cite hendrycks2016
Tensor gelu_erf(const Tensor& x);
/// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2. \cite hendrycks2016
Tensor gelu_tanh(const Tensor& x);
/// x s(1.702 x). \cite hendrycks2016
Tensor sigmoid_gelu(const Tensor& x);

/// The first half of the last axis times an activation of the second half, the gate.
///   geglu       x1 x2 Phi(x2), gelu_erf of the gate
///   geglu_tanh  gelu_tanh of the gate
///   swiglu      silu of the gate
///   x        [..., 2 F]
///   returns  [..., F]
///   saves    x
///   throws   ShapeError on a scalar or an odd last axis
/// \cite shazeer2020
Tensor geglu(const Tensor& x);
Tensor geglu_tanh(const Tensor& x);
Tensor swiglu(const Tensor& x);

/// gelu_erf is x Phi(x); gelu_tanh approximates it with a tanh; gelu_sigmoid is x sigma(1.702 x);
/// geglu is a gelu_erf(b) for the halves (a, b) of an input of twice the width, geglu_tanh
/// a gelu_tanh(b).
enum class Activation : uint8_t {
  relu,
  gelu_erf,
  gelu_tanh,
  gelu_sigmoid,
  geglu,
  silu,
  geglu_tanh
};
/// Whether f takes an input of twice the width of its result.
constexpr bool is_gated(Activation f) {
  return f == Activation::geglu || f == Activation::geglu_tanh;
}

/// Returns f(x), elementwise; the result is half as wide as x if f is gated.
Tensor activate(Activation f, const Tensor& x);

/// condition != 0 ? a : b, broadcast over all three.
///   condition  u8
///   a, b       any dtype, the same for both
///   saves      condition
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

/// 1 where the comparison holds, else 0, as u8; broadcast. a and b may have any dtype, the same for
/// both. No gradient.
Tensor equal(const Tensor& a, const Tensor& b);
Tensor not_equal(const Tensor& a, const Tensor& b);
Tensor less(const Tensor& a, const Tensor& b);
Tensor less_equal(const Tensor& a, const Tensor& b);
Tensor greater(const Tensor& a, const Tensor& b);
Tensor greater_equal(const Tensor& a, const Tensor& b);

/// Returns the shape that two shapes broadcast to: from the last axis on, sizes are equal or one of
/// them is 1. Throws ShapeError that names both tensors.
Shape broadcast_shape(std::string_view op, Named a, Named b);

}  // namespace longspan
