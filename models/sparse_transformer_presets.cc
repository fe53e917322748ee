#include "models/model_spec.h"
#include "models/sparse_transformer.h"

namespace longspan {
namespace {

constexpr Preset presets[] = {
    {"small", "4 layers of 128, fixed, merged, length 1024; trains on bytes in minutes"},
    {"small_images", "the same for images of 32 x 32 x 3: 4 layers, strided and local in turns"},
    {"small_audio", "the same for mu-law bytes: 4 layers, strided, merged, length 2048"},
    {"tiny", "2 layers of 16, fixed, merged, 11 tokens, length 37; for tests"},
    {"cifar10", "128 layers of 256, strided, images of 32 x 32 x 3 (Child et al. 2019)"},
    {"enwik8", "30 layers of 512, fixed, merged, length 12288 (Child et al. 2019)"},
    {"imagenet64", "48 layers of 512, strided, images of 64 x 64 x 3 (Child et al. 2019)"},
    {"audio65k", "48 layers of 512, strided, length 65536, mu-law bytes (Child et al. 2019)"},
    {"audio262k", "32 layers of 256, strided, length 262144, mu-law bytes"},
    {"audio1m", "16 layers of 128, strided, length 1048576, mu-law bytes"},
};

/// Sec. 7; what the paper leaves open (batch sizes, rates for text and audio) is our choice.
TrainingDefaults defaults_of(std::string_view preset) {
  if (preset == "small") {
    return {.length = 1024, .batch = 1, .steps = 6000, .lr = 2e-3, .clip = 1};
  }
  if (preset == "small_images") return {.length = 3072, .batch = 1, .lr = 2e-3, .clip = 1};
  if (preset == "small_audio") return {.length = 2048, .batch = 1, .lr = 2e-3, .clip = 1};
  if (preset == "tiny") return {.length = 37, .batch = 4, .steps = 200};
  TrainingDefaults d{.length = 12'288,
                     .batch = 8,
                     .steps = 70'000,
                     .lr = 2.5e-4,
                     .warmup = 5'000,
                     .lr_floor = 0,
                     .clip = 1,
                     .weight_decay = 0.01};
  if (preset == "cifar10") {
    d.length = 3'072;
    d.batch = 16;
    d.steps = 360'000;  // 120 epochs of 48,000 images
    d.lr = 3.5e-4;
    d.warmup = 15'000;
  } else if (preset == "enwik8") {
    d.steps = 73'000;  // 80 epochs of 90 million bytes
  } else if (preset != "imagenet64") {
    d.length = preset == "audio65k" ? 65'536 : preset == "audio262k" ? 262'144 : 1'048'576;
    d.batch = 1;
  }
  return d;
}

std::unique_ptr<ModelSpec> make(std::string_view preset) {
  return std::make_unique<ModelSpecOf<SparseTransformer, SparseTransformerConfig>>(
      sparse_transformer_preset(preset), defaults_of(preset));
}

/// Layers and widths are our choice: the paper gives only parameter counts.
SparseTransformerConfig audio(int64_t length, int64_t stride, int64_t layers, int64_t width) {
  SparseTransformerConfig c;
  c.n_layer = layers;
  c.n_head = 8;
  c.d_model = width;
  c.d_ff = 4 * width;
  c.n_max = length;
  c.index_sets = "local,strided";
  c.integration = Integration::interleave;
  c.stride = stride;
  return c;
}

}  // namespace

SparseTransformerConfig sparse_transformer_preset(std::string_view name) {
  SparseTransformerConfig c;
  if (name.starts_with("small")) {
    // Differs from the paper because few steps learn more when the head shares the token table. Its
    // std is small: with a wide table the initial model predicts each token to repeat.
    c.tie_embedding = true;
    c.embed_std = 0.02;
  }
  if (name == "small") return c;
  if (name == "small_images") {
    c.n_max = 3'072;
    c.index_sets = "local,strided";
    c.integration = Integration::interleave;
    c.stride = 96;
    c.position_shape = {32, 32, 3};
    c.begin_vector = true;
    return c;
  }
  if (name == "small_audio") {
    c.n_max = 2'048;
    c.index_sets = "local,strided";
    c.stride = 64;
    return c;
  }
  if (name == "tiny") {
    c.vocab = 11;
    c.n_layer = c.n_head = 2;
    c.d_model = 16;
    c.d_ff = 32;
    c.n_max = 37;
    c.stride = 5;
    c.columns = 2;
    return c;
  }
  if (name == "enwik8") {
    c.n_layer = 30;
    c.n_head = 8;
    c.d_model = 512;
    c.d_ff = 2048;
    c.n_max = 12'288;
    c.stride = 128;
    c.columns = 32;
    c.dropout = 0.4f;
    return c;
  }
  if (name == "audio65k") return audio(65'536, 256, 48, 512);
  if (name == "audio262k") return audio(262'144, 512, 32, 256);
  if (name == "audio1m") return audio(1'048'576, 1'024, 16, 128);
  c.integration = Integration::interleave;
  c.begin_vector = true;
  if (name == "cifar10") {
    // The order of the layers and the rows of 96 bytes follow the authors' later code.
    c.n_layer = 128;
    c.n_head = 2;
    c.d_model = 256;
    c.d_ff = 512;
    c.qk_ratio = 0.5;
    c.n_max = 3'072;
    c.index_sets = "strided,local,local,local";
    c.stride = 96;
    c.position_shape = {32, 32, 3};
    c.final_norm_eps = 1e-6;
    c.dropout = 0.25f;
    c.embed_std = 0.01;
    return c;
  }
  require(name == "imagenet64", "sparse_transformer", "there is no preset \"{}\"", name);
  c.n_layer = 48;
  c.n_head = 16;
  c.d_model = 512;
  c.d_ff = 2048;
  c.n_max = 12'288;
  c.index_sets = "local,strided";
  c.stride = 128;
  c.position_shape = {64, 64, 3};
  c.dropout = 0.01f;
  return c;
}

const ModelEntry& sparse_transformer_entry() {
  static const ModelEntry entry{"sparse_transformer",
                                "causal language model with strided or fixed sparse attention",
                                presets, make};
  return entry;
}

}  // namespace longspan
