#pragma once

#include <cstdint>
#include <string>

#include "models/checkpoint_format.h"
#include "models/transformer/transformer.h"

namespace longspan {

/// Checkpoints of GPT-2 \cite radford2019 in the format of the package transformers, but for their
/// matrices, which files store as [in, out].
extern const CheckpointFormat gpt2_format;

/// The keys of config.json for GPT-2, with the defaults of that type.
struct Gpt2Keys {
  std::string model_type = "gpt2", activation_function = "gelu_new";
  int64_t vocab_size = 50'257, n_positions = 1024, n_embd = 768, n_layer = 12, n_head = 12;
  int64_t n_inner = 0;  ///< 0, written as null: 4 n_embd
  double layer_norm_epsilon = 1e-5, initializer_range = 0.02;
  double resid_pdrop = 0.1, embd_pdrop = 0.1, attn_pdrop = 0.1;
  bool scale_attn_weights = true, scale_attn_by_inverse_layer_idx = false;
  bool tie_word_embeddings = true;

  void visit(auto& v) {
    v("model_type", model_type)("activation_function", activation_function);
    v("vocab_size", vocab_size, range::positive)("n_positions", n_positions, range::positive);
    v("n_embd", n_embd, range::positive)("n_layer", n_layer, range::count);
    v("n_head", n_head, range::positive)("n_inner", n_inner, range::not_negative);
    v("layer_norm_epsilon", layer_norm_epsilon, range::above_zero);
    v("initializer_range", initializer_range, range::not_negative);
    v("resid_pdrop", resid_pdrop, range::probability)("embd_pdrop", embd_pdrop, range::probability);
    v("attn_pdrop", attn_pdrop, range::probability)("scale_attn_weights", scale_attn_weights);
    v("scale_attn_by_inverse_layer_idx", scale_attn_by_inverse_layer_idx);
    v("tie_word_embeddings", tie_word_embeddings);
  }
};

/// Convert between keys and configuration. Token types are rows of the token table. Throw
/// ValueError that names the key or field when such a model cannot have it.
TransformerConfig gpt2_config(const Gpt2Keys& keys);
Gpt2Keys gpt2_keys(const TransformerConfig& config);

}  // namespace longspan
