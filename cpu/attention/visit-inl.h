// The keys that the rows of a tile see, block by block.

#if defined(LONGSPAN_CPU_ATTENTION_VISIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_ATTENTION_VISIT_INL_H_
#undef LONGSPAN_CPU_ATTENTION_VISIT_INL_H_
#else
#define LONGSPAN_CPU_ATTENTION_VISIT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "cpu/attention/plan.h"
#include "cpu/attention/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

// ------------------------------------------------------------------------------------ visibility

// Visible keys of the rows of a tile: row r sees lo[r] <= j < hi[r], all relative to one origin.
// Each of its RowGroups stores the union [first, last), empty if first >= last, and the
// intersection [inner, outer), empty if some row sees nothing.
struct Visible {
  int32_t lo[kTileRows], hi[kTileRows];
  int32_t first[kMaxGroups], last[kMaxGroups];
  int32_t inner[kMaxGroups], outer[kMaxGroups];
  int32_t all_first, all_last;
  bool alike;      // every row sees the same keys
  bool ascending;  // lo and hi never fall, and rows that see nothing are at the ends

  bool holds(int64_t row, int64_t key) const { return lo[row] <= key && key < hi[row]; }
};

// Fills in what follows from lo and hi, without branches, so that compilers vectorize it.
inline void unite(const RowGroups& groups, int64_t rows, Visible& v) {
  constexpr int32_t kFar = std::numeric_limits<int32_t>::max();
  v.all_first = kFar;
  v.all_last = 0;
  for (int64_t g = 0; g < groups.count(); ++g) {
    int32_t first = kFar, last = 0, inner = 0, outer = kFar;
    for (int64_t r = groups.row(g); r < groups.end(g); ++r) {
      const int32_t lo = v.lo[r], hi = v.hi[r];
      first = std::min(first, lo < hi ? lo : kFar);
      last = std::max(last, lo < hi ? hi : 0);
      inner = std::max(inner, lo < hi ? lo : 0);
      outer = std::min(outer, lo < hi ? hi : 0);
    }
    v.first[g] = first;
    v.last[g] = last;
    v.inner[g] = inner;
    v.outer[g] = std::max(inner, outer);
    v.all_first = std::min(v.all_first, first);
    v.all_last = std::max(v.all_last, last);
  }
  int32_t falls = 0, starts = v.lo[0] < v.hi[0] ? 1 : 0;  // rows that see less, or keys again
  for (int64_t r = 1; r < rows; ++r) {
    const int32_t some = v.lo[r] < v.hi[r] ? 1 : 0, before = v.lo[r - 1] < v.hi[r - 1] ? 1 : 0;
    const int32_t less = (v.lo[r] < v.lo[r - 1] ? 1 : 0) | (v.hi[r] < v.hi[r - 1] ? 1 : 0);
    falls |= some & before & less;
    starts += some & ~before;
  }
  v.ascending = falls == 0 && starts <= 1;
}

// Clips to the block of keys [origin, origin + keys), with indices relative to its origin.
inline void clip(const Visible& all, const RowGroups& groups, int64_t rows, int64_t origin,
                 int64_t keys, Visible& v) {
  const int32_t from = static_cast<int32_t>(origin);
  const int32_t n = static_cast<int32_t>(keys);
  const auto inside = [from, n](int32_t key) { return std::min(std::max(key - from, 0), n); };
  const int32_t first_lo = inside(all.lo[0]), first_hi = inside(all.hi[0]);
  int32_t differ = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t lo = inside(all.lo[r]), hi = inside(all.hi[r]);
    const int32_t some = lo < hi ? -1 : 0;  // rows that see nothing end before every key
    v.lo[r] = lo & some;
    v.hi[r] = hi & some;
    differ |= (lo ^ first_lo) | (hi ^ first_hi);
  }
  v.alike = differ == 0;
  unite(groups, rows, v);
}

// Makes keys [k0, k1) of a block, relative to its origin, visible to every row.
inline void show_all(int64_t rows, int64_t k0, int64_t k1, Visible& v) {
  const auto first = static_cast<int32_t>(k0), last = static_cast<int32_t>(k1);
  std::fill_n(v.lo, rows, first);
  std::fill_n(v.hi, rows, last);
  const int64_t groups = RowGroups(rows).count();
  for (int32_t* lo : {v.first, v.inner}) std::fill_n(lo, groups, first);
  for (int32_t* hi : {v.last, v.outer}) std::fill_n(hi, groups, last);
  v.all_first = first;
  v.all_last = last;
  v.alike = v.ascending = true;
}

// The keys that a tile sees of one block, as intervals of its rows, and the location of their
// scores: key j of the block is in column `column + j` of the score tile, which has whole vectors
// for them.
struct KeySpan {
  int64_t origin = 0;  // position of the block's first key
  int64_t at = 0;      // index of that key among the packed keys
  int64_t from = 0;    // first key of the vectors
  int64_t to = 0;      // end of the vectors
  int64_t column = 0;  // negative if the first keys are left out
  int32_t times = 1;   // multiplicity of the keys
  Visible seen;
};

// Spans that a tile processes together: their scores are stored side by side in one score tile, and
// products over keys run through all of them.
template <class T>
class Visit {
 public:
  explicit Visit(int64_t columns) : columns_(columns) { add(); }

  int64_t size() const { return size_; }
  /// vectors(n): columns of the first n spans, in vectors. of_vector(v): the span of column vector
  /// v.
  int64_t vectors(int64_t n) const { return ((*this)[n - 1].column + (*this)[n - 1].to) / V; }
  const KeySpan& of_vector(int64_t v) const { return (*this)[of_vector_[static_cast<size_t>(v)]]; }
  const KeySpan& operator[](int64_t i) const { return *spans_[static_cast<size_t>(i)]; }
  /// Returns the next span; take() reads its origin, at, times and seen.
  KeySpan& open() { return *spans_[static_cast<size_t>(size_)]; }

  /// Adds the open span, `alone` or beside the previous ones, with vectors for the keys from
  /// `first` to `last`. Calls process(n) when the first n spans must be processed to make space.
  /// Spans of one block stay together unless they need more than all columns.
  template <class Process>
  void take(bool alone, int64_t first, int64_t last, Process&& process) {
    const int64_t from = first / kUnit * kUnit, to = round_up(last, kUnit);
    if (size_ > 0 && (alone || alone_ || used_ + to - from > columns_)) {
      const bool together = !alone && !alone_ && block_ > 0 && open().origin == last_origin();
      finish(together ? block_ : size_, process);
    }
    if (size_ > 0 && used_ + to - from > columns_) finish(size_, process);
    KeySpan& span = open();
    if (size_ == 0 || span.origin != last_origin()) block_ = size_;
    span.from = from;
    span.to = to;
    alone_ = alone;
    place(size_++);
    if (spans_.size() == static_cast<size_t>(size_)) add();
  }

  /// Calls process(n) for the remaining spans.
  template <class Process>
  void finish(Process&& process) {
    if (size_ > 0) finish(size_, process);
  }

 private:
  static constexpr int64_t V = kLanes<T>;
  static constexpr int64_t kUnit = std::max(V, kRest);

  void add() { spans_.push_back(std::make_unique<KeySpan>()); }
  int64_t last_origin() const { return (*this)[size_ - 1].origin; }
  template <class Process>
  void finish(int64_t n, Process&& process) {
    process(n);
    std::rotate(spans_.begin(), spans_.begin() + n, spans_.begin() + size_ + 1);
    size_ -= n;
    of_vector_.clear();
    used_ = 0;
    block_ = 0;
    for (int64_t i = 0; i < size_; ++i) place(i);
  }
  // Assigns the next columns to span i.
  void place(int64_t i) {
    KeySpan& span = *spans_[static_cast<size_t>(i)];
    span.column = used_ - span.from;
    used_ += span.to - span.from;
    of_vector_.resize(static_cast<size_t>(used_ / V), static_cast<int32_t>(i));
  }

  int64_t columns_;
  std::vector<std::unique_ptr<KeySpan>> spans_;
  std::vector<int32_t> of_vector_;
  int64_t size_ = 0, used_ = 0;  // spans taken, columns used
  int64_t block_ = 0;            // the first span of the last span's block
  bool alone_ = false;           // whether the last span has a tile to itself
};

// Whether intervals alone decide which keys rows see in a span, and its keys count once.
inline bool has_intervals_only(const AttentionHead& head, const KeySpan& span) {
  const HeadSegment& s = head.at_place(span.origin);
  return !s.masks.hides_pairs() && span.times == 1;
}

// Calls f(span) for the blocks of a range that some row of tile t sees, with origin, times and seen
// of the visit's open span filled in; `skips` tells which rows see nothing. Most runs of block
// patterns are visible to all rows.
template <class T, class Skips, class F>
HWY_INLINE void for_blocks(const AttentionHead& head, int64_t t, const KeyRange& range, bool skip,
                           const Skips& skips, Visit<T>& visit, F&& f) {
  const int64_t rows = head.tile_rows(t);
  if (!skip && head.shows_all(t, range)) {
    for (int64_t block = range.k0 / kBlock; block * kBlock < range.k1; ++block) {
      KeySpan& span = visit.open();
      span.origin = block * kBlock;
      span.times = range.times;
      show_all(rows, std::max<int64_t>(range.k0 - span.origin, 0),
               std::min(range.k1 - span.origin, kBlock), span.seen);
      f(span);
    }
    return;
  }
  Visible all;
  head.visible(t, range, all.lo, all.hi);
  for (int64_t r = 0; skip && r < rows; ++r) {
    if (skips(r)) all.lo[r] = all.hi[r] = 0;
  }
  const RowGroups groups(rows);
  unite(groups, rows, all);
  const int64_t inner = *std::max_element(all.inner, all.inner + groups.count());
  const int64_t outer = *std::min_element(all.outer, all.outer + groups.count());
  for (int64_t block = all.all_first / kBlock; block * kBlock < all.all_last; ++block) {
    KeySpan& span = visit.open();
    span.origin = block * kBlock;
    span.times = range.times;
    const int64_t keys = head.block_keys(span.origin);
    if (inner <= span.origin && span.origin + keys <= outer) {
      show_all(rows, 0, keys, span.seen);
    } else {
      clip(all, groups, rows, span.origin, keys, span.seen);
    }
    if (span.seen.all_first < span.seen.all_last) f(span);
  }
}

// Returns the lanes of vector i of keys that are in [lo, hi).
template <class T>
HWY_INLINE hn::Mask<Tag<T>> inside(int64_t i, int32_t lo, int32_t hi) {
  const hn::RebindToSigned<Tag<T>> di;
  using I = hn::TFromD<decltype(di)>;
  const auto first = static_cast<int32_t>(i * kLanes<T>);
  const auto lane = hn::Iota(di, I{0});  // of a constant, since Iota goes through memory
  const auto before = hn::Lt(lane, hn::Set(di, static_cast<I>(lo - first)));
  const auto below = hn::Lt(lane, hn::Set(di, static_cast<I>(hi - first)));
  return hn::RebindMask(Tag<T>(), hn::AndNot(before, below));
}

// Writes `vectors` vectors of zeros from s[at] on.
template <class T>
HWY_INLINE void zero_vectors(T* s, int64_t at, int64_t vectors) {
  const Tag<T> d;
  for (int64_t v = 0; v < vectors; ++v) hn::Store(hn::Zero(d), d, s + (at + v * kLanes<T>));
}

// Computes vectors v and v + 1 of a visit's columns (those below `vectors` whose keys group g
// sees): the group's rows x, as panels [panels][kTileRows][NR], times the keys' columns in
// `packed`; `over` is over_panels() of their width. Rows of scores are kStride apart.
template <int64_t kStride, class T>
HWY_INLINE void product_seen(const Visit<T>& visit, int64_t v, int64_t vectors, int64_t g,
                             int64_t rows, const T* x, const T* packed, int64_t width,
                             std::span<const InnerRange> over, T* scores) {
  constexpr int64_t N = kPanel<T>;
  constexpr int64_t V = kLanes<T>;
  const T* b[2] = {nullptr, nullptr};
  for (int64_t i = 0; i < std::min<int64_t>(2, vectors - v); ++i) {
    const KeySpan& span = visit.of_vector(v + i);
    const int64_t first = (v + i) * V - span.column;  // key of the block
    if (span.seen.first[g] >= first + V || span.seen.last[g] <= first) continue;
    const int64_t key = span.at + first;
    b[i] = packed + (key / N * N * width + key % N);
  }
  if (b[0] != nullptr && b[1] != nullptr) {
    product<2, N>(rows, x, 1, b[0], over, scores + v * V, kStride, false, b[1] - b[0]);
  } else if (b[0] != nullptr || b[1] != nullptr) {
    const int64_t i = b[0] != nullptr ? 0 : 1;
    product<1, N>(rows, x, 1, b[i], over, scores + (v + i) * V, kStride, false);
  }
}

// Vectors [from, to) of a span's block are visible to some row of a group, and [a, e) to all of its
// rows.
struct Vectors {
  int64_t from = 0, to = 0, a = 0, e = 0;
};

template <class T>
Vectors vectors_of(const Visible& v, int64_t g) {
  constexpr int64_t V = kLanes<T>;
  if (v.first[g] >= v.last[g]) return {};
  Vectors n;
  n.from = v.first[g] / V;
  n.to = ceil_div(v.last[g], V);
  n.a = std::min(ceil_div(v.inner[g], V), n.to);
  n.e = std::max(n.a, std::min<int64_t>(v.outer[g] / V, n.to));
  return n;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
