#pragma once

#include <cstdint>

#include "core/generator.h"
#include "core/host_device.h"
#include "core/kernels/lsh.h"

/// Decides for one pair whether LSH attention sees it, on the host and on the device.
namespace longspan::kernels {

/// A chunk: its round and its index in the round; the round is -1 if there is no such chunk.
struct LshChunk {
  int64_t round, chunk;
  LONGSPAN_HD bool exists() const { return round >= 0; }
};

/// One head of one sample: its ids and orders [R, L], and the rule.
struct LshHead {
  const int32_t *ids, *order, *place;
  int64_t rounds, length;
  LshRule rule;

  LONGSPAN_HD int64_t chunks() const { return (length + rule.chunk - 1) / rule.chunk; }
  /// Maximum number of keys of a window; chunks that are not full count as full.
  LONGSPAN_HD int64_t window() const { return slots() * rule.chunk; }
  LONGSPAN_HD int32_t id(int64_t round, int64_t i) const { return ids[round * length + i]; }
  LONGSPAN_HD int64_t at(int64_t round, int64_t p) const { return order[round * length + p]; }
  LONGSPAN_HD int64_t place_of(int64_t round, int64_t i) const { return place[round * length + i]; }
  LONGSPAN_HD int64_t chunk_of(int64_t round, int64_t i) const {
    return place_of(round, i) / rule.chunk;
  }
  /// End of a chunk, as a position in its round.
  LONGSPAN_HD int64_t chunk_end(int64_t chunk) const {
    const int64_t end = (chunk + 1) * rule.chunk;
    return end < length ? end : length;
  }
  LONGSPAN_HD bool valid(int64_t i) const { return ids[i] != rule.buckets; }

  /// Number of chunks in the circle; 0 if there is no circle.
  LONGSPAN_HD int64_t circle() const {
    if (rule.wrap == LshWrap::none) return 0;
    return rule.wrap == LshWrap::round ? chunks() : rounds * chunks();
  }
  /// Number of chunks of a window: slot n is `before` - n chunks before the query's own.
  LONGSPAN_HD int64_t slots() const {
    const int64_t all = rule.before + 1 + rule.after, around = circle();
    return around == 0 || rule.repeat_chunks || all < around ? all : around;
  }
  /// The chunk at `offset` from another one, if it exists.
  LONGSPAN_HD LshChunk neighbour(LshChunk from, int64_t offset) const {
    const int64_t n = chunks(), chunk = from.chunk + offset;
    if (rule.wrap == LshWrap::none) {
      return {chunk >= 0 && chunk < n ? from.round : -1, chunk};
    }
    if (rule.wrap == LshWrap::round) return {from.round, ((chunk % n) + n) % n};
    const int64_t all = rounds * n, flat = (((from.round * n + chunk) % all) + all) % all;
    return {flat / n, flat % n};
  }
  /// keys_of: the chunk in a slot of a query chunk's window. queries_of: the query chunk whose slot
  /// contains a chunk.
  LONGSPAN_HD LshChunk keys_of(LshChunk queries, int64_t slot) const {
    return neighbour(queries, slot - rule.before);
  }
  LONGSPAN_HD LshChunk queries_of(LshChunk keys, int64_t slot) const {
    return neighbour(keys, rule.before - slot);
  }

  /// Number of slots of query i's window in `round` that contain key j's position in key_round.
  LONGSPAN_HD int64_t meetings(int64_t round, int64_t i, int64_t key_round, int64_t j) const {
    if (rule.wrap != LshWrap::global && round != key_round) return 0;
    int64_t apart = chunk_of(key_round, j) - chunk_of(round, i) + rule.before;  // slot
    const int64_t all = slots(), around = circle();
    if (around == 0) return apart >= 0 && apart < all ? 1 : 0;
    if (rule.wrap == LshWrap::global) apart += (key_round - round) * chunks();
    apart = ((apart % around) + around) % around;
    return apart < all ? (all - 1 - apart) / around + 1 : 0;
  }
  /// Whether the rule lets query i see key j if j is in i's window.
  LONGSPAN_HD bool allows(int64_t round, int64_t i, int64_t key_round, int64_t j) const {
    if (i == j) return true;
    if (!valid(i) || !valid(j) || (rule.causal && j > i)) return false;
    if (!rule.same_bucket) return true;
    return round == key_round && id(round, i) == id(round, j);
  }
  /// Weight of one occurrence of a pair: 0 if it is not visible.
  LONGSPAN_HD double weight(int64_t round, int64_t i, int64_t key_round, int64_t j) const {
    if (!allows(round, i, key_round, j)) return 0;
    if (rule.duplicates == LshDuplicates::off) return 1;
    const bool first = rule.duplicates == LshDuplicates::first;
    const bool mixed = rule.wrap == LshWrap::global;
    int64_t times = 0;
    for (int64_t r = 0; r < (first ? round + 1 : rounds); ++r) {
      const int64_t from = mixed ? 0 : r;
      const int64_t last = first && r == round ? key_round : (mixed ? rounds : r + 1);
      for (int64_t s = from; s < last; ++s) {
        if (allows(r, i, s, j)) times += meetings(r, i, s, j);
      }
    }
    if (first) return times == 0 ? 1 : 0;
    return 1.0 / static_cast<double>(times);
  }

  /// Total weight of the occurrences of query i with itself.
  LONGSPAN_HD double self_weight(int64_t i) const {
    if (rule.duplicates != LshDuplicates::off) return 1;
    int64_t times = 0;
    for (int64_t r = 0; r < rounds; ++r) {
      const bool mixed = rule.wrap == LshWrap::global;
      for (int64_t s = mixed ? 0 : r; s < (mixed ? rounds : r + 1); ++s) {
        times += meetings(r, i, s, i);
      }
    }
    return static_cast<double>(times);
  }
  /// Whether a token sees nothing besides itself, tested only if self <= -1e3: next to any other
  /// logit, a self logit such as the usual -1e5 vanishes, and lse then has too few digits to
  /// recover the probability.
  LONGSPAN_HD bool alone(double lse) const { return rule.self <= -1e3 && lse < rule.self + 30; }
};

/// The dropout factor of a probability: 0, or 1 / (1 - p).
struct LshKeep {
  DeviceScalar<uint64_t> key;
  uint64_t threshold = 0;  // 0: nothing is dropped
  double kept = 1;
  bool broadcast = false;
  uint32_t head = 0;

  LONGSPAN_HD bool active() const { return threshold != 0; }
  /// Numbers the occurrences of a pair, if it can have several.
  LONGSPAN_HD static uint32_t number(const LshHead& x, int64_t round, int64_t slot) {
    if (x.rule.duplicates == LshDuplicates::first) return 0;
    return static_cast<uint32_t>(round * x.slots() + slot);
  }
  /// `slot` is the slot of the key's chunk in the window of query i in `round`.
  LONGSPAN_HD double factor(const LshHead& x, int64_t round, int64_t i, int64_t key_round,
                            int64_t j, int64_t slot) const {
    if (!active()) return 1;
    uint32_t column = static_cast<uint32_t>(j), row = static_cast<uint32_t>(i), visit = 0;
    if (broadcast) {
      row = static_cast<uint32_t>(x.place_of(round, i) % x.rule.chunk);
      column = static_cast<uint32_t>(slot * x.rule.chunk + x.place_of(key_round, j) % x.rule.chunk);
    } else {
      visit = number(x, round, slot);
    }
    return keeps(key, row, column, visit) ? kept : 0;
  }
  /// Whether an element of the head is kept; `from` is the Philox key.
  LONGSPAN_HD bool keeps(uint64_t from, uint32_t row, uint32_t column, uint32_t visit) const {
    const Philox4 words = philox(from, column / 4, row, head, visit);
    // Selects without an index, which would put the words into a device's local memory.
    const uint32_t low = column % 2 == 0 ? words.word[0] : words.word[1];
    const uint32_t high = column % 2 == 0 ? words.word[2] : words.word[3];
    return (column % 4 < 2 ? low : high) >= threshold;
  }
};

/// Returns the dropout of one head of a call.
inline LshKeep lsh_keep(const LshInputs& in, int64_t head) {
  if (in.dropout.p <= 0) return {};
  return {in.dropout.key, drop_threshold(in.dropout.p), 1 / (1 - in.dropout.p),
          in.dropout_broadcast, static_cast<uint32_t>(in.dropout.first_head + head)};
}

/// Returns head h of sample b.
inline LshHead lsh_head(const LshInputs& in, int64_t b, int64_t h) {
  const int64_t rounds = in.ids.shape[2], length = in.ids.shape[3];
  const int64_t at = (b * in.ids.shape[1] + h) * rounds * length;
  return {in.ids.as<int32_t>() + at,
          in.order.as<int32_t>() + at,
          in.place.as<int32_t>() + at,
          rounds,
          length,
          in.rule};
}

/// Returns the index of the largest of (p, -p) [2 n] with p_k = p(from + k); the first of equal
/// ones; 0 if p_0 is NaN.
template <class P>
LONGSPAN_HD int32_t lsh_argmax(const P& p, int64_t from, int64_t n) {
  auto high = p(from), low = high;
  int64_t at_high = 0, at_low = 0;
  for (int64_t k = 1; k < n; ++k) {
    const auto x = p(from + k);
    if (x > high) {
      high = x;
      at_high = k;
    }
    if (x < low) {
      low = x;
      at_low = k;
    }
  }
  return static_cast<int32_t>(-low > high ? n + at_low : at_high);
}

/// Returns the bucket of the projections p(0), p(1), ..: first / 2 of them, and second / 2 more if
/// second > 1.
template <class P>
LONGSPAN_HD int32_t lsh_bucket(const P& p, int64_t first, int64_t second) {
  int32_t id = lsh_argmax(p, 0, first / 2);
  if (second > 1) id += static_cast<int32_t>(first) * lsh_argmax(p, first / 2, second / 2);
  return id;
}

}  // namespace longspan::kernels
