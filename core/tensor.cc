#include "core/tensor.h"

#include <algorithm>
#include <cstring>
#include <ostream>
#include <string>

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

namespace {

/// Returns how many elements at each end of an axis operator<< shows.
int64_t shown_at_ends(const Shape& shape) {
  constexpr int64_t most = 1000;
  for (const int64_t ends : {5, 3, 2}) {
    int64_t values = 1;
    for (const int64_t n : shape) values *= std::min(n, 2 * ends);
    if (values <= most) return ends;
  }
  return 1;
}

/// Appends the texts of the shown values of x, row-major.
void add_texts(const Tensor& x, int64_t ends, std::vector<std::string>& texts) {
  if (x.rank() > 1) {
    Shape shape = x.shape();
    Strides strides = x.strides();
    shape.erase(0);
    strides.erase(0);
    const int64_t n = x.dim(0);
    for (int64_t i = 0; i < n; ++i) {
      if (i == ends && n > 2 * ends) i = n - ends;
      add_texts(x.alias(shape, strides, i * x.strides()[0]), ends, texts);
    }
    return;
  }
  visit_dtype(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto add = [&](const Tensor& piece) {
      for (const T value : piece.to_vector<T>()) {
        if constexpr (std::is_integral_v<T>) {
          texts.push_back(fmt::format("{}", int64_t{value}));
        } else {
          texts.push_back(fmt::format("{:.6g}", static_cast<double>(value)));
        }
      }
    };
    const int64_t n = x.numel();
    if (x.rank() == 0 || n <= 2 * ends) return add(x);
    const int64_t stride = x.strides()[0];
    add(x.alias({ends}, {stride}, 0));
    add(x.alias({ends}, {stride}, (n - ends) * stride));
  });
}

/// Appends the brackets from `axis` on with the next texts between them.
void add_brackets(const Shape& shape, int axis, int64_t ends, size_t width,
                  const std::string*& text, std::string& out) {
  if (axis == shape.rank()) {
    out += fmt::format("{:>{}}", *text++, width);
    return;
  }
  const std::string between =
      axis + 1 < shape.rank() ? ",\n" + std::string(static_cast<size_t>(axis) + 1, ' ') : ", ";
  const bool cut = shape[axis] > 2 * ends;
  const int64_t shown = cut ? 2 * ends : shape[axis];
  out += '[';
  for (int64_t i = 0; i < shown; ++i) {
    if (i > 0) out += between;
    if (cut && i == ends) out += "..." + between;
    add_brackets(shape, axis + 1, ends, width, text, out);
  }
  out += ']';
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Tensor& x) {
  if (!x) return out << "undefined";
  std::string all =
      fmt::format("{}{} {}", name_of(x.dtype()), to_string(x.shape()), name_of(x.device()));
  if (x.device() == meta_device) return out << all;
  all += x.rank() > 1 && x.numel() > 0 ? '\n' : ' ';
  if (x.numel() == 0) return out << all + "[]";
  const int64_t ends = shown_at_ends(x.shape());
  std::vector<std::string> texts;
  add_texts(x, ends, texts);
  size_t width = 0;
  for (const std::string& t : texts) width = std::max(width, t.size());
  const std::string* text = texts.data();
  add_brackets(x.shape(), 0, ends, x.rank() > 1 ? width : 0, text, all);
  return out << all;
}

std::string describe(std::string_view name, const Tensor& tensor) {
  if (!tensor) return fmt::format("  {}  undefined", name);
  return fmt::format("  {}  {}{}  {}", name, name_of(tensor.dtype()), to_string(tensor.shape()),
                     name_of(tensor.device()));
}

std::string compose(std::string_view op, std::string_view message,
                    std::initializer_list<Named> args) {
  std::string text = fmt::format("{}: {}", op, message);
  for (const Named& a : args) text += "\n" + describe(a.name, a.tensor);
  return text;
}

namespace {

/// Throws E if the tensor is undefined.
template <class E>
void require_given(std::string_view op, const Tensor& x, std::string_view name) {
  if (x) return;
  fail_with<E>(op, fmt::format("{} was not given: pass a tensor that is defined", name),
               {{name, x}});
}

}  // namespace

void require_defined(std::string_view op, const Tensor& x) {
  require(static_cast<bool>(x), op, "x is undefined");
}

void require_floating(std::string_view op, const Tensor& x, std::string_view name) {
  require_given<DTypeError>(op, x, name);
  if (is_floating(x.dtype())) return;
  fail_with<DTypeError>(
      op, fmt::format("{} must be floating (f64, f32, f16, bf16); cast it first", name),
      {{name, x}});
}

void require_integer(std::string_view op, const Tensor& x, std::string_view name) {
  require_given<DTypeError>(op, x, name);
  if (!is_floating(x.dtype())) return;
  fail_with<DTypeError>(op, fmt::format("{} must be integer (i64, i32, u8); cast it first", name),
                        {{name, x}});
}

void require_rank(std::string_view op, const Tensor& x, int rank, std::string_view name) {
  require_given<ShapeError>(op, x, name);
  if (x.rank() >= rank) return;
  fail_with<ShapeError>(op, fmt::format("{} must have rank {} or more", name, rank), {{name, x}});
}

void require_rank_is(std::string_view op, const Tensor& x, int rank, std::string_view name) {
  require_given<ShapeError>(op, x, name);
  if (x.rank() == rank) return;
  fail_with<ShapeError>(op, fmt::format("{} must have rank {}", name, rank), {{name, x}});
}

void require_same_dtype(std::string_view op, Named a, Named b) {
  for (const Named& x : {a, b}) require_given<DTypeError>(op, x.tensor, x.name);
  if (a.tensor.dtype() == b.tensor.dtype()) return;
  fail_with<DTypeError>(op,
                        fmt::format("dtypes differ: {} and {}; cast one of them",
                                    name_of(a.tensor.dtype()), name_of(b.tensor.dtype())),
                        {a, b});
}

void require_same_device(std::string_view op, Named a, Named b) {
  for (const Named& x : {a, b}) require_given<DeviceError>(op, x.tensor, x.name);
  if (a.tensor.device() == b.tensor.device()) return;
  fail_with<DeviceError>(op,
                         fmt::format("devices differ: {} and {}; copy one with to_device",
                                     name_of(a.tensor.device()), name_of(b.tensor.device())),
                         {a, b});
}

void require_floating_pair(std::string_view op, Named a, Named b) {
  require_floating(op, a.tensor, a.name);
  require_floating(op, b.tensor, b.name);
  require_same_dtype(op, a, b);
  require_same_device(op, a, b);
}

void require_same_shape(std::string_view op, Named a, Named b) {
  for (const Named& x : {a, b}) require_given<ShapeError>(op, x.tensor, x.name);
  if (a.tensor.shape() == b.tensor.shape()) return;
  fail_with<ShapeError>(op,
                        fmt::format("shapes differ: {} and {}", to_string(a.tensor.shape()),
                                    to_string(b.tensor.shape())),
                        {a, b});
}

void require_shape(std::string_view op, const Tensor& x, const Dims& shape, std::string_view name) {
  require_given<ShapeError>(op, x, name);
  if (x.shape() == shape) return;
  fail_with<ShapeError>(op, fmt::format("{} must have shape {}", name, to_string(shape)),
                        {{name, x}});
}

}  // namespace longspan
