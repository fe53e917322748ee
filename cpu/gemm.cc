// Packed matrix product. The sums of an element of c run over k in order, in blocks of `depth`:
// within a block one chain of FMAs, between blocks an addition to c. Nothing else enters, so a
// row's bits are the same beside any other rows, at any place, in any tile, for any plan.
//
// A register tile of up to 12 rows and two vectors of columns runs over a block of k. Around it, as
// in Goto and van de Geijn (2008): a block of b is packed into panels as wide as a tile and stays
// in the second-level cache, a strip of rows of a stays in the first. What lies well as it is, is
// not packed.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm.cc"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cpu/gemm.h"
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

template <class T>
constexpr int64_t lanes = std::max<int64_t>(1, vector_bytes / static_cast<int64_t>(sizeof(T)));
template <class T>
using Tag = hn::FixedTag<T, static_cast<size_t>(lanes<T>)>;
template <class T>
constexpr int64_t panel = 2 * lanes<T>;  // columns of a register tile
// Rows of a register tile: of 32 registers it takes 24 for sums, of 16 it takes 12.
constexpr int64_t tile_rows = vector_bytes == 64 ? 12 : 6;
template <class T>
constexpr int64_t depth = 2048 / static_cast<int64_t>(sizeof(T));  // of a block of k
// A packed row is a little longer: rows fall into different sets of the cache.
template <class T>
constexpr int64_t strip_row = depth<T> + 16;
// A block of b takes half of a second-level cache: 1 MiB where there are 512-bit vectors.
template <class T>
constexpr int64_t most_columns = (vector_bytes == 64 ? 1024 : 512) /
                                 static_cast<int64_t>(sizeof(T));
constexpr int64_t most_rows = 2048;
constexpr int64_t panel_gap = 16;  // elements between panels, against one set of the cache for all

/// What becomes of the sums of a tile.
template <class T>
struct Target {
  T* c;
  int64_t row;
  const T* bias;  // or null
  bool accumulate;
  int64_t columns;  // that exist
};

/// The sums of a tile, rows of `width`, to where they belong: the slow way for edges and biases.
template <class T>
HWY_NOINLINE void finish(const Target<T>& to, int64_t rows, const T* sums, int64_t width) {
  const Tag<T> d;
  for (int64_t i = 0; i < rows; ++i) {
    T* p = to.c + i * to.row;
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

/// Two lines that will be needed for every `pace` steps of k, brought closer on the way.
struct Ahead {
  const char* line;     // null where there are none
  int64_t other, step;  // bytes to the second line, and to the next two
};
constexpr int64_t pace = 16;
// c is fetched before a sum of that length, which hides the way; a shorter one would only wait.
constexpr int64_t fetch_from = 192;

/// R rows and W vectors of c from k columns of a and k rows of b, of any strides; b reaches W
/// vectors far.
template <class T, int R, int W>
HWY_NOINLINE void tile(int64_t k, const T* HWY_RESTRICT a, int64_t a_row, int64_t a_col,
                       const T* HWY_RESTRICT b, int64_t b_row, const Target<T>& to,
                       const Ahead& ahead) {
  const Tag<T> d;
  constexpr int64_t N = lanes<T>;
  if (k >= fetch_from) {
    const T* c = to.c;
    for (int i = 0; i < R; ++i, c += to.row) {
      __builtin_prefetch(c, 1);
      __builtin_prefetch(c + W * N - 1, 1);
    }
  }
#define LONGSPAN_DECLARE(i, group, member) \
  [[maybe_unused]] auto x##i = hn::Zero(d), y##i = hn::Zero(d);
  LONGSPAN_ROWS(LONGSPAN_DECLARE)
#undef LONGSPAN_DECLARE
  // Three rows to a pointer, so that registers suffice.
  const T* p0 = a;
  [[maybe_unused]] const T* p1 = a + 3 * a_row;
  [[maybe_unused]] const T* p2 = a + 6 * a_row;
  [[maybe_unused]] const T* p3 = a + 9 * a_row;
#define LONGSPAN_STEP(i, group, member)                    \
  if constexpr (R > (i)) {                                 \
    const auto s = hn::Set(d, p##group[a_row * (member)]); \
    x##i = hn::MulAdd(s, b0, x##i);                        \
    if constexpr (W == 2) y##i = hn::MulAdd(s, b1, y##i);  \
  }
  const char *line = ahead.line, *other = ahead.line + ahead.other;
  for (int64_t stop = line == nullptr ? 0 : k;;) {
    for (; k > stop; --k) {
      const auto b0 = hn::LoadU(d, b);
      [[maybe_unused]] auto b1 = b0;
      if constexpr (W == 2) b1 = hn::LoadU(d, b + N);
      LONGSPAN_ROWS(LONGSPAN_STEP)
      b += b_row;
      p0 += a_col;
      if constexpr (R > 3) p1 += a_col;
      if constexpr (R > 6) p2 += a_col;
      if constexpr (R > 9) p3 += a_col;
    }
    if (k <= 0) break;
    __builtin_prefetch(line);
    const char* after = line + ahead.step;
    line = other;
    other = after;
    stop = std::max<int64_t>(k - pace / 2, 0);
  }
#undef LONGSPAN_STEP
#define LONGSPAN_EACH(i, group, member)            \
  if constexpr (R > (i)) {                         \
    LONGSPAN_PUT(i, 0, x##i)                       \
    if constexpr (W == 2) LONGSPAN_PUT(i, N, y##i) \
    c += to.row;                                   \
  }
  T* c = to.c;
  if (HWY_UNLIKELY(to.columns != W * N || to.bias != nullptr)) {
    HWY_ALIGN T sums[R * panel<T>];
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

/// tile() for `rows` in 1..tile_rows.
template <class T, int W, int R = static_cast<int>(tile_rows)>
HWY_INLINE void tiles(int64_t rows, int64_t k, const T* a, int64_t a_row, int64_t a_col, const T* b,
                      int64_t b_row, const Target<T>& to, const Ahead& ahead) {
  if constexpr (R > 0) {
    if (rows == R) {
      tile<T, R, W>(k, a, a_row, a_col, b, b_row, to, ahead);
    } else {
      tiles<T, W, R - 1>(rows, k, a, a_row, a_col, b, b_row, to, ahead);
    }
  }
}

// ----------------------------------------------------------------------------------------- packing

template <class T, class S>
HWY_INLINE T widen(S x) {
  if constexpr (std::is_same_v<T, double>) {
    return static_cast<double>(x);
  } else {
    return static_cast<float>(x);
  }
}

/// to[i * to_row + j] = from[i * from_row + j], j < n.
template <class T, class S>
void copy_rows(int64_t m, int64_t n, const S* HWY_RESTRICT from, int64_t from_row,
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

// Rows whose numbers are brought side by side: shuffles stay within blocks of four.
constexpr int across = vector_bytes >= 32 ? 8 : 4;
#if HWY_TARGET != HWY_SCALAR
using Across = hn::FixedTag<float, across>;

/// Four numbers of rows r, r + 4, ... as f32, in blocks of a vector.
template <int Lanes, class S>
HWY_INLINE hn::Vec<hn::FixedTag<float, Lanes>> load_blocks(const S* f, int64_t row) {
  const hn::FixedTag<float, Lanes> d;
  if constexpr (Lanes == 4) {
    return simd::load(d, f, 4);
  } else {
    return hn::Combine(d, load_blocks<Lanes / 2>(f + Lanes / 2 * row, row),
                       load_blocks<Lanes / 2>(f, row));
  }
}

/// Columns 0 to 3 of `across` rows.
struct Columns {
  hn::Vec<Across> c0, c1, c2, c3;
};
template <class S>
HWY_INLINE Columns load_columns(const S* HWY_RESTRICT f, int64_t row) {
  const Across d;
  const hn::FixedTag<double, across / 2> wide;
  const auto r0 = load_blocks<across>(f, row);
  const auto r1 = load_blocks<across>(f + row, row);
  const auto r2 = load_blocks<across>(f + 2 * row, row);
  const auto r3 = load_blocks<across>(f + 3 * row, row);
  const auto t0 = hn::BitCast(wide, hn::InterleaveLower(d, r0, r1));
  const auto t1 = hn::BitCast(wide, hn::InterleaveLower(d, r2, r3));
  const auto t2 = hn::BitCast(wide, hn::InterleaveUpper(d, r0, r1));
  const auto t3 = hn::BitCast(wide, hn::InterleaveUpper(d, r2, r3));
  return {hn::BitCast(d, hn::InterleaveLower(wide, t0, t1)),
          hn::BitCast(d, hn::InterleaveUpper(wide, t0, t1)),
          hn::BitCast(d, hn::InterleaveLower(wide, t2, t3)),
          hn::BitCast(d, hn::InterleaveUpper(wide, t2, t3))};
}

/// to[j * to_row + i] = from[i * from_row + j] for `across` rows i, j < n, a multiple of 4.
template <class S>
HWY_NOINLINE void transpose_across(int64_t n, const S* HWY_RESTRICT from, int64_t from_row,
                                   float* HWY_RESTRICT to, int64_t to_row) {
  const Across d;
  for (; n > 0; n -= 4, from += 4) {
    const Columns c = load_columns(from, from_row);
    hn::StoreU(c.c0, d, to);
    hn::StoreU(c.c1, d, to + to_row);
    hn::StoreU(c.c2, d, to + 2 * to_row);
    hn::StoreU(c.c3, d, to + 3 * to_row);
    to += 4 * to_row;
  }
}
#endif

/// The same by single numbers, i < m and j < n.
template <class T, class S>
HWY_NOINLINE void transpose_slowly(int64_t m, int64_t n, const S* HWY_RESTRICT from,
                                   int64_t from_row, T* HWY_RESTRICT to, int64_t to_row) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) to[j * to_row + i] = widen<T>(from[i * from_row + j]);
  }
}

/// The same for any T.
template <class T, class S>
void transpose_rows(int64_t m, int64_t n, const S* HWY_RESTRICT from, int64_t from_row,
                    T* HWY_RESTRICT to, int64_t to_row) {
  constexpr int64_t chunk = 32;  // columns whose lines of `to` stay close while all rows arrive
  for (int64_t j = 0; j < n; j += chunk) {
    const int64_t count = std::min(chunk, n - j);
    int64_t i = 0, fast = 0;
#if HWY_TARGET != HWY_SCALAR
    if constexpr (std::is_same_v<T, float>) {
      fast = count / 4 * 4;
      for (; i + across <= m; i += across) {
        const S* f = from + i * from_row + j;
        transpose_across(fast, f, from_row, to + j * to_row + i, to_row);
      }
      if (i > 0 && fast < count) {
        transpose_slowly(i, count - fast, from + j + fast, from_row, to + (j + fast) * to_row,
                         to_row);
      }
    }
#endif
    if (i < m) {
      transpose_slowly(m - i, count, from + i * from_row + j, from_row, to + j * to_row + i,
                       to_row);
    }
  }
}

// ---------------------------------------------------------------------------------------- few rows

// A product with few rows, as of one token, uses each number of b but a few times: b is read once,
// where it lies, and packed nowhere. The sums of an element are those of a tile.

constexpr int64_t few = 4;
constexpr int64_t few_width = 4 * across;  // columns at a time: chains enough to keep units busy

#if HWY_TARGET != HWY_SCALAR

/// The sums of R rows and `across` columns.
template <int R>
struct FewSums {
  hn::Vec<Across> s0, s1, s2, s3;
  /// Adds numbers of one k: of b, and a[0], a[a_row], ...
  HWY_INLINE void add(hn::Vec<Across> b, const float* a, int64_t a_row) {
    const Across d;
    s0 = hn::MulAdd(hn::Set(d, a[0]), b, s0);
    if constexpr (R > 1) s1 = hn::MulAdd(hn::Set(d, a[a_row]), b, s1);
    if constexpr (R > 2) s2 = hn::MulAdd(hn::Set(d, a[2 * a_row]), b, s2);
    if constexpr (R > 3) s3 = hn::MulAdd(hn::Set(d, a[3 * a_row]), b, s3);
  }
  /// Adds those of four k, where rows of b are its columns.
  template <class S>
  HWY_INLINE void add_four(const S* b, int64_t b_col, const float* a, int64_t a_row) {
    const Columns c = load_columns(b, b_col);
    add(c.c0, a, a_row);
    add(c.c1, a + 1, a_row);
    add(c.c2, a + 2, a_row);
    add(c.c3, a + 3, a_row);
  }
  /// Adds a line of each row of b. Returns where the next columns lie.
  template <class S>
  HWY_INLINE const S* add_line(const S* b, int64_t b_col, const float* a, int64_t a_row) {
    add_four(b, b_col, a, a_row);
    add_four(b + 4, b_col, a + 4, a_row);
    add_four(b + 8, b_col, a + 8, a_row);
    add_four(b + 12, b_col, a + 12, a_row);
    b += across * b_col;
    asm("" : "+r"(b));  // computed once, not kept for every group in a register of its own
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

/// R rows and few_width columns of c; the columns of a and the rows of b lie side by side.
template <int R, class S>
HWY_NOINLINE void few_across(int64_t k, const float* HWY_RESTRICT a, int64_t a_row,
                             const S* HWY_RESTRICT b, int64_t b_col, const Target<float>& to) {
  const Across d;
  const auto zero = hn::Zero(d);
  FewSums<R> s0{zero, zero, zero, zero}, s1 = s0, s2 = s0, s3 = s0;
  constexpr int64_t line = 16;
  for (; k >= line; k -= line, a += line, b += line) {
    const S* next = s0.add_line(b, b_col, a, a_row);
    next = s1.add_line(next, b_col, a, a_row);
    next = s2.add_line(next, b_col, a, a_row);
    s3.add_line(next, b_col, a, a_row);
  }
  for (; k > 0; --k, ++a, ++b) {
    HWY_ALIGN float column[few_width];
    for (int64_t j = 0; j < few_width; ++j) column[j] = widen<float>(b[j * b_col]);
    s0.add(hn::Load(d, column), a, a_row);
    s1.add(hn::Load(d, column + across), a, a_row);
    s2.add(hn::Load(d, column + 2 * across), a, a_row);
    s3.add(hn::Load(d, column + 3 * across), a, a_row);
  }
  HWY_ALIGN float sums[R * few_width];
  s0.put(sums);
  s1.put(sums + across);
  s2.put(sums + 2 * across);
  s3.put(sums + 3 * across);
  finish(to, R, sums, few_width);
}

/// few_across() for `rows` in 1..few.
template <class S>
void few_across_rows(int64_t rows, int64_t k, const float* a, int64_t a_row, const S* b,
                     int64_t b_col, const Target<float>& to) {
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

/// Strips of a that are packed together. Where rows lie side by side, a strip is narrower than a
/// cache line, so several are read at once.
constexpr int64_t most_strips = 4;
inline int64_t strips_of(const Gemm& g) {
  return g.a_row == 1 && g.a_col != 1 && g.m > few ? most_strips : 1;
}

/// m rows of a, of `strips` strips at most. Returns the distances of rows and of columns.
struct Steps {
  int64_t row, col;
};
template <class T, class S>
Steps pack_strips(int64_t strips, int64_t m, int64_t k, const S* a, int64_t row, int64_t col,
                  T* to) {
  if (strips > 1) {
    copy_rows(k, m, a, col, to, most_strips * tile_rows);
    return {1, most_strips * tile_rows};
  }
  if (col == 1) {
    copy_rows(m, k, a, row, to, strip_row<T>);
  } else {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t p = 0; p < k; ++p) to[i * strip_row<T> + p] = widen<T>(a[i * row + p * col]);
    }
  }
  return {strip_row<T>, 1};
}

/// Panels of b, `apart` from each other: columns [0, n) of k rows; what the last one lacks up to
/// its width are zeros.
template <class T, class S>
void pack_panels(int64_t k, int64_t n, const S* b, int64_t row, int64_t col, T* to, int64_t apart) {
  constexpr int64_t width = panel<T>;
  const int64_t full = n / width * width;
  if (full < n) {
    std::memset(static_cast<void*>(to + full / width * apart), 0,
                static_cast<size_t>(k * width) * sizeof(T));
  }
  if (col == 1) {  // along its rows, as they come from memory
    const Tag<T> d;
    constexpr auto N = static_cast<size_t>(lanes<T>);
    for (int64_t p = 0; p < k; ++p) {
      const S* from = b + p * row;
      T* t = to + p * width;
      for (int64_t j = 0; j < full; j += width, t += apart) {
        hn::StoreU(simd::load(d, from + j, N), d, t);
        hn::StoreU(simd::load(d, from + j + lanes<T>, N), d, t + lanes<T>);
      }
      if (full < n) copy_rows(1, n - full, from + full, row, t, width);
    }
    return;
  }
  for (int64_t j = 0; j < n; j += width, to += apart) {
    const int64_t columns = std::min(width, n - j);
    const S* from = b + j * col;
    if (row == 1) {
      transpose_rows(columns, k, from, col, to, width);
    } else {
      for (int64_t p = 0; p < k; ++p) {
        for (int64_t i = 0; i < columns; ++i) to[p * width + i] = widen<T>(from[p * row + i * col]);
      }
    }
  }
}

// ---------------------------------------------------------------------------------------- products

constexpr int64_t pieces(int64_t n, int64_t size) { return (n + size - 1) / size; }
constexpr int64_t round_up(int64_t n, int64_t size) { return pieces(n, size) * size; }

/// Whether few_across() reads b.
template <class T>
bool few_rows(const Gemm& g) {
  return HWY_TARGET != HWY_SCALAR && std::is_same_v<T, float> && g.m <= few && g.b_row == 1 &&
         g.b_col != 1;
}

/// Whether a and b are read where they lie: then every pass over them comes from further away, so
/// only for few passes.
template <class T>
bool direct_a(const Gemm& g) {
  return g.dtype == dtype_of<T> && (g.a_col == 1 || (g.a_row == 1 && !few_rows<T>(g))) &&
         (g.n <= 4 * panel<T> || g.m <= 2 * tile_rows);
}
template <class T>
bool direct_b(const Gemm& g) {
  constexpr int64_t close = (int64_t{128} << 10) / static_cast<int64_t>(sizeof(T));
  return g.dtype == dtype_of<T> && g.b_col == 1 &&
         (g.m <= 2 * tile_rows || (g.m <= 12 * tile_rows && g.b_row * g.k <= close));
}

/// Columns out of n that are read where they lie.
template <class T>
int64_t columns_in_place(const Gemm& g, int64_t n) {
  if (few_rows<T>(g)) return n / few_width * few_width;
  return direct_b<T>(g) ? n / panel<T> * panel<T> : 0;
}

/// Elements of packed a and of packed b.
template <class T>
int64_t strip_elements(const Gemm& g) {
  return direct_a<T>(g) ? 0 : strips_of(g) * tile_rows * strip_row<T>;
}
template <class T>
int64_t panel_elements(const Gemm& g, const GemmPlan& plan) {
  const int64_t least = columns_in_place<T>(g, plan.columns);
  // Of whole tasks only the last one has an end that is packed.
  const int64_t columns = least == 0 ? plan.columns : g.n - columns_in_place<T>(g, g.n);
  return pieces(columns, panel<T>) * (std::min(g.k, depth<T>) * panel<T> + panel_gap);
}

template <class T>
GemmPlan plan_for(const Gemm& g, int threads) {
  GemmPlan plan;
  const bool narrow = g.c_dtype != dtype_of<T>;  // sums of a task wait in scratch
  const int64_t wanted = threads > 1 ? 4 * threads : 1;
  const int64_t fewest = 8 * tile_rows;  // rows that are worth packing b for
  plan.columns = std::min(most_columns<T>, round_up(g.n, panel<T>));
  if (few_rows<T>(g)) {
    plan.rows = g.m;
    plan.columns = std::min<int64_t>(round_up(pieces(g.n, wanted), few_width), 4096);
  } else if (g.m <= fewest) {
    plan.rows = round_up(g.m, tile_rows);
    if (g.m <= 2 * tile_rows) {  // a panel is used up while it is close
      plan.columns = panel<T>;
    } else if (wanted > 1) {
      plan.columns = std::clamp(round_up(pieces(g.n, wanted), panel<T>),
                                std::min(plan.columns, 2 * panel<T>), plan.columns);
    }
  } else {
    const int64_t down = pieces(wanted, pieces(g.n, plan.columns));
    plan.rows = std::clamp(pieces(g.m, down), fewest, narrow ? 240 : most_rows);
    plan.rows = round_up(pieces(g.m, pieces(g.m, plan.rows)), tile_rows);
  }
  int64_t elements = strip_elements<T>(g) + panel_elements<T>(g, plan);
  if (narrow) elements += plan.rows * plan.columns;
  plan.scratch = elements * static_cast<int64_t>(sizeof(T));
  return plan;
}

/// The lines of a, from the strips that come after, that a tile fetches. Where its rows lie side by
/// side, each column is on lines of its own; where they lie one after the other, a tile takes two.
template <class S>
class Following {
 public:
  /// Of k columns.
  Following(const Gemm& g, int64_t k)
      : column_(g.a_row == 1 && g.a_col != 1 ? g.a_col * size : 0),
        row_(g.a_col == 1 ? g.a_row * size : 0),
        columns_(k) {}
  /// What tile t fetches of the strips that begin at `a`: two of the four lines of k / pace
  /// columns, or rows 2 t and 2 t + 1.
  Ahead operator()(const S* a, int64_t t) const {
    const auto* base = static_cast<const char*>(static_cast<const void*>(a));
    if (row_ != 0 && 2 * t < tile_rows) return {base + 2 * t * row_, row_, pace * size};
    if (column_ == 0) return {nullptr, 0, 0};
    const int64_t first = std::min(t / 2 * (columns_ / pace), columns_ - 1);
    return {base + first * column_ + t % 2 * 128, 64, column_};
  }

 private:
  static constexpr auto size = static_cast<int64_t>(sizeof(S));
  int64_t column_, row_, columns_;
};

template <class T, class S>
void run_task(const Gemm& g, const GemmPlan& plan, int64_t task, T* scratch) {
  constexpr int64_t width = panel<T>;
  int64_t i0 = 0, j0 = 0;
  if (task > 0) {
    const int64_t beside = pieces(g.n, plan.columns);
    i0 = task / beside * plan.rows;
    j0 = task % beside * plan.columns;
  }
  const int64_t m = std::min(plan.rows, g.m - i0), n = std::min(plan.columns, g.n - j0);
  const S* a = static_cast<const S*>(g.a) + i0 * g.a_row;
  const S* b = static_cast<const S*>(g.b) + j0 * g.b_col;
  const T* bias = g.bias != nullptr ? static_cast<const T*>(g.bias) + j0 : nullptr;
  T* strip = scratch;
  T* panels = strip + strip_elements<T>(g);
  T* wide = panels + panel_elements<T>(g, plan);

  T* c = nullptr;
  int64_t c_row = g.c_row;
  const bool narrow = g.c_dtype != dtype_of<T>;
  if constexpr (!std::is_same_v<T, S>) {
    if (narrow) {
      c = wide;
      c_row = n;
      if (g.accumulate) {
        copy_rows(m, n, static_cast<const S*>(g.c) + i0 * g.c_row + j0, g.c_row, c, c_row);
      }
    }
  }
  if (!narrow) c = static_cast<T*>(g.c) + i0 * g.c_row + j0;

  // Strips of almost equal height: a low one would not keep the units busy.
  const auto strips = static_cast<int>(pieces(m, tile_rows));
  const int64_t high = static_cast<int>(m) % strips, least = static_cast<int>(m) / strips;
  const int64_t together = strips_of(g);
  const bool direct = direct_a<T>(g);
  [[maybe_unused]] const bool few_of_a = few_rows<T>(g);
  for (int64_t k0 = 0; k0 < g.k; k0 += depth<T>) {
    const int64_t k = std::min(depth<T>, g.k - k0);
    const S* a_block = a + k0 * g.a_col;
    const S* b_block = b + k0 * g.b_row;
    const int64_t apart = k * width + panel_gap;
    const int64_t lying = columns_in_place<T>(g, n);
    if (lying < n) {
      pack_panels(k, n - lying, b_block + lying * g.b_col, g.b_row, g.b_col, panels, apart);
    }
    const Following<S> following(g, k);
    const T* strip_a = strip;
    Steps steps{g.a_row, g.a_col};
    const S* next_block = k0 + depth<T> < g.k ? a_block + depth<T> * g.a_col : a_block;
    int64_t i = 0, i_packed = 0, tiles_done = 0;
    for (int s = 0; s < strips; ++s) {
      const int64_t rows = least + (s < high ? 1 : 0);
      const S* from = a_block + i * g.a_row;
      if (direct) {
        strip_a = static_cast<const T*>(static_cast<const void*>(from));
        i_packed = i + rows;
        tiles_done = 0;
      } else if (i == i_packed) {
        const int64_t count = std::min<int64_t>(together, strips - s);
        const int64_t packed = count * least + std::clamp<int64_t>(high - s, 0, count);
        steps = pack_strips(together, packed, k, from, g.a_row, g.a_col, strip);
        strip_a = strip;
        i_packed = i + packed;
        tiles_done = 0;
      }
      const S* after = i_packed < m ? a_block + i_packed * g.a_row : next_block;
      int64_t j = 0;
#if HWY_TARGET != HWY_SCALAR
      if constexpr (std::is_same_v<T, float>) {
        for (; few_of_a && j < lying; j += few_width) {
          const Target<T> to{c + j, c_row, bias != nullptr && k0 == 0 ? bias + j : nullptr,
                             g.accumulate || k0 > 0, few_width};
          few_across_rows(rows, k, strip_a, steps.row, b_block + j * g.b_col, g.b_col, to);
        }
      }
#endif
      for (; j < n; j += width) {
        const Ahead ahead = following(after, tiles_done++);
        const int64_t columns = std::min(width, n - j);
        const bool lies = j < lying;
        const T* panel_b = lies ? static_cast<const T*>(static_cast<const void*>(b_block + j))
                                : panels + (j - lying) / width * apart;
        const int64_t b_row = lies ? g.b_row : width;
        const Target<T> to{c + i * c_row + j, c_row,
                           bias != nullptr && k0 == 0 ? bias + j : nullptr, g.accumulate || k0 > 0,
                           columns};
        if (columns > lanes<T>) {
          tiles<T, 2>(rows, k, strip_a, steps.row, steps.col, panel_b, b_row, to, ahead);
        } else {
          tiles<T, 1>(rows, k, strip_a, steps.row, steps.col, panel_b, b_row, to, ahead);
        }
      }
      i += rows;
      strip_a += rows * steps.row;
    }
  }

  if constexpr (!std::is_same_v<T, S>) {
    if (narrow) {
      S* to = static_cast<S*>(g.c) + i0 * g.c_row + j0;
      copy_rows(m, n, c, c_row, to, g.c_row);
    }
  }
}

}  // namespace

void RunGemm(const Gemm& g, const GemmPlan& plan, int64_t task, void* scratch) {
  visit_floating(g.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    using T = Accumulator<S>;
    run_task<T, S>(g, plan, task, static_cast<T*>(scratch));
  });
}

GemmPlan PlanGemm(const Gemm& g, int threads) {
  return g.dtype == DType::f64 ? plan_for<double>(g, threads) : plan_for<float>(g, threads);
}

}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::cpu {

HWY_EXPORT(RunGemm);
HWY_EXPORT(PlanGemm);

GemmPlan plan_gemm(const Gemm& g, int threads) {
  return HWY_DYNAMIC_DISPATCH(PlanGemm)(g, threads);
}

void run_gemm(const Gemm& g, const GemmPlan& plan, int64_t task, void* scratch) {
  HWY_DYNAMIC_DISPATCH(RunGemm)(g, plan, task, scratch);
}

}  // namespace longspan::cpu
#endif
