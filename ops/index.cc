#include "ops/index.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "autograd/record.h"
#include "core/graph.h"
#include "core/kernels/copy.h"
#include "core/kernels/index.h"
#include "ops/copy.h"
#include "ops/shape.h"

namespace longspan {
namespace detail {

Tensor checked_ids(const Tensor& ids, int64_t low, int64_t high, std::optional<int64_t> ignore,
                   deferred::ErrorHandler on_error) {
  const Device device = ids.device();
  if (ids.numel() == 0) return ids;
  if (device == meta_device) {
    return graph::rehearsing() ? Tensor::empty(ids.shape(), ids.dtype(), device) : ids;
  }
  const bool on_host = device.kind == DeviceKind::cpu;
  Tensor checked = on_host ? ids : Tensor::empty(ids.shape(), ids.dtype(), device);
  deferred::check(
      device,
      [&](View found) {
        kernels::check_ids(device, ids.view(), low, high, ignore, on_host ? View{} : checked.mut(),
                           found);
      },
      std::move(on_error));
  if (high <= std::max<int64_t>(low, 0)) {  // there is no valid id to substitute
    graph::refuse("checked_ids", "the host looks whether a table without rows is asked for one");
    deferred::raise_pending(device);
  }
  return checked;
}

Tensor checked_ids(std::string_view op, const Tensor& ids, int64_t low, int64_t high,
                   std::string_view name) {
  require_integer(op, ids, name);
  // The error handler may run later and must not keep the tensor alive.
  const auto on_error = [op = std::string(op), name = std::string(name), line = describe(name, ids),
                         shape = ids.shape(), low, high](int64_t at, int64_t id) {
    Shape place = shape;
    for (int i = shape.rank() - 1; i >= 0; --i) {
      place[i] = at % shape[i];
      at /= shape[i];
    }
    fail<ValueError>(op, "{} holds {} at {}; it must be at least {} and less than {}\n{}", name, id,
                     to_string(place), low, high, line);
  };
  return checked_ids(ids, low, high, std::nullopt, on_error);
}

void require_ids(std::string_view op, const Tensor& ids, int64_t low, int64_t high,
                 std::string_view name) {
  checked_ids(op, ids, low, high, name);
  deferred::raise_pending(ids.device());
}

}  // namespace detail

namespace {

using detail::checked_ids;

/// x viewed as G tables of R rows of W elements, with n ids for each.
struct Rows {
  int64_t G = 1, R = 1, W = 1, n = 1;
  bool common = true;  // one list of ids serves all tables
};

/// Returns the gather lists as [G, n], with stride 0 if one list serves all tables.
Tensor lists(const Tensor& ids, const Rows& rows) {
  if (rows.common) {
    const Tensor flat = contiguous(ids);
    return flat.alias({rows.G, rows.n}, {0, 1}, 0);
  }
  return ids.alias({rows.G, rows.n}, {rows.n, 1}, 0);
}

/// y += scatter of x; both as in kernels::scatter_add_rows, in any shape.
void scatter_into(const Tensor& x, const Tensor& ids, const Rows& rows, Tensor& y) {
  if (x.numel() == 0 || y.numel() == 0) return;
  const int64_t count = rows.common ? 1 : rows.G, length = rows.R + 1 + rows.n;
  Tensor work = Tensor::empty({count, length}, DType::i32, x.device(), Category::workspace);
  const Tensor from =
      contiguous(x).alias({rows.G, rows.n, rows.W}, {rows.n * rows.W, rows.W, 1}, 0);
  Tensor to = y.alias({rows.G, rows.R, rows.W}, {rows.R * rows.W, rows.W, 1}, 0);
  kernels::scatter_add_rows(x.device(), from.view(), lists(ids, rows).view(), work.mut(), to.mut());
}

struct GatherNode final : autograd::AccumulatingNode {
  GatherNode(std::string_view op, const Tensor& ids, const Rows& r)
      : AccumulatingNode(op), rows(r) {
    save({ids});
  }
  void add_to(std::span<const Tensor> dy, Tensor& sum) override {
    scatter_into(dy[0], saved(0), rows, sum);
  }

  Rows rows;
};

void require_sizes(std::string_view op, const Rows& rows) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max() - 1;
  require<NotImplemented>(rows.R <= most && rows.n <= most && rows.R + rows.n < most, op,
                          "{} rows and {} ids; at most 2^31 together are supported", rows.R,
                          rows.n);
}

/// Gathers into `shape` and records the backward node. ids have been checked.
Tensor gather(std::string_view op, const Tensor& input, const Tensor& ids, const Rows& rows,
              const Shape& shape) {
  require_sizes(op, rows);
  const Tensor x = contiguous(input);
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  if (y.numel() > 0) {
    const Tensor from = x.alias({rows.G, rows.R, rows.W}, {rows.R * rows.W, rows.W, 1}, 0);
    Tensor to = y.alias({rows.G, rows.n, rows.W}, {rows.n * rows.W, rows.W, 1}, 0);
    kernels::gather_rows(x.device(), from.view(), lists(ids, rows).view(), to.mut());
  }
  record_node(op, {x}, {&y}, [&] { return std::make_shared<GatherNode>(op, ids, rows); });
  return y;
}

/// Computes the sizes of x before, along and after an axis.
Rows around(const Tensor& x, int axis) {
  Rows rows;
  rows.R = x.dim(axis);
  for (int i = 0; i < x.rank(); ++i) {
    if (i < axis) rows.G *= x.dim(i);
    if (i > axis) rows.W *= x.dim(i);
  }
  return rows;
}

/// Checks that lists [..., n] fit x, whose leading axes are `lead`, and that ids are in [-1, high).
/// Returns a single shared list as it is, other lists expanded and contiguous.
Tensor fitted(std::string_view op, const Tensor& x, const Tensor& order, int64_t high, Rows& rows) {
  const int lead = x.rank() - 2;
  require_rank(op, order, 1, "order");
  require_integer(op, order, "order");
  require_same_device(op, {"x", x}, {"order", order});
  bool fits = order.rank() <= lead + 1;
  rows.common = true;
  for (int i = 0; fits && i < order.rank() - 1; ++i) {
    const int64_t size = order.dim(i), wanted = x.dim(lead - (order.rank() - 1) + i);
    fits = size == 1 || size == wanted;
    rows.common = rows.common && size == 1;
  }
  if (!fits) {
    fail_with<ShapeError>(op,
                          "the axes of order before its last must be 1 or those of x before its "
                          "last two",
                          {{"x", x}, {"order", order}});
  }
  const Tensor ids = checked_ids(op, order, -1, high, "order");
  rows.n = order.dim(-1);
  rows.G = 1;
  Shape shape;
  for (int i = 0; i < lead; ++i) {
    shape.push_back(x.dim(i));
    rows.G *= x.dim(i);
  }
  rows.W = x.dim(-1);
  if (rows.common) return contiguous(ids);
  shape.push_back(rows.n);
  return contiguous(expand(ids, shape));
}

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& ids) {
  require_rank("embedding", weight, 1, "weight");
  require_integer("embedding", ids, "ids");
  require_same_device("embedding", {"weight", weight}, {"ids", ids});
  const Tensor checked = checked_ids("embedding", ids, 0, weight.dim(0));
  Rows rows = around(weight, 0);
  rows.n = ids.numel();
  Shape shape = ids.shape();
  for (int i = 1; i < weight.rank(); ++i) shape.push_back(weight.dim(i));
  return gather("embedding", weight, checked, rows, shape);
}

Tensor take(const Tensor& x, const Tensor& ids, int axis) {
  require_rank("take", x, 1);
  require_integer("take", ids, "ids");
  require_rank_is("take", ids, 1, "ids");
  require_same_device("take", {"x", x}, {"ids", ids});
  const int a = x.checked_axis(axis);
  const Tensor checked = checked_ids("take", ids, 0, x.dim(a));
  Rows rows = around(x, a);
  rows.n = ids.numel();
  Shape shape = x.shape();
  shape[a] = rows.n;
  return gather("take", x, checked, rows, shape);
}

Tensor take_along_axis(const Tensor& x, const Tensor& ids, int axis) {
  require_rank("take_along_axis", x, 1);
  require_integer("take_along_axis", ids, "ids");
  require_same_device("take_along_axis", {"x", x}, {"ids", ids});
  const int a = x.checked_axis(axis), last = x.rank() - 1;
  Shape expected = x.shape();
  if (ids.rank() == x.rank()) expected[a] = ids.dim(a);
  require_shape("take_along_axis", ids, expected, "ids");
  const Tensor checked = checked_ids("take_along_axis", ids, 0, x.dim(a));
  if (a != last) {
    return transpose(take_along_axis(transpose(x, a, last), transpose(checked, a, last), last), a,
                     last);
  }
  Rows rows = around(x, last);
  rows.n = ids.dim(last);
  rows.common = rows.G == 1;
  return gather("take_along_axis", x, contiguous(checked), rows, ids.shape());
}

Tensor permute_rows(const Tensor& x, const Tensor& order) {
  require_rank("permute_rows", x, 2);
  Rows rows;
  const Tensor ids = fitted("permute_rows", x, order, x.dim(-2), rows);
  rows.R = x.dim(-2);
  Shape shape = x.shape();
  shape[x.rank() - 2] = rows.n;
  return gather("permute_rows", x, ids, rows, shape);
}

Tensor scatter_rows(const Tensor& x, const Tensor& order, int64_t count) {
  require_rank("scatter_rows", x, 2);
  require_floating("scatter_rows", x);
  require(count >= 0, "scatter_rows", "{} rows", count);
  Rows rows;
  const Tensor ids = fitted("scatter_rows", x, order, count, rows);
  rows.R = count;
  if (rows.n != x.dim(-2)) {
    fail_with<ShapeError>("scatter_rows", fmt::format("{} ids for {} rows", rows.n, x.dim(-2)),
                          {{"x", x}, {"order", order}});
  }
  require_sizes("scatter_rows", rows);
  Shape shape = x.shape();
  shape[x.rank() - 2] = count;
  Tensor y = Tensor::zeros(shape, x.dtype(), x.device());
  scatter_into(x, ids, rows, y);
  return record("scatter_rows", {x}, y, save(ids), [](const Context& c, const Tensor& dy) {
    const auto [list] = c.saved<1>();
    return Grads{permute_rows(dy, list)};
  });
}

Tensor scatter_add(const Tensor& x, const Tensor& ids, const Tensor& updates, int axis) {
  require_rank("scatter_add", x, 1);
  require_floating("scatter_add", x);
  require_integer("scatter_add", ids, "ids");
  require_rank_is("scatter_add", ids, 1, "ids");
  require_same_dtype("scatter_add", {"x", x}, {"updates", updates});
  require_same_device("scatter_add", {"x", x}, {"updates", updates});
  require_same_device("scatter_add", {"x", x}, {"ids", ids});
  const int a = x.checked_axis(axis);
  Shape expected = x.shape();
  expected[a] = ids.dim(0);
  require_shape("scatter_add", updates, expected, "updates");
  const Tensor checked = checked_ids("scatter_add", ids, 0, x.dim(a));
  Rows rows = around(x, a);
  rows.n = ids.dim(0);
  require_sizes("scatter_add", rows);
  Tensor y = clone(x.detach());
  scatter_into(updates, checked, rows, y);
  return record("scatter_add", {x, updates}, y, save(checked),
                [a](const Context& c, const Tensor& dy) -> Grads {
                  const auto [list] = c.saved<1>();
                  return {dy, c.wants(1) ? take(dy, list, a) : Tensor{}};
                });
}

Tensor bincount(const Tensor& ids, int64_t values) {
  require_rank("bincount", ids, 1, "ids");
  require(values >= 0, "bincount", "{} values", values);
  const Tensor checked = checked_ids("bincount", ids, 0, values);
  Shape shape = ids.shape();
  shape[ids.rank() - 1] = values;
  Tensor y = Tensor::zeros(shape, DType::i64, ids.device());
  if (ids.numel() == 0) return y;
  const int64_t n = ids.dim(-1), rows = ids.numel() / n;
  const Tensor flat = contiguous(checked).alias({rows, n}, {n, 1}, 0);
  Tensor to = y.alias({rows, values}, {values, 1}, 0);
  kernels::bincount(ids.device(), flat.view(), to.mut());
  return y;
}

}  // namespace longspan
