#pragma once

#include "core/host_device.h"
#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

/// alpha-entmax over the last axis, y = [(alpha - 1) x - tau]_+^(1 / (alpha - 1)) with the tau that
/// makes a row's sum 1. x, y [rows, n], contiguous, same floating dtype; y may be x. alpha [rows],
/// contiguous, f64 for f64, else f32; one below kEntmaxSoftmax counts as 1, which is softmax, one
/// above 2 as 2. A row of only -inf gives zeros.
inline constinit Kernel<void(ConstView x, ConstView alpha, View y)> entmax_forward{
    "entmax_forward"};
/// dx = s (dy - sum(s dy) / sum(s)), s = y^(2 - alpha) where y > 0, else 0; dx may be dy. A row of
/// NaN gives NaN. dalpha, if it is given, [rows] in the dtype of alpha: 0 where alpha counts as 1
/// or is above 2.
inline constinit Kernel<void(ConstView y, ConstView alpha, ConstView dy, View dx, View dalpha)>
    entmax_backward{"entmax_backward"};

/// Smaller values of alpha count as 1: (1 / (alpha - 1)) and its powers lose their digits.
inline constexpr double kEntmaxSoftmax = 1.01;

/// The sums of (z - tau)^p and (z - tau)^(p - 1) over the z of a row above tau.
template <class A>
struct EntmaxSums {
  A weights, slopes;
};

/// A threshold, and the sum of (z - tau)^p over the z of a row above it, which is 1 up to rounding.
template <class A>
struct EntmaxThreshold {
  A tau, weights;
};

/// Returns the tau at which the sum of (z_i - tau)^p over z_i > tau is 1, for p >= 1 and a row
/// whose maximum is 0, so that tau is in [-1, 0). `first` is a number in [-1, tau]; `sums(tau)`
/// returns EntmaxSums, `root(x)` x^(1 - 1 / p).
///
/// Newton's method for phi(tau) = |[z - tau]_+|_p = 1. A norm of a convex function is convex, and
/// phi falls from phi(first) >= 1: tau rises to the solution and never passes it, and no entry that
/// is out comes back. With p = 1 it ends after finitely many steps at the threshold of sparsemax
/// \cite martins2016 (prop. 1); the reference code sorts or bisects instead.
template <class A, class Sums, class Root>
LONGSPAN_HD EntmaxThreshold<A> entmax_threshold(A first, Sums sums, Root root) {
  constexpr A unit = sizeof(A) == 8 ? A(0x1p-53) : A(0x1p-24);
  EntmaxThreshold<A> at{first, 0};
  for (int i = 0; i < 64; ++i) {
    const EntmaxSums<A> sum = sums(at.tau);
    at.weights = sum.weights;
    const A step = (sum.weights - root(sum.weights)) / sum.slopes;
    if (!(step > unit)) break;
    at.tau += step;
  }
  return at;
}

/// Returns the gradient of alpha. With b = alpha - 1, p_i = y_i, L_i = ln p_i, s_i = p_i^(1 - b), S
/// = sum s, H = sum p L and R_i = (e^(-b L_i) - 1 + b L_i) / b^2,
///   dp_i / dalpha = p_i ((sum p R) (1 - b L_i) - R_i (1 - b H)) / S
/// which is (p_i - s_i / S) / b^2 - (p_i L_i - (s_i / S) H) / b \cite correia2019 (prop. 1) without
/// its differences of nearly equal numbers, whose rounding would be divided by b^2. The arguments
/// are S and the sums of p g, p L, p L g, p R and p R g.
template <class A>
LONGSPAN_HD A entmax_alpha_slope(A b, A s, A g, A e, A eg, A r, A rg) {
  return s == 0 ? A(0) : (r * (g - b * eg) - rg * (1 - b * e)) / s;
}

/// Returns a lower bound of that tau: with the mean of z, the sum is n (mean - tau)^p or more,
/// since the power is convex. `small` is n^(-1 / p).
template <class A>
LONGSPAN_HD A entmax_lower_bound(A mean, A small) {
  const A bound = mean - small;
  return bound > -1 ? bound : A(-1);
}

}  // namespace longspan::kernels
