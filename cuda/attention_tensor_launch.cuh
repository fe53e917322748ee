#pragma once

#include "cuda/attention_launch.h"
#include "cuda/attention_tensor.cuh"
#include "cuda/launch.h"

/// Launches of the kernels for tensor cores; each dtype includes this in a file of its own.
namespace longspan::cuda {

/// f(std::integral_constant<int, W>) of the width that holds queries, keys and values.
template <class F>
void visit_width(const AttentionSizes& x, F f) {
  const int width = most_of(x.width, x.value_width);
  if (width <= 32) {
    f(std::integral_constant<int, 32>{});
  } else if (width <= 64) {
    f(std::integral_constant<int, 64>{});
  } else {
    f(std::integral_constant<int, 128>{});
  }
}

template <template <class, int> class Pass, class T, int W>
__global__ void __launch_bounds__((Pass<T, W>::threads), (Pass<T, W>::resident))
    tensor_kernel(const __grid_constant__ AttentionArguments<T> x) {
  extern __shared__ __align__(16) unsigned char memory[];
  Pass<T, W>::run(x, memory, blockIdx.x);
}

template <template <class, int> class Pass, class T>
void launch_tensor(const char* name, const AttentionArguments<T>& x) {
  visit_width(x.sizes, [&](auto width) {
    constexpr int W = decltype(width)::value;
    using P = Pass<T, W>;
    launch(name, tensor_kernel<Pass, T, W>, dim3(attention_grid(name, P::blocks(x))), P::threads,
           static_cast<int64_t>(sizeof(typename P::Shared)), x);
  });
}

template <class T>
void launch_plain_of(const char* name, AttentionPass pass, const AttentionArguments<T>& x) {
  if (pass == AttentionPass::forward) launch_tensor<TensorForward>(name, x);
  if (pass == AttentionPass::rows) launch_tensor<TensorRowGradients>(name, x);
  if (pass == AttentionPass::keys) launch_tensor<TensorKeyGradients>(name, x);
}

}  // namespace longspan::cuda
