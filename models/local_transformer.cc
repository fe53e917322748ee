// Local Transformer, Roy et al. 2020 (2003.05997): the causal language model of transformer.cc with
// attention limited to a window of keys, so that cost grows with L, not L^2. There are two windows;
// the second is that of Roy et al. and of tensor2tensor's local attention:
//
//   exact(W)   0 <= i - j < W: every query attends to W keys, itself included
//   block(b)   floor(j / b) in {floor(i / b) - 1, floor(i / b)} and j <= i: b + 1 to 2 b keys, in
//              the first block 1 to b
//
// After N layers a token depends on N (W - 1) others (exact), so the reach grows with depth.

#include "models/model_spec.h"
#include "models/transformer.h"

namespace longspan {
namespace {

constexpr Preset presets[] = {
    {"small", "4 layers of 128, exact window of 64 keys, tied table; trains on bytes in minutes"},
    {"tiny", "2 layers of 16, exact window of 5 keys, 17 tokens; for tests"},
    {"enwik8", "24 layers of 1024, blocks of 256, length 8192 (Roy et al. 2020)"},
    {"enwik8_12k", "22 layers of 1024, blocks of 128, length 12288"},
    {"wt103", "16 layers of 1024, 16 heads, blocks of 256, length 4096"},
    {"pg19", "24 layers of 1032, blocks of 256, length 8192"},
};

TrainingDefaults defaults_of(std::string_view preset) {
  if (preset == "small") return {.length = 256, .batch = 4, .steps = 1500, .lr = 3e-3};
  if (preset == "tiny") return {.length = 12, .batch = 4, .steps = 200};
  const int64_t length = preset == "enwik8_12k" ? 12288 : preset == "wt103" ? 4096 : 8192;
  TrainingDefaults d{.length = length, .batch = 1, .steps = 100'000, .lr = 1e-4, .warmup = 10'000};
  if (preset == "wt103") d.weight_decay = 2e-5;
  return d;
}

std::unique_ptr<ModelSpec> make(std::string_view preset) {
  return std::make_unique<ModelSpecOf<Transformer, TransformerConfig>>(
      local_transformer_preset(preset), defaults_of(preset));
}

}  // namespace

TransformerConfig local_transformer_preset(std::string_view name) {
  if (name == "small" || name == "tiny") {
    TransformerConfig c = transformer_preset(name);
    c.local = Locality::exact;
    c.window = name == "tiny" ? 5 : 64;
    return c;
  }
  TransformerConfig c;
  c.local = Locality::block;
  c.activation = Activation::geglu;
  c.n_head = 8;
  c.d_model = 1024;
  c.d_ff = 3072;
  c.n_layer = 24;
  c.window = 256;
  c.shaw_clip = 513;
  c.share_qk = true;
  c.dropout_attn = c.dropout_ffn_act = 0.4f;
  if (name == "enwik8") return c;
  if (name == "enwik8_12k") {
    c.n_layer = 22;
    c.window = 128;
    c.shaw_clip = 257;
    return c;
  }
  if (name == "wt103") {
    c.vocab = 267'735;
    c.n_layer = 16;
    c.n_head = 16;
    c.d_embed = 256;
    c.dropout = 0.4f;
    c.dropout_token = 0.25f;
    return c;
  }
  require(name == "pg19", "local_transformer", "there is no preset \"{}\"", name);
  c.vocab = 32'768;
  c.d_model = 1032;
  c.d_ff = 4096;
  c.dropout_attn = c.dropout_ffn_act = 0;
  return c;
}

const ModelEntry& local_transformer_entry() {
  static const ModelEntry entry{"local_transformer",
                                "causal language model with attention limited to a window", presets,
                                make};
  return entry;
}

}  // namespace longspan
