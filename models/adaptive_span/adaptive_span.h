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
  int64_t d_head = 0;
  int64_t span_max = 512;
  double span_ramp = 32;
  double span_init = 0;
  double span_penalty = 0;
  double span_offset = 1;
  SpanScope span_scope = SpanScope::head;
  bool dynamic = false;
  double pre_div = 1;
  /// Heads compute keys up to their spans, rounded up to multiples of it; 0, or dynamic: all S.
  int64_t trim = 64;
  /// P: learned keys and values of each head that all rows see, in place of feed-forward networks;
  /// 0: none.
  int64_t persistent = 0;
  NormPlace norm = NormPlace::post;
  double norm_eps = 1e-5;
  bool final_norm = true;
  /// The first memory is S zero vectors, which are attended to, instead of being empty: as in the
  /// authors' code.
  bool phantom_zero_memory = false;
  bool tie_embedding = false, head_bias = true;
  bool emb_scale = false;
  double head_std = 0;
  float dropout = 0;
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  void visit(auto& v) {
    visit_sizes(v, *this);
    v("d_head", d_head, range::not_negative, "width of a head; 0: d_model / n_head");
    v("span_max", span_max, range::positive,
      "maximum span: keys that a row sees, rows a layer keeps");
    v("span_ramp", span_ramp, range::at_least(1),
      "R, keys over which a span's mask falls from 1 to 0");
    v("span_init", span_init, range::fraction, "first span / span_max; 0 of dynamic: sigmoid(-4)");
    v("span_penalty", span_penalty, range::not_negative, "loss in nats for each token of span");
    v("span_offset", span_offset, range::not_negative,
      "1: the authors' code; 0: the paper's formula");
    v("span_scope", span_scope, "what has a span of its own");
    v("dynamic", dynamic, "each token has spans of its own, which depend on it");
    v("pre_div", pre_div, range::above_zero, "divides v . x of dynamic spans");
    v("trim", trim, range::not_negative, "computed keys are rounded up to multiples of it; 0: all");
    v("persistent", persistent, range::not_negative,
      "learned keys of each head in place of feed-forward networks; 0: none");
    v("norm", norm, meaning::norm)("norm_eps", norm_eps, range::above_zero, meaning::norm_eps);
    v("final_norm", final_norm, meaning::final_norm);
    v("phantom_zero_memory", phantom_zero_memory,
      "the first memory is span_max zero rows that are attended to, not empty");
    v("tie_embedding", tie_embedding, meaning::tie_embedding);
    v("head_bias", head_bias, meaning::head_bias)("emb_scale", emb_scale, meaning::emb_scale);
    v("head_std", head_std, range::not_negative,
      "std of the classifier; 0: U(-1 / sqrt(D), 1 / sqrt(D))");
    v("dropout", dropout, range::probability,
      "of probabilities and of the feed-forward inner layer");
    visit_computation(v, *this);
  }
};

/// A causal decoder whose heads learn how far back they see (SpanAttention), with a memory of S
/// rows of each layer's earlier inputs, which are constants:
///   h <- LN(h + W_o attention(W_q h, W_k [SG(m); h], W_v [SG(m); h]))
///   h <- LN(h + W_2 Drop(relu(W_1 h)))
/// With `persistent` there is no second line \cite sukhbaatar2019b . All layers share the positions
/// p. In training the auxiliary loss "span" is lambda times the mean span of a layer's heads (and
/// tokens, if spans are dynamic), summed over layers.
class AdaptiveSpan final : public CausalDecoder, public LearnsSpans, public Remarks {
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
  /// Returns spans() as they are computed, rounded up to multiples of `trim`.
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
