#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "models/bp_transformer/sentences.h"
#include "models/bp_transformer/tree_layers.h"
#include "models/capabilities.h"
#include "models/model.h"
#include "models/model_spec.h"

namespace longspan {

/// BP-Transformer \cite ye2019 as an encoder-decoder.
struct BpTranslatorConfig : TreeLayersConfig {
  int64_t vocab = 64;
  double embed_std = 0.02;
  int64_t sentence_end = -1;
  double label_smoothing = 0;

  void visit(auto& v) {
    v("vocab", vocab, range::positive, "tokens of the vocabulary of sources and targets");
    TreeLayersConfig::visit(v);
    v("embed_std", embed_std, range::not_negative, "std of the token table");
    v("sentence_end", sentence_end,
      "id that ends a sentence; -1: a target reads all of its source");
    v("label_smoothing", label_smoothing, range::probability, meaning::label_smoothing);
  }
};

/// An encoder-decoder over binary trees, for documents of sentences:
///   encoder   the layers of tree_stack() over the source, both sides of a token
///   decoder   the same over the target, one side, with attention between the two: a token of the
///             target attends to the source's tokens of the same sentence, and spans to none
///   logits    E leaf + b, E the token table of both
/// A position of the target belongs to the sentence of the token that it predicts.
class BpTranslator final : public LanguageModel,
                           public WritesSequences,
                           public ShowsAttention,
                           public ShowsDecoder {
 public:
  /// Throws ValueError that names the fields when they do not fit together.
  BpTranslator(const BpTranslatorConfig& config, const Init& init);

  const BpTranslatorConfig& config() const { return config_; }
  /// Returns the leaves of the encoder's last layer, those of all samples side by side without
  /// padding: [1, sum of lengths, D].
  Tensor encode(const SourceTokens& source, Pass pass) const;
  /// Returns the leaves of the decoder's last layer for inputs tokens [B, L]: [B, L, D].
  Tensor forward(const SourceTokens& source, const Tensor& tokens, Pass pass) const;
  /// [..., D] -> logits [..., V].
  Tensor head(const Tensor& hidden) const;

  Objective objective() const override { return Objective::sequence; }
  int64_t vocab() const override { return config_.vocab; }
  int64_t max_source_length() const override { return max_length(); }
  Device device() const override { return token_.weight.device(); }
  int64_t layers() const override { return config_.n_layer; }
  /// Throw NotImplemented, because an encoder-decoder needs a source.
  Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
              Pass pass) const override;
  Tensor logits(const Tensor& tokens, Pass pass) const override;
  Losses sequence_loss(const SourceTokens& source, const Tensor& tokens, const Tensor& targets,
                       Pass pass) const override;
  std::unique_ptr<DecodeState> start_after(const SourceTokens& source) const override;
  Tensor decode(const Tensor& tokens, DecodeState& state) const override;
  /// Of the encoder, [H, N, N] over the nodes of the source, leaves first.
  Tensor attention_map(const Tensor& source, int64_t layer) const override;
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;
  int64_t decoder_layers() const override { return config_.n_layer; }
  /// [H, N, N] over the nodes of the target, leaves first; with `cross` [H, L, S].
  Tensor decoder_map(const Tensor& source, const Tensor& tokens, int64_t layer,
                     bool cross) const override;
  void visit(Visitor& v) override;

 private:
  Tensor embed(const Tensor& tokens, const Normalization& norm, Pass pass) const;
  LayerContext encoder_context(int64_t length) const;
  LayerContext decoder_context(const SourceTokens& source, const Tensor& tokens, Pass pass) const;

  BpTranslatorConfig config_;
  DType compute_;
  Embedding token_;
  Normalization source_norm_, target_norm_;
  Stack encoder_, decoder_;
  Linear head_;  // the token table and a bias
};

/// Entry of the model under the name that programs use.
const ModelEntry& bp_translator_entry();

/// Configurations of the paper. Throws ValueError on an unknown name.
BpTranslatorConfig bp_translator_preset(std::string_view name);

}  // namespace longspan
