#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/norm.cc"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include <algorithm>

#include "core/parallel.h"
#include "cpu/register.h"
#include "cpu/simd-inl.h"
#include "ops/kernels/norm.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<Accumulator<T>>;

/// Sum of the row, or (squares) of (x - mean)^2, in two chains of vectors.
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
  const size_t N = hn::Lanes(d), n = f.n;
  for (; row < end; ++row) {
    const T* x = f.x + static_cast<size_t>(row) * n;
    T* y = f.y + static_cast<size_t>(row) * n;
    const A count = static_cast<A>(n);
    const A mean = f.center ? row_sum<false>(x, n, A{0}) / count : A{0};
    const A rstd = 1 / std::sqrt(row_sum<true>(x, n, mean) / count + f.eps);
    if (f.center) f.mean[row] = mean;
    f.rstd[row] = rstd;
    const auto m = hn::Set(d, mean), s = hn::Set(d, rstd);
    for (size_t i = 0; i < n; i += N) {
      const size_t left = n - i;
      auto v = hn::Mul(hn::Sub(simd::load(d, x + i, left), m), s);
      if (f.weight != nullptr) v = hn::Mul(v, simd::load(d, f.weight + i, left));
      if (f.bias != nullptr) v = hn::Add(v, simd::load(d, f.bias + i, left));
      simd::store(v, d, y + i, left);
    }
  }
}

template <class T>
struct Backward {
  using A = Accumulator<T>;
  bool center;
  const T *x, *weight, *dy;
  const A *mean, *rstd;
  T* dx;
  size_t n;
};

/// Rows [row, end), adding dy * h to sums[0 .. n) and dy to sums[n .. 2 n) where sums are given.
template <class T>
void backward_rows(const Backward<T>& f, int64_t row, int64_t end, Accumulator<T>* sums) {
  using A = Accumulator<T>;
  const Tag<T> d;
  const size_t N = hn::Lanes(d), n = f.n;
  const auto one = simd::constant(d, 1);
  const A inverse = A{1} / static_cast<A>(n);
  for (; row < end; ++row) {
    const T* x = f.x + static_cast<size_t>(row) * n;
    const T* dy = f.dy + static_cast<size_t>(row) * n;
    const auto m = f.center ? hn::Set(d, f.mean[row]) : hn::Zero(d);
    const auto s = hn::Set(d, f.rstd[row]);
    auto sum_g = hn::Zero(d), sum_gh = hn::Zero(d);
    for (size_t i = 0; i < n; i += N) {
      const size_t left = n - i;
      const auto v = simd::load(d, dy + i, left);  // zero beyond the row
      const auto h = hn::Mul(hn::Sub(simd::load(d, x + i, left), m), s);
      const auto g = f.weight != nullptr ? hn::Mul(v, simd::load(d, f.weight + i, left)) : v;
      sum_g = hn::Add(sum_g, g);
      sum_gh = hn::MulAdd(g, h, sum_gh);
      if (sums != nullptr) {
        A *dw = sums + i, *db = sums + n + i;
        simd::store(hn::MulAdd(v, h, simd::load(d, dw, left)), d, dw, left);
        simd::store(hn::Add(v, simd::load(d, db, left)), d, db, left);
      }
    }
    if (f.dx == nullptr) continue;
    T* dx = f.dx + static_cast<size_t>(row) * n;
    const auto mean_g = f.center ? hn::Set(d, simd::sum_lanes(d, sum_g) * inverse) : hn::Zero(d);
    const auto mean_gh = hn::Set(d, simd::sum_lanes(d, sum_gh) * inverse);
    for (size_t i = 0; i < n; i += N) {
      const size_t left = n - i;
      const auto h = hn::Mul(hn::Sub(simd::load(d, x + i, left), m), s);
      const auto w = f.weight != nullptr ? simd::load(d, f.weight + i, left) : one;
      const auto g = hn::MulSub(simd::load(d, dy + i, left), w, mean_g);
      simd::store(hn::Mul(s, hn::NegMulAdd(h, mean_gh, g)), d, dx + i, left);
    }
  }
}

/// y[i] = the sum of the runs' sums, in their order.
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

constexpr int64_t grain = 1 << 14;  // elements of a task

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
              const ConstView& rstd, const ConstView& dy, const View& dx, const View& dweight,
              const View& dbias, const View& work) {
  const int64_t rows = x.shape[0], n = x.shape[1];
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const Backward<T> f{center,       x.as<T>(),    weight.as<T>(), dy.as<T>(),
                        mean.as<A>(), rstd.as<A>(), dx.as<T>(),     static_cast<size_t>(n)};
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
  kernels::norm_backward.set(DeviceKind::cpu, [](bool center, ConstView x, ConstView weight,
                                                 ConstView mean, ConstView rstd, ConstView dy,
                                                 View dx, View dweight, View dbias, View work) {
    HWY_DYNAMIC_DISPATCH(backward)(center, x, weight, mean, rstd, dy, dx, dweight, dbias, work);
  });
}

}  // namespace longspan::cpu
#endif
