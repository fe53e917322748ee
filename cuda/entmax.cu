#include "core/kernels/entmax.h"

#include "core/kernels/maths.h"
#include "cuda/register.h"
#include "cuda/rows.cuh"

namespace longspan::cuda {
namespace {

/// Returns u^p for u > 0, and 0 elsewhere.
template <class A>
__device__ A positive_power(A u, A p) {
  if (!(u > 0)) return A(0);
  if (p == A(1)) return u;
  if (p == A(2)) return u * u;
  return kernels::unary_value(kernels::Unary::power, p, A(0), u);
}

template <class A>
__device__ bool is_softmax(A alpha) {
  return !(alpha >= static_cast<A>(kernels::kEntmaxSoftmax));
}

template <class T>
struct Forward {
  using A = Accumulator<T>;
  const T* x;
  const A* alpha;
  T* y;
  int64_t n;

  template <int size>
  __device__ void operator()(int64_t row, const Team<size>& team) const {
    const T* const from = x + row * n;
    T* const to = y + row * n;
    A largest = least<A>(), wrong = 0;
    for_row<1>(team, n, [&](int64_t i) {
      const A v = static_cast<A>(from[i]);
      largest = v > largest ? v : largest;
      if (!(v <= std::numeric_limits<A>::max())) wrong = 1;
    });
    largest = team.max(largest);
    if (team.max(wrong) > 0) return fill(team, to, std::numeric_limits<A>::quiet_NaN());
    if (largest == least<A>()) return fill(team, to, A(0));
    if (is_softmax(alpha[row])) return softmax(team, from, largest, to);
    const A scale = alpha[row] >= 2 ? A(1) : alpha[row] - 1, p = 1 / scale;
    const auto above = [&](int64_t i, A tau) {
      return (static_cast<A>(from[i]) - largest) * scale - tau;
    };
    const auto sums = [&](A tau) {
      kernels::EntmaxSums<A> all{};
      for_row<1>(team, n, [&](int64_t i) {
        const A u = above(i, tau);
        if (!(u > 0)) return;
        const A slope = p == A(1) ? A(1) : positive_power(u, p - 1);
        all.weights += u * slope;
        all.slopes += slope;
      });
      return kernels::EntmaxSums<A>{team.sum(all.weights), team.sum(all.slopes)};
    };
    const auto root = [&](A w) { return p == A(1) ? A(1) : positive_power(w, 1 - 1 / p); };
    const A tau = kernels::entmax_threshold<A>(sums, root), factor = 1 / sums(tau).weights;
    for_row<1>(team, n, [&](int64_t i) { to[i] = T(positive_power(above(i, tau), p) * factor); });
  }

 private:
  template <int size>
  __device__ void fill(const Team<size>& team, T* to, A value) const {
    for_row<1>(team, n, [&](int64_t i) { to[i] = T(value); });
  }
  template <int size>
  __device__ void softmax(const Team<size>& team, const T* from, A largest, T* to) const {
    const auto weight = [&](int64_t i) {
      return kernels::exponential(static_cast<A>(from[i]) - largest);
    };
    A part = 0;
    for_row<1>(team, n, [&](int64_t i) { part += weight(i); });
    const A factor = 1 / team.sum(part);
    for_row<1>(team, n, [&](int64_t i) { to[i] = T(weight(i) * factor); });
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
    const A a = alpha[row];
    const bool soft = is_softmax(a), learns = dalpha != nullptr && !soft && a <= 2;
    const auto s = [&](A p) {
      if (soft) return p;
      if (a >= 2) return p > 0 ? A(1) : A(0);
      return positive_power(p, 2 - a);
    };
    A sum_s = 0, sum_sg = 0, sum_yg = 0, sum_e = 0, sum_eg = 0;
    for_row<1>(team, n, [&](int64_t i) {
      const A p = static_cast<A>(y[row * n + i]), g = static_cast<A>(dy[row * n + i]), q = s(p);
      sum_s += q;
      sum_sg += q * g;
      if (!learns) return;
      const A e = p > 0 ? p * kernels::unary_value(kernels::Unary::log, A(0), A(0), p) : A(0);
      sum_yg += p * g;
      sum_e += e;
      sum_eg += e * g;
    });
    sum_s = team.sum(sum_s);
    sum_sg = team.sum(sum_sg);
    const A mean = sum_s == 0 ? A(0) : sum_sg / sum_s;
    for_row<1>(team, n, [&](int64_t i) {
      const A p = static_cast<A>(y[row * n + i]), g = static_cast<A>(dy[row * n + i]);
      dx[row * n + i] = T(s(p) * (g - mean));
    });
    if (dalpha == nullptr) return;
    A slope = 0;
    if (learns) {
      const A by = a - 1;
      slope =
          (team.sum(sum_yg) - mean) / (by * by) - (team.sum(sum_eg) - mean * team.sum(sum_e)) / by;
    }
    if (team.rank() == 0) dalpha[row] = slope;
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
             Backward<T>{y.as<T>(), alpha.as<A>(), dy.as<T>(), dx.as<T>(),
                         dalpha ? dalpha.as<A>() : nullptr, n});
  });
}

}  // namespace

void register_entmax() {
  kernels::entmax_forward.set(DeviceKind::cuda, forward);
  kernels::entmax_backward.set(DeviceKind::cuda, backward);
}

}  // namespace longspan::cuda
