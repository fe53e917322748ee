#pragma once

#include <string>
#include <string_view>

namespace longspan {

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
