#include "core/error.h"

#include "core/scope.h"

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

}  // namespace longspan
