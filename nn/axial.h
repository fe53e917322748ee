#pragma once

#include <cstdint>
#include <vector>

#include "nn/init.h"
#include "nn/layers.h"
#include "nn/module.h"

namespace longspan {

/// Returns the number of positions on a grid with one table [axis size, ..] per axis.
int64_t grid_places(const std::vector<Embedding>& axes);
/// Returns, for each axis, the table rows of positions first to first + length - 1, [length, ..]
/// each; the last axis runs fastest. Throws ValueError that names the limit beyond the grid.
std::vector<Tensor> grid_rows(const std::vector<Embedding>& axes, int64_t first, int64_t length);

/// Returns the default grid shape for `length` positions: (n1, ceil(length / n1)) with n1 =
/// 2^ceil(log2(length) / 2). Throws ValueError if length is below 1.
std::vector<int64_t> default_axial_shape(int64_t length);

/// Returns `shape` with its first axis extended to hold `length` positions.
std::vector<int64_t> longer_axial_shape(std::vector<int64_t> shape, int64_t length);

/// Returns `shape` if it holds `length` positions, else a grid that does: (length) for one axis,
/// default_axial_shape() for two. Throws ValueError for more axes, whose sizes have a meaning, such
/// as rows, columns and colours; the message suggests longer_axial_shape().
std::vector<int64_t> extended_axial_shape(const std::vector<int64_t>& shape, int64_t length);

/// Positions as coordinates on a grid, the last axis running fastest. Each axis has its own columns
/// \cite kitaev2020 (axial positions): [E_1[o_1(t)]; E_2[o_2(t)]; ...], so that n_1 d_1 + n_2 d_2 +
/// ... parameters represent n_1 n_2 ... positions. The sequence may be shorter than the grid.
struct AxialPositions : Module {
  AxialPositions() = default;
  /// Axis k has size shape[k] and widths[k] columns. Throws ValueError if there are no axes, if the
  /// numbers of sizes and widths differ, or if one is below 1.
  AxialPositions(const std::vector<int64_t>& shape, const std::vector<int64_t>& widths,
                 const Init& init, const Scheme& scheme);

  /// Returns the vectors of positions first to first + length - 1. With dropout (site "axial"), a
  /// column is kept or dropped for all positions together. Throws ValueError that names the limit
  /// beyond the grid.
  Tensor forward(int64_t first, int64_t length, float dropout = 0,
                 Pass pass = {}) const;  // [length, sum of widths]
  void visit(Visitor& v) override { v("axes", axes); }
  /// Positions on the grid.
  int64_t size() const { return grid_places(axes); }

  std::vector<Embedding> axes;  ///< [shape[k], widths[k]] each
};

/// y_rc = x_rc k_c / (1 - p), with k_c = 1 if column c is kept, else 0, the same for all rows,
/// whichever rows x holds. Returns x itself if p is 0 or the pass does not train.
///   x  [..., width]  floating
Tensor dropout_columns(const Tensor& x, double p, Pass pass);

}  // namespace longspan
