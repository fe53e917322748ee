#pragma once

#include <cstdint>

#include "core/view.h"

namespace longspan::cuda {

/// Integers of any dtype, readable in a kernel.
struct Ids {
  const void* data;
  DType dtype;

  explicit Ids(const ConstView& view) : data(view.data), dtype(view.dtype) {}
  __device__ int64_t operator[](int64_t i) const {
    switch (dtype) {
      case DType::i64:
        return static_cast<const int64_t*>(data)[i];
      case DType::i32:
        return static_cast<const int32_t*>(data)[i];
      default:
        return static_cast<const uint8_t*>(data)[i];
    }
  }
};

/// The same for writing; without data nothing is written.
struct IdsToWrite {
  void* data;
  DType dtype;

  explicit IdsToWrite(const View& view) : data(view.data), dtype(view.dtype) {}
  __device__ void set(int64_t i, int64_t id) const {
    if (data == nullptr) return;
    switch (dtype) {
      case DType::i64:
        static_cast<int64_t*>(data)[i] = id;
        break;
      case DType::i32:
        static_cast<int32_t*>(data)[i] = static_cast<int32_t>(id);
        break;
      default:
        static_cast<uint8_t*>(data)[i] = static_cast<uint8_t>(id);
    }
  }
};

/// Lowers *least atomically to `value`, which is not negative; -1 counts as the largest value.
__device__ inline void lower(int64_t* least, int64_t value) {
  atomicMin(reinterpret_cast<unsigned long long*>(least), static_cast<unsigned long long>(value));
}

}  // namespace longspan::cuda
