#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/dtype.h"
#include "core/shape.h"

namespace longspan {

/// A kernel's read-only view of a tensor: address, dtype, device, sizes and strides in elements.
struct ConstView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  Device device;
  Shape shape;
  Strides strides;

  int rank() const { return shape.rank(); }
  int64_t dim(int axis) const { return shape[axis < 0 ? axis + shape.rank() : axis]; }
  int64_t stride(int axis) const { return strides[axis < 0 ? axis + strides.rank() : axis]; }
  int64_t numel() const { return longspan::numel(shape); }
  bool contiguous() const { return is_contiguous(shape, strides); }
  /// False for the view of an undefined tensor.
  explicit operator bool() const { return data != nullptr; }
  template <class T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
};

/// A kernel's writable view of a tensor.
struct View {
  void* data = nullptr;
  DType dtype = DType::f32;
  Device device;
  Shape shape;
  Strides strides;

  int rank() const { return shape.rank(); }
  int64_t dim(int axis) const { return shape[axis < 0 ? axis + shape.rank() : axis]; }
  int64_t stride(int axis) const { return strides[axis < 0 ? axis + strides.rank() : axis]; }
  int64_t numel() const { return longspan::numel(shape); }
  bool contiguous() const { return is_contiguous(shape, strides); }
  explicit operator bool() const { return data != nullptr; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  operator ConstView() const { return {data, dtype, device, shape, strides}; }
};

}  // namespace longspan
