#include "autograd/leaf_watch.h"

#include <unordered_set>
#include <utility>

#include "autograd/node.h"
#include "core/error.h"

namespace longspan {
namespace {

thread_local LeafWatch* innermost = nullptr;
thread_local const LeafWatch::Pass* running = nullptr;

}  // namespace

LeafWatch::LeafWatch(std::span<const Tensor> leaves, std::function<void(size_t)> complete,
                     std::function<void()> after_node)
    : complete_(std::move(complete)), after_node_(std::move(after_node)), outer_(innermost) {
  for (const Tensor& leaf : leaves) {
    const autograd::Edge edge = autograd::edge_of(leaf);
    if (!edge.node || leaf.meta()->node) {
      fail_with<GradientError>("leaf watch", "expected a leaf that requires gradients",
                               {{"leaf", leaf}});
    }
    leaves_.push_back(edge.node);
  }
  innermost = this;
}

LeafWatch::~LeafWatch() { innermost = outer_; }

LeafWatch::Pass::Pass(std::span<const std::shared_ptr<autograd::Node>> roots, bool outermost)
    : watch_(outermost ? innermost : nullptr) {
  if (watch_ == nullptr) return;
  running = this;
  edges_.assign(watch_->leaves_.size(), 0);
  for (size_t i = 0; i < edges_.size(); ++i) leaf_of_[watch_->leaves_[i].get()] = i;
  std::unordered_set<const autograd::Node*> seen;
  std::vector<const autograd::Node*> open;
  const auto see = [&](const autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  for (const auto& root : roots) see(root.get());
  while (!open.empty()) {
    const autograd::Node* const node = open.back();
    open.pop_back();
    for (const autograd::Edge& edge : node->next) {
      const auto leaf = leaf_of_.find(edge.node.get());
      if (leaf == leaf_of_.end()) {
        see(edge.node.get());
      } else {
        ++edges_[leaf->second];
      }
    }
  }
}

LeafWatch::Pass::~Pass() {
  if (watch_ != nullptr) running = nullptr;
}

void LeafWatch::Pass::ran(const autograd::Node& node) {
  if (watch_ == nullptr) return;
  for (const autograd::Edge& edge : node.next) {
    const auto leaf = leaf_of_.find(edge.node.get());
    if (leaf != leaf_of_.end() && --edges_[leaf->second] == 0) report(leaf->second);
  }
  if (watch_->after_node_) watch_->after_node_();
}

void LeafWatch::Pass::end() {
  for (size_t i = 0; i < edges_.size(); ++i) {
    if (edges_[i] >= 0) report(i);
  }
}

void LeafWatch::Pass::report(size_t leaf) {
  edges_[leaf] = -1;
  watch_->complete_(leaf);
}

void LeafWatch::Pass::require_open(const autograd::Node& leaf) {
  if (running == nullptr) return;
  const auto found = running->leaf_of_.find(&leaf);
  require<GradientError>(found == running->leaf_of_.end() || running->edges_[found->second] >= 0,
                         "backward",
                         "a node adds to the gradient of a leaf to which it has no edge, after the "
                         "gradient was complete: a wrapper must list in `next` what it recomputes");
}

}  // namespace longspan
