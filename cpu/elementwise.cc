#include "core/kernels/elementwise.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "cpu/register.h"
#include "cpu/spans.h"
#include "cpu/strided.h"

namespace longspan::cpu {
namespace {

using kernels::Binary;
using kernels::Comparison;
using kernels::Unary;

constexpr int64_t grain = 1 << 15;  // elements per task
constexpr int64_t block = 512;      // elements staged at a time

/// Reads an input as contiguous elements of type A: in place if it is stored so, else through a
/// buffer.
template <class T, class A>
class Reader {
 public:
  Reader(const ConstView& view, int64_t step) : data_(view.as<T>()), step_(step) {}
  bool direct() const { return std::is_same_v<T, A> && step_ == 1; }
  const A* get(int64_t offset, int64_t n, A* buffer) const {
    const T* from = data_ + offset;
    if constexpr (std::is_same_v<T, A>) {
      if (step_ == 1) return from;
      for (int64_t i = 0; i < n; ++i) buffer[i] = from[i * step_];
    } else {
      if (step_ == 1) {
        widen_span(from, buffer, n);
      } else {
        for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<A>(from[i * step_]);
      }
    }
    return buffer;
  }
  int64_t step() const { return step_; }

 private:
  const T* data_;
  int64_t step_;
};

/// Writes an output, in place or through a buffer: write to to(), then call put().
template <class T, class A>
class Writer {
 public:
  Writer(const View& view, int64_t step) : data_(view.as<T>()), step_(step) {}
  bool direct() const { return std::is_same_v<T, A> && step_ == 1; }
  A* to(int64_t offset, A* buffer) const {
    if constexpr (std::is_same_v<T, A>) {
      if (step_ == 1) return data_ + offset;
    }
    return buffer;
  }
  void put(int64_t offset, int64_t n, const A* buffer) const {
    T* y = data_ + offset;
    if constexpr (std::is_same_v<T, A>) {
      if (step_ == 1) return;
      for (int64_t i = 0; i < n; ++i) y[i * step_] = buffer[i];
    } else {
      if (step_ == 1) {
        narrow_span(buffer, y, n);
      } else {
        for (int64_t i = 0; i < n; ++i) y[i * step_] = T(buffer[i]);
      }
    }
  }
  int64_t step() const { return step_; }

 private:
  T* data_;
  int64_t step_;
};

/// Calls compute(inputs, outputs, n) on contiguous elements; In and Out are the numbers of inputs
/// and outputs.
template <class T, int In, int Out, class F>
void elementwise(const Shape& shape, const std::array<ConstView, In>& inputs,
                 const std::array<View, Out>& outputs, F&& compute) {
  using A = Accumulator<T>;
  constexpr auto at = [](int k) { return static_cast<size_t>(k); };
  const Strides* strides[In + Out];
  for (int k = 0; k < In; ++k) strides[k] = &inputs[at(k)].strides;
  for (int k = 0; k < Out; ++k) strides[In + k] = &outputs[at(k)].strides;
  const Layouts<In + Out> layouts(shape, strides);
  const auto reader = [&](int k) { return Reader<T, A>(inputs[at(k)], layouts.step(k)); };
  const auto writer = [&](int k) { return Writer<T, A>(outputs[at(k)], layouts.step(In + k)); };
  bool direct = true;
  for (int k = 0; k < In; ++k) direct = direct && reader(k).direct();
  for (int k = 0; k < Out; ++k) direct = direct && writer(k).direct();

  for_ranges(layouts, grain, [&](const auto& offset, int64_t n) {
    alignas(64) A buffers[In + Out][block];
    std::array<const A*, In> x;
    std::array<A*, Out> y;
    for (int64_t first = 0; first < n; first += block) {
      const int64_t count = direct ? n : std::min(block, n - first);
      for (int k = 0; k < In; ++k) {
        const Reader<T, A> r = reader(k);
        x[at(k)] = r.get(offset[k] + first * r.step(), count, buffers[k]);
      }
      for (int k = 0; k < Out; ++k) {
        const Writer<T, A> w = writer(k);
        y[at(k)] = w.to(offset[In + k] + first * w.step(), buffers[In + k]);
      }
      compute(x, y, count);
      for (int k = 0; k < Out; ++k) {
        const Writer<T, A> w = writer(k);
        w.put(offset[In + k] + first * w.step(), count, y[at(k)]);
      }
      if (direct) break;
    }
  });
}

void unary_forward(Unary f, double alpha, double beta, ConstView x, View y) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    elementwise<T, 1, 1>(x.shape, {x}, {y}, [&](const auto& in, const auto& out, int64_t n) {
      unary_span(f, alpha, beta, in[0], out[0], n);
    });
  });
}

void unary_backward(Unary f, double alpha, double beta, ConstView v, ConstView dy, View dx) {
  visit_floating(v.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    elementwise<T, 2, 1>(v.shape, {v, dy}, {dx}, [&](const auto& in, const auto& out, int64_t n) {
      unary_gradient_span(f, alpha, beta, in[0], in[1], out[0], n);
    });
  });
}

void unary_slope(Unary f, ConstView x, View y, View slope) {
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    elementwise<T, 1, 2>(x.shape, {x}, {y, slope}, [&](const auto& in, const auto& out, int64_t n) {
      unary_slope_span(f, in[0], out[0], out[1], n);
    });
  });
}

void binary(Binary f, ConstView a, ConstView b, View y) {
  visit_floating(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    elementwise<T, 2, 1>(a.shape, {a, b}, {y}, [&](const auto& in, const auto& out, int64_t n) {
      binary_span(f, in[0], in[1], out[0], n);
    });
  });
}

/// Compares in a type of T's kind; f16 and bf16 compare as f32.
template <class T, class F>
void compare_as(F f, const ConstView& a, const ConstView& b, const View& y) {
  const Layouts<3> layouts(a.shape, {&a.strides, &b.strides, &y.strides});
  const int64_t sa = layouts.step(0), sb = layouts.step(1), sy = layouts.step(2);
  for_ranges(layouts, grain, [&](const auto& offset, int64_t n) {
    const T* x = a.as<T>() + offset[0];
    const T* z = b.as<T>() + offset[1];
    uint8_t* to = y.as<uint8_t>() + offset[2];
    using C = std::conditional_t<std::is_integral_v<T>, T, Accumulator<T>>;
    for (int64_t i = 0; i < n; ++i) {
      to[i * sy] = f(static_cast<C>(x[i * sa]), static_cast<C>(z[i * sb])) ? 1 : 0;
    }
  });
}

void compare(Comparison f, ConstView a, ConstView b, View y) {
  visit_dtype(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (f) {
      case Comparison::equal:
        return compare_as<T>([](auto p, auto q) { return p == q; }, a, b, y);
      case Comparison::not_equal:
        return compare_as<T>([](auto p, auto q) { return p != q; }, a, b, y);
      case Comparison::less:
        return compare_as<T>([](auto p, auto q) { return p < q; }, a, b, y);
      case Comparison::less_equal:
        return compare_as<T>([](auto p, auto q) { return p <= q; }, a, b, y);
      case Comparison::greater:
        return compare_as<T>([](auto p, auto q) { return p > q; }, a, b, y);
      case Comparison::greater_equal:
        return compare_as<T>([](auto p, auto q) { return p >= q; }, a, b, y);
    }
  });
}

template <class T>
void select_as(const ConstView& condition, const ConstView& a, const ConstView& b, const View& y) {
  const Layouts<4> layouts(y.shape, {&condition.strides, &a.strides, &b.strides, &y.strides});
  const int64_t sc = layouts.step(0), sa = layouts.step(1), sb = layouts.step(2),
                sy = layouts.step(3);
  for_ranges(layouts, grain, [&](const auto& offset, int64_t n) {
    const uint8_t* c = condition.as<uint8_t>() + offset[0];
    const T* p = a.as<T>() + offset[1];
    const T* q = b.as<T>() + offset[2];
    T* to = y.as<T>() + offset[3];
    for (int64_t i = 0; i < n; ++i) {
      const T x = p[i * sa], z = q[i * sb];
      to[i * sy] = c[i * sc] != 0 ? x : z;
    }
  });
}

void select(ConstView condition, ConstView a, ConstView b, View y) {
  switch (size_of(y.dtype)) {  // only bits are moved, so the type does not matter
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
  visit_floating(u.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    elementwise<T, 2, 1>(u.shape, {u, v}, {y}, [&](const auto& in, const auto& out, int64_t n) {
      for (int64_t i = 0; i < n; i += block) {
        const int64_t count = std::min(block, n - i);
        alignas(64) A open[block];
        unary_span(f, 0, 0, in[1] + i, open, count);
        binary_span(Binary::mul, in[0] + i, open, out[0] + i, count);
      }
    });
  });
}

void gated_backward(Unary f, ConstView u, ConstView v, ConstView dy, View du, View dv) {
  visit_floating(u.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    elementwise<T, 3, 2>(u.shape, {u, v, dy}, {du, dv},
                         [&](const auto& in, const auto& out, int64_t n) {
                           for (int64_t i = 0; i < n; i += block) {
                             const int64_t count = std::min(block, n - i);
                             alignas(64) A part[block];
                             unary_span(f, 0, 0, in[1] + i, part, count);
                             binary_span(Binary::mul, part, in[2] + i, out[0] + i, count);
                             binary_span(Binary::mul, in[0] + i, in[2] + i, part, count);
                             unary_gradient_span(f, 0, 0, in[1] + i, part, out[1] + i, count);
                           }
                         });
  });
}

}  // namespace

void register_elementwise() {
  kernels::unary_forward.set(DeviceKind::cpu, unary_forward);
  kernels::unary_backward.set(DeviceKind::cpu, unary_backward);
  kernels::unary_slope.set(DeviceKind::cpu, unary_slope);
  kernels::binary.set(DeviceKind::cpu, binary);
  kernels::compare.set(DeviceKind::cpu, compare);
  kernels::select.set(DeviceKind::cpu, select);
  kernels::gated_forward.set(DeviceKind::cpu, gated_forward);
  kernels::gated_backward.set(DeviceKind::cpu, gated_backward);
}

}  // namespace longspan::cpu
