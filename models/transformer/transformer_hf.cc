#include "models/transformer/transformer_hf.h"

namespace longspan {
namespace {

constexpr auto transformer_names =
    joined(detail::sequence_names,
           {
               {"embed.source_norm", "encoder.layernorm_embedding"},
               {"embed.norm", "decoder.layernorm_embedding"},
               {"encoder.layers.#.attention.q", "encoder.layers.#.self_attn.q_proj"},
               {"encoder.layers.#.attention.k", "encoder.layers.#.self_attn.k_proj"},
               {"encoder.layers.#.attention.v", "encoder.layers.#.self_attn.v_proj"},
               {"encoder.layers.#.attention.out", "encoder.layers.#.self_attn.out_proj"},
           });

constexpr auto mbart_names = joined(
    transformer_names,
    {{"encoder.final_norm", "encoder.layer_norm"}, {"decoder.final_norm", "decoder.layer_norm"}});
constexpr auto pegasus_unused = joined(
    detail::sequence_unused, {{"encoder.embed_positions.weight", OtherName::Kind::sinusoids},
                              {"decoder.embed_positions.weight", OtherName::Kind::sinusoids}});
// Names without one table; the first name of a parameter counts.
constexpr auto transformer_untied_names = joined(detail::sequence_tables, transformer_names);
constexpr auto mbart_untied_names = joined(detail::sequence_tables, mbart_names);
constexpr auto pegasus_untied_unused =
    joined(detail::sequence_untied_unused,
           {{"encoder.embed_positions.weight", OtherName::Kind::sinusoids},
            {"decoder.embed_positions.weight", OtherName::Kind::sinusoids}});

}  // namespace

constinit const CheckpointFormat bart_format{"bart",
                                             "model.",
                                             transformer_names,
                                             detail::sequence_heads,
                                             detail::sequence_unused,
                                             detail::stored_sequence};
constinit const CheckpointFormat mbart_format{"mbart",
                                              "model.",
                                              mbart_names,
                                              detail::sequence_heads,
                                              detail::sequence_unused,
                                              detail::stored_sequence};
constinit const CheckpointFormat pegasus_format{"pegasus",      "model.",
                                                mbart_names,    detail::sequence_heads,
                                                pegasus_unused, detail::stored_sequence};
constinit const CheckpointFormat bart_untied_format{"bart",
                                                    "model.",
                                                    transformer_untied_names,
                                                    detail::sequence_heads,
                                                    detail::sequence_untied_unused,
                                                    detail::stored_sequence};
constinit const CheckpointFormat mbart_untied_format{"mbart",
                                                     "model.",
                                                     mbart_untied_names,
                                                     detail::sequence_heads,
                                                     detail::sequence_untied_unused,
                                                     detail::stored_sequence};
constinit const CheckpointFormat pegasus_untied_format{"pegasus",
                                                       "model.",
                                                       mbart_untied_names,
                                                       detail::sequence_heads,
                                                       pegasus_untied_unused,
                                                       detail::stored_sequence};

TransformerConfig bart_config(const BartKeys& k) {
  require(k.model_type == "bart", detail::checkpoint_op, "model_type is \"{}\"; expected \"bart\"",
          k.model_type);
  TransformerConfig c = transformer_preset("bart");
  detail::set_sequence(k, c);
  c.n_max = k.max_position_embeddings;
  c.emb_scale = k.scale_embedding;
  return c;
}

TransformerConfig mbart_config(const MBartKeys& k) {
  require(k.model_type == "mbart", detail::checkpoint_op,
          "model_type is \"{}\"; expected \"mbart\"", k.model_type);
  BartKeys shared = k;
  shared.model_type = "bart";
  TransformerConfig c = bart_config(shared);
  c.norm = NormPlace::pre;
  return c;
}

TransformerConfig pegasus_config(const PegasusKeys& k) {
  require(k.model_type == "pegasus", detail::checkpoint_op,
          "model_type is \"{}\"; expected \"pegasus\"", k.model_type);
  require(k.d_model % 2 == 0, detail::checkpoint_op,
          "d_model is {}; expected an even number, for sines and cosines", k.d_model);
  BartKeys shared = k;
  shared.model_type = "bart";
  TransformerConfig c = bart_config(shared);
  c.norm = NormPlace::pre;
  c.positions = Positions::sinusoid;
  c.sinusoid = SinusoidLayout::halves_f32;
  c.position_offset = 0;
  c.emb_norm = c.source_tables = false;
  return c;
}

BartKeys bart_keys(const TransformerConfig& c) {
  require(c.wiring == Wiring::encoder_decoder && c.norm == NormPlace::post && c.norm_eps == 1e-5 &&
              c.positions == Positions::learned && c.position_offset == 2 && c.source_tables &&
              (c.source_n_max == 0 || c.source_n_max == c.n_max),
          detail::checkpoint_op,
          "a model of type bart has wiring = encoder_decoder, norm = post, norm_eps = 1e-5, "
          "positions = learned, position_offset = 2 and source_tables of n_max rows");
  require(
      c.emb_norm && c.qkv_bias && c.out_bias && c.head_bias && c.d_embed == 0 && !c.couple,
      detail::checkpoint_op,
      "a model of type bart has emb_norm, qkv_bias, out_bias and head_bias, and neither d_embed "
      "nor couple");
  require(c.source_vocab == (c.tie_embedding ? 0 : c.vocab), detail::checkpoint_op,
          "source_vocab is {}; a model of type bart has {} with tie_embedding = {}", c.source_vocab,
          c.tie_embedding ? 0 : c.vocab, c.tie_embedding);
  BartKeys k;
  detail::get_sequence(c, k);
  k.max_position_embeddings = c.n_max;
  k.scale_embedding = c.emb_scale;
  return k;
}

MBartKeys mbart_keys(const TransformerConfig& config) {
  TransformerConfig shared = config;
  shared.norm = NormPlace::post;  // said by the type, and compared by the caller
  MBartKeys k;
  static_cast<BartKeys&>(k) = bart_keys(shared);
  k.model_type = "mbart";
  k.id2label.clear();
  return k;
}

PegasusKeys pegasus_keys(const TransformerConfig& config) {
  TransformerConfig shared = config;
  shared.norm = NormPlace::post;
  shared.positions = Positions::learned;
  shared.position_offset = 2;
  shared.emb_norm = shared.source_tables = true;
  PegasusKeys k;
  static_cast<BartKeys&>(k) = bart_keys(shared);
  k.model_type = "pegasus";
  k.id2label.clear();
  return k;
}

}  // namespace longspan
