#include "ops/random.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/record.h"
#include "core/kernels/copy.h"
#include "core/kernels/random.h"
#include "core/scope.h"
#include "ops/copy.h"
#include "ops/shape.h"
#include "ops/sort.h"

namespace longspan {
namespace {

void require_floating_type(std::string_view op, DType dtype) {
  require<DTypeError>(is_floating(dtype), op, "{} is not floating; use f64, f32, f16 or bf16",
                      name_of(dtype));
}

Tensor drop(const Tensor& input, DeviceScalar<uint64_t> key, int64_t first, double p) {
  const Tensor x = contiguous(input);
  Tensor y = Tensor::like(x);
  if (x.numel() > 0) kernels::dropout(x.device(), x.view(), key, first, p, y.mut());
  return record("dropout", {x}, y, {}, [key, first, p](const Context&, const Tensor& dy) {
    return Grads{drop(dy, key, first, p)};
  });
}

thread_local RngReuseCheck* watch = nullptr;

}  // namespace

RngReuseCheck::RngReuseCheck() : outer_(watch) { watch = this; }
RngReuseCheck::~RngReuseCheck() { watch = outer_; }

void RngReuseCheck::note(std::string_view op, Generator gen, int64_t first, int64_t end) {
  if (watch == nullptr || autograd::replaying() || first >= end) return;
  const auto place = [&](const std::string& scope) { return scope.empty() ? "the top" : scope; };
  for (const Draw& d : watch->draws_) {
    if (d.key != gen.key || d.end <= first || end <= d.first) continue;
    fail(op,
         "the same random numbers are drawn twice, before in {} and now in {}; give each site a "
         "label of its own with Pass::at",
         place(d.scope), place(Scope::path()));
  }
  watch->draws_.push_back({gen.key, first, end, Scope::path()});
}

Tensor dropout(const Tensor& x, double p, const Pass& pass) {
  require_floating("dropout", x);
  require(p >= 0.0 && p <= 1.0, "dropout", "a probability of {}; needs 0 <= p <= 1", p);
  if (!pass.training || p == 0.0) return x;
  const int64_t width = x.rank() > 0 ? x.dim(-1) : 1;
  const int64_t first = pass.row * width;
  RngReuseCheck::note("dropout", pass.gen, first, first + x.numel());
  return drop(x, pass.gen.device_key(), first, p);
}

Tensor uniform(const Shape& shape, Generator gen, double low, double high, DType dtype,
               Device device) {
  require_floating_type("uniform", dtype);
  require(std::isfinite(low) && std::isfinite(high) && low <= high, "uniform", "from {} to {}", low,
          high);
  Tensor y = Tensor::empty(shape, dtype, device);
  RngReuseCheck::note("uniform", gen, 0, y.numel());
  if (y.numel() > 0) kernels::uniform(device, gen.device_key(), low, high, y.mut());
  return y;
}

Tensor truncated_normal(const Shape& shape, Generator gen, double mean, double deviation,
                        double low, double high, DType dtype, Device device) {
  require_floating_type("normal", dtype);
  require(std::isfinite(mean) && std::isfinite(deviation) && deviation >= 0, "normal",
          "mean {} and standard deviation {}", mean, deviation);
  const double likely = 0.5 * (std::erf(high * std::sqrt(0.5)) - std::erf(low * std::sqrt(0.5)));
  require(likely >= 0.01, "truncated_normal",
          "the interval from {} to {} standard deviations holds {:.2g} % of the draws; needs 1 %",
          low, high, 100 * likely);
  Tensor y = Tensor::empty(shape, dtype, device);
  RngReuseCheck::note("normal", gen, 0, y.numel());
  if (y.numel() > 0) kernels::normal(device, gen.device_key(), mean, deviation, low, high, y.mut());
  return y;
}

Tensor normal(const Shape& shape, Generator gen, double mean, double deviation, DType dtype,
              Device device) {
  constexpr double all = std::numeric_limits<double>::infinity();
  return truncated_normal(shape, gen, mean, deviation, -all, all, dtype, device);
}

Tensor bernoulli(const Shape& shape, Generator gen, double p, DType dtype, Device device) {
  require(p >= 0.0 && p <= 1.0, "bernoulli", "a probability of {}; needs 0 <= p <= 1", p);
  Tensor y = Tensor::empty(shape, dtype, device);
  RngReuseCheck::note("bernoulli", gen, 0, y.numel());
  if (y.numel() > 0) kernels::bernoulli(device, gen.device_key(), p, y.mut());
  return y;
}

Tensor randint(const Shape& shape, Generator gen, int64_t low, int64_t high, DType dtype,
               Device device) {
  require<DTypeError>(!is_floating(dtype), "randint", "{} is not integer; use i64, i32 or u8",
                      name_of(dtype));
  const int64_t least = dtype == DType::u8    ? 0
                        : dtype == DType::i32 ? std::numeric_limits<int32_t>::min()
                                              : std::numeric_limits<int64_t>::min();
  const int64_t most = dtype == DType::u8    ? std::numeric_limits<uint8_t>::max()
                       : dtype == DType::i32 ? std::numeric_limits<int32_t>::max()
                                             : std::numeric_limits<int64_t>::max();
  require(low < high && low >= least && high - 1 <= most, "randint",
          "from {} to below {} is empty or beyond {}", low, high, name_of(dtype));
  Tensor y = Tensor::empty(shape, dtype, device);
  RngReuseCheck::note("randint", gen, 0, y.numel());
  if (y.numel() > 0) kernels::randint(device, gen.device_key(), low, high, y.mut());
  return y;
}

Tensor permutation(int64_t n, Generator gen, DType dtype, Device device) {
  require(n >= 0, "permutation", "{} elements", n);
  const Tensor keys = randint({n}, gen, 0, std::numeric_limits<int64_t>::max(), DType::i64, device);
  return cast(argsort(keys), dtype);
}

Tensor orthogonal(const Shape& shape, Generator gen, double gain, DType dtype, Device device) {
  require_floating_type("orthogonal", dtype);
  require<ShapeError>(shape.rank() >= 2, "orthogonal", "{} is no matrix; needs two axes or more",
                      to_string(shape));
  const int64_t all = numel(shape);
  if (all == 0) return Tensor::empty(shape, dtype, device);
  const int64_t rows = shape[0], columns = all / rows;
  const int64_t n = std::min(rows, columns), m = std::max(rows, columns);
  Tensor x = normal({n, m}, gen, 0.0, 1.0, DType::f64, device);
  Tensor q = Tensor::like(x);
  kernels::orthonormalize(device, x.mut(), gain, q.mut());
  return cast(reshape(rows <= columns ? q : transpose(q), shape), dtype);
}

}  // namespace longspan
