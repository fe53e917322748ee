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
#include <bit>
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
  int64_t bytes = 0;         // of keys and values
  T scale = 1;
};

/// The tables of a layout.
struct Tables {
  explicit Tables(const kernels::EdgeTables& t)
      : blocks(t.blocks.as<int32_t>()),
        keys(t.keys.as<int32_t>()),
        groups(t.groups.as<int32_t>()),
        used_labels(t.used_labels.as<int32_t>()),
        strip_rows(t.strip_rows.as<int32_t>()),
        runs(t.runs.as<int32_t>()),
        labels(t.labels.as<int32_t>()) {}
  const int32_t *blocks, *keys, *groups, *used_labels, *strip_rows, *runs, *labels;

  bool is_strip(int64_t block) const {
    return blocks[kernels::kEdgeBlockFields * block] == kernels::kEdgeStrip;
  }
};

/// Rows of a block that have a run in common: its keys and labels, as numbers in the block.
struct Group {
  int64_t key, keys, label;
  int64_t step;  ///< from a key's label to the next key's
  uint32_t rows;
};

/// One block of rows of a layout.
class Block {
 public:
  Block(const Tables& tables, int64_t i) : tables_(tables) {
    const int32_t* const at = tables.blocks + kernels::kEdgeBlockFields * i + 1;
    first = at[0];
    rows = at[1];
    first_run_ = at[2];
    runs = at[3];
    keys_ = tables.keys + 2 * at[4];
    keys = at[5];
    groups_ = tables.groups + 5 * at[6];
    groups = at[7];
    labels_ = tables.used_labels + at[8];
    labels = at[9];
  }

  bool together() const { return keys > 0; }
  /// Run o of row r.
  const int32_t* run(int64_t r, int64_t o) const {
    return tables_.runs + 3 * (first_run_ + r * runs + o);
  }
  /// The rows that attend to key i are bits.
  int64_t key(int64_t i) const { return keys_[2 * i]; }
  uint32_t rows_of_key(int64_t i) const { return static_cast<uint32_t>(keys_[2 * i + 1]); }
  int64_t label(int64_t i) const { return labels_[i]; }
  Group group(int64_t i) const {
    const int32_t* const x = groups_ + 5 * i;
    return {x[0], x[1], x[2], x[3], static_cast<uint32_t>(x[4])};
  }

  int64_t first, rows, runs;
  int64_t keys, groups, labels;

 private:
  const Tables& tables_;
  int64_t first_run_;
  const int32_t *keys_, *groups_, *labels_;
};

/// Asks the second-level cache for what a block reads and writes, but for the keys of the block
/// before it.
template <class T>
void prefetch(const Head<T>& head, const Block& block, const Block& before) {
  const auto ask = [](const Rows<T>& x, int64_t row, int64_t width) {
    if (x.base == nullptr) return;
    const auto* const at = reinterpret_cast<const char*>(x[row]);
    for (int64_t b = 0; b < width * static_cast<int64_t>(sizeof(T)); b += 64) {
      __builtin_prefetch(at + b, 0, 2);
      asm volatile("");  // see prefetch_bytes()
    }
  };
  for (int64_t row = block.first; row < block.first + block.rows; ++row) {
    ask(head.q, row, head.d);
    ask(head.dout, row, head.width);
    if (head.dout.base != nullptr) ask(head.out, row, head.width);
  }
  for (int64_t i = 0, j = 0; i < block.keys; ++i) {
    const int64_t key = block.key(i);
    while (j < before.keys && before.key(j) < key) ++j;
    if (j < before.keys && before.key(j) == key) continue;
    for (const Rows<T>* x : {&head.k, &head.dk}) ask(*x, key, head.d);
    for (const Rows<T>* x : {&head.v, &head.dv}) ask(*x, key, head.width);
  }
}

/// Returns which lanes of a vector have their bit, for lanes from `first` on.
template <class T>
HWY_INLINE hn::Mask<Tag<T>> mask_of(uint32_t bits, int64_t first) {
  bits >>= first;
  uint8_t bytes[8];  // as many as are read at most
  std::memcpy(bytes, &bits, sizeof(bits));
  return hn::LoadMaskBits(Tag<T>(), bytes);
}

/// Transposes 4 x 4 numbers of f32.
template <class T>
HWY_INLINE void transpose_four(const T* from, int64_t stride, T* to) {
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

/// lanes[c][r] = rows[r * stride + c] for kRows rows of `width` columns.
template <class T>
void as_lanes(const T* rows, int64_t stride, int64_t width, T* lanes) {
  int64_t c = 0;
  if constexpr (sizeof(T) == 4) {
    for (; c + 4 <= width; c += 4) {
      for (int64_t r = 0; r < kRows; r += 4) {
        transpose_four(rows + r * stride + c, stride, lanes + c * kRows + r);
      }
    }
  }
  for (; c < width; ++c) {
    for (int64_t r = 0; r < kRows; ++r) lanes[c * kRows + r] = rows[r * stride + c];
  }
}

/// The numbers of what has one of the bits of a tile.
template <int64_t Most>
class TileNumbers {
 public:
  /// Finds which of n numbers have a bit from `first` on, and returns how many do.
  template <class Bits>
  int64_t find(int64_t n, int64_t first, Bits bits) {
    constexpr uint32_t kTile = (1U << kTileRows) - 1;
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
      numbers_[static_cast<size_t>(count)] = static_cast<int32_t>(i);
      count += (bits(i) >> first & kTile) != 0 ? 1 : 0;
    }
    return count;
  }
  const int32_t* numbers() const { return numbers_.data(); }

 private:
  std::array<int32_t, static_cast<size_t>(Most + 1)> numbers_;
};

/// Computes blocks of rows together. Scores and all that is made of them have one row of kRows
/// lanes for each key of the block.
template <class T>
class BlockTask {
 public:
  /// `backward`: whether backward() will be called, which needs more workspace.
  BlockTask(const kernels::EdgeAttentionInputs& in, bool backward, Slab<T>& slab)
      : dropout_(in.dropout),
        d_(in.q.dim(3)),
        width_(in.v.dim(3)),
        q_(slab.take(kRows * d_)),
        q_lanes_(slab.take(kRows * d_)),
        label_scores_(slab.take(in.relation ? in.block_labels * kRows : 0)),
        scores_(slab.take(in.block_keys * kRows)),
        keep_(slab.take(in.dropout.p > 0 ? in.block_keys * kRows : 0)),
        keep_row_(slab.take(in.dropout.p > 0 ? KeepRow<T>::kSize + in.block_keys : 0)),
        rows_(slab.take(kTileRows * std::max(d_, width_))) {
    if (!backward) return;
    slopes_ = slab.take(in.block_keys * kRows);
    dout_ = slab.take(kRows * width_);
    dout_lanes_ = slab.take(kRows * width_);
    label_slopes_ = slab.take(in.relation ? in.block_labels * kRows : 0);
  }

  void forward(const Head<T>& head, const Block& block) {
    head_ = &head;
    block_ = &block;
    load();
    find_scores();
    find_top();
    const Tag<T> tag;
    for (int64_t row = 0; row < kRows; row += kWidth<T>) {
      const auto top = hn::Load(tag, top_ + row);
      auto sum = hn::Zero(tag);
      for (int64_t c = 0; c < block.keys; ++c) {
        T* const at = scores_ + c * kRows + row;
        const auto p = simd::exp_nonpositive(tag, hn::Sub(hn::Load(tag, at), top));
        sum = hn::Add(sum, p);
        hn::Store(p, tag, at);
      }
      hn::Store(sum, tag, sum_ + row);
    }
    if (dropout_.p > 0) {
      draw();
      for (int64_t i = 0; i < block.keys * kRows; ++i) scores_[i] *= keep_[i];
    }
    for_tiles([&](int64_t first, int64_t rows) {
      mix_keys(scores_, head.v, width_, first);
      for (int64_t r = first; r < first + rows; ++r) {
        const T inverse = sum_[r] == 0 ? T{0} : 1 / sum_[r];  // NaN stays NaN
        copy_scaled(rows_ + (r - first) * width_, inverse, width_, head.out[block.first + r]);
        head.lse[block.first + r] =
            sum_[r] == 0 ? -std::numeric_limits<T>::infinity() : top_[r] + std::log(sum_[r]);
      }
    });
  }

  void backward(const Head<T>& head, const Block& block) {
    head_ = &head;
    block_ = &block;
    load();
    load_gradient();
    find_scores();
    if (dropout_.p > 0) draw();
    find_slopes();
    add_to_keys();
    if (head.relation != nullptr) sum_slopes_by_label();
    add_to_rows();
    if (head.relation != nullptr) add_to_labels();
  }

 private:
  static constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();

  /// Reads the rows.
  void load() {
    for (int64_t r = 0; r < block_->rows; ++r) {
      copy_scaled(head_->q[block_->first + r], head_->scale, d_, q_ + r * d_);
    }
    std::fill(q_ + block_->rows * d_, q_ + kRows * d_, T{0});
    as_lanes(q_, d_, d_, q_lanes_);
  }

  static void copy_scaled(const T* from, T factor, int64_t n, T* to) {
    for (int64_t c = 0; c < n; ++c) to[c] = from[c] * factor;
  }

  /// Computes the scores; pairs that do not exist get -inf.
  void find_scores() {
    const Tag<T> tag;
    const Block& block = *block_;
    const Rows<T> k = head_->k;
    T* const scores = scores_;
    const auto hidden = hn::Set(tag, kMinusInfinity);
    score_block(
        q_lanes_, block.keys, d_, [&](int64_t i) { return k[block.key(i)]; },
        [&](int64_t row, int64_t i, hn::Vec<Tag<T>> score) {
          const auto there = mask_of<T>(block.rows_of_key(i), row);
          hn::Store(hn::IfThenElse(there, score, hidden), tag, scores + i * kRows + row);
        });
    if (head_->relation == nullptr) return;
    const T* const relation = head_->relation;
    T* const label_scores = label_scores_;
    const int64_t d = d_;
    score_block(
        q_lanes_, block.labels, d, [&](int64_t i) { return relation + block.label(i) * d; },
        [&](int64_t row, int64_t i, hn::Vec<Tag<T>> score) {
          hn::Store(score, tag, label_scores + i * kRows + row);
        });
    for_labels([&](int64_t key, int64_t label, hn::Mask<Tag<T>> there) {
      const auto x = hn::IfThenElseZero(there, hn::Load(tag, label_scores + label));
      hn::Store(hn::Add(hn::Load(tag, scores + key), x), tag, scores + key);
    });
  }

  /// Calls f(place of a score, place of the score of its label, rows) for every vector of rows
  /// that have this label for the same key.
  template <class F>
  HWY_INLINE void for_labels(F f) const {
    for (int64_t i = 0; i < block_->groups; ++i) {
      const Group group = block_->group(i);
      for (int64_t row = 0; row < kRows; row += kWidth<T>) {
        const auto there = mask_of<T>(group.rows, row);
        int64_t key = group.key * kRows + row, label = group.label * kRows + row;
        for (int64_t t = 0; t < group.keys; ++t, key += kRows, label += group.step * kRows) {
          f(key, label, there);
        }
      }
    }
  }

  /// Finds the largest score of each row; 0 for a row without keys.
  void find_top() {
    const Tag<T> tag;
    for (int64_t row = 0; row < kRows; row += kWidth<T>) {
      auto top = hn::Set(tag, kMinusInfinity);
      for (int64_t c = 0; c < block_->keys; ++c) {
        top = hn::Max(top, hn::Load(tag, scores_ + c * kRows + row));
      }
      const auto none = hn::Eq(top, hn::Set(tag, kMinusInfinity));
      hn::Store(hn::IfThenZeroElse(none, top), tag, top_ + row);
    }
  }

  /// Draws which pairs are kept, with the factors of those.
  void draw() {
    const KeepRow<T> keep(dropout_, head_->number);
    std::fill_n(keep_, block_->keys * kRows, T{0});
    HeadSegment all;
    all.keys = std::numeric_limits<int32_t>::max();
    for (int64_t i = 0; i < block_->groups; ++i) {
      const Group group = block_->group(i);
      const int64_t key = block_->key(group.key), start = key % 4;
      for (int64_t r = 0; r < block_->rows; ++r) {
        if ((group.rows >> r & 1) == 0) continue;
        keep.fill(block_->first + r, all, key - start, start, start + group.keys, keep_row_);
        for (int64_t t = 0; t < group.keys; ++t) {
          keep_[(group.key + t) * kRows + r] = keep_row_[start + t];
        }
      }
    }
  }

  /// Calls f(first, rows) for tiles of rows.
  template <class F>
  void for_tiles(F&& f) const {
    for (int64_t r = 0; r < block_->rows; r += kTileRows) {
      f(r, std::min<int64_t>(kTileRows, block_->rows - r));
    }
  }

  /// rows_[i] = sum over keys of weights[key][first + i] x[key], for a tile of rows.
  void mix_keys(const T* weights, const Rows<T>& x, int64_t width, int64_t first) {
    const Block& block = *block_;
    const int64_t n =
        keys_of_tile_.find(block.keys, first, [&](int64_t i) { return block.rows_of_key(i); });
    std::fill_n(rows_, kTileRows * width, T{0});
    const int32_t* const keys = keys_of_tile_.numbers();
    weights += first;
    add_terms<T, kTileRows>(
        n,
        [&](int64_t i) {
          return Term<T>{weights + keys[i] * kRows, x[block.key(keys[i])]};
        },
        1, width, [&](int r) { return rows_ + r * width; });
  }

  /// to(i) += sum over the block's rows from .. end of weights[i][row] x[row], for n rows of `to`,
  /// at most a tile, which are distinct.
  template <class To>
  static void add_rows(const T* weights, const T* x, int64_t from, int64_t end, int64_t n,
                       int64_t width, To to) {
    weights += from;
    x += from * width;
    with_constant<kTileRows>(n, [&](auto results) {
      add_terms<T, decltype(results)::value>(
          end - from,
          [&](int64_t r) {
            return Term<T>{weights + r, x + r * width};
          },
          kRows, width, to);
    });
  }

  void load_gradient() {
    const int64_t rows = block_->rows;
    std::fill(dout_ + rows * width_, dout_ + kRows * width_, T{0});
    std::fill(delta_ + rows, delta_ + kRows, T{0});
    std::fill(lse_ + rows, lse_ + kRows, T{0});
    for (int64_t r = 0; r < rows; ++r) {
      const T* const from = head_->dout[block_->first + r];
      std::copy_n(from, width_, dout_ + r * width_);
      delta_[r] = dot(from, head_->out[block_->first + r], width_);
      const T lse = head_->lse[block_->first + r];
      lse_[r] = lse == kMinusInfinity ? T{0} : lse;
    }
    as_lanes(dout_, width_, width_, dout_lanes_);
  }

  /// Turns scores into probabilities as they are used, and finds the gradients of the scores.
  void find_slopes() {
    const Tag<T> tag;
    const Block& block = *block_;
    const Rows<T> v = head_->v;
    T *const scores = scores_, *const slopes = slopes_;
    const T* const keep = dropout_.p > 0 ? keep_ : nullptr;
    const T *const deltas = delta_, *const sums = lse_;
    score_block(
        dout_lanes_, block.keys, width_, [&](int64_t i) { return v[block.key(i)]; },
        [&](int64_t row, int64_t i, hn::Vec<Tag<T>> slope) {
          const int64_t at = i * kRows + row;
          const auto lse = hn::Load(tag, sums + row), delta = hn::Load(tag, deltas + row);
          const auto p = simd::exp_nonpositive(tag, hn::Sub(hn::Load(tag, scores + at), lse));
          auto used = p;
          if (keep != nullptr) {
            slope = hn::Mul(slope, hn::Load(tag, keep + at));
            used = hn::Mul(p, hn::Load(tag, keep + at));
          }
          hn::Store(hn::Mul(p, hn::Sub(slope, delta)), tag, slopes + at);
          hn::Store(used, tag, scores + at);
        });
  }

  /// Adds to the gradients of keys and values, for as many keys at a time as a tile has rows.
  void add_to_keys() {
    const Block& block = *block_;
    for (int64_t c = 0; c < block.keys; c += kTileRows) {
      const int64_t n = std::min<int64_t>(kTileRows, block.keys - c);
      uint32_t rows = 0;
      for (int64_t i = c; i < c + n; ++i) rows |= block.rows_of_key(i);
      const int from = std::countr_zero(rows), end = std::bit_width(rows);
      const auto to = [&](const Rows<T>& x) {
        return [&, c](int64_t i) { return x[block.key(c + i)]; };
      };
      add_rows(scores_ + c * kRows, dout_, from, end, n, width_, to(head_->dv));
      add_rows(slopes_ + c * kRows, q_, from, end, n, d_, to(head_->dk));
    }
  }

  void sum_slopes_by_label() {
    const Tag<T> tag;
    std::fill_n(label_slopes_, block_->labels * kRows, T{0});
    const T* const slopes = slopes_;
    T* const sums = label_slopes_;
    for_labels([&](int64_t key, int64_t label, hn::Mask<Tag<T>> there) {
      const auto x = hn::IfThenElseZero(there, hn::Load(tag, slopes + key));
      hn::Store(hn::Add(hn::Load(tag, sums + label), x), tag, sums + label);
    });
  }

  /// Writes the gradients of queries.
  void add_to_rows() {
    const Block& block = *block_;
    const T* const relation = head_->relation;
    for_tiles([&](int64_t first, int64_t rows) {
      mix_keys(slopes_, head_->k, d_, first);
      if (relation != nullptr) {
        const T* const weights = label_slopes_ + first;
        add_terms<T, kTileRows>(
            block.labels,
            [&](int64_t i) {
              return Term<T>{weights + i * kRows, relation + block.label(i) * d_};
            },
            1, d_, [&](int r) { return rows_ + r * d_; });
      }
      for (int64_t r = first; r < first + rows; ++r) {
        copy_scaled(rows_ + (r - first) * d_, head_->scale, d_, head_->dq[block.first + r]);
      }
    });
  }

  /// Adds to the gradient of the relation table.
  void add_to_labels() {
    const Block& block = *block_;
    for (int64_t i = 0; i < block.labels;) {
      const int64_t n = distinct_labels(i);
      add_rows(label_slopes_ + i * kRows, q_, 0, block.rows, n, d_,
               [&](int64_t j) { return head_->drelation + block.label(i + j) * d_; });
      i += n;
    }
  }

  /// Returns how many labels from the i-th on, at most a tile, are distinct.
  int64_t distinct_labels(int64_t i) const {
    const int64_t most = std::min<int64_t>(kTileRows, block_->labels - i);
    for (int64_t n = 1; n < most; ++n) {
      for (int64_t j = 0; j < n; ++j) {
        if (block_->label(i + j) == block_->label(i + n)) return n;
      }
    }
    return most;
  }

  const kernels::AttentionDropout dropout_;
  const int64_t d_, width_;
  T *q_, *q_lanes_;  // scaled: [row][d], [d][row]
  T* label_scores_;  // [label][row]
  T* scores_;        // [key][row]; probabilities later
  T *keep_, *keep_row_;
  T* rows_;  // [kTileRows][columns]: sums of a tile
  T *slopes_ = nullptr, *dout_ = nullptr, *dout_lanes_ = nullptr, *label_slopes_ = nullptr;
  alignas(64) T top_[kRows], sum_[kRows], lse_[kRows], delta_[kRows];
  const Head<T>* head_ = nullptr;
  const Block* block_ = nullptr;
  TileNumbers<kernels::kEdgeBlockKeys> keys_of_tile_;
};

}  // namespace edge
}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
