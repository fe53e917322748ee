// Edge attention of single rows, whose keys differ too much from other rows' keys, for one SIMD
// target.

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
        for_parts([&](const Part& part) {
          add_weighted(scores_ + part.at, 1, head.v[part.key], head.v.stride, part.n, width_, sum_);
        });
      });
      const T inverse = total == 0 ? T{0} : 1 / total;  // NaN stays NaN
      T* const y = head.out[row];
      for (int64_t c = 0; c < width_; ++c) y[c] = sum_[c] * inverse;
      head.lse[row] = total == 0 ? kMinusInfinity : top + std::log(total);
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
        for_parts([&](const Part& part) {
          dots(g, head.v[part.key], head.v.stride, part.n, width_, slopes_ + part.at);
        });
        if (dropout_.p > 0) multiply(slopes_, keep_);
        for (int64_t i = 0; i < count_; ++i) slopes_[i] = scores_[i] * (slopes_[i] - delta);
        if (dropout_.p > 0) multiply(scores_, keep_);
        add_to_keys(head, g);
        for_parts([&](const Part& part) {
          add_weighted(slopes_ + part.at, 1, head.k[part.key], head.k.stride, part.n, d_, sum_);
          if (head.relation != nullptr) add_to_labels(head, part);
        });
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

  /// Consecutive keys of a piece, with a list of labels, or one label for all (labels null).
  struct Part {
    int64_t key, at, n;
    const int32_t* labels;
    int32_t label;
    int32_t label_of(int64_t i) const { return labels == nullptr ? label : labels[i]; }
  };

  /// Calls f() for pieces of the keys of a row, which are then in parts_.
  template <class F>
  void for_pieces(const Block& block, int64_t r, F&& f) {
    count_ = parts_used_ = 0;
    for (int64_t o = 0; o < block.runs; ++o) {
      const int32_t* const run = block.run(r, o);
      for (int64_t t = 0; t < run[1];) {
        const int64_t n = std::min<int64_t>(run[1] - t, kPiece - count_);
        const bool list = run[2] >= 0;
        parts_[parts_used_++] = {run[0] + t, count_, n,
                                 list ? tables_.labels + run[2] + t : nullptr,
                                 list ? 0 : -1 - run[2]};
        count_ += n;
        t += n;
        if (count_ < kPiece) continue;
        f();
        count_ = parts_used_ = 0;
      }
    }
    if (count_ > 0) f();
  }
  template <class F>
  void for_parts(F&& f) const {
    for (int64_t i = 0; i < parts_used_; ++i) f(parts_[i]);
  }

  void find_scores(const Head<T>& head, int64_t row) {
    for_parts([&](const Part& part) {
      T* const scores = scores_ + part.at;
      dots(q_, head.k[part.key], head.k.stride, part.n, d_, scores);
      if (head.relation == nullptr) return;
      int32_t known = -1;  // the label whose score `of_label` is
      T of_label = 0;
      for (int64_t i = 0; i < part.n; ++i) {
        const int32_t label = part.label_of(i);
        if (label != known) of_label = dot(q_, head.relation + label * d_, d_);
        known = label;
        scores[i] += of_label;
      }
    });
    if (dropout_.p > 0) draw(head, row);
  }

  void draw(const Head<T>& head, int64_t row) {
    const KeepRow<T> keep(dropout_, head.number);
    HeadSegment all;
    all.keys = std::numeric_limits<int32_t>::max();
    for_parts([&](const Part& part) {
      alignas(64) T factors[KeepRow<T>::kSize + kPiece];
      const int64_t start = part.key % 4;
      keep.fill(row, all, part.key - start, start, start + part.n, factors);
      std::copy_n(factors + start, part.n, keep_ + part.at);
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
    for_parts([&](const Part& part) {
      add_to_each(scores_ + part.at, g, part.n, width_, head.dv[part.key], head.dv.stride);
      add_to_each(slopes_ + part.at, q_, part.n, d_, head.dk[part.key], head.dk.stride);
    });
  }

  void add_to_labels(const Head<T>& head, const Part& part) {
    for (int64_t i = 0; i < part.n;) {
      const int32_t label = part.label_of(i);
      T sum = 0;
      for (; i < part.n && part.label_of(i) == label; ++i) sum += slopes_[part.at + i];
      add_to_each(&sum, head.relation + label * d_, 1, d_, sum_, 0);
      add_to_each(&sum, q_, 1, d_, head.drelation + label * d_, 0);
    }
  }

  const Tables tables_;
  const kernels::AttentionDropout dropout_;
  const int64_t d_, width_;
  T *q_, *sum_, *scores_, *slopes_, *keep_;
  int64_t count_ = 0, parts_used_ = 0;
  Part parts_[kPiece];
};

}  // namespace edge
}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
