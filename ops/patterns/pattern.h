#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "ops/patterns/layout.h"

namespace longspan {

/// Distances q - k that a query sees: -right dilation .. left dilation, in steps of dilation.
/// Either side may be negative: right = -n sees only what lies n steps before or earlier.
struct Window {
  int64_t left = kUnlimited, right = kUnlimited, dilation = 1;

  /// The furthest distance to either side, kUnlimited where there is none.
  int64_t reach_left() const { return reach(left); }
  int64_t reach_right() const { return reach(right); }
  friend bool operator==(const Window&, const Window&) = default;

 private:
  int64_t reach(int64_t steps) const {
    return steps >= kUnlimited / dilation ? kUnlimited : steps * dilation;
  }
};

/// The predicate of partial runs of one key segment, on positions: query i has position i +
/// q_start, key j has j. Dilation and stride need an order by class.
struct Rule {
  /// q_start of "queries are the last of the keys": keys - queries, the length M of a memory.
  static constexpr int64_t align_ends = std::numeric_limits<int64_t>::min();

  bool causal = false;  ///< k <= q
  Window window = {};
  int64_t stride = 0;  ///< q - k is a multiple; 0: not set
  int64_t q_start = align_ends;
  friend bool operator==(const Rule&, const Rule&) = default;
};

/// What hides pairs of one key segment in every run, and labels them. Tensors that are not given
/// hide nothing; those with a first size of 1 serve every sample.
struct PairMask {
  Tensor k_valid;           ///< i64 [B]: keys from here on do not exist
  Tensor q_from, q_to;      ///< i32 [1 or B, L]: query i sees only keys q_from_i <= j < q_to_i
  Tensor k_hidden;          ///< u8 [1 or B, T]: keys, other than 0, that nobody sees
  Tensor q_class, k_class;  ///< i32 [1 or B, L], [1 or B, T]
  /// i32 [1 or B, Cq, Ck]: label of a pair by its classes. -1 hides it; else it is the row of the
  /// relation tables, in place of the clipped distance.
  Tensor class_id;
};

/// How to lay blocks out for whatever lengths a call has; builders fill it.
struct LayoutSpec {
  enum class Kind : uint8_t { none, dense, band, blocks, classes, fixed };
  Kind kind = Kind::none;
  int64_t block = 0;                      // blocks, fixed: its size
  int64_t key_start = 0;                  // blocks: position of key 0
  int64_t first_column = 0, columns = 0;  // fixed: of each block, those that later rows see
  bool own_block = false;                 // fixed: all of the own block is seen
  friend bool operator==(const LayoutSpec&, const LayoutSpec&) = default;
};

/// What each query may see: a layout refined by a rule. Without a layout the layout_spec makes one
/// for the lengths of the call.
struct AttentionPattern {
  std::shared_ptr<const BlockLayout> layout;
  std::vector<Rule> rules;       // of the first key segment; the layout's members choose
  std::vector<Rule> side_rules;  // of the second, chosen alike; none: any distance, q_start 0
  Tensor q_valid;                // i64 [B]: queries from here on do not exist
  PairMask mask, side_mask;      // of the first and of the second key segment
  LayoutSpec layout_spec;
  std::string name = "custom";
};

/// The same pattern with per-sample lengths (i64 [B]): queries and keys beyond them do not exist.
AttentionPattern with_lengths(AttentionPattern pattern, const Tensor& q_valid,
                              const Tensor& k_valid);

/// The pattern with its layout for these lengths and q_start in numbers. Layouts of builders
/// are shared by content while in use. Throws ShapeError where a given layout has other lengths.
AttentionPattern resolve(const AttentionPattern& pattern, int64_t queries, int64_t keys,
                         int64_t side_keys = 0);

/// Whether the rule allows the pair (query i, key j), whatever the layout. `q_start` is resolved.
bool rule_allows(const Rule& rule, int64_t i, int64_t j);

/// Visible pairs of one head, and pairs that its runs cover, those of a layout's second segment
/// included. Lengths and masks of samples are not taken into account.
int64_t visible_pairs(const AttentionPattern& pattern, int64_t queries, int64_t keys,
                      int64_t head = 0);
int64_t covered_pairs(const AttentionPattern& pattern, int64_t queries, int64_t keys,
                      int64_t head = 0);

/// Name, parameters, pairs and, up to 64 x 128, a picture with a row per query: '#' where it sees
/// the key; those of a second segment follow after a bar.
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
/// q - k = n dilation with -right <= n <= left; either may be below 0, as in Window.
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
/// members as differ, each with its own rule and order. Masks and lengths are not taken over.
/// Throws NotImplemented where a pattern has several members already.
AttentionPattern by_head(const std::vector<AttentionPattern>& heads, int64_t queries, int64_t keys);

}  // namespace patterns

}  // namespace longspan
