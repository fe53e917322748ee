// LED, Beltagy et al. 2020 (2004.05150), sec. 7: sequence to sequence over long documents. The
// encoder's self-attention is Longformer's; the decoder attends to the whole output of the encoder
// and to all of its own earlier tokens.

#include "models/longformer/led.h"

#include "models/longformer/global_tokens.h"
#include "models/model_spec.h"

namespace longspan {
namespace {

constexpr const char* kLed = "led";

constexpr TrainingDefaults led_published{.length = 16'384,
                                         .batch = 16,
                                         .steps = 60'000,
                                         .lr = 3e-5,
                                         .warmup = 1'000,
                                         .lr_floor = 0,
                                         .clip = 1};

constexpr Preset led_presets[] = {
    // Few steps learn more without dropout and with wider initialization (docs/longformer.md). The
    // token table is also the head's: a wide one favours some tokens initially.
    {"small",
     "2 + 2 layers of 128, sources of 512, windows of 32 a side; copies marked spans",
     "",
     "dropout=0 init_std=0.05 embed_std=0.02",
     {.length = 512, .batch = 8, .steps = 600, .lr = 1e-3, .clip = 1}},
    {"summaries",
     "2 + 2 layers of 128, sources of 1024, summaries of 1280 out of 4096 tokens",
     "",
     "dropout=0 init_std=0.05 vocab=4096 n_max=1024 n_max_target=1280",
     {.length = 512, .batch = 4, .steps = 1000, .lr = 1e-3, .clip = 1}},
    {"tiny",
     "2 + 2 layers of 16, windows of 3 a side, 23 tokens; for tests",
     "",
     "vocab=23 n_head=2 d_model=16 d_ff=32 n_max=48 n_max_target=24 one_sided_window=3 dropout=0",
     {.length = 29, .batch = 4, .steps = 200}},
    {"base", "6 + 6 layers of 768, sources of 16384, windows of 512 a side (LED base)", "",
     "vocab=50265 n_layer=6 n_head=12 d_model=768 d_ff=3072 n_max=16384 n_max_target=1024 "
     "one_sided_window=512",
     led_published},
    {"large", "12 + 12 layers of 1024, sources of 16384, windows of 512 a side (LED large)", "base",
     "n_layer=12 n_head=16 d_model=1024 d_ff=4096", led_published},
};

std::unique_ptr<ModelSpec> led_spec(std::string_view preset) {
  return preset_spec<Led, LedConfig>(kLed, led_presets, preset);
}

std::vector<std::unique_ptr<Layer>> encoder_attention(const LedConfig& c, const Init& init) {
  check_fields(kLed, c);
  require_heads(kLed, c.d_model, c.n_head);
  std::vector<std::unique_ptr<Layer>> layers;
  for (int64_t i = 0; i < c.n_layer; ++i) {
    layers.push_back(std::make_unique<LongformerAttention>(
        longformer_attention(kLed, c, i), init.at("encoder").at("layers").at(i).at("attention")));
  }
  return layers;
}

TransformerConfig shell_of(const LedConfig& c) {
  TransformerConfig t = bart_for(c, c.n_max_target);
  t.source_n_max = c.n_max;
  return t;
}

}  // namespace

TransformerConfig bart_for(const LedConfig& c, int64_t n_max) {
  TransformerConfig t = transformer_preset("bart");
  t.vocab = c.vocab;
  t.n_layer = c.n_layer;
  t.n_head = c.n_head;
  t.d_model = c.d_model;
  t.d_ff = c.d_ff;
  t.target_n_layer = c.target_n_layer;
  t.target_n_head = c.target_n_head;
  t.target_d_ff = c.target_d_ff;
  t.padding_id = c.padding_id;
  t.constant_bias = c.constant_bias;
  t.tie_embedding = c.tie_embedding;
  t.source_vocab = c.tie_embedding ? 0 : c.vocab;
  t.n_max = n_max;
  t.position_offset = c.position_offset;
  t.norm_eps = c.norm_eps;
  t.activation = c.activation;
  t.dropout = c.dropout;
  t.dropout_attn = c.dropout_attn;
  t.dropout_ffn_act = c.dropout_ffn_act;
  t.label_smoothing = c.label_smoothing;
  t.init_std = c.init_std;
  t.embed_std = c.embed_std;
  t.precision = c.precision;
  t.token_head = c.token_head;
  t.memory = c.memory;
  return t;
}

Led::Led(const LedConfig& config, const Init& init)
    : EncoderDecoder(kLed, shell_of(config), init, encoder_attention(config, init)),
      config_(config) {}

LayerContext Led::layer_context(const SequenceInputs& in, Pass /*pass*/) const {
  const int64_t batch = in.source.dim(0), length = in.source.dim(1);
  LayerContext ctx;
  ctx.lengths = in.lengths;
  if (const Tensor hidden = hidden_tokens(in)) ctx.own.set(HiddenTokens{hidden});
  if (in.global) {
    if (in.global.shape() != in.source.shape()) {
      fail_with<ShapeError>(kLed, "global must be [B, S] as the source",
                            {{"source", in.source}, {"global", in.global}});
    }
    ctx.own.set(global_tokens(in.global, in.lengths, device()));
  } else if (config_.globals != GlobalDefault::none) {
    ctx.own.set(global_tokens(global_mask(batch, length, {0}, {}), in.lengths, device()));
  }
  return ctx;
}

AttentionOutline Led::attention_outline(int64_t layer, int64_t length) const {
  require(layer >= 0 && layer < config_.n_layer, kLed, "layer {} of {}", layer, config_.n_layer);
  return longformer_outline(longformer_attention(kLed, config_, layer), length,
                            config_.globals != GlobalDefault::none);
}

LedConfig led_preset(std::string_view name) {
  return preset_of<LedConfig>(kLed, led_presets, name);
}

const ModelEntry& led_entry() {
  static const ModelEntry entry{
      kLed, "encoder-decoder over long sources: Longformer's encoder, BART's decoder", led_presets,
      led_spec};
  return entry;
}

}  // namespace longspan
