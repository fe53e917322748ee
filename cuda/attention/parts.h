#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "core/kernels/block_attention.h"
#include "core/kernels/gradient.h"
#include "core/memory.h"
#include "cuda/tile.cuh"

/// Attention over several key sets (AttentionProblem::accumulate) with kernels that compute one:
/// the results and gradients of a key set are computed into scratch memory and then combined with
/// those of the earlier sets.
namespace longspan::cuda {

/// The lse of two softmax results over disjoint key sets, and the weight of each.
template <class A>
struct JoinedParts {
  A lse, before, part;
};

/// Combines two lse. A key set of which a row sees no key (its lse is -inf) changes no bit.
template <class A>
LONGSPAN_HD JoinedParts<A> join(A before, A part) {
  const A none = -std::numeric_limits<A>::infinity();
  if (part == none) return {before, A(1), A(0)};
  if (before == none) return {part, A(0), A(1)};
  const A top = before < part ? part : before;
  const A x = std::exp(before - top), y = std::exp(part - top), sum = x + y;
  return {top + std::log(sum), x / sum, y / sum};
}

/// Scratch memory for a tensor of the shape of x, row-major.
class OwnMemory {
 public:
  explicit OwnMemory(const View& x)
      : scratch_(std::make_unique<Scratch>(x.numel() * size_of(x.dtype), x.device)), view_(x) {
    view_.data = scratch_->data();
    view_.strides = contiguous_strides(x.shape);
  }
  const View& view() const { return view_; }

 private:
  std::unique_ptr<Scratch> scratch_;
  View view_;
};

/// Calls forward(in, out, lse) for one key set, then join(part_out, part_lse), which combines the
/// result with out and lse.
template <class Forward, class Join>
void forward_of_part(const kernels::AttentionProblem& in, const View& out, const View& lse,
                     Forward forward, Join join) {
  kernels::AttentionProblem alone = in;
  alone.accumulate = false;
  const OwnMemory part_out(out), part_lse(lse);
  forward(alone, part_out.view(), part_lse.view());
  join(part_out.view(), part_lse.view());
}

/// Calls backward(in, gradients) for one key set, then adds its gradients to `grads`.
template <class Backward>
void backward_of_part(const kernels::AttentionProblem& in, const kernels::AttentionGradients& grads,
                      Backward backward) {
  kernels::AttentionProblem alone = in;
  alone.accumulate = false;
  kernels::AttentionGradients of_part = grads;
  std::vector<std::pair<View, OwnMemory>> all;
  const auto replace = [&all](View& x) {
    if (!x) return;
    all.emplace_back(x, OwnMemory(x));
    x = all.back().second.view();
  };
  kernels::AttentionGradients::visit_tensors(replace, of_part);
  backward(alone, of_part);
  for (const auto& [to, part] : all) kernels::accumulate(to.device, part.view(), to);
}

}  // namespace longspan::cuda
