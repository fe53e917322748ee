// Rows of edge attention one by one, for one SIMD target: rows with long runs or few neighbours.

#if defined(LONGSPAN_CPU_EDGE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_EDGE_ROWS_INL_H_
#undef LONGSPAN_CPU_EDGE_ROWS_INL_H_
#else
#define LONGSPAN_CPU_EDGE_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include "cpu/edge_attention/block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {
namespace edge {

/// Computes rows one by one, in pieces of keys with a running maximum.
template <class T>
class RowTask {
 public:
  RowTask(const kernels::EdgeAttentionInputs& in, Slab<T>& slab)
      : tables_(in.edges),
        dropout_(in.dropout),
        d_(in.q.dim(3)),
        width_(in.v.dim(3)),
        q_(slab.take(d_)),
        sum_(slab.take(std::max(d_, width_))),
        scores_(slab.take(kPiece)),
        slopes_(slab.take(kPiece)),
        keep_(slab.take(KeepRow<T>::kSize + kPiece)) {}

  void forward(const Head<T>& head, const Block& block) {
    for (int64_t r = 0; r < block.rows; ++r) {
      const int64_t row = block.first + r;
      load(head, row);
      T top = kMinusInfinity, total = 0;
      std::fill_n(sum_, width_, T{0});
      for_pieces(block, r, [&] {
        find_scores(head, row);
        const T above = std::max(top, largest());
        const T factor = top > kMinusInfinity ? std::exp(top - above) : T{0};
        for (int64_t c = 0; c < width_; ++c) sum_[c] *= factor;
        total = total * factor + turn_into_weights(above);
        top = above;
        if (dropout_.p > 0) multiply(scores_, keep_);
        for_runs([&](int64_t key, int64_t i, int64_t n) {
          add_weighted(scores_ + i, 1, head.v[key], head.v.stride, n, width_, sum_);
        });
      });
      const T inverse = total > 0 ? 1 / total : T{0};
      T* const y = head.out[row];
      for (int64_t c = 0; c < width_; ++c) y[c] = sum_[c] * inverse;
      head.lse[row] = total > 0 ? top + std::log(total) : kMinusInfinity;
    }
  }

  void backward(const Head<T>& head, const Block& block) {
    for (int64_t r = 0; r < block.rows; ++r) {
      const int64_t row = block.first + r;
      load(head, row);
      const T* const g = head.dout[row];
      const T delta = dot(g, head.out[row], width_), lse = head.lse[row];
      std::fill_n(sum_, d_, T{0});
      for_pieces(block, r, [&] {
        find_scores(head, row);
        turn_into_weights(lse);
        dots(g, head.v.base, head.v.stride, keys_, count_, width_, slopes_);
        if (dropout_.p > 0) multiply(slopes_, keep_);
        for (int64_t i = 0; i < count_; ++i) slopes_[i] = scores_[i] * (slopes_[i] - delta);
        if (dropout_.p > 0) multiply(scores_, keep_);
        add_to_keys(head, g);
        for_runs([&](int64_t key, int64_t i, int64_t n) {
          add_weighted(slopes_ + i, 1, head.k[key], head.k.stride, n, d_, sum_);
        });
        if (head.relation != nullptr) add_to_labels(head);
      });
      T* const y = head.dq[row];
      for (int64_t c = 0; c < d_; ++c) y[c] = sum_[c] * head.scale;
    }
  }

 private:
  static constexpr int64_t kPiece = 256;
  static constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();

  void load(const Head<T>& head, int64_t row) {
    const T* const from = head.q[row];
    for (int64_t c = 0; c < d_; ++c) q_[c] = from[c] * head.scale;
  }

  /// Calls f() for pieces of the keys of a row, which are then in keys_ and labels_.
  template <class F>
  void for_pieces(const Block& block, int64_t r, F&& f) {
    count_ = 0;
    for (int64_t o = 0; o < block.runs; ++o) {
      const int32_t* const run = block.run(tables_, r, o);
      for (int32_t t = 0; t < run[1];) {
        const auto n = static_cast<int32_t>(std::min<int64_t>(run[1] - t, kPiece - count_));
        for (int32_t i = 0; i < n; ++i) {
          keys_[count_ + i] = run[0] + t + i;
          labels_[count_ + i] = run[2] < 0 ? -1 - run[2] : tables_.labels[run[2] + t + i];
        }
        count_ += n;
        t += n;
        if (count_ < kPiece) continue;
        f();
        count_ = 0;
      }
    }
    if (count_ > 0) f();
  }

  /// Calls f(first key, its place in the piece, number) for runs of consecutive keys.
  template <class F>
  void for_runs(F&& f) const {
    for (int64_t i = 0; i < count_;) {
      int64_t n = 1;
      while (i + n < count_ && keys_[i + n] == keys_[i] + n) ++n;
      f(keys_[i], i, n);
      i += n;
    }
  }

  void find_scores(const Head<T>& head, int64_t row) {
    dots(q_, head.k.base, head.k.stride, keys_, count_, d_, scores_);
    if (head.relation != nullptr) {
      int32_t known = -1;  // the label whose score `of_label` is
      T of_label = 0;
      for (int64_t i = 0; i < count_; ++i) {
        if (labels_[i] != known) of_label = dot(q_, head.relation + labels_[i] * d_, d_);
        known = labels_[i];
        scores_[i] += of_label;
      }
    }
    if (dropout_.p > 0) draw(head, row);
  }

  void draw(const Head<T>& head, int64_t row) {
    const KeepRow<T> keep(dropout_, head.number);
    HeadSegment all;
    all.keys = std::numeric_limits<int32_t>::max();
    // Later runs overwrite what was written beyond earlier ones.
    for_runs([&](int64_t key, int64_t i, int64_t n) {
      alignas(64) T factors[KeepRow<T>::kSize + kPiece];
      const int64_t start = key % 4;
      keep.fill(row, all, key - start, start, start + n, factors);
      std::copy_n(factors + start, n, keep_ + i);
    });
  }

  T largest() const { return *std::max_element(scores_, scores_ + count_); }

  /// Turns scores s into exp(s - top), and returns their sum.
  T turn_into_weights(T top) {
    const hn::ScalableTag<T> d;
    auto sum = hn::Zero(d);
    simd::for_vectors(d, static_cast<size_t>(count_), [&](size_t i, size_t left) {
      const auto x = hn::Sub(simd::load(d, scores_ + i, left), hn::Set(d, top));
      auto p = simd::exp_nonpositive(d, x);
      if (left < hn::Lanes(d)) p = hn::IfThenElseZero(hn::FirstN(d, left), p);
      simd::store(p, d, scores_ + i, left);
      sum = hn::Add(sum, p);
    });
    return simd::sum_lanes(d, sum);
  }

  void multiply(T* x, const T* by) {
    for (int64_t i = 0; i < count_; ++i) x[i] *= by[i];
  }

  void add_to_keys(const Head<T>& head, const T* g) {
    for (int64_t i = 0; i < count_; ++i) {
      add_weighted(scores_ + i, 1, g, 0, 1, width_, head.dv[keys_[i]]);
      add_weighted(slopes_ + i, 1, q_, 0, 1, d_, head.dk[keys_[i]]);
    }
  }

  void add_to_labels(const Head<T>& head) {
    for (int64_t i = 0; i < count_;) {
      const int32_t label = labels_[i];
      T sum = 0;
      for (; i < count_ && labels_[i] == label; ++i) sum += slopes_[i];
      add_weighted(&sum, 1, head.relation + label * d_, d_, 1, d_, sum_);
      add_weighted(&sum, 1, q_, 0, 1, d_, head.drelation + label * d_);
    }
  }

  const Tables tables_;
  const kernels::AttentionDropout dropout_;
  const int64_t d_, width_;
  T *q_, *sum_, *scores_, *slopes_, *keep_;
  int64_t count_ = 0;
  int32_t keys_[kPiece], labels_[kPiece];
};

}  // namespace edge
}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
