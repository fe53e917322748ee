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
  int64_t d_head = 0;       ///< 0: d_model / n_head
  int64_t span_max = 1024;  ///< L: steps that a memory can live
  double span_ramp = 32;    ///< R
  double span_init = 0.1;   ///< p: spans begin at p L
  double span_penalty = 0;  ///< alpha, in nats
  SpanLoss span_loss = SpanLoss::ramp;
  double pre_div = 1;       ///< tau, divides the logits of spans
  bool shorten = false;     ///< in training spans count as at most nu L, nu ~ U(0, 1)
  int64_t always_keep = 0;  ///< K: the latest K steps have a mask of 1
  int64_t positions = 128;  ///< P: distances with a position; these rows always stay
  int64_t max_memory = 0;   ///< rows that a layer keeps of each sample; 0: all that can live
  Overflow overflow = Overflow::error;  ///< where more memories live than that
  NormPlace norm = NormPlace::post;
  double norm_eps = 1e-5;
  bool final_norm = true;  ///< with norm = pre
  /// Zero vectors in the first memory, which are attended to: as many as a segment has tokens in
  /// the authors' code.
  int64_t phantom_zero_memory = 0;
  bool tie_embedding = false, head_bias = true;
  bool emb_scale = false;  ///< token embeddings times sqrt(d_model)
  double head_std = 0;     ///< std of the classifier; 0: U(-1 / sqrt(D), 1 / sqrt(D))
  float dropout = 0;       ///< sites attn and ffn_act
  /// Probability with which a layer is left out of a training step: its input is its output, but it
  /// remembers that, deletes and pays as ever.
  double layer_drop = 0;
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  void visit(auto& v) {
    v("vocab", vocab)("n_layer", n_layer)("n_head", n_head)("d_model", d_model)("d_ff", d_ff)(
        "d_head", d_head)("span_max", span_max)("span_ramp", span_ramp)("span_init", span_init)(
        "span_penalty", span_penalty)("span_loss", span_loss)("pre_div", pre_div)(
        "shorten", shorten)("always_keep", always_keep)("positions", positions)(
        "max_memory", max_memory)("overflow", overflow)("norm", norm)("norm_eps", norm_eps)(
        "final_norm", final_norm)("phantom_zero_memory", phantom_zero_memory)(
        "tie_embedding", tie_embedding)("head_bias", head_bias)("emb_scale", emb_scale)(
        "head_std", head_std)("dropout", dropout)("layer_drop", layer_drop)("precision", precision)(
        "memory", memory)("chunks", memory.chunks);
    token_head.visit(v);
  }
};

/// A causal decoder whose layers remember each of their inputs as long as it says itself
/// (ExpireAttention), and delete it then:
///   post  h <- LN(h + attention(h))    h <- LN(h + W_2 Drop(relu(W_1 h + b_1)) + b_2)
///   pre   h <- h + attention(LN(h))    h <- h + W_2 Drop(relu(W_1 LN(h) + b_1)) + b_2
/// All layers share the positions p. In training the auxiliary loss "span" is the penalty, summed
/// over layers.
class ExpireSpan final : public CausalDecoder {
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
