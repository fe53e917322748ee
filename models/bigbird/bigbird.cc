// BigBird, Zaheer et al. 2020 (2007.14062): attention over blocks of b tokens. Every row of blocks
// attends to its neighbours (window), to r blocks drawn once (random), and to the first and the
// last block, which attend to everything (global).
//
// The paper's appendix makes the first blocks global and lets the window wrap around. The released
// code, which this file follows, takes the first and the last and does not wrap. The released code
// also draws all random blocks from the first 1,024 tokens at the lengths of the paper (first_1024)
// and may count a block twice; here a row counts each block once, unless its blocks are given and
// count_repeats is set.

#include "models/bigbird/bigbird.h"

#include <algorithm>
#include <utility>

#include "models/model_spec.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kBigBird = "bigbird";
constexpr TrainingDefaults bigbird_few_steps{
    .length = 1024, .batch = 2, .steps = 800, .lr = 2e-3, .warmup = 80, .clip = 1};

constexpr Preset bigbird_presets[] = {
    // Differs from the paper because it learns more in few steps; docs/bigbird.md.
    {"small", "4 layers of 128, blocks of 16, length 1024; masked bytes in minutes", "",
     "activation=gelu_tanh emb_dropout_first=true n_max=1024 block=16 dropout=0 init_std=0.05 "
     "position_init=sinusoid",
     bigbird_few_steps},
    {"causal", "small as a language model: random blocks of the past", "small", "causal=true",
     bigbird_few_steps},
    {"tiny",
     "2 layers of 16, blocks of 4, 2 random blocks, 23 tokens; for tests",
     "",
     "activation=gelu_tanh emb_dropout_first=true vocab=23 n_layer=2 n_head=2 d_model=16 d_ff=32 "
     "n_max=64 block=4 n_random=2 dropout=0",
     {.length = 45, .batch = 4, .steps = 200}},
    // The mask token is that of the released vocabulary.
    {"base", "12 layers of 768, blocks of 64, 3 random blocks, length 4096", "",
     "activation=gelu_tanh emb_dropout_first=true vocab=50358 mask_id=67 token_types=2 n_layer=12 "
     "n_head=12 d_model=768 d_ff=3072 n_max=4096",
     bigbird_training(256)},
    {"large", "24 layers of 1024, blocks of 64, 3 random blocks, length 4096", "base",
     "n_layer=24 n_head=16 d_model=1024 d_ff=4096", bigbird_training(2048)},
    {"dna", "the base model with 32,000 tokens, for pieces of genomes", "base",
     "vocab=32000 mask_id=-1", bigbird_training(256)},
    {"promoter", "dna with one yes-or-no answer", "dna", "classes=1", bigbird_training(256)},
    {"chromatin", "dna with 919 yes-or-no answers", "dna", "classes=919", bigbird_training(256)},
    // The vocabulary is MotifTask::vocabulary() of 6 bases a token; post-norm needs more steps
    // (docs/bigbird.md).
    {"motif",
     "2 layers of 64 over runs of 6 bases, one answer; learns motif-dna in minutes",
     "",
     "activation=gelu_tanh emb_dropout_first=true vocab=4097 n_layer=2 d_model=64 d_ff=128 "
     "n_max=1536 block=16 dropout=0 init_std=0.05 position_init=sinusoid norm=pre mlm_head=false "
     "classes=1",
     {.length = 512, .batch = 16, .steps = 600, .lr = 2e-3, .warmup = 40, .clip = 1}},
};

std::unique_ptr<ModelSpec> bigbird_spec(std::string_view preset) {
  return preset_spec<BigBird, BigBirdConfig>(kBigBird, bigbird_presets, preset);
}

}  // namespace

BigBird::BigBird(const BigBirdConfig& config, const Init& init)
    : Encoder(kBigBird, config, multi_heads(kBigBird, config, init), init),
      config_(config),
      patterns_(kBigBird, config, config.n_layer, config.n_head, config.n_max, config.causal) {
  // These heads need rows that attend to the whole text; the first row, for classes, would see only
  // itself.
  require(!config.causal || (config.classes == 0 && !config.span_head), kBigBird,
          "classes = {} and span_head = {} with causal = true; heads of classes and spans need "
          "causal = false",
          config.classes, config.span_head);
  if (!config.span_block) return;
  const Scheme weights = Scheme::truncated_normal(config.init_std);
  span_block_ = std::make_unique<FeedForward>(FeedForwardOptions{.d_model = config.d_model,
                                                                 .d_ff = config.d_ff,
                                                                 .activation = config.activation,
                                                                 .weights = weights,
                                                                 .out_weights = weights},
                                              init.at("span_block"));
  span_norm_ = {NormKind::layer, config.d_model, config.norm_eps, init.at("span_norm")};
}

void BigBird::visit(Visitor& v) {
  Encoder::visit(v);
  v("span_block", span_block_)("span_norm", span_norm_);
}

Tensor BigBird::question_of(const Tensor& tokens) const {
  const int64_t batch = tokens.dim(0), length = tokens.dim(1);
  const std::vector<int64_t> ends = first_places(tokens, config_.separator_id);
  std::vector<uint8_t> mask(static_cast<size_t>(batch * length), 0);
  for (int64_t b = 0; b < batch && length > 0; ++b) {
    const int64_t end = std::max<int64_t>(ends[static_cast<size_t>(b)], 0);
    std::fill_n(mask.begin() + b * length, end + 1, 1);
  }
  return Tensor::from(mask, {batch, length}, tokens.device());
}

SpanLogits BigBird::span_logits(const EncoderInputs& in, Pass pass) const {
  EncoderInputs typed = in;
  Tensor question;
  if (config_.separator_id >= 0) question = question_of(in.tokens);
  if (question && config_.token_types > 1 && !in.types) {
    typed.types = equal(question, zeros_like(question));
  }
  Tensor x = forward(typed, undivided(kBigBird, pass));
  if (config_.span_block) {
    const Tensor in_head = dropout(x, config_.dropout, pass.at("span_block"));
    const Tensor y = span_block_->forward(in_head, {}, pass.at("span_block")).y;
    x = span_norm_.forward(add(dropout(y, config_.dropout, pass.at("span_norm")), x));
  }
  SpanLogits logits = spans(x, in.lengths, pass);
  if (!question) return logits;
  for (Tensor* side : {&logits.start, &logits.end}) {
    const Tensor others = slice(sub(*side, 1e6), 1, 1);
    const Tensor moved = concat({slice(*side, 1, 0, 1), others}, 1);
    *side = where(question, moved, *side);
  }
  return logits;
}

LayerContext BigBird::layer_context(const EncoderInputs& in, Pass pass) const {
  LayerContext seen;
  seen.layer_patterns = patterns_.of(in.tokens.dim(1), in.lengths, pass.training);
  if (const Tensor hidden = hidden_tokens(kBigBird, in)) {
    for (AttentionPattern& p : seen.layer_patterns) p = with_hidden_keys(std::move(p), hidden);
  }
  return seen;
}

Objective BigBird::objective() const {
  return config_.causal ? Objective::next_token : Objective::masked_token;
}

int64_t BigBird::mask_token() const { return config_.causal ? -1 : Encoder::mask_token(); }

std::unique_ptr<DecodeState> BigBird::start_decoding(int64_t batch) const {
  require<NotImplemented>(config_.causal, kBigBird, "decoding needs causal = true");
  return std::make_unique<StreamState>(batch);
}

Tensor BigBird::decode(const Tensor& tokens, DecodeState& opaque) const {
  StreamState& state = StreamState::of(opaque, kBigBird, tokens);
  LayerContext seen;
  seen.layer_patterns = patterns_.rows(state.position, state.position + tokens.dim(1));
  return decode_rows(tokens, std::move(seen), state);
}

BigBirdConfig bigbird_preset(std::string_view name) {
  return preset_of<BigBirdConfig>(kBigBird, bigbird_presets, name);
}

const ModelEntry& bigbird_entry() {
  static const ModelEntry entry{
      kBigBird, "encoder over blocks: window, random and global ones; linear in the length",
      bigbird_presets, bigbird_spec};
  return entry;
}

}  // namespace longspan
