#pragma once

#include <cstdint>

#include "core/device_scalar.h"
#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

/// Rows of a query tile, at most; and keys of a column tile (the last one of a layout is shorter).
inline constexpr int64_t kAttentionTileRows = 96;
inline constexpr int64_t kAttentionColumnKeys = 384;
/// Keys of a step, by which a device's work is counted; stretches of keys begin at multiples of the
/// second number.
inline constexpr int64_t kAttentionWorkKeys = 64, kAttentionStretchKeys = 192;
/// Numbers of an item of a list of work, and of what was cut.
inline constexpr int64_t kWorkFields = 5, kCutFields = 4;
/// The end of an item that goes through all there is.
inline constexpr int32_t kAllWork = INT32_MAX;
/// Largest width of queries, keys and values.
inline constexpr int64_t kAttentionMaxWidth = 1024;
/// A distance that bounds nothing.
inline constexpr int64_t kUnlimited = INT64_MAX / 4;

/// Key segments of a call, at most, and window rules of a segment.
inline constexpr int kAttentionSegments = 2, kAttentionRules = 8;
/// Numbers of a run and of a run of a column tile.
inline constexpr int64_t kRunFields = 5, kColumnRunFields = 7;

/// Full: every pair lies within the window of the layout's rule. Partial: the window decides. All
/// else that hides pairs (lengths, bounds of rows, hidden keys, classes) applies to either kind.
enum class RunKind : uint8_t { full = 0, partial = 1 };

/// The order in which a device takes the tiles of a layout, or its steps of kAttentionWorkKeys
/// places (those of the second segment after all of the first), most work first. Long ones are cut:
/// a tile by steps of keys, a step of keys by tiles. An item stands for all samples or heads where
/// `layout_index` has 1 of them. Every tile and step is there once, whole or in stretches.
struct AttentionWorkView {
  // i32 [.., kWorkFields]: an entry of `layout_index`, row-major; a tile or step of its layout; the
  // steps or tiles first .. end that it meets; and its room, -1 where it is whole
  ConstView items;
  // i32 [.., kCutFields]: an entry of `layout_index`, what was cut, its room, its stretches
  ConstView cuts;
  // Rows, or keys, of the results of all stretches. What was cut has those of its stretches one
  // after the other from its room on. Where an item stands for several heads, each has a room.
  int64_t room = 0;
};

/// A block layout as kernels read it: contiguous i32 tensors. Rows and keys are places in the order
/// given by order_q and order_k; without an order the place is the index. Places of the second
/// segment are its keys' indices.
struct AttentionLayoutView {
  ConstView first_tile;  // [layouts + 1]: tiles of layout n are first_tile[n] .. first_tile[n + 1]
  ConstView tiles;       // [tiles, 2]: first row, rows
  ConstView row_start;   // [tiles + 1]: into runs
  // [runs, kRunFields]: first key, keys, key segment, kind, multiplicity; sorted by segment and
  // key, disjoint. The keys of a run count `multiplicity` times.
  ConstView runs;
  // [layouts + 1]: column tiles of each layout, those of the first segment before those of the
  // second; no tile holds keys of both.
  ConstView first_column;
  ConstView col_start;  // [column tiles + 1]: into col_runs
  // [.., kColumnRunFields]: first tile, tiles, then as in runs
  ConstView col_runs;
  ConstView layout_index;      // [B or 1, H or 1]: layout of each head
  ConstView members;           // [layouts, 3]: rule, order of queries, of keys (-1: the identity)
  ConstView order_q, order_k;  // [orders, rows]: permutations, ascending within a run; or empty
  AttentionWorkView row_work, column_work;  // of tiles, of steps of keys; empty on the host
  // Whether each layout has rule 0 and the only order there is (known without reading members).
  bool uniform = true;
  bool multiplied = false;  // whether some run has a multiplicity other than 1
};

/// Distances q - k, -right .. left, that a query sees in partial runs: kUnlimited where there is no
/// bound; right = 0 is causal, right = -n sees only what lies n or more before.
struct AttentionWindow {
  int64_t left = kUnlimited, right = kUnlimited;
};

/// A key segment: k [B, H, T, d], v [B, H, T, dv], and which pairs exist. Position of query i is
/// i + q_start, of key j it is j (indices before any ordering). The pair is visible where the run's
/// window holds and
///   j < k_valid[b],  q_from[b, i] <= j < q_to[b, i],  k_hidden[b, j] == 0,
///   class_id[b, q_class[b, i], k_class[b, j]] >= 0,
/// each where it is given.
struct AttentionSegment {
  ConstView k, v;
  int64_t q_start = 0;
  AttentionWindow windows[kAttentionRules];  // by the layout's rule
  ConstView k_valid;                         // i64 [B]
  ConstView q_from, q_to;                    // i32 [1 or B, L], both or neither
  ConstView k_hidden;                        // u8 [1 or B, T]
  ConstView q_class, k_class;                // i32 [1 or B, L], [1 or B, T]
  ConstView class_id;                        // i32 [1 or B, Cq, Ck]; all three or none
};

/// Terms added to scores and values. id(i, j) = clamp(k - q, -left, right) + left, of positions; in
/// a segment with classes it is class_id[b, q_class_i, k_class_j] < R.
struct AttentionTermsView {
  double scale = 1;
  int64_t left = 0, right = 0;  // ids of distances: 0 .. left + right
  int64_t ids = 0;              // R >= left + right + 1; rows beyond are reached by classes only
  ConstView relation_query;     // [B, H, L, d] or empty: q in its place
  ConstView relation_key;       // [1 or H, R, d] or empty: scale * relation_query . a[id]
  ConstView relation_bias;      // [1 or H, R] or empty: scale * b[id]
  ConstView relation_value;     // [1 or H, R, dv] or empty: v + a_v[id]
  // [1 or B, 1 or H, 1 or T] or empty: keys of the first segment count mu times,
  // mu = clamp((offset + span - (q - k)) / ramp, 0, 1), of positions
  ConstView span;
  double ramp = 1, offset = 0;
};

/// Element (b, h, i, j) is kept if word j mod 4 of philox(key, {j / 4, i, b H + h, segment}) is at
/// least p 2^32, and then scaled by 1 / (1 - p).
struct AttentionDropout {
  double p = 0;
  DeviceScalar<uint64_t> key;
};

/// What forward and backward both read. q [B, H, L, d]; k, v and relation_query have one floating
/// dtype with q, and any strides with the last one 1. Queries from q_valid[b] on do not exist.
struct AttentionInputs {
  ConstView q;
  ConstView q_valid;  // i64 [B]; empty: all rows
  int segments = 1;
  AttentionSegment segment[kAttentionSegments];
  AttentionLayoutView layout;
  AttentionTermsView terms;
  AttentionDropout dropout;
  // Whether the softmax goes on from other keys: out and lse hold what these gave, and become the
  // result over all; gradients are added to what their places hold.
  bool accumulate = false;
};

/// Where gradients go: shaped as the inputs; empty: not wanted. Those of keys and values are wanted
/// together, of all segments; that of a span with them where it has one for each key, else with
/// that of queries.
struct AttentionGradients {
  View q;
  View k[kAttentionSegments], v[kAttentionSegments];
  View relation_query, relation_key, relation_bias, relation_value;
  View span;
};

/// out [B, H, L, dv] in the dtype of q, lse [B, H, L] contiguous, f32 (f64 for f64): see
/// ops/attention/block_attention.h for the equations.
inline constinit Kernel<void(const AttentionInputs& in, View out, View lse)>
    block_attention_forward{"block_attention_forward"};

/// Gradients of out and lse, whose gradients are dout and dlse (either may be empty: zero). Where
/// the softmax has several parts, out and lse are those over all of them.
inline constinit Kernel<void(const AttentionInputs& in, ConstView out, ConstView lse,
                             ConstView dout, ConstView dlse, const AttentionGradients& grads)>
    block_attention_backward{"block_attention_backward"};

}  // namespace longspan::kernels
