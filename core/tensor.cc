#include "core/tensor.h"

#include <cstring>

#include "core/deferred.h"
#include "core/graph.h"
#include "core/kernel.h"

namespace longspan {
namespace {

/// Copies a strided tensor row-major.
void gather(const char* from, const Strides& strides, const Shape& shape, int axis, int64_t size,
            char*& to) {
  if (axis == shape.rank()) {
    std::memcpy(to, from, static_cast<size_t>(size));
    to += size;
    return;
  }
  for (int64_t i = 0; i < shape[axis]; ++i) {
    gather(from + i * strides[axis] * size, strides, shape, axis + 1, size, to);
  }
}

}  // namespace

Tensor::Tensor(const Tensor& other) = default;
Tensor::Tensor(Tensor&& other) noexcept = default;
Tensor& Tensor::operator=(const Tensor& other) = default;
Tensor& Tensor::operator=(Tensor&& other) noexcept = default;
Tensor::~Tensor() = default;

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device, Category category) {
  const int64_t bytes = checked_numel("tensor", shape) * size_of(dtype);
  Tensor t;
  t.storage_ =
      with_memory_for("tensor", [&] { return std::make_shared<Storage>(bytes, device, category); });
  t.shape_ = shape;
  t.strides_ = contiguous_strides(shape);
  t.dtype_ = dtype;
  return t;
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Device device, Category category) {
  Tensor t = empty(shape, dtype, device, category);
  if (t.nbytes() > 0) set_zero(device, t.storage_->data(), t.nbytes());
  return t;
}

Tensor Tensor::from_bytes(const void* values, int64_t count, const Shape& shape, DType dtype,
                          Device device) {
  require<ShapeError>(count == checked_numel("tensor", shape), "tensor",
                      "{} values for the shape {}", count, to_string(shape));
  Tensor t = empty(shape, dtype, device);
  if (count > 0) graph::upload(device, t.storage_->data(), values, t.nbytes());
  return t;
}

void Tensor::fail_undefined(const char* what) {
  fail("tensor", "the {} of a tensor that was not given: it is undefined", what);
}

int Tensor::checked_axis(int axis) const {
  if (!*this) fail_with<ShapeError>("tensor", "it was not given, and has no axes", {{"x", *this}});
  const int i = axis < 0 ? axis + rank() : axis;
  if (i < 0 || i >= rank()) {
    fail_with<ShapeError>("tensor", fmt::format("axis {} of a tensor of rank {}", axis, rank()),
                          {{"x", *this}});
  }
  return i;
}

ConstView Tensor::view() const {
  if (!storage_) return {};
  return {static_cast<const char*>(storage_->data()) + offset_ * size_of(dtype_), dtype_,
          storage_->device(), shape_, strides_};
}

View Tensor::mut() {
  require(static_cast<bool>(*this), "tensor", "write to an undefined tensor");
  storage_->bump();
  return {static_cast<char*>(storage_->data()) + offset_ * size_of(dtype_), dtype_,
          storage_->device(), shape_, strides_};
}

Tensor Tensor::alias(const Shape& shape, const Strides& strides, int64_t offset) const {
  Tensor t = *this;
  t.shape_ = shape;
  t.strides_ = strides;
  t.offset_ = offset_ + offset;
  t.meta_ = nullptr;
  return t;
}

void Tensor::to_host(void* values, DType dtype) const {
  if (!*this || dtype != dtype_) {
    fail_with<DTypeError>("to_vector", fmt::format("asked for {}; cast it first", name_of(dtype)),
                          {{"x", *this}});
  }
  if (numel() == 0) return;
  deferred::raise_pending(device());
  const ConstView v = view();
  if (v.contiguous()) {
    copy_to_host(device(), values, v.data, nbytes());
    return;
  }
  // Copies the smallest span that contains every element in one transfer.
  int64_t span = 1;
  for (int i = 0; i < rank(); ++i) span += (shape_[i] - 1) * strides_[i];
  std::vector<char> bytes(static_cast<size_t>(span * size_of(dtype_)));
  copy_to_host(device(), bytes.data(), v.data, static_cast<int64_t>(bytes.size()));
  auto* to = static_cast<char*>(values);
  gather(bytes.data(), strides_, shape_, 0, size_of(dtype_), to);
}

double Tensor::item() const {
  if (!*this || numel() != 1) {
    fail_with<ShapeError>("item", "needs exactly one element", {{"x", *this}});
  }
  return visit_dtype(dtype_, [&](auto tag) {
    typename decltype(tag)::type value{};
    to_host(&value, dtype_);
    return static_cast<double>(value);
  });
}

}  // namespace longspan
