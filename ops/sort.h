#pragma once

#include "core/tensor.h"

namespace longspan {

// Orders are stable, ascending and descending: equal elements keep their places' order. -0 equals
// 0, and NaN is above everything. Any dtype.

/// Places of the sorted elements along an axis.
///   returns shape of x, i64
Tensor argsort(const Tensor& x, int axis = -1, bool descending = false);

/// Elements and where they were.
struct Sorted {
  Tensor values;   ///< dtype of x; differentiable
  Tensor indices;  ///< i64
};
/// The elements of an axis in order, and where they were. Saves indices.
Sorted sort(const Tensor& x, int axis = -1, bool descending = false);
/// The k largest (or smallest) along an axis, best first, and where they were. Saves indices.
///   throws  ValueError unless 0 <= k <= size of the axis
Sorted topk(const Tensor& x, int64_t k, int axis = -1, bool largest = true);

/// y[..., order[..., i]] = i.
///   order   [..., n]  integers, each row a permutation of 0 to n - 1
///   returns [..., n]  i64
///   throws  ValueError where a row is no permutation
Tensor inverse_permutation(const Tensor& order);

}  // namespace longspan
