// Matrix products with few rows. Included once per SIMD target.

#if defined(LONGSPAN_CPU_GEMM_FEW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_GEMM_FEW_INL_H_
#undef LONGSPAN_CPU_GEMM_FEW_INL_H_
#else
#define LONGSPAN_CPU_GEMM_FEW_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "cpu/matmul/gemm_pack-inl.h"
#include "cpu/matmul/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

// A product with few rows, such as that of one token, uses each element of b only a few times, so b
// is read once, in place, and not packed. Elements have the bits of elements of a tile.

constexpr int64_t few_width = 4 * across;  // columns at a time: enough chains to keep the units
                                           // busy

#if HWY_TARGET != HWY_SCALAR

/// The accumulators of R rows and `across` columns.
template <class T, int R>
struct FewSums {
  hn::Vec<Across> s0, s1, s2, s3;
  /// Adds one step of k: a vector of b times a[0], a[a_row], ...
  HWY_INLINE void add(hn::Vec<Across> b, const T* a, int64_t a_row) {
    const Across d;
    using M = Multiply<T>;
    s0 = M::add(M::spread(d, a), b, s0);
    if constexpr (R > 1) s1 = M::add(M::spread(d, a + a_row), b, s1);
    if constexpr (R > 2) s2 = M::add(M::spread(d, a + 2 * a_row), b, s2);
    if constexpr (R > 3) s3 = M::add(M::spread(d, a + 3 * a_row), b, s3);
  }
  /// Adds four steps of k; the columns of b are contiguous along k.
  template <class S>
  HWY_INLINE void add_four(const S* b, int64_t b_col, const T* a, int64_t a_row) {
    const Columns<across> c = load_columns<T, across>(b, b_col);
    add(c.c0, a, a_row);
    add(c.c1, a + 1, a_row);
    add(c.c2, a + 2, a_row);
    add(c.c3, a + 3, a_row);
  }
  /// Adds one line of each column of b. Returns the address of the next columns.
  template <class S>
  HWY_INLINE const S* add_line(const S* b, int64_t b_col, const T* a, int64_t a_row) {
    add_four(b, b_col, a, a_row);
    add_four(b + 4 * group<T>, b_col, a + 4, a_row);
    add_four(b + 8 * group<T>, b_col, a + 8, a_row);
    add_four(b + 12 * group<T>, b_col, a + 12, a_row);
    b += across * b_col;
    asm("" : "+r"(b));  // compute b once, instead of keeping a pointer register for every group
    return b;
  }
  HWY_INLINE void put(float* to) const {
    const Across d;
    hn::Store(s0, d, to);
    if constexpr (R > 1) hn::Store(s1, d, to + few_width);
    if constexpr (R > 2) hn::Store(s2, d, to + 2 * few_width);
    if constexpr (R > 3) hn::Store(s3, d, to + 3 * few_width);
  }
};

/// Computes R rows and few_width columns of c from k elements; the rows of a and the columns of b
/// are contiguous along k.
template <int R, class T, class S>
HWY_NOINLINE void few_across(int64_t k, const T* HWY_RESTRICT a, int64_t a_row,
                             const S* HWY_RESTRICT b, int64_t b_col, const Target<T>& to) {
  const Across d;
  const auto zero = hn::Zero(d);
  FewSums<T, R> s0{zero, zero, zero, zero}, s1 = s0, s2 = s0, s3 = s0;
  constexpr int64_t line = 16;
  for (; k >= line * group<T>; k -= line * group<T>, a += line, b += line * group<T>) {
    const S* next = s0.add_line(b, b_col, a, a_row);
    next = s1.add_line(next, b_col, a, a_row);
    next = s2.add_line(next, b_col, a, a_row);
    s3.add_line(next, b_col, a, a_row);
  }
  for (; k > 0; k -= group<T>, ++a, b += group<T>) {
    HWY_ALIGN T column[few_width];
    for (int64_t j = 0; j < few_width; ++j) {
      column[j] = Pack<T>::one(b + j * b_col, 1, numbers_at<T>(0, k));
    }
    s0.add(hn::Load(d, as_lanes(column)), a, a_row);
    s1.add(hn::Load(d, as_lanes(column) + across), a, a_row);
    s2.add(hn::Load(d, as_lanes(column) + 2 * across), a, a_row);
    s3.add(hn::Load(d, as_lanes(column) + 3 * across), a, a_row);
  }
  HWY_ALIGN float sums[R * few_width];
  s0.put(sums);
  s1.put(sums + across);
  s2.put(sums + 2 * across);
  s3.put(sums + 3 * across);
  finish(to, R, sums, few_width);
}

/// Calls few_across() for `rows` in 1..few.
template <class T, class S>
void few_across_rows(int64_t rows, int64_t k, const T* a, int64_t a_row, const S* b, int64_t b_col,
                     const Target<T>& to) {
  switch (rows) {
    case 1:
      return few_across<1>(k, a, a_row, b, b_col, to);
    case 2:
      return few_across<2>(k, a, a_row, b, b_col, to);
    case 3:
      return few_across<3>(k, a, a_row, b, b_col, to);
    default:
      return few_across<4>(k, a, a_row, b, b_col, to);
  }
}
#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif
