#pragma once

#include <cstdint>

#include "core/ranks/sequence_split.h"

namespace longspan {

/// While one exists, means of the losses of tokens that models of this thread return outside
/// training are in f64: sums of the losses of single targets, so that a score does not depend on
/// how its targets are grouped. score() (models/evaluate.h) holds one.
class Scoring {
 public:
  Scoring() { ++count_; }
  ~Scoring() { --count_; }
  Scoring(const Scoring&) = delete;
  Scoring& operator=(const Scoring&) = delete;

  static bool on() { return count_ > 0; }

 private:
  static inline thread_local int64_t count_ = 0;
};

/// While one exists, all processes score the same data together: ScoreSum deals batches among
/// groups of processes, and the processes of a group split sequences.
class DividedScoring {
 public:
  /// Keeps references. Groups are made of ranks in order, as `sequence` divides them.
  DividedScoring(Communicator& ranks, const SequenceSplit& sequence)
      : ranks_(ranks), sequence_(sequence), outer_(current_) {
    current_ = this;
  }
  ~DividedScoring() { current_ = outer_; }
  DividedScoring(const DividedScoring&) = delete;
  DividedScoring& operator=(const DividedScoring&) = delete;

  /// Null if there is none.
  static const DividedScoring* current() { return current_; }
  /// What the passes of models get: null if each process scores batches by itself.
  static const SequenceSplit* split() {
    return current_ != nullptr && current_->sequence_.size() > 1 ? &current_->sequence_ : nullptr;
  }

  Communicator& ranks() const { return ranks_; }
  int together() const { return sequence_.size(); }
  int groups() const { return ranks_.size() / together(); }
  int group() const { return ranks_.rank() / together(); }

 private:
  Communicator& ranks_;
  const SequenceSplit& sequence_;
  DividedScoring* outer_;
  static inline thread_local DividedScoring* current_ = nullptr;
};

}  // namespace longspan
