#pragma once

#include <cstdint>
#include <string>

#include "models/bigbird/bigbird_pegasus.h"
#include "models/sequence_hf.h"

namespace longspan {

/// Checkpoints of BigBird-Pegasus \cite zaheer2020 in the format of the package transformers.
extern const CheckpointFormat bigbird_pegasus_format, bigbird_pegasus_untied_format;

/// The keys of config.json for BigBird-Pegasus.
struct BigBirdPegasusKeys : SequenceKeys {
  BigBirdPegasusKeys();

  std::string attention_type = "block_sparse";
  int64_t max_position_embeddings = 4096, block_size = 64, num_random_blocks = 3;
  bool scale_embedding = true, use_bias = false;

  void visit(auto& v) {
    SequenceKeys::visit(v);
    v("attention_type", attention_type)("max_position_embeddings", max_position_embeddings)(
        "block_size", block_size)("num_random_blocks", num_random_blocks)(
        "scale_embedding", scale_embedding)("use_bias", use_bias);
  }
};

/// Convert between keys and configuration, with blocks as for BigBird (bigbird_config). Both
/// position tables have max_position_embeddings rows. Throws ValueError when encoder and decoder
/// differ in size.
BigBirdPegasusConfig bigbird_pegasus_config(const BigBirdPegasusKeys& keys);
BigBirdPegasusKeys bigbird_pegasus_keys(const BigBirdPegasusConfig& config);

}  // namespace longspan
