#include "models/compressive/compression.h"

#include "nn/after_step.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/pool.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "ops/sort.h"

namespace longspan {
namespace {

/// Returns W [D, c, D] with W_t = I / c.
Tensor averaging(int64_t width, int64_t rate, const Tensor& like) {
  const Tensor at = iota(width);
  const Tensor one = cast(equal(unsqueeze(at, 1), unsqueeze(at, 0)), DType::f64);
  const Tensor w = expand(unsqueeze(div(one, static_cast<double>(rate)), 1), {width, rate, width});
  return to_device(cast(contiguous(w), like.dtype()), like.device());
}

/// Returns `n` rows for each sample: the rows with the largest usage, as many as it has groups,
/// after rows of zeros if those are fewer.
Tensor most_used(const OldRows& old, int64_t n) {
  const Device device = old.rows.device();
  const int64_t count = old.rows.dim(1);
  const Tensor exists = greater_equal(iota(count, DType::i64, device), unsqueeze(old.begin, 1));
  const Tensor usage = cast(old.usage, DType::f64);
  const Tensor none = full({1, 1}, -1, DType::f64, device);
  // The newest come first, because sorting leaves equal ones in their order.
  const Tensor newest = flip(where(exists, usage, none), 1);
  const Tensor best = narrow(argsort(newest, 1, true), 1, 0, n);  // [B, n]
  const Tensor rows = sub(static_cast<double>(count - 1), cast(best, DType::f64));
  const Tensor groups = sub(static_cast<double>(n), cast(unsqueeze(old.new_begin, 1), DType::f64));
  const Tensor kept = where(less(iota(n, DType::f64, device), groups), rows, none);
  return permute_rows(old.rows, sort(cast(kept, DType::i64), 1).values);
}

}  // namespace

Compressor::Compressor(const CompressionOptions& o, const Init& init) : options(o) {
  const bool is_conv = o.function == Compression::conv || o.function == Compression::dilated;
  if (!is_conv) return;
  const bool average = o.start == ConvStart::average;
  weight = init.at("weight").make({o.d_model, o.rate, o.d_model},
                                  average ? Scheme::zeros() : Scheme::normal(o.deviation));
  bias = init.at("bias").make({o.d_model}, Scheme::zeros());
  if (average && !init.meta) write_buffer(weight, averaging(o.d_model, o.rate, weight));
}

Tensor Compressor::forward(const OldRows& old) const {
  const int64_t c = options.rate, n = old.rows.dim(1) / c;
  const Tensor& x = old.rows;
  const auto like = [&](const Tensor& parameter) { return cast(parameter, x.dtype()); };
  switch (options.function) {
    case Compression::mean:
      return mean_pool(x, {.size = c, .stride = c});
    case Compression::max:
      return max_pool(x, {.size = c, .stride = c});
    case Compression::conv:  // c rows are one input of width c D
      return linear(reshape(x, {x.dim(0), n, c * x.dim(2)}), flatten(like(weight), 1, 2),
                    like(bias));
    case Compression::dilated: {
      const int64_t padding = (options.dilation - 1) * (c - 1), before = (padding + 1) / 2;
      return conv1d(x, like(weight), like(bias),
                    {.size = c,
                     .stride = c,
                     .dilation = options.dilation,
                     .before = before,
                     .after = padding - before});
    }
    case Compression::most_used:
      break;
  }
  return most_used(old, n);
}

Restorer::Restorer(const CompressionOptions& o, const Init& init)
    : weight(init.at("weight").make({o.d_model, o.rate, o.d_model}, Scheme::normal(o.deviation))),
      bias(init.at("bias").make({o.d_model}, Scheme::zeros())) {}

Tensor Restorer::forward(const Tensor& compressed) const {
  const int64_t batch = compressed.dim(0), n = compressed.dim(1), width = compressed.dim(2);
  const int64_t rate = weight.dim(1);
  const Tensor w = cast(flatten(weight, 1, 2), compressed.dtype());  // [D, c D]
  const Tensor rows = reshape(matmul(compressed, w), {batch, n * rate, width});
  return add(rows, cast(bias, compressed.dtype()));
}

Tensor reconstruction_error(LossNorm norm, const Tensor& difference, const Tensor& rows,
                            int64_t each) {
  const DType dtype = accumulator_of(difference.dtype());
  const Tensor squares = sum(flatten(square(cast(difference, dtype)), 1, -1), {1});  // [B]
  const Device device = squares.device();
  const Tensor zero = zeros({}, dtype, device), one = ones({}, dtype, device);
  if (norm == LossNorm::mse) {
    return div(sum(squares), mul(maximum(sum(rows), one), static_cast<double>(each)));
  }
  const Tensor some = greater(squares, zero);  // a root has no slope at 0
  const Tensor norms = where(some, sqrt(where(some, squares, one)), zero);
  const Tensor samples = sum(cast(greater(rows, zero), dtype));
  return div(sum(norms), maximum(samples, one));
}

}  // namespace longspan
