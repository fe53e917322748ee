#pragma once

#include <cstdint>

#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

/// Rows of a query tile, at most; and keys of a column tile (the last one of a layout is shorter).
inline constexpr int64_t kAttentionTileRows = 96;
inline constexpr int64_t kAttentionColumnKeys = 384;
/// Largest width of queries, keys and values.
inline constexpr int64_t kAttentionMaxWidth = 1024;
/// A distance that bounds nothing.
inline constexpr int64_t kUnlimited = INT64_MAX / 4;

/// What a run promises: every pair is visible, or the rule decides.
enum class RunKind : uint8_t { full = 0, partial = 1 };

/// A block layout as kernels read it: contiguous i32 tensors. Rows and keys are places in the order
/// given by order_q and order_k; without an order the place is the index.
struct AttentionLayoutView {
  ConstView first_tile;  // [layouts + 1]: tiles of layout n are first_tile[n] .. first_tile[n + 1]
  ConstView tiles;       // [tiles, 2]: first row, rows
  ConstView row_start;   // [tiles + 1]: into runs
  ConstView runs;        // [runs, 4]: first key, keys, key segment, kind; sorted, disjoint
  ConstView first_column;      // [layouts + 1]: column tiles of each layout
  ConstView col_start;         // [column tiles + 1]: into col_runs
  ConstView col_runs;          // [.., 6]: first tile, tiles, first key, keys, key segment, kind
  ConstView which;             // [B or 1, H or 1]: layout of each head
  ConstView order_q, order_k;  // [rows]: gather lists, ascending within a run; empty: the identity
};

/// The predicate of partial runs. Position of query i is i + q_start, of key j it is j (indices
/// before any ordering): visible if -right <= q - k <= left, query i < q_valid[b], key j <
/// k_valid[b].
struct AttentionRuleView {
  int64_t q_start = 0;
  int64_t left = kUnlimited,
          right = kUnlimited;  // kUnlimited where there is no bound; right = 0 is causal
  ConstView q_valid, k_valid;  // [B] i64; empty: all rows
};

/// Terms added to scores and values. id(i, j) = clamp(k - q, -left, right) + left, of positions.
struct AttentionTermsView {
  double scale = 1;
  int64_t left = 0, right = 0;  // ids 0 .. left + right
  ConstView relation_key;       // [1 or H, R, d] or empty: scale * q . a[id]
  ConstView relation_bias;      // [1 or H, R] or empty: scale * b[id]
  ConstView relation_value;     // [1 or H, R, dv] or empty: v + a_v[id]
};

/// Element (b, h, i, j) is kept if word j mod 4 of philox(key, {j / 4, i, b H + h, segment}) is at
/// least p 2^32, and then scaled by 1 / (1 - p).
struct AttentionDropout {
  double p = 0;
  uint64_t key = 0;
};

/// What forward and backward both read. q [B, H, L, d], k [B, H, T, d], v [B, H, T, dv]; one
/// floating dtype, any strides with the last one 1.
struct AttentionInputs {
  ConstView q, k, v;
  AttentionLayoutView layout;
  AttentionRuleView rule;
  AttentionTermsView terms;
  AttentionDropout dropout;
};

/// Where gradients go: shaped as the inputs; empty: not wanted. dq, dk and dv are wanted together.
struct AttentionGradients {
  View q, k, v;
  View relation_key, relation_bias, relation_value;
};

/// out [B, H, L, dv] in the dtype of q, lse [B, H, L] contiguous, f32 (f64 for f64): see
/// ops/block_attention.h for the equations.
inline constinit Kernel<void(const AttentionInputs& in, View out, View lse)>
    block_attention_forward{"block_attention_forward"};

/// Gradients of out and lse, whose gradients are dout and dlse (either may be empty: zero).
inline constinit Kernel<void(const AttentionInputs& in, ConstView out, ConstView lse,
                             ConstView dout, ConstView dlse, const AttentionGradients& grads)>
    block_attention_backward{"block_attention_backward"};

}  // namespace longspan::kernels
