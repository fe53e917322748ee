#include "nn/position.h"

#include <cmath>
#include <vector>

#include "core/parallel.h"
#include "nn/axial.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/shape.h"

namespace longspan {

Tensor sinusoid(int64_t first, int64_t length, int64_t width, SinusoidLayout layout, DType dtype,
                Device device) {
  require(width % 2 == 0, "sinusoid", "width {} is odd; sines and cosines come in pairs", width);
  require(first >= 0 && length >= 0, "sinusoid", "positions {} to {} are not", first,
          first + length);
  if (device == meta_device) return Tensor::empty({length, width}, dtype, device);  // has no values
  const int64_t half = width / 2;
  const bool halves = layout != SinusoidLayout::interleaved;
  std::vector<double> rates(static_cast<size_t>(half));
  for (int64_t k = 0; k < half; ++k) {
    rates[static_cast<size_t>(k)] =
        std::pow(10000.0, -2.0 * static_cast<double>(k) / static_cast<double>(width));
  }
  std::vector<double> table(static_cast<size_t>(length * width));
  parallel_for(length, [&](int64_t r) {
    double* row = table.data() + r * width;
    for (int64_t k = 0; k < half; ++k) {
      const double angle = static_cast<double>(first + r) * rates[static_cast<size_t>(k)];
      row[halves ? k : 2 * k] = std::sin(angle);
      row[halves ? half + k : 2 * k + 1] = std::cos(angle);
    }
  });
  Tensor rows = Tensor::from(table, {length, width});
  if (layout == SinusoidLayout::halves_f32) rows = cast(rows, DType::f32);
  return to_device(cast(rows, dtype), device);
}

LearnedPositions::LearnedPositions(int64_t positions, int64_t width, const Init& init,
                                   const Scheme& scheme)
    : weight(init.at("weight").make({positions, width}, scheme)) {}

Tensor LearnedPositions::forward(int64_t first, int64_t length) const {
  const int64_t limit = weight.dim(0);
  require(first >= 0 && first + length <= limit, "positions",
          "position {} is beyond the learned table of {} positions; shorten the sequence or build "
          "the model with n_max >= {}",
          first + length - 1, limit, first + length);
  return narrow(weight, 0, first, length);
}

FactorisedPositions::FactorisedPositions(const std::vector<int64_t>& shape, int64_t width,
                                         const Init& init, const Scheme& scheme) {
  require(!shape.empty(), "positions", "a grid of positions needs the size of at least one axis");
  for (const int64_t size : shape) {
    require(size >= 1, "positions", "an axis of size {}; expected 1 or more", size);
    axes.emplace_back(size, width, init.at(static_cast<int64_t>(axes.size())), scheme);
  }
}

int64_t FactorisedPositions::size() const { return grid_places(axes); }

Tensor FactorisedPositions::forward(int64_t first, int64_t length) const {
  Tensor sum;
  for (const Tensor& rows : grid_rows(axes, first, length)) sum = sum ? add(sum, rows) : rows;
  return sum;
}

ShawTables::ShawTables(const ShawOptions& o, int64_t heads, int64_t head_width, const Init& init,
                       const Scheme& scheme)
    : options(o) {
  require(o.clip >= 0, "shaw", "clip is {}; expected 0 or more", o.clip);
  const int64_t rows = o.two_sided ? 2 * o.clip + 1 : o.clip + 1;
  const Shape shape = o.per_head ? Shape{heads, rows, head_width} : Shape{rows, head_width};
  key = init.at("relative_key").make(shape, scheme);
  if (o.values) value = init.at("relative_value").make(shape, scheme);
}

void ShawTables::fill(ScoreTerms& terms, DType dtype) const {
  terms.id = {options.clip, options.two_sided ? options.clip : 0};
  terms.relation_key = cast(key, dtype);
  if (value) terms.relation_value = cast(value, dtype);
}

}  // namespace longspan
