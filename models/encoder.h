#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"
#include "models/parts.h"
#include "nn/attention.h"
#include "nn/position.h"
#include "nn/stack.h"

namespace longspan {

/// How a learned position table starts: drawn, or as sines and cosines \cite vaswani2017 of the
/// same variance, from which few steps learn where neighbours are.
enum class PositionInit : uint8_t { normal, sinusoid };
template <>
inline constexpr std::array<std::string_view, 2> value_names<PositionInit>{"normal", "sinusoid"};

/// What encoders in the shape of BERT \cite devlin2019 and RoBERTa \cite liu2019 have in common;
/// a model's own configuration derives from it.
struct EncoderConfig {
  int64_t vocab = 257, n_layer = 4, n_head = 4, d_model = 128, d_ff = 512;
  int64_t n_max = 512;          ///< longest input
  int64_t position_offset = 0;  ///< rows of the position table before the first: 2 in RoBERTa
  int64_t token_types = 0;      ///< rows of the token type table
  int64_t mask_id = -1;         ///< the token that hides others; -1: the last of the vocabulary

  NormPlace norm = NormPlace::post;
  double norm_eps = 1e-12;
  Activation activation = Activation::gelu_erf;
  bool emb_scale = false;          ///< tokens times sqrt(d_model)
  bool emb_norm = true;            ///< a norm after the sum of the tables
  bool emb_dropout_first = false;  ///< dropout before that norm, not after it
  bool qkv_bias = true, out_bias = true;

  bool mlm_head = true;       ///< masked tokens: transform, table and a bias
  bool mlm_gelu = false;      ///< the transform has gelu_erf whatever activation is, as RoBERTa's
  bool tie_embedding = true;  ///< the head\'s table is that of the tokens
  int64_t classes = 0, tags = 0;  ///< of the whole sequence, of each token
  bool span_head = false;         ///< start and end of an answer
  bool choice_head = false;       ///< scores of candidates, of which one is the answer

  /// Sites emb, attn (probabilities), resid (branch outputs) and classifier; -1: as dropout.
  float dropout = 0.1f, dropout_attn = -1, dropout_classifier = -1;
  double init_std = 0.02;
  PositionInit position_init = PositionInit::normal;

  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  /// As ModelSpec's.
  std::string_view extend_positions(int64_t length) { return extend_table("n_max", n_max, length); }
  void visit(auto& v) {
    v("vocab", vocab)("n_layer", n_layer)("n_head", n_head)("d_model", d_model)("d_ff", d_ff)(
        "n_max", n_max)("position_offset", position_offset)("token_types", token_types)("mask_id",
                                                                                        mask_id);
    v("norm", norm)("norm_eps", norm_eps)("activation", activation)("emb_scale", emb_scale)(
        "emb_norm", emb_norm)("emb_dropout_first", emb_dropout_first)("qkv_bias", qkv_bias)(
        "out_bias", out_bias)("mlm_head", mlm_head)("mlm_gelu", mlm_gelu)(
        "tie_embedding", tie_embedding)("classes", classes)("tags", tags)("span_head", span_head)(
        "choice_head", choice_head);
    v("dropout", dropout)("dropout_attn", dropout_attn)("dropout_classifier", dropout_classifier)(
        "init_std", init_std)("position_init", position_init)("precision", precision)(
        "memory", memory)("chunks", memory.chunks);
    token_head.visit(v);
  }
};

/// What a forward pass reads.
struct EncoderInputs {
  Tensor tokens = {};   ///< [B, L] of an integer dtype
  Tensor lengths = {};  ///< i64 [B]: valid tokens of each sample; undefined: all
  Tensor types = {};    ///< [B, L] token types; undefined: all 0
  Tensor global = {};   ///< [B, L] not 0 at global tokens; only for models that have some
};

/// The start and the end logits of answers, [B, L] each; -inf beyond a sample's length.
struct SpanLogits {
  Tensor start, end;
};

/// The shell: embeddings, a stack whose attention is the model's own, and heads. A model derives,
/// makes one attention layer for each block, and says in given() what it sees.
///   x = norm(E[token] + P[position] + T[type])        x <- block_i(x), i < N
/// Rows beyond a sample's length mean nothing and influence nothing.
class Encoder : public LanguageModel {
 public:
  const EncoderConfig& encoder_config() const { return config_; }

  /// [B, L, D], after the final norm where there is one. Throws ShapeError, ValueError on an input
  /// longer than n_max.
  Tensor forward(const EncoderInputs& in, Pass pass) const;

  /// Masked tokens: [..., D] -> [..., V] in the dtype of the parameters, and the mean loss of those
  /// targets [B, L] that count.
  Tensor head(const Tensor& hidden) const;
  Tensor loss(const Tensor& hidden, const Tensor& targets, Pass pass = {}) const;
  /// hidden [B, L, D] -> [B, classes].
  Tensor classify(const Tensor& hidden, Pass pass) const;
  /// hidden [B, L, D] -> [B, L, tags].
  Tensor tag(const Tensor& hidden, Pass pass) const;
  /// hidden [B, L, D] -> logits of where answers start and end.
  SpanLogits spans(const Tensor& hidden, const Tensor& lengths) const;
  /// Scores [Q, C] of the candidates of Q questions \cite beltagy2020 (sec. 6.1): w . mean of h
  /// over the places of each, e.g. its mark in every window of a long text; -inf for one that has
  /// none.
  ///   hidden  [B, L, D]
  ///   places  i64 [Q, C, m]: b L + i for place i of sample b, or -1
  /// cross_entropy() of them and the numbers of the answers is the loss. Throws ShapeError, and
  /// ValueError on a place out of range.
  Tensor choose(const Tensor& hidden, const Tensor& places) const;

  Objective objective() const override { return Objective::masked_token; }
  int64_t vocab() const override { return config_.vocab; }
  int64_t mask_token() const override;
  int64_t max_length() const override { return config_.n_max; }
  Device device() const override { return token_.weight.device(); }
  int64_t layers() const override { return config_.n_layer; }
  Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
              Pass pass) const override;
  Tensor logits(const Tensor& tokens, Pass pass) const override;
  Tensor attention_map(const Tensor& tokens, int64_t layer) const override;
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;
  int64_t macs(int64_t length) const override;
  void visit(Visitor& v) override;

 protected:
  /// name      of the model, for messages
  /// attention one layer for each block, e.g. multi_heads()
  /// Throws ValueError, naming the fields, where they do not fit together.
  Encoder(std::string name, const EncoderConfig& config,
          std::vector<std::unique_ptr<Layer>> attention, const Init& init);

  /// Which keys the rows of such an input see, with lengths where there are any: either `pattern`
  /// or `layer_patterns`, and whatever else the model's attention layers read.
  virtual LayerContext layer_context(const EncoderInputs& in) const = 0;
  /// Multiply-accumulates of the attention of all blocks, projections included.
  virtual int64_t attention_macs(int64_t length) const;

  /// attention_map() of such an input of one sample.
  Tensor attention_map_of(const EncoderInputs& in, int64_t layer) const;

  /// One step of LanguageModel::decode() of a model whose rows see no later ones: `seen` is what
  /// the rows of these tokens see of all rows so far.
  Tensor decode_rows(const Tensor& tokens, LayerContext seen, StreamState& state) const;

  /// The attention layers of most models, one MultiHead for each block, named for `init`. Throws
  /// ValueError, naming the model, where heads do not fit.
  static std::vector<std::unique_ptr<Layer>> multi_heads(std::string_view model,
                                                         const EncoderConfig& c, const Init& init);
  /// The Init of the attention of block i.
  static Init attention_init(const Init& init, int64_t i);

 private:
  /// The first token has position `first`.
  Tensor embed(const EncoderInputs& in, Pass pass, int64_t first = 0) const;

  std::string name_;
  EncoderConfig config_;
  DType compute_;
  Embedding token_, type_;     // [V, D], [types, D]
  LearnedPositions position_;  // [position_offset + n_max, D]
  Normalization embed_norm_;
  Stack stack_;
  TokenTransform mlm_;
  Linear head_;  // [V, D], the token table where tied
  PooledHead classes_;
  Linear tags_;    // [tags, D]
  Linear spans_;   // [2, D]
  Linear choice_;  // [1, D]
};

/// Mean over samples and answers of the cross-entropy of independent yes-or-no answers
/// \cite zhou2015 : 919 features of chromatin, or one of promoters.
///   logits           [B, answers], of Encoder::classify()
///   labels           [B, answers] of an integer dtype, 0 or 1
///   positive_weight  factor on what positive labels cost; 8 in BigBird's profiles
Tensor profile_loss(const Tensor& logits, const Tensor& labels, double positive_weight = 1);

/// Mean over the samples of -(log P(start) + log P(end)) / 2 \cite devlin2019 .
///   starts, ends  i64 [B]; ignored_target: the answer is not in this window
Tensor span_loss(const SpanLogits& logits, const Tensor& starts, const Tensor& ends);

/// The same where any of several spans is right \cite clark2018 : of the samples that have some,
/// the mean of
///   -(log sum over the starts s of P(start = s) + log sum over the ends e of P(end = e)) / 2,
/// 0 where none has. A place counts once, however often it is named.
///   starts, ends  i64 [B, n], ignored_target where a sample has fewer
/// Throws ShapeError; ValueError on a place out of range and on a sample with starts or ends alone.
Tensor any_span_loss(const SpanLogits& logits, const Tensor& starts, const Tensor& ends);

}  // namespace longspan
