#include "core/error.h"

#include "core/scope.h"
#include "core/tensor.h"

namespace longspan {
namespace {

std::string with_scope(const std::string& message) {
  const std::string& scope = Scope::path();
  return scope.empty() ? message : message + "\n  in " + scope;
}

}  // namespace

Error::Error(const std::string& message) : std::runtime_error(with_scope(message)) {}

void fail_for_memory(std::string_view op) {
  fail<OutOfMemory>(op,
                    "out of memory on the host, beside the tensors; shorten the sequence, shrink "
                    "the batch or the model, or end other programs");
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
