#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/capabilities.h"
#include "models/model.h"
#include "models/own_rows.h"
#include "models/parts.h"
#include "nn/attention/multi_head.h"
#include "nn/position.h"
#include "nn/stack.h"

namespace longspan {

/// How a learned position table is initialized: drawn at random, or as sines and cosines
/// \cite vaswani2017 of the same variance, from which the model learns relative positions in few
/// steps.
enum class PositionInit : uint8_t { normal, sinusoid };
template <>
inline constexpr std::array<std::string_view, 2> value_names<PositionInit>{"normal", "sinusoid"};

/// The configuration that encoders in the shape of BERT \cite devlin2019 and RoBERTa \cite liu2019
/// share; each model derives its own from it.
struct EncoderConfig {
  int64_t vocab = 257, n_layer = 4, n_head = 4, d_model = 128, d_ff = 512;
  int64_t d_embed = 0;
  int64_t n_max = 512;
  int64_t position_offset = 0;
  int64_t padding_id = -1;
  bool skip_padding = false;
  int64_t token_types = 0;
  int64_t mask_id = -1;

  NormPlace norm = NormPlace::post;
  double norm_eps = 1e-12;
  Activation activation = Activation::gelu_erf;
  bool emb_scale = false;
  bool emb_norm = true;
  bool emb_dropout_first = false;
  bool qkv_bias = true, out_bias = true;

  bool mlm_head = true;
  bool mlm_gelu = false;
  bool tie_embedding = true;
  int64_t classes = 0, tags = 0;
  bool span_head = false;
  bool choice_head = false;
  PoolActivation pool_activation = PoolActivation::tanh;
  bool pool_dropout = false;

  /// Rates at the sites emb, attn (probabilities), resid (branch outputs) and classifier; -1: as
  /// dropout.
  float dropout = 0.1f, dropout_attn = -1, dropout_classifier = -1, dropout_spans = 0;
  double init_std = 0.02;
  PositionInit position_init = PositionInit::normal;

  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  /// See ModelSpec.
  std::string_view extend_positions(int64_t length) { return extend_table("n_max", n_max, length); }
  void visit(auto& v) {
    visit_sizes(v, *this);
    v("d_embed", d_embed, range::not_negative, meaning::d_embed);
    v("n_max", n_max, range::positive, "maximum tokens of an input");
    v("position_offset", position_offset, range::not_negative, meaning::position_offset);
    v("padding_id", padding_id, meaning::padding_id);
    v("skip_padding", skip_padding,
      "positions count the tokens that are not padding_id, as in RoBERTa");
    v("token_types", token_types, range::not_negative, meaning::token_types);
    v("mask_id", mask_id, meaning::mask_id);
    v("norm", norm, meaning::norm)("norm_eps", norm_eps, range::above_zero, meaning::norm_eps);
    v("activation", activation, meaning::activation)("emb_scale", emb_scale, meaning::emb_scale);
    v("emb_norm", emb_norm, meaning::emb_norm);
    v("emb_dropout_first", emb_dropout_first, "dropout before that norm instead of after it");
    v("qkv_bias", qkv_bias, meaning::qkv_bias)("out_bias", out_bias, meaning::out_bias);
    v("mlm_head", mlm_head, meaning::mlm_head);
    v("mlm_gelu", mlm_gelu, "that head has gelu_erf whatever `activation` is, as RoBERTa's");
    v("tie_embedding", tie_embedding, meaning::tie_embedding);
    v("classes", classes, range::not_negative, meaning::classes);
    v("tags", tags, range::not_negative, "classes of a token; 0: no head for them");
    v("span_head", span_head, meaning::span_head);
    v("choice_head", choice_head,
      "a head for the scores of candidates, one of which is the answer");
    v("pool_activation", pool_activation, "between the two layers of the head for classes");
    v("pool_dropout", pool_dropout, "dropout before the first of those layers as well");
    v("dropout", dropout, range::probability, "of embedded tokens and of the outputs of branches");
    v("dropout_attn", dropout_attn, range::as_dropout, meaning::dropout_attn);
    v("dropout_classifier", dropout_classifier, range::as_dropout,
      "of the input of the head for classes; -1: as dropout");
    v("dropout_spans", dropout_spans, range::probability, "of the input of the head for answers");
    v("init_std", init_std, range::not_negative, meaning::init_std);
    v("position_init", position_init, "how the position table begins");
    visit_computation(v, *this);
  }
};

/// The common encoder: embeddings, a stack whose attention layers the model supplies, and heads. A
/// model derives from it, passes one attention layer for each block, and says in layer_context()
/// which keys the rows attend to.
///   x = norm(E[token] + P[position] + T[type])        x <- block_i(x), i < N
/// With d_embed these tables are of that width, and x is a projection of their norm, as in ELECTRA.
/// Rows beyond a sample's length have unspecified values and influence no other row.
class Encoder : public LanguageModel,
                public FillsMasks,
                public ClassifiesSequences,
                public TagsTokens,
                public FindsSpans,
                public ChoosesCandidates,
                public SplitsSequences,
                public ShowsAttention {
 public:
  const EncoderConfig& encoder_config() const { return config_; }

  /// Returns [B, L, D], after the final norm if there is one. Throws ShapeError, and ValueError on
  /// an input longer than n_max.
  Tensor forward(const EncoderInputs& in, Pass pass) const;

  /// head() maps [..., D] to the logits of masked tokens [..., V] in the dtype of the parameters.
  /// loss() is the mean loss of the targets [B, L] that count.
  Tensor head(const Tensor& hidden) const;
  Tensor loss(const Tensor& hidden, const Tensor& targets, Pass pass = {}) const;
  /// hidden [B, L, D] -> [B, classes].
  Tensor classify(const Tensor& hidden, Pass pass) const;
  /// hidden [B, L, D] -> [B, L, tags].
  Tensor tag(const Tensor& hidden, Pass pass) const;
  /// hidden [B, L, D] -> logits of the starts and ends of answers.
  SpanLogits spans(const Tensor& hidden, const Tensor& lengths, Pass pass = {}) const;
  /// Scores [Q, C] of the candidates of Q questions \cite beltagy2020 (sec. 6.1): w . mean of h
  /// over the positions of each candidate, e.g. its mark in every window of a long text; -inf for a
  /// candidate without positions.
  ///   hidden  [B, L, D]
  ///   places  i64 [Q, C, m]: b L + i for position i of sample b, or -1
  /// Pass them to cross_entropy() with the indices of the answers as targets. Throws ShapeError,
  /// and ValueError on a position out of range.
  Tensor choose(const Tensor& hidden, const Tensor& places) const;

  Objective objective() const override { return Objective::masked_token; }
  int64_t vocab() const override { return config_.vocab; }
  int64_t mask_token() const override;
  bool predicts_tokens() const override { return config_.mlm_head; }
  int64_t classes() const override { return config_.classes; }
  int64_t tags() const override { return config_.tags; }
  bool finds_spans() const override { return config_.span_head; }
  bool chooses_candidates() const override { return config_.choice_head; }
  int64_t token_types() const override { return config_.token_types; }
  /// The heads applied to forward().
  Tensor class_logits(const EncoderInputs& in, Pass pass) const override {
    return classify(forward(in, undivided(name_, pass)), pass);
  }
  Tensor tag_logits(const EncoderInputs& in, Pass pass) const override {
    return tag(forward(in, undivided(name_, pass)), pass);
  }
  SpanLogits span_logits(const EncoderInputs& in, Pass pass) const override {
    return spans(forward(in, undivided(name_, pass)), in.lengths, pass);
  }
  Tensor candidate_scores(const EncoderInputs& in, const Tensor& places, Pass pass) const override {
    return choose(forward(in, undivided(name_, pass)), places);
  }
  int64_t max_length() const override { return config_.n_max; }
  Device device() const override { return token_.weight.device(); }
  int64_t layers() const override { return config_.n_layer; }
  Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
              Pass pass) const override;
  Tensor logits(const Tensor& tokens, Pass pass) const override;
  Tensor attention_map(const Tensor& tokens, int64_t layer) const override;
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;
  std::vector<int64_t> divided_heads() const override { return {config_.n_head}; }
  void visit(Visitor& v) override;

 protected:
  ///   name       name of the model, for messages
  ///   attention  one layer for each block, e.g. from multi_heads()
  /// Throws ValueError that names the fields when they do not fit together.
  Encoder(std::string name, const EncoderConfig& config,
          std::vector<std::unique_ptr<Layer>> attention, const Init& init);

  /// Returns the context of the layers for an input: either `pattern` or `layer_patterns`, with
  /// `lengths` applied if the input has any, and whatever else the model's attention layers read.
  virtual LayerContext layer_context(const EncoderInputs& in, Pass pass) const = 0;

  /// Returns the pattern without what `in` says that is not there: `lengths` and `mask`.
  static AttentionPattern seen_in(AttentionPattern pattern, const EncoderInputs& in);
  /// Returns the mask as keys that no query sees, u8 [B, L]; undefined without one. Throws
  /// ShapeError unless it is [B, L].
  static Tensor hidden_tokens(std::string_view model, const EncoderInputs& in);

  /// attention_map() for an input of one sample.
  Tensor attention_map_of(const EncoderInputs& in, int64_t layer) const;

  /// One step of Decodes::decode() for a causal model. `seen` says which of all keys so far
  /// the rows of these tokens attend to.
  Tensor decode_rows(const Tensor& tokens, LayerContext seen, StreamState& state) const;

  /// Returns one MultiHead for each block, the attention layers of most models, named for `init`.
  /// Throws ValueError that names the model when n_head does not divide d_model.
  static std::vector<std::unique_ptr<Layer>> multi_heads(std::string_view model,
                                                         const EncoderConfig& c, const Init& init);

 private:
  /// Returns forward() with the auxiliary losses and statistics of the layers.
  Stack::Result run(const EncoderInputs& in, Pass pass) const;
  /// Embeds tokens; the first one has position `first`.
  Tensor embed(const EncoderInputs& in, Pass pass, int64_t first = 0) const;
  /// Returns the position vectors of own rows of tokens [B, L]: [n, E], or [B, n, E] where they
  /// skip padding.
  Tensor positions(const Tensor& tokens, int64_t first, const OwnRows& own) const;
  /// The width of the tables.
  int64_t table_width() const { return config_.d_embed > 0 ? config_.d_embed : config_.d_model; }

  std::string name_;
  EncoderConfig config_;
  DType compute_;
  Embedding token_, type_;     // [V, E], [types, E]
  LearnedPositions position_;  // [position_offset + n_max, E]
  Normalization embed_norm_;
  Linear embed_projection_;  // [D, E], or undefined
  Stack stack_;
  TokenTransform mlm_;
  Linear head_;  // [V, E], the token table if tied
  PooledHead classes_;
  Linear tags_;    // [tags, D]
  Linear spans_;   // [2, D]
  Linear choice_;  // [1, D]
};

/// Binary cross-entropy of independent yes-or-no labels, mean over samples and labels
/// \cite zhou2015 : 919 features of chromatin, or one of promoters.
///   logits           [B, answers], of Encoder::classify()
///   labels           [B, answers] of an integer dtype, 0 or 1
///   positive_weight  factor on the loss of positive labels; 8 in BigBird's profiles
Tensor profile_loss(const Tensor& logits, const Tensor& labels, double positive_weight = 1);

/// Mean over the samples of -(log P(start) + log P(end)) / 2 \cite devlin2019 .
///   starts, ends  i64 [B]; ignored_target: the answer is not in this window
Tensor span_loss(const SpanLogits& logits, const Tensor& starts, const Tensor& ends);

/// The loss when any of several spans is right \cite clark2018 : the mean, over the samples that
/// have an answer, of
///   -(log sum over the starts s of P(start = s) + log sum over the ends e of P(end = e)) / 2,
/// and 0 if no sample has one. A position that is listed more than once counts once.
///   starts, ends  i64 [B, n], padded with ignored_target
/// Throws ShapeError, and ValueError on a position out of range or a sample with only starts or
/// only ends.
Tensor any_span_loss(const SpanLogits& logits, const Tensor& starts, const Tensor& ends);

}  // namespace longspan
