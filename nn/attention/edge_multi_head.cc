#include "nn/attention/edge_multi_head.h"

#include "autograd/mode.h"
#include "core/kernels/copy.h"
#include "nn/attention/decoding_memory.h"
#include "nn/attention/head_share.h"
#include "nn/attention/multi_head.h"
#include "ops/attention/edge_attention.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kEdgeAttention = "edge attention";

/// Returns `old` [B, H, places, d] with the rows of `fresh` [B, H, n, d] at their places.
Tensor placed(const Tensor& old, const Tensor& fresh, const EdgeRows& rows) {
  Tensor cache = old;
  if (!old || old.dim(2) < rows.slots) {
    Shape shape = fresh.shape();
    shape[2] = rows.slots;
    // Rows that do not exist yet are zero: kernels may multiply them by probabilities of 0.
    cache = Tensor::zeros(shape, fresh.dtype(), fresh.device(), Category::memory);
    for (const RowRun& run : old ? rows.moved : std::vector<RowRun>{}) {
      kernels::copy(cache.device(), memory_slots(old, run.from, run.count).view(),
                    memory_slots(cache, run.to, run.count).mut());
    }
  }
  for (const RowRun& run : rows.written) {
    kernels::copy(cache.device(), narrow(fresh, 2, run.from, run.count).view(),
                  memory_slots(cache, run.to, run.count).mut());
  }
  return cache;
}

void require_no_recording() {
  require<GradientError>(!autograd::recording(), kEdgeAttention,
                         "decoding keeps keys and values without history; use NoGrad");
}

}  // namespace

EdgeMultiHead::EdgeMultiHead(const EdgeMultiHeadOptions& o, const Init& init) : options_(o) {
  require(o.n_head >= 1 && o.d_model % o.n_head == 0, kEdgeAttention,
          "d_model {} is not a multiple of n_head {}", o.d_model, o.n_head);
  q_ = Linear(o.d_model, o.d_model, false, init.at("q"), o.weights);
  k_ = Linear(o.d_model, o.d_model, false, init.at("k"), o.weights);
  v_ = Linear(o.d_model, o.d_model, false, init.at("v"), o.weights);
  out_ = Linear(o.d_model, o.d_model, false, init.at("out"), o.weights);
  if (o.labels > 0) {
    relation_ = init.at("relation").make({o.labels, o.d_model / o.n_head}, o.weights);
  }
}

void EdgeMultiHead::visit(Visitor& v) {
  v("q", q_)("k", k_)("v", v_)("out", out_)("relation", relation_);
}

Tensor EdgeMultiHead::split_heads(const Tensor& x) const {
  return transpose(unflatten(x, -1, options_.n_head, x.dim(-1) / options_.n_head), 1, 2);
}

std::array<Tensor, 3> EdgeMultiHead::project(const Tensor& x, const EdgeRows& rows) const {
  if (rows.all_of(x)) {
    const auto [q, k, v] = forward_each(x, q_, k_, v_);
    return {split_heads(q), split_heads(k), split_heads(v)};
  }
  const auto [k, v] = forward_each(x, k_, v_);
  return {split_heads(q_.forward(rows.of(x))), split_heads(k), split_heads(v)};
}

Tensor EdgeMultiHead::merge(const Tensor& heads) const {
  return out_.forward(flatten(transpose(heads, 1, 2), 2, 3));
}

Output EdgeMultiHead::forward(const Tensor& x, const LayerContext& ctx, Pass pass) const {
  if (options_.cross) return forward_cross(x, ctx, pass);
  const auto* edges = ctx.own.find<EdgeContext>();
  require(edges != nullptr && edges->rows != nullptr, kEdgeAttention,
          "no layout is given; set EdgeContext::rows of LayerContext::own");
  const EdgeRows& rows = *edges->rows;
  Output result;
  result.memory = ctx.memory;
  const HeadShare share(options_.n_head, pass);
  auto [q, k, v] = project(x, rows);
  for (Tensor* const t : {&q, &k, &v}) *t = share.to_heads(*t);
  if (ctx.decoding) {
    require_no_recording();
    const auto& old = ctx.memory.get<KeyValues>();
    k = placed(old.keys, k, rows);
    v = placed(old.values, v, rows);
    result.memory.set(KeyValues{k, v});
  }
  const Tensor relation = relation_ ? cast(relation_, q.dtype()) : Tensor{};
  const Dropout dropout{options_.dropout, share.site(pass.at("attn"))};
  result.y = merge(share.to_rows(edge_attention(q, k, v, relation, rows.layout, 0, dropout)));
  return result;
}

Output EdgeMultiHead::forward_cross(const Tensor& x, const LayerContext& ctx, Pass pass) const {
  const auto* edges = ctx.own.find<EdgeContext>();
  require(edges != nullptr && edges->encoder_rows != nullptr && ctx.encoder_output, kEdgeAttention,
          "cross-attention has no input; set LayerContext::encoder_output and "
          "EdgeContext::encoder_rows");
  const auto& layout = edges->encoder_rows->layout;
  const int64_t batch = x.dim(0), n = layout->n_rows / batch;
  if (n * batch != layout->n_rows || n > x.dim(1)) {
    fail_with<ShapeError>(
        kEdgeAttention, fmt::format("a layout of {} rows does not fit the samples", layout->n_rows),
        {{"x", x}});
  }
  Output result;
  result.memory = ctx.memory;
  auto [k, v] = ctx.memory.get<SourceKeyValues>();
  if (!k) {
    const auto [of_k, of_v] = forward_each(ctx.encoder_output, k_, v_);
    k = split_heads(of_k);
    v = split_heads(of_v);
  }
  if (ctx.decoding) {
    require_no_recording();
    result.memory.set(SourceKeyValues{k, v});
  }
  const Tensor rows = narrow(x, 1, 0, n);
  const Tensor q = split_heads(q_.forward(reshape(rows, {1, batch * n, x.dim(2)})));
  const Tensor y =
      merge(edge_attention(q, k, v, {}, layout, 0, {options_.dropout, pass.at("attn")}));
  result.y = reshape(y, rows.shape());
  if (n < x.dim(1)) {
    const Shape rest{batch, x.dim(1) - n, x.dim(2)};
    result.y = concat({result.y, Tensor::zeros(rest, x.dtype(), x.device())}, 1);
  }
  return result;
}

Tensor EdgeMultiHead::probabilities(const Tensor& x, const LayerContext& ctx) const {
  const NoGrad off;
  if (options_.cross) {
    const auto& layout = ctx.own.find<EdgeContext>()->encoder_rows->layout;
    const Tensor q = split_heads(q_.forward(narrow(x, 1, 0, layout->n_rows)));
    const Tensor k = split_heads(k_.forward(ctx.encoder_output));
    return attention_weights(
        k, [&](const Tensor& unit) { return edge_attention(q, k, unit, {}, layout); });
  }
  const EdgeRows& rows = *ctx.own.find<EdgeContext>()->rows;
  const std::array<Tensor, 3> own = project(x, rows);
  const Tensor relation = relation_ ? cast(relation_, x.dtype()) : Tensor{};
  return attention_weights(own[2], [&](const Tensor& unit) {
    return edge_attention(own[0], own[1], unit, relation, rows.layout);
  });
}

}  // namespace longspan
