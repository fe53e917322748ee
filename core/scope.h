#pragma once

#include <string>
#include <string_view>

namespace longspan {

/// Pushes a name on this thread's stack for as long as it lives. The stack, joined by dots, ends
/// error messages and names traces: Scope("layers", 3) -> "model.layers.3".
class Scope {
 public:
  explicit Scope(std::string_view name);
  Scope(std::string_view name, long index);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  /// The whole stack, "" where it is empty.
  static const std::string& path();

 private:
  size_t length_;  // of the path before this scope
};

/// Makes `path` the whole of this thread's stack for as long as it lives: work that was begun at
/// one place and goes on at another is named by the first.
class ScopeAt {
 public:
  explicit ScopeAt(std::string path);
  ~ScopeAt();
  ScopeAt(const ScopeAt&) = delete;
  ScopeAt& operator=(const ScopeAt&) = delete;

 private:
  std::string here_;  // what the stack is again
};

}  // namespace longspan
