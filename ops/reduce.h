#pragma once

#include <initializer_list>
#include <span>

#include "core/tensor.h"

namespace longspan {

/// y = sum of x over the given axes; without axes, over all. Negative axes count from the end. f16
/// and bf16 are summed in f32 and rounded once; the summation order depends on shape and strides
/// only.
///   x        any shape and strides  f64 f32 f16 bf16
///   returns  x without these axes, or with size 1 there if `keepdim`; 0 for an empty sum
///   saves    nothing
///   throws   DTypeError on integers, ShapeError if an axis does not exist or is repeated
Tensor sum(const Tensor& x);
Tensor sum(const Tensor& x, std::span<const int> axes, bool keepdim = false);
Tensor sum(const Tensor& x, std::initializer_list<int> axes, bool keepdim = false);

/// The sum divided by the number of summed elements; NaN if there are none. Otherwise as sum.
Tensor mean(const Tensor& x);
Tensor mean(const Tensor& x, std::span<const int> axes, bool keepdim = false);
Tensor mean(const Tensor& x, std::initializer_list<int> axes, bool keepdim = false);

/// mean((x - mean(x))^2), divided by n - correction instead of n. Otherwise as mean.
///   saves    x - mean(x)
///   throws   also ValueError unless 0 <= correction < n, for n elements
Tensor variance(const Tensor& x, std::initializer_list<int> axes, bool keepdim = false,
                int64_t correction = 0);

/// The largest or smallest along an axis, and its index.
struct Extremum {
  Tensor values;   ///< dtype of x
  Tensor indices;  ///< i64; the first index on ties. NaN is chosen before all other values
};
/// Returns the extremum along one axis. The gradient goes only to the element at the index.
///   x        any dtype and strides; integers have no gradient
///   returns  x without the axis, or with size 1 there if `keepdim`
///   saves    the indices
///   throws   ShapeError if the axis does not exist or is empty
Extremum max(const Tensor& x, int axis, bool keepdim = false);
Extremum min(const Tensor& x, int axis, bool keepdim = false);
/// Return only the indices, i64.
Tensor argmax(const Tensor& x, int axis, bool keepdim = false);
Tensor argmin(const Tensor& x, int axis, bool keepdim = false);

/// y = ln(sum of e^x) along one axis, computed as m + ln(sum of e^(x - m)) with the maximum m.
///   x        f64 f32 f16 bf16, any strides
///   returns  x without the axis, or with size 1 there if `keepdim`; -inf if all elements are -inf
///            or there are none, inf if one is inf and none NaN
///   saves    x, with the axis last
///   throws   DTypeError on integers, ShapeError if the axis does not exist
Tensor logsumexp(const Tensor& x, int axis, bool keepdim = false);

/// y_i = sum of x_j over j <= i, along one axis; summed in f64 (i64 for integers).
///   x        any dtype and strides; integers have no gradient
///   returns  shape of x; dtype of x, i64 for integers
///   saves    nothing
///   throws   ShapeError if the axis does not exist
Tensor cumsum(const Tensor& x, int axis = -1);

}  // namespace longspan
