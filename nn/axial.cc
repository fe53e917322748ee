#include "nn/axial.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/divide.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/random.h"

namespace longspan {

int64_t grid_places(const std::vector<Embedding>& axes) {
  int64_t places = 1;
  for (const Embedding& axis : axes) places *= axis.weight.dim(0);
  return places;
}

std::vector<Tensor> grid_rows(const std::vector<Embedding>& axes, int64_t first, int64_t length) {
  const int64_t places = grid_places(axes);
  require(first >= 0 && first + length <= places, "positions",
          "position {} is beyond the grid of {} positions; shorten the sequence or build the model "
          "for {}",
          first + length - 1, places, first + length);
  std::vector<Tensor> rows;
  int64_t step = places;  // positions per coordinate step of this axis
  for (const Embedding& axis : axes) {
    const int64_t n = axis.weight.dim(0);
    step /= n;
    std::vector<int32_t> coordinate(static_cast<size_t>(length));
    for (int64_t i = 0; i < length; ++i) {
      coordinate[static_cast<size_t>(i)] = static_cast<int32_t>((first + i) / step % n);
    }
    const Tensor ids = to_device(Tensor::from(coordinate, {length}), axis.weight.device());
    rows.push_back(axis.forward(ids));
  }
  return rows;
}

std::vector<int64_t> default_axial_shape(int64_t length) {
  require(length >= 1, "positions", "got {} positions; expected 1 or more", length);
  int64_t n = 1;
  while (n * n < length) n *= 2;
  return {n, ceil_div(length, n)};
}

std::vector<int64_t> longer_axial_shape(std::vector<int64_t> shape, int64_t length) {
  int64_t others = 1;
  for (size_t k = 1; k < shape.size(); ++k) others *= std::max<int64_t>(shape[k], 1);
  if (!shape.empty()) shape[0] = std::max(shape[0], ceil_div(length, others));
  return shape;
}

std::vector<int64_t> extended_axial_shape(const std::vector<int64_t>& shape, int64_t length) {
  int64_t places = 1;
  for (const int64_t n : shape) places *= std::max<int64_t>(n, 0);
  if (places >= length) return shape;
  if (shape.size() == 1) return {length};
  if (shape.size() == 2) return default_axial_shape(length);
  const std::vector<int64_t> longer = longer_axial_shape(shape, length);
  fail(
      "positions",
      "position_shape = {} has {} positions, and {} tokens need more: expected other axes, such as "
      "{}, with n_max = {}",
      fmt::join(shape.begin(), shape.end(), ","), places, length,
      fmt::join(longer.begin(), longer.end(), ","), length);
}

AxialPositions::AxialPositions(const std::vector<int64_t>& shape,
                               const std::vector<int64_t>& widths, const Init& init,
                               const Scheme& scheme) {
  require(!shape.empty() && shape.size() == widths.size(), "positions",
          "a grid of {} axes with {} widths; expected one for each of 1 axis or more", shape.size(),
          widths.size());
  for (size_t k = 0; k < shape.size(); ++k) {
    require(shape[k] >= 1 && widths[k] >= 1, "positions",
            "an axis of size {} and width {}; expected 1 or more", shape[k], widths[k]);
    axes.emplace_back(shape[k], widths[k], init.at(static_cast<int64_t>(k)), scheme);
  }
}

Tensor AxialPositions::forward(int64_t first, int64_t length, float dropout, Pass pass) const {
  return dropout_columns(concat(grid_rows(axes, first, length), -1), dropout, pass.at("axial"));
}

Tensor dropout_columns(const Tensor& x, double p, Pass pass) {
  if (p == 0 || !pass.training) return x;
  pass.row = 0;  // one draw per column, whichever rows x holds
  Shape one = x.shape();
  for (int axis = 0; axis < x.rank() - 1; ++axis) one[axis] = 1;
  return mul(x, dropout(ones(one, x.dtype(), x.device()), p, pass));
}

}  // namespace longspan
