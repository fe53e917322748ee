#pragma once

#include "core/host_device.h"
#include "core/kernel.h"
#include "core/kernels/attention_masks.h"
#include "core/kernels/block_attention.h"
#include "core/view.h"

namespace longspan::kernels {

/// Which keys the rows of a tile of scores see. Row r of the tile is query first_query + r, at
/// position first_query + r + q_start; column c is key first_key + c. A query sees the keys at
/// distances -right .. left before it that `masks` shows. Of the masks k_valid and k_begin count.
/// Head h of sample b of the tile is head first_head + h of `heads` of sample first_sample + b.
struct EntmaxTile {
  PairMasks<ConstView> masks;
  ConstView q_valid;  ///< i64 [B]: queries from this index on see nothing; empty: all exist
  int64_t first_sample = 0, first_query = 0, first_key = 0, keys = 0, q_start = 0;
  int64_t left = 0, right = 0;
  int64_t first_head = 0, heads = 0;
  AttentionDropout dropout;  // of probabilities, by query and key

  /// Number b H + h of a head of the tile, by which dropout is drawn.
  LONGSPAN_HD int64_t head(int64_t b, int64_t h) const {
    return (first_sample + b) * heads + first_head + h;
  }

  /// Calls f(tensor) for every tensor.
  template <class F>
  static void visit_tensors(F&& f, EntmaxTile& tile) {
    PairMasks<ConstView>::visit_tensors(f, tile.masks);
    f(tile.q_valid);
  }
};

/// The columns of a tile that row `row` of sample `b` sees, with the masks of its samples.
LONGSPAN_HD inline KeyInterval columns_of(const EntmaxTile& tile, const MaskTables& masks,
                                          const int64_t* q_valid, int64_t columns, int64_t b,
                                          int64_t row) {
  const int64_t query = tile.first_query + row, at = query + tile.q_start;
  if (q_valid != nullptr && query >= q_valid[tile.first_sample + b]) return {0, 0};
  const SampleMasks of_sample = masks.of(tile.first_sample + b);
  const int64_t lo = tile.left < at ? at - tile.left : 0,
                hi = tile.right < tile.keys - at ? at + tile.right + 1 : tile.keys;
  KeyInterval seen = of_sample.narrowed(query, {lo, hi});
  seen.lo -= tile.first_key;
  seen.hi -= tile.first_key;
  if (seen.lo < 0) seen.lo = 0;
  if (seen.hi > columns) seen.hi = columns;
  return seen;
}

/// Turns scores into the probabilities of alpha-entmax (core/kernels/entmax.h) in place, 0 for keys
/// that a row does not see, and applies dropout to them.
///   x      [B, H, R, n] of the tile, contiguous, f64 or f32
///   alpha  [H], contiguous, dtype of x
///   tau    [B, H, R], any strides, dtype of x: p = [(alpha - 1) (s - m) - tau]_+^(1 / (alpha - 1))
///          with the scores s and the largest one m, or where alpha counts as 1 p = exp(s - m -
///          tau); inf for a row that sees nothing
inline constinit Kernel<void(EntmaxTile tile, ConstView alpha, View x, View tau)>
    entmax_tile_forward{"entmax_tile_forward"};
/// Turns scores into probabilities after dropout again, and dp, the gradient of these, into that of
/// scores. dalpha, if it is given, [B, H, R] in any strides.
inline constinit Kernel<void(EntmaxTile tile, ConstView alpha, ConstView tau, View x, View dp,
                             View dalpha)>
    entmax_tile_backward{"entmax_tile_backward"};

}  // namespace longspan::kernels
