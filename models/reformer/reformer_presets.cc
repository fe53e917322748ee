#include "models/model_spec.h"
#include "models/reformer/reformer.h"

namespace longspan {
namespace {

constexpr TrainingDefaults reformer_few_steps{
    .length = 512, .batch = 2, .steps = 4500, .lr = 2e-3, .clip = 1};
/// The papers' optimizers that Longspan lacks (Adafactor) are left to program options.
constexpr TrainingDefaults reformer_of_length(int64_t length) {
  return {.length = length, .batch = 1, .steps = 20'000, .warmup = 8000, .clip = 1};
}

constexpr Preset reformer_presets[] = {
    // Glorot's std of the head would favour some tokens initially.
    {"small", "4 layers of 128, local and LSH in turns, length 1024; trains on bytes in minutes",
     "", "layers=local,lsh rounds=2 head_std=0.02", reformer_few_steps},
    // These three have the fields of reformer_variant().
    {"small_trax2", "the same as trax has attention since April 2020", "small",
     "same_bucket=false duplicates=off wrap=global dropout_broadcast=true", reformer_few_steps},
    {"small_hf", "the same as transformers has it", "small",
     "same_bucket=false duplicates=off wrap=global bucket_rule=hf whole_chunks=true "
     "head_bias=false norm_eps=1e-12",
     reformer_few_steps},
    {"small_lucid", "the same as reformer-pytorch has it", "small",
     "same_bucket=false duplicates=off wrap=global bucket_rule=chunks logit_scale=rsqrt_d "
     "self_logit=-5e4 mean_exit=true",
     reformer_few_steps},
    {"tiny",
     "2 layers of 16, LSH, 17 tokens, length 32; for tests",
     "",
     "vocab=17 n_layer=2 n_head=2 rounds=2 d_model=16 d_ff=32 n_max=32 buckets=4 chunk=8",
     {.length = 16, .batch = 4, .steps = 200}},
    // One axis of positions: sums over the axes of a grid cannot represent the map of positions
    // from one half to the other.
    {"duplication_small",
     "1 layer of 128, LSH, 32 tokens, length 128: --task duplicate in minutes",
     "",
     "vocab=32 n_layer=1 d_ff=128 n_max=128 chunk=16 position_shape=128",
     {.length = 128, .batch = 32, .steps = 600, .lr = 2e-3, .clip = 1}},
    {"duplication",
     "1 layer of 256, LSH, 128 tokens, length 1024: --task duplicate of the paper",
     "",
     "vocab=128 n_layer=1 d_model=256 d_ff=256 position_shape=1024",
     {.length = 1024, .batch = 32, .steps = 150'000, .lr = 1e-3, .warmup = 8000, .clip = 1}},
    // Sec. 5 of the paper. It tries 1 to 16 rounds; 8 nearly match full attention.
    {"enwik8_64k", "3 layers of 1024, LSH, length 65536 (Kitaev et al. 2020, ablations)", "",
     "n_layer=3 n_head=8 d_model=1024 d_head=64 d_ff=4096 n_max=65536 rounds=8 chunk=128 "
     "position_shape=128,512 position_widths=256,768",
     reformer_of_length(65'536)},
    {"imagenet64", "3 layers of 1024, LSH, images of 64 x 64 x 3 (Kitaev et al. 2020, ablations)",
     "enwik8_64k", "n_max=12288 position_shape=64,64,3 position_widths=384,384,256",
     reformer_of_length(12'288)},
    {"enwik8_12", "12 layers of 1024, LSH, length 65536 (Kitaev et al. 2020)", "enwik8_64k",
     "n_layer=12 dropout=0.1", reformer_of_length(65'536)},
    {"enwik8_20", "20 layers of 1024, LSH, length 65536 (Kitaev et al. 2020, figure 5)",
     "enwik8_64k", "n_layer=20", reformer_of_length(65'536)},
    {"trax_enwik8", "12 layers of 768, one in four LSH, length 65536 (trax, released model)",
     "enwik8_64k",
     "n_layer=12 d_model=768 d_ff=2048 layers=local,local,lsh,local buckets=16,32 chunk=256 "
     "local_chunk=128 position_widths=256,512 dropout=0.2 same_bucket=false duplicates=off "
     "wrap=global dropout_broadcast=true rounds=2 activation=gelu_tanh",
     reformer_of_length(65'536)},
    {"trax_imagenet64", "6 layers of 1024, LSH, images of 64 x 64 x 3 (trax)", "imagenet64",
     "n_layer=6 same_bucket=false duplicates=off wrap=global dropout_broadcast=true rounds=2 "
     "activation=gelu_tanh",
     reformer_of_length(12'288)},
    {"trax_copy", "3 layers of 256, LSH, length 64 (trax, copying)", "",
     "n_layer=3 d_model=256 n_max=64 buckets=32,32 chunk=16 same_bucket=false "
     "duplicates=off wrap=global dropout_broadcast=true rounds=2 activation=gelu_tanh",
     reformer_of_length(64)},
    {"hf", "6 layers of 256, local and LSH in turns, length 4096 (defaults of transformers)", "",
     "same_bucket=false duplicates=off wrap=global bucket_rule=hf whole_chunks=true "
     "head_bias=false norm_eps=1e-12 vocab=320 n_layer=6 n_head=12 d_model=256 d_head=64 "
     "n_max=4096 layers=local,lsh rounds=1 position_shape=64,64 position_widths=64,192 "
     "dropout=0.05 dropout_local=0.05 init_std=0.02 embed_std=0.02",
     reformer_of_length(4096)},
};

std::unique_ptr<ModelSpec> reformer_spec(std::string_view preset) {
  return preset_spec<Reformer, ReformerConfig>(ReformerConfig::model_name, reformer_presets,
                                               preset);
}

}  // namespace

ReformerConfig reformer_variant(ReformerConfig c, ReformerVariant variant) {
  if (variant == ReformerVariant::paper) return c;
  c.same_bucket = false;
  c.duplicates = LshDuplicates::off;
  c.wrap = LshWrap::global;
  c.dropout_broadcast = variant == ReformerVariant::trax2;
  if (variant == ReformerVariant::hf) {
    c.bucket_rule = BucketRule::hf;
    c.whole_chunks = true;
    c.head_bias = false;
    c.norm_eps = 1e-12;
  }
  if (variant == ReformerVariant::lucid) {
    c.bucket_rule = BucketRule::chunks;
    c.logit_scale = LshScale::rsqrt_d;
    c.self_logit = -5e4;
    c.mean_exit = true;
  }
  return c;
}

ReformerConfig reformer_preset(std::string_view name) {
  return preset_of<ReformerConfig>(ReformerConfig::model_name, reformer_presets, name);
}

const ModelEntry& reformer_entry() {
  static const ModelEntry entry{
      ReformerConfig::model_name,
      "causal language model with attention by hashing and reversible blocks", reformer_presets,
      reformer_spec};
  return entry;
}

}  // namespace longspan
