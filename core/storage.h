#pragma once

#include <atomic>
#include <cstdint>

#include "core/device.h"
#include "core/memory.h"

namespace longspan {

/// Bytes on one device. They never move, and go with the last handle.
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

  /// Counts the writes: each Tensor::mut() adds one.
  uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump() { version_.fetch_add(1, std::memory_order_relaxed); }

  /// While at least one op keeps it, storage that was `other` counts as `saved`.
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
