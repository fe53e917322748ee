#pragma once

#include <array>
#include <cstdint>

#include "core/generator.h"

namespace longspan {

/// Random numbers drawn one after another from a generator, for samples that are built piece by
/// piece; the same bits on every machine.
class Draws {
 public:
  explicit Draws(Generator gen) : gen_(gen) {}

  /// Returns an integer in [0, range).
  int64_t below(int64_t range) {
    const uint64_t high = philox_word(gen_.key, next_), low = philox_word(gen_.key, next_ + 1);
    next_ += 2;
    return static_cast<int64_t>(to_range(high << 32 | low, static_cast<uint64_t>(range)));
  }
  /// Returns a multiple of 2^-32 in [0, 1).
  double uniform() { return static_cast<double>(philox_word(gen_.key, next_++)) * 0x1p-32; }
  /// Returns two independent standard normal values.
  std::array<float, 2> normals() {
    std::array<float, 2> both{};
    to_normal(philox_word(gen_.key, next_), philox_word(gen_.key, next_ + 1), both[0], both[1]);
    next_ += 2;
    return both;
  }
  const Generator& generator() const { return gen_; }

 private:
  Generator gen_;
  int64_t next_ = 0;
};

}  // namespace longspan
