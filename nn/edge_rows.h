#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/tensor.h"
#include "ops/patterns/edges.h"

namespace longspan {

/// Rows `from` to `from + count - 1` of one tensor, which are rows `to` and so on of another.
struct RowRun {
  int64_t from = 0, count = 0, to = 0;
};

/// The rows that a layer of edge attention computes, and the keys of each. The keys are all rows of
/// the layer's input or, in decoding, all rows that the layer keeps.
struct EdgeRows {
  std::shared_ptr<const EdgeLayout> layout;
  /// Which rows of the input the rows of the layout are: those in `ids`, i64 [rows], or without
  /// them `count` rows from `first` on; -1: all.
  int64_t first = 0, count = -1;
  Tensor ids;

  /// In decoding, keys and values are kept at places of their own.
  int64_t slots = 0;            ///< places in all
  std::vector<RowRun> moved;    ///< from places before to places now, when there are more of them
  std::vector<RowRun> written;  ///< from rows of the input to their places

  /// Returns the rows that are computed: x [B, N, D] -> [B, rows, D].
  Tensor of(const Tensor& x) const;
  /// Whether these are all rows of x, in order.
  bool all_of(const Tensor& x) const {
    return !ids && (count < 0 || (first == 0 && count == x.dim(1)));
  }
};

/// The layouts of the layers of edge attention (nn/attention/edge_multi_head.h) in a model, which
/// LayerContext::own holds.
struct EdgeContext {
  std::shared_ptr<const EdgeRows> rows;          ///< rows that a layer computes, and their keys
  std::shared_ptr<const EdgeRows> last_rows;     ///< rows of a stack's last layer, if different
  std::shared_ptr<const EdgeRows> encoder_rows;  ///< which rows of encoder_output rows attend to
};

}  // namespace longspan
