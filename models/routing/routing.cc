// Routing Transformer, Roy et al. 2020 (2003.05997): heads that attend within clusters of similar
// tokens, found by online k-means, beside heads that attend to the tokens nearby.
//
//   pairs of a routing head    k w (w + 1) / 2, w = min(window, L), and scores of L k
//
// With k = w = sqrt(L) that is O(L^1.5). What the paper's table and the authors' code disagree
// about (clusters, windows, layers) is in presets of their own. PG-19 routes in the last layer
// alone.

#include "models/routing/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/mode.h"
#include "nn/attention/divergence.h"
#include "ops/copy.h"

namespace longspan {
namespace {

constexpr const char* kRouting = "routing";

constexpr TrainingDefaults routing_published(int64_t length, int64_t steps = 100'000) {
  return {.length = length, .batch = 1, .steps = steps, .lr = 2e-4, .warmup = 10'000};
}

constexpr Preset routing_presets[] = {
    {"small",
     "4 layers of 128, the last two with routing; trains on bytes in minutes",
     "",
     "routing_layers=2",
     {.length = 512, .batch = 4, .steps = 2000, .lr = 1e-3}},
    {"tiny",
     "2 layers of 16, 4 clusters of 8 tokens, 17 tokens; for tests",
     "",
     "vocab=17 n_layer=2 d_model=16 d_ff=24 local_heads=1 routing_heads=1 clusters=4 window=8 "
     "local_block=8 routing_clip=8",
     {.length = 32, .batch = 4, .steps = 200}},
    {"recall",
     "2 layers of 64 that recall labels over 128 tokens",
     "",
     "vocab=25 n_layer=2 d_model=64 d_ff=128 local_heads=1 routing_heads=3 clusters=2 window=64 "
     "local_block=8 local_clip=16 routing_clip=16 decay=0.95 logit_scale=rsqrt_d mask_self=true",
     {.length = 128, .batch = 32, .steps = 400, .lr = 3e-3}},
    {"wt103", "10 layers of 1024, 16 clusters of 256 tokens, length 4096", "",
     "vocab=267735 n_layer=10 d_model=1024 d_ff=3072 local_heads=8 routing_heads=8 clusters=16 "
     "window=256 local_block=256 routing_clip=256 dropout_attn=0.3",
     routing_published(4096)},
    {"wt103_code", "14 layers of 1024, 8 clusters of 512 tokens, length 4096", "wt103",
     "n_layer=14 d_embed=256 clusters=8 window=512 routing_clip=512 dropout=0.4 dropout_attn=0.4",
     routing_published(4096)},
    {"enwik8", "12 layers of 1024, 32 clusters of 256 tokens, length 8192", "",
     "n_layer=12 d_model=1024 d_ff=3072 local_heads=4 routing_heads=4 clusters=32 window=256 "
     "local_block=256 routing_clip=256 dropout=0.4",
     routing_published(8192)},
    {"enwik8_code", "12 layers of 1024, 16 clusters of 512 tokens, length 8192", "enwik8",
     "clusters=16 window=512 routing_clip=512 dropout=0", routing_published(8192)},
    {"enwik8_12k", "12 layers of 1024, 48 clusters of 256 tokens, length 12288", "enwik8",
     "clusters=48 local_block=128 dropout=0", routing_published(12'288)},
    {"imagenet64", "24 layers of 512, 8 clusters of 2048 tokens, length 12288", "",
     "n_layer=24 d_model=512 d_ff=2048 local_heads=8 routing_heads=8 clusters=8 window=2048 "
     "local_block=256 routing_clip=2048",
     routing_published(12'288)},
    {"pg19", "22 layers of 1032, the last one with 2 routing heads, length 8192", "",
     "vocab=32768 n_layer=22 d_model=1032 d_ff=4096 local_heads=6 routing_heads=2 "
     "routing_layers=1 clusters=16 window=512 local_block=256 routing_clip=512",
     routing_published(8192)},
    {"cifar10", "12 layers of 256, 6 clusters of 512 tokens, length 3072", "",
     "n_layer=12 d_model=256 d_ff=256 local_heads=4 routing_heads=4 clusters=6 window=512 "
     "local_block=128 routing_clip=512",
     routing_published(3072)},
};

std::unique_ptr<ModelSpec> routing_spec(std::string_view preset) {
  return preset_spec<RoutingTransformer, RoutingConfig>(kRouting, routing_presets, preset);
}

void require_consistent(const RoutingConfig& c) {
  check_fields(kRouting, c);
  require(c.heads() >= 1, kRouting, "local_heads and routing_heads are 0; expected a head");
  if (c.d_head == 0) require_heads(kRouting, c.d_model, c.heads());
  require(c.routing_layers >= -1 && c.routing_layers <= c.n_layer, kRouting,
          "routing_layers is {}; expected 0 to n_layer = {}, or -1", c.routing_layers, c.n_layer);
  require(c.local_clip >= -2 && c.routing_clip >= -1, kRouting,
          "local_clip is {} and routing_clip is {}; expected 0 or more, or -1", c.local_clip,
          c.routing_clip);
  require(!c.local_values || c.local_clip != -1, kRouting,
          "local_values needs relative positions of local heads; local_clip is -1");
  require(c.norm_eps > 0 && c.qk_norm_eps > 0, kRouting,
          "norm_eps is {} and qk_norm_eps is {}; expected more than 0", c.norm_eps, c.qk_norm_eps);
  require(c.decay >= 0 && c.decay <= 1, kRouting, "decay is {}; expected 0 to 1", c.decay);
}

Scheme normal_or_default(double deviation) {
  return deviation > 0 ? Scheme::normal(deviation) : Scheme{};
}

DecoderOptions decoder_of(const RoutingConfig& c) {
  require_consistent(c);
  DecoderOptions o{.model = kRouting,
                   .vocab = c.vocab,
                   .n_layer = c.n_layer,
                   .n_head = c.heads(),
                   .d_model = c.d_model,
                   .d_embed = c.d_embed,
                   .precision = c.precision,
                   .token_head = c.token_head};
  o.token = normal_or_default(c.embed_std);
  o.classifier = normal_or_default(c.head_std);
  o.tie_embedding = c.tie_embedding;
  o.head_bias = !c.tie_embedding;
  o.emb_scale = c.emb_scale;
  o.dropout = c.dropout;
  return o;
}

RoutingOptions options_of(const RoutingConfig& c, int64_t layer) {
  const bool routes = c.routes(layer);
  return {.d_model = c.d_model,
          .d_head = c.head_width(),
          .local_heads = routes ? c.local_heads : c.heads(),
          .routing_heads = routes ? c.routing_heads : 0,
          .clusters = c.clusters,
          .window = c.window,
          .share_qk = c.share_qk,
          .select = c.select,
          .norm = c.norm_qk,
          .scale = c.logit_scale,
          .mask_self = c.mask_self,
          .scatter_eps = c.scatter_eps,
          .head_mix = c.head_mix,
          .commitment = c.commitment,
          .local_clip = c.local_clip == -2 ? 2 * c.local_block + 1 : c.local_clip,
          .routing_clip = c.routing_clip,
          .local_values = c.local_values,
          .norm_eps = c.qk_norm_eps,
          .dropout = or_default(c.dropout_attn, c.dropout),
          .update = c.ema,
          .decay = c.decay,
          .reseed_below = c.reseed_below,
          .weights = normal_or_default(c.init_std),
          .out_weights = normal_or_default(c.init_std)};
}

}  // namespace

RoutingConfig routing_variant(RoutingConfig c, RoutingVariant variant) {
  const bool lucid = variant == RoutingVariant::lucid;
  c.norm_qk = lucid ? RoutingNorm::unit_keys : RoutingNorm::ln0;
  c.logit_scale = lucid ? RoutingScale::rsqrt_d : RoutingScale::none;
  c.mask_self = lucid;
  c.scatter_eps = lucid ? 1e-5 : 1e-2;
  c.head_mix = !lucid;
  c.centroid_init = lucid ? CentroidInit::data : CentroidInit::random;
  c.ema = lucid ? CentroidUpdate::lucid : CentroidUpdate::counts_raw;
  if (lucid) {
    c.routing_clip = -1;
    return c;
  }
  c.local_values = true;
  c.ff_bias = false;
  c.activation = Activation::geglu_tanh;
  c.norm_eps = 1e-6;
  // The code divides queries by sqrt(d) before their norm, whose epsilon is 1e-6 there.
  c.qk_norm_eps = 1e-6 * static_cast<double>(c.head_width());
  if (c.d_embed == 0) c.d_embed = c.d_model;
  return c;
}

RoutingTransformer::RoutingTransformer(const RoutingConfig& config, const Init& init)
    : CausalDecoder(decoder_of(config), init), config_(config) {
  const RoutingConfig& c = config_;
  std::vector<std::unique_ptr<Layer>> attention;
  for (int64_t i = 0; i < c.n_layer; ++i) {
    auto layer = std::make_unique<RoutingAttention>(options_of(c, i), attention_init(init, i));
    attention_.push_back(layer.get());
    attention.push_back(std::move(layer));
  }
  stack_ = attention_stack({.ff = {.d_model = c.d_model,
                                   .d_ff = c.d_ff,
                                   .activation = c.activation,
                                   .bias = c.ff_bias,
                                   .dropout = c.dropout,
                                   .weights = normal_or_default(c.init_std),
                                   .out_weights = normal_or_default(c.init_std)},
                            .norm = c.norm,
                            .norm_eps = c.norm_eps,
                            .dropout = c.dropout,
                            .memory = c.memory},
                           std::move(attention), init);
  if (c.d_embed == 0) return;
  const Scheme weights = normal_or_default(c.init_std);
  projection_ = Linear(c.d_embed, c.d_model, true, init.at("embed").at("projection"), weights);
  if (c.d_embed == c.d_model) return;
  head_projection_ = Linear(c.d_model, c.d_embed, true, init.at("head").at("projection"), weights);
}

Tensor RoutingTransformer::embed(const Tensor& tokens, int64_t first, Pass pass) const {
  const Tensor x = CausalDecoder::embed(tokens, first, pass);
  return projection_.weight ? projection_.forward(x) : x;
}

Tensor RoutingTransformer::head_input(const Tensor& hidden) const {
  return head_projection_.weight ? head_projection_.forward(hidden) : hidden;
}

void RoutingTransformer::visit_more(Visitor& v) {
  v("embed.projection", projection_)("head.projection", head_projection_);
}

std::vector<int64_t> RoutingTransformer::divided_heads() const {
  const RoutingConfig& c = config_;
  std::vector<int64_t> all{c.heads()};
  if (c.routing_layers != 0 && c.routing_heads > 0) {
    all.push_back(c.routing_heads);
    if (c.local_heads > 0) all.push_back(c.local_heads);
  }
  return all;
}

LayerContext RoutingTransformer::layer_context(int64_t /*queries*/, int64_t /*keys*/,
                                               int64_t first_key) const {
  LayerContext ctx;
  ctx.pattern = patterns::local_block(config_.local_block, first_key);
  return ctx;
}

const RoutingAttention& RoutingTransformer::attention(int64_t layer) const {
  require(layer >= 0 && layer < layers(), kRouting, "layer {} of {}", layer, layers());
  return *attention_[static_cast<size_t>(layer)];
}

void RoutingTransformer::begin_training(const Tensor& tokens, Generator gen) {
  if (config_.centroid_init == CentroidInit::random) return;
  const NoGrad off;
  const Tensor x = embedded(tokens, 0, Pass{});
  for (int64_t layer = 0; layer < layers(); ++layer) {
    if (!config_.routes(layer)) continue;
    LayerContext ctx = layer_context(x.dim(1), x.dim(1), 0);
    const Tensor rows = stack_.attention_input(layer, x, ctx);
    attention_[static_cast<size_t>(layer)]->start_centroids(rows, ctx,
                                                            gen.fork(static_cast<uint64_t>(layer)));
  }
}

Tensor RoutingTransformer::groups(const Tensor& tokens, int64_t layer) const {
  const NoGrad off;
  const RoutingAttention& own = attention(layer);
  const Tensor x = embedded(tokens, 0, Pass{});
  LayerContext ctx = layer_context(x.dim(1), x.dim(1), 0);
  const Tensor rows = stack_.attention_input(layer, x, ctx);
  return own.groups(rows, ctx);
}

ClusterOccupancy RoutingTransformer::occupancy() const {
  ClusterOccupancy result;
  result.least = std::numeric_limits<double>::infinity();
  double in[3] = {};
  for (const RoutingAttention* layer : attention_) {
    if (!layer->centroids()) continue;
    for (const double n : cast(layer->centroids().counts(), DType::f64).to_vector<double>()) {
      result.least = std::min(result.least, n);
      result.most = std::max(result.most, n);
      result.dead += n < 1;
    }
    const Tensor members = cast(layer->centroids().membership(), DType::f64);
    const std::vector<double> shares = members.to_vector<double>();
    for (size_t i = 0; i < 3; ++i) in[i] += shares[i];
  }
  require<NotImplemented>(std::isfinite(result.least), kRouting, "no layer has routing heads");
  const double all = std::max(in[0] + in[1] + in[2], 1.0);
  result.in_none = in[0] / all;
  result.in_one = in[1] / all;
  result.in_several = in[2] / all;
  return result;
}

std::vector<std::pair<std::string, double>> RoutingTransformer::log_values() const {
  if (!config_.routes(layers() - 1)) return {};
  const ClusterOccupancy now = occupancy();
  return {{"cluster_least", now.least},
          {"cluster_most", now.most},
          {"clusters_dead", static_cast<double>(now.dead)},
          {"tokens_in_no_group", now.in_none},
          {"tokens_in_one_group", now.in_one},
          {"tokens_in_several_groups", now.in_several}};
}

std::string RoutingTransformer::remark(int64_t length) const {
  const RoutingConfig& c = config_;
  if (!c.routes(layers() - 1)) return {};
  if (c.select == RoutingSelect::argmax_recent) {
    return fmt::format("routing: each token sees the last {} of its cluster, one of {}",
                       std::min(c.window, length), c.clusters);
  }
  const int64_t w = std::min(c.window, length);
  return fmt::format("routing: {} groups of {} tokens hold {:.2f} times the {} of a sequence",
                     c.clusters, w,
                     static_cast<double>(c.clusters * w) / static_cast<double>(length), length);
}

std::vector<std::string> RoutingTransformer::report(const Tensor& tokens) const {
  std::vector<std::string> lines;
  for (int64_t layer = 0; layer < layers(); ++layer) {
    if (!config_.routes(layer) || config_.local_heads == 0) continue;
    const Tensor pairs = head_divergence(attention_map(tokens, layer));
    const std::vector<double> of = pairs.to_vector<double>();
    double sums[3] = {}, counts[3] = {};  // by the number of routing heads in a pair
    for (int64_t g = 0; g < config_.heads(); ++g) {
      for (int64_t h = g + 1; h < config_.heads(); ++h) {
        const double divergence = of[static_cast<size_t>(g * config_.heads() + h)];
        if (std::isnan(divergence)) continue;
        const int kind = (g >= config_.local_heads) + (h >= config_.local_heads);
        sums[kind] += divergence;
        counts[kind] += 1;
      }
    }
    const char* const names[] = {"two local heads", "a local and a routing one",
                                 "two routing ones"};
    std::vector<std::string> parts;
    for (size_t kind = 0; kind < 3; ++kind) {
      if (counts[kind] == 0) continue;
      parts.push_back(fmt::format("{:.3f} {}", sums[kind] / counts[kind], names[kind]));
    }
    lines.push_back(
        fmt::format("divergence of heads in layer {}: {} (0: they attend alike, "
                    "{:.3f}: never to the same token)",
                    layer, fmt::join(parts, ", "), std::log(2.0)));
  }
  return lines;
}

AttentionOutline RoutingTransformer::attention_outline(int64_t layer, int64_t length) const {
  require<NotImplemented>(attention(layer).options().routing_heads == 0, kRouting,
                          "what routing heads of layer {} see depends on the tokens", layer);
  return CausalDecoder::attention_outline(layer, length);
}

RoutingConfig routing_preset(std::string_view name) {
  return preset_of<RoutingConfig>(kRouting, routing_presets, name);
}

const ModelEntry& routing_entry() {
  static const ModelEntry entry{
      kRouting,
      "causal language model, some of whose heads attend within clusters of similar tokens",
      routing_presets, routing_spec};
  return entry;
}

}  // namespace longspan
