#include "models/expire_span/expire_attention.h"

#include <algorithm>
#include <cmath>

#include "autograd/mode.h"
#include "core/kernels/copy.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "ops/sort.h"

namespace longspan {
namespace {

constexpr const char* kExpireAttention = "expire attention";
constexpr double kAlways = 1e300;  // a life that no span has

/// Returns how many rows decoding appends to these before it deletes any. With n slots, dead rows
/// cost attention about n / 2 rows per token, and copying the living rows costs rows / n per token;
/// the sum is least at n = sqrt(2 rows).
int64_t free_slots(int64_t rows) {
  return std::max<int64_t>(16, std::llround(std::sqrt(2.0 * static_cast<double>(rows))));
}

/// Returns the largest integers that are at most x. No gradient.
Tensor floor_of(const Tensor& x) {
  const Tensor nearest = round_to_grid(x, 0);
  return sub(nearest, cast(greater(nearest, x), x.dtype()));
}

Tensor ceil_of(const Tensor& x) { return neg(floor_of(neg(x))); }

void require_consistent(const ExpireOptions& o) {
  require(o.most >= 1, kExpireAttention, "most is {}; expected 1 or more", o.most);
  require(std::isfinite(o.ramp) && o.ramp >= 1, kExpireAttention, "ramp is {}; expected 1 or more",
          o.ramp);
  require(o.start > 0 && o.start < 1, kExpireAttention,
          "start is {}; expected more than 0 and less than 1", o.start);
  require(std::isfinite(o.pre_div) && o.pre_div > 0, kExpireAttention,
          "pre_div is {}; expected more than 0", o.pre_div);
  require(o.always_keep >= 0, kExpireAttention, "always_keep is {}; expected 0 or more",
          o.always_keep);
  require(o.capacity >= 0, kExpireAttention, "capacity is {}; expected 0 or more", o.capacity);
}

}  // namespace

/// When the keys of a call were made.
struct ExpireAttention::Rows {
  int64_t before = 0, queries = 0;  // rows of the memory and of x
  Tensor births;                    // f64 [B, T]: step of each key in its stream
  Tensor age;                       // f64 [B or 1, T]: its distance to the first query; undefined:
                                    // spans count rows, as in decoding
  Tensor begin;                     // i64 [B]: as in InputRows, may be undefined
  Tensor exist;                     // u8 [B, T]; undefined: all

  int64_t keys() const { return before + queries; }
};

/// The rows that stay in a memory: `rows` i64 [B, M] of those that there were, in their order, -1
/// before `begin` i64 [B, 1].
struct ExpireAttention::Survivors {
  Tensor rows, begin;
};

/// What decoding keeps, of which slots 0 to count - 1 are in use.
struct ExpireAttention::Decoded {
  KeyValues kept;
  Tensor spans, begin;
};

Tensor ExpiringRows::first_births(int64_t capacity, Device device) {
  return unsqueeze(arange(static_cast<double>(1 - capacity), 1, 1, DType::i64, device), 0);
}

ExpireAttention::ExpireAttention(const AttentionOptions& options, const ExpireOptions& spans,
                                 const Tensor& positions, const Init& init)
    : MultiHead(options, ShawTables{}, init), spans_(spans), positions_(positions) {
  require_consistent(spans);
  int64_t positioned = 0;
  if (positions) {
    positioned = positions.dim(0);
    require_shape(kExpireAttention, positions, {positioned, MultiHead::options().d_head},
                  "positions");
  }
  newest_ = std::max({positioned, spans.always_keep, int64_t{1}});
  capacity_ = spans.capacity > 0 ? spans.capacity : std::max(reach(), newest_);
  require(capacity_ >= newest_, kExpireAttention,
          "capacity is {}, but the newest {} rows always stay (positions, always_keep); expected "
          "that many or more",
          capacity_, newest_);
  span_ = Linear(options.d_model, 1, true, init.at("span"), Scheme::zeros(),
                 Scheme::constant(-std::log(1 / spans.start - 1)));
}

void ExpireAttention::visit(Visitor& v) {
  MultiHead::visit(v);
  v("span", span_);
}

int64_t ExpireAttention::reach() const {
  const auto far = static_cast<int64_t>(std::ceil(static_cast<double>(spans_.most) + spans_.ramp));
  return std::max(far - 1, spans_.always_keep);
}

Tensor ExpireAttention::spans(const Tensor& before, const Tensor& x) const {
  const DType dtype = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Tensor earlier = before ? cast(before, dtype) : Tensor{};
  const Tensor h = joined_linear(earlier, cast(x, dtype), cast(span_.weight, dtype));  // w . h
  const Tensor u = add(mul(h, 1 / spans_.pre_div), cast(span_.bias, dtype));
  return mul(sigmoid(reshape(u, {u.dim(0), u.dim(1)})), static_cast<double>(spans_.most));
}

ExpireAttention::Rows ExpireAttention::rows_of(const LayerMemory& memory, int64_t batch,
                                               int64_t queries, Device device) {
  const NoGrad off;
  Rows r;
  r.queries = queries;
  Tensor first = ones({batch, 1}, DType::f64, device);  // the step of the first query
  const auto& inputs = memory.get<InputRows>();
  const bool any = inputs.states || memory.has<KeyValues>();
  if (any) {
    const Tensor& births = memory.get<ExpiringRows>().births;
    require(static_cast<bool>(births), kExpireAttention,
            "the memory does not say when its rows were made; begin with empty_memory()");
    r.before = births.dim(1);
    r.births = cast(births, DType::f64);
    first = add(narrow(r.births, 1, r.before - 1, 1), 1.0);
    r.begin = inputs.begin;
  }
  const Tensor now = add(first, unsqueeze(iota(r.queries, DType::f64, device), 0));
  r.births = any ? concat({r.births, now}, 1) : now;
  r.age = sub(first, r.births);
  if (r.begin) {
    const Tensor index = unsqueeze(iota(r.keys(), DType::i64, device), 0);
    r.exist = greater_equal(index, unsqueeze(r.begin, 1));
  }
  return r;
}

Tensor ExpireAttention::lives(const LayerMemory& memory) const {
  const NoGrad off;
  const Tensor e = memory.has<KeyValues>() ? memory.get<ExpiringRows>().spans
                                           : spans({}, memory.get<InputRows>().states);
  const Rows rows = rows_of(memory, e.dim(0), 0, e.device());
  const Tensor life = add(sub(cast(e, DType::f64), rows.age), spans_.ramp);
  if (!rows.exist) return life;
  return where(rows.exist, life, full({1, 1}, -kAlways, DType::f64, e.device()));
}

Projected ExpireAttention::keys_of(const Tensor& x, const LayerContext& ctx) const {
  if (const Tensor& states = ctx.memory.get<InputRows>().states) {
    return project_after(cast(states, x.dtype()), x);
  }
  Projected p = project(x);
  if (ctx.memory.has<KeyValues>()) {
    const auto& kept = ctx.memory.get<KeyValues>();
    p.k = concat({kept.keys, p.k}, 2);
    p.v = concat({kept.values, p.v}, 2);
  }
  return p;
}

/// The kernel knows distances of indices, M + i - j. With the birth of a key folded into its span,
/// they leave the remaining life of sec. 3: e_j + birth_j - t_0 + M - j.
Tensor ExpireAttention::attend_with(const Projected& p, const Tensor& spans, const Rows& rows,
                                    const Dropout& dropout) const {
  const int64_t keys = rows.keys(), most = std::max<int64_t>(keys - 1, 1),
                kept = spans_.always_keep;
  const DType dtype = p.q.dtype();
  ScoreTerms t;
  if (positions_) {
    // Ids count from distance P + 1, of all older keys, down to 0, at which no pair is.
    const Tensor none = zeros({1, positions_.dim(1)}, dtype, p.q.device());
    t.id = {positions_.dim(0) + 1, 0};
    t.relation_key = concat({none, cast(positions_, dtype), none}, 0);
  }
  ScoreTerms masked = t;
  Tensor in_rows = spans;
  if (rows.age) {
    const Tensor index = iota(keys, DType::f64, p.q.device());
    const Tensor shift = sub(sub(static_cast<double>(rows.before), index), rows.age);
    in_rows = add(spans, cast(shift, spans.dtype()));
  }
  masked.span = unsqueeze(in_rows, 1);  // [B, 1, T]
  masked.ramp = masked.offset = spans_.ramp;
  const Keys all[] = {{p.k, p.v}};
  const auto part = [&](int64_t nearest, int64_t farthest, const ScoreTerms& terms,
                        const char* site) {
    AttentionPattern pattern = patterns::dilated(farthest, -nearest, 1);
    pattern.mask.k_begin = rows.begin;
    return block_attention(p.q, all, pattern, terms, {dropout.p, dropout.pass.at(site)});
  };
  if (kept == 0) return part(1, most, masked, "attn").out;
  const AttentionResult near = part(1, std::min(kept, most), t, "attn_kept");
  if (kept >= most) return near.out;
  const AttentionResult parts[] = {near, part(kept + 1, most, masked, "attn")};
  return merge_attention(parts).out;
}

Tensor ExpireAttention::penalty_of(const Tensor& spans, const Rows& rows) const {
  const double queries = static_cast<double>(std::max<int64_t>(spans.dim(0) * rows.queries, 1));
  if (spans_.loss == SpanLoss::direct) {
    const Tensor own = narrow(spans, 1, rows.before, rows.queries);
    return mul(sum(own), spans_.penalty / queries);
  }
  // A key is on its ramp at distances between e and e + R. Queries of the segment have distances
  // from the key's age on, one each; `count` of them are on the ramp, from `first` to `last`.
  Tensor count, distances;
  {
    const NoGrad off;
    const Tensor e = cast(spans.detach(), DType::f64);
    const double nearest = static_cast<double>(spans_.always_keep + 1);
    const Tensor first = maximum(clamp(rows.age, nearest, kAlways), add(floor_of(e), 1.0));
    const Tensor last = minimum(add(rows.age, static_cast<double>(rows.queries - 1)),
                                sub(ceil_of(add(e, spans_.ramp)), 1.0));
    count = clamp(add(sub(last, first), 1.0), 0, kAlways);
    if (rows.exist) count = mul(count, cast(rows.exist, DType::f64));
    distances = mul(mul(count, add(first, last)), 0.5);
  }
  const Tensor lives = sub(mul(spans, cast(count, spans.dtype())), cast(distances, spans.dtype()));
  return mul(sum(lives), spans_.penalty / (spans_.ramp * queries));
}

Tensor ExpireAttention::staying(const Tensor& spans, const Rows& rows) const {
  const Device device = spans.device();
  const auto constant = [&](double x) { return full({1, 1}, x, DType::f64, device); };
  const Tensor next = add(rows.age, static_cast<double>(rows.queries));  // to the next first query
  const Tensor newest = less_equal(next, constant(static_cast<double>(newest_)));
  Tensor life = where(newest, constant(kAlways), sub(cast(spans.detach(), DType::f64), next));
  if (rows.exist) life = where(rows.exist, life, constant(-kAlways));
  if (spans_.overflow == Overflow::drop && rows.keys() > capacity_) {
    const Tensor rank = inverse_permutation(argsort(life, 1, true));
    const Tensor space = full({1, 1}, static_cast<double>(capacity_), DType::i64, device);
    life = where(less(rank, space), life, constant(-kAlways));
  }
  return greater(life, constant(-spans_.ramp));
}

ExpireAttention::Survivors ExpireAttention::survivors(const Tensor& spans, const Rows& rows,
                                                      int64_t space) const {
  const Device device = spans.device();
  const Tensor stay = staying(spans, rows);
  const int64_t keys = rows.keys(), free = std::max<int64_t>(space - keys, 0);
  Tensor count = narrow(cumsum(stay, 1), 1, keys - 1, 1);  // i64 [B, 1]
  count =
      detail::checked_ids(count, 0, space + 1, std::nullopt, [space](int64_t sample, int64_t live) {
        fail<ValueError>(kExpireAttention,
                         "{} memories live in sample {}, but there are {} rows; raise max_memory "
                         "or set overflow=drop",
                         live, sample, space);
      });
  const Tensor begin = cast(sub(static_cast<double>(space), cast(count, DType::f64)), DType::i64);
  // A stable sort puts those that stay last, in their order.
  Tensor order = narrow(argsort(stay, 1), 1, std::max<int64_t>(keys - space, 0), space - free);
  if (free > 0) order = pad(order, 1, free, 0, -1);
  const Tensor index = unsqueeze(iota(space, DType::i64, device), 0);
  return {where(less(index, begin), full({1, 1}, -1, DType::i64, device), order), begin};
}

LayerMemory ExpireAttention::next_memory(const Tensor& spans, const Rows& rows, const Projected& p,
                                         const LayerContext& ctx) const {
  const NoGrad off;
  const Survivors stay = survivors(spans, rows, capacity_);
  const auto of = [&](const Tensor& x) {  // [B, T] -> [B, capacity]
    return in_memory(squeeze(permute_rows(unsqueeze(x, 2), stay.rows), 2));
  };
  InputRows inputs{.begin_of_stream = ctx.memory.get<InputRows>().begin_of_stream};
  inputs.begin = in_memory(squeeze(stay.begin, 1));
  ExpiringRows expiring{of(cast(rows.births, DType::i64)), {}};
  if (ctx.memory.has<KeyValues>()) {
    const Tensor heads = unsqueeze(stay.rows, 1);
    const KeyValues kept{in_memory(permute_rows(p.k, heads)), in_memory(permute_rows(p.v, heads))};
    expiring.spans = of(spans);
    return LayerMemory::of(std::move(inputs), std::move(expiring), kept);
  }
  const Tensor x = ctx.block.x.detach();
  inputs.states = in_memory(permute_rows(
      ctx.block.states ? concat({cast(ctx.block.states, x.dtype()), x}, 1) : x, stay.rows));
  return LayerMemory::of(std::move(inputs), std::move(expiring));
}

/// The rows that stay come first, then n free ones. A span in rows ends at row j + span, wherever
/// its row j comes to lie. Rows that do not exist end where row 0 was before: they are dead.
ExpireAttention::Decoded ExpireAttention::without_the_dead(const Decoded& m, int64_t n) const {
  const Device device = m.spans.device();
  const int64_t used = m.kept.count;
  const Tensor index = unsqueeze(iota(used, DType::f64, device), 0),
               spans = narrow(m.spans, 1, 0, used);
  Rows rows;
  rows.before = used;
  rows.age = sub(static_cast<double>(used), index);
  const int64_t count = std::min(used, capacity_);
  const Survivors stay = survivors(spans, rows, count);
  const Tensor order = pad(stay.rows, 1, 0, n, -1), heads = unsqueeze(order, 1);
  const Tensor ends = permute_rows(unsqueeze(add(cast(spans, DType::f64), index), 2), order);
  const Tensor moved =
      add(unsqueeze(iota(count + n, DType::f64, device), 0), static_cast<double>(used - count));
  Decoded next;
  next.kept = {in_memory(permute_rows(m.kept.keys, heads)),
               in_memory(permute_rows(m.kept.values, heads)), m.kept.first, count};
  next.spans = in_memory(cast(sub(squeeze(ends, 2), moved), spans.dtype()));
  next.begin = in_memory(squeeze(stay.begin, 1));
  return next;
}

Output ExpireAttention::decode(const Tensor& x, const LayerContext& ctx) const {
  require<GradientError>(!autograd::recording(), kExpireAttention,
                         "decoding keeps keys and values without history; use NoGrad");
  const auto& inputs = ctx.memory.get<InputRows>();
  const Tensor& phantom = inputs.states;  // before the first token
  Decoded m{ctx.memory.get<KeyValues>(), ctx.memory.get<ExpiringRows>().spans, inputs.begin};
  Projected p = phantom ? project_after(cast(phantom, x.dtype()), x) : project(x);
  const Tensor e = spans(phantom, x);
  const int64_t fresh = e.dim(1);
  if (!m.spans) {
    const int64_t slots = fresh + free_slots(fresh);
    const auto empty = [&](const Shape& shape, DType dtype) {
      return Tensor::empty(shape, dtype, x.device(), Category::memory);
    };
    m.kept.keys = empty({x.dim(0), p.k.dim(1), slots, p.k.dim(3)}, p.k.dtype());
    m.kept.values = empty({x.dim(0), p.v.dim(1), slots, p.v.dim(3)}, p.v.dtype());
    m.spans = empty({x.dim(0), slots}, e.dtype());
  } else if (m.kept.count + fresh > m.spans.dim(1)) {
    m = without_the_dead(m, std::max(fresh, free_slots(std::min(m.kept.count, capacity_))));
  }
  const int64_t before = m.kept.count;
  m.kept = remember(m.kept, p.k, p.v, m.kept.first + before, 0);
  kernels::copy(x.device(), e.view(), narrow(m.spans, 1, before, fresh).mut());
  p.k = memory_slots(m.kept.keys, 0, m.kept.count);
  p.v = memory_slots(m.kept.values, 0, m.kept.count);
  Rows rows;
  rows.before = before;
  rows.queries = fresh;
  rows.begin = m.begin;
  Output result(merge(attend_with(p, narrow(m.spans, 1, 0, m.kept.count), rows, {})));
  result.kept =
      LayerMemory::of(m.kept, InputRows{.begin = m.begin}, ExpiringRows{.spans = m.spans});
  return result;
}

Output ExpireAttention::left_out(const Tensor& x, const LayerContext& ctx, Pass pass) const {
  return remembered(spans_with(x, ctx), rows_of(ctx.memory, x.dim(0), x.dim(1), x.device()), {},
                    ctx, pass);
}

Tensor ExpireAttention::spans_with(const Tensor& x, const LayerContext& ctx) const {
  const Tensor own = spans(ctx.memory.get<InputRows>().states, x);
  const Tensor& kept = ctx.memory.get<ExpiringRows>().spans;
  return kept ? concat({kept, own}, 1) : own;
}

/// Shortened spans are used in the mask and the penalty: where the limit is the smaller, nothing of
/// the span has a gradient. The memories themselves live as long as their own spans say.
Tensor ExpireAttention::shortened(const Tensor& spans, const LayerContext& ctx) {
  const auto* limit = ctx.own.find<SpanLimit>();
  return limit != nullptr ? minimum(spans, cast(limit->steps, spans.dtype())) : spans;
}

Output ExpireAttention::remembered(const Tensor& spans, const Rows& rows, const Projected& p,
                                   const LayerContext& ctx, Pass pass) const {
  Output result;
  if (pass.training && spans_.penalty > 0) {
    result.losses = {{"span", penalty_of(shortened(spans, ctx), rows)}};
  }
  if (ctx.mem_len > 0) result.kept = next_memory(spans, rows, p, ctx);
  return result;
}

Output ExpireAttention::computed(const Tensor& onto, const Tensor& x, const LayerContext& ctx,
                                 Pass pass) const {
  if (ctx.decoding) return added(onto, decode(x, ctx));
  require(!ctx.memory.has<KeyValues>() || !pass.training, kExpireAttention,
          "the memory is one of evaluation_memory(); training takes empty_memory()");
  const Rows rows = rows_of(ctx.memory, x.dim(0), x.dim(1), x.device());
  const Tensor e = spans_with(x, ctx);
  const Projected p = keys_of(x, ctx);
  Output result = remembered(e, rows, p, ctx, pass);
  result.y = merge(attend_with(p, shortened(e, ctx), rows, {options().dropout, pass}), onto);
  return result;
}

Tensor ExpireAttention::probabilities(const Tensor& x, const LayerContext& /*ctx*/) const {
  const NoGrad off;
  Projected p = project(x);
  const Rows rows = rows_of({}, x.dim(0), x.dim(1), x.device());
  const Tensor e = spans({}, x);
  return attention_weights(p.v, [&](const Tensor& unit) {
    p.v = unit;
    return attend_with(p, e, rows, {});
  });
}

}  // namespace longspan
