#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/longformer/longformer.h"
#include "models/model_spec.h"
#include "models/transformer/encoder_decoder.h"

namespace longspan {

/// Longformer-Encoder-Decoder \cite beltagy2020 (sec. 7): BART with Longformer's encoder.
struct LedConfig {
  int64_t vocab = 64, n_layer = 2, n_head = 4, d_model = 128, d_ff = 512;
  int64_t target_n_layer = 0, target_n_head = 0, target_d_ff = 0;
  int64_t padding_id = -1;
  bool tie_embedding = true, constant_bias = false;
  int64_t n_max = 512;
  int64_t n_max_target = 64;
  int64_t position_offset = 0;
  /// Windows of each encoder layer, as in LongformerConfig.
  std::vector<int64_t> one_sided_window = {32};
  std::vector<int64_t> dilation = {1};
  int64_t dilated_heads = -1;
  /// Which tokens are global by default: the first token (<s>), or none.
  GlobalDefault globals = GlobalDefault::first;
  int64_t start_token = 2;

  double norm_eps = 1e-5;
  Activation activation = Activation::gelu_erf;
  float dropout = 0.1f, dropout_attn = -1, dropout_ffn_act = 0;
  double label_smoothing = 0;
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
    v("n_max", n_max, "maximum tokens of a source");
    v("n_max_target", n_max_target, "maximum tokens of a target");
    v("position_offset", position_offset, meaning::position_offset);
    v("one_sided_window", one_sided_window,
      "w of each encoder layer: |i - j| <= w; the last one repeats");
    v("dilation", dilation, meaning::dilation)("dilated_heads", dilated_heads,
                                               meaning::dilated_heads);
    v("globals", globals, "which tokens of the source are global by default");
    v("start_token", start_token, "id of the decoder's first token");
    v("norm_eps", norm_eps, meaning::norm_eps)("activation", activation, meaning::activation);
    v("dropout", dropout, range::probability, meaning::dropout);
    v("dropout_attn", dropout_attn, range::as_dropout, meaning::dropout_attn);
    v("dropout_ffn_act", dropout_ffn_act, range::as_dropout, meaning::dropout_ffn_act);
    v("label_smoothing", label_smoothing, range::probability, meaning::label_smoothing);
    v("init_std", init_std, range::not_negative, meaning::init_std);
    v("embed_std", embed_std, range::not_negative, "std of tokens; 0: init_std");
    visit_computation(v, *this);
  }
};

/// Longformer's encoder, and BART's decoder with cross-attention to all of its output:
///   encoder  x <- norm(x + LongformerAttention x);  x <- norm(x + FF x)
///   decoder  y <- norm(y + causal attention y);  y <- norm(y + attention to x);
///            y <- norm(y + FF y)
///   logits   E y + b, E the token table
class Led final : public EncoderDecoder {
 public:
  /// Throws ValueError that names the fields when they do not fit together.
  Led(const LedConfig& config, const Init& init);

  const LedConfig& config() const { return config_; }

  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;

 protected:
  LayerContext layer_context(const SequenceInputs& in, Pass pass) const override;

 private:
  LedConfig config_;
};

/// Returns the BART that start_from() converts into this LED: the same sizes, full attention, and
/// `n_max` positions for source and target.
TransformerConfig bart_for(const LedConfig& config, int64_t n_max);

/// Entry of the model under the name that programs use.
const ModelEntry& led_entry();

/// Configurations of the paper. Throws ValueError on an unknown name.
LedConfig led_preset(std::string_view name);

}  // namespace longspan
