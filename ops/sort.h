#pragma once

#include "core/tensor.h"

namespace longspan {

// Sorts are stable, ascending and descending: equal elements keep their order. -0 equals 0, and NaN
// is above everything. Any dtype.

/// Returns the indices that sort the elements along an axis.
///   returns shape of x, i64
Tensor argsort(const Tensor& x, int axis = -1, bool descending = false);

/// Sorted elements and their original indices.
struct Sorted {
  Tensor values;   ///< dtype of x; differentiable
  Tensor indices;  ///< i64
};
/// Sorts the elements of an axis. Saves indices.
Sorted sort(const Tensor& x, int axis = -1, bool descending = false);
/// Returns the k largest (or smallest) along an axis, best first, with their indices. Saves
/// indices.
///   throws  ValueError unless 0 <= k <= size of the axis
Sorted topk(const Tensor& x, int64_t k, int axis = -1, bool largest = true);

/// y[..., order[..., i]] = i.
///   order   [..., n]  integers, each row a permutation of 0 to n - 1
///   returns [..., n]  i64
///   throws  ValueError if a row is not a permutation
Tensor inverse_permutation(const Tensor& order);

}  // namespace longspan
