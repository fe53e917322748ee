#include "ops/matmul.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "autograd/checkpoint_scope.h"
#include "autograd/record.h"
#include "core/kernels/copy.h"
#include "core/kernels/matmul.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/rows.h"

namespace longspan {
namespace {

/// The axes before the last two.
Shape leading(const Tensor& x) { return Shape(std::span(x.shape().begin(), size_t(x.rank() - 2))); }

ConstView swap_last(ConstView v) {
  const int r = v.rank();
  std::swap(v.shape[r - 1], v.shape[r - 2]);
  std::swap(v.strides[r - 1], v.strides[r - 2]);
  return v;
}

/// Returns v with its leading axes expanded to `batch`.
ConstView repeat(const ConstView& v, const Shape& batch) {
  ConstView y = v;
  y.shape = batch;
  y.strides = Strides::filled(batch.rank(), 0);
  const int extra = batch.rank() - (v.rank() - 2);
  for (int i = 0; i < v.rank() - 2; ++i) {
    if (v.shape[i] != 1) y.strides[extra + i] = v.strides[i];
  }
  for (int i = v.rank() - 2; i < v.rank(); ++i) {
    y.shape.push_back(v.shape[i]);
    y.strides.push_back(v.strides[i]);
  }
  return y;
}

template <class V>
V pick(const V& v, int axis, int64_t i) {
  V y = v;
  using Byte = std::conditional_t<std::is_same_v<V, View>, char, const char>;
  y.data = static_cast<Byte*>(y.data) + i * y.strides[axis] * size_of(y.dtype);
  y.shape.erase(axis);
  y.strides.erase(axis);
  return y;
}

/// c += a b, summed over the leading axes in which c has stride 0, in order.
void sum_products(const ConstView& a, const ConstView& b, const View& c, const Device& device) {
  for (int axis = 0; axis < c.rank() - 2; ++axis) {
    if (c.strides[axis] != 0 || c.shape[axis] == 1) continue;
    for (int64_t i = 0; i < c.shape[axis]; ++i) {
      sum_products(pick(a, axis, i), pick(b, axis, i), pick(c, axis, i), device);
    }
    return;
  }
  kernels::matmul(device, a, b, c, {.accumulate = true});
}

/// Returns the gradient of one operand, in its shape: a b, summed over the axes that were
/// broadcast.
Tensor operand_gradient(const ConstView& a, const ConstView& b, const Tensor& operand,
                        const Shape& batch) {
  const bool narrow = operand.dtype() == DType::f16 || operand.dtype() == DType::bf16;
  if (leading(operand) == batch) {
    Tensor dx = Tensor::like(operand);
    kernels::matmul(dx.device(), a, b, dx.mut(), kernels::no_epilogue);
    return dx;
  }
  Tensor sum = Tensor::zeros(operand.shape(), narrow ? DType::f32 : operand.dtype(),
                             operand.device(), narrow ? Category::workspace : Category::other);
  View c = sum.mut();
  const ConstView repeated = repeat(c, batch);
  c.shape = repeated.shape;
  c.strides = repeated.strides;
  sum_products(a, b, c, sum.device());
  if (!narrow) return sum;
  Tensor dx = Tensor::like(operand);
  kernels::copy(dx.device(), sum.view(), dx.mut());
  return dx;
}

/// Returns [..., n] as [rows, n]: a view if the strides allow it, else a row-major copy.
Tensor even_rows(const Tensor& x) {
  const int64_t rows = detail::rows_of(x), n = x.dim(-1);
  int64_t step = n, merged = 0;  // rows merged so far, `step` apart
  bool even = true;
  for (int i = x.rank() - 2; i >= 0; --i) {
    if (x.dim(i) == 1) continue;  // its stride is irrelevant
    if (merged == 0) step = x.strides()[i];
    even = even && (merged == 0 || x.strides()[i] == step * merged);
    merged = std::max<int64_t>(merged, 1) * x.dim(i);
  }
  if (even) return x.alias({rows, n}, {step, x.strides()[x.rank() - 1]}, 0);
  return detail::as_rows(contiguous(x.detach()));
}

/// Returns rows begin to begin + n - 1 of axis 1.
Tensor rows_from(const Tensor& x, int64_t begin, int64_t n) {
  Shape shape = x.shape();
  shape[1] = n;
  return x.alias(shape, x.strides(), n > 0 ? begin * x.strides()[1] : 0);
}

/// Returns the gradient of the weight of joined_linear: the sum of dy^T x over the rows of both
/// segments, in order.
Tensor joined_weight_gradient(const Tensor& weight, const Tensor& dy, const Tensor (&x)[2]) {
  const bool narrow = weight.dtype() == DType::f16 || weight.dtype() == DType::bf16;
  Tensor sum = Tensor::zeros(weight.shape(), narrow ? DType::f32 : weight.dtype(), weight.device(),
                             narrow ? Category::workspace : Category::other);
  int64_t begin = 0;
  for (const Tensor& rows : x) {
    const Tensor g = even_rows(rows_from(dy, begin, rows.dim(1)));  // a copy: one product for all
    kernels::matmul(sum.device(), swap_last(g.view()), even_rows(rows).view(), sum.mut(),
                    {.accumulate = true});
    begin += rows.dim(1);
  }
  if (!narrow) return sum;
  Tensor dw = Tensor::like(weight);
  kernels::copy(dw.device(), sum.view(), dw.mut());
  return dw;
}

/// Makes grads[i] and grads[i + 1], the gradients of the weight and the bias of a layer with the
/// rows x of inputs, where they are wanted. Returns the matmul that sets them, if the weight's
/// gradient is wanted; the gradient of a bias alone is computed here.
std::optional<kernels::Product> parameter_gradients(const Context& c, int i, const Tensor& dy,
                                                    const Tensor& x, const Tensor& weight,
                                                    Grads& grads) {
  Tensor &dw = grads[static_cast<size_t>(i)], &db = grads[static_cast<size_t>(i + 1)];
  if (c.wants(i + 1)) db = Tensor::empty({weight.dim(0)}, weight.dtype(), weight.device());
  if (!c.wants(i)) {
    if (db) kernels::sum_rows(db.device(), dy.view(), db.mut());
    return {};
  }
  dw = Tensor::like(weight);
  std::optional<kernels::Product> p({.a = swap_last(dy.view()), .b = x.view(), .c = dw.mut()});
  if (db) p->epilogue.a_sums = db.mut();
  return p;
}

/// Sets grads[i] and grads[i + 1], the gradients of the weight and the bias, where wanted.
void set_parameter_gradients(const Context& c, int i, const Tensor& dy, const Tensor& x,
                             const Tensor& weight, Grads& grads) {
  const auto p = parameter_gradients(c, i, dy, x, weight, grads);
  if (p) kernels::matmul(weight.device(), p->a, p->b, p->c, p->epilogue);
}

void require_features(std::string_view op, const Tensor& x, const Tensor& weight) {
  if (x.dim(-1) == weight.dim(1)) return;
  fail_with<ShapeError>(op,
                        fmt::format("x has {} features, weight takes {}", x.dim(-1), weight.dim(1)),
                        {{"x", x}, {"weight", weight}});
}

void require_bias(std::string_view op, const Tensor& bias, const Tensor& weight) {
  if (!bias) return;
  require_same_dtype(op, {"weight", weight}, {"bias", bias});
  require_same_device(op, {"weight", weight}, {"bias", bias});
  require_shape(op, bias, {weight.dim(0)}, "bias");
}

void require_linear(std::string_view op, const Tensor& x, const Tensor& weight,
                    const Tensor& bias) {
  require_floating_pair(op, {"x", x}, {"weight", weight});
  require_rank(op, x, 1);
  require_rank_is(op, weight, 2, "weight");
  require_features(op, x, weight);
  require_bias(op, bias, weight);
}

/// Requires what a result of this shape is added to, if it is defined, to fit.
void require_onto(std::string_view op, const Tensor& onto, const Shape& shape, const Tensor& x) {
  if (!onto) return;
  require_same_dtype(op, {"x", x}, {"onto", onto});
  require_same_device(op, {"x", x}, {"onto", onto});
  require_shape(op, onto, shape, "onto");
}

/// Returns x with its last axis in `width` columns.
Shape with_last(Shape shape, int64_t width) {
  shape[shape.rank() - 1] = width;
  return shape;
}

/// rows W^T (+ b), and then what the epilogue says: [rows, out].
Tensor linear_rows(const Tensor& rows, const Tensor& weight, const Tensor& bias,
                   kernels::Epilogue epilogue = {}) {
  Tensor y = Tensor::empty({rows.dim(0), weight.dim(0)}, rows.dtype(), rows.device());
  MacCount::add_products(y.numel() * weight.dim(1));
  if (bias) epilogue.bias = bias.view();
  kernels::matmul(y.device(), rows.view(), swap_last(weight.view()), y.mut(), epilogue);
  return y;
}

/// linear_rows(rows, weight, bias) (+ onto), where onto has the result's shape: of that shape.
Tensor linear_onto(const Tensor& rows, const Tensor& weight, const Tensor& bias, const Tensor& onto,
                   const Shape& shape) {
  Tensor addend;  // a view of onto, or a copy
  if (onto) addend = even_rows(onto);
  if (onto && addend.strides()[1] != 1) addend = contiguous(addend.detach());
  const Tensor y =
      linear_rows(rows, weight, bias, {.addend = addend ? addend.view() : ConstView{}});
  return y.alias(shape, contiguous_strides(shape), 0);
}

/// Returns the sum of the gradients that other ops gave input i, if accumulating a matmul over k
/// into it changes no bits (longest_exact_addition()); else null.
Tensor* sum_for_product(const Context& c, int i, DType dtype, int64_t k) {
  return k <= kernels::longest_exact_addition(dtype) ? c.add_to(i) : nullptr;
}

/// Sets grads[i], the gradient of an input of shape [.., in], or adds it to those of other ops.
void set_input_gradient(const Context& c, int i, const Tensor& dy, const Tensor& weight,
                        const Shape& shape, Grads& grads) {
  if (!c.wants(i)) return;
  Tensor* const sum = sum_for_product(c, i, dy.dtype(), dy.dim(1));
  Tensor dx = sum != nullptr ? *sum : Tensor::empty(shape, dy.dtype(), dy.device());
  Tensor flat = dx.alias({dy.dim(0), weight.dim(1)}, {weight.dim(1), 1}, 0);
  kernels::matmul(dx.device(), dy.view(), weight.view(), flat.mut(),
                  {.accumulate = sum != nullptr});
  if (sum == nullptr) grads[static_cast<size_t>(i)] = dx;
}

/// One op of projections(). Inputs: x, and a weight and a bias for each result. Saves the rows of x
/// and the weights.
class ProjectionsNode final : public autograd::Node {
 public:
  ProjectionsNode(std::string_view op, Shape x_shape, const SaveList& list)
      : Node(op), shape_(x_shape) {
    save(std::span(list.tensors).first(static_cast<size_t>(list.count)));
  }

  Grads backward(std::span<const Tensor> dy) override {
    const Context c(*this);
    const Tensor& x = saved(0);
    const int count = static_cast<int>(dy.size());
    Grads grads(static_cast<size_t>(1 + 2 * count));
    std::vector<Tensor> rows(dy.size());  // [rows, out_i]; undefined if no gradient arrived
    for (size_t i = 0; i < dy.size(); ++i) {
      if (dy[i]) rows[i] = even_rows(dy[i]);
    }
    std::vector<kernels::Product> products;
    products.reserve(2 * dy.size());
    Tensor* const sum = c.add_to(0);
    if (c.wants(0)) grads[0] = input_gradient(rows, sum, products);
    for (int i = 0; i < count; ++i) {
      const Tensor& g = rows[static_cast<size_t>(i)];
      if (!g) continue;
      const auto p = parameter_gradients(c, 1 + 2 * i, g, x, saved(1 + i), grads);
      if (p) products.push_back(*p);
    }
    if (!products.empty()) kernels::products(x.device(), products);
    if (sum != nullptr) *sum = std::exchange(grads[0], {});
    return grads;
  }

 private:
  /// Returns dx, and fills `products` with the matmuls that set it. `sum`, the gradient of x from
  /// other ops or null, is added last, as a recomputing wrapper adds it.
  Tensor input_gradient(const std::vector<Tensor>& dy, const Tensor* sum,
                        std::vector<kernels::Product>& products) const {
    const Tensor& x = saved(0);
    const auto flat = [&](const Tensor& t) {
      return t.alias(x.shape(), contiguous_strides(x.shape()), 0);
    };
    Tensor dx = Tensor::empty(shape_, x.dtype(), x.device());
    for (size_t i = dy.size(); i-- > 0;) {
      if (!dy[i]) continue;
      const Tensor& w = saved(1 + static_cast<int>(i));
      products.push_back({.a = dy[i].view(), .b = w.view(), .c = flat(dx).mut()});
      products.back().epilogue.accumulate = products.size() > 1;
    }
    if (sum != nullptr) products.back().epilogue.addend = flat(*sum).view();
    return dx;
  }

  Shape shape_;  // of x
};

/// The function of an epilogue that computes f; none if f is gated.
std::optional<kernels::Unary> function_of(Activation f) {
  using kernels::Unary;
  switch (f) {
    case Activation::relu:
      return Unary::relu;
    case Activation::gelu_erf:
      return Unary::gelu_erf;
    case Activation::gelu_tanh:
      return Unary::gelu_tanh;
    case Activation::gelu_sigmoid:
      return Unary::gelu_sigmoid;
    case Activation::silu:
      return Unary::silu;
    case Activation::geglu:
    case Activation::geglu_tanh:
      break;
  }
  return {};
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  require_floating_pair("matmul", {"a", a}, {"b", b});
  require_rank("matmul", a, 2, "a");
  require_rank("matmul", b, 2, "b");
  if (a.dim(-1) != b.dim(-2)) {
    fail_with<ShapeError>("matmul",
                          fmt::format("inner dimensions differ: {} and {}", a.dim(-1), b.dim(-2)),
                          {{"a", a}, {"b", b}});
  }
  const Shape la = leading(a), lb = leading(b);
  Shape batch = Shape::filled(std::max(la.rank(), lb.rank()), 1);
  for (int i = 1; i <= batch.rank(); ++i) {
    const int64_t da = i <= la.rank() ? la[la.rank() - i] : 1,
                  db = i <= lb.rank() ? lb[lb.rank() - i] : 1;
    if (da != db && da != 1 && db != 1) {
      fail_with<ShapeError>(
          "matmul",
          fmt::format("leading axes {} and {} do not broadcast", to_string(la), to_string(lb)),
          {{"a", a}, {"b", b}});
    }
    batch[batch.rank() - i] = da == 1 ? db : da;
  }
  Shape shape = batch;
  shape.push_back(a.dim(-2));
  shape.push_back(b.dim(-1));
  const Tensor inputs[] = {a, b};
  const SaveList keep = save(a, b);
  const auto [y] =
      autograd::reuse_or_recompute<1>("matmul", inputs, keep, [&]() -> std::array<Tensor, 1> {
        Tensor result = Tensor::empty(shape, a.dtype(), a.device());
        MacCount::add_products(result.numel() * a.dim(-1));
        kernels::matmul(result.device(), repeat(a.view(), batch), repeat(b.view(), batch),
                        result.mut(), kernels::no_epilogue);
        return {result};
      });

  return record("matmul", {a, b}, y, keep, [batch](const Context& c, const Tensor& dy) -> Grads {
    const auto saved = c.saved<2>();
    const ConstView a_t = swap_last(repeat(saved[0].view(), batch));
    const ConstView b_t = swap_last(repeat(saved[1].view(), batch));
    Grads grads(2);
    if (c.wants(0)) grads[0] = operand_gradient(dy.view(), b_t, saved[0], batch);
    if (c.wants(1)) grads[1] = operand_gradient(a_t, dy.view(), saved[1], batch);
    return grads;
  });
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& onto) {
  require_linear("linear", x, weight, bias);
  const Shape shape = with_last(x.shape(), weight.dim(0));
  require_onto("linear", onto, shape, x);
  if (onto && autograd::CheckpointScope::current() != nullptr) {
    return add(onto, linear(x, weight, bias));
  }
  const Tensor rows = even_rows(x);  // [rows, in]
  const Tensor inputs[] = {x, weight, bias};
  const SaveList keep = save(rows, weight);
  const auto [y] = autograd::reuse_or_recompute<1>(
      "linear", inputs, keep,
      [&]() -> std::array<Tensor, 1> { return {linear_onto(rows, weight, bias, onto, shape)}; });

  const Shape x_shape = x.shape();
  return record("linear", {x, weight, bias, onto}, y, keep,
                [x_shape](const Context& c, const Tensor& dy) -> Grads {
                  const auto saved = c.saved<2>();
                  const Tensor &in = saved[0], &w = saved[1];
                  const Tensor g = even_rows(dy);  // [rows, out]
                  Grads grads(4);
                  grads[3] = dy;
                  set_input_gradient(c, 0, g, w, x_shape, grads);
                  set_parameter_gradients(c, 1, g, in, w, grads);
                  return grads;
                });
}

std::vector<Tensor> projections(const Tensor& x, std::span<const Projection> to) {
  constexpr const char* op = "projections";
  constexpr size_t most = std::tuple_size_v<decltype(SaveList::tensors)> - 1;
  require(!to.empty() && to.size() <= most, op, "{} weights are given; expected 1 to {}", to.size(),
          most);
  std::vector<Tensor> inputs = {x};
  for (const auto& [weight, bias] : to) {
    require_linear(op, x, weight, bias);
    inputs.push_back(weight);
    inputs.push_back(bias);
  }
  const Tensor rows = even_rows(x);  // [rows, in]
  SaveList keep = save(rows);
  for (const Projection& p : to) keep.tensors[static_cast<size_t>(keep.count++)] = p.weight;
  std::vector<Tensor> y =
      autograd::reuse_or_recompute<std::vector<Tensor>>(op, inputs, keep, to.size(), [&] {
        std::vector<Tensor> results;
        std::vector<kernels::Product> products;
        products.reserve(to.size());
        for (const auto& [weight, bias] : to) {
          const Shape shape = with_last(x.shape(), weight.dim(0));
          Tensor result = Tensor::empty({rows.dim(0), weight.dim(0)}, x.dtype(), x.device());
          MacCount::add_products(result.numel() * weight.dim(1));
          products.push_back({rows.view(), swap_last(weight.view()), result.mut()});
          if (bias) products.back().epilogue.bias = bias.view();
          results.push_back(result.alias(shape, contiguous_strides(shape), 0));
        }
        kernels::products(x.device(), products);
        return results;
      });

  std::vector<Tensor*> made;
  for (Tensor& one : y) made.push_back(&one);
  record_node(op, std::span<const Tensor>(inputs), std::span<Tensor* const>(made),
              [&] { return std::make_shared<ProjectionsNode>(op, x.shape(), keep); });
  return y;
}

Tensor joined_linear(const Tensor& before, const Tensor& x, const Tensor& weight,
                     const Tensor& bias) {
  constexpr const char* op = "joined_linear";
  if (!before) return linear(x, weight, bias);
  require_floating_pair(op, {"x", x}, {"weight", weight});
  require_floating_pair(op, {"before", before}, {"x", x});
  require_rank_is(op, before, 3, "before");
  require_rank_is(op, x, 3, "x");
  require_rank_is(op, weight, 2, "weight");
  require_features(op, x, weight);
  require_bias(op, bias, weight);
  if (before.dim(0) != x.dim(0) || before.dim(2) != x.dim(2)) {
    fail_with<ShapeError>(op, "before and x must agree except in their rows",
                          {{"before", before}, {"x", x}});
  }
  const int64_t batch = x.dim(0), out = weight.dim(0), first = before.dim(1);
  const Shape shape{batch, checked_sum(op, first, x.dim(1)), out};
  const Tensor inputs[] = {before, x, weight, bias};
  const SaveList keep = save(before, x, weight);
  const auto [y] =
      autograd::reuse_or_recompute<1>(op, inputs, keep, [&]() -> std::array<Tensor, 1> {
        Tensor result = Tensor::empty(shape, x.dtype(), x.device());
        MacCount::add_products(result.numel() * weight.dim(1));
        const ConstView w = repeat(swap_last(weight.view()), {batch});
        for (const auto& [begin, rows] : {std::pair{int64_t{0}, before}, std::pair{first, x}}) {
          Tensor part = rows_from(result, begin, rows.dim(1));
          kernels::matmul(result.device(), rows.view(), w, part.mut(),
                          {.bias = bias ? bias.view() : ConstView{}});
        }
        return {result};
      });

  return record(
      op, {before, x, weight, bias}, y, keep, [](const Context& c, const Tensor& dy) -> Grads {
        const auto saved = c.saved<3>();
        const Tensor &w = saved[2], in[] = {saved[0], saved[1]};
        Grads grads(4);
        int64_t begin = 0;
        for (int s = 0; s < 2; ++s) {
          const int64_t rows = in[s].dim(1);
          if (c.wants(s)) {
            Tensor* const sum = sum_for_product(c, s, dy.dtype(), dy.dim(2));
            Tensor dx = sum != nullptr ? *sum : Tensor::empty(in[s].shape(), w.dtype(), w.device());
            kernels::matmul(w.device(), rows_from(dy, begin, rows).view(),
                            repeat(w.view(), {dy.dim(0)}), dx.mut(),
                            {.accumulate = sum != nullptr});
            if (sum == nullptr) grads[s] = dx;
          }
          begin += rows;
        }
        if (c.wants(2)) grads[2] = joined_weight_gradient(w, dy, in);
        if (c.wants(3)) {
          grads[3] = Tensor::empty({w.dim(0)}, w.dtype(), w.device());
          kernels::sum_rows(w.device(), even_rows(dy).view(), grads[3].mut());
        }
        return grads;
      });
}

Tensor feed_forward(const Tensor& x, const Tensor& in_weight, const Tensor& in_bias, Activation f,
                    const Tensor& out_weight, const Tensor& out_bias, const Tensor& onto) {
  constexpr const char* op = "feed_forward";
  const std::optional<kernels::Unary> function = function_of(f);
  if (!function || autograd::CheckpointScope::current() != nullptr) {
    return linear(activate(f, linear(x, in_weight, in_bias)), out_weight, out_bias, onto);
  }
  require_linear(op, x, in_weight, in_bias);
  const Tensor rows = even_rows(x);  // [rows, in]
  Tensor slope;
  const Tensor inputs[] = {x, in_weight, in_bias, out_weight, out_bias, onto};
  kernels::Epilogue epilogue{.function = function};
  if (f != Activation::relu && autograd::wants_graph(inputs)) {
    slope = Tensor::empty({rows.dim(0), in_weight.dim(0)}, x.dtype(), x.device());
    epilogue.slope = slope.mut();
  }
  const Tensor h = linear_rows(rows, in_weight, in_bias, epilogue);  // [rows, F]
  require_linear(op, h, out_weight, out_bias);
  const Shape shape = with_last(x.shape(), out_weight.dim(0)), x_shape = x.shape();
  require_onto(op, onto, shape, x);
  const Tensor y = linear_onto(h, out_weight, out_bias, onto, shape);

  return record(
      op, {x, in_weight, in_bias, out_weight, out_bias, onto}, y,
      save(rows, in_weight, out_weight, h, slope),
      [x_shape, relu = f == Activation::relu](const Context& c, const Tensor& dy) -> Grads {
        const auto saved = c.saved<5>();
        const Tensor &in = saved[0], &w1 = saved[1], &w2 = saved[2], &hidden = saved[3];
        const Tensor g = even_rows(dy);  // [rows, out]
        Grads grads(6);
        grads[5] = dy;
        set_parameter_gradients(c, 3, g, hidden, w2, grads);
        if (!c.wants(0) && !c.wants(1) && !c.wants(2)) return grads;
        Tensor dz = Tensor::like(hidden);  // of x W1^T + b1
        kernels::Epilogue derivative;
        (relu ? derivative.positive : derivative.factor) = (relu ? hidden : saved[4]).view();
        kernels::matmul(dz.device(), g.view(), w2.view(), dz.mut(), derivative);
        set_parameter_gradients(c, 1, dz, in, w1, grads);
        set_input_gradient(c, 0, dz, w1, x_shape, grads);
        return grads;
      });
}

}  // namespace longspan
