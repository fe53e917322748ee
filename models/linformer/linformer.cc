// Linformer, Wang et al. 2020 (2006.04768): softmax attention is close to a matrix of low rank, so
// keys and values are projected along the sequence, from L rows to r.
//
//   head_i = softmax(Q_i (E_i K_i)^T / sqrt(d)) (F_i V_i)      E_i, F_i [r, n]
//
// The released code (fairseq's examples/linformer) differs from the paper: it projects the input of
// the layer before it becomes keys and values, which this file follows (projection_order = input),
// and it ignores the padding, which here changes no result.

#include "models/linformer/linformer.h"

#include <algorithm>

#include "models/model_spec.h"

namespace longspan {
namespace {

constexpr const char* kLinformer = "linformer";

/// RoBERTa's recipe with the paper's 250,000 updates (sec. 5.1).
constexpr TrainingDefaults linformer_of_length(int64_t length) {
  return {.length = length,
          .batch = 131'072 / length,
          .steps = 250'000,
          .lr = 6e-4,
          .warmup = 10'000,
          .lr_floor = 0,
          .clip = 1,
          .beta2 = 0.98,
          .weight_decay = 0.01};
}

constexpr Preset linformer_presets[] = {
    // Differs from the paper because it learns more in few steps; docs/linformer.md.
    {"small",
     "4 layers of 128, length 512 projected to 64; masked bytes in minutes",
     "",
     "dropout=0 init_std=0.05 position_init=sinusoid",
     {.length = 512, .batch = 4, .steps = 1000, .lr = 2e-3, .warmup = 100, .clip = 1}},
    {"tiny",
     "2 layers of 16, length 24 projected to 6, 23 tokens; for tests",
     "",
     "vocab=23 n_layer=2 n_head=2 d_model=16 d_ff=32 n_max=24 r=6 dropout=0",
     {.length = 24, .batch = 4, .steps = 200}},
    {"base512", "12 layers of 768, length 512 projected to 128 (RoBERTa base)", "",
     "norm_eps=1e-5 vocab=50265 n_layer=12 n_head=12 d_model=768 d_ff=3072 n_max=512 "
     "position_offset=2 token_types=1 mask_id=50264 r=128",
     linformer_of_length(512)},
    {"base512_256", "the same projected to 256", "base512", "r=256", linformer_of_length(512)},
    {"base512_layerwise", "projected to 256 by one matrix for all layers", "base512_256",
     "sharing=layerwise", linformer_of_length(512)},
    {"base1024", "12 layers of 768, length 1024 projected to 256", "base512", "n_max=1024 r=256",
     linformer_of_length(1024)},
};

std::unique_ptr<ModelSpec> linformer_spec(std::string_view preset) {
  return preset_spec<Linformer, LinformerConfig>(kLinformer, linformer_presets, preset);
}

void require_consistent(const LinformerConfig& c) {
  require(!c.causal, kLinformer,
          "causal is true; expected false: a projected row mixes all positions, so that a mask "
          "cannot hide later ones");
  check_fields(kLinformer, c);
  require_heads(kLinformer, c.d_model, c.n_head);
  require(!c.r.empty(), kLinformer,
          "r is empty; expected a projected length, or one for each layer");
  for (const int64_t r : c.r) {
    require(r >= 1 && r <= c.n_max, kLinformer, "r is {}; expected 1 to n_max = {}", r, c.n_max);
    require(c.sharing != ProjectionSharing::layerwise || r == c.r.front(), kLinformer,
            "r is {} and {}; sharing = layerwise needs one r for all layers", c.r.front(), r);
  }
}

std::vector<std::unique_ptr<Layer>> attention_layers(const LinformerConfig& c, const Init& init) {
  require_consistent(c);
  const Scheme weights = Scheme::truncated_normal(c.init_std);
  const AttentionOptions heads{.d_model = c.d_model,
                               .n_head = c.n_head,
                               .qkv_bias = c.qkv_bias,
                               .out_bias = c.out_bias,
                               .dropout = or_default(c.dropout_attn, c.dropout),
                               .weights = weights,
                               .out_weights = weights};
  std::vector<std::unique_ptr<Layer>> layers;
  SequenceProjection shared;
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const bool known = c.sharing == ProjectionSharing::layerwise && i > 0;
    auto layer = std::make_unique<LinformerAttention>(
        heads, linformer_options(c, i), known ? &shared : nullptr, attention_init(init, i));
    shared = layer->key_projection();
    layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace

LinformerOptions linformer_options(const LinformerConfig& c, int64_t layer) {
  require_consistent(c);
  return {.projection = c.projection,
          .sharing = c.sharing,
          .order = c.projection_order,
          .start = c.projection_start,
          .frozen = c.freeze_projection,
          .n_max = c.n_max,
          .r = c.r[std::min(static_cast<size_t>(layer), c.r.size() - 1)]};
}

Linformer::Linformer(const LinformerConfig& config, const Init& init)
    : Encoder(kLinformer, config, attention_layers(config, init), init), config_(config) {}

LayerContext Linformer::layer_context(const EncoderInputs& in, Pass /*pass*/) const {
  require_no_mask(kLinformer, in);
  LayerContext seen;
  seen.lengths = in.lengths;
  return seen;
}

std::vector<int64_t> Linformer::divided_heads() const {
  const LinformerConfig& c = config_;
  const bool mixes = c.projection == RowProjection::conv && c.sharing != ProjectionSharing::none &&
                     c.projection_order == ProjectionOrder::input;
  return mixes ? std::vector<int64_t>{} : Encoder::divided_heads();
}

AttentionOutline Linformer::attention_outline(int64_t layer, int64_t length) const {
  const int64_t rows = linformer_options(config_, layer).rows(length);
  LayerContext all;
  all.pattern = patterns::dense();
  return outline_of(all, layer, config_.n_head, length, rows);
}

LinformerConfig linformer_preset(std::string_view name) {
  return preset_of<LinformerConfig>(kLinformer, linformer_presets, name);
}

const ModelEntry& linformer_entry() {
  static const ModelEntry entry{kLinformer,
                                "encoder whose rows attend to a few learned mixtures of all rows",
                                linformer_presets, linformer_spec};
  return entry;
}

}  // namespace longspan
