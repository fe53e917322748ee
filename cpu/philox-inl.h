// Vectorised Philox. Included once per SIMD target.

#if defined(LONGSPAN_CPU_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_PHILOX_INL_H_
#undef LONGSPAN_CPU_PHILOX_INL_H_
#else
#define LONGSPAN_CPU_PHILOX_INL_H_
#endif

#include <hwy/highway.h>

#include "core/generator.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
/// Computes the four words of each counter from `first` on, for as many counters as a vector has
/// 64-bit lanes. Words are stored in the lower halves of the lanes; multiplication reads nothing
/// else.
HWY_INLINE void philox_block(uint64_t key, uint64_t first, uint32_t* words) {
  const hn::ScalableTag<uint64_t> d;
  const hn::Repartition<uint32_t, decltype(d)> d32;
  const auto m0 = hn::BitCast(d32, hn::Set(d, 0xD2511F53u));
  const auto m1 = hn::BitCast(d32, hn::Set(d, 0xCD9E8D57u));
  const auto counter = hn::Add(hn::Set(d, first), hn::Iota(d, 0));
  auto c0 = counter, c1 = hn::ShiftRight<32>(counter), c2 = hn::Zero(d), c3 = hn::Zero(d);
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const auto p0 = hn::MulEven(hn::BitCast(d32, c0), m0);
    const auto p1 = hn::MulEven(hn::BitCast(d32, c2), m1);
    c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1), hn::Set(d, k0));
    c1 = p1;
    c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3), hn::Set(d, k1));
    c3 = p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const auto pair = [&](auto even, auto odd) HWY_ATTR {
    return hn::BitCast(
        d, hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(odd)), hn::BitCast(d32, even)));
  };
  hn::StoreInterleaved2(pair(c0, c1), pair(c2, c3), d, reinterpret_cast<uint64_t*>(words));
}
#endif

#if HWY_TARGET != HWY_SCALAR
/// Computes both halves of a * m in each lane.
template <class V>
HWY_INLINE void multiply_words(V a, uint32_t m, V& high, V& low) {
  const hn::ScalableTag<uint32_t> d;
  const hn::ScalableTag<uint64_t> dd;
  const V b = hn::Set(d, m);
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(dd, a))), b);
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
}
/// Computes philox() of a counter in each lane; the words replace the counter.
template <class V>
HWY_INLINE void philox_lanes(uint64_t key, V& c0, V& c1, V& c2, V& c3) {
  const hn::ScalableTag<uint32_t> d;
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    V h0, l0, h1, l1;
    multiply_words(c0, 0xD2511F53u, h0, l0);
    multiply_words(c2, 0xCD9E8D57u, h1, l1);
    c0 = hn::Xor(hn::Xor(h1, c1), hn::Set(d, k0));
    c1 = l1;
    c2 = hn::Xor(hn::Xor(h0, c3), hn::Set(d, k1));
    c3 = l0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}
#endif

/// Writes the words of `counters` counters from `first` on, and up to one vector beyond them.
HWY_INLINE void philox_words(uint64_t key, uint64_t first, int64_t counters, uint32_t* words) {
#if HWY_TARGET != HWY_SCALAR
  const auto step = static_cast<int64_t>(hn::Lanes(hn::ScalableTag<uint64_t>()));
  for (int64_t i = 0; i < counters; i += step) {
    philox_block(key, first + static_cast<uint64_t>(i), words + 4 * i);
  }
#else
  for (int64_t i = 0; i < counters; ++i) {
    const uint64_t c = first + static_cast<uint64_t>(i);
    const Philox4 w = philox(key, static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), 0, 0);
    for (int j = 0; j < 4; ++j) words[4 * i + j] = w.word[j];
  }
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif
