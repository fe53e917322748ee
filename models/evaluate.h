#pragma once

#include <cstdint>

#include "core/tensor.h"
#include "models/model.h"

namespace longspan {

/// The negative log-likelihood of some tokens.
struct Score {
  double nats = 0;
  int64_t count = 0;

  double mean() const { return count > 0 ? nats / static_cast<double>(count) : 0; }
  /// Bits per token; of bytes: bits per byte.
  double bits() const { return mean() / 0.69314718055994530942; }
  Score& operator+=(const Score& other) {
    nats += other.nats;
    count += other.count;
    return *this;
  }
};

/// Targets that count; of an integer dtype.
int64_t count_targets(const Tensor& targets);

/// Of the counted targets of one batch, tokens and targets [B, L].
Score score(const LanguageModel& model, const Tensor& tokens, const Tensor& targets);

/// Of all batches of something with a size() and batches [i], e.g. EvaluationSegments.
template <class Batches>
Score score_all(const LanguageModel& model, const Batches& batches) {
  Score all;
  for (int64_t i = 0; i < batches.size(); ++i) {
    const auto batch = batches[i];
    all += score(model, batch.tokens, batch.targets);
  }
  return all;
}

/// Of what follows a source; LanguageModel::sequence_loss().
Score score(const LanguageModel& model, const SourceTokens& source, const Tensor& tokens,
            const Tensor& targets);

/// The two ways to evaluate a model of limited length over a long text, next token by next token.
/// Token i of `text`, i >= 1, is predicted exactly once from earlier ones; token 0 is context only.
/// Both run `batch` windows at a time; that changes no result beyond rounding.
///   text  [n + 1] integers, on the CPU
///
/// In segments of `length` predictions, each without knowledge of the one before: fast, fragmented.
Score score_segments(const LanguageModel& model, const Tensor& text, int64_t length,
                     int64_t batch = 16);
/// In windows of `length` that move by `stride`, of which only the last `stride` predictions count
/// (of the first window all).
Score score_sliding(const LanguageModel& model, const Tensor& text, int64_t length, int64_t stride,
                    int64_t batch = 16);

}  // namespace longspan
