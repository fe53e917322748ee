#include "models/longformer/led_hf.h"

namespace longspan {
namespace {

constexpr auto led_names = joined(
    detail::sequence_names,
    {
        {"embed.source_norm", "encoder.layernorm_embedding"},
        {"embed.norm", "decoder.layernorm_embedding"},
        {"encoder.layers.#.attention.q", "encoder.layers.#.self_attn.longformer_self_attn.query"},
        {"encoder.layers.#.attention.k", "encoder.layers.#.self_attn.longformer_self_attn.key"},
        {"encoder.layers.#.attention.v", "encoder.layers.#.self_attn.longformer_self_attn.value"},
        {"encoder.layers.#.attention.q_global",
         "encoder.layers.#.self_attn.longformer_self_attn.query_global"},
        {"encoder.layers.#.attention.k_global",
         "encoder.layers.#.self_attn.longformer_self_attn.key_global"},
        {"encoder.layers.#.attention.v_global",
         "encoder.layers.#.self_attn.longformer_self_attn.value_global"},
        {"encoder.layers.#.attention.out", "encoder.layers.#.self_attn.output"},
    });

constexpr auto led_untied_names = joined(detail::sequence_tables, led_names);

}  // namespace

constinit const CheckpointFormat led_format{"led",
                                            "led.",
                                            led_names,
                                            detail::sequence_heads,
                                            detail::sequence_unused,
                                            detail::stored_sequence};
constinit const CheckpointFormat led_untied_format{"led",
                                                   "led.",
                                                   led_untied_names,
                                                   detail::sequence_heads,
                                                   detail::sequence_untied_unused,
                                                   detail::stored_sequence};

LedConfig led_config(const LedKeys& k) {
  require(k.model_type == "led", detail::checkpoint_op, "model_type is \"{}\"; expected \"led\"",
          k.model_type);
  LedConfig c = led_preset("base");
  detail::set_sequence(k, c);
  c.n_max = k.max_encoder_position_embeddings;
  c.n_max_target = k.max_decoder_position_embeddings;
  const auto windows = std::ssize(k.attention_window);
  require(windows == 1 || windows == k.encoder_layers, detail::checkpoint_op,
          "attention_window has {} numbers; expected one, or encoder_layers, {}", windows,
          k.encoder_layers);
  c.one_sided_window = detail::one_sided(k.attention_window);
  c.start_token = k.decoder_start_token_id;
  return c;
}

LedKeys led_keys(const LedConfig& c) {
  require(c.position_offset == 0 && c.norm_eps == 1e-5, detail::checkpoint_op,
          "a model of type led has position_offset = 0 and norm_eps = 1e-5, not {} and {}",
          c.position_offset, c.norm_eps);
  require(!has_dilation(c.dilation, c.dilated_heads), detail::checkpoint_op,
          "a model of type led has no dilation");
  LedKeys k;
  detail::get_sequence(c, k);
  k.max_encoder_position_embeddings = c.n_max;
  k.max_decoder_position_embeddings = c.n_max_target;
  k.attention_window.clear();
  for (int64_t i = 0; i < c.n_layer; ++i) {
    k.attention_window.push_back(
        2 * of_layer(detail::checkpoint_op, "one_sided_window", c.one_sided_window, i));
  }
  k.decoder_start_token_id = c.start_token;
  return k;
}

}  // namespace longspan
