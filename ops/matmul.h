#pragma once

#include <span>
#include <vector>

#include "core/tensor.h"
#include "ops/elementwise.h"

namespace longspan {

/// y = a b over the last two axes; the leading ones broadcast. For transposed operands pass a view,
/// transpose(b, -1, -2); nothing is copied.
///   a        [..., M, K]  f64 f32 f16 bf16
///   b        [..., K, N]  dtype of a
///   returns  [..., M, N]  dtype of a; zeros where K = 0
///   saves    a, b
///   throws   ShapeError, DTypeError, DeviceError
/// A row of y depends, bit for bit, only on its row of a, on b and on K, unless the process uses
/// OpenBLAS (core/matmul_library.h).
Tensor matmul(const Tensor& a, const Tensor& b);

/// y = x W^T + b (+ onto). Has the bits of add(onto, linear(x, weight, bias)); onto is added while
/// the products are in the caches, but within a checkpoint scope.
///   x        [..., in]   f64 f32 f16 bf16
///   weight   [out, in]   dtype of x: cast it if it differs
///   bias     [out]       dtype of x, or undefined
///   onto     [..., out]  dtype of x, or undefined
///   returns  [..., out]  dtype of x
///   saves    x, weight
///   throws   ShapeError, DTypeError, DeviceError
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Tensor& onto = {});

/// The weights of one linear map.
struct Projection {
  Tensor weight;     ///< [out, in]
  Tensor bias = {};  ///< [out], or undefined
};

/// y_i = x W_i^T + b_i, for queries, keys and values: what linear() returns for each weight, bit
/// for bit. The products are computed together, and so are the gradients of the weights; that of x
/// is the sum of dy_i W_i from the last i to the first, in one tensor.
///   x        [..., in]       f64 f32 f16 bf16
///   to       1 to 7 weights [out_i, in] and biases [out_i], all of the dtype of x: cast them if
///            they differ
///   returns  [..., out_i] for each i
///   saves    x, all weights
///   throws   ShapeError, DTypeError, DeviceError; ValueError if there are none or too many weights
std::vector<Tensor> projections(const Tensor& x, std::span<const Projection> to);

/// y = [before; x] W^T + b: linear() of rows that are joined along axis 1, without joining them.
/// For the keys and values of a memory and of the rows after it.
///   before   [B, M, in]      f64 f32 f16 bf16, or undefined: M = 0
///   x        [B, L, in]      dtype and device of before
///   weight   [out, in]       the same dtype: cast it if it differs
///   bias     [out]           the same dtype, or undefined
///   returns  [B, M + L, out]
///   saves    before, x, weight
///   throws   ShapeError, DTypeError, DeviceError
Tensor joined_linear(const Tensor& before, const Tensor& x, const Tensor& weight,
                     const Tensor& bias = {});

/// y = f(x W1^T + b1) W2^T + b2 (+ onto): a feed-forward layer. Has the bits of linear(activate(f,
/// linear(x))), forward and backward, but those of the sums over rows in the gradients of biases; f
/// and its derivative are applied to the products while they are in the caches. Within a checkpoint
/// scope, and if f is gated, it is those three ops. onto is added as linear() does.
///   x           [..., in]   f64 f32 f16 bf16
///   in_weight   [F, in], or [2 F, in] if f is gated; in_bias [F or 2 F], or undefined
///   out_weight  [out, F];  out_bias [out], or undefined
///   onto        [..., out], or undefined; all of the dtype of x
///   returns     [..., out]
///   saves       x, both weights, h = f(x W1^T + b1) [..., F]; slopes of f, as many, but for relu
///   throws      ShapeError, DTypeError, DeviceError
Tensor feed_forward(const Tensor& x, const Tensor& in_weight, const Tensor& in_bias, Activation f,
                    const Tensor& out_weight, const Tensor& out_bias, const Tensor& onto = {});

}  // namespace longspan
