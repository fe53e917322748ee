// BigBird-ETC, Zaheer et al. 2020 (2007.14062), sec. 2 and appendix E: the encoder of ETC with
// optional random blocks in its local attention. Tables 8, 12 and 13 of the paper list no random
// tokens for any reported run, so n_random is 0 in the presets of the paper.

#include "models/etc/bigbird_etc.h"

#include "models/bigbird/bigbird_blocks.h"
#include "models/model_spec.h"

namespace longspan {
namespace {

constexpr const char* kBigBirdEtc = "bigbird_etc";

constexpr Preset bigbird_etc_presets[] = {
    {"small",
     "ETC's small preset with a random block for each block of 32; masked bytes",
     "",
     "dropout=0 init_std=0.05 n_random=1",
     {.length = 512, .batch = 4, .steps = 500, .lr = 2e-3, .warmup = 50, .clip = 1}},
    {"tiny",
     "2 layers of 16, radius 4, a random block, 23 tokens; for tests",
     "",
     "vocab=23 mask_id=22 global_id=21 n_layer=2 n_head=2 d_model=16 d_ff=32 n_long=29 n_global=5 "
     "radius=4 max_distance=3 dropout=0 n_random=1",
     {.length = 22, .batch = 4, .steps = 200}},
    // The mask token is that of the released vocabulary.
    {"base", "12 layers of 768, radius 84, 256 globals, length 4096: masked tokens", "",
     "vocab=50358 mask_id=67 global_id=1 n_layer=12 n_head=12 d_model=768 d_ff=3072 n_long=4096 "
     "n_global=256 radius=84 max_distance=12 relations=32",
     bigbird_training(256)},
    // Classes: a span, yes, no.
    {"hotpot", "base for HotpotQA: spans, supporting sentences", "base",
     "span_head=true global_tags=1 classes=3", bigbird_training(256)},
    // Classes: none, long, short, yes, no.
    {"natural_questions", "base for Natural Questions: 230 globals, spans, types of answers",
     "base", "span_head=true n_global=230 classes=5", bigbird_training(256)},
    {"trivia", "base for TriviaQA: 320 globals, spans", "base", "span_head=true n_global=320",
     bigbird_training(256)},
    {"wikihop", "base for WikiHop: 430 globals, a logit of each candidate", "base",
     "n_global=430 global_tags=1", bigbird_training(256)},
    {"large", "24 layers of 1024, radius 169, 256 globals, length 4096", "base",
     "n_layer=24 n_head=16 d_model=1024 d_ff=4096 radius=169 max_distance=24 relations=0",
     bigbird_training(2048)},
};

std::unique_ptr<ModelSpec> bigbird_etc_spec(std::string_view preset) {
  return preset_spec<Etc, EtcConfig>(kBigBirdEtc, bigbird_etc_presets, preset);
}

}  // namespace

EtcConfig bigbird_etc_preset(std::string_view name) {
  return preset_of<EtcConfig>(kBigBirdEtc, bigbird_etc_presets, name);
}

const ModelEntry& bigbird_etc_entry() {
  static const ModelEntry entry{
      kBigBirdEtc, "BigBird with global tokens of its own: ETC's encoder, random blocks if wanted",
      bigbird_etc_presets, bigbird_etc_spec};
  return entry;
}

}  // namespace longspan
