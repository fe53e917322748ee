#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "nn/attention/centroids.h"
#include "nn/attention/decoding_memory.h"
#include "nn/attention/head_share.h"
#include "nn/layers.h"
#include "nn/position.h"
#include "ops/attention/routing.h"

namespace longspan {

/// Which tokens a cluster shows each other. topw: the w tokens nearest to its centroid, wherever
/// they are; which ones these are depends on later tokens too. argmax_recent: each token joins the
/// cluster of its nearest centroid and sees the last w members, itself included.
enum class RoutingSelect : uint8_t { topw, argmax_recent };
template <>
inline constexpr std::array<std::string_view, 2> value_names<RoutingSelect>{"topw",
                                                                            "argmax_recent"};

/// How queries and keys of routing heads are normalised. ln0: both to mean 0 and length sqrt(d), a
/// layer norm without gain and bias; unit_keys: keys, which are also what is clustered, to length
/// 1, queries not at all, as in lucidrains' routing-transformer; needs share_qk.
enum class RoutingNorm : uint8_t { ln0, unit_keys };
template <>
inline constexpr std::array<std::string_view, 2> value_names<RoutingNorm>{"ln0", "unit_keys"};

/// The factor of the logits of routing heads: 1, or 1 / sqrt(d).
enum class RoutingScale : uint8_t { none, rsqrt_d };
template <>
inline constexpr std::array<std::string_view, 2> value_names<RoutingScale>{"none", "rsqrt_d"};

/// Options of RoutingAttention.
struct RoutingOptions {
  int64_t d_model = 0, d_head = 0;
  int64_t local_heads = 0, routing_heads = 0;
  int64_t clusters = 1, window = 1;  ///< k, w
  bool share_qk = true;              ///< keys of routing heads are their queries
  RoutingSelect select = RoutingSelect::topw;
  RoutingNorm norm = RoutingNorm::ln0;
  RoutingScale scale = RoutingScale::none;
  bool mask_self = false;    ///< a token sees itself in its clusters only if it sees nothing else
  double scatter_eps = 0;    ///< epsilon: the sum over a token's n groups is divided by n + epsilon
  bool head_mix = false;     ///< one matrix [d, d] for the outputs of all heads
  double commitment = 1e-4;  ///< beta
  int64_t local_clip = -1, routing_clip = -1;  ///< of relative positions; -1: none
  bool local_values = false;  ///< local heads have relative values, as well as keys
  double norm_eps = 1e-6;     ///< of LN0
  float dropout = 0;          ///< site "attn"
  CentroidUpdate update = CentroidUpdate::spherical;
  double decay = 0.999, reseed_below = 0;
  Scheme weights = {}, out_weights = {}, relative = {};
};

/// The groups that routing heads keep in decoding, beside KeyValues.
struct RoutingGroups {
  /// i32 [B, Hr, k, w]: the positions in each group, ascending, -1 in free places. [B, Hr, 2 k, w]
  /// where keys are chosen apart: first the groups of queries.
  Tensor groups;
  Tensor scores;  ///< of the positions, as `groups`; [B, 1] with argmax_recent, which has none

  void visit(const StateVisitor& v) {
    v({"groups", groups});
    v({"group_scores", scores});
  }
};

/// Local heads beside heads whose keys are chosen by content \cite roy2021 . The first heads are
/// local and see the keys of LayerContext::pattern; those of the others are in the groups of k
/// centroids mu:
///   q, k, v = W x;  x^ = LN0(x);  without k, k^ = q^
///   group c: the w largest q^_t . mu_c (and k^_t . mu_c), attended to causally
///   s_ij = scale q^_i . (k^_j + a^K[rank i - rank j]),  o_i = sum_j softmax(s)_ij (v_j + a^V[..])
///   out_t = sum of o over the n groups that t is in / (n + epsilon); 0 if n = 0
///   y = concat(heads) Wo^T
/// In training the auxiliary loss "commitment" is beta times the mean of (x^ - mu_nearest)^2 over
/// queries plus that over keys (with unit_keys over keys alone), and the centroids follow their
/// members (Centroids). Nearest centroids and groups are Output::choices, and are taken from
/// LayerContext::choices if given. Rows from LayerContext::lengths on do not exist. No value flows
/// back from later tokens, but with topw later tokens compete for the places of a group, so that
/// which earlier tokens are seen depends on them.
class RoutingAttention : public Layer {
 public:
  /// Throws ValueError if the options do not fit together.
  RoutingAttention(const RoutingOptions& options, const Init& init);

  /// x [B, L, D] -> [B, L, D]. Decoding appends keys and values of x to those in ctx.memory, and
  /// updates the groups of all tokens so far. A prompt is grouped as in one pass. With
  /// argmax_recent decoding equals one pass over all tokens. With topw each later token joins the
  /// groups that it would be in as the last token; in one pass over all tokens, later tokens would
  /// change these groups. Throws ShapeError, DTypeError; GradientError when decoding with recording
  /// on.
  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override;
  void visit(Visitor& v) override;
  bool splits() const override { return true; }
  Tensor probabilities(const Tensor& x, const LayerContext& ctx) const override;

  const RoutingOptions& options() const { return options_; }
  /// False for a layer without routing heads.
  const Centroids& centroids() const { return centroids_; }
  Centroids& centroids() { return centroids_; }
  /// Places the centroids by the rows x [B, L, D] of a batch (Centroids::start_from); nothing
  /// without routing heads.
  void start_centroids(const Tensor& x, const LayerContext& ctx, Generator gen);
  /// Returns the groups of x, i32 [B, Hr, k, w], -1 in free places. Requires topw.
  Tensor groups(const Tensor& x, const LayerContext& ctx) const;

 private:
  /// [B, heads, L, d] of local heads, and normalised ones of routing heads; v of all.
  struct Heads {
    Tensor local_q, local_k, q, k, v;
    Tensor x;  // what is clustered: q, or k where only keys are normalised
    // Which of the local and of the routing heads they are.
    HeadShare of_local, of_routing;
  };
  /// What routing heads decide: i32 [B, Hr, L] and [B, Hr, k, w]. Those of keys are undefined if
  /// these are the queries.
  struct Selection {
    Tensor nearest, nearest_keys, queries, keys;
    std::vector<Tensor> choices;
  };
  bool recent() const { return options_.select == RoutingSelect::argmax_recent; }
  Heads project(const Tensor& x) const;
  /// Exchanges all heads of this process's rows for all rows of its heads.
  Heads shared(Heads heads, const Pass& pass) const;
  Selection select(const Heads& heads, const LayerContext& ctx, bool training) const;
  ScoreTerms routing_terms(DType dtype) const;
  Tensor local(const Heads& heads, const LayerContext& ctx, const ScoreTerms& terms,
               Pass pass) const;
  GroupAttention routed(const Heads& heads, const Selection& s, const ScoreTerms& terms,
                        Pass pass) const;
  Tensor commitment(const Heads& heads, const Selection& s) const;
  Statistics statistics(const Heads& heads, const Selection& s, const Tensor& memberships) const;
  Tensor merge(const std::vector<Tensor>& heads) const;  // [B, .., L, d] each -> [B, L, D]
  Output decode(const Tensor& x, const LayerContext& ctx) const;
  RoutingGroups groups_of(const Heads& prompt, const Selection& s) const;
  /// Lets the newest token in `memory` join groups, by its clustered rows [B, Hr, 1, d], those of
  /// its key only if keys are clustered apart, and returns what its query sees in them.
  Tensor attend_last(const KeyValues& memory, RoutingGroups& groups, const Tensor& q,
                     const Tensor& clustered, const Tensor& clustered_keys) const;

  RoutingOptions options_;
  Linear local_q_, local_k_, q_, k_, v_, out_, mix_;
  ShawTables local_tables_, routing_tables_;
  Centroids centroids_;
};

}  // namespace longspan
