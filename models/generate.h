#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/generator.h"
#include "core/tensor.h"
#include "models/capabilities.h"
#include "models/model.h"
#include "nn/fields.h"

namespace longspan {

/// How the next token is sampled from logits.
struct Sampling {
  double temperature = 1;  ///< divisor of the logits; 0: greedy, the most likely token
  int64_t top_k = 0;       ///< only the k most likely tokens; 0: all
  double top_p = 1;        ///< smallest set of tokens of total probability >= p \cite holtzman2020
  double repetition_penalty = 1;  ///< as BeamSearch's, of logits; sample() knows no text
};

/// Multiplies the negative scores of all tokens of a text by `penalty` and divides the others by it
/// \cite keskar2019 , once for each token; ids must be below the number of scores.
void penalise_repeats(std::span<const int64_t> text, double penalty, std::span<double> scores);

/// Samples one token for each row of logits. Ties are broken in favour of the lower id. Row b uses
/// word b of the generator's sequence, so results are the same on every device.
///   logits   [B, V]  floating
///   returns  [B]     i64, on the device of logits
///   throws   ShapeError, DTypeError; ValueError on temperature < 0, top_k < 0, top_p outside
///            (0, 1], and on a row whose largest logit is not finite
Tensor sample(const Tensor& logits, const Sampling& sampling, const Generator& gen);

/// Samples `count` tokens after a prompt one by one; step t draws from gen.fork(t). If the model
/// limits the length of a segment, decoding restarts from the newest half of a full one.
///   prompt   [B, n], n >= 1, integers
///   returns  [B, count]  i64
/// Calls `each`, if set, with the tokens [B] of every step.
Tensor generate(const LanguageModel& model, const Tensor& prompt, int64_t count,
                const Sampling& sampling, const Generator& gen,
                const std::function<void(const Tensor&)>& each = {});

/// Continues prompts of any lengths, at least one token each, in one batch. Each prompt is
/// continued as it would be alone: the tokens that it has more than others are read one by one, and
/// step t of every prompt draws from gen.fork(t).
///   returns  what follows each prompt: at most `count` tokens, the last of which is `end` if it
///            has ended before; end = -1: nothing ends it
/// Calls `each`, if set, with the index of a prompt and its next token. Throws as generate() does.
std::vector<std::vector<int64_t>> generate(
    const LanguageModel& model, std::span<const std::vector<int32_t>> prompts, int64_t count,
    const Sampling& sampling, const Generator& gen, int64_t end = -1,
    const std::function<void(size_t prompt, int64_t token)>& each = {});

/// What beam_search divides a log-likelihood by to get a score: tokens^p, or ((5 + tokens) / 6)^p
/// \cite wu2016 .
enum class LengthDivisor : uint8_t { tokens, wu2016 };
template <>
inline constexpr std::array<std::string_view, 2> value_names<LengthDivisor>{"tokens", "wu2016"};

/// When a beam search is done before `count` tokens: when `beams` have ended and the most likely
/// unended one, at its current length, scores no higher than the worst of them (false_); as soon as
/// `beams` have ended (true_); or when no unended one can come to score higher at any length
/// (never), which finds more. Named as in transformers.
enum class EarlyStopping : uint8_t { false_, true_, never };
template <>
inline constexpr std::array<std::string_view, 3> value_names<EarlyStopping>{"false", "true",
                                                                            "never"};

/// Options of beam_search.
struct BeamSearch {
  int64_t beams = 4;          ///< continuations kept at every step; 1: greedy
  double length_penalty = 1;  ///< p of LengthDivisor: > 0 favours long continuations
  /// Above 1, tokens that are in the text already become less likely \cite keskar2019 : their
  /// log-probability, of one beam their logit, is multiplied by it if negative, else divided.
  double repetition_penalty = 1;
  int64_t no_repeat_ngram = 0;  ///< n: no n-gram occurs twice, prompt included; 0: no limit
  int64_t min_count = 0;        ///< the end token is not allowed before this many other tokens
  int64_t end = -1;             ///< the token that ends a continuation; -1: there is none
  int64_t force_begin = -1;     ///< the first token, whatever its probability; -1: any
  bool force_end = false;       ///< the last of `count` tokens is `end`, whatever its probability
  EarlyStopping early_stopping = EarlyStopping::false_;
  LengthDivisor divisor = LengthDivisor::tokens;
};

/// Continuations of each prompt, best first.
struct Beams {
  Tensor tokens;   ///< [B, beams, count] i64; filled with `end` after the end token
  Tensor lengths;  ///< [B, beams] i64: tokens including the end token; 0: no such beam
  Tensor scores;   ///< [B, beams] f64
};

/// Beam search: each step keeps the `beams` most likely one-token continuations of all beams. An
/// ended one among the first `beams` candidates is removed and its score recorded; the next
/// candidate that has not ended takes its slot. A sample is done after
/// `count` tokens, or as early_stopping says; one beam is done as soon as it has ended. Ties are
/// broken by beam, then by token. A row does not depend on the rest of the batch.
///   prompt   [B, n], n >= 1, integers; for an encoder-decoder the decoder's first tokens
///   state    of model.start_decoding for B rows, with nothing decoded yet
///   throws   ValueError on beams, no_repeat_ngram, count, end or min_count out of range, on a
///            length_penalty that is not finite, and when n + count - 1 exceeds the longest
///            segment; ShapeError, DTypeError
Beams beam_search(const LanguageModel& model, const Tensor& prompt,
                  std::unique_ptr<DecodeState> state, int64_t count, const BeamSearch& search);

/// Searches after prompts of any lengths, at least one token each, in one batch, each as it would
/// be alone. Throws as beam_search() does.
Beams beam_search(const LanguageModel& model, std::span<const std::vector<int32_t>> prompts,
                  int64_t count, const BeamSearch& search);

}  // namespace longspan
