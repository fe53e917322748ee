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

/// The Transformer \cite vaswani2017 and its descendants: relative positions \cite shaw2018,
/// positions in every layer \cite alrfou2019, GPT-2 \cite radford2019, BERT \cite devlin2019, and
/// the Local Transformer \cite roy2021.
struct TransformerConfig {
  Wiring wiring = Wiring::decoder;
  int64_t vocab = 256, n_layer = 4, n_head = 4, d_model = 128, d_ff = 512;
  int64_t d_head = 0;        ///< 0: d_model / n_head
  int64_t d_embed = 0;       ///< width of the embedding tables, projected to d_model; 0: d_model
  int64_t n_max = 1024;      ///< rows of learned position tables
  int64_t source_n_max = 0;  ///< rows of the source's own position table; 0: n_max

  NormPlace norm = NormPlace::pre;
  double norm_eps = 1e-5;
  Activation activation = Activation::relu;

  Positions positions = Positions::shaw;
  SinusoidLayout sinusoid = SinusoidLayout::interleaved;
  int64_t shaw_clip = 64;
  bool shaw_values = true, shaw_share_layers = false, shaw_per_head = false;
  bool shaw_two_sided = false;  ///< encoders always are

  Locality local = Locality::none;
  int64_t window = 0;

  bool qkv_bias = false, out_bias = false, head_bias = false;
  bool share_qk = false;
  /// Attention probabilities: 1 softmax, up to 2 alpha-entmax, which makes most of them 0
  /// \cite correia2019 .
  double alpha = 1;
  bool learn_alpha = false;  ///< each head learns its own alpha between 1.01 and 2
  bool tie_embedding = false;
  /// Decoders: adaptive embedding and softmax in clusters of ids that begin at 0 and at each cutoff
  /// (nn/adaptive.h). Cluster c is d_embed / div_value^c wide; d_embed has no other meaning then.
  std::vector<int64_t> cutoffs = {};
  int64_t div_value = 1;
  std::vector<int64_t> tie_projections = {};  ///< clusters whose projection both share
  bool emb_scale = false;                     ///< tokens times sqrt(d_model)
  bool emb_norm = false;
  int64_t position_offset = 0;  ///< learned: rows of the table before position 0 (BART: 2)
  bool source_tables = false;   ///< encoder_decoder: the source has its own positions and emb_norm
  bool couple = false;       ///< encoder_decoder: the decoder shares the encoder's blocks and their
                             ///< norms, except cross-attention
  int64_t source_vocab = 0;  ///< encoder_decoder: vocabulary of the source's own token table; 0:
                             ///< shares the target's table
  int64_t token_types = 0;   ///< rows of the token type table
  bool mlm_head = false;     ///< dense, activation and norm before the head (BERT)
  int64_t classes = 0;       ///< number of classes of the pooled classification head

  /// Rates at the sites emb, attn (probabilities), ffn_act and resid (branch outputs); -1: as
  /// resid.
  float dropout = 0, dropout_emb = -1, dropout_attn = -1, dropout_ffn_act = -1;
  float dropout_token = 0;  ///< share of tokens that training replaces by the zero vector
  double label_smoothing = 0;
  bool half_loss = false;  ///< in training only the second half of each segment counts

  /// Auxiliary losses of decoders in training \cite alrfou2019 : layer l of N also predicts, with
  /// its own classifier, until l / 2N of the training is done. Every prediction covers the next
  /// `n_target` tokens; each token after the first is weighted by `target_weight`.
  bool layer_loss = false;
  int64_t n_target = 1;
  double target_weight = 0.5;

  Weights init = Weights::normal;
  double init_std = 0.02;
  double embed_std = 0;  ///< of tokens; 0: 1 / sqrt(d_model) with emb_scale, else init_std
  bool init_residual_scale = true;  ///< output weights of branches times 1 / sqrt(branches)

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
    v("wiring", wiring)("vocab", vocab)("n_layer", n_layer)("n_head", n_head)("d_model", d_model)(
        "d_ff", d_ff)("d_head", d_head)("d_embed", d_embed)("n_max", n_max)(
        "source_n_max", source_n_max)("norm", norm)("norm_eps", norm_eps)("activation", activation)(
        "positions", positions)("sinusoid", sinusoid);
    v("shaw_clip", shaw_clip)("shaw_values", shaw_values)("shaw_share_layers", shaw_share_layers)(
        "shaw_per_head", shaw_per_head)("shaw_two_sided", shaw_two_sided)("local", local)(
        "window", window)("qkv_bias", qkv_bias)("out_bias", out_bias)("head_bias", head_bias)(
        "share_qk", share_qk)("alpha", alpha)("learn_alpha", learn_alpha)(
        "tie_embedding", tie_embedding)("cutoffs", cutoffs)("div_value", div_value)(
        "tie_projections", tie_projections)("emb_scale", emb_scale)("emb_norm", emb_norm)(
        "position_offset", position_offset)("source_tables", source_tables)("couple", couple)(
        "source_vocab", source_vocab)("token_types", token_types)("mlm_head", mlm_head)("classes",
                                                                                        classes);
    v("dropout", dropout)("dropout_emb", dropout_emb)("dropout_attn", dropout_attn)(
        "dropout_ffn_act", dropout_ffn_act)("dropout_token", dropout_token)(
        "label_smoothing", label_smoothing)("half_loss", half_loss)("layer_loss", layer_loss)(
        "n_target", n_target)("target_weight", target_weight)("init", init)("init_std", init_std)(
        "embed_std", embed_std)("init_residual_scale", init_residual_scale)("precision", precision)(
        "memory", memory)("chunks", memory.chunks);
    token_head.visit(v);
  }
};

/// The inputs of a forward pass: tokens and source of an integer dtype, lengths i64 [B].
struct TransformerInputs {
  Tensor tokens = {};   ///< [B, L]
  Tensor lengths = {};  ///< valid tokens of an encoder's input, or of the source; undefined: all
  Tensor types = {};    ///< [B, L] token types; undefined: all 0
  Tensor source = {};   ///< [B, S] input of the encoder of an encoder-decoder
  Tensor context = {};  ///< [B, S, D] output of the encoder, in place of the source
};

/// The classifiers of one layer for auxiliary losses, used only in training.
struct AuxiliaryHead : Module {
  void visit(Visitor& v) override { v("norm", norm)("targets", targets); }

  std::optional<Normalization> norm;  ///< for layers before the last one, with pre-norm
  std::vector<Linear> targets;        ///< [V, D]: the next token and those after it
};

/// The model of a TransformerConfig.
class Transformer : public CausalDecoder {
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
  /// [B, classes] from tanh(dense(first token)).
  Tensor classify(const Tensor& hidden) const;

  /// Encodes the source of an encoder-decoder and returns the state to decode from.
  std::unique_ptr<DecodeState> start_decoding(const Tensor& source, const Tensor& lengths) const;
  /// Does the same with the output of the encoder, `context`.
  std::unique_ptr<DecodeState> start_decoding_after(const Tensor& context,
                                                    const Tensor& lengths) const;

  Objective objective() const override;
  int64_t mask_token() const override;
  int64_t max_length() const override;
  int64_t max_source_length() const override;
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
  LayerContext encoder_context(const Tensor& lengths) const;
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
