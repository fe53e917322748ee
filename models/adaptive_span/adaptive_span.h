#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/adaptive_span/span_attention.h"
#include "models/causal_decoder.h"
#include "models/model_spec.h"

namespace longspan {

/// The adaptive-span Transformer \cite sukhbaatar2019 .
struct AdaptiveSpanConfig {
  int64_t vocab = 256, n_layer = 4, n_head = 4, d_model = 128, d_ff = 512;
  int64_t d_head = 0;       ///< 0: d_model / n_head
  int64_t span_max = 512;   ///< S: keys that a row can see, rows that each layer keeps
  double span_ramp = 32;    ///< R
  double span_init = 0;     ///< z / S at first; 0 of dynamic spans: sigmoid(-4)
  double span_penalty = 0;  ///< lambda, in nats for each token of span
  double span_offset = 1;   ///< 1 as in the authors' code, 0 as in the paper's formula
  SpanScope span_scope = SpanScope::head;
  bool dynamic = false;  ///< each token has spans of its own, which depend on it
  double pre_div = 1;    ///< divides v . x of dynamic spans, whose gradient grows with S
  /// Heads compute keys up to their spans, rounded up to multiples of it; 0, or dynamic: all S.
  int64_t trim = 64;
  /// P: learned keys and values of each head that all rows see, in place of feed-forward networks;
  /// 0: none.
  int64_t persistent = 0;
  NormPlace norm = NormPlace::post;
  double norm_eps = 1e-5;
  bool final_norm = true;  ///< with norm = pre
  /// The first memory is S zero vectors, which are attended to, instead of being empty: as in the
  /// authors' code.
  bool phantom_zero_memory = false;
  bool tie_embedding = false, head_bias = true;
  bool emb_scale = false;  ///< token embeddings times sqrt(d_model)
  double head_std = 0;     ///< std of the classifier; 0: U(-1 / sqrt(D), 1 / sqrt(D))
  float dropout = 0;       ///< sites attn and ffn_act
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  void visit(auto& v) {
    v("vocab", vocab)("n_layer", n_layer)("n_head", n_head)("d_model", d_model)("d_ff", d_ff)(
        "d_head", d_head)("span_max", span_max)("span_ramp", span_ramp)("span_init", span_init)(
        "span_penalty", span_penalty)("span_offset", span_offset)("span_scope", span_scope)(
        "dynamic", dynamic)("pre_div", pre_div)("trim", trim)("persistent", persistent)(
        "norm", norm)("norm_eps", norm_eps)("final_norm", final_norm)(
        "phantom_zero_memory", phantom_zero_memory)("tie_embedding", tie_embedding)(
        "head_bias", head_bias)("emb_scale", emb_scale)("head_std", head_std)("dropout", dropout)(
        "precision", precision)("memory", memory)("chunks", memory.chunks);
    token_head.visit(v);
  }
};

/// A causal decoder whose heads learn how far back they see (SpanAttention), with a memory of S
/// rows of each layer's earlier inputs, which are constants:
///   h <- LN(h + W_o attention(W_q h, W_k [SG(m); h], W_v [SG(m); h]))
///   h <- LN(h + W_2 Drop(relu(W_1 h)))
/// With `persistent` there is no second line \cite sukhbaatar2019b . All layers share the positions
/// p. In training the auxiliary loss "span" is lambda times the mean span of a layer's heads (and
/// tokens, if spans are dynamic), summed over layers.
class AdaptiveSpan final : public CausalDecoder {
 public:
  /// Throws ValueError that names the fields when they do not fit together.
  AdaptiveSpan(const AdaptiveSpanConfig& config, const Init& init);

  const AdaptiveSpanConfig& config() const { return config_; }
  int64_t memory_length() const override { return config_.span_max; }
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;
  Tensor seen_spans(const Tensor& tokens) const override;
  std::string remark(int64_t length) const override;

  /// Returns for each layer and head how many keys it sees, in tokens: min(S, ceil(z) + R) with
  /// span_offset 1. Throws NotImplemented if spans are dynamic.
  std::vector<std::vector<int64_t>> spans() const;
  /// Returns z, in tokens, of each of the tokens [1, L] in each layer and head: [N, H, L], f32 (f64
  /// for f64), without history. Throws NotImplemented unless spans are dynamic.
  Tensor dynamic_spans(const Tensor& tokens) const;
  /// Returns the same with what is computed, which `trim` rounds up.
  std::vector<std::vector<int64_t>> computed_spans() const;
  /// The mean over the heads of all layers of spans().
  double average_span() const;

 private:
  LayerContext layer_context(int64_t queries, int64_t keys, int64_t first_key) const override;
  int64_t first_visible(int64_t position) const override;
  void visit_more(Visitor& v) override { v("positions", positions_); }

  AdaptiveSpanConfig config_;
  Tensor positions_;                             // p [S, d], distances S to 1
  std::vector<const SpanAttention*> attention_;  // of each layer, in stack_
};

/// Returns the multiply-accumulates of one token in the layers, as the paper counts them (sec. 4):
/// N (4 D^2 + 2 D F + 2 s D) for spans of s on average, without positions and classifier; with
/// persistent vectors P D in place of D F.
double token_macs(const AdaptiveSpanConfig& config, double average_span);

/// Entry of the model under the name that programs use.
const ModelEntry& adaptive_span_entry();

/// Configurations of the paper and of the released scripts. Throws ValueError on an unknown name.
AdaptiveSpanConfig adaptive_span_preset(std::string_view name);

}  // namespace longspan
