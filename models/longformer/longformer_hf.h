#pragma once

#include <cstdint>
#include <vector>

#include "models/encoder_hf.h"
#include "models/longformer/longformer.h"

namespace longspan {

/// Checkpoints of Longformer \cite beltagy2020 in the format of the package transformers.
extern const CheckpointFormat longformer_format;

/// The keys of config.json for Longformer.
struct LongformerKeys : EncoderKeys {
  LongformerKeys();

  std::vector<int64_t> attention_window = {512};  ///< of each layer, sum of both sides
  int64_t sep_token_id = 2;                       ///< the token between question and text

  void visit(auto& v) {
    EncoderKeys::visit(v);
    v("attention_window", attention_window)("sep_token_id", sep_token_id);
  }
};

/// Convert between keys and configuration, as encoder_keys() does. The heads have no dilation, with
/// one window for each layer. Throws ValueError on a window that is odd, below 2 or missing.
LongformerConfig longformer_config(const LongformerKeys& keys);
LongformerKeys longformer_keys(const LongformerConfig& config);

}  // namespace longspan
