#include "nn/relative_attention.h"

#include <algorithm>

#include "core/scope.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr int64_t kKept = 1 << 14;  // rows; larger distances are computed when needed

/// Returns the sinusoids of distances reach, reach - 1, ..., 0: [reach + 1, width].
Tensor distances(int64_t reach, int64_t width, DType dtype, Device device) {
  return flip(sinusoid(0, reach + 1, width, SinusoidLayout::halves, dtype, device), 0);
}

}  // namespace

RelativeMultiHead::RelativeMultiHead(const AttentionOptions& o, int64_t reach, const Tensor& u,
                                     const Tensor& v, const Init& init)
    : MultiHead(o, ShawTables{}, init),
      reach_(reach),
      u_(u),
      v_(v),
      relative_(o.d_model, options().n_head * options().d_head, false, init.at("relative"),
                o.weights) {
  require(reach >= 0, "attention", "the reach is {}; expected 0 or more", reach);
  if (!init.meta) {
    sinusoids_ = distances(std::min(reach, kKept - 1), o.d_model, init.dtype, init.device);
  }
}

void RelativeMultiHead::visit(Visitor& v) {
  MultiHead::visit(v);
  v("relative", relative_);
}

ScoreTerms RelativeMultiHead::terms(Projected& p) const {
  const Scope scope("relative");
  const DType dtype = p.q.dtype();
  const int64_t heads = p.q.dim(1), width = p.q.dim(3);
  const int64_t left = std::min(reach_, p.k.dim(2) - 1);  // no pair has a larger distance
  const int64_t kept = sinusoids_.dim(0);
  const Tensor table =
      left < kept ? narrow(sinusoids_, 0, kept - left - 1, left + 1)
                  : distances(left, sinusoids_.dim(1), sinusoids_.dtype(), sinusoids_.device());
  const Tensor rows = cast(table, dtype);
  const Tensor r = unflatten(relative_.forward(rows), 1, heads, width);  // [left + 1, H, d]
  ScoreTerms t;
  t.id = {left, 0};
  t.relation_key = contiguous(transpose(r, 0, 1));  // [H, left + 1, d]
  t.relation_query = add(p.q, unsqueeze(cast(v_, dtype), 1));
  p.q = add(p.q, unsqueeze(cast(u_, dtype), 1));
  return t;
}

}  // namespace longspan
