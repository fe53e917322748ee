#pragma once

#include <cstdint>

#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

// Cross-entropy over classes that are processed in ranges [first, first + n). A row's state is {
// maximum, sum of exp(logit - maximum), logit of the target, sum of logit - maximum } over the
// ranges so far. If the maximum is inf, the first sum counts the logits that are inf. Maximum and
// logarithm of the sum are never added: beside a large maximum the logarithm would lose its digits.
// All floating tensors have the same dtype, f32 or f64, and are contiguous; targets [rows] are i64,
// i32 or u8.

/// Adds a range: logits [rows, n], state [rows, 4]. first = 0 resets the state. The last of a state
/// is 0 without `totals`.
inline constinit Kernel<void(ConstView logits, ConstView targets, int64_t first, bool totals,
                             View state)>
    cross_entropy_scan{"cross_entropy_scan"};

/// Processes all classes in one call: computes the state of each row and, unless gradient is empty,
/// gradient[i, j] = scale[i] ((1 + 2 z_loss lse[i]) exp(logits[i, j] - maximum) / sum
/// - (1 - smoothing) [j = target] - smoothing / classes); rows of scale 0 become 0. gradient may be
/// logits. The last of a state is 0 without smoothing. logits and gradient [rows, classes] may also
/// be f16 or bf16; state and scale [rows] are then f32.
inline constinit Kernel<void(ConstView logits, ConstView targets, ConstView scale, double smoothing,
                             double z_loss, View gradient, View state)>
    cross_entropy_rows{"cross_entropy_rows"};

/// y[i, j] = factor[i] x[i, j]; rows of factor 0 become 0. y may be x; rows of factor 1 are then
/// not touched. x, y [rows, n], contiguous, one floating dtype; factor [rows], or [1] for all, is
/// f64 for f64, else f32.
inline constinit Kernel<void(ConstView x, ConstView factor, View y)> multiply_rows{"multiply_rows"};

/// loss[i] = (1 - smoothing) (lse - target logit) + smoothing (lse - mean logit) + z_loss lse^2
/// with lse = maximum + log(sum), or 0 if the target is `ignore`. totals [rows, 2], unless it is
/// empty, becomes the maximum and the sum of each row.
inline constinit Kernel<void(ConstView state, ConstView targets, int64_t ignore, double smoothing,
                             double z_loss, int64_t classes, View totals, View loss)>
    cross_entropy_finish{"cross_entropy_finish"};

/// logits[i, j] = scale[i] ((1 + 2 z_loss lse[i]) exp(logits[i, j] - maximum) / sum
/// - (1 - smoothing) [first + j = target] - smoothing / classes), in place, with maximum and sum
/// from totals [rows, 2]; rows of scale 0 become 0.
inline constinit Kernel<void(View logits, ConstView targets, int64_t first, ConstView totals,
                             ConstView scale, double smoothing, double z_loss, int64_t classes)>
    cross_entropy_gradient{"cross_entropy_gradient"};

/// scale[i] = dy / kept, or 0 if targets[i] is `ignore`. dy [1] or [rows]. With `mean`, kept is the
/// number of targets that are not `ignore`, else 1.
inline constinit Kernel<void(ConstView dy, ConstView targets, int64_t ignore, bool mean,
                             View scale)>
    cross_entropy_scale{"cross_entropy_scale"};

/// y[0] = sum of loss[i]. With `mean`, divided by the number of targets other than `ignore` (0 if
/// there is none). Summed in f64, in order.
inline constinit Kernel<void(ConstView loss, ConstView targets, int64_t ignore, bool mean, View y)>
    cross_entropy_total{"cross_entropy_total"};

/// Losses of an element x and its target t. `weight` multiplies the term of positive targets.
enum class PairLoss : uint8_t {
  squared,        // (x - t)^2
  binary_entropy  // (1 - t) ln(1 + e^x) + weight t ln(1 + e^-x)
};

/// loss[i] = f(x[i], t[i]). x, t [n] of the same floating dtype; loss [n] is f64 for f64, else f32;
/// all contiguous.
inline constinit Kernel<void(PairLoss f, double weight, ConstView x, ConstView t, View loss)>
    pair_loss{"pair_loss"};
/// dx[i] = scale dy[i] df/dx(x[i], t[i]). dy [n], or [1] for all, has the dtype of loss; dx that of
/// x.
inline constinit Kernel<void(PairLoss f, double weight, ConstView x, ConstView t, ConstView dy,
                             double scale, View dx)>
    pair_loss_gradient{"pair_loss_gradient"};
/// found = {the first i with x[i] outside [low, high] (NaN is outside), the bits of x[i] as f64},
/// or -1 if there is none. x [n], floating, contiguous; found: i64 [2].
inline constinit Kernel<void(ConstView x, double low, double high, View found)> find_outside{
    "find_outside"};

}  // namespace longspan::kernels
