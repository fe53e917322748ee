#pragma once
#include <longspan/longspan.h>
using namespace longspan;

// An op of one's own, a running sum that forgets: y[b, t, d] = a[d] y[b, t - 1, d] + x[b, t, d],
// for x [B, L, D] and a [D]. The gradient of x is this sum of dy, from the last row to the first.
inline void decay_on_cpu(ConstView x, ConstView a, View y, bool from_end) {
  visit_floating(x.dtype, [&]<class T>(TypeTag<T>) {
    const int64_t rows = x.dim(0) * x.dim(1), width = x.dim(2), step = from_end ? -1 : 1;
    for (int64_t i = 0, row = from_end ? rows - 1 : 0; i < rows; ++i, row += step) {
      const T *in = x.as<T>() + row * width, *factor = a.as<T>();
      T *out = y.as<T>() + row * width, *before = out - step * width;
      const bool first = i % x.dim(1) == 0;
      for (int64_t d = 0; d < width; ++d) out[d] = T(in[d] + (first ? 0 : factor[d] * before[d]));
    }
  });
}
inline constinit Kernel<void(ConstView, ConstView, View, bool)> decay_kernel{"decay"};
inline const bool decay_is_set = (decay_kernel.set(DeviceKind::cpu, decay_on_cpu), true);

inline Tensor run_decay(const Tensor& x, const Tensor& a, bool from_end) {
  Tensor y = Tensor::like(x);
  const Tensor rows = contiguous(x), factors = contiguous(a);
  decay_kernel(x.device(), rows.view(), factors.view(), y.mut(), from_end);
  return y;
}

inline Tensor decay(const Tensor& x, const Tensor& a) {
  require_floating("decay", x);
  require_rank_is("decay", x, 3);
  require_shape("decay", a, {x.dim(2)}, "a");
  require_same_dtype("decay", {"x", x}, {"a", a});
  require_same_device("decay", {"x", x}, {"a", a});
  const Tensor y = run_decay(x, a, false);
  return record("decay", {x, a}, y, save(a, y), [](const Context& c, const Tensor& dy) -> Grads {
    const auto [factors, sums] = c.saved<2>();
    const Tensor dx = run_decay(dy, factors, true);
    const int64_t n = dx.dim(1) - 1;
    return {dx, sum(narrow(dx, 1, 1, n) * narrow(sums, 1, 0, n), {0, 1})};
  });
}

struct DecayLayer : Layer {  // W2 decay((1 - a) W1 x, a), a = sigmoid(rate)
  DecayLayer(int64_t width, const Init& init) {
    in = Linear(width, width, true, init.at("in"), {});
    out = Linear(width, width, true, init.at("out"), {});
    rate = init.at("rate").make({width}, Scheme::normal(2));
  }
  Output forward(const Tensor& x, const LayerContext&, Pass) const override {
    const Tensor a = sigmoid(cast(rate, x.dtype()));
    return out.forward(decay(in.forward(x) * (1 - a), a));
  }
  void visit(Visitor& v) override { v("in", in)("out", out)("rate", rate); }
  Linear in, out;
  Tensor rate;
};
