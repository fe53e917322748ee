#pragma once

#include <cstdint>

namespace longspan {

/// What a model over tokens is trained to predict. Data makes the targets, models take them.
enum class Objective {
  next_token,    ///< targets are the inputs, one place on
  masked_token,  ///< targets are the tokens that were hidden or drawn, the others are ignored
  sequence,      ///< a target sequence from a source sequence; not for plain text
};

/// A target that does not count.
inline constexpr int32_t ignored_target = -100;

}  // namespace longspan
