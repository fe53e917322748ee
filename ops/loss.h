#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace longspan {

/// What becomes of the losses of single targets.
enum class Reduction : uint8_t {
  mean,  ///< over targets that are not ignored; 0 where there is none
  sum,
  none  ///< one loss for each target, 0 where it is ignored
};

/// When linear_cross_entropy forms the gradients of its inputs.
enum class LossGradient : uint8_t {
  recompute,  ///< in backward, from logits that it computes anew: four products, x and lse saved
  in_forward  ///< while the logits are there: three products, but gradients are saved
};

/// How cross-entropies are formed. The last three are for linear_cross_entropy.
struct CrossEntropyOptions {
  double smoothing = 0;   ///< weight of the uniform distribution, in [0, 1]
  int64_t ignore = -100;  ///< targets of this value take no part
  Reduction reduction = Reduction::mean;
  double z_loss = 0;    ///< weight of lse^2, which is added to each loss
  double soft_cap = 0;  ///< c > 0: logits are c tanh(z / c)
  LossGradient gradient = LossGradient::recompute;
};

/// Cross-entropy in nats: loss_i = lse_i - (1 - s) z_{i,t} - s mean_j z_ij,  lse_i = log sum_j exp
/// z_ij.
///   logits   [..., V]  f64 f32 f16 bf16; computed in f32, f64 for f64
///   targets  [...]     i64 i32 u8: in [0, V), or options.ignore
///   returns  scalar, or [...] for Reduction::none; f64 for f64, else f32
///   saves    exp(logits - maximum of the row), targets, and four numbers of each row
///   throws   ShapeError, DTypeError, DeviceError, ValueError naming the first bad target
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& = {});

/// cross_entropy(linear(x, weight, bias), targets) in stretches of tokens and classes: neither the
/// forward nor the backward pass ever holds more than 2^19 logits (twice that with a soft cap);
/// with gradients in forward, of all classes of clamp(2^24 / V, 64, 1024) tokens. Rows whose target
/// is ignored are left out of every product: they cost nothing, and what they hold, be it NaN,
/// reaches no result. Reads the targets on the host.
///   x        [..., D]  f64 f32 f16 bf16
///   weight   [V, D]    dtype of x;  bias [V] or undefined
///   targets  [...]     i64 i32 u8
///   returns  as cross_entropy; for f16 and bf16 the logits are f32
///   saves    x, weight, bias, targets, lse [rows that count]; or the gradients of x, weight and
///   bias that
///            are wanted
///   throws   as cross_entropy
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const Tensor& targets, const CrossEntropyOptions& = {});

/// Mean squared error: (x - t)^2 of each element, reduced.
///   x        any shape   f64 f32 f16 bf16; computed in f32, f64 for f64
///   targets  shape, dtype and device of x; may require gradients too
///   returns  scalar, or the shape of x for Reduction::none; f64 for f64, else f32; a mean of
///            nothing is 0
///   saves    x, targets
///   throws   ShapeError, DTypeError, DeviceError
Tensor mse(const Tensor& x, const Tensor& targets, Reduction reduction = Reduction::mean);

/// How binary cross-entropies are formed.
struct BinaryCrossEntropyOptions {
  double positive_weight = 1;  ///< factor on what positive targets cost, 0 or more
  Reduction reduction = Reduction::mean;
};

/// Cross-entropy of independent yes-or-no answers, from their logits z = ln(p / (1 - p)):
///   loss = (1 - t) ln(1 + e^z) + w t ln(1 + e^-z),  w the weight of positive targets,
/// finite for every finite z. To leave elements out, take Reduction::none and sum what counts.
///   logits   any shape   f64 f32 f16 bf16; computed in f32, f64 for f64
///   targets  shape, dtype and device of logits, in [0, 1]; no gradient
///   returns  as mse
///   saves    logits, targets
///   throws   ShapeError, DTypeError, DeviceError, ValueError naming the first bad target
Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& targets,
                                        const BinaryCrossEntropyOptions& = {});

}  // namespace longspan
