#include "models/model_spec.h"
#include "models/reformer.h"

namespace longspan {
namespace {

constexpr Preset presets[] = {
    {"small", "4 layers of 128, local and LSH in turns, length 1024; trains on bytes in minutes"},
    {"small_trax2", "the same as trax has attention since April 2020"},
    {"small_hf", "the same as transformers has it"},
    {"small_lucid", "the same as reformer-pytorch has it"},
    {"tiny", "2 layers of 16, LSH, 17 tokens, length 32; for tests"},
    {"duplication_small",
     "1 layer of 128, LSH, 32 tokens, length 128: --task duplicate in minutes"},
    {"duplication", "1 layer of 256, LSH, 128 tokens, length 1024: --task duplicate of the paper"},
    {"enwik8_64k", "3 layers of 1024, LSH, length 65536 (Kitaev et al. 2020, ablations)"},
    {"imagenet64", "3 layers of 1024, LSH, images of 64 x 64 x 3 (Kitaev et al. 2020, ablations)"},
    {"enwik8_12", "12 layers of 1024, LSH, length 65536 (Kitaev et al. 2020)"},
    {"enwik8_20", "20 layers of 1024, LSH, length 65536 (Kitaev et al. 2020, figure 5)"},
    {"trax_enwik8", "12 layers of 768, one in four LSH, length 65536 (trax, released model)"},
    {"trax_imagenet64", "6 layers of 1024, LSH, images of 64 x 64 x 3 (trax)"},
    {"trax_copy", "3 layers of 256, LSH, length 64 (trax, copying)"},
    {"hf", "6 layers of 256, local and LSH in turns, length 4096 (defaults of transformers)"},
};

/// The papers' optimizers that Longspan lacks (Adafactor) are left to program options.
TrainingDefaults defaults_of(std::string_view preset) {
  if (preset.starts_with("small")) {
    return {.length = 512, .batch = 2, .steps = 4500, .lr = 2e-3, .clip = 1};
  }
  if (preset == "tiny") return {.length = 16, .batch = 4, .steps = 200};
  if (preset == "duplication_small") {
    return {.length = 128, .batch = 32, .steps = 600, .lr = 2e-3, .clip = 1};
  }
  if (preset == "duplication") {
    return {.length = 1024, .batch = 32, .steps = 150'000, .lr = 1e-3, .warmup = 8000, .clip = 1};
  }
  TrainingDefaults d{.length = 65'536, .batch = 1, .steps = 20'000, .warmup = 8000, .clip = 1};
  if (preset.ends_with("imagenet64")) d.length = 12'288;
  if (preset == "trax_copy") d.length = 64;
  if (preset == "hf") d.length = 4096;
  return d;
}

std::unique_ptr<ModelSpec> make(std::string_view preset) {
  return std::make_unique<ModelSpecOf<Reformer, ReformerConfig>>(reformer_preset(preset),
                                                                 defaults_of(preset));
}

/// Sec. 5 of the paper. It tries 1 to 16 rounds; 8 nearly match full attention.
ReformerConfig paper(int64_t layers, int64_t length) {
  ReformerConfig c;
  c.n_layer = layers;
  c.n_head = 8;
  c.d_model = 1024;
  c.d_head = 64;
  c.d_ff = 4096;
  c.n_max = length;
  c.rounds = 8;
  c.chunk = 128;
  return c;
}

ReformerConfig text(int64_t layers) {
  ReformerConfig c = paper(layers, 65'536);
  c.position_shape = {128, 512};
  c.position_widths = {256, 768};
  return c;
}

ReformerConfig images(int64_t layers) {
  ReformerConfig c = paper(layers, 12'288);
  c.position_shape = {64, 64, 3};
  c.position_widths = {384, 384, 256};
  return c;
}

ReformerConfig trax(ReformerConfig c) {
  c = reformer_variant(c, ReformerVariant::trax2);
  c.rounds = 2;
  c.activation = Activation::gelu_tanh;
  return c;
}

ReformerConfig duplication(bool small) {
  ReformerConfig c;
  c.vocab = small ? 32 : 128;
  c.n_layer = 1;
  c.d_model = c.d_ff = small ? 128 : 256;
  c.n_max = small ? 128 : 1024;
  c.chunk = small ? 16 : 64;
  // One axis: sums over the axes of a grid cannot represent the map of positions from one half to
  // the other.
  c.position_shape = {c.n_max};
  return c;
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
  if (name.starts_with("small")) {
    ReformerConfig c;
    c.layers = "local,lsh";
    c.rounds = 2;
    c.head_std = 0.02;  // Glorot's std would favour some tokens initially
    if (name == "small") return c;
    if (name == "small_trax2") return reformer_variant(c, ReformerVariant::trax2);
    if (name == "small_hf") return reformer_variant(c, ReformerVariant::hf);
    if (name == "small_lucid") return reformer_variant(c, ReformerVariant::lucid);
  }
  if (name == "tiny") {
    ReformerConfig c;
    c.vocab = 17;
    c.n_layer = c.n_head = c.rounds = 2;
    c.d_model = 16;
    c.d_ff = c.n_max = 32;
    c.buckets = {4};
    c.chunk = 8;
    return c;
  }
  if (name == "duplication_small") return duplication(true);
  if (name == "duplication") return duplication(false);
  if (name == "enwik8_64k") return text(3);
  if (name == "imagenet64") return images(3);
  if (name == "enwik8_20") return text(20);
  if (name == "enwik8_12") {
    ReformerConfig c = text(12);
    c.dropout = 0.1f;
    return c;
  }
  if (name == "trax_imagenet64") return trax(images(6));
  if (name == "trax_enwik8") {
    ReformerConfig c = text(12);
    c.d_model = 768;
    c.d_ff = 2048;
    c.layers = "local,local,lsh,local";
    c.buckets = {16, 32};
    c.chunk = 256;
    c.local_chunk = 128;
    c.position_widths = {256, 512};
    c.dropout = 0.2f;
    return trax(c);
  }
  if (name == "trax_copy") {
    ReformerConfig c;
    c.n_layer = 3;
    c.d_model = 256;
    c.d_ff = 512;
    c.n_max = 64;
    c.buckets = {32, 32};
    c.chunk = 16;
    return trax(c);
  }
  require(name == "hf", "reformer", "there is no preset \"{}\"", name);
  ReformerConfig c = reformer_variant({}, ReformerVariant::hf);
  c.vocab = 320;
  c.n_layer = 6;
  c.n_head = 12;
  c.d_model = 256;
  c.d_head = 64;
  c.d_ff = 512;
  c.n_max = 4096;
  c.layers = "local,lsh";
  c.rounds = 1;
  c.position_shape = {64, 64};
  c.position_widths = {64, 192};
  c.dropout = c.dropout_local = 0.05f;
  c.init_std = c.embed_std = 0.02;
  return c;
}

const ModelEntry& reformer_entry() {
  static const ModelEntry entry{
      "reformer", "causal language model with attention by hashing and reversible blocks", presets,
      make};
  return entry;
}

}  // namespace longspan
