#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/patterns/pattern.h"

namespace longspan {

/// Returns the number of keys of the layout's second segment, 0 without a layout.
int64_t side_keys_of(const AttentionPattern& pattern);
/// Returns the pattern without per-sample lengths and masks.
AttentionPattern without_masks(AttentionPattern pattern);

/// The pairs that a head of a sample attends to, and the pairs that the runs of its layout cover.
struct PairCount {
  int64_t attended = 0, computed = 0;
};

/// Counts the pairs of one head of one sample, with lengths and masks applied, and calls visit(i,
/// segment, j) for each attended pair: query i, key j of a key segment. With `visit`, masks or a
/// key order it takes time proportional to the covered pairs, otherwise to the rows of the runs.
PairCount count_pairs(const AttentionPattern& pattern, int64_t queries, int64_t keys,
                      int64_t side_keys, int64_t sample, int64_t head,
                      const std::function<void(int64_t i, int segment, int64_t j)>& visit = {});

/// Returns the visible pairs of a whole call: over `batch` samples and `heads` heads with their
/// layouts, including those of a layout's second segment. Per-sample lengths and masks are ignored.
int64_t attended_pairs(const AttentionPattern& pattern, int64_t batch, int64_t heads,
                       int64_t queries, int64_t keys);

/// Caches attended_pairs() per layout in use and rules.
class PairsOfLayouts {
 public:
  int64_t count(const AttentionPattern& pattern, int64_t batch, int64_t heads, int64_t queries,
                int64_t keys);

 private:
  struct Known {
    std::weak_ptr<const BlockLayout> layout;
    std::vector<Rule> rules, side_rules;
    int64_t batch, heads, pairs;
  };
  std::vector<Known> known_;
};

/// Return the visible pairs of one head, and the pairs that its runs cover, including those of a
/// layout's second segment. Per-sample lengths and masks are ignored.
int64_t visible_pairs(const AttentionPattern& pattern, int64_t queries, int64_t keys,
                      int64_t head = 0);
int64_t covered_pairs(const AttentionPattern& pattern, int64_t queries, int64_t keys,
                      int64_t head = 0);

/// Returns name, parameters, pair counts and, up to 64 x 128, a picture with one line per query:
/// '#' marks a key that it sees. Keys of a second segment follow after a bar.
std::string describe(const AttentionPattern& pattern, int64_t queries, int64_t keys);

}  // namespace longspan
