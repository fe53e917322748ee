#include "ops/sort.h"

#include <limits>

#include "core/kernels/sort.h"
#include "ops/copy.h"
#include "ops/index.h"
#include "ops/shape.h"

namespace longspan {
namespace {

using SortKernel = Kernel<void(ConstView, bool, View, View)>;

/// Returns the indices of the first `count` sorted elements along the last axis.
Tensor order_of(std::string_view op, SortKernel& kernel, const Tensor& input, int64_t count,
                bool descending) {
  const Tensor x = contiguous(input.detach());
  const int64_t n = x.dim(-1);
  require<NotImplemented>(n <= std::numeric_limits<uint32_t>::max(), op,
                          "{} elements in a row; at most 2^32 - 1 are supported", n);
  Shape shape = x.shape();
  shape[x.rank() - 1] = count;
  Tensor indices = Tensor::empty(shape, DType::i64, x.device());
  if (indices.numel() == 0) return indices;
  const int64_t rows = x.numel() / n;
  Tensor work = Tensor::empty({kernels::sort_slots(rows), 4 * n}, DType::i64, x.device(),
                              Category::workspace);
  Tensor to = indices.alias({rows, count}, {count, 1}, 0);
  kernel(x.device(), x.alias({rows, n}, {n, 1}, 0).view(), descending, work.mut(), to.mut());
  return indices;
}

Sorted taken(const Tensor& x, const Tensor& indices) {
  return {take_along_axis(x, indices, -1), indices};
}

/// Applies f to x with the axis moved last, and moves the axis of its results back.
template <class F>
Sorted along(const Tensor& x, int axis, F f) {
  if (axis == x.rank() - 1) return f(x);
  const Sorted s = f(transpose(x, axis, -1));
  return {transpose(s.values, axis, -1), transpose(s.indices, axis, -1)};
}

}  // namespace

Tensor argsort(const Tensor& x, int axis, bool descending) {
  require_rank("argsort", x, 1);
  const int a = x.checked_axis(axis), last = x.rank() - 1;
  const Tensor rows = x.detach();
  const Tensor indices =
      order_of("argsort", kernels::argsort, a == last ? rows : transpose(rows, a, last), x.dim(a),
               descending);
  return a == last ? indices : transpose(indices, a, last);
}

Sorted sort(const Tensor& x, int axis, bool descending) {
  require_rank("sort", x, 1);
  return along(x, x.checked_axis(axis), [&](const Tensor& rows) {
    return taken(rows, order_of("sort", kernels::argsort, rows, rows.dim(-1), descending));
  });
}

Sorted topk(const Tensor& x, int64_t k, int axis, bool largest) {
  require_rank("topk", x, 1);
  const int a = x.checked_axis(axis);
  if (k < 0 || k > x.dim(a)) {
    fail_with<ValueError>("topk", fmt::format("{} of axis {}, which has {}", k, a, x.dim(a)),
                          {{"x", x}});
  }
  return along(x, a, [&](const Tensor& rows) {
    return taken(rows, order_of("topk", kernels::topk, rows, k, largest));
  });
}

Tensor inverse_permutation(const Tensor& order) {
  require_rank("inverse_permutation", order, 1, "order");
  const int64_t n = order.dim(-1);
  const Tensor ids = detail::checked_ids("inverse_permutation", order, 0, n, "order");
  Tensor inverse = Tensor::empty(order.shape(), DType::i64, order.device());
  if (order.numel() == 0) return inverse;
  const int64_t rows = order.numel() / n;
  const Tensor from = contiguous(ids).alias({rows, n}, {n, 1}, 0);
  Tensor to = inverse.alias({rows, n}, {n, 1}, 0);
  deferred::check(
      order.device(),
      [&](View found) {
        kernels::invert_permutation(order.device(), from.view(), to.mut(), found);
      },
      [n, line = describe("order", order)](int64_t at, int64_t) {
        fail<ValueError>("inverse_permutation",
                         "row {} contains an index twice, the second time at {}\n{}", at / n,
                         at % n, line);
      });
  return inverse;
}

}  // namespace longspan
