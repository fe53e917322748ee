#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/kernels/edge_attention.h"
#include "core/tensor.h"

namespace longspan {

/// Which keys each row of an edge attention attends to, as runs of consecutive keys with labels.
/// Immutable and shared.
struct EdgeLayout : kernels::EdgeTablesOf<Tensor> {
  int64_t n_rows = 0, n_keys = 0;  ///< all rows and keys are smaller
  int64_t n_labels = 0;            ///< all labels are smaller
  int64_t pairs = 0;               ///< edges: rows with each of their keys
  /// The most keys and labels of a block whose rows are computed together.
  int64_t block_keys = 0, block_labels = 0;
  /// Pieces of rows and of keys that have several, on a device.
  int64_t row_slots = 0, key_slots = 0;

  mutable std::shared_ptr<const EdgeLayout> copy;  ///< on another device, once it was needed there

  kernels::EdgeTables view() const;
};

/// One pair of a layout.
struct Edge {
  int64_t row, key, label;
  friend bool operator==(const Edge&, const Edge&) = default;
};

/// Returns all pairs by row, in the order of its runs. For tests and pictures: a list of all pairs
/// is large.
std::vector<Edge> edges_of(const EdgeLayout& layout);

/// Keys first to first + keys - 1. Key first + t has label t of a list of EdgeLayoutBuilder,
/// counted from its place `label` on.
struct EdgeRun {
  int64_t first = 0, keys = 0;
  int64_t label = 0;
};

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
};

/// Returns the layout on `device`: itself on the host, else a copy that is made once and lives as
/// long as the layout.
std::shared_ptr<const EdgeLayout> on_device(const std::shared_ptr<const EdgeLayout>& layout,
                                            Device device);

}  // namespace longspan
