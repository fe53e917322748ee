#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ops/patterns/pattern.h"

namespace longspan {

/// Keys of the second segment: those of the layout, where one is given.
int64_t side_keys_of(const AttentionPattern& pattern);
/// The pattern without the lengths and masks of samples.
AttentionPattern without_masks(AttentionPattern pattern);

/// Pairs that a head of a sample attends to, and pairs that the runs of its layout cover.
struct PairCount {
  int64_t attended = 0, computed = 0;
};

/// Counts the pairs of one head of one sample, lengths and masks included, and calls
/// visit(i, segment, j) for each that is attended to: query i, key j of a key segment. With visit,
/// masks or an order of keys in time proportional to the pairs computed, else to the rows of runs.
PairCount count_pairs(const AttentionPattern& pattern, int64_t queries, int64_t keys,
                      int64_t side_keys, int64_t sample, int64_t head,
                      const std::function<void(int64_t i, int segment, int64_t j)>& visit = {});

/// Visible pairs of a whole call: over `batch` samples and `heads` heads, whichever layouts these
/// have, those of a layout's second segment included. Lengths and masks of samples are not taken
/// into account.
int64_t attended_pairs(const AttentionPattern& pattern, int64_t batch, int64_t heads,
                       int64_t queries, int64_t keys);

/// attended_pairs(), counted once for each layout in use and rules that it is asked about.
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

}  // namespace longspan
