#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "models/encoder.h"
#include "models/model_spec.h"
#include "nn/attention/head_share.h"
#include "nn/attention/multi_head.h"

namespace longspan {

/// The window and initialization of one layer.
struct LongformerAttentionOptions {
  int64_t d_model = 0, n_head = 1;
  int64_t one_sided_window = 1;
  int64_t dilation = 1, dilated_heads = 0;  ///< dilation of the first dilated_heads heads
  float dropout = 0;                        ///< site "attn", on both softmaxes
  Scheme weights = {};
};

/// Attention of one layer \cite beltagy2020 (sec. 3.1), with global tokens G:
///   rows i not in G   keys {j: |i - j| <= w s, s | i - j} and G, each once; q = W_q x_i, k = W_k
///                     x_j, v = W_v x_j; one softmax
///   rows i in G       all keys; q = W_qg x_i, k = W_kg x_j, v = W_vg x_j; one softmax
/// with dilation s of the head. In the paper other rows read global keys through the global
/// projections; the released code and this class use the sliding ones. Reads LayerContext::lengths
/// and GlobalTokens of LayerContext::own. Without global tokens the second set of projections is
/// unused.
class LongformerAttention final : public Layer {
 public:
  LongformerAttention(const LongformerAttentionOptions& options, const Init& init);

  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override;
  Tensor probabilities(const Tensor& x, const LayerContext& ctx) const override;
  void visit(Visitor& v) override;
  bool splits() const override { return true; }

 private:
  Tensor split_heads(const Tensor& x) const;  // [B, L, D] -> [B, H, L, d]
  Tensor merge(const Tensor& heads) const;    // [B, H, L, d] -> [B, L, D]
  /// Weighted sums of values [B, H, L, n]. sliding() computes the rows that are not global, [B, H,
  /// L, n], with 0 in global rows; global() computes the global rows, [B, H, G, n].
  Tensor sliding(const Projected& p, const LayerContext& ctx, const Dropout& dropout) const;
  Tensor global(const Tensor& x, const Keys& of, const LayerContext& ctx, const Dropout& dropout,
                const HeadShare& share = {}) const;
  int64_t width() const { return options_.d_model / options_.n_head; }  // of a head

  LongformerAttentionOptions options_;
  Linear q_, k_, v_, out_;
  Linear q_global_, k_global_, v_global_;
};

/// Returns which keys each query attends to in a layer over `length` tokens; the first token may be
/// global.
AttentionOutline longformer_outline(const LongformerAttentionOptions& options, int64_t length,
                                    bool first_global);

/// Which tokens are global by default: the first token; none; by_task: none for masked tokens,
/// while models with heads for classes, spans or choices throw; question: those before the first
/// token separator_id; candidate: those behind the first two.
enum class GlobalDefault : uint8_t { by_task, first, none, question, candidate };
template <>
inline constexpr std::array<std::string_view, 5> value_names<GlobalDefault>{
    "by_task", "first", "none", "question", "candidate"};

/// Longformer: The Long-Document Transformer \cite beltagy2020 .
struct LongformerConfig : EncoderConfig {
  /// w of each layer: |i - j| <= w, 2 w + 1 keys. The last entry repeats. (attention_window of
  /// transformers is 2 w, that of the authors' code is w.)
  std::vector<int64_t> one_sided_window = {32};
  /// dilation is the distance of neighbouring keys in the window of each layer, on its first
  /// `dilated_heads` heads; 1: no dilation; the last entry repeats. (Table 12 of the paper counts
  /// the gaps: dilation - 1.) dilated_heads = -1 means two heads, or one if n_head is 1.
  std::vector<int64_t> dilation = {1};
  int64_t dilated_heads = -1;
  GlobalDefault globals = GlobalDefault::by_task;
  int64_t separator_id = -1;

  void visit(auto& v) {
    EncoderConfig::visit(v);
    v("one_sided_window", one_sided_window, "w of each layer: |i - j| <= w; the last one repeats");
    v("dilation", dilation, meaning::dilation)("dilated_heads", dilated_heads,
                                               meaning::dilated_heads);
    v("globals", globals, "which tokens are global by default");
    v("separator_id", separator_id, "id of the token between question and text; -1: there is none");
  }
};

/// Returns the entry of layer i in a list whose last entry repeats. Throws ValueError that names
/// the model and the option if the list is empty.
int64_t of_layer(std::string_view model, std::string_view option,
                 const std::vector<int64_t>& values, int64_t i);

/// Whether a layer has a dilation other than 1 in any head, for these options of a configuration.
bool has_dilation(const std::vector<int64_t>& dilation, int64_t dilated_heads);

/// Resolves the option `dilated_heads` for `heads` heads. Throws ValueError that names the model
/// and the option unless it is -1 or 0 to `heads`.
int64_t dilated_of(std::string_view model, int64_t dilated_heads, int64_t heads);

/// Returns the distance of the furthest key of a window: w s. Throws ValueError that names the
/// model, the options and their ranges unless 1 <= w, s and w s < 2^31.
int64_t window_reach(std::string_view model, std::string_view option, int64_t w, int64_t s);

/// Returns the attention options of layer i of a LongformerConfig or LedConfig. Throws ValueError
/// that names the model and the field on a window or dilation below 1 or too large together, on an
/// empty list of either, and on more dilated heads than heads.
template <class Config>
LongformerAttentionOptions longformer_attention(std::string_view model, const Config& c,
                                                int64_t i) {
  const LongformerAttentionOptions o{
      .d_model = c.d_model,
      .n_head = c.n_head,
      .one_sided_window = of_layer(model, "one_sided_window", c.one_sided_window, i),
      .dilation = of_layer(model, "dilation", c.dilation, i),
      .dilated_heads = dilated_of(model, c.dilated_heads, c.n_head),
      .dropout = or_default(c.dropout_attn, c.dropout),
      .weights = Scheme::truncated_normal(c.init_std)};
  window_reach(model, "one_sided_window", o.one_sided_window, o.dilation);
  return o;
}

/// RoBERTa's encoder with LongformerAttention; cost is proportional to L (2 w + 1 + |G|).
class Longformer final : public Encoder {
 public:
  /// Throws ValueError that names the fields when they do not fit together.
  Longformer(const LongformerConfig& config, const Init& init);

  const LongformerConfig& config() const { return config_; }
  bool takes_global_tokens() const override { return true; }

  /// Uses the tokens that are global by default; none with GlobalDefault::by_task.
  Tensor attention_map(const Tensor& tokens, int64_t layer) const override;
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;

 protected:
  LayerContext layer_context(const EncoderInputs& in, Pass pass) const override;

 private:
  /// Returns the mask [B, L] of the tokens that are global by the place of the first separator.
  Tensor global_by_separator(const Tensor& tokens) const;

  LongformerConfig config_;
};

/// Entry of the model under the name that programs use.
const ModelEntry& longformer_entry();

/// Configurations of the paper. Throws ValueError on an unknown name.
LongformerConfig longformer_preset(std::string_view name);

}  // namespace longspan
