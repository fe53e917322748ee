#include "core/kernels/index.h"

#include <bit>

#include "core/memory.h"
#include "cuda/columns.cuh"
#include "cuda/elementwise.cuh"
#include "cuda/ids.cuh"
#include "cuda/register.h"
#include "cuda/sorted.h"

namespace longspan::cuda {
namespace {

/// Writes `checked` = ids, with invalid ids replaced by max(low, 0), and *first = the index of the
/// first invalid id.
__global__ void __launch_bounds__(elementwise_threads)
    check_ids_kernel(Ids ids, const __grid_constant__ kernels::Offsets<1, int64_t> offsets,
                     int64_t n, int64_t low, int64_t high, bool ignores, int64_t ignore,
                     IdsToWrite checked, int64_t* first) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    int64_t o[1];
    offsets.at(i, o);
    const int64_t id = ids[o[0]];
    const bool good = (id >= low && id < high) || (ignores && id == ignore);
    checked.set(i, good ? id : (low > 0 ? low : 0));
    if (!good) lower(first, i);
  }
}

/// found[1] = the id at index found[0], if there is one.
__global__ void name_bad_id_kernel(Ids ids,
                                   const __grid_constant__ kernels::Offsets<1, int64_t> offsets,
                                   int64_t* found) {
  if (found[0] < 0) return;
  int64_t o[1];
  offsets.at(found[0], o);
  found[1] = ids[o[0]];
}

void check_ids(ConstView ids, int64_t low, int64_t high, std::optional<int64_t> ignore,
               View checked, View found) {
  constexpr const char* name = "check_ids";
  const kernels::Layouts<1> layout(ids.shape, {&ids.strides});
  const kernels::Offsets<1, int64_t> offsets(layout);
  auto* const to = found.as<int64_t>();
  check(cudaMemsetAsync(to, 0xff, 2 * sizeof(int64_t), stream()), name);  // -1
  launch(name, check_ids_kernel, blocks_for(layout.numel, elementwise_threads), elementwise_threads,
         0, Ids(ids), offsets, layout.numel, low, high, ignore.has_value(), ignore.value_or(0),
         IdsToWrite(checked), to);
  launch(name, name_bad_id_kernel, dim3(1), 1, 0, Ids(ids), offsets, to);
}

/// Gathers rows of `words` words W; the strides of x are in words.
template <class W>
__global__ void __launch_bounds__(elementwise_threads)
    gather_kernel(const W* x, int64_t x_group, int64_t x_row, Ids ids, int64_t ids_group,
                  int64_t ids_step, int64_t n, int64_t words, int64_t count, W* y) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const int64_t row = i / words, g = row / n;
    const int64_t id = ids[g * ids_group + row % n * ids_step];
    W value{};
    if (id >= 0) value = x[g * x_group + id * x_row + i % words];
    y[i] = value;
  }
}

void gather_rows(ConstView x, ConstView ids, View y) {
  const int64_t n = y.dim(1), size = size_of(x.dtype), bytes = y.dim(2) * size;
  const auto run = [&](auto word) {
    using W = decltype(word);
    constexpr auto width = static_cast<int64_t>(sizeof(W));
    const int64_t words = bytes / width, count = y.dim(0) * n * words;
    launch("gather_rows", gather_kernel<W>, blocks_for(count, elementwise_threads),
           elementwise_threads, 0, x.as<W>(), x.stride(0) * size / width,
           x.stride(1) * size / width, Ids(ids), ids.stride(0), ids.stride(1), n, words, count,
           y.as<W>());
  };
  const auto fits = [&](int64_t width) {
    return bytes % width == 0 && x.stride(0) * size % width == 0 &&
           x.stride(1) * size % width == 0 && reinterpret_cast<uintptr_t>(x.data) % width == 0 &&
           reinterpret_cast<uintptr_t>(y.data) % width == 0;
  };
  if (fits(16)) {
    run(uint4{});
  } else if (fits(4)) {
    run(uint32_t{});
  } else if (fits(2)) {
    run(uint16_t{});
  } else {
    run(uint8_t{});
  }
}

/// keys[l n + i] = l (R + 1) + ids[l, i], with negative ids replaced by R; values = the index in
/// the list.
__global__ void __launch_bounds__(elementwise_threads)
    list_keys_kernel(Ids ids, int64_t ids_list, int64_t ids_step, int64_t n, int64_t R,
                     int64_t count, uint64_t* keys, int64_t* values) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const int64_t list = i / n, id = ids[list * ids_list + i % n * ids_step];
    keys[i] = static_cast<uint64_t>(list * (R + 1) + (id < 0 ? R : id));
    values[i] = i % n;
  }
}

/// Writes, for each list, the start of each id r = 0 .. R among its sorted indices, then these
/// indices.
__global__ void __launch_bounds__(elementwise_threads)
    starts_kernel(const uint64_t* keys, const int64_t* values, int64_t lists, int64_t n, int64_t R,
                  int32_t* work) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x, length = R + 1 + n;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < lists * length; i += step) {
    const int64_t list = i / length, entry = i % length;
    if (entry > R) {
      work[i] = static_cast<int32_t>(values[list * n + entry - R - 1]);
      continue;
    }
    const auto wanted = static_cast<uint64_t>(list * (R + 1) + entry);
    int64_t low = list * n, high = low + n;  // finds the first index whose key is not smaller
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (keys[middle] < wanted) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    work[i] = static_cast<int32_t>(low - list * n);
  }
}

/// y[g, r, c] += the sum of x[g, order[k], c] over the indices k of id r. Tasks run over column
/// strips, then rows, then groups.
template <class T>
__global__ void __launch_bounds__(strip_threads)
    scatter_kernel(const T* x, const int32_t* work, int64_t list_step, int64_t n, int64_t R,
                   int64_t width, int64_t tasks, T* y) {
  using A = Accumulator<T>;
  const int64_t strips = (width + strip_columns - 1) / strip_columns;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t column = strip_column(task % strips), r = task / strips % R;
    const int64_t g = task / (strips * R);
    const int32_t* start = work + g * list_step;
    const int32_t* order = start + R + 1;
    const int32_t first = start[r], end = start[r + 1];
    if (first == end) continue;  // uniform over the block
    const auto add = [&](int32_t k, A(&sum)[1]) {
      sum[0] += static_cast<A>(x[(g * n + order[k]) * width + column]);
    };
    sum_columns<A>(column < width, first, end, add, [&](int, A sum) {
      T& to = y[(g * R + r) * width + column];
      to = T(static_cast<A>(to) + sum);
    });
    __syncthreads();
  }
}

void scatter_add_rows(ConstView x, ConstView ids, View work, View y) {
  constexpr const char* name = "scatter_add_rows";
  const int64_t groups = y.dim(0), R = y.dim(1), width = y.dim(2), n = x.dim(1);
  const int64_t lists = work.dim(0), count = lists * n;
  if (y.numel() == 0 || n == 0) return;
  {
    const int64_t bytes = memory::block_bytes(count * int64_t{sizeof(int64_t)});
    const Scratch workspace(4 * bytes, y.device);
    auto* keys = workspace.as<uint64_t>();
    auto* other_keys = reinterpret_cast<uint64_t*>(workspace.as<char>() + bytes);
    auto* values = reinterpret_cast<int64_t*>(workspace.as<char>() + 2 * bytes);
    auto* other_values = reinterpret_cast<int64_t*>(workspace.as<char>() + 3 * bytes);
    launch(name, list_keys_kernel, blocks_for(count, elementwise_threads), elementwise_threads, 0,
           Ids(ids), ids.stride(0), ids.stride(1), n, R, count, keys, values);
    sort_pairs(name, keys, other_keys, values, other_values, count,
               std::bit_width(static_cast<uint64_t>(lists * (R + 1))));
    launch(name, starts_kernel, blocks_for(work.numel(), elementwise_threads), elementwise_threads,
           0, static_cast<const uint64_t*>(keys), static_cast<const int64_t*>(values), lists, n, R,
           work.as<int32_t>());
  }
  const int64_t tasks = int64_t{strips_of(width)} * R * groups;
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(name, scatter_kernel<T>, blocks_for(tasks, 1), strip_threads, 0, x.as<T>(),
           static_cast<const int32_t*>(work.as<int32_t>()), lists == 1 ? int64_t{0} : R + 1 + n, n,
           R, width, tasks, y.as<T>());
  });
}

/// Counts are integers, so the order of the atomic additions does not matter.
__global__ void __launch_bounds__(elementwise_threads)
    bincount_kernel(Ids ids, int64_t n, int64_t values, int64_t count, int64_t* y) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    atomicAdd(reinterpret_cast<unsigned long long*>(y + i / n * values + ids[i]), 1ull);
  }
}

void bincount(ConstView ids, View y) {
  const int64_t count = ids.numel();
  launch("bincount", bincount_kernel, blocks_for(count, elementwise_threads), elementwise_threads,
         0, Ids(ids), ids.dim(1), y.dim(1), count, y.as<int64_t>());
}

}  // namespace

void register_index() {
  kernels::check_ids.set(DeviceKind::cuda, check_ids);
  kernels::gather_rows.set(DeviceKind::cuda, gather_rows);
  kernels::scatter_add_rows.set(DeviceKind::cuda, scatter_add_rows);
  kernels::bincount.set(DeviceKind::cuda, bincount);
}

}  // namespace longspan::cuda
