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
inline constexpr std::array<std::string_view, 2> value_names<LossGradient>{"recompute",
                                                                           "in_forward"};

/// How the logits of tokens are computed and trained.
struct HeadOptions {
  double z_loss = 0;    ///< weight of lse^2, added to each loss in training \cite chowdhery2022
  double soft_cap = 0;  ///< c > 0: logits are c tanh(z / c) \cite gemma2
  LossGradient loss_gradient = LossGradient::recompute;
  void visit(auto& v) { v("z_loss", z_loss)("soft_cap", soft_cap)("loss_gradient", loss_gradient); }
};

/// Returns the dtype of activations.
DType compute_dtype(Precision precision, DType parameters);

/// Returns p, or `otherwise` if p is -1 ("the same as that option").
inline float or_default(float p, float otherwise) { return p >= 0 ? p : otherwise; }

/// A field of a configuration, whose value has exactly this type.
template <class T>
struct Field {
  Field(std::string_view field, std::same_as<T> auto x) : name(field), value(x) {}
  std::string_view name;
  T value;
};

/// Checks of configuration fields. They throw ValueError that names the model and the field.
void require_positive(std::string_view model, std::string_view field, int64_t value);
void require_positive(std::string_view model, std::initializer_list<Field<int64_t>> fields);
/// Checks value <= 10,000: each of the counted objects takes host memory, even when its parameters
/// do not.
void require_count(std::string_view model, std::string_view field, int64_t value);
void require_not_negative(std::string_view model, std::string_view field, int64_t value);
/// Also refuses infinity and NaN.
void require_not_negative(std::string_view model, std::string_view field, double value);
void require_not_negative(std::string_view model, std::initializer_list<Field<int64_t>> fields);
void require_not_negative(std::string_view model, std::initializer_list<Field<double>> fields);
/// Checks that n_head >= 1 divides d_model; the message lists the values that do.
void require_heads(std::string_view model, int64_t d_model, int64_t n_head);
/// Checks 0 <= p < 1. The second one also accepts -1, which means "the same as another option".
void require_share(std::string_view model, std::string_view field, double p);
void require_share_or_default(std::string_view model, std::string_view field, double p);
/// Extends a position table to at least `length` rows. Returns the name of the field if it grew,
/// else an empty name.
std::string_view extend_table(std::string_view field, int64_t& rows, int64_t length);
/// Checks that no field is negative.
void require_head(std::string_view model, const HeadOptions& head);

/// Throws ValueError if a model that keeps no memory of earlier segments gets one.
void require_no_memory(std::string_view model, const SegmentMemory& memory);

/// The layer between hidden states and the projection to tokens in BERT \cite devlin2019 : norm(f(W
/// h + b)).
struct TokenTransform : Module {
  TokenTransform() = default;
  TokenTransform(int64_t width, Activation f, double eps, const Init& init, const Scheme& weights);

  Tensor forward(const Tensor& hidden) const;  // [..., D] -> [..., D]
  void visit(Visitor& v) override { v("dense", dense)("norm", norm); }

  Activation activation = Activation::gelu_erf;
  Linear dense;  ///< [D, D]
  Normalization norm;
};

/// Classification head for a whole sequence: C Drop(tanh(P h_0)), h_0 the hidden state of its first
/// token \cite devlin2019 .
struct PooledHead : Module {
  PooledHead() = default;
  PooledHead(int64_t width, int64_t classes, const Init& init, const Scheme& weights);

  /// hidden [B, L, D] -> [B, classes]; applies dropout only if pass.training.
  Tensor forward(const Tensor& hidden, float p, Pass pass) const;
  void visit(Visitor& v) override { v("pool", pool)("classifier", classifier); }

  Linear pool;        ///< [D, D]
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
