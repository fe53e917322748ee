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

/// Training steps of one shape on a device that has recordings, each submitted as a whole
/// (core/graph.h):
///   StepGraph graph(device, optimizer);
///   for (...) {
///     const Tensor loss = graph.gradients({tokens, targets}, gen.fork(step), body)[0];
///     clip_gradients(optimizer, 1.0);
///     graph.update(lr);
///   }
/// Parameters, losses and draws have the bits of the same steps without it. The first step runs as
/// ever, so that layouts, tables and plans are where they are to stay; the second and third are
/// recorded, and where the two recordings differ the step has no fixed shape. Where a step cannot
/// be recorded, or there is no room for it, it goes on as ever, and refusal() says why.
class StepGraph {
 public:
  /// Forward and backward passes: leaves gradients of the optimizer's parameters and returns what
  /// the step is to give. All that changes from step to step comes from its arguments.
  using Body = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs, Generator gen)>;

  StepGraph(Device device, Optimizer& optimizer) : device_(device), optimizer_(optimizer) {}
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  /// What body(inputs, gen) returns: in tensors that the next step writes again. There are no
  /// gradients before. Inputs lie on the device; those
  /// of other shapes than the recording's are not replayed.
  std::vector<Tensor> gradients(const std::vector<Tensor>& inputs, Generator gen, const Body& body);
  /// optimizer.step(lr)
  void update(double lr);

  /// Begins again, for a body that has changed.
  void forget();
  /// Whether steps are replayed now.
  bool replays() const { return graph_ != nullptr && recordings_ == 2; }
  /// Why they are not, and why updates are not; empty where nothing prevents it.
  const std::string& refusal() const { return refusal_; }
  const std::string& update_refusal() const { return update_refusal_; }
  /// Bytes that are set apart for the recordings.
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

  // Of the recording. Its tensors go before it.
  std::unique_ptr<Graph> graph_, update_;
  uint64_t signature_ = 0;
  Generator gen_;
  std::vector<Tensor> inputs_, results_, gradients_;
};

}  // namespace longspan
