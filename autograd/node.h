#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace longspan {

/// Gradients of an op's inputs, in their order; undefined if not required.
using Grads = std::vector<Tensor>;

namespace autograd {

struct Node;

/// The gradient of output `slot` of `node`. Empty if no gradient is required.
struct Edge {
  std::shared_ptr<Node> node;
  int slot = 0;
};

/// Receives what ops save in place of SavedTensor: a checkpoint scope (checkpoint_scope.h).
class SaveSlots {
 public:
  virtual ~SaveSlots() = default;

  /// Saves a tensor of `op` and returns its slot; -1 if the tensor fills a slot that exists.
  virtual int64_t keep(std::string_view op, const Tensor& tensor) = 0;
  /// Returns the tensor of a slot.
  virtual const Tensor& get(int64_t slot, std::string_view op) = 0;
  /// Marks a slot as no longer needed.
  virtual void drop(int64_t slot) = 0;
  /// Returns a pointer that keeps the slots alive.
  virtual std::shared_ptr<SaveSlots> shared() = 0;

  /// The innermost slots of this thread; null if there are none.
  static SaveSlots*& current();
};

/// A tensor saved for the backward pass: data without history, in Category::saved, with the storage
/// version at the time. Inside a checkpoint scope it is the index of a slot, which a recomputation
/// fills.
class SavedTensor {
 public:
  SavedTensor() = default;
  explicit SavedTensor(const Tensor& tensor, std::string_view op = "save");
  SavedTensor(SavedTensor&& other) noexcept;
  SavedTensor& operator=(SavedTensor&& other) noexcept;
  ~SavedTensor();

  /// Throws GradientError if the data has been written since.
  const Tensor& get(std::string_view op) const;

 private:
  Tensor tensor_;
  uint64_t version_ = 0;
  std::shared_ptr<SaveSlots> slots_;
  int64_t slot_ = -1;
};

/// The shape, dtype and device of a tensor, which its gradient must have too.
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

  /// Computes the gradients of the inputs from dy, the gradients of the outputs (undefined if none
  /// arrived). Recording is off; a wrapper turns it on to recompute a forward pass, and may call
  /// backward().
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
  std::vector<GradientSpec> outputs;  ///< the dy of each output must match
  bool released = false;
  std::string scope;  ///< scope in which it was recorded; only in anomaly mode and for profiles

  /// Whether the gradient of input i is required.
  bool wants(int i) const { return next[static_cast<size_t>(i)].node != nullptr; }
  /// Returns the i-th saved tensor, in order. Throws GradientError if it has been written since, or
  /// if fewer were saved.
  const Tensor& saved(int i) const {
    if (static_cast<size_t>(i) >= saved_.size()) fail_saved(i);
    return saved_[static_cast<size_t>(i)].get(name);
  }
  void save(std::span<const Tensor> tensors);
  void save(std::initializer_list<Tensor> tensors) {
    save(std::span(tensors.begin(), tensors.size()));
  }

 protected:
  std::vector<SavedTensor> saved_;

 private:
  [[noreturn]] void fail_saved(int i) const;
  static void drop(std::vector<Edge>& edges, std::shared_ptr<Node>& list);

  std::shared_ptr<Node> later_;  // next node in a list of unowned nodes to destroy
};

/// For an op that reads a small region of its one large input (a slice, rows of a table). Derive
/// from it and define add_to(), so that many such ops on one tensor cost as much as their regions
/// and not a full gradient each.
struct AccumulatingNode : Node {
  using Node::Node;
  bool partial() const final { return true; }
  Grads backward(std::span<const Tensor> dy) final;
  void add_to(std::span<const Tensor> dy, Tensor& sum) override = 0;
};

struct Meta;

/// The target of edges to a leaf. It never runs: the engine adds to the leaf's gradient directly.
struct LeafNode final : Node {
  LeafNode(const Tensor& tensor, std::shared_ptr<Meta> meta);
  Grads backward(std::span<const Tensor>) override { return {}; }
  std::shared_ptr<Meta> leaf;
};

/// A tensor's position in the graph.
struct Meta {
  std::shared_ptr<Node> node;  ///< the node that computed it; null for a leaf
  int slot = 0;                ///< which output of node
  bool requires_grad = false;
  Tensor grad;                        ///< for a leaf: the sum so far
  std::weak_ptr<LeafNode> leaf_node;  ///< for a leaf: the target of its edges
};

/// Returns the edge through which a tensor's gradient flows; empty if it requires no gradient.
Edge edge_of(const Tensor& tensor);

/// Attaches history: output i becomes slot i of the node with these inputs. Call it only if
/// wants_graph(inputs).
void attach(const std::shared_ptr<Node>& node, std::span<const Tensor> inputs,
            std::span<Tensor* const> outputs);

/// Whether recording is on and some input requires a gradient.
bool wants_graph(std::span<const Tensor> inputs);

/// Returns the row-major sum of the gradients that have reached input i of the running node, a
/// result of another op; null if there is none yet, or if it must not be written. See
/// Context::add_to().
Tensor* sum_of_input(const Node& node, int i);

/// In anomaly mode: throws ValueError if the tensor contains NaN or Inf.
void check_finite(std::string_view op, std::string_view what, const Tensor& tensor,
                  std::string_view scope = {});

}  // namespace autograd

/// Whether gradients reach this tensor: a leaf that requires them, or a result that depends on one.
bool requires_grad(const Tensor& tensor);
/// Makes a leaf require gradients (or not, which drops the one so far) and returns it. Throws
/// GradientError on a result of an op and DTypeError on integers.
Tensor& set_requires_grad(Tensor& tensor, bool value = true);
/// Returns a leaf's gradient so far; undefined if none has arrived. While the caller holds a
/// handle, backward() adds to a copy, so the returned tensor does not change.
Tensor grad(const Tensor& tensor);
/// Replaces (or, undefined, drops) a leaf's gradient; `gradient` is never written. Throws
/// ShapeError, DTypeError or DeviceError if it does not match.
void set_grad(const Tensor& tensor, Tensor gradient);

}  // namespace longspan
