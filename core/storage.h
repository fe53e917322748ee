#pragma once

#include <atomic>
#include <cstdint>

#include "core/device.h"
#include "core/memory.h"

namespace longspan {

/// Bytes on one device. They never move, and are freed with the last handle.
class Storage {
 public:
  Storage(int64_t bytes, Device device, Category category);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }

  Category category() const { return category_; }
  void set_category(Category category);

  /// Returns the number of writes: each Tensor::mut() adds one.
  uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump() { version_.fetch_add(1, std::memory_order_relaxed); }

  /// While at least one op retains it, storage of category `other` counts as `saved`.
  void retain();
  void release();

 private:
  void* data_ = nullptr;
  int64_t bytes_;
  Device device_;
  Category category_;
  int holders_ = 0;
  std::atomic<uint64_t> version_{0};
};

}  // namespace longspan
