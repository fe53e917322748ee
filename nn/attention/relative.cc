#include "nn/attention/relative.h"

#include <algorithm>
#include <bit>

#include "core/scope.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/shape.h"

namespace longspan {
namespace {

/// Returns the sinusoids of distances reach, reach - 1, ..., 0: [reach + 1, width].
Tensor sinusoids(int64_t reach, int64_t width, DType dtype, Device device) {
  return flip(sinusoid(0, reach + 1, width, SinusoidLayout::halves, dtype, device), 0);
}

/// Returns the last n rows of x [rows, D], or of [H, rows, d].
Tensor last_rows(const Tensor& x, int64_t n) {
  const int axis = x.rank() - 2;
  return narrow(x, axis, x.dim(axis) - n, n);
}

}  // namespace

DistanceTable::DistanceTable(int64_t reach, int64_t width, const Init& init, int64_t kept)
    : reach_(reach) {
  if (!init.meta) {
    sinusoids_ = sinusoids(std::min(reach, kept - 1), width, init.dtype, init.device);
  }
}

Tensor DistanceTable::rows(int64_t keys) const {
  if (!sinusoids_) return {};
  const auto power = std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(keys, 1)));
  const int64_t n = std::min(reach_ + 1, static_cast<int64_t>(power));
  if (n <= sinusoids_.dim(0)) return last_rows(sinusoids_, n);
  return sinusoids(n - 1, sinusoids_.dim(1), sinusoids_.dtype(), sinusoids_.device());
}

RelativeMultiHead::RelativeMultiHead(const AttentionOptions& o, int64_t reach, const Tensor& u,
                                     const Tensor& v, const Init& init, bool own_biases)
    : MultiHead(o, ShawTables{}, init),
      reach_(reach),
      own_biases_(own_biases),
      u_(u),
      v_(v),
      relative_(o.d_model, options().n_head * options().d_head, false, init.at("relative"),
                o.weights) {
  require(reach >= 0, "attention", "the reach is {}; expected 0 or more", reach);
}

void RelativeMultiHead::visit(Visitor& visitor) {
  MultiHead::visit(visitor);
  visitor("relative", relative_);
  if (own_biases_) visitor("u", u_)("v", v_);
}

Tensor RelativeMultiHead::projected(const Tensor& distances, int64_t n, DType dtype,
                                    const HeadShare& share) const {
  const Scope scope("relative");
  const Tensor rows = cast(last_rows(distances, n), dtype);
  const Tensor all = share.of(relative_, options().d_head).forward(rows);  // [n, H d]
  const Tensor r = unflatten(all, 1, all.dim(1) / options().d_head, options().d_head);
  return contiguous(transpose(r, 0, 1));  // [H, n, d]
}

ScoreTerms RelativeMultiHead::terms(Projected& p, const LayerContext& ctx,
                                    LayerMemory& memory) const {
  const DType dtype = p.q.dtype();
  const int64_t left = std::min(reach_, p.k.dim(2) - 1);  // no pair has a larger distance
  const auto* own = ctx.own.find<Distances>();
  require(own != nullptr && own->sinusoids && own->sinusoids.dim(0) > left, "attention",
          "relative positions need the sinusoids of distances up to {}; set Distances of "
          "LayerContext::own",
          left);
  const Tensor& sinusoids = own->sinusoids;
  ScoreTerms t;
  t.id = {left, 0};
  if (ctx.decoding) {
    // The weights do not change, so that the table is projected once, and again as it grows.
    Tensor table = memory.get<ProjectedDistances>().table;
    if (!table || table.dim(1) <= left) {
      table = in_memory(projected(sinusoids, sinusoids.dim(0), dtype));
      memory.set(ProjectedDistances{table});
    }
    t.relation_key = last_rows(table, left + 1);
  } else {
    t.relation_key = projected(sinusoids, left + 1, dtype, p.share);
  }
  t.relation_query = add(p.q, unsqueeze(cast(p.share.of(v_, 0), dtype), 1));
  p.q = add(p.q, unsqueeze(cast(p.share.of(u_, 0), dtype), 1));
  return t;
}

}  // namespace longspan
