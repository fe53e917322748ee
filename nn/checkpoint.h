#pragma once

#include <functional>
#include <vector>

#include "autograd/checkpoint_scope.h"
#include "nn/layer.h"
#include "nn/memory_policy.h"

namespace longspan {

/// Runs layer.forward(x, ctx, pass), but saves x and ctx.encoder_output for the backward pass
/// instead of the tensors that the layer's ops save: backward recomputes the layer, up to the last
/// saved tensor that it needs. Gradients are bit for bit those without checkpointing, dropout
/// included. If nothing is recorded, this is a plain forward. The layer must outlive the graph; a
/// second backward through a retained graph does not recompute. \cite chen2016
///   kept    results of products and attention to save, which the recomputation reuses
///   throws  GradientError in backward if the recomputation differs from the first run, or if a
///           parameter was written in between
Output checkpoint(const Layer& layer, const Tensor& x, const LayerContext& ctx, Pass pass,
                  autograd::Results kept = autograd::Results::none);

/// Runs one of several layers: replaces the streams by its outputs. `again` is true in a
/// recomputation, for which only the streams matter. It is copied, and must outlive the graph.
using LayerStep = std::function<void(int64_t layer, std::vector<Tensor>& streams, bool again)>;

/// Runs layers 0 to count - 1 in sequence and saves what a non-reversible policy says: segments of
/// layers are checkpoint scopes, as in checkpoint(), and segments may be nested. Streams may be
/// undefined.
void run_layers(int64_t count, std::vector<Tensor>& streams, const MemoryPolicy& policy,
                const LayerStep& step);

/// Stores the integer decisions (buckets, clusters) of a layer's first run, and passes them to its
/// recomputations. They count as saved tensors.
class Choices {
 public:
  Output run(const Layer& layer, const Tensor& x, LayerContext ctx, Pass pass);

 private:
  std::vector<autograd::SavedTensor> kept_;
};

namespace detail {

/// An argument of a recomputed function: its data, and whether it requires grad.
class Argument {
 public:
  explicit Argument(const Tensor& x) : data_(x, "checkpoint"), wanted_(requires_grad(x)) {}

  /// Returns the same data as a leaf of a separate graph.
  Tensor again() const;

 private:
  autograd::SavedTensor data_;
  bool wanted_;
};

/// A checkpoint scope whose computation depends only on what the closure holds.
class ReplayedPart final : public autograd::CheckpointScope {
 public:
  ReplayedPart(autograd::Results kept, std::function<void()> again)
      : CheckpointScope(kept), again_(std::move(again)) {}

  template <class F>
  void first(F run) {
    const Guard inside(this);
    run();
    forget_last();
  }

 private:
  void replay() override { again_(); }

  std::function<void()> again_;
};

}  // namespace detail
}  // namespace longspan
