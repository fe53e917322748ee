#pragma once

#include <cstdint>
#include <span>

#include "core/generator.h"
#include "core/tensor.h"
#include "ops/patterns/pattern.h"

namespace longspan {

/// Relative position id of a pair, id(i, j) = clamp(k - q, -left, right) + left with the positions
/// q and k of the pair: left + right + 1 ids.
struct Relation {
  int64_t left = 0, right = 0;
};

/// Optional terms of scores and values; all tensors are differentiable. R = left + right + 1 of
/// `id`, or more if class labels (PairMask::class_id) use the remaining rows.
struct ScoreTerms {
  double scale = 0;  ///< scale * (q . k + r); 0: 1 / sqrt(d)
  Relation id;
  Tensor relation_key;    ///< + r_i . a[id], [R, d] or [H, R, d] (Shaw, ETC, Transformer-XL)
  Tensor relation_bias;   ///< + b[id], [R] or [H, R]
  Tensor relation_value;  ///< v_j + a_v[id], [R, dv] or [H, R, dv]
  Tensor
      relation_query;  ///< r, [B, H, L, d]; not given: q (Transformer-XL: q + v, where q is q + u)
  // The soft mask of the first segment's keys, f32 (f64 for f64); either span may be missing:
  // mu = clamp((offset + span + query_span - (q - k)) / ramp, 0, 1)
  Tensor span;        ///< [1 or B, 1 or H, 1 or T], of keys
  Tensor query_span;  ///< [1 or B, 1 or H, L], of queries
  double ramp = 1, offset = 0;
};

/// A key segment; all segments share one softmax.
struct Keys {
  Tensor k, v;
};

/// Dropout of probabilities, drawn by the original positions (b, h, i, j); active if pass.training.
struct Dropout {
  float p = 0;
  Pass pass;
};

/// out [B, H, L, dv]; lse [B, H, L], f32 (f64 for f64), of the scores before dropout, so that
/// results over disjoint keys can be merged exactly.
struct AttentionResult {
  Tensor out, lse;
};

/// Attention over the pairs that a pattern makes visible, with one or two key segments:
///   S_ij  = scale (q_i . k_j + r_i . a[id(i,j)] + b[id(i,j)])
///   E_ij  = mu_ij exp(S_ij)                for visible j of all segments
///   lse_i = log sum_j E_ij
///   out_i = sum_j E_ij exp(-lse_i) keep_ij / (1 - p) (v_j + a_v[id(i,j)])
/// where mu is the soft mask times the multiplicity of the run. A query that sees no key gets out =
/// 0, lse = -inf and no gradient.
///   q        [B, H, L, d]   f64 f32 f16 bf16, any strides with the last one 1
///   keys     one or two segments: k [B, H, T, d], v [B, H, T, dv]; dtype of q
///   pattern  resolved for L and the lengths of the segments
///   returns  out in the dtype of q, stored as [B, L, H, dv], so that merging heads is a view
///   saves    q, k, v, out, lse and the tensors of the terms and masks
///   throws   ShapeError, DTypeError, DeviceError; NotImplemented for features that a device lacks
/// Memory and saved bytes are linear in L and T. Gradients of q, k, v have the memory layout of
/// out.
AttentionResult block_attention(const Tensor& q, std::span<const Keys> keys,
                                const AttentionPattern& pattern, const ScoreTerms& terms = {},
                                const Dropout& dropout = {});
/// The same over the union of several patterns, at least one. One softmax, which saves no more than
/// a single pattern would. Throws ValueError that names a pair if two patterns share it
/// (ops/patterns/disjoint.h).
AttentionResult block_attention(const Tensor& q, std::span<const Keys> keys,
                                std::span<const AttentionPattern> parts,
                                const ScoreTerms& terms = {}, const Dropout& dropout = {});
/// One pattern and one key segment.
AttentionResult block_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                const AttentionPattern& pattern, const ScoreTerms& terms = {},
                                const Dropout& dropout = {});

/// Merges partial attention results into one softmax; each may have its own queries, keys or terms,
/// and no two share keys. Keys are not compared: a key in two parts counts twice, without an error.
///   lse = log sum_n exp(lse_n),  out = sum_n softmax(lse)_n out_n
/// A part in which a row sees no key adds nothing to that row; a row that sees no key in any part
/// gets out = 0, lse = -inf and no gradient.
///   parts    at least one; out [B, H, L, dv] and lse [B, H, L] of one shape and dtype each
///   returns  the same shapes; in 16 bits the weights of the parts are rounded to the dtype of out
///   saves    the parts, their weights in each row, and a few tensors of lse's shape
///   throws   ValueError without parts, ShapeError, DTypeError, DeviceError
/// Dropout needs no special care: lse is that of the scores before dropout.
AttentionResult merge_attention(std::span<const AttentionResult> parts);

}  // namespace longspan
