#include "ops/elementwise.h"

#include <algorithm>
#include <cmath>

#include "autograd/record.h"
#include "core/kernels/elementwise.h"
#include "ops/shape.h"

namespace longspan {

using kernels::Binary;
using kernels::Comparison;
using kernels::Unary;

Shape broadcast_shape(std::string_view op, Named a, Named b) {
  const Shape &sa = a.tensor.shape(), &sb = b.tensor.shape();
  Shape shape = Shape::filled(std::max(sa.rank(), sb.rank()), 1);
  for (int i = 1; i <= shape.rank(); ++i) {
    const int64_t da = i <= sa.rank() ? sa[sa.rank() - i] : 1;
    const int64_t db = i <= sb.rank() ? sb[sb.rank() - i] : 1;
    if (da != db && da != 1 && db != 1) {
      fail_with<ShapeError>(
          op,
          fmt::format("shapes {} and {} do not broadcast: from the last axis on, sizes must agree "
                      "or be 1",
                      to_string(sa), to_string(sb)),
          {a, b});
    }
    shape[shape.rank() - i] = da == 1 ? db : da;
  }
  return shape;
}

namespace {

/// The tensor that the backward function of a Unary needs.
enum class Keep { nothing, x, y };

Tensor unary_gradient(Unary f, double alpha, double beta, const Tensor& v, const Tensor& dy) {
  Tensor dx = Tensor::like(dy);
  kernels::unary_backward(dy.device(), f, alpha, beta, v.view(), dy.view(), dx.mut());
  return dx;
}

Tensor unary(std::string_view op, Unary f, Keep keep, const Tensor& x, double alpha = 0,
             double beta = 0) {
  require_floating(op, x);
  Tensor y = Tensor::like(x);
  kernels::unary_forward(x.device(), f, alpha, beta, x.view(), y.mut());
  return record(op, {x}, y, keep == Keep::nothing ? save() : save(keep == Keep::x ? x : y),
                [f, keep, alpha, beta](const Context& c, const Tensor& dy) -> Grads {
                  if (keep == Keep::nothing) return {unary_gradient(f, alpha, beta, dy, dy)};
                  return {unary_gradient(f, alpha, beta, c.saved<1>()[0], dy)};
                });
}

Tensor apply(Binary f, const Tensor& a, const Tensor& b) {
  Tensor y = Tensor::like(a);
  kernels::binary(a.device(), f, a.view(), b.view(), y.mut());
  return y;
}

/// For functions whose derivative is cheap to compute along with the value: saves it in place of x.
Tensor with_slope(std::string_view op, Unary f, const Tensor& x) {
  if (!autograd::wants_graph({&x, 1})) return unary(op, f, Keep::nothing, x);
  require_floating(op, x);
  Tensor y = Tensor::like(x), slope = Tensor::like(x);
  kernels::unary_slope(x.device(), f, x.view(), y.mut(), slope.mut());
  return record(op, {x}, y, save(slope), [](const Context& c, const Tensor& dy) -> Grads {
    return {apply(Binary::mul, c.saved<1>()[0], dy)};
  });
}

/// alpha x + beta.
Tensor affine(std::string_view op, const Tensor& x, double alpha, double beta) {
  return unary(op, Unary::affine, Keep::nothing, x, alpha, beta);
}

Tensor negated(const Tensor& x) {
  Tensor y = Tensor::like(x);
  kernels::unary_forward(x.device(), Unary::affine, -1.0, 0.0, x.view(), y.mut());
  return y;
}

/// a and b expanded to one shape.
struct Pair {
  Tensor a, b;
};

Pair matched(std::string_view op, const Tensor& a, const Tensor& b) {
  require_same_dtype(op, {"a", a}, {"b", b});
  require_same_device(op, {"a", a}, {"b", b});
  const Shape shape = broadcast_shape(op, {"a", a}, {"b", b});
  return {expand(a, shape), expand(b, shape)};
}

Pair matched_floating(std::string_view op, const Tensor& a, const Tensor& b) {
  require_floating(op, a, "a");
  require_floating(op, b, "b");
  return matched(op, a, b);
}

/// Routes dy to the first input where `chosen` is nonzero, else to the second.
Grads divided(const Context& c, const Tensor& chosen, const Tensor& dy) {
  const Tensor zero = Tensor::zeros({}, dy.dtype(), dy.device());
  const ConstView nothing = zero.alias(dy.shape(), Strides::filled(dy.rank(), 0), 0).view();
  Grads grads(2);
  for (int i = 0; i < 2; ++i) {
    if (!c.wants(i)) continue;
    Tensor dx = Tensor::like(dy);
    kernels::select(dy.device(), chosen.view(), i == 0 ? dy.view() : nothing,
                    i == 0 ? nothing : dy.view(), dx.mut());
    grads[static_cast<size_t>(i)] = dx;
  }
  return grads;
}

Tensor compared(Comparison f, const Tensor& a, const Tensor& b) {
  Tensor y = Tensor::empty(a.shape(), DType::u8, a.device());
  kernels::compare(a.device(), f, a.view(), b.view(), y.mut());
  return y;
}

Tensor extremum(std::string_view op, Binary f, const Tensor& a, const Tensor& b) {
  const Pair p = matched_floating(op, a, b);
  const Comparison chooses_a =
      f == Binary::maximum ? Comparison::greater_equal : Comparison::less_equal;
  return record(op, {p.a, p.b}, apply(f, p.a, p.b), save(p.a, p.b),
                [chooses_a](const Context& c, const Tensor& dy) -> Grads {
                  const auto s = c.saved<2>();
                  return divided(c, compared(chooses_a, s[0], s[1]), dy);
                });
}

Tensor comparison(std::string_view op, Comparison f, const Tensor& a, const Tensor& b) {
  require(a && b, op, "an argument is undefined");
  const Pair p = matched(op, a, b);
  return compared(f, p.a, p.b);
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  const Pair p = matched_floating("add", a, b);
  return record("add", {p.a, p.b}, apply(Binary::add, p.a, p.b), save(),
                [](const Context&, const Tensor& dy) -> Grads {
                  return {dy, dy};
                });
}

Tensor sub(const Tensor& a, const Tensor& b) {
  const Pair p = matched_floating("sub", a, b);
  return record("sub", {p.a, p.b}, apply(Binary::sub, p.a, p.b), save(),
                [](const Context& c, const Tensor& dy) -> Grads {
                  return {dy, c.wants(1) ? negated(dy) : Tensor{}};
                });
}

Tensor mul(const Tensor& a, const Tensor& b) {
  const Pair p = matched_floating("mul", a, b);
  const Tensor none;
  return record("mul", {p.a, p.b}, apply(Binary::mul, p.a, p.b),
                save(requires_grad(p.b) ? p.a : none, requires_grad(p.a) ? p.b : none),
                [](const Context& c, const Tensor& dy) -> Grads {
                  const auto s = c.saved<2>();
                  return {c.wants(0) ? apply(Binary::mul, dy, s[1]) : Tensor{},
                          c.wants(1) ? apply(Binary::mul, dy, s[0]) : Tensor{}};
                });
}

Tensor div(const Tensor& a, const Tensor& b) {
  const Pair p = matched_floating("div", a, b);
  const Tensor y = apply(Binary::div, p.a, p.b);
  return record("div", {p.a, p.b}, y, save(p.b, requires_grad(p.b) ? y : Tensor{}),
                [](const Context& c, const Tensor& dy) -> Grads {
                  const auto s = c.saved<2>();
                  const Tensor da = apply(Binary::div, dy, s[0]);
                  if (!c.wants(1)) return {da, {}};
                  return {da, negated(apply(Binary::mul, da, s[1]))};  // db = -(dy / b) (a / b)
                });
}

Tensor maximum(const Tensor& a, const Tensor& b) {
  return extremum("maximum", Binary::maximum, a, b);
}
Tensor minimum(const Tensor& a, const Tensor& b) {
  return extremum("minimum", Binary::minimum, a, b);
}

Tensor add(const Tensor& x, double c) { return affine("add", x, 1, c); }
Tensor sub(const Tensor& x, double c) { return affine("sub", x, 1, -c); }
Tensor sub(double c, const Tensor& x) { return affine("sub", x, -1, c); }
Tensor mul(const Tensor& x, double c) { return affine("mul", x, c, 0); }
Tensor div(const Tensor& x, double c) { return affine("div", x, 1 / c, 0); }
Tensor neg(const Tensor& x) { return affine("neg", x, -1, 0); }
Tensor div(double c, const Tensor& x) {
  require_floating("div", x);
  return mul(reciprocal(x), c);
}

Tensor exp(const Tensor& x) { return unary("exp", Unary::exp, Keep::y, x); }
Tensor sqrt(const Tensor& x) { return unary("sqrt", Unary::sqrt, Keep::y, x); }
Tensor rsqrt(const Tensor& x) { return unary("rsqrt", Unary::rsqrt, Keep::y, x); }
Tensor reciprocal(const Tensor& x) { return unary("reciprocal", Unary::reciprocal, Keep::y, x); }
Tensor log(const Tensor& x) { return unary("log", Unary::log, Keep::x, x); }
Tensor log1p(const Tensor& x) { return unary("log1p", Unary::log1p, Keep::x, x); }
Tensor square(const Tensor& x) { return unary("square", Unary::square, Keep::x, x); }
Tensor sin(const Tensor& x) { return unary("sin", Unary::sin, Keep::x, x); }
Tensor cos(const Tensor& x) { return unary("cos", Unary::cos, Keep::x, x); }
Tensor erf(const Tensor& x) { return unary("erf", Unary::erf, Keep::x, x); }
Tensor abs(const Tensor& x) { return unary("abs", Unary::abs, Keep::x, x); }
Tensor pow(const Tensor& x, double p) { return unary("pow", Unary::power, Keep::x, x, p); }

Tensor clamp(const Tensor& x, double low, double high) {
  require(low <= high, "clamp", "low {} is above high {}", low, high);
  return unary("clamp", Unary::clamp, Keep::x, x, low, high);
}

Tensor round_to_grid(const Tensor& x, int bits) {
  require(bits >= 0 && bits <= 100, "round_to_grid", "bits is {}; expected 0 to 100", bits);
  require_floating("round_to_grid", x);
  Tensor y = Tensor::like(x);
  kernels::unary_forward(x.device(), Unary::grid, std::ldexp(1.0, bits), std::ldexp(1.0, -bits),
                         x.view(), y.mut());
  return record("round_to_grid", {x}, y, save(),
                [](const Context&, const Tensor& dy) -> Grads { return {dy}; });
}

Tensor tanh(const Tensor& x) { return unary("tanh", Unary::tanh, Keep::y, x); }
Tensor sigmoid(const Tensor& x) { return unary("sigmoid", Unary::sigmoid, Keep::y, x); }
Tensor softplus(const Tensor& x) { return unary("softplus", Unary::softplus, Keep::x, x); }
Tensor relu(const Tensor& x) { return unary("relu", Unary::relu, Keep::y, x); }
Tensor relu_squared(const Tensor& x) {
  return unary("relu_squared", Unary::relu_squared, Keep::x, x);
}
Tensor leaky_relu(const Tensor& x, double slope) {
  return unary("leaky_relu", Unary::leaky_relu, Keep::x, x, slope);
}
Tensor elu(const Tensor& x, double alpha) {
  require(alpha > 0, "elu", "alpha is {}; needs more than 0", alpha);
  return unary("elu", Unary::elu, Keep::y, x, alpha);
}
Tensor silu(const Tensor& x) { return with_slope("silu", Unary::silu, x); }
Tensor gelu_erf(const Tensor& x) { return with_slope("gelu_erf", Unary::gelu_erf, x); }
Tensor gelu_tanh(const Tensor& x) { return with_slope("gelu_tanh", Unary::gelu_tanh, x); }
Tensor sigmoid_gelu(const Tensor& x) { return with_slope("sigmoid_gelu", Unary::gelu_sigmoid, x); }

namespace {

/// The first (0) or second (1) half of the last axis.
Tensor half(const Tensor& x, int which) {
  Shape shape = x.shape();
  const int last = shape.rank() - 1;
  shape[last] /= 2;
  return x.alias(shape, x.strides(), which * shape[last] * x.strides()[last]);
}

Tensor gated(std::string_view op, Unary f, const Tensor& x) {
  require_floating(op, x);
  require_rank(op, x, 1);
  if (x.dim(-1) % 2 != 0) {
    fail_with<ShapeError>(
        op, fmt::format("the last axis holds value and gate, but its size {} is odd", x.dim(-1)),
        {{"x", x}});
  }
  const Tensor u = half(x, 0), v = half(x, 1);
  Tensor y = Tensor::like(u);
  kernels::gated_forward(x.device(), f, u.view(), v.view(), y.mut());
  return record(op, {x}, y, save(x), [f](const Context& c, const Tensor& dy) -> Grads {
    const auto saved = c.saved<1>();
    const Tensor a = half(saved[0], 0), b = half(saved[0], 1);
    const Tensor dx = Tensor::like(saved[0]);
    Tensor da = half(dx, 0), db = half(dx, 1);
    kernels::gated_backward(dy.device(), f, a.view(), b.view(), dy.view(), da.mut(), db.mut());
    return {dx};
  });
}

}  // namespace

Tensor geglu(const Tensor& x) { return gated("geglu", Unary::gelu_erf, x); }
Tensor geglu_tanh(const Tensor& x) { return gated("geglu_tanh", Unary::gelu_tanh, x); }
Tensor swiglu(const Tensor& x) { return gated("swiglu", Unary::silu, x); }

Tensor activate(Activation f, const Tensor& x) {
  switch (f) {
    case Activation::relu:
      return relu(x);
    case Activation::gelu_erf:
      return gelu_erf(x);
    case Activation::gelu_tanh:
      return gelu_tanh(x);
    case Activation::gelu_sigmoid:
      return sigmoid_gelu(x);
    case Activation::geglu:
      return geglu(x);
    case Activation::geglu_tanh:
      return geglu_tanh(x);
    case Activation::silu:
      break;
  }
  return silu(x);
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  require(condition && a && b, "where", "an argument is undefined");
  if (condition.dtype() != DType::u8) {
    fail_with<DTypeError>("where", "condition must be u8; make it with a comparison or a cast",
                          {{"condition", condition}});
  }
  require_same_device("where", {"condition", condition}, {"a", a});
  const Pair first = matched("where", a, b);
  const Shape shape = broadcast_shape("where", {"condition", condition}, {"a, b", first.a});
  const Tensor c = expand(condition, shape), p = expand(first.a, shape), q = expand(first.b, shape);
  Tensor y = Tensor::like(p);
  kernels::select(y.device(), c.view(), p.view(), q.view(), y.mut());
  return record("where", {p, q}, y, save(c), [](const Context& context, const Tensor& dy) -> Grads {
    const auto saved = context.saved<1>();
    return divided(context, saved[0], dy);
  });
}

Tensor equal(const Tensor& a, const Tensor& b) {
  return comparison("equal", Comparison::equal, a, b);
}
Tensor not_equal(const Tensor& a, const Tensor& b) {
  return comparison("not_equal", Comparison::not_equal, a, b);
}
Tensor less(const Tensor& a, const Tensor& b) { return comparison("less", Comparison::less, a, b); }
Tensor less_equal(const Tensor& a, const Tensor& b) {
  return comparison("less_equal", Comparison::less_equal, a, b);
}
Tensor greater(const Tensor& a, const Tensor& b) {
  return comparison("greater", Comparison::greater, a, b);
}
Tensor greater_equal(const Tensor& a, const Tensor& b) {
  return comparison("greater_equal", Comparison::greater_equal, a, b);
}

}  // namespace longspan
