// config.json of encoder-decoders: BART, LED, BigBird-Pegasus.

#include <algorithm>
#include <vector>

#include "models/weights.h"
#include "models/weights_keys.h"

namespace longspan {
namespace {

using detail::activation_name;
using detail::activation_of;

constexpr const char* kOp = detail::checkpoint_op;

/// Sets the fields that configurations of encoder-decoders share.
void set_sequence(const auto& k, auto& c) {
  require(k.tie_word_embeddings, kOp, "tie_word_embeddings is false; expected one table");
  require(k.is_encoder_decoder, kOp,
          "is_encoder_decoder is false; expected true: a {} here has both sides", k.model_type);
  require(k.encoder_layers == k.decoder_layers &&
              k.encoder_attention_heads == k.decoder_attention_heads &&
              k.encoder_ffn_dim == k.decoder_ffn_dim,
          kOp,
          "encoder and decoder have {} and {} layers, {} and {} heads, feed-forward widths {} and "
          "{}; expected the same",
          k.encoder_layers, k.decoder_layers, k.encoder_attention_heads, k.decoder_attention_heads,
          k.encoder_ffn_dim, k.decoder_ffn_dim);
  c.vocab = k.vocab_size;
  c.n_layer = k.encoder_layers;
  c.n_head = k.encoder_attention_heads;
  c.d_model = k.d_model;
  c.d_ff = k.encoder_ffn_dim;
  c.activation = activation_of(k.activation_function);
  c.dropout = static_cast<float>(k.dropout);
  c.dropout_attn = static_cast<float>(k.attention_dropout);
  c.dropout_ffn_act = static_cast<float>(k.activation_dropout);
  c.label_smoothing = k.label_smoothing;
  c.init_std = k.init_std;
}

void get_sequence(const auto& c, auto& k) {
  k.vocab_size = c.vocab;
  k.encoder_layers = k.decoder_layers = c.n_layer;
  k.encoder_attention_heads = k.decoder_attention_heads = c.n_head;
  k.d_model = c.d_model;
  k.encoder_ffn_dim = k.decoder_ffn_dim = c.d_ff;
  k.activation_function = activation_name(c.activation);
  k.dropout = static_cast<double>(c.dropout);
  k.attention_dropout = static_cast<double>(or_default(c.dropout_attn, c.dropout));
  k.activation_dropout = static_cast<double>(or_default(c.dropout_ffn_act, c.dropout));
  k.label_smoothing = c.label_smoothing;
  k.init_std = c.init_std;
}

}  // namespace

BigBirdPegasusConfig bigbird_pegasus_config(const BigBirdPegasusKeys& k) {
  require(k.model_type == "bigbird_pegasus", kOp,
          "model_type is \"{}\"; expected \"bigbird_pegasus\"", k.model_type);
  require(k.attention_type == "block_sparse", kOp,
          "attention_type is \"{}\"; expected \"block_sparse\"", k.attention_type);
  BigBirdPegasusConfig c;
  set_sequence(k, c);
  c.n_max = c.n_max_target = k.max_position_embeddings;
  c.block = k.block_size;
  c.n_random = k.num_random_blocks;
  c.random = RandomPlan::first_1024;
  c.global_last = GlobalLast::padded;
  c.bias = k.use_bias;
  c.emb_scale = k.scale_embedding;
  c.start_token = k.decoder_start_token_id;
  return c;
}

BigBirdPegasusKeys bigbird_pegasus_keys(const BigBirdPegasusConfig& c) {
  require(!c.couple && c.norm == NormPlace::pre && !c.emb_norm && c.n_max == c.n_max_target &&
              c.norm_eps == 1e-5,
          kOp,
          "a model of type bigbird_pegasus has norm = pre, norm_eps = 1e-5, n_max = n_max_target, "
          "and neither couple nor emb_norm");
  BigBirdPegasusKeys k;
  get_sequence(c, k);
  k.max_position_embeddings = c.n_max;
  k.block_size = c.block;
  k.num_random_blocks = c.n_random;
  k.use_bias = c.bias;
  k.scale_embedding = c.emb_scale;
  k.decoder_start_token_id = c.start_token;
  return k;
}

TransformerConfig bart_config(const BartKeys& k) {
  require(k.model_type == "bart", kOp, "model_type is \"{}\"; expected \"bart\"", k.model_type);
  TransformerConfig c = transformer_preset("bart");
  set_sequence(k, c);
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
  get_sequence(c, k);
  k.max_position_embeddings = c.n_max;
  k.scale_embedding = c.emb_scale;
  return k;
}

LedConfig led_config(const LedKeys& k) {
  require(k.model_type == "led", kOp, "model_type is \"{}\"; expected \"led\"", k.model_type);
  LedConfig c = led_preset("base");
  set_sequence(k, c);
  c.n_max = k.max_encoder_position_embeddings;
  c.n_max_target = k.max_decoder_position_embeddings;
  c.one_sided_window = detail::one_sided(k.attention_window);
  c.start_token = k.decoder_start_token_id;
  return c;
}

LedKeys led_keys(const LedConfig& c) {
  require(c.position_offset == 0 && c.norm_eps == 1e-5, kOp,
          "a model of type led has position_offset = 0 and norm_eps = 1e-5, not {} and {}",
          c.position_offset, c.norm_eps);
  require(c.dilation == std::vector<int64_t>{1} || c.dilated_heads == 0, kOp,
          "a model of type led has no dilation");
  require(!c.one_sided_window.empty(), kOp,
          "one_sided_window is empty; expected an entry for each layer, or one for all");
  LedKeys k;
  get_sequence(c, k);
  k.max_encoder_position_embeddings = c.n_max;
  k.max_decoder_position_embeddings = c.n_max_target;
  k.attention_window.clear();
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const auto last = static_cast<int64_t>(c.one_sided_window.size()) - 1;
    k.attention_window.push_back(2 * c.one_sided_window[static_cast<size_t>(std::min(i, last))]);
  }
  k.decoder_start_token_id = c.start_token;
  return k;
}

}  // namespace longspan
