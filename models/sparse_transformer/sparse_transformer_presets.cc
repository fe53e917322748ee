#include "models/model_spec.h"
#include "models/sparse_transformer/sparse_transformer.h"

namespace longspan {
namespace {

constexpr TrainingDefaults sparse_transformer_few_steps(int64_t length, int64_t steps = 1500) {
  return {.length = length, .batch = 1, .steps = steps, .lr = 2e-3, .clip = 1};
}
/// Sec. 7; what the paper leaves open (batch sizes, rates for text and audio) is our choice.
constexpr TrainingDefaults sparse_transformer_published(int64_t length, int64_t batch,
                                                        int64_t steps, double rate = 2.5e-4,
                                                        int64_t warmup = 5'000) {
  return {.length = length,
          .batch = batch,
          .steps = steps,
          .lr = rate,
          .warmup = warmup,
          .lr_floor = 0,
          .clip = 1,
          .weight_decay = 0.01};
}

constexpr Preset sparse_transformer_presets[] = {
    // Differs from the paper because few steps learn more when the head shares the token table. Its
    // std is small: with a wide table the initial model predicts each token to repeat.
    {"small", "4 layers of 128, fixed, merged, length 1024; trains on bytes in minutes", "",
     "tie_embedding=true embed_std=0.02", sparse_transformer_few_steps(1024, 6000)},
    {"small_images", "the same for images of 32 x 32 x 3: 4 layers, strided and local in turns",
     "small",
     "n_max=3072 index_sets=local,strided integration=interleave stride=96 position_shape=32,32,3 "
     "begin_vector=true",
     sparse_transformer_few_steps(3072)},
    {"small_audio", "the same for mu-law bytes: 4 layers, strided, merged, length 2048", "small",
     "n_max=2048 index_sets=local,strided stride=64", sparse_transformer_few_steps(2048)},
    {"tiny",
     "2 layers of 16, fixed, merged, 11 tokens, length 37; for tests",
     "",
     "vocab=11 n_layer=2 n_head=2 d_model=16 d_ff=32 n_max=37 stride=5 columns=2",
     {.length = 37, .batch = 4, .steps = 200}},
    // The order of the layers, the rows of 96 bytes, positions, initial deviations and the last
    // norm
    // of the models of images follow the authors' later code; 120 epochs of 48,000 images.
    {"cifar10", "128 layers of 256, strided, images of 32 x 32 x 3 (Child et al. 2019)", "",
     "integration=interleave begin_vector=true n_layer=128 n_head=2 d_model=256 "
     "qk_ratio=0.5 n_max=3072 index_sets=strided,local,local,local stride=96 "
     "position_shape=32,32,3 pos_before_shift=true final_norm_eps=1e-6 dropout=0.25 "
     "embed_std=0.01",
     sparse_transformer_published(3'072, 16, 360'000, 3.5e-4, 15'000)},
    // 80 epochs of 90 million bytes.
    {"enwik8", "30 layers of 512, fixed, merged, length 12288 (Child et al. 2019)", "",
     "n_layer=30 n_head=8 d_model=512 d_ff=2048 n_max=12288 stride=128 columns=32 dropout=0.4",
     sparse_transformer_published(12'288, 8, 73'000)},
    {"imagenet64", "48 layers of 512, strided, images of 64 x 64 x 3 (Child et al. 2019)", "",
     "integration=interleave begin_vector=true n_layer=48 n_head=16 d_model=512 d_ff=2048 "
     "n_max=12288 index_sets=local,strided,local,local stride=128 position_shape=64,64,3 "
     "pos_before_shift=true final_norm_eps=1e-6 dropout=0.01 embed_std=0.01",
     sparse_transformer_published(12'288, 8, 70'000)},
    // Layers and widths of audio are our choice: the paper gives only parameter counts.
    {"audio65k", "48 layers of 512, strided, length 65536, mu-law bytes (Child et al. 2019)", "",
     "n_layer=48 n_head=8 d_model=512 d_ff=2048 n_max=65536 index_sets=local,strided "
     "integration=interleave stride=256",
     sparse_transformer_published(65'536, 1, 70'000)},
    {"audio262k", "32 layers of 256, strided, length 262144, mu-law bytes", "audio65k",
     "n_layer=32 d_model=256 d_ff=1024 n_max=262144 stride=512",
     sparse_transformer_published(262'144, 1, 70'000)},
    {"audio1m", "16 layers of 128, strided, length 1048576, mu-law bytes", "audio65k",
     "n_layer=16 d_model=128 d_ff=512 n_max=1048576 stride=1024",
     sparse_transformer_published(1'048'576, 1, 70'000)},
};

std::unique_ptr<ModelSpec> sparse_transformer_spec(std::string_view preset) {
  return preset_spec<SparseTransformer, SparseTransformerConfig>(
      SparseTransformerConfig::model_name, sparse_transformer_presets, preset);
}

}  // namespace

SparseTransformerConfig sparse_transformer_preset(std::string_view name) {
  return preset_of<SparseTransformerConfig>(SparseTransformerConfig::model_name,
                                            sparse_transformer_presets, name);
}

const ModelEntry& sparse_transformer_entry() {
  static const ModelEntry entry{SparseTransformerConfig::model_name,
                                "causal language model with strided or fixed sparse attention",
                                sparse_transformer_presets, sparse_transformer_spec};
  return entry;
}

}  // namespace longspan
