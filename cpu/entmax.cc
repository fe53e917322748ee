#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/entmax.cc"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include "core/kernels/entmax.h"
#include "core/parallel.h"
#include "cpu/entmax-inl.h"
#include "cpu/register.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t grain = 1 << 14;  // elements per task

/// Calls f(row) for all rows, in parallel.
template <class F>
void for_rows(const Shape& shape, F&& f) {
  parallel_ranges(shape[0], std::max<int64_t>(1, grain / std::max<int64_t>(shape[1], 1)),
                  [&](int64_t r, int64_t end) {
                    for (; r < end; ++r) f(r);
                  });
}

void forward(const ConstView& x, const ConstView& alpha, const View& y) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t n = x.shape[1];
    for_rows(x.shape, [&](int64_t r) {
      entmax::forward_row(x.as<T>() + r * n, alpha.as<Accumulator<T>>()[r], y.as<T>() + r * n,
                          static_cast<size_t>(n));
    });
  });
}

void backward(const ConstView& y, const ConstView& alpha, const ConstView& dy, const View& dx,
              const View& dalpha) {
  visit_floating(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const int64_t n = y.shape[1];
    A* const slopes = dalpha ? dalpha.as<A>() : nullptr;
    for_rows(y.shape, [&](int64_t r) {
      entmax::backward_row(y.as<T>() + r * n, alpha.as<A>()[r], dy.as<T>() + r * n,
                           dx.as<T>() + r * n, slopes == nullptr ? nullptr : slopes + r,
                           static_cast<size_t>(n));
    });
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

void register_entmax() {
  kernels::entmax_forward.set(DeviceKind::cpu, [](ConstView x, ConstView alpha, View y) {
    HWY_DYNAMIC_DISPATCH(forward)(x, alpha, y);
  });
  kernels::entmax_backward.set(
      DeviceKind::cpu, [](ConstView y, ConstView alpha, ConstView dy, View dx, View dalpha) {
        HWY_DYNAMIC_DISPATCH(backward)(y, alpha, dy, dx, dalpha);
      });
}

}  // namespace longspan::cpu
#endif
