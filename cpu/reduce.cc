#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/reduce.cc"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "core/kernels/gradient.h"
#include "core/kernels/reduce.h"
#include "core/parallel.h"
#include "cpu/register.h"
#include "cpu/simd-inl.h"
#include "cpu/strided.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using kernels::SummedAxes;

template <class T>
using Tag = hn::ScalableTag<Accumulator<T>>;

constexpr int64_t grain = 1 << 15;  // elements per task
constexpr int64_t chunk = 128;      // terms added before they join the total
constexpr int64_t columns = 64;     // adjacent sums of a task
constexpr int64_t most_pieces = 64;

/// Returns the sum of a line: four chains of vectors over ranges, whose sums are added in order.
template <class T>
Accumulator<T> line_sum(const T* x, int64_t n, int64_t step) {
  using A = Accumulator<T>;
  if (step != 1) {
    A total = 0;
    for (int64_t first = 0; first < n; first += chunk) {
      A part = 0;
      const int64_t end = std::min(n, first + chunk);
      for (int64_t i = first; i < end; ++i) part += static_cast<A>(x[i * step]);
      total += part;
    }
    return total;
  }
  const Tag<T> d;
  const size_t N = hn::Lanes(d), count = static_cast<size_t>(n);
  const size_t length = 4 * N * static_cast<size_t>(chunk);
  A total = 0;
  for (size_t first = 0; first < count; first += length) {
    const size_t end = std::min(count, first + length);
    auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    size_t i = first;
    for (; i + 4 * N <= end; i += 4 * N) {
      s0 = hn::Add(s0, simd::load(d, x + i, N));
      s1 = hn::Add(s1, simd::load(d, x + i + N, N));
      s2 = hn::Add(s2, simd::load(d, x + i + 2 * N, N));
      s3 = hn::Add(s3, simd::load(d, x + i + 3 * N, N));
    }
    for (; i < end; i += N) s0 = hn::Add(s0, simd::load(d, x + i, end - i));
    total += simd::sum_lanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
  }
  return total;
}

/// to[c] += from[c].
template <class From, class A>
void add_line(const From* from, A* to, size_t n) {
  const hn::ScalableTag<A> d;
  for (size_t c = 0; c < n; c += hn::Lanes(d)) {
    simd::store(hn::Add(simd::load(d, to + c, n - c), simd::load(d, from + c, n - c)), d, to + c,
                n - c);
  }
}

/// Sums of up to `columns` adjacent columns.
template <class T>
class ColumnSums {
 public:
  using A = Accumulator<T>;
  explicit ColumnSums(int64_t n) : n_(n) {}

  void add(const T* x, int64_t step) {
    if (step == 1) {
      add_line(x, part_, static_cast<size_t>(n_));
    } else {
      for (int64_t c = 0; c < n_; ++c) part_[c] += static_cast<A>(x[c * step]);
    }
    if (++terms_ == chunk) fold();
  }
  void finish(A scale, T* y) {
    fold();
    for (int64_t c = 0; c < n_; ++c) y[c] = T(total_[c] * scale);
  }

 private:
  void fold() {
    add_line(part_, total_, static_cast<size_t>(n_));
    std::fill_n(part_, n_, A{0});
    terms_ = 0;
  }
  int64_t n_, terms_ = 0;
  alignas(64) A part_[columns] = {};
  alignas(64) A total_[columns] = {};
};

/// Returns the length of the pieces in which long lines are summed.
int64_t piece_of(int64_t n) { return std::max(grain, (n + most_pieces - 1) / most_pieces); }

/// Returns the offset of row r.
int64_t row_start(const Layouts<1>& layout, int64_t r) {
  int64_t offset[1];
  layout.row(r, offset);
  return offset[0];
}

/// Returns the sum of the lines of one output; x is the first element.
template <class T>
Accumulator<T> sum_of(const Layouts<1>& summed, int64_t lines, const T* x) {
  const int64_t n = summed.length(), step = summed.step(0), length = piece_of(n);
  Accumulator<T> total = 0;
  for (int64_t l = 0; l < lines; ++l) {
    const T* line = x + row_start(summed, l);
    for (int64_t i = 0; i < n; i += length) {
      total += line_sum(line + i * step, std::min(length, n - i), step);
    }
  }
  return total;
}

/// Returns the offset of an output's first element.
int64_t start_of(const Layouts<1>& kept, int64_t output) {
  if (kept.rank == 1) return output * kept.step(0);
  return row_start(kept, output / kept.length()) + output % kept.length() * kept.step(0);
}

template <class T>
void sum_lines(const SummedAxes& axes, const T* x, Accumulator<T> scale, T* y) {
  const int64_t n = axes.summed.length(), step = axes.summed.step(0), lines = axes.summed.rows();
  const int64_t outputs = axes.kept.numel;
  if (lines == 1 && n > grain && outputs < 16) {
    const int64_t length = piece_of(n);  // few long sums: their pieces run in parallel
    for (int64_t o = 0; o < outputs; ++o) {
      Accumulator<T> parts[most_pieces] = {};
      const T* from = x + start_of(axes.kept, o);
      parallel_ranges(n, length, [&](int64_t i, int64_t end) {
        parts[i / length] = line_sum(from + i * step, end - i, step);
      });
      Accumulator<T> total = 0;
      for (const auto part : parts) total += part;
      y[o] = T(total * scale);
    }
    return;
  }
  const int64_t terms = std::max<int64_t>(1, axes.summed.numel);
  parallel_ranges(outputs, std::max<int64_t>(1, grain / terms), [&](int64_t o, int64_t end) {
    for (; o < end; ++o) y[o] = T(sum_of(axes.summed, lines, x + start_of(axes.kept, o)) * scale);
  });
}

template <class T>
void sum_columns(const SummedAxes& axes, const T* x, Accumulator<T> scale, T* y) {
  const int64_t width = axes.kept.length(), step = axes.kept.step(0);
  const int64_t blocks = (width + columns - 1) / columns;
  const int64_t lines = axes.summed.rows(), n = axes.summed.length(), down = axes.summed.step(0);
  const int64_t terms = std::max<int64_t>(1, axes.summed.numel * std::min(width, columns));
  parallel_ranges(axes.kept.rows() * blocks, std::max<int64_t>(1, grain / terms),
                  [&](int64_t task, int64_t end) {
                    for (; task < end; ++task) {
                      const int64_t row = task / blocks, c = task % blocks * columns;
                      const T* from = x + start_of(axes.kept, row * width + c);
                      ColumnSums<T> sums(std::min(columns, width - c));
                      for (int64_t l = 0; l < lines; ++l) {
                        const T* line = from + row_start(axes.summed, l);
                        for (int64_t i = 0; i < n; ++i) sums.add(line + i * down, step);
                      }
                      sums.finish(scale, y + row * width + c);
                    }
                  });
}

void sum(const ConstView& x, double scale, const View& y) {
  if (y.numel() == 0) return;
  const SummedAxes axes(x.shape, x.strides, y.shape);
  const Layouts<1>&kept = axes.kept, &summed = axes.summed;
  // Adjacent elements in memory are either terms of one sum or terms of adjacent sums.
  const bool along =
      kept.length() == 1 || (summed.step(0) == 1 && summed.length() > 1 && kept.step(0) != 1);
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto factor = static_cast<Accumulator<T>>(scale);
    if (along) {
      sum_lines(axes, x.as<T>(), factor, y.as<T>());
    } else {
      sum_columns(axes, x.as<T>(), factor, y.as<T>());
    }
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::cpu {

HWY_EXPORT(sum);

namespace {

template <class T>
bool before(T a, T b, bool largest) {
  if constexpr (!std::is_integral_v<T>) {
    const auto x = static_cast<Accumulator<T>>(a), y = static_cast<Accumulator<T>>(b);
    if (std::isnan(y)) return false;
    if (std::isnan(x)) return true;
    return largest ? x > y : x < y;
  } else {
    return largest ? a > b : a < b;
  }
}

void extremum(bool largest, ConstView x, View y, View index) {
  const int64_t rows = x.shape[0], n = x.shape[1];
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_ranges(rows, std::max<int64_t>(1, (1 << 14) / n), [&](int64_t r, int64_t end) {
      for (; r < end; ++r) {
        const T* row = x.as<T>() + r * n;
        int64_t best = 0;
        for (int64_t i = 1; i < n; ++i) {
          if (before(row[i], row[best], largest)) best = i;
        }
        y.as<T>()[r] = row[best];
        index.as<int64_t>()[r] = best;
      }
    });
  });
}

void extremum_backward(ConstView index, ConstView dy, View dx) {
  const int64_t rows = dx.shape[0], n = dx.shape[1];
  visit_floating(dy.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_ranges(rows, std::max<int64_t>(1, (1 << 15) / n), [&](int64_t r, int64_t end) {
      for (; r < end; ++r) {
        T* row = dx.as<T>() + r * n;
        std::fill_n(row, n, T(0.0f));
        row[index.as<int64_t>()[r]] = dy.as<T>()[r];
      }
    });
  });
}

void cumulative_sum(ConstView x, bool reverse, View y) {
  const int64_t rows = x.shape[0], n = x.shape[1];
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using To = std::conditional_t<std::is_integral_v<T>, int64_t, T>;
    using Sum = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
    parallel_ranges(rows, std::max<int64_t>(1, (1 << 14) / n), [&](int64_t r, int64_t end) {
      for (; r < end; ++r) {
        const T* from = x.as<T>() + r * n;
        To* to = y.as<To>() + r * n;
        Sum sum = 0;
        for (int64_t k = 0; k < n; ++k) {
          const int64_t i = reverse ? n - 1 - k : k;
          sum += static_cast<Sum>(from[i]);
          to[i] = To(static_cast<std::conditional_t<sizeof(To) == 2, float, To>>(sum));
        }
      }
    });
  });
}

}  // namespace

void register_reduce() {
  kernels::reduce_sum.set(DeviceKind::cpu, [](ConstView x, double scale, View y) {
    HWY_DYNAMIC_DISPATCH(sum)(x, scale, y);
  });
  kernels::sum_to.set(DeviceKind::cpu, [](ConstView x, View y) {
    HWY_DYNAMIC_DISPATCH(sum)(x, 1.0, y);
  });
  kernels::reduce_extremum.set(DeviceKind::cpu, extremum);
  kernels::reduce_extremum_backward.set(DeviceKind::cpu, extremum_backward);
  kernels::cumulative_sum.set(DeviceKind::cpu, cumulative_sum);
}

}  // namespace longspan::cpu
#endif
