#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/loss.cc"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include "cpu/rows-inl.h"
#include "cpu/simd-inl.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/kernels/loss.h"
#include "core/parallel.h"
#include "cpu/register.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t grain = 1 << 14;  // elements per task

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

template <class T>
void scan(const ConstView& logits, const ConstView& targets, int64_t first, bool totals,
          const View& state) {
  const int64_t rows = logits.dim(0), n = logits.dim(1);
  const auto width = static_cast<size_t>(n);
  parallel_ranges(rows, std::max<int64_t>(1, grain / std::max<int64_t>(n, 1)),
                  [&](int64_t i, int64_t end) {
                    for (; i < end; ++i) {
                      const T* x = logits.as<T>() + i * n;
                      T* s = state.as<T>() + i * 4;
                      if (first == 0) {
                        s[0] = -std::numeric_limits<T>::infinity();
                        s[1] = s[2] = s[3] = 0;
                      }
                      const T before = rows::shift_of(s[0]);
                      s[0] = std::max(s[0], rows::largest(x, width));
                      const T shift = rows::shift_of(s[0]);
                      // A sum of 0 stays 0, and one beside an earlier inf stays; NaN stays NaN.
                      if (s[1] != 0 && before != shift) s[1] *= std::exp(before - shift);
                      if (totals) {
                        if (first > 0) s[3] += static_cast<T>(first) * (before - shift);
                        T apart;
                        s[1] += rows::sum_for_log<T>(x, shift, nullptr, width, &apart);
                        s[3] += apart;
                      } else {
                        s[1] += rows::sum_for_log<T>(x, shift, nullptr, width);
                      }
                      const int64_t t = id_at(targets, i) - first;
                      if (t >= 0 && t < n) s[2] = x[t];
                    }
                  });
}

/// The gradient of a row's loss: factor e^(x - shift) - less, and `own` less for the target.
template <class A>
struct RowGradient {
  A shift, factor, less, own;

  /// For a loss of weight g: sum is the sum of e^(x - most), uniform is smoothing / classes.
  RowGradient(A g, A most, A sum, A uniform, double smoothing, double z_loss)
      : shift(rows::shift_of(most)),
        factor(sum == 0 ? A{0} : g / sum),
        less(g * uniform),
        own(g * static_cast<A>(1 - smoothing)) {
    if (z_loss == 0) return;
    const double lse = most + std::log(sum);
    const A more = g * static_cast<A>(1 + 2 * z_loss * lse);
    factor = sum == 0 ? A{0} : more / sum;
  }
};

template <class A>
A uniform_of(double smoothing, int64_t classes) {
  return static_cast<A>(smoothing / static_cast<double>(std::max<int64_t>(classes, 1)));
}

/// Computes the gradient of a row from its logits x or, if they are `kept` in y, from the weights
/// e^(x - shift). y may be x; t is the target's index, which may be outside of the row.
template <bool kept, class T>
HWY_INLINE void gradient_row(const T* x, const RowGradient<Accumulator<T>>& f, int64_t t, T* y,
                             size_t n) {
  using A = Accumulator<T>;
  const rows::Tag<T> d;
  const auto shift = hn::Set(d, f.shift), factor = hn::Set(d, f.factor), less = hn::Set(d, f.less);
  const auto at = [&](size_t j, size_t left) HWY_ATTR {
    if constexpr (kept) {
      return hn::MulSub(simd::load(d, y + j, left), factor, less);
    } else {  // x - shift <= 0 up to rounding
      const auto p = simd::exp_nonpositive(d, hn::Sub(simd::load(d, x + j, left), shift));
      return hn::MulSub(p, factor, less);
    }
  };
  const bool inside = t >= 0 && t < static_cast<int64_t>(n);
  const A own = inside ? hn::GetLane(at(static_cast<size_t>(t), 1)) - f.own : A{0};
  simd::for_vectors(
      d, n, [&](size_t j, size_t left) HWY_ATTR { simd::store(at(j, left), d, y + j, left); });
  if (inside) y[t] = T(own);
}

template <class T>
void gradient(const View& logits, const ConstView& targets, int64_t first, const ConstView& totals,
              const ConstView& scale, double smoothing, double z_loss, int64_t classes) {
  const int64_t rows = logits.dim(0), n = logits.dim(1);
  const T uniform = uniform_of<T>(smoothing, classes);
  parallel_ranges(
      rows, std::max<int64_t>(1, grain / std::max<int64_t>(n, 1)), [&](int64_t i, int64_t end) {
        for (; i < end; ++i) {
          T* x = logits.as<T>() + i * n;
          const T g = scale.as<T>()[i];
          if (g == 0) {
            std::fill(x, x + n, T{0});
            continue;
          }
          const RowGradient<T> f(g, totals.as<T>()[2 * i], totals.as<T>()[2 * i + 1], uniform,
                                 smoothing, z_loss);
          gradient_row<false>(x, f, id_at(targets, i) - first, x, static_cast<size_t>(n));
        }
      });
}

/// What cross_entropy_rows computes.
template <class T>
struct WholeRows {
  using A = Accumulator<T>;
  const T* logits;
  const ConstView& targets;
  const A* scale;
  double smoothing, z_loss;
  T* gradient;  // null if it is not required
  A* state;
  size_t n;

  void states(int64_t first, int64_t count) const {
    constexpr bool keeps = std::is_same_v<T, A>;  // the weights, in place of the gradient
    A* s = state + first * 4;
    for (int64_t r = 0; r < count; ++r) s[4 * r] = rows::largest(at(logits, first + r), n);
    for (int64_t r = 0; r < count; ++r) {
      const T* x = at(logits, first + r);
      T* kept = keeps && gradient != nullptr ? at(gradient, first + r) : nullptr;
      const int64_t t = id_at(targets, first + r);
      const bool inside = t >= 0 && t < static_cast<int64_t>(n);
      s[4 * r + 2] = inside ? static_cast<A>(x[t]) : A{0};
      const A shift = rows::shift_of(s[4 * r]);
      s[4 * r + 3] = 0;
      s[4 * r + 1] = smoothing != 0 ? rows::sum_for_log(x, shift, kept, n, s + 4 * r + 3)
                                    : rows::sum_for_log(x, shift, kept, n);
    }
  }
  void gradients(int64_t first, int64_t count) const {
    const A uniform = uniform_of<A>(smoothing, static_cast<int64_t>(n));
    for (int64_t row = first; row < first + count; ++row) {
      T* y = at(gradient, row);
      if (scale[row] == 0) {
        std::fill_n(y, n, T(A{0}));
        continue;
      }
      const RowGradient<A> f(scale[row], state[4 * row], state[4 * row + 1], uniform, smoothing,
                             z_loss);
      gradient_row<std::is_same_v<T, A>>(at(logits, row), f, id_at(targets, row), y, n);
    }
  }

 private:
  template <class P>
  P* at(P* p, int64_t row) const {
    return p + static_cast<size_t>(row) * n;
  }
};

template <class T>
void finish_rows(const T* state, const ConstView& targets, int64_t ignore, double smoothing,
                 double z_loss, int64_t classes, T* totals, T* loss, int64_t row, int64_t end) {
  const hn::ScalableTag<T> d;
  const auto step = static_cast<int64_t>(hn::Lanes(d));
  const auto all = hn::Set(d, static_cast<T>(classes));
  const auto keep = hn::Set(d, static_cast<T>(1 - smoothing));
  const auto spread = hn::Set(d, static_cast<T>(smoothing));
  HWY_ALIGN T workspace[4 * HWY_MAX_BYTES / sizeof(T)] = {};
  for (; row < end; row += step) {
    const auto left = static_cast<size_t>(std::min(step, end - row));
    std::copy_n(state + row * 4, 4 * left, workspace);
    hn::Vec<decltype(d)> greatest, sum, target, total;
    hn::LoadInterleaved4(d, workspace, greatest, sum, target, total);
    const auto log = simd::log(d, sum);
    auto value = hn::Add(hn::Sub(greatest, target), log);
    if (smoothing != 0) {
      const auto mean = hn::Sub(log, hn::Div(total, all));
      value = hn::Add(hn::Mul(keep, value), hn::Mul(spread, mean));
    }
    if (z_loss != 0) {
      const auto z = hn::Add(greatest, log);
      const auto square = hn::Mul(z, z);
      value = hn::Add(value, hn::Mul(hn::Set(d, static_cast<T>(z_loss)), square));
    }
    simd::store(value, d, loss + row, left);
    for (int64_t i = row; i < row + static_cast<int64_t>(left); ++i) {
      if (id_at(targets, i) == ignore) loss[i] = 0;
      if (totals != nullptr) std::copy_n(state + 4 * i, 2, totals + 2 * i);
    }
  }
}

void CrossEntropyFinish(const ConstView& state, const ConstView& targets, int64_t ignore,
                        double smoothing, double z_loss, int64_t classes, const View& totals,
                        const View& loss) {
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    parallel_ranges(state.dim(0), 4096, [&](int64_t row, int64_t end) {
      finish_rows(state.as<T>(), targets, ignore, smoothing, z_loss, classes, totals.as<T>(),
                  loss.as<T>(), row, end);
    });
  };
  if (state.dtype == DType::f64) {
    run(double{});
  } else {
    run(float{});
  }
}

void CrossEntropyRows(const ConstView& logits, const ConstView& targets, const ConstView& scale,
                      double smoothing, double z_loss, const View& to, const View& state) {
  const int64_t rows = logits.dim(0), n = logits.dim(1);
  const auto width = static_cast<size_t>(n);
  visit_floating(logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const WholeRows<T> all{logits.as<T>(), targets,    scale.as<A>(), smoothing,
                           z_loss,         to.as<T>(), state.as<A>(), width};
    parallel_ranges(rows, std::max<int64_t>(1, grain / std::max<int64_t>(n, 1)),
                    [&](int64_t i, int64_t end) {
                      rows::for_steps(i, end, width, [&](int64_t first, int64_t count) HWY_ATTR {
                        all.states(first, count);
                        if (all.gradient != nullptr) all.gradients(first, count);
                      });
                    });
  });
}

/// Computes y = factor x for n elements.
template <class T>
void multiply(const T* x, Accumulator<T> factor, T* y, size_t n) {
  if (factor == 1 && x == y) return;
  if (factor == 0) {
    std::fill_n(y, n, T(Accumulator<T>{0}));
    return;
  }
  const rows::Tag<T> d;
  const auto f = hn::Set(d, factor);
  simd::for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
    simd::store(hn::Mul(simd::load(d, x + i, left), f), d, y + i, left);
  });
}

void MultiplyRows(const ConstView& x, const ConstView& factor, const View& y) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto* by = factor.as<Accumulator<T>>();
    const bool one = factor.dim(0) == 1;  // then the elements are one row
    const int64_t n = one ? 1 : x.dim(1), rows = one ? x.numel() : x.dim(0);
    parallel_ranges(rows, std::max<int64_t>(1, grain / std::max<int64_t>(n, 1)),
                    [&](int64_t i, int64_t end) {
                      const T* from = x.as<T>();
                      T* to = y.as<T>();
                      if (one) {
                        multiply(from + i, *by, to + i, static_cast<size_t>(end - i));
                        return;
                      }
                      for (; i < end; ++i) {
                        multiply(from + i * n, by[i], to + i * n, static_cast<size_t>(n));
                      }
                    });
  });
}

void CrossEntropyScan(ConstView logits, ConstView targets, int64_t first, bool totals, View state) {
  if (logits.dtype == DType::f64) {
    scan<double>(logits, targets, first, totals, state);
  } else {
    scan<float>(logits, targets, first, totals, state);
  }
}

void CrossEntropyGradient(View logits, ConstView targets, int64_t first, ConstView totals,
                          ConstView scale, double smoothing, double z_loss, int64_t classes) {
  if (logits.dtype == DType::f64) {
    gradient<double>(logits, targets, first, totals, scale, smoothing, z_loss, classes);
  } else {
    gradient<float>(logits, targets, first, totals, scale, smoothing, z_loss, classes);
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
  const auto rest = simd::log1p(d, simd::exp_nonpositive(d, hn::Neg(hn::Abs(x))));
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
HWY_EXPORT(CrossEntropyFinish);
HWY_EXPORT(CrossEntropyRows);
HWY_EXPORT(MultiplyRows);
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

void find_outside(ConstView x, double low, double high, View found) {
  auto* const to = found.as<int64_t>();
  to[0] = -1;
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < x.dim(0); ++i) {
      const auto value = static_cast<double>(static_cast<Accumulator<T>>(x.as<T>()[i]));
      if (value >= low && value <= high) continue;
      to[0] = i;
      to[1] = std::bit_cast<int64_t>(value);
      return;
    }
  });
}

}  // namespace

void register_loss() {
  kernels::cross_entropy_scan.set(DeviceKind::cpu, [](ConstView logits, ConstView targets,
                                                      int64_t first, bool totals, View state) {
    HWY_DYNAMIC_DISPATCH(CrossEntropyScan)(logits, targets, first, totals, state);
  });
  kernels::cross_entropy_gradient.set(
      DeviceKind::cpu, [](View logits, ConstView targets, int64_t first, ConstView totals,
                          ConstView scale, double smoothing, double z_loss, int64_t classes) {
        HWY_DYNAMIC_DISPATCH(CrossEntropyGradient)
        (logits, targets, first, totals, scale, smoothing, z_loss, classes);
      });
  kernels::cross_entropy_rows.set(
      DeviceKind::cpu, [](ConstView logits, ConstView targets, ConstView scale, double smoothing,
                          double z_loss, View to, View state) {
        HWY_DYNAMIC_DISPATCH(CrossEntropyRows)
        (logits, targets, scale, smoothing, z_loss, to, state);
      });
  kernels::multiply_rows.set(DeviceKind::cpu, [](ConstView x, ConstView factor, View y) {
    HWY_DYNAMIC_DISPATCH(MultiplyRows)(x, factor, y);
  });
  kernels::cross_entropy_finish.set(
      DeviceKind::cpu, [](ConstView state, ConstView targets, int64_t ignore, double smoothing,
                          double z_loss, int64_t classes, View totals, View loss) {
        HWY_DYNAMIC_DISPATCH(CrossEntropyFinish)
        (state, targets, ignore, smoothing, z_loss, classes, totals, loss);
      });
  kernels::cross_entropy_scale.set(DeviceKind::cpu, scale_rows);
  kernels::cross_entropy_total.set(DeviceKind::cpu, total);
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
