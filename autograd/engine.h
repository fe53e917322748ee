#pragma once

#include <span>
#include <vector>

#include "core/tensor.h"

namespace longspan {

/// How backward() traverses the graph.
struct BackwardOptions {
  bool retain = false;  ///< keep the graph for another backward()
  std::vector<Tensor> inputs =
      {};                     ///< if not empty: only these get gradients, only paths to them run
  bool create_graph = false;  ///< gradients of gradients; not supported: throws NotImplemented
};

/// Adds d loss / d leaf to every leaf that the loss depends on.
///   loss  any shape; dy, its gradient, may be omitted for one element (then 1)
/// Nodes run highest sequence first from a work list, never by recursion, and each contribution to
/// a leaf is added when it arrives: the order of every sum is the same in every run. Saved tensors
/// are released as soon as their node has run. May be called inside a node's backward. Throws
/// GradientError if the loss has no history or the graph has been used up, ShapeError if dy and the
/// loss differ in shape.
void backward(const Tensor& loss, const Tensor& dy = {}, const BackwardOptions& options = {});
/// One pass over several outputs; the gradients equal the sums over one pass for each output.
void backward(std::span<const Tensor> outputs, std::span<const Tensor> dy,
              const BackwardOptions& options = {});

/// Returns d outputs / d inputs without changing any leaf's gradient; undefined for an input that
/// is not reached. Inputs may be leaves or results.
std::vector<Tensor> gradients(std::span<const Tensor> outputs, std::span<const Tensor> dy,
                              std::span<const Tensor> inputs, bool retain = false);

/// For nodes: whether another backward() may follow the running one.
bool graph_is_retained();
/// gradients() for wrappers, called inside a node's backward() on the graph that the node has
/// recomputed. Leaves other than `inputs` receive gradients as from the surrounding backward():
/// each contribution is added when it arrives. Throws GradientError outside of a backward().
std::vector<Tensor> gradients_within(std::span<const Tensor> outputs, std::span<const Tensor> dy,
                                     std::span<const Tensor> inputs);

}  // namespace longspan
