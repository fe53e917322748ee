#include "ops/shape.h"

#include <algorithm>
#include <memory>

#include "autograd/record.h"
#include "core/kernels/copy.h"
#include "core/kernels/gradient.h"

namespace longspan {
namespace {

/// Computes strides under which the elements of (shape, strides) appear row-major in `wanted`;
/// returns false if there are none. Both shapes hold the same positive number of elements.
bool view_strides(const Shape& shape, const Strides& strides, const Shape& wanted, Strides& out) {
  out = Strides::filled(wanted.rank(), 1);
  int w = wanted.rank() - 1;
  int i = shape.rank() - 1;
  while (i >= 0) {
    // The longest group of axes, ending at i, that is contiguous in memory.
    const int64_t step = strides[i];
    int64_t group = shape[i];
    while (i > 0 && (shape[i - 1] == 1 || strides[i - 1] == step * group)) group *= shape[--i];
    int64_t covered = 1;
    while (w >= 0 && (covered < group || wanted[w] == 1)) {
      out[w] = step * covered;
      covered *= wanted[w--];
    }
    if (covered != group) return false;
    --i;
  }
  return true;
}

/// Removes axes of size 1, which do not matter to view_strides.
Tensor without_ones(const Tensor& x) {
  Shape shape;
  Strides strides;
  for (int i = 0; i < x.rank(); ++i) {
    if (x.shape()[i] == 1) continue;
    shape.push_back(x.shape()[i]);
    strides.push_back(x.strides()[i]);
  }
  return x.alias(shape, strides, 0);
}

Shape inferred(const Tensor& x, const Shape& shape) {
  Shape result = shape;
  int unknown = -1;
  int64_t known = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] >= 0) {
      known = checked_product("reshape", known, shape[i]);
    } else if (shape[i] == -1 && unknown < 0) {
      unknown = i;
    } else {
      fail_with<ShapeError>(
          "reshape",
          fmt::format("{}: sizes must be 0 or more, and one may be -1", to_string(shape)),
          {{"x", x}});
    }
  }
  if (unknown >= 0) {
    if (known == 0 || x.numel() % known != 0) {
      fail_with<ShapeError>("reshape",
                            fmt::format("cannot infer -1 in {}: {} elements do not divide by {}",
                                        to_string(shape), x.numel(), known),
                            {{"x", x}});
    }
    result[unknown] = x.numel() / known;
  } else if (known != x.numel()) {
    fail_with<ShapeError>(
        "reshape",
        fmt::format("{} elements do not fit {}, which has {}", x.numel(), to_string(shape), known),
        {{"x", x}});
  }
  checked_numel("reshape", result);
  return result;
}

/// The backward node of slice: adds into a view of the input's gradient.
struct SliceNode final : autograd::AccumulatingNode {
  SliceNode(const Shape& piece, int along, int64_t first, int64_t every)
      : AccumulatingNode("slice"), shape(piece), axis(along), begin(first), step(every) {}
  void add_to(std::span<const Tensor> dy, Tensor& sum) override {
    Strides strides = sum.strides();
    const int64_t offset = begin * strides[axis];
    strides[axis] *= step;
    Tensor part = sum.alias(shape, strides, offset);
    kernels::accumulate(sum.device(), dy[0].view(), part.mut());
  }

  Shape shape;  // of the slice with its axis kept
  int axis;
  int64_t begin, step;
};

/// Slices with checked arguments: `count` elements from `begin` on.
Tensor slice_view(const Tensor& x, int axis, int64_t begin, int64_t count, int64_t step) {
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape[axis] = count;
  const int64_t offset = count > 0 ? begin * strides[axis] : 0;
  strides[axis] *= step;
  Tensor y = x.alias(shape, strides, offset);
  if (count == x.shape()[axis]) {
    return record("slice", {x}, y, {},
                  [](const Context&, const Tensor& dy) -> Grads { return {dy}; });
  }
  record_node("slice", {x}, {&y},
              [&] { return std::make_shared<SliceNode>(shape, axis, begin, step); });
  return y;
}

struct SplitNode final : autograd::Node {
  SplitNode(const Tensor& x, std::span<const int64_t> pieces, int along)
      : Node("split"),
        shape(x.shape()),
        dtype(x.dtype()),
        device(x.device()),
        sizes(pieces.begin(), pieces.end()),
        axis(along) {}
  Grads backward(std::span<const Tensor> dy) override {
    Tensor dx = Tensor::empty(shape, dtype, device);
    int64_t begin = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      Shape piece = shape;
      piece[axis] = sizes[i];
      Tensor part = dx.alias(piece, dx.strides(), begin * dx.strides()[axis]);
      if (dy[i]) {
        kernels::copy(device, dy[i].view(), part.mut());
      } else {
        kernels::fill(device, part.mut(), 0.0);
      }
      begin += sizes[i];
    }
    return {dx};
  }

  Shape shape;
  DType dtype;
  Device device;
  std::vector<int64_t> sizes;
  int axis;
};

}  // namespace

Tensor reshape(const Tensor& x, const Shape& wanted) {
  require_defined("reshape", x);
  const Shape shape = inferred(x, wanted);
  if (shape == x.shape()) return x;
  Strides strides = contiguous_strides(shape);
  Tensor y;
  const Tensor core = without_ones(x);
  if (x.numel() == 0 || x.contiguous() ||
      view_strides(core.shape(), core.strides(), shape, strides)) {
    y = x.alias(shape, strides, 0);
  } else {
    y = Tensor::empty(shape, x.dtype(), x.device());
    Tensor same = y.alias(x.shape(), contiguous_strides(x.shape()), 0);
    kernels::copy(x.device(), x.view(), same.mut());
  }
  return record("reshape", {x}, y, {}, [before = x.shape()](const Context&, const Tensor& dy) {
    return Grads{reshape(dy, before)};
  });
}

Tensor flatten(const Tensor& x, int first, int last) {
  require_defined("flatten", x);
  if (x.rank() == 0) return reshape(x, {1});
  const int a = x.checked_axis(first), b = x.checked_axis(last);
  require<ShapeError>(a <= b, "flatten", "axes {} to {} of a tensor of rank {}", first, last,
                      x.rank());
  Shape shape;
  for (int i = 0; i < x.rank(); ++i) {
    if (i > a && i <= b) {
      shape[a] *= x.dim(i);
    } else {
      shape.push_back(x.dim(i));
    }
  }
  return reshape(x, shape);
}

Tensor unflatten(const Tensor& x, int axis, int64_t outer, int64_t inner) {
  require_defined("unflatten", x);
  const int a = x.checked_axis(axis);
  const int64_t n = x.dim(a);
  if (outer == -1 && inner > 0) outer = n / inner;
  if (inner == -1 && outer > 0) inner = n / outer;
  if (outer < 0 || inner < 0 || checked_product("unflatten", outer, inner) != n) {
    fail_with<ShapeError>("unflatten",
                          fmt::format("axis {} of size {} is not {} x {}", a, n, outer, inner),
                          {{"x", x}});
  }
  Shape shape = x.shape();
  shape[a] = inner;
  shape.insert(a, outer);
  return reshape(x, shape);
}

Tensor permute(const Tensor& x, std::span<const int> order) {
  require_defined("permute", x);
  Shape shape = x.shape(), back = x.shape();
  Strides strides = x.strides();
  unsigned seen = 0;
  if (static_cast<int>(order.size()) != x.rank()) {
    fail_with<ShapeError>(
        "permute", fmt::format("{} axes named for a tensor of rank {}", order.size(), x.rank()),
        {{"x", x}});
  }
  for (int i = 0; i < x.rank(); ++i) {
    const int from = x.checked_axis(order[static_cast<size_t>(i)]);
    if ((seen & 1u << from) != 0) {
      fail_with<ShapeError>("permute", fmt::format("axis {} named twice", from), {{"x", x}});
    }
    seen |= 1u << from;
    shape[i] = x.shape()[from];
    strides[i] = x.strides()[from];
    back[from] = i;
  }
  return record("permute", {x}, x.alias(shape, strides, 0), {},
                [back](const Context&, const Tensor& dy) -> Grads {
                  int axes[max_rank];
                  for (int i = 0; i < back.rank(); ++i) axes[i] = static_cast<int>(back[i]);
                  return {permute(dy, std::span<const int>(axes, dy.shape().rank()))};
                });
}

Tensor permute(const Tensor& x, std::initializer_list<int> order) {
  return permute(x, std::span(order.begin(), order.size()));
}

Tensor transpose(const Tensor& x, int a, int b) {
  require_defined("transpose", x);
  const int i = x.checked_axis(a), j = x.checked_axis(b);
  if (i == j) return x;
  Shape shape = x.shape();
  Strides strides = x.strides();
  std::swap(shape[i], shape[j]);
  std::swap(strides[i], strides[j]);
  return record("transpose", {x}, x.alias(shape, strides, 0), {},
                [i, j](const Context&, const Tensor& dy) { return Grads{transpose(dy, i, j)}; });
}

Tensor slice(const Tensor& x, int axis, int64_t begin, int64_t end, int64_t step) {
  require_defined("slice", x);
  const int a = x.checked_axis(axis);
  const int64_t n = x.dim(a);
  const int64_t first = begin < 0 ? begin + n : begin;
  const int64_t last = end == to_end ? n : end < 0 ? end + n : end;
  if (first < 0 || first > last || last > n || step < 1) {
    fail_with<ValueError>(
        "slice",
        fmt::format("[{}, {}) with step {} of axis {}, which has {} elements; needs 0 <= begin <= "
                    "end <= size and step >= 1",
                    begin, last, step, a, n),
        {{"x", x}});
  }
  return slice_view(x, a, first, last > first ? (last - first - 1) / step + 1 : 0, step);
}

Tensor narrow(const Tensor& x, int axis, int64_t begin, int64_t length) {
  require_defined("narrow", x);
  const int a = x.checked_axis(axis);
  if (begin < 0 || length < 0 || begin > x.dim(a) || length > x.dim(a) - begin) {
    fail_with<ValueError>(
        "narrow",
        fmt::format("{} elements from {} of axis {}, which has {}", length, begin, a, x.dim(a)),
        {{"x", x}});
  }
  return slice_view(x, a, begin, length, 1);
}

namespace {

/// Returns element i of a checked axis, for the op that error messages name.
Tensor element(std::string_view op, const Tensor& x, int axis, int64_t i) {
  const int64_t at = i < 0 ? i + x.dim(axis) : i;
  if (at < 0 || at >= x.dim(axis)) {
    fail_with<ValueError>(
        op, fmt::format("element {} of axis {}, which has {}", i, axis, x.dim(axis)), {{"x", x}});
  }
  return squeeze(slice_view(x, axis, at, 1, 1), axis);
}

}  // namespace

Tensor select(const Tensor& x, int axis, int64_t i) {
  require_defined("select", x);
  return element("select", x, x.checked_axis(axis), i);
}

// A member, because the language allows no other operator[]. It is defined beside select, since it
// records a backward function, which core knows nothing about.
Tensor Tensor::operator[](int64_t i) const {
  if (!*this || rank() == 0) {
    fail_with<ShapeError>("x[i]", fmt::format("element {} of a tensor that has no axes", i),
                          {{"x", *this}});
  }
  return element("x[i]", *this, 0, i);
}

std::vector<Tensor> split(const Tensor& x, std::span<const int64_t> sizes, int axis) {
  require_defined("split", x);
  const int a = x.checked_axis(axis);
  int64_t sum = 0;
  for (const int64_t n : sizes) {
    require<ShapeError>(n >= 0, "split", "negative size {}", n);
    sum = checked_sum("split", sum, n);
  }
  if (sum != x.dim(a) || sizes.empty()) {
    fail_with<ShapeError>(
        "split",
        fmt::format("{} sizes add up to {}, axis {} has {}", sizes.size(), sum, a, x.dim(a)),
        {{"x", x}});
  }
  std::vector<Tensor> pieces;
  std::vector<Tensor*> made;
  pieces.reserve(sizes.size());
  int64_t begin = 0;
  for (const int64_t n : sizes) {
    Shape shape = x.shape();
    shape[a] = n;
    pieces.push_back(x.alias(shape, x.strides(), n > 0 ? begin * x.strides()[a] : 0));
    made.push_back(&pieces.back());
    begin += n;
  }
  record_node("split", std::span<const Tensor>(&x, 1), made,
              [&] { return std::make_shared<SplitNode>(x, sizes, a); });
  return pieces;
}

std::vector<Tensor> split(const Tensor& x, std::initializer_list<int64_t> sizes, int axis) {
  return split(x, std::span(sizes.begin(), sizes.size()), axis);
}

std::vector<Tensor> chunk(const Tensor& x, int64_t n, int axis) {
  require_defined("chunk", x);
  require(n >= 1, "chunk", "{} pieces; needs 1 or more", n);
  const int64_t size = x.dim(axis), piece = std::max<int64_t>(1, size / n + (size % n > 0));
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < size; i += piece) sizes.push_back(std::min(piece, size - i));
  if (sizes.empty()) sizes.push_back(0);
  return split(x, sizes, axis);
}

Tensor expand(const Tensor& x, const Shape& wanted) {
  require_defined("expand", x);
  Shape shape = wanted, source = Shape::filled(wanted.rank(), 1);
  Strides strides = Strides::filled(wanted.rank(), 0);
  const int front = wanted.rank() - x.rank();
  bool fits = front >= 0;
  for (int i = 0; fits && i < wanted.rank(); ++i) {
    const int64_t n = i < front ? 1 : x.shape()[i - front];
    if (wanted[i] == -1 && i >= front) shape[i] = n;
    fits = shape[i] >= 0 && (n == 1 || n == shape[i]);
    source[i] = n;
    if (n == shape[i] && i >= front) strides[i] = x.strides()[i - front];
  }
  if (!fits) {
    fail_with<ShapeError>(
        "expand",
        fmt::format("{} does not expand to {}: from the last axis on, sizes must agree or be 1",
                    to_string(x.shape()), to_string(wanted)),
        {{"x", x}});
  }
  if (shape == x.shape()) return x;
  checked_numel("expand", shape);  // no allocation would bound the size
  return record("expand", {x}, x.alias(shape, strides, 0), {},
                [source, before = x.shape()](const Context&, const Tensor& dy) -> Grads {
                  Tensor dx = Tensor::empty(source, dy.dtype(), dy.device());
                  kernels::sum_to(dy.device(), dy.view(), dx.mut());
                  return {reshape(dx, before)};
                });
}

Tensor broadcast_to(const Tensor& x, const Shape& shape) { return expand(x, shape); }

Tensor squeeze(const Tensor& x, int axis) {
  require_defined("squeeze", x);
  const int a = x.checked_axis(axis);
  if (x.dim(a) != 1) {
    fail_with<ShapeError>("squeeze", fmt::format("axis {} has {} elements, not 1", a, x.dim(a)),
                          {{"x", x}});
  }
  Shape shape = x.shape();
  shape.erase(a);
  return reshape(x, shape);
}

Tensor squeeze(const Tensor& x) {
  require_defined("squeeze", x);
  Shape shape;
  for (const int64_t n : x.shape()) {
    if (n != 1) shape.push_back(n);
  }
  return reshape(x, shape);
}

Tensor unsqueeze(const Tensor& x, int axis) {
  require_defined("unsqueeze", x);
  const int a = axis < 0 ? axis + x.rank() + 1 : axis;
  if (a < 0 || a > x.rank()) {
    fail_with<ShapeError>("unsqueeze", fmt::format("axis {} for rank {}", axis, x.rank()),
                          {{"x", x}});
  }
  Shape shape = x.shape();
  shape.insert(a, 1);
  return reshape(x, shape);
}

}  // namespace longspan
