// Code shared by LSH attention forward and backward: the packed keys of a window, and which of them
// the rows of a chunk see. Included once per SIMD target.

#if defined(LONGSPAN_CPU_LSH_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_LSH_TILE_INL_H_
#undef LONGSPAN_CPU_LSH_TILE_INL_H_
#else
#define LONGSPAN_CPU_LSH_TILE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/kernels/lsh_maths.h"
#include "core/parallel.h"
#include "cpu/attention/plan.h"
#include "cpu/attention/prefetch.h"
#include "cpu/attention/tile-inl.h"
#include "cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

using kernels::LshChunk;
using kernels::LshDuplicates;
using kernels::LshHead;
using kernels::LshInputs;
using kernels::LshKeep;
using kernels::LshWrap;

// Integers as wide as the floating type T.
template <class T>
using Int = hwy::MakeSigned<T>;
template <class T>
using IntTag = hn::RebindToSigned<Tag<T>>;

// Added to the index of a token that does not exist, so that it is above all others.
inline constexpr int32_t kAbsent = 1 << 30;

/// One head of one sample, shared by all its tasks.
template <class T>
class LshData {
 public:
  LshData(const LshInputs& inputs, int64_t b, int64_t h, Slab<T>& slab)
      : in(inputs),
        head(kernels::lsh_head(in, b, h)),
        keep(kernels::lsh_keep(in, b * in.q.dim(1) + h)),
        batch(b),
        number(h),
        width(in.q.dim(3)),
        value_width(in.v.dim(3)),
        records_(
            reinterpret_cast<int32_t*>(slab.take(earlier() ? 2 * head.rounds * head.length : 0))),
        orders_(reinterpret_cast<int32_t*>(slab.take(ascends() ? head.rounds * head.length : 0))),
        ends_(reinterpret_cast<int32_t*>(slab.take(ascends() ? head.rounds * head.chunks() : 0))) {}

  /// Whether a visible pair may have been visible in an earlier round, if windows stay within one
  /// round.
  bool earlier() const {
    return in.rule.duplicates == LshDuplicates::first && head.rounds > 1 && !mixed();
  }
  /// Whether pairs must be checked one by one: pairs with fractional weights, or seen across
  /// rounds.
  bool by_pair() const {
    return in.rule.duplicates == LshDuplicates::log_count ||
           (in.rule.duplicates == LshDuplicates::first && mixed());
  }

  /// Whether the tokens of a chunk are processed in index order, not by bucket: a rule without
  /// same_bucket does not depend on their order, and in index order a causal query sees the first
  /// keys of a chunk.
  bool ascends() const { return in.rule.causal && !in.rule.same_bucket; }

  /// Records the positions and ids of tokens [from, to) in every round.
  void prepare(int64_t from, int64_t to) {
    if (!earlier()) return;
    for (int64_t r = 0; r < head.rounds; ++r) {
      for (int64_t i = from; i < to; ++i) {
        int32_t* const record = records_ + 2 * (i * head.rounds + r);
        record[0] = head.place[r * head.length + i];
        record[1] = head.ids[r * head.length + i];
      }
    }
  }

  /// Returns position and id of a token in a round.
  const int32_t* record(int64_t i, int64_t round) const {
    return records_ + 2 * (i * head.rounds + round);
  }
  int32_t token(int64_t i) const { return static_cast<int32_t>(i) + (head.valid(i) ? 0 : kAbsent); }
  /// Returns the tokens of all chunks of a round.
  const int32_t* order(int64_t round) const {
    return (ascends() ? orders_ : head.order) + round * head.length;
  }
  /// Builds that order, by token(), if it differs from the order by bucket.
  void sort_chunks(int64_t round) {
    if (!ascends()) return;
    const auto chunk = static_cast<int32_t>(in.rule.chunk);
    const int32_t* const place = head.place + round * head.length;
    int32_t* const order = orders_ + round * head.length;
    int32_t* const end = ends_ + round * head.chunks();
    for (int64_t c = 0; c < head.chunks(); ++c) end[c] = static_cast<int32_t>(c) * chunk;
    bool all = true;
    for (int64_t i = 0; i < head.length; ++i) {
      if (head.valid(i)) {
        order[end[place[i] / chunk]++] = static_cast<int32_t>(i);
      } else {
        all = false;
      }
    }
    for (int64_t i = 0; !all && i < head.length; ++i) {
      if (!head.valid(i)) order[end[place[i] / chunk]++] = static_cast<int32_t>(i);
    }
  }

  const LshInputs& in;
  const LshHead head;
  const LshKeep keep;
  const int64_t batch, number, width, value_width;

 private:
  bool mixed() const { return in.rule.wrap == LshWrap::global; }

  int32_t* const records_;  // [L, R, 2]
  int32_t* const orders_;   // [R, L]
  int32_t* const ends_;     // [R, chunks], used while the orders are built
};

/// Keys of a window that are stored side by side in one score tile.
struct LshPiece {
  int64_t entry;  // of the packed chunk
  int64_t key_round;
  int64_t slot;
  int64_t first, count;  // keys, relative to the chunk's first
  int64_t column;        // of the score tile
  int64_t from, to;      // keys that the current rows may see, relative to `first`

  bool empty() const { return from >= to; }
  // Return the first vector of these keys, and the end.
  template <class T>
  int64_t vector() const {
    return from / kLanes<T>;
  }
  template <class T>
  int64_t vector_end() const {
    return ceil_div(to, kLanes<T>);
  }
};

/// The packed keys of the chunks of a window; each keeps its entry until no window needs it.
template <class T>
class LshKeys {
 public:
  LshKeys(const LshData<T>& data, bool gradients, int64_t most_columns, Slab<T>& slab)
      : data_(data),
        gradients_(gradients),
        most_columns_(most_columns),
        rounds_(data.earlier() ? data.head.rounds : 0),
        entries(data.head.slots()),
        padded(round_up(std::min(data.in.rule.chunk, data.head.length), N)),
        width_panels(ceil_div(data.width, N)),
        value_panels(ceil_div(data.value_width, N)),
        key_columns(slab.take(entries * padded * data.width)),
        value_rows(slab.take(gradients ? 0 : entries * padded * value_panels * N)),
        key_rows(slab.take(gradients ? entries * padded * width_panels * N : 0)),
        value_columns(slab.take(gradients ? entries * padded * data.value_width : 0)),
        inverse(slab.take(entries * padded)),
        rows_(slab.take(N * std::max(data.width, data.value_width))),
        facts_(reinterpret_cast<Int<T>*>(slab.take(entries * facts() * padded))),
        tags_(static_cast<size_t>(entries), -1),
        finite_(static_cast<size_t>(entries), 1) {}

  /// Packs the chunks that the window of a chunk of queries needs. Calls leave(entry) for each
  /// chunk that it replaces.
  template <class Leave>
  void enter(LshChunk queries, Leave leave) {
    const LshHead& x = data_.head;
    needed_.clear();
    for (int64_t slot = 0; slot < x.slots(); ++slot) {
      const LshChunk keys = x.keys_of(queries, slot);
      if (keys.exists()) needed_.push_back({slot, keys, tag(keys)});
    }
    pieces.clear();
    blocks.clear();
    int64_t column = 0;
    for (const Needed& need : needed_) {
      const int64_t entry = place(need, leave);
      const int64_t keys = x.chunk_end(need.keys.chunk) - need.keys.chunk * x.rule.chunk;
      for (int64_t first = 0; first < keys;) {
        const int64_t workspace = most_columns_ - column;
        const int64_t count = std::min(keys - first, most_columns_);
        if (blocks.empty() || round_up(count, V) > workspace) {
          blocks.push_back(pieces.size());
          column = 0;
        }
        pieces.push_back({entry, need.keys.round, need.slot, first, count, column, 0, count});
        column += round_up(count, V);
        first += count;
      }
    }
    blocks.push_back(pieces.size());
  }
  template <class Leave>
  void leave_all(Leave leave) {
    for (int64_t e = 0; e < entries; ++e) {
      if (tags_[static_cast<size_t>(e)] >= 0) leave(e);
      tags_[static_cast<size_t>(e)] = -1;
    }
  }

  int64_t blocks_count() const { return static_cast<int64_t>(blocks.size()) - 1; }
  std::span<LshPiece> block(int64_t n) {
    const auto i = static_cast<size_t>(n);
    return {pieces.data() + blocks[i], blocks[i + 1] - blocks[i]};
  }
  LshChunk chunk(int64_t entry) const {
    const int64_t tag = tags_[static_cast<size_t>(entry)], n = data_.head.chunks();
    return {tag / n, tag % n};
  }
  bool finite(int64_t entry) const { return finite_[static_cast<size_t>(entry)] != 0; }
  bool holds(const LshPiece& piece, LshChunk chunk) const {
    return tags_[static_cast<size_t>(piece.entry)] == tag(chunk);
  }
  /// Return, for the keys of a piece: tokens, ids, and positions and ids in earlier rounds.
  const Int<T>* tokens(const LshPiece& p) const { return fact(p.entry, 0) + p.first; }
  const Int<T>* ids(const LshPiece& p) const { return fact(p.entry, 1) + p.first; }
  const Int<T>* places_before(const LshPiece& p, int64_t round) const {
    return fact(p.entry, 2 + 2 * round) + p.first;
  }
  const Int<T>* ids_before(const LshPiece& p, int64_t round) const {
    return fact(p.entry, 3 + 2 * round) + p.first;
  }

  /// Narrows a piece to the keys that rows [t0, t1) of a chunk of queries may see, by bucket and
  /// order.
  void narrow(LshPiece& p, LshChunk queries, int64_t t0, int64_t t1) const {
    p.from = 0;
    p.to = p.count;
    const kernels::LshRule& rule = data_.in.rule;
    if (data_.ascends()) {
      const Int<T>* const key = tokens(p);
      const Int<T> last =
          data_.token(data_.order(queries.round)[queries.chunk * rule.chunk + t1 - 1]);
      p.to = std::upper_bound(key, key + p.count, last) - key;
    }
    if (!rule.same_bucket) return;
    const int32_t* const order = data_.order(queries.round) + queries.chunk * rule.chunk;
    const Int<T> low = data_.head.id(queries.round, order[t0]);
    const Int<T> high = data_.head.id(queries.round, order[t1 - 1]);
    const Int<T>* const id = ids(p);
    p.from = std::lower_bound(id, id + p.count, low) - id;
    p.to = std::upper_bound(id + p.from, id + p.count, high) - id;
    // Tokens of a bucket ascend.
    if (rule.causal && holds(p, queries)) p.to = std::min(p.to, t1 - p.first);
    p.to = std::max(p.from, p.to);
  }

 private:
  static constexpr int64_t N = kPanel<T>;
  static constexpr int64_t V = kLanes<T>;
  struct Needed {
    int64_t slot;
    LshChunk keys;
    int64_t tag;
  };

  int64_t facts() const { return 2 + 2 * std::max<int64_t>(rounds_ - 1, 0); }
  int64_t tag(LshChunk c) const { return c.round * data_.head.chunks() + c.chunk; }
  Int<T>* fact(int64_t entry, int64_t n) const { return facts_ + (entry * facts() + n) * padded; }

  template <class Leave>
  int64_t place(const Needed& need, Leave leave) {
    int64_t entry = -1;
    for (int64_t e = 0; e < entries; ++e) {
      const int64_t tag = tags_[static_cast<size_t>(e)];
      if (tag == need.tag) return e;
      const bool idle = std::none_of(needed_.begin(), needed_.end(),
                                     [tag](const Needed& n) { return n.tag == tag; });
      if (idle && entry < 0) entry = e;
    }
    if (tags_[static_cast<size_t>(entry)] >= 0) leave(entry);
    tags_[static_cast<size_t>(entry)] = need.tag;
    pack(entry, need.keys);
    return entry;
  }

  void pack(int64_t entry, LshChunk c) {
    const LshHead& x = data_.head;
    const int32_t* const order = data_.order(c.round);
    const int64_t begin = c.chunk * x.rule.chunk, count = x.chunk_end(c.chunk) - begin;
    const RowSource<T> q = head_rows<T>(data_.in.q, data_.batch, data_.number, order);
    const RowSource<T> v = head_rows<T>(data_.in.v, data_.batch, data_.number, order);
    bool finite = true;
    for (int64_t j = 0; j < count; j += N) {
      const int64_t keys = std::min(N, count - j), at = entry * padded + j;
      for (int64_t n = 0; n < keys; ++n) {
        inverse[at + n] = scaled_row(q, begin + j + n, rows_ + n * data_.width);
      }
      std::fill(rows_ + keys * data_.width, rows_ + N * data_.width, T{0});
      transpose(key_columns + at * data_.width);
      if (gradients_) {
        const RowSource<T> normed{reinterpret_cast<const char*>(rows_), dtype_of<T>, data_.width,
                                  data_.width, nullptr};
        finite = pack_rows(normed, 0, keys, N, T{1}, key_rows + at * N, entries * padded) && finite;
        pack_columns(v, begin + j, keys, rows_, value_columns + at * data_.value_width);
      }
    }
    if (!gradients_) {
      finite = pack_rows(v, begin, count, round_up(count, N), T{1}, value_rows + entry * padded * N,
                         entries * padded);
    }
    finite_[static_cast<size_t>(entry)] = finite ? 1 : 0;
    learn(entry, c, order + begin, count);
  }

  // Writes row `place` of q times 1 / rho; returns that factor.
  T scaled_row(const RowSource<T>& q, int64_t place, T* HWY_RESTRICT to) const {
    const Tag<T> d;
    alignas(64) T temporary[kMaxWidth];
    const T* HWY_RESTRICT from = q.row(place, temporary);
    const int64_t width = data_.width;
    const auto least = static_cast<T>(static_cast<double>(width) * data_.in.rule.epsilon);
    Vec<T> sums = hn::Zero(d);
    int64_t c = 0;
    for (; c + V <= width; c += V) {
      const Vec<T> part = hn::LoadU(d, from + c);
      sums = hn::MulAdd(part, part, sums);
    }
    T sum = least + hn::GetLane(hn::SumOfLanes(d, sums));
    for (; c < width; ++c) sum += from[c] * from[c];
    const T factor = 1 / std::sqrt(sum);
    for (c = 0; c < width; ++c) to[c] = from[c] * factor;
    return factor;
  }
  void transpose(T* HWY_RESTRICT to) const {
    const int64_t width = data_.width;
    for (int64_t c = transpose_blocks(rows_, width, width, to); c < width; ++c) {
      for (int64_t j = 0; j < N; ++j) to[c * N + j] = rows_[j * width + c];
    }
  }

  void learn(int64_t entry, LshChunk c, const int32_t* order, int64_t count) {
    Int<T>* const token = fact(entry, 0);
    Int<T>* const id = fact(entry, 1);
    for (int64_t j = 0; j < count; ++j) {
      token[j] = data_.token(order[j]);
      id[j] = data_.head.id(c.round, order[j]);
      for (int64_t r = 0; r + 1 < rounds_ && r < c.round; ++r) {
        const int32_t* const record = data_.record(order[j], r);
        fact(entry, 2 + 2 * r)[j] = record[0];
        fact(entry, 3 + 2 * r)[j] = record[1];
      }
    }
    for (int64_t j = count; j < padded; ++j) {  // no query sees them
      token[j] = std::numeric_limits<int32_t>::max();
      id[j] = -1;
    }
  }

  const LshData<T>& data_;
  const bool gradients_;
  const int64_t most_columns_;
  const int64_t rounds_;

 public:
  const int64_t entries, padded, width_panels, value_panels;
  T* const key_columns;    // [entries][panels][width][NR]: keys
  T* const value_rows;     // [panels][entries * padded][NR]
  T* const key_rows;       // the same shape; for gradients
  T* const value_columns;  // [entries][panels][value width][NR]; for gradients
  T* const inverse;        // 1 / rho of the keys
  std::vector<LshPiece> pieces;
  std::vector<size_t> blocks;  // first piece of each score tile, and the end

 private:
  T* const rows_;        // rows on their way into a panel
  Int<T>* const facts_;  // [entries][facts][padded]
  std::vector<int64_t> tags_;
  std::vector<uint8_t> finite_;
  std::vector<Needed> needed_;
};

/// Decides which keys one query sees.
template <class T>
class LshSight {
 public:
  LshSight(const LshData<T>& data, LshChunk queries) : data_(data), queries_(queries) {
    if (data.earlier()) before_.resize(static_cast<size_t>(queries.round));
  }

  void note_row(int64_t i) {
    const kernels::LshRule& rule = data_.in.rule;
    query = i;
    token_ = data_.token(i);
    limit_ = token_ >= kAbsent ? 0 : (rule.causal ? token_ : kAbsent);
    id_ = data_.head.id(queries_.round, i);
    const int64_t chunk = rule.chunk;
    for (size_t r = 0; r < before_.size(); ++r) {
      const int32_t* const record = data_.record(i, static_cast<int64_t>(r));
      int64_t first = record[0] / chunk - rule.before;
      if (const int64_t around = data_.head.circle(); around > 0) {
        first = ((first % around) + around) % around;
      }
      before_[r] = {static_cast<Int<T>>(first * chunk), static_cast<Int<T>>(record[1])};
    }
    self_counts_ = before_.empty();
  }

  /// Returns the keys of vector v of a piece that the query sees, except itself.
  HWY_INLINE auto others(const LshKeys<T>& keys, const LshPiece& p, int64_t v) const {
    const IntTag<T> d;
    const kernels::LshRule& rule = data_.in.rule;
    const auto token = hn::LoadU(d, keys.tokens(p) + v * V);
    auto seen = hn::Lt(token, hn::Set(d, limit_));
    if (!rule.causal) seen = hn::AndNot(hn::Eq(token, hn::Set(d, token_)), seen);
    if (rule.same_bucket) {
      seen = hn::And(seen, hn::Eq(hn::LoadU(d, keys.ids(p) + v * V), hn::Set(d, id_)));
    }
    for (size_t r = 0; r < before_.size(); ++r) {
      const auto round = static_cast<int64_t>(r);
      auto apart =
          hn::Sub(hn::LoadU(d, keys.places_before(p, round) + v * V), hn::Set(d, before_[r].first));
      auto met = in_window(apart);
      if (rule.same_bucket) {
        met = hn::And(met, hn::Eq(hn::LoadU(d, keys.ids_before(p, round) + v * V),
                                  hn::Set(d, before_[r].id)));
      }
      seen = hn::AndNot(met, seen);
    }
    return hn::RebindMask(Tag<T>(), seen);
  }
  /// Returns the lanes whose key is the query itself.
  HWY_INLINE auto itself(const LshKeys<T>& keys, const LshPiece& p, int64_t v) const {
    const IntTag<T> d;
    return hn::RebindMask(Tag<T>(),
                          hn::Eq(hn::LoadU(d, keys.tokens(p) + v * V), hn::Set(d, token_)));
  }
  bool self_counts() const { return self_counts_; }

  /// Computes the weight of each key of a piece, for rules that check pairs one by one.
  void weigh(const LshKeys<T>& keys, const LshPiece& p, T* weights) const {
    const Int<T>* const token = keys.tokens(p);
    for (int64_t j = p.vector<T>() * V; j < p.vector_end<T>() * V; ++j) {
      weights[j] = 0;
      if (j >= p.count) continue;
      const auto key = static_cast<int64_t>(token[j] >= kAbsent ? token[j] - kAbsent : token[j]);
      weights[j] = static_cast<T>(data_.head.weight(queries_.round, query, p.key_round, key));
    }
  }
  /// Computes the dropout factors of a piece, for probabilities that are not 0.
  void drop(const LshKeys<T>& keys, const LshPiece& p, const T* probabilities, T* factors) const {
    const Int<T>* const token = keys.tokens(p);
#if HWY_TARGET != HWY_SCALAR
    if constexpr (sizeof(T) == 4) {
      if (!data_.keep.broadcast) return drop_vectors(token, p, factors);
    }
#endif
    for (int64_t j = p.vector<T>() * V; j < p.vector_end<T>() * V; ++j) {
      factors[j] = 0;
      if (probabilities[j] == T{0} || j >= p.count) continue;
      const auto key = static_cast<int64_t>(token[j] >= kAbsent ? token[j] - kAbsent : token[j]);
      factors[j] = static_cast<T>(
          data_.keep.factor(data_.head, queries_.round, query, p.key_round, key, p.slot));
    }
  }

  int64_t query = 0;

 private:
#if HWY_TARGET != HWY_SCALAR
  // drop() for f32, whose lanes have the width of the words that are drawn.
  HWY_INLINE void drop_vectors(const Int<T>* token, const LshPiece& p, T* factors) const {
    const hn::RebindToUnsigned<Tag<T>> d;
    const LshKeep& keep = data_.keep;
    const auto least = hn::Set(d, static_cast<uint32_t>(keep.threshold));
    const auto kept = hn::Set(Tag<T>(), static_cast<T>(keep.kept));
    for (int64_t v = p.vector<T>(); v < p.vector_end<T>(); ++v) {
      const auto key = hn::And(hn::BitCast(d, hn::LoadU(IntTag<T>(), token + v * V)),
                               hn::Set(d, static_cast<uint32_t>(kAbsent - 1)));
      auto c0 = hn::ShiftRight<2>(key), c1 = hn::Set(d, static_cast<uint32_t>(query));
      auto c2 = hn::Set(d, keep.head);
      auto c3 = hn::Set(d, LshKeep::number(data_.head, queries_.round, p.slot));
      philox_lanes(keep.key, c0, c1, c2, c3);
      const auto which = hn::And(key, hn::Set(d, 3));
      const auto low = hn::IfThenElse(hn::Eq(which, hn::Zero(d)), c0, c1);
      const auto high = hn::IfThenElse(hn::Eq(which, hn::Set(d, 2)), c2, c3);
      const auto word = hn::IfThenElse(hn::Lt(which, hn::Set(d, 2)), low, high);
      const auto dropped = hn::RebindMask(Tag<T>(), hn::Lt(word, least));
      hn::Store(hn::IfThenZeroElse(dropped, kept), Tag<T>(), factors + v * V);
    }
  }
#endif

  static constexpr int64_t V = kLanes<T>;
  struct Before {
    Int<T> first, id;  // first position of its window in an earlier round, and its bucket there
  };

  // Whether a key at this offset from the first position of a window is in the window.
  template <class I>
  HWY_INLINE auto in_window(I apart) const {
    const IntTag<T> d;
    const LshHead& x = data_.head;
    if (x.rule.wrap == LshWrap::round) {
      const auto around = hn::Set(d, static_cast<Int<T>>(x.chunks() * x.rule.chunk));
      apart = hn::Add(apart, hn::IfThenElseZero(hn::Lt(apart, hn::Zero(d)), around));
    }
    return hn::AndNot(hn::Lt(apart, hn::Zero(d)),
                      hn::Lt(apart, hn::Set(d, static_cast<Int<T>>(x.window()))));
  }

  const LshData<T>& data_;
  const LshChunk queries_;
  Int<T> token_ = 0, limit_ = 0, id_ = 0;
  bool self_counts_ = true;
  std::vector<Before> before_;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
