#pragma once

#include <cstdint>

#include "core/kernel.h"
#include "core/kernels/block_attention.h"
#include "core/view.h"

namespace longspan::kernels {

/// How a window continues before the first and after the last chunk of a round. none: it ends
/// there; round: at the other end of the same round; global: in the round before or after, where
/// the last round is followed by the first.
enum class LshWrap : uint8_t { none, round, global };

/// How a pair that is visible several times counts. first: only the first occurrence counts;
/// log_count: each of N occurrences counts 1/N; off: each counts fully.
enum class LshDuplicates : uint8_t { first, log_count, off };

/// Defines which pairs exist and their logits. See ops/attention/lsh.h.
struct LshRule {
  int64_t buckets = 2;  // ids of valid tokens are below this; all others have this id
  int64_t chunk = 64;
  int64_t before = 1, after = 0;  // chunks that a query sees besides its own
  LshWrap wrap = LshWrap::none;
  LshDuplicates duplicates = LshDuplicates::first;
  bool same_bucket = true, causal = false;
  bool repeat_chunks = false;  // a chunk that a window reaches twice counts twice
  double scale = 1;            // of q_i . q_j / rho_j
  double self = -1e5;          // replaces the logit of a token with itself
  double epsilon = 1e-6;       // rho_j = sqrt(|q_j|^2 + d epsilon)
};

/// q [B, H, L, d] and v [B, H, L, dv] of the same floating dtype, any strides with the last one 1;
/// ids, order and place i32 [B, H, R, L], contiguous, as computed by lsh_hash and lsh_sort.
struct LshInputs {
  ConstView q, v;
  ConstView ids, order, place;
  LshRule rule;
  AttentionDropout dropout;
  bool dropout_broadcast = false;  // one mask per head: queries of a chunk by keys of a window

  /// Calls f(view) for every tensor.
  template <class F>
  static void visit_tensors(F&& f, LshInputs& in) {
    f(in.q);
    f(in.v);
    f(in.ids);
    f(in.order);
    f(in.place);
  }
};

/// ids[b, h, r, i] = argmax of (p, -p), p = q_i rotation[b, h, r]; ties give the smallest index.
/// With a second factor: argmax of the first columns + first * argmax of the others. Tokens that do
/// not exist get the id first * second.
///   q         [B, H, L, d], any strides with the last one 1
///   rotation  [1 or B, 1 or H, R, d, w], contiguous, f64 for f64 q, else f32; w = first / 2, plus
///             second / 2 if second > 1
///   lengths   i64 [B] or empty; hidden u8 [1 or B, L] or empty: 1 if there is no token
///   ids       i32 [B, H, R, L], contiguous
inline constinit Kernel<void(ConstView q, ConstView rotation, int64_t first, int64_t second,
                             ConstView lengths, ConstView hidden, View ids)>
    lsh_hash{"lsh_hash"};

/// order[row, :] lists the positions of row `row` of ids sorted by id, positions of equal ids
/// ascending; place[row, order[row, i]] = i.
///   ids    i32 [rows, n] in [0, values), contiguous
///   work   i32 [rows, values + 1], contiguous
///   order, place  i32 [rows, n], contiguous
inline constinit Kernel<void(ConstView ids, int64_t values, View work, View order, View place)>
    lsh_sort{"lsh_sort"};

/// out [B, H, L, dv] in the dtype of q, last stride 1; lse [B, H, L], contiguous, f32 (f64 for
/// f64).
inline constinit Kernel<void(const LshInputs& in, View out, View lse)> lsh_attention_forward{
    "lsh_attention_forward"};

/// Computes gradients of q (as query and as key) and v from those of out and lse; dlse may be empty
/// (zero), dout [B, H, L, dv] has last stride 1. dq and dv are shaped as q and v, with last stride
/// 1.
inline constinit Kernel<void(const LshInputs& in, ConstView out, ConstView lse, ConstView dout,
                             ConstView dlse, View dq, View dv)>
    lsh_attention_backward{"lsh_attention_backward"};

}  // namespace longspan::kernels
