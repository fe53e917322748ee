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
#include "models/transformer/transformer.h"

namespace longspan {
namespace {

constexpr const char* kLocalTransformer = "local_transformer";

constexpr TrainingDefaults local_transformer_of_length(int64_t length, double weight_decay = 0) {
  return {.length = length,
          .batch = 1,
          .steps = 100'000,
          .lr = 1e-4,
          .warmup = 10'000,
          .weight_decay = weight_decay};
}

constexpr Preset local_transformer_presets[] = {
    {"small",
     "4 layers of 128, exact window of 64 keys, tied table; trains on bytes in minutes",
     "",
     "local=exact window=64 tie_embedding=true init_std=0.05",
     {.length = 256, .batch = 4, .steps = 1500, .lr = 3e-3}},
    {"tiny",
     "2 layers of 16, exact window of 5 keys, 17 tokens; for tests",
     "",
     "local=exact window=5 vocab=17 n_layer=2 n_head=2 d_model=16 d_ff=32 n_max=16 shaw_clip=3",
     {.length = 12, .batch = 4, .steps = 200}},
    {"enwik8", "24 layers of 1024, blocks of 256, length 8192 (Roy et al. 2020)", "",
     "local=block window=256 n_layer=24 n_head=8 d_model=1024 d_ff=3072 activation=geglu "
     "shaw_clip=513 share_qk=true dropout_attn=0.4 dropout_ffn_act=0.4",
     local_transformer_of_length(8192)},
    {"enwik8_12k", "22 layers of 1024, blocks of 128, length 12288", "enwik8",
     "n_layer=22 window=128 shaw_clip=257", local_transformer_of_length(12288)},
    {"wt103", "16 layers of 1024, 16 heads, blocks of 256, length 4096", "enwik8",
     "vocab=267735 n_layer=16 n_head=16 d_embed=256 dropout=0.4 dropout_token=0.25",
     local_transformer_of_length(4096, 2e-5)},
    {"pg19", "24 layers of 1032, blocks of 256, length 8192", "enwik8",
     "vocab=32768 d_model=1032 d_ff=4096 dropout_attn=0 dropout_ffn_act=0",
     local_transformer_of_length(8192)},
};

std::unique_ptr<ModelSpec> local_transformer_spec(std::string_view preset) {
  return preset_spec<Transformer, TransformerConfig>(kLocalTransformer, local_transformer_presets,
                                                     preset);
}

}  // namespace

TransformerConfig local_transformer_preset(std::string_view name) {
  return preset_of<TransformerConfig>(kLocalTransformer, local_transformer_presets, name);
}

const ModelEntry& local_transformer_entry() {
  static const ModelEntry entry{kLocalTransformer,
                                "causal language model with attention limited to a window",
                                local_transformer_presets, local_transformer_spec};
  return entry;
}

}  // namespace longspan
