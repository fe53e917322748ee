#include "cuda/elementwise.cuh"

#include "core/kernels/elementwise.h"
#include "core/kernels/gradient.h"
#include "core/kernels/maths.h"
#include "cuda/register.h"

namespace longspan::cuda {
namespace {

using kernels::Binary;
using kernels::Comparison;
using kernels::Unary;

// The functors of the kernels, computed in type A.
template <class A>
struct Forward {
  Unary f;
  A alpha, beta;
  __device__ void operator()(const A (&x)[1], A (&y)[1]) const {
    y[0] = kernels::unary_value(f, alpha, beta, x[0]);
  }
};
template <class A>
struct Backward {
  Unary f;
  A alpha, beta;
  __device__ void operator()(const A (&x)[2], A (&y)[1]) const {
    y[0] = kernels::unary_gradient(f, alpha, beta, x[0], x[1]);
  }
};
template <class A>
struct Slope {
  Unary f;
  __device__ void operator()(const A (&x)[1], A (&y)[2]) const {
    kernels::unary_both(f, x[0], y[0], y[1]);
  }
};
template <class A>
struct OfTwo {
  Binary f;
  __device__ void operator()(const A (&x)[2], A (&y)[1]) const {
    y[0] = kernels::binary_value(f, x[0], x[1]);
  }
};
template <class A>
struct Compared {
  Comparison f;
  __device__ void operator()(const A (&x)[2], A (&y)[1]) const {
    y[0] = kernels::holds(f, x[0], x[1]) ? A(1) : A(0);
  }
};
template <class A>
struct Gated {  // u, v
  Unary f;
  __device__ void operator()(const A (&x)[2], A (&y)[1]) const {
    y[0] = x[0] * kernels::unary_value(f, A(0), A(0), x[1]);
  }
};
template <class A>
struct GatedBackward {  // u, v, dy
  Unary f;
  __device__ void operator()(const A (&x)[3], A (&y)[2]) const {
    y[0] = kernels::unary_value(f, A(0), A(0), x[1]) * x[2];
    y[1] = kernels::unary_gradient(f, A(0), A(0), x[1], x[0] * x[2]);
  }
};
template <class A>
struct Sum {
  __device__ void operator()(const A (&x)[2], A (&y)[1]) const { y[0] = x[0] + x[1]; }
};

/// Calls elementwise() for the floating dtype of the operands, with F<A>{args...}.
template <template <class> class F, int In, int Out, class... Args>
void run(const char* name, const std::array<ConstView, In>& inputs,
         const std::array<View, Out>& outputs, Args... args) {
  visit_floating(outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    elementwise<A, T, T, In, Out>(name, inputs, outputs, F<A>{args...});
  });
}

/// The same with f, alpha and beta; the latter two are converted to A.
template <template <class> class F, int In>
void run_with(const char* name, Unary f, double alpha, double beta,
              const std::array<ConstView, In>& inputs, const View& y) {
  visit_floating(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    elementwise<A, T, T, In, 1>(name, inputs, {y},
                                F<A>{f, static_cast<A>(alpha), static_cast<A>(beta)});
  });
}

void unary_forward(Unary f, double alpha, double beta, ConstView x, View y) {
  run_with<Forward, 1>("unary_forward", f, alpha, beta, {x}, y);
}

void unary_backward(Unary f, double alpha, double beta, ConstView v, ConstView dy, View dx) {
  run_with<Backward, 2>("unary_backward", f, alpha, beta, {v, dy}, dx);
}

void unary_slope(Unary f, ConstView x, View y, View slope) {
  run<Slope, 1, 2>("unary_slope", {x}, {y, slope}, f);
}

void binary(Binary f, ConstView a, ConstView b, View y) {
  run<OfTwo, 2, 1>("binary", {a, b}, {y}, f);
}

void compare(Comparison f, ConstView a, ConstView b, View y) {
  visit_dtype(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    elementwise<A, T, uint8_t, 2, 1>("compare", {a, b}, {y}, Compared<A>{f});
  });
}

/// Moves elements of W bytes, whatever their type.
template <class W, class Index>
__global__ void __launch_bounds__(elementwise_threads)
    select_kernel(const uint8_t* condition, const W* a, const W* b, W* y,
                  const __grid_constant__ kernels::Offsets<4, Index> offsets, int64_t n) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    Index o[4];
    offsets.at(static_cast<Index>(i), o);
    y[o[3]] = condition[o[0]] != 0 ? a[o[1]] : b[o[2]];
  }
}

template <class W>
void select_as(const ConstView& condition, const ConstView& a, const ConstView& b, const View& y) {
  const kernels::Layouts<4> layouts(y.shape,
                                    {&condition.strides, &a.strides, &b.strides, &y.strides});
  const auto submit = [&](auto kernel, auto offsets) {
    launch("select", kernel, blocks_for(layouts.numel, elementwise_threads), elementwise_threads, 0,
           condition.as<uint8_t>(), a.as<W>(), b.as<W>(), y.as<W>(), offsets, layouts.numel);
  };
  if (layouts.small()) {
    submit(select_kernel<W, int32_t>, kernels::Offsets<4, int32_t>(layouts));
  } else {
    submit(select_kernel<W, int64_t>, kernels::Offsets<4, int64_t>(layouts));
  }
}

void select(ConstView condition, ConstView a, ConstView b, View y) {
  switch (size_of(y.dtype)) {
    case 8:
      return select_as<uint64_t>(condition, a, b, y);
    case 4:
      return select_as<uint32_t>(condition, a, b, y);
    case 2:
      return select_as<uint16_t>(condition, a, b, y);
    default:
      return select_as<uint8_t>(condition, a, b, y);
  }
}

void gated_forward(Unary f, ConstView u, ConstView v, View y) {
  run<Gated, 2, 1>("gated_forward", {u, v}, {y}, f);
}

void gated_backward(Unary f, ConstView u, ConstView v, ConstView dy, View du, View dv) {
  run<GatedBackward, 3, 2>("gated_backward", {u, v, dy}, {du, dv}, f);
}

void accumulate(ConstView x, View y) { run<Sum, 2, 1>("accumulate", {y, x}, {y}); }

}  // namespace

void register_elementwise() {
  kernels::unary_forward.set(DeviceKind::cuda, unary_forward);
  kernels::unary_backward.set(DeviceKind::cuda, unary_backward);
  kernels::unary_slope.set(DeviceKind::cuda, unary_slope);
  kernels::binary.set(DeviceKind::cuda, binary);
  kernels::compare.set(DeviceKind::cuda, compare);
  kernels::select.set(DeviceKind::cuda, select);
  kernels::gated_forward.set(DeviceKind::cuda, gated_forward);
  kernels::gated_backward.set(DeviceKind::cuda, gated_backward);
  kernels::accumulate.set(DeviceKind::cuda, accumulate);
}

}  // namespace longspan::cuda
