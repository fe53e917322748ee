#include "models/model_spec.h"
#include "models/transformer/transformer.h"

namespace longspan {
namespace {

constexpr TrainingDefaults transformer_few_steps{.lr = 3e-3},
    test_steps{.length = 12, .batch = 4, .steps = 200};
constexpr TrainingDefaults transformer_of_length(int64_t length) {
  return {.length = length, .batch = 8, .steps = 100'000, .lr = 2.5e-4, .warmup = 4'000};
}

constexpr Preset transformer_presets[] = {
    // Differs from the literature because it learns more in few steps; docs/options.md.
    {"small", "decoder, 4 layers of 128, Shaw positions, tied table; trains on bytes in minutes",
     "", "tie_embedding=true init_std=0.05", transformer_few_steps},
    {"tiny", "decoder, 2 layers of 16, 17 tokens; for tests", "",
     "vocab=17 n_layer=2 n_head=2 d_model=16 d_ff=32 n_max=16 shaw_clip=3", test_steps},
    // 256 bytes and [MASK].
    {"encoder", "encoder, 4 layers of 128, Shaw positions, tied table; masked bytes", "small",
     "wiring=encoder vocab=257 mlm_head=true", transformer_few_steps},
    // Table 3 of the paper.
    {"base", "encoder-decoder, 6 + 6 layers of 512 (Vaswani et al. 2017)", "",
     "wiring=encoder_decoder vocab=37000 n_layer=6 n_head=8 d_model=512 d_ff=2048 norm=post "
     "positions=sinusoid tie_embedding=true emb_scale=true dropout=0.1 label_smoothing=0.1 "
     "init=xavier_uniform init_residual_scale=false",
     transformer_of_length(512)},
    {"big", "encoder-decoder, 6 + 6 layers of 1024 (Vaswani et al. 2017)", "base",
     "n_head=16 d_model=1024 d_ff=4096 dropout=0.3", transformer_of_length(512)},
    {"gpt2", "decoder, 12 layers of 768, learned positions (GPT-2 small)", "",
     "vocab=50257 n_layer=12 n_head=12 d_model=768 d_ff=3072 activation=gelu_tanh "
     "positions=learned qkv_bias=true out_bias=true tie_embedding=true dropout=0.1 "
     "dropout_ffn_act=0",
     transformer_of_length(1024)},
    {"bert", "encoder, 12 layers of 768, token types, masked tokens (BERT base)", "gpt2",
     "wiring=encoder vocab=30522 n_max=512 norm=post norm_eps=1e-12 activation=gelu_erf "
     "emb_norm=true mlm_head=true head_bias=true token_types=2 init_residual_scale=false",
     transformer_of_length(512)},
    // Lewis et al. 2020, sec. 2.1.
    {"bart", "encoder-decoder, 6 + 6 layers of 768, learned positions (BART base)", "bert",
     "wiring=encoder_decoder vocab=50265 n_layer=6 n_max=1024 norm_eps=1e-5 mlm_head=false "
     "token_types=0 position_offset=2 source_tables=true",
     transformer_of_length(1024)},
    {"bart_large", "encoder-decoder, 12 + 12 layers of 1024 (BART large)", "bart",
     "n_layer=12 n_head=16 d_model=1024 d_ff=4096", transformer_of_length(1024)},
    {"t12", "decoder on bytes, 12 layers of 512, auxiliary losses (Al-Rfou et al. 2019)", "",
     "n_layer=12 n_head=2 d_model=512 d_ff=2048 n_max=512 positions=learned_per_layer dropout=0.55 "
     "dropout_emb=0 layer_loss=true n_target=2",
     transformer_of_length(512)},
    {"t64", "decoder on bytes, 64 layers of 512, auxiliary losses (Al-Rfou et al. 2019)", "t12",
     "n_layer=64", transformer_of_length(512)},
    {"wt103", "decoder on words, 16 layers of 1024, sinusoids", "bytes12",
     "vocab=267735 n_layer=16 n_head=16 d_model=1024 d_ff=4096 tie_embedding=true",
     transformer_of_length(512)},
    {"bytes12", "decoder on bytes, 12 layers of 512, length 512", "",
     "n_layer=12 n_head=8 d_model=512 d_ff=2048 positions=sinusoid emb_scale=true",
     transformer_of_length(512)},
    {"performer_control", "decoder, 6 layers of 512, the dense side of Performer's comparisons",
     "bytes12", "n_layer=6", transformer_of_length(1024)},
    {"performer_control_small", "the same with 3 layers of 256, length 8192", "bytes12",
     "n_layer=3 d_model=256 d_ff=256", transformer_of_length(8192)},
};

std::unique_ptr<ModelSpec> transformer_spec(std::string_view preset) {
  return preset_spec<Transformer, TransformerConfig>(TransformerConfig::model_name,
                                                     transformer_presets, preset);
}

}  // namespace

TransformerConfig transformer_preset(std::string_view name) {
  return preset_of<TransformerConfig>(TransformerConfig::model_name, transformer_presets, name);
}

const ModelEntry& transformer_entry() {
  static const ModelEntry entry{TransformerConfig::model_name,
                                "decoder, encoder or encoder-decoder with full attention",
                                transformer_presets, transformer_spec};
  return entry;
}

}  // namespace longspan
