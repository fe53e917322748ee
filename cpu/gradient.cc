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
  kernels::all_finite.set(DeviceKind::cpu, all_finite);
}

}  // namespace longspan::cpu
