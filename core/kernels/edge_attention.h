#pragma once

#include <cstdint>

#include "core/kernel.h"
#include "core/kernels/block_attention.h"
#include "core/view.h"

namespace longspan::kernels {

/// The edges of a sparse attention, as runs: rows attend to a few runs of consecutive keys each,
/// and every pair has a label. All tensors are i32 and contiguous.
template <class X>
struct EdgeTablesOf {
  /// [blocks, kEdgeBlockFields]: what the CPU's kernels compute at once, all pairs exactly once.
  /// The first field says which of two kinds a block is.
  ///
  /// kEdgeRows: some rows. First row, rows (at most kEdgeBlockRows), first run, runs of each row,
  /// then first key and keys, first group and groups, first label and labels, which are entries of
  /// the next three tables. The rows of a block without entries in `keys` are computed one by one.
  /// Run o of the r-th row is run first_run + r runs + o.
  ///
  /// kEdgeStrip: a few consecutive keys with the long rows that attend to them. First key, keys (at
  /// most kEdgeStripKeys), first entry of strip_rows and entries. A row may stand in many strips,
  /// in ascending order of keys.
  X blocks;
  /// [n, 2]: a key of a block whose rows are computed together, and the rows that attend to it, bit
  /// r for the r-th. Rows that attend to nearly the same keys form such a block. The keys of a
  /// block are distinct and ascend.
  X keys;
  /// [n, 5]: a run that some rows of a block have in common: its first key and its number of keys,
  /// its first label, both as numbers in the block, 1 if key t of it has the t-th label from there
  /// on or 0 if all keys have that label, and these rows as bits.
  X groups;
  X used_labels;  ///< [n]: label lists of blocks; equal lists are stored once
  /// [n, kEdgeStripFields]: a row of a strip; its keys there, as bits; the slot of the workspace
  /// that holds its sums while its strips are computed; whether a piece of the row begins or ends
  /// here (kEdgePieceBegins, kEdgePieceEnds); and the number of the piece, or -1 if the row has
  /// only one. A piece is at most kEdgeStripPiece keys of a row. All keys of a row of strips have
  /// one label, so its term shifts all scores of the row and changes no probability.
  X strip_rows;
  X strip_cuts;  ///< [n, 3]: rows of strips that have several pieces, the first and their number
  /// [runs, 3]: first key, keys, label list. Key t of a run has the label labels[list + t]; with a
  /// list below 0 every key has the label -1 - list. Runs of a row are disjoint; one may be empty.
  X runs;
  X labels;  ///< [n], in [0, number of labels)
  /// [parts + 1]: the blocks at which parts with about the same number of pairs begin.
  X parts;
  X rows;  ///< [rows, 2]: first run and number of runs of each row
  /// For devices that compute rows and keys apart, else undefined. [n, 3]: first row, rows, and the
  /// number of the run that holds a key in each of these rows; the sources of a key are adjacent.
  X sources;
  /// [n, 5], by row and by key: the row (key), the run (source) at which the pairs of this piece
  /// begin and the number of its pairs before that, pairs (at most kEdgePiecePairs), and the number
  /// among all pieces of rows (keys) that have several, or -1 if it is the only one.
  X row_pieces, key_pieces;
  /// [n, 3]: rows (keys) that have several pieces, the first of those and how many there are.
  X row_cuts, key_cuts;

  /// Calls f(tensor) for every tensor of one or several descriptions at once.
  template <class F, class... Tables>
  static void visit_tensors(F&& f, Tables&... tables) {
    f(tables.blocks...);
    f(tables.keys...);
    f(tables.groups...);
    f(tables.used_labels...);
    f(tables.strip_rows...);
    f(tables.strip_cuts...);
    f(tables.runs...);
    f(tables.labels...);
    f(tables.parts...);
    f(tables.rows...);
    f(tables.sources...);
    f(tables.row_pieces...);
    f(tables.key_pieces...);
    f(tables.row_cuts...);
    f(tables.key_cuts...);
  }
};
/// The tables as kernels read them.
using EdgeTables = EdgeTablesOf<ConstView>;

/// Rows of a block, and keys and labels of one whose rows are computed together, at most.
inline constexpr int64_t kEdgeBlockRows = 16, kEdgeBlockKeys = 4096;
inline constexpr int64_t kEdgeBlockFields = 11, kEdgeRows = 0, kEdgeStrip = 1;

/// Keys and rows of a strip, and keys of a piece of a row in strips, at most.
inline constexpr int64_t kEdgeStripKeys = 16, kEdgeStripRows = 64, kEdgeStripPiece = 256;
inline constexpr int64_t kEdgeStripFields = 5, kEdgePieceBegins = 1, kEdgePieceEnds = 2;

/// Pairs of a piece of a row or key, at most.
inline constexpr int64_t kEdgePiecePairs = 2048;

/// The inputs of edge attention.
///   q         [B, H, R, d] f64 or f32, any strides with the last one 1
///   k, v      [B, H, N, d] and [B, H, N, dv], likewise
///   relation  [labels, d], contiguous, or empty: no term of labels
struct EdgeAttentionInputs {
  ConstView q, k, v, relation;
  EdgeTables edges;
  int64_t block_keys = 0, block_labels = 0;   ///< at most in a block that is computed together
  int64_t strip_slots = 0, strip_pieces = 0;  ///< slots of strips, and pieces of rows with several
  int64_t row_slots = 0, key_slots = 0;       ///< pieces of rows (keys) that have several
  double scale = 1;
  AttentionDropout dropout;  ///< element (b, h, row, key)

  /// Calls f(tensor) for every tensor, those of the edges included.
  template <class F, class Inputs>
  static void visit_tensors(F&& f, Inputs& in) {
    f(in.q);
    f(in.k);
    f(in.v);
    f(in.relation);
    EdgeTables::visit_tensors(f, in.edges);
  }
};

/// out_i = sum_j P_ij keep_ij v_j, P_ij = exp(s_ij - lse_i), s_ij = scale q_i . (k_j +
/// r_label(i,j)). A row without keys gets out = 0 and lse = -inf. If
/// all keys of a row have the same label, a backend may leave its term out of all scores and lse.
///   out  [B, H, R, dv], dtype of q, any strides with the last one 1
///   lse  [B, H, R], dtype of q, contiguous
inline constinit Kernel<void(const EdgeAttentionInputs& in, View out, View lse)>
    edge_attention_forward{"edge_attention_forward"};

/// Destinations of the gradients.
///   dq, dk, dv  in the shapes of q, k, v, any strides with the last one 1
///   drelation   [labels, d], contiguous; empty if there is no relation
struct EdgeGradients {
  View dq, dk, dv, drelation;

  /// Calls f(tensor) for every tensor.
  template <class F, class Gradients>
  static void visit_tensors(F&& f, Gradients& to) {
    f(to.dq);
    f(to.dk);
    f(to.dv);
    f(to.drelation);
  }
};

/// The gradients for dout; all are overwritten.
///   out, dout     [B, H, R, dv]; lse [B, H, R]
inline constinit Kernel<void(const EdgeAttentionInputs& in, ConstView out, ConstView lse,
                             ConstView dout, const EdgeGradients& to)>
    edge_attention_backward{"edge_attention_backward"};

}  // namespace longspan::kernels
