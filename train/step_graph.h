#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/generator.h"
#include "core/graph.h"
#include "core/tensor.h"
#include "train/optimizer.h"

namespace longspan {

/// Records training steps of one shape, on devices that support it, and replays each as a whole
/// (core/graph.h):
///   StepGraph graph(device, optimizer);
///   for (...) {
///     const Tensor loss = graph.gradients({tokens, targets}, gen.fork(step), body)[0];
///     clip_gradients(optimizer, 1.0);
///     graph.update(lr);
///   }
/// Parameters, losses and random draws are bit for bit those of steps without it. The first step
/// runs normally, so that layouts, tables and plans are cached; the second and third are recorded,
/// and if the two recordings differ, the step has no fixed shape. If a step cannot be recorded, or
/// memory does not suffice, steps run normally, and refusal() says why.
class StepGraph {
 public:
  /// Forward and backward passes: leaves the gradients of the optimizer's parameters and returns
  /// the results of the step. Everything that changes from step to step must come from its
  /// arguments.
  using Body = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs, Generator gen)>;

  StepGraph(Device device, Optimizer& optimizer) : device_(device), optimizer_(optimizer) {}
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  /// Returns what body(inputs, gen) returns, in tensors that the next step overwrites. Throws
  /// ValueError if a parameter already has a gradient. Inputs must be on the device; inputs of
  /// other shapes than the recording's are not replayed.
  std::vector<Tensor> gradients(const std::vector<Tensor>& inputs, Generator gen, const Body& body);
  /// Does optimizer.step(lr).
  void update(double lr);

  /// Discards the recordings, for a body that has changed.
  void forget();
  /// Whether steps are currently replayed.
  bool replays() const { return graph_ != nullptr && recordings_ == 2; }
  /// Why steps are not replayed, and why updates are not; empty if nothing prevents it.
  const std::string& refusal() const { return refusal_; }
  const std::string& update_refusal() const { return update_refusal_; }
  /// Bytes reserved for the recordings.
  int64_t bytes() const;

 private:
  bool fits(const std::vector<Tensor>& inputs) const;
  void record(const std::vector<Tensor>& inputs, const Body& body);
  void drop();

  Device device_;
  Optimizer& optimizer_;
  bool warm_ = false;   // whether a step has run
  int64_t needed_ = 0;  // bytes of a step
  int recordings_ = 0;
  bool replayed_ = false;  // whether the gradients are those of a replay
  std::string refusal_, update_refusal_;

  // State of the recording. Its tensors are released before graph_.
  std::unique_ptr<Graph> graph_, update_;
  uint64_t signature_ = 0;
  Generator gen_;
  std::vector<Tensor> inputs_, results_, gradients_;
};

}  // namespace longspan
