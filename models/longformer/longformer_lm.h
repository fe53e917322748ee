#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "models/causal_decoder.h"
#include "models/model_spec.h"
#include "nn/attention/relative.h"

namespace longspan {

/// Longformer's causal character-level language model \cite beltagy2020 (sec. 4).
struct LongformerLMConfig {
  int64_t vocab = 256, n_layer = 4, n_head = 4, d_model = 128, d_ff = 512;
  /// w of each layer; the last entry repeats. Row i attends to i, i - s, ..., i - w s.
  std::vector<int64_t> window = {16, 16, 32, 64};
  /// dilation is s of each layer on its first `dilated_heads` heads; 1: no dilation; the last entry
  /// repeats. (The paper's table 12 counts gaps: s - 1.) dilated_heads = -1 means two heads, or one
  /// if n_head is 1.
  std::vector<int64_t> dilation = {1};
  int64_t dilated_heads = -1;
  bool tie_embedding = true;
  bool emb_scale = true;
  float dropout = 0;
  float dropout_attn = -1;
  double init_std = 0.02;
  double embed_std = 0;
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  void visit(auto& v) {
    visit_sizes(v, *this);
    v("window", window, "w of each layer: rows see w earlier ones; the last one repeats");
    v("dilation", dilation, meaning::dilation)("dilated_heads", dilated_heads,
                                               meaning::dilated_heads);
    v("tie_embedding", tie_embedding, meaning::tie_embedding);
    v("emb_scale", emb_scale, meaning::emb_scale);
    v("dropout", dropout, range::probability, meaning::dropout);
    v("dropout_attn", dropout_attn, range::as_dropout, meaning::dropout_attn);
    v("init_std", init_std, range::not_negative, meaning::init_std);
    v("embed_std", embed_std, range::not_negative,
      "std of tokens; 0: 1 / sqrt(d_model) with emb_scale, else init_std");
    visit_computation(v, *this);
  }
};

/// Returns the configuration of a later phase of the staged schedule: every window times `factor`.
/// Parameters do not depend on the windows, so start_from() copies them between phases.
LongformerLMConfig with_windows_times(LongformerLMConfig config, int64_t factor);

/// A phase of training (sec. 4.2): `windows` multiplies the windows of the configuration; `steps`
/// steps with `batch` segments of `length` tokens.
struct TrainingPhase {
  int64_t windows = 1, length = 1, batch = 1, steps = 1;
  double lr = 0;
};
/// Returns the multiply-accumulates of the forward passes of a phase.
double phase_macs(const LongformerLMConfig& config, const TrainingPhase& phase);
/// Returns the phases of the staged schedule. Each has twice the length and windows of the one
/// before, and half its rate and batch. Phase p > 0 has 1 / (3 p) of the steps of the first.
std::vector<TrainingPhase> staged_phases(const TrainingPhase& first, int64_t phases);
/// Returns the baseline of the staged schedule: phases with the same rates, with length, windows
/// and batch of the last phase from the start, and with as many steps as cost the same.
std::vector<TrainingPhase> direct_phases(const LongformerLMConfig& config,
                                         const TrainingPhase& first, int64_t phases);

/// Transformer-XL's block without memory, with a window that is dilated in some heads:
///   x <- x + Attn(norm x);  x <- x + W_2 gelu(W_1 norm x)
///   s_ij = ((q_i + u) . k_j + (q_i + v) . W_R R_{i-j}) / sqrt(d),  j = i - s k, 0 <= k <= w
/// All layers share u and v. A layer has 4 D^2 + D^2 + 2 D F weights.
class LongformerLM final : public CausalDecoder {
 public:
  /// Throws ValueError that names the fields when they do not fit together.
  LongformerLM(const LongformerLMConfig& config, const Init& init);

  const LongformerLMConfig& config() const { return config_; }

 private:
  LayerContext layer_context(int64_t queries, int64_t keys, int64_t first_key) const override;
  int64_t furthest() const;  // the largest distance in any layer
  int64_t first_visible(int64_t position) const override;
  void visit_more(Visitor& v) override;

  LongformerLMConfig config_;
  Tensor u_, v_;  // [H, d]
  DistanceTable distances_;
};

/// Entry of the model under the name that programs use.
const ModelEntry& longformer_lm_entry();

/// Configurations of the paper. Throws ValueError on an unknown name.
LongformerLMConfig longformer_lm_preset(std::string_view name);

}  // namespace longspan
