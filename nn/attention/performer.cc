#include "nn/attention/performer.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "autograd/mode.h"
#include "core/scope.h"
#include "nn/attention/decoding_memory.h"
#include "nn/segment.h"
#include "ops/attention/block_attention.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kPerformerAttention = "performer attention";

/// Whether features exist only of a projection, because they approximate the softmax kernel.
bool of_softmax(FeatureMap f) { return kernels::norm_sign(f) != 0; }

void check(const PerformerOptions& o, const AttentionOptions& attention) {
  const std::string_view name = name_of_value(o.features);
  require(!attention.cross, kPerformerAttention, "there is no cross-attention by features");
  require(o.n_features >= 0, kPerformerAttention,
          "n_features is {}; expected 1 or more, or 0: d ln d", o.n_features);
  require(o.projected || !of_softmax(o.features), kPerformerAttention,
          "features = {} need a projection; set projected to true, or features to relu", name);
  require(o.projected || o.n_features == 0, kPerformerAttention,
          "n_features is {}, and without a projection there are as many as a head is wide; "
          "leave it at 0",
          o.n_features);
  const bool halves = kernels::feature_halves(o.features) == 2;
  require(!halves || o.n_features % 2 == 0, kPerformerAttention,
          "n_features is {}; expected an even number, since each row of the projection makes two "
          "features = {}",
          o.n_features, name);
  require(o.redraw_interval >= 0, kPerformerAttention, "redraw_interval is {}; expected 0 or more",
          o.redraw_interval);
  require(std::isfinite(o.feature_scale) && o.feature_scale >= 0, kPerformerAttention,
          "feature_scale is {}; expected 0 or more", o.feature_scale);
  require(std::isfinite(o.feature_epsilon) && o.feature_epsilon >= 0, kPerformerAttention,
          "feature_epsilon is {}; expected 0 or more", o.feature_epsilon);
  const bool takes_none = kernels::is_exponential(o.features) || of_softmax(o.features);
  require(o.feature_epsilon == 0 || !takes_none, kPerformerAttention,
          "feature_epsilon is {}; features = {} take none", o.feature_epsilon, name);
  require(o.exact_up_to >= -1, kPerformerAttention,
          "exact_up_to is {}; expected 0 or more, or -1: where faster", o.exact_up_to);
}

/// The rows of the projection.
int64_t rows_of(const PerformerOptions& o, int64_t width) {
  const int64_t features = o.n_features > 0 ? o.n_features : default_features(width);
  return std::max<int64_t>(1, features / kernels::feature_halves(o.features));
}

double mean_of(const Tensor& x) { return mean(x).item(); }

}  // namespace

int64_t crossover_length(int64_t features, bool causal) { return (causal ? 5 : 2) * features; }

PerformerAttention::PerformerAttention(const AttentionOptions& attention,
                                       const PerformerOptions& options, bool causal,
                                       const Init& init)
    : MultiHead(attention, {}, init),
      performer_(options),
      causal_(causal),
      width_(MultiHead::options().d_head) {
  const PerformerOptions& o = performer_;
  check(o, attention);
  if (o.projected) {
    const int64_t m = rows_of(o, width_);
    const auto buffer = [&](const char* name, Shape shape) {
      if (o.projection_per_head) shape.insert(0, attention.n_head);
      return init.at(name).make_buffer(shape, Scheme::zeros());
    };
    projection_ = buffer("projection", {m, width_});
    if (o.features == FeatureMap::phase) phase_ = buffer("phase", {m});
    if (!init.meta) draw(init.at("features").gen);
  }
  if (o.qk_norm) {
    q_norm_ = Normalization(NormKind::layer, width_, 1e-5, init.at("q_norm"));
    k_norm_ = Normalization(NormKind::layer, width_, 1e-5, init.at("k_norm"));
  }
  exact_up_to_ = o.exact_up_to < 0 ? crossover_length(features(), causal) : o.exact_up_to;
}

void PerformerAttention::visit(Visitor& v) {
  MultiHead::visit(v);
  v("q_norm", q_norm_)("k_norm", k_norm_);
  if (projection_) v.buffer("projection", projection_);
  if (phase_) v.buffer("phase", phase_);
}

int64_t PerformerAttention::features() const {
  return projection_ ? kernels::feature_halves(performer_.features) * projection_.dim(-2) : width_;
}

void PerformerAttention::draw(Generator gen) {
  if (projection_.device() == meta_device) return;
  const NoGrad off;
  const PerformerOptions& o = performer_;
  const int64_t m = projection_.dim(-2);
  const DType dtype = projection_.dtype();
  const auto of_heads = [&](const auto& one) {
    std::vector<Tensor> all;
    const int64_t count = o.projection_per_head ? options().n_head : 1;
    for (int64_t h = 0; h < count; ++h) all.push_back(one(gen.fork(static_cast<uint64_t>(h))));
    return o.projection_per_head ? stack(all) : all.front();
  };
  write_buffer(projection_, of_heads([&](Generator own) {
                 return random_projection(m, width_, own.fork("rows"), o.projection_rows,
                                          o.projection_norms, dtype, projection_.device());
               }));
  if (!phase_) return;
  write_buffer(phase_, of_heads([&](Generator own) {
                 return random_phases(m, own.fork("phases"), dtype, projection_.device());
               }));
}

void PerformerAttention::after_step(const StepEnd& end) {
  const int64_t every = performer_.redraw_interval;
  if (projection_ && every > 0 && (end.step + 1) % every == 0) draw(end.gen);
}

Projected PerformerAttention::normed(const Projected& p) const {
  if (!performer_.qk_norm) return p;
  return {q_norm_.forward(p.q), k_norm_.forward(p.k), p.v, p.x, p.share};
}

LinearAttentionOptions PerformerAttention::features_of(const LayerContext& ctx,
                                                       const HeadShare& share) const {
  return {.features = performer_.features,
          .causal = causal_,
          .phase = performer_.projection_per_head ? share.of(phase_, 0) : phase_,
          .scale = performer_.feature_scale,
          .epsilon = performer_.feature_epsilon,
          .key_lengths = ctx.pattern.mask.k_valid};
}

Tensor PerformerAttention::attend_exactly(const Projected& p, const LayerContext& ctx,
                                          ScoreTerms terms, const Dropout& dropout) const {
  // The kernel that features approximate; others than those have the softmax of a Transformer.
  if (of_softmax(performer_.features)) {
    terms.scale = performer_.feature_scale * performer_.feature_scale;
  }
  return MultiHead::attend(p, ctx, terms, dropout);
}

Tensor PerformerAttention::attend(const Projected& projected, const LayerContext& ctx,
                                  const ScoreTerms& terms, const Dropout& dropout) const {
  const Projected p = normed(projected);
  if (exact(p.q.dim(2))) return attend_exactly(p, ctx, terms, dropout);
  const Tensor w = performer_.projection_per_head ? p.share.of(projection_, 0) : projection_;
  return linear_attention(p.q, p.k, p.v, w, features_of(ctx, p.share)).out;
}

Tensor PerformerAttention::drop_outputs(const Tensor& heads, int64_t rows, const Pass& pass) const {
  if (exact(rows) || options().dropout == 0 || !pass.training) return heads;
  const Tensor all = flatten(transpose(heads, 1, 2), 2, 3);  // [B, L, H dv]
  const Tensor kept = longspan::dropout(all, options().dropout, pass);
  return transpose(unflatten(kept, -1, heads.dim(1), heads.dim(3)), 1, 2);
}

Output PerformerAttention::computed(const Tensor& onto, const Tensor& x, const LayerContext& ctx,
                                    Pass pass) const {
  require<NotImplemented>(!ctx.memory.get<InputRows>().states, kPerformerAttention,
                          "there is no memory of earlier segments");
  return ctx.decoding ? added(onto, decode(x, ctx)) : MultiHead::computed(onto, x, ctx, pass);
}

Output PerformerAttention::decode(const Tensor& x, const LayerContext& ctx) const {
  require<GradientError>(!autograd::recording(), kPerformerAttention,
                         "decoding has no gradients; use NoGrad");
  Output result;
  result.memory = ctx.memory;
  Projected p = project(x);
  const int64_t tokens = ctx.position + x.dim(1);
  if (exact(tokens)) {
    const KeyValues now = remember(ctx.memory.get<KeyValues>(), p.k, p.v, ctx.position, 0);
    p.k = memory_slots(now.keys, 0, tokens);
    p.v = memory_slots(now.values, 0, tokens);
    result.memory.set(now);
    result.y = merge(attend_exactly(normed(p), ctx, {}, {}));
    return result;
  }
  LinearAttentionOptions o = features_of(ctx);
  o.keep_state = true;
  const auto& sums = ctx.memory.get<LinearSums>();
  o.state = {sums.sums, sums.top};
  if (ctx.memory.has<KeyValues>()) {  // from now on only features: the state of the tokens so far
    const auto& kept = ctx.memory.get<KeyValues>();
    Projected before{narrow(p.q, 2, 0, 0), memory_slots(kept.keys, 0, kept.count),
                     memory_slots(kept.values, 0, kept.count)};
    before = normed(before);
    o.causal = false;
    o.state = linear_attention(before.q, before.k, before.v, projection_, o).state;
    o.causal = causal_;
    result.memory = {};
  }
  p = normed(p);
  const LinearAttentionResult now = linear_attention(p.q, p.k, p.v, projection_, o);
  result.memory.set(LinearSums{in_memory(now.state.sums), in_memory(now.state.top)});
  result.y = merge(now.out);
  return result;
}

FeatureError PerformerAttention::error(const Tensor& x, const LayerContext& ctx) const {
  const NoGrad off;
  require<NotImplemented>(of_softmax(performer_.features), kPerformerAttention,
                          "features = {} approximate no softmax",
                          name_of_value(performer_.features));
  const Projected p = normed(project(x));
  const double scale = performer_.feature_scale > 0 ? performer_.feature_scale
                                                    : std::pow(static_cast<double>(width_), -0.25);
  const auto norms = [&](const Tensor& y) {
    return mul(sum(square(cast(y, accumulator_of(y.dtype()))), {3}), scale * scale);
  };
  const Tensor q = norms(p.q), k = norms(p.k);
  const Tensor out = linear_attention(p.q, p.k, p.v, projection_, features_of(ctx)).out;
  const Tensor exact = attend_exactly(p, ctx, {}, {});
  const DType wide = accumulator_of(out.dtype());
  const Tensor difference = sub(cast(out, wide), cast(exact, wide));
  return {mean_of(q), mean_of(k),
          std::max(max(flatten(q), 0).values.item(), max(flatten(k), 0).values.item()),
          std::sqrt(mean_of(square(difference)) / mean_of(square(cast(exact, wide))))};
}

}  // namespace longspan
