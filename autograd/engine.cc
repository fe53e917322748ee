#include "autograd/engine.h"

#include <algorithm>
#include <new>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "autograd/leaf_watch.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/kernels/copy.h"
#include "core/kernels/gradient.h"
#include "core/scope.h"

namespace longspan {
namespace autograd {

namespace {

/// Returns a separate row-major copy.
Tensor copy_of(const Tensor& x, Category category) {
  Tensor copy = Tensor::empty(x.shape(), x.dtype(), x.device(), category);
  kernels::copy(copy.device(), x.view(), copy.mut());
  return copy;
}

/// Makes a non-empty sum writable; it is copied if another handle shares it.
void make_own(Tensor& sum, bool at_leaf) {
  if (sum.contiguous() && sum.unique()) return;
  sum = copy_of(sum, at_leaf ? Category::gradient : Category::other);
}

/// Adds a gradient to the sum of a node or leaf.
void add_to(Tensor& sum, Tensor contribution, bool at_leaf) {
  if (!sum) {
    if (at_leaf && !(contribution.unique() && contribution.contiguous() &&
                     contribution.storage().bytes() == contribution.nbytes())) {
      contribution = copy_of(contribution, Category::gradient);
    }
    sum = std::move(contribution);
    if (at_leaf) sum.set_category(Category::gradient);
    return;
  }
  make_own(sum, at_leaf);
  kernels::accumulate(sum.device(), contribution.view(), sum.mut());
}

/// A gradient that the caller requested.
struct Target {
  const Node* node;
  int slot;
  Tensor* to;
};

/// Selects where the gradients of leaves go.
enum class LeafTarget {
  leaves,       ///< to all leaves
  targets,      ///< to targets only
  surrounding,  ///< to targets; for other leaves, as the surrounding engine's setting says
};

class Engine {
 public:
  Engine(bool retain, std::vector<Target> targets, LeafTarget leaf_target)
      : retain_(retain),
        only_targets_(leaf_target == LeafTarget::targets),
        to_leaves_(leaf_target == LeafTarget::leaves),
        targets_(std::move(targets)),
        surrounding_(leaf_target == LeafTarget::surrounding ? current() : nullptr) {}

  /// Returns the innermost engine that runs in this thread; null if there is none.
  static Engine*& current() {
    thread_local Engine* engine = nullptr;
    return engine;
  }

  bool retains() const { return retain_; }

  /// The gradient sum at an edge to an op's result; null unless it exists and no other handle
  /// shares it.
  Tensor* sum_at(const Edge& edge) {
    const auto entry = pending_.find(edge.node.get());
    if (entry == pending_.end()) return nullptr;
    Tensor& sum = entry->second[static_cast<size_t>(edge.slot)];
    return sum && sum.contiguous() && sum.unique() ? &sum : nullptr;
  }

  void seed(const Edge& edge, const Tensor& dy) {
    roots_.push_back(edge.node);
    seeds_.push_back({edge, dy});
  }

  void run() {
    LeafWatch::Pass watched(roots_, to_leaves_ && current() == nullptr);
    const Running running(this);
    if (only_targets_) find_paths();
    for (auto& [edge, dy] : seeds_) deliver(edge, std::move(dy));
    seeds_.clear();
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), before);
      const std::shared_ptr<Node> node = std::move(heap_.back());
      heap_.pop_back();
      const auto entry = pending_.find(node.get());
      std::vector<Tensor> dy = std::move(entry->second);
      pending_.erase(entry);
      step(node, std::move(dy));
      watched.ran(*node);
    }
    watched.end();
  }

 private:
  class Running {
   public:
    explicit Running(Engine* engine) : outer_(std::exchange(current(), engine)) {}
    ~Running() { current() = outer_; }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    Engine* outer_;
  };

  static bool before(const std::shared_ptr<Node>& a, const std::shared_ptr<Node>& b) {
    return a->sequence < b->sequence;
  }

  /// Says to a profile that a node runs.
  struct WatchedNode {
    explicit WatchedNode(const Node& node) : watch(Watch::of_thread()) {
      if (watch != nullptr) watch->node_begins(node.name, node.scope);
    }
    ~WatchedNode() {
      if (watch != nullptr) watch->node_ends();
    }
    Watch* watch;
  };

  void step(const std::shared_ptr<Node>& node, std::vector<Tensor> dy) {
    for (const Target& t : targets_) {
      if (t.node == node.get()) *t.to = dy[static_cast<size_t>(t.slot)];
    }
    if (only_targets_ && !leads_on(*node)) return;
    require<GradientError>(
        !node->released, node->name,
        "its saved tensors are gone: backward ran through this graph before; call "
        "the first one with retain, or run forward again");
    const WatchedNode watched(*node);
    if (node->partial()) {
      add_partial(*node, dy);
      return;
    }
    Grads grads;
    {
      const NoGrad off;
      try {
        grads = node->backward(dy);
      } catch (const std::bad_alloc&) {
        fail_for_memory(node->name);
      }
    }
    require<GradientError>(grads.size() == node->next.size(), node->name,
                           "backward returned {} gradients for {} inputs", grads.size(),
                           node->next.size());
    if (!retain_) node->release();
    dy.clear();
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i] || !node->next[i].node) continue;
      check_fits(*node, i, grads[i]);
      if (anomaly_mode()) check_finite(node->name, "backward", grads[i], node->scope);
      deliver(node->next[i], std::move(grads[i]));
    }
  }

  /// Kernels trust their arguments, so a gradient that does not match its tensor must not pass.
  static void check_fits(const Node& node, size_t input, const Tensor& dx) {
    const Edge& edge = node.next[input];
    const GradientSpec& spec = edge.node->outputs[static_cast<size_t>(edge.slot)];
    const auto expected = [&] {
      return fmt::format("backward gave a gradient of input {} that is not {}{} on {}", input,
                         name_of(spec.dtype), to_string(spec.shape), name_of(spec.device));
    };
    if (dx.shape() != spec.shape) {
      fail_with<ShapeError>(node.name, expected(), {{"gradient", dx}});
    }
    if (dx.dtype() != spec.dtype) {
      fail_with<DTypeError>(node.name, expected(), {{"gradient", dx}});
    }
    if (dx.device() != spec.device) {
      fail_with<DeviceError>(node.name, expected(), {{"gradient", dx}});
    }
  }

  void add_partial(Node& node, std::span<const Tensor> dy) {
    const Accumulator place = place_of(node.next[0]);
    if (place.sum != nullptr) {
      Tensor& sum = *place.sum;
      if (sum) {
        make_own(sum, place.leaf);
      } else {
        const Edge& edge = node.next[0];
        const GradientSpec& spec = edge.node->outputs[static_cast<size_t>(edge.slot)];
        sum = Tensor::zeros(spec.shape, spec.dtype, spec.device,
                            place.leaf ? Category::gradient : Category::other);
      }
      const NoGrad off;
      node.add_to(dy, sum);
      if (anomaly_mode()) check_finite(node.name, "backward", sum, node.scope);
    }
    if (!retain_) node.release();
  }

  bool leads_on(const Node& node) const { return useful_.count(&node) > 0; }

  void deliver(const Edge& edge, Tensor dy) {
    const Accumulator place = place_of(edge);
    if (place.sum != nullptr) add_to(*place.sum, std::move(dy), place.leaf);
  }

  /// The tensor that sums an edge's gradient; null if the gradient is not required.
  struct Accumulator {
    Tensor* sum = nullptr;
    bool leaf = false;
  };

  Accumulator place_of(const Edge& edge) {
    if (const auto* leaf = dynamic_cast<const LeafNode*>(edge.node.get())) {
      for (const Target& t : targets_) {
        if (t.node == edge.node.get()) return {t.to, true};
      }
      if (only_targets_) return {};
      if (surrounding_ != nullptr) return surrounding_->place_of(edge);
      LeafWatch::Pass::require_open(*leaf);
      return {&leaf->leaf->grad, true};
    }
    if (only_targets_ && !leads_on(*edge.node) && !is_target(*edge.node)) return {};
    auto [entry, fresh] = pending_.try_emplace(edge.node.get());
    if (fresh) {
      entry->second.resize(edge.node->outputs.size());
      heap_.push_back(edge.node);
      std::push_heap(heap_.begin(), heap_.end(), before);
    }
    return {&entry->second[static_cast<size_t>(edge.slot)], false};
  }

  bool is_target(const Node& node) const {
    return std::any_of(targets_.begin(), targets_.end(),
                       [&](const Target& t) { return t.node == &node; });
  }

  /// Fills useful_: the nodes from which some target can be reached.
  void find_paths() {
    std::vector<Node*> order;
    std::unordered_set<const Node*> seen;
    for (const auto& root : roots_) {
      if (seen.insert(root.get()).second) order.push_back(root.get());
    }
    for (size_t i = 0; i < order.size(); ++i) {
      for (const Edge& e : order[i]->next) {
        if (e.node && seen.insert(e.node.get()).second) order.push_back(e.node.get());
      }
    }
    std::sort(order.begin(), order.end(),
              [](const Node* a, const Node* b) { return a->sequence < b->sequence; });
    for (const Node* node : order) {
      for (const Edge& e : node->next) {
        if (e.node && (is_target(*e.node) || useful_.count(e.node.get()) > 0)) {
          useful_.insert(node);
          break;
        }
      }
    }
  }

  bool retain_, only_targets_, to_leaves_;
  std::vector<Target> targets_;
  Engine* surrounding_;
  std::vector<std::shared_ptr<Node>> roots_;
  std::vector<std::pair<Edge, Tensor>> seeds_;
  std::vector<std::shared_ptr<Node>> heap_;  // by sequence, highest first
  std::unordered_map<const Node*, std::vector<Tensor>> pending_;
  std::unordered_set<const Node*> useful_;
};

void run_engine(std::span<const Tensor> outputs, std::span<const Tensor> dy,
                std::vector<Target> targets, LeafTarget leaf_target, bool retain) {
  require<GradientError>(dy.size() == outputs.size() || dy.empty(), "backward",
                         "{} outputs but {} gradients", outputs.size(), dy.size());
  Engine engine(retain, std::move(targets), leaf_target);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& y = outputs[i];
    require<GradientError>(static_cast<bool>(y), "backward", "output {} is undefined", i);
    const Edge edge = edge_of(y);
    if (!edge.node) {
      fail_with<GradientError>(
          "backward",
          y.storage().category() == Category::gradient
              ? "a gradient has no history: gradients of gradients are not supported"
              : "the output has no history: no input requires gradients, or it was computed under "
                "NoGrad (gradients of gradients are not supported)",
          {{"output", y}});
    }
    Tensor g = dy.empty() ? Tensor{} : dy[i].detach();
    if (!g) {
      if (y.numel() != 1) {
        fail_with<ShapeError>("backward", "dy may be omitted only for one element; pass it",
                              {{"output", y}});
      }
      g = Tensor::like(y);
      kernels::fill(g.device(), g.mut(), 1.0);
    } else {
      require_same_shape("backward", {"output", y}, {"dy", g});
      require_same_dtype("backward", {"output", y}, {"dy", g});
      require_same_device("backward", {"output", y}, {"dy", g});
    }
    engine.seed(edge, g);
  }
  engine.run();
}

void run(std::span<const Tensor> outputs, std::span<const Tensor> dy, std::vector<Target> targets,
         LeafTarget leaf_target, bool retain) {
  with_memory_for("backward",
                  [&] { run_engine(outputs, dy, std::move(targets), leaf_target, retain); });
}

/// Returns the gradients of the inputs; leaf_target selects where the gradients of other leaves go.
std::vector<Tensor> gradients(std::span<const Tensor> outputs, std::span<const Tensor> dy,
                              std::span<const Tensor> inputs, LeafTarget leaf_target, bool retain) {
  std::vector<Tensor> result(inputs.size());
  std::vector<Edge> alive;  // keeps the nodes of unreached leaves alive
  std::vector<Target> targets;
  for (size_t i = 0; i < inputs.size(); ++i) {
    alive.push_back(edge_of(inputs[i]));
    if (!alive.back().node) {
      fail_with<GradientError>("gradients", "the input does not require gradients",
                               {{"input", inputs[i]}});
    }
    targets.push_back({alive.back().node.get(), alive.back().slot, &result[i]});
  }
  // A repeated input is one target; its gradient is returned for each occurrence.
  std::vector<size_t> first(inputs.size());
  std::vector<Target> distinct;
  for (size_t i = 0; i < targets.size(); ++i) {
    first[i] = i;
    for (size_t j = 0; j < i && first[i] == i; ++j) {
      if (targets[j].node == targets[i].node && targets[j].slot == targets[i].slot) first[i] = j;
    }
    if (first[i] == i) distinct.push_back(targets[i]);
  }
  run(outputs, dy, std::move(distinct), leaf_target, retain);
  for (size_t i = 0; i < result.size(); ++i) result[i] = result[first[i]];
  return result;
}

}  // namespace

Tensor* sum_of_input(const Node& node, int i) {
  Engine* const engine = Engine::current();
  const Edge& edge = node.next[static_cast<size_t>(i)];
  if (engine == nullptr || !edge.node || anomaly_mode()) return nullptr;
  return engine->sum_at(edge);
}

}  // namespace autograd

void backward(std::span<const Tensor> outputs, std::span<const Tensor> dy,
              const BackwardOptions& options) {
  require<NotImplemented>(!options.create_graph, "backward",
                          "gradients of gradients are not supported (create_graph)");
  if (options.inputs.empty()) {
    autograd::run(outputs, dy, {}, autograd::LeafTarget::leaves, options.retain);
    return;
  }
  for (const Tensor& x : options.inputs) {
    require<GradientError>(requires_grad(x) && !x.meta()->node, "backward",
                           "options.inputs must be leaves that require gradients; for results use "
                           "gradients()");
  }
  const std::vector<Tensor> grads = gradients(outputs, dy, options.inputs, options.retain);
  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i]) autograd::add_to(options.inputs[i].meta()->grad, grads[i], true);
  }
}

void backward(const Tensor& loss, const Tensor& dy, const BackwardOptions& options) {
  const std::span<const Tensor> given(&dy, dy ? 1 : 0);
  backward(std::span<const Tensor>(&loss, 1), given, options);
}

std::vector<Tensor> gradients(std::span<const Tensor> outputs, std::span<const Tensor> dy,
                              std::span<const Tensor> inputs, bool retain) {
  return autograd::gradients(outputs, dy, inputs, autograd::LeafTarget::targets, retain);
}

bool graph_is_retained() {
  const autograd::Engine* engine = autograd::Engine::current();
  return engine != nullptr && engine->retains();
}

std::vector<Tensor> gradients_within(std::span<const Tensor> outputs, std::span<const Tensor> dy,
                                     std::span<const Tensor> inputs) {
  require<GradientError>(autograd::Engine::current() != nullptr, "gradients_within",
                         "no backward() runs around it");
  return autograd::gradients(outputs, dy, inputs, autograd::LeafTarget::surrounding, false);
}

}  // namespace longspan
