#include "core/scope.h"

#include <utility>

namespace longspan {
namespace {

std::string& stack() {
  thread_local std::string path;
  return path;
}

}  // namespace

Scope::Scope(std::string_view name) : length_(stack().size()) {
  std::string& path = stack();
  path.reserve(path.size() + 1 + name.size());  // throws before anything changes
  if (!path.empty()) path += '.';
  path += name;
}

Scope::Scope(std::string_view name, long index) : Scope(name) {
  stack() += '.';
  stack() += std::to_string(index);
}

Scope::~Scope() { stack().resize(length_); }

const std::string& Scope::path() { return stack(); }

ScopeAt::ScopeAt(std::string path) : here_(std::move(path)) { here_.swap(stack()); }

ScopeAt::~ScopeAt() { here_.swap(stack()); }

}  // namespace longspan
