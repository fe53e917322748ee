#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/causal_decoder.h"
#include "models/model_spec.h"
#include "nn/attention/routing.h"

namespace longspan {

/// The Routing Transformer \cite roy2021 . Groups of k w tokens in all may hold more or fewer than
/// the L of a sequence; remark() says what fraction of a sequence they can cover.
struct RoutingConfig {
  int64_t vocab = 256, n_layer = 4, d_model = 128, d_ff = 256;
  /// Width of the token table, which a dense layer follows; unless it is d_model, one comes before
  /// the classifier too. 0: d_model, and no such layer.
  int64_t d_embed = 0;
  int64_t local_heads = 2, routing_heads = 2;
  int64_t d_head = 0;
  int64_t routing_layers = -1;
  int64_t clusters = 8, window = 64;
  int64_t local_block = 64;
  bool share_qk = true;
  RoutingSelect select = RoutingSelect::topw;
  RoutingNorm norm_qk = RoutingNorm::ln0;
  double qk_norm_eps = 1e-6;
  RoutingScale logit_scale = RoutingScale::none;
  bool mask_self = false;
  double scatter_eps = 0;
  bool head_mix = false;
  /// Relative positions are clipped at these distances; -1: none. In groups they are differences of
  /// places in the group. -2 for local heads: 2 local_block + 1.
  int64_t local_clip = -2, routing_clip = 64;
  bool local_values = false;
  CentroidInit centroid_init = CentroidInit::random;
  CentroidUpdate ema = CentroidUpdate::spherical;
  double decay = 0.999;
  double reseed_below = 0;
  double commitment = 1e-4;
  Activation activation = Activation::geglu;
  bool ff_bias = true;
  NormPlace norm = NormPlace::pre;
  double norm_eps = 1e-5;
  bool tie_embedding = false;
  bool emb_scale = false;
  double init_std = 0;
  double embed_std = 1, head_std = 0.02;
  float dropout = 0;
  float dropout_attn = -1;
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  void visit(auto& v) {
    v("vocab", vocab, range::positive, meaning::vocab);
    v("n_layer", n_layer, range::count, meaning::n_layer);
    v("d_model", d_model, range::positive, meaning::d_model);
    v("d_ff", d_ff, range::positive, meaning::d_ff);
    v("d_embed", d_embed, range::not_negative, meaning::d_embed);
    v("local_heads", local_heads, range::not_negative, "local heads of a layer that routes");
    v("routing_heads", routing_heads, range::not_negative, "routing heads of a layer that routes");
    v("d_head", d_head, range::not_negative, "width of a head; 0: d_model / heads");
    v("routing_layers", routing_layers, "how many of the last layers route; -1: all");
    v("clusters", clusters, range::positive, "k, groups of a routing head");
    v("window", window, range::positive, "w, tokens of a group");
    v("local_block", local_block, range::positive,
      "local heads see their block of tokens and the one before");
    v("share_qk", share_qk, "keys of routing heads are their queries");
    v("select", select, "how tokens come into groups");
    v("norm_qk", norm_qk, "how queries and keys are normalised");
    v("qk_norm_eps", qk_norm_eps, "norm_qk = ln0: added to variances");
    v("logit_scale", logit_scale, "how scores of routing heads are scaled");
    v("mask_self", mask_self, "a token sees itself in its groups only if it sees nothing else");
    v("scatter_eps", scatter_eps, range::not_negative,
      "sums over a token's n groups are divided by n + this");
    v("head_mix", head_mix, "one more matrix for the outputs of all heads");
    v("local_clip", local_clip, "local heads: maximum distance; -1: none; -2: 2 local_block + 1");
    v("routing_clip", routing_clip, "routing heads: maximum distance within a group; -1: none");
    v("local_values", local_values, "local heads have relative values, as well as keys");
    v("centroid_init", centroid_init, "first centroids; data: k-means on the first batch");
    v("ema", ema, "how centroids follow their members");
    v("decay", decay, "lambda, what remains of a centroid in an update");
    v("reseed_below", reseed_below, range::not_negative,
      "clusters with fewer members take half of the fullest; 0: never");
    v("commitment", commitment, range::not_negative, "beta, weight of the distance to centroids");
    v("activation", activation, meaning::activation);
    v("ff_bias", ff_bias, "the feed-forward network has biases");
    v("norm", norm, meaning::norm)("norm_eps", norm_eps, meaning::norm_eps);
    v("tie_embedding", tie_embedding, meaning::tie_embedding);
    v("emb_scale", emb_scale, meaning::emb_scale);
    v("init_std", init_std, range::not_negative, meaning::glorot_std);
    v("embed_std", embed_std, range::not_negative, "std of the token table");
    v("head_std", head_std, range::not_negative, "std of the classifier");
    v("dropout", dropout, range::probability, meaning::dropout);
    v("dropout_attn", dropout_attn, range::as_dropout, meaning::dropout_attn);
    visit_computation(v, *this);
  }

  int64_t heads() const { return local_heads + routing_heads; }
  int64_t head_width() const { return d_head > 0 ? d_head : d_model / heads(); }
  /// Whether layer i has routing heads.
  bool routes(int64_t layer) const {
    return routing_heads > 0 && (routing_layers < 0 || layer >= n_layer - routing_layers);
  }
};

/// The settings in which implementations differ: `official`, the authors' code; `lucid`,
/// lucidrains' routing-transformer.
enum class RoutingVariant : uint8_t { official, lucid };
/// Returns the configuration with the settings of a variant.
RoutingConfig routing_variant(RoutingConfig config, RoutingVariant variant);

/// How the clusters of a model are filled, over all its layers and routing heads.
struct ClusterOccupancy {
  double least = 0, most = 0;  ///< members of a cluster, by nearest centroid, in a step
  int64_t dead = 0;            ///< clusters with less than one member in a step
  /// Shares of tokens and heads for which a token was in no group, in one and in several in the
  /// last step; 0 before the first.
  double in_none = 0, in_one = 0, in_several = 0;
};

/// A causal language model, some of whose heads attend within clusters of similar tokens
/// (RoutingAttention):
///   x <- x + Attn(LN x);  x <- x + FF(LN x)
/// or, with norm = post, x <- LN(x + Attn x) and x <- LN(x + FF x), without absolute positions. The
/// centroids are state: before any training they are random, or set by begin_training().
class RoutingTransformer final : public CausalDecoder, public BeginsWithData, public Remarks {
 public:
  /// Throws ValueError that names the fields when they do not fit together.
  RoutingTransformer(const RoutingConfig& config, const Init& init);

  const RoutingConfig& config() const { return config_; }
  /// Returns the layer's attention. Throws ValueError if there is no such layer.
  const RoutingAttention& attention(int64_t layer) const;
  /// Returns the groups of tokens [B, L] in a layer with routing heads, i32 [B, Hr, k, w].
  Tensor groups(const Tensor& tokens, int64_t layer) const;
  /// Waits for the device. Throws NotImplemented without routing heads.
  ClusterOccupancy occupancy() const;
  std::vector<std::pair<std::string, double>> log_values() const override;
  /// Says how many tokens the groups can hold at this length.
  std::string remark(int64_t length) const override;
  /// A line for each layer with both kinds of heads: how differently they attend
  /// (head_divergence()), as means over pairs of local heads, of both kinds, and of routing heads.
  std::vector<std::string> report(const Tensor& tokens) const override;
  /// For a layer without routing heads. Throws NotImplemented for the others, whose attention
  /// depends on the tokens.
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;
  std::vector<int64_t> divided_heads() const override;
  /// With centroid_init = data, places the centroids of the layers, the first one first, by the
  /// rows that they get of these tokens. Throws ValueError if there are fewer than clusters.
  void begin_training(const Tensor& tokens, Generator gen) override;

 private:
  LayerContext layer_context(int64_t queries, int64_t keys, int64_t first_key) const override;
  Tensor embed(const Tensor& tokens, int64_t first, Pass pass) const override;
  Tensor head_input(const Tensor& hidden) const override;
  void visit_more(Visitor& v) override;

  RoutingConfig config_;
  Linear projection_, head_projection_;       // [D, De], [De, D]
  std::vector<RoutingAttention*> attention_;  // of each layer, in stack_
};

/// Entry of the model under the name that programs use.
const ModelEntry& routing_entry();

/// Configurations of the paper and of released code. Throws ValueError on an unknown name.
RoutingConfig routing_preset(std::string_view name);

}  // namespace longspan
