// Longformer, Beltagy et al. 2020 (2004.05150): RoBERTa whose tokens attend to a window and to a
// few global tokens. The task chooses the global tokens; they attend to all tokens and all tokens
// attend to them (sec. 3.1).
//
//   Attn(i) = softmax over {j: |i - j| <= w} and G of (W_q x_i) . (W_k x_j) / sqrt(d)
//   Attn(g) = softmax over all j of (W_qg x_g) . (W_kg x_j) / sqrt(d),  g in G
//
// A layer costs at most L (2 w + 1) + 2 L |G| pairs, and stores nothing of size L x w.

#include "models/longformer/longformer.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "autograd/mode.h"
#include "models/longformer/global_tokens.h"
#include "models/model_spec.h"
#include "ops/attention/block_attention.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/patterns/window.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kLongformer = "longformer";

/// Returns the global tokens of a batch; empty if there are none.
const GlobalTokens& globals_of(const LayerContext& ctx) {
  static const GlobalTokens none;
  const auto* own = ctx.own.find<GlobalTokens>();
  return own != nullptr ? *own : none;
}

AttentionPattern without_hidden(AttentionPattern pattern, const LayerContext& ctx) {
  const auto* hidden = ctx.own.find<HiddenTokens>();
  return hidden != nullptr ? with_hidden_keys(std::move(pattern), hidden->rows) : pattern;
}

/// Sec. 5: 2^18 tokens a batch. The paper's decay is a polynomial of power 3.
constexpr TrainingDefaults longformer_published{.length = 4096,
                                                .batch = 64,
                                                .steps = 65'000,
                                                .lr = 3e-5,
                                                .warmup = 500,
                                                .lr_floor = 0,
                                                .clip = 5,
                                                .weight_decay = 0.01};
/// Table 14: 15 and 5 epochs; the paper's number of steps counts questions. Rows of triviaqa are
/// pairs of a question and a document, so there are more of them.
constexpr TrainingDefaults longformer_of_task(int64_t steps, int64_t warmup) {
  return {.length = 4096,
          .batch = 32,
          .steps = steps,
          .lr = 3e-5,
          .warmup = warmup,
          .lr_floor = 0,
          .weight_decay = 0.01};
}

constexpr Preset longformer_presets[] = {
    // Few steps learn more without dropout and with wider initialization; docs/longformer.md.
    {"small",
     "4 layers of 128, length 1024, windows of 32 a side; masked bytes in minutes",
     "",
     "norm_eps=1e-5 n_max=1024 dropout=0 init_std=0.05",
     {.length = 1024, .batch = 4, .steps = 500, .lr = 2e-3, .warmup = 50, .clip = 1}},
    {"tiny",
     "2 layers of 16, windows of 3 a side, 18 tokens; for tests",
     "",
     "norm_eps=1e-5 vocab=18 n_layer=2 n_head=2 d_model=16 d_ff=32 n_max=64 one_sided_window=3 "
     "dropout=0",
     {.length = 17, .batch = 4, .steps = 200}},
    {"base", "12 layers of 768, length 4096, windows of 256 a side (Longformer base)", "",
     "norm_eps=1e-5 vocab=50265 n_layer=12 n_head=12 d_model=768 d_ff=3072 n_max=4096 "
     "position_offset=2 token_types=1 mask_id=50264 one_sided_window=256",
     longformer_published},
    {"large", "24 layers of 1024, length 4096, windows of 256 a side (Longformer large)", "base",
     "n_layer=24 n_head=16 d_model=1024 d_ff=4096", longformer_published},
    // Four more tokens mark questions and candidates.
    {"wikihop", "base that chooses one of some candidates, with the paper's steps and rates",
     "base", "vocab=50269 mlm_head=false choice_head=true", longformer_of_task(20'500, 200)},
    {"triviaqa", "base that finds answers in documents, with the paper's steps and rates", "base",
     "mlm_head=false span_head=true", longformer_of_task(9'670, 1000)},
};

std::unique_ptr<ModelSpec> longformer_spec(std::string_view preset) {
  return preset_spec<Longformer, LongformerConfig>(kLongformer, longformer_presets, preset);
}

std::vector<std::unique_ptr<Layer>> attention_layers(const LongformerConfig& c,
                                                     const std::function<Init(int64_t)>& init) {
  check_fields(kLongformer, c);
  std::vector<std::unique_ptr<Layer>> layers;
  for (int64_t i = 0; i < c.n_layer; ++i) {
    layers.push_back(
        std::make_unique<LongformerAttention>(longformer_attention(kLongformer, c, i), init(i)));
  }
  return layers;
}

/// The dilation of each head; one entry if all heads have dilation 1.
std::vector<int64_t> dilations(const LongformerAttentionOptions& o) {
  if (o.dilation == 1) return {1};
  std::vector<int64_t> s(static_cast<size_t>(o.n_head), 1);
  std::fill_n(s.begin(), o.dilated_heads, o.dilation);
  return s;
}

}  // namespace

LongformerAttention::LongformerAttention(const LongformerAttentionOptions& options,
                                         const Init& init)
    : options_(options) {
  const int64_t d = options.d_model;
  for (const auto& [linear, label] : {std::pair{&q_, "q"},
                                      {&k_, "k"},
                                      {&v_, "v"},
                                      {&out_, "out"},
                                      {&q_global_, "q_global"},
                                      {&k_global_, "k_global"},
                                      {&v_global_, "v_global"}}) {
    *linear = Linear(d, d, true, init.at(label), options.weights);
  }
}

void LongformerAttention::visit(Visitor& v) {
  v("q", q_)("k", k_)("v", v_)("out", out_);
  v("q_global", q_global_)("k_global", k_global_)("v_global", v_global_);
}

Tensor LongformerAttention::split_heads(const Tensor& x) const {
  return transpose(unflatten(x, -1, x.dim(-1) / width(), width()), 1, 2);
}

Tensor LongformerAttention::merge(const Tensor& heads) const {
  return flatten(transpose(heads, 1, 2), 2, 3);
}

Tensor LongformerAttention::sliding(const Projected& p, const LayerContext& ctx,
                                    const Dropout& dropout) const {
  const LongformerAttentionOptions& o = options_;
  AttentionPattern pattern =
      with_lengths(patterns::window_and_globals(p.k.dim(2), o.one_sided_window, dilations(o),
                                                globals_of(ctx).positions, p.x.device()),
                   ctx.lengths, ctx.lengths);
  pattern = p.share.of(without_hidden(std::move(pattern), ctx));
  std::vector<Keys> keys{{p.k, p.v}};
  if (const GlobalTokens& globals = globals_of(ctx)) {
    const Tensor rows = unsqueeze(globals.rows, 1);                      // [B, 1, G]
    keys.push_back({permute_rows(p.k, rows), permute_rows(p.v, rows)});  // [B, H, G, d]
  }
  return block_attention(p.q, keys, pattern, {}, dropout).out;
}

/// Rows beyond a sample's own number of global tokens are 0.
Tensor LongformerAttention::global(const Tensor& x, const Keys& of, const LayerContext& ctx,
                                   const Dropout& dropout, const HeadShare& share) const {
  const GlobalTokens& globals = globals_of(ctx);
  const Tensor rows = share.rows_at(x, globals.rows);  // [B, G, D]
  const AttentionPattern pattern =
      without_hidden(with_lengths(patterns::dense(), globals.count, ctx.lengths), ctx);
  const Tensor q = split_heads(share.of(q_global_, width()).forward(rows));
  return block_attention(q, of.k, of.v, pattern, {}, dropout).out;
}

Output LongformerAttention::forward(const Tensor& x, const LayerContext& ctx, Pass pass) const {
  const float p = options_.dropout;
  const HeadShare share(options_.n_head, pass);
  const auto own = [&](const Tensor& y) { return share.to_heads(split_heads(y)); };
  Tensor heads;  // [B, H, L, d]
  {
    const auto [q, k, v] = forward_each(x, q_, k_, v_);
    const Projected of{own(q), own(k), own(v), x, share};
    heads = sliding(of, ctx, {p, share.site(pass.at("attn"))});
  }
  const GlobalTokens& globals = globals_of(ctx);
  if (!globals) return out_.forward(merge(share.to_rows(heads)));
  const auto [k_all, v_all] = forward_each(x, k_global_, v_global_);
  const Tensor rows =
      global(x, {own(k_all), own(v_all)}, ctx, {p, share.site(pass.at("attn_global"))}, share);
  const int64_t length = heads.dim(2);
  if (share.divided()) {
    heads = add(heads, scatter_rows(rows, unsqueeze(globals.rows, 1), length));  // 0 in these rows
    return out_.forward(merge(share.to_rows(heads)));
  }
  return out_.forward(add(merge(heads), scatter_rows(merge(rows), globals.rows, length)));
}

Tensor LongformerAttention::probabilities(const Tensor& x, const LayerContext& ctx) const {
  const NoGrad off;
  const auto [rows_q, rows_k] = forward_each(x, q_, k_);
  const Tensor q = split_heads(rows_q), k = split_heads(rows_k);
  const GlobalTokens& globals = globals_of(ctx);
  const Tensor k_all = globals ? split_heads(k_global_.forward(x)) : Tensor{};
  return attention_weights(split_heads(x), [&](const Tensor& unit) {
    const Tensor y = sliding({q, k, unit, x}, ctx, {});
    if (!globals) return y;
    const Tensor to = unsqueeze(globals.rows, 1);  // [B, 1, G]
    return add(y, scatter_rows(global(x, {k_all, unit}, ctx, {}), to, x.dim(1)));
  });
}

int64_t of_layer(std::string_view model, std::string_view option,
                 const std::vector<int64_t>& values, int64_t i) {
  require(!values.empty(), model, "{} is empty; expected an entry for each layer, or one for all",
          option);
  return values[std::min(static_cast<size_t>(i), values.size() - 1)];
}

bool has_dilation(const std::vector<int64_t>& dilation, int64_t dilated_heads) {
  return dilated_heads != 0 && dilation != std::vector<int64_t>(dilation.size(), 1);
}

int64_t dilated_of(std::string_view model, int64_t dilated_heads, int64_t heads) {
  require(dilated_heads >= -1 && dilated_heads <= heads, model,
          "dilated_heads is {}; expected 0 to n_head = {}, or -1: two of them", dilated_heads,
          heads);
  return dilated_heads >= 0 ? dilated_heads : std::min<int64_t>(2, heads);
}

int64_t window_reach(std::string_view model, std::string_view option, int64_t w, int64_t s) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  require(s >= 1 && s <= most, model, "dilation is {}; expected 1 to {}", s, most);
  require(w >= 1 && w <= most / s, model, "{} is {}; expected 1 to {} with a dilation of {}",
          option, w, most / s, s);
  return w * s;
}

Longformer::Longformer(const LongformerConfig& config, const Init& init)
    : Encoder(kLongformer, config,
              attention_layers(config, [&](int64_t i) { return attention_init(init, i); }), init),
      config_(config) {}

LayerContext Longformer::layer_context(const EncoderInputs& in, Pass /*pass*/) const {
  const int64_t batch = in.tokens.dim(0), length = in.tokens.dim(1);
  LayerContext seen;
  seen.lengths = in.lengths;
  if (const Tensor hidden = hidden_tokens(kLongformer, in)) seen.own.set(HiddenTokens{hidden});
  if (in.global) {
    if (in.global.rank() != 2 || in.global.dim(0) != batch || in.global.dim(1) != length) {
      fail_with<ShapeError>(kLongformer, "global must be [B, L] as the tokens",
                            {{"tokens", in.tokens}, {"global", in.global}});
    }
    seen.own.set(global_tokens(in.global, in.lengths, device()));
    return seen;
  }
  const bool asks = config_.classes > 0 || config_.span_head || config_.choice_head;
  require(config_.globals != GlobalDefault::by_task || !asks, kLongformer,
          "which tokens are global? set EncoderInputs::global (for classes the first token, for "
          "answers those of the question), or the option globals to first or none");
  if (config_.globals == GlobalDefault::first) {
    seen.own.set(global_tokens(global_mask(batch, length, {0}, {}), in.lengths, device()));
  }
  if (config_.globals == GlobalDefault::question || config_.globals == GlobalDefault::candidate) {
    seen.own.set(global_tokens(global_by_separator(in.tokens), in.lengths, device()));
  }
  return seen;
}

Tensor Longformer::global_by_separator(const Tensor& tokens) const {
  const int64_t batch = tokens.dim(0), length = tokens.dim(1);
  const std::vector<int64_t> ends = first_places(tokens, config_.separator_id);
  std::vector<uint8_t> mask(static_cast<size_t>(batch * length), 0);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t end = ends[static_cast<size_t>(b)];
    require(end >= 0, kLongformer,
            "sample {} has no token separator_id = {}, which tells what is global; set "
            "EncoderInputs::global, or the option globals to first or none",
            b, config_.separator_id);
    const bool question = config_.globals == GlobalDefault::question;
    const auto row = mask.begin() + b * length;
    std::fill(row + (question ? 0 : std::min(end + 2, length)), row + (question ? end : length), 1);
  }
  return Tensor::from(mask, {batch, length});
}

AttentionOutline longformer_outline(const LongformerAttentionOptions& o, int64_t length,
                                    bool first_global) {
  std::vector<std::vector<int64_t>> globals;
  if (first_global) globals = {{0}};
  const auto g = static_cast<int64_t>(globals.size());  // one at most
  AttentionOutline outline{.rows = length, .columns = length, .heads = o.n_head, .calls = {}};
  outline.calls.push_back(
      {.pattern = patterns::window_and_globals(length, o.one_sided_window, dilations(o), globals),
       .queries = length,
       .keys = length,
       .side_keys = g,
       .side_at = std::vector<int32_t>(static_cast<size_t>(g), 0)});
  if (g > 0) {
    outline.calls.push_back(
        {.pattern = patterns::dense(), .queries = 1, .keys = length, .query_at = {0}});
  }
  return outline;
}

Tensor Longformer::attention_map(const Tensor& tokens, int64_t layer) const {
  EncoderInputs in{.tokens = tokens};
  if (config_.globals == GlobalDefault::by_task) {
    in.global = zeros({tokens.dim(0), tokens.dim(1)}, DType::u8);
  }
  return attention_map_of(in, layer);
}

AttentionOutline Longformer::attention_outline(int64_t layer, int64_t length) const {
  require(layer >= 0 && layer < config_.n_layer, kLongformer, "layer {} of {}", layer,
          config_.n_layer);
  return longformer_outline(longformer_attention(kLongformer, config_, layer), length,
                            config_.globals == GlobalDefault::first);
}

LongformerConfig longformer_preset(std::string_view name) {
  return preset_of<LongformerConfig>(kLongformer, longformer_presets, name);
}

const ModelEntry& longformer_entry() {
  static const ModelEntry entry{kLongformer,
                                "encoder whose tokens see a window and some global tokens",
                                longformer_presets, longformer_spec};
  return entry;
}

}  // namespace longspan
