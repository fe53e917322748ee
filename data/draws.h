#pragma once

#include <cstdint>

#include "core/generator.h"

namespace longspan {

/// Random integers drawn one after another from a generator, for samples that are built piece by
/// piece.
class Draws {
 public:
  explicit Draws(Generator gen) : gen_(gen) {}

  /// Returns an integer in [0, range).
  int64_t below(int64_t range) {
    const uint64_t high = philox_word(gen_.key, next_), low = philox_word(gen_.key, next_ + 1);
    next_ += 2;
    return static_cast<int64_t>(to_range(high << 32 | low, static_cast<uint64_t>(range)));
  }
  const Generator& generator() const { return gen_; }

 private:
  Generator gen_;
  int64_t next_ = 0;
};

}  // namespace longspan
