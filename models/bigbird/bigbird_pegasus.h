#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "models/bigbird/bigbird_blocks.h"
#include "models/model_spec.h"
#include "models/transformer/encoder_decoder.h"

namespace longspan {

/// Big Bird: Transformers for Longer Sequences \cite zaheer2020 , sec. 4: sequence to sequence. The
/// block options apply to the encoder; BigBirdBlocks::random = given requires set_random_blocks().
struct BigBirdPegasusConfig : BigBirdBlocks {
  int64_t vocab = 260, n_layer = 2, n_head = 4, d_model = 128, d_ff = 512;
  int64_t target_n_layer = 0, target_n_head = 0, target_d_ff = 0;
  int64_t padding_id = -1;
  bool tie_embedding = true, constant_bias = false;
  int64_t n_max = 1024;
  int64_t n_max_target = 256;
  /// The decoder shares the encoder's self-attention, feed-forward networks, norms and position
  /// table; cross-attention is its own.
  bool couple = false;
  NormPlace norm = NormPlace::pre;
  double norm_eps = 1e-5;
  Activation activation = Activation::gelu_tanh;
  bool bias = false;
  bool emb_scale = true;
  bool emb_norm = false;
  int64_t start_token = 2;

  float dropout = 0.1f, dropout_attn = -1, dropout_ffn_act = 0;
  /// Spread over the V - 1 other tokens; the loss has the entropy of the smoothed target, its
  /// minimum, subtracted.
  double label_smoothing = 0.1;
  /// In training, sums the loss over padding too, as if its target were token 0, but still divides
  /// by the number of targets that count. This bug of the released code is needed to reproduce its
  /// numbers.
  bool count_pad_loss = false;
  double init_std = 0.02;
  double embed_std = 0;
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  /// See ModelSpec.
  std::string_view extend_positions(int64_t length) { return extend_table("n_max", n_max, length); }
  void visit(auto& v) {
    visit_sizes(v, *this);
    visit_target(v, *this);
    v("tie_embedding", tie_embedding,
      "source, target and head share one token table; else each has its own");
    v("n_max", n_max, range::positive, "maximum tokens of a source");
    v("n_max_target", n_max_target, range::positive, "maximum tokens of a target");
    v("couple", couple,
      "the decoder shares all of the encoder's layers; cross-attention is its own");
    BigBirdBlocks::visit(v);
    v("norm", norm, meaning::norm)("norm_eps", norm_eps, range::above_zero, meaning::norm_eps);
    v("activation", activation, meaning::activation);
    v("bias", bias, "biases of queries, keys, values and outputs of attention");
    v("emb_scale", emb_scale, meaning::emb_scale)("emb_norm", emb_norm, meaning::emb_norm);
    v("start_token", start_token, "id of the decoder's first token");
    v("dropout", dropout, range::probability, meaning::dropout);
    v("dropout_attn", dropout_attn, range::as_dropout, meaning::dropout_attn);
    v("dropout_ffn_act", dropout_ffn_act, range::as_dropout, meaning::dropout_ffn_act);
    v("label_smoothing", label_smoothing, range::probability, meaning::label_smoothing);
    v("count_pad_loss", count_pad_loss,
      "training sums the loss over padding too, as the released code");
    v("init_std", init_std, range::not_negative, meaning::init_std);
    v("embed_std", embed_std, range::not_negative,
      "std of tokens; 0: 1 / sqrt(d_model) with emb_scale, else init_std");
    visit_computation(v, *this);
  }
};

/// BigBird's encoder, and a decoder with cross-attention to all of its output. With norm = pre and
/// two sets of parameters this is BigBird-Pegasus; with norm = post and `couple`, the model that
/// starts from RoBERTa.
///   encoder  x <- x + BigBirdAttention(norm x);  x <- x + FF(norm x)
///   decoder  y <- y + causal attention(norm y);  y <- y + attention to x(norm y);
///            y <- y + FF(norm y)
///   logits   E y + b, E the token table
class BigBirdPegasus final : public EncoderDecoder {
 public:
  /// Throws ValueError that names the fields when they do not fit together.
  BigBirdPegasus(const BigBirdPegasusConfig& config, const Init& init);

  const BigBirdPegasusConfig& config() const { return config_; }
  /// See BigBirdPatterns.
  void set_random_blocks(const Tensor& blocks) { patterns_.set_random_blocks(blocks); }

  using EncoderDecoder::loss;
  /// In training, with s = label_smoothing and q = 1 - s at the target, s / (V - 1) elsewhere:
  ///   sum over targets of sum_v q_v (log q_v - log p_v) / number of targets that count
  Tensor loss(const Tensor& hidden, const Tensor& targets, Pass pass) const override;

  int64_t max_length() const override { return config_.n_max_target; }

 protected:
  LayerContext layer_context(const SequenceInputs& in, Pass pass) const override;

 private:
  BigBirdPegasusConfig config_;
  BigBirdPatterns patterns_;
};

/// Entry of the model under the name that programs use.
const ModelEntry& bigbird_pegasus_entry();

/// Configurations of the paper. Throws ValueError on an unknown name.
BigBirdPegasusConfig bigbird_pegasus_preset(std::string_view name);

}  // namespace longspan
