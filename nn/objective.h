#pragma once

#include <cstdint>

namespace longspan {

/// What a token model is trained to predict. The data pipeline makes the targets; models take them.
enum class Objective {
  next_token,    ///< targets are the inputs, shifted by one position
  masked_token,  ///< targets are the tokens that were masked or replaced; all others are ignored
  sequence,      ///< a target sequence from a source sequence; not for plain text
};

/// The value of a target that is ignored.
inline constexpr int32_t ignored_target = -100;

}  // namespace longspan
