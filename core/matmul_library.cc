#include "core/matmul_library.h"

#include <atomic>
#include <utility>

namespace longspan {
namespace {

std::atomic<MatmulLibrary> setting{MatmulLibrary::own};

std::string& description() {
  static std::string text;
  return text;
}

}  // namespace

MatmulLibrary matmul_library() { return setting.load(std::memory_order_relaxed); }

void set_matmul_library(MatmulLibrary library) {
  setting.store(library, std::memory_order_relaxed);
}

std::string_view openblas_description() { return description(); }

void set_openblas_description(std::string text) { description() = std::move(text); }

}  // namespace longspan
