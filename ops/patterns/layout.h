#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/kernels/block_attention.h"
#include "core/tensor.h"
#include "ops/patterns/layout_work.h"

namespace longspan {

/// A distance without a bound, and the guarantee that a run gives.
using kernels::kUnlimited;
using kernels::RunKind;

/// Keys k0 .. k0 + kn of one segment, each counted `multiplicity` times. A full run holds only
/// pairs inside the window; in a partial run the rule decides.
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

/// Makes a run of keys k0 .. k1 of the first segment, and a tile of rows q0 .. q1.
KeyRun run_of(int64_t k0, int64_t k1, RunKind kind, int64_t multiplicity = 1);
TileRuns tile_of(int64_t q0, int64_t q1, std::vector<KeyRun> runs = {});

/// Rows that the CPU kernels compute at once.
inline constexpr int64_t kRowGroup = 12;
/// Returns the height of the tiles that cover `rows` rows: as few tiles as possible, of nearly
/// equal height. The height is a multiple of `unit`; only the last tile may be shorter.
int64_t tile_height(int64_t rows, int64_t unit = 1);

/// Says which blocks of the score matrix exist. Immutable and shared. Rows and keys are numbered by
/// slot: order_q and order_k map a slot to its query or key. The work lists are undefined on the
/// host.
struct BlockLayout : kernels::AttentionLayout<Tensor> {
  int64_t queries = 0, keys = 0, side_keys = 0;  ///< side_keys: keys of the second segment
  int rules = 1;                                 ///< how many rules the members choose from
  Tensor key;  ///< i64: the LayoutKey that it was made from (layout_cache.h); undefined: made from
               ///< tiles

  /// The layout that this is a copy of, and the copy on another device while that is in use.
  std::shared_ptr<const BlockLayout> original;
  mutable std::weak_ptr<const BlockLayout> copy;

  int64_t layouts() const { return first_tile.dim(0) - 1; }
  kernels::AttentionLayoutView view() const;
};

/// The fields of one member of a layout: the index of its rule in the pattern, and of its orders
/// (-1: the identity).
struct LayoutMember {
  int32_t rule = 0, order_q = -1, order_k = -1;
};

/// Options of make_layout.
///   layout_index      i32 [B or 1, H or 1]: member of each head; undefined: member 0 for all
///   order_q, order_k  i32 [queries] or [orders, queries], and [keys] or [orders, keys] of the
///                     first segment: permutations that ascend within every run and tile of the
///                     members that use them
///   members           one entry per member; empty: all have rule 0 and the first orders given
///   side_keys         keys of a second segment, whose runs follow those of the first
struct LayoutOptions {
  Tensor layout_index = {};
  Tensor order_q = {}, order_k = {};
  std::vector<LayoutMember> members = {};
  int64_t side_keys = 0;
};

/// Builds a layout and its transpose from the tiles of each of its members. It holds copies of the
/// tensors given.
///   layouts  for each member, tiles that partition [0, queries) in order, at most
///            kAttentionTileRows rows each
/// Throws ShapeError if tiles or runs overlap, leave the matrix or are not in order, and ValueError
/// if an order descends within a tile or run of a member that uses it.
std::shared_ptr<const BlockLayout> make_layout(int64_t queries, int64_t keys,
                                               const std::vector<std::vector<TileRuns>>& layouts,
                                               const LayoutOptions& options = {});
/// Returns the same layout restricted to the first queries and the first keys of both segments;
/// members and `layout_index` stay. Throws NotImplemented for a layout with orders (slots must be
/// indices) and ShapeError if a length exceeds the layout's.
std::shared_ptr<const BlockLayout> slice_layout(const BlockLayout& layout, int64_t queries,
                                                int64_t keys, int64_t side_keys = 0);
/// Returns the tiles of one member.
std::vector<TileRuns> tiles_of(const BlockLayout& layout, int64_t member);
/// Returns the fields of every member.
std::vector<LayoutMember> members_of(const BlockLayout& layout);

}  // namespace longspan
