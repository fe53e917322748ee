#include "core/scope.h"

namespace longspan {
namespace {

std::string& stack() {
  thread_local std::string path;
  return path;
}

}  // namespace

Scope::Scope(std::string_view name) : length_(stack().size()) {
  std::string& path = stack();
  if (!path.empty()) path += '.';
  path += name;
}

Scope::Scope(std::string_view name, long index) : Scope(name) {
  stack() += '.';
  stack() += std::to_string(index);
}

Scope::~Scope() { stack().resize(length_); }

const std::string& Scope::path() { return stack(); }

}  // namespace longspan
