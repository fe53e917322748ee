#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "core/generator.h"
#include "core/tensor.h"
#include "models/model.h"
#include "nn/fields.h"

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

/// What scores of beam_search divide a log-likelihood by: tokens^p, or ((5 + tokens) / 6)^p
/// \cite wu2016 .
enum class LengthDivisor : uint8_t { tokens, wu2016 };
template <>
inline constexpr std::array<std::string_view, 2> value_names<LengthDivisor>{"tokens", "wu2016"};

/// How beam_search looks for the likeliest continuation.
struct BeamSearch {
  int64_t beams = 4;            ///< continuations kept at every step; 1: greedy
  double length_penalty = 1;    ///< p of LengthDivisor: above 0 favours long ones
  int64_t no_repeat_ngram = 0;  ///< no n tokens in a row occur twice, prompt included; 0: free
  int64_t min_count = 0;        ///< the end token is no choice before so many others
  int64_t end = -1;             ///< the token that ends a continuation; -1: there is none
  bool stop_early = false;      ///< stop at `beams` ended ones, though others may yet score better
  LengthDivisor divisor = LengthDivisor::tokens;
};

/// Continuations of each prompt, the best first.
struct Beams {
  Tensor tokens;   ///< [B, beams, count] i64; `end` fills what follows the end token
  Tensor lengths;  ///< [B, beams] i64: tokens up to and with the end token; 0: there was no other
  Tensor scores;   ///< [B, beams] f64
};

/// Beam search: in every step the `beams` likeliest of all continuations by one token of the beams.
/// An ended one among the first `beams` candidates leaves with its score; its place goes to the
/// next one that goes on. A sample is done when `beams` have ended and the likeliest unended one,
/// at its length, scores below all of them (or at once with stop_early or one beam), or after
/// `count` tokens. Ties are broken by beam, then by token. A row does not depend on the rest of the
/// batch.
///   prompt   [B, n], n >= 1, integers; of an encoder-decoder what the decoder starts with
///   state    of model.start_decoding for B rows, with nothing decoded yet
///   throws   ValueError on beams, no_repeat_ngram, count, end or min_count out of range, on a
///            length_penalty that is not finite, and where n + count - 1 is beyond the longest
///            segment; ShapeError, DTypeError
Beams beam_search(const LanguageModel& model, const Tensor& prompt,
                  std::unique_ptr<DecodeState> state, int64_t count, const BeamSearch& search);

}  // namespace longspan
