// Longformer's language model, Beltagy et al. 2020 (2004.05150), sec. 4: characters, causal windows
// that grow from layer to layer, dilation in two heads, and Transformer-XL's relative positions. It
// is trained in phases, each with twice the length and windows of the one before.
//
//   pairs of a head    sum_i min(floor(i / s), w) + 1
//
// The released code ignores its causal setting; this follows the paper.

#include "models/longformer/longformer_lm.h"

#include <algorithm>
#include <cmath>

#include "models/longformer/longformer.h"
#include "models/model_spec.h"

namespace longspan {
namespace {

constexpr const char* kLongformerLM = "longformer_lm";

constexpr TrainingDefaults longformer_lm_published(int64_t steps) {
  return {.length = 2048,
          .batch = 32,
          .steps = steps,
          .lr = 2.5e-4,
          .warmup = 10'000,
          .lr_floor = 1,
          .clip = 0.25,
          .weight_decay = 0.01};
}

constexpr Preset longformer_lm_presets[] = {
    // Few steps learn more with wider initialization (docs/longformer.md), except of the token
    // table, which is also the head's: with a wide one the initial model predicts each token to
    // repeat. For the same number of bytes, many small steps learn more than a few large ones.
    {"small",
     "4 layers of 128, windows of 16 to 64; trains on bytes in minutes",
     "",
     "init_std=0.05 embed_std=0.02 dilation=1,1,2,2",
     {.length = 256, .batch = 4, .steps = 2000, .lr = 2e-3}},
    {"tiny",
     "2 layers of 16, windows of 3, a dilated head, 17 tokens; for tests",
     "",
     "vocab=17 n_layer=2 n_head=2 d_model=16 d_ff=32 window=3 dilation=1,2 dilated_heads=1",
     {.length = 12, .batch = 4, .steps = 200}},
    // Windows that double and average 230 over 12 layers (table 5). The 30 layers use the same
    // windows, each for more layers, and likewise the dilations (table 12).
    {"base", "12 layers of 512, phase 1 of 5: length 2048, windows of 32 to 512", "",
     "n_layer=12 n_head=8 d_model=512 d_ff=2048 dropout=0.2 "
     "window=32,32,64,64,128,128,256,256,256,512,512,512 dilation=1,1,1,1,1,1,2,2,3,3,4,4",
     longformer_lm_published(430'000)},
    {"large", "30 layers of 512, phase 1 of 5: length 2048, windows of 32 to 512", "base",
     "n_layer=30 dropout=0.4 "
     "window=32,32,32,32,32,64,64,64,64,64,128,128,128,128,128,256,256,256,256,256,256,256,256,512,"
     "512,512,512,512,512,512 "
     "dilation=1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2,2,2,2,2,3,3,3,3,3,4,4,4,4,4",
     longformer_lm_published(350'000)},
};

std::unique_ptr<ModelSpec> longformer_lm_spec(std::string_view preset) {
  return preset_spec<LongformerLM, LongformerLMConfig>(kLongformerLM, longformer_lm_presets,
                                                       preset);
}

int64_t window_of(const LongformerLMConfig& c, int64_t i) {
  return of_layer(kLongformerLM, "window", c.window, i);
}

int64_t dilation_of(const LongformerLMConfig& c, int64_t i) {
  return of_layer(kLongformerLM, "dilation", c.dilation, i);
}

int64_t dilated_heads(const LongformerLMConfig& c) {
  return dilated_of(kLongformerLM, c.dilated_heads, c.n_head);
}

void require_consistent(const LongformerLMConfig& c) {
  check_fields(kLongformerLM, c);
  require_heads(kLongformerLM, c.d_model, c.n_head);
  for (int64_t i = 0; i < c.n_layer; ++i) {
    window_reach(kLongformerLM, "window", window_of(c, i), dilation_of(c, i));
  }
  dilated_heads(c);
}

/// The distance of the furthest key that a row of layer i attends to.
int64_t reach(const LongformerLMConfig& c, int64_t i) {
  return window_of(c, i) * (dilated_heads(c) > 0 ? dilation_of(c, i) : 1);
}

/// The windows of the heads of layer i.
AttentionPattern pattern_of(const LongformerLMConfig& c, int64_t i, int64_t queries, int64_t keys) {
  const int64_t w = window_of(c, i), s = dilation_of(c, i);
  const AttentionPattern plain = patterns::local(w + 1);
  if (s == 1 || dilated_heads(c) == 0) return plain;
  std::vector<AttentionPattern> heads(static_cast<size_t>(c.n_head), plain);
  std::fill_n(heads.begin(), dilated_heads(c), patterns::dilated(w, 0, s));
  return patterns::by_head(heads, queries, keys);
}

DecoderOptions decoder_of(const LongformerLMConfig& c) {
  require_consistent(c);
  const double usual = c.emb_scale ? 1 / std::sqrt(static_cast<double>(c.d_model)) : c.init_std;
  DecoderOptions o = decoder_options(kLongformerLM, c);
  o.token = Scheme::normal(c.embed_std > 0 ? c.embed_std : usual);
  o.classifier = Scheme::normal(c.init_std);
  o.tie_embedding = c.tie_embedding;
  o.emb_scale = c.emb_scale;
  o.dropout = c.dropout;
  return o;
}

}  // namespace

LongformerLMConfig with_windows_times(LongformerLMConfig config, int64_t factor) {
  for (int64_t& w : config.window) w = window_reach(kLongformerLM, "window", w, factor);
  return config;
}

double phase_macs(const LongformerLMConfig& config, const TrainingPhase& phase) {
  const LongformerLM model(with_windows_times(config, phase.windows), Init{.device = meta_device});
  return static_cast<double>(phase.steps) *
         static_cast<double>(forward_macs(model, phase.length, phase.batch));
}

std::vector<TrainingPhase> staged_phases(const TrainingPhase& first, int64_t phases) {
  constexpr int64_t most = 20;  // the last length is then about half a million times the first
  require(phases >= 1 && phases <= most, kLongformerLM, "got {} phases; expected 1 to {}", phases,
          most);
  std::vector<TrainingPhase> all;
  for (int64_t p = 0; p < phases; ++p) {
    const int64_t factor = int64_t{1} << p;
    all.push_back({first.windows * factor, first.length * factor,
                   std::max<int64_t>(first.batch / factor, 1),
                   std::max<int64_t>(first.steps / (p == 0 ? 1 : 3 * p), 1),
                   first.lr / static_cast<double>(factor)});
  }
  return all;
}

std::vector<TrainingPhase> direct_phases(const LongformerLMConfig& config,
                                         const TrainingPhase& first, int64_t phases) {
  std::vector<TrainingPhase> all = staged_phases(first, phases);
  TrainingPhase last = all.back();
  last.steps = 1;
  const double each = phase_macs(config, last);
  for (TrainingPhase& p : all) {
    last.steps = std::max<int64_t>(std::llround(phase_macs(config, p) / each), 1);
    last.lr = p.lr;
    p = last;
  }
  return all;
}

LongformerLM::LongformerLM(const LongformerLMConfig& config, const Init& init)
    : CausalDecoder(decoder_of(config), init), config_(config) {
  const LongformerLMConfig& c = config_;
  const Scheme weights = Scheme::normal(c.init_std);
  const Scheme out_weights = weights.scaled(1 / std::sqrt(2.0 * static_cast<double>(c.n_layer)));
  u_ = init.at("u").make({c.n_head, c.d_model / c.n_head}, weights);
  v_ = init.at("v").make({c.n_head, c.d_model / c.n_head}, weights);
  const AttentionOptions options{.d_model = c.d_model,
                                 .n_head = c.n_head,
                                 .dropout = or_default(c.dropout_attn, c.dropout),
                                 .weights = weights,
                                 .out_weights = out_weights};
  distances_ = DistanceTable(furthest(), c.d_model, init);
  std::vector<std::unique_ptr<Layer>> attention;
  for (int64_t i = 0; i < c.n_layer; ++i) {
    attention.push_back(
        std::make_unique<RelativeMultiHead>(options, reach(c, i), u_, v_, attention_init(init, i)));
  }
  stack_ = attention_stack({.ff = {.d_model = c.d_model,
                                   .d_ff = c.d_ff,
                                   .activation = Activation::gelu_erf,
                                   .dropout = c.dropout,
                                   .weights = weights,
                                   .out_weights = out_weights},
                            .dropout = c.dropout,
                            .memory = c.memory},
                           std::move(attention), init);
}

void LongformerLM::visit_more(Visitor& v) { v("u", u_)("v", v_); }

LayerContext LongformerLM::layer_context(int64_t queries, int64_t keys,
                                         int64_t /*first_key*/) const {
  LayerContext ctx;
  ctx.own.set(Distances{distances_.rows(keys)});
  for (int64_t i = 0; i < config_.n_layer; ++i) {
    ctx.layer_patterns.push_back(pattern_of(config_, i, queries, keys));
  }
  return ctx;
}

int64_t LongformerLM::furthest() const {
  int64_t most = 0;
  for (int64_t i = 0; i < config_.n_layer; ++i) most = std::max(most, reach(config_, i));
  return most;
}

int64_t LongformerLM::first_visible(int64_t position) const {
  return std::max<int64_t>(position - furthest(), 0);
}

LongformerLMConfig longformer_lm_preset(std::string_view name) {
  return preset_of<LongformerLMConfig>(kLongformerLM, longformer_lm_presets, name);
}

const ModelEntry& longformer_lm_entry() {
  static const ModelEntry entry{
      kLongformerLM,
      "causal language model with growing windows, some dilated, and relative positions",
      longformer_lm_presets, longformer_lm_spec};
  return entry;
}

}  // namespace longspan
