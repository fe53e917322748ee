#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/causal_decoder.h"
#include "models/model_spec.h"
#include "nn/attention/relative.h"

namespace longspan {

/// Transformer-XL \cite dai2019 .
struct TransformerXLConfig {
  int64_t vocab = 256, n_layer = 4, n_head = 4, d_model = 128, d_ff = 512;
  int64_t d_head = 0;
  /// M, rows that each layer keeps of its inputs from earlier segments.
  int64_t mem_len = 128;
  /// W, keys that a row sees, itself included; 0: all of the memory and of the segment before it.
  /// The authors' same_length is W = mem_len in PyTorch and mem_len + 1 in TensorFlow.
  int64_t window = 0;
  int64_t clamp = 0;
  bool untie_biases = false;
  NormPlace norm = NormPlace::post;
  double norm_eps = 1e-5;
  bool final_norm = true;
  /// The first memory is `mem_len` zero vectors, which are attended to, instead of being empty: as
  /// in the authors' TensorFlow code and in transformers.
  bool phantom_zero_memory = false;
  bool tie_embedding = true, head_bias = true;
  /// Adaptive embedding and softmax (nn/adaptive.h); empty: one table.
  std::vector<int64_t> cutoffs = {}, tie_projections = {};
  int64_t div_value = 1;
  bool emb_scale = true;
  float dropout = 0;
  float dropout_attn = 0;
  double init_std = 0.02;
  double embed_std = 0;
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  void visit(auto& v) {
    visit_sizes(v, *this);
    v("d_head", d_head, range::not_negative, meaning::d_head);
    v("mem_len", mem_len, range::not_negative,
      "M, inputs of earlier segments that each layer keeps");
    v("window", window, range::not_negative, "W, keys that a row sees, itself included; 0: all");
    v("clamp", clamp, range::not_negative, meaning::clamp);
    v("untie_biases", untie_biases, meaning::untie_biases);
    v("norm", norm, meaning::norm)("norm_eps", norm_eps, range::above_zero, meaning::norm_eps);
    v("final_norm", final_norm, meaning::final_norm);
    v("phantom_zero_memory", phantom_zero_memory,
      "the first memory is mem_len zero rows that are attended to, not empty");
    v("tie_embedding", tie_embedding, meaning::tie_embedding);
    v("head_bias", head_bias, meaning::head_bias)("emb_scale", emb_scale, meaning::emb_scale);
    v("cutoffs", cutoffs, meaning::cutoffs);
    v("tie_projections", tie_projections, meaning::tie_projections);
    v("div_value", div_value, meaning::div_value);
    v("dropout", dropout, range::probability, meaning::dropout);
    v("dropout_attn", dropout_attn, range::probability, "of attention probabilities");
    v("init_std", init_std, range::not_negative, meaning::init_std);
    v("embed_std", embed_std, range::not_negative, "std of tokens; 0: init_std");
    visit_computation(v, *this);
  }
};

/// A causal decoder whose layers also attend to their inputs of earlier segments, m, as constants,
/// with relative positions (sec. 3.2 and 3.3):
///   h~ = [SG(m); h]     q = W_q h     k, v = W_k h~, W_v h~
///   s_ij = ((q_i + u) . k_j + (q_i + v) . W_R R_{M + i - j}) / sqrt(d)
///   h <- LN(h + Drop(W_o softmax(s) v));  h <- LN(h + Drop(W_2 relu(W_1 h)))
/// All layers share u and v unless untie_biases. R is the same for all layers, and its dropout too.
class TransformerXL final : public CausalDecoder {
 public:
  /// Throws ValueError that names the fields when they do not fit together.
  TransformerXL(const TransformerXLConfig& config, const Init& init);

  const TransformerXLConfig& config() const { return config_; }
  int64_t memory_length() const override { return config_.mem_len; }

 private:
  LayerContext layer_context(int64_t queries, int64_t keys, int64_t first_key) const override;
  int64_t first_visible(int64_t position) const override;
  Stack::Result run(const Tensor& x, const LayerContext& ctx, StreamState* state,
                    Pass pass) const override;
  void visit_more(Visitor& v) override;

  TransformerXLConfig config_;
  Tensor u_, v_;  // [H, d], shared by all layers; undefined with untie_biases
  DistanceTable distances_;
};

/// Entry of the model under the name that programs use.
const ModelEntry& transformer_xl_entry();

/// Configurations of the paper and of the released scripts. Throws ValueError on an unknown name.
TransformerXLConfig transformer_xl_preset(std::string_view name);

}  // namespace longspan
