// Reformer, Kitaev et al. 2020 (2001.04451): reversible blocks around attention that is limited to
// the keys near a query in the order of their hash buckets.
//
//   x1 = x2 = W_e[t] + [E1[i1(t)]; E2[i2(t)]]
//   y1 = x1 + drop(Attention(LN(x2)))     y2 = x2 + drop(W2 f(drop(W1 LN(y1) + b1)) + b2)
//   logits = drop(LN([x1; x2])) W_out + b
//
// The layers are in nn: LshAttention, and MultiHead with a chunk pattern for local layers.

#include "models/reformer/reformer.h"

#include <algorithm>

#include "autograd/mode.h"
#include "core/scope.h"
#include "models/own_rows.h"
#include "models/reformer/torch_rotations.h"
#include "nn/attention/multi_head.h"
#include "nn/checkpoint.h"
#include "nn/chunked.h"
#include "nn/reversible.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/patterns/chunks.h"
#include "ops/random.h"
#include "ops/shape.h"

namespace longspan {
namespace {

/// W2 f(Drop(W1 x + b1)) + b2: dropout precedes the activation, as in the authors' code.
class ReformerFeedForward : public Layer {
 public:
  ReformerFeedForward(const ReformerConfig& c, const Init& init, const Scheme& weights)
      : activation_(c.activation),
        p_(c.dropout),
        columns_(c.dropout_broadcast),
        in_(c.d_model, c.d_ff * (is_gated(c.activation) ? 2 : 1), true, init.at("in"), weights),
        out_(c.d_ff, c.d_model, true, init.at("out"), weights) {}

  Output forward(const Tensor& x, const LayerContext&, Pass pass) const override {
    const Tensor h = in_.forward(x);  // [B, L, F]
    const Pass site = pass.at("ffn_in");
    return out_.forward(
        activate(activation_, columns_ ? dropout_columns(h, p_, site) : dropout(h, p_, site)));
  }
  bool position_wise() const override { return true; }
  void visit(Visitor& v) override { v("in", in_)("out", out_); }

 private:
  Activation activation_;
  float p_;
  bool columns_;
  Linear in_, out_;
};

Scheme weights_of(const ReformerConfig& c) {
  return c.init_std > 0 ? Scheme::normal(c.init_std) : Scheme::xavier_uniform();
}

std::unique_ptr<Layer> make_attention(const ReformerConfig& c, ReformerLayer kind, int64_t layer,
                                      const Init& init) {
  if (kind == ReformerLayer::local) {
    const AttentionOptions o{.d_model = c.d_model,
                             .n_head = c.n_head,
                             .d_head = c.head_width(),
                             .dropout = c.dropout_local,
                             .weights = weights_of(c),
                             .out_weights = weights_of(c)};
    return std::make_unique<MultiHead>(o, ShawTables{}, init);
  }
  LshAttentionOptions o{
      .d_model = c.d_model,
      .n_head = c.n_head,
      .d_head = c.head_width(),
      .rounds = c.rounds,
      .rule = c.bucket_rule,
      .n_max = c.n_max,
      .full_up_to = c.full_up_to(),
      .evaluation = Generator{c.hash_seed}.fork("rotations").fork(static_cast<uint64_t>(layer)),
      .weights = weights_of(c)};
  if (!c.buckets.empty()) o.buckets = {c.buckets[0], c.buckets.size() > 1 ? c.buckets[1] : 1};
  o.pairs = {.chunk = c.chunk,
             .before = c.look_back,
             .after = c.look_ahead,
             .wrap = c.wrap,
             .duplicates = c.duplicates,
             .same_bucket = c.same_bucket,
             .causal = c.causal,
             .repeat_chunks = c.whole_chunks,
             .scale = c.logit_scale,
             .self = c.self_logit,
             .dropout = c.dropout_attn,
             .pass = {},
             .dropout_broadcast = c.dropout_broadcast};
  return std::make_unique<LshAttention>(o, init);
}

int64_t exit_width(const ReformerConfig& c) { return c.mean_exit ? c.d_model : 2 * c.d_model; }

DecoderOptions decoder_of(const ReformerConfig& c) {
  c.check();
  DecoderOptions o = decoder_options(ReformerConfig::model_name, c);
  o.n_max = c.n_max;
  o.d_exit = exit_width(c);
  o.token = Scheme::normal(c.embed_std);
  o.classifier = c.head_std > 0 ? Scheme::normal(c.head_std) : weights_of(c);
  o.head_bias = c.head_bias;
  return o;
}

}  // namespace

/// Drop(layer(LN(x))), the branch that one stream adds to the other.
struct Reformer::Branch final : Layer {
  Branch(Normalization n, std::unique_ptr<Layer> l, const ReformerConfig& c)
      : norm(std::move(n)),
        layer(std::move(l)),
        p(c.dropout),
        columns(c.dropout_broadcast),
        chunks(layer->position_wise() ? c.memory.chunks : 1) {}

  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override {
    if (chunks > 1) {
      return chunked(x, chunks, pass, [this](const Tensor& rows, Pass site) {
        return dropped(layer->forward(norm.forward(rows), {}, site).y, site);
      });
    }
    require_splits(*layer, pass);
    Output out = layer->forward(norm.forward(x), ctx, pass);
    autograd::CheckpointScope::end_branch();
    out.y = dropped(out.y, pass);
    return out;
  }
  Tensor dropped(const Tensor& y, Pass pass) const {
    const Pass site = pass.at("out");
    return columns ? dropout_columns(y, p, site) : dropout(y, p, site);
  }
  void visit(Visitor& v) override { v("norm", norm)("layer", *layer); }

  Normalization norm;
  std::unique_ptr<Layer> layer;
  float p;
  bool columns;
  int64_t chunks;
};

namespace {

/// Wraps a layer so that it computes its buckets once and reuses them when it is recomputed.
class DecidedOnce final : public Layer {
 public:
  DecidedOnce(std::shared_ptr<Layer> layer, Choices& choices)
      : layer_(std::move(layer)), choices_(choices) {}
  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override {
    return choices_.run(*layer_, x, ctx, pass);
  }
  void visit(Visitor& v) override { layer_->visit(v); }

 private:
  std::shared_ptr<Layer> layer_;
  Choices& choices_;
};

}  // namespace

void Reformer::Block::visit(Visitor& v) {
  v("norm1", attention->norm)("attention", *attention->layer);
  v("norm2", ff->norm)("ff", *ff->layer);
}

Reformer::Reformer(const ReformerConfig& config, const Init& init)
    : CausalDecoder(decoder_of(config), init), config_(config), kinds_(config.layer_kinds()) {
  const ReformerConfig& c = config_;
  position_ = AxialPositions(c.axes(), c.axis_widths(), init.at("embed").at("position"),
                             Scheme::normal(c.position_std));
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const Init at = init.at("layers").at(i);
    const auto branch = [&](const char* norm, std::unique_ptr<Layer> layer) {
      return std::make_shared<Branch>(
          Normalization(NormKind::layer, c.d_model, c.norm_eps, at.at(norm)), std::move(layer), c);
    };
    Block block;
    const ReformerLayer kind = kinds_[static_cast<size_t>(i)];
    block.attention = branch("norm1", make_attention(c, kind, i, at.at("attention")));
    block.ff =
        branch("norm2", std::make_unique<ReformerFeedForward>(c, at.at("ff"), weights_of(c)));
    blocks_.push_back(std::move(block));
  }
  final_norm_ = Normalization(NormKind::layer, exit_width(c), c.norm_eps, init.at("final_norm"));
  if (c.torch_seed >= 0) set_torch_rotations(init);
  require(
      (c.classes == 0 && !c.span_head) || !c.causal, ReformerConfig::model_name,
      "classes = {} and span_head = {} with causal = true; these heads need rows that attend to "
      "the whole text: causal = false",
      c.classes, c.span_head);
  if (c.classes > 0) {
    classes_ =
        PooledHead(c.d_model, c.classes, init, weights_of(c), PoolActivation::tanh, exit_width(c));
  }
  if (c.span_head) spans_ = Linear(exit_width(c), 2, true, init.at("spans"), weights_of(c));
}

void Reformer::set_torch_rotations(const Init& init) {
  const ReformerConfig& c = config_;
  require(!c.buckets.empty(), ReformerConfig::model_name,
          "torch_seed = {} needs the number of buckets; set buckets", c.torch_seed);
  int64_t width = 0;  // a number of buckets may have two factors, each with its own rotations
  for (const int64_t n : c.buckets) width += n / 2;
  if (init.meta) return;
  const DType dtype = init.dtype == DType::f64 ? DType::f64 : DType::f32;
  const Tensor drawn = torch_normal(static_cast<uint32_t>(c.torch_seed),
                                    {c.n_head, c.head_width(), c.rounds, width}, dtype);
  const Tensor rotations = contiguous(unsqueeze(permute(drawn, {0, 2, 1, 3}), 0));
  set_rotations(to_device(rotations, init.device));  // [1, H, R, d, w]
}

void Reformer::visit(Visitor& v) {
  CausalDecoder::visit(v);
  classes_.visit(v);
  v("spans", spans_);
}

Tensor Reformer::hidden_of(const EncoderInputs& in, Pass pass) const {
  require_no_mask(ReformerConfig::model_name, in);
  require<NotImplemented>(!in.types && !in.global, ReformerConfig::model_name,
                          "this model has neither token types nor global tokens");
  return forward(ReformerInputs{.tokens = in.tokens, .lengths = in.lengths}, pass).hidden;
}

Tensor Reformer::class_logits(const EncoderInputs& in, Pass pass) const {
  require(config_.classes > 0, ReformerConfig::model_name, "classification needs classes > 0");
  const Tensor hidden = dropout(hidden_of(in, undivided(ReformerConfig::model_name, pass)),
                                config_.dropout, pass.at("pool"));
  return classes_.forward(hidden, config_.dropout, pass);
}

SpanLogits Reformer::span_logits(const EncoderInputs& in, Pass pass) const {
  require(config_.span_head, ReformerConfig::model_name, "answers as spans need span_head");
  return span_logits_of(spans_.forward(hidden_of(in, undivided(ReformerConfig::model_name, pass))),
                        in.lengths);
}

void Reformer::visit_more(Visitor& v) {
  v("embed.position", position_)("layers", blocks_)("final_norm", final_norm_);
}

LshAttention* Reformer::lsh(int64_t layer) const {
  return dynamic_cast<LshAttention*>(blocks_[static_cast<size_t>(layer)].attention->layer.get());
}

void Reformer::set_rotations(const Tensor& rotations) {
  for (int64_t i = 0; i < config_.n_layer; ++i) {
    if (LshAttention* layer = lsh(i)) layer->set_rotations(rotations);
  }
}

Objective Reformer::objective() const {
  return config_.causal ? Objective::next_token : Objective::masked_token;
}

std::string Reformer::remark(int64_t length) const {
  const ReformerConfig& c = config_;
  int64_t hashed = 0;
  while (hashed < c.n_layer && lsh(hashed) == nullptr) ++hashed;
  if (hashed == c.n_layer) return {};
  int64_t limit = c.full_up_to();
  while (limit > 0 && c.padded(limit) > c.full_up_to()) --limit;
  if (length <= limit) {
    return fmt::format(
        "{}: {} tokens are attended to in full, without hashing, as are all "
        "sequences up to {}",
        ReformerConfig::model_name, length, limit);
  }
  return fmt::format("{}: {} tokens are hashed into {} rounds of buckets",
                     ReformerConfig::model_name, length, c.rounds);
}

LayerContext Reformer::local_context(int64_t queries, int64_t keys, const Tensor& lengths) const {
  const ReformerConfig& c = config_;
  LayerContext ctx;
  ctx.lengths = lengths;
  if (std::find(kinds_.begin(), kinds_.end(), ReformerLayer::local) == kinds_.end()) return ctx;
  ctx.pattern = patterns::chunks(queries, keys,
                                 {.chunk = c.local_keys(),
                                  .before = c.local_back,
                                  .after = c.local_ahead,
                                  .causal = c.causal,
                                  .circle = c.whole_chunks});
  if (lengths) ctx.pattern = with_lengths(ctx.pattern, lengths, lengths);
  return ctx;
}

Tensor Reformer::embed(const Tensor& tokens, int64_t first, Pass pass) const {
  const ReformerConfig& c = config_;
  const Pass site = pass.at("embed");
  const Tensor x = token_.forward(tokens);  // [B, L, D]
  const Tensor kept =
      c.dropout_broadcast ? dropout_columns(x, c.dropout, site) : dropout(x, c.dropout, site);
  return add(kept, position_.forward(first, tokens.dim(1), c.dropout, pass.at("position")));
}

struct Reformer::ReversibleRun {
  Reversible streams;
  SegmentMemory memory;
  std::vector<Tensor> buckets;
};

Reformer::ReversibleRun Reformer::run_blocks(const Tensor& x, const LayerContext& ctx,
                                             const SegmentMemory& memory,
                                             const std::vector<Tensor>& buckets, Pass pass,
                                             int64_t blocks) const {
  const bool inverted = is_reversible(config_.memory);
  const ReversibleOptions options = inverted
                                        ? reversible_options(config_.memory, compute(), 2)
                                        : ReversibleOptions{.layers = compute(), .stored = true};
  ReversibleRun r{Reversible(enter_reversible(x, options), options), {}, {}};
  r.memory.layers.resize(blocks_.size());
  r.buckets.resize(blocks_.size());
  // Checkpoint scopes hold this until they have been recomputed.
  struct Shared {
    LayerContext ctx;
    SegmentMemory memory;
    std::vector<Tensor> buckets;
    std::vector<Choices> choices;
  };
  const auto all =
      std::make_shared<Shared>(Shared{ctx, memory, buckets, std::vector<Choices>(blocks_.size())});
  const auto step = [this, all, pass, &r](size_t i, Reversible& streams, bool once, bool again) {
    const Scope scope("layers", static_cast<long>(i));
    const Pass site = pass.at("layers").at(static_cast<int64_t>(i));
    LayerContext local = all->ctx;
    if (!all->memory.layers.empty()) local.memory = all->memory.layers[i];
    if (!all->buckets.empty() && all->buckets[i]) local.choices = {all->buckets[i]};
    std::shared_ptr<Layer> attention = blocks_[i].attention;
    if (once) attention = std::make_shared<DecidedOnce>(attention, all->choices[i]);
    Output out = streams.step(std::move(attention), local, site.at("attention"));
    streams.step(blocks_[i].ff, all->ctx, site.at("ff"));
    if (again) return;
    r.memory.layers[i] = std::move(out.memory);
    if (!out.choices.empty()) r.buckets[i] = out.choices.front();
  };
  if (inverted) {
    for (int64_t i = 0; i < blocks; ++i) step(static_cast<size_t>(i), r.streams, false, false);
    return r;
  }
  std::vector<Tensor> both{r.streams.streams().x1, r.streams.streams().x2};
  run_layers(blocks, both, config_.memory,
             [step, options](int64_t i, std::vector<Tensor>& x12, bool again) {
               Reversible streams({x12[0], x12[1]}, options);
               step(static_cast<size_t>(i), streams, true, again);
               x12 = {streams.streams().x1, streams.streams().x2};
             });
  r.streams = Reversible({both[0], both[1]}, options);
  return r;
}

Tensor Reformer::exit(ReversibleRun& r, int64_t length, Pass pass) const {
  const Halves x = r.streams.finish();
  const Tensor both = config_.mean_exit ? mean_of(x) : concat_of(x);  // [B, L, D or 2 D]
  const Tensor h = final_norm_.forward(cast(narrow(both, 1, 0, length), compute()));
  const Pass site = pass.at("final");
  return config_.dropout_broadcast ? dropout_columns(h, config_.dropout, site)
                                   : dropout(h, config_.dropout, site);
}

/// Only decoding runs it, and so there is a state: other passes go through forward().
Stack::Result Reformer::run(const Tensor& x, const LayerContext& ctx, StreamState* state,
                            Pass pass) const {
  ReversibleRun r = run_blocks(x, ctx, state->memory, state->choices, pass, config_.n_layer);
  state->memory = std::move(r.memory);
  state->choices = std::move(r.buckets);
  return {.y = exit(r, x.dim(1), pass), .losses = {}, .statistics = {}, .memory = {}};
}

Reformer::Result Reformer::forward(const ReformerInputs& in, Pass pass) const {
  const Scope scope(ReformerConfig::model_name);
  require(in.buckets.empty() || in.buckets.size() == blocks_.size(), ReformerConfig::model_name,
          "got buckets of {} layers; expected {}", in.buckets.size(), blocks_.size());
  const OwnRows own(in.tokens, pass);
  Tensor x = embedded(own.of(in.tokens), own.first(), own.pass());
  const int64_t length = in.tokens.dim(1), whole = config_.padded(length);
  Tensor lengths = in.lengths;
  require(pass.split == nullptr || whole == length, ReformerConfig::model_name,
          "{} tokens are padded to {} (whole_chunks), which processes do not split", length, whole);
  if (whole > length) {
    x = pad(x, 1, 0, whole - length);
    if (!lengths) lengths = full({x.dim(0)}, static_cast<double>(length), DType::i64, x.device());
  }
  ReversibleRun r = run_blocks(x, local_context(whole, whole, lengths), {}, in.buckets, own.pass(),
                               config_.n_layer);
  return {exit(r, own.of(in.tokens).dim(1), own.pass()), std::move(r.buckets)};
}

Stack::Result Reformer::states(const Tensor& tokens, const SegmentMemory& memory, Pass pass) const {
  require_no_memory(ReformerConfig::model_name, memory);
  const Tensor y = forward(ReformerInputs{.tokens = tokens}, pass).hidden;
  return {.y = y, .losses = {}, .statistics = {}, .memory = {}};
}

std::unique_ptr<DecodeState> Reformer::start_decoding(int64_t batch) const {
  require<NotImplemented>(config_.causal, ReformerConfig::model_name,
                          "a model that is not causal does not decode");
  return CausalDecoder::start_decoding(batch);
}

Tensor Reformer::attention_map(const Tensor& tokens, int64_t layer) const {
  const NoGrad off;
  require(layer >= 0 && layer < config_.n_layer, ReformerConfig::model_name, "layer {} of {}",
          layer, config_.n_layer);
  const Tensor x = embedded(tokens, 0, Pass{});
  const LayerContext ctx = local_context(x.dim(1), x.dim(1), {});
  const ReversibleRun r = run_blocks(x, ctx, {}, {}, Pass{}, layer);
  const Branch& f = *blocks_[static_cast<size_t>(layer)].attention;
  const Tensor p = f.layer->probabilities(f.norm.forward(r.streams.input()), ctx);
  return cast(select(p, 0, 0), DType::f32);  // [H, L, L]
}

AttentionOutline Reformer::attention_outline(int64_t layer, int64_t length) const {
  require(layer >= 0 && layer < config_.n_layer, ReformerConfig::model_name, "layer {} of {}",
          layer, config_.n_layer);
  require<NotImplemented>(lsh(layer) == nullptr, ReformerConfig::model_name,
                          "which keys layer {} sees depends on the tokens; draw a trained run",
                          layer);
  return CausalDecoder::attention_outline(layer, length);
}

}  // namespace longspan
