#include "ops/loss.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/record.h"
#include "core/graph.h"
#include "core/kernels/copy.h"
#include "core/kernels/elementwise.h"
#include "core/kernels/gradient.h"
#include "core/kernels/index.h"
#include "core/kernels/loss.h"
#include "core/kernels/matmul.h"
#include "core/kernels/reduce.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/index.h"
#include "ops/rows.h"

namespace longspan {
namespace {

using kernels::Unary;

constexpr int64_t most_logits = int64_t{1} << 19;  // of a tile
constexpr int64_t most_classes = 4096;
constexpr int64_t most_logits_at_once = int64_t{1} << 24;  // of a tile with all classes

/// x [..., n] as [rows, n], row-major.
Tensor rows_of(const Tensor& x) { return detail::as_rows(contiguous(x.detach())); }

/// Returns x flattened, row-major.
Tensor line_of(const Tensor& x) { return detail::as_line(contiguous(x.detach())); }

Tensor rows_between(const Tensor& x, int64_t begin, int64_t end) {
  Shape shape = x.shape();
  shape[0] = end - begin;
  return x.alias(shape, x.strides(), begin * x.strides()[0]);
}

/// Runs the checks that both ops share. Returns the targets as [rows].
Tensor checked_targets(std::string_view op, const Tensor& x, const Tensor& targets, int64_t classes,
                       const CrossEntropyOptions& options) {
  require_floating(op, x);
  require_rank(op, x, 1);
  require_integer(op, targets, "targets");
  require_same_device(op, {"x", x}, {"targets", targets});
  Shape expected = x.shape();
  expected.erase(expected.rank() - 1);
  require_shape(op, targets, expected, "targets");
  require(options.smoothing >= 0 && options.smoothing <= 1, op,
          "smoothing must be in [0, 1], not {}", options.smoothing);
  return detail::checked_ids(
      line_of(targets), 0, classes, options.ignore,
      [op = std::string(op), classes, ignore = options.ignore](int64_t at, int64_t id) {
        fail<ValueError>(op,
                         "target {} at position {} is not in [0, {}) and not the ignored value {}",
                         id, at, classes, ignore);
      });
}

/// Reduces the losses of the rows to the result.
Tensor reduce(const Tensor& loss, const Tensor& targets, const Shape& shape,
              const CrossEntropyOptions& options) {
  if (options.reduction == Reduction::none) return loss.alias(shape, contiguous_strides(shape), 0);
  Tensor y = Tensor::empty({}, loss.dtype(), loss.device());
  kernels::cross_entropy_total(y.device(), loss.view(), targets.view(), options.ignore,
                               options.reduction == Reduction::mean, y.mut());
  return y;
}

/// d loss / d (loss of each row).
Tensor row_scale(const Tensor& dy, const Tensor& targets, const CrossEntropyOptions& options) {
  const int64_t rows = targets.dim(0);
  Tensor scale = Tensor::empty({rows}, dy.dtype(), dy.device());
  kernels::cross_entropy_scale(dy.device(), line_of(dy).view(), targets.view(), options.ignore,
                               options.reduction == Reduction::mean, scale.mut());
  return scale;
}

/// Returns the index of each target, -1 where the target is `ignore`: i64, on the targets' device.
Tensor places_but(const Tensor& targets, int64_t ignore) {
  const Device on = targets.device();
  const Shape shape = targets.shape();
  const auto everywhere = [&](double value, DType dtype) {
    return full({}, value, dtype, on).alias(shape, Strides::filled(shape.rank(), 0), 0);
  };
  // In i64, an `ignore` outside the range of the targets' dtype equals no target.
  const Tensor wide = cast(targets, DType::i64);
  Tensor ignored = Tensor::empty(shape, DType::u8, on),
         places = Tensor::empty(shape, DType::i64, on);
  kernels::compare(on, kernels::Comparison::equal, wide.view(),
                   everywhere(static_cast<double>(ignore), DType::i64).view(), ignored.mut());
  kernels::arange(on, places.mut(), 0, 1);
  kernels::select(on, ignored.view(), everywhere(-1, DType::i64).view(), places.view(),
                  places.mut());
  return places;
}

/// Selects the rows whose targets are not ignored, in order. On the meta device all rows count. A
/// device, and the meta device in its place (graph::rehearsing()), keeps all rows, so that the host
/// need not wait for their number: ignored rows are read as zeros, and the gradients of their
/// losses are 0.
struct Counted {
  Counted(const Tensor& targets, int64_t ignore) : total(targets.dim(0)) {
    if (targets.device() == meta_device && !graph::rehearsing()) return;
    if (targets.device().kind != DeviceKind::cpu) {
      read_as = places_but(targets, ignore);
      return;
    }
    switch (targets.dtype()) {
      case DType::i64:
        read<int64_t>(targets, ignore);
        break;
      case DType::i32:
        read<int32_t>(targets, ignore);
        break;
      default:
        read<uint8_t>(targets, ignore);
    }
  }

  int64_t count() const { return all ? total : static_cast<int64_t>(rows.size()); }
  /// Returns the counted rows of x [total, ...]; a one-element x is returned unchanged.
  Tensor of(const Tensor& x) const {
    if (all || x.numel() == 1) return x;
    return gathered(x, Tensor::from(rows, {1, count()}, x.device()));
  }
  /// Scatters y [count] back to its rows in [total], 0 elsewhere.
  Tensor spread(const Tensor& y) const {
    if (all) return y;
    std::vector<int64_t> from(static_cast<size_t>(total), -1);
    for (size_t i = 0; i < rows.size(); ++i) {
      from[static_cast<size_t>(rows[i])] = static_cast<int64_t>(i);
    }
    if (rows.empty()) return Tensor::zeros({total}, y.dtype(), y.device());
    return gathered(y, Tensor::from(from, {1, total}, y.device()));
  }

  int64_t total;
  bool all = true;
  std::vector<int64_t> rows;
  Tensor read_as;  // i64 [total], on a device: each row's own index, -1 if it is ignored

 private:
  template <class T>
  void read(const Tensor& targets, int64_t ignore) {
    const std::vector<T> ids = targets.to_vector<T>();
    for (int64_t i = 0; i < total; ++i) {
      if (int64_t{ids[static_cast<size_t>(i)]} != ignore) rows.push_back(i);
    }
    all = std::ssize(rows) == total;
    if (all) rows.clear();
  }
  /// Gathers x [n] by ids [1, m]; 0 where an id is negative.
  static Tensor gathered(const Tensor& x, const Tensor& ids) {
    Tensor y = Tensor::empty({ids.dim(1)}, x.dtype(), x.device());
    Tensor to = y.alias({1, ids.dim(1), 1}, {ids.dim(1), 1, 1}, 0);
    const int64_t n = x.dim(0);
    if (y.numel() > 0) {
      kernels::gather_rows(x.device(), x.alias({1, n, 1}, {n, 1, 1}, 0).view(), ids.view(),
                           to.mut());
    }
    return y;
  }
};

/// A linear layer with a cross-entropy: x as [T, D], the targets of counted rows, and the options.
struct Head {
  Tensor h, weight, bias, targets;
  const Counted& counted;
  CrossEntropyOptions options;
  std::array<bool, 3> wants;  // gradients of h, weight and bias
};

/// Computes the logits of counted tokens [t0, t1) for classes [v0, v1). Each tile reuses the memory
/// of the previous one.
class LogitTile {
 public:
  LogitTile(const Head& head, bool all_classes)
      : head_(head),
        x_(head.h),
        weight_(head.weight),
        bias_(head.bias),
        sums_(accumulator_of(x_.dtype())),
        cap_(head.options.soft_cap) {
    const int64_t all = weight_.dim(0);
    classes = all_classes ? all : std::min(all, most_classes);
    tokens = most_logits / std::max<int64_t>(classes, 1);
    if (classes > most_classes) {
      tokens = std::clamp<int64_t>(most_logits_at_once / classes, 64, 1024);
    }
    tokens = std::clamp<int64_t>(tokens, 1, std::max<int64_t>(head.counted.count(), 1));
    const Device on = x_.device();
    workspace_ = Tensor::empty({tokens * classes}, sums_, on, Category::workspace);
    if (cap_ != 0) tanh_ = Tensor::empty(workspace_.shape(), sums_, on, Category::workspace);
    if (!head.counted.all || head.counted.read_as) {
      rows_ = Tensor::empty({tokens, x_.dim(1)}, x_.dtype(), on, Category::workspace);
    }
  }

  /// [t1 - t0, D]
  Tensor inputs(int64_t t0, int64_t t1) {
    const Tensor& read_as = head_.counted.read_as;
    if (head_.counted.all && !read_as) return rows_between(x_, t0, t1);
    const Tensor rows = rows_between(rows_, 0, t1 - t0);
    if (t0 == at_) return rows;
    const Tensor from = read_as ? as_group(x_) : reach(x_, t0, t1);
    const Tensor ids =
        read_as ? read_as.alias({1, t1 - t0}, {head_.counted.total, 1}, t0) : places(t0, t1);
    Tensor to = as_group(rows);
    kernels::gather_rows(x_.device(), from.view(), ids.view(), to.mut());
    at_ = t0;
    return rows;
  }

  /// Adds `part`, which holds rows of these tokens, to their rows of a sum [T, D].
  void add_to_rows(const Tensor& part, Tensor& sum, int64_t t0, int64_t t1) const {
    Tensor to = reach(sum, t0, t1);
    Tensor work =
        Tensor::empty({1, to.dim(1) + 1 + t1 - t0}, DType::i32, sum.device(), Category::workspace);
    kernels::scatter_add_rows(sum.device(), as_group(part).view(), places(t0, t1).view(),
                              work.mut(), to.mut());
  }

  Tensor logits(int64_t t0, int64_t t1, int64_t v0, int64_t v1) {
    Tensor z = workspace_.alias({t1 - t0, v1 - v0}, {v1 - v0, 1}, 0);
    ConstView w = rows_between(weight_, v0, v1).view();
    std::swap(w.shape[0], w.shape[1]);
    std::swap(w.strides[0], w.strides[1]);
    const Device on = x_.device();
    kernels::matmul(on, inputs(t0, t1).view(), w, z.mut(),
                    {.bias = bias_ ? rows_between(bias_, v0, v1).view() : ConstView{}});
    if (cap_ != 0) {
      Tensor y = tanh_.alias(z.shape(), z.strides(), 0);
      kernels::unary_forward(on, Unary::affine, 1 / cap_, 0, z.view(), z.mut());
      kernels::unary_forward(on, Unary::tanh, 0, 0, z.view(), y.mut());
      kernels::unary_forward(on, Unary::affine, cap_, 0, y.view(), z.mut());
    }
    return z;
  }

  /// Turns the gradient of the latest logits after the soft cap into their gradient before it, in
  /// place.
  void through_cap(Tensor& dz) const {
    if (cap_ == 0) return;
    const Tensor y = tanh_.alias(dz.shape(), dz.strides(), 0);
    kernels::unary_backward(x_.device(), Unary::tanh, 0, 0, y.view(), dz.view(), dz.mut());
  }

  int64_t tokens, classes;

 private:
  static Tensor as_group(const Tensor& x) {
    return x.alias({1, x.dim(0), x.dim(1)}, {x.numel(), x.dim(1), 1}, 0);
  }
  int64_t row(int64_t t) const { return head_.counted.rows[static_cast<size_t>(t)]; }
  /// Returns the rows of x from the first to the last of these tokens; places() returns the tokens'
  /// indices within them.
  Tensor reach(const Tensor& x, int64_t t0, int64_t t1) const {
    return as_group(rows_between(x, row(t0), row(t1 - 1) + 1));
  }
  Tensor places(int64_t t0, int64_t t1) const {
    std::vector<int64_t> at;
    for (int64_t t = t0; t < t1; ++t) at.push_back(row(t) - row(t0));
    return Tensor::from(at, {1, t1 - t0}, x_.device());
  }

  const Head& head_;
  Tensor x_, weight_, bias_;
  DType sums_;
  double cap_;
  Tensor workspace_, tanh_, rows_;
  int64_t at_ = -1;  // the first token that rows_ holds
};

/// Calls f(t0, t1) for consecutive ranges of at most `size`.
template <class F>
void for_ranges(int64_t n, int64_t size, F&& f) {
  for (int64_t i = 0; i < n; i += size) f(i, std::min(n, i + size));
}

/// Gradients of a head, accumulated tile by tile.
class HeadGradients {
 public:
  explicit HeadGradients(const Head& head) : head_(head), sums_(accumulator_of(head.h.dtype())) {
    const Tensor* const inputs[] = {&head.h, &head.weight, &head.bias};
    for (size_t i = 0; i < 3; ++i) {
      if (head.wants[i]) sum_[i] = Tensor::zeros(inputs[i]->shape(), sums_, head.h.device());
    }
  }

  /// Adds the gradients of a tile; z holds its logits and becomes their gradient; totals and scale
  /// are of its tokens.
  void add(LogitTile& tile, Tensor z, int64_t t0, int64_t t1, int64_t v0, int64_t v1,
           const Tensor& totals, const Tensor& scale) {
    const CrossEntropyOptions& o = head_.options;
    kernels::cross_entropy_gradient(z.device(), z.mut(), rows_between(head_.targets, t0, t1).view(),
                                    v0, totals.view(), scale.view(), o.smoothing, o.z_loss,
                                    head_.weight.dim(0));
    add_products(tile, z, t0, t1, v0, v1);
  }

  /// Adds the gradients of a tile; z, the gradient of its logits, is overwritten.
  void add_products(LogitTile& tile, Tensor z, int64_t t0, int64_t t1, int64_t v0, int64_t v1) {
    const Device on = z.device();
    tile.through_cap(z);
    if (sum_[2]) {
      Tensor part = Tensor::empty({v1 - v0}, sums_, on, Category::workspace);
      kernels::sum_rows(on, z.view(), part.mut());
      Tensor to = rows_between(sum_[2], v0, v1);
      kernels::accumulate(on, part.view(), to.mut());
    }
    const Tensor g = head_.h.dtype() == sums_ ? z : cast(z, head_.h.dtype());
    if (sum_[0]) {
      const bool all = head_.counted.all;
      if (!all && v0 == 0) part_ = Tensor::zeros({t1 - t0, head_.h.dim(1)}, sums_, on);
      Tensor to = all ? rows_between(sum_[0], t0, t1) : part_;
      kernels::matmul(on, g.view(), rows_between(head_.weight, v0, v1).view(), to.mut(),
                      {.accumulate = true});
      if (!all && v1 == head_.weight.dim(0)) tile.add_to_rows(part_, sum_[0], t0, t1);
    }
    if (sum_[1]) {
      ConstView g_t = g.view();  // [v, t]
      std::swap(g_t.shape[0], g_t.shape[1]);
      std::swap(g_t.strides[0], g_t.strides[1]);
      kernels::matmul(on, g_t, tile.inputs(t0, t1).view(), rows_between(sum_[1], v0, v1).mut(),
                      {.accumulate = true});
    }
  }

  /// Returns the accumulated gradient of input i in the dtype of x and the given shape.
  Tensor take(size_t i, const Shape& shape) const {
    if (!sum_[i]) return {};
    return cast(sum_[i].alias(shape, contiguous_strides(shape), 0), head_.h.dtype());
  }

 private:
  const Head& head_;
  DType sums_;
  std::array<Tensor, 3> sum_;
  Tensor part_;  // of the rows of a tile, unless all rows count
};

/// Losses of the rows, and [rows, 2] their largest logits m and sums of exp(logit - m), unless the
/// gradients are computed here.
struct RowLosses {
  Tensor loss, totals;
};
RowLosses losses_of(const Head& head, HeadGradients* gradients, const Tensor& scale) {
  const Device on = head.h.device();
  const DType sums = accumulator_of(head.h.dtype());
  const int64_t T = head.counted.count(), V = head.weight.dim(0);
  const CrossEntropyOptions& o = head.options;
  Tensor loss = Tensor::empty({T}, sums, on), totals;
  if (gradients == nullptr) totals = Tensor::empty({T, 2}, sums, on);
  LogitTile tile(head, gradients != nullptr);
  for_ranges(T, tile.tokens, [&](int64_t t0, int64_t t1) {
    const ConstView ids = rows_between(head.targets, t0, t1).view();
    Tensor z, state = Tensor::empty({t1 - t0, 4}, sums, on, Category::workspace);
    for_ranges(V, tile.classes, [&](int64_t v0, int64_t v1) {
      z = tile.logits(t0, t1, v0, v1);
      if (gradients == nullptr) {
        kernels::cross_entropy_scan(on, z.view(), ids, v0, o.smoothing != 0, state.mut());
      } else {  // of all classes
        kernels::cross_entropy_rows(on, z.view(), ids, rows_between(scale, t0, t1).view(),
                                    o.smoothing, o.z_loss, z.mut(), state.mut());
      }
    });
    kernels::cross_entropy_finish(on, state.view(), ids, o.ignore, o.smoothing, o.z_loss, V,
                                  totals ? rows_between(totals, t0, t1).mut() : View{},
                                  rows_between(loss, t0, t1).mut());
    state = {};
    if (gradients != nullptr && z) gradients->add_products(tile, z, t0, t1, 0, V);
  });
  return {loss, totals};
}

/// Whether the gradients of a head are computed in the forward pass.
bool computes_in_forward(const CrossEntropyOptions& o, DType dtype, int64_t classes) {
  if (o.gradient != LossGradient::automatic) return o.gradient == LossGradient::in_forward;
  // Up to most_classes, forward and backward use the same tiles. In f16, gradients divided by the
  // number of rows may underflow before the loss scale multiplies them.
  return o.reduction != Reduction::none && dtype != DType::f16 && classes <= most_classes;
}

/// Computes gradients from recomputed logits and the totals of the counted rows.
Grads gradients_again(const Head& head, const Tensor& totals, const Tensor& dy,
                      const Shape& shape) {
  const Tensor scale = row_scale(head.counted.of(line_of(dy)), head.targets, head.options);
  LogitTile tile(head, false);
  HeadGradients gradients(head);
  const int64_t classes = head.weight.dim(0);
  for_ranges(head.counted.count(), tile.tokens, [&](int64_t t0, int64_t t1) {
    for_ranges(classes, tile.classes, [&](int64_t v0, int64_t v1) {
      gradients.add(tile, tile.logits(t0, t1, v0, v1), t0, t1, v0, v1, rows_between(totals, t0, t1),
                    rows_between(scale, t0, t1));
    });
  });
  return {gradients.take(0, shape), gradients.take(1, head.weight.shape()),
          gradients.take(2, {classes})};
}

/// Multiplies a gradient that forward has saved by factor [1] or [rows] in the dtype of the factor,
/// whose range may exceed that of the gradient's dtype: in place, unless the graph is retained.
Tensor scaled(const Tensor& saved, const Tensor& factor) {
  if (!saved) return saved;
  Tensor y = graph_is_retained() ? Tensor::like(saved) : saved;
  const Tensor from = detail::as_rows(saved);
  Tensor to = detail::as_rows(y);
  kernels::multiply_rows(y.device(), from.view(), line_of(factor).view(), to.mut());
  return y;
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  require_rank("cross_entropy", logits, 1, "logits");
  require(options.z_loss == 0 && options.soft_cap == 0, "cross_entropy",
          "z_loss and soft_cap are for linear_cross_entropy");
  const int64_t V = logits.dim(-1);
  const Tensor t = checked_targets("cross_entropy", logits, targets, V, options);
  const int64_t rows = t.dim(0);
  const DType sums = accumulator_of(logits.dtype());
  const Tensor z = rows_of(logits);  // [rows, V]
  // If the graph needs a gradient, it is computed and saved now, up to the factor dy. f16 and bf16
  // keep it undivided, since a mean over many rows may fall below their range.
  const bool graph = autograd::wants_graph({&logits, 1}), narrow = sums != logits.dtype();
  const bool by_rows = narrow || options.reduction == Reduction::none;
  CrossEntropyOptions now = options;
  if (by_rows) now.reduction = Reduction::sum;
  Tensor dz, scale, state = Tensor::empty({rows, 4}, sums, z.device());
  if (graph) {
    dz = Tensor::like(z);
    scale = row_scale(full({}, 1.0, sums, z.device()), t, now);
  }
  kernels::cross_entropy_rows(z.device(), z.view(), t.view(), scale.view(), options.smoothing, 0,
                              graph ? dz.mut() : View{}, state.mut());
  Tensor loss = Tensor::empty({rows}, sums, z.device());
  kernels::cross_entropy_finish(z.device(), state.view(), t.view(), options.ignore,
                                options.smoothing, 0, V, View{}, loss.mut());

  return record("cross_entropy", {logits}, reduce(loss, t, targets.shape(), options),
                save(dz, by_rows ? t : Tensor{}),
                [options, shape = logits.shape()](const Context& c, const Tensor& dy) -> Grads {
                  const auto saved = c.saved<2>();
                  const Tensor factor = saved[1] ? row_scale(dy, saved[1], options) : dy;
                  return {scaled(saved[0], factor).alias(shape, contiguous_strides(shape), 0)};
                });
}

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const Tensor& targets, const CrossEntropyOptions& options) {
  constexpr std::string_view op = "linear_cross_entropy";
  require_rank(op, x, 1);
  require_rank_is(op, weight, 2, "weight");
  require_same_dtype(op, {"x", x}, {"weight", weight});
  require_same_device(op, {"x", x}, {"weight", weight});
  if (x.dim(-1) != weight.dim(1)) {
    fail_with<ShapeError>(
        op, fmt::format("x has {} features, weight takes {}", x.dim(-1), weight.dim(1)),
        {{"x", x}, {"weight", weight}});
  }
  if (bias) {
    require_same_dtype(op, {"x", x}, {"bias", bias});
    require_same_device(op, {"x", x}, {"bias", bias});
    require_shape(op, bias, {weight.dim(0)}, "bias");
  }
  require(options.soft_cap >= 0, op, "soft_cap is {}; needs 0 or more", options.soft_cap);
  const Tensor t = checked_targets(op, x, targets, weight.dim(0), options);
  MacCount::add_products(x.numel() * weight.dim(0));
  const Tensor inputs[] = {x, weight, bias};
  const Counted counted(t, options.ignore);
  const Head head{rows_of(x),
                  weight.detach(),
                  bias ? contiguous(bias.detach()) : Tensor{},
                  counted.of(t),
                  counted,
                  options,
                  {requires_grad(x), requires_grad(weight), requires_grad(bias)}};
  const Shape shape = x.shape();
  const auto total = [&](const Tensor& losses) {
    return reduce(counted.spread(losses), t, targets.shape(), options);
  };

  if (computes_in_forward(options, x.dtype(), weight.dim(0)) && autograd::wants_graph(inputs)) {
    require(options.reduction != Reduction::none, op,
            "gradients in forward need one loss; use Reduction::mean or sum, or recompute");
    const Tensor one = full({}, 1.0, accumulator_of(x.dtype()), x.device());
    HeadGradients gradients(head);
    const RowLosses rows = losses_of(head, &gradients, row_scale(one, head.targets, options));
    return record(op, {x, weight, bias}, total(rows.loss),
                  save(gradients.take(0, shape), gradients.take(1, weight.shape()),
                       gradients.take(2, {weight.dim(0)})),
                  [](const Context& c, const Tensor& dy) -> Grads {
                    const auto saved = c.saved<3>();
                    return {scaled(saved[0], dy), scaled(saved[1], dy), scaled(saved[2], dy)};
                  });
  }

  const RowLosses rows = losses_of(head, nullptr, {});
  return record(op, {x, weight, bias}, total(rows.loss),
                save(head.h, weight, head.bias, t, rows.totals),
                [options, shape](const Context& c, const Tensor& dy) -> Grads {
                  const auto saved = c.saved<5>();
                  const Counted counts(saved[3], options.ignore);
                  const Head again{saved[0],
                                   saved[1],
                                   saved[2],
                                   counts.of(saved[3]),
                                   counts,
                                   options,
                                   {c.wants(0), c.wants(1), c.wants(2)}};
                  return gradients_again(again, saved[4], dy, shape);
                });
}

namespace {

using kernels::PairLoss;

/// Reduces the pairwise loss of each element and its target. Only `squared` gives the targets a
/// gradient.
Tensor pair_loss(std::string_view op, PairLoss f, double weight, Named x, const Tensor& targets,
                 Reduction reduction) {
  const DType sums = accumulator_of(x.tensor.dtype());
  const Device on = x.tensor.device();
  const Tensor z = line_of(x.tensor), t = line_of(targets);
  Tensor y = Tensor::empty(z.shape(), sums, on);
  kernels::pair_loss(on, f, weight, z.view(), t.view(), y.mut());
  double scale = 1;
  if (reduction == Reduction::none) {
    y = y.alias(x.tensor.shape(), contiguous_strides(x.tensor.shape()), 0);
  } else {
    if (reduction == Reduction::mean) scale /= static_cast<double>(std::max<int64_t>(1, z.numel()));
    Tensor total = Tensor::empty({1}, sums, on);
    kernels::reduce_sum(on, y.view(), scale, total.mut());
    y = total.alias({}, {}, 0);
  }
  const Shape shape = x.tensor.shape();
  return record(
      op, {x.tensor, f == PairLoss::squared ? targets : Tensor{}}, y, save(z, t),
      [f, weight, scale, shape](const Context& c, const Tensor& dy) -> Grads {
        const auto saved = c.saved<2>();
        const auto gradient = [&](double factor) {
          Tensor dx = Tensor::empty(shape, saved[0].dtype(), saved[0].device());
          Tensor to = dx.alias(saved[0].shape(), {1}, 0);
          kernels::pair_loss_gradient(dx.device(), f, weight, saved[0].view(), saved[1].view(),
                                      line_of(dy).view(), factor, to.mut());
          return dx;
        };
        return {c.wants(0) ? gradient(scale) : Tensor{}, c.wants(1) ? gradient(-scale) : Tensor{}};
      });
}

void require_pair(std::string_view op, Named x, Named targets) {
  require_floating_pair(op, x, targets);
  require_same_shape(op, x, targets);
}

}  // namespace

Tensor mse(const Tensor& x, const Tensor& targets, Reduction reduction) {
  require_pair("mse", {"x", x}, {"targets", targets});
  return pair_loss("mse", PairLoss::squared, 1, {"x", x}, targets, reduction);
}

Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& targets,
                                        const BinaryCrossEntropyOptions& options) {
  constexpr std::string_view op = "binary_cross_entropy_with_logits";
  require_pair(op, {"logits", logits}, {"targets", targets});
  require(options.positive_weight >= 0, op, "a positive weight of {}; needs 0 or more",
          options.positive_weight);
  const Tensor t = line_of(targets);
  deferred::check(
      t.device(), [&](View found) { kernels::find_outside(t.device(), t.view(), 0, 1, found); },
      [op](int64_t at, int64_t bits) {
        fail<ValueError>(op, "target {} at position {} is not in [0, 1]",
                         std::bit_cast<double>(bits), at);
      });
  return pair_loss(op, PairLoss::binary_entropy, options.positive_weight, {"logits", logits},
                   targets, options.reduction);
}

}  // namespace longspan
