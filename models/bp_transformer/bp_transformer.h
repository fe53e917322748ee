#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "models/bp_transformer/tree_layers.h"
#include "models/causal_decoder.h"
#include "models/model_spec.h"

namespace longspan {

/// BP-Transformer \cite ye2019 as a language model.
struct BpTransformerConfig : TreeLayersConfig {
  int64_t vocab = 256;
  int64_t d_embed = 0;
  bool tie_embedding = true;
  double embed_std = 0.02;
  bool intermediate_loss = true;

  void visit(auto& v) {
    v("vocab", vocab, range::positive, meaning::vocab);
    TreeLayersConfig::visit(v);
    v("d_embed", d_embed, range::not_negative, meaning::d_embed);
    v("tie_embedding", tie_embedding, meaning::tie_embedding);
    v("embed_std", embed_std, range::not_negative, "std of the token table");
    v("intermediate_loss", intermediate_loss,
      "lower layers predict too, in the first part of training");
  }
};

/// A causal language model over the nodes of a binary tree: tokens are its leaves, its other nodes
/// are spans of tokens. Spans attend to all of their tokens; a token attends to itself and, on each
/// level, to up to k nodes to its left, which together cover each earlier token once. So a sequence
/// of n tokens has O(k n log(n / k)) pairs, and any token is at most two layers away.
///   leaves = LN(drop(E[token]));  spans = 0;  the layers of tree_stack();
///   logits = E leaf + b
/// The last layer computes the leaves alone. Positions are labels of pairs, so that a sequence may
/// have any length. In training, layers i (from 0 on) with i + 1 > n_layer progress predict too,
/// and the total is the mean of their losses: the last one is Losses::loss, the difference the
/// auxiliary loss "intermediate".
class BpTransformer final : public CausalDecoder, public Remarks {
 public:
  /// Throws ValueError that names the fields when they do not fit together.
  BpTransformer(const BpTransformerConfig& config, const Init& init);

  const BpTransformerConfig& config() const { return config_; }

  using CausalDecoder::loss;
  Tensor loss(const Tensor& hidden, const Tensor& targets, Pass pass) const override;
  Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
              Pass pass) const override;
  /// [H, N, N] over the nodes, leaves first. Rows that the last layer does not compute are 0.
  Tensor attention_map(const Tensor& tokens, int64_t layer) const override;
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;
  /// Says how many pairs the tree has, and full attention.
  std::string remark(int64_t length) const override;

 private:
  LayerContext layer_context(int64_t queries, int64_t keys, int64_t first_key) const override;
  Tensor embed(const Tensor& tokens, int64_t first, Pass pass) const override;
  Stack::Result run(const Tensor& x, const LayerContext& ctx, StreamState* state,
                    Pass pass) const override;
  int64_t layer_rows(int64_t tokens) const override;
  /// Runs the layers over the nodes of trees whose leaves are x [B, n, D]; returns the leaves. With
  /// Pass::split, over the nodes that are here.
  Stack::Result over_nodes(const Tensor& x, const LayerContext& ctx, Pass pass,
                           std::vector<Tensor>* each = nullptr) const;
  void visit_more(Visitor& v) override;

  BpTransformerConfig config_;
  Linear projection_;  // [D, De]; undefined if they are equal
  Normalization embed_norm_;
};

/// Entry of the model under the name that programs use.
const ModelEntry& bp_transformer_entry();

/// Configurations of the paper. Throws ValueError on an unknown name.
BpTransformerConfig bp_transformer_preset(std::string_view name);

}  // namespace longspan
