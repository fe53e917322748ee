#include "core/kernels/sort.h"

#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "core/kernels/order.h"
#include "core/memory.h"
#include "cuda/elementwise.cuh"
#include "cuda/ids.cuh"
#include "cuda/register.h"
#include "cuda/sorted.h"

namespace longspan::cuda {

void sort_pairs(const char* name, uint64_t* keys, uint64_t* other_keys, int64_t* values,
                int64_t* other_values, int64_t n, int bits) {
  if (n == 0) return;
  cub::DoubleBuffer<uint64_t> key(keys, other_keys);
  cub::DoubleBuffer<int64_t> value(values, other_values);
  size_t bytes = 0;
  check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, key, value, n, 0, bits, stream()), name);
  const Scratch workspace(static_cast<int64_t>(bytes), Device{DeviceKind::cuda, 0});
  check(cub::DeviceRadixSort::SortPairs(workspace.data(), bytes, key, value, n, 0, bits, stream()),
        name);
  const auto size = static_cast<size_t>(n) * sizeof(uint64_t);
  if (key.Current() != keys) {
    check(cudaMemcpyAsync(keys, key.Current(), size, cudaMemcpyDeviceToDevice, stream()), name);
  }
  if (value.Current() != values) {
    check(cudaMemcpyAsync(values, value.Current(), size, cudaMemcpyDeviceToDevice, stream()), name);
  }
}

namespace {

/// keys[i] sorts as x[i] does; values[i] = i. 32-bit keys carry the row in their upper half.
template <class T>
__global__ void __launch_bounds__(elementwise_threads)
    keys_kernel(const T* x, int64_t count, int64_t n, bool descending, uint64_t* keys,
                int64_t* values) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    auto key = kernels::key_of(x[i]);
    using K = decltype(key);
    if (descending) key = static_cast<K>(~key);
    uint64_t whole = key;
    if constexpr (sizeof(K) == 4) whole |= static_cast<uint64_t>(i / n) << 32;
    keys[i] = whole;
    values[i] = i;
  }
}

/// keys[i] = the row of values[i].
__global__ void __launch_bounds__(elementwise_threads)
    row_keys_kernel(const int64_t* values, int64_t count, int64_t n, uint64_t* keys) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    keys[i] = static_cast<uint64_t>(values[i] / n);
  }
}

/// indices[r, i] = the index within its row of values[r n + i], for i < k.
__global__ void __launch_bounds__(elementwise_threads)
    places_kernel(const int64_t* values, int64_t rows, int64_t n, int64_t k, int64_t* indices) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * k; i += step) {
    const int64_t r = i / k;
    indices[i] = values[r * n + i % k] - r * n;
  }
}

/// Sorts all rows at once: by value, then by row. 32-bit keys hold both, and need one sort.
void sort_rows(const char* name, const ConstView& x, bool descending, const View& indices) {
  const int64_t rows = x.dim(0), n = x.dim(1), count = rows * n, k = indices.dim(1);
  if (count == 0 || k == 0) return;
  const int64_t bytes = memory::block_bytes(count * int64_t{sizeof(int64_t)});
  const Scratch workspace(4 * bytes, indices.device);
  auto* keys = workspace.as<uint64_t>();
  auto* other_keys = reinterpret_cast<uint64_t*>(workspace.as<char>() + bytes);
  auto* values = reinterpret_cast<int64_t*>(workspace.as<char>() + 2 * bytes);
  auto* other_values = reinterpret_cast<int64_t*>(workspace.as<char>() + 3 * bytes);
  const int row_bits = std::bit_width(static_cast<uint64_t>(rows - 1));
  const unsigned blocks = blocks_for(count, elementwise_threads);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int key_bits = 8 * static_cast<int>(sizeof(kernels::key_of(T{})));
    launch(name, keys_kernel<T>, blocks, elementwise_threads, 0, x.as<T>(), count, n, descending,
           keys, values);
    if (key_bits == 32) {
      sort_pairs(name, keys, other_keys, values, other_values, count, 32 + row_bits);
      return;
    }
    sort_pairs(name, keys, other_keys, values, other_values, count, 64);
    if (rows == 1) return;
    launch(name, row_keys_kernel, blocks, elementwise_threads, 0,
           static_cast<const int64_t*>(values), count, n, keys);
    sort_pairs(name, keys, other_keys, values, other_values, count, row_bits);
  });
  launch(name, places_kernel, blocks_for(rows * k, elementwise_threads), elementwise_threads, 0,
         static_cast<const int64_t*>(values), rows, n, k, indices.as<int64_t>());
}

void argsort(ConstView x, bool descending, View, View indices) {
  sort_rows("argsort", x, descending, indices);
}

void topk(ConstView x, bool descending, View, View indices) {
  sort_rows("topk", x, descending, indices);
}

/// inverse[r, j] = the smallest i with order[r, i] = j.
__global__ void __launch_bounds__(elementwise_threads)
    invert_kernel(Ids order, int64_t count, int64_t n, int64_t* inverse) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    lower(inverse + i / n * n + order[i], i % n);
  }
}

__global__ void __launch_bounds__(elementwise_threads)
    twice_kernel(Ids order, int64_t count, int64_t n, const int64_t* inverse, int64_t* found) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    if (inverse[i / n * n + order[i]] != i % n) lower(found, i);
  }
}

/// found[1] = the id at index found[0], if there is one.
__global__ void name_twice_kernel(Ids order, int64_t* found) {
  if (found[0] >= 0) found[1] = order[found[0]];
}

void invert_permutation(ConstView order, View inverse, View found) {
  constexpr const char* name = "invert_permutation";
  const int64_t n = order.dim(1), count = order.numel();
  auto* const to = found.as<int64_t>();
  check(cudaMemsetAsync(to, 0xff, 2 * sizeof(int64_t), stream()), name);  // -1
  if (count == 0) return;
  check(cudaMemsetAsync(inverse.data, 0xff, static_cast<size_t>(count) * sizeof(int64_t), stream()),
        name);
  const unsigned blocks = blocks_for(count, elementwise_threads);
  launch(name, invert_kernel, blocks, elementwise_threads, 0, Ids(order), count, n,
         inverse.as<int64_t>());
  launch(name, twice_kernel, blocks, elementwise_threads, 0, Ids(order), count, n,
         static_cast<const int64_t*>(inverse.as<int64_t>()), to);
  launch(name, name_twice_kernel, dim3(1), 1, 0, Ids(order), to);
}

}  // namespace

void register_sort() {
  kernels::argsort.set(DeviceKind::cuda, argsort);
  kernels::topk.set(DeviceKind::cuda, topk);
  kernels::invert_permutation.set(DeviceKind::cuda, invert_permutation);
}

}  // namespace longspan::cuda
