#include "models/bigbird/bigbird_pegasus_hf.h"

namespace longspan {
namespace {

constexpr auto bigbird_pegasus_names =
    joined(detail::sequence_names,
           {
               {"encoder.layers.#.attention.q", "encoder.layers.#.self_attn.self.query"},
               {"encoder.layers.#.attention.k", "encoder.layers.#.self_attn.self.key"},
               {"encoder.layers.#.attention.v", "encoder.layers.#.self_attn.self.value"},
               {"encoder.layers.#.attention.out", "encoder.layers.#.self_attn.output"},
               {"encoder.final_norm", "encoder.layernorm_embedding"},
               {"decoder.final_norm", "decoder.layernorm_embedding"},
           });

constexpr auto bigbird_pegasus_untied_names =
    joined(detail::sequence_tables, bigbird_pegasus_names);

}  // namespace

constinit const CheckpointFormat bigbird_pegasus_untied_format{"bigbird_pegasus",
                                                               "model.",
                                                               bigbird_pegasus_untied_names,
                                                               detail::sequence_heads,
                                                               detail::sequence_untied_unused,
                                                               detail::stored_sequence};
constinit const CheckpointFormat bigbird_pegasus_format{
    "bigbird_pegasus",       "model.",
    bigbird_pegasus_names,   detail::sequence_heads,
    detail::sequence_unused, detail::stored_sequence};

BigBirdPegasusKeys::BigBirdPegasusKeys() {
  model_type = "bigbird_pegasus";
  activation_function = "gelu_new";
  vocab_size = 96'103;
  encoder_layers = decoder_layers = 16;
  pad_token_id = 0;
}

BigBirdPegasusConfig bigbird_pegasus_config(const BigBirdPegasusKeys& k) {
  require(k.model_type == "bigbird_pegasus", detail::checkpoint_op,
          "model_type is \"{}\"; expected \"bigbird_pegasus\"", k.model_type);
  const bool full = k.attention_type == "original_full";
  require(full || k.attention_type == "block_sparse", detail::checkpoint_op,
          "attention_type is \"{}\"; expected \"block_sparse\" or \"original_full\"",
          k.attention_type);
  BigBirdPegasusConfig c;
  detail::set_sequence(k, c);
  c.n_max = c.n_max_target = k.max_position_embeddings;
  c.block = full ? k.max_position_embeddings : k.block_size;
  c.n_random = k.num_random_blocks;
  c.random = RandomPlan::package;
  c.global_last = GlobalLast::padded;
  c.bias = k.use_bias;
  c.emb_scale = k.scale_embedding;
  c.start_token = k.decoder_start_token_id;
  return c;
}

BigBirdPegasusKeys bigbird_pegasus_keys(const BigBirdPegasusConfig& c) {
  require(!c.couple && c.norm == NormPlace::pre && !c.emb_norm && c.n_max == c.n_max_target &&
              c.norm_eps == 1e-5,
          detail::checkpoint_op,
          "a model of type bigbird_pegasus has norm = pre, norm_eps = 1e-5, n_max = n_max_target, "
          "and neither couple nor emb_norm");
  BigBirdPegasusKeys k;
  detail::get_sequence(c, k);
  k.max_position_embeddings = c.n_max;
  if (c.block >= c.n_max) k.attention_type = "original_full";
  if (c.block < c.n_max) k.block_size = c.block;
  k.num_random_blocks = c.n_random;
  k.use_bias = c.bias;
  k.scale_embedding = c.emb_scale;
  k.decoder_start_token_id = c.start_token;
  return k;
}

}  // namespace longspan
