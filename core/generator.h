#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "core/device_scalar.h"
#include "core/host_device.h"

namespace longspan {

/// The four words of one evaluation of philox().
struct Philox4 {
  uint32_t word[4];
};

/// Philox 4x32 with 10 rounds (Salmon et al. 2011): computes four random words from a 64-bit key
/// and a 128-bit counter.
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

/// Returns word i of a key's sequence: word i mod 4 at counter i div 4.
LONGSPAN_HD inline uint32_t philox_word(uint64_t key, int64_t i) {
  const auto c = static_cast<uint64_t>(i) / 4;
  return philox(key, static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), 0, 0)
      .word[static_cast<uint64_t>(i) % 4];
}

/// Maps a word to [0, 1) with 24 bits, exactly representable in f32.
LONGSPAN_HD inline float to_uniform(uint32_t word) {
  return static_cast<float>(word >> 8) * (1.0f / 16777216.0f);
}

/// Multiply and add with one rounding each, never contracted to a fused multiply-add, so draws have
/// the same bits on every device.
LONGSPAN_HD inline float rounded_multiply(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
LONGSPAN_HD inline float rounded_add(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

namespace detail {

/// Computes c0 + x (c1 + x (...)); each step rounds twice.
template <int n>
LONGSPAN_HD inline float horner(float x, const float (&c)[n]) {
  float y = c[n - 1];
  for (int i = n - 2; i >= 0; --i) y = rounded_add(rounded_multiply(y, x), c[i]);
  return y;
}

/// Computes ln u for normal u in (0, 1], to about one unit in the last place.
LONGSPAN_HD inline float log_of_uniform(float u) {
  uint32_t bits;
  memcpy(&bits, &u, 4);
  // u = m 2^e with m in [sqrt(1/2), sqrt(2)); the polynomial is (ln(1+f) - f + f^2/2) / f^3.
  const uint32_t shifted = bits - 0x3f3504f3u;
  const int32_t e = static_cast<int32_t>(shifted) >> 23;
  bits -= static_cast<uint32_t>(e) << 23;
  float m;
  memcpy(&m, &bits, 4);
  const float f = rounded_add(m, -1.0f), square = rounded_multiply(f, f);
  const float p = horner(f, {0.333333312f, -0.24999997f, 0.200007157f, -0.166678023f, 0.142490576f,
                             -0.124256873f, 0.116854199f, -0.114797338f, 0.0697161144f});
  const auto n = static_cast<float>(e);
  float y = rounded_multiply(rounded_multiply(p, f), square);
  y = rounded_add(y, rounded_multiply(n, -2.12194440e-4f));
  y = rounded_add(y, rounded_multiply(square, -0.5f));
  return rounded_add(rounded_add(y, f), rounded_multiply(n, 0.693359375f));
}

/// Computes cos and sin of 2 pi t for t in [0, 1).
LONGSPAN_HD inline void circle(float t, float& cosine, float& sine) {
  const float quarters = rounded_multiply(t, 4.0f);
  const auto q = static_cast<int32_t>(rounded_add(quarters, 0.5f));
  const float f = rounded_add(quarters, -static_cast<float>(q));  // in [-1/2, 1/2]
  const float x = rounded_multiply(f, f);
  const float s = rounded_multiply(
      f, horner(x, {1.57079633f, -0.645964096f, 0.0796925827f, -0.00468126625f, 0.000158206299f}));
  const float c = horner(x, {1.0f, -1.23370054f, 0.253669204f, -0.0208600695f, 0.000903628067f});
  const bool swap = (q & 1) != 0;
  const float a = swap ? s : c, b = swap ? c : s;
  cosine = ((q + 1) & 2) != 0 ? -a : a;
  sine = (q & 2) != 0 ? -b : b;
}

}  // namespace detail

/// Computes -2 ln u of a uniform u in (0, 1]: the squared radius of a pair of normal values.
LONGSPAN_HD inline float to_squared_radius(uint32_t word) {
  // The half keeps the logarithm finite.
  const float u = rounded_multiply(rounded_add(static_cast<float>(word), 0.5f), 0x1p-32f);
  return rounded_multiply(-2.0f, detail::log_of_uniform(u));
}

/// Computes two independent standard normal values from two words (Box and Muller 1958), |n| < 6.8.
LONGSPAN_HD inline void to_normal(uint32_t w0, uint32_t w1, float& n0, float& n1) {
  float cosine, sine;
  detail::circle(to_uniform(w1), cosine, sine);
#if defined(__CUDA_ARCH__)
  const float r = __fsqrt_rn(to_squared_radius(w0));
#else
  const float r = std::sqrt(to_squared_radius(w0));
#endif
  n0 = rounded_multiply(r, cosine);
  n1 = rounded_multiply(r, sine);
}

/// Returns element i of a key's standard normal sequence; each `attempt` selects another,
/// independent sequence. Elements 2k and 2k + 1 come from words 2k and 2k + 1.
LONGSPAN_HD inline float philox_normal(uint64_t key, int64_t i, uint32_t attempt = 0) {
  const auto c = static_cast<uint64_t>(i) / 4;
  const Philox4 w =
      philox(key, static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), attempt, 0);
  const bool second = (i & 2) != 0;
  float n0, n1;
  to_normal(w.word[second ? 2 : 0], w.word[second ? 3 : 1], n0, n1);
  return (i & 1) != 0 ? n1 : n0;
}

/// Maps 64 random bits to [0, range): the upper half of their product. The bias is below range /
/// 2^64.
LONGSPAN_HD inline uint64_t to_range(uint64_t bits, uint64_t range) {
  const uint64_t a = bits >> 32, b = bits & 0xffffffffu, c = range >> 32, d = range & 0xffffffffu;
  const uint64_t middle = (b * d >> 32) + (a * d & 0xffffffffu) + (b * c & 0xffffffffu);
  return a * c + (a * d >> 32) + (b * c >> 32) + (middle >> 32);
}

/// Returns the threshold of a dropout draw: an element is kept if its word is at least this. p in
/// [0, 1].
LONGSPAN_HD inline uint64_t drop_threshold(double p) {
  return static_cast<uint64_t>(p * 4294967296.0);
}

/// Names a stream of random values. A generator is a value and never advances. Element i of a draw
/// is philox_word(key, i) on every device; several draws from one key give the same values, so
/// fork.
struct Generator {
  uint64_t key = 0;
  /// Index of this generator in the recording that uses it; 0 if none does (core/graph.h).
  uint32_t recorded = 0;

  /// Returns an independent generator for an integer or a name.
  constexpr Generator fork(uint64_t n) const { return forked(mix(n + 0x9E3779B97F4A7C15u)); }
  constexpr Generator fork(std::string_view name) const {
    uint64_t h = 0xCBF29CE484222325u;  // FNV-1a
    for (const char c : name) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
    return forked(mix(h ^ 0x5851F42D4C957F2Du));
  }
  /// Returns the key of the fork that `tag` identifies.
  static constexpr uint64_t forked_key(uint64_t key, uint64_t tag) { return mix(key ^ tag); }

  /// Returns the key for kernels: in a recorded step, the key of the step that is being replayed.
  DeviceScalar<uint64_t> device_key() const {
    return recorded == 0 ? DeviceScalar<uint64_t>(key) : recorded_key();
  }

  friend bool operator==(const Generator&, const Generator&) = default;

 private:
  constexpr Generator forked(uint64_t tag) const {
    const uint64_t next = forked_key(key, tag);
    return {next, recorded == 0 ? 0 : recorded_fork(tag)};
  }
  uint32_t recorded_fork(uint64_t tag) const;  // both defined in core/graph.cc
  DeviceScalar<uint64_t> recorded_key() const;

  static constexpr uint64_t mix(uint64_t x) {  // the finaliser of SplitMix64, a bijection
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
};

class SequenceSplit;

/// What a forward pass receives besides its inputs. Seed, step, layer and site are forked into
/// `gen`.
struct Pass {
  bool training = false;
  Generator gen = {};
  /// Index of the first row here in the whole batch: a chunk draws what the whole would.
  int64_t row = 0;
  float progress = 0;  ///< fraction of the training done, for losses that change over it
  /// The processes that compute this pass together, if there are several: each has some rows, and
  /// inside attention some heads. Models get all tokens, and tell their layers how many rows there
  /// are in all.
  const SequenceSplit* split = nullptr;
  int64_t rows = 0;
  /// Index of the first head here: attention draws what all heads would.
  int64_t head = 0;

  Pass at(std::string_view label) const { return with(gen.fork(label)); }
  Pass at(uint64_t label) const { return with(gen.fork(label)); }
  Pass at(const char* label) const { return at(std::string_view(label)); }
  Pass at(int label) const { return at(static_cast<uint64_t>(label)); }
  Pass at(int64_t label) const { return at(static_cast<uint64_t>(label)); }

 private:
  Pass with(Generator forked) const {
    Pass pass = *this;
    pass.gen = forked;
    return pass;
  }
};

}  // namespace longspan
