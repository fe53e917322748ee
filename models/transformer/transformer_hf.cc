#include "models/transformer/transformer_hf.h"

namespace longspan {
namespace {

constexpr const char* kOp = detail::checkpoint_op;

constexpr auto names =
    joined(detail::sequence_names,
           {
               {"embed.source_norm", "encoder.layernorm_embedding"},
               {"embed.norm", "decoder.layernorm_embedding"},
               {"encoder.layers.#.attention.q", "encoder.layers.#.self_attn.q_proj"},
               {"encoder.layers.#.attention.k", "encoder.layers.#.self_attn.k_proj"},
               {"encoder.layers.#.attention.v", "encoder.layers.#.self_attn.v_proj"},
               {"encoder.layers.#.attention.out", "encoder.layers.#.self_attn.out_proj"},
           });

}  // namespace

constinit const CheckpointFormat bart_format{"bart",
                                             "model.",
                                             names,
                                             detail::sequence_heads,
                                             detail::sequence_unused,
                                             detail::stored_sequence};

TransformerConfig bart_config(const BartKeys& k) {
  require(k.model_type == "bart", kOp, "model_type is \"{}\"; expected \"bart\"", k.model_type);
  TransformerConfig c = transformer_preset("bart");
  detail::set_sequence(k, c);
  c.n_max = k.max_position_embeddings;
  c.emb_scale = k.scale_embedding;
  return c;
}

BartKeys bart_keys(const TransformerConfig& c) {
  require(c.wiring == Wiring::encoder_decoder && c.norm == NormPlace::post && c.norm_eps == 1e-5 &&
              c.positions == Positions::learned && c.position_offset == 2 && c.source_tables &&
              (c.source_n_max == 0 || c.source_n_max == c.n_max),
          kOp,
          "a model of type bart has wiring = encoder_decoder, norm = post, norm_eps = 1e-5, "
          "positions = learned, position_offset = 2 and source_tables of n_max rows");
  require(c.tie_embedding && c.emb_norm && c.qkv_bias && c.out_bias && c.head_bias &&
              c.d_embed == 0 && c.source_vocab == 0 && !c.couple,
          kOp,
          "a model of type bart has tie_embedding, emb_norm, qkv_bias, out_bias and head_bias, and "
          "none of d_embed, source_vocab and couple");
  BartKeys k;
  detail::get_sequence(c, k);
  k.max_position_embeddings = c.n_max;
  k.scale_embedding = c.emb_scale;
  return k;
}

}  // namespace longspan
