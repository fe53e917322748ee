#pragma once

#include <cstdint>
#include <vector>

#include "nn/init.h"
#include "nn/layers.h"
#include "nn/module.h"

namespace longspan {

/// Places on a grid that has a table for each axis, [size of the axis, ..].
int64_t grid_places(const std::vector<Embedding>& axes);
/// The rows that each axis has for the positions first to first + length - 1, [length, ..] each,
/// the last axis running fastest. Throws ValueError, naming the limit, beyond the grid.
std::vector<Tensor> grid_rows(const std::vector<Embedding>& axes, int64_t first, int64_t length);

/// The shape of a grid for `length` positions that nobody has chosen: (n1, ceil(length / n1)) with
/// n1 = 2^ceil(log2(length) / 2). Throws ValueError on a length below 1.
std::vector<int64_t> default_axial_shape(int64_t length);

/// The grid `shape` with more places along its first axis, for `length` positions.
std::vector<int64_t> longer_axial_shape(std::vector<int64_t> shape, int64_t length);

/// A grid for `length` positions in place of `shape`, which is returned where it has them: of one
/// axis the length, of two default_axial_shape(). Throws ValueError on more axes, such as rows,
/// columns and colours, whose sizes mean something; the message has longer_axial_shape().
std::vector<int64_t> extended_axial_shape(const std::vector<int64_t>& shape, int64_t length);

/// Positions as coordinates on a grid, the last axis running fastest, whose axes own columns
/// \cite kitaev2020 (axial positions): [E_1[o_1(t)]; E_2[o_2(t)]; ...], so that n_1 d_1 + n_2 d_2 +
/// ... numbers stand for n_1 n_2 ... positions. Positions may be fewer than places.
struct AxialPositions : Module {
  AxialPositions() = default;
  /// Axis k has shape[k] places and widths[k] columns. Throws ValueError where there is none, where
  /// their numbers differ or where one is below 1.
  AxialPositions(const std::vector<int64_t>& shape, const std::vector<int64_t>& widths,
                 const Init& init, const Scheme& scheme);

  /// Of the positions first to first + length - 1. With dropout (site "axial"), a column is kept or
  /// dropped for all of them alike. Throws ValueError, naming the limit, beyond the grid.
  Tensor forward(int64_t first, int64_t length, float dropout = 0,
                 Pass pass = {}) const;  // [length, sum of widths]
  void visit(Visitor& v) override { v("axes", axes); }
  /// Places on the grid.
  int64_t size() const { return grid_places(axes); }

  std::vector<Embedding> axes;  ///< [shape[k], widths[k]] each
};

/// y_rc = x_rc k_c / (1 - p), where column c is kept, k_c = 1, or dropped for all rows alike,
/// whichever of them are here. x itself where p is 0 or the pass does not train.
///   x  [..., width]  floating
Tensor dropout_columns(const Tensor& x, double p, Pass pass);

}  // namespace longspan
