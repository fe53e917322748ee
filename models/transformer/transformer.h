#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "models/causal_decoder.h"
#include "models/model_spec.h"
#include "nn/attention/multi_head.h"
#include "nn/fields.h"
#include "nn/layers.h"
#include "nn/position.h"
#include "nn/stack.h"

namespace longspan {

/// A causal language model; a bidirectional encoder; or both, with cross-attention between.
enum class Wiring : uint8_t { decoder, encoder, encoder_decoder };
template <>
inline constexpr std::array<std::string_view, 3> value_names<Wiring>{"decoder", "encoder",
                                                                     "encoder_decoder"};

/// How a model tells positions apart.
enum class Positions : uint8_t { none, sinusoid, learned, learned_per_layer, shaw };
template <>
inline constexpr std::array<std::string_view, 5> value_names<Positions>{
    "none", "sinusoid", "learned", "learned_per_layer", "shaw"};

/// exact: causal 0 <= i - j < window, bidirectional |i - j| <= window / 2; block: the query's own
/// block of `window` tokens and the one before it, causal.
enum class Locality : uint8_t { none, exact, block };
template <>
inline constexpr std::array<std::string_view, 3> value_names<Locality>{"none", "exact", "block"};

/// How matrices are initialized.
enum class Weights : uint8_t { xavier_uniform, normal, truncated_normal, orthogonal };
template <>
inline constexpr std::array<std::string_view, 4> value_names<Weights>{
    "xavier_uniform", "normal", "truncated_normal", "orthogonal"};

/// What q . k is multiplied by: 1 / sqrt(d), 1, or 1 / (sqrt(d) (i + 1)) in layer i.
enum class AttentionScale : uint8_t { sqrt_width, none, by_layer };
template <>
inline constexpr std::array<std::string_view, 3> value_names<AttentionScale>{"sqrt_width", "none",
                                                                             "by_layer"};

/// The Transformer \cite vaswani2017 and its descendants: relative positions \cite shaw2018,
/// positions in every layer \cite alrfou2019, GPT-2 \cite radford2019, BERT \cite devlin2019, and
/// the Local Transformer \cite roy2021.
struct TransformerConfig {
  static constexpr const char* model_name = "transformer";  ///< in messages

  Wiring wiring = Wiring::decoder;
  int64_t vocab = 256, n_layer = 4, n_head = 4, d_model = 128, d_ff = 512;
  int64_t d_head = 0;
  int64_t d_embed = 0;
  int64_t target_n_layer = 0, target_n_head = 0, target_d_ff = 0;
  int64_t padding_id = -1;
  bool constant_bias = false;
  int64_t n_max = 1024;
  int64_t source_n_max = 0;

  NormPlace norm = NormPlace::pre;
  double norm_eps = 1e-5;
  Activation activation = Activation::relu;

  Positions positions = Positions::shaw;
  SinusoidLayout sinusoid = SinusoidLayout::interleaved;
  int64_t shaw_clip = 64;
  bool shaw_values = true, shaw_share_layers = false, shaw_per_head = false;
  bool shaw_two_sided = false;

  Locality local = Locality::none;
  int64_t window = 0;

  bool qkv_bias = false, out_bias = false, head_bias = false;
  bool share_qk = false;
  AttentionScale attention_scale = AttentionScale::sqrt_width;
  /// Attention probabilities: 1 softmax, up to 2 alpha-entmax, which makes most of them 0
  /// \cite correia2019 .
  double alpha = 1;
  bool learn_alpha = false;
  bool tie_embedding = false;
  /// Decoders: adaptive embedding and softmax in clusters of ids that begin at 0 and at each cutoff
  /// (nn/adaptive.h). Cluster c is d_embed / div_value^c wide; d_embed has no other meaning then.
  std::vector<int64_t> cutoffs = {};
  int64_t div_value = 1;
  std::vector<int64_t> tie_projections = {};
  bool emb_scale = false;
  bool emb_norm = false;
  int64_t position_offset = 0;
  bool source_tables = false;
  bool couple = false;
  int64_t source_vocab = 0;
  int64_t token_types = 0;
  bool types_share_table = false;
  bool mlm_head = false;
  int64_t classes = 0, tags = 0;
  bool span_head = false;

  /// Rates at the sites emb, attn (probabilities), ffn_act and resid (branch outputs); -1: as
  /// resid.
  float dropout = 0, dropout_emb = -1, dropout_attn = -1, dropout_ffn_act = -1;
  float dropout_token = 0;
  double label_smoothing = 0;
  bool half_loss = false;

  /// Auxiliary losses of decoders in training \cite alrfou2019 : layer l of N also predicts, with
  /// its own classifier, until l / 2N of the training is done. Every prediction covers the next
  /// `n_target` tokens; each token after the first is weighted by `target_weight`.
  bool layer_loss = false;
  int64_t n_target = 1;
  double target_weight = 0.5;

  Weights init = Weights::normal;
  double init_std = 0.02;
  double embed_std = 0;
  bool init_residual_scale = true;

  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  /// Whether attention is entmax in place of softmax.
  bool sparse_probabilities() const { return alpha != 1 || learn_alpha; }
  /// Whether projections lead from token tables of width d_embed to d_model and back.
  bool projects() const { return d_embed > 0 && cutoffs.empty(); }
  /// See ModelSpec.
  std::string_view extend_positions(int64_t length);
  void visit(auto& v) {
    v("wiring", wiring, "decoder, encoder, or both");
    visit_sizes(v, *this);
    v("d_head", d_head, range::not_negative, meaning::d_head);
    v("d_embed", d_embed, range::not_negative, meaning::d_embed);
    visit_target(v, *this);
    v("n_max", n_max, range::positive, "rows of learned position tables");
    v("source_n_max", source_n_max, range::not_negative,
      "rows of the source's own table; 0: n_max");
    v("norm", norm, meaning::norm)("norm_eps", norm_eps, range::above_zero, meaning::norm_eps);
    v("activation", activation, meaning::activation)("positions", positions,
                                                     "how positions are told");
    v("sinusoid", sinusoid, "order of sines and cosines");
    v("shaw_clip", shaw_clip, "positions = shaw: larger distances share a row");
    v("shaw_values", shaw_values, "positions = shaw: values have relative rows, as well as keys");
    v("shaw_share_layers", shaw_share_layers, "positions = shaw: all layers share their tables");
    v("shaw_per_head", shaw_per_head, "positions = shaw: each head has its own table");
    v("shaw_two_sided", shaw_two_sided,
      "positions = shaw: rows for later keys; encoders always have them");
    v("local", local, "local attention: none, of exact windows, or of blocks");
    v("window", window, "keys of a window, or tokens of a block");
    v("qkv_bias", qkv_bias, meaning::qkv_bias)("out_bias", out_bias, meaning::out_bias);
    v("head_bias", head_bias, meaning::head_bias)("share_qk", share_qk, "keys are the queries");
    v("attention_scale", attention_scale,
      "what q . k is multiplied by; by_layer: also by 1 / (i + 1) in layer i");
    v("alpha", alpha, "attention: 1 softmax, up to 2 alpha-entmax, which makes most of it 0");
    v("learn_alpha", learn_alpha, "each head learns its own alpha between 1.01 and 2");
    v("tie_embedding", tie_embedding, meaning::tie_embedding)("cutoffs", cutoffs, meaning::cutoffs);
    v("div_value", div_value, meaning::div_value);
    v("tie_projections", tie_projections, meaning::tie_projections);
    v("emb_scale", emb_scale, meaning::emb_scale)("emb_norm", emb_norm, meaning::emb_norm);
    v("position_offset", position_offset, range::not_negative, meaning::position_offset);
    v("source_tables", source_tables,
      "encoder_decoder: the source has its own positions and emb_norm");
    v("couple", couple, "encoder_decoder: the decoder shares the encoder's blocks and norms");
    v("source_vocab", source_vocab, range::not_negative,
      "encoder_decoder: tokens of the source's own table; 0: the target's table");
    v("token_types", token_types, range::not_negative, meaning::token_types);
    v("types_share_table", types_share_table,
      "token types are looked up in the token table, as in GPT-2");
    v("mlm_head", mlm_head, "dense layer, activation and norm before the head, as in BERT");
    v("classes", classes, range::not_negative,
      "classes of a sequence, of the last token in a decoder; 0: no head for them");
    v("tags", tags, range::not_negative, "decoders: classes of a token; 0: no head for them");
    v("span_head", span_head, "decoders: a head for the start and the end of an answer");
    v("dropout", dropout, range::probability, "of the outputs of branches");
    v("dropout_emb", dropout_emb, range::as_dropout, "of embedded tokens; -1: as dropout");
    v("dropout_attn", dropout_attn, range::as_dropout, meaning::dropout_attn);
    v("dropout_ffn_act", dropout_ffn_act, range::as_dropout, meaning::dropout_ffn_act);
    v("dropout_token", dropout_token, range::probability,
      "fraction of tokens that training sets to zero");
    v("label_smoothing", label_smoothing, range::probability, meaning::label_smoothing);
    v("half_loss", half_loss, "in training only the second half of each segment counts");
    v("layer_loss", layer_loss,
      "decoders: layer l of N also predicts, until l / 2N of the training");
    v("n_target", n_target, range::count, "decoders: next tokens that every prediction covers");
    v("target_weight", target_weight, range::not_negative,
      "weight of each such token after the first");
    v("init", init, "how matrices begin")("init_std", init_std, range::not_negative,
                                          meaning::init_std);
    v("embed_std", embed_std, range::not_negative,
      "std of tokens; 0: 1 / sqrt(d_model) with emb_scale, else init_std");
    v("init_residual_scale", init_residual_scale,
      "output weights of branches times 1 / sqrt(branches)");
    visit_computation(v, *this);
  }
};

/// The inputs of a forward pass: tokens and source of an integer dtype, lengths i64 [B].
struct TransformerInputs {
  Tensor tokens = {};   ///< [B, L]
  Tensor lengths = {};  ///< valid tokens of an encoder's input, or of the source; undefined: all
  Tensor types = {};    ///< [B, L] token types; undefined: all 0
  Tensor source = {};   ///< [B, S] input of the encoder of an encoder-decoder
  Tensor context = {};  ///< [B, S, D] output of the encoder, in place of the source
  /// Zero at tokens, or tokens of the source, that no other token sees; undefined: none.
  Tensor mask = {};
};

/// The classifiers of one layer for auxiliary losses, used only in training.
struct AuxiliaryHead : Module {
  void visit(Visitor& v) override { v("norm", norm)("targets", targets); }

  std::optional<Normalization> norm;  ///< for layers before the last one, with pre-norm
  std::vector<Linear> targets;        ///< [V, D]: the next token and those after it
};

/// The model of a TransformerConfig.
class Transformer : public CausalDecoder,
                    public WritesSequences,
                    public ShowsDecoder,
                    public FillsMasks,
                    public ClassifiesSequences,
                    public TagsTokens,
                    public FindsSpans {
 public:
  /// Throws ValueError that names the fields when they do not fit together. `encoder_attention`
  /// holds layers that replace the encoder's own attention, one for each block; run_encoder()
  /// passes them the LayerContext that they need.
  Transformer(const TransformerConfig& config, const Init& init,
              std::vector<std::unique_ptr<Layer>> encoder_attention = {})
      : Transformer(config, init, nullptr, std::move(encoder_attention)) {}

  const TransformerConfig& config() const { return config_; }

  /// Returns the input of the head: [B, L, D], after the final norm if there is one.
  Tensor forward(const TransformerInputs& in, Pass pass) const;
  using CausalDecoder::forward;
  /// Runs the encoder of an encoder-decoder: [B, S] -> [B, S, D].
  Tensor encode(const Tensor& source, const Tensor& lengths, Pass pass) const;
  /// Runs the encoder with `ctx` as the context of its layers.
  Stack::Result run_encoder(const Tensor& source, const LayerContext& ctx, Pass pass) const;
  /// Does the same as forward(), with the encoder's context given, and returns the auxiliary losses
  /// and statistics of the layers of both sides, too.
  Stack::Result run_both(const TransformerInputs& in, const LayerContext& encoder, Pass pass) const;
  /// Computes the mean over the targets [B, L] that count of the negative log-likelihood (smoothed
  /// in training), without auxiliary losses.
  Tensor loss(const Tensor& hidden, const Tensor& targets, Pass pass) const override;
  /// [B, classes] from tanh(dense(first token)), of an encoder.
  Tensor classify(const Tensor& hidden) const;

  bool predicts_tokens() const override { return true; }
  /// 0 unless the model is a decoder; an encoder has classify() instead.
  int64_t classes() const override {
    return config_.wiring == Wiring::decoder ? config_.classes : 0;
  }
  int64_t tags() const override { return config_.tags; }
  bool finds_spans() const override { return config_.span_head; }
  int64_t token_types() const override { return config_.token_types; }
  /// Logits of the last valid token of each sample, which has seen all others.
  Tensor class_logits(const EncoderInputs& in, Pass pass) const override;
  Tensor tag_logits(const EncoderInputs& in, Pass pass) const override;
  SpanLogits span_logits(const EncoderInputs& in, Pass pass) const override;

  /// Encodes the source of an encoder-decoder and returns the state to decode from.
  std::unique_ptr<DecodeState> start_decoding(const Tensor& source, const Tensor& lengths) const;
  /// As start_decoding(), from the output of the encoder, `context`. `hidden` u8 [B, S] marks
  /// tokens of the source that no other sees.
  std::unique_ptr<DecodeState> start_decoding_after(const Tensor& context, const Tensor& lengths,
                                                    const Tensor& hidden = {}) const;

  Objective objective() const override;
  int64_t mask_token() const override;
  int64_t max_length() const override;
  int64_t max_source_length() const override;
  bool continues_sequences() const override { return config_.wiring == Wiring::decoder; }
  bool writes_sequences() const override { return config_.wiring == Wiring::encoder_decoder; }
  Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
              Pass pass) const override;
  Losses sequence_loss(const SourceTokens& source, const Tensor& tokens, const Tensor& targets,
                       Pass pass) const override;
  std::unique_ptr<DecodeState> start_decoding(int64_t batch) const override;
  std::unique_ptr<DecodeState> start_after(const SourceTokens& source) const override;
  Tensor attention_map(const Tensor& tokens, int64_t layer) const override;
  /// Computes the map of an encoder whose layers get `ctx`.
  Tensor encoder_attention_map(const Tensor& source, int64_t layer, const LayerContext& ctx) const;
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;
  bool has_decoder() const override { return config_.wiring == Wiring::encoder_decoder; }
  int64_t decoder_layers() const override { return stack_.size(); }
  Tensor decoder_map(const Tensor& source, const Tensor& tokens, int64_t layer,
                     bool cross) const override;
  /// Computes the map of a decoder that reads the output of the encoder, `context` [1, S, D].
  Tensor decoder_map_after(const Tensor& context, const Tensor& tokens, int64_t layer,
                           bool cross) const;
  std::vector<int64_t> divided_heads() const override;
  void visit(Visitor& v) override;

 protected:
  /// Makes the self-attention of a block.
  using MakeAttention = std::function<std::unique_ptr<Layer>(const AttentionOptions& options,
                                                             bool causal, const Init& init)>;
  /// Makes a Transformer with another self-attention than its own, unless `attention` is null.
  Transformer(const TransformerConfig& config, const Init& init, const MakeAttention& attention,
              std::vector<std::unique_ptr<Layer>> encoder_attention = {});

 private:
  /// `coupled`: a stack whose attention and feed-forward networks this one shares.
  Stack make_stack(bool causal, bool cross, ShawTables& shared, const Init& init,
                   const MakeAttention& make_attention,
                   std::vector<std::unique_ptr<Layer>> attention_layers = {},
                   const Stack* coupled = nullptr) const;
  /// The keys of its own stack that a row attends to; the first key has position key_start.
  AttentionPattern pattern(bool causal, int64_t key_start) const;
  LayerContext layer_context(int64_t queries, int64_t keys, int64_t first_key) const override;
  int64_t first_visible(int64_t position) const override;
  /// Returns the context of the encoder of an encoder-decoder.
  LayerContext encoder_context(const Tensor& lengths, const Tensor& hidden = {}) const;
  /// Returns forward() of a decoder with heads.
  Tensor states_of(const EncoderInputs& in, Pass pass) const;
  /// Stores the output of every layer in `layers` if it is not null.
  Stack::Result states_of(const TransformerInputs& in, Pass pass,
                          std::vector<Tensor>* layers) const;
  Stack::Result states(const Tensor& tokens, const SegmentMemory& memory, Pass pass) const override;
  /// Tables of tokens, positions and types; `source`: those of the source if it has its own.
  Tensor tables(bool source, const Tensor& tokens, int64_t first, const Tensor& types,
                Pass pass) const;
  Tensor embed(const Tensor& tokens, int64_t first, Pass pass) const override {
    return tables(false, tokens, first, {}, pass);
  }
  Tensor embed_source(const Tensor& source, Pass pass) const;
  Tensor head_input(const Tensor& hidden) const override;
  /// The mean loss of predicting, from each row of h [B, L, D], the token `further` positions after
  /// its next one.
  Tensor further_loss(Tensor h, const Linear& classifier, Tensor targets, int64_t further,
                      Pass pass) const;
  Tensor auxiliary_loss(const std::vector<Tensor>& layers, const Tensor& hidden,
                        const Tensor& targets, Pass pass) const;

  TransformerConfig config_;
  Embedding source_;           // [source_vocab, De]
  Embedding type_;             // [types, D]
  Linear embed_projection_;    // [D, De]
  LearnedPositions position_;  // [offset + n_max, D]
  LearnedPositions source_position_;
  Tensor sinusoid_;  // [n_max or fewer, D], not a parameter
  Normalization embed_norm_, source_norm_;
  ShawTables encoder_shared_, shared_;
  Stack encoder_;
  TokenTransform mlm_;
  Linear head_projection_;                // [De, D]
  std::vector<AuxiliaryHead> auxiliary_;  // in the order of the layers that have one
  PooledHead classes_;
  Linear last_classes_, tags_, spans_;  // of decoders
};

/// Entries of the models in this file under the names that programs use.
const ModelEntry& transformer_entry();
/// models/transformer/local_transformer.cc
const ModelEntry& local_transformer_entry();

/// Presets from the literature (models/transformer/transformer_presets.cc). Throws ValueError on an
/// unknown name.
TransformerConfig transformer_preset(std::string_view name);
TransformerConfig local_transformer_preset(std::string_view name);

}  // namespace longspan
