#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "ops/patterns/edges.h"

namespace longspan {

/// A binary tree over n tokens \cite ye2019 . Level 0 has the tokens as leaves, each further level
/// half as many nodes, rounded up, to the root. Node m of level j covers the tokens m 2^j to
/// min((m + 1) 2^j, n). Nodes are numbered level by level: leaves are 0 to n - 1, the root is last.
struct Tree {
  int64_t leaves = 1;

  /// Number of levels, ceil(log2 n) + 1.
  int64_t levels() const;
  /// Nodes of a level, and the number of its first node; first(levels()) is the number of nodes.
  int64_t size(int64_t level) const;
  int64_t first(int64_t level) const;
  int64_t nodes() const { return first(levels()); }
  /// Returns the level of a node.
  int64_t level_of(int64_t node) const;
};

/// Which nodes attend to which, and how their pairs are labelled.
struct TreeOptions {
  int64_t k = 1;                ///< neighbours of a leaf on each level and side
  int64_t clip = 0;             ///< levels from here on have the same labels
  bool causal = false;          ///< leaves have no neighbours to their right
  bool span_self_loop = false;  ///< spans attend to themselves, not only leaves

  /// (2 k + 1) (clip + 1). Label (2 k + 1) min(j, clip) + s with s = 0 for a leaf itself (j = 0)
  /// and for leaves of a span of level j, 2 t + 1 for the t-th neighbour on level j to the left, 2
  /// t + 2 to the right.
  int64_t labels() const { return (2 * k + 1) * (clip + 1); }
};

/// The rows of a tree's attention.
enum class TreeRows {
  all,     ///< all nodes
  leaves,  ///< for models that read the leaves of the last layer
  root     ///< for models that read the root
};

/// Returns the attention of trees over these numbers of tokens. Keys are the nodes of all trees,
/// tree by tree; rows follow the same order. A span attends to its leaves, a leaf to itself and, on
/// each level, to up to k nodes on each side, which together tile all tokens on that side: a node
/// that would cover a token already seen is replaced by its child. It comes from a cache. Throws
/// ValueError if k < 1, clip < 0, a tree has no tokens, or there are 2^31 nodes or more.
std::shared_ptr<const EdgeLayout> tree_edges(std::span<const int64_t> leaves,
                                             const TreeOptions& options,
                                             TreeRows rows = TreeRows::all);

/// Returns the attention of some nodes of one tree: row r is node nodes[r], the keys are all nodes.
/// Decoding computes with it the leaf of a new token and the spans that it completes. It is not
/// cached. Throws as tree_edges(), and ValueError if there is no such node.
std::shared_ptr<const EdgeLayout> tree_edges_of(int64_t leaves, const TreeOptions& options,
                                                std::span<const int64_t> nodes);

/// Returns the number of pairs of a tree's attention without making it: n levels() + sum_i C(i)
/// with C(i) = sum_j clamp(ceil((i + k) / 2^j) - k, 0, k) neighbours of leaf i to the left, those
/// to the right unless it is causal (as many, if n is a power of two), and a pair for each span
/// that attends to itself.
int64_t tree_pairs(int64_t leaves, const TreeOptions& options);

/// Return and reset LayoutCacheState::asked of trees alone.
int64_t asked_trees();
void count_asked_trees();
/// Drops the cached layouts of trees. clear_layout_cache() does it too.
void clear_tree_cache();

}  // namespace longspan
