#pragma once

#include <cstdint>

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

}  // namespace longspan
