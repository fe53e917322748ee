// Transformer-XL, Dai et al. 2019 (1901.02860): segments that attend to the states of earlier ones,
// and positions that are relative, so that a state keeps its meaning in the next segment.
//
//   pairs of a head    sum_i min(M + 1 + i, W)
//
// The last token of a segment depends on exactly the N M + L - 1 tokens before it (M a multiple of
// L). The authors' code also stores the output of the last layer, which nothing reads.

#include "models/transformer_xl/transformer_xl.h"

#include <algorithm>

#include "ops/random.h"

namespace longspan {
namespace {

constexpr const char* kTransformerXL = "transformer_xl";

constexpr TrainingDefaults transformer_xl_published(int64_t length, int64_t batch, int64_t steps,
                                                    int64_t warmup, double lr = 2.5e-4) {
  return {.length = length,
          .batch = batch,
          .steps = steps,
          .lr = lr,
          .warmup = warmup,
          .lr_floor = 0,
          .clip = 0.25};
}

constexpr Preset transformer_xl_presets[] = {
    {"small", "4 layers of 128, a memory of 128; trains on bytes in minutes", "", "", {}},
    {"tiny",
     "2 layers of 12, a memory of 6, 17 tokens; for tests",
     "",
     "vocab=17 n_layer=2 n_head=3 d_model=12 d_head=4 d_ff=20 mem_len=6",
     {.length = 6, .batch = 2, .steps = 200}},
    {"enwik8_base", "12 layers of 512, memory and segments of 512", "",
     "vocab=204 n_layer=12 n_head=8 d_model=512 d_ff=2048 mem_len=512 dropout=0.1",
     transformer_xl_published(512, 22, 400'000, 0)},
    {"enwik8_large", "24 layers of 1024, memory and segments of 768", "enwik8_base",
     "n_layer=24 d_model=1024 d_head=128 d_ff=3072 mem_len=768 dropout=0.15 dropout_attn=0.15",
     transformer_xl_published(768, 64, 400'000, 4000)},
    {"wikitext103_base", "16 layers of 410, words in 4 clusters, memory and segments of 150", "",
     "vocab=267735 n_layer=16 n_head=10 d_model=410 d_ff=2100 mem_len=150 dropout=0.1 "
     "untie_biases=true cutoffs=20000,40000,200000",
     transformer_xl_published(150, 60, 200'000, 0)},
    {"wikitext103_large", "18 layers of 1024, words in 4 clusters, memory and segments of 384",
     "wikitext103_base",
     "n_layer=18 n_head=16 d_model=1024 d_ff=4096 mem_len=384 dropout=0.2 dropout_attn=0.2 "
     "div_value=4 tie_projections=1,2,3",
     transformer_xl_published(384, 128, 4'000'000, 16'000)},
    {"lm1b_base", "18 layers of 1024, words in 4 clusters, memory and segments of 32", "",
     "vocab=793471 n_layer=18 n_head=8 d_model=1024 d_ff=4096 mem_len=32 "
     "cutoffs=60000,100000,640000 div_value=4",
     transformer_xl_published(32, 224, 500'000, 20'000)},
    {"lm1b_large", "24 layers of 1280, words in 4 clusters, memory and segments of 32", "lm1b_base",
     "n_layer=24 n_head=16 d_model=1280 d_ff=8192 dropout=0.05 dropout_attn=0.05",
     transformer_xl_published(32, 512, 1'200'000, 30'000, 1e-4)},
};

std::unique_ptr<ModelSpec> transformer_xl_spec(std::string_view preset) {
  return preset_spec<TransformerXL, TransformerXLConfig>(kTransformerXL, transformer_xl_presets,
                                                         preset);
}

void require_consistent(const TransformerXLConfig& c) {
  check_fields(kTransformerXL, c);
  if (c.d_head == 0) require_heads(kTransformerXL, c.d_model, c.n_head);
  require(c.d_model % 2 == 0, kTransformerXL,
          "d_model is {}; expected an even number, for sinusoids", c.d_model);
  require(!c.phantom_zero_memory || c.mem_len > 0, kTransformerXL,
          "phantom_zero_memory needs a memory; set mem_len");
}

/// The largest distance that positions tell apart.
int64_t reach(const TransformerXLConfig& c) {
  const int64_t seen = c.window > 0 ? c.window - 1 : kUnlimited;
  return c.clamp > 0 ? std::min(c.clamp, seen) : seen;
}

DecoderOptions decoder_of(const TransformerXLConfig& c) {
  require_consistent(c);
  DecoderOptions o = decoder_options(kTransformerXL, c);
  o.token = Scheme::normal(c.embed_std > 0 ? c.embed_std : c.init_std);
  o.classifier = Scheme::normal(c.init_std);
  o.tie_embedding = c.tie_embedding;
  o.head_bias = c.head_bias;
  o.emb_scale = c.emb_scale;
  o.phantom_zero_memory = c.phantom_zero_memory;
  o.cutoffs = c.cutoffs;
  o.div_value = c.div_value;
  o.tie_projections = c.tie_projections;
  o.projections = Scheme::normal(0.01);
  o.dropout = c.dropout;
  return o;
}

}  // namespace

TransformerXL::TransformerXL(const TransformerXLConfig& config, const Init& init)
    : CausalDecoder(decoder_of(config), init), config_(config) {
  const TransformerXLConfig& c = config_;
  const Scheme weights = Scheme::normal(c.init_std);
  const auto bias = [&](const Init& at) { return at.make({c.n_head, head_width(c)}, weights); };
  if (!c.untie_biases) {
    u_ = bias(init.at("u"));
    v_ = bias(init.at("v"));
  }
  const int64_t usual = 2 * std::min<int64_t>(c.mem_len, 1 << 13) + 2048;  // keys of a segment
  distances_ = DistanceTable(reach(c), c.d_model, init, usual);
  const AttentionOptions options{.d_model = c.d_model,
                                 .n_head = c.n_head,
                                 .d_head = head_width(c),
                                 .dropout = c.dropout_attn,
                                 .weights = weights,
                                 .out_weights = weights};
  std::vector<std::unique_ptr<Layer>> attention;
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const Init at = attention_init(init, i);
    attention.push_back(std::make_unique<RelativeMultiHead>(
        options, reach(c), c.untie_biases ? bias(at.at("u")) : u_,
        c.untie_biases ? bias(at.at("v")) : v_, at, c.untie_biases));
  }
  stack_ = attention_stack({.ff = {.d_model = c.d_model,
                                   .d_ff = c.d_ff,
                                   .activation = Activation::relu,
                                   .dropout = c.dropout,
                                   .weights = weights,
                                   .out_weights = weights},
                            .norm = c.norm,
                            .norm_eps = c.norm_eps,
                            .final_norm = c.final_norm,
                            .dropout = c.dropout,
                            .memory = c.memory},
                           std::move(attention), init);
}

void TransformerXL::visit_more(Visitor& v) { v("u", u_)("v", v_); }

LayerContext TransformerXL::layer_context(int64_t /*queries*/, int64_t keys,
                                          int64_t /*first_key*/) const {
  LayerContext ctx;
  ctx.pattern = config_.window > 0 ? patterns::local(config_.window) : patterns::causal();
  ctx.own.set(Distances{distances_.rows(keys)});
  return ctx;
}

int64_t TransformerXL::first_visible(int64_t position) const {
  const int64_t seen = config_.window > 0 ? config_.window - 1 : kUnlimited;
  return std::max<int64_t>(position - std::min(seen, config_.mem_len), 0);
}

Stack::Result TransformerXL::run(const Tensor& x, const LayerContext& ctx, StreamState* state,
                                 Pass pass) const {
  LayerContext dropped = ctx;
  const Tensor& all = ctx.own.find<Distances>()->sinusoids;
  Pass positions = pass.at("positions");
  positions.row = 0;  // distances are not rows of the batch
  dropped.own.set(Distances{dropout(all, config_.dropout, positions)});
  Stack::Result result = CausalDecoder::run(x, dropped, state, pass);
  result.y = dropout(result.y, config_.dropout, pass.at("final"));
  return result;
}

TransformerXLConfig transformer_xl_preset(std::string_view name) {
  return preset_of<TransformerXLConfig>(kTransformerXL, transformer_xl_presets, name);
}

const ModelEntry& transformer_xl_entry() {
  static const ModelEntry entry{
      kTransformerXL,
      "causal language model with a memory of earlier segments and relative positions",
      transformer_xl_presets, transformer_xl_spec};
  return entry;
}

}  // namespace longspan
