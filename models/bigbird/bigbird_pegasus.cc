// BigBird as an encoder-decoder, Zaheer et al. 2020 (2007.14062), sec. 4.1 and appendix E: sparse
// attention in the encoder, whose input is long, and full attention in the decoder.
//
// The coupling follows the released code, whose decoder shares the encoder's variables of the same
// name; the paper does not specify it.

#include "models/bigbird/bigbird_pegasus.h"

#include <cmath>

#include "models/evaluate.h"
#include "models/model_spec.h"
#include "nn/objective.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"

namespace longspan {
namespace {

constexpr const char* kBigBirdPegasus = "bigbird_pegasus";

constexpr TrainingDefaults bigbird_pegasus_few_steps{
    .length = 1024, .batch = 4, .steps = 600, .lr = 1e-3, .clip = 1};
/// Appendix E: Adam at 1e-5, Adafactor at 1e-4, each with a warm-up of 10,000 steps.
constexpr TrainingDefaults bigbird_pegasus_published(double rate) {
  return {.length = 3072,
          .batch = 128,
          .steps = 100'000,
          .lr = rate,
          .warmup = 10'000,
          .lr_floor = 0,
          .clip = 1};
}

constexpr Preset bigbird_pegasus_presets[] = {
    // Few steps learn more without dropout and with wider initialization. The token table is also
    // the head's: with a wide one the initial model predicts each token to repeat.
    {"small", "2 + 2 layers of 128, sources of 1024 in blocks of 16", "",
     "block=16 dropout=0 init_std=0.05 embed_std=0.02", bigbird_pegasus_few_steps},
    {"summaries", "small for summaries of 1280 out of 4096 tokens", "",
     "block=16 dropout=0 init_std=0.05 vocab=4096 n_max_target=1280", bigbird_pegasus_few_steps},
    {"coupled", "small with the base's shape: one set of parameters, post-norm", "",
     "block=16 dropout=0 init_std=0.05 couple=true bias=true emb_norm=true emb_scale=false "
     "norm=post norm_eps=1e-12",
     bigbird_pegasus_few_steps},
    {"tiny",
     "2 + 2 layers of 16, blocks of 4, 23 tokens; for tests",
     "",
     "vocab=23 n_head=2 d_model=16 d_ff=32 n_max=64 n_max_target=24 block=4 n_random=2 dropout=0",
     {.length = 45, .batch = 4, .steps = 200}},
    {"base", "12 + 12 coupled layers of 768, sources of 4096, starts from RoBERTa", "",
     "couple=true bias=true emb_norm=true emb_scale=false norm=post norm_eps=1e-12 n_max=4096 "
     "vocab=50358 n_layer=12 n_head=12 d_model=768 d_ff=3072",
     bigbird_pegasus_published(1e-5)},
    {"large", "16 + 16 layers of 1024, sources of 4096, starts from Pegasus", "",
     "n_max=4096 vocab=96103 n_layer=16 n_head=16 d_model=1024 d_ff=4096",
     bigbird_pegasus_published(1e-4)},
};

std::unique_ptr<ModelSpec> bigbird_pegasus_spec(std::string_view preset) {
  return preset_spec<BigBirdPegasus, BigBirdPegasusConfig>(kBigBirdPegasus, bigbird_pegasus_presets,
                                                           preset);
}

/// Returns -sum_v q_v log q_v for a target with 1 - s at one of V classes and s spread over the
/// others.
double entropy(double s, int64_t vocab) {
  if (s == 0) return 0;
  return -(1 - s) * std::log(1 - s) - s * std::log(s / static_cast<double>(vocab - 1));
}

TransformerConfig shell_of(const BigBirdPegasusConfig& c) {
  require(c.vocab >= 2, kBigBirdPegasus, "vocab is {}; expected 2 or more", c.vocab);
  require(!c.couple || c.n_max_target <= c.n_max, kBigBirdPegasus,
          "n_max_target is {}, and with couple both sides have one table of n_max = {} positions",
          c.n_max_target, c.n_max);
  TransformerConfig t = transformer_preset("bart");
  t.vocab = c.vocab;
  t.n_layer = c.n_layer;
  t.n_head = c.n_head;
  t.d_model = c.d_model;
  t.d_ff = c.d_ff;
  t.target_n_layer = c.target_n_layer;
  t.target_n_head = c.target_n_head;
  t.target_d_ff = c.target_d_ff;
  t.padding_id = c.padding_id;
  t.constant_bias = c.constant_bias;
  t.tie_embedding = c.tie_embedding;
  t.source_vocab = c.tie_embedding ? 0 : c.vocab;
  t.couple = c.couple;
  t.source_tables = !c.couple;
  t.n_max = c.couple ? c.n_max : c.n_max_target;
  t.source_n_max = c.couple ? 0 : c.n_max;
  t.position_offset = 0;
  t.norm = c.norm;
  t.norm_eps = c.norm_eps;
  t.activation = c.activation;
  t.qkv_bias = t.out_bias = c.bias;
  t.emb_scale = c.emb_scale;
  t.emb_norm = c.emb_norm;
  t.dropout = c.dropout;
  t.dropout_attn = c.dropout_attn;
  t.dropout_ffn_act = c.dropout_ffn_act;
  // TransformerConfig spreads its smoothing over all V classes: s / (V - 1) for each other class is
  // s V / (V - 1).
  t.label_smoothing =
      c.label_smoothing * static_cast<double>(c.vocab) / static_cast<double>(c.vocab - 1);
  t.init_std = c.init_std;
  t.embed_std = c.embed_std;
  t.precision = c.precision;
  t.token_head = c.token_head;
  t.memory = c.memory;
  return t;
}

}  // namespace

BigBirdPegasus::BigBirdPegasus(const BigBirdPegasusConfig& config, const Init& init)
    : EncoderDecoder(kBigBirdPegasus, shell_of(config), init),
      config_(config),
      patterns_(kBigBirdPegasus, config, config.n_layer, config.n_head, config.n_max) {}

LayerContext BigBirdPegasus::layer_context(const SequenceInputs& in, Pass pass) const {
  require(!in.global, kBigBirdPegasus,
          "global tokens are the first and the last block; expected none");
  LayerContext seen;
  seen.layer_patterns = patterns_.of(in.source.dim(1), in.lengths, pass.training);
  if (const Tensor hidden = hidden_tokens(in)) {
    for (AttentionPattern& p : seen.layer_patterns) p = with_hidden_keys(std::move(p), hidden);
  }
  return seen;
}

Tensor BigBirdPegasus::loss(const Tensor& hidden, const Tensor& targets, Pass pass) const {
  if (!pass.training) return EncoderDecoder::loss(hidden, targets, pass);
  const double least = entropy(config_.label_smoothing, config_.vocab);
  const int64_t counted = config_.count_pad_loss ? count_targets(targets) : 0;
  const Tensor ignored = equal(targets, full_like(targets, ignored_target));
  if (counted == 0) {
    const Tensor counts = where(ignored, zeros_like(targets), full_like(targets, 1));
    const Tensor loss = EncoderDecoder::loss(hidden, targets, pass);
    const Tensor any = clamp(sum(cast(counts, loss.dtype())), 0, 1);  // 0 if no target counts, so
                                                                      // that the loss is 0
    return sub(loss, mul(any, least));
  }
  const Tensor all = where(ignored, zeros_like(targets), targets);
  return mul(add(EncoderDecoder::loss(hidden, all, pass), -least),
             static_cast<double>(targets.numel()) / static_cast<double>(counted));
}

BigBirdPegasusConfig bigbird_pegasus_preset(std::string_view name) {
  return preset_of<BigBirdPegasusConfig>(kBigBirdPegasus, bigbird_pegasus_presets, name);
}

const ModelEntry& bigbird_pegasus_entry() {
  static const ModelEntry entry{
      kBigBirdPegasus, "encoder-decoder over long sources: BigBird's encoder, dense decoder",
      bigbird_pegasus_presets, bigbird_pegasus_spec};
  return entry;
}

}  // namespace longspan
