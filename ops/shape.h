#pragma once

#include <initializer_list>
#include <limits>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace longspan {

/// The same elements, row-major, in another shape; one size may be -1 and is inferred. A view where
/// the strides allow it, else a copy.
///   x       any dtype
///   returns shape; dtype of x
///   throws  ShapeError where the sizes do not multiply to the number of elements
Tensor reshape(const Tensor& x, const Shape& shape);
/// Axes first to last merged into one. A view where the strides allow it.
Tensor flatten(const Tensor& x, int first = 0, int last = -1);
/// One axis cut into two of the given sizes, of which one may be -1. Always a view.
Tensor unflatten(const Tensor& x, int axis, int64_t outer, int64_t inner);

/// Axes a and b exchanged. A view.
Tensor transpose(const Tensor& x, int a = -2, int b = -1);
/// Axis i of the result is axis order[i] of x. A view. Throws ShapeError unless `order` names every
/// axis once.
Tensor permute(const Tensor& x, std::span<const int> order);
Tensor permute(const Tensor& x, std::initializer_list<int> order);

/// The end of an axis.
inline constexpr int64_t to_end = std::numeric_limits<int64_t>::max();

/// Elements begin, begin + step, ... before end of one axis. Negative begin and end count from the
/// end of the axis. A view; its gradient is added into that of x in place, so many slices of one
/// tensor cost in all what they touch.
///   throws  ValueError unless 0 <= begin <= end <= size, after counting, and step >= 1
Tensor slice(const Tensor& x, int axis, int64_t begin, int64_t end = to_end, int64_t step = 1);
/// `length` elements of one axis from `begin` on. A view, as slice.
Tensor narrow(const Tensor& x, int axis, int64_t begin, int64_t length);
/// Element i of one axis, which goes. Negative i counts from the end. A view, as slice.
Tensor select(const Tensor& x, int axis, int64_t i);

/// Consecutive pieces of the given sizes along one axis. Views with one common way back, which
/// joins the pieces' gradients. Throws ShapeError unless the sizes add up to the axis.
std::vector<Tensor> split(const Tensor& x, std::span<const int64_t> sizes, int axis);
std::vector<Tensor> split(const Tensor& x, std::initializer_list<int64_t> sizes, int axis);
/// At most n pieces of equal size along one axis; the last may be shorter. An empty axis gives one
/// empty piece.
std::vector<Tensor> chunk(const Tensor& x, int64_t n, int axis);

/// Axes of size 1 repeated, and new axes in front, without copying (strides of zero). -1 keeps a
/// size. The gradient is summed over the repeated axes.
///   throws  ShapeError where a size is neither 1 nor the wanted one
Tensor expand(const Tensor& x, const Shape& shape);
/// The same as expand.
Tensor broadcast_to(const Tensor& x, const Shape& shape);

/// An axis of size 1 removed; without an axis all of them. A view.
Tensor squeeze(const Tensor& x, int axis);
Tensor squeeze(const Tensor& x);
/// A new axis of size 1; the result's axis `axis` (negative: from the result's end). A view.
Tensor unsqueeze(const Tensor& x, int axis);

}  // namespace longspan
