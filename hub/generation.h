#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hub/folder.h"
#include "models/generate.h"

namespace longspan {

/// How a folder says that its model writes: in generation_config.json or, without that file, in
/// config.json.
struct HubGeneration {
  std::optional<int64_t> start;   ///< decoder_start_token_id
  std::optional<int64_t> end;     ///< eos_token_id, the first if there are several
  std::optional<int64_t> forced;  ///< forced_bos_token_id
  bool force_end = false;         ///< there is a forced_eos_token_id
  /// min_length: tokens, the decoder's first input included.
  std::optional<int64_t> shortest;
  std::optional<int64_t> beams, no_repeat_ngram;
  std::optional<double> length_penalty, repetition_penalty;
  std::optional<EarlyStopping> early_stopping;
  /// Members that ask for unsupported behaviour, with their values.
  std::vector<std::string> others;
};

/// Reads it. Throws IoError if the file cannot be read, and ValueError that names a member on a
/// value of another type.
HubGeneration read_hub_generation(const HubFolder& folder);

}  // namespace longspan
