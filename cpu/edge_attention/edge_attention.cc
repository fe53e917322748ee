#include "core/kernels/edge_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/parallel.h"
#include "cpu/register.h"

namespace longspan::cpu {
namespace {

template <class T, class F>
void for_pairs(const kernels::EdgeAttentionInputs& in, int64_t row, F&& f) {
  const auto* rows = in.edges.rows.template as<int32_t>();
  const auto* runs = in.edges.runs.template as<int32_t>();
  const auto* labels = in.edges.labels.template as<int32_t>();
  for (int32_t o = 0; o < rows[2 * row + 1]; ++o) {
    const int32_t* run = runs + 3 * (rows[2 * row] + o);
    for (int32_t t = 0; t < run[1]; ++t) f(run[0] + t, run[2] < 0 ? -1 - run[2] : labels[run[2] + t]);
  }
}
template <class T, class V>
T* at(const V& x, int64_t b, int64_t h, int64_t i) {
  return const_cast<T*>(x.template as<T>()) + b * x.strides[0] + h * x.strides[1] + i * x.strides[2];
}

template <class T>
void forward(const kernels::EdgeAttentionInputs& in, View out, View lse) {
  const int64_t d = in.q.dim(3), dv = in.v.dim(3);
  parallel_for(in.q.dim(0) * in.q.dim(1), [&](int64_t bh) {
    const int64_t b = bh / in.q.dim(1), h = bh % in.q.dim(1);
    for (int64_t i = 0; i < in.q.dim(2); ++i) {
      const T* q = at<T>(in.q, b, h, i);
      std::vector<T> s;
      T top = -std::numeric_limits<T>::infinity();
      for_pairs<T>(in, i, [&](int64_t j, int64_t label) {
        const T* k = at<T>(in.k, b, h, j);
        const T* r = in.relation.data ? in.relation.template as<T>() + label * d : nullptr;
        T sum = 0;
        for (int64_t c = 0; c < d; ++c) sum += q[c] * (k[c] + (r ? r[c] : T{0}));
        s.push_back(sum * static_cast<T>(in.scale));
        top = std::max(top, s.back());
      });
      T total = 0;
      for (T& x : s) total += x = std::exp(x - top);
      T* y = at<T>(out, b, h, i);
      std::fill(y, y + dv, T{0});
      size_t n = 0;
      for_pairs<T>(in, i, [&](int64_t j, int64_t) {
        const T* v = at<T>(in.v, b, h, j);
        const T p = s[n++] / total;
        for (int64_t c = 0; c < dv; ++c) y[c] += p * v[c];
      });
      lse.template as<T>()[bh * in.q.dim(2) + i] = s.empty() ? top : top + std::log(total);
    }
  });
}

template <class T>
void backward(const kernels::EdgeAttentionInputs& in, ConstView out, ConstView lse, ConstView dout,
              const kernels::EdgeGradients& to) {
  const int64_t d = in.q.dim(3), dv = in.v.dim(3);
  if (to.drelation.data) std::fill_n(to.drelation.template as<T>(), to.drelation.numel(), T{0});
  for (int64_t bh = 0; bh < in.q.dim(0) * in.q.dim(1); ++bh) {
    const int64_t b = bh / in.q.dim(1), h = bh % in.q.dim(1);
    for (int64_t j = 0; j < in.k.dim(2); ++j) {
      std::fill_n(at<T>(to.dk, b, h, j), d, T{0});
      std::fill_n(at<T>(to.dv, b, h, j), dv, T{0});
    }
    for (int64_t i = 0; i < in.q.dim(2); ++i) {
      const T *q = at<T>(in.q, b, h, i), *g = at<T>(dout, b, h, i), *y = at<T>(out, b, h, i);
      T* dq = at<T>(to.dq, b, h, i);
      std::fill_n(dq, d, T{0});
      T delta = 0;
      for (int64_t c = 0; c < dv; ++c) delta += g[c] * y[c];
      const T l = lse.template as<T>()[bh * in.q.dim(2) + i];
      for_pairs<T>(in, i, [&](int64_t j, int64_t label) {
        const T *k = at<T>(in.k, b, h, j), *v = at<T>(in.v, b, h, j);
        const T* r = in.relation.data ? in.relation.template as<T>() + label * d : nullptr;
        T s = 0, dp = 0;
        for (int64_t c = 0; c < d; ++c) s += q[c] * (k[c] + (r ? r[c] : T{0}));
        for (int64_t c = 0; c < dv; ++c) dp += g[c] * v[c];
        const T p = std::exp(s * static_cast<T>(in.scale) - l);
        const T ds = p * (dp - delta) * static_cast<T>(in.scale);
        T *dk = at<T>(to.dk, b, h, j), *dvj = at<T>(to.dv, b, h, j);
        for (int64_t c = 0; c < d; ++c) {
          dq[c] += ds * (k[c] + (r ? r[c] : T{0}));
          dk[c] += ds * q[c];
          if (r) to.drelation.template as<T>()[label * d + c] += ds * q[c];
        }
        for (int64_t c = 0; c < dv; ++c) dvj[c] += p * g[c];
      });
    }
  }
}

}  // namespace

void register_edge_attention() {
  kernels::edge_attention_forward.set(
      DeviceKind::cpu, [](const kernels::EdgeAttentionInputs& in, View out, View lse) {
        (in.q.dtype == DType::f64 ? forward<double> : forward<float>)(in, out, lse);
      });
  kernels::edge_attention_backward.set(
      DeviceKind::cpu, [](const kernels::EdgeAttentionInputs& in, ConstView out, ConstView lse,
                          ConstView dout, const kernels::EdgeGradients& to) {
        (in.q.dtype == DType::f64 ? backward<double> : backward<float>)(in, out, lse, dout, to);
      });
}

}  // namespace longspan::cpu
