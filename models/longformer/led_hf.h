#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/longformer/led.h"
#include "models/sequence_hf.h"

namespace longspan {

/// Checkpoints of LED \cite beltagy2020 in the format of the package transformers.
extern const CheckpointFormat led_format, led_untied_format;

/// The keys of config.json for LED.
struct LedKeys : SequenceKeys {
  LedKeys() { model_type = "led"; }

  int64_t max_encoder_position_embeddings = 16'384, max_decoder_position_embeddings = 1024;
  std::vector<int64_t> attention_window = {512};  ///< of each layer, sum of both sides

  void visit(auto& v) {
    SequenceKeys::visit(v);
    v("max_encoder_position_embeddings", max_encoder_position_embeddings)(
        "max_decoder_position_embeddings", max_decoder_position_embeddings)("attention_window",
                                                                            attention_window);
  }
};

/// Convert between keys and configuration. LED's tables begin with position 0; the first token is
/// global.
LedConfig led_config(const LedKeys& keys);
LedKeys led_keys(const LedConfig& config);

}  // namespace longspan
