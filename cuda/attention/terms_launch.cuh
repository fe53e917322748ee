#pragma once

#include "cuda/attention/tensor_launch.cuh"
#include "cuda/attention/terms.cuh"

/// Launches of the kernels for all terms and masks; each dtype includes this header in a source
/// file of its own.
namespace longspan::cuda {

template <template <class, int> class Pass, class T, int W>
__global__ void __launch_bounds__((Pass<T, W>::threads), (Pass<T, W>::resident))
    terms_kernel(const __grid_constant__ AttentionArguments<T> x, int64_t checked_units) {
  run_terms<Pass<T, W>>(x, block_memory(), blockIdx.x, checked_units);
}

template <template <class, int> class Pass, class T>
void launch_terms_of(const char* name, const AttentionArguments<T>& x, int64_t checked_units) {
  visit_width(max(x.sizes.width, x.sizes.value_width), [&](auto width) {
    constexpr int W = decltype(width)::value;
    using P = Pass<T, W>;
    const int64_t blocks =
        checked_units > 0 ? ceil_div(checked_units, nonfinite_units) : P::blocks(x);
    launch(name, terms_kernel<Pass, T, W>, dim3(attention_grid(name, blocks)), P::threads,
           static_cast<int64_t>(sizeof(typename P::Shared)), x, checked_units);
  });
}

template <class T>
void launch_terms_of(const char* name, AttentionPass pass, const AttentionArguments<T>& x,
                     int64_t checked_units) {
  if (pass == AttentionPass::forward) launch_terms_of<TermsForward>(name, x, checked_units);
  if (pass == AttentionPass::rows) launch_terms_of<TermsRowGradients>(name, x, checked_units);
  if (pass == AttentionPass::keys) launch_terms_of<TermsKeyGradients>(name, x, checked_units);
  if (pass == AttentionPass::tables) launch_terms_of<TermsTableGradients>(name, x, checked_units);
}

}  // namespace longspan::cuda
