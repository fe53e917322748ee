#include "cuda/entmax.cuh"

#include "cuda/register.h"

namespace longspan::cuda {
namespace {

template <class T>
struct Forward {
  using A = Accumulator<T>;
  const T* x;
  const A* alpha;
  T* y;
  int64_t n;

  template <int size>
  __device__ void operator()(int64_t row, const Team<size>& team) const {
    entmax_row(team, x + row * n, alpha[row], y + row * n, n);
  }
};

template <class T>
struct Backward {
  using A = Accumulator<T>;
  const T* y;
  const A* alpha;
  const T* dy;
  T* dx;
  A* dalpha;
  int64_t n;

  template <int size>
  __device__ void operator()(int64_t row, const Team<size>& team) const {
    const A slope = entmax_row_gradient(team, y + row * n, alpha[row], dy + row * n, dx + row * n,
                                        n, dalpha != nullptr);
    if (team.rank() == 0 && dalpha != nullptr) dalpha[row] = slope;
  }
};

void forward(ConstView x, ConstView alpha, View y) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t n = x.dim(1);
    for_rows("entmax_forward", x.dim(0), n,
             Forward<T>{x.as<T>(), alpha.as<Accumulator<T>>(), y.as<T>(), n});
  });
}

void backward(ConstView y, ConstView alpha, ConstView dy, View dx, View dalpha) {
  visit_floating(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const int64_t n = y.dim(1);
    for_rows("entmax_backward", y.dim(0), n,
             Backward<T>{y.as<T>(), alpha.as<A>(), dy.as<T>(), dx.as<T>(), dalpha.as<A>(), n});
  });
}

}  // namespace

void register_entmax() {
  kernels::entmax_forward.set(DeviceKind::cuda, forward);
  kernels::entmax_backward.set(DeviceKind::cuda, backward);
}

}  // namespace longspan::cuda
