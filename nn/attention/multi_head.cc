#include "nn/attention/multi_head.h"

#include <algorithm>

#include "autograd/mode.h"
#include "core/scope.h"
#include "nn/attention/decoding_memory.h"
#include "nn/segment.h"
#include "ops/copy.h"
#include "ops/shape.h"

namespace longspan {
namespace {

int64_t width_of(const AttentionOptions& o) {
  require(o.n_head >= 1, "attention", "n_head is {}; expected 1 or more", o.n_head);
  if (o.d_head > 0) return o.d_head;
  require(o.d_model % o.n_head == 0, "attention",
          "d_model {} is not a multiple of n_head {}; set d_head", o.d_model, o.n_head);
  return o.d_model / o.n_head;
}

}  // namespace

MultiHead::MultiHead(const AttentionOptions& options, ShawTables tables, const Init& init)
    : options_(options), tables_(std::move(tables)) {
  AttentionOptions& o = options_;
  o.d_head = width_of(o);
  if (o.d_value == 0) o.d_value = o.d_head;
  const int64_t width = o.n_head * o.d_head, values = o.n_head * o.d_value;
  require(!(o.cross && o.share_qk), "attention", "cross-attention cannot share q and k");
  q_ = Linear(o.d_model, width, o.qkv_bias, init.at("q"), o.weights);
  if (!o.share_qk) k_ = Linear(o.d_model, width, o.qkv_bias, init.at("k"), o.weights);
  v_ = Linear(o.d_model, values, o.qkv_bias, init.at("v"), o.weights);
  out_ = Linear(values, o.d_model, o.out_bias, init.at("out"), o.out_weights);
}

void MultiHead::visit(Visitor& v) {
  v("q", q_)("k", k_)("v", v_)("out", out_);
  tables_.visit(v);
}

Tensor MultiHead::split_heads(const Tensor& x) const {
  const int64_t width = x.dim(-1) / options_.n_head;
  return transpose(unflatten(x, -1, options_.n_head, width), 1, 2);  // [B, H, L, d]
}

Projected MultiHead::project(const Tensor& x) const {
  if (options_.share_qk) {
    const auto [shared, v] = forward_each(x, q_, v_);
    const Tensor q = split_heads(shared);
    return {q, q, split_heads(v), x};
  }
  const auto [q, k, v] = forward_each(x, q_, k_, v_);
  return {split_heads(q), split_heads(k), split_heads(v), x};
}

Projected MultiHead::project(const Tensor& x, const Tensor& z) const {
  const auto [k, v] = forward_each(z, options_.share_qk ? q_ : k_, v_);
  return {split_heads(q_.forward(x)), split_heads(k), split_heads(v), x};
}

Projected MultiHead::project_after(const Tensor& before, const Tensor& x) const {
  const Linear& key = options_.share_qk ? q_ : k_;
  return {split_heads(q_.forward(x)), split_heads(key.forward(before, x)),
          split_heads(v_.forward(before, x)), x};
}

Projected MultiHead::project_through(const Tensor& z) const {
  const Linear& key = options_.share_qk ? q_ : k_;
  const auto [k, v] = forward_each(z, key.detached(), v_.detached());
  return {{}, split_heads(k), split_heads(v)};
}

Tensor MultiHead::merge(const Tensor& heads, const Tensor& onto) const {
  return out_.forward_onto(onto, flatten(transpose(heads, 1, 2), 2, 3));  // of [B, L, H dv]
}

Tensor MultiHead::attend(const Projected& p, const LayerContext& ctx, const ScoreTerms& terms,
                         const Dropout& dropout) const {
  std::vector<AttentionPattern> parts = {options_.cross ? ctx.encoder_pattern : ctx.pattern};
  if (!options_.cross) parts.insert(parts.end(), ctx.also.begin(), ctx.also.end());
  if (const InputRows& rows = ctx.memory.get<InputRows>(); !options_.cross && rows.states) {
    for (AttentionPattern& part : parts) part.mask.k_begin = rows.begin;
  }
  for (AttentionPattern& part : parts) part = p.share.of(part);
  const Keys keys[] = {{p.k, p.v}};
  return block_attention(p.q, keys, parts, terms, dropout).out;
}

ScoreTerms MultiHead::terms(Projected& p, const LayerContext&, LayerMemory&) const {
  ScoreTerms t;
  t.scale = options_.scale;
  if (tables_) tables_.fill(t, p.q.dtype());
  return p.share.of(std::move(t));
}

Projected MultiHead::gather_share(const Tensor& x, const LayerContext& ctx,
                                  const Pass& pass) const {
  const HeadShare share(options_.n_head, pass);
  require<NotImplemented>(!ctx.decoding, "attention", "one process decodes; leave out Pass::split");
  if (options_.cross) {
    const auto* source = ctx.own.find<SourceRows>();
    require(source != nullptr && ctx.encoder_output, "attention",
            "cross-attention has no input; set LayerContext::encoder_output, and SourceRows where "
            "processes divide it");
    Projected p = project(x, ctx.encoder_output);
    return {share.to_heads(p.q), share.to_heads(p.k, source->count),
            share.to_heads(p.v, source->count), x, share};
  }
  Projected p = project(x);
  const bool one = options_.share_qk;
  p.q = share.to_heads(p.q);
  p = {p.q, one ? p.q : share.to_heads(p.k), share.to_heads(p.v), x, share};
  if (const Tensor& states = ctx.memory.get<InputRows>().states) {
    // Each process has all rows of the memory, and takes its heads' keys and values of them.
    const Tensor before = cast(states, x.dtype());
    const auto [k, v] = forward_each(before, share.of(one ? q_ : k_, options_.d_head),
                                     share.of(v_, options_.d_value));
    const auto heads = [](const Tensor& y, int64_t width) {
      return transpose(unflatten(y, -1, y.dim(-1) / width, width), 1, 2);
    };
    p.k = concat({heads(k, options_.d_head), p.k}, 2);
    p.v = concat({heads(v, options_.d_value), p.v}, 2);
  }
  return p;
}

Projected MultiHead::gather(const Tensor& x, const LayerContext& ctx, LayerMemory& memory,
                            const Pass& pass) const {
  if (pass.split != nullptr) return gather_share(x, ctx, pass);
  if (options_.cross) {
    require(static_cast<bool>(ctx.encoder_output), "attention",
            "cross-attention has no input; set LayerContext::encoder_output");
    if (!ctx.decoding) return project(x, ctx.encoder_output);
    if (memory.has<SourceKeyValues>()) {
      const auto& source = memory.get<SourceKeyValues>();
      return {split_heads(q_.forward(x)), source.keys, source.values, x};
    }
    Projected p = project(x, ctx.encoder_output);
    memory.set(SourceKeyValues{p.k.detach(), p.v.detach()});
    return p;
  }
  if (const Tensor& states = memory.get<InputRows>().states) {
    return project_after(cast(states, x.dtype()), x);  // keys [B, H, M + L, d]
  }
  Projected p = project(x);
  if (ctx.decoding) {
    require<GradientError>(!autograd::recording(), "attention",
                           "decoding keeps keys and values without history; use NoGrad");
    const KeyValues now = remember(memory.get<KeyValues>(), p.k, p.v, ctx.position, ctx.keep_from);
    const int64_t begin = std::max(ctx.keep_from, now.first);
    const int64_t seen = now.first + now.count - begin;
    p.k = memory_slots(now.keys, begin - now.first, seen);
    p.v = memory_slots(now.values, begin - now.first, seen);
    memory.set(now);
  }
  return p;
}

Output MultiHead::computed(const Tensor& onto, const Tensor& x, const LayerContext& ctx,
                           Pass pass) const {
  Output result;
  result.memory = ctx.memory;
  Projected p = gather(x, ctx, result.memory, pass);
  const ScoreTerms extra = terms(p, ctx, result.memory);
  if (pass.training) result.losses = penalties(extra);
  const Pass site = pass.at("attn");
  const Tensor heads = attend(p, ctx, extra, {options_.dropout, p.share.site(site)});
  result.y = merge(drop_outputs(p.share.to_rows(heads), heads.dim(2), site), onto);
  return result;
}

Tensor MultiHead::probabilities(const Tensor& x, const LayerContext& ctx) const {
  const NoGrad off;
  Projected p = options_.cross ? project(x, ctx.encoder_output) : project(x);
  LayerMemory memory;
  ScoreTerms t = terms(p, ctx, memory);
  t.relation_value = {};
  return attention_weights(p.v, [&](const Tensor& unit) {
    p.v = unit;
    return attend(p, ctx, t, {});
  });
}

Tensor attention_weights(const Tensor& values, const std::function<Tensor(const Tensor&)>& attend) {
  const int64_t batch = values.dim(0), heads = values.dim(1), keys = values.dim(2);
  const DType dtype = values.dtype();
  const Device device = values.device();
  constexpr int64_t columns = 512;
  std::vector<Tensor> parts;
  for (int64_t j = 0; j < keys; j += columns) {
    const int64_t n = std::min(columns, keys - j);
    std::vector<double> unit(static_cast<size_t>(keys * n), 0.0);
    for (int64_t c = 0; c < n; ++c) unit[static_cast<size_t>((j + c) * n + c)] = 1.0;
    const Tensor v = to_device(cast(Tensor::from(unit, {keys, n}), dtype), device);
    parts.push_back(attend(contiguous(expand(v, {batch, heads, keys, n}))));
  }
  return concat(parts, 3);
}

}  // namespace longspan
