#include "models/compressive/compressive_attention.h"

#include <utility>

#include "autograd/mode.h"
#include "nn/decoding_memory.h"
#include "ops/attention/attention_mass.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kOp = "compressive attention";

/// Attends to keys from `begin` on in each sample: [B, H, L, d].
Tensor attend_from(const Tensor& begin, const Tensor& q, const Tensor& k, const Tensor& v) {
  AttentionPattern pattern = patterns::dense();
  pattern.mask.k_begin = begin;
  return block_attention(q, k, v, pattern).out;
}

}  // namespace

CompressiveAttention::CompressiveAttention(const AttentionOptions& options,
                                           const CompressiveOptions& compressive, int64_t reach,
                                           const Tensor& u, const Tensor& v, const Init& init,
                                           bool own_biases)
    : RelativeMultiHead(options, reach, u, v, init, own_biases), compressive_(compressive) {
  if (compressive_.queue.compressed == 0) return;
  compressor_ = Compressor(compressive_.compression, init.at("compressor"));
  if (compressive_.loss == CompressionLoss::autoencode) {
    restorer_.emplace(compressive_.compression, init.at("restorer"));
  }
}

void CompressiveAttention::visit(Visitor& v) {
  RelativeMultiHead::visit(v);
  v.clipped_apart("compression", "compressor", compressor_);
  v.clipped_apart("compression", "restorer", restorer_);
}

Output CompressiveAttention::forward(const Tensor& x, const LayerContext& ctx, Pass pass) const {
  if (ctx.decoding) return decode(x, ctx);
  Output result;
  result.memory = ctx.memory;
  Projected p = gather(x, ctx, result.memory);
  Segment segment{p, {}};
  const ScoreTerms extra = terms(p, ctx, result.memory);
  result.y = merge(attend(p, ctx, extra, {options().dropout, pass.at("attn")}));
  if (ctx.mem_len == 0 || compressive_.queue.compressed == 0) return result;
  require(ctx.block_states && ctx.memory.fine_begin, kOp,
          "there is no memory; pass that of empty_memory()");
  LayerMemory before = ctx.memory;
  before.states = ctx.block_states;
  Tensor usage;
  if (before.usage) usage = usage_after(before, mass_of(p, ctx, extra), x.dim(1));
  const bool trains = pass.training && compressive_.loss != CompressionLoss::none;
  result.kept =
      advanced(before, ctx.block_input, usage, ctx, &segment, trains ? &result.losses : nullptr);
  return result;
}

Tensor CompressiveAttention::mass(const Tensor& x, const LayerContext& ctx) const {
  const NoGrad off;
  LayerMemory memory = ctx.memory;
  Projected p = gather(x, ctx, memory);
  const ScoreTerms extra = terms(p, ctx, memory);
  return mass_of(p, ctx, extra);
}

Tensor CompressiveAttention::mass_of(const Projected& p, const LayerContext& ctx,
                                     const ScoreTerms& terms) const {
  AttentionPattern pattern = ctx.pattern;
  if (ctx.memory.states) pattern.mask.k_begin = ctx.memory.begin;
  const Tensor of_heads = attention_mass(p.q, p.k, pattern, terms);
  return sum(cast(of_heads, accumulator_of(of_heads.dtype())), {1});
}

Tensor CompressiveAttention::usage_after(const LayerMemory& before, const Tensor& mass,
                                         int64_t queries) const {
  const NoGrad off;
  const int64_t capacity = before.states.dim(1), fresh = mass.dim(1) - capacity;
  const Tensor& usage = before.usage;
  const Tensor old = cast(narrow(mass, 1, 0, capacity), usage.dtype());
  const Tensor asked =
      full({1, 1}, static_cast<double>(queries * options().n_head), usage.dtype(), usage.device());
  const Tensor added = stack({old, expand(asked, old.shape())}, 2);  // [B, capacity, 2]
  const Shape none{usage.dim(0), fresh, 2};
  return concat({add(usage, added), zeros(none, usage.dtype(), usage.device())}, 1);
}

LayerMemory CompressiveAttention::advanced(const LayerMemory& before, const Tensor& x,
                                           const Tensor& usage, const LayerContext& ctx,
                                           const Segment* segment,
                                           std::vector<AuxiliaryLoss>* losses) const {
  const CompressedQueue::Update update =
      compressive_.queue.after(before.begin, before.fine_begin, x.dim(1));
  const auto constant = [&](const Tensor& t) { return compressive_.history ? t : t.detach(); };
  Tensor rows = concat({constant(before.states), cast(constant(x), before.states.dtype())}, 1);
  Tensor made;
  if (update.groups > 0) {
    OldRows old{permute_rows(rows, update.old), update.old_begin, update.new_begin, {}};
    if (usage) {
      const Tensor u = permute_rows(usage, update.old);  // [B, E c, 2]
      const Tensor asked = select(u, 2, 1), least = full({}, 1, u.dtype(), u.device());
      old.usage = div(select(u, 2, 0), maximum(asked, least));
    }
    std::optional<NoGrad> off;
    if (losses == nullptr && !compressive_.history) off.emplace();
    made = compressor_.forward(old);  // [B, E, D]
    if (losses != nullptr) {
      losses->push_back({"compression", compression_loss(old, made, update, ctx, *segment)});
    }
  }
  LayerMemory after = before;
  if (autograd::replaying()) return after;  // only gradients matter
  if (made) rows = concat({rows, cast(constant(made), rows.dtype())}, 1);
  after.states = in_memory(permute_rows(rows, update.next));
  after.begin = in_memory(update.begin);
  after.fine_begin = in_memory(update.fine_begin);
  if (usage) {
    const Shape none{usage.dim(0), update.groups, 2};
    const Tensor all = concat({usage, zeros(none, usage.dtype(), usage.device())}, 1);
    after.usage = in_memory(permute_rows(all, update.next));
  }
  return after;
}

Tensor CompressiveAttention::compression_loss(const OldRows& old, const Tensor& made,
                                              const CompressedQueue::Update& update,
                                              const LayerContext& ctx,
                                              const Segment& segment) const {
  const DType dtype = accumulator_of(made.dtype());
  const Tensor groups = sub(static_cast<double>(update.groups), cast(update.new_begin, dtype));
  if (restorer_) {
    const Tensor slots = iota(old.rows.dim(1), DType::i64, made.device());
    const Tensor exists = greater_equal(slots, unsqueeze(update.old_begin, 1));  // [B, E c]
    const Tensor lost = sub(restorer_->forward(made), old.rows);
    return reconstruction_error(
        compressive_.norm, where(unsqueeze(exists, 2), lost, zeros_like(lost)),
        mul(groups, static_cast<double>(compressive_.queue.rate)), made.dim(2));
  }
  const Projected& p = segment.content;
  const Tensor q = p.q.detach();
  const auto evicted = [&](const Tensor& x) {  // of rows [B, H, T, d] of [queue; segment]
    const Tensor rows = flatten(transpose(x.detach(), 1, 2), 2, 3);  // as projected
    return transpose(unflatten(permute_rows(rows, update.old), 2, x.dim(1), x.dim(3)), 1, 2);
  };
  const Tensor target = attend_from(update.old_begin, q, evicted(p.k), evicted(p.v));
  const Tensor z = ctx.block_norm != nullptr ? ctx.block_norm->detached().forward(made) : made;
  const Projected squeezed = project_through(cast(z, q.dtype()));
  const Tensor got = attend_from(update.new_begin, q, squeezed.k, squeezed.v);
  const Tensor some = greater(groups, zeros({}, dtype, made.device()));
  return reconstruction_error(compressive_.norm, sub(got, target),
                              mul(cast(some, dtype), static_cast<double>(q.dim(2))),
                              q.dim(1) * got.dim(3));
}

// Keys and values of the queue come first in those that decoding keeps; positions count from them.
Output CompressiveAttention::decode(const Tensor& x, const LayerContext& ctx) const {
  require<GradientError>(!autograd::recording(), kOp,
                         "decoding keeps keys and values without history; use NoGrad");
  require(static_cast<bool>(ctx.block_states), kOp,
          "there is no memory; pass that of empty_memory()");
  LayerMemory m = ctx.memory;
  m.states = ctx.block_states;
  const int64_t n = x.dim(1);
  Projected p = m.keys ? project(x) : project_after(cast(ctx.memory.states, x.dtype()), x);
  m = remember(m, p.k, p.v, m.keys ? ctx.position : 0, 0);
  require(m.count == ctx.position + n, kOp, "the memory ends at row {}, the input begins at {}",
          m.count - n, ctx.position);
  p.k = memory_slots(m.keys, 0, m.count);
  p.v = memory_slots(m.values, 0, m.count);
  const ScoreTerms extra = terms(p, ctx, m);
  Output result(merge(attend(p, ctx, extra, {})));
  if (m.usage) {
    const Tensor used = usage_after(m, mass_of(p, ctx, extra), n);
    m.usage = in_memory(contiguous(narrow(used, 1, 0, m.states.dim(1))));
  }
  const Tensor row = ctx.block_input.detach();
  m.open = in_memory(m.open ? concat({m.open, row}, 1) : clone(row));
  require(m.open.dim(1) <= compressive_.segment, kOp,
          "{} rows follow in a segment of {}; decode no further than its end", m.open.dim(1),
          compressive_.segment);
  if (m.open.dim(1) == compressive_.segment) {
    if (compressive_.queue.compressed == 0) {
      m = NewestRows(compressive_.queue.fine).keep(m, m.open);
    } else {
      Tensor usage = m.usage;
      if (usage) {
        const Shape none{usage.dim(0), m.open.dim(1), 2};
        usage = concat({usage, zeros(none, usage.dtype(), usage.device())}, 1);
      }
      m = advanced(m, m.open, usage, ctx, nullptr, nullptr);
    }
    m.open = m.keys = m.values = {};
    m.first = m.count = 0;
  }
  result.kept = std::move(m);
  return result;
}

}  // namespace longspan
