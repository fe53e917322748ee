#include "models/adaptive_span/span_attention.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>

#include "autograd/mode.h"
#include "core/divide.h"
#include "core/graph.h"
#include "core/kernels/block_attention.h"
#include "nn/attention/decoding_memory.h"
#include "nn/segment.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/patterns/layout_cache.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kSpanAttention = "span attention";

/// Keeps the newest `rows` rows of a memory.
void keep_newest(InputRows& memory, int64_t rows) {
  const int64_t gone = memory.states.dim(1) - rows;
  if (gone <= 0) return;
  memory.states = narrow(memory.states, 1, gone, rows);
  if (!memory.begin) return;
  const Tensor begin = add(cast(memory.begin, DType::f64), -static_cast<double>(gone));
  memory.begin = cast(clamp(begin, 0, static_cast<double>(rows)), DType::i64);
}

/// Returns x as a distance from 1 to `most`; `most` for NaN.
int64_t distance_of(double x, int64_t most) {
  if (!(x < static_cast<double>(most))) return most;
  return std::max<int64_t>(static_cast<int64_t>(std::max(x, 1.0)), 1);
}

}  // namespace

/// What the host knows of the spans.
struct SpanAttention::Known {
  std::mutex reading;
  bool any = false;
  uint64_t version = 0;  // of the parameter's storage
  std::vector<double> edges;

  /// Takes the spans of the options, for a parameter that has no values (Init::meta).
  void of_start(const SpanAttention& layer) {
    const SpanOptions& o = layer.spans_;
    const double edge = o.ramp + o.start * static_cast<double>(o.most) + o.offset;
    edges.assign(static_cast<size_t>(layer.options().n_head), edge);
    version = layer.span_.storage().version();
    any = true;
  }
};

SpanAttention::SpanAttention(const AttentionOptions& options, const SpanOptions& spans,
                             const Tensor& positions, const Init& init)
    : MultiHead(options, ShawTables{}, init),
      spans_(spans),
      positions_(positions),
      known_(std::make_shared<Known>()) {
  require(spans.most >= 1, kSpanAttention, "most is {}; expected 1 or more", spans.most);
  require(std::isfinite(spans.ramp) && spans.ramp >= 1, kSpanAttention,
          "ramp is {}; expected 1 or more", spans.ramp);
  require(std::isfinite(spans.offset) && spans.offset >= 0, kSpanAttention,
          "offset is {}; expected 0 or more", spans.offset);
  require(spans.start >= 0 && spans.start <= 1, kSpanAttention, "start is {}; expected 0 to 1",
          spans.start);
  require(spans.trim >= 0, kSpanAttention, "trim is {}; expected 0 or more", spans.trim);
  require_shape(kSpanAttention, positions, {spans.most, MultiHead::options().d_head}, "positions");
  const int64_t n = spans.scope == SpanScope::head ? options.n_head : 1;
  if (spans.dynamic) {
    require(spans.start < 1, kSpanAttention, "start is 1; dynamic spans are below S");
    require(std::isfinite(spans.pre_div) && spans.pre_div > 0, kSpanAttention,
            "pre_div is {}; expected more than 0", spans.pre_div);
    const double b = spans.start > 0 ? std::log(spans.start / (1 - spans.start)) : -4;
    token_span_ =
        Linear(options.d_model, n, true, init.at("span"), Scheme::zeros(), Scheme::constant(b));
  } else {
    span_ = init.at("span").make({n}, Scheme::constant(spans.start));
    if (init.meta) known_->of_start(*this);
  }
  require(spans.persistent >= 0, kSpanAttention, "persistent is {}; expected 0 or more",
          spans.persistent);
  if (spans.persistent == 0) return;
  const int64_t width = MultiHead::options().d_head;
  const Shape shape{options.n_head, spans.persistent, width};
  const auto normal = [](int64_t count) {
    return Scheme::normal(1 / std::sqrt(static_cast<double>(count)));
  };
  key_ = init.at("persistent_key").make(shape, normal(width));
  value_ = init.at("persistent_value").make(shape, normal(spans.persistent));
}

void SpanAttention::visit(Visitor& v) {
  MultiHead::visit(v);
  v("span", span_)("span", token_span_)("persistent_key", key_)("persistent_value", value_);
}

void SpanAttention::after_step(const StepEnd& /*end*/) {
  if (span_) write_buffer(span_, clamp(span_.detach(), 0, 1));
}

Tensor SpanAttention::spans() const { return mul(span_, static_cast<double>(spans_.most)); }

Tensor SpanAttention::token_spans(const Tensor& x) const {
  const Tensor& v = token_span_.weight;
  const Tensor z =
      linear(cast(x, v.dtype()), mul(v, 1 / spans_.pre_div), token_span_.bias);  // [B, L, n]
  return mul(transpose(sigmoid(z), 1, 2), static_cast<double>(spans_.most));
}

void SpanAttention::read(std::span<const SpanAttention* const> layers) {
  const NoGrad off;
  std::vector<std::unique_lock<std::mutex>> locks;
  std::vector<const SpanAttention*> changed;
  std::vector<Tensor> all;
  for (const SpanAttention* layer : layers) {
    if (layer->spans_.dynamic) continue;
    locks.emplace_back(layer->known_->reading);
    if (layer->known_->any && layer->known_->version == layer->span_.storage().version()) continue;
    graph::refuse(kSpanAttention, "which keys heads compute follows their spans; set trim to 0");
    const SpanOptions& o = layer->spans_;
    Tensor z = layer->spans();
    if (z.device() == meta_device) {
      z = mul(full(z.shape(), o.start, z.dtype(), {}), static_cast<double>(o.most));
    }
    changed.push_back(layer);
    all.push_back(add(z, o.ramp + o.offset));
  }
  if (changed.empty()) return;
  const std::vector<double> read = cast(concat(all, 0), DType::f64).to_vector<double>();
  auto at = read.begin();
  for (const SpanAttention* layer : changed) {
    Known& known = *layer->known_;
    known.edges.assign(at, at + layer->span_.dim(0));
    at += layer->span_.dim(0);
    known.edges.resize(static_cast<size_t>(layer->options().n_head), known.edges.back());
    known.version = layer->span_.storage().version();
    known.any = true;
  }
}

std::vector<double> SpanAttention::edges() const {
  const SpanAttention* const self[] = {this};
  read(self);
  const std::lock_guard lock(known_->reading);
  return known_->edges;
}

std::vector<int64_t> SpanAttention::visible() const {
  std::vector<int64_t> all;
  if (spans_.dynamic) all.assign(static_cast<size_t>(options().n_head), spans_.most);
  if (spans_.dynamic) return all;
  for (const double edge : edges()) all.push_back(distance_of(std::ceil(edge) - 1, spans_.most));
  return all;
}

std::vector<int64_t> SpanAttention::computed() const {
  if (!trims()) {
    return std::vector<int64_t>(static_cast<size_t>(options().n_head), spans_.most);
  }
  const std::vector<double> known = edges();
  for (int64_t unit = std::min(spans_.trim, spans_.most);; unit *= 2) {
    std::vector<int64_t> all;
    for (const double edge : known) {
      const int64_t far = distance_of(std::floor(edge), spans_.most);
      all.push_back(std::min(round_up(far, unit), spans_.most));
    }
    const std::set<int64_t> different(all.begin(), all.end());
    if (different.size() <= kernels::kAttentionRules) return all;
  }
}

AttentionPattern SpanAttention::pattern(const std::vector<int64_t>& distances, int64_t queries,
                                        int64_t keys) {
  std::vector<AttentionPattern> heads;
  const int64_t most = std::max<int64_t>(keys - 1, 1);  // no pair has a larger distance
  for (const int64_t n : distances) {
    heads.push_back(patterns::dilated(std::min(n, most), -1, 1));
  }
  return patterns::by_head(heads, queries, keys);
}

Output SpanAttention::computed(const Tensor& onto, const Tensor& x, const LayerContext& ctx,
                               Pass pass) const {
  if (trims()) {
    graph::refuse(kSpanAttention, "which keys heads compute follows their spans; set trim to 0");
  }
  const std::vector<int64_t> far = computed();
  const int64_t most = *std::max_element(far.begin(), far.end());
  LayerContext own = ctx;
  int64_t before = 0;  // keys that come before x
  if (ctx.decoding) {
    own.keep_from = std::max(ctx.keep_from, ctx.position - most);
    before = ctx.position - std::max(own.keep_from, ctx.memory.get<KeyValues>().first);
  } else if (InputRows rows = ctx.memory.get<InputRows>(); rows.states) {
    keep_newest(rows, most);
    before = rows.states.dim(1);
    own.memory.set(std::move(rows));
  }
  const int64_t rows = pass.split != nullptr ? pass.rows : x.dim(1);
  own.pattern = pattern(far, rows, before + rows);
  Output result = MultiHead::computed(onto, x, own, pass);
  if (ctx.memory.has<InputRows>()) result.memory.set(ctx.memory.get<InputRows>());
  return result;
}

Tensor SpanAttention::for_samples(const Tensor& x, double scale, const Tensor& like) const {
  const Tensor scaled = mul(cast(x, like.dtype()), scale);
  return expand(unsqueeze(scaled, 0), {like.dim(0), x.dim(0), x.dim(1), x.dim(2)});
}

Tensor SpanAttention::attend_with(const Tensor& persistent, const Projected& p,
                                  const LayerContext& ctx, const ScoreTerms& terms,
                                  const Dropout& dropout) const {
  const Device device = p.q.device();
  AttentionPattern pattern = p.share.of(ctx.pattern);
  pattern.layout = with_side_keys(pattern.layout, spans_.persistent);
  const auto& rows = ctx.memory.get<InputRows>();
  if (rows.states) pattern.mask.k_begin = rows.begin;
  // All persistent keys have the relation of distance 0, which is zero.
  pattern.side_mask.q_class = zeros({1, p.q.dim(2)}, DType::i32, device);
  pattern.side_mask.k_class = zeros({1, spans_.persistent}, DType::i32, device);
  pattern.side_mask.class_id =
      full({1, 1, 1}, static_cast<double>(terms.id.left), DType::i32, device);
  const double width = static_cast<double>(options().d_head);
  const Keys keys[] = {{p.k, p.v},
                       {for_samples(p.share.of(key_, 0), std::sqrt(width), p.q), persistent}};
  return block_attention(p.q, keys, pattern, terms, dropout).out;
}

Tensor SpanAttention::attend(const Projected& p, const LayerContext& ctx, const ScoreTerms& terms,
                             const Dropout& dropout) const {
  if (!key_) return MultiHead::attend(p, ctx, terms, dropout);
  const double count = static_cast<double>(spans_.persistent);
  const Tensor values = for_samples(p.share.of(value_, 0), std::sqrt(count), p.q);
  return attend_with(values, p, ctx, terms, dropout);
}

Tensor SpanAttention::probabilities(const Tensor& x, const LayerContext& ctx) const {
  LayerContext own = ctx;
  own.pattern = pattern(computed(), x.dim(1), x.dim(1));
  if (!key_) return MultiHead::probabilities(x, own);
  const NoGrad off;
  Projected p = project(x);
  LayerMemory memory;
  const ScoreTerms t = terms(p, own, memory);
  return attention_weights(p.v, [&](const Tensor& unit) {
    p.v = unit;
    const Shape none{x.dim(0), options().n_head, spans_.persistent, unit.dim(3)};
    return attend_with(zeros(none, unit.dtype(), unit.device()), p, own, t, {});
  });
}

ScoreTerms SpanAttention::terms(Projected& p, const LayerContext& ctx, LayerMemory&) const {
  int64_t far = 1;
  for (const Rule& rule : ctx.pattern.rules) far = std::max(far, rule.window.left);
  far = std::min(far, spans_.most);
  const DType dtype = p.q.dtype();
  // Ids count from distance `far` down to 0, at which no pair is.
  const Tensor rows = cast(narrow(positions_, 0, spans_.most - far, far), dtype);
  ScoreTerms t;
  t.id = {far, 0};
  t.relation_key = concat({rows, zeros({1, rows.dim(1)}, dtype, rows.device())}, 0);
  if (spans_.dynamic) {
    const Tensor of_rows = token_spans(p.x);  // [B, n, L]
    t.query_span = of_rows.dim(1) == 1 ? transpose(p.share.all_rows(transpose(of_rows, 1, 2)), 1, 2)
                                       : squeeze(p.share.to_heads(unsqueeze(of_rows, 3)), 3);
  } else {
    t.span = unsqueeze(unsqueeze(p.share.of(spans(), 0), 0), 2);
  }
  t.ramp = spans_.ramp;
  t.offset = spans_.ramp + spans_.offset;
  return t;
}

std::vector<AuxiliaryLoss> SpanAttention::penalties(const ScoreTerms& terms) const {
  if (spans_.penalty == 0) return {};
  return {{"span", mul(mean(spans_.dynamic ? terms.query_span : terms.span), spans_.penalty)}};
}

}  // namespace longspan
