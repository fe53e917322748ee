#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/attention/plan.h"

namespace longspan::cpu {

/// Prefetches rows a few at a time after each product, so that memory traffic overlaps with
/// arithmetic.
class Prefetcher {
 public:
  void clear() {
    parts_.clear();
    next_ = 0;
    rows_ = 0;
  }

  /// Queues rows [from, to) of x, to read or to write.
  template <class T>
  void add(const RowSource<T>& x, int64_t from, int64_t to) {
    add({x.base, x.order, x.stride * size_of(x.dtype), x.width * size_of(x.dtype), from, to,
         false});
  }
  template <class T>
  void add(const RowSink<T>& x, int64_t from, int64_t to) {
    if (x.stream) return;
    add({x.base, x.order, x.stride * size_of(x.dtype), x.width * size_of(x.dtype), from, to, true});
  }

  /// Queues `rows` adjacent rows of `width` elements, to write.
  template <class T>
  void add(const T* x, int64_t rows, int64_t width) {
    const int64_t bytes = width * static_cast<int64_t>(sizeof(T));
    add({reinterpret_cast<const char*>(x), nullptr, bytes, bytes, 0, rows, true});
  }

  /// Spreads the queued rows over `steps` calls of step(), within limits for each call.
  void spread(int64_t steps) {
    pace_ = std::clamp(rows_ / std::max<int64_t>(1, steps) + 1, kLeast, kMost);
  }

  void step() {
    if (next_ < parts_.size()) ask();
  }

 private:
  struct RowRange {
    const char* base;
    const int32_t* order;
    int64_t stride, bytes;
    int64_t from, to;
    bool write;
  };
  static constexpr int64_t kLeast = 1, kMost = 8;  // rows per step

  void add(const RowRange& part) {
    if (part.from >= part.to || part.base == nullptr) return;
    rows_ += part.to - part.from;
    parts_.push_back(part);
  }
  void ask() {
    for (int64_t left = pace_; left > 0 && next_ < parts_.size();) {
      RowRange& p = parts_[next_];
      const int64_t end = std::min(p.from + left, p.to);
      left -= end - p.from;
      for (; p.from < end; ++p.from) {
        const int64_t row = p.order != nullptr ? p.order[p.from] : p.from;
        prefetch_bytes(p.base + row * p.stride, p.bytes, p.write);
      }
      if (p.from == p.to) ++next_;
    }
  }

  std::vector<RowRange> parts_;
  size_t next_ = 0;
  int64_t rows_ = 0, pace_ = kLeast;
};

}  // namespace longspan::cpu
