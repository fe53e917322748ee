#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

/// Functions of one element with parameters alpha and beta. After the bar: the argument of the
/// backward function, x or y.
enum class Unary : uint8_t {
  affine,        // alpha x + beta                                  | nothing: dx = alpha dy
  exp,           // e^x                                             | y
  log,           // ln x                                            | x
  log1p,         // ln(1 + x)                                       | x
  sqrt,          // sqrt(x)                                         | y
  rsqrt,         // 1 / sqrt(x)                                     | y
  square,        // x^2                                             | x
  abs,           // |x|                                             | x
  reciprocal,    // 1 / x                                           | y
  power,         // x^alpha                                         | x
  clamp,         // min(max(x, alpha), beta)                        | x
  sin,           //                                                 | x
  cos,           //                                                 | x
  tanh,          //                                                 | y
  erf,           //                                                 | x
  sigmoid,       // s(x) = 1 / (1 + e^-x)                           | y
  softplus,      // ln(1 + e^x)                                     | x
  relu,          // max(x, 0)                                       | y
  relu_squared,  // max(x, 0)^2                                     | x
  leaky_relu,    // x > 0 ? x : alpha x                             | x
  elu,           // x > 0 ? x : alpha (e^x - 1)                     | y
  silu,          // x s(x)                                          | x
  gelu_erf,      // x Phi(x), the normal distribution               | x
  gelu_tanh,     // x (1 + tanh(sqrt(2/pi)(x + 0.044715 x^3))) / 2  | x
  gelu_sigmoid,  // x s(1.702 x)                                    | x
  grid           // rint(x alpha) beta, ties to even, never -0      | nothing: dx = dy
};

/// Functions and comparisons of two elements.
enum class Binary : uint8_t { add, sub, mul, div, maximum, minimum };
enum class Comparison : uint8_t { equal, not_equal, less, less_equal, greater, greater_equal };

/// y = f(x). Same shape and floating dtype; any strides (y without overlap). For this and the
/// following kernels, stride 0 repeats an input, f16 and bf16 are computed in f32, and a result may
/// be an input.
inline constinit Kernel<void(Unary f, double alpha, double beta, ConstView x, View y)>
    unary_forward{"unary_forward"};
/// dx = f'(x) dy, from x or y as listed in Unary.
inline constinit Kernel<void(Unary f, double alpha, double beta, ConstView x_or_y, ConstView dy,
                             View dx)>
    unary_backward{"unary_backward"};
/// y = f(x), slope = f'(x), for silu and the gelus, where both share the expensive part.
inline constinit Kernel<void(Unary f, ConstView x, View y, View slope)> unary_slope{"unary_slope"};
/// y = f(a, b). maximum and minimum give NaN if either is NaN.
inline constinit Kernel<void(Binary f, ConstView a, ConstView b, View y)> binary{"binary"};
/// y = a f b ? 1 : 0. a and b have the same dtype, any; y is u8.
inline constinit Kernel<void(Comparison f, ConstView a, ConstView b, View y)> compare{"compare"};
/// y = condition != 0 ? a : b. condition is u8; a, b and y have the same dtype, any.
inline constinit Kernel<void(ConstView condition, ConstView a, ConstView b, View y)> select{
    "select"};
/// y = u f(v), for each f whose backward receives x.
inline constinit Kernel<void(Unary f, ConstView u, ConstView v, View y)> gated_forward{
    "gated_forward"};
/// du = f(v) dy, dv = u f'(v) dy.
inline constinit Kernel<void(Unary f, ConstView u, ConstView v, ConstView dy, View du, View dv)>
    gated_backward{"gated_backward"};

}  // namespace longspan::kernels
