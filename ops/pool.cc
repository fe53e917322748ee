#include "ops/pool.h"

#include <algorithm>
#include <limits>

#include "autograd/record.h"
#include "core/kernels/copy.h"
#include "core/kernels/matmul.h"
#include "core/kernels/pool.h"
#include "ops/copy.h"
#include "ops/cost.h"

namespace longspan {

int64_t PoolWindow::outputs(int64_t L) const {
  const int64_t workspace = L + before + after - (size - 1) * dilation - 1;
  return workspace < 0 ? 0 : workspace / stride + 1;
}

namespace {

using kernels::Taps;

Taps taps_of(const PoolWindow& w) { return {w.size, w.stride, w.dilation, w.before}; }

/// The range [first, end) of windows whose tap k hits one of L inputs.
struct WindowRange {
  int64_t first, end;
};
WindowRange windows_of_tap(const Taps& w, int64_t k, int64_t L, int64_t T) {
  const int64_t shift = w.before - k * w.dilation;  // input of window t: t * stride - shift
  const int64_t first = shift > 0 ? (shift + w.stride - 1) / w.stride : 0;
  const int64_t last = L - 1 + shift < 0 ? -1 : (L - 1 + shift) / w.stride;
  return {first, std::max(first, std::min(T, last + 1))};
}

void check(std::string_view op, const Tensor& x, const PoolWindow& w) {
  require_floating(op, x);
  require_rank(op, x, 2);
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  require(w.size >= 1 && w.stride >= 1 && w.dilation >= 1 && w.before >= 0 && w.after >= 0 &&
              std::max({w.size, w.stride, w.dilation, w.before, w.after}) <= most,
          op,
          "a window of size {}, stride {}, dilation {}, reaching {} before and {} after; the first "
          "three must be 1 or more, the others 0 or more, and all below 2^31",
          w.size, w.stride, w.dilation, w.before, w.after);
  if (w.outputs(x.dim(-2)) == 0) {
    fail_with<ShapeError>(
        op,
        fmt::format("no window fits: {} inputs with {} before and {} after, windows of {}",
                    x.dim(-2), w.before, w.after, (w.size - 1) * w.dilation + 1),
        {{"x", x}});
  }
}

/// Checks that every window holds an input.
void check_filled(std::string_view op, const Tensor& x, const PoolWindow& w) {
  const int64_t L = x.dim(-2), T = w.outputs(L);
  for (int64_t t = 0; t < T; ++t) {
    const int64_t start = t * w.stride - w.before;
    const int64_t k = start < 0 ? (-start + w.dilation - 1) / w.dilation : 0;  // first tap that is
                                                                               // not before input 0
    if (k >= w.size || start + k * w.dilation >= L) {
      fail_with<ShapeError>(op, fmt::format("window {} lies wholly outside the {} inputs", t, L),
                            {{"x", x}});
    }
  }
}

Shape with_length(Shape shape, int64_t T) {
  shape[shape.rank() - 2] = T;
  return shape;
}

Shape batch_shape(const Shape& shape) {
  int64_t B = 1;
  for (int i = 0; i < shape.rank() - 2; ++i) B *= shape[i];
  return {B, shape[shape.rank() - 2], shape[shape.rank() - 1]};
}

/// Returns a view of x as [B, L, D]; x must be row-major.
Tensor as_batch(const Tensor& x) {
  const Shape shape = batch_shape(x.shape());
  return x.alias(shape, contiguous_strides(shape), 0);
}

/// Returns an accumulator: y itself, or an f32 tensor for f16 and bf16.
Tensor accumulator_for(const Tensor& y) {
  const bool narrow = y.dtype() == DType::f16 || y.dtype() == DType::bf16;
  return narrow ? Tensor::empty(y.shape(), DType::f32, y.device(), Category::workspace) : y;
}

/// Geometry of a convolution as matrix products, one per tap and group.
struct Convolution {
  Taps taps;
  int64_t B, L, T, groups, inputs, outputs;  // channels per group

  /// Returns the rows of x [B, L, D] that tap k reads for a range of windows: [B, groups, rows,
  /// inputs].
  Tensor taken(const Tensor& x, int64_t k, WindowRange s) const {
    const int64_t D = groups * inputs;
    const int64_t start = s.first * taps.stride + k * taps.dilation - taps.before;
    return x.alias({B, groups, s.end - s.first, inputs}, {L * D, inputs, taps.stride * D, 1},
                   start * D);
  }
  /// Returns the range of windows in y [B, T, O]: [B, groups, rows, outputs].
  Tensor windows(const Tensor& y, WindowRange s) const {
    const int64_t O = groups * outputs;
    return y.alias({B, groups, s.end - s.first, outputs}, {T * O, outputs, O, 1}, s.first * O);
  }
  /// Returns tap k of weight [O, size, inputs], broadcast over samples: [B, groups, outputs,
  /// inputs].
  Tensor tap(const Tensor& weight, int64_t k) const {
    return weight.alias({B, groups, outputs, inputs},
                        {0, outputs * taps.size * inputs, taps.size * inputs, 1}, k * inputs);
  }
};

Tensor swapped(const Tensor& x) {
  Shape shape = x.shape();
  Strides strides = x.strides();
  std::swap(shape[2], shape[3]);
  std::swap(strides[2], strides[3]);
  return x.alias(shape, strides, 0);
}

void product(const Tensor& a, const Tensor& b, Tensor c) {
  if (c.numel() == 0) return;
  kernels::matmul(a.device(), a.view(), b.view(), c.mut(), {.accumulate = true});
}

void forward_products(const Convolution& g, const Tensor& x, const Tensor& w, const Tensor& bias,
                      Tensor& y) {
  Tensor sum = accumulator_for(y);
  if (bias) {
    const Tensor row = bias.alias(y.shape(), {0, 0, bias.strides()[0]}, 0);
    kernels::copy(y.device(), row.view(), sum.mut());
  } else {
    kernels::fill(y.device(), sum.mut(), 0.0);
  }
  for (int64_t k = 0; k < g.taps.size; ++k) {
    const WindowRange s = windows_of_tap(g.taps, k, g.L, g.T);
    if (s.first == s.end) continue;
    product(g.taken(x, k, s), swapped(g.tap(w, k)), g.windows(sum, s));
  }
  if (!sum.shares_storage(y)) kernels::copy(y.device(), sum.view(), y.mut());
}

void backward_x_products(const Convolution& g, const Tensor& dy, const Tensor& w, Tensor& dx) {
  Tensor sum = accumulator_for(dx);
  kernels::fill(dx.device(), sum.mut(), 0.0);
  for (int64_t k = 0; k < g.taps.size; ++k) {
    const WindowRange s = windows_of_tap(g.taps, k, g.L, g.T);
    if (s.first == s.end) continue;
    product(g.windows(dy, s), g.tap(w, k), g.taken(sum, k, s));
  }
  if (!sum.shares_storage(dx)) kernels::copy(dx.device(), sum.view(), dx.mut());
}

void backward_w_products(const Convolution& g, const Tensor& dy, const Tensor& x, Tensor& dw) {
  Tensor sum = accumulator_for(dw);
  kernels::fill(dw.device(), sum.mut(), 0.0);
  for (int64_t k = 0; k < g.taps.size; ++k) {
    const WindowRange s = windows_of_tap(g.taps, k, g.L, g.T);
    if (s.first == s.end) continue;
    const Tensor from = g.taken(x, k, s), to = swapped(g.windows(dy, s)), part = g.tap(sum, k);
    const auto sample = [](const Tensor& t, int64_t b) {
      Shape shape = t.shape();
      Strides strides = t.strides();
      shape.erase(0);
      strides.erase(0);
      return t.alias(shape, strides, b * t.strides()[0]);
    };
    for (int64_t b = 0; b < g.B; ++b) product(sample(to, b), sample(from, b), sample(part, 0));
  }
  if (!sum.shares_storage(dw)) kernels::copy(dw.device(), sum.view(), dw.mut());
}

/// Returns weight [D, size, 1] as the taps [size, D] of a depthwise convolution.
Tensor taps_first(const Tensor& weight) {
  const int64_t D = weight.dim(0), size = weight.dim(1);
  return contiguous(contiguous(weight).alias({size, D}, {1, size}, 0));
}

Grads convolution_backward(const Context& c, const Tensor& gradient, const Convolution& g,
                           bool depthwise) {
  const auto [x, weight] = c.saved<2>();
  const Tensor dy = contiguous(gradient), rows = as_batch(dy);
  const int64_t O = weight.dim(0);
  Tensor dx, dw, db;
  if (c.wants(0)) {
    dx = Tensor::like(x);
    Tensor to = as_batch(dx);
    if (!depthwise) {
      backward_x_products(g, rows, weight, to);
    } else if (dx.numel() > 0) {
      kernels::depthwise_backward_x(x.device(), rows.view(), taps_first(weight).view(), g.taps,
                                    to.mut());
    }
  }
  if (c.wants(1)) {
    dw = Tensor::like(weight);
    if (!depthwise) {
      backward_w_products(g, rows, as_batch(x), dw);
    } else if (dw.numel() > 0) {
      Tensor to = Tensor::empty({g.taps.size, O}, x.dtype(), x.device());
      kernels::depthwise_backward_w(x.device(), rows.view(), as_batch(x).view(), g.taps, to.mut());
      kernels::copy(x.device(), to.alias({O, g.taps.size, 1}, {1, O, 1}, 0).view(), dw.mut());
    }
  }
  if (c.wants(2)) {
    db = Tensor::empty({O}, x.dtype(), x.device());
    const Shape flat = {g.B * g.T, O};
    kernels::sum_rows(x.device(), dy.alias(flat, contiguous_strides(flat), 0).view(), db.mut());
  }
  return {dx, dw, db};
}

}  // namespace

Tensor mean_pool(const Tensor& input, const PoolWindow& window) {
  check("mean_pool", input, window);
  check_filled("mean_pool", input, window);
  const Tensor x = contiguous(input);
  const Taps taps = taps_of(window);
  Tensor y =
      Tensor::empty(with_length(x.shape(), window.outputs(x.dim(-2))), x.dtype(), x.device());
  if (y.numel() > 0) {
    kernels::mean_pool_forward(x.device(), as_batch(x).view(), taps, as_batch(y).mut());
  }
  return record("mean_pool", {x}, y, {},
                [taps, shape = x.shape()](const Context&, const Tensor& dy) -> Grads {
                  const Tensor g = contiguous(dy);
                  Tensor dx = Tensor::empty(shape, g.dtype(), g.device());
                  if (dx.numel() > 0) {
                    kernels::mean_pool_backward(g.device(), as_batch(g).view(), taps,
                                                as_batch(dx).mut());
                  }
                  return {dx};
                });
}

Tensor max_pool(const Tensor& input, const PoolWindow& window) {
  check("max_pool", input, window);
  check_filled("max_pool", input, window);
  const Tensor x = contiguous(input);
  const Taps taps = taps_of(window);
  const Shape shape = with_length(x.shape(), window.outputs(x.dim(-2)));
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  Tensor which = Tensor::empty(shape, window.size <= 256 ? DType::u8 : DType::i32, x.device());
  if (y.numel() > 0) {
    kernels::max_pool_forward(x.device(), as_batch(x).view(), taps, as_batch(y).mut(),
                              as_batch(which).mut());
  }
  return record("max_pool", {x}, y, save(which),
                [taps, before = x.shape()](const Context& c, const Tensor& dy) -> Grads {
                  const auto [places] = c.saved<1>();
                  const Tensor g = contiguous(dy);
                  Tensor dx = Tensor::empty(before, g.dtype(), g.device());
                  if (dx.numel() > 0) {
                    kernels::max_pool_backward(g.device(), as_batch(g).view(),
                                               as_batch(places).view(), taps, as_batch(dx).mut());
                  }
                  return {dx};
                });
}

Tensor conv1d(const Tensor& input, const Tensor& kernel, const Tensor& bias, PoolWindow window,
              int64_t groups) {
  require_rank_is("conv1d", kernel, 3, "weight");
  window.size = kernel.dim(1);
  check("conv1d", input, window);
  const int64_t D = input.dim(-1), O = kernel.dim(0);
  require_same_dtype("conv1d", {"x", input}, {"weight", kernel});
  require_same_device("conv1d", {"x", input}, {"weight", kernel});
  if (groups < 1 || D % groups != 0 || O % groups != 0 || kernel.dim(2) != D / groups) {
    fail_with<ShapeError>(
        "conv1d",
        fmt::format("{} groups of {} channels and {} outputs need a weight [{}, size, {}]", groups,
                    D, O, O, groups > 0 ? D / groups : D),
        {{"x", input}, {"weight", kernel}});
  }
  if (bias) {
    require_shape("conv1d", bias, {O}, "bias");
    require_same_dtype("conv1d", {"x", input}, {"bias", bias});
    require_same_device("conv1d", {"x", input}, {"bias", bias});
  }
  const Tensor x = contiguous(input), weight = contiguous(kernel);
  Shape shape = with_length(x.shape(), window.outputs(x.dim(-2)));
  shape[shape.rank() - 1] = O;
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  MacCount::add_products(y.numel() * window.size * (D / groups));
  const Shape in = batch_shape(x.shape()), out = batch_shape(y.shape());
  const Convolution g{taps_of(window), in[0], in[1], out[1], groups, D / groups, O / groups};
  const bool depthwise = groups == D && O == D;
  if (y.numel() > 0) {
    Tensor rows = as_batch(y);
    if (depthwise) {
      kernels::depthwise_forward(x.device(), as_batch(x).view(), taps_first(weight).view(),
                                 bias ? contiguous(bias).view() : ConstView{}, g.taps, rows.mut());
    } else {
      forward_products(g, as_batch(x), weight, bias, rows);
    }
  }
  return record("conv1d", {x, weight, bias}, y, save(x, weight),
                [g, depthwise](const Context& c, const Tensor& dy) {
                  return convolution_backward(c, dy, g, depthwise);
                });
}

}  // namespace longspan
