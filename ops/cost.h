#pragma once

#include <cstdint>

namespace longspan {

/// Counts the multiply-accumulates of the ops that this thread runs forward while it lives; one
/// fused multiply-add counts as one:
///   const MacCount macs;
///   model.loss(tokens, targets, {}, pass);
///   macs.total();
/// The count follows from shapes and block layouts, not from values, so that it is the same on the
/// meta device: pairs that a mask hides and rows whose target is ignored count too. Relative terms
/// of scores, biases and elementwise functions do not count. Backward functions count nothing, but
/// what they recompute is run forward and counts, except results that a checkpoint scope saved.
/// Counters nest: each one counts everything in its lifetime. Without a counter, ops only test
/// active().
class MacCount {
 public:
  MacCount();
  ~MacCount();
  MacCount(const MacCount&) = delete;
  MacCount& operator=(const MacCount&) = delete;

  /// Products of matrices, linear layers, convolutions and hashing: rows x inner x columns.
  int64_t products() const;
  /// Scores and weighted sums of attention: pairs that the layout and its rules make visible, for
  /// all samples and heads, times the width of a key plus that of a value.
  int64_t attention() const;
  int64_t total() const { return products() + attention(); }

  /// Whether this thread has a counter.
  static bool active();
  /// Called by ops when they compute.
  static void add_products(int64_t macs);
  static void add_attention(int64_t macs);

 private:
  int64_t products_before_, attention_before_;
};

}  // namespace longspan
