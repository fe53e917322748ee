#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/causal_decoder.h"
#include "models/expire_span/expire_attention.h"
#include "models/model_spec.h"

namespace longspan {

/// Expire-Span \cite sukhbaatar2021 .
struct ExpireSpanConfig {
  int64_t vocab = 256, n_layer = 4, n_head = 4, d_model = 128, d_ff = 512;
  int64_t d_head = 0;
  int64_t span_max = 1024;
  double span_ramp = 32;
  double span_init = 0.1;
  double span_penalty = 0;
  SpanLoss span_loss = SpanLoss::ramp;
  double pre_div = 1;
  bool shorten = false;
  int64_t always_keep = 0;
  int64_t positions = 128;
  int64_t max_memory = 0;
  Overflow overflow = Overflow::error;
  NormPlace norm = NormPlace::post;
  double norm_eps = 1e-5;
  bool final_norm = true;
  /// Zero vectors in the first memory, which are attended to: as many as a segment has tokens in
  /// the authors' code.
  int64_t phantom_zero_memory = 0;
  bool tie_embedding = false, head_bias = true;
  bool emb_scale = false;
  double head_std = 0;
  float dropout = 0;
  /// Probability with which a layer is left out of a training step: its input is its output, but it
  /// remembers that, deletes and pays as ever.
  double layer_drop = 0;
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  void visit(auto& v) {
    visit_sizes(v, *this);
    v("d_head", d_head, range::not_negative, meaning::d_head);
    v("span_max", span_max, range::positive, "L, maximum steps that a memory lives");
    v("span_ramp", span_ramp, "R, steps over which a memory's mask falls from 1 to 0");
    v("span_init", span_init, "p: spans begin at p L");
    v("span_penalty", span_penalty, range::not_negative, "loss in nats for each step of span");
    v("span_loss", span_loss, "what the penalty counts");
    v("pre_div", pre_div, range::above_zero, "tau, divides the logits of spans");
    v("shorten", shorten, "in training spans count as at most nu L, nu ~ U(0, 1)");
    v("always_keep", always_keep, range::not_negative, "K: the latest K steps have a mask of 1");
    v("positions", positions, range::not_negative,
      "P: distances with a position; these rows always stay");
    v("max_memory", max_memory, range::not_negative,
      "rows of a sample that a layer keeps; 0: all that live");
    v("overflow", overflow, "what happens where more memories live than that");
    v("norm", norm, meaning::norm)("norm_eps", norm_eps, range::above_zero, meaning::norm_eps);
    v("final_norm", final_norm, meaning::final_norm);
    v("phantom_zero_memory", phantom_zero_memory, range::not_negative,
      "zero rows in the first memory, which are attended to; 0: none");
    v("tie_embedding", tie_embedding, meaning::tie_embedding);
    v("head_bias", head_bias, meaning::head_bias)("emb_scale", emb_scale, meaning::emb_scale);
    v("head_std", head_std, range::not_negative,
      "std of the classifier; 0: U(-1 / sqrt(D), 1 / sqrt(D))");
    v("dropout", dropout, range::probability,
      "of probabilities and of the feed-forward inner layer");
    v("layer_drop", layer_drop, range::probability, "probability that training leaves a layer out");
    visit_computation(v, *this);
  }
};

/// A causal decoder whose layers remember each of their inputs as long as it says itself
/// (ExpireAttention), and delete it then:
///   post  h <- LN(h + attention(h))    h <- LN(h + W_2 Drop(relu(W_1 h + b_1)) + b_2)
///   pre   h <- h + attention(LN(h))    h <- h + W_2 Drop(relu(W_1 LN(h) + b_1)) + b_2
/// All layers share the positions p. In training the auxiliary loss "span" is the penalty, summed
/// over layers.
class ExpireSpan final : public CausalDecoder, public ForgetsTokens, public Remarks {
 public:
  /// Throws ValueError that names the fields when they do not fit together.
  ExpireSpan(const ExpireSpanConfig& config, const Init& init);

  const ExpireSpanConfig& config() const { return config_; }
  int64_t memory_length() const override { return attention_.front()->capacity(); }
  SegmentMemory empty_memory(int64_t batch) const override;
  /// Keys, values and spans in place of states: they are computed once. With phantom rows it is
  /// empty_memory().
  SegmentMemory evaluation_memory(int64_t batch) const override;
  std::unique_ptr<DecodeState> start_decoding(int64_t batch) const override;
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;
  std::vector<int64_t> divided_heads() const override { return {}; }
  std::string remark(int64_t length) const override;

  /// The spans e, in steps.
  std::vector<Tensor> token_spans(const Tensor& tokens, const SegmentMemory& memory) const override;
  std::vector<double> living(const SegmentMemory& memory) const override;

 private:
  LayerContext layer_context(int64_t queries, int64_t keys, int64_t first_key) const override;
  Stack::Result run(const Tensor& x, const LayerContext& ctx, StreamState* state,
                    Pass pass) const override;
  void visit_more(Visitor& v) override { v("positions", positions_); }
  /// Returns x as the attention of layer i reads it.
  Tensor read(int64_t i, const Tensor& x) const;

  ExpireSpanConfig config_;
  Tensor positions_;                               // p [P, d], distances P to 1
  std::vector<const ExpireAttention*> attention_;  // of each layer, in stack_
};

/// Returns for each layer how many rows of the memory exist, averaged over samples: those of
/// ExpireSpan::living(), and the newest ones, which always stay. Waits for the device.
std::vector<double> stored_rows(const SegmentMemory& memory);

/// Entry of the model under the name that programs use.
const ModelEntry& expire_span_entry();

/// Configurations of the paper and of the released scripts. Throws ValueError on an unknown name.
ExpireSpanConfig expire_span_preset(std::string_view name);

}  // namespace longspan
