#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace longspan {

/// Gradients of an op's inputs, in their order; undefined where none is wanted.
using Grads = std::vector<Tensor>;

namespace autograd {

struct Node;

/// The gradient of output `slot` of `node`. Empty where no gradient is wanted.
struct Edge {
  std::shared_ptr<Node> node;
  int slot = 0;
};

class CheckpointScope;

/// A tensor kept for the backward pass: data without history, held in Category::saved, with the
/// version that it had. Inside a frame it is the number of a slot, which a re-run fills.
class SavedTensor {
 public:
  SavedTensor() = default;
  explicit SavedTensor(const Tensor& tensor, std::string_view op = "save");
  SavedTensor(SavedTensor&& other) noexcept;
  SavedTensor& operator=(SavedTensor&& other) noexcept;
  ~SavedTensor();

  /// Throws GradientError where the data has been written since.
  const Tensor& get(std::string_view op) const;

 private:
  Tensor tensor_;
  uint64_t version_ = 0;
  std::shared_ptr<CheckpointScope> frame_;
  int64_t slot_ = -1;
};

/// What a gradient must look like: the tensor that it belongs to.
struct GradientSpec {
  Shape shape;
  DType dtype = DType::f32;
  Device device;
};

/// One executed op.
struct Node {
  explicit Node(std::string_view op);
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// Gradients of the inputs from those of the outputs (undefined where none arrived). Recording
  /// is off; wrappers turn it on for what they re-run, and may call backward().
  virtual Grads backward(std::span<const Tensor> dy) = 0;
  /// Whether the engine calls add_to() in place of backward(); see AccumulatingNode.
  virtual bool partial() const { return false; }
  /// Adds the gradient of input 0 to the sum so far, which is row-major and starts with zeros.
  virtual void add_to(std::span<const Tensor> dy, Tensor& sum);
  /// Drops what backward() needed. The engine calls it when the node has run, unless retained.
  virtual void release();

  std::string_view name;
  uint64_t sequence;                  ///< creation order
  std::vector<Edge> next;             ///< one per input
  std::vector<GradientSpec> outputs;  ///< what dy of each output looks like
  bool released = false;
  std::string scope;  ///< where it was recorded; only in anomaly mode

  /// Whether the gradient of input i is wanted.
  bool wants(int i) const { return next[static_cast<size_t>(i)].node != nullptr; }
  /// What was saved, in order. Throws GradientError where it has been written since, and where no
  /// so many were saved.
  const Tensor& saved(int i) const {
    if (static_cast<size_t>(i) >= saved_.size()) fail_saved(i);
    return saved_[static_cast<size_t>(i)].get(name);
  }
  void save(std::initializer_list<Tensor> tensors);

 protected:
  std::vector<SavedTensor> saved_;

 private:
  [[noreturn]] void fail_saved(int i) const;
  static void drop(std::vector<Edge>& edges, std::shared_ptr<Node>& list);

  std::shared_ptr<Node> later_;  // the next one to go, in a list of nodes that are nobody's
};

/// For an op that touches little of its one large input (a slice, rows of a table): derive from it
/// and define add_to(), so that many such ops on one tensor cost what they touch and not a full
/// gradient each.
struct AccumulatingNode : Node {
  using Node::Node;
  bool partial() const final { return true; }
  Grads backward(std::span<const Tensor> dy) final;
  void add_to(std::span<const Tensor> dy, Tensor& sum) override = 0;
};

struct Meta;

/// Where edges to a leaf lead. It never runs: the engine adds to the leaf's gradient at once.
struct LeafNode final : Node {
  LeafNode(const Tensor& tensor, std::shared_ptr<Meta> meta);
  Grads backward(std::span<const Tensor>) override { return {}; }
  std::shared_ptr<Meta> leaf;
};

/// A tensor's place in the graph.
struct Meta {
  std::shared_ptr<Node> node;  ///< what made it; null at a leaf
  int slot = 0;                ///< which output of node
  bool requires_grad = false;
  Tensor grad;                        ///< at a leaf: the sum so far
  std::weak_ptr<LeafNode> leaf_node;  ///< at a leaf: where edges to it lead
};

/// The edge through which a tensor's gradient flows; empty where it needs none.
Edge edge_of(const Tensor& tensor);

/// Gives outputs their history: output i becomes slot i of the node, whose inputs are given. Call
/// it only where wants_graph(inputs).
void attach(const std::shared_ptr<Node>& node, std::span<const Tensor> inputs,
            std::span<Tensor* const> outputs);

/// True where recording is on and some input needs a gradient.
bool wants_graph(std::span<const Tensor> inputs);

/// In anomaly mode: throws ValueError where the tensor holds NaN or Inf.
void check_finite(std::string_view op, std::string_view what, const Tensor& tensor,
                  std::string_view scope = {});

}  // namespace autograd

/// Whether gradients reach this tensor: a leaf that asks for them, or a result that depends on one.
bool requires_grad(const Tensor& tensor);
/// Makes a leaf ask for gradients (or not). Returns it. Throws GradientError on a result of an op
/// and DTypeError on integers.
Tensor& set_requires_grad(Tensor& tensor, bool value = true);
/// A leaf's gradient so far; undefined where none has arrived. While a handle is held, backward()
/// adds to a copy, so what was returned stays as it is.
Tensor grad(const Tensor& tensor);
/// Replaces (or, undefined, drops) a leaf's gradient; what is given is never written. Throws
/// ShapeError, DTypeError or DeviceError where it does not fit.
void set_grad(const Tensor& tensor, Tensor gradient);

}  // namespace longspan
