#pragma once

#include "cuda/attention/launch.h"
#include "cuda/attention/tensor.cuh"
#include "cuda/launch.h"

/// Launches of the tensor core kernels; each dtype includes this header in a source file of its
/// own.
namespace longspan::cuda {

/// Runs P::run(arguments, shared memory, block).
template <class P, class Arguments>
__global__ void __launch_bounds__((P::threads), (P::resident))
    tensor_kernel(const __grid_constant__ Arguments x) {
  P::run(x, block_memory(), blockIdx.x);
}

template <template <class, int> class Pass, class T>
void launch_tensor(const char* name, const AttentionArguments<T>& x) {
  visit_width(max(x.sizes.width, x.sizes.value_width), [&](auto width) {
    using P = Pass<T, decltype(width)::value>;
    launch(name, tensor_kernel<P, AttentionArguments<T>>, dim3(attention_grid(name, P::blocks(x))),
           P::threads, static_cast<int64_t>(sizeof(typename P::Shared)), x);
  });
}

template <class T>
void launch_plain_of(const char* name, AttentionPass pass, const AttentionArguments<T>& x) {
  if (pass == AttentionPass::forward) launch_tensor<TensorForward>(name, x);
  if (pass == AttentionPass::rows) launch_tensor<TensorRowGradients>(name, x);
  if (pass == AttentionPass::keys) launch_tensor<TensorKeyGradients>(name, x);
}

}  // namespace longspan::cuda
