#include "ops/kernels/pool.h"

#include <algorithm>

#include "core/parallel.h"
#include "cpu/register.h"

namespace longspan::cpu {
namespace {

using kernels::Taps;

constexpr int64_t columns = 64;   // channels of a task
constexpr int64_t stretch = 128;  // rows of a partial sum
constexpr int64_t grain = 1 << 15;

int64_t input_of(const Taps& w, int64_t t, int64_t k) {
  return t * w.stride + k * w.dilation - w.before;
}

/// The window of which tap k is at input l, or -1.
int64_t window_of(const Taps& w, int64_t l, int64_t k, int64_t T) {
  const int64_t at = l + w.before - k * w.dilation;
  return at >= 0 && at % w.stride == 0 && at / w.stride < T ? at / w.stride : -1;
}

/// Calls row(b, i, strip of columns) for all rows [B, n] and strips of D columns.
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
  for (int64_t k = 0; k < w.size; ++k) {
    const int64_t l = input_of(w, t, k);
    count += l >= 0 && l < L;
  }
  return count;
}

void mean_pool_forward(ConstView x, Taps w, View y) {
  const int64_t B = x.dim(0), L = x.dim(1), D = x.dim(2), T = y.dim(1);
  visit_floating(x.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    using A = Accumulator<S>;
    for_strips(B, T, D, w.size, [&](int64_t b, int64_t t, int64_t c, int64_t n) {
      A sum[columns] = {};
      int64_t count = 0;
      for (int64_t k = 0; k < w.size; ++k) {
        const int64_t l = input_of(w, t, k);
        if (l < 0 || l >= L) continue;
        const S* row = x.as<S>() + (b * L + l) * D + c;
        for (int64_t j = 0; j < n; ++j) sum[j] += static_cast<A>(row[j]);
        ++count;
      }
      const A share = A{1} / static_cast<A>(count);
      S* to = y.as<S>() + (b * T + t) * D + c;
      for (int64_t j = 0; j < n; ++j) to[j] = S(sum[j] * share);
    });
  });
}

void mean_pool_backward(ConstView dy, Taps w, View dx) {
  const int64_t B = dx.dim(0), L = dx.dim(1), D = dx.dim(2), T = dy.dim(1);
  visit_floating(dx.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    using A = Accumulator<S>;
    for_strips(B, L, D, w.size, [&](int64_t b, int64_t l, int64_t c, int64_t n) {
      A sum[columns] = {};
      for (int64_t k = 0; k < w.size; ++k) {
        const int64_t t = window_of(w, l, k, T);
        if (t < 0) continue;
        const A share = A{1} / static_cast<A>(taps_inside(w, t, L));
        const S* row = dy.as<S>() + (b * T + t) * D + c;
        for (int64_t j = 0; j < n; ++j) sum[j] += share * static_cast<A>(row[j]);
      }
      S* to = dx.as<S>() + (b * L + l) * D + c;
      for (int64_t j = 0; j < n; ++j) to[j] = S(sum[j]);
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
          const int64_t l = input_of(w, t, k);
          if (l < 0 || l >= L) continue;
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
  const int64_t B = dx.dim(0), L = dx.dim(1), D = dx.dim(2), T = dy.dim(1);
  visit_floating(dx.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    using A = Accumulator<S>;
    visit_places(which.dtype, [&](auto place) {
      using P = typename decltype(place)::type;
      for_strips(B, L, D, w.size, [&](int64_t b, int64_t l, int64_t c, int64_t n) {
        A sum[columns] = {};
        for (int64_t k = 0; k < w.size; ++k) {
          const int64_t t = window_of(w, l, k, T);
          if (t < 0) continue;
          const S* row = dy.as<S>() + (b * T + t) * D + c;
          const P* best = which.as<P>() + (b * T + t) * D + c;
          for (int64_t j = 0; j < n; ++j) {
            sum[j] += best[j] == static_cast<P>(k) ? static_cast<A>(row[j]) : A{0};
          }
        }
        S* to = dx.as<S>() + (b * L + l) * D + c;
        for (int64_t j = 0; j < n; ++j) to[j] = S(sum[j]);
      });
    });
  });
}

void depthwise_forward(ConstView x, ConstView weight, ConstView bias, Taps w, View y) {
  const int64_t B = x.dim(0), L = x.dim(1), D = x.dim(2), T = y.dim(1);
  visit_floating(x.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    using A = Accumulator<S>;
    for_strips(B, T, D, w.size, [&](int64_t b, int64_t t, int64_t c, int64_t n) {
      A sum[columns] = {};
      if (bias) {
        for (int64_t j = 0; j < n; ++j) sum[j] = static_cast<A>(bias.as<S>()[c + j]);
      }
      for (int64_t k = 0; k < w.size; ++k) {
        const int64_t l = input_of(w, t, k);
        if (l < 0 || l >= L) continue;
        const S* row = x.as<S>() + (b * L + l) * D + c;
        const S* tap = weight.as<S>() + k * D + c;
        for (int64_t j = 0; j < n; ++j) sum[j] += static_cast<A>(row[j]) * static_cast<A>(tap[j]);
      }
      S* to = y.as<S>() + (b * T + t) * D + c;
      for (int64_t j = 0; j < n; ++j) to[j] = S(sum[j]);
    });
  });
}

void depthwise_backward_x(ConstView dy, ConstView weight, Taps w, View dx) {
  const int64_t B = dx.dim(0), L = dx.dim(1), D = dx.dim(2), T = dy.dim(1);
  visit_floating(dx.dtype, [&](auto tag) {
    using S = typename decltype(tag)::type;
    using A = Accumulator<S>;
    for_strips(B, L, D, w.size, [&](int64_t b, int64_t l, int64_t c, int64_t n) {
      A sum[columns] = {};
      for (int64_t k = 0; k < w.size; ++k) {
        const int64_t t = window_of(w, l, k, T);
        if (t < 0) continue;
        const S* row = dy.as<S>() + (b * T + t) * D + c;
        const S* tap = weight.as<S>() + k * D + c;
        for (int64_t j = 0; j < n; ++j) sum[j] += static_cast<A>(row[j]) * static_cast<A>(tap[j]);
      }
      S* to = dx.as<S>() + (b * L + l) * D + c;
      for (int64_t j = 0; j < n; ++j) to[j] = S(sum[j]);
    });
  });
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
          const int64_t l = input_of(w, t, k);
          if (l < 0 || l >= L) continue;
          const S* row = x.as<S>() + (b * L + l) * D + c;
          const S* from = dy.as<S>() + (b * T + t) * D + c;
          for (int64_t j = 0; j < n; ++j) {
            part[j] += static_cast<A>(from[j]) * static_cast<A>(row[j]);
          }
          if (++terms == stretch) fold();
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
