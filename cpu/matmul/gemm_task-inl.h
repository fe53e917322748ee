// Packed matrix product. The sum of an element of c runs over k in order, in blocks of `depth`:
// within a block one chain of Multiply::add, between blocks an addition to c. Nothing else affects
// it, so a row's bits are the same beside any other rows, at any position, in any tile, for any
// plan.
//
// A register tile of up to 12 rows and two vectors of columns runs over a block of k. Around it, as
// in Goto and van de Geijn (2008): a block of b is packed into panels as wide as a tile and stays
// in the L2 cache, a strip of rows of a stays in L1. Operands that already have a suitable layout
// are not packed.
//
// Included once per SIMD target.

#if defined(LONGSPAN_CPU_GEMM_TASK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_GEMM_TASK_INL_H_
#undef LONGSPAN_CPU_GEMM_TASK_INL_H_
#else
#define LONGSPAN_CPU_GEMM_TASK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"
#include "cpu/matmul/gemm_few-inl.h"
#include "cpu/matmul/gemm_pack-inl.h"
#include "cpu/matmul/gemm_problem.h"
#include "cpu/matmul/gemm_tile-inl.h"
#include "cpu/matmul/gemm_transposed-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

/// Number of strips of a that are packed together. If a has unit stride along its columns, a strip
/// is narrower than a cache line, so several are read together.
constexpr int64_t most_strips = 4;
inline int64_t strips_of(const Gemm& g) {
  return g.a_row == 1 && g.a_col != 1 && g.m > few ? most_strips : 1;
}

/// Packs m rows of k elements of a, at most `strips` strips. Returns the strides of rows and of
/// columns.
struct Steps {
  int64_t row, col;
};
template <class T, class S>
Steps pack_strips(int64_t strips, int64_t m, int64_t k, const S* a, int64_t row, int64_t col,
                  T* to) {
  if (strips > 1) {
    constexpr int64_t apart = most_strips * tile_rows;
    for (int64_t p = 0; p * group<T> < k; ++p) {
      pack_across(m, a + p * group<T> * col, col, numbers_at<T>(p, k), to + p * apart);
    }
    return {1, apart};
  }
  if (col == 1) {
    pack_along(m, k, a, row, to, strip_row<T>);
  } else {
    for (int64_t i = 0; i < m; ++i) {
      transpose_slowly(1, k, a + i * row, row, col, to + i * strip_row<T>, 1);
    }
  }
  return {strip_row<T>, 1};
}

/// Whether few_across() reads b.
template <class T>
bool few_rows(const Gemm& g) {
  return HWY_TARGET != HWY_SCALAR && sizeof(T) == sizeof(float) && g.m <= few && !g.transposed &&
         g.b_row == 1 && g.b_col != 1;
}

/// Whether a and b consist of T without packing.
template <class T>
bool is_packed_a(const Gemm& g) {
  if constexpr (group < T >> 1) {
    return g.dtype == Pack<T>::dtype && g.a_col == 1 && g.a_row % group<T> == 0 &&
           g.k % group<T> == 0;
  } else {
    return g.dtype == dtype_of<T> && (g.a_col == 1 || (g.a_row == 1 && !few_rows<T>(g)));
  }
}
template <class T>
bool is_packed_b(const Gemm& g) {
  if constexpr (group < T >> 1) {
    return false;
  } else {
    return g.dtype == dtype_of<T> && g.b_col == 1;
  }
}

/// Whether a and b are read in place. Every pass over them then reads from further away, so this is
/// used only for few passes.
template <class T>
bool direct_a(const Gemm& g) {
  return is_packed_a<T>(g) && (g.n <= 4 * panel<T> || g.m <= 2 * tile_rows);
}
template <class T>
bool direct_b(const Gemm& g) {
  constexpr int64_t close = (int64_t{128} << 10) / static_cast<int64_t>(sizeof(T));
  return is_packed_b<T>(g) &&
         (g.m <= 2 * tile_rows || (g.m <= 12 * tile_rows && g.b_row * g.k <= close));
}

/// Returns how many of n columns are read in place.
template <class T>
int64_t columns_in_place(const Gemm& g, int64_t n) {
  if (few_rows<T>(g)) return n / few_width * few_width;
  return direct_b<T>(g) ? n / panel<T> * panel<T> : 0;
}

/// Return the number of T in packed a and in packed b.
template <class T>
int64_t strip_elements(const Gemm& g) {
  return direct_a<T>(g) ? 0 : strips_of(g) * tile_rows * strip_row<T>;
}
template <class T>
int64_t panel_elements(const Gemm& g, const GemmPlan& plan) {
  const int64_t least = columns_in_place<T>(g, plan.columns);
  // Among whole tasks only the last one has a packed remainder.
  const int64_t columns = least == 0 ? plan.columns : g.n - columns_in_place<T>(g, g.n);
  const int64_t steps = std::min(pieces(g.k, group<T>), depth<T>);
  return pieces(columns, panel<T>) * (steps * panel<T> + panel_gap);
}

/// Where accumulators of a c with fewer bits are stored in scratch memory: those of a strip if one
/// block covers all of k, else those of a task.
enum class AccumulatorPlacement { nowhere, strip, task };
template <class T>
AccumulatorPlacement accumulator_placement(const Gemm& g) {
  if (g.c_dtype == dtype_of<Sum<T>>) return AccumulatorPlacement::nowhere;
  return g.k <= depth<T> * group<T> ? AccumulatorPlacement::strip : AccumulatorPlacement::task;
}

template <class T>
GemmPlan plan_for(const Gemm& g, int threads) {
  GemmPlan plan;
  const AccumulatorPlacement placement = accumulator_placement<T>(g);
  const int64_t wanted = threads > 1 ? 4 * threads : 1;
  const int64_t fewest = 8 * tile_rows;  // rows for which packing b pays off
  plan.columns = std::min(most_columns<T>, round_up(g.n, panel<T>));
  if (few_rows<T>(g)) {
    plan.rows = g.m;
    plan.columns = std::min<int64_t>(round_up(pieces(g.n, wanted), few_width), 4096);
  } else if (g.m <= fewest) {
    plan.rows = round_up(g.m, tile_rows);
    if (g.m <= 2 * tile_rows) {  // a panel is used up while it is in cache
      plan.columns = panel<T>;
    } else if (wanted > 1) {
      plan.columns = std::clamp(round_up(pieces(g.n, wanted), panel<T>),
                                std::min(plan.columns, 2 * panel<T>), plan.columns);
    }
  } else {
    const int64_t down = pieces(wanted, pieces(g.n, plan.columns));
    plan.rows = std::clamp(pieces(g.m, down), fewest,
                           placement == AccumulatorPlacement::task ? 240 : most_rows);
    plan.rows = round_up(pieces(g.m, pieces(g.m, plan.rows)), tile_rows);
  }
  int64_t elements = strip_elements<T>(g) + panel_elements<T>(g, plan);
  if (placement != AccumulatorPlacement::nowhere) {
    elements += (placement == AccumulatorPlacement::strip ? tile_rows : plan.rows) * plan.columns;
  }
  plan.scratch = elements * static_cast<int64_t>(sizeof(T));
  return plan;
}

/// The cache lines of a, from later strips, that a tile prefetches. If a has unit stride along its
/// columns, each column is on separate lines; if along its rows, a tile prefetches two rows.
template <class T, class S>
class Following {
 public:
  /// Takes k columns.
  Following(const Gemm& g, int64_t k)
      : column_(g.a_row == 1 && g.a_col != 1 ? g.a_col * size : 0),
        row_(g.a_col == 1 ? g.a_row * size : 0),
        columns_(k) {}
  /// Returns the lines that tile t prefetches of the strips that start at `a`: two of the four
  /// lines of as many columns as it has time for, or rows 2 t and 2 t + 1.
  PrefetchLines operator()(const S* a, int64_t t) const {
    const auto* base = static_cast<const char*>(static_cast<const void*>(a));
    if (row_ != 0 && 2 * t < tile_rows) return {base + 2 * t * row_, row_, line, pace};
    if (column_ == 0) return {nullptr, 0, 0, pace};
    const int64_t first = std::min(t / 2 * (columns_ / (group<T> * uses)), columns_ - 1);
    return {base + first * column_ + t % 2 * (2 * line), line, column_, pace};
  }

 private:
  static constexpr auto size = static_cast<int64_t>(sizeof(S));
  static constexpr int64_t line = 64;
  static constexpr int64_t uses = line / (size * group<T>);  // steps that use up a line of a row
  static constexpr int64_t pace = uses / 2;
  int64_t column_, row_, columns_;
};

/// Convert c to the sums that are added to it, and back.
template <class T, class S>
void widen_sums(const Gemm& g, const S* c, int64_t m, int64_t n, Sum<T>* sums) {
  if constexpr (!std::is_same_v<Sum<T>, S>) {
    if (g.accumulate) convert_rows(m, n, c, g.c_row, sums, n);
  }
}
template <class T, class S>
void narrow_sums(const Gemm& g, const Sum<T>* sums, int64_t m, int64_t n, S* c) {
  if constexpr (!std::is_same_v<Sum<T>, S>) convert_rows(m, n, sums, n, c, g.c_row);
}

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
  const auto* bias =
      g.bias != nullptr ? static_cast<const Sum<T>*>(g.bias) + (g.transposed ? i0 : j0) : nullptr;
  T* strip = scratch;
  T* panels = strip + strip_elements<T>(g);
  Sum<T>* wide = as_lanes(panels + panel_elements<T>(g, plan));

  const AccumulatorPlacement placement = accumulator_placement<T>(g);
  const int64_t c_row = placement == AccumulatorPlacement::nowhere ? g.c_row : n;
  const int64_t down = g.transposed ? 1 : c_row, right = g.transposed ? c_row : 1;
  const int64_t c_first = g.transposed ? i0 + j0 * g.c_row : i0 * g.c_row + j0;
  S* narrow_c = static_cast<S*>(g.c) + c_first;  // destination of the sums
  Sum<T>* c =
      placement == AccumulatorPlacement::nowhere ? static_cast<Sum<T>*>(g.c) + c_first : wide;
  if (placement == AccumulatorPlacement::task) widen_sums<T>(g, narrow_c, m, n, c);

  // Strips of almost equal height: a low strip would not keep the arithmetic units busy.
  const auto strips = static_cast<int>(pieces(m, tile_rows));
  const int64_t high = static_cast<int>(m) % strips, least = static_cast<int>(m) / strips;
  const int64_t together = strips_of(g);
  const bool direct = direct_a<T>(g);
  [[maybe_unused]] const bool few_of_a = few_rows<T>(g);
  constexpr int64_t block = depth<T> * group<T>;
  for (int64_t k0 = 0; k0 < g.k; k0 += block) {
    const int64_t k = std::min(block, g.k - k0), steps_of_k = pieces(k, group<T>);
    const S* a_block = a + k0 * g.a_col;
    const S* b_block = b + k0 * g.b_row;
    const int64_t apart = steps_of_k * width + panel_gap;
    const int64_t lying = columns_in_place<T>(g, n);
    if (lying < n) {
      pack_panels(k, n - lying, b_block + lying * g.b_col, g.b_row, g.b_col, panels, apart);
    }
    const Following<T, S> following(g, k);
    const T* strip_a = strip;
    Steps steps{g.a_row / group<T>, g.a_col};
    const S* next_block = k0 + block < g.k ? a_block + block * g.a_col : a_block;
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
      Sum<T>* sums = placement == AccumulatorPlacement::strip ? c : c + i * down;
      if (placement == AccumulatorPlacement::strip)
        widen_sums<T>(g, narrow_c + i * g.c_row, rows, n, sums);
      const S* after = i_packed < m ? a_block + i_packed * g.a_row : next_block;
      int64_t j = 0;
#if HWY_TARGET != HWY_SCALAR
      if constexpr (sizeof(T) == sizeof(float)) {
        for (; few_of_a && j < lying; j += few_width) {
          const Target<T> to{sums + j,
                             c_row,
                             bias != nullptr && k0 == 0 ? bias + j : nullptr,
                             g.accumulate || k0 > 0,
                             few_width,
                             false};
          few_across_rows(rows, k, strip_a, steps.row, b_block + j * g.b_col, g.b_col, to);
        }
      }
#endif
      for (; j < n; j += width) {
        if (placement ==
            AccumulatorPlacement::strip) {  // if c holds the sums itself, tile() prefetches it
          for (int64_t r = i; r < i + rows; ++r) {
            __builtin_prefetch(narrow_c + r * g.c_row + j, 1);
          }
        }
        const PrefetchLines ahead = following(after, tiles_done++);
        const int64_t columns = std::min(width, n - j);
        const bool lies = j < lying;
        const T* panel_b = lies ? static_cast<const T*>(static_cast<const void*>(b_block + j))
                                : panels + (j - lying) / width * apart;
        const int64_t b_row = lies ? g.b_row : width;
        const Sum<T>* added = bias != nullptr && k0 == 0 ? bias + (g.transposed ? i : j) : nullptr;
        const Target<T> to{sums + j * right,       c_row,   added,
                           g.accumulate || k0 > 0, columns, g.transposed};
        if (columns > lanes<T>) {
          tiles<T, 2>(rows, steps_of_k, strip_a, steps.row, steps.col, panel_b, b_row, to, ahead);
        } else {
          tiles<T, 1>(rows, steps_of_k, strip_a, steps.row, steps.col, panel_b, b_row, to, ahead);
        }
      }
      if (placement == AccumulatorPlacement::strip)
        narrow_sums<T>(g, sums, rows, n, narrow_c + i * g.c_row);
      i += rows;
      strip_a += rows * steps.row;
    }
  }

  if (placement == AccumulatorPlacement::task) narrow_sums<T>(g, c, m, n, narrow_c);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif
