// BP-Transformer, Ye et al. 2019 (1911.04070), as an encoder: classification of sequences and of
// pairs of them by the roots of their trees, and masked tokens by the leaves.

#include "models/bp_transformer/bp_encoder.h"

#include <algorithm>
#include <span>

#include "autograd/mode.h"
#include "core/scope.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/patterns/edge_builder.h"
#include "ops/random.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kBpEncoder = "bp_encoder";

constexpr TrainingDefaults classifier(int64_t length, int64_t batch, double lr, int64_t steps) {
  return {.length = length,
          .batch = batch,
          .steps = steps,
          .lr = lr,
          .warmup = 0,
          .lr_floor = 1,
          .clip = 1,
          .beta2 = 0.98,
          .weight_decay = 5e-5};
}

constexpr Preset bp_encoder_presets[] = {
    {"small",
     "3 layers of 96, 8 neighbours on each level and side; masked bytes",
     "",
     "k=8",
     {.length = 128, .batch = 8, .steps = 1500, .lr = 2e-3, .warmup = 100, .beta2 = 0.98}},
    {"tiny",
     "2 layers of 8, 2 neighbours on each level and side, 17 tokens, 3 classes; for tests",
     "",
     "vocab=17 n_layer=2 n_head=2 d_model=8 d_ff=16 k=2 clip=2 embed_std=0.3 classes=3",
     {.length = 12, .batch = 4, .steps = 200}},
    // The vocabulary is MotifTask::vocabulary() of 6 bases a token.
    {"motif",
     "3 layers of 64 over runs of 6 bases, one answer from the root; for motif-dna",
     "",
     "vocab=4097 d_model=64 d_ff=128 mlm_head=false classes=1",
     {.length = 512, .batch = 16, .steps = 600, .lr = 2e-3, .warmup = 40, .clip = 1}},
    {"sst5", "4 layers of 300, 2 neighbours, 5 classes (SST-5)", "",
     "vocab=20000 n_layer=4 n_head=6 d_model=300 d_ff=600 k=2 clip=2 dropout=0.1 dropout_in=0.4 "
     "dropout_attn=0.3 dropout_out=0.4 mlm_head=false classes=5",
     classifier(64, 1024, 2.5e-4, 12'000)},
    {"imdb", "5 layers of 300, 4 neighbours, 2 classes (IMDB)", "sst5",
     "n_layer=5 k=4 clip=5 dropout_in=0.5 dropout_out=0.5 classes=2",
     classifier(1024, 32, 1e-4, 42'000)},
    {"snli", "3 layers of 300 and 3 that match, 4 neighbours, pairs in 3 classes (SNLI)", "imdb",
     "n_layer=3 match_layers=3 clip=2 classes=0 pair_classes=3",
     classifier(64, 128, 2.5e-4, 100'000)},
};

std::unique_ptr<ModelSpec> bp_encoder_spec(std::string_view preset) {
  return preset_spec<BpEncoder, BpEncoderConfig>(kBpEncoder, bp_encoder_presets, preset);
}

void require_consistent(const BpEncoderConfig& c) {
  require_tree_layers(kBpEncoder, c);
  check_fields(kBpEncoder, c);
  require(c.match_layers == 0 || c.pair_classes > 0, kBpEncoder,
          "match_layers is {}; it needs pair_classes > 0", c.match_layers);
  require(c.mask_id >= -1 && c.mask_id < c.vocab, kBpEncoder, "mask_id is {}; expected -1 to {}",
          c.mask_id, c.vocab - 1);
  const bool ties = c.mlm_head && c.tie_embedding;
  require(!ties || c.d_embed == 0 || c.d_embed == c.d_model, kBpEncoder,
          "d_embed is {} and d_model {}; set tie_embedding to false, or d_embed to 0", c.d_embed,
          c.d_model);
}

/// Returns which leaves the nodes of packed trees of these lengths attend to: a leaf attends to all
/// leaves of the other tree of its pair, a span to none. The first half of `lengths` are the first
/// trees of the pairs.
std::shared_ptr<const EdgeRows> other_of_pair(std::span<const int64_t> lengths) {
  const size_t trees = lengths.size();
  std::vector<int64_t> first;  // leaf of each tree
  int64_t leaves = 0;
  for (const int64_t n : lengths) {
    first.push_back(leaves);
    leaves += n;
  }
  EdgeLayoutBuilder builder;
  for (size_t t = 0; t < trees; ++t) {
    const size_t other = (t + trees / 2) % trees;
    const EdgeRun run{first[other], lengths[other], EdgeLayoutBuilder::one_label(0)};
    for (int64_t i = 0; i < Tree{lengths[t]}.nodes(); ++i) {
      builder.add_row(i < lengths[t] ? std::span(&run, 1) : std::span<const EdgeRun>{});
    }
    builder.end_group();
  }
  auto rows = std::make_shared<EdgeRows>();
  rows->layout = builder.build(leaves, 1);
  return rows;
}

}  // namespace

BpEncoder::BpEncoder(const BpEncoderConfig& config, const Init& init)
    : config_(config), compute_(compute_dtype(config.precision, init.dtype)) {
  const BpEncoderConfig& c = config_;
  require_consistent(c);
  const int64_t width = c.d_embed > 0 ? c.d_embed : c.d_model;
  const Init site = init.at("embed");
  token_ = Embedding(c.vocab, width, site.at("token"), Scheme::normal(c.embed_std));
  if (width != c.d_model) projection_ = Linear(width, c.d_model, true, site.at("projection"), {});
  embed_norm_ = Normalization(NormKind::layer, c.d_model, c.norm_eps, site.at("norm"));
  stack_ = tree_stack(c, false, init);
  if (c.match_layers > 0) {
    TreeLayersConfig match = c;
    match.n_layer = c.match_layers;
    match_ = tree_stack(match, true, init.at("match"));
  }
  if (c.mlm_head) {
    head_.weight = c.tie_embedding ? token_.weight
                                   : init.at("head").at("weight").make({c.vocab, c.d_model}, {});
    head_.bias = init.at("head").at("bias").make({c.vocab}, Scheme::zeros());
  }
  if (c.classes > 0) classes_ = Linear(c.d_model, c.classes, true, init.at("classifier"), {});
  if (c.pair_classes > 0) {
    pair_hidden_ = Linear(2 * c.d_model, c.d_model, true, init.at("pair").at("hidden"), {});
    pairs_ = Linear(c.d_model, c.pair_classes, true, init.at("pair").at("classifier"), {});
  }
}

void BpEncoder::visit(Visitor& v) {
  v("embed.token", token_)("embed.projection", projection_)("embed.norm", embed_norm_);
  stack_.visit(v);
  v("match", match_);
  v("head", head_)("classifier", classes_)("pair.hidden", pair_hidden_)("pair.classifier", pairs_);
}

int64_t BpEncoder::mask_token() const {
  return config_.mask_id >= 0 ? config_.mask_id : config_.vocab - 1;
}

Tensor BpEncoder::embed(const Tensor& tokens, Pass pass) const {
  const Scope scope("embed");
  Tensor x = token_.forward(tokens);
  if (projection_.weight) x = projection_.forward(x);
  x = dropout(x, or_default(config_.dropout_in, config_.dropout), pass.at("emb"));
  return cast(embed_norm_.forward(x), compute_);
}

TreeInputs BpEncoder::inputs(const SourceTokens& in, Pass pass) const {
  if (in.tokens.rank() != 2 || in.tokens.dim(1) < 1) {
    fail_with<ShapeError>(kBpEncoder, "tokens must be [B, L], L >= 1", {{"tokens", in.tokens}});
  }
  const TreeOptions tree = config_.tree(config_.causal);
  TreeInputs result;
  const auto read = [&result](const auto& all, const auto& leaves, const auto& root) {
    result.leaves.own.set(EdgeContext{all, leaves, nullptr});
    result.root.own.set(EdgeContext{all, root, nullptr});
  };
  const int64_t length = in.tokens.dim(1);
  const std::vector<int64_t> lengths = lengths_on_host(kBpEncoder, in);
  if (lengths.empty()) {
    result.nodes = with_zero_spans(embed(in.tokens, pass));
    read(tree_rows(length, tree, TreeRows::all), tree_rows(length, tree, TreeRows::leaves),
         tree_rows(length, tree, TreeRows::root));
    return result;
  }
  const PackedTrees packed = packed_trees(lengths, length, tree, device());
  const Tensor x = embed(in.tokens, pass);
  result.nodes = permute_rows(reshape(x, {1, x.dim(0) * length, x.dim(2)}), packed.tokens);
  read(packed.all, packed.leaves, packed.root);
  return result;
}

Stack::Result BpEncoder::states(const Tensor& tokens, Pass pass) const {
  const Scope scope(kBpEncoder);
  if (tokens.rank() == 2 && tokens.dim(1) == 0) {
    Stack::Result nothing;
    nothing.y = embed(tokens, pass);
    return nothing;
  }
  const TreeInputs in = inputs({.tokens = tokens}, pass);
  return stack_.forward(in.nodes, in.leaves, {}, pass);
}

Tensor BpEncoder::forward(const Tensor& tokens, Pass pass) const { return states(tokens, pass).y; }

Tensor BpEncoder::roots(const SourceTokens& source, Pass pass) const {
  const Scope scope(kBpEncoder);
  const TreeInputs in = inputs(source, pass);
  const Tensor y = stack_.forward(in.nodes, in.root, {}, pass).y;  // [B, 1, D] or [1, B, D]
  return reshape(y, {source.tokens.dim(0), config_.d_model});
}

Tensor BpEncoder::class_logits(const EncoderInputs& in, Pass pass) const {
  require(config_.classes > 0, kBpEncoder, "classification needs classes > 0");
  require_no_mask(kBpEncoder, in);
  const Tensor root = cast(roots({in.tokens, in.lengths}, pass), classes_.weight.dtype());
  const float p = or_default(config_.dropout_out, config_.dropout);
  return classes_.forward(dropout(root, p, pass.at("classifier")));
}

Tensor BpEncoder::matched_roots(const SourceTokens& a, const SourceTokens& b, Pass pass) const {
  const Scope scope(kBpEncoder);
  const int64_t batch = a.tokens.dim(0), length = std::max(a.tokens.dim(1), b.tokens.dim(1));
  std::vector<int64_t> lengths;
  std::vector<Tensor> leaves;
  for (const SourceTokens* side : {&a, &b}) {
    std::vector<int64_t> own = lengths_on_host(kBpEncoder, *side);
    if (own.empty()) own.assign(static_cast<size_t>(batch), side->tokens.dim(1));
    lengths.insert(lengths.end(), own.begin(), own.end());
    const Tensor x = embed(side->tokens, pass.at(side == &a ? "a" : "b"));
    leaves.push_back(pad(x, 1, 0, length - x.dim(1)));
  }
  const PackedTrees packed = packed_trees(lengths, length, config_.tree(config_.causal), device());
  const Tensor both = concat(leaves, 0);  // [2 B, L, D]
  const Tensor nodes =
      permute_rows(reshape(both, {1, 2 * batch * length, both.dim(2)}), packed.tokens);
  LayerContext ctx;
  ctx.own.set(EdgeContext{packed.all, nullptr, other_of_pair(lengths)});
  const Tensor read = stack_.forward(nodes, ctx, {}, pass.at("both")).y;
  ctx.encoder_output = packed.leaves->of(read);
  const Tensor roots = packed.root->of(match_.forward(read, ctx, {}, pass.at("match")).y);
  return flatten(transpose(reshape(roots, {2, batch, config_.d_model}), 0, 1), 1, 2);
}

Tensor BpEncoder::pair_logits(const SourceTokens& a, const SourceTokens& b, Pass pass) const {
  require(config_.pair_classes > 0, kBpEncoder, "pairs need pair_classes > 0");
  if (a.tokens.rank() == 2 && b.tokens.rank() == 2 && a.tokens.dim(0) != b.tokens.dim(0)) {
    fail_with<ShapeError>(kBpEncoder, "both sides of pairs must have as many samples",
                          {{"a", a.tokens}, {"b", b.tokens}});
  }
  for (const auto& [name, side] : {std::pair{"a", &a.tokens}, {"b", &b.tokens}}) {
    if (side->rank() != 2 || side->dim(1) < 1) {
      fail_with<ShapeError>(kBpEncoder, "tokens must be [B, L], L >= 1", {{name, *side}});
    }
  }
  const Tensor both = config_.match_layers > 0
                          ? matched_roots(a, b, pass)
                          : concat({roots(a, pass.at("a")), roots(b, pass.at("b"))}, 1);
  const Tensor hidden = pair_hidden_.forward(cast(both, pair_hidden_.weight.dtype()));
  const float p = or_default(config_.dropout_out, config_.dropout);
  return pairs_.forward(relu(dropout(hidden, p, pass.at("classifier"))));
}

LanguageModel::Losses BpEncoder::loss(const Tensor& tokens, const Tensor& targets,
                                      const SegmentMemory& memory, Pass pass) const try {
  require(config_.mlm_head, kBpEncoder, "predicting tokens needs mlm_head");
  require_no_memory(kBpEncoder, memory);
  Losses result;
  const Tensor hidden = forward(tokens, pass);
  require_token_targets(kBpEncoder, hidden, targets);
  const float p = or_default(config_.dropout_out, config_.dropout);
  result.loss = token_loss(dropout(hidden, p, pass.at("classifier")), head_, targets,
                           config_.token_head, pass.training);
  return result;
} catch (const std::bad_alloc&) {
  fail_for_memory(kBpEncoder);
}

Tensor BpEncoder::logits(const Tensor& tokens, Pass pass) const {
  require(config_.mlm_head, kBpEncoder, "predicting tokens needs mlm_head");
  return token_logits(forward(tokens, pass), head_, config_.token_head);
}

Tensor BpEncoder::attention_map(const Tensor& tokens, int64_t layer) const {
  const NoGrad off;
  const TreeInputs in = inputs({.tokens = tokens}, Pass{});
  return tree_map(stack_, layer, in.nodes, config_.mlm_head ? in.leaves : in.root);
}

AttentionOutline BpEncoder::attention_outline(int64_t layer, int64_t length) const {
  LayerContext ctx;
  if (length > 0) {
    const TreeOptions tree = config_.tree(config_.causal);
    ctx.own.set(EdgeContext{
        tree_rows(length, tree, TreeRows::all),
        tree_rows(length, tree, config_.mlm_head ? TreeRows::leaves : TreeRows::root), nullptr});
  }
  return tree_outline(ctx, layer, config_, length);
}

BpEncoderConfig bp_encoder_preset(std::string_view name) {
  return preset_of<BpEncoderConfig>(kBpEncoder, bp_encoder_presets, name);
}

const ModelEntry& bp_encoder_entry() {
  static const ModelEntry entry{
      kBpEncoder, "encoder over a binary tree of spans: classes from its root, masked tokens",
      bp_encoder_presets, bp_encoder_spec};
  return entry;
}

}  // namespace longspan
