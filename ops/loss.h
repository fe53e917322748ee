#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace longspan {

/// How to reduce the losses of single targets.
enum class Reduction : uint8_t {
  mean,  ///< over targets that are not ignored; 0 if there are none
  sum,
  none  ///< one loss for each target, 0 where it is ignored
};

/// When linear_cross_entropy computes the gradients of its inputs.
enum class LossGradient : uint8_t {
  recompute,   ///< in backward, from recomputed logits: four products, x and two values per row
               ///< saved
  in_forward,  ///< while the logits exist: three products, but the gradients are saved
  automatic    ///< in_forward where it needs no more memory and has the bits of recompute up to the
               ///< factor dy: V <= 4096, not f16, not Reduction::none; else recompute
};

/// Options of cross-entropies. The last three apply to linear_cross_entropy only.
struct CrossEntropyOptions {
  double smoothing = 0;   ///< weight of the uniform distribution, in [0, 1]
  int64_t ignore = -100;  ///< targets of this value are ignored
  Reduction reduction = Reduction::mean;
  double z_loss = 0;    ///< weight of lse^2, which is added to each loss
  double soft_cap = 0;  ///< c > 0: logits are c tanh(z / c)
  LossGradient gradient = LossGradient::recompute;
};

/// Cross-entropy in nats: loss_i = lse_i - (1 - s) z_{i,t} - s mean_j z_ij,  lse_i = log sum_j exp
/// z_ij, computed from the differences of the logits and their maximum, so that a common offset
/// changes nothing beyond the rounding of the logits.
///   logits   [..., V]  f64 f32 f16 bf16; computed in f32, f64 for f64
///   targets  [...]     i64 i32 u8: in [0, V), or options.ignore
///   returns  scalar, or [...] for Reduction::none; f64 for f64, else f32
///   saves    the gradient of the logits up to the factor dy, which backward multiplies in place
///            unless the graph is retained; for f16, bf16 and Reduction::none targets too
///   throws   ShapeError, DTypeError, DeviceError, ValueError that names the first bad target
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& = {});

/// cross_entropy(linear(x, weight, bias), targets) in blocks of tokens and classes: neither the
/// forward nor the backward pass ever holds more than 2^19 logits (twice that with a soft cap);
/// with LossGradient::in_forward and V > 4096, the logits of all classes of clamp(2^24 / V, 64,
/// 1024) tokens. Rows with an ignored target reach no result, even if they hold NaN: the host reads
/// the targets and leaves these rows out of every product, so they cost nothing; a device reads
/// them as zeros.
///   x        [..., D]  f64 f32 f16 bf16
///   weight   [V, D]    dtype of x;  bias [V] or undefined
///   targets  [...]     i64 i32 u8
///   returns  as cross_entropy; for f16 and bf16 the logits are f32
///   saves    x, weight, bias, targets, and for each row that is not ignored its largest logit m
///            and its sum of exp(logit - m); or the required gradients of x, weight and bias up to
///            the factor dy, which backward multiplies in place unless the graph is retained
///   throws   as cross_entropy
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const Tensor& targets, const CrossEntropyOptions& = {});

/// Mean squared error: (x - t)^2 of each element, reduced.
///   x        any shape   f64 f32 f16 bf16; computed in f32, f64 for f64
///   targets  shape, dtype and device of x; may require gradients too
///   returns  scalar, or the shape of x for Reduction::none; f64 for f64, else f32; the mean of an
///            empty tensor is 0
///   saves    x, targets
///   throws   ShapeError, DTypeError, DeviceError
Tensor mse(const Tensor& x, const Tensor& targets, Reduction reduction = Reduction::mean);

/// Options of binary cross-entropies.
struct BinaryCrossEntropyOptions {
  double positive_weight = 1;  ///< factor on the loss of positive targets, 0 or more
  Reduction reduction = Reduction::mean;
};

/// Cross-entropy of independent binary labels, from their logits z = ln(p / (1 - p)):
///   loss = (1 - t) ln(1 + e^z) + w t ln(1 + e^-z),  w the weight of positive targets,
/// finite for every finite z. To leave elements out, use Reduction::none and sum the others.
///   logits   any shape   f64 f32 f16 bf16; computed in f32, f64 for f64
///   targets  shape, dtype and device of logits, in [0, 1]; no gradient
///   returns  as mse
///   saves    logits, targets
///   throws   ShapeError, DTypeError, DeviceError, ValueError that names the first bad target
Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& targets,
                                        const BinaryCrossEntropyOptions& = {});

}  // namespace longspan
