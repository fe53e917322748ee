#include "ops/kernels/gradient.h"

#include <atomic>
#include <cmath>

#include "core/parallel.h"
#include "cpu/register.h"
#include "cpu/strided.h"

namespace longspan::cpu {
namespace {

constexpr int64_t grain = 1 << 15;  // elements of a task

/// Calls row(offset of x, offset of y, first element) for stretches of the merged layout.
template <class F>
void for_rows(const Merged& m, F&& row) {
  const int64_t n = m.shape.back();
  if (m.shape.rank() == 1) {
    parallel_ranges(n, grain,
                    [&](int64_t i, int64_t end) { row(i * m.a.back(), i * m.b.back(), end - i); });
    return;
  }
  parallel_ranges(numel(m.shape) / n, std::max<int64_t>(1, grain / n), [&](int64_t r, int64_t end) {
    for (; r < end; ++r) {
      int64_t a, b;
      row_offsets(m, r, a, b);
      row(a, b, n);
    }
  });
}

void accumulate(ConstView x, View y) {
  if (x.numel() == 0) return;
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Merged m = merge_axes(x.shape, x.strides, y.strides);
    const int64_t sx = m.a.back(), sy = m.b.back();
    for_rows(m, [&](int64_t a, int64_t b, int64_t n) {
      const T* from = x.as<T>() + a;
      T* to = y.as<T>() + b;
      if (sx == 1 && sy == 1) {
        for (int64_t i = 0; i < n; ++i) to[i] = T(to[i] + from[i]);
      } else {
        for (int64_t i = 0; i < n; ++i) to[i * sy] = T(to[i * sy] + from[i * sx]);
      }
    });
  });
}

constexpr int64_t columns = 64;   // of y that a task sums beside each other
constexpr int64_t stretch = 128;  // terms added to a partial sum before it joins the total

/// Sums of up to `columns` neighbours along the last kept axis.
template <class T>
class ColumnSums {
 public:
  using A = Accumulator<T>;
  explicit ColumnSums(int64_t n) : n_(n) {}
  void add(const T* x, int64_t step) {
    if (step == 1) {
      for (int64_t c = 0; c < n_; ++c) part_[c] += static_cast<A>(x[c]);
    } else {
      for (int64_t c = 0; c < n_; ++c) part_[c] += static_cast<A>(x[c * step]);
    }
    if (++terms_ == stretch) fold();
  }
  void finish(T* y) {
    fold();
    for (int64_t c = 0; c < n_; ++c) y[c] = T(total_[c]);
  }

 private:
  void fold() {
    for (int64_t c = 0; c < n_; ++c) {
      total_[c] += part_[c];
      part_[c] = 0;
    }
    terms_ = 0;
  }
  int64_t n_, terms_ = 0;
  A part_[columns] = {}, total_[columns] = {};
};

/// The sum of a line, in 16 lanes by position.
template <class T>
Accumulator<T> line_sum(const T* x, int64_t n, int64_t step) {
  using A = Accumulator<T>;
  A total = 0;
  for (int64_t first = 0; first < n; first += 16 * stretch) {
    A lane[16] = {};
    const int64_t end = std::min(n, first + 16 * stretch);
    int64_t i = first;
    for (; i + 16 <= end; i += 16) {
      for (int64_t l = 0; l < 16; ++l) lane[l] += static_cast<A>(x[(i + l) * step]);
    }
    for (int64_t l = 0; i + l < end; ++l) lane[l] += static_cast<A>(x[(i + l) * step]);
    for (int half = 8; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
    }
    total += lane[0];
  }
  return total;
}

void sum_to(ConstView x, View y) {
  if (y.numel() == 0) return;
  // Axes that stay and axes that are summed; y is row-major over those that stay.
  Shape kept, summed;
  Strides kept_step, summed_step;
  for (int i = 0; i < x.rank(); ++i) {
    const bool stays = y.shape[i] == x.shape[i];
    if (x.shape[i] == 1) continue;
    (stays ? kept : summed).push_back(x.shape[i]);
    (stays ? kept_step : summed_step).push_back(x.strides[i]);
  }
  const Merged k = merge_axes(kept, kept_step, kept_step);
  const Merged s = merge_axes(summed, summed_step, summed_step);
  const int64_t width = k.shape.back(), rows = numel(k.shape) / width;
  const int64_t blocks = (width + columns - 1) / columns;
  const int64_t n = s.shape.back(), lines = n > 0 ? numel(s.shape) / n : 0;
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(rows * blocks, [&](int64_t task) {
      const int64_t row = task / blocks, c = task % blocks * columns;
      int64_t start, unused;
      row_offsets(k, row, start, unused);
      const T* from = x.as<T>() + start + c * k.a.back();
      T* to = y.as<T>() + row * width + c;
      if (width == 1) {
        Accumulator<T> total = 0;
        for (int64_t l = 0; l < lines; ++l) {
          int64_t offset;
          row_offsets(s, l, offset, unused);
          total += line_sum(from + offset, n, s.a.back());
        }
        *to = T(total);
        return;
      }
      ColumnSums<T> sums(std::min(columns, width - c));
      for (int64_t l = 0; l < lines; ++l) {
        int64_t offset;
        row_offsets(s, l, offset, unused);
        for (int64_t i = 0; i < n; ++i) sums.add(from + offset + i * s.a.back(), k.a.back());
      }
      sums.finish(to);
    });
  });
}

void all_finite(ConstView x, bool* finite) {
  std::atomic<bool> all = true;
  if (x.numel() > 0) {
    visit_floating(x.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const Merged m = merge_axes(x.shape, x.strides, x.strides);
      for_rows(m, [&](int64_t a, int64_t, int64_t n) {
        const T* from = x.as<T>() + a;
        bool ok = true;
        for (int64_t i = 0; i < n; ++i) {
          ok &= std::isfinite(static_cast<Accumulator<T>>(from[i * m.a.back()]));
        }
        if (!ok) all = false;
      });
    });
  }
  *finite = all;
}

}  // namespace

void register_gradient() {
  kernels::accumulate.set(DeviceKind::cpu, accumulate);
  kernels::sum_to.set(DeviceKind::cpu, sum_to);
  kernels::all_finite.set(DeviceKind::cpu, all_finite);
}

}  // namespace longspan::cpu
