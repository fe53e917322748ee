// The innermost loop of a matrix product: up to 12 rows and two vectors of columns, with sums in
// registers. Included once per SIMD target.

#if defined(LONGSPAN_CPU_GEMM_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_GEMM_TILE_INL_H_
#undef LONGSPAN_CPU_GEMM_TILE_INL_H_
#else
#define LONGSPAN_CPU_GEMM_TILE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/kernels/matmul.h"
#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR
constexpr int64_t vector_bytes = 8;
#elif HWY_ARCH_X86
constexpr int64_t vector_bytes = HWY_MAX_BYTES;
#else
constexpr int64_t vector_bytes = 16;
#endif

/// The accumulator type of products of T.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
template <class T>
constexpr int64_t lanes = std::max<int64_t>(1, vector_bytes / static_cast<int64_t>(sizeof(T)));
/// Packed elements are as wide as their sums, and are loaded into registers as such.
template <class T>
using Tag = hn::FixedTag<Sum<T>, static_cast<size_t>(lanes<T>)>;
template <class T>
Sum<T>* as_lanes(T* p) {
  return static_cast<Sum<T>*>(static_cast<void*>(p));
}
template <class T>
const Sum<T>* as_lanes(const T* p) {
  return static_cast<const Sum<T>*>(static_cast<const void*>(p));
}

/// How elements are multiplied. T is the element type of packed operands: here one value,
/// multiplied by FMA; in specialisations several values adjacent along k.
template <class T>
struct Multiply {
  static constexpr int64_t group = 1;  ///< steps of k in a T
  /// Returns a T in all lanes.
  template <class D>
  static HWY_INLINE hn::Vec<D> spread(D d, const T* p) {
    return hn::Set(d, *p);
  }
  /// Returns sum + a b.
  template <class V>
  static HWY_INLINE V add(V a, V b, V sum) {
    return hn::MulAdd(a, b, sum);
  }
};
template <class T>
constexpr int64_t group = Multiply<T>::group;

template <class T>
constexpr int64_t panel = 2 * lanes<T>;  // columns of a register tile
// Rows of a register tile: 24 of 32 registers hold sums, or 12 of 16.
constexpr int64_t tile_rows = vector_bytes == 64 ? 12 : 6;
template <class T>
constexpr int64_t depth = 2048 / static_cast<int64_t>(sizeof(T));  // of a block of k, in T
static_assert(depth<float> >= kernels::longest_exact_addition(DType::f32));
static_assert(depth<double> >= kernels::longest_exact_addition(DType::f64));
// A packed row is a little longer, so that rows fall into different cache sets.
template <class T>
constexpr int64_t strip_row = depth<T> + 16;
// A block of b uses half of the L2 cache: 1 MiB with 512-bit vectors.
template <class T>
constexpr int64_t most_columns = (vector_bytes == 64 ? 1024 : 512) /
                                 static_cast<int64_t>(sizeof(T));
constexpr int64_t most_rows = 2048;
constexpr int64_t panel_gap = 16;  // elements between panels, to spread them over cache sets

/// The destination of a tile's sums.
template <class T>
struct Target {
  Sum<T>* c;
  int64_t row;
  const Sum<T>* bias;  // or null
  bool accumulate;
  int64_t columns;  // columns that exist
  bool transposed;  // c is stored as its transpose: `row` is between columns, bias is one of rows
};

/// Does what finish() does for a transposed product (cpu/matmul/gemm_transposed-inl.h).
template <class T>
void finish_transposed(const Target<T>& to, int64_t rows, const Sum<T>* sums, int64_t width);

/// Adds a tile's sums, rows of `width`, to their destination: the slow path for edges and biases.
template <class T>
HWY_NOINLINE void finish(const Target<T>& to, int64_t rows, const Sum<T>* sums, int64_t width) {
  if (to.transposed) return finish_transposed(to, rows, sums, width);
  const Tag<T> d;
  for (int64_t i = 0; i < rows; ++i) {
    Sum<T>* p = to.c + i * to.row;
    for (int64_t j = 0; j < to.columns; j += lanes<T>) {
      const auto left = static_cast<size_t>(to.columns - j);
      auto sum = hn::Load(d, sums + i * width + j);
      if (to.accumulate) sum = hn::Add(sum, simd::load(d, p + j, left));
      if (to.bias != nullptr) sum = hn::Add(sum, simd::load(d, to.bias + j, left));
      simd::store(sum, d, p + j, left);
    }
  }
}

// (row, row / 3, row % 3)
#define LONGSPAN_ROWS(X) \
  X(0, 0, 0)             \
  X(1, 0, 1)             \
  X(2, 0, 2)             \
  X(3, 1, 0)             \
  X(4, 1, 1) X(5, 1, 2) X(6, 2, 0) X(7, 2, 1) X(8, 2, 2) X(9, 3, 0) X(10, 3, 1) X(11, 3, 2)

/// Lines that a tile prefetches as it runs: two for every 2 `pace` steps, and beside each of them
/// one that is needed later.
struct PrefetchLines {
  const char* line;     // null if there are none
  int64_t other, step;  // bytes to the second line, and to the next two
  int64_t pace;
  const char* later = nullptr;  // null if there are none
  int64_t later_step = 0;       // bytes to the next one
};
// Minimum length of a sum for which c is prefetched: a shorter sum does not hide the latency.
constexpr int64_t fetch_from = 96;

/// Computes R rows and W vectors of c from k columns of a and k rows of b, in T, of any strides;
/// rows of b are W vectors wide.
template <class T, int R, int W>
HWY_NOINLINE void tile(int64_t k, const T* HWY_RESTRICT a, int64_t a_row, int64_t a_col,
                       const T* HWY_RESTRICT b, int64_t b_row, const Target<T>& to,
                       const PrefetchLines& ahead) {
  const Tag<T> d;
  constexpr int64_t N = lanes<T>;
  if (k >= fetch_from) {
    const Sum<T>* c = to.c;
    const int64_t lines = to.transposed ? to.columns : R, last = to.transposed ? R - 1 : W * N - 1;
    for (int64_t i = 0; i < lines; ++i, c += to.row) {
      __builtin_prefetch(c, 1);
      __builtin_prefetch(c + last, 1);
    }
  }
#define LONGSPAN_DECLARE(i, pointer, member) \
  [[maybe_unused]] auto x##i = hn::Zero(d), y##i = hn::Zero(d);
  LONGSPAN_ROWS(LONGSPAN_DECLARE)
#undef LONGSPAN_DECLARE
  // One pointer for three rows, so that the registers suffice.
  const T* p0 = a;
  [[maybe_unused]] const T* p1 = a + 3 * a_row;
  [[maybe_unused]] const T* p2 = a + 6 * a_row;
  [[maybe_unused]] const T* p3 = a + 9 * a_row;
#define LONGSPAN_STEP(i, pointer, member)                                 \
  if constexpr (R > (i)) {                                                \
    const auto s = Multiply<T>::spread(d, p##pointer + a_row * (member)); \
    x##i = Multiply<T>::add(s, b0, x##i);                                 \
    if constexpr (W == 2) y##i = Multiply<T>::add(s, b1, y##i);           \
  }
  const char *line = ahead.line, *other = ahead.line + ahead.other, *later = ahead.later;
  for (int64_t stop = line == nullptr ? 0 : k;;) {
    for (; k > stop; --k) {
      const auto b0 = hn::LoadU(d, as_lanes(b));
      [[maybe_unused]] auto b1 = b0;
      if constexpr (W == 2) b1 = hn::LoadU(d, as_lanes(b) + N);
      LONGSPAN_ROWS(LONGSPAN_STEP)
      b += b_row;
      p0 += a_col;
      if constexpr (R > 3) p1 += a_col;
      if constexpr (R > 6) p2 += a_col;
      if constexpr (R > 9) p3 += a_col;
    }
    if (k <= 0) break;
    __builtin_prefetch(line);
    if (later != nullptr) {
      __builtin_prefetch(later, 0, 2);  // into L2
      later += ahead.later_step;
    }
    const char* after = line + ahead.step;
    line = other;
    other = after;
    stop = std::max<int64_t>(k - ahead.pace, 0);
  }
#undef LONGSPAN_STEP
#define LONGSPAN_EACH(i, pointer, member)          \
  if constexpr (R > (i)) {                         \
    LONGSPAN_PUT(i, 0, x##i)                       \
    if constexpr (W == 2) LONGSPAN_PUT(i, N, y##i) \
    c += to.row;                                   \
  }
  Sum<T>* c = to.c;
  if (HWY_UNLIKELY(to.columns != W * N || to.bias != nullptr || to.transposed)) {
    HWY_ALIGN Sum<T> sums[R * panel<T>];
#define LONGSPAN_PUT(i, first, sum) hn::Store(sum, d, sums + panel<T> * (i) + (first));
    LONGSPAN_ROWS(LONGSPAN_EACH)
#undef LONGSPAN_PUT
    finish(to, R, sums, panel<T>);
  } else if (to.accumulate) {
#define LONGSPAN_PUT(i, first, sum) \
  hn::StoreU(hn::Add(sum, hn::LoadU(d, c + (first))), d, c + (first));
    LONGSPAN_ROWS(LONGSPAN_EACH)
#undef LONGSPAN_PUT
  } else {
#define LONGSPAN_PUT(i, first, sum) hn::StoreU(sum, d, c + (first));
    LONGSPAN_ROWS(LONGSPAN_EACH)
#undef LONGSPAN_PUT
  }
#undef LONGSPAN_EACH
}

/// Calls tile() for `rows` in 1..tile_rows.
template <class T, int W, int R = static_cast<int>(tile_rows)>
HWY_INLINE void tiles(int64_t rows, int64_t k, const T* a, int64_t a_row, int64_t a_col, const T* b,
                      int64_t b_row, const Target<T>& to, const PrefetchLines& ahead) {
  if constexpr (R > 0) {
    if (rows == R) {
      tile<T, R, W>(k, a, a_row, a_col, b, b_row, to, ahead);
    } else {
      tiles<T, W, R - 1>(rows, k, a, a_row, a_col, b, b_row, to, ahead);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif
