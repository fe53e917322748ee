#pragma once

#include <fmt/core.h>

#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace longspan {

/// Base of every exception that the library throws. `what()` is the whole message: the op and the
/// error, one line for each tensor argument if there are any, and the scope ("in model.layer").
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message);  // appends the current Scope
};

/// Shapes or ranks that do not match.
class ShapeError : public Error {
  using Error::Error;
};
/// A dtype that an op does not accept, or two that differ.
class DTypeError : public Error {
  using Error::Error;
};
/// A device that is missing, or two that differ.
class DeviceError : public Error {
  using Error::Error;
};
/// An argument outside its domain: an id out of range, a probability of 2, an unknown option.
class ValueError : public Error {
  using Error::Error;
};
/// A kernel, field or combination that this build or device does not have.
class NotImplemented : public Error {
  using Error::Error;
};
/// Misuse of autograd: a stale saved tensor, a graph used twice, gradients of gradients.
class GradientError : public Error {
  using Error::Error;
};
/// Out of memory. The message includes the tracker's table.
class OutOfMemory : public Error {
  using Error::Error;
};
class CudaError : public Error {
  using Error::Error;
};
/// Any file error: missing, unreadable, damaged, not writable.
class IoError : public Error {
  using Error::Error;
};

/// Throws E with "op: message". Formats the arguments only when it throws.
///   require(a.dim(-1) == b.dim(-2), "matmul", "inner dimensions differ: {} and {}", ...)
template <class E = ValueError, class... Args>
[[noreturn]] void fail(std::string_view op, fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::format("{}: {}", op, fmt::format(format, std::forward<Args>(args)...)));
}

/// Calls fail<E>(...) unless `condition` holds.
template <class E = ValueError, class... Args>
void require(bool condition, std::string_view op, fmt::format_string<Args...> format,
             Args&&... args) {
  if (!condition) fail<E>(op, format, std::forward<Args>(args)...);
}

/// Throws OutOfMemory: the host has no memory for what `op` stores besides tensors.
[[noreturn]] void fail_for_memory(std::string_view op);

/// Calls f(). Turns std::bad_alloc (no memory on the host) into OutOfMemory that names `op`.
template <class F>
decltype(auto) with_memory_for(std::string_view op, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const std::bad_alloc&) {
    fail_for_memory(op);
  }
}

}  // namespace longspan
