#include "core/kernels/pool.h"

#include <algorithm>

#include "core/parallel.h"
#include "cpu/register.h"

namespace longspan::cpu {
namespace {

using kernels::Taps;

constexpr int64_t columns = 64;  // channels per task
constexpr int64_t chunk = 128;   // rows of a partial sum
constexpr int64_t grain = 1 << 15;

/// Returns the index in [0, L) that tap k of window t reads, or -1.
int64_t input_of(const Taps& w, int64_t t, int64_t k, int64_t L) {
  const int64_t at = t * w.stride + k * w.dilation - w.before;
  return at < L ? std::max<int64_t>(at, -1) : -1;
}

/// Returns the window whose tap k reads index l, or -1.
int64_t window_of(const Taps& w, int64_t l, int64_t k, int64_t T) {
  const int64_t at = l + w.before - k * w.dilation;
  return at >= 0 && at % w.stride == 0 && at / w.stride < T ? at / w.stride : -1;
}

/// Calls row(b, i, first column, columns) for all rows [B, n] and strips of D columns.
template <class F>
void for_strips(int64_t B, int64_t n, int64_t D, int64_t cost, F&& row) {
  const int64_t strips = (D + columns - 1) / columns;
  const int64_t piece = std::max<int64_t>(1, grain / (cost * std::min(D, columns)));
  parallel_ranges(B * n * strips, piece, [&](int64_t task, int64_t end) {
    for (; task < end; ++task) {
      const int64_t c = task % strips * columns, r = task / strips;
      row(r / n, r % n, c, std::min(columns, D - c));
    }
  });
}

int64_t taps_inside(const Taps& w, int64_t t, int64_t L) {
  int64_t count = 0;
  for (int64_t k = 0; k < w.size; ++k) count += input_of(w, t, k, L) >= 0;
  return count;
}

/// y[b, i, c] = finish(i, sum over taps k of the terms from add()), for y [B, n, D] and rows [b,
/// row_of(i, k)] of another tensor with `rows` rows; row_of() returns -1 if the tap does not exist.
///   add(sum, k, j, offset, c, count) adds the terms of row j for channels c and on to sum[0 ..
///   count); `offset` is the offset of these channels in a tensor [B, rows, D].
template <class S, class RowOf, class Add, class Finish>
void sum_over_taps(const View& y, const Taps& w, int64_t rows, RowOf&& row_of, Add&& add,
                   Finish&& finish) {
  using A = Accumulator<S>;
  const int64_t D = y.dim(2);
  for_strips(y.dim(0), y.dim(1), D, w.size, [&](int64_t b, int64_t i, int64_t c, int64_t count) {
    A sum[columns] = {};
    for (int64_t k = 0; k < w.size; ++k) {
      const int64_t j = row_of(i, k);
      if (j >= 0) add(sum, k, j, (b * rows + j) * D + c, c, count);
    }
    finish(sum, i, c, count);
    S* to = y.as<S>() + (b * y.dim(1) + i) * D + c;
    for (int64_t n = 0; n < count; ++n) to[n] = S(sum[n]);
  });
}

/// sum_over_taps() without finish().
template <class S, class RowOf, class Add>
void sum_over_taps(const View& y, const Taps& w, int64_t rows, RowOf&& row_of, Add&& add) {
  sum_over_taps<S>(y, w, rows, row_of, add, [](Accumulator<S>*, int64_t, int64_t, int64_t) {});
}

void mean_pool_forward(ConstView x, Taps w, View y) {
  const int64_t L = x.dim(1);
  visit_floating(x.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    using A = Accumulator<S>;
    sum_over_taps<S>(
        y, w, L, [&](int64_t t, int64_t k) { return input_of(w, t, k, L); },
        [&](A* sum, int64_t, int64_t, int64_t offset, int64_t, int64_t count) {
          const S* row = x.as<S>() + offset;
          for (int64_t j = 0; j < count; ++j) sum[j] += static_cast<A>(row[j]);
        },
        [&](A* sum, int64_t t, int64_t, int64_t count) {
          const A share = A{1} / static_cast<A>(taps_inside(w, t, L));
          for (int64_t j = 0; j < count; ++j) sum[j] *= share;
        });
  });
}

void mean_pool_backward(ConstView dy, Taps w, View dx) {
  const int64_t L = dx.dim(1), T = dy.dim(1);
  visit_floating(dx.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    using A = Accumulator<S>;
    sum_over_taps<S>(
        dx, w, T, [&](int64_t l, int64_t k) { return window_of(w, l, k, T); },
        [&](A* sum, int64_t, int64_t t, int64_t offset, int64_t, int64_t count) {
          const A share = A{1} / static_cast<A>(taps_inside(w, t, L));
          const S* row = dy.as<S>() + offset;
          for (int64_t j = 0; j < count; ++j) sum[j] += share * static_cast<A>(row[j]);
        });
  });
}

template <class F>
void visit_places(DType dtype, F&& f) {
  if (dtype == DType::u8) {
    f(TypeTag<uint8_t>{});
  } else {
    f(TypeTag<int32_t>{});
  }
}

void max_pool_forward(ConstView x, Taps w, View y, View which) {
  const int64_t B = x.dim(0), L = x.dim(1), D = x.dim(2), T = y.dim(1);
  visit_floating(x.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    using A = Accumulator<S>;
    visit_places(which.dtype, [&](auto place) {
      using P = typename decltype(place)::type;
      for_strips(B, T, D, w.size, [&](int64_t b, int64_t t, int64_t c, int64_t n) {
        S* to = y.as<S>() + (b * T + t) * D + c;
        P* best = which.as<P>() + (b * T + t) * D + c;
        bool first = true;
        for (int64_t k = 0; k < w.size; ++k) {
          const int64_t l = input_of(w, t, k, L);
          if (l < 0) continue;
          const S* row = x.as<S>() + (b * L + l) * D + c;
          for (int64_t j = 0; j < n; ++j) {
            const auto now = static_cast<A>(to[j]), next = static_cast<A>(row[j]);
            if (first || next > now || (next != next && now == now)) {
              to[j] = row[j];
              best[j] = static_cast<P>(k);
            }
          }
          first = false;
        }
      });
    });
  });
}

void max_pool_backward(ConstView dy, ConstView which, Taps w, View dx) {
  const int64_t T = dy.dim(1);
  visit_floating(dx.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    using A = Accumulator<S>;
    visit_places(which.dtype, [&](auto place) {
      using P = typename decltype(place)::type;
      sum_over_taps<S>(
          dx, w, T, [&](int64_t l, int64_t k) { return window_of(w, l, k, T); },
          [&](A* sum, int64_t k, int64_t, int64_t offset, int64_t, int64_t count) {
            const S* row = dy.as<S>() + offset;
            const P* best = which.as<P>() + offset;
            for (int64_t j = 0; j < count; ++j) {
              sum[j] += best[j] == static_cast<P>(k) ? static_cast<A>(row[j]) : A{0};
            }
          });
    });
  });
}

/// y = sum over taps of rows of x times the tap's weights, plus a bias if there is one.
template <class RowOf>
void depthwise(const ConstView& x, const ConstView& weight, const ConstView& bias, const Taps& w,
               const View& y, RowOf&& row_of) {
  const int64_t D = x.dim(2);
  visit_floating(x.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    using A = Accumulator<S>;
    sum_over_taps<S>(
        y, w, x.dim(1), row_of,
        [&](A* sum, int64_t k, int64_t, int64_t offset, int64_t c, int64_t count) {
          const S* row = x.as<S>() + offset;
          const S* tap = weight.as<S>() + k * D + c;
          for (int64_t j = 0; j < count; ++j) {
            sum[j] += static_cast<A>(row[j]) * static_cast<A>(tap[j]);
          }
        },
        [&](A* sum, int64_t, int64_t c, int64_t count) {
          if (!bias) return;
          for (int64_t j = 0; j < count; ++j) sum[j] += static_cast<A>(bias.as<S>()[c + j]);
        });
  });
}

void depthwise_forward(ConstView x, ConstView weight, ConstView bias, Taps w, View y) {
  const int64_t L = x.dim(1);
  depthwise(x, weight, bias, w, y, [&](int64_t t, int64_t k) { return input_of(w, t, k, L); });
}

void depthwise_backward_x(ConstView dy, ConstView weight, Taps w, View dx) {
  const int64_t T = dy.dim(1);
  depthwise(dy, weight, {}, w, dx, [&](int64_t l, int64_t k) { return window_of(w, l, k, T); });
}

void depthwise_backward_w(ConstView dy, ConstView x, Taps w, View dw) {
  const int64_t B = x.dim(0), L = x.dim(1), D = x.dim(2), T = dy.dim(1);
  const int64_t strips = (D + columns - 1) / columns;
  visit_floating(x.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    using A = Accumulator<S>;
    parallel_for(w.size * strips, [&](int64_t task) {
      const int64_t k = task / strips, c = task % strips * columns;
      const int64_t n = std::min(columns, D - c);
      A total[columns] = {}, part[columns] = {};
      int64_t terms = 0;
      const auto fold = [&] {
        for (int64_t j = 0; j < n; ++j) total[j] += part[j];
        std::fill(part, part + n, A{0});
        terms = 0;
      };
      for (int64_t b = 0; b < B; ++b) {
        for (int64_t t = 0; t < T; ++t) {
          const int64_t l = input_of(w, t, k, L);
          if (l < 0) continue;
          const S* row = x.as<S>() + (b * L + l) * D + c;
          const S* from = dy.as<S>() + (b * T + t) * D + c;
          for (int64_t j = 0; j < n; ++j) {
            part[j] += static_cast<A>(from[j]) * static_cast<A>(row[j]);
          }
          if (++terms == chunk) fold();
        }
      }
      fold();
      S* to = dw.as<S>() + k * D + c;
      for (int64_t j = 0; j < n; ++j) to[j] = S(total[j]);
    });
  });
}

}  // namespace

void register_pool() {
  kernels::mean_pool_forward.set(DeviceKind::cpu, mean_pool_forward);
  kernels::mean_pool_backward.set(DeviceKind::cpu, mean_pool_backward);
  kernels::max_pool_forward.set(DeviceKind::cpu, max_pool_forward);
  kernels::max_pool_backward.set(DeviceKind::cpu, max_pool_backward);
  kernels::depthwise_forward.set(DeviceKind::cpu, depthwise_forward);
  kernels::depthwise_backward_x.set(DeviceKind::cpu, depthwise_backward_x);
  kernels::depthwise_backward_w.set(DeviceKind::cpu, depthwise_backward_w);
}

}  // namespace longspan::cpu
