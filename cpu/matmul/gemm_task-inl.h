// Packed matrix product. The sum of an element of c runs over k in order, in blocks of `depth`:
// within a block one chain of Multiply::add, between blocks an addition to c. Nothing else affects
// it, so a row's bits are the same beside any other rows, at any position, in any tile, for any
// plan.
//
// A register tile of up to 12 rows and two vectors of columns runs over a block of k. Around it, as
// in Goto and van de Geijn (2008): a block of b is packed into panels as wide as a tile and stays
// in the L2 cache, a strip of rows of a stays in L1. Operands that already have a suitable layout
// are not packed. Strips that are transposed while they are packed are kept for all columns of the
// task.
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
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"
#include "cpu/matmul/gemm_epilogue.h"
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
constexpr int64_t most_strips = 8;
constexpr int64_t most_few_columns = 4096;         // of a block of b that is read in place
constexpr int64_t most_partial_sums = 1024 << 10;  // that a plan may store apart

/// Whether a has unit stride along its columns, so that packing transposes it.
inline bool transposes_a(const Gemm& g) { return g.a_row == 1 && g.a_col != 1 && g.m > few; }

/// Elements between packed strips. A transposed strip has tile_rows elements for each step of k,
/// and is packed in whole vectors, the last of which reaches into the gap.
template <class T>
int64_t strip_size(const Gemm& g) {
  constexpr int64_t gap = 16;
  const int64_t steps = std::min(pieces(g.k, group<T>), depth<T>);
  return transposes_a(g) ? steps * tile_rows + gap : tile_rows * strip_row<T>;
}

/// Strides of the rows and columns of a strip.
struct Steps {
  int64_t row, col;
};

/// Packs `rows` rows of k elements of a, one after another.
template <class T, class S>
Steps pack_rows(int64_t rows, int64_t k, const S* a, int64_t row, int64_t col, T* to) {
  if (col == 1) {
    pack_along(rows, k, a, row, to, strip_row<T>);
  } else {
    for (int64_t i = 0; i < rows; ++i) {
      transpose_slowly(1, k, a + i * row, row, col, to + i * strip_row<T>, 1);
    }
  }
  return {strip_row<T>, 1};
}

/// Strips of rows[0], rows[1], ... rows of an a that has unit stride along its columns and `exist`
/// rows from here on. What a packed strip holds in place of rows that it lacks is never used.
struct Strips {
  const int64_t* rows;
  int64_t count, exist;
};

/// Packs steps [first, last) of k of strips, which are `apart` from each other.
template <class T, class S>
void pack_steps(const Strips& strips, int64_t first, int64_t last, int64_t k, const S* a,
                int64_t col, T* to, int64_t apart) {
  const Tag<T> d;
  for (int64_t p = first; p < last; ++p) {
    const S* from = a + p * group<T> * col;
    T* strip = to + p * tile_rows;
    int64_t left = strips.exist;
    for (int64_t s = 0; s < strips.count; ++s, strip += apart) {
      for (int64_t i = 0; i < std::min(tile_rows, left); i += lanes<T>) {
        hn::StoreU(Pack<T>::across(from + i, col, numbers_at<T>(p, k), left - i), d,
                   as_lanes(strip + i));
      }
      from += strips.rows[s];
      left -= strips.rows[s];
    }
  }
}

/// Packs strips; where a vector has a third more lanes than a strip has rows, four steps of k make
/// three whole vectors.
template <class T, class S>
HWY_NOINLINE Steps pack_columns(const Strips& strips, int64_t k, const S* a, int64_t col, T* to,
                                int64_t apart) {
  int64_t p = 0;
  if constexpr (3 * lanes<T> == 4 * tile_rows) {
    const Tag<T> d;
    constexpr int64_t third = lanes<T> / 4, step = group<T>;
    int64_t ahead = tile_rows + 2 * third, quick = 0;  // strips whose vectors lie within a's rows
    for (; quick < strips.count && ahead <= strips.exist; ++quick) ahead += strips.rows[quick];
    const auto row = [=](const S* from) { return Pack<T>::across(from, col, step, lanes<T>); };
    const int64_t quick_steps = col >= tile_rows ? k / (4 * step) * 4 : 0;
    for (; p < quick_steps; p += 4) {
      const S* from = a + p * step * col;
      T* strip = to + p * tile_rows;
      for (int64_t s = 0; s < quick; from += strips.rows[s], ++s, strip += apart) {
        const S *r1 = from + step * col, *r2 = r1 + step * col, *r3 = r2 + step * col;
        Sum<T>* v = as_lanes(strip);
        const auto first = [&](int64_t n) { return hn::FirstN(d, static_cast<size_t>(n)); };
        hn::StoreU(hn::IfThenElse(first(3 * third), row(from), row(r1 - 3 * third)), d, v);
        hn::StoreU(hn::IfThenElse(first(2 * third), row(r1 + third), row(r2 - 2 * third)), d,
                   v + lanes<T>);
        hn::StoreU(hn::IfThenElse(first(third), row(r2 + 2 * third), row(r3 - third)), d,
                   v + 2 * lanes<T>);
      }
    }
    if (p > 0 && quick < strips.count) {
      int64_t before = 0;
      for (int64_t s = 0; s < quick; ++s) before += strips.rows[s];
      const Strips others{strips.rows + quick, strips.count - quick, strips.exist - before};
      pack_steps(others, 0, p, k, a + before, col, to + quick * apart, apart);
    }
  }
  pack_steps(strips, p, pieces(k, group<T>), k, a, col, to, apart);
  return {1, tile_rows};
}

/// to[r] = the sum over k steps of row r of a packed, transposed strip: partial sums of every
/// fourth step, the same for vectors of any width.
template <class T>
void sum_strip(int64_t k, int64_t rows, const T* strip, T* to) {
  const Tag<T> d;
  for (int64_t i = 0; i < rows; i += lanes<T>) {
    auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    const T* p = strip + i;
    int64_t step = 0;
    for (; step + 4 <= k; step += 4, p += 4 * tile_rows) {
      s0 = hn::Add(s0, hn::LoadU(d, p));
      s1 = hn::Add(s1, hn::LoadU(d, p + tile_rows));
      s2 = hn::Add(s2, hn::LoadU(d, p + 2 * tile_rows));
      s3 = hn::Add(s3, hn::LoadU(d, p + 3 * tile_rows));
    }
    for (; step < k; ++step, p += tile_rows) s0 = hn::Add(s0, hn::LoadU(d, p));
    simd::store(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), d, to + i,
                static_cast<size_t>(rows - i));
  }
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

/// Columns of a block of b, which is packed at once.
template <class T>
int64_t block_columns(const Gemm& g) {
  if (few_rows<T>(g)) return most_few_columns;
  // With few rows a panel is used up while it is in cache.
  return g.m <= 2 * tile_rows ? panel<T> : std::min(most_columns<T>, round_up(g.n, panel<T>));
}

/// Whether the packed strips of a block of k are kept for all columns of a task: transposing them
/// again for every block of columns would take too long.
template <class T>
bool keeps_strips(const Gemm& g) {
  return transposes_a(g) && !direct_a<T>(g) && g.n > block_columns<T>(g);
}

/// Return the number of T in packed a and in packed b.
template <class T>
int64_t strip_elements(const Gemm& g, const GemmPlan& plan) {
  if (direct_a<T>(g)) return 0;
  const int64_t kept = keeps_strips<T>(g) ? pieces(plan.most_rows(g), tile_rows) : 1;
  return strip_size<T>(g) * (transposes_a(g) ? std::max(kept, most_strips) : 1);
}
template <class T>
int64_t panel_elements(const Gemm& g, const GemmPlan& plan) {
  const int64_t columns = std::min(block_columns<T>(g), plan.most_columns(g));
  // Among whole blocks only the last one has a packed remainder.
  const int64_t packed =
      columns_in_place<T>(g, columns) == 0 ? columns : g.n - columns_in_place<T>(g, g.n);
  const int64_t steps = std::min(pieces(g.k, group<T>), depth<T>);
  return pieces(packed, panel<T>) * (steps * panel<T> + panel_gap);
}

/// Where accumulators of a c with fewer bits are stored in scratch memory: those of a strip if one
/// block covers all of k, else those of a task.
enum class AccumulatorPlacement { nowhere, strip, task };
template <class T>
AccumulatorPlacement accumulator_placement(const Gemm& g) {
  if (g.c_dtype == dtype_of<Sum<T>>) return AccumulatorPlacement::nowhere;
  return g.k <= depth<T> * group<T> ? AccumulatorPlacement::strip : AccumulatorPlacement::task;
}

/// Estimates the time of a product on `threads` threads, in units of one multiply-add.
template <class T>
double estimated_time(const Gemm& g, const GemmPlan& plan, int threads) {
  // Of one element: packed by copying, packed by transposing, and a partial sum stored and added.
  constexpr double copied = 12, transposed = 20, added = 8;
  const auto rows = static_cast<double>(plan.most_rows(g));
  const auto columns = static_cast<double>(plan.most_columns(g));
  const int64_t blocks = plan.blocks_of(g);
  const auto k = static_cast<double>(std::min(g.k, pieces(blocks, plan.segments) * plan.block));
  const double again =
      keeps_strips<T>(g) ? 1 : std::ceil(columns / static_cast<double>(block_columns<T>(g)));
  double task = k * (rows * columns + (direct_a<T>(g) ? 0 : copied * rows * again) +
                     (direct_b<T>(g) ? 0 : (g.b_col == 1 ? copied : transposed) * columns));
  if (plan.segments > 1) task += added * rows * columns * static_cast<double>(blocks);
  const int64_t tasks = plan.tasks();
  const auto turns = static_cast<double>(pieces(tasks, threads));
  // Of several tasks for each thread, one that is held up takes fewer.
  return turns * task * (1 + 0.04 * threads / static_cast<double>(tasks));
}

/// Finds the fastest plan whose number of tasks is 1, 2 or 4 times `threads`, by the estimate.
template <class T>
GemmPlan divide(const Gemm& g, GemmPlan plan, int threads) {
  const int64_t strips = pieces(g.m, plan.row_unit), panels = pieces(g.n, plan.column_unit);
  const GemmPlan least = plan;
  const int64_t blocks = plan.blocks_of(g);
  const bool splits = g.splits_k && !g.transposed && blocks > 1 &&
                      accumulator_placement<T>(g) == AccumulatorPlacement::nowhere;
  double best = 0;
  for (const int64_t wanted : {1, 2, 4}) {
    const int64_t tasks = wanted * threads;
    for (int64_t segments = 1; segments <= (splits ? blocks : 1); ++segments) {
      if (tasks % segments != 0) continue;
      for (int64_t beside = 1; beside * segments <= tasks && beside <= panels; ++beside) {
        if (tasks % (segments * beside) != 0) continue;
        GemmPlan one = least;
        one.segments = segments;
        one.beside = std::max(least.beside, beside);
        one.down = std::max(least.down, std::min(strips, tasks / (segments * beside)));
        if (segments > 1 && one.partial_sums(g) > most_partial_sums) continue;
        const double time = estimated_time<T>(g, one, threads);
        if (best == 0 || time < best) {
          best = time;
          plan = one;
        }
      }
    }
  }
  return plan;
}

template <class T>
GemmPlan plan_for(const Gemm& g, int threads) {
  GemmPlan plan;
  const AccumulatorPlacement placement = accumulator_placement<T>(g);
  plan.block = depth<T> * group<T>;
  plan.row_unit = few_rows<T>(g) ? g.m : tile_rows;
  plan.column_unit = few_rows<T>(g) ? few_width : panel<T>;
  // Kept strips, and sums of a task, stay in a cache.
  plan.down = pieces(g.m, placement == AccumulatorPlacement::task ? 240 : most_rows);
  if (placement == AccumulatorPlacement::task) plan.beside = pieces(g.n, block_columns<T>(g));
  if (threads > 1) plan = divide<T>(g, plan, threads);
  plan.sums_a = group<T> == 1 && transposes_a(g) && !direct_a<T>(g) && !g.transposed;
  int64_t elements = strip_elements<T>(g, plan) + panel_elements<T>(g, plan);
  if (placement == AccumulatorPlacement::task) {
    elements += plan.most_rows(g) * plan.most_columns(g);
  } else if (placement == AccumulatorPlacement::strip) {
    elements += tile_rows * std::min(plan.most_columns(g), block_columns<T>(g));
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
    const int64_t first = std::min(t / 4 * (columns_ / (group<T> * uses)), columns_ - 1);
    return {base + first * column_ + t % 4 * (2 * line), line, column_, pace};
  }
  /// Returns the lines of a kept strip that tile t prefetches: one for every `pace` steps.
  PrefetchLines kept(const T* strip, int64_t t) const {
    const auto* base = static_cast<const char*>(static_cast<const void*>(strip));
    const int64_t lines = pieces(columns_, group<T>) / pace;
    return {base + t * lines * line, line, 2 * line, pace};
  }

 private:
  static constexpr auto size = static_cast<int64_t>(sizeof(S));
  static constexpr int64_t line = 64;
  static constexpr int64_t uses = line / (size * group<T>);  // steps that use up a line of a row
  static constexpr int64_t pace = uses / 2;
  int64_t column_, row_, columns_;
};

/// Adds the sums that were stored apart to row `row` of c.
template <class T>
void add_partial_row(const Gemm& g, const GemmPlan& plan, const T* partial, int64_t row) {
  const Tag<T> d;
  const int64_t sums = plan.blocks_of(g) - plan.first_partial(g);
  T* c = static_cast<T*>(g.c) + row * g.c_row;
  simd::for_vectors(d, static_cast<size_t>(g.n), [&](size_t j, size_t left) {
    auto sum = simd::load(d, c + j, left);
    const T* p = partial + row * g.n + static_cast<int64_t>(j);
    for (int64_t i = 0; i < sums; ++i, p += g.m * g.n) {
      sum = hn::Add(sum, simd::load(d, p, left));
    }
    simd::store(sum, d, c + j, left);
  });
  if (g.finish != nullptr) finish_sums(*g.finish, g.c_dtype, row, 0, g.n, c);
}

/// A task of a product: a part of its rows, columns and blocks of k.
template <class T, class S>
class Task {
 public:
  Task(const Gemm& g, const GemmPlan& plan, int64_t index, T* scratch, void* partial)
      : g_(g),
        rows_(plan.rows(g, index)),
        columns_(plan.columns(g, index)),
        blocks_(plan.blocks(g, index)),
        a_(static_cast<const S*>(g.a) + rows_.begin * g.a_row),
        b_(static_cast<const S*>(g.b) + columns_.begin * g.b_col),
        placement_(accumulator_placement<T>(g)),
        direct_(direct_a<T>(g)),
        keeps_(keeps_strips<T>(g)),
        strip_(scratch),
        panels_(scratch + strip_elements<T>(g, plan)),
        wide_(as_lanes(panels_ + panel_elements<T>(g, plan))),
        partial_(static_cast<Sum<T>*>(partial)),
        first_partial_(plan.segments > 1 ? plan.first_partial(g) : blocks_.begin + blocks_.size) {
    const int64_t first = g.transposed ? rows_.begin + columns_.begin * g.c_row
                                       : rows_.begin * g.c_row + columns_.begin;
    narrow_c_ = static_cast<S*>(g.c) + first;
    sums_ = static_cast<Sum<T>*>(g.c) + first;
    // Strips of almost equal height: a low strip would not keep the arithmetic units busy.
    strips_ = pieces(rows_.size, tile_rows);
    least_ = rows_.size / strips_;
    high_ = rows_.size % strips_;
  }

  void run() {
    if (placement_ == AccumulatorPlacement::task) {
      c_row_ = columns_.size;
      widen(narrow_c_, rows_.size, columns_.size, wide_);
    }
    // The same columns for all of k, or all columns for strips that are kept.
    const int64_t parts = pieces(columns_.size, block_columns<T>(g_));
    const auto block_of = [&](int64_t i) {
      return blocks_.begin + (keeps_ ? i / parts : i % blocks_.size);
    };
    const auto part_at = [&](int64_t i) {
      return part_of(columns_.size, few_rows<T>(g_) ? few_width : panel<T>, parts,
                     keeps_ ? i % parts : i / blocks_.size);
    };
    for (int64_t i = 0; i < parts * blocks_.size; ++i) {
      begin_block(block_of(i));
      const bool last = i + 1 == parts * blocks_.size;
      next_ = last ? NextOfB{} : next_of_b(block_of(i + 1), part_at(i + 1));
      run_columns(part_at(i));
    }
    if (g_.finish != nullptr && g_.transposed) finish_transposed_rows();
    if (placement_ == AccumulatorPlacement::task) {
      if (g_.finish != nullptr) finish(0, rows_.size, {0, columns_.size}, wide_);
      narrow(wide_, rows_.size, columns_.size, narrow_c_);
    }
  }

 private:
  /// The elements of b that are packed next, if their rows are contiguous: `rows` of so many lines.
  struct NextOfB {
    const S* b = nullptr;
    int64_t rows = 0, lines = 1;
  };
  NextOfB next_of_b(int64_t block, const Part& part) const {
    constexpr int64_t line = 64;
    if (g_.b_col != 1 || columns_in_place<T>(g_, part.size) > 0) return {};
    const int64_t k0 = block * depth<T> * group<T>;
    return {b_ + k0 * g_.b_row + part.begin, std::min(depth<T> * group<T>, g_.k - k0),
            pieces(part.size * static_cast<int64_t>(sizeof(S)), line)};
  }
  /// Adds to `lines` the lines of the next elements of b that tile t prefetches: one line of each
  /// of many rows.
  void add_next_of_b(int64_t t, PrefetchLines& lines) const {
    const int64_t rows = std::max<int64_t>(1, pieces(k_, group<T>) / lines.pace);
    const int64_t first = t / next_.lines * rows;
    if (next_.b == nullptr || first >= next_.rows) return;
    constexpr int64_t line = 64;
    const S* row = next_.b + first * g_.b_row;
    lines.later = static_cast<const char*>(static_cast<const void*>(row)) + t % next_.lines * line;
    lines.later_step = g_.b_row * static_cast<int64_t>(sizeof(S));
    if (lines.line == nullptr) lines.line = lines.later;
  }

  /// Begins a block of k: finds where its sums go, and whether they are added to what is there.
  void begin_block(int64_t block) {
    constexpr int64_t columns = depth<T> * group<T>;
    k0_ = block * columns;
    k_ = std::min(columns, g_.k - k0_);
    apart_ = pieces(k_, group<T>) * panel<T> + panel_gap;
    accumulates_ = g_.accumulate || block > 0;
    finishes_ = g_.finish != nullptr && !g_.transposed && k0_ + k_ == g_.k &&
                block < first_partial_ && placement_ != AccumulatorPlacement::task;
    if (block >= first_partial_) {
      c_row_ = g_.n;
      c_ = partial_ + (block - first_partial_) * g_.m * g_.n + rows_.begin * g_.n + columns_.begin;
      accumulates_ = false;
    } else if (placement_ == AccumulatorPlacement::nowhere) {
      c_row_ = g_.c_row;
      c_ = sums_;
    } else {
      c_row_ = placement_ == AccumulatorPlacement::task
                   ? columns_.size
                   : std::min(columns_.size, block_columns<T>(g_));
      c_ = wide_;
    }
  }

  /// Computes columns [part.begin, part.begin + part.size) of the task, for a block of k.
  void run_columns(const Part& part) {
    const S* b = b_ + k0_ * g_.b_row + part.begin * g_.b_col;
    const int64_t lying = columns_in_place<T>(g_, part.size);
    if (lying < part.size) {
      pack_panels(k_, part.size - lying, b + lying * g_.b_col, g_.b_row, g_.b_col, panels_, apart_);
    }
    const bool packs = part.begin == 0 || !keeps_;
    int64_t i = 0;
    packed_to_ = 0;
    tiles_done_ = 0;
    for (int64_t s = 0; s < strips_; ++s) {
      const int64_t rows = least_ + (s < high_ ? 1 : 0);
      const T* strip = strip_of(s, i, rows, packs);
      Sum<T>* sums = placement_ == AccumulatorPlacement::strip
                         ? c_
                         : c_ + (g_.transposed ? i + part.begin * c_row_ : i * c_row_ + part.begin);
      S* to = narrow_c_ + i * g_.c_row + part.begin;
      if (placement_ == AccumulatorPlacement::strip) widen(to, rows, part.size, sums);
      run_strip(strip, s, i, rows, b, part, lying, sums);
      if (finishes_) finish(i, rows, part, sums);
      if (placement_ == AccumulatorPlacement::strip) narrow(sums, rows, part.size, to);
      i += rows;
    }
  }

  /// Applies the epilogue to the sums of `rows` rows from row i on, in the columns of `part`.
  void finish(int64_t i, int64_t rows, const Part& part, Sum<T>* sums) const {
    for (int64_t r = 0; r < rows; ++r) {
      finish_sums(*g_.finish, g_.c_dtype, rows_.begin + i + r, columns_.begin + part.begin,
                  part.size, sums + r * c_row_);
    }
  }
  /// The same for all of a transposed product, whose columns are rows of c.
  void finish_transposed_rows() const {
    for (int64_t j = 0; j < columns_.size; ++j) {
      finish_sums(*g_.finish, g_.c_dtype, columns_.begin + j, rows_.begin, rows_.size,
                  sums_ + j * g_.c_row);
    }
  }

  /// Returns strip s, of rows [i, i + rows), packing it and those beside it where it must.
  const T* strip_of(int64_t s, int64_t i, int64_t rows, bool packs) {
    const S* from = a_ + k0_ * g_.a_col + i * g_.a_row;
    if (direct_) {
      steps_ = {g_.a_row / group<T>, g_.a_col};
      packed_to_ = i + rows;
      tiles_done_ = 0;
      return static_cast<const T*>(static_cast<const void*>(from));
    }
    const int64_t size = strip_size<T>(g_);
    if (!transposes_a(g_)) {
      steps_ = pack_rows(rows, k_, from, g_.a_row, g_.a_col, strip_);
      packed_to_ = i + rows;
      tiles_done_ = 0;
      return strip_;
    }
    T* to = strip_ + (keeps_ ? s : s % most_strips) * size;
    if (packs && s % most_strips == 0) {
      int64_t high[most_strips];
      const int64_t count = std::min(most_strips, strips_ - s);
      packed_to_ = i;
      for (int64_t x = 0; x < count; ++x) packed_to_ += high[x] = least_ + (s + x < high_ ? 1 : 0);
      const Strips strips{high, count, g_.m - rows_.begin - i};
      steps_ = pack_columns(strips, k_, from, g_.a_col, to, size);
      if (g_.a_sums != nullptr && columns_.begin == 0) sum_strips(strips, i, to);
      tiles_done_ = 0;
    }
    return to;
  }

  /// Sums packed strips, whose first row is row i of the task, over the block of k.
  void sum_strips(const Strips& strips, int64_t i, const T* packed) const {
    if constexpr (group<T> == 1) {
      T* to = static_cast<T*>(g_.a_sums) + k0_ / depth<T> * g_.m + rows_.begin + i;
      for (int64_t s = 0; s < strips.count; to += strips.rows[s], ++s) {
        sum_strip(k_, strips.rows[s], packed + s * strip_size<T>(g_), to);
      }
    }
  }

  /// Returns the lines that the next tile prefetches, beside strip s, which was packed or kept.
  PrefetchLines ahead(const T* strip, int64_t s, int64_t column, bool packs) {
    const Following<T, S> following(g_, k_);
    if (!packs) {
      const bool last = s + 1 == strips_;
      return following.kept(last ? strip_ : strip + strip_size<T>(g_), column / panel<T>);
    }
    const S* block = a_ + k0_ * g_.a_col;
    const S* next = k0_ + k_ < g_.k ? block + k_ * g_.a_col : block;
    return following(packed_to_ < rows_.size ? block + packed_to_ * g_.a_row : next, tiles_done_++);
  }

  /// Computes `rows` rows from row i on, in the columns of `part`.
  void run_strip(const T* strip, int64_t s, int64_t i, int64_t rows, const S* b, const Part& part,
                 int64_t lying, Sum<T>* sums) {
    const auto* bias = k0_ > 0 || g_.bias == nullptr
                           ? nullptr
                           : static_cast<const Sum<T>*>(g_.bias) +
                                 (g_.transposed ? rows_.begin + i : columns_.begin + part.begin);
    const int64_t right = g_.transposed ? c_row_ : 1;
    int64_t j = 0;
#if HWY_TARGET != HWY_SCALAR
    if constexpr (sizeof(T) == sizeof(float)) {
      for (; few_rows<T>(g_) && j < lying; j += few_width) {
        const Target<T> to{sums + j,     c_row_,    bias != nullptr ? bias + j : nullptr,
                           accumulates_, few_width, false};
        few_across_rows(rows, k_, strip, steps_.row, b + j * g_.b_col, g_.b_col, to);
      }
    }
#endif
    const bool packs = part.begin == 0 || !keeps_;
    for (; j < part.size; j += panel<T>) {
      if (placement_ == AccumulatorPlacement::strip) prefetch_c(i, rows, part.begin + j);
      const int64_t columns = std::min(panel<T>, part.size - j);
      const bool lies = j < lying;
      const T* panel_b = lies ? static_cast<const T*>(static_cast<const void*>(b + j))
                              : panels_ + (j - lying) / panel<T> * apart_;
      const Target<T> to{
          sums + j * right, c_row_,  bias != nullptr && !g_.transposed ? bias + j : bias,
          accumulates_,     columns, g_.transposed};
      const int64_t b_row = lies ? g_.b_row : panel<T>, steps = pieces(k_, group<T>);
      PrefetchLines lines = ahead(strip, s, j, packs);
      add_next_of_b(s * pieces(part.size, panel<T>) + j / panel<T>, lines);
      if (columns > lanes<T>) {
        tiles<T, 2>(rows, steps, strip, steps_.row, steps_.col, panel_b, b_row, to, lines);
      } else {
        tiles<T, 1>(rows, steps, strip, steps_.row, steps_.col, panel_b, b_row, to, lines);
      }
    }
  }

  /// Prefetches the destination of a tile whose sums are narrowed later; tile() does that where c
  /// holds the sums itself.
  void prefetch_c(int64_t i, int64_t rows, int64_t j) {
    for (int64_t r = i; r < i + rows; ++r) __builtin_prefetch(narrow_c_ + r * g_.c_row + j, 1);
  }

  void widen(const S* from, int64_t rows, int64_t columns, Sum<T>* sums) const {
    if constexpr (!std::is_same_v<Sum<T>, S>) {
      if (g_.accumulate) convert_rows(rows, columns, from, g_.c_row, sums, c_row_);
    }
  }
  void narrow(const Sum<T>* sums, int64_t rows, int64_t columns, S* to) const {
    if constexpr (!std::is_same_v<Sum<T>, S>) {
      convert_rows(rows, columns, sums, c_row_, to, g_.c_row);
    }
  }

  const Gemm& g_;
  const Part rows_, columns_, blocks_;
  const S *a_, *b_;
  const AccumulatorPlacement placement_;
  const bool direct_, keeps_;
  T *strip_, *panels_;
  Sum<T>*wide_, *partial_;
  int64_t first_partial_;          // the first block of k whose sums are kept apart
  S* narrow_c_;                    // the task's first element of c
  Sum<T>* sums_;                   // that element, where c holds the sums
  int64_t strips_, least_, high_;  // the first `high_` strips have least_ + 1 rows, others least_

  int64_t k0_ = 0, k_ = 0;  // the block of k
  int64_t apart_ = 0;       // T between panels
  Sum<T>* c_ = nullptr;     // where its sums go
  int64_t c_row_ = 0;
  bool accumulates_ = false, finishes_ = false;
  NextOfB next_;
  Steps steps_{};           // of the current strip
  int64_t packed_to_ = 0;   // rows that were packed or read
  int64_t tiles_done_ = 0;  // since then
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif
