// The products of edge attention, for one SIMD target: scores of a block of rows, whose lanes are
// rows, and sums of vectors, whose lanes are columns.

#if defined(LONGSPAN_CPU_EDGE_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_EDGE_PRODUCTS_INL_H_
#undef LONGSPAN_CPU_EDGE_PRODUCTS_INL_H_
#else
#define LONGSPAN_CPU_EDGE_PRODUCTS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "core/kernels/edge_attention.h"
#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {
namespace edge {

namespace hn = hwy::HWY_NAMESPACE;

/// Rows of a block, which are the lanes of its scores.
inline constexpr int64_t kRows = kernels::kEdgeBlockRows;

template <class T>
using Tag = hn::CappedTag<T, static_cast<size_t>(kRows)>;
template <class T>
inline constexpr int64_t kWidth = static_cast<int64_t>(hn::MaxLanes(Tag<T>()));

/// scores[key][row] = q[., row] . x[key] for `Keys` keys and the rows of one vector.
///   q  [d][kRows]; x [keys][stride]; scores [keys][kRows]
template <int Keys, class T>
HWY_INLINE void score_keys(const T* q, const T* x, int64_t stride, int64_t d, T* scores) {
  const Tag<T> tag;
  hn::Vec<Tag<T>> sum[Keys];
  for (int i = 0; i < Keys; ++i) sum[i] = hn::Zero(tag);
  for (int64_t c = 0; c < d; ++c) {
    const auto column = hn::Load(tag, q + c * kRows);
    for (int i = 0; i < Keys; ++i) {
      sum[i] = hn::MulAdd(column, hn::Set(tag, x[i * stride + c]), sum[i]);
    }
  }
  for (int i = 0; i < Keys; ++i) hn::Store(sum[i], tag, scores + i * kRows);
}

/// The same for n keys and all rows. The bits of a score do not depend on the other keys.
template <class T>
void score_block(const T* q, const T* x, int64_t stride, int64_t n, int64_t d, T* scores) {
  for (int64_t row = 0; row < kRows; row += kWidth<T>) {
    int64_t key = 0;
    const auto at = [&](int64_t i) { return x + i * stride; };
    for (; key + 8 <= n; key += 8) {
      score_keys<8>(q + row, at(key), stride, d, scores + key * kRows + row);
    }
    if (key + 4 <= n) {
      score_keys<4>(q + row, at(key), stride, d, scores + key * kRows + row);
      key += 4;
    }
    if (key + 2 <= n) {
      score_keys<2>(q + row, at(key), stride, d, scores + key * kRows + row);
      key += 2;
    }
    if (key < n) score_keys<1>(q + row, at(key), stride, d, scores + key * kRows + row);
  }
}

/// Weighted rows: n of them, `stride` apart. The weight of row t for result r is
/// weights[r * result_step + t * term_step], with the steps of the call.
template <class T>
struct Terms {
  const T* weights;
  const T* rows;
  int64_t stride, n;
};

/// Vectors of a tile of results: with their weights and rows they fit the registers.
template <class T>
inline constexpr int kTileVectors = HWY_LANES(T) * sizeof(T) >= 64 ? 4 : 2;
inline constexpr int kTileRows = 4;

/// Adds terms to `Results` rows of `Vectors` vectors, which begin at y(r). Reads and writes columns
/// [c, c + ...), the last vector `left` of them.
template <int Results, int Vectors, class T, class Y>
HWY_INLINE void add_tile(const Terms<T>* terms, int64_t count, int64_t result_step,
                         int64_t term_step, int64_t c, size_t left, Y y) {
  const hn::ScalableTag<T> d;
  constexpr auto kLane = static_cast<int64_t>(hn::MaxLanes(d));
  const auto columns = [&](int v) { return v + 1 < Vectors ? static_cast<size_t>(kLane) : left; };
  hn::Vec<decltype(d)> sum[Results][Vectors];
  for (int r = 0; r < Results; ++r) {
    for (int v = 0; v < Vectors; ++v) sum[r][v] = simd::load(d, y(r) + c + v * kLane, columns(v));
  }
  for (int64_t i = 0; i < count; ++i) {
    const T *w = terms[i].weights, *x = terms[i].rows + c;
    for (int64_t t = 0; t < terms[i].n; ++t, w += term_step, x += terms[i].stride) {
      hn::Vec<decltype(d)> row[Vectors];
      for (int v = 0; v < Vectors; ++v) row[v] = simd::load(d, x + v * kLane, columns(v));
      for (int r = 0; r < Results; ++r) {
        const auto weight = hn::Set(d, w[r * result_step]);
        for (int v = 0; v < Vectors; ++v) sum[r][v] = hn::MulAdd(weight, row[v], sum[r][v]);
      }
    }
  }
  for (int r = 0; r < Results; ++r) {
    for (int v = 0; v < Vectors; ++v) {
      simd::store(sum[r][v], d, y(r) + c + v * kLane, columns(v));
    }
  }
}

/// y(r)[.] += sum over all terms, for `Results` rows of `width` columns.
template <int Results, class T, class Y>
void add_terms(const Terms<T>* terms, int64_t count, int64_t result_step, int64_t term_step,
               int64_t width, Y y) {
  constexpr auto kLane = static_cast<int64_t>(hn::MaxLanes(hn::ScalableTag<T>()));
  constexpr int64_t kTile = kTileVectors<T> * kLane;
  int64_t c = 0;
  for (; c + kTile <= width; c += kTile) {
    add_tile<Results, kTileVectors<T>>(terms, count, result_step, term_step, c,
                                       static_cast<size_t>(kLane), y);
  }
  for (; c < width; c += kLane) {
    add_tile<Results, 1>(terms, count, result_step, term_step, c,
                         static_cast<size_t>(std::min(kLane, width - c)), y);
  }
}

/// y += sum over i < n of weights[i * step] * x[i * stride + .], `width` columns.
template <class T>
void add_weighted(const T* weights, int64_t step, const T* x, int64_t stride, int64_t n,
                  int64_t width, T* y) {
  const Terms<T> terms{weights, x, stride, n};
  add_terms<1>(&terms, 1, 0, step, width, [y](int) { return y; });
}

/// Returns a . b, summed lane by lane.
template <class T>
HWY_INLINE T dot(const T* a, const T* b, int64_t width) {
  const hn::ScalableTag<T> d;
  auto sum = hn::Zero(d);
  simd::for_vectors(d, static_cast<size_t>(width), [&](size_t i, size_t left) {
    sum = hn::MulAdd(simd::load(d, a + i, left), simd::load(d, b + i, left), sum);
  });
  return simd::sum_lanes(d, sum);
}

/// y[i] = a . x[i * stride + .] for i < n.
template <class T>
void dots(const T* a, const T* x, int64_t stride, int64_t n, int64_t width, T* y) {
  const hn::ScalableTag<T> d;
  int64_t i = 0;
  for (; i + 4 <= n; i += 4, x += 4 * stride) {
    auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
    simd::for_vectors(d, static_cast<size_t>(width), [&](size_t c, size_t left) {
      const auto q = simd::load(d, a + c, left);
      s0 = hn::MulAdd(q, simd::load(d, x + c, left), s0);
      s1 = hn::MulAdd(q, simd::load(d, x + stride + c, left), s1);
      s2 = hn::MulAdd(q, simd::load(d, x + 2 * stride + c, left), s2);
      s3 = hn::MulAdd(q, simd::load(d, x + 3 * stride + c, left), s3);
    });
    y[i] = simd::sum_lanes(d, s0);
    y[i + 1] = simd::sum_lanes(d, s1);
    y[i + 2] = simd::sum_lanes(d, s2);
    y[i + 3] = simd::sum_lanes(d, s3);
  }
  for (; i < n; ++i, x += stride) y[i] = dot(a, x, width);
}

/// y[i * stride + .] += weights[i] * x[.] for i < n.
template <class T>
void add_to_each(const T* weights, const T* x, int64_t n, int64_t width, T* y, int64_t stride) {
  const hn::ScalableTag<T> d;
  for (int64_t i = 0; i < n; ++i, y += stride) {
    const auto weight = hn::Set(d, weights[i]);
    simd::for_vectors(d, static_cast<size_t>(width), [&](size_t c, size_t left) {
      const auto sum = hn::MulAdd(weight, simd::load(d, x + c, left), simd::load(d, y + c, left));
      simd::store(sum, d, y + c, left);
    });
  }
}

}  // namespace edge
}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
