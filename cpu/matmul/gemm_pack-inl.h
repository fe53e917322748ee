// Packs the operands of a matrix product for cpu/matmul/gemm_tile-inl.h. Included once per SIMD
// target.

#if defined(LONGSPAN_CPU_GEMM_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_GEMM_PACK_INL_H_
#undef LONGSPAN_CPU_GEMM_PACK_INL_H_
#else
#define LONGSPAN_CPU_GEMM_PACK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/dtype.h"
#include "cpu/matmul/gemm_tile-inl.h"
#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

/// How packed operands are made from elements of type S. T is one element here.
template <class T>
struct Pack {
  /// Returns the T that starts at p; its elements are `step` apart, and `have` of them exist.
  template <class S>
  static HWY_INLINE T one(const S* p, int64_t /*step*/, int64_t /*have*/) {
    return static_cast<Accumulator<T>>(*p);
  }
  /// Returns a vector of T from `left` elements that are contiguous along k, padded with zeros.
  template <class S>
  static HWY_INLINE hn::Vec<Tag<T>> along(const S* p, int64_t left) {
    return simd::load(Tag<T>(), p, static_cast<size_t>(left));
  }
  /// Returns a vector of `left` T that are adjacent across k, each as in one().
  template <class S>
  static HWY_INLINE hn::Vec<Tag<T>> across(const S* p, int64_t /*step*/, int64_t /*have*/,
                                           int64_t left) {
    return simd::load(Tag<T>(), p, static_cast<size_t>(left));
  }
  /// Returns four T, as along().
  template <class S>
  static HWY_INLINE hn::Vec<hn::FixedTag<float, 4>> four(const S* p) {
    return simd::load(hn::FixedTag<float, 4>(), p, 4);
  }
};

constexpr int64_t pieces(int64_t n, int64_t size) { return (n + size - 1) / size; }
constexpr int64_t round_up(int64_t n, int64_t size) { return pieces(n, size) * size; }

/// Returns the number of elements in the T at step p of k elements.
template <class T>
int64_t numbers_at(int64_t p, int64_t k) {
  return std::min(group<T>, k - p * group<T>);
}

/// to[i * to_row + j] = from[i * from_row + j], j < n, between a dtype and its accumulator type.
template <class T, class S>
void convert_rows(int64_t m, int64_t n, const S* HWY_RESTRICT from, int64_t from_row,
                  T* HWY_RESTRICT to, int64_t to_row) {
  using Wide = Accumulator<T>;
  const Tag<Wide> d;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; j += lanes<Wide>) {
      const auto left = static_cast<size_t>(n - j);
      simd::store(simd::load(d, from + i * from_row + j, left), d, to + i * to_row + j, left);
    }
  }
}

/// Packs m rows of k contiguous elements as rows of T.
template <class T, class S>
void pack_along(int64_t m, int64_t k, const S* HWY_RESTRICT from, int64_t from_row,
                T* HWY_RESTRICT to, int64_t to_row) {
  const Tag<T> d;
  const int64_t steps = pieces(k, group<T>);
  for (int64_t i = 0; i < m; ++i, from += from_row, to += to_row) {
    for (int64_t p = 0; p < steps; p += lanes<T>) {
      simd::store(Pack<T>::along(from + p * group<T>, k - p * group<T>), d, as_lanes(to + p),
                  static_cast<size_t>(steps - p));
    }
  }
}

/// Packs n columns of the `have` rows at `from`, which form one step of k.
template <class T, class S>
HWY_INLINE void pack_across(int64_t n, const S* HWY_RESTRICT from, int64_t step, int64_t have,
                            T* HWY_RESTRICT to) {
  const Tag<T> d;
  for (int64_t j = 0; j < n; j += lanes<T>) {
    simd::store(Pack<T>::across(from + j, step, have, n - j), d, as_lanes(to + j),
                static_cast<size_t>(n - j));
  }
}

// Rows that are transposed together: shuffles stay within blocks of four.
constexpr int across = vector_bytes >= 32 ? 8 : 4;
#if HWY_TARGET != HWY_SCALAR
using Across = hn::FixedTag<float, across>;

/// Loads four T each of rows r, r + 4, ... into the blocks of a vector.
template <class T, int Lanes, class S>
HWY_INLINE hn::Vec<hn::FixedTag<float, Lanes>> load_blocks(const S* f, int64_t row) {
  const hn::FixedTag<float, Lanes> d;
  if constexpr (Lanes == 4) {
    return Pack<T>::four(f);
  } else {
    return hn::Combine(d, load_blocks<T, Lanes / 2>(f + Lanes / 2 * row, row),
                       load_blocks<T, Lanes / 2>(f, row));
  }
}

/// Columns 0 to 3, in T, of `Rows` rows.
template <int Rows>
struct Columns {
  hn::Vec<hn::FixedTag<float, Rows>> c0, c1, c2, c3;
};
template <class T, int Rows, class S>
HWY_INLINE Columns<Rows> load_columns(const S* HWY_RESTRICT f, int64_t row) {
  const hn::FixedTag<float, Rows> d;
  const hn::FixedTag<double, Rows / 2> wide;
  const auto r0 = load_blocks<T, Rows>(f, row);
  const auto r1 = load_blocks<T, Rows>(f + row, row);
  const auto r2 = load_blocks<T, Rows>(f + 2 * row, row);
  const auto r3 = load_blocks<T, Rows>(f + 3 * row, row);
  const auto t0 = hn::BitCast(wide, hn::InterleaveLower(d, r0, r1));
  const auto t1 = hn::BitCast(wide, hn::InterleaveLower(d, r2, r3));
  const auto t2 = hn::BitCast(wide, hn::InterleaveUpper(d, r0, r1));
  const auto t3 = hn::BitCast(wide, hn::InterleaveUpper(d, r2, r3));
  return {hn::BitCast(d, hn::InterleaveLower(wide, t0, t1)),
          hn::BitCast(d, hn::InterleaveUpper(wide, t0, t1)),
          hn::BitCast(d, hn::InterleaveLower(wide, t2, t3)),
          hn::BitCast(d, hn::InterleaveUpper(wide, t2, t3))};
}

/// to[j * to_row + i] = T j of row i, for `across` rows and j < n, a multiple of 4.
template <class T, class S>
HWY_NOINLINE void transpose_across(int64_t n, const S* HWY_RESTRICT from, int64_t from_row,
                                   T* HWY_RESTRICT to, int64_t to_row) {
  const Across d;
  for (; n > 0; n -= 4, from += 4 * group<T>, to += 4 * to_row) {
    const Columns<across> c = load_columns<T, across>(from, from_row);
    hn::StoreU(c.c0, d, as_lanes(to));
    hn::StoreU(c.c1, d, as_lanes(to + to_row));
    hn::StoreU(c.c2, d, as_lanes(to + 2 * to_row));
    hn::StoreU(c.c3, d, as_lanes(to + 3 * to_row));
  }
}
#endif

/// Transposes number by number, for i < m and k elements of any strides.
template <class T, class S>
HWY_NOINLINE void transpose_slowly(int64_t m, int64_t k, const S* HWY_RESTRICT from, int64_t row,
                                   int64_t col, T* HWY_RESTRICT to, int64_t to_row) {
  for (int64_t p = 0; p * group<T> < k; ++p) {
    for (int64_t i = 0; i < m; ++i) {
      to[p * to_row + i] =
          Pack<T>::one(from + i * row + p * group<T> * col, col, numbers_at<T>(p, k));
    }
  }
}

/// Transposes rows of k contiguous elements.
template <class T, class S>
void transpose_rows(int64_t m, int64_t k, const S* HWY_RESTRICT from, int64_t from_row,
                    T* HWY_RESTRICT to, int64_t to_row) {
  constexpr int64_t chunk = 32;  // T whose lines of `to` stay in cache while all rows arrive
  for (int64_t p = 0; p * group<T> < k; p += chunk) {
    const S* begin = from + p * group<T>;
    T* there = to + p * to_row;
    const int64_t numbers = std::min(chunk * group<T>, k - p * group<T>);
    int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
    if constexpr (sizeof(T) == sizeof(float)) {
      const int64_t fast = numbers / (4 * group<T>)*4;
      for (; i + across <= m; i += across) {
        transpose_across(fast, begin + i * from_row, from_row, there + i, to_row);
      }
      if (i > 0 && fast * group<T> < numbers) {
        transpose_slowly(i, numbers - fast * group<T>, begin + fast * group<T>, from_row, 1,
                         there + fast * to_row, to_row);
      }
    }
#endif
    if (i < m) {
      transpose_slowly(m - i, numbers, begin + i * from_row, from_row, 1, there + i, to_row);
    }
  }
}

// Rows of b are far apart, each on its own pages, so the hardware prefetcher does not fetch them.
constexpr int64_t rows_ahead = 8;

/// Packs panels of b, `apart` from each other: columns [0, n) of k rows; the last panel is padded
/// with zeros to its width.
template <class T, class S>
HWY_NOINLINE void pack_panels(int64_t k, int64_t n, const S* b, int64_t row, int64_t col, T* to,
                              int64_t apart) {
  constexpr int64_t width = panel<T>;
  const int64_t full = n / width * width, steps = pieces(k, group<T>);
  if (full < n) {
    std::memset(static_cast<void*>(to + full / width * apart), 0,
                static_cast<size_t>(steps * width) * sizeof(T));
  }
  if (col == 1) {  // along its rows, in memory order
    const Tag<T> d;
    for (int64_t p = 0; p < steps; ++p) {
      const S* from = b + p * group<T> * row;
      const int64_t have = numbers_at<T>(p, k);
      const S* later = b + std::min(p * group<T> + rows_ahead, k - have) * row;
      T* t = to + p * width;
      for (int64_t j = 0; j < full; j += width, t += apart) {
        constexpr int64_t N = lanes<T>;
        constexpr int64_t line = 64 / sizeof(S);
        for (int64_t i = 0; i < width; i += line) {
          __builtin_prefetch(later + j + i);
          if (group < T >> 1) __builtin_prefetch(later + row + j + i);
        }
        hn::StoreU(Pack<T>::across(from + j, row, have, N), d, as_lanes(t));
        hn::StoreU(Pack<T>::across(from + j + N, row, have, N), d, as_lanes(t) + N);
      }
      if (full < n) pack_across(n - full, from + full, row, have, t);
    }
    return;
  }
  for (int64_t j = 0; j < n; j += width, to += apart) {
    const int64_t columns = std::min(width, n - j);
    const S* from = b + j * col;
    if (row == 1) {
      transpose_rows(columns, k, from, col, to, width);
    } else {
      transpose_slowly(columns, k, from, col, row, to, width);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif
