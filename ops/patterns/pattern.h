#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/kernels/attention_masks.h"
#include "core/tensor.h"
#include "ops/patterns/layout.h"
#include "ops/patterns/layout_spec.h"

namespace longspan {

/// Distances q - k that a query sees: -right dilation .. left dilation, in steps of dilation.
/// Either side may be negative: right = -n allows only keys at least n steps before the query.
struct Window {
  int64_t left = kUnlimited, right = kUnlimited, dilation = 1;

  /// The largest distance to either side, kUnlimited if there is no bound.
  int64_t reach_left() const { return reach(left); }
  int64_t reach_right() const { return reach(right); }
  friend bool operator==(const Window&, const Window&) = default;

 private:
  int64_t reach(int64_t steps) const {
    return steps >= kUnlimited / dilation ? kUnlimited : steps * dilation;
  }
};

/// The predicate of the partial runs of one key segment, on positions: query i has position i +
/// q_start, key j has position j. Dilation and stride need a layout that orders rows and keys by
/// residue class.
struct Rule {
  /// Value of q_start for "the queries are the last of the keys": keys - queries, the length M of a
  /// memory.
  static constexpr int64_t align_ends = std::numeric_limits<int64_t>::min();

  bool causal = false;  ///< k <= q
  Window window = {};
  int64_t stride = 0;  ///< q - k is a multiple; 0: not set
  int64_t q_start = align_ends;
  friend bool operator==(const Rule&, const Rule&) = default;
};

/// Masks that hide pairs of one key segment in every run, and that label pairs: k_valid and
/// k_begin, q_from and q_to, k_hidden, and the classes of pairs.
using PairMask = kernels::PairMasks<Tensor>;

/// Says which keys each query may attend to: a block layout refined by a rule. If `layout` is null,
/// `layout_spec` builds one for the lengths of the call.
struct AttentionPattern {
  std::shared_ptr<const BlockLayout> layout;
  std::vector<Rule> rules;       // of the first key segment; each layout member chooses one
  std::vector<Rule> side_rules;  // of the second segment, chosen in the same way; empty: any
                                 // distance, q_start 0
  Tensor q_valid;                // i64 [B]: queries from this index on do not exist
  PairMask mask, side_mask;      // of the first and the second key segment
  LayoutSpec layout_spec;
  std::string name = "custom";
};

/// Returns the pattern with per-sample lengths (i64 [B]): queries and keys beyond them do not
/// exist.
AttentionPattern with_lengths(AttentionPattern pattern, const Tensor& q_valid,
                              const Tensor& k_valid);

/// Returns the pattern with keys hidden besides those that it hides already: `hidden` is u8 [B, T],
/// nonzero at keys of the first segment that no query sees.
AttentionPattern with_hidden_keys(AttentionPattern pattern, const Tensor& hidden);

/// Returns the pattern with its layout for these lengths and with a numeric q_start. Layouts that
/// builders make are shared by content while in use. Throws ShapeError if the pattern has a layout
/// for other lengths.
AttentionPattern resolve(const AttentionPattern& pattern, int64_t queries, int64_t keys,
                         int64_t side_keys = 0);

/// Returns whether the rule allows the pair (query i, key j), regardless of the layout. `q_start`
/// must be resolved.
bool rule_allows(const Rule& rule, int64_t i, int64_t j);

/// Pattern builders, for any lengths. If there are more keys than queries, the queries are the
/// last: query i has position i + keys - queries, so a memory of M keys comes first.
namespace patterns {

/// Every query sees every key.
AttentionPattern dense();
/// k <= q.
AttentionPattern causal();
/// 0 <= q - k < width: `width` keys, including the query's own.
AttentionPattern local(int64_t width);
/// |q - k| <= width / 2.
AttentionPattern local_bidirectional(int64_t width);
/// Own block and the one before, causal: floor(k / block) in {floor(q / block) - 1,
/// floor(q / block)}, k <= q. `key_start` is the position of key 0.
AttentionPattern local_block(int64_t block, int64_t key_start = 0);
/// q - k = n dilation with -right <= n <= left; either may be negative, as in Window.
AttentionPattern dilated(int64_t left, int64_t right, int64_t dilation);
/// q - k = n stride with n >= 0.
AttentionPattern strided(int64_t stride);

/// The index sets of fixed factorised attention \cite child2019 , all causal, for blocks of
/// `block` = l tokens. Own block: floor(k / l) = floor(q / l).
AttentionPattern fixed_block(int64_t block);
/// The summary columns, c per block, of sub-block s: l - (s + 1) c <= k mod l < l - s c. A query
/// before the first summary column sees nothing. Throws ValueError unless 1 <= c and (s + 1) c <=
/// l.
AttentionPattern fixed_summary(int64_t block, int64_t columns, int64_t sub_block = 0);
/// The union of both: the own block, and the summary columns of earlier blocks.
AttentionPattern fixed(int64_t block, int64_t columns, int64_t sub_block = 0);

/// Gives head h the pattern heads[h]: one pattern for these lengths, with one layout member per
/// distinct head pattern, each with its own rule and order. Masks and lengths of the inputs are
/// dropped. Throws NotImplemented if a pattern already has several members.
AttentionPattern by_head(const std::vector<AttentionPattern>& heads, int64_t queries, int64_t keys);

}  // namespace patterns

}  // namespace longspan
