#include "ops/reduce.h"

#include <limits>

#include "autograd/record.h"
#include "core/kernels/copy.h"
#include "core/kernels/reduce.h"
#include "core/kernels/softmax.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/rows.h"
#include "ops/shape.h"

namespace longspan {
namespace {

using detail::as_line;
using detail::as_rows;

/// The shapes of a reduction: with the reduced axes kept at size 1, and as returned.
struct Reduced {
  Shape kept, returned;
  int64_t count = 1;  // elements per sum
};

Reduced reduced(std::string_view op, const Tensor& x, std::span<const int> axes, bool keepdim) {
  Reduced r;
  r.kept = x.shape();
  bool summed[max_rank] = {};
  for (const int axis : axes) {
    const int a = x.checked_axis(axis);
    if (summed[a]) {
      fail_with<ShapeError>(op, fmt::format("axis {} is given twice", a), {{"x", x}});
    }
    summed[a] = true;
    r.count *= x.dim(a);
    r.kept[a] = 1;
  }
  for (int i = 0; i < x.rank(); ++i) {
    if (!summed[i] || keepdim) r.returned.push_back(r.kept[i]);
  }
  return r;
}

/// Expands dy, whose reduced axes have size 1 in `kept`, to `shape` without a copy.
Tensor repeated(const Tensor& dy, const Shape& kept, const Shape& shape) {
  return expand(reshape(dy, kept), shape);
}

Tensor scaled_sum(std::string_view op, const Tensor& x, std::span<const int> axes, bool keepdim,
                  bool divide) {
  require_floating(op, x);
  const Reduced r = reduced(op, x, axes, keepdim);
  const double scale = divide ? (r.count > 0 ? 1 / static_cast<double>(r.count)
                                             : std::numeric_limits<double>::quiet_NaN())
                              : 1.0;
  Tensor y = Tensor::empty(r.kept, x.dtype(), x.device());
  kernels::reduce_sum(x.device(), x.view(), scale, y.mut());
  y = y.alias(r.returned, contiguous_strides(r.returned), 0);
  return record(
      op, {x}, y, save(),
      [scale, kept = r.kept, shape = x.shape()](const Context&, const Tensor& dy) -> Grads {
        return {repeated(scale == 1 ? dy : mul(dy, scale), kept, shape)};
      });
}

/// All axes of x.
struct AllAxes {
  explicit AllAxes(const Tensor& x) : rank(x.rank()) {
    for (int i = 0; i < rank; ++i) list[i] = i;
  }
  operator std::span<const int>() const { return {list, static_cast<size_t>(rank)}; }
  int list[max_rank];
  int rank;
};

/// x with one axis moved to the end, row-major.
Tensor with_last(const Tensor& x, int axis) {
  if (axis == x.rank() - 1) return contiguous(x);
  int order[max_rank], n = 0;
  for (int i = 0; i < x.rank(); ++i) {
    if (i != axis) order[n++] = i;
  }
  order[n++] = axis;
  return contiguous(permute(x, std::span<const int>(order, static_cast<size_t>(n))));
}

Extremum extremum(std::string_view op, bool largest, const Tensor& x, int axis, bool keepdim) {
  require_defined(op, x);
  const int a = x.checked_axis(axis);
  if (x.dim(a) == 0) {
    fail_with<ShapeError>(op, fmt::format("axis {} is empty: there is no extremum", a), {{"x", x}});
  }
  const Shape returned = reduced(op, x, std::span(&a, 1), keepdim).returned;
  const Tensor last = with_last(x, a);
  Tensor values = Tensor::empty(returned, x.dtype(), x.device());
  Tensor indices = Tensor::empty(returned, DType::i64, x.device());
  kernels::reduce_extremum(x.device(), largest, as_rows(last).view(), as_line(values).mut(),
                           as_line(indices).mut());
  if (!is_floating(x.dtype())) return {values, indices};
  values = record(op, {last}, values, save(indices),
                  [shape = last.shape()](const Context& c, const Tensor& dy) -> Grads {
                    const auto saved = c.saved<1>();
                    const Tensor g = contiguous(dy);
                    Tensor dx = Tensor::empty(shape, g.dtype(), g.device());
                    kernels::reduce_extremum_backward(g.device(), as_line(saved[0]).view(),
                                                      as_line(g).view(), as_rows(dx).mut());
                    return {dx};
                  });
  return {values, indices};
}

}  // namespace

Tensor sum(const Tensor& x) {
  require_floating("sum", x);
  return sum(x, AllAxes(x));
}
Tensor sum(const Tensor& x, std::span<const int> axes, bool keepdim) {
  return scaled_sum("sum", x, axes, keepdim, false);
}
Tensor sum(const Tensor& x, std::initializer_list<int> axes, bool keepdim) {
  return sum(x, std::span(axes.begin(), axes.size()), keepdim);
}

Tensor mean(const Tensor& x) {
  require_floating("mean", x);
  return mean(x, AllAxes(x));
}
Tensor mean(const Tensor& x, std::span<const int> axes, bool keepdim) {
  return scaled_sum("mean", x, axes, keepdim, true);
}
Tensor mean(const Tensor& x, std::initializer_list<int> axes, bool keepdim) {
  return mean(x, std::span(axes.begin(), axes.size()), keepdim);
}

Tensor variance(const Tensor& x, std::initializer_list<int> axes, bool keepdim,
                int64_t correction) {
  require_floating("variance", x);
  const Reduced r = reduced("variance", x, std::span(axes.begin(), axes.size()), keepdim);
  require(correction >= 0 && correction < r.count, "variance",
          "correction {} for {} elements; needs 0 or more, and fewer than the elements", correction,
          r.count);
  Tensor y = mean(square(sub(x, mean(x, axes, true))), axes, keepdim);
  if (correction == 0) return y;
  return mul(y, static_cast<double>(r.count) / static_cast<double>(r.count - correction));
}

Extremum max(const Tensor& x, int axis, bool keepdim) {
  return extremum("max", true, x, axis, keepdim);
}
Extremum min(const Tensor& x, int axis, bool keepdim) {
  return extremum("min", false, x, axis, keepdim);
}
Tensor argmax(const Tensor& x, int axis, bool keepdim) {
  return extremum("argmax", true, x.detach(), axis, keepdim).indices;
}
Tensor argmin(const Tensor& x, int axis, bool keepdim) {
  return extremum("argmin", false, x.detach(), axis, keepdim).indices;
}

Tensor logsumexp(const Tensor& x, int axis, bool keepdim) {
  require_floating("logsumexp", x);
  const int a = x.checked_axis(axis);
  const Shape returned = reduced("logsumexp", x, std::span(&a, 1), keepdim).returned;
  const Tensor last = with_last(x, a);
  Tensor y = Tensor::empty(returned, x.dtype(), x.device());
  kernels::logsumexp_forward(x.device(), as_rows(last).view(), as_line(y).mut());
  return record("logsumexp", {last}, y, save(last),
                [](const Context& c, const Tensor& dy) -> Grads {
                  const auto saved = c.saved<1>();
                  const Tensor g = contiguous(dy);
                  Tensor dx = Tensor::like(saved[0]);
                  kernels::logsumexp_backward(g.device(), as_rows(saved[0]).view(),
                                              as_line(g).view(), as_rows(dx).mut());
                  return {dx};
                });
}

namespace {

/// Sums along the last axis, from its start or from its end.
Tensor running_sum(const Tensor& input, bool reverse) {
  const Tensor x = contiguous(input);
  const bool floating = is_floating(x.dtype());
  Tensor y = Tensor::empty(x.shape(), floating ? x.dtype() : DType::i64, x.device());
  if (y.numel() > 0) {
    kernels::cumulative_sum(x.device(), as_rows(x).view(), reverse, as_rows(y).mut());
  }
  if (!floating) return y;
  return record("cumsum", {x}, y, save(), [reverse](const Context&, const Tensor& dy) -> Grads {
    return {running_sum(dy, !reverse)};
  });
}

}  // namespace

Tensor cumsum(const Tensor& x, int axis) {
  require_defined("cumsum", x);
  const int a = x.checked_axis(axis), last = x.rank() - 1;
  return transpose(running_sum(transpose(x, a, last), false), a, last);
}

}  // namespace longspan
