#pragma once

#include <cstdint>
#include <string_view>

#include "core/host_device.h"

namespace longspan {

/// What one evaluation of philox() gives.
struct Philox4 {
  uint32_t word[4];
};

/// Philox 4x32 with 10 rounds (Salmon et al. 2011): four random words from a 64-bit key and a
/// 128-bit counter.
LONGSPAN_HD inline Philox4 philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2,
                                  uint32_t c3) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    const auto h0 = static_cast<uint32_t>(p0 >> 32), h1 = static_cast<uint32_t>(p1 >> 32);
    c0 = h1 ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = h0 ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Word i of the sequence that belongs to a key: word i mod 4 at counter i div 4.
LONGSPAN_HD inline uint32_t philox_word(uint64_t key, int64_t i) {
  const auto c = static_cast<uint64_t>(i) / 4;
  return philox(key, static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), 0, 0)
      .word[static_cast<uint64_t>(i) % 4];
}

/// [0, 1) with 24 bits, exactly representable in f32.
LONGSPAN_HD inline float to_uniform(uint32_t word) {
  return static_cast<float>(word >> 8) * (1.0f / 16777216.0f);
}

/// A dropout draw: keep where the word is at least this threshold. p in [0, 1].
LONGSPAN_HD inline uint64_t drop_threshold(double p) {
  return static_cast<uint64_t>(p * 4294967296.0);
}

/// Names a stream of random numbers. A value: it never advances. Element i of a draw is
/// philox_word(key, i) on every device; several draws from one key are the same numbers, so fork.
struct Generator {
  uint64_t key = 0;

  /// An independent generator for a number or a name.
  constexpr Generator fork(uint64_t n) const { return {mix(key ^ mix(n + 0x9E3779B97F4A7C15u))}; }
  constexpr Generator fork(std::string_view name) const {
    uint64_t h = 0xCBF29CE484222325u;  // FNV-1a
    for (const char c : name) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
    return {mix(key ^ mix(h ^ 0x5851F42D4C957F2Du))};
  }

 private:
  static constexpr uint64_t mix(uint64_t x) {  // the finaliser of SplitMix64, a bijection
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }

 public:
  friend bool operator==(const Generator&, const Generator&) = default;
};

/// What a forward pass is told besides its inputs. Seed, step, layer and site are forked into
/// `gen`.
struct Pass {
  bool training = false;
  Generator gen;
  int64_t row =
      0;  ///< index of the first row here in the whole: a chunk draws what the whole would

  Pass at(std::string_view label) const { return {training, gen.fork(label), row}; }
  Pass at(uint64_t label) const { return {training, gen.fork(label), row}; }
  Pass at(const char* label) const { return at(std::string_view(label)); }
  Pass at(int label) const { return at(static_cast<uint64_t>(label)); }
  Pass at(int64_t label) const { return at(static_cast<uint64_t>(label)); }
};

}  // namespace longspan
