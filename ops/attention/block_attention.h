#pragma once

#include <cstdint>
#include <span>

#include "core/generator.h"
#include "core/tensor.h"
#include "ops/patterns/pattern.h"

namespace longspan {

/// id(i, j) = clamp(k - q, -left, right) + left of the positions of a pair: left + right + 1 ids.
struct Relation {
  int64_t left = 0, right = 0;
};

/// Optional terms of scores and values, all tensors differentiable. R = left + right + 1 of `id`;
/// or more, where labels of classes (PairMask::class_id) reach the rest.
struct ScoreTerms {
  double scale = 0;  ///< times everything: scale * (q . k + r); 0: 1 / sqrt(d)
  Relation id;
  Tensor relation_key;    ///< + r_i . a[id], [R, d] or [H, R, d] (Shaw, ETC, Transformer-XL)
  Tensor relation_bias;   ///< + b[id], [R] or [H, R]
  Tensor relation_value;  ///< v_j + a_v[id], [R, dv] or [H, R, dv]
  Tensor
      relation_query;  ///< r, [B, H, L, d]; not given: q (Transformer-XL: q + v, where q is q + u)
  Tensor span;         ///< [1 or B, 1 or H, 1 or T]: soft mask of the first segment's keys
  double ramp = 1, offset = 0;  ///< mu = clamp((offset + span - (q - k)) / ramp, 0, 1)
};

/// A key segment; all segments share one softmax.
struct Keys {
  Tensor k, v;
};

/// Dropout of probabilities, drawn by (b, h, i, j) of the original positions, where pass.training.
struct Dropout {
  float p = 0;
  Pass pass;
};

/// out [B, H, L, dv]; lse [B, H, L], f32 (f64 for f64), of undropped scores: parts can be merged
/// exactly.
struct AttentionResult {
  Tensor out, lse;
};

/// Attention over the pairs that a pattern lets each query see, of one or two key segments:
///   S_ij  = scale (q_i . k_j + r_i . a[id(i,j)] + b[id(i,j)])
///   E_ij  = mu_ij exp(S_ij)                for visible j of all segments
///   lse_i = log sum_j E_ij
///   out_i = sum_j E_ij exp(-lse_i) keep_ij / (1 - p) (v_j + a_v[id(i,j)])
/// where mu is the soft mask times the multiplicity of the run. A query that sees nothing gets out
/// = 0, lse = -inf and no gradient.
///   q        [B, H, L, d]   f64 f32 f16 bf16, any strides with the last one 1
///   keys     one or two segments: k [B, H, T, d], v [B, H, T, dv]; dtype of q
///   pattern  resolved for L and the lengths of the segments
///   returns  out in the dtype of q, whose memory is [B, L, H, dv]: merging heads is a view
///   saves    q, k, v, out, lse and the tensors of the terms and masks
///   throws   ShapeError, DTypeError, DeviceError; NotImplemented on what a device lacks
/// Memory and saved bytes are linear in L and T. Gradients of q, k, v lie in memory as out does.
AttentionResult block_attention(const Tensor& q, std::span<const Keys> keys,
                                const AttentionPattern& pattern, const ScoreTerms& terms = {},
                                const Dropout& dropout = {});
/// The same over the pairs of all parts, at least one, of which no two may have a pair in common:
/// one softmax, for which nothing is kept that one pattern would not need.
AttentionResult block_attention(const Tensor& q, std::span<const Keys> keys,
                                std::span<const AttentionPattern> parts,
                                const ScoreTerms& terms = {}, const Dropout& dropout = {});
/// One pattern and one key segment.
AttentionResult block_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                const AttentionPattern& pattern, const ScoreTerms& terms = {},
                                const Dropout& dropout = {});

/// One softmax from parts of it that have queries, keys or terms of their own, over keys that they
/// do not share:
///   lse = log sum_n exp(lse_n),  out = sum_n exp(lse_n - lse) out_n
/// A row that sees nothing in a part takes nothing from it; one that sees nothing at all gets out =
/// 0, lse = -inf and no gradient.
///   parts    at least one; out [B, H, L, dv] and lse [B, H, L] of one shape and dtype each
///   returns  the same shapes; in 16 bits the shares are rounded to the dtype of out
///   saves    the parts, their shares of each row, and a few tensors of lse's shape
///   throws   ValueError without parts, ShapeError, DTypeError, DeviceError
/// Dropout needs no care: lse is that of undropped scores.
AttentionResult merge_attention(std::span<const AttentionResult> parts);

}  // namespace longspan
