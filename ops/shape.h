#pragma once

#include <initializer_list>
#include <limits>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace longspan {

/// Returns the same elements, row-major, in another shape; one size may be -1 and is inferred. A
/// view if the strides allow it, else a copy.
///   x       any dtype
///   returns shape; dtype of x
///   throws  ShapeError if the sizes do not multiply to the number of elements
Tensor reshape(const Tensor& x, const Shape& shape);
/// Merges axes first to last into one. A view if the strides allow it.
Tensor flatten(const Tensor& x, int first = 0, int last = -1);
/// Splits one axis into two of the given sizes, one of which may be -1. Always a view.
Tensor unflatten(const Tensor& x, int axis, int64_t outer, int64_t inner);

/// Swaps axes a and b. A view.
Tensor transpose(const Tensor& x, int a = -2, int b = -1);
/// Axis i of the result is axis order[i] of x. A view. Throws ShapeError unless `order` names every
/// axis once.
Tensor permute(const Tensor& x, std::span<const int> order);
Tensor permute(const Tensor& x, std::initializer_list<int> order);

/// The end of an axis.
inline constexpr int64_t to_end = std::numeric_limits<int64_t>::max();

/// Returns elements begin, begin + step, ... before end of one axis. Negative begin and end count
/// from the end of the axis. A view; its gradient is added in place into that of x, so many slices
/// of one tensor together cost only the elements that they touch.
///   throws  ValueError unless 0 <= begin <= end <= size (after resolving negative values) and step
///           >= 1
Tensor slice(const Tensor& x, int axis, int64_t begin, int64_t end = to_end, int64_t step = 1);
/// Returns `length` elements of one axis from `begin` on. A view, like slice.
Tensor narrow(const Tensor& x, int axis, int64_t begin, int64_t length);
/// Returns element i of one axis and removes the axis. Negative i counts from the end. A view, like
/// slice.
Tensor select(const Tensor& x, int axis, int64_t i);

/// Splits one axis into consecutive pieces of the given sizes. The pieces are views that share one
/// backward node, which concatenates their gradients. Throws ShapeError unless the sizes add up to
/// the axis.
std::vector<Tensor> split(const Tensor& x, std::span<const int64_t> sizes, int axis);
std::vector<Tensor> split(const Tensor& x, std::initializer_list<int64_t> sizes, int axis);
/// Splits one axis into at most n pieces of equal size; the last may be shorter. An empty axis
/// gives one empty piece.
std::vector<Tensor> chunk(const Tensor& x, int64_t n, int axis);

/// Repeats axes of size 1, and adds new axes in front, without copying (stride 0). -1 keeps a size.
/// The gradient is summed over the repeated axes.
///   throws  ShapeError if a size is neither 1 nor the requested one
Tensor expand(const Tensor& x, const Shape& shape);
/// The same as expand.
Tensor broadcast_to(const Tensor& x, const Shape& shape);

/// Removes an axis of size 1; without an axis, all such axes. A view.
Tensor squeeze(const Tensor& x, int axis);
Tensor squeeze(const Tensor& x);
/// Adds an axis of size 1, which is axis `axis` of the result (negative: from its end). A view.
Tensor unsqueeze(const Tensor& x, int axis);

}  // namespace longspan
