#include "core/kernels/sort.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "core/kernels/order.h"
#include "core/parallel.h"
#include "cpu/register.h"

namespace longspan::cpu {
namespace {

using kernels::key_of;

/// A 64-bit key and an index. Items differ even if keys are equal.
struct Wide {
  uint64_t key, place;
  friend bool operator<(const Wide& a, const Wide& b) {
    return a.key != b.key ? a.key < b.key : a.place < b.place;
  }
};

/// 32-bit keys share a word with their index.
template <class T>
using Item = std::conditional_t<sizeof(key_of(T{})) == 8, Wide, uint64_t>;

inline uint64_t place_of(const Wide& item) { return item.place; }
inline uint64_t place_of(uint64_t item) { return item & 0xffffffffu; }
inline uint64_t digits_of(const Wide& item) { return item.key; }
inline uint64_t digits_of(uint64_t item) { return item >> 32; }

template <class T>
void fill_items(const T* x, int64_t n, bool descending, Item<T>* items) {
  for (int64_t i = 0; i < n; ++i) {
    auto key = key_of(x[i]);
    if (descending) key = static_cast<decltype(key)>(~key);
    if constexpr (sizeof key == 8) {
      items[i] = {key, static_cast<uint64_t>(i)};
    } else {
      items[i] = uint64_t{key} << 32 | static_cast<uint64_t>(i);
    }
  }
}

/// Sorts by one byte of the key after another, lowest first; a byte that is the same in all keys
/// costs only a count. `other` holds n items, too. Returns the buffer with the result.
template <class I>
I* radix_sort(I* items, I* other, int64_t n, int bytes) {
  for (int b = 0; b < bytes; ++b) {
    int64_t count[257] = {};
    for (int64_t i = 0; i < n; ++i) ++count[(digits_of(items[i]) >> (8 * b) & 0xff) + 1];
    bool one = false;
    for (int d = 1; d <= 256; ++d) {
      one = one || count[d] == n;
      count[d] += count[d - 1];
    }
    if (one) continue;
    for (int64_t i = 0; i < n; ++i) {
      other[count[digits_of(items[i]) >> (8 * b) & 0xff]++] = items[i];
    }
    std::swap(items, other);
  }
  return items;
}

/// Calls sort_row(x row, items, row index) for every row. Slot s of the workspace serves rows s, s
/// + slots, s + 2 slots, ...
template <class F>
void for_rows(const ConstView& x, const View& work, F&& sort_row) {
  const int64_t rows = x.dim(0), n = x.dim(1), slots = work.dim(0);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(slots, [&](int64_t slot) {
      auto* items = reinterpret_cast<Item<T>*>(work.as<int64_t>() + slot * 4 * n);
      for (int64_t r = slot; r < rows; r += slots) sort_row(x.as<T>() + r * n, items, r);
    });
  });
}

void argsort(ConstView x, bool descending, View work, View indices) {
  const int64_t n = x.dim(1);
  for_rows(x, work, [&](const auto* row, auto* items, int64_t r) {
    fill_items(row, n, descending, items);
    if (n < 256) {
      std::sort(items, items + n);
    } else {
      items = radix_sort(items, items + n, n, static_cast<int>(sizeof(key_of(*row))));
    }
    auto* to = indices.as<int64_t>() + r * n;
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<int64_t>(place_of(items[i]));
  });
}

void topk(ConstView x, bool descending, View work, View indices) {
  const int64_t n = x.dim(1), k = indices.dim(1);
  for_rows(x, work, [&](const auto* row, auto* items, int64_t r) {
    fill_items(row, n, descending, items);
    if (k < n) std::nth_element(items, items + k, items + n);
    std::sort(items, items + k);
    auto* to = indices.as<int64_t>() + r * k;
    for (int64_t i = 0; i < k; ++i) to[i] = static_cast<int64_t>(place_of(items[i]));
  });
}

void invert_permutation(ConstView order, View inverse, View found) {
  const int64_t rows = order.dim(0), n = order.dim(1);
  std::atomic<int64_t> bad{rows * n};
  visit_dtype(order.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(rows, [&](int64_t r) {
      const T* from = order.as<T>() + r * n;
      auto* to = inverse.as<int64_t>() + r * n;
      std::fill(to, to + n, -1);
      for (int64_t i = 0; i < n; ++i) {
        auto& place = to[static_cast<int64_t>(from[i])];
        if (place >= 0) {
          int64_t least = bad.load();
          while (r * n + i < least && !bad.compare_exchange_weak(least, r * n + i)) {
          }
          return;
        }
        place = i;
      }
    });
    if (bad < rows * n) found.as<int64_t>()[1] = static_cast<int64_t>(order.as<T>()[bad]);
  });
  found.as<int64_t>()[0] = bad < rows * n ? bad.load() : -1;
}

}  // namespace

void register_sort() {
  kernels::argsort.set(DeviceKind::cpu, argsort);
  kernels::topk.set(DeviceKind::cpu, topk);
  kernels::invert_permutation.set(DeviceKind::cpu, invert_permutation);
}

}  // namespace longspan::cpu
