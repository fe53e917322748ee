#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/bigbird/bigbird_pegasus.h"
#include "models/sequence_hf.h"

namespace longspan {

/// Checkpoints of BigBird-Pegasus \cite zaheer2020 in the format of the package transformers.
extern const CheckpointFormat bigbird_pegasus_format;

/// The keys of config.json for BigBird-Pegasus.
struct BigBirdPegasusKeys {
  std::string model_type = "bigbird_pegasus", activation_function = "gelu_new",
              attention_type = "block_sparse";
  int64_t vocab_size = 96'103, d_model = 1024, max_position_embeddings = 4096, encoder_layers = 16,
          decoder_layers = 16, encoder_attention_heads = 16, decoder_attention_heads = 16,
          encoder_ffn_dim = 4096, decoder_ffn_dim = 4096, block_size = 64, num_random_blocks = 3,
          decoder_start_token_id = 2;
  double dropout = 0.1, attention_dropout = 0, activation_dropout = 0, init_std = 0.02;
  double label_smoothing = 0;  ///< the loss of transformers has none
  bool scale_embedding = true, use_bias = false, tie_word_embeddings = true,
       is_encoder_decoder = true;
  int64_t pad_token_id = 0;

  void visit(auto& v) {
    v("model_type", model_type)("activation_function", activation_function)(
        "attention_type", attention_type)("vocab_size", vocab_size)("d_model", d_model)(
        "max_position_embeddings", max_position_embeddings)("encoder_layers", encoder_layers)(
        "decoder_layers", decoder_layers)("encoder_attention_heads", encoder_attention_heads)(
        "decoder_attention_heads", decoder_attention_heads)("encoder_ffn_dim", encoder_ffn_dim)(
        "decoder_ffn_dim", decoder_ffn_dim)("block_size", block_size)(
        "num_random_blocks", num_random_blocks)("decoder_start_token_id", decoder_start_token_id);
    v("dropout", dropout)("attention_dropout", attention_dropout)(
        "activation_dropout", activation_dropout)("init_std", init_std)(
        "label_smoothing", label_smoothing)("scale_embedding", scale_embedding)(
        "use_bias", use_bias)("tie_word_embeddings", tie_word_embeddings)(
        "is_encoder_decoder", is_encoder_decoder)("pad_token_id", pad_token_id);
  }
};

/// Convert between keys and configuration, with blocks as for BigBird (bigbird_config). Both
/// position tables have max_position_embeddings rows. Throws ValueError when encoder and decoder
/// differ in size.
BigBirdPegasusConfig bigbird_pegasus_config(const BigBirdPegasusKeys& keys);
BigBirdPegasusKeys bigbird_pegasus_keys(const BigBirdPegasusConfig& config);

}  // namespace longspan
