#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "models/checkpoint_format.h"
#include "models/hf_keys.h"

namespace longspan {

/// The keys of config.json that encoder-decoders in BART's shape share, with the defaults of LED.
struct SequenceKeys {
  std::string model_type, activation_function = "gelu";
  int64_t vocab_size = 50'265, d_model = 1024, encoder_layers = 12, decoder_layers = 12,
          encoder_attention_heads = 16, decoder_attention_heads = 16, encoder_ffn_dim = 4096,
          decoder_ffn_dim = 4096, pad_token_id = 1,
          decoder_start_token_id = 2;  ///< the decoder's first token
  double dropout = 0.1, attention_dropout = 0, activation_dropout = 0, init_std = 0.02;
  double label_smoothing = 0;  ///< the loss of transformers has none
  bool tie_word_embeddings = true, is_encoder_decoder = true;

  void visit(auto& v) {
    v("model_type", model_type)("activation_function", activation_function)(
        "vocab_size", vocab_size, range::positive);
    v("d_model", d_model, range::positive)("encoder_layers", encoder_layers, range::count);
    v("decoder_layers", decoder_layers, range::count);
    v("encoder_attention_heads", encoder_attention_heads, range::positive);
    v("decoder_attention_heads", decoder_attention_heads, range::positive);
    v("encoder_ffn_dim", encoder_ffn_dim, range::positive);
    v("decoder_ffn_dim", decoder_ffn_dim, range::positive);
    v("dropout", dropout, range::probability);
    v("attention_dropout", attention_dropout, range::probability);
    v("activation_dropout", activation_dropout, range::probability);
    v("init_std", init_std, range::not_negative);
    v("label_smoothing", label_smoothing)("tie_word_embeddings", tie_word_embeddings)(
        "is_encoder_decoder", is_encoder_decoder)("pad_token_id", pad_token_id)(
        "decoder_start_token_id", decoder_start_token_id);
  }
};

namespace detail {

/// The names that encoder-decoders in BART's shape share.
inline constexpr NamePair sequence_names[] = {
    {"embed.token", "shared"},
    {"embed.source_position", "encoder.embed_positions"},
    {"embed.position", "decoder.embed_positions"},
    {"encoder.layers.#.norm1", "encoder.layers.#.self_attn_layer_norm"},
    {"encoder.layers.#.ff.in", "encoder.layers.#.fc1"},
    {"encoder.layers.#.ff.out", "encoder.layers.#.fc2"},
    {"encoder.layers.#.norm2", "encoder.layers.#.final_layer_norm"},
    {"decoder.layers.#.attention.q", "decoder.layers.#.self_attn.q_proj"},
    {"decoder.layers.#.attention.k", "decoder.layers.#.self_attn.k_proj"},
    {"decoder.layers.#.attention.v", "decoder.layers.#.self_attn.v_proj"},
    {"decoder.layers.#.attention.out", "decoder.layers.#.self_attn.out_proj"},
    {"decoder.layers.#.norm1", "decoder.layers.#.self_attn_layer_norm"},
    {"decoder.layers.#.cross.q", "decoder.layers.#.encoder_attn.q_proj"},
    {"decoder.layers.#.cross.k", "decoder.layers.#.encoder_attn.k_proj"},
    {"decoder.layers.#.cross.v", "decoder.layers.#.encoder_attn.v_proj"},
    {"decoder.layers.#.cross.out", "decoder.layers.#.encoder_attn.out_proj"},
    {"decoder.layers.#.norm2", "decoder.layers.#.encoder_attn_layer_norm"},
    {"decoder.layers.#.ff.in", "decoder.layers.#.fc1"},
    {"decoder.layers.#.ff.out", "decoder.layers.#.fc2"},
    {"decoder.layers.#.norm3", "decoder.layers.#.final_layer_norm"},
};
/// The tables of such a model that are not tied. Older files have one for encoder and decoder.
inline constexpr NamePair sequence_tables[] = {
    {"embed.token", "decoder.embed_tokens"},
    {"embed.source", "encoder.embed_tokens"},
};
inline constexpr OtherName sequence_untied_unused[] = {
    {"shared.weight", OtherName::Kind::instead, "encoder.embed_tokens.weight"},
    {"shared.weight", OtherName::Kind::instead, "decoder.embed_tokens.weight"},
};
/// The token bias, which such models store as [1, V].
inline constexpr std::string_view logits_bias = "final_logits_bias";
inline constexpr NamePair sequence_heads[] = {{"head.bias", logits_bias},
                                              {"head.weight", "lm_head.weight"}};
inline constexpr std::string_view one_table =
    "encoder, decoder and head of such a model share one table here";
inline constexpr OtherName sequence_unused[] = {
    {"encoder.embed_tokens.weight", OtherName::Kind::copy, "shared.weight", one_table},
    {"decoder.embed_tokens.weight", OtherName::Kind::copy, "shared.weight", one_table},
    {"lm_head.weight", OtherName::Kind::copy, "shared.weight", one_table},
};
Tensor stored_sequence(std::string_view theirs, const Tensor& parameter);

/// Sets the fields that configurations of encoder-decoders share.
void set_sequence(const auto& k, auto& c) {
  require(k.is_encoder_decoder, checkpoint_op,
          "is_encoder_decoder is false; expected true: a {} here has both sides", k.model_type);
  for (const auto& [name, heads] :
       {std::pair{"encoder_attention_heads", k.encoder_attention_heads},
        std::pair{"decoder_attention_heads", k.decoder_attention_heads}}) {
    require(k.d_model % heads == 0, checkpoint_op, "{} is {}; expected a divisor of d_model, {}",
            name, heads, k.d_model);
  }
  require(k.pad_token_id < k.vocab_size, checkpoint_op,
          "pad_token_id is {}; expected a token below vocab_size, {}", k.pad_token_id,
          k.vocab_size);
  c.vocab = k.vocab_size;
  c.n_layer = k.encoder_layers;
  c.n_head = k.encoder_attention_heads;
  c.d_model = k.d_model;
  c.d_ff = k.encoder_ffn_dim;
  const auto other = [](int64_t target, int64_t source) { return target == source ? 0 : target; };
  c.target_n_layer = other(k.decoder_layers, k.encoder_layers);
  c.target_n_head = other(k.decoder_attention_heads, k.encoder_attention_heads);
  c.target_d_ff = other(k.decoder_ffn_dim, k.encoder_ffn_dim);
  c.padding_id = k.pad_token_id;
  c.constant_bias = true;
  c.tie_embedding = k.tie_word_embeddings;
  if constexpr (requires { c.source_vocab; }) c.source_vocab = c.tie_embedding ? 0 : c.vocab;
  c.activation = activation_of(k.activation_function, "activation_function");
  c.dropout = static_cast<float>(k.dropout);
  c.dropout_attn = static_cast<float>(k.attention_dropout);
  c.dropout_ffn_act = static_cast<float>(k.activation_dropout);
  c.label_smoothing = k.label_smoothing;
  c.init_std = k.init_std;
}

void get_sequence(const auto& c, auto& k) {
  k.vocab_size = c.vocab;
  k.encoder_layers = c.n_layer;
  k.encoder_attention_heads = c.n_head;
  k.encoder_ffn_dim = c.d_ff;
  k.decoder_layers = c.target_n_layer > 0 ? c.target_n_layer : c.n_layer;
  k.decoder_attention_heads = c.target_n_head > 0 ? c.target_n_head : c.n_head;
  k.decoder_ffn_dim = c.target_d_ff > 0 ? c.target_d_ff : c.d_ff;
  k.d_model = c.d_model;
  k.tie_word_embeddings = c.tie_embedding;
  if (c.padding_id >= 0) k.pad_token_id = c.padding_id;
  k.activation_function = activation_name(c.activation);
  k.dropout = static_cast<double>(c.dropout);
  k.attention_dropout = static_cast<double>(or_default(c.dropout_attn, c.dropout));
  k.activation_dropout = static_cast<double>(or_default(c.dropout_ffn_act, c.dropout));
  k.label_smoothing = c.label_smoothing;
  k.init_std = c.init_std;
}

}  // namespace detail
}  // namespace longspan
