#include "core/kernels/gradient.h"

#include <atomic>
#include <cmath>

#include "cpu/register.h"
#include "cpu/strided.h"

namespace longspan::cpu {
namespace {

constexpr int64_t grain = 1 << 15;  // elements per task

void accumulate(ConstView x, View y) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Layouts<2> layouts(x.shape, {&x.strides, &y.strides});
    const int64_t sx = layouts.step(0), sy = layouts.step(1);
    for_ranges(layouts, grain, [&](const auto& offset, int64_t n) {
      const T* from = x.as<T>() + offset[0];
      T* to = y.as<T>() + offset[1];
      if (sx == 1 && sy == 1) {
        for (int64_t i = 0; i < n; ++i) to[i] = T(to[i] + from[i]);
      } else {
        for (int64_t i = 0; i < n; ++i) to[i * sy] = T(to[i * sy] + from[i * sx]);
      }
    });
  });
}

/// Returns 1 for infinities and NaN: an integer, not a bool, so that the loops vectorise.
template <class T>
int is_bad(T x) {
  return std::isfinite(static_cast<Accumulator<T>>(x)) ? 0 : 1;
}

void all_finite(ConstView x, bool* finite) {
  std::atomic<bool> all = true;
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Layouts<1> layout(x.shape, {&x.strides});
    const int64_t step = layout.step(0);
    for_ranges(layout, grain, [&](const auto& offset, int64_t n) {
      const T* from = x.as<T>() + offset[0];
      int bad = 0;
      if (step == 1) {
        for (int64_t i = 0; i < n; ++i) bad |= is_bad(from[i]);
      } else {
        for (int64_t i = 0; i < n && bad == 0; ++i) bad = is_bad(from[i * step]);
      }
      if (bad != 0) all = false;
    });
  });
  *finite = all;
}

}  // namespace

void register_gradient() {
  kernels::accumulate.set(DeviceKind::cpu, accumulate);
  kernels::all_finite.set(DeviceKind::cpu, all_finite);
}

}  // namespace longspan::cpu
