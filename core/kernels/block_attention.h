#pragma once

#include <cstdint>

#include "core/device_scalar.h"
#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

/// Maximum rows of a query tile, and keys of a column tile (the last one of a layout is shorter).
inline constexpr int64_t kAttentionTileRows = 96;
inline constexpr int64_t kAttentionColumnKeys = 384;
/// Keys of a step, the unit in which a device's work is counted; split-KV ranges start at multiples
/// of the second constant.
inline constexpr int64_t kAttentionWorkKeys = 64, kAttentionSplitKeys = 192;
/// Fields of a work item and of a split tile or step.
inline constexpr int64_t kWorkFields = 5, kCutFields = 4;
/// The end of an item that is not bounded.
inline constexpr int32_t kAllWork = INT32_MAX;
/// Largest head dimension of queries, keys and values.
inline constexpr int64_t kAttentionMaxWidth = 1024;
/// A distance that imposes no bound.
inline constexpr int64_t kUnlimited = INT64_MAX / 4;

/// Maximum number of key segments of a call, and of window rules of a segment.
inline constexpr int kAttentionSegments = 2, kAttentionRules = 8;
/// Fields of a run and of a run of a column tile.
inline constexpr int64_t kRunFields = 5, kColumnRunFields = 7;

/// Full: every pair is inside the window of the layout's rule. Partial: the window decides. All
/// other masks (lengths, bounds of rows, hidden keys, classes) apply to either kind.
enum class RunKind : uint8_t { full = 0, partial = 1 };

/// The order in which a device processes the tiles of a layout, or its steps of kAttentionWorkKeys
/// positions (numbered through the first segment, then the second), most work first. Long ones are
/// split: a tile by steps of keys, a step of keys by tiles. An item serves all samples or heads if
/// `layout_index` has size 1 along that axis. Every tile and step is listed once, whole or as its
/// splits.
struct AttentionWorkView {
  // i32 [.., kWorkFields]: an entry of `layout_index`, row-major; a tile or step of its layout; the
  // range first .. end of the steps or tiles to process; and its workspace offset, -1 if it is
  // whole
  ConstView items;
  // i32 [.., kCutFields]: an entry of `layout_index`, the tile or step that is split, its workspace
  // offset, its number of splits
  ConstView cuts;
  // Rows, or keys, of workspace for the results of all splits. The splits of one tile or step store
  // their results one after the other from its offset on. If an item serves several heads, each
  // head has its own workspace.
  int64_t workspace = 0;
};

/// A block layout for kernels: contiguous i32 tensors. Rows and keys are positions in the order
/// given by order_q and order_k; without an order the position is the index. Positions of the
/// second segment are its keys' indices.
struct AttentionLayoutView {
  ConstView first_tile;  // [layouts + 1]: tiles of layout n are first_tile[n] .. first_tile[n + 1]
  ConstView tiles;       // [tiles, 2]: first row, rows
  ConstView row_start;   // [tiles + 1]: into runs
  // [runs, kRunFields]: first key, keys, key segment, kind, multiplicity; sorted by segment and
  // key, disjoint. Each key of a run counts `multiplicity` times.
  ConstView runs;
  // [layouts + 1]: column tiles of each layout, those of the first segment before those of the
  // second; no tile contains keys of both.
  ConstView first_column;
  ConstView col_start;  // [column tiles + 1]: into col_runs
  // [.., kColumnRunFields]: first tile, tiles, then as in runs
  ConstView col_runs;
  ConstView layout_index;      // [B or 1, H or 1]: layout of each head
  ConstView members;           // [layouts, 3]: rule, query order, key order (-1: identity)
  ConstView order_q, order_k;  // [orders, rows]: permutations, ascending within a run; or empty
  AttentionWorkView row_work, column_work;  // of tiles, of steps of keys; empty on the host
  // Whether every layout has rule 0 and the only order that exists (known without reading members).
  bool uniform = true;
  bool multiplied = false;  // whether some run has a multiplicity other than 1
};

/// Distances q - k, -right .. left, that a query may attend to in partial runs. kUnlimited means no
/// bound; right = 0 is causal; right = -n allows only keys n or more positions before the query.
struct AttentionWindow {
  int64_t left = kUnlimited, right = kUnlimited;
};

/// A key segment: k [B, H, T, d], v [B, H, T, dv], and the pairs that exist. The position of query
/// i is i + q_start, that of key j is j (indices before any ordering). The pair is visible if the
/// run's window allows it and
///   j < k_valid[b],  q_from[b, i] <= j < q_to[b, i],  k_hidden[b, j] == 0,
///   class_id[b, q_class[b, i], k_class[b, j]] >= 0;
/// an empty tensor drops its condition.
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

/// Terms added to scores and values. id(i, j) = clamp(k - q, -left, right) + left, for positions k
/// and q; in a segment with classes, id(i, j) = class_id[b, q_class_i, k_class_j] < R.
struct AttentionTermsView {
  double scale = 1;
  int64_t left = 0, right = 0;  // ids of distances: 0 .. left + right
  int64_t ids = 0;              // R >= left + right + 1; only classes reach the rows beyond
  ConstView relation_query;     // [B, H, L, d] or empty: then q is used
  ConstView relation_key;       // [1 or H, R, d] or empty: scale * relation_query . a[id]
  ConstView relation_bias;      // [1 or H, R] or empty: scale * b[id]
  ConstView relation_value;     // [1 or H, R, dv] or empty: v + a_v[id]
  // [1 or B, 1 or H, 1 or T] or empty: weights keys of the first segment by mu = clamp((offset +
  // span - (q - k)) / ramp, 0, 1), for positions q and k
  ConstView span;
  double ramp = 1, offset = 0;
};

/// Element (b, h, i, j) is kept, and scaled by 1 / (1 - p), if word j mod 4 of philox(key, {j / 4,
/// i, b H + h, segment}) is at least p 2^32.
struct AttentionDropout {
  double p = 0;
  DeviceScalar<uint64_t> key;
};

/// Inputs of both forward and backward. q [B, H, L, d]; k, v and relation_query have the floating
/// dtype of q, and any strides with the last one 1. Queries from q_valid[b] on do not exist.
struct AttentionInputs {
  ConstView q;
  ConstView q_valid;  // i64 [B]; empty: all rows
  int segments = 1;
  AttentionSegment segment[kAttentionSegments];
  AttentionLayoutView layout;
  AttentionTermsView terms;
  AttentionDropout dropout;
  // Whether the softmax continues after other keys: out and lse then contain the results over those
  // keys and become the results over all keys; gradients are added to the present contents of their
  // tensors.
  bool accumulate = false;
};

/// Destinations of the gradients, shaped as the inputs; an empty view means that the gradient is
/// not required. Gradients of keys and values are required together, for all segments. The gradient
/// of a span is required together with these if the span has one value for each key, else together
/// with that of queries.
struct AttentionGradients {
  View q;
  View k[kAttentionSegments], v[kAttentionSegments];
  View relation_query, relation_key, relation_bias, relation_value;
  View span;
};

/// out [B, H, L, dv] in the dtype of q, lse [B, H, L] contiguous, f32 (f64 for f64).
/// ops/attention/block_attention.h has the equations.
inline constinit Kernel<void(const AttentionInputs& in, View out, View lse)>
    block_attention_forward{"block_attention_forward"};

/// Computes the gradients of the inputs from dout and dlse, the gradients of out and lse (an empty
/// one means zero). If the softmax was accumulated over several calls, out and lse are the results
/// over all of them.
inline constinit Kernel<void(const AttentionInputs& in, ConstView out, ConstView lse,
                             ConstView dout, ConstView dlse, const AttentionGradients& grads)>
    block_attention_backward{"block_attention_backward"};

}  // namespace longspan::kernels
