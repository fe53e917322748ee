#pragma once

#include "core/tensor.h"

namespace longspan {

/// A window along a sequence: output t sees input t * stride + k * dilation - before, for k in [0,
/// size), where that exists.
struct PoolWindow {
  int64_t size = 1;
  int64_t stride = 1;
  int64_t dilation = 1;
  int64_t before = 0, after = 0;  ///< steps that the window may reach beyond either end

  /// Number of outputs for L inputs: (L + before + after - (size - 1) dilation - 1) / stride + 1.
  int64_t outputs(int64_t L) const;
};

/// Mean over each window, of the inputs that exist.
/// Mean over the existing inputs of each window.
///   returns [..., window.outputs(L), D]
///   saves   nothing
///   throws  ShapeError if no window fits, or if a window holds no input
Tensor mean_pool(const Tensor& x, const PoolWindow& window);
/// Largest input of each window; the first one on ties gets the gradient, NaN counts as largest.
///   saves   a byte for each output (four beyond 256 taps)
Tensor max_pool(const Tensor& x, const PoolWindow& window);

/// Convolution over the sequence (a cross-correlation, as usual in deep learning):
///   y[b, t, o] = bias[o] + sum over k, c of x[b, t * stride + k * dilation - before, c] w[o, k, c]
/// with zeros where no input exists. With groups, group g of the outputs sees group g of the
/// channels. groups = D = outputs is the depthwise convolution. A causal convolution has before =
/// (size - 1) * dilation, after = 0.
///   x       [..., L, D]         floating
///   weight  [O, size, D/groups]  dtype of x; window.size is taken from it
///   bias    [O], or undefined
///   returns [..., window.outputs(L), O]
///   saves   x, weight
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, PoolWindow window,
              int64_t groups = 1);

}  // namespace longspan
