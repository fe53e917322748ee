#pragma once

#include "core/tensor.h"

namespace longspan {

/// alpha-entmax over the last axis: the p in the simplex with the largest p . x + H_alpha(p),
/// H_alpha(p) = (1 - sum p^alpha) / (alpha (alpha - 1)), which is
///   p_i = [(alpha - 1) x_i - tau]_+^(1 / (alpha - 1)),  tau such that sum p = 1
/// \cite peters2019 (eq. 5). 1 is softmax; beyond it small probabilities are exactly 0, and 2 is
/// sparsemax. Where a probability just reaches 0, the gradient is the one-sided derivative on the
/// side where it stays 0.
/// A row of only -inf gives zeros.
///   x        [..., n]  f64 f32 f16 bf16
///   alpha    broadcastable to the shape of x without its last axis, any floating dtype; one above
///   2
///            counts as 2 and one below 1.01 as 1, with a gradient of 0 \cite correia2019
///            (sec. 3.2)
///   returns  [..., n]  dtype of x
///   saves    the result, and alpha for each row
///   throws   ShapeError, DTypeError
Tensor entmax(const Tensor& x, const Tensor& alpha);
/// The same with one alpha of 1 to 2 for all rows. Throws ValueError for any other.
Tensor entmax(const Tensor& x, double alpha);
/// entmax(x, 2): the point of the simplex that is nearest to x \cite martins2016 .
Tensor sparsemax(const Tensor& x);

/// The loss whose probabilities are alpha-entmax, for one right class each \cite peters2019 (eq.
/// 8):
///   loss = p . z - z_y + H_alpha(p),  p = entmax_alpha(z);   d loss / d z = p - e_y
/// It is 0 where the right class is ahead of all others by 1 / (alpha - 1), and cross-entropy for
/// alpha = 1.
///   logits   [..., V]  f64 f32 f16 bf16, finite; computed in f32, f64 for f64
///   targets  [...]     i64 i32 u8, in [0, V)
///   returns  [...]     one loss for each target, dtype of the logits
///   saves    p, f32 (f64 for f64), and the targets; for alpha that counts as 1 what
///            cross_entropy() saves
///   throws   ShapeError, DTypeError, DeviceError; ValueError for alpha as entmax(), and on a
///            target out of range
Tensor entmax_loss(const Tensor& logits, const Tensor& targets, double alpha);

}  // namespace longspan
