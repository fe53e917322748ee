#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <vector>

#include "nn/fields.h"
#include "nn/layers.h"
#include "nn/segment.h"
#include "nn/stack.h"
#include "ops/loss.h"

namespace longspan {

/// The dtype that layers compute in. Parameters stay f32; a model with f64 parameters computes in
/// f64.
enum class Precision : uint8_t { f32, bf16, f16 };
template <>
inline constexpr std::array<std::string_view, 3> value_names<Precision>{"f32", "bf16", "f16"};
/// Option values of LossGradient.
template <>
inline constexpr std::array<std::string_view, 3> value_names<LossGradient>{
    "recompute", "in_forward", "automatic"};

/// How the logits of tokens are computed and trained.
struct HeadOptions {
  double z_loss = 0;    ///< \cite chowdhery2022
  double soft_cap = 0;  ///< \cite gemma2
  LossGradient loss_gradient = LossGradient::automatic;
  void visit(auto& v) {
    v("z_loss", z_loss, range::not_negative, "weight of lse^2, added to each loss in training");
    v("soft_cap", soft_cap, range::not_negative, "c: logits are c tanh(z / c); 0: they are z");
    v("loss_gradient", loss_gradient, "when the gradient of the logits is computed");
  }
};

/// The meanings of fields that several models have.
namespace meaning {
/// One line each, for visit().
inline constexpr std::string_view vocab = "tokens of the vocabulary";
inline constexpr std::string_view n_layer = "layers";
inline constexpr std::string_view n_head = "attention heads of a layer";
inline constexpr std::string_view d_model = "width of hidden states";
inline constexpr std::string_view d_ff = "width of the inner layer of feed-forward networks";
inline constexpr std::string_view d_head = "width of a head; 0: d_model / n_head";
inline constexpr std::string_view d_embed =
    "width of the token table, projected to d_model; 0: d_model";
inline constexpr std::string_view norm = "norms before a branch or after it";
inline constexpr std::string_view norm_eps = "added to the variance in norms";
inline constexpr std::string_view final_norm = "norm = pre: a norm after the last layer";
inline constexpr std::string_view activation = "of feed-forward networks";
inline constexpr std::string_view tie_embedding = "the head shares the token table";
inline constexpr std::string_view head_bias = "the head has a bias";
inline constexpr std::string_view qkv_bias = "queries, keys and values have biases";
inline constexpr std::string_view out_bias = "the outputs of attention have biases";
inline constexpr std::string_view emb_scale = "token embeddings times sqrt(d_model)";
inline constexpr std::string_view emb_norm = "a norm after the sum of the tables";
inline constexpr std::string_view position_offset =
    "rows of the position table before position 0: 2 in RoBERTa and BART";
inline constexpr std::string_view token_types = "rows of the token type table; 0: no table";
inline constexpr std::string_view padding_id =
    "id of padding: its row of the token table gets no gradient from look-ups; -1: none does that";
inline constexpr std::string_view mask_id =
    "id of the token that hides others; -1: the last of the vocabulary";
inline constexpr std::string_view mlm_head = "a head for masked tokens";
inline constexpr std::string_view classes = "classes of a sequence; 0: no head for them";
inline constexpr std::string_view span_head = "a head for the start and the end of an answer";
inline constexpr std::string_view cutoffs =
    "adaptive embedding: first ids of its further clusters; empty: one table";
inline constexpr std::string_view div_value = "adaptive embedding: cluster c is narrower by this^c";
inline constexpr std::string_view tie_projections =
    "adaptive embedding: clusters whose projection the head shares";
inline constexpr std::string_view clamp = "distances beyond it are not told apart; 0: all are";
inline constexpr std::string_view untie_biases = "each layer has its own biases u and v";
inline constexpr std::string_view dilation =
    "distance of neighbouring keys in the window of each layer; the last one repeats";
inline constexpr std::string_view dilated_heads =
    "first heads of a layer, which have that dilation; -1: two, or one of one";
inline constexpr std::string_view dropout =
    "of embedded tokens, the outputs of branches, and inner layers";
inline constexpr std::string_view dropout_attn = "of attention probabilities; -1: as dropout";
inline constexpr std::string_view dropout_ffn_act =
    "of the inner layer of feed-forward networks; -1: as dropout";
inline constexpr std::string_view label_smoothing = "probability spread over the other tokens";
inline constexpr std::string_view init_std = "std of matrices";
inline constexpr std::string_view glorot_std = "std of matrices; 0: Glorot uniform";

}  // namespace meaning

/// Visits the fields that nearly all models begin with.
void visit_sizes(auto& v, auto& config) {
  v("vocab", config.vocab, range::positive, meaning::vocab);
  v("n_layer", config.n_layer, range::count, meaning::n_layer);
  v("n_head", config.n_head, range::positive, meaning::n_head);
  v("d_model", config.d_model, range::positive, meaning::d_model);
  v("d_ff", config.d_ff, range::positive, meaning::d_ff);
}

/// Visits the fields of encoder-decoders whose decoder may have sizes and tables of its own.
void visit_target(auto& v, auto& config) {
  v("target_n_layer", config.target_n_layer, range::between(0, range::count.high),
    "layers of the decoder; 0: n_layer");
  v("target_n_head", config.target_n_head, range::not_negative,
    "attention heads of the decoder; 0: n_head");
  v("target_d_ff", config.target_d_ff, range::not_negative,
    "width of the decoder's feed-forward networks; 0: d_ff");
  v("padding_id", config.padding_id, meaning::padding_id);
  v("constant_bias", config.constant_bias, "the bias of the head is not trained, as in BART");
}

/// Visits the fields that nearly all models end with: how they compute.
void visit_computation(auto& v, auto& config) {
  v("precision", config.precision, "dtype that layers compute in");
  v("memory", config.memory, "memory policy: what layers keep for the backward pass");
  v("chunks", config.memory.chunks, range::positive, "pieces of a sequence in feed-forward layers");
  config.token_head.visit(v);
}

/// Returns the dtype of activations.
DType compute_dtype(Precision precision, DType parameters);

/// Returns p, or `otherwise` if p is -1 ("the same as that option").
inline float or_default(float p, float otherwise) { return p >= 0 ? p : otherwise; }

/// Returns the width of a head of this configuration.
int64_t head_width(const auto& config) {
  return config.d_head > 0 ? config.d_head : config.d_model / config.n_head;
}

/// Returns U(-a, a) with a = 1 / sqrt(inputs), as PyTorch draws a layer with this many inputs.
Scheme uniform_of(int64_t inputs);

/// Throws ValueError that names the model unless n_head divides d_model; the message lists the
/// values that do.
void require_heads(std::string_view model, int64_t d_model, int64_t n_head);
/// Extends a position table to at least `length` rows. Returns the name of the field if it grew,
/// else an empty name.
std::string_view extend_table(std::string_view field, int64_t& rows, int64_t length);
/// Throws ValueError if a model that keeps no memory of earlier segments gets one.
void require_no_memory(std::string_view model, const SegmentMemory& memory);

/// The layer between hidden states and the projection to tokens in BERT \cite devlin2019 : norm(f(W
/// h + b)). Its result is as wide as the token table, E.
struct TokenTransform : Module {
  TokenTransform() = default;
  TokenTransform(int64_t width, int64_t table, Activation f, double eps, const Init& init,
                 const Scheme& weights);

  Tensor forward(const Tensor& hidden) const;  // [..., D] -> [..., E]
  void visit(Visitor& v) override { v("dense", dense)("norm", norm); }

  Activation activation = Activation::gelu_erf;
  Linear dense;  ///< [E, D]
  Normalization norm;
};

/// The function between the two layers of a head for whole sequences: tanh in BERT and RoBERTa,
/// relu in DistilBERT, gelu in ELECTRA.
enum class PoolActivation : uint8_t { tanh, relu, gelu_erf, gelu_tanh, gelu_sigmoid, silu };
template <>
inline constexpr std::array<std::string_view, 6> value_names<PoolActivation>{
    "tanh", "relu", "gelu_erf", "gelu_tanh", "gelu_sigmoid", "silu"};

/// Returns the same function as one of heads; throws ValueError on a gated one.
PoolActivation pool_activation(Activation f);

/// Returns the place of the first token `id` of each sample of tokens [B, L], -1 if it has none, on
/// the host. Waits for the device.
std::vector<int64_t> first_places(const Tensor& tokens, int64_t id);

/// Classification head for a whole sequence: C Drop(f(P h_0)), h_0 the hidden state of its first
/// token \cite devlin2019 .
struct PooledHead : Module {
  PooledHead() = default;
  /// `from` is the width of hidden states; 0: width.
  PooledHead(int64_t width, int64_t classes, const Init& init, const Scheme& weights,
             PoolActivation f = PoolActivation::tanh, int64_t from = 0);

  /// hidden [B, L, from] -> [B, classes]; applies dropout only if pass.training.
  Tensor forward(const Tensor& hidden, float p, Pass pass) const;
  void visit(Visitor& v) override { v("pool", pool)("classifier", classifier); }

  PoolActivation activation = PoolActivation::tanh;
  Linear pool;        ///< [D, from]
  Linear classifier;  ///< [classes, D]
};

/// Scores of phrases of 1 to n tokens, with layers for each length, as ETC has for OpenKP
/// \cite ainslie2020 .
struct PhraseHead : Module {
  PhraseHead() = default;
  PhraseHead(int64_t width, int64_t longest, Activation f, const Init& init, const Scheme& weights);

  /// x [B, L, D] -> [B, L, n]: scores of the phrase of m + 1 tokens that begins at i; -inf beyond
  /// the end.
  Tensor forward(const Tensor& x) const;
  void visit(Visitor& v) override { v("mix", mix)("score", score); }

  Activation activation = Activation::gelu_erf;
  std::vector<Linear> mix, score;  ///< [D, m D] and [1, D] of each length m
};

/// Options of attention_stack().
struct StackOptions {
  FeedForwardOptions ff = {};
  NormPlace norm = NormPlace::pre;
  double norm_eps = 1e-5;
  double final_norm_eps = 0;  ///< 0: norm_eps
  bool final_norm = true;     ///< with pre-norm: a norm after the last block
  float dropout = 0;          ///< site "resid", on the outputs of branches
  MemoryPolicy memory = {};
};

/// Returns the Init of the attention of block i: "layers.i.attention".
Init attention_init(const Init& init, int64_t i);
/// Returns a stack of one block for each attention layer: attention and a feed-forward network,
/// each with a layer norm, and with pre-norm a final norm. With ff.d_ff = 0 there is attention
/// alone.
Stack attention_stack(const StackOptions& options, std::vector<std::unique_ptr<Layer>> attention,
                      const Init& init);

/// Throws ShapeError unless targets are [B, L] for hidden [B, L, ..].
void require_token_targets(std::string_view model, const Tensor& hidden, const Tensor& targets);

/// Computes the mean negative log-likelihood of the targets that count from the input of the
/// classifier. Applies smoothing and the z-loss only if `training`.
///   h        [..., D]   targets  [...], ignored_target does not count
///   returns  scalar in nats; never materializes [..., V]. While Scoring, as mean_of_targets()
Tensor token_loss(const Tensor& h, const Linear& classifier, const Tensor& targets,
                  const HeadOptions& head, bool training, double smoothing = 0);
/// Returns the mean of losses [...] over the targets that count, 0 if there are none: a scalar in
/// f64, so that the score of a text does not depend on how its targets are grouped.
Tensor mean_of_targets(const Tensor& losses, const Tensor& targets);
/// Returns the logits that token_loss() uses: h [..., D] -> [..., V] in the dtype of the
/// classifier.
Tensor token_logits(const Tensor& h, const Linear& classifier, const HeadOptions& head);

}  // namespace longspan
