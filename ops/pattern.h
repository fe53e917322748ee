#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "ops/kernels/block_attention.h"

namespace longspan {

/// A distance that bounds nothing, and what a run promises.
using kernels::kUnlimited;
using kernels::RunKind;

/// Keys k0 .. k0 + kn of one segment. A full run holds visible pairs only; in a partial one the
/// rule decides.
struct Run {
  int32_t k0, kn;
  uint8_t segment;
  RunKind kind;
  friend bool operator==(const Run&, const Run&) = default;
};

/// A query tile, rows q0 .. q0 + qn, and its runs, sorted and disjoint.
struct TileRuns {
  int32_t q0, qn;
  std::vector<Run> runs;
};

/// Which blocks of the score matrix exist: run-length rows and their transpose. Immutable and
/// shared. Rows and keys are places: order_q and order_k say which query and key lies there.
struct BlockLayout {
  int64_t queries, keys;
  Tensor first_tile;       // i32 [layouts + 1]
  Tensor tiles;            // i32 [tiles, 2]: q0, qn
  Tensor row_start, runs;  // i32 [tiles + 1], [.., 4]: k0, kn, segment, kind
  Tensor first_column;     // i32 [layouts + 1]: column tiles of kAttentionColumnKeys keys
  Tensor col_start,
      col_runs;             // i32 [columns + 1], [.., 6]: first tile, tiles, k0, kn, segment, kind
  Tensor which;             // i32 [B or 1, H or 1]: many heads share one layout
  Tensor order_q, order_k;  // i32 [rows], permutations; undefined: the identity

  /// What this is a copy of, and the copy on another device, while that is in use.
  std::shared_ptr<const BlockLayout> original;
  mutable std::weak_ptr<const BlockLayout> copy;

  int64_t layouts() const { return first_tile.dim(0) - 1; }
  kernels::AttentionLayoutView view() const;
};

/// The layout where its tensors are on `device`, else a copy there, which all that ask share.
std::shared_ptr<const BlockLayout> on_device(const std::shared_ptr<const BlockLayout>& layout,
                                             Device device);

/// Builds a layout from the tiles of each of its members, and the transpose.
///   layouts  for each member, tiles that partition [0, queries) in order, at most
///            kAttentionTileRows rows each
///   which    i32 [B or 1, H or 1], or undefined: all heads use member 0
///   order_q, order_k  i32 [queries], [keys], permutations that ascend within every run and tile
/// Throws ShapeError where tiles or runs overlap, leave the matrix or are not in order.
std::shared_ptr<const BlockLayout> make_layout(int64_t queries, int64_t keys,
                                               const std::vector<std::vector<TileRuns>>& layouts,
                                               const Tensor& which = {}, const Tensor& order_q = {},
                                               const Tensor& order_k = {});
/// The tiles of one member, read back.
std::vector<TileRuns> tiles_of(const BlockLayout& layout, int64_t member);

/// Distances q - k that a query sees: -right dilation .. left dilation, in steps of dilation.
struct Window {
  int64_t left = kUnlimited, right = kUnlimited, dilation = 1;
  friend bool operator==(const Window&, const Window&) = default;
};

/// The predicate of partial runs, on positions: query i has position i + q_start, key j has j.
/// A pair is visible if every hard term holds and, where soft terms are set, at least one of them.
struct Rule {
  /// q_start of "queries are the last of the keys": keys - queries, the length M of a memory.
  static constexpr int64_t align_ends = std::numeric_limits<int64_t>::min();

  bool causal = false;            // hard: k <= q
  bool self_last = false;         // hard: itself only if nothing else
  Tensor q_valid, k_valid;        // hard: i64 [B], lengths per sample
  Tensor q_segment, k_segment;    // hard: equal ids
  Tensor earlier;                 // hard: not a pair that an earlier round saw
  Window window;                  // soft
  int64_t stride = 0;             // soft: q - k is a multiple; 0: not set
  Tensor q_cell, k_cell;          // soft: equal cells
  Tensor q_free, k_free;          // soft: global tokens
  Tensor q_position, k_position;  // replace the positions above
  int64_t q_start = align_ends;
};

/// How to lay blocks out for whatever lengths a call has; builders fill it.
struct Recipe {
  enum class Kind : uint8_t { none, dense, band, blocks, classes, fixed };
  Kind kind = Kind::none;
  int64_t block = 0;                      // blocks, fixed: its size
  int64_t key_start = 0;                  // blocks: position of key 0
  int64_t first_column = 0, columns = 0;  // fixed: of each block, those that later rows see
  bool own_block = false;                 // fixed: all of the own block is seen
  friend bool operator==(const Recipe&, const Recipe&) = default;
};

/// What each query may see: a layout refined by a rule. Without a layout the recipe makes one for
/// the lengths of the call.
struct AttentionPattern {
  std::shared_ptr<const BlockLayout> layout;
  std::vector<Rule> rules;  // per layout and key segment; one serves all
  Recipe recipe;
  std::string name = "custom";
};

/// The same pattern with per-sample lengths (i64 [B]): queries and keys beyond them do not exist.
AttentionPattern with_lengths(AttentionPattern pattern, const Tensor& q_valid,
                              const Tensor& k_valid);

/// The pattern with its layout for these lengths and q_start in numbers. Layouts of builders
/// are shared by content while in use. Throws ShapeError where a given layout has other lengths.
AttentionPattern resolve(const AttentionPattern& pattern, int64_t queries, int64_t keys);

/// Whether the rule allows the pair (query i, key j), whatever the layout. `q_start` is resolved.
bool rule_allows(const Rule& rule, int64_t i, int64_t j);

/// Visible pairs of one head, and pairs that its runs cover. Lengths per sample are not taken into
/// account.
int64_t visible_pairs(const AttentionPattern& pattern, int64_t queries, int64_t keys,
                      int64_t head = 0);
int64_t covered_pairs(const AttentionPattern& pattern, int64_t queries, int64_t keys,
                      int64_t head = 0);

/// Name, parameters, pairs and, up to 64 x 128, a picture with a row per query: '#' where it sees
/// the key.
std::string describe(const AttentionPattern& pattern, int64_t queries, int64_t keys);

/// Builders, for any lengths. Where there are more keys than queries, the queries are the last:
/// query i has position i + keys - queries, so a memory of M keys comes first.
namespace patterns {

/// Every query sees every key.
AttentionPattern dense();
/// k <= q.
AttentionPattern causal();
/// 0 <= q - k < width: `width` keys, itself included.
AttentionPattern local(int64_t width);
/// |q - k| <= width / 2.
AttentionPattern local_bidirectional(int64_t width);
/// Own block and the one before, causal: floor(k / block) in {floor(q / block) - 1,
/// floor(q / block)}, k <= q. `key_start` is the position of key 0.
AttentionPattern local_block(int64_t block, int64_t key_start = 0);
/// q - k = n dilation with -right <= n <= left.
AttentionPattern dilated(int64_t left, int64_t right, int64_t dilation);
/// q - k = n stride with n >= 0.
AttentionPattern strided(int64_t stride);

/// The index sets of fixed factorised attention \cite child2019 , all causal, for blocks of
/// `block` = l tokens. Own block: floor(k / l) = floor(q / l).
AttentionPattern fixed_block(int64_t block);
/// The summary columns of every block, c of them, of sub-block s: l - (s + 1) c <= k mod l <
/// l - s c. A query before the first of them sees nothing. Throws ValueError unless 1 <= c and
/// (s + 1) c <= l.
AttentionPattern fixed_summary(int64_t block, int64_t columns, int64_t sub_block = 0);
/// Both at once: the own block, and the summary columns of those before.
AttentionPattern fixed(int64_t block, int64_t columns, int64_t sub_block = 0);

/// Head h sees what heads[h] lets it see: one pattern for these lengths, with a layout of as many
/// members as differ. Throws NotImplemented where their rules differ or one has an order of places.
AttentionPattern by_head(const std::vector<AttentionPattern>& heads, int64_t queries, int64_t keys);

}  // namespace patterns

}  // namespace longspan
