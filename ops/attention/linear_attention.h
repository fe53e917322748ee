#pragma once

#include <cstdint>

#include "core/kernels/linear_attention.h"
#include "core/tensor.h"

namespace longspan {

// Attention with a kernel that is a product of features, bracketed so that time and memory are
// linear in the length \cite choromanski2021 \cite katharopoulos2020 .

/// What a query or key x is mapped to, see linear_attention().
using kernels::FeatureMap;

/// Sums over the keys so far, all that later queries need of them: constant memory, however many
/// keys there were. Undefined before the first key.
struct LinearAttentionState {
  /// [B, H, F, dv + 1], f32 (f64 for f64): sums[.., r, :] 2^top[r] = sum_j phi(k_j)_r [v_j, 1].
  Tensor sums;
  /// [B, H, F], like sums: the largest exponent so far, so that sums neither overflow nor vanish.
  Tensor top;
};

/// Options of linear_attention().
struct LinearAttentionOptions {
  FeatureMap features = FeatureMap::positive;
  bool causal = false;  ///< query i sees keys j <= i, besides those of the state
  Tensor phase = {};    ///< b of the features `phase`, [m] or [H, m]
  /// Of q and k before the projection; 0: d^(-1/4) for features that approximate exp(q . k /
  /// sqrt(d)), else 1.
  double scale = 0;
  double epsilon = 0;  ///< added to features; only relu and later ones
  /// Smallest |denominator|, whose sign is kept: a smaller one is replaced and passes no gradient.
  /// Negative: 1e-6 for features that oscillate, else 0. Exponential features need none.
  double floor = -1;
  Tensor key_lengths = {};  ///< i64 [B], optional: keys from this index on do not exist
  Tensor hidden_keys = {};  ///< u8 [1 or B, T], optional: nonzero for keys that no query sees
  LinearAttentionState state = {};  ///< of earlier keys
  bool keep_state = false;          ///< whether to return the state after all keys
};

/// Results of linear_attention().
struct LinearAttentionResult {
  Tensor out;  ///< [B, H, L, dv] in the dtype of q, stored as [B, L, H, dv]
  /// [B, H, L], f32 (f64 for f64), without history. The denominators: their base-2 logarithms for
  /// exponential features (-inf without a key), else the numbers after the floor (0 without a key).
  Tensor normalizer;
  LinearAttentionState state;  ///< only with keep_state
};

/// Attention with weights phi(q_i) . phi(k_j) in place of exp(q_i . k_j / sqrt(d)):
///   out_i = sum_j (phi(q_i) . phi(k_j)) v_j / sum_j phi(q_i) . phi(k_j)
/// over the keys that exist, with the state's keys before all others. Features of x = scale q or
/// scale k, with u = W x for the rows of the projection W, or u = x without one:
///   positive       m^(-1/2) e^(u - |x|^2/2)                   FAVOR+ (sec. 2.3, lemma 1)
///   hyperbolic     (2m)^(-1/2) e^(-|x|^2/2) [e^u ; e^-u]      (lemma 1, SM hyp+)
///   trigonometric  m^(-1/2) e^(|x|^2/2) [cos u ; sin u]       FAVOR
///   phase          (2/m)^(1/2) e^(|x|^2/2) cos(u + b)
///   exp            m^(-1/2) e^u
///   relu, elu_plus_one, abs, square, gelu, sigmoid, tanh, identity
///                  m^(-1/2) f(u) + epsilon; without a projection f(u) + epsilon
/// Constant factors, and the norm factors of queries, cancel and are left out of state and floor,
/// except the factors of trigonometric and phase, so that the floor is that of the kernel relative
/// to the key with the largest norm. `identity` without a projection takes features of any origin.
///   q           [B, H, L, d]  f64 f32 f16 bf16, copied unless the last stride is 1
///   k, v        [B, H, T, d], [B, H, T, dv], dtype of q; T = L if causal
///   projection  [m, d] or [H, m, d], f64 for f64 q, else f32; required by the first four; a
///               constant without gradient
///   saves       q, k, v, normalizer, the projection, masks and state; for features that
///               oscillate also [B, H, L] of largest exponents
///   throws      ShapeError, DTypeError, DeviceError, ValueError;
///               NotImplemented on a device without the kernel
/// Gradients reach q, k, v and the sums of the state; `top` is a constant, and so state.sums
/// 2^state.top has the gradient of the sum that it stands for. A query that sees no key, or whose
/// denominator is 0, gets out = 0 and no gradient.
/// Exponentials are computed relative to the largest exponent of each feature so far, so that no
/// input of normal size overflows or vanishes: where a key of a chunk dwarfs what an earlier row
/// of it sees, the chunk is cut until no digits are lost. Logits and sums are f32 (f64 for f64).
/// Features exist for one chunk of 64 or 96 tokens at a time, forward and backward; time is
/// O(L m (d + dv)), and memory beyond inputs and outputs does not depend on L. Heads run in
/// parallel, the tokens of a head do not.
LinearAttentionResult linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                       const Tensor& projection,
                                       const LinearAttentionOptions& options);

}  // namespace longspan
