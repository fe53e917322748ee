// Tiles of the attention kernels: packed panels, products, exponentials. Included once per SIMD
// target by forward and by backward.
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
#include "cpu/attention/plan.h"

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

// Rows of a register tile (two vectors wide), and of the tiles for remainders.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
inline constexpr int64_t kGroup = 12;
inline constexpr int64_t kRest = 4;
#else
inline constexpr int64_t kGroup = 6;
inline constexpr int64_t kRest = 2;
#endif
inline constexpr int64_t kShort = 2 * kRest;
inline constexpr int64_t kMaxGroups = kTileRows / kGroup;
static_assert(kGroup + kRest == 2 * kShort);

// How rows are divided into groups, one register tile each: kGroup rows in all but the last group.
// If the last one would have kRest rows, the last two have kShort rows each instead, because a row
// of a tile of kRest rows takes half as long again as a row of a higher tile.
class RowGroups {
 public:
  explicit RowGroups(int64_t rows = 0)
      : rows_(rows), count_(ceil_div(rows, kGroup)), high_(count_) {
    const int64_t left = rows - (count_ - 1) * kGroup;
    if (count_ > 1 && left <= kRest) high_ -= 2;
  }
  int64_t count() const { return count_; }
  // The first row of group g; row(count()) is at least the number of rows.
  int64_t row(int64_t g) const {
    return g <= high_ ? g * kGroup : high_ * kGroup + (g - high_) * kShort;
  }
  int64_t end(int64_t g) const { return std::min(rows_, row(g + 1)); }
  // Number of rows of group g, including padding of the last group.
  int64_t padded(int64_t g) const { return round_up(end(g) - row(g), kRest); }

 private:
  int64_t rows_, count_, high_;  // the first `high_` groups have kGroup rows
};

// ------------------------------------------------------------------------------------- products

// clang-format off
#define LONGSPAN_ROWS_2(X) X(0) X(1)
#define LONGSPAN_ROWS_4(X) LONGSPAN_ROWS_2(X) X(2) X(3)
#define LONGSPAN_ROWS_6(X) LONGSPAN_ROWS_4(X) X(4) X(5)
#define LONGSPAN_ROWS_8(X) LONGSPAN_ROWS_6(X) X(6) X(7)
#define LONGSPAN_ROWS_12(X) LONGSPAN_ROWS_8(X) X(8) X(9) X(10) X(11)
// clang-format on

// A contiguous range of k of a product: `count` of them. Its columns of A start at a[a], its rows
// of B at b[b].
struct InnerRange {
  int64_t a, b, count;
};

// Returns ranges that cover k in [0, width), with A stored in panels a_panel apart.
template <class T>
std::vector<InnerRange> over_panels(int64_t width, int64_t a_panel) {
  constexpr int64_t N = kPanel<T>;
  std::vector<InnerRange> all;
  for (int64_t k = 0; k < width; k += N) {
    all.push_back({k / N * a_panel, k * N, std::min(N, width - k)});
  }
  return all;
}

// C[r][0..w) (+)= sum_k A(r, k) B[k][0..w), w = kVectors vectors (1: half a panel), over the k of
// some ranges, with A(r, k) = a[r * kRowStride + k * step]; B's second vector is stored `second`
// elements after its first. Every element is one chain of fused multiply-adds in the order of k, so
// its bits depend neither on other rows nor on how k is split into ranges and calls. Named
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

#define LONGSPAN_PRODUCT(name, ROWS)                                                          \
  template <int kVectors, int64_t kRowStride, class T>                                        \
  HWY_NOINLINE void name(const T* HWY_RESTRICT a, int64_t step, const T* HWY_RESTRICT b,      \
                         int64_t second, std::span<const InnerRange> over, T* HWY_RESTRICT c, \
                         int64_t ldc, bool add) {                                             \
    const Tag<T> d;                                                                           \
    ROWS(LONGSPAN_ZERO)                                                                       \
    if (add) {                                                                                \
      ROWS(LONGSPAN_LOAD)                                                                     \
    }                                                                                         \
    for (const InnerRange& part : over) {                                                     \
      const T* HWY_RESTRICT ak = a + part.a;                                                  \
      const T* HWY_RESTRICT bk = b + part.b;                                                  \
      for (int64_t k = part.count; k > 0; --k) {                                              \
        const Vec<T> b0 = hn::Load(d, bk);                                                    \
        const Vec<T> b1 = kVectors == 2 ? hn::Load(d, bk + second) : b0;                      \
        ROWS(LONGSPAN_STEP)                                                                   \
        ak += step;                                                                           \
        bk += kPanel<T>;                                                                      \
      }                                                                                       \
    }                                                                                         \
    ROWS(LONGSPAN_STORE)                                                                      \
  }
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
LONGSPAN_PRODUCT(product_group, LONGSPAN_ROWS_12)
LONGSPAN_PRODUCT(product_short, LONGSPAN_ROWS_8)
LONGSPAN_PRODUCT(product_rest, LONGSPAN_ROWS_4)
#else
LONGSPAN_PRODUCT(product_group, LONGSPAN_ROWS_6)
LONGSPAN_PRODUCT(product_short, LONGSPAN_ROWS_4)
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
#undef LONGSPAN_ROWS_8
#undef LONGSPAN_ROWS_12

// Computes one panel of columns for `rows` rows; a and c are padded to rows rounded up to kRest.
template <int kVectors, int64_t kRowStride, class T>
HWY_NOINLINE void product(int64_t rows, const T* a, int64_t step, const T* b,
                          std::span<const InnerRange> over, T* c, int64_t ldc, bool add,
                          int64_t second = kLanes<T>) {
  for (int64_t r = 0; r < rows;) {  // as RowGroups, but without divisions
    const int64_t left = rows - r;
    const T* const from = a + r * kRowStride;
    T* const to = c + r * ldc;
    if (left > kShort && (left <= kGroup || left > kGroup + kRest)) {
      product_group<kVectors, kRowStride>(from, step, b, second, over, to, ldc, add);
      r += kGroup;
    } else if (left > kRest) {
      product_short<kVectors, kRowStride>(from, step, b, second, over, to, ldc, add);
      r += kShort;
    } else {
      product_rest<kVectors, kRowStride>(from, step, b, second, over, to, ldc, add);
      r += kRest;
    }
  }
}

// C[r][0..NR) += sum_k A(r, k) B[k][0..NR) over the k in [0, count) with sees(r, k), and A(r, k) =
// a[r * row_stride + k * step]. Needed if B is nonfinite: the zeros of A at hidden pairs would then
// give NaN. If all values are finite, the bits equal those of product().
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

// ---------------------------------------------------------------------------------- exponentials

// remainder(x, n) returns x - n, where n is the integer next to x, exactly, and 0 for infinities on
// AVX-512. sum_unless_below(x, least, a, b) returns the bits of a plus b, and 0 where x < least.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
HWY_INLINE Vec<float> remainder(Vec<float> x, Vec<float>) {
  return Vec<float>{_mm512_reduce_ps(x.raw, _MM_FROUND_TO_NEAREST_INT)};
}
HWY_INLINE Vec<double> remainder(Vec<double> x, Vec<double>) {
  return Vec<double>{_mm512_reduce_pd(x.raw, _MM_FROUND_TO_NEAREST_INT)};
}
HWY_INLINE Vec<float> sum_unless_below(Vec<float> x, Vec<float> least, Vec<int32_t> a,
                                       Vec<int32_t> b) {
  const __mmask16 some = _mm512_cmp_ps_mask(x.raw, least.raw, _CMP_NLT_UQ);
  return Vec<float>{_mm512_castsi512_ps(_mm512_maskz_add_epi32(some, a.raw, b.raw))};
}
HWY_INLINE Vec<double> sum_unless_below(Vec<double> x, Vec<double> least, Vec<int64_t> a,
                                        Vec<int64_t> b) {
  const __mmask8 some = _mm512_cmp_pd_mask(x.raw, least.raw, _CMP_NLT_UQ);
  return Vec<double>{_mm512_castsi512_pd(_mm512_maskz_add_epi64(some, a.raw, b.raw))};
}
#else
template <class V>
HWY_INLINE V remainder(V x, V n) {
  return hn::Sub(x, n);
}
template <class V, class I>
HWY_INLINE V sum_unless_below(V x, V least, I a, I b) {
  const hn::DFromV<V> d;
  return hn::IfThenZeroElse(hn::Lt(x, least), hn::BitCast(d, hn::Add(a, b)));
}
#endif

// Returns 2^x. Exactly 0 below the smallest normal value, NaN for NaN; relative error 2.4e-7 (f32)
// or 3e-16 (f64). kFinite: x is not +inf, for which the result then means nothing; else it is NaN.
template <bool kFinite = false, class D>
HWY_INLINE hn::Vec<D> exp2(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  const hn::RebindToSigned<D> di;
  using V = hn::Vec<D>;
  constexpr bool kSingle = sizeof(T) == 4;
  const V magic = hn::Set(d, static_cast<T>(kSingle ? 12582912.0 : 6755399441055744.0));
  const V t = hn::Add(x, magic);
  const V nearest = hn::Sub(t, magic);
  const V f = kFinite ? remainder(x, nearest) : hn::Sub(x, nearest);
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
  const V least = hn::Set(d, static_cast<T>(kSingle ? -126 : -1022));
  return sum_unless_below(x, least, hn::BitCast(di, p), n);
}

template <class T>
HWY_INLINE T exp2(T x) {
  const Tag<T> d;
  return hn::GetLane(exp2(d, hn::Set(d, x)));
}

// --------------------------------------------------------------------------------------- packing

// Copies rows row .. row + rows, times scale, into panels [ceil(width / NR)][panel_rows][NR];
// zeroes columns beyond the width and rows up to `padded`. Returns whether all values are finite.
template <class T>
bool pack_rows(const RowSource<T>& x, int64_t row, int64_t rows, int64_t padded, T scale,
               T* HWY_RESTRICT to, int64_t panel_rows) {
  const Tag<T> d;
  constexpr int64_t N = kPanel<T>;
  const int64_t whole = x.width / N;
  const int64_t tail = x.width % N;
  const Vec<T> s = hn::Set(d, scale);
  alignas(64) T temporary[kMaxWidth];
  Vec<T> low = hn::Zero(d), high = hn::Zero(d);  // sums of 0 x: NaN once an x is nonfinite
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

// Writes row r of panels [panels][panel_rows][NR], times factor, to row `to` of a tensor, or adds
// it if sink.add. Call hwy::FlushStream() after the last row.
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
    Vec<T> y = hn::Mul(hn::Load(d, from), f);
    if (sink.add && !copy) y = hn::Add(hn::LoadU(d, put + c), y);
    if (sink.stream && !copy) {
      hn::Stream(y, d, put + c);
    } else {
      hn::StoreU(y, d, put + c);
    }
  }
  if (copy) sink.write(to, values);
}

#if HWY_TARGET != HWY_SCALAR
// Loads 4 x 4 (f32) or 2 x 2 (f64) blocks of 128 bits of rows base, base + stride, ...: block i
// comes from row i * (16 / sizeof(T)).
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

// Transposes one panel of NR rows from `base` on, by blocks; returns the number of columns done.
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

// Transposes keys key .. key + NR of x into one panel [width][NR]; zero beyond `keys`. `rows` is
// scratch memory for NR rows, used if rows are reordered or must be widened.
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

// Packs all panels of one block: keys key .. key + keys, at most kBlock.
template <class T>
void pack_block_columns(const RowSource<T>& x, int64_t key, int64_t keys, T* rows, T* to) {
  constexpr int64_t N = kPanel<T>;
  for (int64_t j = 0; j < keys; j += N) {
    for (int64_t r = j + N; r < std::min(j + 2 * N, keys); ++r) x.prefetch(key + r);
    pack_columns(x, key + j, std::min(N, keys - j), rows, to + j * x.width);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
