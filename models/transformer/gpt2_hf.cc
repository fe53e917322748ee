#include "models/transformer/gpt2_hf.h"

#include "models/hf_keys.h"

namespace longspan {
namespace {

/// c_attn holds q, k and v.
constexpr NamePair gpt2_names[] = {
    {"embed.token", "wte"},
    {"embed.position", "wpe"},
    {"layers.#.norm1", "h.#.ln_1"},
    {"layers.#.attention.q", "h.#.attn.c_attn"},
    {"layers.#.attention.k", "h.#.attn.c_attn"},
    {"layers.#.attention.v", "h.#.attn.c_attn"},
    {"layers.#.attention.out", "h.#.attn.c_proj"},
    {"layers.#.norm2", "h.#.ln_2"},
    {"layers.#.ff.in", "h.#.mlp.c_fc"},
    {"layers.#.ff.out", "h.#.mlp.c_proj"},
    {"final_norm", "ln_f"},
};
constexpr NamePair gpt2_heads[] = {
    {"head.weight", "lm_head.weight"},
    {"classes", "score"},
    {"tags", "classifier"},
    {"spans", "qa_outputs"},
};
constexpr OtherName gpt2_unused[] = {
    {"lm_head.weight", OtherName::Kind::copy, "wte.weight",
     "for a head of its own, set tie_word_embeddings in config.json (tie_embedding here) to false"},
};

}  // namespace

constinit const CheckpointFormat gpt2_format{"gpt2", "transformer.", gpt2_names, gpt2_heads,
                                             gpt2_unused};

TransformerConfig gpt2_config(const Gpt2Keys& k) {
  require(k.model_type == "gpt2", detail::checkpoint_op, "model_type is \"{}\"; expected \"gpt2\"",
          k.model_type);
  require(k.n_embd % k.n_head == 0, detail::checkpoint_op,
          "n_head is {}; expected a divisor of n_embd, {}", k.n_head, k.n_embd);
  require(k.scale_attn_weights || !k.scale_attn_by_inverse_layer_idx, detail::checkpoint_op,
          "scale_attn_by_inverse_layer_idx is true; expected false without scale_attn_weights");
  TransformerConfig c = transformer_preset("gpt2");
  c.vocab = k.vocab_size;
  c.n_layer = k.n_layer;
  c.n_head = k.n_head;
  c.d_model = k.n_embd;
  c.d_ff = k.n_inner > 0 ? k.n_inner : 4 * k.n_embd;
  c.n_max = k.n_positions;
  c.norm_eps = k.layer_norm_epsilon;
  c.activation = detail::activation_of(k.activation_function, "activation_function");
  c.attention_scale = k.scale_attn_by_inverse_layer_idx ? AttentionScale::by_layer
                      : k.scale_attn_weights            ? AttentionScale::sqrt_width
                                                        : AttentionScale::none;
  c.types_share_table = true;
  c.tie_embedding = k.tie_word_embeddings;
  c.dropout = static_cast<float>(k.resid_pdrop);
  c.dropout_emb = static_cast<float>(k.embd_pdrop);
  c.dropout_attn = static_cast<float>(k.attn_pdrop);
  c.dropout_ffn_act = 0;
  c.init_std = k.initializer_range;
  return c;
}

Gpt2Keys gpt2_keys(const TransformerConfig& c) {
  require(c.wiring == Wiring::decoder && c.norm == NormPlace::pre &&
              c.positions == Positions::learned && c.position_offset == 0 &&
              c.local == Locality::none && !c.sparse_probabilities(),
          detail::checkpoint_op,
          "a model of type gpt2 has wiring = decoder, norm = pre, positions = learned, "
          "position_offset = 0, local = none and alpha = 1");
  require(c.qkv_bias && c.out_bias && !c.head_bias && !c.share_qk && !c.emb_scale && !c.emb_norm &&
              c.cutoffs.empty() && c.d_embed == 0 && c.d_head == 0 && c.token_types == 0 &&
              c.dropout_ffn_act <= 0 && c.token_head.soft_cap == 0,
          detail::checkpoint_op,
          "a model of type gpt2 has qkv_bias and out_bias, and none of head_bias, share_qk, "
          "emb_scale, emb_norm, cutoffs, d_embed, d_head, token_types, dropout_ffn_act and "
          "soft_cap");
  Gpt2Keys k;
  k.vocab_size = c.vocab;
  k.n_layer = c.n_layer;
  k.n_head = c.n_head;
  k.n_embd = c.d_model;
  k.n_inner = c.d_ff == 4 * c.d_model ? 0 : c.d_ff;
  k.n_positions = c.n_max;
  k.layer_norm_epsilon = c.norm_eps;
  k.activation_function = detail::activation_name(c.activation);
  k.scale_attn_weights = c.attention_scale != AttentionScale::none;
  k.scale_attn_by_inverse_layer_idx = c.attention_scale == AttentionScale::by_layer;
  k.tie_word_embeddings = c.tie_embedding;
  k.resid_pdrop = static_cast<double>(c.dropout);
  k.embd_pdrop = static_cast<double>(or_default(c.dropout_emb, c.dropout));
  k.attn_pdrop = static_cast<double>(or_default(c.dropout_attn, c.dropout));
  k.initializer_range = c.init_std;
  return k;
}

}  // namespace longspan
