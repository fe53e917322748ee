#include "models/compressive/compressive_attention.h"

#include <utility>

#include "autograd/mode.h"
#include "nn/attention/decoding_memory.h"
#include "ops/attention/attention_mass.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kCompressiveAttention = "compressive attention";

/// Attends to keys from `begin` on in each sample: [B, H, L, d].
Tensor attend_from(const Tensor& begin, const Tensor& q, const Tensor& k, const Tensor& v) {
  AttentionPattern pattern = patterns::dense();
  pattern.mask.k_begin = begin;
  return block_attention(q, k, v, pattern).out;
}

/// Returns the context with the rows of the memory that exist in its pattern. Where keys are kept,
/// W_R R is too.
LayerContext seen_from(const LayerContext& ctx) {
  LayerContext local = ctx;
  local.pattern.mask.k_begin = ctx.memory.get<InputRows>().begin;
  local.decoding = ctx.decoding || ctx.memory.has<KeyValues>();
  return local;
}

/// Returns the rows of [queue; segment] that are compressed, of which the first `gone` are not in
/// `rows`.
OldRows old_rows(const Tensor& rows, const Tensor& usage, const CompressedQueue::Update& update,
                 int64_t gone) {
  Tensor order = update.old;
  if (gone > 0) {
    const Tensor moved = sub(cast(order, DType::f64), static_cast<double>(gone));
    order = cast(clamp(moved, -1, static_cast<double>(rows.dim(1))), DType::i64);
  }
  OldRows old{permute_rows(rows, order), update.old_begin, update.new_begin, {}};
  if (usage) {
    const Tensor u = permute_rows(usage, update.old);  // [B, E c, 2]
    const Tensor asked = select(u, 2, 1), least = full({}, 1, u.dtype(), u.device());
    old.usage = div(select(u, 2, 0), maximum(asked, least));
  }
  return old;
}

/// Returns the memory with these rows in place of those that have gone through the block's norm.
LayerMemory with_states(LayerMemory memory, const Tensor& states) {
  InputRows rows = memory.get<InputRows>();
  rows.states = states;
  memory.set(std::move(rows));
  return memory;
}

/// Returns usage [B, rows, 2] with `n` rows more, which nothing has used.
Tensor with_unused(const Tensor& usage, int64_t n) {
  return concat({usage, zeros({usage.dim(0), n, 2}, usage.dtype(), usage.device())}, 1);
}

}  // namespace

CompressiveAttention::CompressiveAttention(const AttentionOptions& options,
                                           const CompressiveOptions& compressive, int64_t reach,
                                           const Tensor& u, const Tensor& v, const Init& init,
                                           bool own_biases)
    : RelativeMultiHead(options, reach, u, v, init, own_biases), compressive_(compressive) {
  if (rows() == 0 || compressive_.queue.compressed == 0) return;
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

int64_t CompressiveAttention::rows() const {
  const CompressedQueue& queue = compressive_.queue;
  return queue.fine > 0 && queue.compressed > 0 ? queue.capacity() : queue.fine;
}

LayerMemory CompressiveAttention::evaluation(int64_t batch, DType dtype, Device device) const {
  const AttentionOptions& o = options();
  const int64_t n = rows(), compressed = compressive_.queue.compressed;
  if (n == 0) return {};
  const auto empty = [&](const Shape& shape) {
    return Tensor::zeros(shape, dtype, device, Category::memory);
  };
  const Shape shape{batch, o.n_head, n, o.d_head};
  LayerMemory m = LayerMemory::of(KeyValues{empty(shape), empty(shape), 0, n});
  if (compressed > 0) m.set(InputRows{.states = empty({batch, n - compressed, o.d_model})});
  return m;
}

Projected CompressiveAttention::content(const Tensor& x, const LayerContext& ctx) const {
  LayerMemory memory = ctx.memory;
  if (!memory.has<KeyValues>()) return gather(x, ctx, memory, Pass{});
  const auto& kept = memory.get<KeyValues>();
  Projected p = project(x);
  p.k = concat({kept.keys, p.k}, 2);
  p.v = concat({kept.values, p.v}, 2);
  return p;
}

Output CompressiveAttention::computed(const Tensor& onto, const Tensor& x, const LayerContext& ctx,
                                      Pass pass) const {
  if (ctx.decoding) return added(onto, decode(x, ctx));
  const bool evaluates = ctx.memory.has<KeyValues>();
  require(!evaluates || !pass.training, kCompressiveAttention,
          "the memory is one of evaluation_memory(); training takes empty_memory()");
  Output result;
  result.memory = ctx.memory;
  const LayerContext local = seen_from(ctx);
  const Projected all = content(x, ctx);
  Projected p = all;
  const ScoreTerms extra = terms(p, local, result.memory);
  result.y = merge(attend(p, local, extra, {options().dropout, pass.at("attn")}), onto);
  if (ctx.mem_len == 0) return result;
  if (rows() == 0) result.kept.emplace();
  if (rows() == 0 || (compressive_.queue.compressed == 0 && !evaluates)) return result;
  require(ctx.block.states || evaluates, kCompressiveAttention,
          "there is no memory; pass that of empty_memory()");
  const LayerMemory before = with_states(result.memory, ctx.block.states);
  Tensor usage = before.get<CompressedRows>().usage;
  if (usage) usage = usage_after(usage, mass_of(p, local, extra), x.dim(1));
  if (evaluates) {
    result.kept = advanced_keys(before, ctx.block.x, usage, ctx, all);
    return result;
  }
  const bool trains = pass.training && compressive_.loss != CompressionLoss::none;
  result.kept = advanced(before, ctx.block.x, usage, ctx, all, trains ? &result.losses : nullptr);
  return result;
}

Tensor CompressiveAttention::mass(const Tensor& x, const LayerContext& ctx) const {
  const NoGrad off;
  LayerMemory memory = ctx.memory;
  const LayerContext local = seen_from(ctx);
  Projected p = content(x, ctx);
  const ScoreTerms extra = terms(p, local, memory);
  return mass_of(p, local, extra);
}

Tensor CompressiveAttention::mass_of(const Projected& p, const LayerContext& ctx,
                                     const ScoreTerms& terms) const {
  const Tensor of_heads = attention_mass(p.q, p.k, ctx.pattern, terms);
  return sum(cast(of_heads, accumulator_of(of_heads.dtype())), {1});
}

Tensor CompressiveAttention::usage_after(const Tensor& usage, const Tensor& mass,
                                         int64_t queries) const {
  const NoGrad off;
  const int64_t capacity = rows(), fresh = mass.dim(1) - capacity;
  const Tensor old = cast(narrow(mass, 1, 0, capacity), usage.dtype());
  const Tensor asked =
      full({1, 1}, static_cast<double>(queries * options().n_head), usage.dtype(), usage.device());
  const Tensor added = stack({old, expand(asked, old.shape())}, 2);  // [B, capacity, 2]
  return with_unused(add(usage, added), fresh);
}

LayerMemory CompressiveAttention::advanced(const LayerMemory& before, const Tensor& x,
                                           const Tensor& usage, const LayerContext& ctx,
                                           const Projected& content,
                                           std::vector<AuxiliaryLoss>* losses) const {
  InputRows queue = before.get<InputRows>();
  auto compressed = before.get<CompressedRows>();
  const CompressedQueue::Update update =
      compressive_.queue.after(queue.begin, compressed.fine_begin, x.dim(1));
  const auto constant = [&](const Tensor& t) { return compressive_.history ? t : t.detach(); };
  Tensor rows = concat({constant(queue.states), cast(constant(x), queue.states.dtype())}, 1);
  Tensor made;
  if (update.groups > 0) {
    const OldRows old = old_rows(rows, usage, update, 0);
    std::optional<NoGrad> off;
    if (losses == nullptr && !compressive_.history) off.emplace();
    made = compressor_.forward(old);  // [B, E, D]
    if (losses != nullptr) {
      losses->push_back({"compression", compression_loss(old, made, update, ctx, content)});
    }
  }
  if (autograd::replaying()) return before;  // only gradients matter
  if (made) rows = concat({rows, cast(constant(made), rows.dtype())}, 1);
  queue.states = in_memory(permute_rows(rows, update.next));
  queue.begin = in_memory(update.begin);
  compressed.fine_begin = in_memory(update.fine_begin);
  if (usage) {
    compressed.usage = in_memory(permute_rows(with_unused(usage, update.groups), update.next));
  }
  LayerMemory after = before;
  after.set(std::move(queue));
  after.set(std::move(compressed));
  return after;
}

LayerMemory CompressiveAttention::advanced_keys(const LayerMemory& before, const Tensor& x,
                                                const Tensor& usage, const LayerContext& ctx,
                                                const Projected& content) const {
  const NoGrad off;
  const int64_t capacity = rows(), length = content.k.dim(2) - capacity;
  const bool compresses = compressive_.queue.compressed > 0;
  // Without compressed rows the newest fine ones stay, and the others are lost.
  const CompressedQueue queue = compresses ? compressive_.queue : CompressedQueue{.fine = capacity};
  const InputRows& old_inputs = before.get<InputRows>();
  const Tensor begin = old_inputs.begin ? old_inputs.begin
                                        : zeros({content.k.dim(0)}, DType::i64, content.k.device());
  auto compressed = before.get<CompressedRows>();
  const CompressedQueue::Update update =
      queue.after(begin, compresses ? compressed.fine_begin : begin, length);
  InputRows inputs{.begin_of_stream = old_inputs.begin_of_stream};
  Tensor keys = content.k, values = content.v;
  if (compresses) {
    const Tensor& fresh_states = old_inputs.states;
    const Tensor states = concat({fresh_states, cast(x.detach(), fresh_states.dtype())}, 1);
    if (update.groups > 0) {
      const OldRows old = old_rows(states, usage, update, capacity - fresh_states.dim(1));
      const Tensor made = compressor_.forward(old);  // [B, E, D]
      const Tensor z = ctx.block.norm != nullptr ? ctx.block.norm->forward(made) : made;
      const Projected fresh = project_through(cast(z, keys.dtype()));
      keys = concat({keys, fresh.k}, 2);
      values = concat({values, fresh.v}, 2);
    }
    const int64_t fine = capacity - queue.compressed;
    inputs.states = in_memory(clone(narrow(states, 1, states.dim(1) - fine, fine)));
    compressed.fine_begin = in_memory(update.fine_begin);
  }
  if (usage) {
    compressed.usage = in_memory(permute_rows(with_unused(usage, update.groups), update.next));
  }
  const Tensor order = unsqueeze(update.next, 1);
  const KeyValues kept{in_memory(permute_rows(keys, order)), in_memory(permute_rows(values, order)),
                       0, capacity};
  inputs.begin = in_memory(update.begin);
  LayerMemory after = before;
  after.set(kept);
  after.set(std::move(inputs));
  after.set(std::move(compressed));
  return after;
}

Tensor CompressiveAttention::compression_loss(const OldRows& old, const Tensor& made,
                                              const CompressedQueue::Update& update,
                                              const LayerContext& ctx,
                                              const Projected& content) const {
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
  const Tensor q = content.q.detach();
  const auto evicted = [&](const Tensor& x) {  // of rows [B, H, T, d] of [queue; segment]
    const Tensor rows = flatten(transpose(x.detach(), 1, 2), 2, 3);  // as projected
    return transpose(unflatten(permute_rows(rows, update.old), 2, x.dim(1), x.dim(3)), 1, 2);
  };
  const Tensor target = attend_from(update.old_begin, q, evicted(content.k), evicted(content.v));
  const Tensor z = ctx.block.norm != nullptr ? ctx.block.norm->detached().forward(made) : made;
  const Projected squeezed = project_through(cast(z, q.dtype()));
  const Tensor got = attend_from(update.new_begin, q, squeezed.k, squeezed.v);
  const Tensor some = greater(groups, zeros({}, dtype, made.device()));
  return reconstruction_error(compressive_.norm, sub(got, target),
                              mul(cast(some, dtype), static_cast<double>(q.dim(2))),
                              q.dim(1) * got.dim(3));
}

// Keys and values of the queue come first in those that decoding keeps.
Output CompressiveAttention::decode(const Tensor& x, const LayerContext& ctx) const {
  require<GradientError>(!autograd::recording(), kCompressiveAttention,
                         "decoding keeps keys and values without history; use NoGrad");
  LayerMemory m = with_states(ctx.memory, ctx.block.states);
  const bool projected = m.has<KeyValues>();
  const Tensor& states = ctx.memory.get<InputRows>().states;
  require(rows() == 0 || ctx.block.states || projected, kCompressiveAttention,
          "there is no memory; pass that of start_decoding()");
  const int64_t n = x.dim(1);
  const bool projects_queue = !projected && states;
  Projected p = projects_queue ? project_after(cast(states, x.dtype()), x) : project(x);
  const KeyValues now = remember(m.get<KeyValues>(), p.k, p.v, m.get<KeyValues>().count, 0);
  m.set(now);
  const int64_t open = now.count - rows();
  require(open == ctx.position + n, kCompressiveAttention,
          "the segment has {} rows, the input begins at {}", open - n, ctx.position);
  require(open <= compressive_.segment, kCompressiveAttention,
          "{} rows follow in a segment of {}; decode no further than its end", open,
          compressive_.segment);
  p.k = memory_slots(now.keys, 0, now.count);
  p.v = memory_slots(now.values, 0, now.count);
  const Projected all = p;
  const LayerContext local = seen_from(ctx);
  const ScoreTerms extra = terms(p, local, m);
  Output result(merge(attend(p, local, extra, {})));
  auto compressed = m.get<CompressedRows>();
  if (compressed.usage) {
    const Tensor used = usage_after(compressed.usage, mass_of(p, local, extra), n);
    compressed.usage = in_memory(contiguous(narrow(used, 1, 0, rows())));
  }
  if (rows() > 0 && compressive_.queue.compressed > 0) {
    const Tensor row = ctx.block.x.detach();
    compressed.open = in_memory(compressed.open ? concat({compressed.open, row}, 1) : clone(row));
  }
  if (open == compressive_.segment) {
    const Tensor usage = compressed.usage ? with_unused(compressed.usage, open) : compressed.usage;
    const Tensor segment = std::exchange(compressed.open, {});
    m.set(std::move(compressed));
    LayerMemory next;
    if (rows() > 0) next = advanced_keys(m, segment, usage, ctx, all);
    if (m.has<ProjectedDistances>()) next.set(m.get<ProjectedDistances>());
    m = std::move(next);
  } else {
    m.set(std::move(compressed));
  }
  result.kept = std::move(m);
  return result;
}

}  // namespace longspan
