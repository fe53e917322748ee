#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace longspan {

/// Sees what one thread does while it is set there: a profile (train/profiler.h). Begins and ends
/// of each kind nest.
class Watch {
 public:
  /// A tensor that a kernel is given.
  struct Operand {
    int64_t numel = 0, last = 0;  ///< number of elements, and size of the last axis
    int64_t bytes = 0;
  };

  virtual ~Watch() = default;
  virtual void kernel_begins(std::string_view kernel) = 0;
  virtual void kernel_ends(std::span<const Operand> operands) = 0;
  /// The kernels since the last end of an op were this op's, which returns a tensor of these sizes.
  virtual void op_ends(std::string_view op, std::span<const int64_t> sizes) = 0;
  /// A node of the backward pass, recorded in `scope`.
  virtual void node_begins(std::string_view op, const std::string& scope) = 0;
  virtual void node_ends() = 0;
  virtual void scope_begins() = 0;
  virtual void scope_ends() = 0;
  virtual void phase_begins(std::string_view phase) = 0;
  virtual void phase_ends() = 0;

  /// Returns this thread's watch; null if none is set.
  static Watch* of_thread() {
    return set_.load(std::memory_order_relaxed) == 0 ? nullptr : found();
  }
  /// Sets this thread's watch, or removes it with null. Returns the previous one.
  static Watch* set(Watch* watch);

 private:
  static Watch* found();
  static inline constinit std::atomic<int> set_{0};  // in all threads
};

/// Says what a program does while it lives, in the words of profiles: "data", "forward",
/// "backward", "update". Does nothing without a Watch.
class Phase {
 public:
  explicit Phase(std::string_view name) : watch_(Watch::of_thread()) {
    if (watch_ != nullptr) watch_->phase_begins(name);
  }
  ~Phase() {
    if (watch_ != nullptr && watch_ == Watch::of_thread()) watch_->phase_ends();
  }
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

 private:
  Watch* watch_;
};

/// Pushes a name on this thread's stack while it lives. The stack, joined by dots, is appended to
/// error messages and names memory traces: Scope("layers", 3) -> "model.layers.3".
class Scope {
 public:
  explicit Scope(std::string_view name);
  Scope(std::string_view name, long index);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  /// Returns the whole stack; "" if it is empty.
  static const std::string& path();

 private:
  size_t length_;  // of the path before this scope
  Watch* watch_ = nullptr;
};

/// Replaces this thread's stack by `path` while it lives, so that work which starts in one scope
/// and continues in another keeps the name of the first.
class ScopeAt {
 public:
  explicit ScopeAt(std::string path);
  ~ScopeAt();
  ScopeAt(const ScopeAt&) = delete;
  ScopeAt& operator=(const ScopeAt&) = delete;

 private:
  std::string here_;  // restored by the destructor
};

}  // namespace longspan
