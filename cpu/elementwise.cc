#include "ops/kernels/elementwise.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/parallel.h"
#include "cpu/register.h"
#include "cpu/spans.h"

namespace longspan::cpu {
namespace {

using kernels::Binary;
using kernels::Comparison;
using kernels::Unary;

constexpr int64_t grain = 1 << 15;  // elements of a task
constexpr int64_t block = 512;      // elements staged at a time

/// N strided layouts of one shape, neighbouring axes merged where all of them allow it.
template <int N>
struct Layouts {
  Shape shape;
  std::array<Strides, N> strides;

  Layouts(const Shape& full, const std::array<Strides, N>& given) {
    for (int i = 0; i < full.rank(); ++i) {
      if (full[i] == 1) continue;
      const int last = shape.rank() - 1;
      bool merges = last >= 0;
      for (int k = 0; merges && k < N; ++k) {
        merges = strides[at(k)][last] == full[i] * given[at(k)][i];
      }
      if (merges) {
        shape[last] *= full[i];
        for (int k = 0; k < N; ++k) strides[at(k)][last] = given[at(k)][i];
      } else {
        shape.push_back(full[i]);
        for (int k = 0; k < N; ++k) strides[at(k)].push_back(given[at(k)][i]);
      }
    }
    if (shape.rank() == 0) {
      shape.push_back(1);
      for (int k = 0; k < N; ++k) strides[at(k)].push_back(1);
    }
  }

  /// Calls stretch(offsets, n) for stretches along the last axis, in parallel.
  template <class F>
  void for_stretches(F&& stretch) const {
    const int64_t n = shape.back(), rows = n > 0 ? numel(shape) / n : 0;
    if (rows == 1) {
      parallel_ranges(n, grain, [&](int64_t i, int64_t end) {
        std::array<int64_t, N> offset;
        for (int k = 0; k < N; ++k) offset[at(k)] = i * strides[at(k)].back();
        stretch(offset, end - i);
      });
      return;
    }
    parallel_ranges(rows, std::max<int64_t>(1, grain / std::max<int64_t>(1, n)),
                    [&](int64_t r, int64_t end) {
                      for (; r < end; ++r) {
                        std::array<int64_t, N> offset = {};
                        int64_t rest = r;
                        for (int i = shape.rank() - 2; i >= 0; --i) {
                          const int64_t index = rest % shape[i];
                          rest /= shape[i];
                          for (int k = 0; k < N; ++k) offset[at(k)] += index * strides[at(k)][i];
                        }
                        stretch(offset, n);
                      }
                    });
  }

  static constexpr size_t at(int k) { return static_cast<size_t>(k); }
};

/// An input as consecutive numbers of type A: in place where it is stored so, else through a
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

/// An output, likewise: write to to(), then put().
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

/// Calls compute(inputs, outputs, n) on consecutive numbers; In and Out are counted.
template <class T, int In, int Out, class F>
void elementwise(const Shape& shape, const std::array<ConstView, In>& inputs,
                 const std::array<View, Out>& outputs, F&& compute) {
  using A = Accumulator<T>;
  using All = Layouts<In + Out>;
  constexpr auto at = All::at;
  std::array<Strides, In + Out> strides;
  for (int k = 0; k < In; ++k) strides[at(k)] = inputs[at(k)].strides;
  for (int k = 0; k < Out; ++k) strides[at(In + k)] = outputs[at(k)].strides;
  const All all(shape, strides);
  const auto reader = [&](int k) { return Reader<T, A>(inputs[at(k)], all.strides[at(k)].back()); };
  const auto writer = [&](int k) {
    return Writer<T, A>(outputs[at(k)], all.strides[at(In + k)].back());
  };
  bool direct = true;
  for (int k = 0; k < In; ++k) direct = direct && reader(k).direct();
  for (int k = 0; k < Out; ++k) direct = direct && writer(k).direct();

  all.for_stretches([&](const std::array<int64_t, In + Out>& offset, int64_t n) {
    alignas(64) A buffers[In + Out][block];
    std::array<const A*, In> x;
    std::array<A*, Out> y;
    for (int64_t first = 0; first < n; first += block) {
      const int64_t count = direct ? n : std::min(block, n - first);
      for (int k = 0; k < In; ++k) {
        const Reader<T, A> r = reader(k);
        x[at(k)] = r.get(offset[at(k)] + first * r.step(), count, buffers[k]);
      }
      for (int k = 0; k < Out; ++k) {
        const Writer<T, A> w = writer(k);
        y[at(k)] = w.to(offset[at(In + k)] + first * w.step(), buffers[In + k]);
      }
      compute(x, y, count);
      for (int k = 0; k < Out; ++k) {
        const Writer<T, A> w = writer(k);
        w.put(offset[at(In + k)] + first * w.step(), count, y[at(k)]);
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

/// The kinds of number that a comparison or choice distinguishes; f16 and bf16 compare as f32.
template <class T, class F>
void compare_as(F f, const ConstView& a, const ConstView& b, const View& y) {
  const Layouts<3> all(a.shape, {a.strides, b.strides, y.strides});
  const int64_t sa = all.strides[0].back(), sb = all.strides[1].back(), sy = all.strides[2].back();
  all.for_stretches([&](const std::array<int64_t, 3>& offset, int64_t n) {
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
  const Layouts<4> all(y.shape, {condition.strides, a.strides, b.strides, y.strides});
  std::array<int64_t, 4> step;
  for (size_t k = 0; k < 4; ++k) step[k] = all.strides[k].back();
  all.for_stretches([&](const std::array<int64_t, 4>& offset, int64_t n) {
    const uint8_t* c = condition.as<uint8_t>() + offset[0];
    const T* p = a.as<T>() + offset[1];
    const T* q = b.as<T>() + offset[2];
    T* to = y.as<T>() + offset[3];
    for (int64_t i = 0; i < n; ++i) {
      const T x = p[i * step[1]], z = q[i * step[2]];
      to[i * step[3]] = c[i * step[0]] != 0 ? x : z;
    }
  });
}

void select(ConstView condition, ConstView a, ConstView b, View y) {
  switch (size_of(y.dtype)) {  // bits are moved, so their meaning does not matter
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
