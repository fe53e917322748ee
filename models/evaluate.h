#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "models/capabilities.h"
#include "models/model.h"

namespace longspan {

/// The negative log-likelihood of a number of tokens.
struct Score {
  double nats = 0;
  int64_t count = 0;

  double mean() const { return count > 0 ? nats / static_cast<double>(count) : 0; }
  /// Bits per token; bits per byte if tokens are bytes.
  double bits() const { return mean() / 0.69314718055994530942; }
  Score& operator+=(const Score& other) {
    nats += other.nats;
    count += other.count;
    return *this;
  }
};

/// Returns the number of targets that count; targets of an integer dtype.
int64_t count_targets(const Tensor& targets);

/// How many of the targets that count are right.
struct Answers {
  int64_t right = 0, counted = 0;

  /// NaN if no target counts.
  double percent() const { return 100 * static_cast<double>(right) / static_cast<double>(counted); }
  Answers& operator+=(const Answers& other) {
    right += other.right;
    counted += other.counted;
    return *this;
  }
};
/// Counts the targets [B, L] that have the largest of their logits [B, L, V].
Answers count_right(const Tensor& logits, const Tensor& targets);

/// Scores the targets that count in one batch, tokens and targets [B, L].
Score score(const LanguageModel& model, const Tensor& tokens, const Tensor& targets);

/// The same after the segments in `memory`, which becomes that for the next segment.
Score score(const LanguageModel& model, const Tensor& tokens, const Tensor& targets,
            SegmentMemory& memory);

/// Adds up scores of batches, in their order. With DividedScoring one process, or one group of
/// processes, computes each score; all processes make the same calls and get the same sum.
class ScoreSum {
 public:
  /// The next score; other processes' are not computed.
  void add(const std::function<Score()>& next);
  /// To be called once, after the last.
  Score total();

 private:
  std::vector<Score> own_;
  int64_t count_ = 0;
};

/// Returns the memory that segments are scored after: Streams::evaluation_memory(), or where
/// processes split sequences, which do not decode, empty_memory().
SegmentMemory scoring_memory(const LanguageModel& model, int64_t batch);

/// Scores all batches of a container with size() and batches[i], e.g. EvaluationSegments.
template <class Batches>
Score score_all(const LanguageModel& model, const Batches& batches) {
  ScoreSum all;
  for (int64_t i = 0; i < batches.size(); ++i) {
    all.add([&] {
      const auto batch = batches[i];
      return score(model, batch.tokens, batch.targets);
    });
  }
  return all.total();
}

/// Scores segments of `streams` streams in turn, e.g. EvaluationStreams, the memory passed on from
/// scoring_memory().
template <class Batches>
Score score_streams(const LanguageModel& model, const Batches& batches, int64_t streams) {
  SegmentMemory memory = scoring_memory(model, streams);
  Score all;
  for (int64_t i = 0; i < batches.size(); ++i) {
    const auto batch = batches[i];
    all += score(model, batch.tokens, batch.targets, memory);
  }
  return all;
}

/// Returns the losses of a training segment of streams, e.g. StreamBatch, after `memory`, which
/// becomes that for the next segment. Those of the streams that batch.reset names begin anew.
template <class Batch>
LanguageModel::Losses continue_streams(const LanguageModel& model, const Batch& batch,
                                       SegmentMemory& memory, Pass pass) {
  if (batch.reset) memory = forget(memory, batch.reset);
  LanguageModel::Losses result = model.loss(batch.tokens, batch.targets, memory, pass);
  memory = std::move(result.memory);
  return result;
}

/// Scores the targets of an encoder-decoder; see WritesSequences::sequence_loss().
Score score(const LanguageModel& model, const SourceTokens& source, const Tensor& tokens,
            const Tensor& targets);

/// Two ways to evaluate a model of limited length on a long text by predicting each next token.
/// Each predicts token i of `text`, i >= 1, exactly once from earlier ones; token 0 is only
/// context. Both run `batch` windows at a time, which changes the result only by rounding.
///   text  [n + 1] integers, on the CPU
///
/// score_segments() cuts the text into segments of `length` predictions, each without the context
/// of the segments before it: fast, but with fragmented context.
Score score_segments(const LanguageModel& model, const Tensor& text, int64_t length,
                     int64_t batch = 16);
/// Scores windows of `length` predictions that move by `stride`; only the last `stride` predictions
/// of a window count (all of the first window's).
Score score_sliding(const LanguageModel& model, const Tensor& text, int64_t length, int64_t stride,
                    int64_t batch = 16);

}  // namespace longspan
