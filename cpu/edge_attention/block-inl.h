// A block of rows of edge attention whose keys are read once for all of them, for one SIMD target.

#if defined(LONGSPAN_CPU_EDGE_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_EDGE_BLOCK_INL_H_
#undef LONGSPAN_CPU_EDGE_BLOCK_INL_H_
#else
#define LONGSPAN_CPU_EDGE_BLOCK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/attention/plan.h"
#include "cpu/attention/terms-inl.h"
#include "cpu/edge_attention/products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {
namespace edge {

/// The rows of one head of one sample: base and distance.
template <class T>
struct Rows {
  T* base = nullptr;
  int64_t stride = 0;
  T* operator[](int64_t i) const { return base + i * stride; }
};

template <class T, class V>
Rows<T> rows_of(const V& x, int64_t b, int64_t h) {
  if (!x) return {};
  T* const base = const_cast<T*>(x.template as<T>());
  return {base + b * x.stride(0) + h * x.stride(1), x.stride(2)};
}

/// What the blocks of one head read and write. Gradients are of the backward pass alone.
template <class T>
struct Head {
  Rows<T> q, k, v, out, dout, dq, dk, dv;
  T* lse = nullptr;
  const T* relation = nullptr;
  T* drelation = nullptr;
  int64_t number = 0;        ///< b H + h
  int64_t d = 0, width = 0;  // of keys and of values
  T scale = 1;
};

/// The tables of a layout.
struct Tables {
  explicit Tables(const kernels::EdgeTables& t)
      : blocks(t.blocks.as<int32_t>()),
        runs(t.runs.as<int32_t>()),
        labels(t.labels.as<int32_t>()) {}
  const int32_t *blocks, *runs, *labels;
};

/// One block of a layout.
struct Block {
  Block(const Tables& t, int64_t i)
      : first(t.blocks[5 * i]),
        rows(t.blocks[5 * i + 1]),
        first_run(t.blocks[5 * i + 2]),
        runs(t.blocks[5 * i + 3]),
        together(t.blocks[5 * i + 4] != 0) {}
  const int32_t* run(const Tables& t, int64_t r, int64_t o) const {
    return t.runs + 3 * (first_run + r * runs + o);
  }
  int64_t first, rows, first_run, runs;
  bool together;
};

/// The keys of the runs of one number in a block: key c of it is key first + c.
template <class T>
struct KeySegment {
  int64_t first = 0, keys = 0;
  int64_t at = 0;          // its place among the keys of the block
  bool one_label = false;  // each row has one label, label[row]
  bool aligned = false;    // the labels of all rows are equally far from their keys
  int64_t same_shift = 0;  // that distance
  int64_t common_begin = 0, common_end = 0;  // keys that all rows have
  // For each row: its keys of the segment, and the place of the label of key 0 in the labels held.
  alignas(64) T begin[kRows], end[kRows];
  int32_t from[kRows], to[kRows], shift[kRows], label[kRows];
};

/// Labels as rows of the relation table, held from block to block since most blocks have the same.
template <class T>
class HeldLabels {
 public:
  static constexpr int64_t kLists = 128;

  HeldLabels(T* rows, int64_t capacity, int64_t d) : rows_(rows), capacity_(capacity), d_(d) {}

  void forget() { count_ = used_ = 0; }
  /// Begins a block, in which nothing is computed yet.
  void begin_block() {
    for (int64_t i = 0; i < count_; ++i) lists_[i].begin = lists_[i].end = 0;
  }
  /// Holds labels lo .. hi of the layout's lists: label l is at `place` + l. Calls compute(place,
  /// n) for places that are not computed yet in this block. Returns false if there is no space
  /// left: then forget() and begin again.
  template <class F>
  bool hold(const int32_t* labels, const T* relation, int64_t lo, int64_t hi, int64_t& place,
            F&& compute) {
    int64_t i = 0;
    while (i < count_ && (lists_[i].lo > lo || lists_[i].hi < hi)) ++i;
    if (i == count_) {
      if (count_ == kLists || used_ + hi - lo > capacity_) return false;
      lists_[count_++] = {lo, hi, used_, 0, 0};
      for (int64_t l = lo; l < hi; ++l) {
        std::memcpy(rows_ + (used_ + l - lo) * d_, relation + labels[l] * d_,
                    static_cast<size_t>(d_) * sizeof(T));
      }
      used_ += hi - lo;
    }
    List& list = lists_[i];
    place = list.at - list.lo;
    const bool none = list.end == list.begin;
    if (none || lo < list.begin || hi > list.end) {
      list.begin = none ? lo : std::min(lo, list.begin);
      list.end = none ? hi : std::max(hi, list.end);
      compute(place + list.begin, list.end - list.begin);
    }
    return true;
  }
  /// Calls f(first label of the lists, place, n) for what was computed in this block.
  template <class F>
  void for_computed(F&& f) const {
    for (int64_t i = 0; i < count_; ++i) {
      const List& x = lists_[i];
      if (x.end > x.begin) f(x.begin, x.at + x.begin - x.lo, x.end - x.begin);
    }
  }
  const T* row(int64_t place) const { return rows_ + place * d_; }
  int64_t capacity() const { return capacity_; }

 private:
  struct List {
    int64_t lo = 0, hi = 0, at = 0;
    int64_t begin = 0, end = 0;  // computed in this block
  };
  T* rows_;
  int64_t capacity_, d_, count_ = 0, used_ = 0;
  std::array<List, kLists> lists_;
};

/// Computes blocks of rows together. Scores and all that is made of them have one row of kRows
/// lanes for each key.
template <class T>
class BlockTask {
 public:
  /// `backward`: whether backward() will be called, which needs more workspace.
  BlockTask(const kernels::EdgeAttentionInputs& in, bool backward, Slab<T>& slab)
      : tables_(in.edges),
        dropout_(in.dropout),
        d_(in.q.dim(3)),
        width_(in.v.dim(3)),
        q_(slab.take(kRows * d_)),
        q_lanes_(slab.take(kRows * d_)),
        held_(slab.take(in.relation ? 2 * in.block_labels * d_ : 0),
              in.relation ? 2 * in.block_labels : 0, d_),
        label_scores_(slab.take(in.relation ? 2 * in.block_labels * kRows : 0)),
        scores_(slab.take(in.block_keys * kRows)),
        keep_(slab.take(in.dropout.p > 0 ? in.block_keys * kRows : 0)),
        keep_row_(slab.take(in.dropout.p > 0 ? KeepRow<T>::kSize + in.block_keys : 0)),
        rows_(slab.take(kTileRows * std::max(d_, width_))) {
    if (!backward) return;
    slopes_ = slab.take(in.block_keys * kRows);
    dout_ = slab.take(kRows * width_);
    dout_lanes_ = slab.take(kRows * width_);
    label_slopes_ = slab.take(in.relation ? 2 * in.block_labels * kRows : 0);
  }

  void forward(const Head<T>& head, const Block& block) {
    head_ = &head;
    load(block);
    find_scores(block);
    find_top();
    const Tag<T> tag;
    for (int64_t row = 0; row < kRows; row += kWidth<T>) {
      const auto top = hn::Load(tag, top_ + row);
      auto sum = hn::Zero(tag);
      for (int64_t c = 0; c < count_; ++c) {
        T* const at = scores_ + c * kRows + row;
        const auto p = simd::exp_nonpositive(tag, hn::Sub(hn::Load(tag, at), top));
        sum = hn::Add(sum, p);
        hn::Store(p, tag, at);
      }
      hn::Store(sum, tag, sum_ + row);
    }
    if (dropout_.p > 0) {
      draw(block);
      for (int64_t i = 0; i < count_ * kRows; ++i) scores_[i] *= keep_[i];
    }
    for_tiles(block, [&](int64_t first, int64_t rows) {
      mix(scores_, head.v, width_, first);
      for (int64_t r = first; r < first + rows; ++r) {
        const T inverse = sum_[r] > 0 ? 1 / sum_[r] : T{0};
        copy_scaled(rows_ + (r - first) * width_, inverse, width_, head.out[block.first + r]);
        head.lse[block.first + r] =
            sum_[r] > 0 ? top_[r] + std::log(sum_[r]) : -std::numeric_limits<T>::infinity();
      }
    });
  }

  void backward(const Head<T>& head, const Block& block) {
    head_ = &head;
    load(block);
    load_gradient(block);
    find_scores(block);
    if (dropout_.p > 0) draw(block);
    find_slopes();
    add_to_keys();
    add_to_rows(block);
  }

 private:
  static constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();

  /// Reads rows, keys and values.
  void load(const Block& block) {
    std::fill_n(q_, kRows * d_, T{0});
    for (int64_t r = 0; r < block.rows; ++r) {
      const T* const from = head_->q[block.first + r];
      for (int64_t c = 0; c < d_; ++c) q_[r * d_ + c] = from[c] * head_->scale;
    }
    as_lanes(q_, d_, q_lanes_);
    count_ = segments_used_ = 0;
    for (int64_t o = 0; o < block.runs; ++o) add_segment(block, o);
  }

  static void as_lanes(const T* rows, int64_t width, T* lanes) {
    int64_t c = 0;
    if constexpr (sizeof(T) == 4) {
      for (; c + 4 <= width; c += 4) {
        for (int64_t r = 0; r < kRows; r += 4) {
          transpose_four(rows + r * width + c, width, lanes + c * kRows + r);
        }
      }
    }
    for (; c < width; ++c) {
      for (int64_t r = 0; r < kRows; ++r) lanes[c * kRows + r] = rows[r * width + c];
    }
  }
  /// Transposes 4 x 4 numbers of f32.
  static HWY_INLINE void transpose_four(const T* from, int64_t stride, T* to) {
    const hn::CappedTag<T, 4> d;
    if constexpr (hn::MaxLanes(d) == 4) {
      const hn::Repartition<double, decltype(d)> dd;
      const auto a = hn::LoadU(d, from), b = hn::LoadU(d, from + stride);
      const auto e = hn::LoadU(d, from + 2 * stride), f = hn::LoadU(d, from + 3 * stride);
      const auto low = hn::BitCast(dd, hn::InterleaveLower(d, a, b));
      const auto high = hn::BitCast(dd, hn::InterleaveUpper(d, a, b));
      const auto low2 = hn::BitCast(dd, hn::InterleaveLower(d, e, f));
      const auto high2 = hn::BitCast(dd, hn::InterleaveUpper(d, e, f));
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, low, low2)), d, to);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, low, low2)), d, to + kRows);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, high, high2)), d, to + 2 * kRows);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, high, high2)), d, to + 3 * kRows);
    } else {
      for (int64_t i = 0; i < 4; ++i) {
        for (int64_t j = 0; j < 4; ++j) to[j * kRows + i] = from[i * stride + j];
      }
    }
  }
  /// Scores of the block's rows with those of all its keys.
  void score_keys_of_block(const T* lanes, const Rows<T>& x, int64_t width, T* scores) const {
    for (int64_t s = 0; s < segments_used_; ++s) {
      const KeySegment<T>& segment = segments_[s];
      score_block(lanes, x[segment.first], x.stride, segment.keys, width,
                  scores + segment.at * kRows);
    }
  }
  static void copy_scaled(const T* from, T factor, int64_t n, T* to) {
    for (int64_t c = 0; c < n; ++c) to[c] = from[c] * factor;
  }

  /// Adds the keys of the runs of number o, if there are any.
  void add_segment(const Block& block, int64_t o) {
    int64_t lo = std::numeric_limits<int64_t>::max(), hi = 0;
    for (int64_t r = 0; r < block.rows; ++r) {
      const int32_t* const run = block.run(tables_, r, o);
      if (run[1] == 0) continue;
      lo = std::min<int64_t>(lo, run[0]);
      hi = std::max<int64_t>(hi, run[0] + run[1]);
    }
    if (hi <= lo) return;
    KeySegment<T>& s = segments_[segments_used_++];
    s.first = lo;
    s.keys = hi - lo;
    s.at = count_;
    s.one_label = false;
    count_ += s.keys;
    s.common_begin = 0;
    s.common_end = s.keys;
    for (int64_t r = 0; r < kRows; ++r) {
      const int32_t* const run = r < block.rows ? block.run(tables_, r, o) : nullptr;
      const bool any = run != nullptr && run[1] > 0;
      s.from[r] = any ? static_cast<int32_t>(run[0] - lo) : 0;
      s.to[r] = any ? static_cast<int32_t>(run[0] + run[1] - lo) : 0;
      s.begin[r] = static_cast<T>(s.from[r]);
      s.end[r] = static_cast<T>(s.to[r]);
      s.label[r] = any ? run[2] : 0;
      s.common_begin = std::max<int64_t>(s.common_begin, s.from[r]);
      s.common_end = std::min<int64_t>(s.common_end, s.to[r]);
      if (any && run[2] < 0) s.one_label = true;
    }
  }

  void find_scores(const Block& block) {
    score_keys_of_block(q_lanes_, head_->k, d_, scores_);
    if (head_->relation != nullptr) {
      held_.begin_block();
      for (int64_t s = 0; s < segments_used_; ++s) {
        if (segments_[s].one_label || hold(segments_[s])) continue;
        held_.forget();  // begin again, with nothing held
        for (int64_t again = 0; again <= s; ++again) {
          if (!segments_[again].one_label) hold(segments_[again]);
        }
      }
      for (int64_t s = 0; s < segments_used_; ++s) add_labels(segments_[s], block);
    }
    for (int64_t s = 0; s < segments_used_; ++s) hide(segments_[s]);
  }

  /// Computes the scores of the labels of a segment, and finds where they are.
  bool hold(KeySegment<T>& s) {
    int64_t lo = std::numeric_limits<int64_t>::max(), hi = 0;
    for (int64_t r = 0; r < kRows; ++r) {
      if (s.to[r] == s.from[r]) continue;
      lo = std::min<int64_t>(lo, s.label[r]);
      hi = std::max<int64_t>(hi, s.label[r] + s.to[r] - s.from[r]);
    }
    int64_t place = 0;
    const bool held =
        held_.hold(tables_.labels, head_->relation, lo, hi, place, [&](int64_t at, int64_t n) {
          score_block(q_lanes_, held_.row(at), d_, n, d_, label_scores_ + at * kRows);
        });
    if (!held) return false;
    bool first = true;
    s.aligned = true;
    for (int64_t r = 0; r < kRows; ++r) {
      const bool any = s.to[r] > s.from[r];
      s.shift[r] = any ? static_cast<int32_t>(place + s.label[r] - s.from[r]) : 0;
      if (!any) continue;
      if (first) s.same_shift = s.shift[r];
      s.aligned = s.aligned && s.shift[r] == s.same_shift;
      first = false;
    }
    return true;
  }

  void add_labels(const KeySegment<T>& s, const Block& block) {
    const Tag<T> tag;
    if (s.one_label) {
      alignas(64) T each[kRows] = {};
      for (int64_t r = 0; r < block.rows; ++r) {
        if (s.to[r] == s.from[r]) continue;
        each[r] = dot(q_ + r * d_, head_->relation + (-1 - s.label[r]) * d_, d_);
      }
      for_scores(s, [&](int64_t, int64_t row, T* at) {
        hn::Store(hn::Add(hn::Load(tag, at), hn::Load(tag, each + row)), tag, at);
      });
      return;
    }
    if (s.aligned) {
      const T* const from = label_scores_ + s.same_shift * kRows;
      for_scores(s, [&](int64_t c, int64_t row, T* at) {
        const auto label = hn::Load(tag, from + c * kRows + row);
        hn::Store(hn::Add(hn::Load(tag, at), label), tag, at);
      });
      return;
    }
    const hn::RebindToSigned<Tag<T>> integers;
    using I = hn::TFromD<decltype(integers)>;
    const auto last = hn::Set(integers, static_cast<I>(held_.capacity() * kRows - 1));
    alignas(64) I places[kRows];  // of key 0
    for (int64_t r = 0; r < kRows; ++r) places[r] = static_cast<I>(s.shift[r] * kRows + r);
    for_scores(s, [&](int64_t c, int64_t row, T* at) {
      // Rows that do not have the key read some score, which is hidden later.
      const auto place =
          hn::Add(hn::Load(integers, places + row), hn::Set(integers, static_cast<I>(c * kRows)));
      const auto inside = hn::Min(hn::Max(place, hn::Zero(integers)), last);
      hn::Store(hn::Add(hn::Load(tag, at), hn::GatherIndex(tag, label_scores_, inside)), tag, at);
    });
  }

  /// Calls f(c, row, address) for every key c of a segment and every vector of rows.
  template <class F>
  HWY_INLINE void for_scores(const KeySegment<T>& s, F&& f) {
    T* at = scores_ + s.at * kRows;
    for (int64_t c = 0; c < s.keys; ++c) {
      for (int64_t row = 0; row < kRows; row += kWidth<T>, at += kWidth<T>) f(c, row, at);
    }
  }

  /// Sets the scores of pairs that do not exist to -inf.
  void hide(const KeySegment<T>& s) {
    const Tag<T> tag;
    const auto hidden = hn::Set(tag, kMinusInfinity);
    for_scores(s, [&](int64_t c, int64_t row, T* at) {
      if (c >= s.common_begin && c < s.common_end) return;
      const auto key = hn::Set(tag, static_cast<T>(c));
      const auto there = hn::And(hn::Ge(key, hn::Load(tag, s.begin + row)),
                                 hn::Lt(key, hn::Load(tag, s.end + row)));
      hn::Store(hn::IfThenElse(there, hn::Load(tag, at), hidden), tag, at);
    });
  }

  /// Finds the largest score of each row; 0 for a row without keys.
  void find_top() {
    const Tag<T> tag;
    for (int64_t row = 0; row < kRows; row += kWidth<T>) {
      auto top = hn::Set(tag, kMinusInfinity);
      for (int64_t c = 0; c < count_; ++c) {
        top = hn::Max(top, hn::Load(tag, scores_ + c * kRows + row));
      }
      const auto none = hn::Eq(top, hn::Set(tag, kMinusInfinity));
      hn::Store(hn::IfThenZeroElse(none, top), tag, top_ + row);
    }
  }

  /// Draws which pairs are kept, with the factors of those.
  void draw(const Block& block) {
    const KeepRow<T> keep(dropout_, head_->number);
    std::fill_n(keep_, count_ * kRows, T{0});
    HeadSegment all;
    all.keys = std::numeric_limits<int32_t>::max();
    for (int64_t s = 0; s < segments_used_; ++s) {
      const KeySegment<T>& segment = segments_[s];
      for (int64_t r = 0; r < block.rows; ++r) {
        const int64_t n = segment.to[r] - segment.from[r];
        if (n == 0) continue;
        const int64_t key = segment.first + segment.from[r], start = key % 4;
        keep.fill(block.first + r, all, key - start, start, start + n, keep_row_);
        for (int64_t c = 0; c < n; ++c) {
          keep_[(segment.at + segment.from[r] + c) * kRows + r] = keep_row_[start + c];
        }
      }
    }
  }

  /// Calls f(first, rows) for tiles of rows.
  template <class F>
  static void for_tiles(const Block& block, F&& f) {
    for (int64_t r = 0; r < block.rows; r += kTileRows) {
      f(r, std::min<int64_t>(kTileRows, block.rows - r));
    }
  }

  /// rows_[i] = sum over keys of weights[key][first + i] x[key], for a tile of rows; with the held
  /// labels too if `of_labels` has their weights.
  void mix(const T* weights, const Rows<T>& x, int64_t width, int64_t first,
           const T* of_labels = nullptr) {
    int64_t count = 0;
    for (int64_t s = 0; s < segments_used_; ++s) {
      const KeySegment<T>& segment = segments_[s];
      int64_t from = segment.keys, to = 0;
      for (int64_t r = first; r < first + kTileRows; ++r) {
        if (segment.to[r] == segment.from[r]) continue;
        from = std::min<int64_t>(from, segment.from[r]);
        to = std::max<int64_t>(to, segment.to[r]);
      }
      if (to <= from) continue;
      terms_[count++] = {weights + (segment.at + from) * kRows + first, x[segment.first + from],
                         x.stride, to - from};
    }
    if (of_labels != nullptr) {
      held_.for_computed([&](int64_t, int64_t place, int64_t n) {
        terms_[count++] = {of_labels + place * kRows + first, held_.row(place), d_, n};
      });
    }
    std::fill_n(rows_, kTileRows * width, T{0});
    add_terms<kTileRows>(terms_.data(), count, 1, kRows, width,
                         [&](int r) { return rows_ + r * width; });
  }

  /// to(i) += sum over the block's rows from .. end of weights[i][row] x[row], for n rows of `to`,
  /// at most a tile, which are distinct if n is a tile.
  template <class To>
  static void add_rows(const T* weights, const T* x, int64_t from, int64_t end, int64_t n,
                       int64_t width, To to) {
    const Terms<T> terms{weights + from, x + from * width, width, end - from};
    if (n == kTileRows) return add_terms<kTileRows>(&terms, 1, kRows, 1, width, to);
    for (int64_t i = 0; i < n; ++i) {
      const Terms<T> one{weights + i * kRows + from, x + from * width, width, end - from};
      add_terms<1>(&one, 1, kRows, 1, width, [&](int) { return to(i); });
    }
  }

  void load_gradient(const Block& block) {
    std::fill_n(dout_, kRows * width_, T{0});
    std::fill_n(delta_, kRows, T{0});
    std::fill_n(lse_, kRows, T{0});
    for (int64_t r = 0; r < block.rows; ++r) {
      const T* const from = head_->dout[block.first + r];
      std::copy_n(from, width_, dout_ + r * width_);
      delta_[r] = dot(from, head_->out[block.first + r], width_);
      const T lse = head_->lse[block.first + r];
      lse_[r] = lse > kMinusInfinity ? lse : T{0};
    }
    as_lanes(dout_, width_, dout_lanes_);
  }

  /// Turns scores into probabilities as they are used, and finds the gradients of the scores.
  void find_slopes() {
    const Tag<T> tag;
    score_keys_of_block(dout_lanes_, head_->v, width_, slopes_);
    for (int64_t c = 0; c < count_; ++c) {
      for (int64_t row = 0; row < kRows; row += kWidth<T>) {
        const int64_t at = c * kRows + row;
        const auto lse = hn::Load(tag, lse_ + row), delta = hn::Load(tag, delta_ + row);
        const auto p = simd::exp_nonpositive(tag, hn::Sub(hn::Load(tag, scores_ + at), lse));
        auto slope = hn::Load(tag, slopes_ + at), used = p;
        if (dropout_.p > 0) {
          const auto keep = hn::Load(tag, keep_ + at);
          slope = hn::Mul(slope, keep);
          used = hn::Mul(p, keep);
        }
        hn::Store(hn::Mul(p, hn::Sub(slope, delta)), tag, slopes_ + at);
        hn::Store(used, tag, scores_ + at);
      }
    }
  }

  /// Adds to the gradients of keys and values, for as many keys at a time as a tile has rows.
  void add_to_keys() {
    for (int64_t s = 0; s < segments_used_; ++s) {
      const KeySegment<T>& segment = segments_[s];
      for (int64_t c = 0; c < segment.keys; c += kTileRows) {
        const int64_t n = std::min<int64_t>(kTileRows, segment.keys - c);
        int64_t r = 0, end = kRows;
        const auto without = [&](int64_t row) {
          return c + n <= segment.from[row] || c >= segment.to[row];
        };
        while (r < end && without(r)) ++r;
        while (end > r && without(end - 1)) --end;
        if (r == end) continue;
        const int64_t at = (segment.at + c) * kRows, key = segment.first + c;
        add_rows(scores_ + at, dout_, r, end, n, width_,
                 [&](int64_t i) { return head_->dv[key + i]; });
        add_rows(slopes_ + at, q_, r, end, n, d_, [&](int64_t i) { return head_->dk[key + i]; });
      }
    }
  }

  /// Writes the gradients of queries, and adds to that of the relation table.
  void add_to_rows(const Block& block) {
    const bool labels = head_->relation != nullptr;
    if (labels) sum_slopes_by_label();
    for_tiles(block, [&](int64_t first, int64_t rows) {
      mix(slopes_, head_->k, d_, first, labels ? label_slopes_ : nullptr);
      for (int64_t r = first; r < first + rows; ++r) {
        T* const sum = rows_ + (r - first) * d_;
        if (labels) add_single_labels(r, sum);
        copy_scaled(sum, head_->scale, d_, head_->dq[block.first + r]);
      }
    });
    if (!labels) return;
    held_.for_computed([&](int64_t first, int64_t place, int64_t n) {
      for (int64_t i = 0; i < n;) {
        const int32_t* const at = tables_.labels + first + i;
        const int64_t together = std::min<int64_t>(distinct(at, n - i), kTileRows);
        add_rows(label_slopes_ + (place + i) * kRows, q_, 0, block.rows, together, d_,
                 [&](int64_t j) { return head_->drelation + at[j] * d_; });
        i += together;
      }
    });
  }

  /// Returns how many of n labels, at most a tile, are distinct before one repeats.
  static int64_t distinct(const int32_t* labels, int64_t n) {
    for (int64_t i = 1; i < std::min<int64_t>(n, kTileRows); ++i) {
      for (int64_t j = 0; j < i; ++j) {
        if (labels[j] == labels[i]) return i;
      }
    }
    return n;
  }

  void sum_slopes_by_label() {
    held_.for_computed([&](int64_t, int64_t place, int64_t n) {
      std::fill_n(label_slopes_ + place * kRows, n * kRows, T{0});
    });
    const Tag<T> tag;
    for (int64_t s = 0; s < segments_used_; ++s) {
      const KeySegment<T>& segment = segments_[s];
      if (segment.one_label) continue;
      const T* from = slopes_ + segment.at * kRows;
      if (segment.aligned) {
        T* to = label_slopes_ + segment.same_shift * kRows;
        for (int64_t i = 0; i < segment.keys * kRows; i += kWidth<T>) {
          hn::Store(hn::Add(hn::Load(tag, to + i), hn::Load(tag, from + i)), tag, to + i);
        }
        continue;
      }
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t c = segment.from[r]; c < segment.to[r]; ++c) {
          label_slopes_[(segment.shift[r] + c) * kRows + r] += from[c * kRows + r];
        }
      }
    }
  }

  /// Adds what runs with one label give row r and the relation table.
  void add_single_labels(int64_t r, T* row) {
    for (int64_t s = 0; s < segments_used_; ++s) {
      const KeySegment<T>& segment = segments_[s];
      if (!segment.one_label || segment.to[r] == segment.from[r]) continue;
      T sum = 0;
      for (int64_t c = segment.from[r]; c < segment.to[r]; ++c) {
        sum += slopes_[(segment.at + c) * kRows + r];
      }
      const int64_t label = -1 - segment.label[r];
      add_weighted(&sum, 1, head_->relation + label * d_, d_, 1, d_, row);
      add_weighted(&sum, 1, q_ + r * d_, d_, 1, d_, head_->drelation + label * d_);
    }
  }

  const Tables tables_;
  const kernels::AttentionDropout dropout_;
  const int64_t d_, width_;
  T *q_, *q_lanes_;  // scaled: [row][d], [d][row]
  HeldLabels<T> held_;
  T* label_scores_;  // [label held][row]
  T* scores_;        // [key][row]; probabilities later
  T *keep_, *keep_row_;
  T* rows_;  // [kTileRows][columns]: sums of a tile
  T *slopes_ = nullptr, *dout_ = nullptr, *dout_lanes_ = nullptr, *label_slopes_ = nullptr;
  alignas(64) T top_[kRows], sum_[kRows], lse_[kRows], delta_[kRows];
  const Head<T>* head_ = nullptr;
  int64_t count_ = 0, segments_used_ = 0;
  std::array<KeySegment<T>, static_cast<size_t>(kernels::kEdgeBlockRuns)> segments_;
  std::array<Terms<T>, static_cast<size_t>(kernels::kEdgeBlockRuns + HeldLabels<T>::kLists)> terms_;
};

}  // namespace edge
}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
