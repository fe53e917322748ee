#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/norm.cc"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include <algorithm>

#include "core/kernels/norm.h"
#include "core/parallel.h"
#include "cpu/register.h"
#include "cpu/rows-inl.h"
#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using rows::Tag;

/// Returns the sum of the row, or (squares) of (x - mean)^2, in two chains of vectors.
template <bool squares, class T>
HWY_INLINE Accumulator<T> row_sum(const T* x, size_t n, Accumulator<T> mean) {
  const Tag<T> d;
  const size_t N = hn::Lanes(d);
  const auto m = hn::Set(d, mean);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * N <= n; i += 2 * N) {
    const auto a = simd::load(d, x + i, N), b = simd::load(d, x + i + N, N);
    if constexpr (squares) {
      const auto e = hn::Sub(a, m), f = hn::Sub(b, m);
      s0 = hn::MulAdd(e, e, s0);
      s1 = hn::MulAdd(f, f, s1);
    } else {
      s0 = hn::Add(s0, a);
      s1 = hn::Add(s1, b);
    }
  }
  for (; i < n; i += N) {
    auto a = simd::load(d, x + i, n - i);
    if constexpr (squares) {
      a = hn::Sub(a, m);
      if (n - i < N) a = hn::IfThenElseZero(hn::FirstN(d, n - i), a);
      s0 = hn::MulAdd(a, a, s0);
    } else {
      s0 = hn::Add(s0, a);
    }
  }
  return simd::sum_lanes(d, hn::Add(s0, s1));
}

template <class T>
struct Forward {
  using A = Accumulator<T>;
  bool center;
  A eps;
  const T *x, *weight, *bias;
  T* y;
  A *mean, *rstd;
  size_t n;
};

template <class T>
void forward_rows(const Forward<T>& f, int64_t row, int64_t end) {
  using A = Accumulator<T>;
  const Tag<T> d;
  const size_t n = f.n;
  const A width = static_cast<A>(n);
  rows::for_steps(row, end, n, [&](int64_t first, int64_t count) HWY_ATTR {
    const auto at = [&](int64_t r) { return static_cast<size_t>(first + r) * n; };
    A mean[rows::most_together] = {}, rstd[rows::most_together];
    for (int64_t r = 0; f.center && r < count; ++r) {
      f.mean[first + r] = mean[r] = row_sum<false>(f.x + at(r), n, A{0}) / width;
    }
    for (int64_t r = 0; r < count; ++r) {
      const A square = row_sum<true>(f.x + at(r), n, mean[r]) / width;
      f.rstd[first + r] = rstd[r] = 1 / std::sqrt(square + f.eps);
    }
    for (int64_t r = 0; r < count; ++r) {
      const T* x = f.x + at(r);
      T* y = f.y + at(r);
      const auto m = hn::Set(d, mean[r]), s = hn::Set(d, rstd[r]);
      simd::for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
        auto v = hn::Mul(hn::Sub(simd::load(d, x + i, left), m), s);
        if (f.weight != nullptr) v = hn::Mul(v, simd::load(d, f.weight + i, left));
        if (f.bias != nullptr) v = hn::Add(v, simd::load(d, f.bias + i, left));
        simd::store(v, d, y + i, left);
      });
    }
  });
}

template <class T>
struct Backward {
  using A = Accumulator<T>;
  bool center;
  const T *x, *weight, *dy;
  const A *mean, *rstd;
  bool adds;
  T* dx;
  size_t n;
};

/// Backward state of a row: with t = x - mean and g = dy * weight, the sums of g and of g * t.
template <class T>
struct BackwardRow {
  using V = hn::Vec<Tag<T>>;
  const T *x, *dy;
  T* dx;
  V mean, rstd, sum_g, sum_gt;

  HWY_INLINE BackwardRow(const Backward<T>& f, int64_t row)
      : x(f.x + static_cast<size_t>(row) * f.n),
        dy(f.dy + static_cast<size_t>(row) * f.n),
        dx(f.dx + (f.dx == nullptr ? 0 : static_cast<size_t>(row) * f.n)),
        mean(hn::Set(Tag<T>(), f.center ? f.mean[row] : Accumulator<T>{0})),
        rstd(hn::Set(Tag<T>(), f.rstd[row])),
        sum_g(hn::Zero(Tag<T>())),
        sum_gt(hn::Zero(Tag<T>())) {}

  /// Adds a vector of the row, and adds dy * h to dw and dy to db. Both sums are 0 beyond the row.
  HWY_INLINE void add(size_t i, size_t left, V weight, V& dw, V& db) {
    const Tag<T> d;
    const auto v = simd::load(d, dy + i, left);
    const auto vt = hn::Mul(v, hn::Sub(simd::load(d, x + i, left), mean));
    sum_g = hn::MulAdd(v, weight, sum_g);
    sum_gt = hn::MulAdd(vt, weight, sum_gt);
    dw = hn::MulAdd(vt, rstd, dw);
    db = hn::Add(db, v);
  }
  /// Turns the sums into the values that finish() uses: mean(g) and rstd * mean(g * h).
  HWY_INLINE void close(bool center, Accumulator<T> inverse) {
    const Tag<T> d;
    sum_g = center ? hn::Set(d, simd::sum_lanes(d, sum_g) * inverse) : hn::Zero(d);
    sum_gt = hn::Mul(hn::Mul(rstd, rstd), hn::Set(d, simd::sum_lanes(d, sum_gt) * inverse));
  }
  HWY_INLINE void finish(size_t i, size_t left, V weight, bool adds) const {
    const Tag<T> d;
    const auto t = hn::Sub(simd::load(d, x + i, left), mean);
    const auto g = hn::MulSub(simd::load(d, dy + i, left), weight, sum_g);
    auto own = hn::Mul(rstd, hn::NegMulAdd(t, sum_gt, g));
    if (adds) own = hn::Add(simd::load(d, dx + i, left), own);
    simd::store(own, d, dx + i, left);
  }
};

/// Processes R rows from `row` on, so that weights and sums over rows are read and written only
/// once.
template <int R, class T>
HWY_INLINE void backward_together(const Backward<T>& f, int64_t row, Accumulator<T>* sums) {
  const Tag<T> d;
  const size_t n = f.n;
  const auto one = simd::constant(d, 1);
  const auto weight_at = [&](size_t i, size_t left) HWY_ATTR {
    return f.weight != nullptr ? simd::load(d, f.weight + i, left) : one;
  };
  BackwardRow<T> r0(f, row), r1(f, row + (R > 1)), r2(f, row + (R > 2 ? 2 : 0)),
      r3(f, row + (R > 3 ? 3 : 0));
  simd::for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
    const auto weight = weight_at(i, left);
    auto dw = hn::Zero(d), db = dw;
    if (sums != nullptr) {
      dw = simd::load(d, sums + i, left);
      db = simd::load(d, sums + n + i, left);
    }
    r0.add(i, left, weight, dw, db);
    if constexpr (R > 1) r1.add(i, left, weight, dw, db);
    if constexpr (R > 2) r2.add(i, left, weight, dw, db);
    if constexpr (R > 3) r3.add(i, left, weight, dw, db);
    if (sums != nullptr) {
      simd::store(dw, d, sums + i, left);
      simd::store(db, d, sums + n + i, left);
    }
  });
  if (f.dx == nullptr) return;
  const auto inverse = Accumulator<T>{1} / static_cast<Accumulator<T>>(n);
  r0.close(f.center, inverse);
  if constexpr (R > 1) r1.close(f.center, inverse);
  if constexpr (R > 2) r2.close(f.center, inverse);
  if constexpr (R > 3) r3.close(f.center, inverse);
  simd::for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
    const auto weight = weight_at(i, left);
    r0.finish(i, left, weight, f.adds);
    if constexpr (R > 1) r1.finish(i, left, weight, f.adds);
    if constexpr (R > 2) r2.finish(i, left, weight, f.adds);
    if constexpr (R > 3) r3.finish(i, left, weight, f.adds);
  });
}

/// Processes rows [row, end), adding dy * h to sums[0 .. n) and dy to sums[n .. 2 n) if sums are
/// given.
template <class T>
void backward_rows(const Backward<T>& f, int64_t row, int64_t end, Accumulator<T>* sums) {
  if (f.n <= 2048) {  // four rows of x and dy stay in cache
    for (; row + 4 <= end; row += 4) backward_together<4>(f, row, sums);
  }
  for (; row < end; ++row) backward_together<1>(f, row, sums);
}

/// y[i] = total of the runs' sums, in order.
template <class T>
void add_runs(const Accumulator<T>* sums, int64_t runs, size_t step, size_t n, T* y) {
  const Tag<T> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    auto s = hn::Zero(d);
    for (int64_t r = 0; r < runs; ++r) {
      s = hn::Add(s, simd::load(d, sums + static_cast<size_t>(r) * step + i, n - i));
    }
    simd::store(s, d, y + i, n - i);
  }
}

constexpr int64_t grain = 1 << 14;  // elements per task

void forward(bool center, double eps, const ConstView& x, const ConstView& weight,
             const ConstView& bias, const View& y, const View& mean, const View& rstd) {
  const int64_t rows = x.shape[0], n = x.shape[1];
  if (rows == 0 || n == 0) return;
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const Forward<T> f{center,         static_cast<A>(eps), x.as<T>(),
                       weight.as<T>(), bias.as<T>(),        y.as<T>(),
                       mean.as<A>(),   rstd.as<A>(),        static_cast<size_t>(n)};
    parallel_ranges(rows, std::max<int64_t>(1, grain / n),
                    [&](int64_t row, int64_t end) { forward_rows(f, row, end); });
  });
}

void backward(bool center, const ConstView& x, const ConstView& weight, const ConstView& mean,
              const ConstView& rstd, const ConstView& dy, bool adds, const View& dx,
              const View& dweight, const View& dbias, const View& work) {
  const int64_t rows = x.shape[0], n = x.shape[1];
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const Backward<T> f{center,     x.as<T>(),    weight.as<T>(),
                        dy.as<T>(), mean.as<A>(), rstd.as<A>(),
                        adds,       dx.as<T>(),   static_cast<size_t>(n)};
    if (!work) {
      if (n == 0) return;
      parallel_ranges(rows, std::max<int64_t>(1, grain / n),
                      [&](int64_t row, int64_t end) { backward_rows(f, row, end, nullptr); });
      return;
    }
    const int64_t runs = kernels::norm_work(rows);
    const int64_t length = runs > 0 ? (rows + runs - 1) / runs : 0;
    A* sums = work.as<A>();
    parallel_for(runs, [&](int64_t r) {
      std::fill_n(sums + r * 2 * n, 2 * n, A{0});
      backward_rows(f, r * length, std::min(rows, (r + 1) * length), sums + r * 2 * n);
    });
    const auto width = static_cast<size_t>(n);
    if (dweight) add_runs(sums, runs, 2 * width, width, dweight.as<T>());
    if (dbias) add_runs(sums + n, runs, 2 * width, width, dbias.as<T>());
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::cpu {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void register_norm() {
  kernels::norm_forward.set(
      DeviceKind::cpu, [](bool center, double eps, ConstView x, ConstView weight, ConstView bias,
                          View y, View mean, View rstd) {
        HWY_DYNAMIC_DISPATCH(forward)(center, eps, x, weight, bias, y, mean, rstd);
      });
  kernels::norm_backward.set(
      DeviceKind::cpu,
      [](bool center, ConstView x, ConstView weight, ConstView mean, ConstView rstd, ConstView dy,
         bool adds, View dx, View dweight, View dbias, View work) {
        HWY_DYNAMIC_DISPATCH(backward)
        (center, x, weight, mean, rstd, dy, adds, dx, dweight, dbias, work);
      });
}

}  // namespace longspan::cpu
#endif
