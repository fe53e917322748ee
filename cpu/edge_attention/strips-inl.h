// Strips of edge attention, for one SIMD target: a few consecutive keys with the long rows that
// attend to them. So keys are read once for all these rows, where rows one by one would read them
// again and again from ever slower caches.

#if defined(LONGSPAN_CPU_EDGE_STRIPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_EDGE_STRIPS_INL_H_
#undef LONGSPAN_CPU_EDGE_STRIPS_INL_H_
#else
#define LONGSPAN_CPU_EDGE_STRIPS_INL_H_
#endif

#include <hwy/highway.h>

#include "cpu/edge_attention/block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {
namespace edge {

/// What the pieces of rows that have several leave for finish(): for the forward pass sums of
/// weighted values, the largest score and the sum of weights; for the backward pass gradients of
/// queries.
template <class T>
struct Pieces {
  T *sums = nullptr, *tops = nullptr, *totals = nullptr;
};

/// A row of a strip.
struct StripRow {
  explicit StripRow(const int32_t* x)
      : row(x[0]),
        keys(static_cast<uint32_t>(x[1])),
        slot(x[2]),
        begins((x[3] & kernels::kEdgePieceBegins) != 0),
        ends((x[3] & kernels::kEdgePieceEnds) != 0),
        piece(x[4]) {}
  int64_t row;
  uint32_t keys;  // bits
  int64_t slot;
  bool begins, ends;
  int64_t piece;
};

/// One strip of a layout.
class Strip {
 public:
  Strip(const Tables& tables, int64_t block) {
    const int32_t* const at = tables.blocks + kernels::kEdgeBlockFields * block + 1;
    first = at[0];
    keys = at[1];
    rows_ = tables.strip_rows + kernels::kEdgeStripFields * at[2];
    rows = at[3];
  }
  StripRow row(int64_t i) const { return StripRow(rows_ + kernels::kEdgeStripFields * i); }

  int64_t first, keys, rows;

 private:
  const int32_t* rows_;
};

/// Computes strips in their order. Scores and all that is made of them have one row of kRows lanes
/// for each row of the strip: lanes are keys.
template <class T>
class StripTask {
 public:
  StripTask(const kernels::EdgeAttentionInputs& in, bool backward, Slab<T>& slab)
      : dropout_(in.dropout),
        d_(in.q.dim(3)),
        width_(in.v.dim(3)),
        columns_(backward ? d_ : width_),
        scale_(static_cast<T>(in.scale)) {
    if (in.strip_slots == 0) return;
    chunk_ = slab.take(kRows * std::max(d_, width_));
    k_lanes_ = slab.take(kRows * d_);
    scores_ = slab.take(kMostRows * kRows);
    keep_ = slab.take(in.dropout.p > 0 ? kMostRows * kRows : 0);
    keep_row_ = slab.take(in.dropout.p > 0 ? KeepRow<T>::kSize + kRows : 0);
    sums_ = slab.take(in.strip_slots * columns_);
    tops_ = slab.take(in.strip_slots);
    totals_ = slab.take(in.strip_slots);
    if (!backward) return;
    v_lanes_ = slab.take(kRows * width_);
    slopes_ = slab.take(kMostRows * kRows);
    deltas_ = slab.take(in.strip_slots);
  }

  void forward(const Head<T>& head, const Pieces<T>& pieces, const Strip& strip) {
    begin(head, strip);
    for (int64_t i = 0; i < strip.rows; ++i) {
      const StripRow x = strip.row(i);
      if (!x.begins) continue;
      std::fill_n(sums_ + x.slot * columns_, columns_, T{0});
      tops_[x.slot] = kMinusInfinity;
      totals_[x.slot] = 0;
    }
    find_scores();
    for (int64_t i = 0; i < strip.rows; ++i) turn_into_weights(strip.row(i), scores_ + i * kRows);
    if (dropout_.p > 0) draw(scores_, scores_);
    mix(scores_, head.v);
    for (int64_t i = 0; i < strip.rows; ++i) {
      const StripRow x = strip.row(i);
      if (x.ends) finish(x, pieces);
    }
  }

  void backward(const Head<T>& head, const Pieces<T>& pieces, const Strip& strip) {
    begin(head, strip);
    chunk_as_lanes(head.v, width_, v_lanes_);
    for (int64_t i = 0; i < strip.rows; ++i) {
      const StripRow x = strip.row(i);
      if (!x.begins) continue;
      std::fill_n(sums_ + x.slot * columns_, columns_, T{0});
      tops_[x.slot] = head.lse[x.row];
      deltas_[x.slot] = dot(head.dout[x.row], head.out[x.row], width_);
    }
    find_scores();
    find_slopes();
    add_to_keys();
    mix(slopes_, head.k);
    for (int64_t i = 0; i < strip.rows; ++i) {
      const StripRow x = strip.row(i);
      if (x.ends) finish_gradient(x, pieces);
    }
  }

 private:
  static constexpr int64_t kMostRows = kernels::kEdgeStripRows;
  static constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();
  static_assert(kernels::kEdgeStripKeys == kRows);

  void begin(const Head<T>& head, const Strip& strip) {
    head_ = &head;
    strip_ = &strip;
    chunk_as_lanes(head.k, d_, k_lanes_);
  }

  void chunk_as_lanes(const Rows<T>& x, int64_t width, T* lanes) {
    if (strip_->keys == kRows) return as_lanes(x[strip_->first], x.stride, width, lanes);
    for (int64_t i = 0; i < strip_->keys; ++i) {
      std::copy_n(x[strip_->first + i], width, chunk_ + i * width);
    }
    std::fill(chunk_ + strip_->keys * width, chunk_ + kRows * width, T{0});
    as_lanes(chunk_, width, width, lanes);
  }

  /// Computes the scores; pairs that do not exist get -inf.
  void find_scores() {
    const Tag<T> tag;
    const Strip& strip = *strip_;
    const Rows<T> q = head_->q;
    const auto scale = hn::Set(tag, scale_), hidden = hn::Set(tag, kMinusInfinity);
    score_block(
        k_lanes_, strip.rows, d_, [&](int64_t i) { return q[strip.row(i).row]; },
        [&](int64_t key, int64_t i, hn::Vec<Tag<T>> score) {
          const StripRow x = strip.row(i);
          const auto there = mask_of<T>(x.keys, key);
          hn::Store(hn::IfThenElse(there, hn::Mul(score, scale), hidden), tag,
                    scores_ + i * kRows + key);
        });
  }

  /// Turns the scores of a row into exp(score - largest so far), and scales what was summed with
  /// an earlier one.
  void turn_into_weights(const StripRow& x, T* scores) {
    const Tag<T> tag;
    auto most = hn::Load(tag, scores);
    for (int64_t key = kWidth<T>; key < kRows; key += kWidth<T>) {
      most = hn::Max(most, hn::Load(tag, scores + key));
    }
    T& top = tops_[x.slot];
    const T above = std::max(top, simd::max_lanes(tag, most));
    if (above > top) {
      const T factor = std::exp(top - above);
      totals_[x.slot] *= factor;
      T* const sum = sums_ + x.slot * columns_;
      if (!x.begins) multiply(factor, sum);
      top = above;
    }
    auto total = hn::Zero(tag);
    for (int64_t key = 0; key < kRows; key += kWidth<T>) {
      const auto p =
          simd::exp_nonpositive(tag, hn::Sub(hn::Load(tag, scores + key), hn::Set(tag, top)));
      total = hn::Add(total, p);
      hn::Store(p, tag, scores + key);
    }
    totals_[x.slot] += simd::sum_lanes(tag, total);
  }
  void multiply(T factor, T* sum) const {
    for (int64_t c = 0; c < columns_; ++c) sum[c] *= factor;
  }

  /// to = from * the factors of the pairs that are kept.
  void draw(const T* from, T* to) {
    const KeepRow<T> keep(dropout_, head_->number);
    HeadSegment all;
    all.keys = std::numeric_limits<int32_t>::max();
    const int64_t start = strip_->first % 4;
    for (int64_t i = 0; i < strip_->rows; ++i) {
      keep.fill(strip_->row(i).row, all, strip_->first - start, start, start + kRows, keep_row_);
      for (int64_t c = 0; c < kRows; ++c) {
        keep_[i * kRows + c] = keep_row_[start + c];
        to[i * kRows + c] = from[i * kRows + c] * keep_row_[start + c];
      }
    }
  }

  /// Adds sum over keys of weights[row][key] x[key] to the sums of all rows.
  void mix(const T* weights, const Rows<T>& x) {
    const Strip& strip = *strip_;
    for (int64_t i = 0; i < strip.rows; i += kTileRows) {
      const int64_t n = std::min<int64_t>(kTileRows, strip.rows - i);
      uint32_t keys = 0;
      for (int64_t r = i; r < i + n; ++r) keys |= strip.row(r).keys;
      const int from = std::countr_zero(keys), end = std::bit_width(keys);
      const T* const at = weights + i * kRows + from;
      const int64_t first = strip.first + from;
      with_constant<kTileRows>(n, [&](auto results) {
        add_terms<T, decltype(results)::value>(
            end - from,
            [&](int64_t c) {
              return Term<T>{at + c, x[first + c]};
            },
            kRows, columns_, [&](int r) { return sums_ + strip.row(i + r).slot * columns_; });
      });
    }
  }

  /// Turns scores into probabilities as they are used, and finds the gradients of the products of
  /// queries and keys.
  void find_slopes() {
    const Tag<T> tag;
    const Strip& strip = *strip_;
    const Rows<T> dout = head_->dout;
    const auto scale = hn::Set(tag, scale_);
    score_block(
        v_lanes_, strip.rows, width_, [&](int64_t i) { return dout[strip.row(i).row]; },
        [&](int64_t key, int64_t i, hn::Vec<Tag<T>> slope) {
          hn::Store(slope, tag, slopes_ + i * kRows + key);
        });
    if (dropout_.p > 0) draw(slopes_, slopes_);
    for (int64_t i = 0; i < strip.rows; ++i) {
      const int64_t slot = strip.row(i).slot;
      const auto lse = hn::Set(tag, tops_[slot]), delta = hn::Set(tag, deltas_[slot]);
      for (int64_t at = i * kRows; at < (i + 1) * kRows; at += kWidth<T>) {
        auto p = simd::exp_nonpositive(tag, hn::Sub(hn::Load(tag, scores_ + at), lse));
        const auto slope = hn::Mul(hn::Mul(p, scale), hn::Sub(hn::Load(tag, slopes_ + at), delta));
        if (dropout_.p > 0) p = hn::Mul(p, hn::Load(tag, keep_ + at));
        hn::Store(slope, tag, slopes_ + at);
        hn::Store(p, tag, scores_ + at);
      }
    }
  }

  /// Adds to the gradients of keys and values.
  void add_to_keys() {
    const Strip& strip = *strip_;
    const Head<T>& head = *head_;
    for (int64_t c = 0; c < strip.keys; c += kTileRows) {
      const int64_t n =
          rows_of_tile_.find(strip.rows, c, [&](int64_t i) { return strip.row(i).keys; });
      const int32_t* const rows = rows_of_tile_.numbers();
      const int64_t key = strip.first + c;
      with_constant<kTileRows>(std::min<int64_t>(kTileRows, strip.keys - c), [&](auto results) {
        const auto add = [&](const T* weights, const Rows<T>& x, int64_t width, const Rows<T>& to) {
          add_terms<T, decltype(results)::value>(
              n,
              [&](int64_t i) {
                return Term<T>{weights + rows[i] * kRows + c, x[strip.row(rows[i]).row]};
              },
              1, width, [&](int r) { return to[key + r]; });
        };
        add(scores_, head.dout, width_, head.dv);
        add(slopes_, head.q, d_, head.dk);
      });
    }
  }

  void finish(const StripRow& x, const Pieces<T>& pieces) const {
    const T* const sum = sums_ + x.slot * columns_;
    const T top = tops_[x.slot], total = totals_[x.slot];
    if (x.piece < 0) {
      for (int64_t c = 0; c < columns_; ++c) head_->out[x.row][c] = sum[c] / total;
      head_->lse[x.row] = top + std::log(total);
      return;
    }
    std::copy_n(sum, columns_, pieces.sums + x.piece * columns_);
    pieces.tops[x.piece] = top;
    pieces.totals[x.piece] = total;
  }

  void finish_gradient(const StripRow& x, const Pieces<T>& pieces) const {
    const T* const sum = sums_ + x.slot * columns_;
    std::copy_n(sum, columns_, x.piece < 0 ? head_->dq[x.row] : pieces.sums + x.piece * columns_);
  }

  const kernels::AttentionDropout dropout_;
  const int64_t d_, width_, columns_;
  const T scale_;
  T* chunk_ = nullptr;                         // keys or values, with zeros for missing ones
  T *k_lanes_ = nullptr, *v_lanes_ = nullptr;  // [column][key]
  T *scores_ = nullptr, *slopes_ = nullptr;    // [row][key]; probabilities later
  T *keep_ = nullptr, *keep_row_ = nullptr;
  // By slot: sums of values or gradients of queries; largest scores or lse; sums of weights.
  T *sums_ = nullptr, *tops_ = nullptr, *totals_ = nullptr, *deltas_ = nullptr;
  const Head<T>* head_ = nullptr;
  const Strip* strip_ = nullptr;
  TileNumbers<kMostRows> rows_of_tile_;
};

/// out and lse of a row from its pieces.
template <class T>
void join_pieces(const Pieces<T>& pieces, int64_t first, int64_t count, int64_t width, T* out,
                 T& lse) {
  T top = pieces.tops[first], total = 0;
  for (int64_t i = first + 1; i < first + count; ++i) top = std::max(top, pieces.tops[i]);
  std::fill_n(out, width, T{0});
  for (int64_t i = first; i < first + count; ++i) {
    const T factor = std::exp(pieces.tops[i] - top);
    total += factor * pieces.totals[i];
    for (int64_t c = 0; c < width; ++c) out[c] += factor * pieces.sums[i * width + c];
  }
  for (int64_t c = 0; c < width; ++c) out[c] /= total;
  lse = top + std::log(total);
}

}  // namespace edge
}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
