#include "nn/attention/entmax.h"

#include "autograd/mode.h"
#include "nn/segment.h"
#include "ops/attention/entmax_attention.h"
#include "ops/copy.h"
#include "ops/elementwise.h"

namespace longspan {

EntmaxAttention::EntmaxAttention(const AttentionOptions& options, const EntmaxOptions& entmax,
                                 const Init& init)
    : MultiHead(options, ShawTables{}, init), entmax_(entmax), device_(init.device) {
  require(entmax.alpha >= 1 && entmax.alpha <= 2, "attention", "alpha is {}; expected 1 to 2",
          entmax.alpha);
  if (entmax.learned) a_ = init.at("alpha").make({options.n_head}, Scheme::normal(1));
}

void EntmaxAttention::visit(Visitor& v) {
  MultiHead::visit(v);
  v("alpha", a_);
}

Tensor EntmaxAttention::alpha() const {
  if (!a_) return full({1}, entmax_.alpha, DType::f64, device_);
  return clamp(add(sigmoid(a_), 1), 1.01, 2);
}

AttentionPattern EntmaxAttention::pattern_of(const LayerContext& ctx) const {
  require<NotImplemented>(ctx.also.empty(), "attention", "entmax takes one pattern, not {}",
                          1 + ctx.also.size());
  AttentionPattern pattern = options().cross ? ctx.encoder_pattern : ctx.pattern;
  const auto& rows = ctx.memory.get<InputRows>();
  if (!options().cross && rows.states) pattern.mask.k_begin = rows.begin;
  return pattern;
}

Tensor EntmaxAttention::attend(const Projected& p, const LayerContext& ctx, const ScoreTerms&,
                               const Dropout& dropout) const {
  return entmax_attention(p.q, p.k, p.v, p.share.of(pattern_of(ctx)), p.share.of(alpha(), 0), 0,
                          dropout)
      .out;
}

Tensor EntmaxAttention::density(const Tensor& x, const LayerContext& ctx) const {
  const NoGrad off;
  const Projected p = options().cross ? project(x, ctx.encoder_output) : project(x);
  return entmax_density(p.q, p.k, pattern_of(ctx), alpha());
}

}  // namespace longspan
