#pragma once

#include "core/kernels/entmax.h"
#include "core/kernels/maths.h"
#include "cuda/rows.cuh"

/// Rows of alpha-entmax for a team of threads, shared by the op and by attention.
namespace longspan::cuda {

/// Returns u^p for u > 0, 0 below, and NaN for NaN.
template <class A>
__device__ A positive_power(A u, A p) {
  if (!(u > 0)) return u != u ? u : A(0);
  if (p == A(1)) return u;
  if (p == A(2)) return u * u;
  return kernels::unary_value(kernels::Unary::power, p, A(0), u);
}

template <class A>
__device__ bool entmax_is_softmax(A alpha) {
  return !(alpha >= static_cast<A>(kernels::kEntmaxSoftmax));
}

/// Writes the probabilities of a row; y may be x. Every thread gets the threshold
/// (core/kernels/entmax_attention.h); inf for a row of only -inf, NaN where they are NaN.
template <class T, int size>
__device__ Accumulator<T> entmax_row(const Team<size>& team, const T* x, Accumulator<T> alpha, T* y,
                                     int64_t n) {
  using A = Accumulator<T>;
  const auto fill = [&](A value) { for_row<1>(team, n, [&](int64_t i) { y[i] = T(value); }); };
  A largest = least<A>(), wrong = 0;
  for_row<1>(team, n, [&](int64_t i) {
    const A v = static_cast<A>(x[i]);
    largest = v > largest ? v : largest;
    if (!(v <= std::numeric_limits<A>::max())) wrong = 1;
  });
  largest = team.max(largest);
  if (team.max(wrong) > 0) {
    fill(std::numeric_limits<A>::quiet_NaN());
    return std::numeric_limits<A>::quiet_NaN();
  }
  if (largest == least<A>()) {
    fill(A(0));
    return std::numeric_limits<A>::infinity();
  }
  if (entmax_is_softmax(alpha)) {
    const auto weight = [&](int64_t i) {
      return kernels::exponential(static_cast<A>(x[i]) - largest);
    };
    A part = 0;
    for_row<1>(team, n, [&](int64_t i) { part += weight(i); });
    const A sum = team.sum(part), factor = 1 / sum;
    for_row<1>(team, n, [&](int64_t i) { y[i] = T(weight(i) * factor); });
    return kernels::unary_value(kernels::Unary::log, A(0), A(0), sum);
  }
  const A scale = alpha >= 2 ? A(1) : alpha - 1, p = 1 / scale;
  const auto above = [&](int64_t i, A tau) {
    return (static_cast<A>(x[i]) - largest) * scale - tau;
  };
  const auto sums = [&](A tau) {
    kernels::EntmaxSums<A> all{};
    for_row<1>(team, n, [&](int64_t i) {
      const A u = above(i, tau);
      if (!(u > 0)) return;
      const A slope = p == A(1) ? A(1) : positive_power(u, p - 1);
      all.weights += u * slope;
      all.slopes += slope;
    });
    return kernels::EntmaxSums<A>{team.sum(all.weights), team.sum(all.slopes)};
  };
  const auto root = [&](A w) { return p == A(1) ? A(1) : positive_power(w, 1 - 1 / p); };
  const auto count = static_cast<A>(n);
  A part = 0;
  for_row<1>(team, n, [&](int64_t i) { part += above(i, A(0)); });
  const A mean = team.sum(part) / count,
          small = kernels::unary_value(kernels::Unary::power, -scale, A(0), count);
  const auto [tau, sum] =
      kernels::entmax_threshold(kernels::entmax_lower_bound(mean, small), sums, root);
  const A factor = 1 / sum;
  for_row<1>(team, n, [&](int64_t i) { y[i] = T(positive_power(above(i, tau), p) * factor); });
  return tau;
}

/// Writes the probabilities of a row whose threshold is known; y may be x.
template <class T, int size>
__device__ void entmax_row_again(const Team<size>& team, const T* x, Accumulator<T> alpha,
                                 Accumulator<T> threshold, T* y, int64_t n) {
  using A = Accumulator<T>;
  if (!(threshold < std::numeric_limits<A>::infinity())) {
    const A value = threshold != threshold ? threshold : A(0);
    return for_row<1>(team, n, [&](int64_t i) { y[i] = T(value); });
  }
  A largest = least<A>();
  for_row<1>(team, n, [&](int64_t i) {
    const A v = static_cast<A>(x[i]);
    largest = v > largest ? v : largest;
  });
  largest = team.max(largest);
  const A scale = alpha >= 2 ? A(1) : alpha - 1;
  for_row<1>(team, n, [&](int64_t i) {
    const A z = static_cast<A>(x[i]) - largest;
    y[i] = T(entmax_is_softmax(alpha) ? kernels::exponential(z - threshold)
                                      : positive_power(z * scale - threshold, 1 / scale));
  });
}

/// Returns (e^t - 1 - t) / t^2 for t in [0, 1/2].
template <class A>
__device__ A exp_rest(A t) {
  constexpr int terms = sizeof(A) == 8 ? 14 : 8;
  A sum = 1;
#pragma unroll
  for (int k = terms + 1; k > 2; --k) sum = t * static_cast<A>(1.0 / k) * sum + 1;
  return sum / 2;
}

/// Writes the gradient of a row's scores from its probabilities y; dx may be dy. Returns the
/// gradient of alpha if `of_alpha`, else 0.
template <class T, int size>
__device__ Accumulator<T> entmax_row_gradient(const Team<size>& team, const T* y,
                                              Accumulator<T> alpha, const T* dy, T* dx, int64_t n,
                                              bool of_alpha) {
  using A = Accumulator<T>;
  const bool soft = entmax_is_softmax(alpha), learns = of_alpha && !soft && alpha <= 2;
  const auto s = [&](A p) {
    if (soft) return p;
    if (alpha >= 2) return p > 0 ? A(1) : p;
    return positive_power(p, 2 - alpha);
  };
  A sum_s = 0, sum_sg = 0;
  for_row<1>(team, n, [&](int64_t i) {
    const A q = s(static_cast<A>(y[i]));
    sum_s += q;
    sum_sg += q * static_cast<A>(dy[i]);
  });
  sum_s = team.sum(sum_s);
  sum_sg = team.sum(sum_sg);
  const A mean = sum_s == 0 ? A(0) : sum_sg / sum_s;
  A slope = 0;
  if (learns) {
    const A b = alpha - 1;
    A sum_g = 0, sum_e = 0, sum_eg = 0, sum_r = 0, sum_rg = 0;
    for_row<1>(team, n, [&](int64_t i) {
      const A p = static_cast<A>(y[i]), g = static_cast<A>(dy[i]) - mean;
      const A log = kernels::unary_value(kernels::Unary::log, A(0), A(0), p > 0 ? p : A(1));
      const A e = p * log, t = -b * log;
      const A r = t > A(0.5) ? (s(p) - p - p * t) / (b * b) : e * log * exp_rest(t);
      sum_g += p * g;
      sum_e += e;
      sum_eg += e * g;
      sum_r += r;
      sum_rg += r * g;
    });
    slope = kernels::entmax_alpha_slope<A>(b, sum_s, team.sum(sum_g), team.sum(sum_e),
                                           team.sum(sum_eg), team.sum(sum_r), team.sum(sum_rg));
  }
  for_row<1>(team, n, [&](int64_t i) {
    dx[i] = T(s(static_cast<A>(y[i])) * (static_cast<A>(dy[i]) - mean));
  });
  return slope;
}

}  // namespace longspan::cuda
