#pragma once

#include "cuda/attention_launch.h"
#include "cuda/attention_tensor.cuh"
#include "cuda/launch.h"

/// Launches of the kernels for tensor cores; each dtype includes this in a file of its own.
namespace longspan::cuda {

template <template <class, int> class Pass, class T, int W>
__global__ void __launch_bounds__((Pass<T, W>::threads), (Pass<T, W>::resident))
    tensor_kernel(const __grid_constant__ AttentionArguments<T> x) {
  extern __shared__ __align__(16) unsigned char memory[];
  Pass<T, W>::run(x, memory, blockIdx.x);
}

template <template <class, int> class Pass, class T>
void launch_tensor(const char* name, const AttentionArguments<T>& x) {
  const auto go = [&](auto width) {
    constexpr int W = decltype(width)::value;
    using P = Pass<T, W>;
    launch(name, tensor_kernel<Pass, T, W>, dim3(attention_grid(name, P::blocks(x))), P::threads,
           static_cast<int64_t>(sizeof(typename P::Shared)), x);
  };
  const int width = most_of(x.sizes.width, x.sizes.value_width);
  if (width <= 32) {
    go(std::integral_constant<int, 32>{});
  } else if (width <= 64) {
    go(std::integral_constant<int, 64>{});
  } else {
    go(std::integral_constant<int, 128>{});
  }
}

/// Whether rows can be moved 16 bytes at a time.
inline bool rows_fit(const ConstView& x) {
  bool fits = x.dim(3) % 8 == 0 && x.dim(3) <= 128 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  for (int axis = 0; axis < 3; ++axis) fits = fits && (x.dim(axis) == 1 || x.stride(axis) % 8 == 0);
  return fits;
}

inline bool tensor_serves(const kernels::AttentionInputs& in) {
  bool serves = tensor_serves_terms(in) && rows_fit(in.q);
  for (int s = 0; s < in.segments; ++s) {
    serves = serves && rows_fit(in.segment[s].k) && rows_fit(in.segment[s].v);
  }
  return serves;
}

template <class T>
bool tensor_forward_of(const kernels::AttentionInputs& in, const View& out,
                       const AttentionArguments<T>& x) {
  if (!tensor_serves(in) || !rows_fit(out)) return false;
  launch_tensor<TensorForward>("block_attention_forward", x);
  return true;
}

template <class T>
bool tensor_backward_of(const kernels::AttentionInputs& in, const ConstView& dout,
                        const kernels::AttentionGradients& grads, const AttentionArguments<T>& x) {
  if (!tensor_serves(in) || !rows_fit(dout)) return false;
  for (const View* g : {&grads.q, &grads.k[0], &grads.v[0], &grads.k[1], &grads.v[1]}) {
    if (*g && !rows_fit(*g)) return false;
  }
  if (grads.q) launch_tensor<TensorRowGradients>("block_attention_backward", x);
  if (grads.k[0]) launch_tensor<TensorKeyGradients>("block_attention_backward", x);
  return true;
}

}  // namespace longspan::cuda
