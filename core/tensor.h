#pragma once

#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/shape.h"
#include "core/storage.h"
#include "core/view.h"

namespace longspan {

namespace autograd {
struct Meta;
}

/// A shaped handle on memory that the tracker counts. A copy shares the storage. A
/// default-constructed tensor is undefined, which means "not given".
class Tensor {
 public:
  Tensor() = default;
  // Out of line: inline copies of two shared pointers in all code that holds a tensor cost much
  // compile time, and a call costs little compared with a tensor's work.
  Tensor(const Tensor& other);
  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(const Tensor& other);
  Tensor& operator=(Tensor&& other) noexcept;
  ~Tensor();

  /// Returns an uninitialised row-major tensor. Throws ShapeError on a negative size, OutOfMemory.
  static Tensor empty(const Shape& shape, DType dtype = DType::f32, Device device = {},
                      Category category = Category::other);
  static Tensor zeros(const Shape& shape, DType dtype = DType::f32, Device device = {},
                      Category category = Category::other);
  /// Same shape, dtype and device; uninitialised and row-major, whatever the strides of `other`.
  static Tensor like(const Tensor& other) {
    return empty(other.shape_, other.dtype_, other.device());
  }
  /// Copies host values. Throws ShapeError if their number is not numel(shape).
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape, Device device = {}) {
    return from_bytes(values.data(), static_cast<int64_t>(values.size()), shape, dtype_of<T>,
                      device);
  }
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape, Device device = {}) {
    return from(std::span<const T>(values), shape, device);
  }
  /// Returns a tensor of rank 0.
  template <class T>
  static Tensor scalar(T value, Device device = {}) {
    return from(std::span<const T>(&value, 1), Shape{}, device);
  }

  explicit operator bool() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  const Strides& strides() const { return strides_; }
  int rank() const { return shape_.rank(); }
  /// Returns the size of an axis; negative axes count from the end. Throws ShapeError if there is
  /// no such axis.
  int64_t dim(int axis) const { return shape_[checked_axis(axis)]; }
  /// Returns the axis as an index from 0 on. Throws ShapeError if there is no such axis.
  int checked_axis(int axis) const;
  int64_t numel() const { return longspan::numel(shape_); }
  /// Returns the bytes of the elements, even if the storage is larger or shared.
  int64_t nbytes() const { return numel() * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  Device device() const { return storage_ ? storage_->device() : Device{}; }
  bool contiguous() const { return is_contiguous(shape_, strides_); }

  /// Returns a read-only view for a kernel; for an undefined tensor an empty view that tests false.
  ConstView view() const;
  /// Returns a writable view for a kernel; increments the storage's version.
  View mut();

  /// Returns another tensor on the same storage, without history. `offset` is relative to this
  /// tensor, in elements. Shape ops use it and record the backward pass.
  Tensor alias(const Shape& shape, const Strides& strides, int64_t offset) const;
  /// Returns the same data without history.
  Tensor detach() const { return alias(shape_, strides_, 0); }
  /// Returns select(*this, 0, i) (ops/shape.h): element i of the first axis, without that axis.
  /// Negative i counts from the end. A view, differentiable. Throws ShapeError if there is no axis,
  /// ValueError if the axis has no such element.
  Tensor operator[](int64_t i) const;

  /// Waits and copies to the host, row-major. Throws DTypeError if T is not the dtype.
  template <class T>
  std::vector<T> to_vector() const {
    std::vector<T> values(static_cast<size_t>(numel()));
    to_host(values.data(), dtype_of<T>);
    return values;
  }
  /// Returns the value of a tensor with one element, converted to double. Waits.
  double item() const;

  /// Throws ValueError if the tensor is undefined.
  Storage& storage() const {
    if (!storage_) fail_undefined("storage");
    return *storage_;
  }
  bool shares_storage(const Tensor& other) const { return storage_ == other.storage_; }
  /// Whether no other handle refers to the storage.
  bool unique() const { return storage_ && storage_.use_count() == 1; }
  void set_category(Category category) { storage().set_category(category); }

  const std::shared_ptr<autograd::Meta>& meta() const { return meta_; }
  void set_meta(std::shared_ptr<autograd::Meta> meta) { meta_ = std::move(meta); }

 private:
  static Tensor from_bytes(const void* values, int64_t count, const Shape& shape, DType dtype,
                           Device device);
  void to_host(void* values, DType dtype) const;
  [[noreturn]] static void fail_undefined(const char* what);

  std::shared_ptr<Storage> storage_;
  Shape shape_;
  Strides strides_;
  int64_t offset_ = 0;  // elements from the start of the storage
  DType dtype_ = DType::f32;
  std::shared_ptr<autograd::Meta> meta_;  // null outside a graph
};

/// Prints dtype, shape, device and the values, nested in brackets: "f32[2] cpu [1, 2.5]". Floating
/// values have six significant digits. An axis of more than 10 elements shows its first and last
/// five, fewer if more than 1000 values would be shown. A tensor of the meta device has no values;
/// an undefined one prints as "undefined". Waits for the device, and copies only what is shown.
std::ostream& operator<<(std::ostream& out, const Tensor& x);

/// Returns a line for a message: "  name  f32[8, 1024]  cpu".
std::string describe(std::string_view name, const Tensor& tensor);

/// A tensor argument with its name, for the lines of a message.
struct Named {
  std::string_view name;
  const Tensor& tensor;
};

/// Returns "op: message" and a line for each tensor.
std::string compose(std::string_view op, std::string_view message,
                    std::initializer_list<Named> args);

/// Throws E with compose(op, message, args).
template <class E>
[[noreturn]] void fail_with(std::string_view op, std::string_view message,
                            std::initializer_list<Named> args) {
  throw E(compose(op, message, args));
}

/// Checks shared by ops. Each throws the type in its name and lists the tensor. An undefined tensor
/// counts as an argument that was not given, and the message says so.
void require_defined(std::string_view op, const Tensor& x);
void require_floating(std::string_view op, const Tensor& x, std::string_view name = "x");
void require_integer(std::string_view op, const Tensor& x, std::string_view name = "x");
/// Require a rank of at least `rank`, or of exactly `rank`.
void require_rank(std::string_view op, const Tensor& x, int rank, std::string_view name = "x");
void require_rank_is(std::string_view op, const Tensor& x, int rank, std::string_view name = "x");
void require_same_dtype(std::string_view op, Named a, Named b);
void require_same_device(std::string_view op, Named a, Named b);
/// Requires two floating tensors of one dtype and device.
void require_floating_pair(std::string_view op, Named a, Named b);
void require_same_shape(std::string_view op, Named a, Named b);
void require_shape(std::string_view op, const Tensor& x, const Shape& shape,
                   std::string_view name = "x");

}  // namespace longspan
