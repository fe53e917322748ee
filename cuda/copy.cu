#include "core/kernels/copy.h"

#include "cuda/elementwise.cuh"
#include "cuda/register.h"

namespace longspan::cuda {
namespace {

constexpr int tile = 32;      // rows and columns of a transposed block
constexpr int tile_rows = 8;  // rows that the block's threads cover at once

/// Moves elements of W bytes, whatever their type.
template <class W, class Index>
__global__ void __launch_bounds__(elementwise_threads)
    move_kernel(const W* x, W* y, const __grid_constant__ kernels::Offsets<2, Index> offsets,
                int64_t n) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    Index o[2];
    offsets.at(static_cast<Index>(i), o);
    y[o[1]] = x[o[0]];
  }
}

/// Reads a tile along the contiguous axis of x and writes it along the contiguous axis of y,
/// through shared memory. The tile index is the fastest part of the task index, the index on the
/// other axes the slowest. The extra column avoids bank conflicts.
template <class W>
__global__ void __launch_bounds__(tile* tile_rows)
    transpose_kernel(const W* x, W* y, const __grid_constant__ kernels::Offsets<2, int64_t> outer,
                     int64_t count, int64_t rows, int64_t columns, int64_t x_column, int64_t y_row,
                     int64_t y_column) {
  __shared__ W buffer[tile][tile + 1];
  const int64_t row_tiles = (rows + tile - 1) / tile, column_tiles = (columns + tile - 1) / tile;
  const int64_t tiles = row_tiles * column_tiles;
  const int lane = static_cast<int>(threadIdx.x) % tile;
  const int band = static_cast<int>(threadIdx.x) / tile;
  for (int64_t task = blockIdx.x; task < count * tiles; task += gridDim.x) {
    int64_t o[2];
    outer.at(task / tiles, o);
    const int64_t r = task % tiles / column_tiles * tile, c = task % column_tiles * tile;
    for (int j = band; j < tile; j += tile_rows) {  // x has stride 1 along its rows
      if (r + lane < rows && c + j < columns) {
        buffer[j][lane] = x[o[0] + r + lane + (c + j) * x_column];
      }
    }
    __syncthreads();
    for (int j = band; j < tile; j += tile_rows) {
      if (r + j < rows && c + lane < columns) {
        y[o[1] + (r + j) * y_row + (c + lane) * y_column] = buffer[lane][j];
      }
    }
    __syncthreads();
  }
}

template <class W>
void move(const ConstView& x, const View& y) {
  const kernels::Layouts<2> layouts(x.shape, {&x.strides, &y.strides});
  if (layouts.contiguous()) {
    check(cudaMemcpyAsync(y.data, x.data, static_cast<size_t>(layouts.numel) * sizeof(W),
                          cudaMemcpyDeviceToDevice, stream()),
          "copy");
    return;
  }
  const int last = layouts.rank - 1;
  for (int p = 0; p < last && layouts.stride[0][last] != 1 && layouts.stride[0][last] != 0; ++p) {
    if (layouts.stride[0][p] != 1 || layouts.size[p] < 8 || layouts.size[last] < 8) continue;
    kernels::Layouts<2> outer = layouts;
    outer.size[p] = outer.size[last] = 1;
    const int64_t rows = layouts.size[p], columns = layouts.size[last];
    const int64_t count = layouts.numel / (rows * columns);
    const int64_t tiles = ((rows + tile - 1) / tile) * ((columns + tile - 1) / tile);
    const unsigned blocks = blocks_for(count * tiles, 1);
    launch("copy", transpose_kernel<W>, blocks, tile * tile_rows, 0, x.as<W>(), y.as<W>(),
           kernels::Offsets<2, int64_t>(outer), count, rows, columns, layouts.stride[0][last],
           layouts.stride[1][p], layouts.stride[1][last]);
    return;
  }
  const auto run = [&](auto kernel, auto offsets) {
    launch("copy", kernel, blocks_for(layouts.numel, elementwise_threads), elementwise_threads, 0,
           x.as<W>(), y.as<W>(), offsets, layouts.numel);
  };
  if (layouts.small()) {
    run(move_kernel<W, int32_t>, kernels::Offsets<2, int32_t>(layouts));
  } else {
    run(move_kernel<W, int64_t>, kernels::Offsets<2, int64_t>(layouts));
  }
}

/// Converts any dtype to Y. The kernel branches on the dtype of x, which is the same for all
/// threads.
template <class Y>
__global__ void __launch_bounds__(elementwise_threads)
    convert_kernel(const void* x, DType from, Y* y,
                   const __grid_constant__ kernels::Offsets<2, int64_t> offsets, int64_t n) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    int64_t o[2];
    offsets.at(i, o);
    switch (from) {
      case DType::f64:
        y[o[1]] = static_cast<Y>(static_cast<const double*>(x)[o[0]]);
        break;
      case DType::f32:
        y[o[1]] = static_cast<Y>(static_cast<const float*>(x)[o[0]]);
        break;
      case DType::f16:
        y[o[1]] = static_cast<Y>(static_cast<float>(static_cast<const f16*>(x)[o[0]]));
        break;
      case DType::bf16:
        y[o[1]] = static_cast<Y>(static_cast<float>(static_cast<const bf16*>(x)[o[0]]));
        break;
      case DType::i64:
        y[o[1]] = static_cast<Y>(static_cast<const int64_t*>(x)[o[0]]);
        break;
      case DType::i32:
        y[o[1]] = static_cast<Y>(static_cast<const int32_t*>(x)[o[0]]);
        break;
      case DType::u8:
        y[o[1]] = static_cast<Y>(static_cast<const uint8_t*>(x)[o[0]]);
        break;
    }
  }
}

struct Same {
  __device__ void operator()(const float (&x)[1], float (&y)[1]) const { y[0] = x[0]; }
};

/// The conversions of mixed precision, in packs.
template <class X, class Y>
void round_to(const ConstView& x, const View& y) {
  elementwise<float, X, Y, 1, 1>("copy", {x}, {y}, Same{});
}

void copy(ConstView x, View y) {
  if (x.dtype == y.dtype) {
    switch (size_of(x.dtype)) {
      case 8:
        return move<uint64_t>(x, y);
      case 4:
        return move<uint32_t>(x, y);
      case 2:
        return move<uint16_t>(x, y);
      default:
        return move<uint8_t>(x, y);
    }
  }
  if (x.dtype == DType::f32 && y.dtype == DType::bf16) return round_to<float, bf16>(x, y);
  if (x.dtype == DType::bf16 && y.dtype == DType::f32) return round_to<bf16, float>(x, y);
  if (x.dtype == DType::f32 && y.dtype == DType::f16) return round_to<float, f16>(x, y);
  if (x.dtype == DType::f16 && y.dtype == DType::f32) return round_to<f16, float>(x, y);
  const kernels::Layouts<2> layouts(x.shape, {&x.strides, &y.strides});
  visit_dtype(y.dtype, [&](auto tag) {
    using Y = typename decltype(tag)::type;
    launch("copy", convert_kernel<Y>, blocks_for(layouts.numel, elementwise_threads),
           elementwise_threads, 0, x.data, x.dtype, y.as<Y>(),
           kernels::Offsets<2, int64_t>(layouts), layouts.numel);
  });
}

/// Converts a double to T; 16-bit formats go through f32.
template <class T>
LONGSPAN_HD T number(double value) {
  if constexpr (sizeof(T) == 2) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <class T>
struct Always {
  T value;
  __device__ void operator()(const T (&)[1], T (&y)[1]) const { y[0] = value; }
};

void fill(View y, double value) {
  visit_dtype(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    elementwise<T, T, T, 0, 1>("fill", {}, {y}, Always<T>{number<T>(value)});
  });
}

template <class T>
__global__ void __launch_bounds__(elementwise_threads)
    arange_kernel(T* y, double begin, double step, int64_t n) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    y[i] = number<T>(__dadd_rn(begin, __dmul_rn(static_cast<double>(i), step)));
  }
}

void arange(View y, double begin, double step) {
  visit_dtype(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch("arange", arange_kernel<T>, blocks_for(y.numel(), elementwise_threads),
           elementwise_threads, 0, y.as<T>(), begin, step, y.numel());
  });
}

}  // namespace

void register_copy() {
  kernels::copy.set(DeviceKind::cuda, copy);
  kernels::fill.set(DeviceKind::cuda, fill);
  kernels::arange.set(DeviceKind::cuda, arange);
}

}  // namespace longspan::cuda
