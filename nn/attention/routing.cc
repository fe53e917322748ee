#include "nn/attention/routing.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "autograd/mode.h"
#include "core/scope.h"
#include "nn/attention/multi_head.h"
#include "ops/attention/routing.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/norm.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kRoutingAttention = "routing attention";

/// x [B, L, H d] -> [B, H, L, d].
Tensor split_heads(const Tensor& x, int64_t width) {
  return transpose(unflatten(x, -1, x.dim(-1) / width, width), 1, 2);
}

/// x / |x| over the last axis; rows of zeros stay.
Tensor unit_rows(const Tensor& x) {
  return mul(rms_norm(x, {}, 1e-24), 1 / std::sqrt(static_cast<double>(x.dim(-1))));
}

}  // namespace

RoutingAttention::RoutingAttention(const RoutingOptions& options, const Init& init)
    : options_(options) {
  RoutingOptions& o = options_;
  const int64_t all = o.local_heads + o.routing_heads;
  require(o.local_heads >= 0 && o.routing_heads >= 0 && all >= 1, kRoutingAttention,
          "got {} local and {} routing heads; expected one or more", o.local_heads,
          o.routing_heads);
  require(o.clusters >= 1 && o.window >= 1, kRoutingAttention,
          "got {} clusters of {} tokens; expected 1 or more of each", o.clusters, o.window);
  require(o.share_qk || o.norm == RoutingNorm::ln0, kRoutingAttention,
          "norm_qk = unit_keys needs share_qk: keys are what is clustered");
  require(o.share_qk || !recent(), kRoutingAttention,
          "select = argmax_recent needs share_qk: a query joins the cluster of its key");
  require(o.share_qk || !o.mask_self, kRoutingAttention,
          "mask_self needs share_qk: only then is a token its own first neighbour in a group");
  require(!o.mask_self || o.routing_clip != 0, kRoutingAttention,
          "mask_self needs relative positions up to 1 or more, or none; routing_clip is 0");
  require(o.scatter_eps >= 0 && o.commitment >= 0, kRoutingAttention,
          "scatter_eps is {} and commitment is {}; expected 0 or more", o.scatter_eps,
          o.commitment);
  if (o.d_head == 0) {
    require(o.d_model % all == 0, kRoutingAttention,
            "d_model {} is not a multiple of {} heads; set d_head", o.d_model, all);
    o.d_head = o.d_model / all;
  }
  const int64_t d = o.d_head;
  const auto linear = [&](const char* name, int64_t heads) {
    return Linear(o.d_model, heads * d, false, init.at(name), o.weights);
  };
  if (o.local_heads > 0) {
    local_q_ = linear("local_q", o.local_heads);
    local_k_ = linear("local_k", o.local_heads);
    if (o.local_clip >= 0) {
      local_tables_ = ShawTables({.clip = o.local_clip, .values = o.local_values}, o.local_heads, d,
                                 init.at("local"), o.relative);
    }
  }
  if (o.routing_heads > 0) {
    q_ = linear("q", o.routing_heads);
    if (!o.share_qk) k_ = linear("k", o.routing_heads);
    if (o.routing_clip >= 0) {
      routing_tables_ = ShawTables({.clip = o.routing_clip, .two_sided = !o.share_qk},
                                   o.routing_heads, d, init.at("routing"), o.relative);
    }
    const bool unit = o.norm == RoutingNorm::unit_keys;
    centroids_ = Centroids({.heads = o.routing_heads,
                            .clusters = o.clusters,
                            .width = d,
                            .update = o.update,
                            .decay = o.decay,
                            .radius = unit ? 1 : std::sqrt(static_cast<double>(d)),
                            .reseed_below = o.reseed_below},
                           init.at("centroids"));
  }
  v_ = linear("v", all);
  out_ = Linear(all * d, o.d_model, false, init.at("out"), o.out_weights);
  if (o.head_mix) mix_ = Linear(d, d, false, init.at("mix"), o.weights);
}

void RoutingAttention::visit(Visitor& v) {
  v("local_q", local_q_)("local_k", local_k_)("q", q_)("k", k_)("v", v_)("out", out_)("mix", mix_);
  v("local", local_tables_)("routing", routing_tables_);
  if (centroids_) v("centroids", centroids_);
}

RoutingAttention::Heads RoutingAttention::project(const Tensor& x) const {
  const RoutingOptions& o = options_;
  Heads h;
  Tensor q, k;
  std::vector<std::pair<const Linear*, Tensor*>> all = {{&v_, &h.v}};
  if (o.local_heads > 0) {
    all.insert(all.end(), {{&local_q_, &h.local_q}, {&local_k_, &h.local_k}});
  }
  if (o.routing_heads > 0) all.emplace_back(&q_, &q);
  if (o.routing_heads > 0 && !o.share_qk) all.emplace_back(&k_, &k);
  std::vector<const Linear*> layers;
  for (const auto& [layer, to] : all) layers.push_back(layer);
  const std::vector<Tensor> rows = forward_each(x, layers);
  for (size_t i = 0; i < all.size(); ++i) *all[i].second = split_heads(rows[i], o.d_head);
  if (o.routing_heads == 0) return h;
  if (o.share_qk) k = q;
  if (o.norm == RoutingNorm::ln0) {
    h.x = h.q = layer_norm(q, {}, {}, o.norm_eps);
    h.k = o.share_qk ? h.q : layer_norm(k, {}, {}, o.norm_eps);
  } else {
    h.q = q;
    h.x = h.k = unit_rows(k);
  }
  return h;
}

RoutingAttention::Heads RoutingAttention::shared(Heads h, const Pass& pass) const {
  if (pass.split == nullptr) return h;
  const RoutingOptions& o = options_;
  std::vector<Tensor> values;
  if (o.local_heads > 0) {
    h.of_local = HeadShare(o.local_heads, pass);
    h.local_q = h.of_local.to_heads(h.local_q);
    h.local_k = h.of_local.to_heads(h.local_k);
    values.push_back(h.of_local.to_heads(narrow(h.v, 1, 0, o.local_heads)));
  }
  if (o.routing_heads > 0) {
    h.of_routing = HeadShare(o.routing_heads, pass);
    // q, k and x are one tensor, or two.
    const bool norms_both = o.norm == RoutingNorm::ln0;
    const Tensor q = h.of_routing.to_heads(h.q);
    const bool same = norms_both && o.share_qk;
    const Tensor k = same ? q : h.of_routing.to_heads(h.k);
    h.q = q;
    h.k = k;
    h.x = norms_both ? q : k;
    values.push_back(h.of_routing.to_heads(narrow(h.v, 1, o.local_heads, o.routing_heads)));
  }
  h.v = values.size() == 1 ? values[0] : concat(values, 1);
  return h;
}

RoutingAttention::Selection RoutingAttention::select(const Heads& h, const LayerContext& ctx,
                                                     bool training) const {
  const NoGrad off;
  const RoutingOptions& o = options_;
  const Tensor mu = h.of_routing.of(centroids_.means(), 0);
  Selection s;
  size_t next = 0;
  const auto choose = [&](Tensor& to, const Tensor& x, auto decide) {
    to = ctx.choices.empty() ? decide(cast(x.detach(), mu.dtype())) : ctx.choices[next++];
    s.choices.push_back(to);
  };
  const auto nearest = [&](const Tensor& x) { return nearest_centroids(x, mu, ctx.lengths); };
  const auto members = [&](const Tensor& x) {
    return routing_members(x, mu, o.window, ctx.lengths);
  };
  if (training || recent()) choose(s.nearest, h.x, nearest);
  if (training && !o.share_qk) choose(s.nearest_keys, h.k, nearest);
  if (recent()) return s;
  choose(s.queries, h.x, members);
  if (!o.share_qk) choose(s.keys, h.k, members);
  return s;
}

ScoreTerms RoutingAttention::routing_terms(DType dtype) const {
  ScoreTerms t;
  t.scale = options_.scale == RoutingScale::none ? 1 : 0;
  if (routing_tables_) routing_tables_.fill(t, dtype);
  return t;
}

Tensor RoutingAttention::local(const Heads& h, const LayerContext& ctx, const ScoreTerms& terms,
                               Pass pass) const {
  AttentionPattern pattern = ctx.pattern;
  if (ctx.lengths) pattern.mask.k_valid = pattern.q_valid = ctx.lengths;
  const Tensor v = narrow(h.v, 1, 0, h.of_local.count(options_.local_heads));
  return block_attention(h.local_q, h.local_k, v, h.of_local.of(pattern), h.of_local.of(terms),
                         {options_.dropout, h.of_local.site(pass.at("local"))})
      .out;
}

GroupAttention RoutingAttention::routed(const Heads& h, const Selection& s, const ScoreTerms& terms,
                                        Pass pass) const {
  const RoutingOptions& o = options_;
  const int64_t count = h.of_routing.count(o.routing_heads);
  const Tensor v = narrow(h.v, 1, h.v.dim(1) - count, count);
  const Dropout dropout{o.dropout, h.of_routing.site(pass.at("routing"))};
  const bool same = o.share_qk && o.norm == RoutingNorm::ln0;
  const Tensor k = same ? Tensor{} : h.k;
  const OwnKey own = o.mask_self ? OwnKey::alone : OwnKey::seen;
  return recent()
             ? attend_to_recent(h.q, k, v, s.nearest, o.clusters, o.window, o.scatter_eps, terms,
                                dropout, own)
             : attend_in_groups(h.q, k, v, s.queries, s.keys, o.scatter_eps, terms, dropout, own);
}

Tensor RoutingAttention::commitment(const Heads& h, const Selection& s) const {
  const Tensor mu = h.of_routing.of(centroids_.means(), 0);
  const auto distance = [&](const Tensor& x, const Tensor& nearest) {
    Tensor own;
    {
      const NoGrad off;
      const Tensor all = expand(mu, {x.dim(0), mu.dim(0), mu.dim(1), mu.dim(2)});
      own = permute_rows(all, nearest);
      // A token that does not exist is at no distance.
      const Tensor exists = greater_equal(nearest, zeros_like(nearest));
      own = where(unsqueeze(exists, -1), own, cast(x.detach(), mu.dtype()));
    }
    return mean(square(sub(cast(x, mu.dtype()), own)));
  };
  const Tensor queries = distance(h.x, s.nearest);
  if (!options_.share_qk) {
    return mul(add(queries, distance(h.k, s.nearest_keys)), options_.commitment);
  }
  // The authors' code counts shared queries twice.
  return mul(queries, options_.commitment * (options_.norm == RoutingNorm::ln0 ? 2 : 1));
}

Statistics RoutingAttention::statistics(const Heads& h, const Selection& s,
                                        const Tensor& memberships) const {
  Statistics all = options_.share_qk ? centroids_.statistics({h.x}, {s.nearest}, memberships)
                                     : centroids_.statistics(
                                           {h.q, h.k}, {s.nearest, s.nearest_keys}, memberships);
  // The last one counts tokens of all heads.
  for (size_t i = 0; i + 1 < all.sums.size(); ++i) {
    all.sums[i] = h.of_routing.among_all(all.sums[i], 0);
  }
  return all;
}

Tensor RoutingAttention::merge(const std::vector<Tensor>& heads) const {
  Tensor all = heads.size() == 1 ? heads[0] : concat(heads, 1);
  if (mix_.weight) all = mix_.forward(all);
  return out_.forward(flatten(transpose(all, 1, 2), 2, 3));
}

Output RoutingAttention::forward(const Tensor& x, const LayerContext& ctx, Pass pass) const {
  if (ctx.decoding) return decode(x, ctx);
  const RoutingOptions& o = options_;
  const Heads h = shared(project(x), pass);
  Output result;
  result.memory = ctx.memory;
  std::vector<Tensor> parts;
  if (o.local_heads > 0) {
    ScoreTerms terms;
    if (local_tables_) local_tables_.fill(terms, x.dtype());
    parts.push_back(h.of_local.to_rows(local(h, ctx, terms, pass.at("attn"))));
  }
  if (o.routing_heads > 0) {
    const Selection s = select(h, ctx, pass.training);
    const ScoreTerms terms = h.of_routing.of(routing_terms(x.dtype()));
    const GroupAttention own = routed(h, s, terms, pass.at("attn"));
    parts.push_back(h.of_routing.to_rows(own.out));
    result.choices = s.choices;
    if (pass.training) {
      if (o.commitment > 0) result.losses = {{"commitment", commitment(h, s)}};
      result.statistics = {statistics(h, s, squeeze(own.groups, -1))};
    }
  }
  result.y = merge(parts);
  return result;
}

void RoutingAttention::start_centroids(const Tensor& x, const LayerContext& ctx, Generator gen) {
  if (!centroids_) return;
  const NoGrad off;
  const Heads h = project(x);
  centroids_.start_from(options_.share_qk ? std::vector{h.x} : std::vector{h.q, h.k}, ctx.lengths,
                        gen);
}

Tensor RoutingAttention::groups(const Tensor& x, const LayerContext& ctx) const {
  require(!recent() && options_.routing_heads > 0, kRoutingAttention,
          "only heads that choose the nearest tokens of a centroid have groups");
  const NoGrad off;
  return select(project(x), ctx, false).queries;
}

Tensor RoutingAttention::probabilities(const Tensor& x, const LayerContext& ctx) const {
  const NoGrad off;
  const RoutingOptions& o = options_;
  Heads h = project(x);
  ScoreTerms near, far;
  Selection s;
  if (local_tables_) local_tables_.fill(near, x.dtype());
  near.relation_value = {};
  if (o.routing_heads > 0) {
    far = routing_terms(x.dtype());
    far.relation_value = {};
    s = select(h, ctx, false);
  }
  return attention_weights(h.v, [&](const Tensor& unit) {
    h.v = unit;
    std::vector<Tensor> parts;
    if (o.local_heads > 0) parts.push_back(local(h, ctx, near, Pass{}));
    if (o.routing_heads > 0) parts.push_back(routed(h, s, far, Pass{}).out);
    return parts.size() == 1 ? parts[0] : concat(parts, 1);
  });
}

}  // namespace longspan
