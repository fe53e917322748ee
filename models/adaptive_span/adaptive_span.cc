// Adaptive attention span, Sukhbaatar et al. 2019 (1905.07799): each head learns how many earlier
// tokens it sees, and pays for them.
//
//   pairs of a head    sum_i min(M + i, s),  s its span
//
// A dynamic span depends on the token too. It is known only once it is computed, so that a head
// computes all S keys, except for blocks that its rows do not see.
//
// The last token of a segment depends on the sum over layers of the largest span of tokens before
// it, however long segments are. The numbers of the paper come from the authors' code, whose mask
// is 1 up to distance z + 1, and which divides scores by sqrt(d).

#include "models/adaptive_span/adaptive_span.h"

#include <algorithm>
#include <cmath>

#include "autograd/mode.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kAdaptiveSpan = "adaptive_span";

constexpr TrainingDefaults adaptive_span_published(int64_t length, int64_t steps,
                                                   int64_t warmup = 32'000) {
  return {.length = length,
          .batch = 64,
          .steps = steps,
          .lr = 0.07,
          .warmup = warmup,
          .lr_floor = 1,
          .clip = 0,
          .step_clip = 0.03};
}

constexpr Preset adaptive_span_presets[] = {
    {"small",
     "4 layers of 128, spans up to 512; trains on bytes in minutes",
     "",
     "span_penalty=2e-6 head_std=0.02",
     {}},
    {"tiny",
     "2 layers of 8, spans up to 6, 11 tokens; for tests",
     "",
     "vocab=11 n_layer=2 n_head=2 d_model=8 d_ff=16 span_max=6 span_ramp=2 span_penalty=1e-3 "
     "trim=1",
     {.length = 4, .batch = 2, .steps = 200}},
    {"enwik8_8", "8 layers of 256, spans up to 1024, for one GPU", "",
     "vocab=204 n_layer=8 n_head=4 d_model=256 d_ff=1024 span_max=1024 span_penalty=2e-6",
     adaptive_span_published(256, 150'000, 8000)},
    {"enwik8_12", "12 layers of 512, spans up to 8192", "",
     "vocab=204 n_layer=12 n_head=8 d_model=512 d_ff=2048 span_max=8192 span_penalty=5e-7 "
     "dropout=0.3",
     adaptive_span_published(512, 600'000)},
    {"enwik8_24", "24 layers of 768, spans up to 8192", "enwik8_12",
     "n_layer=24 d_model=768 d_ff=4096 dropout=0.4", adaptive_span_published(512, 170'000)},
    {"text8_12", "12 layers of 512, spans up to 8192, 27 characters", "enwik8_12", "vocab=27",
     adaptive_span_published(512, 900'000)},
    {"text8_24", "24 layers of 768, spans up to 8192, 27 characters", "enwik8_24", "vocab=27",
     adaptive_span_published(512, 270'000)},
    {"text8_study", "12 layers of 512, spans up to 4096: the study of spans", "text8_12",
     "span_max=4096 span_penalty=2e-6", adaptive_span_published(512, 600'000)},
    {"enwik8_all_attention_18", "18 layers of 512 with 1024 persistent vectors, spans up to 8192",
     "enwik8_12", "n_layer=18 persistent=1024 span_penalty=1e-7",
     adaptive_span_published(512, 600'000)},
    {"enwik8_all_attention_36", "36 layers of 512 with 2048 persistent vectors, spans up to 8192",
     "enwik8_all_attention_18", "n_layer=36 persistent=2048 dropout=0.4",
     adaptive_span_published(512, 600'000)},
};

std::unique_ptr<ModelSpec> adaptive_span_spec(std::string_view preset) {
  return preset_spec<AdaptiveSpan, AdaptiveSpanConfig>(kAdaptiveSpan, adaptive_span_presets,
                                                       preset);
}

void require_consistent(const AdaptiveSpanConfig& c) {
  require(c.span_init >= 0 && c.span_init <= 1, kAdaptiveSpan,
          "span_init is {}; expected 0 to 1, a share of span_max", c.span_init);
  check_fields(kAdaptiveSpan, c);
  if (c.d_head == 0) require_heads(kAdaptiveSpan, c.d_model, c.n_head);
  require(std::isfinite(c.span_ramp) && c.span_ramp >= 1, kAdaptiveSpan,
          "span_ramp is {}; expected 1 or more", c.span_ramp);
  require(!c.dynamic || c.span_init < 1, kAdaptiveSpan,
          "span_init is 1; dynamic spans are below span_max, so expected less");
  require(std::isfinite(c.pre_div) && c.pre_div > 0, kAdaptiveSpan,
          "pre_div is {}; expected more than 0", c.pre_div);
}

DecoderOptions decoder_of(const AdaptiveSpanConfig& c) {
  require_consistent(c);
  DecoderOptions o = decoder_options(kAdaptiveSpan, c);
  o.token = Scheme::normal(1);
  o.classifier = c.head_std > 0 ? Scheme::normal(c.head_std) : uniform_of(c.d_model);
  o.bias = c.head_std > 0 ? Scheme::zeros() : uniform_of(c.d_model);
  o.tie_embedding = c.tie_embedding;
  o.head_bias = c.head_bias;
  o.emb_scale = c.emb_scale;
  o.phantom_zero_memory = c.phantom_zero_memory;
  return o;
}

}  // namespace

AdaptiveSpan::AdaptiveSpan(const AdaptiveSpanConfig& config, const Init& init)
    : CausalDecoder(decoder_of(config), init), config_(config) {
  const AdaptiveSpanConfig& c = config_;
  const int64_t width = head_width(c);
  positions_ = init.at("positions").make({c.span_max, width}, Scheme::normal(1));
  const AttentionOptions options{.d_model = c.d_model,
                                 .n_head = c.n_head,
                                 .d_head = width,
                                 .dropout = c.dropout,
                                 .weights = uniform_of(c.d_model),
                                 .out_weights = uniform_of(c.n_head * width)};
  const SpanOptions spans{.most = c.span_max,
                          .ramp = c.span_ramp,
                          .offset = c.span_offset,
                          .start = c.span_init,
                          .penalty = c.span_penalty,
                          .scope = c.span_scope,
                          .dynamic = c.dynamic,
                          .pre_div = c.pre_div,
                          .trim = c.trim,
                          .persistent = c.persistent};
  std::vector<std::unique_ptr<Layer>> attention;
  for (int64_t i = 0; i < c.n_layer; ++i) {
    auto layer =
        std::make_unique<SpanAttention>(options, spans, positions_, attention_init(init, i));
    attention_.push_back(layer.get());
    attention.push_back(std::move(layer));
  }
  stack_ = attention_stack({.ff = {.d_model = c.d_model,
                                   .d_ff = c.persistent > 0 ? 0 : c.d_ff,
                                   .activation = Activation::relu,
                                   .dropout = c.dropout,
                                   .weights = uniform_of(c.d_model),
                                   .out_weights = uniform_of(c.d_ff),
                                   .biases = uniform_of(c.d_model),
                                   .out_biases = uniform_of(c.d_ff)},
                            .norm = c.norm,
                            .norm_eps = c.norm_eps,
                            .final_norm = c.final_norm,
                            .memory = c.memory},
                           std::move(attention), init);
}

/// Layers make their own patterns. The host reads all spans here, once for all layers.
LayerContext AdaptiveSpan::layer_context(int64_t /*queries*/, int64_t /*keys*/,
                                         int64_t /*first_key*/) const {
  if (config_.trim > 0) SpanAttention::read(attention_);
  return {};
}

int64_t AdaptiveSpan::first_visible(int64_t position) const {
  return std::max<int64_t>(position - config_.span_max, 0);
}

AttentionOutline AdaptiveSpan::attention_outline(int64_t layer, int64_t length) const {
  require(layer >= 0 && layer < layers(), "attention outline", "layer {} of {}", layer, layers());
  const SpanAttention& attention = *attention_[static_cast<size_t>(layer)];
  LayerContext ctx;
  ctx.pattern = SpanAttention::pattern(attention.visible(), length, length);
  return outline_of(ctx, layer, config_.n_head, length, length);
}

Tensor AdaptiveSpan::dynamic_spans(const Tensor& tokens) const {
  require<NotImplemented>(config_.dynamic, kAdaptiveSpan,
                          "spans do not depend on tokens; spans() returns them");
  if (tokens.rank() != 2 || tokens.dim(0) != 1)
    fail_with<ShapeError>(kAdaptiveSpan, "tokens must be [1, L]", {{"tokens", tokens}});
  const NoGrad off;
  const Tensor x = embedded(tokens, 0, Pass{});
  std::vector<Tensor> all;
  for (int64_t i = 0; i < layers(); ++i) {
    LayerContext ctx = layer_context(x.dim(1), x.dim(1), 0);
    const Tensor rows = stack_.attention_input(i, x, ctx);
    const Tensor z = attention_[static_cast<size_t>(i)]->token_spans(rows);  // [1, H or 1, L]
    all.push_back(expand(select(z, 0, 0), {config_.n_head, x.dim(1)}));
  }
  return stack(all, 0);
}

Tensor AdaptiveSpan::seen_spans(const Tensor& tokens) const {
  const auto most = static_cast<double>(config_.span_max);
  if (config_.dynamic) {
    const double beyond = config_.span_ramp + config_.span_offset - 1;
    return cast(clamp(add(dynamic_spans(tokens), beyond), 1, most), DType::f32);
  }
  std::vector<float> all;
  for (const auto& heads : spans()) {
    for (const int64_t n : heads)
      all.insert(all.end(), static_cast<size_t>(tokens.dim(1)), static_cast<float>(n));
  }
  return Tensor::from(all, {layers(), config_.n_head, tokens.dim(1)});
}

std::vector<std::vector<int64_t>> AdaptiveSpan::spans() const {
  require<NotImplemented>(!config_.dynamic, kAdaptiveSpan,
                          "spans depend on tokens; dynamic_spans() returns those of a text");
  SpanAttention::read(attention_);
  std::vector<std::vector<int64_t>> all;
  for (const SpanAttention* layer : attention_) all.push_back(layer->visible());
  return all;
}

std::vector<std::vector<int64_t>> AdaptiveSpan::computed_spans() const {
  std::vector<std::vector<int64_t>> all;
  for (const SpanAttention* layer : attention_) all.push_back(layer->computed());
  return all;
}

namespace {

double mean_of(const std::vector<std::vector<int64_t>>& layers) {
  double sum = 0, count = 0;
  for (const auto& heads : layers) {
    for (const int64_t n : heads) sum += static_cast<double>(n);
    count += static_cast<double>(heads.size());
  }
  return sum / count;
}

}  // namespace

double AdaptiveSpan::average_span() const { return mean_of(spans()); }

std::string AdaptiveSpan::remark(int64_t /*length*/) const {
  const AdaptiveSpanConfig& c = config_;
  const double of_all = token_macs(c, static_cast<double>(c.span_max));
  if (c.dynamic) {
    return fmt::format(
        "spans: each token has its own, {} at most; a token takes {:.3g} multiply-accumulates in "
        "the layers, all {} keys counted",
        c.span_max, of_all, c.span_max);
  }
  int64_t longest = 0;
  for (const auto& heads : spans()) {
    longest = std::max(longest, *std::max_element(heads.begin(), heads.end()));
  }
  return fmt::format(
      "spans: {:.1f} tokens on average, {} at most, of {}; a token takes {:.3g} multiply-"
      "accumulates in the layers, {:.3g} if every head computed all {}",
      average_span(), longest, c.span_max, token_macs(c, mean_of(computed_spans())), of_all,
      c.span_max);
}

double token_macs(const AdaptiveSpanConfig& c, double average_span) {
  const auto d = static_cast<double>(c.d_model),
             wide = static_cast<double>(c.n_head * head_width(c));
  const double after = c.persistent > 0 ? 2 * static_cast<double>(c.persistent) * wide
                                        : 2 * d * static_cast<double>(c.d_ff);
  return static_cast<double>(c.n_layer) * (4 * d * wide + after + 2 * average_span * wide);
}

AdaptiveSpanConfig adaptive_span_preset(std::string_view name) {
  return preset_of<AdaptiveSpanConfig>(kAdaptiveSpan, adaptive_span_presets, name);
}

const ModelEntry& adaptive_span_entry() {
  static const ModelEntry entry{
      kAdaptiveSpan, "causal language model whose heads learn how far back they see, with a memory",
      adaptive_span_presets, adaptive_span_spec};
  return entry;
}

}  // namespace longspan
