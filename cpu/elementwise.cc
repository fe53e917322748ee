#include "ops/kernels/elementwise.h"

#include <cmath>

#include "cpu/register.h"

namespace longspan::cpu {
namespace {

using kernels::Unary;

int64_t offset_of(const Shape& shape, const Strides& strides, int64_t i) {
  int64_t offset = 0;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    offset += i % shape[axis] * strides[axis];
    i /= shape[axis];
  }
  return offset;
}

void unary_forward(Unary, double, double, ConstView x, View y) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < x.numel(); ++i) {
      y.as<T>()[offset_of(y.shape, y.strides, i)] =
          T(std::exp(static_cast<Accumulator<T>>(x.as<T>()[offset_of(x.shape, x.strides, i)])));
    }
  });
}

void unary_backward(Unary, double, double, ConstView y, ConstView dy, View dx) {
  visit_floating(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < y.numel(); ++i) {
      dx.as<T>()[offset_of(dx.shape, dx.strides, i)] =
          T(static_cast<Accumulator<T>>(y.as<T>()[offset_of(y.shape, y.strides, i)]) *
            static_cast<Accumulator<T>>(dy.as<T>()[offset_of(dy.shape, dy.strides, i)]));
    }
  });
}

}  // namespace

void register_elementwise() {
  kernels::unary_forward.set(DeviceKind::cpu, unary_forward);
  kernels::unary_backward.set(DeviceKind::cpu, unary_backward);
}

}  // namespace longspan::cpu
