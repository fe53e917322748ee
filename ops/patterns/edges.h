#pragma once

#include <cstdint>
#include <memory>
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
  /// The maximum number of keys and labels of a block whose rows are computed together.
  int64_t block_keys = 0, block_labels = 0;
  /// Maximum number of unfinished rows of strips at a time, and pieces of rows that have several.
  int64_t strip_slots = 0, strip_pieces = 0;
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

/// Returns the layout on `device`: itself on the host, else a copy that is made once and lives as
/// long as the layout.
std::shared_ptr<const EdgeLayout> on_device(const std::shared_ptr<const EdgeLayout>& layout,
                                            Device device);

namespace detail {

/// Returns a table of a layout with rows of `width` numbers.
Tensor edge_table(const std::vector<int32_t>& numbers, int64_t width);
/// Returns a number of a table. Throws ValueError if it does not fit in 32 bits.
int32_t edge_number(int64_t x);

}  // namespace detail
}  // namespace longspan
