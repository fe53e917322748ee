// Tiles of the attention kernels: packed panels, products, exponentials, intervals of visible keys.
// Included once per SIMD target by each direction.
//
// Packed shapes, with NR = kPanel<T> columns:
//   panels  [ceil(n / NR)][rows][NR]  columns of a [rows, n] matrix, zero beyond n
//   score tiles [rows][kScoreStride]  keys of one block

#if defined(LONGSPAN_CPU_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_ATTENTION_TILE_INL_H_
#undef LONGSPAN_CPU_ATTENTION_TILE_INL_H_
#else
#define LONGSPAN_CPU_ATTENTION_TILE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/divide.h"
#include "core/generator.h"
#include "cpu/attention_plan.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;
template <class T>
using Vec = hn::Vec<Tag<T>>;

template <class T>
inline constexpr int64_t kLanes = HWY_LANES(T);
template <class T>
inline constexpr int64_t kPanel = 2 * kLanes<T>;

// Rows of a register tile (two vectors wide), and of the tile that serves remainders.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
inline constexpr int64_t kGroup = 12;
inline constexpr int64_t kRest = 4;
#else
inline constexpr int64_t kGroup = 6;
inline constexpr int64_t kRest = 2;
#endif
inline constexpr int64_t kMaxGroups = kTileRows / kGroup;

// ------------------------------------------------------------------------------------- products

// clang-format off
#define LONGSPAN_ROWS_2(X) X(0) X(1)
#define LONGSPAN_ROWS_4(X) LONGSPAN_ROWS_2(X) X(2) X(3)
#define LONGSPAN_ROWS_6(X) LONGSPAN_ROWS_4(X) X(4) X(5)
#define LONGSPAN_ROWS_12(X) LONGSPAN_ROWS_6(X) X(6) X(7) X(8) X(9) X(10) X(11)
// clang-format on

// C[r][0..w) (+)= sum_k A(r, k) B[k][0..w), w = kVectors vectors (1: half a panel), with A(r, k) =
// a[r * kRowStride + k * step] inside one of `panels` panels, which lie `a_panel` apart and have
// k_panel columns, the last one k_last. B is contiguous. Every element is one chain of fused
// multiply-adds in the order of k, so its bits do not depend on the rows beside it. Named
// accumulators: GCC 12 spills arrays of vectors.
#define LONGSPAN_ZERO(r) Vec<T> c##r##a = hn::Zero(d), c##r##b = hn::Zero(d);
#define LONGSPAN_LOAD(r)               \
  c##r##a = hn::LoadU(d, c + (r)*ldc); \
  if constexpr (kVectors == 2) c##r##b = hn::LoadU(d, c + (r)*ldc + kLanes<T>);
#define LONGSPAN_STEP(r)                                               \
  {                                                                    \
    const Vec<T> x = hn::Set(d, ak[(r)*kRowStride]);                   \
    c##r##a = hn::MulAdd(x, b0, c##r##a);                              \
    if constexpr (kVectors == 2) c##r##b = hn::MulAdd(x, b1, c##r##b); \
  }
#define LONGSPAN_STORE(r)              \
  hn::StoreU(c##r##a, d, c + (r)*ldc); \
  if constexpr (kVectors == 2) hn::StoreU(c##r##b, d, c + (r)*ldc + kLanes<T>);

#define LONGSPAN_PRODUCT(name, ROWS)                                                               \
  template <int kVectors, int64_t kRowStride, class T>                                             \
  HWY_NOINLINE void name(const T* HWY_RESTRICT a, int64_t step, int64_t a_panel,                   \
                         const T* HWY_RESTRICT b, int64_t panels, int64_t k_panel, int64_t k_last, \
                         T* HWY_RESTRICT c, int64_t ldc, bool add) {                               \
    const Tag<T> d;                                                                                \
    ROWS(LONGSPAN_ZERO)                                                                            \
    if (add) {                                                                                     \
      ROWS(LONGSPAN_LOAD)                                                                          \
    }                                                                                              \
    for (; panels > 0; --panels, a += a_panel) {                                                   \
      const T* HWY_RESTRICT ak = a;                                                                \
      for (int64_t k = panels > 1 ? k_panel : k_last; k > 0; --k) {                                \
        const Vec<T> b0 = hn::Load(d, b);                                                          \
        const Vec<T> b1 = kVectors == 2 ? hn::Load(d, b + kLanes<T>) : b0;                         \
        ROWS(LONGSPAN_STEP)                                                                        \
        ak += step;                                                                                \
        b += kPanel<T>;                                                                            \
      }                                                                                            \
    }                                                                                              \
    ROWS(LONGSPAN_STORE)                                                                           \
  }
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
LONGSPAN_PRODUCT(product_group, LONGSPAN_ROWS_12)
LONGSPAN_PRODUCT(product_rest, LONGSPAN_ROWS_4)
#else
LONGSPAN_PRODUCT(product_group, LONGSPAN_ROWS_6)
LONGSPAN_PRODUCT(product_rest, LONGSPAN_ROWS_2)
#endif
#undef LONGSPAN_PRODUCT
#undef LONGSPAN_ZERO
#undef LONGSPAN_LOAD
#undef LONGSPAN_STEP
#undef LONGSPAN_STORE
#undef LONGSPAN_ROWS_2
#undef LONGSPAN_ROWS_4
#undef LONGSPAN_ROWS_6
#undef LONGSPAN_ROWS_12

// One panel of columns for `rows` rows; a and c have room for rows rounded up to kRest.
template <int kVectors, int64_t kRowStride, class T>
HWY_NOINLINE void product(int64_t rows, const T* a, int64_t step, int64_t a_panel, const T* b,
                          int64_t panels, int64_t k_panel, int64_t k_last, T* c, int64_t ldc,
                          bool add) {
  int64_t r = 0;
  for (; r + kGroup <= rows; r += kGroup) {
    product_group<kVectors, kRowStride>(a + r * kRowStride, step, a_panel, b, panels, k_panel,
                                        k_last, c + r * ldc, ldc, add);
  }
  for (; r < rows; r += kRest) {
    product_rest<kVectors, kRowStride>(a + r * kRowStride, step, a_panel, b, panels, k_panel,
                                       k_last, c + r * ldc, ldc, add);
  }
}

// C[r][0..NR) += sum_k A(r, k) B[k][0..NR) over the k in [0, count) for which sees(r, k), with
// A(r, k) = a[r * row_stride + k * step]: for B that holds what is not finite, where the zeros that
// A has elsewhere do not help. Bits are those of product() where all is finite.
template <class T, class Sees>
HWY_NOINLINE void product_of_seen(int64_t rows, const T* a, int64_t row_stride, int64_t step,
                                  const T* b, int64_t count, T* c, int64_t ldc, Sees sees) {
  const Tag<T> d;
  for (int64_t r = 0; r < rows; ++r, c += ldc) {
    Vec<T> low = hn::LoadU(d, c), high = hn::LoadU(d, c + kLanes<T>);
    for (int64_t k = 0; k < count; ++k) {
      if (!sees(r, k)) continue;
      const Vec<T> x = hn::Set(d, a[r * row_stride + k * step]);
      low = hn::MulAdd(x, hn::Load(d, b + k * kPanel<T>), low);
      high = hn::MulAdd(x, hn::Load(d, b + k * kPanel<T> + kLanes<T>), high);
    }
    hn::StoreU(low, d, c);
    hn::StoreU(high, d, c + kLanes<T>);
  }
}

// The part of a score panel whose keys [first, last) are seen, counted from the panel's first key:
// nothing, one of its halves, or all. x are rows as panels [panels][kTileRows][NR].
template <class T>
HWY_INLINE void product_seen(int64_t first, int64_t last, int64_t rows, const T* x, const T* panel,
                             int64_t panels, int64_t last_columns, T* scores) {
  constexpr int64_t N = kPanel<T>;
  constexpr int64_t V = kLanes<T>;
  if (first >= N || last <= 0) return;
  if (first < V && last > V) {
    product<2, N>(rows, x, 1, kTileRows * N, panel, panels, N, last_columns, scores, kScoreStride,
                  false);
  } else {
    const int64_t half = first < V ? 0 : V;
    product<1, N>(rows, x, 1, kTileRows * N, panel + half, panels, N, last_columns, scores + half,
                  kScoreStride, false);
  }
}

// ---------------------------------------------------------------------------------- exponentials

// 2^x. Exactly 0 below the smallest normal number, NaN for NaN; relative error 2.4e-7 (f32) or
// 3e-16 (f64).
template <class D>
HWY_INLINE hn::Vec<D> exp2(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  const hn::RebindToSigned<D> di;
  using V = hn::Vec<D>;
  constexpr bool kSingle = sizeof(T) == 4;
  const V magic = hn::Set(d, static_cast<T>(kSingle ? 12582912.0 : 6755399441055744.0));
  const V t = hn::Add(x, magic);
  const V f = hn::Sub(x, hn::Sub(t, magic));
  V p;
  if constexpr (kSingle) {
    p = hn::Set(d, static_cast<T>(0.00133908634));
    p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(0.00967603192)));
    p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(0.0555035711)));
    p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(0.240221075)));
    p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(0.693147188)));
    p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(1.00000008)));
  } else {  // Taylor series of 2^f, |f| <= 1/2
    p = hn::Set(d, static_cast<T>(1.3691488853904128881e-12));
    p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(2.5678435993488205142e-11)));
    p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(4.4455382718708114976e-10)));
    p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(7.0549116208011233299e-9)));
    p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(1.0178086009239699728e-7)));
    p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(1.3215486790144309488e-6)));
    p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(1.5252733804059840280e-5)));
    p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(1.5403530393381609954e-4)));
    p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(1.3333558146428443423e-3)));
    p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(9.6181291076284771620e-3)));
    p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(5.5504108664821579953e-2)));
    p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(2.4022650695910071233e-1)));
    p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(6.9314718055994530942e-1)));
    p = hn::MulAdd(p, f, hn::Set(d, static_cast<T>(1)));
  }
  const auto n = hn::ShiftLeft < kSingle ? 23 : 52 > (hn::BitCast(di, t));
  const V y = hn::BitCast(d, hn::Add(hn::BitCast(di, p), n));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, static_cast<T>(kSingle ? -126 : -1022))), y);
}

template <class T>
HWY_INLINE T exp2(T x) {
  const Tag<T> d;
  return hn::GetLane(exp2(d, hn::Set(d, x)));
}

// --------------------------------------------------------------------------------------- packing

// Copies rows row .. row + rows into panels [ceil(width / NR)][panel_rows][NR], times scale; zeroes
// columns beyond the width and rows up to `padded`. Returns whether all of it is finite.
template <class T>
bool pack_rows(const RowSource<T>& x, int64_t row, int64_t rows, int64_t padded, T scale,
               T* HWY_RESTRICT to, int64_t panel_rows) {
  const Tag<T> d;
  constexpr int64_t N = kPanel<T>;
  const int64_t whole = x.width / N;
  const int64_t tail = x.width % N;
  const Vec<T> s = hn::Set(d, scale);
  alignas(64) T temporary[kMaxWidth];
  Vec<T> low = hn::Zero(d), high = hn::Zero(d);  // sums of 0 x: NaN once an x is not finite
  for (int64_t r = 0; r < rows; ++r) {
    const T* HWY_RESTRICT from = x.row(row + r, temporary);
    T* HWY_RESTRICT put = to + r * N;
    for (int64_t p = 0; p < whole; ++p, put += panel_rows * N, from += N) {
      const Vec<T> a = hn::Mul(s, hn::LoadU(d, from));
      const Vec<T> b = hn::Mul(s, hn::LoadU(d, from + kLanes<T>));
      hn::Store(a, d, put);
      hn::Store(b, d, put + kLanes<T>);
      low = hn::MulAdd(a, hn::Zero(d), low);
      high = hn::MulAdd(b, hn::Zero(d), high);
    }
    if (tail > 0) {
      for (int64_t c = 0; c < N; ++c) put[c] = c < tail ? from[c] * scale : T{0};
      low = hn::MulAdd(hn::Load(d, put), hn::Zero(d), low);
      high = hn::MulAdd(hn::Load(d, put + kLanes<T>), hn::Zero(d), high);
    }
  }
  for (int64_t p = 0; p < ceil_div(x.width, N); ++p) {
    std::fill(to + (p * panel_rows + rows) * N, to + (p * panel_rows + padded) * N, T{0});
  }
  return hn::AllTrue(d, hn::Eq(hn::Add(low, high), hn::Zero(d)));
}

// Row r of panels [panels][panel_rows][NR], times factor, to row `to` of a tensor.
template <class T>
void write_row(const T* panels, int64_t panel_rows, int64_t r, T factor, const RowSink<T>& sink,
               int64_t to) {
  constexpr int64_t N = kPanel<T>;
  constexpr int64_t V = kLanes<T>;
  const Tag<T> d;
  alignas(64) T values[kMaxWidth + N];
  T* put = sink.width % V == 0 ? sink.direct(to) : nullptr;
  const bool copy = put == nullptr;
  if (copy) put = values;
  const Vec<T> f = hn::Set(d, factor);
  for (int64_t c = 0; c < sink.width; c += V) {
    const T* from = panels + (c / N * panel_rows + r) * N + c % N;
    hn::StoreU(hn::Mul(hn::Load(d, from), f), d, put + c);
  }
  if (copy) sink.write(to, values);
}

#if HWY_TARGET != HWY_SCALAR
// 4 x 4 (f32) or 2 x 2 (f64) blocks of 128 bits of rows base, base + stride, ...: block i comes
// from row i * (16 / sizeof(T)).
template <class D, class T>
HWY_INLINE hn::Vec<D> load_blocks(D d, const T* base, int64_t stride) {
  if constexpr (hn::MaxLanes(D()) * sizeof(T) == 16) {
    (void)stride;
    return hn::LoadU(d, base);
  } else {
    const hn::Half<D> half;
    const auto low = load_blocks(half, base, stride);
    const auto high =
        load_blocks(half, base + static_cast<int64_t>(hn::Lanes(half)) * stride, stride);
    return hn::Combine(d, high, low);
  }
}

// One panel of NR rows from `base` on, transposed, by blocks; returns how many columns it has done.
template <class T>
int64_t transpose_blocks(const T* base, int64_t stride, int64_t width, T* HWY_RESTRICT to) {
  constexpr int64_t N = kPanel<T>;
  constexpr int64_t kUnit = 16 / sizeof(T);  // elements of a 128-bit block
  const Tag<T> d;
  int64_t from = 0;
  for (; from + kUnit <= width; from += kUnit) {
    for (int64_t part = 0; part < N; part += kLanes<T>) {
      const T* p = base + part * stride + from;
      T* q = to + from * N + part;
      const Vec<T> r0 = load_blocks(d, p, stride);
      const Vec<T> r1 = load_blocks(d, p + stride, stride);
      if constexpr (sizeof(T) == 4) {
        const hn::Repartition<double, Tag<T>> dd;
        const Vec<T> r2 = load_blocks(d, p + 2 * stride, stride);
        const Vec<T> r3 = load_blocks(d, p + 3 * stride, stride);
        const auto a = hn::BitCast(dd, hn::InterleaveLower(d, r0, r1));
        const auto b = hn::BitCast(dd, hn::InterleaveLower(d, r2, r3));
        const auto e = hn::BitCast(dd, hn::InterleaveUpper(d, r0, r1));
        const auto f = hn::BitCast(dd, hn::InterleaveUpper(d, r2, r3));
        hn::Store(hn::BitCast(d, hn::InterleaveLower(dd, a, b)), d, q);
        hn::Store(hn::BitCast(d, hn::InterleaveUpper(dd, a, b)), d, q + N);
        hn::Store(hn::BitCast(d, hn::InterleaveLower(dd, e, f)), d, q + 2 * N);
        hn::Store(hn::BitCast(d, hn::InterleaveUpper(dd, e, f)), d, q + 3 * N);
      } else {
        hn::Store(hn::InterleaveLower(d, r0, r1), d, q);
        hn::Store(hn::InterleaveUpper(d, r0, r1), d, q + N);
      }
    }
  }
  return from;
}
#else
template <class T>
int64_t transpose_blocks(const T*, int64_t, int64_t, T*) {
  return 0;
}
#endif

// Transposes keys key .. key + NR of x into one panel [width][NR]; zero beyond `keys`. `rows` has
// room for NR rows, which collect what is ordered or must be widened.
template <class T>
void pack_columns(const RowSource<T>& x, int64_t key, int64_t keys, T* HWY_RESTRICT rows,
                  T* HWY_RESTRICT to) {
  constexpr int64_t N = kPanel<T>;
  const T* base = rows;
  int64_t stride = x.width;
  if (x.contiguous() && keys >= N) {
    base = x.direct(key);
    stride = x.stride;
  } else {
    alignas(64) T temporary[kMaxWidth];
    for (int64_t j = 0; j < N; ++j) {
      if (j < keys) {
        std::copy_n(x.row(key + j, temporary), x.width, rows + j * x.width);
      } else {
        std::fill_n(rows + j * x.width, x.width, T{0});
      }
    }
  }
  for (int64_t c = transpose_blocks(base, stride, x.width, to); c < x.width; ++c) {
    for (int64_t j = 0; j < N; ++j) to[c * N + j] = base[j * stride + c];
  }
}

// All panels of one block: keys key .. key + keys of at most kBlock.
template <class T>
void pack_block_columns(const RowSource<T>& x, int64_t key, int64_t keys, T* rows, T* to) {
  constexpr int64_t N = kPanel<T>;
  for (int64_t j = 0; j < keys; j += N) {
    for (int64_t r = j + N; r < std::min(j + 2 * N, keys); ++r) x.prefetch(key + r);
    pack_columns(x, key + j, std::min(N, keys - j), rows, to + j * x.width);
  }
}

// ------------------------------------------------------------------------------------ visibility

// Visible keys of the rows of a tile: row r sees lo[r] <= j < hi[r], all relative to one origin.
// Groups of kGroup rows carry the union [first, last), empty where first >= last, and the
// intersection [inner, outer), empty where some row sees nothing.
struct Visible {
  int32_t lo[kTileRows], hi[kTileRows];
  int32_t first[kMaxGroups], last[kMaxGroups];
  int32_t inner[kMaxGroups], outer[kMaxGroups];
  int32_t all_first, all_last;
  bool alike;      // every row sees the same
  bool ascending;  // lo and hi never fall, and rows that see nothing lie at the ends

  bool holds(int64_t row, int64_t key) const { return lo[row] <= key && key < hi[row]; }
};

inline void unite(int64_t rows, Visible& v) {
  constexpr int32_t kFar = std::numeric_limits<int32_t>::max();
  v.all_first = kFar;
  v.all_last = 0;
  v.ascending = true;
  int32_t lo = 0, hi = 0;
  bool ended = false;
  for (int64_t g = 0; g * kGroup < rows; ++g) {
    int32_t first = kFar, last = 0, inner = 0, outer = kFar;
    for (int64_t r = g * kGroup; r < std::min(rows, (g + 1) * kGroup); ++r) {
      if (v.lo[r] >= v.hi[r]) {
        outer = 0;
        ended = ended || hi > 0;
        continue;
      }
      v.ascending = v.ascending && !ended && v.lo[r] >= lo && v.hi[r] >= hi;
      lo = v.lo[r];
      hi = v.hi[r];
      first = std::min(first, lo);
      last = std::max(last, hi);
      inner = std::max(inner, lo);
      outer = std::min(outer, hi);
    }
    v.first[g] = first;
    v.last[g] = last;
    v.inner[g] = inner;
    v.outer[g] = std::max(inner, outer);
    v.all_first = std::min(v.all_first, first);
    v.all_last = std::max(v.all_last, last);
  }
}

// Clips to the block of keys [origin, origin + keys) and counts from its origin.
inline void clip(const Visible& all, int64_t rows, int64_t origin, int64_t keys, Visible& v) {
  const int32_t from = static_cast<int32_t>(origin);
  const int32_t n = static_cast<int32_t>(keys);
  const int32_t first_lo = all.lo[0], first_hi = all.hi[0];
  int32_t differ = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t lo = std::clamp(all.lo[r] - from, 0, n);
    const int32_t hi = std::clamp(all.hi[r] - from, 0, n);
    v.lo[r] = lo < hi ? lo : 0;  // rows that see nothing end before every key
    v.hi[r] = lo < hi ? hi : 0;
    differ |= (lo ^ std::clamp(first_lo - from, 0, n)) | (hi ^ std::clamp(first_hi - from, 0, n));
  }
  v.alike = differ == 0;
  unite(rows, v);
}

// The keys [k0, k1) of a block, counted from its origin, for every row.
inline void show_all(int64_t rows, int64_t k0, int64_t k1, Visible& v) {
  const auto first = static_cast<int32_t>(k0), last = static_cast<int32_t>(k1);
  std::fill_n(v.lo, rows, first);
  std::fill_n(v.hi, rows, last);
  const int64_t groups = ceil_div(rows, kGroup);
  for (int32_t* lo : {v.first, v.inner}) std::fill_n(lo, groups, first);
  for (int32_t* hi : {v.last, v.outer}) std::fill_n(hi, groups, last);
  v.all_first = first;
  v.all_last = last;
  v.alike = v.ascending = true;
}

// Calls f(origin, seen) for the blocks of a range that some row of tile t sees, `skips` telling
// which rows see nothing. Most runs of block patterns are seen by all rows alike.
template <class Skips, class F>
HWY_INLINE void for_blocks(const AttentionHead& head, int64_t t, const KeyRange& range, bool skip,
                           const Skips& skips, F&& f) {
  const int64_t rows = head.tile_rows(t);
  Visible seen;
  if (!skip && head.shows_all(t, range)) {
    for (int64_t block = range.k0 / kBlock; block * kBlock < range.k1; ++block) {
      const int64_t origin = block * kBlock;
      show_all(rows, std::max<int64_t>(range.k0 - origin, 0), std::min(range.k1 - origin, kBlock),
               seen);
      f(origin, seen);
    }
    return;
  }
  Visible all;
  head.visible(t, range, all.lo, all.hi);
  for (int64_t r = 0; skip && r < rows; ++r) {
    if (skips(r)) all.lo[r] = all.hi[r] = 0;
  }
  unite(rows, all);
  for (int64_t block = all.all_first / kBlock; block * kBlock < all.all_last; ++block) {
    const int64_t origin = block * kBlock;
    clip(all, rows, origin, head.block_keys(origin), seen);
    f(origin, seen);
  }
}

// Lanes of vector i of keys that lie in [lo, hi).
template <class T>
HWY_INLINE hn::Mask<Tag<T>> inside(int64_t i, int32_t lo, int32_t hi) {
  const hn::RebindToSigned<Tag<T>> di;
  using I = hn::TFromD<decltype(di)>;
  const auto key = hn::Iota(di, static_cast<I>(i * kLanes<T>));
  const auto before = hn::Lt(key, hn::Set(di, static_cast<I>(lo)));
  const auto below = hn::Lt(key, hn::Set(di, static_cast<I>(hi)));
  return hn::RebindMask(Tag<T>(), hn::AndNot(before, below));
}

template <class T>
HWY_INLINE void zero_vectors(T* s, int64_t from, int64_t to) {
  const Tag<T> d;
  for (int64_t v = from; v < to; ++v) hn::Store(hn::Zero(d), d, s + v * kLanes<T>);
}

// Vectors [from, to) that a group needs, of which [a, e) are visible to each of its rows.
struct Vectors {
  int64_t from, to, a, e;
};

template <class T>
Vectors vectors_of(const Visible& v, int64_t g, int64_t margin, int64_t keys) {
  constexpr int64_t V = kLanes<T>;
  Vectors n;
  n.from = std::max<int64_t>(0, v.first[g] - margin) / V;
  n.to = ceil_div(std::min(keys, v.last[g] + margin), V);
  n.a = std::min(ceil_div(v.inner[g], V), n.to);
  n.e = std::max(n.a, std::min<int64_t>(v.outer[g] / V, n.to));
  return n;
}

// ------------------------------------------------------------------------------------- relations

// Ids of pairs, and rows of tables with a column for each. Ids of distances come first, then those
// that only classes reach; each kind begins a panel of its own in packed tables, where id lies in
// row_of(id). In a row of a table the kLanes columns on either side of the distances repeat their
// two ends, so that any vector of neighbouring keys is one unaligned load.
template <class T>
struct Relation {
  // Panels of one kind that a tile can reach, and how many ids the last one has.
  struct Part {
    int64_t first = 0, panels = 0, last_ids = 0;
    int64_t ids(int64_t p) const { return p + 1 == first + panels ? last_ids : kPanel<T>; }
    int64_t end() const { return first + panels; }
  };

  int64_t left = 0, right = 0;
  int64_t others = 0;  // ids beyond those of distances
  int64_t stride = 0;  // of a row: room for whole panels and for the repeated ends
  Part part[2];        // distances, others

  int64_t distances() const { return left + right + 1; }
  int64_t ids() const { return distances() + others; }
  int64_t distance_rows() const { return round_up(distances(), kPanel<T>); }
  int64_t padded() const { return distance_rows() + round_up(others, kPanel<T>); }
  int64_t row_of(int64_t id) const {
    return id < distances() ? id : distance_rows() + id - distances();
  }
  int64_t column_of_row(int64_t row) const {
    return row + kLanes<T> * (row < distance_rows() ? 1 : 2);
  }
  bool reaches_first() const { return part[0].first == 0; }
  bool reaches_last() const {
    return (part[0].end() - 1) * kPanel<T> + part[0].last_ids == distances();
  }
  int64_t panels() const { return part[0].panels + part[1].panels; }

  void init(int64_t l, int64_t r, int64_t ids) {
    left = l;
    right = r;
    others = ids - distances();
    stride = padded() + 3 * kLanes<T>;
  }
  // A tile whose pairs lie min .. max apart, and may have any label where `all`.
  void reach(int64_t min_distance, int64_t max_distance, bool all) {
    constexpr int64_t N = kPanel<T>;
    const int64_t low = all ? 0 : std::clamp(min_distance, -left, right) + left;
    const int64_t high = all ? distances() - 1 : std::clamp(max_distance, -left, right) + left;
    part[0] = {low / N, high / N - low / N + 1, high % N + 1};
    part[1] = {};
    if (all && others > 0)
      part[1] = {distance_rows() / N, ceil_div(others, N), (others - 1) % N + 1};
  }
  // Where the vector of keys at distances distance, distance + 1, ... begins.
  int64_t column(int64_t distance) const {
    return std::clamp(distance, -left - kLanes<T>, right + 1) + left + kLanes<T>;
  }
};

// Calls f(part, panel, index) for the panels that a tile can reach; `index` counts them.
template <class T, class F>
HWY_INLINE void for_panels(const Relation<T>& rel, F&& f) {
  int64_t index = 0;
  for (const auto& part : rel.part) {
    for (int64_t p = part.first; p < part.end(); ++p) f(part, p, index++);
  }
}

// table[r][id] = x_r . a[id] + b[id] for reachable ids, and the repeated ends.
template <class T>
void relation_table(const Relation<T>& rel, int64_t rows, const T* x, int64_t width, const T* a,
                    const T* b, T* table) {
  constexpr int64_t N = kPanel<T>;
  constexpr int64_t V = kLanes<T>;
  const int64_t panels = ceil_div(width, N), last_columns = width - (panels - 1) * N;
  for_panels(rel, [&](const auto& part, int64_t p, int64_t) {
    T* column = table + rel.column_of_row(p * N);
    const int64_t ids = part.ids(p);
    if (a != nullptr) {
      const T* const panel = a + p * N * width;
      if (ids > V) {
        product<2, N>(rows, x, 1, kTileRows * N, panel, panels, N, last_columns, column, rel.stride,
                      false);
      } else {
        product<1, N>(rows, x, 1, kTileRows * N, panel, panels, N, last_columns, column, rel.stride,
                      false);
      }
    }
    if (a != nullptr && b == nullptr) return;
    for (int64_t r = 0; r < rows; ++r) {
      T* put = column + r * rel.stride;
      for (int64_t c = 0; c < ids; ++c) put[c] = (a != nullptr ? put[c] : T{0}) + b[p * N + c];
    }
  });
  for (int64_t r = 0; r < rows; ++r) {
    T* row = table + r * rel.stride;
    if (rel.reaches_first()) std::fill(row, row + V, row[V]);
    if (rel.reaches_last()) {
      T* end = row + V + rel.distances();
      std::fill(end, end + V, end[-1]);
    }
  }
}

template <class T>
void clear_sums(const Relation<T>& rel, int64_t rows, T* sums) {
  constexpr int64_t N = kPanel<T>;
  constexpr int64_t V = kLanes<T>;
  for (int64_t r = 0; r < rows; ++r) {
    T* row = sums + r * rel.stride;
    std::fill(row, row + V, T{0});
    for (const auto& part : rel.part) {
      T* const from = row + rel.column_of_row(part.first * N);
      std::fill(from, from + part.panels * N, T{0});
    }
    T* const end = row + V + rel.part[0].end() * N;
    std::fill(end, end + V, T{0});
  }
}

// What lies beside the vector of keys `distance`, distance + 1, ...: the table's entries.
template <class T>
HWY_INLINE Vec<T> from_table(const Relation<T>& rel, int64_t distance, const T* table) {
  return hn::LoadU(Tag<T>(), table + rel.column(distance));
}

// Adds that vector to the sums of its ids.
template <class T>
HWY_INLINE void add_to_bins(const Relation<T>& rel, int64_t distance, Vec<T> x, T* sums) {
  const Tag<T> d;
  T* const at = sums + rel.column(distance);
  hn::StoreU(hn::Add(hn::LoadU(d, at), x), d, at);
}

// Sums per id, as panels [reachable panels][kTileRows][NR]: folds the repeated ends.
template <class T>
void fold_sums(const Relation<T>& rel, int64_t rows, T* sums, T* to) {
  constexpr int64_t N = kPanel<T>;
  constexpr int64_t V = kLanes<T>;
  for (int64_t r = 0; r < rows; ++r) {
    T* row = sums + r * rel.stride;
    if (rel.reaches_first()) {
      for (int64_t v = 0; v < V; ++v) row[V] += row[v];
    }
    if (rel.reaches_last()) {
      T* end = row + V + rel.distances();
      for (int64_t v = 0; v < V; ++v) end[-1] += end[v];
      std::fill(end, row + V + rel.distance_rows(), T{0});
    }
    for_panels(rel, [&](const auto&, int64_t p, int64_t index) {
      std::copy_n(row + rel.column_of_row(p * N), N, to + (index * kTileRows + r) * N);
    });
  }
  const int64_t padded = round_up(rows, kRest);
  for (int64_t p = 0; p < rel.panels(); ++p) {
    std::fill(to + (p * kTileRows + rows) * N, to + (p * kTileRows + padded) * N, T{0});
  }
}

// to[r] += sum_id bins[r][id] a_id, with a as panels [panels][padded ids][NR].
template <class T>
void add_bins_product(const Relation<T>& rel, int64_t rows, const T* bins, const T* a,
                      int64_t panels, T* to) {
  constexpr int64_t N = kPanel<T>;
  for (const auto& part : rel.part) {
    if (part.panels == 0) continue;
    for (int64_t p = 0; p < panels; ++p) {
      product<2, N>(rows, bins, 1, kTileRows * N, a + (p * rel.padded() + part.first * N) * N,
                    part.panels, N, part.last_ids, to + p * kTileRows * N, N, true);
    }
    bins += part.panels * kTileRows * N;
  }
}

// sums[id] += sum_r bins[r][id] x_r, with x as panels [panels][kTileRows][NR].
template <class T>
void add_table_gradient(const Relation<T>& rel, int64_t rows, const T* bins, const T* x,
                        int64_t panels, T* sums) {
  constexpr int64_t N = kPanel<T>;
  for_panels(rel, [&](const auto& part, int64_t i, int64_t index) {
    for (int64_t p = 0; p < panels; ++p) {
      product<2, 1>(part.ids(i), bins + index * kTileRows * N, N, 0, x + p * kTileRows * N, 1, 0,
                    rows, sums + (p * rel.padded() + i * N) * N, N, true);
    }
  });
}

// The ids that a tile's pairs can have, of these keys.
template <class T>
void reach(const AttentionHead& head, int64_t row, int64_t rows,
           const std::vector<KeyRange>& ranges, Relation<T>& relation) {
  int64_t low = std::numeric_limits<int64_t>::max(), high = std::numeric_limits<int64_t>::min();
  bool all = head.order_q != nullptr;
  for (const KeyRange& k : ranges) {
    const HeadSegment& s = head.at_place(k.k0);
    all = all || s.class_id != nullptr || s.order != nullptr;
    const int64_t position = row + s.q_start;
    low = std::min(low, k.k0 - s.first - (position + rows - 1));
    high = std::max(high, k.k1 - 1 - s.first - position);
  }
  relation.reach(low, high, all);
}

// ---------------------------------------------------------------------------------------- labels

// What a block's pairs need beyond intervals: which are hidden, and the column of the relation
// tables where that is not by distance.
template <class T>
class Labels {
 public:
  using Label = hn::TFromD<hn::RebindToSigned<Tag<T>>>;

  /// Of the block of `keys` keys at place `origin`. Without tables labels only hide.
  void begin(const HeadSegment& s, const Relation<T>& relation, bool tables, int64_t origin,
             int64_t keys) {
    segment_ = &s;
    relation_ = &relation;
    origin_ = origin;
    keys_ = keys;
    hides_ = s.class_id != nullptr;
    for (int64_t j = 0; s.hidden != nullptr && !hides_ && j < keys; ++j) {
      hides_ = s.hidden[s.key(origin + j)] != 0;
    }
    columns_ = tables && (s.class_id != nullptr || s.order != nullptr);
    if (!active()) return;
    of_class_ = -1;
    std::fill(label_ + keys, label_ + kBlock, Label{-1});
    if (s.class_id == nullptr && !columns_) {
      for (int64_t j = 0; j < keys; ++j) {
        label_[j] = s.hidden[s.key(origin + j)] != 0 ? Label{-1} : Label{0};
      }
    }
  }

  bool active() const { return hides_ || columns_; }
  /// Whether some pairs are hidden, and whether labels are columns of tables.
  bool hides() const { return hides_; }
  bool columns() const { return columns_; }

  /// Labels of the block's keys for query i: -1 where hidden; else a column, if columns().
  const Label* of_row(int64_t i) {
    const HeadSegment& s = *segment_;
    if (s.class_id != nullptr) {
      if (s.q_class[i] != of_class_) fill_class(s, s.q_class[i]);
    } else if (columns_) {
      for (int64_t j = 0; j < keys_; ++j) {
        const int64_t key = s.key(origin_ + j);
        const int64_t distance = key - (i + s.q_start);
        const bool hidden = s.hidden != nullptr && s.hidden[key] != 0;
        label_[j] =
            hidden ? Label{-1}
                   : static_cast<Label>(std::clamp(distance, -relation_->left, relation_->right) +
                                        relation_->left + kLanes<T>);
      }
    }
    return label_;
  }

  /// Whether query i sees key j of the block, as far as labels say.
  bool shows(int64_t i, int64_t j) const { return segment_->shows(i, segment_->key(origin_ + j)); }

  /// sums[label j] += x_j for from <= j < to, where a label is not -1.
  void add(const Label* label, int64_t from, int64_t to, const T* x, T* sums) const {
    for (int64_t j = from; j < to;) {  // neighbours often share a label
      const Label at = label[j];
      T total = x[j++];
      while (j < to && label[j] == at) total += x[j++];
      if (at >= 0) sums[at] += total;
    }
  }

 private:
  HWY_NOINLINE void fill_class(const HeadSegment& s, int32_t q_class) {
    of_class_ = q_class;
    const int32_t* const ids = s.class_id + q_class * s.k_classes;
    for (int64_t j = 0; j < keys_; ++j) {
      const int64_t key = s.key(origin_ + j);
      const int32_t id = s.hidden != nullptr && s.hidden[key] != 0 ? -1 : ids[s.k_class[key]];
      label_[j] = id < 0 || !columns_
                      ? static_cast<Label>(id < 0 ? -1 : 0)
                      : static_cast<Label>(relation_->column_of_row(relation_->row_of(id)));
    }
  }

  const HeadSegment* segment_ = nullptr;
  const Relation<T>* relation_ = nullptr;
  int64_t origin_ = 0, keys_ = 0;
  int64_t of_class_ = -1;
  bool hides_ = false, columns_ = false;
  alignas(64) Label label_[kBlock];
};

template <class T>
HWY_INLINE hn::Mask<Tag<T>> shown(const typename Labels<T>::Label* label, int64_t v) {
  const hn::RebindToSigned<Tag<T>> di;
  return hn::RebindMask(Tag<T>(), hn::Gt(hn::Load(di, label + v * kLanes<T>), hn::Set(di, -1)));
}

// The entries of a table's row at vector v of labels.
template <class T>
HWY_INLINE Vec<T> from_labels(const T* table, const typename Labels<T>::Label* label, int64_t v) {
  const hn::RebindToSigned<Tag<T>> di;
  const auto at = hn::Max(hn::Load(di, label + v * kLanes<T>), hn::Zero(di));
  return hn::GatherIndex(Tag<T>(), table, at);
}

// ------------------------------------------------------------------------------------- soft mask

// mu = clamp((offset + span - (q - k)) / ramp, 0, 1) of one head, before clamping.
template <class T>
struct SoftMask {
  const T* span = nullptr;  // of each key, or one
  bool by_key = false;
  T inverse = 0, offset = 0;

  bool given() const { return span != nullptr; }
  /// Of vector v of keys, whose first is `distance` = k - q from the row, and number `key`.
  HWY_INLINE Vec<T> at(int64_t v, int64_t distance, int64_t key) const {
    const Tag<T> d;
    const Vec<T> far = hn::Iota(d, static_cast<T>(distance + v * kLanes<T>));
    const Vec<T> own = by_key ? hn::LoadU(d, span + key + v * kLanes<T>) : hn::Set(d, *span);
    return hn::Mul(hn::Add(far, hn::Add(own, hn::Set(d, offset))), hn::Set(d, inverse));
  }
};

template <class T>
HWY_INLINE Vec<T> clamped(Vec<T> x) {
  const Tag<T> d;
  return hn::Min(hn::Max(x, hn::Zero(d)), hn::Set(d, T{1}));
}

// Spans of all heads, widened and with room for whole vectors at the end.
template <class T>
struct SpanRows {
  int64_t batch = 0, heads = 0, keys = 0, row = 0;
  std::vector<T> values;

  explicit SpanRows(const AttentionInputs& in) {
    const ConstView& span = in.terms.span;
    if (!span) return;
    batch = span.dim(0);
    heads = span.dim(1);
    keys = span.dim(2);
    row = keys + kBlock;
    values.assign(static_cast<size_t>(batch * heads * row), T{0});
    RowSource<T> x;
    x.base = span.template as<char>();
    x.dtype = span.dtype;
    x.width = 1;
    x.stride = 1;
    T value;
    for (int64_t i = 0; i < span.numel(); ++i) {
      values[static_cast<size_t>(i / keys * row + i % keys)] = *x.row(i, &value);
    }
  }
  SoftMask<T> of(const AttentionInputs& in, int64_t b, int64_t h) const {
    if (values.empty()) return {};
    const int64_t at = (batch > 1 ? b : 0) * heads + (heads > 1 ? h : 0);
    return {values.data() + at * row, keys > 1, static_cast<T>(1 / in.terms.ramp),
            static_cast<T>(in.terms.offset)};
  }
};

// The relation tables of a call, packed once for all heads.
template <class T>
struct RelationPanels {
  Relation<T> shape;
  int64_t width = 0, value_width = 0;
  bool key_heads = false, bias_heads = false, value_heads = false;  // a table for each head
  // Per head: columns are [panels of ids][width][NR], rows are [panels of width][padded ids][NR].
  T *key_columns = nullptr, *key_rows = nullptr;
  T *value_columns = nullptr, *value_rows = nullptr;
  T* bias = nullptr;  // [padded ids], times scale log2(e)

  int64_t key_size() const { return shape.padded() * round_up(width, kPanel<T>); }
  int64_t value_size() const { return shape.padded() * round_up(value_width, kPanel<T>); }
  const T* key_columns_of(int64_t h) const { return offset(key_columns, key_heads, h, key_size()); }
  const T* key_rows_of(int64_t h) const { return offset(key_rows, key_heads, h, key_size()); }
  const T* value_columns_of(int64_t h) const {
    return offset(value_columns, value_heads, h, value_size());
  }
  const T* value_rows_of(int64_t h) const {
    return offset(value_rows, value_heads, h, value_size());
  }
  const T* bias_of(int64_t h) const { return offset(bias, bias_heads, h, shape.padded()); }

  /// Elements of the buffer that the constructor fills.
  static int64_t size(const AttentionInputs& in) { return RelationPanels(in, nullptr).used_; }

  RelationPanels(const AttentionInputs& in, T* buffer) {
    const auto& terms = in.terms;
    width = in.q.dim(3);
    value_width = in.segment[0].v.dim(3);
    if (!terms.relation_key && !terms.relation_bias && !terms.relation_value) return;
    shape.init(terms.left, terms.right, terms.ids);
    if (terms.relation_key) {
      key_heads = terms.relation_key.dim(0) > 1;
      pack(terms.relation_key, buffer, key_columns, key_rows);
    }
    if (terms.relation_value) {
      value_heads = terms.relation_value.dim(0) > 1;
      pack(terms.relation_value, buffer, value_columns, value_rows);
    }
    if (terms.relation_bias) {
      bias_heads = terms.relation_bias.dim(0) > 1;
      const int64_t heads = terms.relation_bias.dim(0);
      bias = take(buffer, heads * shape.padded());
      if (buffer == nullptr) return;
      RowSource<T> x;
      x.base = terms.relation_bias.template as<char>();
      x.dtype = terms.relation_bias.dtype;
      x.stride = x.width = shape.ids();
      std::vector<T> temporary(static_cast<size_t>(shape.ids()));
      std::fill_n(bias, heads * shape.padded(), T{0});
      for (int64_t h = 0; h < heads; ++h) {
        const T* row = x.row(h, temporary.data());
        T* to = bias + h * shape.padded();
        for (int64_t i = 0; i < shape.ids(); ++i) {
          to[shape.row_of(i)] = row[i] * static_cast<T>(terms.scale * kLog2E);
        }
      }
    }
  }

 private:
  int64_t used_ = 0;

  static const T* offset(const T* base, bool heads, int64_t h, int64_t size) {
    return base == nullptr || !heads ? base : base + h * size;
  }
  T* take(T* buffer, int64_t count) {
    const int64_t at = used_;
    used_ += round_up(count, 64);
    return buffer == nullptr ? nullptr : buffer + at;
  }
  void pack(const ConstView& table, T* buffer, T*& columns, T*& rows) {
    constexpr int64_t N = kPanel<T>;
    const int64_t ids = shape.ids(), padded = shape.padded(), w = table.dim(2);
    const int64_t size = padded * round_up(w, N);
    columns = take(buffer, table.dim(0) * size);
    rows = take(buffer, table.dim(0) * size);
    if (buffer == nullptr) return;
    const Buffer<T> collected(N * w);
    for (int64_t h = 0; h < table.dim(0); ++h) {
      RowSource<T> x;
      x.base = table.template as<char>() + h * ids * w * size_of(table.dtype);
      x.dtype = table.dtype;
      x.stride = x.width = w;
      const int64_t near = shape.distances(), near_rows = shape.distance_rows();
      for (int64_t j = 0; j < padded; j += N) {
        const int64_t first = j < near_rows ? j : near + j - near_rows;
        const int64_t end = j < near_rows ? near : ids;
        pack_columns(x, first, std::min(N, end - first), collected.data(),
                     columns + h * size + j * w);
      }
      pack_rows(x, 0, near, near_rows, T{1}, rows + h * size, padded);
      pack_rows(x, near, ids - near, padded - near_rows, T{1}, rows + h * size + near_rows * N,
                padded);
    }
  }
};

// ---------------------------------------------------------------------------------------- dropout

// Factors of one head: keep(i, j) / (1 - p), see kernels::AttentionDropout.
template <class T>
class KeepRow {
 public:
  static constexpr int64_t kRoom = kBlock + 4 * HWY_LANES(uint32_t);

  KeepRow(const kernels::AttentionDropout& dropout, int64_t head)
      : key_(dropout.key),
        threshold_(static_cast<uint32_t>(drop_threshold(dropout.p))),
        head_(static_cast<uint32_t>(head)),
        scale_(static_cast<T>(1 / (1 - dropout.p))),
        active_(dropout.p > 0) {}

  bool active() const { return active_; }

  // keep[j] for from <= j < to: keys at places origin + j of a segment and query `index`, 0 from
  // its end on where there is an order; `keep` has kRoom elements.
  void fill(int64_t index, const HeadSegment& s, int64_t origin, int64_t from, int64_t to,
            T* keep) const {
    const int32_t* const order = s.order;
    const int64_t keys = s.keys;
    const auto segment = static_cast<uint32_t>(s.number);
    origin -= s.first;
    if (order != nullptr || HWY_TARGET == HWY_SCALAR) {
      for (int64_t j = from; j < to; ++j) {
        if (origin + j >= keys) {
          keep[j] = T{0};
          continue;
        }
        const auto key = static_cast<uint32_t>(order != nullptr ? order[origin + j] : origin + j);
        const Philox4 words = philox(key_, key / 4, static_cast<uint32_t>(index), head_, segment);
        keep[j] = words.word[key % 4] >= threshold_ ? scale_ : T{0};
      }
      return;
    }
#if HWY_TARGET != HWY_SCALAR
    const hn::ScalableTag<uint32_t> d;
    using V = hn::Vec<decltype(d)>;
    constexpr int64_t kWords = 4 * HWY_LANES(uint32_t);
    for (int64_t j = from / 4 * 4; j < to; j += kWords) {
      V c0 = hn::Iota(d, static_cast<uint32_t>((origin + j) / 4));
      V c1 = hn::Set(d, static_cast<uint32_t>(index));
      V c2 = hn::Set(d, head_);
      V c3 = hn::Set(d, segment);
      auto k0 = static_cast<uint32_t>(key_), k1 = static_cast<uint32_t>(key_ >> 32);
      for (int round = 0; round < 10; ++round) {
        V h0, l0, h1, l1;
        multiply(c0, 0xD2511F53u, h0, l0);
        multiply(c2, 0xCD9E8D57u, h1, l1);
        c0 = hn::Xor(hn::Xor(h1, c1), hn::Set(d, k0));
        c1 = l1;
        c2 = hn::Xor(hn::Xor(h0, c3), hn::Set(d, k1));
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
      }
      if constexpr (sizeof(T) == 4) {
        const Tag<T> df;
        const Vec<T> scale = hn::Set(df, scale_);
        const V least = hn::Set(d, threshold_);
        const auto factor = [&](V w) {
          return hn::IfThenZeroElse(hn::RebindMask(df, hn::Lt(w, least)), scale);
        };
        hn::StoreInterleaved4(factor(c0), factor(c1), factor(c2), factor(c3), df, keep + j);
      } else {
        alignas(64) uint32_t words[kWords];
        hn::StoreInterleaved4(c0, c1, c2, c3, d, words);
        for (int64_t i = 0; i < kWords; ++i) keep[j + i] = words[i] >= threshold_ ? scale_ : T{0};
      }
    }
#endif
  }

 private:
#if HWY_TARGET != HWY_SCALAR
  template <class V>
  static HWY_INLINE void multiply(V a, uint32_t m, V& high, V& low) {
    const hn::ScalableTag<uint32_t> d;
    const hn::ScalableTag<uint64_t> dd;
    const V b = hn::Set(d, m);
    const auto even = hn::MulEven(a, b);
    const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(dd, a))), b);
    low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
    high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
  }
#endif

  uint64_t key_;
  uint32_t threshold_, head_;
  T scale_;
  bool active_;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
