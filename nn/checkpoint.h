#pragma once

#include <functional>
#include <vector>

#include "autograd/checkpoint_scope.h"
#include "nn/layer.h"
#include "nn/memory_policy.h"

namespace longspan {

/// layer.forward(x, given, pass), keeping for the backward pass x (and given.context) in place of
/// what the ops of the layer save: backward runs the layer once more, up to the last save that is
/// wanted. Gradients are those without it, bit for bit, dropout included. Where nothing is recorded
/// it is the layer itself. The layer must outlive the graph; a second backward through a retained
/// graph runs nothing again. \cite chen2016
///   kept    results of products and attention that stay, so that the second run takes them
///   throws  GradientError in backward where the layer does not do the same again, or a parameter
///           was written in between
Output checkpoint(const Layer& layer, const Tensor& x, const LayerContext& ctx, Pass pass,
                  autograd::Results kept = autograd::Results::none);

/// One layer of several: takes the streams to what comes after it. `again` where it is run again,
/// for which nothing but the streams matters. It is copied, and must outlive the graph.
using LayerStep = std::function<void(int64_t layer, std::vector<Tensor>& streams, bool again)>;

/// Layers 0 to count - 1 one after another, keeping what a policy other than reversible says:
/// segments of them are frames, as in checkpoint(), and so are segments of segments. Streams may be
/// undefined.
void run_layers(int64_t count, std::vector<Tensor>& streams, const MemoryPolicy& policy,
                const LayerStep& step);

/// The integer decisions (buckets, clusters) of a layer's first run, which its other runs are given
/// back. Counted as saved.
class Choices {
 public:
  Output run(const Layer& layer, const Tensor& x, LayerContext ctx, Pass pass);

 private:
  std::vector<autograd::SavedTensor> kept_;
};

namespace detail {

/// An argument of a part that is run again: its data, and whether its gradient is wanted.
class Argument {
 public:
  explicit Argument(const Tensor& x) : data_(x, "checkpoint"), wanted_(requires_grad(x)) {}

  /// The same data as a leaf of a graph of its own.
  Tensor again() const;

 private:
  autograd::SavedTensor data_;
  bool wanted_;
};

/// A frame whose part is a function of what it holds.
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
