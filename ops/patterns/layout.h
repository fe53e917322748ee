#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/kernels/block_attention.h"
#include "core/tensor.h"

namespace longspan {

/// A distance that bounds nothing, and what a run promises.
using kernels::kUnlimited;
using kernels::RunKind;

/// Keys k0 .. k0 + kn of one segment, each counted `multiplicity` times. A full run holds pairs
/// within the window only; in a partial one the rule decides.
struct KeyRun {
  int32_t k0, kn;
  uint8_t segment;
  RunKind kind;
  uint8_t multiplicity = 1;
  friend bool operator==(const KeyRun&, const KeyRun&) = default;
};

/// A query tile, rows q0 .. q0 + qn, and its runs, sorted and disjoint.
struct TileRuns {
  int32_t q0, qn;
  std::vector<KeyRun> runs;
};

/// Keys k0 .. k1 of the first segment as a run, and rows q0 .. q1 as a tile.
KeyRun run_of(int64_t k0, int64_t k1, RunKind kind, int64_t multiplicity = 1);
TileRuns tile_of(int64_t q0, int64_t q1, std::vector<KeyRun> runs = {});

/// Rows that the kernels of the CPU compute at once.
inline constexpr int64_t kRowGroup = 12;
/// The height of tiles that hold `rows` rows: as few tiles as can be, of nearly equal height, a
/// multiple of `unit` where it is not the last one's.
int64_t tile_height(int64_t rows, int64_t unit = 1);

/// The list of a device's work (layout_work.h), see AttentionWorkView; undefined on the host.
struct BlockWork {
  Tensor items, cuts;
  int64_t room = 0;

  kernels::AttentionWorkView view() const { return {items.view(), cuts.view(), room}; }
};

/// Which blocks of the score matrix exist: run-length rows and their transpose. Immutable and
/// shared. Rows and keys are places: order_q and order_k say which query and key lies there.
struct BlockLayout {
  int64_t queries, keys, side_keys;  // side_keys: of the second segment
  Tensor first_tile;                 // i32 [layouts + 1]
  Tensor tiles;                      // i32 [tiles, 2]: q0, qn
  Tensor row_start, runs;  // i32 [tiles + 1], [.., 5]: k0, kn, segment, kind, multiplicity
  // i32 [layouts + 1]: column tiles of kAttentionColumnKeys keys, of one segment after the other
  Tensor first_column;
  Tensor col_start, col_runs;  // i32 [columns + 1], [.., 7]: first tile, tiles, then as in runs
  Tensor layout_index;         // i32 [B or 1, H or 1]: many heads share one layout
  Tensor members;              // i32 [layouts, 3]: rule, order of queries, of keys
  Tensor order_q, order_k;     // i32 [orders, rows], permutations; undefined: none
  BlockWork row_work, column_work;
  int rules = 1;            // how many rules the members choose from
  bool uniform = true;      // every member has rule 0 and the only order
  bool multiplied = false;  // some run has a multiplicity other than 1
  Tensor key;               // i64: what it was made from (layout_cache.h); undefined: tiles

  /// What this is a copy of, and the copy on another device, while that is in use.
  std::shared_ptr<const BlockLayout> original;
  mutable std::weak_ptr<const BlockLayout> copy;

  int64_t layouts() const { return first_tile.dim(0) - 1; }
  /// The tensors that lie on its device; orders and work may be undefined.
  std::array<Tensor*, 15> tensors() {
    return {&first_tile,      &tiles,
            &row_start,       &runs,
            &first_column,    &col_start,
            &col_runs,        &layout_index,
            &members,         &order_q,
            &order_k,         &row_work.items,
            &row_work.cuts,   &column_work.items,
            &column_work.cuts};
  }
  kernels::AttentionLayoutView view() const;
};

/// The layout where its tensors are on `device`, else a copy there, which all that ask share.
std::shared_ptr<const BlockLayout> on_device(const std::shared_ptr<const BlockLayout>& layout,
                                             Device device);

/// What one member of a layout has of its own: which of the pattern's rules, and which orders (-1:
/// the identity).
struct LayoutMember {
  int32_t rule = 0, order_q = -1, order_k = -1;
};

/// Options of make_layout.
///   which      i32 [B or 1, H or 1]: member of each head; undefined: member 0 for all
///   order_q, order_k  i32 [queries] or [orders, queries], keys of the first segment likewise:
///              permutations that ascend within every run and tile of the members that use them
///   members    one entry for each member; empty: all have rule 0 and the first orders given
///   side_keys  keys of a second segment, whose runs follow those of the first
struct LayoutOptions {
  Tensor layout_index = {};
  Tensor order_q = {}, order_k = {};
  std::vector<LayoutMember> members = {};
  int64_t side_keys = 0;
};

/// Builds a layout from the tiles of each of its members, and the transpose. It holds copies of the
/// tensors given.
///   layouts  for each member, tiles that partition [0, queries) in order, at most
///            kAttentionTileRows rows each
/// Throws ShapeError where tiles or runs overlap, leave the matrix or are not in order, ValueError
/// where an order descends within a tile or run of a member that uses it.
std::shared_ptr<const BlockLayout> make_layout(int64_t queries, int64_t keys,
                                               const std::vector<std::vector<TileRuns>>& layouts,
                                               const LayoutOptions& options = {});
/// The same layout for the first queries and the first keys alone, of both segments; members and
/// `which` stay. Places must be indices: a layout with orders throws NotImplemented, lengths beyond
/// the layout's throw ShapeError.
std::shared_ptr<const BlockLayout> slice_layout(const BlockLayout& layout, int64_t queries,
                                                int64_t keys, int64_t side_keys = 0);
/// The same layout where every row sees, after what it saw, all of `side_keys` keys of a second
/// segment; the same where these are 0. From the cache. Throws ShapeError where it has side keys.
std::shared_ptr<const BlockLayout> with_side_keys(const std::shared_ptr<const BlockLayout>& layout,
                                                  int64_t side_keys);
/// The tiles of one member, read back.
std::vector<TileRuns> tiles_of(const BlockLayout& layout, int64_t member);

}  // namespace longspan
