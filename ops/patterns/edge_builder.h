#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "ops/patterns/edges.h"

namespace longspan {

/// Collects the runs of a layout, row by row.
class EdgeLayoutBuilder {
 public:
  /// Returns the place of a list of labels; equal lists are kept once. A run may begin within it.
  int64_t label_list(std::span<const int32_t> labels);
  /// Returns the place of a list that has this label for every key.
  static int64_t one_label(int64_t label) { return -1 - label; }

  /// Adds a row with these runs. Where neighbouring rows attend to nearly the same keys, kernels
  /// read them once for all of these rows. A run without keys only keeps its place: tables of
  /// devices are shorter where run o of neighbouring rows has the same keys.
  void add_row(std::span<const EdgeRun> runs);
  /// The next row should begin a block of rows that are computed together.
  void start_block();
  /// Rows before and after this are never computed together. So the results of a sequence do not
  /// depend on what else is in its batch.
  void end_group();

  /// Returns the layout, on the host. Throws ValueError if a run leaves [0, keys) or its list of
  /// labels, a label leaves [0, labels), or two runs of a row overlap.
  std::shared_ptr<const EdgeLayout> build(int64_t keys, int64_t labels) const;

 private:
  std::vector<int32_t> labels_;
  std::map<std::vector<int32_t>, int64_t> lists_;
  std::vector<EdgeRun> runs_;
  std::vector<int64_t> row_begin_{0};  // of each row, and the end
  std::vector<int64_t> groups_;        // rows at which one ends
  std::vector<int64_t> starts_;        // rows that should begin a block
};

}  // namespace longspan
