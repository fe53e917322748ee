// BigBird-ETC, Zaheer et al. 2020 (2007.14062), sec. 2 and appendix E: the encoder of ETC with
// optional random blocks in its local attention. Tables 8, 12 and 13 of the paper list no random
// tokens for any reported run, so n_random is 0 in the presets of the paper.

#include "models/bigbird_etc.h"

#include "models/model_spec.h"

namespace longspan {
namespace {

constexpr const char* kName = "bigbird_etc";

constexpr Preset presets[] = {
    {"small", "ETC's small preset with a random block for each block of 32; masked bytes"},
    {"tiny", "2 layers of 16, radius 4, a random block, 23 tokens; for tests"},
    {"base", "12 layers of 768, radius 84, 256 globals, length 4096: masked tokens"},
    {"hotpot", "base for HotpotQA: spans, supporting sentences"},
    {"natural_questions", "base for Natural Questions: 230 globals, spans, types of answers"},
    {"trivia", "base for TriviaQA: 320 globals, spans"},
    {"wikihop", "base for WikiHop: 430 globals, a logit of each candidate"},
    {"large", "24 layers of 1024, radius 169, 256 globals, length 4096"},
};

/// Appendix E: Adam, warm-up of 10,000 steps, linear decay; 256 and 2,048 samples a step.
TrainingDefaults defaults_of(std::string_view preset) {
  if (preset == "small") {
    return {.length = 512, .batch = 4, .steps = 500, .lr = 2e-3, .warmup = 50, .clip = 1};
  }
  if (preset == "tiny") return {.length = 22, .batch = 4, .steps = 200};
  return {.length = 4096,
          .batch = preset == "large" ? 2048 : 256,
          .steps = 500'000,
          .lr = 1e-4,
          .warmup = 10'000,
          .lr_floor = 0,
          .clip = 1,
          .weight_decay = 0.01};
}

std::unique_ptr<ModelSpec> make(std::string_view preset) {
  return std::make_unique<ModelSpecOf<Etc, EtcConfig>>(bigbird_etc_preset(preset),
                                                       defaults_of(preset));
}

}  // namespace

EtcConfig bigbird_etc_preset(std::string_view name) {
  if (name == "small" || name == "tiny") {
    EtcConfig c = etc_preset(name);
    c.n_random = 1;
    return c;
  }
  const bool large = name == "large";
  EtcConfig c = etc_preset(large ? "large" : "base");
  c.vocab = 50'358;
  c.mask_id = 67;  // of the released vocabulary
  c.n_global = 256;
  c.cpc = false;
  if (large || name == "base") return c;
  c.span_head = name != "wikihop";
  if (name == "hotpot") {
    c.global_tags = 1;
    c.classes = 3;  // a span, yes, no
    return c;
  }
  if (name == "natural_questions") {
    c.n_global = 230;
    c.classes = 5;  // none, long, short, yes, no
    return c;
  }
  if (name == "trivia") {
    c.n_global = 320;
    return c;
  }
  require(name == "wikihop", kName, "there is no preset \"{}\"", name);
  c.n_global = 430;
  c.global_tags = 1;
  return c;
}

const ModelEntry& bigbird_etc_entry() {
  static const ModelEntry entry{
      kName, "BigBird with global tokens of its own: ETC's encoder, random blocks if wanted",
      presets, make};
  return entry;
}

}  // namespace longspan
