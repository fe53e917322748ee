#include "ops/patterns/tree.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <list>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/best_fit.h"
#include "core/error.h"
#include "core/memory.h"
#include "ops/patterns/edge_builder.h"

namespace longspan {
namespace {

constexpr const char* kTreeEdges = "tree_edges";

/// Adds the rows of trees to a layout.
class TreeRuns {
 public:
  TreeRuns(const TreeOptions& options, EdgeLayoutBuilder& to)
      : k_(options.k), options_(options), to_(to) {}

  /// Adds the row of a node; keys of the tree begin at `offset`.
  void add(const Tree& tree, int64_t node, int64_t offset) {
    runs_.clear();
    if (node < tree.leaves) {
      add_leaf(tree, node);
    } else {
      add_span(tree, node);
    }
    for (EdgeRun& run : runs_) run.first += offset;
    to_.add_row(runs_);
  }

 private:
  /// The neighbours of a leaf on one level: nodes first to end - 1, the last of them or the first
  /// one a child in the place of the first neighbour of the next level.
  struct Reach {
    int64_t first, end;
    int64_t at;  // the position of the first neighbour, whether or not it is one
  };

  /// Returns the neighbours on each level to the left of leaf i, as nodes of that level.
  void find_left(int64_t i) {
    left_.clear();
    int64_t at = i - 1;
    bool seen = false;  // whether a child replaced the first neighbour
    while (at >= 0) {
      const int64_t next = at - k_;
      const bool child = next >= 0 && next % 2 == 0;
      left_.push_back({child ? next : std::max<int64_t>(next + 1, 0), at + (seen ? 0 : 1), at});
      if (next < 0) break;
      seen = child;
      at = next / 2;
    }
  }
  void find_right(const Tree& tree, int64_t i) {
    right_.clear();
    int64_t at = i + 1;
    bool seen = false;
    for (int64_t j = 0; j < tree.levels() && at < tree.size(j); ++j) {
      const int64_t next = at + k_;
      const bool child = next % 2 == 1;
      right_.push_back({at + (seen ? 1 : 0), std::min(next + (child ? 1 : 0), tree.size(j)), at});
      seen = child;
      at = next / 2;
    }
  }

  /// Runs of a leaf: itself with its neighbours on level 0; then those on each further level to the
  /// left and, unless the tree is causal, to the right.
  void add_leaf(const Tree& tree, int64_t i) {
    find_left(i);
    if (options_.causal) {
      right_.clear();
    } else {
      find_right(tree, i);
    }
    const int64_t first = left_.empty() ? i : left_[0].first;
    const int64_t end = right_.empty() ? i + 1 : right_[0].end;
    runs_.push_back({first, end - first, list_of(0, both) + first - i + k_ + 1});
    const size_t levels = std::max(left_.size(), right_.size());
    for (size_t j = 1; j < levels; ++j) {
      const auto level = static_cast<int64_t>(j);
      runs_.push_back(j < left_.size() ? run(tree, level, left_[j], to_left) : EdgeRun{});
      if (options_.causal) continue;
      runs_.push_back(j < right_.size() ? run(tree, level, right_[j], to_right) : EdgeRun{});
    }
  }

  /// Runs of a span: itself if it attends to itself, and its leaves.
  void add_span(const Tree& tree, int64_t node) {
    const int64_t j = tree.level_of(node), m = node - tree.first(j);
    const int64_t first = m << j, end = std::min((m + 1) << j, tree.leaves);
    const int64_t label = EdgeLayoutBuilder::one_label(label_of(j, 0));
    runs_.push_back({first, end - first, label});
    if (options_.span_self_loop) runs_.push_back({node, 1, label});
  }

  enum Side : int { both, to_left, to_right };

  EdgeRun run(const Tree& tree, int64_t level, const Reach& r, Side side) {
    const int64_t list = list_of(level, side);
    if (r.end <= r.first) return {};
    const int64_t from = side == to_left ? r.first - r.at + k_ : r.first - r.at;
    return {tree.first(level) + r.first, r.end - r.first, list + from};
  }

  int64_t label_of(int64_t level, int64_t slot) const {
    return (2 * k_ + 1) * std::min(level, options_.clip) + slot;
  }

  /// Returns the labels of neighbours by position: to the left, of nodes at - k (a child in the
  /// place of the first neighbour of the next level) to at; to the right, of nodes at to at + k;
  /// on level 0, of leaves i - k - 1 to i + k + 1.
  int64_t list_of(int64_t level, Side side) {
    const auto index = static_cast<size_t>(3 * level + side);
    if (index >= lists_.size()) lists_.resize(index + 1, -1);
    if (lists_[index] >= 0) return lists_[index];
    std::vector<int32_t> labels;
    const auto push = [&](int64_t label) { labels.push_back(static_cast<int32_t>(label)); };
    if (side != to_right) {
      push(label_of(level + 1, 1));
      for (int64_t t = k_ - 1; t >= 0; --t) push(label_of(level, 2 * t + 1));
    }
    if (side == both) push(label_of(0, 0));
    if (side != to_left) {
      for (int64_t t = 0; t < k_; ++t) push(label_of(level, 2 * t + 2));
      push(label_of(level + 1, 2));
    }
    return lists_[index] = to_.label_list(labels);
  }

  const int64_t k_;
  const TreeOptions& options_;
  EdgeLayoutBuilder& to_;
  std::vector<int64_t> lists_;  // by level and side
  std::vector<Reach> left_, right_;
  std::vector<EdgeRun> runs_;
};

void check(std::span<const int64_t> leaves, const TreeOptions& options) {
  require(options.k >= 1, kTreeEdges, "k is {}; expected at least 1 neighbour on each level",
          options.k);
  require(options.clip >= 0, kTreeEdges, "clip is {}; expected 0 or more levels", options.clip);
  require(options.k < 1 << 20 && options.clip < 64, kTreeEdges,
          "k is {} and clip {}; expected less than 2^20 and 64", options.k, options.clip);
  int64_t nodes = 0;
  for (const int64_t n : leaves) {
    require(n >= 1, kTreeEdges, "a tree has {} tokens; expected at least 1", n);
    require(n < int64_t{1} << 30, kTreeEdges, "a tree has {} tokens; expected less than 2^30", n);
    nodes += Tree{n}.nodes();
    require(nodes <= std::numeric_limits<int32_t>::max(), kTreeEdges,
            "there are 2^31 nodes or more");
  }
}

std::shared_ptr<const EdgeLayout> make(std::span<const int64_t> leaves, const TreeOptions& options,
                                       TreeRows rows) {
  EdgeLayoutBuilder builder;
  TreeRuns runs(options, builder);
  int64_t offset = 0;
  for (const int64_t n : leaves) {
    const Tree tree{n};
    const int64_t nodes = tree.nodes();
    const int64_t first = rows == TreeRows::root ? nodes - 1 : 0;
    const int64_t end = rows == TreeRows::leaves ? n : nodes;
    for (int64_t node = first; node < end; ++node) {
      runs.add(tree, node, offset);
      if (tree.level_of(node) != tree.level_of(node + 1)) builder.start_block();
    }
    builder.end_group();
    offset += nodes;
  }
  return builder.build(offset, options.labels());
}

/// The layouts used last, with their arguments, up to a number of bytes.
class TreeCache {
 public:
  std::shared_ptr<const EdgeLayout> find(const std::vector<int64_t>& key) {
    const std::lock_guard lock(mutex_);
    for (auto at = list_.begin(); at != list_.end(); ++at) {
      if (at->first != key) continue;
      list_.splice(list_.begin(), list_, at);
      ask(*at->second);
      return at->second;
    }
    return nullptr;
  }
  void insert(std::vector<int64_t> key, std::shared_ptr<const EdgeLayout> layout) {
    std::list<Entry> dropped;  // freed after the lock
    const std::lock_guard lock(mutex_);
    bytes_ += bytes_of(*layout);
    ask(*layout);
    list_.emplace_front(std::move(key), std::move(layout));
    while (bytes_ > kMostBytes && !list_.empty()) {
      bytes_ -= bytes_of(*list_.back().second);
      dropped.splice(dropped.begin(), list_, --list_.end());
    }
  }
  void clear() {
    std::list<Entry> dropped;
    const std::lock_guard lock(mutex_);
    dropped.swap(list_);
    bytes_ = 0;
  }
  int64_t asked() {
    const std::lock_guard lock(mutex_);
    return asked_bytes_;
  }
  void count_asked() {
    const std::lock_guard lock(mutex_);
    asked_.clear();
    asked_bytes_ = 0;
  }

 private:
  static constexpr int64_t kMostBytes = int64_t{64} << 20;
  static int64_t bytes_of(const EdgeLayout& layout) {
    int64_t bytes = 0;
    const auto add = [&](const Tensor& t) {
      if (t) bytes += memory::block_bytes(std::max<int64_t>(1, t.nbytes()));
    };
    EdgeLayout::visit_tensors(add, layout);
    return bytes;
  }
  void ask(const EdgeLayout& layout) {
    if (asked_.insert(&layout).second) asked_bytes_ += bytes_of(layout);
  }
  using Entry = std::pair<std::vector<int64_t>, std::shared_ptr<const EdgeLayout>>;
  std::mutex mutex_;
  std::list<Entry> list_;
  std::unordered_set<const EdgeLayout*> asked_;  // addresses, of which some may be gone
  int64_t bytes_ = 0, asked_bytes_ = 0;
};

// Never destroyed: memory on a device cannot be freed once the driver has shut down.
TreeCache& tree_cache() {
  static auto* instance = [] {
    memory::when_short(clear_tree_cache);
    return new TreeCache;
  }();
  return *instance;
}

}  // namespace

int64_t Tree::levels() const {
  return leaves <= 1 ? 1 : std::bit_width(static_cast<uint64_t>(leaves - 1)) + 1;
}

int64_t Tree::size(int64_t level) const { return ((leaves - 1) >> level) + 1; }

int64_t Tree::first(int64_t level) const {
  int64_t nodes = 0;
  for (int64_t j = 0; j < level; ++j) nodes += size(j);
  return nodes;
}

int64_t Tree::level_of(int64_t node) const {
  int64_t level = 0;
  for (int64_t n = node; n >= size(level) && level + 1 < levels(); ++level) n -= size(level);
  return level;
}

std::shared_ptr<const EdgeLayout> tree_edges(std::span<const int64_t> leaves,
                                             const TreeOptions& options, TreeRows rows) {
  check(leaves, options);
  std::vector<int64_t> key = {options.k, options.clip, options.causal ? 1 : 0,
                              options.span_self_loop ? 1 : 0, static_cast<int64_t>(rows)};
  key.insert(key.end(), leaves.begin(), leaves.end());
  if (std::shared_ptr<const EdgeLayout> known = tree_cache().find(key)) return known;
  std::shared_ptr<const EdgeLayout> layout = make(leaves, options, rows);
  tree_cache().insert(std::move(key), layout);
  return layout;
}

std::shared_ptr<const EdgeLayout> tree_edges_of(int64_t leaves, const TreeOptions& options,
                                                std::span<const int64_t> nodes) {
  check(std::span(&leaves, 1), options);
  const Tree tree{leaves};
  EdgeLayoutBuilder builder;
  TreeRuns runs(options, builder);
  for (const int64_t node : nodes) {
    require(node >= 0 && node < tree.nodes(), kTreeEdges, "node {} of a tree of {} nodes", node,
            tree.nodes());
    runs.add(tree, node, 0);
    builder.end_group();
  }
  return builder.build(tree.nodes(), options.labels());
}

int64_t tree_pairs(int64_t leaves, const TreeOptions& options) {
  check(std::span(&leaves, 1), options);
  const Tree tree{leaves};
  const int64_t k = options.k;
  int64_t left = 0;
  for (int64_t i = 0; i < leaves; ++i) {
    for (int64_t j = 0; j < tree.levels(); ++j) {
      const int64_t up = (i + k + (int64_t{1} << j) - 1) >> j;
      left += std::clamp<int64_t>(up - k, 0, k);
    }
  }
  int64_t pairs = leaves * tree.levels() + left;
  if (options.span_self_loop) pairs += tree.nodes() - leaves;
  if (options.causal) return pairs;
  int64_t right = 0;
  for (int64_t i = 0; i < leaves; ++i) {
    int64_t at = i + 1;
    bool seen = false;
    for (int64_t j = 0; j < tree.levels() && at < tree.size(j); ++j) {
      const int64_t next = at + k;
      right += std::min(next + next % 2, tree.size(j)) - at - (seen ? 1 : 0);
      seen = next % 2 == 1;
      at = next / 2;
    }
  }
  return pairs + right;
}

int64_t asked_trees() { return tree_cache().asked(); }
void count_asked_trees() { tree_cache().count_asked(); }
void clear_tree_cache() { tree_cache().clear(); }

}  // namespace longspan
