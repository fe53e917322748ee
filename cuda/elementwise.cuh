#pragma once

#include <array>
#include <cstdint>

#include "core/dtype.h"
#include "core/kernels/strided.h"
#include "core/view.h"
#include "cuda/launch.h"

/// Elementwise functions: each element of the outputs depends on the input elements at the same
/// index.
namespace longspan::cuda {

inline constexpr int elementwise_threads = 256;

/// `width` adjacent elements, moved by one access.
template <class T, int width>
struct alignas(sizeof(T) * width) Pack {
  T value[width];
};

/// Number of elements of T in one 16-byte access; with several types, of the widest.
template <class... T>
inline constexpr int pack_width = static_cast<int>(16 / std::max({sizeof(T)...}));

/// Calls f(x, y), which maps In values of type A to Out values. All operands are contiguous and
/// aligned to their packs.
template <class A, class X, class Y, int In, int Out, class F>
__global__ void __launch_bounds__(elementwise_threads)
    contiguous_kernel(F f, std::array<const X*, In> inputs, std::array<Y*, Out> outputs,
                      int64_t n) {
  constexpr int width = pack_width<X, Y>;
  using XPack = Pack<X, width>;
  using YPack = Pack<Y, width>;
  const int64_t packs = n / width, step = int64_t{gridDim.x} * blockDim.x;
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t p = thread; p < packs; p += step) {
    XPack x[In > 0 ? In : 1];
    YPack y[Out];
#pragma unroll
    for (int k = 0; k < In; ++k) x[k] = reinterpret_cast<const XPack*>(inputs[k])[p];
#pragma unroll
    for (int i = 0; i < width; ++i) {
      A from[In > 0 ? In : 1], to[Out];
#pragma unroll
      for (int k = 0; k < In; ++k) from[k] = static_cast<A>(x[k].value[i]);
      f(from, to);
#pragma unroll
      for (int k = 0; k < Out; ++k) y[k].value[i] = static_cast<Y>(to[k]);
    }
#pragma unroll
    for (int k = 0; k < Out; ++k) reinterpret_cast<YPack*>(outputs[k])[p] = y[k];
  }
  const int64_t i = packs * width + thread;
  if (i < n) {
    A from[In > 0 ? In : 1], to[Out];
#pragma unroll
    for (int k = 0; k < In; ++k) from[k] = static_cast<A>(inputs[k][i]);
    f(from, to);
#pragma unroll
    for (int k = 0; k < Out; ++k) outputs[k][i] = static_cast<Y>(to[k]);
  }
}

/// The same for any strides.
template <class A, class X, class Y, int In, int Out, class Index, class F>
__global__ void __launch_bounds__(elementwise_threads)
    strided_kernel(F f, std::array<const X*, In> inputs, std::array<Y*, Out> outputs,
                   const __grid_constant__ kernels::Offsets<In + Out, Index> offsets, int64_t n) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    Index offset[In + Out];
    offsets.at(static_cast<Index>(i), offset);
    A from[In > 0 ? In : 1], to[Out];
#pragma unroll
    for (int k = 0; k < In; ++k) from[k] = static_cast<A>(inputs[k][offset[k]]);
    f(from, to);
#pragma unroll
    for (int k = 0; k < Out; ++k) outputs[k][offset[In + k]] = static_cast<Y>(to[k]);
  }
}

/// Calls f(x, y) on the device for every element: x holds In values, y Out values of type A. Inputs
/// are stored as X, outputs as Y. All have one shape and any strides (0 broadcasts an input).
template <class A, class X, class Y, int In, int Out, class F>
void elementwise(const char* name, const std::array<ConstView, In>& inputs,
                 const std::array<View, Out>& outputs, F f) {
  const Strides* strides[In + Out];
  std::array<const X*, In> from{};
  std::array<Y*, Out> to{};
  bool aligned = true;
  constexpr int width = pack_width<X, Y>;
  const auto is_aligned = [](const void* data, size_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % bytes == 0;
  };
  int i = 0;
  for (const ConstView& x : inputs) {
    strides[i] = &x.strides;
    from[static_cast<size_t>(i++)] = x.as<X>();
    aligned = aligned && is_aligned(x.data, sizeof(X) * width);
  }
  for (const View& y : outputs) {
    strides[i] = &y.strides;
    to[static_cast<size_t>(i++ - In)] = y.as<Y>();
    aligned = aligned && is_aligned(y.data, sizeof(Y) * width);
  }
  const kernels::Layouts<In + Out> layouts(outputs[0].shape, strides);
  const int64_t n = layouts.numel;
  if (aligned && layouts.contiguous()) {
    launch(name, contiguous_kernel<A, X, Y, In, Out, F>,
           blocks_for(n, int64_t{elementwise_threads} * width), elementwise_threads, 0, f, from, to,
           n);
  } else if (layouts.small()) {
    launch(name, strided_kernel<A, X, Y, In, Out, int32_t, F>, blocks_for(n, elementwise_threads),
           elementwise_threads, 0, f, from, to, kernels::Offsets<In + Out, int32_t>(layouts), n);
  } else {
    launch(name, strided_kernel<A, X, Y, In, Out, int64_t, F>, blocks_for(n, elementwise_threads),
           elementwise_threads, 0, f, from, to, kernels::Offsets<In + Out, int64_t>(layouts), n);
  }
}

}  // namespace longspan::cuda
