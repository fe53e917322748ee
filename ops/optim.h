#pragma once

#include <span>

#include "core/kernels/optim.h"
#include "core/tensor.h"

namespace longspan {

/// The scalars of an update; kernels/optim.h explains them.
using kernels::AdafactorStep;
using kernels::AdagradStep;
using kernels::AdamStep;
using kernels::SgdStep;

// Fused updates of one parameter in place; no gradients. Each reads and writes every element once.
//   p, states  contiguous, f32 or f64, of one dtype and device
//   g          any strides, shape, dtype and device of p
//   throws     ShapeError, DTypeError, DeviceError; ValueError if p or a state is not contiguous

/// Gradient descent: h = scale g + weight_decay p; with b, b = momentum b + h, and h is replaced by
/// b, or by h + momentum b (nesterov); p -= lr h.
///   b  shape of p, or undefined
void sgd_update(Tensor p, const Tensor& g, Tensor b, const SgdStep& step);

/// Adagrad: h = scale g + weight_decay p, s += h^2, p -= lr h / (sqrt(s) + eps).
/// \cite duchi2011
void adagrad_update(Tensor p, const Tensor& g, Tensor s, const AdagradStep& step);

/// Adam: m = beta1 m + (1 - beta1) h, v = beta2 v + (1 - beta2) h^2,
/// p -= lr (m / correction1) / (sqrt(v / correction2) + eps), where h = scale g + weight_decay p,
/// or, decoupled (AdamW), h = scale g and p -= lr weight_decay p before. \cite kingma2015
/// \cite loshchilov2019
void adam_update(Tensor p, const Tensor& g, Tensor m, Tensor v, const AdamStep& step);

/// Adafactor: second moments of a matrix as the product of its row and column means, the update
/// clipped by its root mean square (algorithms 4 and 5 of the paper). \cite shazeer2018
///   row     [..., R] for p [..., R, C]; shape of p if column is undefined
///   column  [..., C], or undefined: second moments are not factored
///   m       shape of p, or undefined: no first moment
///   workspace  f64, contiguous, adafactor_numbers(p) elements or more; undefined: allocated
void adafactor_update(Tensor p, const Tensor& g, Tensor row, Tensor column, Tensor m,
                      const AdafactorStep& step, Tensor workspace = {});
int64_t adafactor_numbers(const Tensor& p);

// Learning rates that depend on norms of whole tensors: f64 [1] on the device of p, which an update
// reads through live_number(); the host does not wait. Norms are computed as in global_norm.
//   p, u       f32 or f64, any strides
//   workspace  f64, contiguous, of ..._numbers() elements or more; the rate becomes its first
//              element; undefined: allocated
//   throws     DTypeError, DeviceError

/// lr |p| / |u|, with the Euclidean norms of the tensors, or lr if either norm is 0. \cite you2020
Tensor lamb_rate(const Tensor& p, const Tensor& u, DeviceScalar<double> lr,
                 const Tensor& workspace = {});
int64_t lamb_rate_numbers(const Tensor& p);
/// lr max(least, root mean square of p). \cite shazeer2018
Tensor adafactor_rate(const Tensor& p, double least, DeviceScalar<double> lr,
                      const Tensor& workspace = {});
int64_t adafactor_rate_numbers(const Tensor& p);
/// lr min(1, most / |scale g|), with the Euclidean norm of the tensor; lr if that is 0.
Tensor clipped_rate(const Tensor& g, double most, DeviceScalar<double> scale,
                    DeviceScalar<double> lr, const Tensor& workspace = {});
int64_t clipped_rate_numbers(const Tensor& g);
/// Returns the value of x, f64 of one element, as a device scalar for kernels on its device; x must
/// outlive their calls.
DeviceScalar<double> live_number(const Tensor& x);

/// Returns the square root of the sum of squares of all tensors, in f64; the summation order
/// depends on their shapes only. NaN and Inf propagate. Waits for the device.
///   x  f32 or f64, any strides
double global_norm(std::span<const Tensor> x);
/// Returns the sums of squares of which global_norm() adds up those of all tensors, in this order:
/// of pieces of 32,768 elements.
std::vector<double> squared_sums(const Tensor& x);

}  // namespace longspan
