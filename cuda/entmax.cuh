#pragma once

#include "core/kernels/entmax.h"
#include "core/kernels/maths.h"
#include "cuda/rows.cuh"

/// Rows of alpha-entmax for a team of threads, shared by the op and by attention.
namespace longspan::cuda {

/// Returns u^p for u > 0, and 0 elsewhere.
template <class A>
__device__ A positive_power(A u, A p) {
  if (!(u > 0)) return A(0);
  if (p == A(1)) return u;
  if (p == A(2)) return u * u;
  return kernels::unary_value(kernels::Unary::power, p, A(0), u);
}

template <class A>
__device__ bool entmax_is_softmax(A alpha) {
  return !(alpha >= static_cast<A>(kernels::kEntmaxSoftmax));
}

/// Writes the probabilities of a row; y may be x. Every thread gets the threshold
/// (core/kernels/entmax_attention.h); inf for a row of only -inf.
template <class T, int size>
__device__ Accumulator<T> entmax_row(const Team<size>& team, const T* x, Accumulator<T> alpha, T* y,
                                     int64_t n) {
  using A = Accumulator<T>;
  const auto fill = [&](A value) { for_row<1>(team, n, [&](int64_t i) { y[i] = T(value); }); };
  A largest = least<A>(), wrong = 0, part = 0;
  for_row<1>(team, n, [&](int64_t i) {
    const A v = static_cast<A>(x[i]);
    largest = v > largest ? v : largest;
    part += v;
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
    part = 0;
    for_row<1>(team, n, [&](int64_t i) { part += weight(i); });
    const A sum = team.sum(part), factor = 1 / sum;
    for_row<1>(team, n, [&](int64_t i) { y[i] = T(weight(i) * factor); });
    return largest + kernels::unary_value(kernels::Unary::log, A(0), A(0), sum);
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
  const A mean = scale * (team.sum(part) / count - largest),
          small = kernels::unary_value(kernels::Unary::power, -scale, A(0), count);
  const auto [tau, sum] =
      kernels::entmax_threshold(kernels::entmax_lower_bound(mean, small), sums, root);
  const A factor = 1 / sum;
  for_row<1>(team, n, [&](int64_t i) { y[i] = T(positive_power(above(i, tau), p) * factor); });
  return tau + scale * largest;
}

/// Writes the gradient of a row's scores from its probabilities y; dx may be dy. Returns that of
/// alpha if `of_alpha`, else 0.
template <class T, int size>
__device__ Accumulator<T> entmax_row_gradient(const Team<size>& team, const T* y,
                                              Accumulator<T> alpha, const T* dy, T* dx, int64_t n,
                                              bool of_alpha) {
  using A = Accumulator<T>;
  const bool soft = entmax_is_softmax(alpha), learns = of_alpha && !soft && alpha <= 2;
  const auto s = [&](A p) {
    if (soft) return p;
    if (alpha >= 2) return p > 0 ? A(1) : A(0);
    return positive_power(p, 2 - alpha);
  };
  A sum_s = 0, sum_sg = 0, sum_yg = 0, sum_e = 0, sum_eg = 0;
  for_row<1>(team, n, [&](int64_t i) {
    const A p = static_cast<A>(y[i]), g = static_cast<A>(dy[i]), q = s(p);
    sum_s += q;
    sum_sg += q * g;
    if (!learns) return;
    const A e = p > 0 ? p * kernels::unary_value(kernels::Unary::log, A(0), A(0), p) : A(0);
    sum_yg += p * g;
    sum_e += e;
    sum_eg += e * g;
  });
  sum_s = team.sum(sum_s);
  sum_sg = team.sum(sum_sg);
  const A mean = sum_s == 0 ? A(0) : sum_sg / sum_s;
  for_row<1>(team, n, [&](int64_t i) {
    dx[i] = T(s(static_cast<A>(y[i])) * (static_cast<A>(dy[i]) - mean));
  });
  if (!learns) return 0;
  const A by = alpha - 1;
  return (team.sum(sum_yg) - mean) / (by * by) - (team.sum(sum_eg) - mean * team.sum(sum_e)) / by;
}

}  // namespace longspan::cuda
