#pragma once

#include <cstdint>
#include <functional>

#include "core/generator.h"
#include "core/tensor.h"
#include "models/model.h"

namespace longspan {

/// How the next token is drawn from logits.
struct Sampling {
  double temperature = 1;  ///< logits are divided by it; 0: the most likely token
  int64_t top_k = 0;       ///< only the k most likely tokens; 0: all
  double top_p = 1;  ///< only the fewest tokens whose probabilities reach p \cite holtzman2020
};

/// One token for each row of logits. Ties are broken by the lower id, and row b of the draw is word
/// b of the generator's sequence: the same on every device.
///   logits   [B, V]  floating
///   returns  [B]     i64, on the device of logits
///   throws   ShapeError, DTypeError; ValueError on temperature < 0, top_k < 0, top_p outside
///            (0, 1], and on a row whose largest logit is no finite number
Tensor sample(const Tensor& logits, const Sampling& sampling, const Generator& gen);

/// `count` tokens after a prompt, drawn one by one with draw t from gen.fork(t). Where the model
/// has a longest segment, decoding starts again from the newest half of it.
///   prompt   [B, n], n >= 1, integers
///   returns  [B, count]  i64
/// `each`, where given, sees the tokens [B] of every step as they come.
Tensor generate(const LanguageModel& model, const Tensor& prompt, int64_t count,
                const Sampling& sampling, const Generator& gen,
                const std::function<void(const Tensor&)>& each = {});

}  // namespace longspan
