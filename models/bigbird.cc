// BigBird, Zaheer et al. 2020 (2007.14062): attention over blocks of b tokens. Every row of blocks
// attends to its neighbours (window), to r blocks drawn once (random), and to the first and the
// last block, which attend to everything (global).
//
// The paper's appendix makes the first blocks global and lets the window wrap around. The released
// code, which this file follows, takes the first and the last and does not wrap. The released code
// also draws all random blocks from the first 1,024 tokens at the lengths of the paper (first_1024)
// and may count a block twice; here a row counts each block once, unless its blocks are given and
// count_repeats is set.
// count_repeats is set.

#include "models/bigbird.h"

#include <utility>

#include "models/model_spec.h"

namespace longspan {
namespace {

constexpr const char* kName = "bigbird";
constexpr Preset presets[] = {
    {"small", "4 layers of 128, blocks of 16, length 1024; masked bytes in minutes"},
    {"causal", "small as a language model: random blocks of the past"},
    {"tiny", "2 layers of 16, blocks of 4, 2 random blocks, 23 tokens; for tests"},
    {"base", "12 layers of 768, blocks of 64, 3 random blocks, length 4096"},
    {"large", "24 layers of 1024, blocks of 64, 3 random blocks, length 4096"},
    {"dna", "the base model with 32,000 tokens, for pieces of genomes"},
    {"promoter", "dna with one yes-or-no answer"},
    {"chromatin", "dna with 919 yes-or-no answers"},
    {"motif", "2 layers of 64 over runs of 6 bases, one answer; learns motif-dna in minutes"},
};

TrainingDefaults defaults_of(std::string_view preset) {
  if (preset == "small" || preset == "causal") {
    return {.length = 1024, .batch = 2, .steps = 800, .lr = 2e-3, .warmup = 80, .clip = 1};
  }
  if (preset == "tiny") return {.length = 45, .batch = 4, .steps = 200};
  if (preset == "motif") {
    return {.length = 512, .batch = 16, .steps = 600, .lr = 2e-3, .warmup = 40, .clip = 1};
  }
  // Appendix E: Adam, warm-up of 10,000 steps, linear decay.
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
  return std::make_unique<ModelSpecOf<BigBird, BigBirdConfig>>(bigbird_preset(preset),
                                                               defaults_of(preset));
}

}  // namespace

BigBird::BigBird(const BigBirdConfig& config, const Init& init)
    : Encoder(kName, config, multi_heads(kName, config, init), init),
      config_(config),
      patterns_(kName, config, config.n_layer, config.n_head, config.n_max, config.causal) {
  // These heads need rows that attend to the whole text; the first row, for classes, would see only
  // itself.
  require(!config.causal || (config.classes == 0 && !config.span_head), kName,
          "classes = {} and span_head = {} with causal = true; heads of classes and spans need "
          "causal = false",
          config.classes, config.span_head);
}

LayerContext BigBird::layer_context(const EncoderInputs& in) const {
  LayerContext seen;
  seen.layer_patterns = patterns_.of(in.tokens.dim(1), in.lengths);
  return seen;
}

Objective BigBird::objective() const {
  return config_.causal ? Objective::next_token : Objective::masked_token;
}

int64_t BigBird::mask_token() const { return config_.causal ? -1 : Encoder::mask_token(); }

std::unique_ptr<DecodeState> BigBird::start_decoding(int64_t batch) const {
  require<NotImplemented>(config_.causal, kName, "decoding needs causal = true");
  return std::make_unique<StreamState>(batch);
}

Tensor BigBird::decode(const Tensor& tokens, DecodeState& opaque) const {
  StreamState& state = StreamState::of(opaque, kName, tokens);
  LayerContext seen;
  seen.layer_patterns = patterns_.rows(state.position, state.position + tokens.dim(1));
  return decode_rows(tokens, std::move(seen), state);
}

BigBirdConfig bigbird_preset(std::string_view name) {
  BigBirdConfig c;
  c.activation = Activation::gelu_tanh;
  c.emb_dropout_first = true;
  if (name == "small" || name == "causal") {
    // Differs from the paper because it learns more in few steps; docs/bigbird.md.
    c.n_max = 1024;
    c.block = 16;
    c.dropout = 0;
    c.init_std = 0.05;
    c.position_init = PositionInit::sinusoid;
    c.causal = name == "causal";
    return c;
  }
  if (name == "tiny") {
    c.vocab = 23;
    c.n_layer = c.n_head = 2;
    c.d_model = 16;
    c.d_ff = 32;
    c.n_max = 64;
    c.block = 4;
    c.n_random = 2;
    c.dropout = 0;
    return c;
  }
  if (name == "motif") {
    c.vocab = (1 << 2 * 6) + 1;  // MotifTask::vocabulary() of 6 bases a token
    c.n_layer = 2;
    c.d_model = 64;
    c.d_ff = 128;
    c.n_max = 1536;
    c.block = 16;
    c.dropout = 0;
    c.init_std = 0.05;
    c.position_init = PositionInit::sinusoid;
    c.norm = NormPlace::pre;  // post-norm needs more steps; docs/bigbird.md
    c.mlm_head = false;
    c.classes = 1;
    return c;
  }
  c.vocab = 50'358;
  c.mask_id = 67;  // of the released vocabulary
  c.token_types = 2;
  c.n_layer = c.n_head = 12;
  c.d_model = 768;
  c.d_ff = 3072;
  c.n_max = 4096;
  if (name == "base") return c;
  if (name == "dna" || name == "promoter" || name == "chromatin") {
    c.vocab = 32'000;
    c.mask_id = -1;
    if (name != "dna") c.classes = name == "promoter" ? 1 : 919;
    return c;
  }
  require(name == "large", kName, "there is no preset \"{}\"", name);
  c.n_layer = 24;
  c.n_head = 16;
  c.d_model = 1024;
  c.d_ff = 4096;
  return c;
}

const ModelEntry& bigbird_entry() {
  static const ModelEntry entry{
      kName, "encoder over blocks: window, random and global ones; linear in the length", presets,
      make};
  return entry;
}

}  // namespace longspan
