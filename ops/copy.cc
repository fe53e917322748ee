#include "ops/copy.h"

#include <cmath>
#include <memory>
#include <vector>

#include "autograd/record.h"
#include "core/deferred.h"
#include "core/graph.h"
#include "core/kernels/copy.h"
#include "ops/shape.h"

namespace longspan {
namespace {

struct ConcatNode final : autograd::Node {
  ConcatNode(std::span<const Tensor> x, int along) : Node("concat"), axis(along) {
    for (const Tensor& t : x) sizes.push_back(t.dim(axis));
  }
  Grads backward(std::span<const Tensor> dy) override {
    Grads dx(sizes.size());
    int64_t begin = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (wants(static_cast<int>(i))) dx[i] = narrow(dy[0], axis, begin, sizes[i]);
      begin += sizes[i];
    }
    return dx;
  }

  int axis;
  std::vector<int64_t> sizes;
};

}  // namespace

Tensor clone(const Tensor& x) {
  require_defined("clone", x);
  Tensor y = Tensor::like(x);
  kernels::copy(x.device(), x.view(), y.mut());
  return record("clone", {x}, y, {},
                [](const Context&, const Tensor& dy) -> Grads { return {dy}; });
}

Tensor contiguous(const Tensor& x) {
  require_defined("contiguous", x);
  return x.contiguous() ? x : clone(x);
}

Tensor cast(const Tensor& x, DType dtype) {
  require_defined("cast", x);
  if (x.dtype() == dtype) return x;
  Tensor y = Tensor::empty(x.shape(), dtype, x.device());
  kernels::copy(x.device(), x.view(), y.mut());
  if (!is_floating(dtype)) return y;
  return record("cast", {x}, y, {}, [before = x.dtype()](const Context&, const Tensor& dy) {
    return Grads{cast(dy, before)};
  });
}

Tensor to_device(const Tensor& input, Device device) {
  require_defined("to_device", input);
  require<DeviceError>(is_available(device), "to_device", "{} is not available", name_of(device));
  const Device before = input.device();
  if (before == device) return input;
  const Tensor x = contiguous(input);
  Tensor y = Tensor::empty(x.shape(), x.dtype(), device);
  const int64_t bytes = x.nbytes();
  if (bytes > 0) {
    deferred::raise_pending(before);
    const void* from = x.view().data;
    void* to = y.mut().data;
    if (before.kind == DeviceKind::cpu) {
      graph::upload(device, to, from, bytes);
    } else if (device.kind == DeviceKind::cpu) {
      copy_to_host(before, to, from, bytes);
    } else {
      const Scratch host(bytes);
      copy_to_host(before, host.data(), from, bytes);
      copy_from_host(device, to, host.data(), bytes);
    }
  }
  return record("to_device", {x}, y, {}, [before](const Context&, const Tensor& dy) {
    return Grads{to_device(dy, before)};
  });
}

Tensor concat(std::span<const Tensor> x, int axis) {
  require(!x.empty(), "concat", "no tensors; needs one or more");
  for (const Tensor& t : x) require_defined("concat", t);
  const Tensor& first = x.front();
  const int a = first.checked_axis(axis);
  Shape shape = first.shape();
  shape[a] = 0;
  for (const Tensor& t : x) {
    require_same_dtype("concat", {"first", first}, {"x", t});
    require_same_device("concat", {"first", first}, {"x", t});
    bool fits = t.rank() == first.rank();
    for (int i = 0; fits && i < t.rank(); ++i) fits = i == a || t.dim(i) == shape[i];
    if (!fits) {
      fail_with<ShapeError>("concat", fmt::format("shapes must agree except in axis {}", a),
                            {{"first", first}, {"x", t}});
    }
    shape[a] = checked_sum("concat", shape[a], t.dim(a));
  }
  Tensor y = Tensor::empty(shape, first.dtype(), first.device());
  int64_t begin = 0;
  for (const Tensor& t : x) {
    Tensor part = y.alias(t.shape(), y.strides(), t.numel() > 0 ? begin * y.strides()[a] : 0);
    kernels::copy(y.device(), t.view(), part.mut());
    begin += t.dim(a);
  }
  Tensor* const made[] = {&y};
  record_node("concat", x, std::span<Tensor* const>(made),
              [&] { return std::make_shared<ConcatNode>(x, a); });
  return y;
}

Tensor concat(std::initializer_list<Tensor> x, int axis) {
  return concat(std::span(x.begin(), x.size()), axis);
}

Tensor stack(std::span<const Tensor> x, int axis) {
  require(!x.empty(), "stack", "no tensors; needs one or more");
  std::vector<Tensor> parts;
  for (const Tensor& t : x) {
    require_defined("stack", t);
    require_same_shape("stack", {"first", x.front()}, {"x", t});
    parts.push_back(unsqueeze(t, axis));
  }
  const int rank = x.front().rank() + 1;
  return concat(parts, axis < 0 ? axis + rank : axis);
}

Tensor stack(std::initializer_list<Tensor> x, int axis) {
  return stack(std::span(x.begin(), x.size()), axis);
}

Tensor pad(const Tensor& x, int axis, int64_t before, int64_t after, double value) {
  require_defined("pad", x);
  const int a = x.checked_axis(axis);
  require(before >= 0 && after >= 0, "pad", "{} before and {} after; use narrow to cut", before,
          after);
  if (before == 0 && after == 0) return x;
  const int64_t n = x.dim(a);
  Shape shape = x.shape();
  shape[a] = checked_sum("pad", shape[a], checked_sum("pad", before, after));
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  const auto part = [&](int64_t begin, int64_t count) {
    Shape piece = shape;
    piece[a] = count;
    return y.alias(piece, y.strides(), begin * y.strides()[a]);
  };
  if (before > 0) kernels::fill(y.device(), part(0, before).mut(), value);
  if (n > 0) kernels::copy(y.device(), x.view(), part(before, n).mut());
  if (after > 0) kernels::fill(y.device(), part(before + n, after).mut(), value);
  return record("pad", {x}, y, {}, [a, before, n](const Context&, const Tensor& dy) {
    return Grads{narrow(dy, a, before, n)};
  });
}

Tensor flip(const Tensor& x, int axis) {
  require_defined("flip", x);
  const int a = x.checked_axis(axis);
  Tensor y = Tensor::like(x);
  if (x.numel() > 0) {
    Strides strides = x.strides();
    strides[a] = -strides[a];
    const Tensor reversed = x.alias(x.shape(), strides, (x.dim(a) - 1) * x.strides()[a]);
    kernels::copy(x.device(), reversed.view(), y.mut());
  }
  return record("flip", {x}, y, {},
                [a](const Context&, const Tensor& dy) { return Grads{flip(dy, a)}; });
}

Tensor repeat(const Tensor& x, int axis, int64_t times) {
  require_defined("repeat", x);
  const int a = x.checked_axis(axis);
  require(times >= 0, "repeat", "{} times", times);
  Shape wide = x.shape();
  wide.insert(a, times);
  Shape shape = x.shape();
  shape[a] = checked_product("repeat", shape[a], times);
  return reshape(expand(unsqueeze(x, a), wide), shape);
}

Tensor full(const Shape& shape, double value, DType dtype, Device device) {
  Tensor y = Tensor::empty(shape, dtype, device);
  kernels::fill(device, y.mut(), value);
  return y;
}

Tensor zeros(const Shape& shape, DType dtype, Device device) {
  return Tensor::zeros(shape, dtype, device);
}
Tensor ones(const Shape& shape, DType dtype, Device device) {
  return full(shape, 1.0, dtype, device);
}
Tensor full_like(const Tensor& x, double value) {
  require_defined("full_like", x);
  return full(x.shape(), value, x.dtype(), x.device());
}
Tensor zeros_like(const Tensor& x) {
  require_defined("zeros_like", x);
  return Tensor::zeros(x.shape(), x.dtype(), x.device());
}
Tensor ones_like(const Tensor& x) { return full_like(x, 1.0); }

Tensor arange(double begin, double end, double step, DType dtype, Device device) {
  require(std::isfinite(begin) && std::isfinite(end) && std::isfinite(step) && step != 0.0 &&
              (end - begin) / step >= 0 && (end - begin) / step < 0x1p59,
          "arange", "from {} to {} by {}", begin, end, step);
  const auto n = static_cast<int64_t>(std::ceil((end - begin) / step));
  Tensor y = Tensor::empty({n}, dtype, device);
  kernels::arange(device, y.mut(), begin, step);
  return y;
}

Tensor iota(int64_t n, DType dtype, Device device) {
  require(n >= 0, "iota", "{} elements", n);
  return arange(0, static_cast<double>(n), 1, dtype, device);
}

}  // namespace longspan
