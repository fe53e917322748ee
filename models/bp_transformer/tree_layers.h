#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "models/capabilities.h"
#include "models/parts.h"
#include "nn/edge_rows.h"
#include "nn/init.h"
#include "nn/outline.h"
#include "nn/segment.h"
#include "nn/stack.h"
#include "ops/patterns/tree.h"

namespace longspan {

/// The layers of a model over binary trees \cite ye2019 , and which nodes attend to which.
struct TreeLayersConfig {
  int64_t n_layer = 3, n_head = 4, d_model = 96, d_ff = 384;
  int64_t k = 4;
  int64_t clip = 4;
  bool span_self_loop = false;
  double norm_eps = 1e-5;
  float dropout = 0;
  /// Of embedded tokens, of attention probabilities, and of the classifier's input; -1: as dropout.
  float dropout_in = -1, dropout_attn = -1, dropout_out = -1;
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  TreeOptions tree(bool causal) const {
    return {.k = k, .clip = clip, .causal = causal, .span_self_loop = span_self_loop};
  }
  void visit(auto& v) {
    v("n_layer", n_layer, range::count, meaning::n_layer);
    v("n_head", n_head, range::positive, meaning::n_head);
    v("d_model", d_model, range::positive, meaning::d_model);
    v("d_ff", d_ff, range::positive, meaning::d_ff);
    v("k", k, range::count, "neighbours of a token on each level of the tree and side");
    v("clip", clip, range::between(0, 63), "levels from here on share their labels");
    v("span_self_loop", span_self_loop, "spans attend to themselves too, not only to their tokens");
    v("norm_eps", norm_eps, range::not_negative, meaning::norm_eps);
    v("dropout", dropout, range::probability, "of the outputs of branches and of the inner layer");
    v("dropout_in", dropout_in, range::as_dropout, "of embedded tokens; -1: as dropout");
    v("dropout_attn", dropout_attn, range::as_dropout, meaning::dropout_attn);
    v("dropout_out", dropout_out, range::as_dropout, "of the classifier's input; -1: as dropout");
    visit_computation(v, *this);
  }
};

/// Throws ValueError that names the model and the field unless all fields are in range.
void require_tree_layers(std::string_view model, const TreeLayersConfig& c);

/// Returns the layers over all nodes of a tree, with parameters "layers.i":
///   x1 = LN(x + drop(attention x));  x <- LN(x1 + drop(W2 drop(relu(W1 x1 + b1)) + b2))
/// and with `cross`, between the two, x1 <- LN(x1 + drop(attention of leaves to a source)).
Stack tree_stack(const TreeLayersConfig& c, bool cross, const Init& init);

/// Returns the nodes of trees over the same number of tokens: leaves [B, n, D], then spans of
/// zeros, [B, nodes, D].
Tensor with_zero_spans(const Tensor& leaves);

/// Returns the rows of a layer over nodes [B, N, D] of with_zero_spans(): all nodes, or the leaves
/// or the root alone.
std::shared_ptr<const EdgeRows> tree_rows(int64_t leaves, const TreeOptions& options,
                                          TreeRows rows);

/// Returns the lengths of the samples, read from the device; empty if all are whole. On the meta
/// device, which holds no values, all are whole. Throws ShapeError unless they are [B].
std::vector<int64_t> lengths_on_host(std::string_view model, const SourceTokens& in);

/// Trees over samples of several lengths, side by side: a batch of one without padding, in which
/// tree b comes after tree b - 1, its leaves first.
struct PackedTrees {
  Tensor tokens;  ///< i64 [1, N]: which of the B L tokens each node is; -1 for spans
  std::shared_ptr<const EdgeRows> all, leaves, root;
};
/// Packs trees over the first lengths[b] of L tokens each. Throws ValueError on a length that is
/// not in [1, L].
PackedTrees packed_trees(std::span<const int64_t> lengths, int64_t padded_length,
                         const TreeOptions& options, Device device);

/// Returns the attention map [H, N, N] of a layer for nodes x [1, N, D]; rows that it does not
/// compute are 0. Throws ValueError if there is no such layer.
Tensor tree_map(const Stack& stack, int64_t layer, const Tensor& x, const LayerContext& ctx);
/// Returns the pairs of that map. Throws likewise.
AttentionOutline tree_outline(const LayerContext& ctx, int64_t layer, const TreeLayersConfig& c,
                              int64_t length);

/// Nodes of a causal tree that decoding computes when tokens are appended: the leaves of the new
/// tokens and the spans that they complete. Spans that still fill up are read by no leaf, and are
/// never computed. Keys and values lie as in a tree over a power of two of tokens, which doubles
/// when it is full.
class GrowingTree {
 public:
  /// For `added` >= 1 tokens after the first `before` ones. `slots` is the number of nodes that the
  /// memory has places for so far; 0: there is none yet.
  GrowingTree(int64_t before, int64_t added, int64_t slots, const TreeOptions& options);

  /// The rows of a layer over the new leaves, then the new spans level by level; and those of the
  /// last layer, the leaves alone.
  std::shared_ptr<const EdgeRows> all, leaves;
  int64_t spans = 0;  ///< how many spans are completed
};

}  // namespace longspan
