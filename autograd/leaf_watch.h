#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/tensor.h"

namespace longspan {

namespace autograd {
struct Node;
}

/// While it lives, backward() of this thread reports when the gradient of a leaf is complete: as
/// soon as every node with an edge to the leaf has run. Leaves that the loss does not depend on, or
/// depends on only through nodes that no gradient reaches, are complete at the end. The innermost
/// watch receives the reports. A backward() inside another one, and one that computes only the
/// gradients of BackwardOptions::inputs, report nothing.
class LeafWatch {
 public:
  /// Each backward() calls complete(i) once for every leaves[i]. complete() may replace the
  /// gradient (set_grad()); adding to the gradient afterwards is a GradientError. Throws
  /// GradientError if an element of `leaves` is not a leaf that requires gradients.
  /// `after_node`, if it is set, is called after every node.
  LeafWatch(std::span<const Tensor> leaves, std::function<void(size_t)> complete,
            std::function<void()> after_node = {});
  ~LeafWatch();
  LeafWatch(const LeafWatch&) = delete;
  LeafWatch& operator=(const LeafWatch&) = delete;

  /// A backward pass that reports to the innermost watch, if there is one; for the engine.
  class Pass {
   public:
    /// Counts the edges to each leaf in the graph behind these nodes. `outermost`: whether no other
    /// backward() runs.
    Pass(std::span<const std::shared_ptr<autograd::Node>> roots, bool outermost);
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    /// Reports the leaves of which this node had the last edge.
    void ran(const autograd::Node& node);
    /// Reports all others.
    void end();
    /// Throws GradientError if a leaf, about to be added to, has been reported.
    static void require_open(const autograd::Node& leaf);

   private:
    friend class LeafWatch;
    void report(size_t leaf);

    LeafWatch* watch_;
    std::unordered_map<const autograd::Node*, size_t> leaf_of_;
    std::vector<int64_t> edges_;  // of each leaf, how many have not run; -1: the leaf was reported
  };

 private:
  std::vector<std::shared_ptr<autograd::Node>> leaves_;  // the targets of edges to them
  std::function<void(size_t)> complete_;
  std::function<void()> after_node_;
  LeafWatch* outer_;
};

}  // namespace longspan
