#include "core/scope.h"

#include <utility>

namespace longspan {
namespace {

std::string& stack() {
  thread_local std::string path;
  return path;
}

thread_local Watch* watch = nullptr;

}  // namespace

Watch* Watch::found() { return watch; }

Watch* Watch::set(Watch* next) {
  Watch* const before = std::exchange(watch, next);
  set_.fetch_add((next != nullptr ? 1 : 0) - (before != nullptr ? 1 : 0));
  return before;
}

Scope::Scope(std::string_view name) : length_(stack().size()) {
  std::string& path = stack();
  path.reserve(path.size() + 1 + name.size());  // throws before anything changes
  if (!path.empty()) path += '.';
  path += name;
  watch_ = Watch::of_thread();
  if (watch_ != nullptr) watch_->scope_begins();
}

Scope::Scope(std::string_view name, long index)
    : Scope(std::string(name) + '.' + std::to_string(index)) {}

Scope::~Scope() {
  if (watch_ != nullptr && watch_ == Watch::of_thread()) watch_->scope_ends();
  stack().resize(length_);
}

const std::string& Scope::path() { return stack(); }

ScopeAt::ScopeAt(std::string path) : here_(std::move(path)) { here_.swap(stack()); }

ScopeAt::~ScopeAt() { here_.swap(stack()); }

}  // namespace longspan
