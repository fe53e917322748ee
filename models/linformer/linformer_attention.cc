#include "models/linformer/linformer_attention.h"

#include <cmath>
#include <limits>

#include "autograd/mode.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/pool.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kLinformerAttention = "linformer attention";

Scheme start_of(const LinformerOptions& o) {
  const auto r = static_cast<double>(o.r);
  switch (o.start) {
    case ProjectionStart::xavier:
      break;
    case ProjectionStart::uniform:
      return Scheme::uniform(1 / std::sqrt(r));
    case ProjectionStart::normal:
      return Scheme::normal(1 / std::sqrt(r));
  }
  return Scheme::xavier_uniform(1 / std::sqrt(2.0));
}

/// Whether E and F are one.
bool is_one(ProjectionSharing sharing) {
  return sharing == ProjectionSharing::kv || sharing == ProjectionSharing::layerwise;
}

/// Returns [B, n]: whether row t step of the sequence exists, for t < n.
Tensor exists(int64_t n, int64_t step, const Tensor& lengths) {
  const Tensor first = mul(iota(n, DType::f64, lengths.device()), static_cast<double>(step));
  return less(first, unsqueeze(cast(lengths, DType::f64), 1));
}

/// Returns x with `value` in the rows that do not exist.
Tensor fill_padding(const Tensor& x, const Tensor& lengths, double value) {
  if (!lengths) return x;
  const Tensor filling = full({1, 1, 1}, value, x.dtype(), x.device());
  return where(unsqueeze(exists(x.dim(1), 1, lengths), 2), x, filling);
}

}  // namespace

SequenceProjection::SequenceProjection(const LinformerOptions& options,
                                       const AttentionOptions& heads, const Init& init)
    : options_(options), n_head_(heads.n_head) {
  const LinformerOptions& o = options_;
  require(o.r >= 1 && o.r <= o.n_max, kLinformerAttention, "r is {}; expected 1 to n_max = {}", o.r,
          o.n_max);
  const Init here = init.at("weight");
  const auto make = [&](const Shape& shape, const Scheme& scheme) {
    return o.frozen ? here.make_buffer(shape, scheme) : here.make(shape, scheme);
  };
  const bool own = o.sharing == ProjectionSharing::none;
  if (o.projection == RowProjection::linear) {
    const Shape shape = own ? Shape{n_head_, o.r, o.n_max} : Shape{o.r, o.n_max};
    weight = make(shape, start_of(o));
  } else if (o.projection == RowProjection::conv) {
    const int64_t c = o.window(), d = heads.d_model / n_head_;
    const int64_t width = !own && o.order == ProjectionOrder::input ? heads.d_model : d;
    // A row of unit variance becomes one.
    const Scheme scheme = Scheme::uniform(std::sqrt(3.0 / static_cast<double>(c * width)));
    weight = make(own ? Shape{n_head_, d, c, d} : Shape{width, c, width}, scheme);
  }
}

void SequenceProjection::visit(Visitor& v) {
  options_.frozen ? v.buffer("weight", weight) : v("weight", weight);
}

bool SequenceProjection::by_head() const {
  return weight && options_.sharing == ProjectionSharing::none;
}

SequenceProjection SequenceProjection::of(const HeadShare& share) const {
  SequenceProjection own = *this;
  if (by_head()) own.weight = share.of(weight, 0);
  own.n_head_ = share.count(n_head_);
  return own;
}

Tensor SequenceProjection::forward(const Tensor& x, const Tensor& lengths) const {
  require(x.dim(1) <= options_.n_max, kLinformerAttention,
          "{} rows are more than E has columns; n_max is {}", x.dim(1), options_.n_max);
  switch (options_.projection) {
    case RowProjection::linear:
      return mixed(fill_padding(x, lengths, 0));
    case RowProjection::mean:
      return mean_of(fill_padding(x, lengths, 0), lengths);
    case RowProjection::max:
      return max_of(x, lengths);
    case RowProjection::conv:
      break;
  }
  return convolved(fill_padding(x, lengths, 0));
}

Tensor SequenceProjection::lengths(const Tensor& lengths, int64_t length) const {
  if (!lengths || options_.projection == RowProjection::linear) return {};
  const Tensor there = exists(options_.rows(length), options_.window(), lengths);
  return cast(sum(cast(there, DType::f64), {1}), DType::i64);
}

Tensor SequenceProjection::mixed(const Tensor& x) const {
  const Tensor e = cast(narrow(weight, -1, 0, x.dim(1)), x.dtype());  // [r, L] or [H, r, L]
  if (!by_head()) return matmul(e, x);
  const Tensor heads = transpose(unflatten(x, 2, n_head_, -1), 1, 2);  // [B, H, L, d]
  return flatten(transpose(matmul(e, heads), 1, 2), 2, 3);
}

Tensor SequenceProjection::mean_of(const Tensor& x, const Tensor& lengths) const {
  const int64_t L = x.dim(1), c = options_.window(), n = options_.rows(L);
  const Tensor windows = unflatten(pad(x, 1, 0, n * c - L), 1, n, c);  // [B, n, c, D]
  const Tensor ends = lengths ? unsqueeze(cast(lengths, DType::f64), 1)
                              : full({1, 1}, static_cast<double>(L), DType::f64, x.device());
  const Tensor first = mul(iota(n, DType::f64, x.device()), static_cast<double>(c));
  const Tensor counts = clamp(sub(ends, first), 1, static_cast<double>(c));  // [B, n]
  return div(sum(windows, {2}), unsqueeze(cast(counts, x.dtype()), 2));
}

Tensor SequenceProjection::max_of(const Tensor& x, const Tensor& lengths) const {
  const int64_t L = x.dim(1), c = options_.window(), n = options_.rows(L);
  if (n == 0) return x;
  const Tensor rows = fill_padding(x, lengths, -std::numeric_limits<double>::infinity());
  const Tensor y = max_pool(rows, {.size = c, .stride = c, .after = n * c - L});
  if (!lengths) return y;
  const Tensor nothing = full({1, 1, 1}, 0, x.dtype(), x.device());
  return where(unsqueeze(exists(n, c, lengths), 2), y, nothing);
}

Tensor SequenceProjection::convolved(const Tensor& x) const {
  const int64_t L = x.dim(1), c = options_.window(), n = options_.rows(L);
  if (n == 0) return x;
  Tensor w = cast(weight, x.dtype());
  if (w.rank() == 3 && w.dim(0) < x.dim(2)) {  // all heads share it
    w = expand(unsqueeze(w, 0), {n_head_, w.dim(0), c, w.dim(0)});
  }
  const int64_t groups = w.rank() == 4 ? n_head_ : 1;
  if (w.rank() == 4) w = flatten(w, 0, 1);  // [D, c, d]
  return conv1d(x, w, {}, {.size = c, .stride = c, .after = n * c - L}, groups);
}

LinformerAttention::LinformerAttention(const AttentionOptions& heads,
                                       const LinformerOptions& options,
                                       const SequenceProjection* shared, const Init& init)
    : heads_(heads), options_(options) {
  const int64_t width = heads.d_model;
  q_ = Linear(width, width, heads.qkv_bias, init.at("q"), heads.weights);
  k_ = Linear(width, width, heads.qkv_bias, init.at("k"), heads.weights);
  v_ = Linear(width, width, heads.qkv_bias, init.at("v"), heads.weights);
  out_ = Linear(width, width, heads.out_bias, init.at("out"), heads.out_weights);
  e_ = shared != nullptr ? *shared : SequenceProjection(options, heads, init.at("e"));
  if (!is_one(options.sharing)) f_ = SequenceProjection(options, heads, init.at("f"));
}

void LinformerAttention::visit(Visitor& v) {
  v("q", q_)("k", k_)("v", v_)("out", out_)("e", e_)("f", f_);
}

Tensor LinformerAttention::split_heads(const Tensor& x) const {
  return transpose(unflatten(x, 2, x.dim(2) / width(), width()), 1, 2);
}

Tensor LinformerAttention::mixed_rows(const SequenceProjection& rows, const Tensor& x,
                                      const Tensor& lengths, const HeadShare& share) const {
  if (!share.divided()) return rows.forward(x, lengths);
  // Columns do not mix: each process mixes all rows of its own, and gets the others' results.
  const Tensor columns = share.to_heads(split_heads(x));  // [1, H / S, L, d]
  const Tensor mixed =
      rows.of(share).forward(flatten(transpose(columns, 1, 2), 2, 3), lengths);  // [1, r, D / S]
  return transpose(share.all_rows(transpose(mixed, 1, 2), x.dim(2)), 1, 2);
}

Tensor LinformerAttention::own_columns(const Tensor& y, const HeadShare& share) const {
  if (!share.divided()) return y;
  return flatten(transpose(share.to_heads(split_heads(y)), 1, 2), 2, 3);
}

Tensor LinformerAttention::project(const SequenceProjection& rows, const Linear& weights,
                                   const Tensor& x, const Tensor& lengths,
                                   const HeadShare& share) const {
  if (!rows.by_head()) {
    return share.of(weights, width()).forward(mixed_rows(rows, x, lengths, share));
  }
  // (E_i x) W_i = E_i (x W_i), without an E_i x of full width for every head.
  const Tensor columns = linear(x, cast(weights.weight, x.dtype()));
  const Tensor y = rows.of(share).forward(own_columns(columns, share), lengths);
  return weights.bias ? add(y, cast(share.of(weights, width()).bias, x.dtype())) : y;
}

Projected LinformerAttention::project(const Tensor& x, const Tensor& lengths,
                                      const HeadShare& share) const {
  const SequenceProjection& f = is_one(options_.sharing) ? e_ : f_;
  if (options_.order == ProjectionOrder::key) {
    const auto [q, k, v] = forward_each(x, q_, k_, v_);
    const auto mixed = [&](const SequenceProjection& rows, const Tensor& y) {
      return split_heads(rows.of(share).forward(own_columns(y, share), lengths));
    };
    return {share.to_heads(split_heads(q)), mixed(e_, k), mixed(f, v), x, share};
  }
  const Tensor q = share.to_heads(split_heads(q_.forward(x)));
  if (is_one(options_.sharing)) {
    const Tensor rows = mixed_rows(e_, x, lengths, share);  // once for both
    const auto [k, v] = forward_each(rows, share.of(k_, width()), share.of(v_, width()));
    return {q, split_heads(k), split_heads(v), x, share};
  }
  return {q, split_heads(project(e_, k_, x, lengths, share)),
          split_heads(project(f, v_, x, lengths, share)), x, share};
}

Tensor LinformerAttention::attend(const Projected& p, const LayerContext& ctx,
                                  const Dropout& dropout) const {
  const AttentionPattern pattern =
      with_lengths(patterns::dense(), ctx.lengths, e_.lengths(ctx.lengths, p.q.dim(2)));
  const Keys keys[] = {{p.k, p.v}};
  return block_attention(p.q, keys, pattern, {}, dropout).out;
}

Output LinformerAttention::forward(const Tensor& x, const LayerContext& ctx, Pass pass) const {
  const HeadShare share(heads_.n_head, pass);
  const Tensor y =
      attend(project(x, ctx.lengths, share), ctx, {heads_.dropout, share.site(pass.at("attn"))});
  return out_.forward(flatten(transpose(share.to_rows(y), 1, 2), 2, 3));
}

Tensor LinformerAttention::probabilities(const Tensor& x, const LayerContext& ctx) const {
  const NoGrad off;
  Projected p = project(x, ctx.lengths);
  return attention_weights(p.v, [&](const Tensor& unit) {
    p.v = unit;
    return attend(p, ctx, {});
  });
}

}  // namespace longspan
