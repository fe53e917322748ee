#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cuda_runtime.h"
#include "tests/cuda/emulated/device.h"

/// The subset of CUB that the backend uses; see cuda_runtime.h.
namespace cub {

template <class T>
struct DoubleBuffer {
  T* d_buffers[2];
  int selector = 0;
  DoubleBuffer(T* current, T* other) : d_buffers{current, other} {}
  T* Current() const { return d_buffers[selector]; }
  T* Alternate() const { return d_buffers[1 - selector]; }
};

struct DeviceRadixSort {
  /// Sorts stably by the bits [begin, end) of the keys. The result is stored in the other buffers,
  /// which become current; the first ones then hold nothing of use.
  template <class K, class V>
  static cudaError_t SortPairs(void* room, size_t& bytes, DoubleBuffer<K>& keys,
                               DoubleBuffer<V>& values, int64_t n, int begin, int end,
                               cudaStream_t) {
    constexpr size_t needed = 1024;
    if (room == nullptr) {
      bytes = needed;
      return cudaSuccess;
    }
    if (bytes < needed || begin < 0 || end > static_cast<int>(8 * sizeof(K)) || begin >= end) {
      return cudaErrorInvalidValue;
    }
    longspan::emulated::submit([room, key = keys.Current(), other_key = keys.Alternate(),
                                value = values.Current(), other_value = values.Alternate(), n,
                                begin, end] {
      const int width = end - begin;
      const K mask = width == static_cast<int>(8 * sizeof(K)) ? ~K(0) : (K(1) << width) - 1;
      std::vector<int64_t> order(static_cast<size_t>(n));
      for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return (key[a] >> begin & mask) < (key[b] >> begin & mask);
      });
      std::fill_n(static_cast<char*>(room), needed, '\xff');
      for (int64_t i = 0; i < n; ++i) {
        other_key[i] = key[order[static_cast<size_t>(i)]];
        other_value[i] = value[order[static_cast<size_t>(i)]];
      }
      std::fill_n(reinterpret_cast<char*>(key), n * static_cast<int64_t>(sizeof(K)), '\xff');
      std::fill_n(reinterpret_cast<char*>(value), n * static_cast<int64_t>(sizeof(V)), '\xff');
    });
    keys.selector = 1 - keys.selector;
    values.selector = 1 - values.selector;
    return cudaSuccess;
  }
};

}  // namespace cub
