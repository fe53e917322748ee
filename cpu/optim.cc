#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/optim.cc"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "core/kernels/optim.h"
#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::constant;
using simd::for_vectors;

template <class T>
void sgd(T* p, const T* g, T* b, size_t n, kernels::SgdStep s) {
  const hn::ScalableTag<T> d;
  const auto scale = constant(d, s.scale), decay = constant(d, s.weight_decay);
  const auto lr = constant(d, s.lr), momentum = constant(d, s.momentum);
  for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
    const auto x = simd::load(d, p + i, left);
    auto h = hn::MulAdd(decay, x, hn::Mul(scale, simd::load(d, g + i, left)));
    if (b != nullptr) {
      const auto next = hn::MulAdd(momentum, simd::load(d, b + i, left), h);
      simd::store(next, d, b + i, left);
      h = s.nesterov ? hn::MulAdd(momentum, next, h) : next;
    }
    simd::store(hn::NegMulAdd(lr, h, x), d, p + i, left);
  });
}

template <class T>
void adagrad(T* p, const T* g, T* sum, size_t n, kernels::AdagradStep s) {
  const hn::ScalableTag<T> d;
  const auto scale = constant(d, s.scale), decay = constant(d, s.weight_decay);
  const auto lr = constant(d, s.lr), eps = constant(d, s.eps);
  for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
    const auto x = simd::load(d, p + i, left);
    const auto h = hn::MulAdd(decay, x, hn::Mul(scale, simd::load(d, g + i, left)));
    const auto next = hn::MulAdd(h, h, simd::load(d, sum + i, left));
    simd::store(next, d, sum + i, left);
    const auto step = hn::Div(hn::Mul(lr, h), hn::Add(hn::Sqrt(next), eps));
    simd::store(hn::Sub(x, step), d, p + i, left);
  });
}

template <class T>
void adam(T* p, const T* g, T* m, T* v, size_t n, kernels::AdamStep s) {
  const hn::ScalableTag<T> d;
  const auto scale = constant(d, s.scale), decay = constant(d, s.decoupled ? 0 : s.weight_decay);
  const auto keep = constant(d, s.decoupled ? 1 - s.lr * s.weight_decay : 1);
  const auto old1 = constant(d, s.beta1), new1 = constant(d, 1 - s.beta1);
  const auto old2 = constant(d, s.beta2), new2 = constant(d, 1 - s.beta2);
  const auto rate = constant(d, s.lr / s.correction1), eps = constant(d, s.eps);
  const auto root = constant(d, 1 / std::sqrt(s.correction2));
  for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
    const auto x = simd::load(d, p + i, left);
    const auto h = hn::MulAdd(decay, x, hn::Mul(scale, simd::load(d, g + i, left)));
    const auto mean = hn::MulAdd(old1, simd::load(d, m + i, left), hn::Mul(new1, h));
    const auto square = hn::MulAdd(old2, simd::load(d, v + i, left), hn::Mul(new2, hn::Mul(h, h)));
    simd::store(mean, d, m + i, left);
    simd::store(square, d, v + i, left);
    const auto step = hn::Div(hn::Mul(rate, mean), hn::MulAdd(hn::Sqrt(square), root, eps));
    simd::store(hn::Sub(hn::Mul(keep, x), step), d, p + i, left);
  });
}

/// Returns the sum of squares in f64, in which squares of f32 values cannot overflow.
template <class T>
double squared_sum(const T* x, size_t n) {
  const hn::ScalableTag<T> d;
  const hn::ScalableTag<double> dd;
  auto low = hn::Zero(dd), high = hn::Zero(dd);
  for_vectors(d, n, [&](size_t i, size_t left) HWY_ATTR {
    const auto v = simd::load(d, x + i, left);
    if constexpr (sizeof(T) == 8) {
      low = hn::MulAdd(v, v, low);
    } else {
      const hn::Half<decltype(d)> half;
      const auto a = hn::PromoteTo(dd, hn::LowerHalf(half, v));
      const auto b = hn::PromoteTo(dd, hn::UpperHalf(half, v));
      low = hn::MulAdd(a, a, low);
      high = hn::MulAdd(b, b, high);
    }
  });
  HWY_ALIGN double lanes[HWY_MAX_BYTES / sizeof(double)];
  hn::Store(hn::Add(low, high), dd, lanes);
  double sum = 0;
  for (size_t i = 0; i < hn::Lanes(dd); ++i) sum += lanes[i];
  return sum;
}

void sgd_f32(float* p, const float* g, float* b, size_t n, kernels::SgdStep s) {
  sgd(p, g, b, n, s);
}
void sgd_f64(double* p, const double* g, double* b, size_t n, kernels::SgdStep s) {
  sgd(p, g, b, n, s);
}
void adagrad_f32(float* p, const float* g, float* sum, size_t n, kernels::AdagradStep s) {
  adagrad(p, g, sum, n, s);
}
void adagrad_f64(double* p, const double* g, double* sum, size_t n, kernels::AdagradStep s) {
  adagrad(p, g, sum, n, s);
}
void adam_f32(float* p, const float* g, float* m, float* v, size_t n, kernels::AdamStep s) {
  adam(p, g, m, v, n, s);
}
void adam_f64(double* p, const double* g, double* m, double* v, size_t n, kernels::AdamStep s) {
  adam(p, g, m, v, n, s);
}
double squared_sum_f32(const float* x, size_t n) { return squared_sum(x, n); }
double squared_sum_f64(const double* x, size_t n) { return squared_sum(x, n); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "core/parallel.h"
#include "cpu/register.h"

namespace longspan::cpu {
namespace {

HWY_EXPORT(sgd_f32);
HWY_EXPORT(sgd_f64);
HWY_EXPORT(adagrad_f32);
HWY_EXPORT(adagrad_f64);
HWY_EXPORT(adam_f32);
HWY_EXPORT(adam_f64);
HWY_EXPORT(squared_sum_f32);
HWY_EXPORT(squared_sum_f64);

constexpr int64_t grain = 32768;  // elements per task

/// Calls body(tag, begin, count) for fixed pieces of n elements; tag has the dtype's C++ type.
template <class F>
void for_pieces(DType dtype, int64_t n, F&& body) {
  const auto run = [&](auto tag) {
    parallel_ranges(n, grain, [&](int64_t begin, int64_t end) {
      body(tag, begin, static_cast<size_t>(end - begin));
    });
  };
  if (dtype == DType::f64) {
    run(TypeTag<double>{});
  } else {
    run(TypeTag<float>{});
  }
}

template <class T>
constexpr bool is_f64 = sizeof(T) == 8;

void sgd_update(View p, ConstView g, View b, kernels::SgdStep s) {
  for_pieces(p.dtype, p.numel(), [&](auto tag, int64_t at, size_t n) {
    using T = typename decltype(tag)::type;
    T* momentum = b ? b.as<T>() + at : nullptr;
    if constexpr (is_f64<T>) {
      HWY_DYNAMIC_DISPATCH(sgd_f64)(p.as<T>() + at, g.as<T>() + at, momentum, n, s);
    } else {
      HWY_DYNAMIC_DISPATCH(sgd_f32)(p.as<T>() + at, g.as<T>() + at, momentum, n, s);
    }
  });
}

void adagrad_update(View p, ConstView g, View sum, kernels::AdagradStep s) {
  for_pieces(p.dtype, p.numel(), [&](auto tag, int64_t at, size_t n) {
    using T = typename decltype(tag)::type;
    if constexpr (is_f64<T>) {
      HWY_DYNAMIC_DISPATCH(adagrad_f64)(p.as<T>() + at, g.as<T>() + at, sum.as<T>() + at, n, s);
    } else {
      HWY_DYNAMIC_DISPATCH(adagrad_f32)(p.as<T>() + at, g.as<T>() + at, sum.as<T>() + at, n, s);
    }
  });
}

void adam_update(View p, ConstView g, View m, View v, kernels::AdamStep s) {
  for_pieces(p.dtype, p.numel(), [&](auto tag, int64_t at, size_t n) {
    using T = typename decltype(tag)::type;
    T *x = p.as<T>() + at, *mean = m.as<T>() + at, *square = v.as<T>() + at;
    if constexpr (is_f64<T>) {
      HWY_DYNAMIC_DISPATCH(adam_f64)(x, g.as<T>() + at, mean, square, n, s);
    } else {
      HWY_DYNAMIC_DISPATCH(adam_f32)(x, g.as<T>() + at, mean, square, n, s);
    }
  });
}

template <class T>
double squared_sum(const T* x, int64_t n) {
  if constexpr (is_f64<T>) {
    return HWY_DYNAMIC_DISPATCH(squared_sum_f64)(x, static_cast<size_t>(n));
  } else {
    return HWY_DYNAMIC_DISPATCH(squared_sum_f32)(x, static_cast<size_t>(n));
  }
}

static_assert(kernels::squared_sum_piece == grain);

void squared_sums(ConstView x, View sums) {
  for_pieces(x.dtype, x.numel(), [&](auto tag, int64_t at, size_t n) {
    using T = typename decltype(tag)::type;
    sums.as<double>()[at / grain] = squared_sum(x.as<T>() + at, static_cast<int64_t>(n));
  });
}

double sum_of(ConstView sums) {
  double sum = 0;
  for (int64_t i = 0; i < sums.numel(); ++i) sum += sums.as<double>()[i];
  return sum;
}

void lamb_rate(ConstView p_sums, ConstView u_sums, DeviceScalar<double> lr, View rate) {
  const double size = std::sqrt(sum_of(p_sums)), length = std::sqrt(sum_of(u_sums));
  *rate.as<double>() = lr * (size > 0 && length > 0 ? size / length : 1);
}

void adafactor_rate(ConstView p_sums, int64_t n, double least, DeviceScalar<double> lr, View rate) {
  const double size = std::sqrt(sum_of(p_sums)) / std::sqrt(static_cast<double>(n));
  *rate.as<double>() = lr * std::max(least, size);
}

/// Returns lr, reduced if the root mean square of the update exceeds the limit.
double clipped_rate(const double* sums, int64_t count, int64_t n, const kernels::AdafactorStep& s) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += sums[i];
  return s.lr / std::max(1.0, std::sqrt(sum / static_cast<double>(n)) / s.clip);
}

/// Updates p and m by `change`, which is lr u.
template <class T>
void apply_update(T& p, T* m, double change, const kernels::AdafactorStep& s) {
  if (m != nullptr) {
    *m = static_cast<T>(s.beta1 * static_cast<double>(*m) + (1 - s.beta1) * change);
    change = static_cast<double>(*m);
  }
  const auto x = static_cast<double>(p);
  p = static_cast<T>(x - s.lr * s.weight_decay * x - change);
}

template <class T>
void adafactor_whole(View p, ConstView gradient, View square, View m, View workspace,
                     const kernels::AdafactorStep& s) {
  const int64_t n = p.numel();
  T *x = p.as<T>(), *v = square.as<T>();
  const T* g = gradient.as<T>();
  auto* sums = workspace.as<double>();
  const auto update = [&](int64_t i) {
    return s.scale * static_cast<double>(g[i]) / std::sqrt(static_cast<double>(v[i]));
  };
  parallel_ranges(n, grain, [&](int64_t begin, int64_t end) {
    double sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      const double h = s.scale * static_cast<double>(g[i]);
      v[i] = static_cast<T>(s.beta2 * static_cast<double>(v[i]) + (1 - s.beta2) * (h * h + s.eps));
      sum += update(i) * update(i);
    }
    sums[begin / grain] = sum;
  });
  const double rate = clipped_rate(sums, (n + grain - 1) / grain, n, s);
  parallel_ranges(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      apply_update(x[i], m ? m.as<T>() + i : nullptr, rate * update(i), s);
    }
  });
}

template <class T>
void adafactor_factored(View p, ConstView gradient, View row, View column, View m, View workspace,
                        const kernels::AdafactorStep& s) {
  constexpr int64_t block = 64;  // columns per task
  const int64_t R = p.dim(-2), C = p.dim(-1), rows = row.numel(), B = rows / R;
  const int64_t blocks = (C + block - 1) / block;
  T *x = p.as<T>(), *r = row.as<T>(), *c = column.as<T>();
  const T* g = gradient.as<T>();
  double* row_factor = workspace.as<double>();
  double* sums = row_factor + rows;
  double* column_factor = sums + rows;
  const int64_t rows_of_task = std::max<int64_t>(1, grain / C);

  parallel_ranges(rows, rows_of_task, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const double mean = s.scale * s.scale * squared_sum(g + i * C, C) / static_cast<double>(C);
      r[i] = static_cast<T>(s.beta2 * static_cast<double>(r[i]) + (1 - s.beta2) * (mean + s.eps));
    }
  });
  parallel_for(B * blocks, [&](int64_t task) {
    const int64_t b = task / blocks, first = task % blocks * block;
    const int64_t count = std::min(block, C - first);
    double squares[block] = {};
    for (int64_t i = 0; i < R; ++i) {
      const T* from = g + (b * R + i) * C + first;
      for (int64_t j = 0; j < count; ++j) {
        const auto h = static_cast<double>(from[j]);
        squares[j] += h * h;
      }
    }
    for (int64_t j = 0; j < count; ++j) {
      T& state = c[b * C + first + j];
      const double mean = s.scale * s.scale * squares[j] / static_cast<double>(R);
      state = static_cast<T>(s.beta2 * static_cast<double>(state) + (1 - s.beta2) * (mean + s.eps));
      column_factor[b * C + first + j] = 1 / std::sqrt(static_cast<double>(state));
    }
  });
  for (int64_t b = 0; b < B; ++b) {
    double mean = 0;
    for (int64_t i = b * R; i < (b + 1) * R; ++i) mean += static_cast<double>(r[i]);
    mean /= static_cast<double>(R);
    for (int64_t i = b * R; i < (b + 1) * R; ++i) {
      row_factor[i] = s.scale / std::sqrt(static_cast<double>(r[i]) / mean);
    }
  }
  const auto update = [&](int64_t i, int64_t j) {
    return static_cast<double>(g[i * C + j]) * row_factor[i] * column_factor[i / R * C + j];
  };
  parallel_ranges(rows, rows_of_task, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < C; ++j) sum += update(i, j) * update(i, j);
      sums[i] = sum;
    }
  });
  const double rate = clipped_rate(sums, rows, rows * C, s);
  parallel_ranges(rows, rows_of_task, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < C; ++j) {
        const int64_t at = i * C + j;
        apply_update(x[at], m ? m.as<T>() + at : nullptr, rate * update(i, j), s);
      }
    }
  });
}

void adafactor_update(View p, ConstView g, View row, View column, View m, View workspace,
                      kernels::AdafactorStep s) {
  const auto run = [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (column) {
      adafactor_factored<T>(p, g, row, column, m, workspace, s);
    } else {
      adafactor_whole<T>(p, g, row, m, workspace, s);
    }
  };
  if (p.dtype == DType::f64) {
    run(TypeTag<double>{});
  } else {
    run(TypeTag<float>{});
  }
}

}  // namespace

void register_optim() {
  kernels::sgd_update.set(DeviceKind::cpu, sgd_update);
  kernels::adagrad_update.set(DeviceKind::cpu, adagrad_update);
  kernels::adam_update.set(DeviceKind::cpu, adam_update);
  kernels::adafactor_update.set(DeviceKind::cpu, adafactor_update);
  kernels::squared_sums.set(DeviceKind::cpu, squared_sums);
  kernels::lamb_rate.set(DeviceKind::cpu, lamb_rate);
  kernels::adafactor_rate.set(DeviceKind::cpu, adafactor_rate);
}

}  // namespace longspan::cpu
#endif
