#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/loss.cc"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include "cpu/simd-inl.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/parallel.h"
#include "cpu/register.h"
#include "ops/kernels/loss.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t grain = 1 << 14;  // elements of a task

HWY_INLINE int64_t id_at(const ConstView& ids, int64_t i) {
  switch (ids.dtype) {
    case DType::i64:
      return ids.as<int64_t>()[i];
    case DType::i32:
      return ids.as<int32_t>()[i];
    default:
      return ids.as<uint8_t>()[i];
  }
}

/// Largest element and sum of a row.
template <class T>
HWY_INLINE void scan_row(const T* x, int64_t n, T& largest, T& total) {
  const hn::ScalableTag<T> d;
  const auto N = static_cast<int64_t>(hn::Lanes(d));
  auto m0 = hn::Set(d, -std::numeric_limits<T>::infinity()), m1 = m0;
  auto s0 = hn::Zero(d), s1 = s0;
  int64_t j = 0;
  for (; j + 2 * N <= n; j += 2 * N) {
    const auto a = hn::LoadU(d, x + j), b = hn::LoadU(d, x + j + N);
    m0 = hn::Max(m0, a);
    m1 = hn::Max(m1, b);
    s0 = hn::Add(s0, a);
    s1 = hn::Add(s1, b);
  }
  largest = simd::max_lanes(d, hn::Max(m0, m1));
  total = simd::sum_lanes(d, hn::Add(s0, s1));
  for (; j < n; ++j) {
    largest = std::max(largest, x[j]);
    total += x[j];
  }
}

/// Sum of exp(x - shift) over a row.
template <class T>
HWY_INLINE T sum_exp(const T* x, int64_t n, T shift) {
  const hn::ScalableTag<T> d;
  const auto N = static_cast<int64_t>(hn::Lanes(d));
  const auto m = hn::Set(d, shift);
  auto s0 = hn::Zero(d), s1 = s0;
  int64_t j = 0;
  for (; j + 2 * N <= n; j += 2 * N) {
    s0 = hn::Add(s0, simd::exp_nonpositive(d, hn::Sub(hn::LoadU(d, x + j), m)));
    s1 = hn::Add(s1, simd::exp_nonpositive(d, hn::Sub(hn::LoadU(d, x + j + N), m)));
  }
  for (; j < n; j += N) {
    const auto left = static_cast<size_t>(std::min(N, n - j));
    const auto e = simd::exp_nonpositive(d, hn::Sub(simd::load(d, x + j, left), m));
    s0 = hn::Add(s0, hn::IfThenElseZero(hn::FirstN(d, left), e));
  }
  return simd::sum_lanes(d, hn::Add(s0, s1));
}

template <class T>
void scan(const ConstView& logits, const ConstView& targets, int64_t first, const View& state) {
  const int64_t rows = logits.dim(0), n = logits.dim(1);
  parallel_ranges(
      rows, std::max<int64_t>(1, grain / std::max<int64_t>(n, 1)), [&](int64_t i, int64_t end) {
        for (; i < end; ++i) {
          const T* x = logits.as<T>() + i * n;
          T* s = state.as<T>() + i * 4;
          if (first == 0) {
            s[0] = -std::numeric_limits<T>::infinity();
            s[1] = s[2] = s[3] = 0;
          }
          T largest, total;
          scan_row(x, n, largest, total);
          const T m = std::max(s[0], largest);
          // Of -inf alone there is nothing to sum; inf - inf would be NaN.
          const T shift = std::isinf(m) && m < 0 ? T{0} : m;
          s[1] = (s[1] > 0 ? s[1] * std::exp(s[0] - shift) : T{0}) + sum_exp(x, n, shift);
          s[0] = m;
          s[3] += total;
          const int64_t t = id_at(targets, i) - first;
          if (t >= 0 && t < n) s[2] = x[t];
        }
      });
}

template <class T>
void gradient(const View& logits, const ConstView& targets, int64_t first, const ConstView& lse,
              const ConstView& scale, double smoothing, int64_t classes) {
  const int64_t rows = logits.dim(0), n = logits.dim(1);
  const hn::ScalableTag<T> d;
  const auto N = static_cast<int64_t>(hn::Lanes(d));
  const T uniform = static_cast<T>(smoothing / static_cast<double>(std::max<int64_t>(classes, 1)));
  parallel_ranges(rows, std::max<int64_t>(1, grain / std::max<int64_t>(n, 1)),
                  [&](int64_t i, int64_t end) {
                    for (; i < end; ++i) {
                      T* x = logits.as<T>() + i * n;
                      const T g = scale.as<T>()[i];
                      if (g == 0) {
                        std::fill(x, x + n, T{0});
                        continue;
                      }
                      const auto shift = hn::Set(d, lse.as<T>()[i]), factor = hn::Set(d, g);
                      const auto less = hn::Set(d, uniform);
                      for (int64_t j = 0; j < n; j += N) {
                        const auto left = static_cast<size_t>(n - j);
                        const auto z = hn::Sub(simd::load(d, x + j, left), shift);
                        const auto p = simd::exp_nonpositive(d, z);  // z <= 0 up to rounding
                        simd::store(hn::Mul(factor, hn::Sub(p, less)), d, x + j, left);
                      }
                      const int64_t t = id_at(targets, i) - first;
                      if (t >= 0 && t < n) x[t] -= g * static_cast<T>(1 - smoothing);
                    }
                  });
}

/// Largest element and sum of a row, of which the numbers beyond the end are left out.
template <class T, class A>
HWY_INLINE void scan_any(const T* x, size_t n, A& largest, A& total) {
  const hn::ScalableTag<A> d;
  const size_t N = hn::Lanes(d);
  const auto least = hn::Set(d, -std::numeric_limits<A>::infinity());
  auto m0 = least, m1 = least, s0 = hn::Zero(d), s1 = s0;
  size_t j = 0;
  for (; j + 2 * N <= n; j += 2 * N) {
    const auto a = simd::load(d, x + j, N), b = simd::load(d, x + j + N, N);
    m0 = hn::Max(m0, a);
    m1 = hn::Max(m1, b);
    s0 = hn::Add(s0, a);
    s1 = hn::Add(s1, b);
  }
  for (; j < n; j += N) {
    const auto a = simd::load(d, x + j, n - j);
    s0 = hn::Add(s0, a);
    m0 = hn::Max(m0, n - j >= N ? a : hn::IfThenElse(hn::FirstN(d, n - j), a, least));
  }
  largest = simd::max_lanes(d, hn::Max(m0, m1));
  total = simd::sum_lanes(d, hn::Add(s0, s1));
}

template <class T, class A>
HWY_INLINE hn::Vec<hn::ScalableTag<A>> weight_at(const T* x, hn::Vec<hn::ScalableTag<A>> shift,
                                                 T* w, size_t left) {
  const hn::ScalableTag<A> d;
  auto e = simd::exp_nonpositive(d, hn::Sub(simd::load(d, x, left), shift));
  if (left < hn::Lanes(d)) e = hn::IfThenElseZero(hn::FirstN(d, left), e);
  if (w != nullptr) simd::store(e, d, w, left);
  return e;
}

template <class T>
void weights_rows(const T* x, T* w, Accumulator<T>* state, const ConstView& targets, int64_t row,
                  int64_t end, size_t n) {
  using A = Accumulator<T>;
  const hn::ScalableTag<A> d;
  const size_t N = hn::Lanes(d);
  for (; row < end; ++row) {
    const T* from = x + static_cast<size_t>(row) * n;
    T* to = w == nullptr ? nullptr : w + static_cast<size_t>(row) * n;
    A* s = state + row * 4;
    scan_any(from, n, s[0], s[3]);
    const A shift = std::isinf(s[0]) && s[0] < 0 ? A{0} : s[0];
    const auto m = hn::Set(d, shift);
    auto s0 = hn::Zero(d), s1 = s0;
    for (size_t j = 0; j < n; j += 2 * N) {
      s0 = hn::Add(s0, weight_at<T, A>(from + j, m, to == nullptr ? to : to + j, n - j));
      if (j + N >= n) break;
      const size_t k = j + N;
      s1 = hn::Add(s1, weight_at<T, A>(from + k, m, to == nullptr ? to : to + k, n - k));
    }
    s[1] = simd::sum_lanes(d, hn::Add(s0, s1));
    const int64_t t = id_at(targets, row);
    s[2] = t >= 0 && t < static_cast<int64_t>(n) ? static_cast<A>(from[t]) : A{0};
  }
}

template <class T>
void weights_gradient_rows(const T* w, const Accumulator<T>* state, const Accumulator<T>* scale,
                           const ConstView& targets, double smoothing, T* dx, int64_t row,
                           int64_t end, size_t n) {
  using A = Accumulator<T>;
  const hn::ScalableTag<A> d;
  const size_t N = hn::Lanes(d);
  const A uniform = static_cast<A>(smoothing / static_cast<double>(n));
  for (; row < end; ++row) {
    const T* from = w + static_cast<size_t>(row) * n;
    T* to = dx + static_cast<size_t>(row) * n;
    const A g = scale[row], sum = state[row * 4 + 1];
    const A factor = sum > 0 ? g / sum : A{0};
    const auto a = hn::Set(d, factor), b = hn::Set(d, g * uniform);
    for (size_t j = 0; j < n; j += N) {
      simd::store(hn::MulSub(simd::load(d, from + j, n - j), a, b), d, to + j, n - j);
    }
    const int64_t t = id_at(targets, row);
    if (g != 0 && t >= 0 && t < static_cast<int64_t>(n)) {
      const A own = static_cast<A>(from[t]) * factor - g * uniform;
      to[t] = T(own - g * static_cast<A>(1 - smoothing));
    }
  }
}

void CrossEntropyWeights(const ConstView& logits, const ConstView& targets, const View& weights,
                         const View& state) {
  const int64_t rows = logits.dim(0), n = logits.dim(1);
  visit_floating(logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_ranges(rows, std::max<int64_t>(1, grain / std::max<int64_t>(n, 1)),
                    [&](int64_t i, int64_t end) {
                      weights_rows(logits.as<T>(), weights.as<T>(), state.as<Accumulator<T>>(),
                                   targets, i, end, static_cast<size_t>(n));
                    });
  });
}

void CrossEntropyWeightsGradient(const ConstView& weights, const ConstView& targets,
                                 const ConstView& state, const ConstView& scale, double smoothing,
                                 const View& dx) {
  const int64_t rows = weights.dim(0), n = weights.dim(1);
  visit_floating(weights.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    parallel_ranges(rows, std::max<int64_t>(1, grain / std::max<int64_t>(n, 1)),
                    [&](int64_t i, int64_t end) {
                      weights_gradient_rows(weights.as<T>(), state.as<A>(), scale.as<A>(), targets,
                                            smoothing, dx.as<T>(), i, end, static_cast<size_t>(n));
                    });
  });
}

void CrossEntropyScan(ConstView logits, ConstView targets, int64_t first, View state) {
  if (logits.dtype == DType::f64) {
    scan<double>(logits, targets, first, state);
  } else {
    scan<float>(logits, targets, first, state);
  }
}

void CrossEntropyGradient(View logits, ConstView targets, int64_t first, ConstView lse,
                          ConstView scale, double smoothing, int64_t classes) {
  if (logits.dtype == DType::f64) {
    gradient<double>(logits, targets, first, lse, scale, smoothing, classes);
  } else {
    gradient<float>(logits, targets, first, lse, scale, smoothing, classes);
  }
}

/// ln(1 + t) for t in [0, 1], with small relative error.
template <class D>
HWY_INLINE hn::Vec<D> log1p_of_fraction(D d, hn::Vec<D> t) {
  if constexpr (simd::is_f64<D>) {
    return simd::per_lane(d, t, simd::log1p_of{});
  } else {
    const auto one = simd::constant(d, 1), u = hn::Add(one, t);
    const auto lost = hn::Sub(t, hn::Sub(u, one));  // what rounding took from t
    return hn::Add(simd::log(d, u), hn::Div(lost, u));
  }
}

template <class D>
HWY_INLINE hn::Vec<D> pair_value(D d, kernels::PairLoss f, hn::Vec<D> weight, hn::Vec<D> x,
                                 hn::Vec<D> t) {
  if (f == kernels::PairLoss::squared) {
    const auto e = hn::Sub(x, t);
    return hn::Mul(e, e);
  }
  const auto zero = hn::Zero(d);
  const auto rest = log1p_of_fraction(d, simd::exp_nonpositive(d, hn::Neg(hn::Abs(x))));
  const auto plus = hn::Add(hn::Max(x, zero), rest),
             minus = hn::Add(hn::Max(hn::Neg(x), zero), rest);
  const auto no = hn::Sub(simd::constant(d, 1), t);
  return hn::MulAdd(no, plus, hn::Mul(hn::Mul(weight, t), minus));
}

template <class D>
HWY_INLINE hn::Vec<D> pair_slope(D d, kernels::PairLoss f, hn::Vec<D> weight, hn::Vec<D> x,
                                 hn::Vec<D> t) {
  if (f == kernels::PairLoss::squared) {
    const auto e = hn::Sub(x, t);
    return hn::Add(e, e);
  }
  const auto no = hn::Sub(simd::constant(d, 1), t);
  return hn::MulSub(no, simd::sigmoid(d, x),
                    hn::Mul(hn::Mul(weight, t), simd::sigmoid(d, hn::Neg(x))));
}

void PairLossForward(kernels::PairLoss f, double weight, const ConstView& x, const ConstView& t,
                     const View& loss) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const hn::ScalableTag<Accumulator<T>> d;
    const auto w = simd::constant(d, weight);
    parallel_ranges(x.dim(0), grain, [&](int64_t i, int64_t end) {
      for (; i < end; i += static_cast<int64_t>(hn::Lanes(d))) {
        const auto left = static_cast<size_t>(end - i);
        const auto a = simd::load(d, x.as<T>() + i, left), b = simd::load(d, t.as<T>() + i, left);
        simd::store(pair_value(d, f, w, a, b), d, loss.as<Accumulator<T>>() + i, left);
      }
    });
  });
}

void PairLossGradient(kernels::PairLoss f, double weight, const ConstView& x, const ConstView& t,
                      const ConstView& dy, double scale, const View& dx) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const hn::ScalableTag<A> d;
    const auto w = simd::constant(d, weight), factor = simd::constant(d, scale);
    const bool one = dy.dim(0) == 1;
    const auto all = hn::Mul(factor, hn::Set(d, one ? *dy.as<A>() : A{0}));
    parallel_ranges(x.dim(0), grain, [&](int64_t i, int64_t end) {
      for (; i < end; i += static_cast<int64_t>(hn::Lanes(d))) {
        const auto left = static_cast<size_t>(end - i);
        const auto a = simd::load(d, x.as<T>() + i, left), b = simd::load(d, t.as<T>() + i, left);
        const auto g = one ? all : hn::Mul(factor, simd::load(d, dy.as<A>() + i, left));
        simd::store(hn::Mul(g, pair_slope(d, f, w, a, b)), d, dx.as<T>() + i, left);
      }
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::cpu {

HWY_EXPORT(CrossEntropyScan);
HWY_EXPORT(CrossEntropyGradient);
HWY_EXPORT(CrossEntropyWeights);
HWY_EXPORT(CrossEntropyWeightsGradient);
HWY_EXPORT(PairLossForward);
HWY_EXPORT(PairLossGradient);

namespace {

template <class F>
void visit_ids(const ConstView& ids, F&& f) {
  visit_dtype(ids.dtype, [&](auto tag) {
    using I = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<I>) f(ids.as<I>());
  });
}

int64_t kept(const ConstView& targets, int64_t ignore) {
  int64_t n = 0;
  visit_ids(targets, [&](const auto* t) {
    for (int64_t i = 0; i < targets.dim(0); ++i) n += static_cast<int64_t>(t[i]) != ignore;
  });
  return n;
}

template <class F>
void visit_sums(DType t, F&& f) {
  if (t == DType::f64) {
    f(double{});
  } else {
    f(float{});
  }
}

void finish(ConstView state, ConstView targets, int64_t ignore, double smoothing, int64_t classes,
            View lse, View loss) {
  visit_sums(state.dtype, [&](auto zero) {
    using T = decltype(zero);
    visit_ids(targets, [&](const auto* t) {
      parallel_ranges(state.dim(0), 4096, [&](int64_t i, int64_t end) {
        for (; i < end; ++i) {
          const T* s = state.as<T>() + i * 4;
          const T z = s[0] + std::log(s[1]);
          lse.as<T>()[i] = z;
          const T own = z - s[2], mean = z - s[3] / static_cast<T>(classes);
          const T value = smoothing == 0 ? own
                                         : static_cast<T>(1 - smoothing) * own +
                                               static_cast<T>(smoothing) * mean;
          loss.as<T>()[i] = static_cast<int64_t>(t[i]) == ignore ? T{0} : value;
        }
      });
    });
  });
}

void scale_rows(ConstView dy, ConstView targets, int64_t ignore, bool mean, View scale) {
  const double count =
      mean ? static_cast<double>(std::max<int64_t>(1, kept(targets, ignore))) : 1.0;
  visit_sums(scale.dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t step = dy.dim(0) == 1 ? 0 : 1;
    visit_ids(targets, [&](const auto* t) {
      for (int64_t i = 0; i < targets.dim(0); ++i) {
        const bool out = static_cast<int64_t>(t[i]) == ignore;
        scale.as<T>()[i] = out ? T{0} : static_cast<T>(dy.as<T>()[i * step] / count);
      }
    });
  });
}

void total(ConstView loss, ConstView targets, int64_t ignore, bool mean, View y) {
  visit_sums(loss.dtype, [&](auto zero) {
    using T = decltype(zero);
    double sum = 0;
    for (int64_t i = 0; i < loss.dim(0); ++i) sum += loss.as<T>()[i];
    if (mean) sum /= static_cast<double>(std::max<int64_t>(1, kept(targets, ignore)));
    *y.as<T>() = static_cast<T>(sum);
  });
}

void find_bad_target(ConstView targets, int64_t ignore, int64_t classes, int64_t* position) {
  *position = -1;
  visit_ids(targets, [&](const auto* t) {
    for (int64_t i = 0; i < targets.dim(0); ++i) {
      const auto id = static_cast<int64_t>(t[i]);
      if (id != ignore && (id < 0 || id >= classes)) {
        *position = i;
        return;
      }
    }
  });
}

void find_outside(ConstView x, double low, double high, int64_t* position) {
  *position = -1;
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < x.dim(0); ++i) {
      const auto value = static_cast<double>(static_cast<Accumulator<T>>(x.as<T>()[i]));
      if (value >= low && value <= high) continue;
      *position = i;
      return;
    }
  });
}

}  // namespace

void register_loss() {
  kernels::cross_entropy_scan.set(
      DeviceKind::cpu, [](ConstView logits, ConstView targets, int64_t first, View state) {
        HWY_DYNAMIC_DISPATCH(CrossEntropyScan)(logits, targets, first, state);
      });
  kernels::cross_entropy_gradient.set(
      DeviceKind::cpu, [](View logits, ConstView targets, int64_t first, ConstView lse,
                          ConstView scale, double smoothing, int64_t classes) {
        HWY_DYNAMIC_DISPATCH(CrossEntropyGradient)
        (logits, targets, first, lse, scale, smoothing, classes);
      });
  kernels::cross_entropy_weights.set(
      DeviceKind::cpu, [](ConstView logits, ConstView targets, View weights, View state) {
        HWY_DYNAMIC_DISPATCH(CrossEntropyWeights)(logits, targets, weights, state);
      });
  kernels::cross_entropy_weights_gradient.set(
      DeviceKind::cpu, [](ConstView weights, ConstView targets, ConstView state, ConstView scale,
                          double smoothing, View dx) {
        HWY_DYNAMIC_DISPATCH(CrossEntropyWeightsGradient)
        (weights, targets, state, scale, smoothing, dx);
      });
  kernels::cross_entropy_finish.set(DeviceKind::cpu, finish);
  kernels::cross_entropy_scale.set(DeviceKind::cpu, scale_rows);
  kernels::cross_entropy_total.set(DeviceKind::cpu, total);
  kernels::find_bad_target.set(DeviceKind::cpu, find_bad_target);
  kernels::pair_loss.set(
      DeviceKind::cpu, [](kernels::PairLoss f, double weight, ConstView x, ConstView t, View loss) {
        HWY_DYNAMIC_DISPATCH(PairLossForward)(f, weight, x, t, loss);
      });
  kernels::pair_loss_gradient.set(
      DeviceKind::cpu, [](kernels::PairLoss f, double weight, ConstView x, ConstView t,
                          ConstView dy, double scale, View dx) {
        HWY_DYNAMIC_DISPATCH(PairLossGradient)(f, weight, x, t, dy, scale, dx);
      });
  kernels::find_outside.set(DeviceKind::cpu, find_outside);
}

}  // namespace longspan::cpu
#endif
