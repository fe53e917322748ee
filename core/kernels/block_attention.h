#pragma once

#include <cstdint>

#include "core/device_scalar.h"
#include "core/kernel.h"
#include "core/kernels/attention_masks.h"
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
template <class X>
struct AttentionWork {
  // i32 [.., kWorkFields]: an entry of `layout_index`, row-major; a tile or step of its layout; the
  // range first .. end of the steps or tiles to process; and its workspace offset, -1 if it is
  // whole
  X items;
  // i32 [.., kCutFields]: an entry of `layout_index`, the tile or step that is split, its workspace
  // offset, its number of splits
  X cuts;
  // Rows, or keys, of workspace for the results of all splits. The splits of one tile or step store
  // their results one after the other from its offset on. If an item serves several heads, each
  // head has its own workspace.
  int64_t workspace = 0;
};

/// Says which blocks of the score matrix exist, as run-length rows and their transpose: contiguous
/// i32 tensors. X is Tensor for ops (BlockLayout), X for kernels. Rows and keys are positions in
/// the order given by order_q and order_k; without an order the position is the index. Positions of
/// the second segment are its keys' indices.
template <class X>
struct AttentionLayout {
  X first_tile;  // [layouts + 1]: tiles of layout n are first_tile[n] .. first_tile[n + 1]
  X tiles;       // [tiles, 2]: first row, rows
  X row_start;   // [tiles + 1]: into runs
  // [runs, kRunFields]: first key, keys, key segment, kind, multiplicity; sorted by segment and
  // key, disjoint. Each key of a run counts `multiplicity` times.
  X runs;
  // [layouts + 1]: first column tile of each layout. Tiles of the first segment precede tiles of
  // the second; no tile has keys of both segments.
  X first_column;
  X col_start;  // [column tiles + 1]: into col_runs
  // [.., kColumnRunFields]: first tile, tiles, then as in runs
  X col_runs;
  X layout_index;      // [B or 1, H or 1]: layout of each head
  X members;           // [layouts, 3]: rule, query order, key order (-1: identity)
  X order_q, order_k;  // [orders, rows]: permutations, ascending within a run; or empty
  AttentionWork<X> row_work, column_work;  // of tiles, of steps of keys; empty on the host
  // Whether every layout has rule 0 and the only order that exists (known without reading members).
  bool uniform = true;
  bool multiplied = false;  // whether some run has a multiplicity other than 1

  /// Calls f(tensor) for every tensor, or f(tensor, tensor of other, ...) for several layouts.
  template <class F, class... L>
  static void visit_tensors(F&& f, L&... layouts) {
    f(layouts.first_tile...);
    f(layouts.tiles...);
    f(layouts.row_start...);
    f(layouts.runs...);
    f(layouts.first_column...);
    f(layouts.col_start...);
    f(layouts.col_runs...);
    f(layouts.layout_index...);
    f(layouts.members...);
    f(layouts.order_q...);
    f(layouts.order_k...);
    f(layouts.row_work.items...);
    f(layouts.row_work.cuts...);
    f(layouts.column_work.items...);
    f(layouts.column_work.cuts...);
  }
};
/// A block layout for kernels.
using AttentionLayoutView = AttentionLayout<ConstView>;
/// Distances q - k, -right .. left, that a query may attend to in partial runs. kUnlimited means no
/// bound; right = 0 is causal; right = -n allows only keys n or more positions before the query.
struct AttentionWindow {
  int64_t left = kUnlimited, right = kUnlimited;
};

/// The differentiable inputs of a call, and in the same shape their gradients: X is Tensor in ops,
/// ConstView for inputs of kernels, View for gradients. All but q, k[0] and v[0] may be undefined.
/// Positions: query i has position i + q_start of the key's segment, key j position j. Ids of
/// pairs: id(i, j) = clamp(k - q, -left, right) + left for positions k and q; in a segment with
/// classes the label of the pair, which is less than R.
template <class X>
struct AttentionOperands {
  X q;                           // [B, H, L, d]
  X k[kAttentionSegments] = {};  // [B, H, T, d]
  X v[kAttentionSegments] = {};  // [B, H, T, dv]
  X relation_query;              // [B, H, L, d]; undefined: q is used
  X relation_key;                // [1 or H, R, d]: + scale * relation_query . a[id]
  X relation_bias;               // [1 or H, R]: + scale * b[id]
  X relation_value;              // [1 or H, R, dv]: v + a_v[id]
  // Weights of the keys of the first segment, for positions q and k, if either span is defined:
  // mu = clamp((offset + span + query_span - (q - k)) / ramp, 0, 1)
  X span;        // [1 or B, 1 or H, 1 or T]
  X query_span;  // [1 or B, 1 or H, L]

  static constexpr int count = 11;

  /// Calls f(tensor) for every tensor, or f(tensor, tensor of other, ...) for several operands.
  template <class F, class... O>
  static void visit_tensors(F&& f, O&... x) {
    f(x.q...);
    for (int s = 0; s < kAttentionSegments; ++s) {
      f(x.k[s]...);
      f(x.v[s]...);
    }
    f(x.relation_query...);
    f(x.relation_key...);
    f(x.relation_bias...);
    f(x.relation_value...);
    f(x.span...);
    f(x.query_span...);
  }
};

/// Element (b, h, i, j) is kept, and scaled by 1 / (1 - p), if word j mod 4 of philox(key, {j / 4,
/// i, first_head + b H + h, segment}) is at least p 2^32.
struct AttentionDropout {
  double p = 0;
  DeviceScalar<uint64_t> key;
  int64_t first_head = 0;  // of one sample, where only some heads are here
};

/// The numbers of a call.
struct AttentionNumbers {
  int segments = 1;
  int64_t q_start[kAttentionSegments] = {};
  AttentionWindow windows[kAttentionSegments][kAttentionRules];  // by the layout's rule
  double scale = 1;
  int64_t left = 0, right = 0;  // ids of distances: 0 .. left + right
  int64_t ids = 0;              // R >= left + right + 1; only classes reach the rows beyond
  double ramp = 1, offset = 0;  // of spans
  AttentionDropout dropout;
};

/// One call of block attention: what is attended to and how. Pair (i, j) of a segment is visible if
/// the layout has it, the run's window allows it and the masks do. X is Tensor and Layout a shared
/// pointer in ops; kernels get an AttentionProblem.
template <class X, class Layout>
struct AttentionProblemOf {
  AttentionOperands<X> inputs;
  X q_valid;  // i64 [B]: queries from this index on do not exist; undefined: all exist
  PairMasks<X> masks[kAttentionSegments];
  Layout layout;
  AttentionNumbers numbers;
  // Whether the softmax continues after other keys: out and lse then contain the results over those
  // keys and become the results over all keys; gradients are added to the present contents of their
  // tensors.
  bool accumulate = false;

  /// Calls f(tensor) for the tensors of the masks, or f(tensor, tensor of other, ...).
  template <class F, class... P>
  static void visit_masks(F&& f, P&... problems) {
    f(problems.q_valid...);
    for (int s = 0; s < kAttentionSegments; ++s) {
      PairMasks<X>::visit_tensors(f, problems.masks[s]...);
    }
  }
  /// Calls f(tensor) for every tensor, also the tensors of the layout.
  template <class F, class P>
  static void visit_tensors(F&& f, P& problem) {
    AttentionOperands<X>::visit_tensors(f, problem.inputs);
    visit_masks(f, problem);
    Layout::visit_tensors(f, problem.layout);
  }
};

/// A call for kernels. All tensors of `inputs` have the floating dtype of q, except spans, which
/// are f32 (f64 for f64); q, k, v and relation_query have any strides with the last one 1.
using AttentionProblem = AttentionProblemOf<ConstView, AttentionLayoutView>;

/// Destinations of the gradients, shaped as the inputs; an undefined view means that the gradient
/// is not required. Gradients of keys and values are required together, for all segments. The
/// gradient of `span` is required together with these if it has one value for each key, else
/// together with that of queries, and so is the gradient of query_span.
using AttentionGradients = AttentionOperands<View>;

/// out [B, H, L, dv] in the dtype of q, lse [B, H, L] contiguous, f32 (f64 for f64).
/// ops/attention/block_attention.h has the equations.
inline constinit Kernel<void(const AttentionProblem& in, View out, View lse)>
    block_attention_forward{"block_attention_forward"};

/// Computes the gradients of the inputs from dout and dlse, the gradients of out and lse (an empty
/// one means zero). If the softmax was accumulated over several calls, out and lse are the results
/// over all of them.
inline constinit Kernel<void(const AttentionProblem& in, ConstView out, ConstView lse,
                             ConstView dout, ConstView dlse, const AttentionGradients& grads)>
    block_attention_backward{"block_attention_backward"};

}  // namespace longspan::kernels
