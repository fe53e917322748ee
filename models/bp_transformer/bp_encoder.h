#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/bp_transformer/tree_layers.h"
#include "models/capabilities.h"
#include "models/model.h"
#include "models/model_spec.h"

namespace longspan {

/// BP-Transformer \cite ye2019 as an encoder.
struct BpEncoderConfig : TreeLayersConfig {
  int64_t vocab = 257;
  int64_t d_embed = 0;
  double embed_std = 0.02;
  bool causal = false;
  bool mlm_head = true;
  bool tie_embedding = true;
  int64_t mask_id = -1;
  int64_t classes = 0;
  int64_t pair_classes = 0;
  /// Layers for pairs after the others, in which tokens attend to those of the other sequence too.
  int64_t match_layers = 0;

  void visit(auto& v) {
    v("vocab", vocab, range::positive, meaning::vocab);
    TreeLayersConfig::visit(v);
    v("d_embed", d_embed, range::not_negative, meaning::d_embed);
    v("embed_std", embed_std, range::not_negative, "std of the token table");
    v("causal", causal, "tokens see nothing to their right, as in the released classifier");
    v("mlm_head", mlm_head, meaning::mlm_head);
    v("tie_embedding", tie_embedding, meaning::tie_embedding);
    v("mask_id", mask_id, meaning::mask_id);
    v("classes", classes, range::not_negative, meaning::classes);
    v("pair_classes", pair_classes, range::not_negative,
      "classes of a pair of sequences; 0: no head");
    v("match_layers", match_layers, range::none_or_count,
      "further layers, which see the other sequence");
  }
};

/// Tokens of a batch as nodes of trees.
struct TreeInputs {
  Tensor nodes;  ///< [B, N, D], or [1, N, D] with the trees of samples of several lengths in turn
  LayerContext leaves, root;  ///< of the layers, to read the leaves or the roots of the last one
};

/// An encoder over the nodes of binary trees, whose leaves are tokens and whose other nodes are
/// spans: the root of the last layer stands for the sequence, and the leaves predict masked tokens.
///   leaves = LN(drop(E[token]));  spans = 0;  the layers of tree_stack()
///   classes  C drop(root) + c
///   pairs    W2 relu(drop(W1 [root a, root b] + b1)) + b2, the roots after match_layers more,
///            those of tree_stack() with attention of the leaves to the other sequence's leaves
///   tokens   E leaf + b
/// Samples of several lengths stand side by side without padding, so that what else is in a batch
/// changes no bit of a result.
class BpEncoder final : public LanguageModel,
                        public FillsMasks,
                        public ClassifiesSequences,
                        public ShowsAttention {
 public:
  /// Throws ValueError that names the fields when they do not fit together.
  BpEncoder(const BpEncoderConfig& config, const Init& init);

  const BpEncoderConfig& config() const { return config_; }
  /// Returns the leaves of the last layer for tokens [B, L]: [B, L, D].
  Tensor forward(const Tensor& tokens, Pass pass) const;
  /// Returns the roots of the last layer, [B, D].
  Tensor roots(const SourceTokens& in, Pass pass) const;
  /// [B, classes]. Throws ValueError without classes, or on lengths outside [1, L].
  Tensor class_logits(const EncoderInputs& in, Pass pass) const override;
  /// [B, pair_classes], for sequences a and b of each sample. Throws likewise.
  Tensor pair_logits(const SourceTokens& a, const SourceTokens& b, Pass pass) const;

  Objective objective() const override { return Objective::masked_token; }
  int64_t vocab() const override { return config_.vocab; }
  int64_t mask_token() const override;
  bool predicts_tokens() const override { return config_.mlm_head; }
  int64_t classes() const override { return config_.classes; }
  Device device() const override { return token_.weight.device(); }
  int64_t layers() const override { return config_.n_layer; }
  /// Throws ValueError without mlm_head.
  Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
              Pass pass) const override;
  Tensor logits(const Tensor& tokens, Pass pass) const override;
  /// [H, N, N] over the nodes, leaves first.
  Tensor attention_map(const Tensor& tokens, int64_t layer) const override;
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;
  void visit(Visitor& v) override;

 private:
  Tensor embed(const Tensor& tokens, Pass pass) const;
  TreeInputs inputs(const SourceTokens& in, Pass pass) const;
  /// Returns the roots of pairs after the matching layers, [B, 2 D].
  Tensor matched_roots(const SourceTokens& a, const SourceTokens& b, Pass pass) const;
  Stack::Result states(const Tensor& tokens, Pass pass) const;

  BpEncoderConfig config_;
  DType compute_;
  Embedding token_;
  Linear projection_;  // [D, De]; undefined if they are equal
  Normalization embed_norm_;
  Stack stack_, match_;
  Linear head_;  // [V, D], the token table if tied
  Linear classes_, pair_hidden_, pairs_;
};

/// Entry of the model under the name that programs use.
const ModelEntry& bp_encoder_entry();

/// Configurations of the paper. Throws ValueError on an unknown name.
BpEncoderConfig bp_encoder_preset(std::string_view name);

}  // namespace longspan
