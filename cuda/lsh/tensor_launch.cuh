#pragma once

#include "cuda/attention/tensor_launch.cuh"
#include "cuda/lsh/tensor.cuh"

/// Launches of LSH attention on tensor cores; each dtype includes this header in a source file of
/// its own.
namespace longspan::cuda {

template <class P, class T>
void launch_lsh(const char* name, const LshTensorArguments<T>& x) {
  launch(name, tensor_kernel<P, LshTensorArguments<T>>, dim3(attention_grid(name, P::blocks(x))),
         P::threads, P::bytes(x), x);
}

template <class T>
void launch_lsh_of(const char* name, LshPass pass, const LshTensorArguments<T>& x) {
  if (pass == LshPass::facts) return launch_lsh<LshFacts<T>>(name, x);
  visit_width(max(x.q.width, x.v.width), [&](auto width) {
    constexpr int W = decltype(width)::value;
    if (pass == LshPass::forward) launch_lsh<LshTensorForward<T, W>>(name, x);
    if (pass == LshPass::queries) launch_lsh<LshTensorQueries<T, W>>(name, x);
    if (pass == LshPass::keys) launch_lsh<LshTensorKeys<T, W>>(name, x);
  });
}

}  // namespace longspan::cuda
