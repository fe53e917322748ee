// BP-Transformer, Ye et al. 2019 (1911.04070): attention over a binary tree of spans.
//
//   tree   n leaves, N_{j+1} = ceil(N_j / 2) nodes on the next level, to the root
//   pairs  n levels + sum_i C(i),  C(i) = sum_j clamp(ceil((i + k) / 2^j) - k, 0, k)
//   score  q_u . (k_v + r_label(u,v)) / sqrt(d)
//
// Which nodes a leaf attends to is ops/patterns/tree.h; the layers are tree_layers.h.

#include "models/bp_transformer/bp_transformer.h"

#include <fmt/format.h>

#include "autograd/mode.h"
#include "core/graph.h"
#include "core/ranks/sequence_split.h"
#include "core/scope.h"
#include "nn/attention/decoding_memory.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kBpTransformer = "bp_transformer";

constexpr TrainingDefaults characters(int64_t length, int64_t batch, double lr, int64_t steps) {
  return {.length = length,
          .batch = batch,
          .steps = steps,
          .lr = lr,
          .warmup = 4000,
          .lr_floor = 0,
          .clip = 0.25,
          .beta2 = 0.98};
}

constexpr Preset bp_transformer_presets[] = {
    {"small",
     "3 layers of 96, 8 neighbours on each level; trains on bytes in minutes",
     "",
     "k=8",
     {.length = 128, .batch = 8, .steps = 1500, .lr = 2e-3, .warmup = 100, .beta2 = 0.98}},
    {"tiny",
     "2 layers of 8, 2 neighbours on each level, 17 tokens; for tests",
     "",
     "vocab=17 n_layer=2 n_head=2 d_model=8 d_ff=16 k=2 clip=2 embed_std=0.3",
     {.length = 12, .batch = 4, .steps = 200}},
    {"recall",
     "3 layers of 96 that recall a marked symbol over 256 tokens",
     "small",
     "vocab=26 k=4 intermediate_loss=false",
     {.length = 259, .batch = 16, .steps = 1000, .lr = 1e-3, .warmup = 50, .beta2 = 0.98}},
    {"enwik8", "12 layers of 512, 64 neighbours on each level, length 8192 (enwik8, text8)", "",
     "n_layer=12 n_head=8 d_model=512 d_ff=2048 k=64 clip=6 dropout=0.1",
     characters(8192, 8, 5.8e-4, 200'000)},
    {"enwik8_512", "12 layers of 512, 64 neighbours on each level, length 512", "enwik8", "clip=2",
     characters(512, 64, 4.1e-4, 400'000)},
    {"wikitext2", "6 layers of 320, 4 neighbours on each level, words (WikiText-2, PTB)", "",
     "vocab=33278 n_layer=6 n_head=8 d_model=320 d_ff=1024 k=4 clip=4 dropout=0.1 dropout_in=0.5 "
     "dropout_out=0.5 intermediate_loss=false",
     characters(320, 16, 4.1e-4, 10'000)},
};

std::unique_ptr<ModelSpec> bp_transformer_spec(std::string_view preset) {
  return preset_spec<BpTransformer, BpTransformerConfig>(kBpTransformer, bp_transformer_presets,
                                                         preset);
}

DecoderOptions decoder_of(const BpTransformerConfig& c) {
  require_tree_layers(kBpTransformer, c);
  check_fields(kBpTransformer, c);
  require(!c.tie_embedding || c.d_embed == 0 || c.d_embed == c.d_model, kBpTransformer,
          "d_embed is {} and d_model {}; set tie_embedding to false, or d_embed to 0", c.d_embed,
          c.d_model);
  DecoderOptions o = decoder_options(kBpTransformer, c);
  o.d_embed = c.d_embed;
  o.d_exit = c.d_model;
  o.token = Scheme::normal(c.embed_std);
  o.tie_embedding = c.tie_embedding;
  o.head_bias = true;
  return o;
}

}  // namespace

BpTransformer::BpTransformer(const BpTransformerConfig& config, const Init& init)
    : CausalDecoder(decoder_of(config), init), config_(config) {
  const BpTransformerConfig& c = config_;
  const Init site = init.at("embed");
  if (c.d_embed > 0 && c.d_embed != c.d_model) {
    projection_ = Linear(c.d_embed, c.d_model, true, site.at("projection"), {});
  }
  embed_norm_ = Normalization(NormKind::layer, c.d_model, c.norm_eps, site.at("norm"));
  stack_ = tree_stack(c, false, init);
}

void BpTransformer::visit_more(Visitor& v) {
  v("embed.projection", projection_)("embed.norm", embed_norm_);
}

Tensor BpTransformer::embed(const Tensor& tokens, int64_t /*first*/, Pass pass) const {
  Tensor x = token_rows(tokens);
  if (projection_.weight) x = projection_.forward(x);
  x = dropout(x, or_default(config_.dropout_in, config_.dropout), pass.at("emb"));
  return embed_norm_.forward(x);
}

LayerContext BpTransformer::layer_context(int64_t queries, int64_t keys, int64_t) const {
  LayerContext ctx;
  if (queries != keys || keys == 0) return ctx;  // of decoding: run() knows the nodes
  const TreeOptions tree = config_.tree(true);
  ctx.own.set(EdgeContext{tree_rows(keys, tree, TreeRows::all),
                          tree_rows(keys, tree, TreeRows::leaves), nullptr});
  return ctx;
}

int64_t BpTransformer::layer_rows(int64_t tokens) const { return Tree{tokens}.nodes(); }

Stack::Result BpTransformer::over_nodes(const Tensor& x, const LayerContext& ctx, Pass pass,
                                        std::vector<Tensor>* each) const {
  if (pass.split == nullptr) return stack_.forward(with_zero_spans(x), ctx, {}, pass, each);
  // The last layer computes all nodes too: only so do all processes have their share of its rows.
  LayerContext local = ctx;
  local.own.set(EdgeContext{ctx.own.find<EdgeContext>()->rows, nullptr, nullptr});
  const int64_t leaves = x.dim(1), spans = pass.split->rows(pass.rows).count - leaves;
  const Tensor none = Tensor::zeros({x.dim(0), spans, x.dim(2)}, x.dtype(), x.device());
  Stack::Result result = stack_.forward(concat({x, none}, 1), local, {}, pass, each);
  result.y = narrow(result.y, 1, 0, leaves);
  return result;
}

Stack::Result BpTransformer::run(const Tensor& x, const LayerContext& ctx, StreamState* state,
                                 Pass pass) const {
  if (x.dim(1) == 0 && pass.split == nullptr) {
    Stack::Result nothing;
    nothing.y = x;
    return nothing;
  }
  if (!ctx.decoding) return over_nodes(x, ctx, pass);
  const auto& layers = state->memory.layers;
  const int64_t slots = layers.empty() ? 0 : layers.front().get<KeyValues>().keys.dim(2);
  const GrowingTree nodes(ctx.position, x.dim(1), slots, config_.tree(true));
  LayerContext local = ctx;
  local.own.set(EdgeContext{nodes.all, nodes.leaves, nullptr});
  const Tensor spans = Tensor::zeros({x.dim(0), nodes.spans, x.dim(2)}, x.dtype(), x.device());
  Stack::Result result = stack_.forward(concat({x, spans}, 1), local, state->memory, pass);
  state->memory.layers = std::move(result.memory.layers);
  return result;
}

Tensor BpTransformer::loss(const Tensor& hidden, const Tensor& targets, Pass pass) const {
  const float p = or_default(config_.dropout_out, config_.dropout);
  return CausalDecoder::loss(dropout(hidden, p, pass.at("classifier")), targets, pass);
}

LanguageModel::Losses BpTransformer::loss(const Tensor& tokens, const Tensor& targets,
                                          const SegmentMemory& memory, Pass pass) const try {
  const int64_t n_layer = config_.n_layer;
  if (!pass.training || !config_.intermediate_loss || n_layer == 1) {
    return CausalDecoder::loss(tokens, targets, memory, pass);
  }
  const Scope scope(kBpTransformer);
  require_no_memory(kBpTransformer, memory);
  const OwnRows own = own_rows(tokens, pass);
  const Tensor x = embedded(own.of(tokens), own.first(), own.pass()), here = own.of(targets);
  const int64_t n = tokens.dim(1);
  std::vector<Tensor> each;
  const Stack::Result layers = over_nodes(x, layer_context(n, n, 0), own.pass(), &each);
  Losses result;
  result.loss = own.share(loss(layers.y, here, own.pass()), targets);
  graph::refuse("intermediate losses", "layers stop predicting as training goes on");
  Tensor sum;
  double heads = 1;
  for (int64_t i = 0; i + 1 < n_layer; ++i) {
    if (static_cast<double>(i + 1) <= static_cast<double>(n_layer) * pass.progress) continue;
    const Tensor leaves = narrow(each[static_cast<size_t>(i)], 1, 0, x.dim(1));
    const Pass site = own.pass().at("intermediate").at(static_cast<uint64_t>(i));
    const Tensor term = own.share(loss(leaves, here, site), targets);
    sum = sum ? add(sum, term) : term;
    ++heads;
  }
  if (!sum) return result;
  // The mean over all predicting layers, less the last one's loss.
  const Tensor more = sub(mul(sum, 1 / heads), mul(result.loss, 1 - 1 / heads));
  result.auxiliary.push_back({"intermediate", more});
  return result;
} catch (const std::bad_alloc&) {
  fail_for_memory(kBpTransformer);
}

Tensor BpTransformer::attention_map(const Tensor& tokens, int64_t layer) const {
  const NoGrad off;
  const Tensor x = embedded(tokens, 0, Pass{});
  const LayerContext ctx = layer_context(x.dim(1), x.dim(1), 0);
  return tree_map(stack_, layer, with_zero_spans(x), ctx);
}

AttentionOutline BpTransformer::attention_outline(int64_t layer, int64_t length) const {
  return tree_outline(layer_context(length, length, 0), layer, config_, length);
}

std::string BpTransformer::remark(int64_t length) const {
  return fmt::format(
      "{}: {} tokens are a tree with {} pairs a head and layer; full attention has "
      "{}",
      kBpTransformer, length, tree_pairs(length, config_.tree(true)), length * (length + 1) / 2);
}

BpTransformerConfig bp_transformer_preset(std::string_view name) {
  return preset_of<BpTransformerConfig>(kBpTransformer, bp_transformer_presets, name);
}

const ModelEntry& bp_transformer_entry() {
  static const ModelEntry entry{
      kBpTransformer, "causal language model whose tokens attend to a binary tree of spans",
      bp_transformer_presets, bp_transformer_spec};
  return entry;
}

}  // namespace longspan
