#pragma once

#include <cstdint>

#include "data/sample_task.h"

namespace longspan {

/// Tokens of several groups in random order: token g symbols + s is symbol s of group g, both drawn
/// uniformly. The target of a token is the previous token of its group; the first token of each
/// group has no target. To predict it a model must find tokens of the same group, `groups`
/// positions apart on average. Chance accuracy is 1 / symbols.
struct ClusterTask {
  static constexpr TargetKind kind = TargetKind::tokens;
  int64_t length = 0, groups = 16, symbols = 4;

  int64_t vocabulary() const { return groups * symbols; }
  void visit(auto& v) {
    v("length", length, range::not_negative, meaning::sample_length);
    v("groups", groups, range::positive, "groups of tokens");
    v("symbols", symbols, range::positive, "symbols of each group");
  }
  void fit(int64_t run_length, int64_t vocabulary);
  SampleShape shape() const { return {length, vocabulary(), -1}; }
  /// Throws ValueError that names the option if a size is too small.
  Sample sample(const SampleKey& key) const;
};

}  // namespace longspan
