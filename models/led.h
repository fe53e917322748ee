#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "models/longformer.h"
#include "models/model.h"
#include "models/registry.h"
#include "models/transformer.h"

namespace longspan {

/// Longformer-Encoder-Decoder \cite beltagy2020 (sec. 7): BART with Longformer's encoder.
struct LedConfig {
  int64_t vocab = 64, n_layer = 2, n_head = 4, d_model = 128, d_ff = 512;
  int64_t n_max = 512;          ///< longest source
  int64_t n_max_target = 64;    ///< longest target
  int64_t position_offset = 0;  ///< rows of the tables before position 0: 2 in BART's and in the
                                ///< authors' checkpoints, none in those of transformers
  /// Of each encoder layer, as in LongformerConfig.
  std::vector<int64_t> one_sided_window = {32};
  std::vector<int64_t> dilation = {1};
  int64_t dilated_heads = -1;
  /// What is global where an input does not say: the first token (<s>), or nothing.
  GlobalDefault globals = GlobalDefault::first;
  int64_t start_token = 2;  ///< what a decoder begins with: </s>

  double norm_eps = 1e-5;
  Activation activation = Activation::gelu_erf;
  float dropout = 0.1f, dropout_attn = -1, dropout_ffn_act = 0;  ///< -1: as dropout
  double label_smoothing = 0;
  double init_std = 0.02;
  Precision precision = Precision::f32;
  MemoryPolicy memory = MemoryPolicy::standard;

  void visit(auto& v) {
    v("vocab", vocab)("n_layer", n_layer)("n_head", n_head)("d_model", d_model)("d_ff", d_ff)(
        "n_max", n_max)("n_max_target", n_max_target)("position_offset", position_offset)(
        "one_sided_window", one_sided_window)("dilation", dilation)("dilated_heads", dilated_heads)(
        "globals", globals)("start_token", start_token);
    v("norm_eps", norm_eps)("activation", activation)("dropout", dropout)(
        "dropout_attn", dropout_attn)("dropout_ffn_act", dropout_ffn_act)(
        "label_smoothing", label_smoothing)("init_std", init_std)("precision", precision)("memory",
                                                                                          memory);
  }
};

/// What a forward pass reads.
struct LedInputs {
  Tensor source = {};   ///< [B, S]
  Tensor lengths = {};  ///< i64 [B]: valid tokens of the source; undefined: all
  Tensor global = {};   ///< [B, S] not 0 at global tokens; undefined: LedConfig::globals
  Tensor tokens = {};   ///< [B, L] what the decoder reads; see shifted_right()
};

/// The decoder's input for targets [B, L]: `start`, then all targets but the last, with 0 in place
/// of those that do not count.
Tensor shifted_right(const Tensor& targets, int64_t start);

/// The encoder of a Longformer, and BART's decoder, which sees all of it:
///   encoder  x <- norm(x + LongformerAttention x);  x <- norm(x + FF x)
///   decoder  y <- norm(y + causal attention y);  y <- norm(y + attention to x);  y <- norm(y + FF
///   y) logits   E y + b, E the table of the tokens
class Led final : public LanguageModel {
 public:
  /// Throws ValueError, naming the fields, where they do not fit together.
  Led(const LedConfig& config, const Init& init);

  const LedConfig& config() const { return config_; }

  /// [B, S] -> [B, S, D].
  Tensor encode(const LedInputs& in, Pass pass) const;
  /// [B, L, D], what the head sees.
  Tensor forward(const LedInputs& in, Pass pass) const;
  Tensor head(const Tensor& hidden) const { return shell_.head(hidden); }
  /// Mean over the targets [B, L] that count of the (in training smoothed) negative log-likelihood.
  Tensor loss(const Tensor& hidden, const Tensor& targets, Pass pass) const;
  /// Decoding after a source; `in.tokens` has no part.
  std::unique_ptr<DecodeState> start_decoding(const LedInputs& in) const;

  Objective objective() const override { return Objective::sequence; }
  int64_t vocab() const override { return config_.vocab; }
  int64_t max_length() const override { return config_.n_max_target; }
  int64_t max_source_length() const override { return config_.n_max; }
  Device device() const override { return shell_.device(); }
  int64_t layers() const override { return config_.n_layer; }
  /// Throw NotImplemented: without a source there is nothing to do.
  Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
              Pass pass) const override;
  Tensor logits(const Tensor& tokens, Pass pass) const override;
  std::unique_ptr<DecodeState> start_decoding(int64_t batch) const override;
  /// With the global tokens that LedConfig::globals says.
  Losses sequence_loss(const SourceTokens& source, const Tensor& tokens, const Tensor& targets,
                       Pass pass) const override;
  std::unique_ptr<DecodeState> start_after(const SourceTokens& source) const override;
  Tensor decode(const Tensor& tokens, DecodeState& state) const override;
  Tensor attention_map(const Tensor& source, int64_t layer) const override;
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;
  /// Of a source and a target of the same length.
  int64_t macs(int64_t length) const override;
  void visit(Visitor& v) override { shell_.visit(v); }

 private:
  /// What the encoder's layers see.
  Given given(const LedInputs& in) const;

  LedConfig config_;
  Transformer shell_;
};

/// BART in the shape that start_from() turns into such an LED: the same sizes, full attention, and
/// `n_max` positions for source and target.
TransformerConfig bart_for(const LedConfig& config, int64_t n_max);

/// The model by the name that programs use.
const ModelEntry& led_entry();

/// Configurations of the paper. Throws ValueError on an unknown name.
LedConfig led_preset(std::string_view name);

}  // namespace longspan
