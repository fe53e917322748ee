#include "models/model_spec.h"
#include "models/transformer.h"

namespace longspan {
namespace {

constexpr Preset presets[] = {
    {"small", "decoder, 4 layers of 128, Shaw positions, tied table; trains on bytes in minutes"},
    {"tiny", "decoder, 2 layers of 16, 17 tokens; for tests"},
    {"encoder", "encoder, 4 layers of 128, Shaw positions, tied table; masked bytes"},
    {"base", "encoder-decoder, 6 + 6 layers of 512 (Vaswani et al. 2017)"},
    {"big", "encoder-decoder, 6 + 6 layers of 1024 (Vaswani et al. 2017)"},
    {"gpt2", "decoder, 12 layers of 768, learned positions (GPT-2 small)"},
    {"bert", "encoder, 12 layers of 768, token types, masked tokens (BERT base)"},
    {"bart", "encoder-decoder, 6 + 6 layers of 768, learned positions (BART base)"},
    {"bart_large", "encoder-decoder, 12 + 12 layers of 1024 (BART large)"},
    {"t12", "decoder on bytes, 12 layers of 512, auxiliary losses (Al-Rfou et al. 2019)"},
    {"t64", "decoder on bytes, 64 layers of 512, auxiliary losses (Al-Rfou et al. 2019)"},
    {"wt103", "decoder on words, 16 layers of 1024, sinusoids"},
    {"bytes12", "decoder on bytes, 12 layers of 512, length 512"},
    {"performer_control", "decoder, 6 layers of 512, the dense side of Performer's comparisons"},
    {"performer_control_small", "the same with 3 layers of 256, length 8192"},
};

/// Vaswani et al. 2017, table 3.
TransformerConfig base() {
  TransformerConfig c;
  c.wiring = Wiring::encoder_decoder;
  c.vocab = 37'000;
  c.n_layer = 6;
  c.n_head = 8;
  c.d_model = 512;
  c.d_ff = 2048;
  c.norm = NormPlace::post;
  c.positions = Positions::sinusoid;
  c.tie_embedding = true;
  c.emb_scale = true;
  c.dropout = 0.1f;
  c.label_smoothing = 0.1;
  c.init = Weights::xavier_uniform;
  c.init_residual_scale = false;
  return c;
}

TransformerConfig gpt2() {
  TransformerConfig c;
  c.vocab = 50'257;
  c.n_layer = c.n_head = 12;
  c.d_model = 768;
  c.d_ff = 3072;
  c.n_max = 1024;
  c.activation = Activation::gelu_tanh;
  c.positions = Positions::learned;
  c.qkv_bias = c.out_bias = true;
  c.tie_embedding = true;
  c.dropout = 0.1f;
  c.dropout_ffn_act = 0;
  return c;
}

TransformerConfig bert() {
  TransformerConfig c = gpt2();
  c.wiring = Wiring::encoder;
  c.vocab = 30'522;
  c.n_max = 512;
  c.norm = NormPlace::post;
  c.norm_eps = 1e-12;
  c.activation = Activation::gelu_erf;
  c.emb_norm = c.mlm_head = c.head_bias = true;
  c.token_types = 2;
  c.init_residual_scale = false;
  return c;
}

/// Lewis et al. 2020, sec. 2.1.
TransformerConfig bart() {
  TransformerConfig c = bert();
  c.wiring = Wiring::encoder_decoder;
  c.vocab = 50'265;
  c.n_layer = 6;
  c.n_max = 1024;
  c.norm_eps = 1e-5;
  c.mlm_head = false;
  c.token_types = 0;
  c.position_offset = 2;
  c.source_tables = true;
  return c;
}

TransformerConfig al_rfou(int64_t layers) {
  TransformerConfig c;
  c.n_layer = layers;
  c.n_head = 2;
  c.d_model = 512;
  c.d_ff = 2048;
  c.n_max = 512;
  c.positions = Positions::learned_per_layer;
  c.dropout = 0.55f;
  c.dropout_emb = 0;
  c.layer_loss = true;
  c.n_target = 2;
  return c;
}

TransformerConfig bytes12() {
  TransformerConfig c;
  c.n_layer = 12;
  c.n_head = 8;
  c.d_model = 512;
  c.d_ff = 2048;
  c.positions = Positions::sinusoid;
  c.emb_scale = true;
  return c;
}

TrainingDefaults defaults_of(std::string_view preset) {
  if (preset == "small" || preset == "encoder") return {.lr = 3e-3};
  if (preset == "tiny") return {.length = 12, .batch = 4, .steps = 200};
  int64_t length = 512;
  if (preset == "gpt2" || preset.starts_with("bart") || preset == "performer_control")
    length = 1024;
  if (preset == "performer_control_small") length = 8192;
  return {.length = length, .batch = 8, .steps = 100'000, .lr = 2.5e-4, .warmup = 4'000};
}

std::unique_ptr<ModelSpec> make(std::string_view preset) {
  return std::make_unique<ModelSpecOf<Transformer, TransformerConfig>>(transformer_preset(preset),
                                                                       defaults_of(preset));
}

}  // namespace

TransformerConfig transformer_preset(std::string_view name) {
  TransformerConfig c;
  if (name == "small" || name == "encoder") {
    // Differs from the literature's presets because it learns more in few steps; docs/options.md.
    c.tie_embedding = true;
    c.init_std = 0.05;
  }
  if (name == "small") return c;
  if (name == "encoder") {
    c.wiring = Wiring::encoder;
    c.vocab = 257;  // 256 bytes and [MASK]
    c.mlm_head = true;
    return c;
  }
  if (name == "tiny") {
    c.vocab = 17;
    c.n_layer = 2;
    c.n_head = 2;
    c.d_model = 16;
    c.d_ff = 32;
    c.n_max = 16;
    c.shaw_clip = 3;
    return c;
  }
  if (name == "base") return base();
  if (name == "big") {
    c = base();
    c.n_head = 16;
    c.d_model = 1024;
    c.d_ff = 4096;
    c.dropout = 0.3f;
    return c;
  }
  if (name == "gpt2") return gpt2();
  if (name == "bert") return bert();
  if (name == "bart") return bart();
  if (name == "bart_large") {
    c = bart();
    c.n_layer = 12;
    c.n_head = 16;
    c.d_model = 1024;
    c.d_ff = 4096;
    return c;
  }
  if (name == "t12") return al_rfou(12);
  if (name == "t64") return al_rfou(64);
  if (name == "bytes12") return bytes12();
  if (name == "wt103") {
    c = bytes12();
    c.vocab = 267'735;
    c.n_layer = c.n_head = 16;
    c.d_model = 1024;
    c.d_ff = 4096;
    c.tie_embedding = true;
    return c;
  }
  const bool small = name == "performer_control_small";
  require(small || name == "performer_control", "transformer", "there is no preset \"{}\"", name);
  c = bytes12();
  c.n_layer = small ? 3 : 6;
  if (small) c.d_model = c.d_ff = 256;
  return c;
}

const ModelEntry& transformer_entry() {
  static const ModelEntry entry{
      "transformer", "decoder, encoder or encoder-decoder with full attention", presets, make};
  return entry;
}

}  // namespace longspan
