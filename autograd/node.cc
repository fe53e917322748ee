#include "autograd/node.h"

#include <atomic>

#include "autograd/mode.h"
#include "core/kernels/gradient.h"
#include "core/scope.h"

namespace longspan {
namespace autograd {
namespace {

uint64_t next_sequence() {
  static std::atomic<uint64_t> counter{1};
  return counter.fetch_add(1, std::memory_order_relaxed);
}

GradientSpec spec_of(const Tensor& tensor) {
  return {tensor.shape(), tensor.dtype(), tensor.device()};
}

}  // namespace

SaveSlots*& SaveSlots::current() {
  thread_local SaveSlots* innermost = nullptr;
  return innermost;
}

SavedTensor::SavedTensor(const Tensor& tensor, std::string_view op) {
  if (!tensor) return;
  if (SaveSlots* slots = SaveSlots::current()) {
    slot_ = slots->keep(op, tensor);
    if (slot_ >= 0) slots_ = slots->shared();
    return;
  }
  tensor_ = tensor.detach();
  version_ = tensor_.storage().version();
  tensor_.storage().retain();
  if (MemoryTrace* trace = MemoryTrace::of(tensor_.device())) {
    trace->kept(tensor_.storage().data(), op, tensor_.shape(), tensor_.dtype());
  }
}

SavedTensor::SavedTensor(SavedTensor&& other) noexcept
    : tensor_(std::exchange(other.tensor_, {})),
      version_(other.version_),
      slots_(std::move(other.slots_)),
      slot_(other.slot_) {}

SavedTensor& SavedTensor::operator=(SavedTensor&& other) noexcept {
  std::swap(tensor_, other.tensor_);
  std::swap(version_, other.version_);
  std::swap(slots_, other.slots_);
  std::swap(slot_, other.slot_);
  return *this;
}

SavedTensor::~SavedTensor() {
  if (tensor_) tensor_.storage().release();
  if (slots_) slots_->drop(slot_);
}

const Tensor& SavedTensor::get(std::string_view op) const {
  if (slots_) return slots_->get(slot_, op);
  if (tensor_ && tensor_.storage().version() != version_) {
    fail_with<GradientError>(
        op,
        fmt::format("a tensor saved for backward was written since (version {}, now {}); write "
                    "only after backward, or to a copy",
                    version_, tensor_.storage().version()),
        {{"saved", tensor_}});
  }
  return tensor_;
}

Node::Node(std::string_view op) : name(op), sequence(next_sequence()) {
  if (anomaly_mode() || Watch::of_thread() != nullptr) scope = Scope::path();
}

/// Graphs are destroyed with a list that runs through the nodes themselves: dropping the last
/// handle of a long chain must neither recurse nor allocate memory. The per-thread state is a plain
/// pointer, so that a graph in a static object may be destroyed at the very end of the process.
Node::~Node() {
  if (next.empty()) return;
  thread_local std::shared_ptr<Node>* dying = nullptr;
  if (dying != nullptr) {
    drop(next, *dying);
    return;
  }
  std::shared_ptr<Node> list;
  dying = &list;
  drop(next, list);
  while (list != nullptr) {
    const std::shared_ptr<Node> first = std::move(list);
    list = std::move(first->later_);
    drop(first->next, list);
  }
  dying = nullptr;
}

/// Releases the edges' nodes; nodes without another owner go to the list.
void Node::drop(std::vector<Edge>& edges, std::shared_ptr<Node>& list) {
  for (Edge& e : edges) {
    if (e.node.use_count() == 1) {
      e.node->later_ = std::move(list);
      list = std::move(e.node);
    } else {
      e.node.reset();  // now, so that a second edge to this node sees itself as the only owner
    }
  }
  edges.clear();
}

void Node::fail_saved(int i) const {
  fail<GradientError>(name,
                      "backward asks for saved tensor {} and the forward pass saved {}: save() as "
                      "many as saved<N>() takes{}",
                      i, saved_.size(),
                      released ? "; or this graph has been used up by a backward() before" : "");
}

void Node::save(std::span<const Tensor> tensors) {
  saved_.reserve(saved_.size() + tensors.size());
  for (const Tensor& t : tensors) saved_.emplace_back(t, name);
}

void Node::add_to(std::span<const Tensor>, Tensor&) {
  fail<NotImplemented>(name, "the node is not partial");
}

Grads AccumulatingNode::backward(std::span<const Tensor> dy) {
  const Edge& edge = next[0];
  const GradientSpec& spec = edge.node->outputs[static_cast<size_t>(edge.slot)];
  Tensor dx = Tensor::zeros(spec.shape, spec.dtype, spec.device);
  add_to(dy, dx);
  return {dx};
}

LeafNode::LeafNode(const Tensor& tensor, std::shared_ptr<Meta> meta)
    : Node("leaf"), leaf(std::move(meta)) {
  sequence = 0;  // below every op
  outputs = {spec_of(tensor)};
}

void Node::release() {
  saved_.clear();
  released = true;
}

Edge edge_of(const Tensor& tensor) {
  const auto& meta = tensor.meta();
  if (!meta || !meta->requires_grad) return {};
  if (meta->node) return {meta->node, meta->slot};
  std::shared_ptr<LeafNode> node = meta->leaf_node.lock();
  if (!node) {
    node = std::make_shared<LeafNode>(tensor, meta);
    meta->leaf_node = node;
  }
  return {std::move(node), 0};
}

bool wants_graph(std::span<const Tensor> inputs) {
  if (!recording()) return false;
  for (const Tensor& x : inputs) {
    if (requires_grad(x)) return true;
  }
  return false;
}

void attach(const std::shared_ptr<Node>& node, std::span<const Tensor> inputs,
            std::span<Tensor* const> outputs) {
  node->next.reserve(inputs.size());
  for (const Tensor& x : inputs) node->next.push_back(edge_of(x));
  node->outputs.reserve(outputs.size());
  int slot = 0;
  for (Tensor* y : outputs) {
    node->outputs.push_back(spec_of(*y));
    if (*y && is_floating(y->dtype())) {
      auto meta = std::make_shared<Meta>();
      meta->node = node;
      meta->slot = slot;
      meta->requires_grad = true;
      y->set_meta(std::move(meta));
    }
    ++slot;
  }
}

void check_finite(std::string_view op, std::string_view what, const Tensor& tensor,
                  std::string_view scope) {
  if (!tensor || !is_floating(tensor.dtype()) || tensor.numel() == 0) return;
  bool finite = true;
  kernels::all_finite(tensor.device(), tensor.view(), &finite);
  if (finite) return;
  fail_with<ValueError>(
      op,
      fmt::format("{} produced NaN or Inf{}{}", what, scope.empty() ? "" : "; recorded in ", scope),
      {{"result", tensor}});
}

}  // namespace autograd

bool requires_grad(const Tensor& tensor) {
  return tensor.meta() != nullptr && tensor.meta()->requires_grad;
}

Tensor& set_requires_grad(Tensor& tensor, bool value) {
  require_floating("set_requires_grad", tensor);
  if (tensor.meta() && tensor.meta()->node) {
    fail_with<GradientError>("set_requires_grad", "only a leaf can ask; detach() it first",
                             {{"x", tensor}});
  }
  if (!tensor.meta()) tensor.set_meta(std::make_shared<autograd::Meta>());
  tensor.meta()->requires_grad = value;
  if (!value) tensor.meta()->grad = {};
  return tensor;
}

Tensor grad(const Tensor& tensor) { return tensor.meta() ? tensor.meta()->grad : Tensor{}; }

void set_grad(const Tensor& tensor, Tensor gradient) {
  require<GradientError>(requires_grad(tensor) && !tensor.meta()->node, "set_grad",
                         "needs a leaf that requires gradients");
  if (gradient) {
    require_same_shape("set_grad", {"x", tensor}, {"gradient", gradient});
    require_same_dtype("set_grad", {"x", tensor}, {"gradient", gradient});
    require_same_device("set_grad", {"x", tensor}, {"gradient", gradient});
    gradient = gradient.detach();
    if (gradient.storage().category() == Category::other) {
      gradient.set_category(Category::gradient);
    }
  }
  tensor.meta()->grad = std::move(gradient);
}

}  // namespace longspan
