#include "core/kernels/index.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/parallel.h"
#include "cpu/register.h"
#include "cpu/strided.h"

namespace longspan::cpu {
namespace {

constexpr int64_t grain = 1 << 15;  // elements per task

int64_t id_at(const ConstView& ids, int64_t offset) {
  switch (ids.dtype) {
    case DType::i32:
      return ids.as<int32_t>()[offset];
    case DType::u8:
      return ids.as<uint8_t>()[offset];
    default:
      return ids.as<int64_t>()[offset];
  }
}

void set_id(const View& ids, int64_t offset, int64_t id) {
  switch (ids.dtype) {
    case DType::i32:
      ids.as<int32_t>()[offset] = static_cast<int32_t>(id);
      break;
    case DType::u8:
      ids.as<uint8_t>()[offset] = static_cast<uint8_t>(id);
      break;
    default:
      ids.as<int64_t>()[offset] = id;
  }
}

void check_ids(ConstView ids, int64_t low, int64_t high, std::optional<int64_t> ignore,
               View checked, View found) {
  const Strides places = contiguous_strides(ids.shape);
  const Layouts<2> layouts(ids.shape, {&ids.strides, &places});
  const int64_t step = layouts.step(0);
  std::atomic<int64_t> first{ids.numel()};
  for_ranges(layouts, grain, [&](const auto& offset, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t id = id_at(ids, offset[0] + i * step);
      const bool good = (id >= low && id < high) || id == ignore;
      const int64_t here = offset[1] + i;
      if (checked) set_id(checked, here, good ? id : std::max<int64_t>(low, 0));
      if (good) continue;
      int64_t so_far = first.load();
      while (here < so_far && !first.compare_exchange_weak(so_far, here)) {
      }
      if (!checked) return;
    }
  });
  const bool all_good = first == ids.numel();
  found.as<int64_t>()[0] = all_good ? -1 : first.load();
  int64_t offset = 0, rest = all_good ? 0 : first.load();
  for (int axis = ids.rank() - 1; axis >= 0; --axis) {
    offset += rest % ids.dim(axis) * ids.stride(axis);
    rest /= ids.dim(axis);
  }
  found.as<int64_t>()[1] = id_at(ids, offset);
}

void gather_rows(ConstView x, ConstView ids, View y) {
  const int64_t groups = y.dim(0), n = y.dim(1), width = y.dim(2), size = size_of(x.dtype);
  if (width == 0) return;
  const auto bytes = static_cast<size_t>(width * size);
  const auto* from = static_cast<const char*>(x.data);
  auto* to = static_cast<char*>(y.data);
  parallel_ranges(groups * n, std::max<int64_t>(1, grain / width), [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      const int64_t g = i / n;
      const int64_t id = id_at(ids, g * ids.strides[0] + i % n * ids.strides[1]);
      char* row = to + i * width * size;
      if (id < 0) {
        std::memset(row, 0, bytes);
      } else {
        std::memcpy(row, from + (g * x.strides[0] + id * x.strides[1]) * size, bytes);
      }
    }
  });
}

/// Stable counting sort of one list: order[start[r]] .. order[start[r + 1] - 1] are the positions
/// of id r. `start` has R + 1 entries.
void sort_list(const ConstView& ids, int64_t list, int64_t n, int64_t R, int32_t* start,
               int32_t* order) {
  std::fill(start, start + R + 1, 0);
  const int64_t base = list * ids.strides[0], step = ids.strides[1];
  for (int64_t i = 0; i < n; ++i) {
    const int64_t id = id_at(ids, base + i * step);
    if (id >= 0) ++start[id];
  }
  int32_t sum = 0;
  for (int64_t r = 0; r <= R; ++r) {
    sum += start[r];
    start[r] = sum;  // the end, counted down to the start below
  }
  for (int64_t i = n - 1; i >= 0; --i) {
    const int64_t id = id_at(ids, base + i * step);
    if (id >= 0) order[--start[id]] = static_cast<int32_t>(i);
  }
}

constexpr int64_t columns = 64;  // summed side by side
constexpr int64_t chunk = 128;   // terms of a partial sum

/// to[c] += sum over k of x[order[k] * width + c], for up to `columns` c.
template <class T>
void add_segment(const T* x, int64_t width, const int32_t* order, int64_t count, int64_t n, T* to) {
  using A = Accumulator<T>;
  if (count == 1) {
    const T* row = x + order[0] * width;
    for (int64_t c = 0; c < n; ++c) to[c] = T(static_cast<A>(to[c]) + static_cast<A>(row[c]));
    return;
  }
  A total[columns] = {};
  for (int64_t k = 0; k < count; k += chunk) {
    A part[columns] = {};
    const int64_t end = std::min(count, k + chunk);
    for (int64_t i = k; i < end; ++i) {
      const T* row = x + order[i] * width;
      if (n == columns) {
        for (int64_t c = 0; c < columns; ++c) part[c] += static_cast<A>(row[c]);
      } else {
        for (int64_t c = 0; c < n; ++c) part[c] += static_cast<A>(row[c]);
      }
    }
    for (int64_t c = 0; c < n; ++c) total[c] += part[c];
  }
  for (int64_t c = 0; c < n; ++c) to[c] = T(static_cast<A>(to[c]) + total[c]);
}

void scatter_add_rows(ConstView x, ConstView ids, View work, View y) {
  const int64_t groups = y.dim(0), R = y.dim(1), width = y.dim(2), n = x.dim(1);
  const int64_t lists = work.dim(0), length = work.dim(1);
  auto* scratch = work.as<int32_t>();
  parallel_for(lists, [&](int64_t l) {
    sort_list(ids, l, n, R, scratch + l * length, scratch + l * length + R + 1);
  });
  const int64_t strips = (width + columns - 1) / columns;
  // Rows of a task: few if rows are many and long, many if they are short.
  const int64_t block = std::clamp<int64_t>(grain / std::max<int64_t>(width, n / R + 1), 1, 1024);
  const int64_t blocks = (R + block - 1) / block;
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(groups * blocks * strips, [&](int64_t task) {
      const int64_t g = task / (blocks * strips), b = task / strips % blocks;
      const int64_t c = task % strips * columns, count = std::min(columns, width - c);
      const int32_t* start = scratch + (lists == 1 ? 0 : g) * length;
      const int32_t* order = start + R + 1;
      const T* from = x.as<T>() + g * n * width + c;
      T* to = y.as<T>() + g * R * width + c;
      for (int64_t r = b * block; r < std::min(R, (b + 1) * block); ++r) {
        const int32_t i = start[r], end = start[r + 1];
        if (i < end) add_segment(from, width, order + i, end - i, count, to + r * width);
      }
    });
  });
}

void bincount(ConstView ids, View y) {
  const int64_t n = ids.dim(1), values = y.dim(1);
  parallel_for(ids.dim(0), [&](int64_t r) {
    int64_t* counts = y.as<int64_t>() + r * values;
    for (int64_t i = 0; i < n; ++i) ++counts[id_at(ids, r * n + i)];
  });
}

}  // namespace

void register_index() {
  kernels::check_ids.set(DeviceKind::cpu, check_ids);
  kernels::gather_rows.set(DeviceKind::cpu, gather_rows);
  kernels::scatter_add_rows.set(DeviceKind::cpu, scatter_add_rows);
  kernels::bincount.set(DeviceKind::cpu, bincount);
}

}  // namespace longspan::cpu
