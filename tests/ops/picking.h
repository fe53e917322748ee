#pragma once

#include <functional>
#include <vector>

#include "tests/harness/op_info.h"

namespace longspan::test {

/// Uniform ids in [0, below).
inline InputSpec ids(const Shape& shape, int64_t below) { return integers(shape, 0, below - 1); }

/// A multi-index into an array: one index for each axis.
using Place = std::vector<int64_t>;

/// Converts a row-major linear index to a multi-index; index_of() is the inverse.
inline Place place_of(const Shape& shape, int64_t i) {
  Place p(static_cast<size_t>(shape.rank()));
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    p[static_cast<size_t>(axis)] = i % shape[axis];
    i /= shape[axis];
  }
  return p;
}
inline int64_t index_of(const Shape& shape, const Place& p) {
  int64_t i = 0;
  for (int axis = 0; axis < shape.rank(); ++axis)
    i = i * shape[axis] + p[static_cast<size_t>(axis)];
  return i;
}

/// Returns y with y[p] = x[from(p)], or `otherwise` if from(p) is empty and x has axes.
inline Array pick(const Array& x, const Shape& shape,
                  const std::function<Place(const Place&)>& from, double otherwise = 0) {
  Array y(shape);
  for (int64_t i = 0; i < y.size(); ++i) {
    const Place p = from(place_of(shape, i));
    y[i] = static_cast<int>(p.size()) == x.shape.rank() ? x[index_of(x.shape, p)] : otherwise;
  }
  return y;
}

/// Returns the scalar arguments of a sample, from the n-th on, as a shape.
template <class T>
Shape shape_from(const Arguments<T>& in, size_t n = 0) {
  Shape shape;
  for (size_t i = n; i < in.numbers(); ++i) shape.push_back(static_cast<int64_t>(in.number(i)));
  return shape;
}

/// Returns the same op on integers, which have no gradients.
inline OpInfo on_integers(OpInfo op) {
  op.name += " of integers";
  op.dtypes = {DType::i64, DType::i32, DType::u8};
  op.differentiable = false;
  op.rejects.clear();
  op.saved_bytes = {};
  for (std::vector<Sample>* samples : {&op.samples, &op.large}) {
    for (Sample& s : *samples) {
      for (InputSpec& r : s.inputs) {
        if (r.floating() && !r.fixed) {
          r.value = [value = ids({}, 200).value](Generator gen, int64_t i) {
            return value(gen, i);
          };
        }
      }
    }
  }
  return op;
}

}  // namespace longspan::test
