#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "nn/fields.h"
#include "nn/layers.h"
#include "ops/loss.h"

namespace longspan {

/// What layers compute in; parameters stay f32. f64 parameters are computed with in f64.
enum class Precision : uint8_t { f32, bf16, f16 };
template <>
inline constexpr std::array<std::string_view, 3> value_names<Precision>{"f32", "bf16", "f16"};
/// How options write it.
template <>
inline constexpr std::array<std::string_view, 2> value_names<LossGradient>{"recompute",
                                                                           "in_forward"};

/// How logits of tokens are formed and trained.
struct HeadOptions {
  double z_loss = 0;    ///< weight of lse^2, added to each loss in training \cite chowdhery2022
  double soft_cap = 0;  ///< c > 0: logits are c tanh(z / c) \cite gemma2
  LossGradient loss_gradient = LossGradient::recompute;
  void visit(auto& v) { v("z_loss", z_loss)("soft_cap", soft_cap)("loss_gradient", loss_gradient); }
};

/// The dtype of activations.
DType compute_dtype(Precision precision, DType parameters);

/// p, or `otherwise` where p is -1: "as that option".
inline float or_default(float p, float otherwise) { return p >= 0 ? p : otherwise; }

/// Checks of a configuration; they throw ValueError that names the model and the field.
void require_positive(std::string_view model, std::string_view field, int64_t value);
/// Up to 10,000: what there are so many of takes memory of the host, whatever its parameters do.
void require_count(std::string_view model, std::string_view field, int64_t value);
void require_not_negative(std::string_view model, std::string_view field, int64_t value);
/// n_head >= 1 divides d_model; else the message has those that do.
void require_heads(std::string_view model, int64_t d_model, int64_t n_head);
/// 0 <= p < 1; a share that may stand for another option may be -1 too.
void require_share(std::string_view model, std::string_view field, double p);
void require_share_or_default(std::string_view model, std::string_view field, double p);
/// Gives a table of positions at least `length` rows; returns the name of the field where it grew,
/// else an empty one.
std::string_view extend_table(std::string_view field, int64_t& rows, int64_t length);
/// No number is negative.
void require_head(std::string_view model, const HeadOptions& head);

/// What stands between hidden states and the projection to tokens in BERT \cite devlin2019 :
/// norm(f(W h + b)).
struct TokenTransform : Module {
  TokenTransform() = default;
  TokenTransform(int64_t width, Activation f, double eps, const Init& init, const Scheme& weights);

  Tensor forward(const Tensor& hidden) const;  // [..., D] -> [..., D]
  void visit(Visitor& v) override { v("dense", dense)("norm", norm); }

  Activation activation = Activation::gelu_erf;
  Linear dense;  ///< [D, D]
  Normalization norm;
};

/// Classes of a whole sequence: C Drop(tanh(P h_0)) of its first token \cite devlin2019 .
struct PooledHead : Module {
  PooledHead() = default;
  PooledHead(int64_t width, int64_t classes, const Init& init, const Scheme& weights);

  /// hidden [B, L, D] -> [B, classes]; dropout only where pass.training.
  Tensor forward(const Tensor& hidden, float p, Pass pass) const;
  void visit(Visitor& v) override { v("pool", pool)("classifier", classifier); }

  Linear pool;        ///< [D, D]
  Linear classifier;  ///< [classes, D]
};

/// Throws ShapeError unless targets are [B, L] for hidden [B, L, ..].
void require_token_targets(std::string_view model, const Tensor& hidden, const Tensor& targets);

/// Mean negative log-likelihood of the targets that count, from what a classifier reads; smoothing
/// and z-loss only where `training`.
///   h        [..., D]   targets  [...], ignored_target does not count
///   returns  scalar in nats; [..., V] is never made
Tensor token_loss(const Tensor& h, const Linear& classifier, const Tensor& targets,
                  const HeadOptions& head, bool training, double smoothing = 0);
/// The logits that it is the loss of: h [..., D] -> [..., V] in the dtype of the classifier.
Tensor token_logits(const Tensor& h, const Linear& classifier, const HeadOptions& head);

}  // namespace longspan
