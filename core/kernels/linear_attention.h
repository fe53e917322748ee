#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

/// The features phi(x) of a query or key, of u = W x with the projection W, or u = x without one.
/// The first four approximate exp(q . k); their norm factor e^(+-|x|^2 / 2) is left out of queries,
/// where it cancels.
///   positive       e^(u - |x|^2 / 2)
///   hyperbolic     [e^u ; e^-u] e^(-|x|^2 / 2)
///   trigonometric  m^(-1/2) [cos u ; sin u] e^(|x|^2 / 2)
///   phase          (2 / m)^(1/2) cos(u + b) e^(|x|^2 / 2)
///   exp            e^u
///   others         a f(u) + epsilon, with a = m^(-1/2), or 1 without a projection
enum class FeatureMap : uint8_t {
  positive,
  hyperbolic,
  trigonometric,
  phase,
  exp,
  relu,
  elu_plus_one,
  abs,
  square,
  gelu,
  sigmoid,
  tanh,
  identity
};
inline constexpr int feature_map_count = 13;

/// Features for each element of u.
LONGSPAN_HD constexpr int64_t feature_halves(FeatureMap f) {
  return f == FeatureMap::hyperbolic || f == FeatureMap::trigonometric ? 2 : 1;
}
/// Whether features are exponentials, which are computed relative to their maximum.
LONGSPAN_HD constexpr bool is_exponential(FeatureMap f) {
  return f == FeatureMap::positive || f == FeatureMap::hyperbolic || f == FeatureMap::exp;
}
/// Whether features oscillate, so that a denominator may be near 0 or below.
LONGSPAN_HD constexpr bool is_oscillating(FeatureMap f) {
  return f == FeatureMap::trigonometric || f == FeatureMap::phase;
}
/// The sign of |x|^2 / 2 in the exponent of a key.
LONGSPAN_HD constexpr int norm_sign(FeatureMap f) {
  if (is_oscillating(f)) return 1;
  return f == FeatureMap::positive || f == FeatureMap::hyperbolic ? -1 : 0;
}

/// `top` where no key has been seen: finite, so that differences are.
inline constexpr double kNoKeys = -1e30;

/// The numbers of a call.
struct LinearAttentionNumbers {
  FeatureMap features = FeatureMap::positive;
  bool causal = false;
  double scale = 1;    // of q and k, before the projection
  double epsilon = 0;  // added to features that are neither exponential nor oscillating
  double floor = 0;    // smallest |denominator|; 0 for exponential features
};

/// The tensors of a call; X is Tensor in ops and ConstView for kernels. F = halves m features. With
/// s_j = |scale k_j|^2 / 2 times the sign of norm_sign(), all logarithms are to base 2.
template <class X>
struct LinearAttentionInputsOf {
  X q, k, v;  // [B, H, L, d], [B, H, T, d], [B, H, T, dv]; one dtype, any strides, the last one 1
  X projection;  // [1 or H, m, d], contiguous, f64 for f64 q, else f32; undefined: u = x and m = d
  X phase;       // [1 or H, m], contiguous, dtype of the projection; only for features `phase`
  X k_valid;     // i64 [B] or undefined: keys from this index on do not exist
  X k_hidden;    // u8 [1 or B, T] or undefined: nonzero for keys that no query sees
  // The state of earlier keys, both or neither, contiguous, f64 for f64 q, else f32:
  //   sums[.., r, :] 2^top[r] = sum_j phi(k_j)_r [v_j, 1]
  // top is the largest exponent so far: of each feature if they are exponential, of e^s_j if they
  // oscillate (the same for all features), else 0. kNoKeys before the first key.
  X sums, top;  // [B, H, F, dv + 1], [B, H, F]
  LinearAttentionNumbers numbers;

  /// Calls f(tensor) for every tensor.
  template <class Visit, class Inputs>
  static void visit_tensors(Visit&& f, Inputs& in) {
    f(in.q);
    f(in.k);
    f(in.v);
    f(in.projection);
    f(in.phase);
    f(in.k_valid);
    f(in.k_hidden);
    f(in.sums);
    f(in.top);
  }
};
/// A call for kernels.
using LinearAttentionInputs = LinearAttentionInputsOf<ConstView>;

/// The results; X is View or, for the backward pass, which reads neither out nor sums, ConstView.
template <class X>
struct LinearAttentionResultsOf {
  X out;  // [B, H, L, dv], last stride 1, dtype of q
  // [B, H, L], contiguous, f64 for f64 q, else f32. With exponential features the logarithm of the
  // denominator, -inf if no key is seen. With others the denominator after the floor, 0 if no key
  // is seen; that of oscillating features is relative to 2^reference.
  X normalizer;
  X reference;  // [B, H, L], like normalizer; only for oscillating features: top of the keys seen
  X sums, top;  // the state after all keys, shaped as in the inputs; both or neither

  /// Calls f(tensor) for every tensor.
  template <class Visit, class Results>
  static void visit_tensors(Visit&& f, Results& results) {
    f(results.out);
    f(results.normalizer);
    f(results.reference);
    f(results.sums);
    f(results.top);
  }
};
/// Destinations of the forward pass.
using LinearAttentionResults = LinearAttentionResultsOf<View>;

/// Gradients of the results, for the backward pass; an undefined one is zero.
struct LinearAttentionGradientsOut {
  ConstView out;   // [B, H, L, dv], last stride 1
  ConstView sums;  // of the state after all keys, in units of results.top; contiguous

  /// Calls f(tensor) for every tensor.
  template <class Visit, class Gradients>
  static void visit_tensors(Visit&& f, Gradients& g) {
    f(g.out);
    f(g.sums);
  }
};

/// Destinations of the gradients: all of q, k and v, last stride 1; sums may be undefined.
struct LinearAttentionGradients {
  View q, k, v;
  View sums;   // of the state before the first key, in units of inputs.top; contiguous
  View means;  // [B, H, L], like normalizer: workspace

  /// Calls f(tensor) for every tensor.
  template <class Visit, class Gradients>
  static void visit_tensors(Visit&& f, Gradients& g) {
    f(g.q);
    f(g.k);
    f(g.v);
    f(g.sums);
    f(g.means);
  }
};

/// out_i = n_i / r_i with [n_i, r_i] = phi(q_i) (state + sum_j phi(k_j) [v_j, 1]) over the keys
/// that exist, if causal those with j <= i, for L = T. ops/attention/linear_attention.h has the
/// details. No kernel stores features of all L rows, or anything L x T.
inline constinit Kernel<void(const LinearAttentionInputs& in, const LinearAttentionResults& to)>
    linear_attention_forward{"linear_attention_forward"};

/// Computes the gradients from the results of the forward pass: normalizer and reference, and top
/// if the gradient of sums is given.
inline constinit Kernel<void(
    const LinearAttentionInputs& in, const LinearAttentionResultsOf<ConstView>& results,
    const LinearAttentionGradientsOut& given, const LinearAttentionGradients& to)>
    linear_attention_backward{"linear_attention_backward"};

}  // namespace longspan::kernels
