// Packed matrix product. The sums of an element of c run over k in order, in blocks of `depth`:
// within a block one chain of FMAs, between blocks an addition to c. Nothing else enters, so a
// row's bits are the same beside any other rows, at any place, in any tile.
//
// The loops are those of Goto and van de Geijn (2008): b is packed once into panels of two vectors,
// each task packs its rows of a, and a register tile of `tile_rows` x 2 vectors stays in registers
// over a block.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm.cc"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "cpu/gemm.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_ARCH_X86
constexpr int64_t vector_bytes = HWY_MAX_BYTES;
#else
constexpr int64_t vector_bytes = 16;
#endif
// 32 registers hold 24 sums; 16 hold 12.
constexpr int64_t tile_rows = vector_bytes == 64 ? 12 : 6;
constexpr int64_t depth = 256;  // of a block of k
constexpr int64_t a_stride =
    depth + 16;  // of a packed row: neighbours fall into different cache sets
constexpr int64_t row_block = 12 * 6;         // rows of a task
constexpr int64_t column_block = 1024;          // columns of a task
constexpr int64_t direct_limit = 128;          // rows or columns below which packing does not pay
constexpr int64_t b_limit = int64_t{4} << 20;  // bytes of b packed at a time

template <class T>
constexpr int64_t lanes = vector_bytes / static_cast<int64_t>(sizeof(T));
template <class T>
constexpr int64_t panel = 2 * lanes<T>;  // columns of a register tile
template <class T>
using Tag = hn::FixedTag<T, static_cast<size_t>(lanes<T>)>;

#define LONGSPAN_ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

/// Where a tile finds element (i, k) of a: in packed rows, in packed groups of tile_rows for each
/// k, or in the operand itself, whose rows are contiguous.
enum class Layout { rows, columns, direct };

/// c[R, panel] = (sum of a[R, k] b[k, panel]) + c or + bias or + 0. Rows of b lie b_row apart,
/// those of a, where direct, a_row.
template <class T, Layout L, int R>
HWY_NOINLINE void tile(int64_t k, const T* HWY_RESTRICT a, int64_t a_row, const T* HWY_RESTRICT b,
                       int64_t b_row, const T* HWY_RESTRICT bias, bool accumulate,
                       T* HWY_RESTRICT c, int64_t c_row) {
  const Tag<T> d;
  constexpr int64_t N = lanes<T>;
  // Three addresses and small multiples of a_row reach twelve rows.
  [[maybe_unused]] const T *a4 = a + 4 * a_row, *a8 = a + 8 * a_row;
#define LONGSPAN_DECLARE(i) [[maybe_unused]] auto x##i = hn::Zero(d), y##i = hn::Zero(d);
  LONGSPAN_ROWS(LONGSPAN_DECLARE)
#undef LONGSPAN_DECLARE
#define LONGSPAN_STEP(i)                                        \
  if constexpr (R > i) {                                        \
    const T* from = L == Layout::rows      ? a + i * a_stride   \
                    : L == Layout::columns ? a + i              \
                                           : (i < 4   ? a       \
                                              : i < 8 ? a4      \
                                                      : a8) +   \
                                                 i % 4 * a_row; \
    const auto s = hn::Set(d, *from);                           \
    x##i = hn::MulAdd(s, b0, x##i);                             \
    y##i = hn::MulAdd(s, b1, y##i);                             \
  }
#define LONGSPAN_K                                             \
  {                                                            \
    const auto b0 = hn::LoadU(d, b), b1 = hn::LoadU(d, b + N); \
    LONGSPAN_ROWS(LONGSPAN_STEP)                               \
    b += b_row;                                                \
    a += L == Layout::columns ? tile_rows : 1;                 \
    if constexpr (L == Layout::direct) ++a4, ++a8;             \
  }
  int64_t p = 0;
  for (; p + 4 <= k; p += 4) {
    LONGSPAN_K
    LONGSPAN_K
    LONGSPAN_K
    LONGSPAN_K
  }
  for (; p < k; ++p) LONGSPAN_K
#undef LONGSPAN_K
#undef LONGSPAN_STEP
#define LONGSPAN_STORE(i)                           \
  if constexpr (R > i) {                            \
    T* row = c + i * c_row;                         \
    if (accumulate) {                               \
      x##i = hn::Add(x##i, hn::LoadU(d, row));      \
      y##i = hn::Add(y##i, hn::LoadU(d, row + N));  \
    }                                               \
    if (bias != nullptr) {                          \
      x##i = hn::Add(x##i, hn::LoadU(d, bias));     \
      y##i = hn::Add(y##i, hn::LoadU(d, bias + N)); \
    }                                               \
    hn::StoreU(x##i, d, row);                       \
    hn::StoreU(y##i, d, row + N);                   \
  }
  LONGSPAN_ROWS(LONGSPAN_STORE)
#undef LONGSPAN_STORE
}

/// tile for `rows` in 1..tile_rows, cut into sizes that exist.
template <class T, Layout L>
void tiles(int64_t rows, int64_t k, const T* a, int64_t a_row, const T* b, int64_t b_row,
           const T* bias, bool accumulate, T* c, int64_t c_row) {
  const int64_t step = L == Layout::rows ? a_stride : L == Layout::columns ? 1 : a_row;
  if (rows == tile_rows) {
    tile<T, L, tile_rows>(k, a, a_row, b, b_row, bias, accumulate, c, c_row);
    return;
  }
  const auto cut = [&](auto size) {
    constexpr int R = decltype(size)::value;
    if (rows < R) return;
    tile<T, L, R>(k, a, a_row, b, b_row, bias, accumulate, c, c_row);
    a += R * step;
    c += R * c_row;
    rows -= R;
  };
  if constexpr (tile_rows > 8) cut(std::integral_constant<int, 8>{});
  cut(std::integral_constant<int, 4>{});
  cut(std::integral_constant<int, 2>{});
  cut(std::integral_constant<int, 1>{});
}

template <class T, class S>
HWY_INLINE T widen(S x) {
  if constexpr (std::is_same_v<T, double>)
    return static_cast<double>(x);
  else
    return static_cast<float>(x);
}

/// to[i * to_row + j] = from[i * from_row + j], j < n.
template <class T, class S>
void copy_rows(int64_t m, int64_t n, const S* HWY_RESTRICT from, int64_t from_row,
               T* HWY_RESTRICT to, int64_t to_row) {
  for (int64_t i = 0; i < m; ++i) {
    const S* f = from + i * from_row;
    T* t = to + i * to_row;
    if constexpr (std::is_same_v<T, S>) {
      const Tag<T> d;
      constexpr int64_t N = lanes<T>;
      int64_t j = 0;
      for (; j + N <= n; j += N) hn::StoreU(hn::LoadU(d, f + j), d, t + j);
      const hn::FixedTag<T, 4 * sizeof(float) / sizeof(T)> quarter;
      constexpr int64_t Q = 4 * sizeof(float) / sizeof(T);
      for (; j + Q <= n; j += Q) hn::StoreU(hn::LoadU(quarter, f + j), quarter, t + j);
      for (; j < n; ++j) t[j] = f[j];
    } else {
      for (int64_t j = 0; j < n; ++j) t[j] = widen<T>(f[j]);
    }
  }
}

/// Four numbers from each of W / 4 rows, `step` apart.
template <size_t W>
HWY_INLINE auto gather_quads(const float* from, int64_t step) {
  if constexpr (W == 4) {
    return hn::LoadU(hn::FixedTag<float, 4>(), from);
  } else {
    const auto low = gather_quads<W / 2>(from, step);
    const auto high = gather_quads<W / 2>(from + static_cast<int64_t>(W / 8) * step, step);
    return hn::Combine(hn::FixedTag<float, W>(), high, low);
  }
}

/// to[j * to_row + i] = from[i * from_row + j], i < m, j < n.
template <class T, class S>
void transpose_rows(int64_t m, int64_t n, const S* HWY_RESTRICT from, int64_t from_row,
                    T* HWY_RESTRICT to, int64_t to_row) {
  int64_t i = 0;
  if constexpr (std::is_same_v<S, float> && std::is_same_v<T, float>) {
    // Block l of row r of a square holds four columns of row 4 l + r; transposing the squares of
    // 4 x 4 in each block makes whole columns.
    const auto squares = [&](auto width) {
      constexpr int64_t W = decltype(width)::value;
      const hn::FixedTag<float, W> d;
      const hn::FixedTag<double, W / 2> wide;
      for (; i + W <= m; i += W) {
        const float* f = from + i * from_row;
        int64_t j = 0;
        for (; j + 4 <= n; j += 4) {
          const auto r0 = gather_quads<W>(f + j, 4 * from_row);
          const auto r1 = gather_quads<W>(f + from_row + j, 4 * from_row);
          const auto r2 = gather_quads<W>(f + 2 * from_row + j, 4 * from_row);
          const auto r3 = gather_quads<W>(f + 3 * from_row + j, 4 * from_row);
          const auto t0 = hn::BitCast(wide, hn::InterleaveLower(d, r0, r1));
          const auto t1 = hn::BitCast(wide, hn::InterleaveLower(d, r2, r3));
          const auto t2 = hn::BitCast(wide, hn::InterleaveUpper(d, r0, r1));
          const auto t3 = hn::BitCast(wide, hn::InterleaveUpper(d, r2, r3));
          float* t = to + j * to_row + i;
          hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, t0, t1)), d, t);
          hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, t0, t1)), d, t + to_row);
          hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, t2, t3)), d, t + 2 * to_row);
          hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, t2, t3)), d, t + 3 * to_row);
        }
        for (; j < n; ++j) {
          for (int64_t r = 0; r < W; ++r) to[j * to_row + i + r] = f[r * from_row + j];
        }
      }
    };
    if constexpr (lanes < float >> 4) squares(std::integral_constant<size_t, lanes<float>>{});
    squares(std::integral_constant<size_t, 4>{});
  }
  for (; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) to[j * to_row + i] = widen<T>(from[i * from_row + j]);
  }
}

/// Rows [0, m) and columns [0, k) of a, padded to nothing: tiles() never reads past m or k.
template <class T, class S>
void pack_a(int64_t m, int64_t k, const S* a, int64_t row, int64_t col, Layout layout, T* to) {
  if (layout == Layout::rows) {
    if (col == 1) {
      copy_rows(m, k, a, row, to, a_stride);
    } else if (row == 1) {
      transpose_rows(k, m, a, col, to, a_stride);
    } else {
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t p = 0; p < k; ++p) to[i * a_stride + p] = widen<T>(a[i * row + p * col]);
      }
    }
    return;
  }
  for (int64_t i = 0; i < m; i += tile_rows) {  // [tile][k][tile_rows]; here row == 1
    copy_rows(k, std::min(tile_rows, m - i), a + i, col, to + i * depth, tile_rows);
  }
}

/// One panel of b: columns [0, n) of k rows, filled up with zeros to the panel's width.
template <class T, class S>
void pack_b(int64_t k, int64_t n, const S* b, int64_t row, int64_t col, T* to) {
  constexpr int64_t width = panel<T>;
  if (n < width) std::memset(static_cast<void*>(to), 0, static_cast<size_t>(k * width) * sizeof(T));
  if (col == 1) {
    copy_rows(k, n, b, row, to, width);
  } else if (row == 1) {
    transpose_rows(n, k, b, col, to, width);
  } else {
    for (int64_t p = 0; p < k; ++p) {
      for (int64_t j = 0; j < n; ++j) to[p * width + j] = widen<T>(b[p * row + j * col]);
    }
  }
}

int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }

/// Blocks of k that are packed together.
template <class T>
int64_t group_of(const Gemm& g) {
  const int64_t bytes = blocks(g.n, panel<T>) * panel<T> * depth * static_cast<int64_t>(sizeof(T));
  return std::clamp<int64_t>(b_limit / std::max<int64_t>(bytes, 1), 1, blocks(g.k, depth));
}

template <class T>
int64_t a_elements() {
  return row_block * a_stride;
}

template <class T>
int64_t scratch_bytes(const Gemm& g, int workers) {
  const int64_t deep = std::min(g.k, group_of<T>(g) * depth);
  const int64_t b = blocks(g.n, panel<T>) * panel<T> * deep;
  const int64_t edge = row_block * panel<T>;
  return (b + workers * (a_elements<T>() + edge)) * static_cast<int64_t>(sizeof(T));
}

/// Whether rows that lie `stride` elements apart fall into few cache sets.
template <class T>
bool collides(int64_t stride) {
  return stride * static_cast<int64_t>(sizeof(T)) % 1024 == 0;
}

template <class T, class S, Layout L>
void run(const Gemm& g, T* scratch, bool parallel) {
  constexpr int64_t width = panel<T>;
  const auto* a = static_cast<const S*>(g.a);
  const auto* b = static_cast<const S*>(g.b);
  auto* c = static_cast<T*>(g.c);
  const auto* bias = static_cast<const T*>(g.bias);
  const int64_t panels = blocks(g.n, width), group = group_of<T>(g);
  const int64_t deep = std::min(g.k, group * depth);
  T* packed_b = scratch;
  T* own = packed_b + panels * width * deep;
  const int64_t own_size = a_elements<T>() + row_block * width;
  const auto each = [parallel](int64_t n, auto&& body) {
    if (parallel) {
      parallel_for(n, body);
    } else {
      for (int64_t i = 0; i < n; ++i) body(i);
    }
  };

  // Few rows of a do not repay packing whole panels of b.
  const bool loose_b = std::is_same_v<T, S> && g.b_col == 1 && g.m <= direct_limit &&
                       (!collides<T>(g.b_row) || g.k <= 64);
  const int64_t loose = loose_b ? g.n / width : 0;

  for (int64_t k0 = 0; k0 < g.k; k0 += deep) {
    const int64_t k1 = std::min(g.k, k0 + deep);
    each(panels - loose, [&](int64_t panel_index) {  // panel j holds all of [k0, k1)
      const int64_t j = loose + panel_index;
      pack_b(k1 - k0, std::min(width, g.n - j * width), b + k0 * g.b_row + j * width * g.b_col,
             g.b_row, g.b_col, packed_b + j * width * (k1 - k0));
    });
    const int64_t down = blocks(g.m, row_block), across = blocks(g.n, column_block);
    each(down * across, [&](int64_t task) {
      const int64_t i0 = task / across * row_block, m = std::min(row_block, g.m - i0);
      const int64_t j0 = task % across * column_block, j1 = std::min(g.n, j0 + column_block);
      T* packed_a = own + (parallel ? worker_index() : 0) * own_size;
      T* edge = packed_a + a_elements<T>();
      for (int64_t p = k0; p < k1; p += depth) {
        const int64_t k = std::min(depth, k1 - p);
        const S* own_a = a + i0 * g.a_row + p * g.a_col;
        if (L != Layout::direct) pack_a(m, k, own_a, g.a_row, g.a_col, L, packed_a);
        const bool add = g.accumulate || p > 0;
        for (int64_t j = j0; j < j1; j += width) {
          const T* panel_b = packed_b + j * (k1 - k0) + (p - k0) * width;
          int64_t b_row = width;
          if constexpr (std::is_same_v<T, S>) {
            if (j < loose * width) panel_b = b + p * g.b_row + j, b_row = g.b_row;
          }
          const T* panel_bias = bias != nullptr && p == 0 ? bias + j : nullptr;
          const int64_t n = std::min(width, g.n - j);
          for (int64_t i = 0; i < m; i += tile_rows) {
            const int64_t rows = std::min(tile_rows, m - i);
            const T* panel_a = packed_a + i * (L == Layout::rows ? a_stride : depth);
            if constexpr (L == Layout::direct) panel_a = own_a + i * g.a_row;
            T* to = c + (i0 + i) * g.c_row + j;
            if (n == width) {
              tiles<T, L>(rows, k, panel_a, g.a_row, panel_b, b_row, panel_bias, add, to, g.c_row);
              continue;
            }
            tiles<T, L>(rows, k, panel_a, g.a_row, panel_b, b_row, nullptr, false, edge, width);
            for (int64_t r = 0; r < rows; ++r) {
              for (int64_t q = 0; q < n; ++q) {
                T sum = edge[r * width + q];
                if (add) sum = sum + to[r * g.c_row + q];
                if (panel_bias != nullptr) sum = sum + panel_bias[q];
                to[r * g.c_row + q] = sum;
              }
            }
          }
        }
      }
    });
  }
}

template <class T, class S>
void run(const Gemm& g, void* scratch, bool parallel) {
  auto* typed = static_cast<T*>(scratch);
  if (g.a_row == 1 && g.a_col != 1) {
    run<T, S, Layout::columns>(g, typed, parallel);
    return;
  }
  if constexpr (std::is_same_v<T, S>) {
    // Few columns do not repay packing the rows of a.
    if (g.a_col == 1 && g.n <= direct_limit && !collides<T>(g.a_row)) {
      run<T, S, Layout::direct>(g, typed, parallel);
      return;
    }
  }
  { run<T, S, Layout::rows>(g, typed, parallel); }
}

void GemmRun(const Gemm& g, void* scratch, bool parallel) {
  visit_floating(g.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    run<Accumulator<S>, S>(g, scratch, parallel);
  });
}

int64_t GemmScratch(const Gemm& g, int workers) {
  return g.dtype == DType::f64 ? scratch_bytes<double>(g, workers)
                               : scratch_bytes<float>(g, workers);
}

}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::cpu {

HWY_EXPORT(GemmRun);
HWY_EXPORT(GemmScratch);

int64_t gemm_scratch_bytes(const Gemm& g, int workers) {
  return HWY_DYNAMIC_DISPATCH(GemmScratch)(g, workers);
}

void gemm(const Gemm& g, void* scratch, bool parallel) {
  HWY_DYNAMIC_DISPATCH(GemmRun)(g, scratch, parallel);
}

}  // namespace longspan::cpu
#endif
