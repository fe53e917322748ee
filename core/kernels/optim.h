#pragma once

#include <cstdint>

#include "core/device_scalar.h"
#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

// Updates of parameters in place. All tensors of one call are contiguous and have the same dtype,
// f32 or f64. Values that depend on more than one element are f64 sums over fixed pieces in a fixed
// order. Every gradient is multiplied by `scale` first.

/// p -= lr u, where h = g + weight_decay p, b = momentum b + h, u = b, or h + momentum b
/// (nesterov). Without b (an empty view) u = h.
struct SgdStep {
  DeviceScalar<double> lr = 0;
  double momentum = 0, weight_decay = 0;
  DeviceScalar<double> scale = 1;
  bool nesterov = false;
};
inline constinit Kernel<void(View p, ConstView g, View b, SgdStep step)> sgd_update{"sgd_update"};

/// h = g + weight_decay p, s += h^2, p -= lr h / (sqrt(s) + eps).
struct AdagradStep {
  DeviceScalar<double> lr = 0;
  double eps = 1e-10, weight_decay = 0;
  DeviceScalar<double> scale = 1;
};
inline constinit Kernel<void(View p, ConstView g, View s, AdagradStep step)> adagrad_update{
    "adagrad_update"};

/// m = beta1 m + (1 - beta1) h, v = beta2 v + (1 - beta2) h^2,
/// p -= lr (m / correction1) / (sqrt(v / correction2) + eps).
/// weight_decay: h = g + weight_decay p, or, decoupled, p -= lr weight_decay p first.
struct AdamStep {
  DeviceScalar<double> lr = 0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  DeviceScalar<double> correction1 = 1, correction2 = 1, scale = 1;
  bool decoupled = false;
};
inline constinit Kernel<void(View p, ConstView g, View m, View v, AdamStep step)> adam_update{
    "adam_update"};

/// With q = g^2 + eps, over the last two axes [R, C], for every index of the others:
///   row = beta2 row + (1 - beta2) mean_C(q), column = beta2 column + (1 - beta2) mean_R(q),
///   u = g / sqrt(row column / mean(row)),
/// or, if column is empty and row has the shape of p, row = beta2 row + (1 - beta2) q and
/// u = g / sqrt(row). Then u /= max(1, rms(u) / clip) over all of p, and
///   m = beta1 m + (1 - beta1) lr u, u = m / lr  (unless m is empty),
///   p -= lr weight_decay p, p -= lr u.
struct AdafactorStep {
  DeviceScalar<double> lr = 0;
  double beta1 = 0;
  DeviceScalar<double> beta2 = 0;
  double eps = 1e-30, clip = 1, weight_decay = 0;
  DeviceScalar<double> scale = 1;
};
/// Returns the elements of the f64 workspace for a parameter of n elements in `rows` rows (all but
/// the last axis) with `columns` elements in column.
constexpr int64_t adafactor_workspace(int64_t n, int64_t rows, int64_t columns) {
  return columns > 0 ? 2 * rows + columns : (n + 32767) / 32768;
}
inline constinit Kernel<void(View p, ConstView g, View row, View column, View m, View workspace,
                             AdafactorStep step)>
    adafactor_update{"adafactor_update"};

/// Elements of x that one partial sum covers.
inline constexpr int64_t squared_sum_piece = 32768;
/// sums[i] = sum of x^2 over piece i, in f64.  x f32 or f64, contiguous.
inline constinit Kernel<void(ConstView x, View sums)> squared_sums{"squared_sums"};

// Learning rates that depend on norms of whole tensors, which the host need not know. The kernels
// receive a tensor's squared_sums and add them.

/// *rate = lr |p| / |u|, or lr if either norm is 0.
inline constinit Kernel<void(ConstView p_sums, ConstView u_sums, DeviceScalar<double> lr,
                             View rate)>
    lamb_rate{"lamb_rate"};
/// *rate = lr max(least, root mean square of p), for p of n elements.
inline constinit Kernel<void(ConstView p_sums, int64_t n, double least, DeviceScalar<double> lr,
                             View rate)>
    adafactor_rate{"adafactor_rate"};

}  // namespace longspan::kernels
