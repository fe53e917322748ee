#pragma once

#include <cstdint>
#include <string>

#include "models/bigbird/bigbird.h"
#include "models/encoder_hf.h"

namespace longspan {

/// Checkpoints of BigBird \cite zaheer2020 in the format of the package transformers.
extern const CheckpointFormat bigbird_format;

/// The keys of config.json for BigBird.
struct BigBirdKeys : EncoderKeys {
  BigBirdKeys();

  int64_t block_size = 64, num_random_blocks = 3;
  std::string attention_type = "block_sparse";
  bool use_bias = true, rescale_embeddings = false;
  int64_t sep_token_id = 66;  ///< the token between question and text

  void visit(auto& v) {
    EncoderKeys::visit(v);
    v("block_size", block_size)("num_random_blocks", num_random_blocks)(
        "attention_type", attention_type)("use_bias", use_bias)(
        "rescale_embeddings", rescale_embeddings)("sep_token_id", sep_token_id);
  }
};

/// Convert between keys and configuration, as encoder_keys() does. As in the reference, the last
/// block includes padding, sparse attention has no dropout, and random blocks come from the first
/// 1,024 tokens. BigBird::set_random_blocks() sets the exact blocks that the reference has drawn.
BigBirdConfig bigbird_config(const BigBirdKeys& keys);
BigBirdKeys bigbird_keys(const BigBirdConfig& config);

}  // namespace longspan
