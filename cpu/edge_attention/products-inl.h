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
#include <type_traits>

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

/// Calls f(std::integral_constant<int, n>) for 1 <= n <= Most.
template <int Most, class F>
HWY_INLINE void with_constant(int64_t n, F&& f) {
  if constexpr (Most > 1) {
    if (n < Most) return with_constant<Most - 1>(n, f);
  }
  f(std::integral_constant<int, Most>());
}

/// Calls store(row, i, q[., row to row + kWidth - 1] . x(i)) for keys i = first to first + Keys
/// - 1. x(i) returns the address of a key.
///   q  [d][kRows]
template <int Keys, class T, class X, class Store>
HWY_INLINE void score_keys(const T* q, int64_t row, int64_t first, int64_t d, X x, Store store) {
  const Tag<T> tag;
  const T* key[Keys];
  hn::Vec<Tag<T>> sum[Keys];
  for (int i = 0; i < Keys; ++i) {
    key[i] = x(first + i);
    sum[i] = hn::Zero(tag);
  }
  for (int64_t c = 0; c < d; ++c) {
    const auto column = hn::Load(tag, q + c * kRows + row);
    for (int i = 0; i < Keys; ++i) {
      sum[i] = hn::MulAdd(column, hn::Set(tag, key[i][c]), sum[i]);
    }
  }
  for (int i = 0; i < Keys; ++i) store(row, first + i, sum[i]);
}

/// The same for n keys and all rows. The bits of a score do not depend on the other keys.
template <class T, class X, class Store>
HWY_INLINE void score_block(const T* q, int64_t n, int64_t d, X x, Store store) {
  constexpr int kKeys = 8;
  for (int64_t row = 0; row < kRows; row += kWidth<T>) {
    int64_t i = 0;
    for (; i + kKeys <= n; i += kKeys) score_keys<kKeys>(q, row, i, d, x, store);
    if (i == n) continue;
    with_constant<kKeys - 1>(
        n - i, [&](auto keys) { score_keys<decltype(keys)::value>(q, row, i, d, x, store); });
  }
}

/// A row of a product: the rows that it adds, each with its weights for all results.
template <class T>
struct Term {
  const T* weights;
  const T* row;
};

/// Vectors of a tile of results: with their weights and rows they fit the registers.
template <class T>
inline constexpr int kTileVectors = HWY_LANES(T) * sizeof(T) >= 64 ? 4 : 2;
inline constexpr int kTileRows = 4;

/// Adds n terms to `Results` rows of `Vectors` vectors, which begin at y(r). Reads and writes
/// columns [c, c + ...), the last vector `left` of them.
template <int Results, int Vectors, class T, class At, class Y>
HWY_INLINE void add_tile(int64_t n, At term, int64_t step, int64_t c, size_t left, Y y) {
  const hn::ScalableTag<T> d;
  constexpr auto kLane = static_cast<int64_t>(hn::MaxLanes(d));
  const auto columns = [&](int v) { return v + 1 < Vectors ? static_cast<size_t>(kLane) : left; };
  hn::Vec<decltype(d)> sum[Results][Vectors];
  for (int r = 0; r < Results; ++r) {
    for (int v = 0; v < Vectors; ++v) sum[r][v] = simd::load(d, y(r) + c + v * kLane, columns(v));
  }
  for (int64_t i = 0; i < n; ++i) {
    const Term<T> x = term(i);
    hn::Vec<decltype(d)> row[Vectors];
    for (int v = 0; v < Vectors; ++v) row[v] = simd::load(d, x.row + c + v * kLane, columns(v));
    for (int r = 0; r < Results; ++r) {
      const auto weight = hn::Set(d, x.weights[r * step]);
      for (int v = 0; v < Vectors; ++v) sum[r][v] = hn::MulAdd(weight, row[v], sum[r][v]);
    }
  }
  for (int r = 0; r < Results; ++r) {
    for (int v = 0; v < Vectors; ++v) {
      simd::store(sum[r][v], d, y(r) + c + v * kLane, columns(v));
    }
  }
}

/// y(r)[.] += sum over i < n of term(i).weights[r * step] term(i).row[.], for `Results` rows of
/// `width` columns, which do not overlap.
template <class T, int Results, class At, class Y>
HWY_INLINE void add_terms(int64_t n, At term, int64_t step, int64_t width, Y y) {
  constexpr auto kLane = static_cast<int64_t>(hn::MaxLanes(hn::ScalableTag<T>()));
  constexpr int64_t kTile = kTileVectors<T> * kLane;
  int64_t c = 0;
  for (; c + kTile <= width; c += kTile) {
    add_tile<Results, kTileVectors<T>, T>(n, term, step, c, static_cast<size_t>(kLane), y);
  }
  for (; c < width; c += kLane) {
    add_tile<Results, 1, T>(n, term, step, c, static_cast<size_t>(std::min(kLane, width - c)), y);
  }
}

/// y += sum over i < n of weights[i * step] * x[i * stride + .], `width` columns.
template <class T>
void add_weighted(const T* weights, int64_t step, const T* x, int64_t stride, int64_t n,
                  int64_t width, T* y) {
  const auto term = [=](int64_t i) { return Term<T>{weights + i * step, x + i * stride}; };
  add_terms<T, 1>(n, term, 0, width, [y](int) { return y; });
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
