#pragma once

#include <initializer_list>
#include <span>

#include "core/tensor.h"

namespace longspan {

/// x itself where it is row-major, else a row-major copy. Any dtype.
Tensor contiguous(const Tensor& x);
/// A row-major copy with storage of its own.
Tensor clone(const Tensor& x);
/// x in another dtype; x itself where it has it. Floating to floating rounds to nearest even,
/// floating to integer truncates. The gradient is cast back; there is none through integers.
Tensor cast(const Tensor& x, DType dtype);
/// x on another device; x itself where it is there. The gradient goes back.
Tensor to_device(const Tensor& x, Device device);

/// The tensors behind one another along an axis.
///   x       one or more tensors of one dtype and device, equal in every other axis
///   returns [..., sum of sizes, ...]
///   throws  ShapeError, DTypeError, DeviceError naming the first that does not fit
Tensor concat(std::span<const Tensor> x, int axis);
Tensor concat(std::initializer_list<Tensor> x, int axis);
/// The same with a new axis, whose size is the number of tensors.
Tensor stack(std::span<const Tensor> x, int axis = 0);
Tensor stack(std::initializer_list<Tensor> x, int axis = 0);
/// `before` and `after` elements of `value` around x along one axis.
Tensor pad(const Tensor& x, int axis, int64_t before, int64_t after, double value = 0.0);
/// Elements of one axis in reverse order; a copy.
Tensor flip(const Tensor& x, int axis);
/// x repeated `times` along an axis, as a whole: a b a b.
Tensor repeat(const Tensor& x, int axis, int64_t times);

/// Constants. No gradients.
Tensor full(const Shape& shape, double value, DType dtype = DType::f32, Device device = {});
Tensor zeros(const Shape& shape, DType dtype = DType::f32, Device device = {});
Tensor ones(const Shape& shape, DType dtype = DType::f32, Device device = {});
Tensor full_like(const Tensor& x, double value);
Tensor zeros_like(const Tensor& x);
Tensor ones_like(const Tensor& x);
/// begin, begin + step, ... before end (after end, where step is negative). The number of elements
/// is computed in f64 and element i is begin + i * step. Throws ValueError where step is zero or
/// leads away from end.
Tensor arange(double begin, double end, double step = 1.0, DType dtype = DType::i64,
              Device device = {});
/// 0, 1, ..., n - 1.
Tensor iota(int64_t n, DType dtype = DType::i64, Device device = {});

}  // namespace longspan
