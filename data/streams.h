#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "data/sample_task.h"

namespace longspan {

/// A segment of each of B streams.
struct StreamBatch : Batch {
  Tensor reset = {};  ///< u8 [B]: rows != 0 begin a new stream with it; undefined: none does
};

/// Returns StreamBatch::reset for `count` streams that all begin.
Tensor all_anew(int64_t count, Device device);

/// Training batches of a text for models with a memory: B contiguous streams, each read segment by
/// segment, L tokens at a time, in order. An epoch begins at an offset that is drawn from (seed,
/// epoch), so that boundaries differ between epochs; then all streams begin anew.
class TextStreams {
 public:
  /// Throws ValueError if the split has too few tokens for a segment of every stream, if its tokens
  /// are in records, or if streams or length is below 1.
  TextStreams(CorpusPart part, int64_t streams, int64_t length, uint64_t seed, Device device = {});

  /// Returns segment `segment` of streams first to first + count - 1, with next-token targets, in
  /// constant time. StreamBatch::reset is given where streams begin.
  StreamBatch at(int64_t segment, int64_t first, int64_t count) const;
  /// Returns StreamBatch::reset of at(segment, .., count).
  Tensor reset(int64_t segment, int64_t count) const;

  int64_t streams() const { return streams_; }
  /// Number of segments of a stream in an epoch.
  int64_t segments() const { return segments_; }

 private:
  CorpusPart part_;
  int64_t streams_, length_, segments_, slack_;
  uint64_t seed_;
  Device device_;
};

/// Batches of a generated task for models with a memory: B samples at a time, each a stream that is
/// read segment by segment, L tokens at a time, in order; then the next B samples begin.
class SampleStreams {
 public:
  /// `sample` returns sample i of a split; all have `tokens` tokens. Throws ValueError if streams,
  /// length or tokens is below 1.
  SampleStreams(std::function<Sample(int64_t)> sample, int64_t tokens, int64_t streams,
                int64_t length, Device device = {});
  /// Streams of a task's samples of this seed and split.
  template <class Task>
  requires requires(const Task& t) { t.shape(); }
  SampleStreams(const Task& task, const std::string& split, int64_t streams, int64_t length,
                Device device = {}, uint64_t seed = 1)
      : SampleStreams(
            [=](int64_t i) {
              return task.sample({.seed = seed, .split = split, .index = static_cast<uint64_t>(i)});
            },
            task.shape().length, streams, length, device) {}

  /// Returns segment `segment` of streams first to first + count - 1; the last one of a sample may
  /// be shorter. StreamBatch::reset is given where samples begin. Makes each sample once, if
  /// segments are read in their order.
  StreamBatch at(int64_t segment, int64_t first, int64_t count) const;
  /// Returns StreamBatch::reset of at(segment, .., count).
  Tensor reset(int64_t segment, int64_t count) const;

  int64_t streams() const { return streams_; }
  /// Number of segments of a sample.
  int64_t segments() const { return (tokens_ + length_ - 1) / length_; }

 private:
  std::function<Sample(int64_t)> sample_;
  int64_t tokens_, streams_, length_;
  Device device_;
  mutable int64_t turn_ =
      -1;  // the samples that the streams read at present, empty if not yet made
  mutable std::vector<Sample> samples_;
};

/// Evaluation of models with a memory: the split is divided into contiguous streams, as equal as
/// possible, and every token of it is a target exactly once. Each stream but the first also reads
/// the `warm_up` tokens before its own, or as many as exist; these are not scored.
class EvaluationStreams {
 public:
  /// Throws ValueError if streams or length is below 1 or warm_up below 0.
  EvaluationStreams(CorpusPart part, int64_t streams, int64_t length, int64_t warm_up,
                    Device device = {});

  /// Number of batches, one for each segment.
  int64_t size() const;
  /// Batch i, 0 <= i < size(): tokens and targets [streams, L]; the last one may be shorter.
  /// Streams that have ended read zeros.
  Batch operator[](int64_t i) const;
  /// Returns the batches of `count` of these streams, from stream `first` on, alone.
  EvaluationStreams some(int64_t first, int64_t count) const;
  /// Returns streams that end after `tokens` of their own, at most: a sample of the split.
  EvaluationStreams shortened(int64_t tokens) const;
  int64_t streams() const { return streams_; }
  int64_t warm_up() const { return warm_up_; }

 private:
  CorpusPart part_;
  int64_t all_, first_ = 0;  // number of all streams, and index of the first of this object
  int64_t streams_, length_, warm_up_;
  int64_t most_;  // tokens that a stream ends after; by default all of its own
  Device device_;
};

}  // namespace longspan
