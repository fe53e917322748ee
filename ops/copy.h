#pragma once

#include <initializer_list>
#include <span>

#include "core/tensor.h"

namespace longspan {

/// Returns x itself if it is row-major, else a row-major copy. Any dtype.
Tensor contiguous(const Tensor& x);
/// Returns a row-major copy with its own storage.
Tensor clone(const Tensor& x);
/// Returns x in another dtype, or x itself if it already has that dtype. Floating to floating
/// rounds to nearest even, floating to integer truncates. The gradient is cast back; none flows
/// through integers.
Tensor cast(const Tensor& x, DType dtype);
/// Returns x on another device, or x itself if it is already there. The gradient is copied back.
Tensor to_device(const Tensor& x, Device device);

/// Concatenates tensors along an axis.
///   x       one or more tensors of one dtype and device, equal in every other axis
///   returns [..., sum of sizes, ...]
///   throws  ShapeError, DTypeError, DeviceError that name the first tensor that does not fit
Tensor concat(std::span<const Tensor> x, int axis);
Tensor concat(std::initializer_list<Tensor> x, int axis);
/// Stacks tensors along a new axis, whose size is the number of tensors. Otherwise as concat.
Tensor stack(std::span<const Tensor> x, int axis = 0);
Tensor stack(std::initializer_list<Tensor> x, int axis = 0);
/// Pads x with `before` and `after` elements of `value` along one axis.
Tensor pad(const Tensor& x, int axis, int64_t before, int64_t after, double value = 0.0);
/// Reverses the elements of one axis; a copy.
Tensor flip(const Tensor& x, int axis);
/// Repeats x as a whole `times` times along an axis: a b a b.
Tensor repeat(const Tensor& x, int axis, int64_t times);

/// Constant tensors. No gradients.
Tensor full(const Shape& shape, double value, DType dtype = DType::f32, Device device = {});
Tensor zeros(const Shape& shape, DType dtype = DType::f32, Device device = {});
Tensor ones(const Shape& shape, DType dtype = DType::f32, Device device = {});
Tensor full_like(const Tensor& x, double value);
Tensor zeros_like(const Tensor& x);
Tensor ones_like(const Tensor& x);
/// begin, begin + step, ... before end (after end if step is negative). The number of elements is
/// computed in f64, and element i is begin + i * step. Throws ValueError if step is zero or leads
/// away from end.
Tensor arange(double begin, double end, double step = 1.0, DType dtype = DType::i64,
              Device device = {});
/// 0, 1, ..., n - 1.
Tensor iota(int64_t n, DType dtype = DType::i64, Device device = {});

}  // namespace longspan
