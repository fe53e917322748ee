#include "core/precision.h"

#include <atomic>

namespace longspan {
namespace {

std::atomic<MatmulPrecision> setting{MatmulPrecision::f32};

}  // namespace

MatmulPrecision matmul_precision() { return setting.load(std::memory_order_relaxed); }

void set_matmul_precision(MatmulPrecision precision) {
  setting.store(precision, std::memory_order_relaxed);
}

}  // namespace longspan
