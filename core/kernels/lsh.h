#pragma once

#include <cstdint>

#include "core/kernel.h"
#include "core/kernels/block_attention.h"
#include "core/view.h"

namespace longspan::kernels {

/// What a window that reaches beyond the first or the last chunk of a round sees there: nothing;
/// the other end of the same round; or, all rounds lying one after the other in a circle, chunks of
/// the round before or after.
enum class LshWrap : uint8_t { none, round, global };

/// What becomes of a pair that is visible several times: the first time counts; each counts one
/// N-th of N times; each counts in full.
enum class LshDuplicates : uint8_t { first, log_count, off };

/// Which pairs exist and what their logits are. See ops/attention/lsh.h.
struct LshRule {
  int64_t buckets = 2;  // ids of tokens that exist are below; the others have this id
  int64_t chunk = 64;
  int64_t before = 1, after = 0;  // chunks that a query sees besides its own
  LshWrap wrap = LshWrap::none;
  LshDuplicates duplicates = LshDuplicates::first;
  bool same_bucket = true, causal = false;
  bool repeat_chunks = false;  // a chunk that a window reaches twice counts twice
  double scale = 1;            // of q_i . q_j / rho_j
  double self = -1e5;          // in place of the logit of a token with itself
  double epsilon = 1e-6;       // rho_j = sqrt(|q_j|^2 + d epsilon)
};

/// q [B, H, L, d] and v [B, H, L, dv] of one floating dtype, any strides with the last one 1; ids,
/// order and place i32 [B, H, R, L], contiguous, as lsh_hash and lsh_sort make them.
struct LshInputs {
  ConstView q, v;
  ConstView ids, order, place;
  LshRule rule;
  AttentionDropout dropout;
  bool dropout_broadcast = false;  // one mask of queries of a chunk by keys of a window, per head
};

/// ids[b, h, r, i] = argmax of (p, -p), p = q_i rotation[b, h, r], the least index where several
/// are largest; with a second factor, argmax of the first columns + first * argmax of the others.
/// Tokens that do not exist get the id first * second.
///   q         [B, H, L, d], any strides with the last one 1
///   rotation  [1 or B, 1 or H, R, d, w], contiguous, f64 for f64 q, else f32; w = first / 2, plus
///             second / 2 where second > 1
///   lengths   i64 [B] or empty; hidden u8 [1 or B, L] or empty: 1 where there is no token
///   ids       i32 [B, H, R, L], contiguous
inline constinit Kernel<void(ConstView q, ConstView rotation, int64_t first, int64_t second,
                             ConstView lengths, ConstView hidden, View ids)>
    lsh_hash{"lsh_hash"};

/// order[row, :] lists the places of row `row` of ids by id, those of one id ascending;
/// place[row, order[row, i]] = i.
///   ids    i32 [rows, n] in [0, values), contiguous
///   work   i32 [rows, values + 1], contiguous
///   order, place  i32 [rows, n], contiguous
inline constinit Kernel<void(ConstView ids, int64_t values, View work, View order, View place)>
    lsh_sort{"lsh_sort"};

/// out [B, H, L, dv] in the dtype of q, last stride 1; lse [B, H, L], contiguous, f32 (f64 for
/// f64).
inline constinit Kernel<void(const LshInputs& in, View out, View lse)> lsh_attention_forward{
    "lsh_attention_forward"};

/// Gradients of q (as query and as key) and v from those of out and lse; dlse may be empty (zero),
/// dout [B, H, L, dv] has a last stride of 1. dq, dv are shaped as q and v with a last stride of 1.
inline constinit Kernel<void(const LshInputs& in, ConstView out, ConstView lse, ConstView dout,
                             ConstView dlse, View dq, View dv)>
    lsh_attention_backward{"lsh_attention_backward"};

}  // namespace longspan::kernels
