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
/// the L of a sequence; remark() says what share of a sequence they can cover.
struct RoutingConfig {
  int64_t vocab = 256, n_layer = 4, d_model = 128, d_ff = 256;
  /// Width of the token table, which a dense layer follows; unless it is d_model, one comes before
  /// the classifier too. 0: d_model, and no such layer.
  int64_t d_embed = 0;
  int64_t local_heads = 2, routing_heads = 2;  ///< in layers with routing; in others all are local
  int64_t d_head = 0;                          ///< 0: d_model / (local_heads + routing_heads)
  int64_t routing_layers = -1;                 ///< how many of the last layers route; -1: all
  int64_t clusters = 8, window = 64;           ///< k, w
  int64_t local_block = 64;  ///< b: local heads see their own block and the one before
  bool share_qk = true;      ///< keys of routing heads are their queries
  RoutingSelect select = RoutingSelect::topw;
  RoutingNorm norm_qk = RoutingNorm::ln0;
  double qk_norm_eps = 1e-6;  ///< of norm_qk = ln0
  RoutingScale logit_scale = RoutingScale::none;
  bool mask_self = false;  ///< a token sees itself in its groups only if it sees nothing else
  double scatter_eps = 0;  ///< the sum over a token's n groups is divided by n + this
  bool head_mix = false;   ///< one more matrix [d, d] for the outputs of all heads
  /// Relative positions are clipped at these distances; -1: none. In groups they are differences of
  /// places in the group. -2 for local heads: 2 local_block + 1.
  int64_t local_clip = -2, routing_clip = 64;
  bool local_values = false;  ///< local heads have relative values, as well as keys
  CentroidInit centroid_init = CentroidInit::random;  ///< data: k-means on the first batch
  CentroidUpdate ema = CentroidUpdate::spherical;
  double decay = 0.999;      ///< lambda
  double reseed_below = 0;   ///< clusters with fewer members take half of the fullest; 0: never
  double commitment = 1e-4;  ///< beta
  Activation activation = Activation::geglu;
  bool ff_bias = true;  ///< the feed-forward network has biases
  NormPlace norm = NormPlace::pre;
  double norm_eps = 1e-5;
  bool tie_embedding = false;
  bool emb_scale = false;  ///< token embeddings times sqrt(d_model)
  double init_std = 0;     ///< std of all matrices; 0: Glorot uniform
  double embed_std = 1, head_std = 0.02;
  float dropout = 0;        ///< sites emb, resid and ffn_act
  float dropout_attn = -1;  ///< -1: as dropout
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  void visit(auto& v) {
    v("vocab", vocab)("n_layer", n_layer)("d_model", d_model)("d_ff", d_ff)("d_embed", d_embed)(
        "local_heads", local_heads)("routing_heads", routing_heads)("d_head", d_head)(
        "routing_layers", routing_layers)("clusters", clusters)("window", window)(
        "local_block", local_block)("share_qk", share_qk)("select", select)("norm_qk", norm_qk)(
        "qk_norm_eps", qk_norm_eps)("logit_scale", logit_scale)("mask_self", mask_self)(
        "scatter_eps", scatter_eps)("head_mix", head_mix)("local_clip", local_clip)(
        "routing_clip", routing_clip)("local_values", local_values)("centroid_init", centroid_init)(
        "ema", ema)("decay", decay)("reseed_below", reseed_below)("commitment", commitment);
    v("activation", activation)("ff_bias", ff_bias)("norm", norm)("norm_eps", norm_eps)(
        "tie_embedding", tie_embedding)("emb_scale", emb_scale)("init_std", init_std)(
        "embed_std", embed_std)("head_std", head_std)("dropout", dropout)(
        "dropout_attn", dropout_attn)("precision", precision)("memory", memory)("chunks",
                                                                                memory.chunks);
    token_head.visit(v);
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
/// centroids are state: a model without any training generates with random ones, or with those of
/// begin_training().
class RoutingTransformer final : public CausalDecoder {
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
