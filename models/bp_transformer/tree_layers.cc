// Layers over all nodes of a binary tree, and which of its nodes a layer computes.

#include "models/bp_transformer/tree_layers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "core/graph.h"
#include "nn/attention/edge_multi_head.h"
#include "ops/copy.h"
#include "ops/shape.h"

namespace longspan {

void require_tree_layers(std::string_view model, const TreeLayersConfig& c) {
  check_fields(model, c);
  require_heads(model, c.d_model, c.n_head);
  require(c.clip >= 0 && c.clip < 64, model, "clip is {}; expected 0 to 63", c.clip);
}

Stack tree_stack(const TreeLayersConfig& c, bool cross, const Init& init) {
  const EdgeMultiHeadOptions own{.d_model = c.d_model,
                                 .n_head = c.n_head,
                                 .labels = c.tree(false).labels(),
                                 .dropout = or_default(c.dropout_attn, c.dropout)};
  EdgeMultiHeadOptions between = own;
  between.labels = 0;
  between.cross = true;
  FeedForwardOptions ff{.d_model = c.d_model, .d_ff = c.d_ff, .dropout = c.dropout};
  if (cross) {
    // Spans get nothing from the source: with two streams the first feed-forward net reads zeros of
    // them, and with biases of 0 it would be where ReLU has no derivative.
    ff.biases = uniform_of(c.d_model);
  }
  std::vector<Block> blocks;
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const Init at = init.at("layers").at(i);
    std::vector<Branch> branches;
    const auto norm = [&] {
      const Init site = at.at("norm" + std::to_string(branches.size() + 1));
      return Normalization(NormKind::layer, c.d_model, c.norm_eps, site);
    };
    branches.push_back(
        {"attention", norm(), std::make_unique<EdgeMultiHead>(own, at.at("attention"))});
    if (cross) {
      branches.push_back(
          {"cross", norm(), std::make_unique<EdgeMultiHead>(between, at.at("cross"))});
    }
    branches.push_back({"ff", norm(), std::make_unique<FeedForward>(ff, at.at("ff"))});
    blocks.emplace_back(NormPlace::post, c.dropout, std::move(branches));
  }
  return Stack(std::move(blocks), std::nullopt, c.memory);
}

Tensor with_zero_spans(const Tensor& leaves) {
  const int64_t n = leaves.dim(1), spans = Tree{n}.nodes() - n;
  if (spans == 0) return leaves;
  const Shape shape{leaves.dim(0), spans, leaves.dim(2)};
  return concat({leaves, Tensor::zeros(shape, leaves.dtype(), leaves.device())}, 1);
}

std::shared_ptr<const EdgeRows> tree_rows(int64_t leaves, const TreeOptions& options,
                                          TreeRows rows) {
  const int64_t nodes = Tree{leaves}.nodes();
  auto all = std::make_shared<EdgeRows>();
  all->layout = tree_edges(std::span(&leaves, 1), options, rows);
  if (rows == TreeRows::leaves) all->count = leaves;
  if (rows == TreeRows::root) std::tie(all->first, all->count) = std::pair{nodes - 1, int64_t{1}};
  return all;
}

std::vector<int64_t> lengths_on_host(std::string_view model, const SourceTokens& in) {
  if (!in.lengths || in.tokens.device() == meta_device) return {};
  require_shape(model, in.lengths, {in.tokens.dim(0)}, "lengths");
  if (in.lengths.device().kind == DeviceKind::cuda) {
    graph::refuse(model, "the trees depend on the lengths of the samples");
  }
  std::vector<int64_t> all = cast(to_device(in.lengths, {}), DType::i64).to_vector<int64_t>();
  const auto whole = [&](int64_t n) { return n == in.tokens.dim(1); };
  if (std::all_of(all.begin(), all.end(), whole)) all.clear();
  return all;
}

PackedTrees packed_trees(std::span<const int64_t> lengths, int64_t padded_length,
                         const TreeOptions& options, Device device) {
  std::vector<int64_t> tokens, leaves, roots;
  for (size_t b = 0; b < lengths.size(); ++b) {
    const int64_t n = lengths[b];
    require(n >= 1 && n <= padded_length, "tree", "sample {} has {} tokens; expected 1 to {}", b, n,
            padded_length);
    const auto first = std::ssize(tokens);
    for (int64_t i = 0; i < n; ++i) {
      leaves.push_back(first + i);
      tokens.push_back(static_cast<int64_t>(b) * padded_length + i);
    }
    tokens.resize(static_cast<size_t>(first + Tree{n}.nodes()), -1);
    roots.push_back(std::ssize(tokens) - 1);
  }
  const auto ids = [&](const std::vector<int64_t>& x) {
    return Tensor::from(x, {std::ssize(x)}, device);
  };
  const auto rows = [&](TreeRows kind, const std::vector<int64_t>* which) {
    auto r = std::make_shared<EdgeRows>();
    r->layout = tree_edges(lengths, options, kind);
    if (which != nullptr) r->ids = ids(*which);
    return r;
  };
  return {.tokens = reshape(ids(tokens), {1, std::ssize(tokens)}),
          .all = rows(TreeRows::all, nullptr),
          .leaves = rows(TreeRows::leaves, &leaves),
          .root = rows(TreeRows::root, &roots)};
}

Tensor tree_map(const Stack& stack, int64_t layer, const Tensor& x, const LayerContext& ctx) {
  const Tensor map = stack.attention_map(layer, x, ctx);  // [H, rows, N]
  const int64_t nodes = x.dim(1), rest = nodes - map.dim(1);
  if (rest == 0) return map;
  const Tensor none = zeros({map.dim(0), rest, nodes}, map.dtype(), map.device());
  return ctx.own.find<EdgeContext>()->last_rows->first > 0 ? concat({none, map}, 1)
                                                           : concat({map, none}, 1);
}

AttentionOutline tree_outline(const LayerContext& ctx, int64_t layer, const TreeLayersConfig& c,
                              int64_t length) {
  require(layer >= 0 && layer < c.n_layer, "attention outline", "layer {} of {}", layer, c.n_layer);
  const auto* edges = ctx.own.find<EdgeContext>();
  if (edges == nullptr) return {.heads = c.n_head, .calls = {}};
  const bool last = layer + 1 == c.n_layer && edges->last_rows != nullptr;
  const EdgeRows& rows = last ? *edges->last_rows : *edges->rows;
  AttentionOutline outline = outline_of(rows, c.n_head, Tree{length}.nodes());
  outline.calls.front().pattern.name = "tree";
  return outline;
}

GrowingTree::GrowingTree(int64_t before, int64_t added, int64_t slots, const TreeOptions& options) {
  constexpr int64_t fewest = 16;
  const int64_t after = before + added;
  const Tree old{slots > 0 ? (slots + 1) / 2 : 1};
  const auto needed = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(after)));
  const Tree tree{std::max({fewest, slots > 0 ? old.leaves : 0, needed})};
  auto nodes_of_all = std::make_shared<EdgeRows>(), of_leaves = std::make_shared<EdgeRows>();
  std::vector<int64_t> nodes;
  for (int64_t level = 0; level < tree.levels(); ++level) {
    const int64_t done = before >> level, now = after >> level;  // complete nodes of the level
    if (now > done) {
      nodes_of_all->written.push_back({std::ssize(nodes), now - done, tree.first(level) + done});
    }
    for (int64_t m = done; m < now; ++m) nodes.push_back(tree.first(level) + m);
    if (slots > 0 && tree.leaves > old.leaves && done > 0) {
      nodes_of_all->moved.push_back({old.first(level), done, tree.first(level)});
    }
  }
  spans = std::ssize(nodes) - added;
  nodes_of_all->slots = tree.nodes();
  nodes_of_all->layout = tree_edges_of(tree.leaves, options, nodes);
  *of_leaves = *nodes_of_all;
  of_leaves->count = added;
  nodes.resize(static_cast<size_t>(added));
  of_leaves->layout = tree_edges_of(tree.leaves, options, nodes);
  all = std::move(nodes_of_all);
  leaves = std::move(of_leaves);
}

}  // namespace longspan
