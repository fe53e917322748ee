#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "models/model.h"
#include "models/model_spec.h"
#include "models/parts.h"
#include "nn/stack.h"

namespace longspan {

/// Longformer's causal language model of characters \cite beltagy2020 (sec. 4).
struct LongformerLMConfig {
  int64_t vocab = 256, n_layer = 4, n_head = 4, d_model = 128, d_ff = 512;
  /// w of each layer, the last entry repeating: row i sees i, i - s, ..., i - w s.
  std::vector<int64_t> window = {16, 16, 32, 64};
  /// s of each layer on its first `dilated_heads` heads, the last entry repeating; 1 is none. (The
  /// paper's table 12 counts gaps: this less 1.) -1 are two heads, or one where there is no other.
  std::vector<int64_t> dilation = {1};
  int64_t dilated_heads = -1;
  bool tie_embedding = true;
  bool emb_scale = true;    ///< tokens times sqrt(d_model)
  float dropout = 0;        ///< sites emb, resid and ffn_act
  float dropout_attn = -1;  ///< -1: as dropout
  double init_std = 0.02;
  double embed_std = 0;  ///< of tokens; 0: 1 / sqrt(d_model) with emb_scale, else as init_std
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  void visit(auto& v) {
    v("vocab", vocab)("n_layer", n_layer)("n_head", n_head)("d_model", d_model)("d_ff", d_ff)(
        "window", window)("dilation", dilation)("dilated_heads", dilated_heads)(
        "tie_embedding", tie_embedding)("emb_scale", emb_scale);
    v("dropout", dropout)("dropout_attn", dropout_attn)("init_std", init_std)(
        "embed_std", embed_std)("precision", precision)("memory", memory)("chunks", memory.chunks);
    token_head.visit(v);
  }
};

/// The configuration of a later phase of the staged schedule: every window times `factor`.
/// Parameters do not depend on the windows, so that start_from() carries them over.
LongformerLMConfig with_windows_times(LongformerLMConfig config, int64_t factor);

/// A phase of training (sec. 4.2): the windows of the configuration times `windows`, and so many
/// steps of so many segments.
struct TrainingPhase {
  int64_t windows = 1, length = 1, batch = 1, steps = 1;
  double lr = 0;
};
/// Multiply-accumulates of the forward passes of a phase.
double phase_macs(const LongformerLMConfig& config, const TrainingPhase& phase);
/// The phases of the staged schedule: each has twice the length and the windows of the one before,
/// and half its rate and batch; the later ones have fewer steps, those of the first over 3 p.
std::vector<TrainingPhase> staged_phases(const TrainingPhase& first, int64_t phases);
/// What they are compared with: phases at the same rates that have length, windows and batch of the
/// last from the start, and as many steps as cost the same.
std::vector<TrainingPhase> direct_phases(const LongformerLMConfig& config,
                                         const TrainingPhase& first, int64_t phases);

/// Transformer-XL's block without a memory, with a window that may be dilated in some heads:
///   x <- x + Attn(norm x);  x <- x + W_2 gelu(W_1 norm x)
///   s_ij = ((q_i + u) . k_j + (q_i + v) . W_R R_{i-j}) / sqrt(d),  j = i - s k, 0 <= k <= w
/// u and v are shared by all layers. A layer has 4 D^2 + D^2 + 2 D F weights.
class LongformerLM final : public LanguageModel {
 public:
  /// Throws ValueError, naming the fields, where they do not fit together.
  LongformerLM(const LongformerLMConfig& config, const Init& init);

  const LongformerLMConfig& config() const { return config_; }

  Objective objective() const override { return Objective::next_token; }
  int64_t vocab() const override { return config_.vocab; }
  Device device() const override { return token_.weight.device(); }
  int64_t layers() const override { return config_.n_layer; }
  Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
              Pass pass) const override;
  Tensor logits(const Tensor& tokens, Pass pass) const override;
  std::unique_ptr<DecodeState> start_decoding(int64_t batch) const override;
  Tensor decode(const Tensor& tokens, DecodeState& state) const override;
  Tensor attention_map(const Tensor& tokens, int64_t layer) const override;
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;
  int64_t macs(int64_t length) const override;
  void visit(Visitor& v) override;

 private:
  Tensor embed(const Tensor& tokens, Pass pass) const;
  Tensor forward(const Tensor& tokens, Pass pass) const;
  /// What each layer lets `queries` rows see, the last ones of so many keys.
  std::vector<AttentionPattern> patterns(int64_t queries, int64_t keys) const;

  LongformerLMConfig config_;
  DType compute_;
  Embedding token_;  // [V, D]
  Tensor u_, v_;     // [H, d]
  Stack stack_;
  Linear head_;  // [V, D], the token table where tied
};

/// The model by the name that programs use.
const ModelEntry& longformer_lm_entry();

/// Configurations of the paper. Throws ValueError on an unknown name.
LongformerLMConfig longformer_lm_preset(std::string_view name);

}  // namespace longspan
