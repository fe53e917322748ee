// Expire-Span, Sukhbaatar et al. 2021 (2105.06548): every memory says how long it lives, and pays
// for it.
//
//   visible steps of a memory    ceil(e) + R - 1
//
// The numbers of the paper come from the authors' code, which this page follows where the two
// differ: the penalty is paid while memories expire (span_loss), shortened spans keep their ramp
// and delete nothing (shorten), and no memory is kept for a least number of steps (always_keep).
// Four things differ from that code. Weights are not divided by their sum plus 1e-8, but by their
// sum: the 1e-8 counts where the masks of all visible memories are near 0. Samples delete their
// memories each for itself, where that code deletes equally many of each. A layer that is left out
// pays for its memories. The number of positions P is an option of its own, not the length of a
// segment.

#include "models/expire_span/expire_span.h"

#include <algorithm>
#include <cmath>

#include "autograd/mode.h"
#include "core/scope.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kExpireSpan = "expire_span";

constexpr TrainingDefaults expire_span_published(int64_t length, int64_t batch, double lr,
                                                 int64_t warmup, double clip,
                                                 int64_t steps = 100'000) {
  return {.length = length,
          .batch = batch,
          .steps = steps,
          .lr = lr,
          .warmup = warmup,
          .lr_floor = 1,
          .clip = clip};
}

// The published runs bound no memory. Here max_memory does, because rows have a fixed place: it is
// more than twice what their memories hold at first.
constexpr Preset expire_span_presets[] = {
    {"small",
     "4 layers of 128, spans up to 1024; trains on bytes in minutes",
     "",
     "span_penalty=1e-5 norm=pre head_std=0.02 max_memory=256 overflow=drop",
     {.clip = 0.3}},
    {"tiny",
     "2 layers of 8, spans up to 12, 11 tokens; for tests",
     "",
     "vocab=11 n_layer=2 n_head=2 d_model=8 d_ff=16 span_max=12 span_ramp=3 span_init=0.3 "
     "span_penalty=1 positions=4",
     {.length = 4, .batch = 2, .steps = 200}},
    {"corridor",
     "1 layer of 64, spans up to 1050, all as long at first: marks in noise",
     "",
     "vocab=19 n_layer=1 d_model=64 d_ff=128 span_max=1050 span_init=0.995 span_penalty=1e-5 "
     "pre_div=0.25 positions=4 norm=pre head_std=0.02",
     {.length = 128, .batch = 32, .steps = 640, .lr = 3e-3, .warmup = 10, .clip = 0.3}},
    {"enwik8_8", "8 layers of 256, spans up to 4096", "",
     "vocab=205 n_layer=8 n_head=4 d_model=256 d_ff=1024 span_max=4096 span_ramp=64 "
     "span_penalty=1e-6 pre_div=64 positions=256 max_memory=1024 overflow=drop",
     expire_span_published(256, 64, 3e-4, 8000, 0.3)},
    {"enwik8_12", "12 layers of 512, spans up to 16384", "",
     "vocab=205 n_layer=12 n_head=8 d_model=512 d_ff=2048 span_max=16384 span_ramp=128 "
     "span_penalty=1e-6 positions=512 shorten=true dropout=0.3 max_memory=4096 overflow=drop",
     expire_span_published(512, 512, 7e-4, 8000, 0.3, 110'000)},
    {"collision_16k", "6 layers of 512, spans up to 16384: object collision", "",
     "vocab=42 n_layer=6 n_head=4 d_model=512 d_ff=1024 span_max=16384 span_ramp=128 "
     "span_init=0.01 span_penalty=2e-6 positions=256 norm=pre dropout=0.1 max_memory=1024 "
     "overflow=drop",
     expire_span_published(256, 512, 1e-4, 1000, 0.1)},
    {"collision_32k", "6 layers of 512, spans up to 32768: object collision", "collision_16k",
     "span_max=32768 max_memory=2048", expire_span_published(256, 512, 1e-4, 1000, 0.1)},
    {"collision_64k", "6 layers of 512, spans up to 65536: object collision", "collision_16k",
     "span_max=65536 max_memory=2048 shorten=true",
     expire_span_published(256, 512, 1e-4, 1000, 0.1)},
};

std::unique_ptr<ModelSpec> expire_span_spec(std::string_view preset) {
  return preset_spec<ExpireSpan, ExpireSpanConfig>(kExpireSpan, expire_span_presets, preset);
}

void check_spans(const ExpireSpanConfig& c) {
  require(std::isfinite(c.span_ramp) && c.span_ramp >= 1, kExpireSpan,
          "span_ramp is {}; expected 1 or more", c.span_ramp);
  require(c.span_init > 0 && c.span_init < 1, kExpireSpan,
          "span_init is {}; expected a share of span_max between 0 and 1", c.span_init);
  require(std::isfinite(c.pre_div) && c.pre_div > 0, kExpireSpan,
          "pre_div is {}; expected more than 0", c.pre_div);
  const int64_t newest = std::max(c.positions, c.always_keep);
  require(c.max_memory == 0 || c.max_memory >= newest, kExpireSpan,
          "max_memory is {}; expected 0, or at least positions = {} and always_keep = {}",
          c.max_memory, c.positions, c.always_keep);
}

void require_consistent(const ExpireSpanConfig& c) {
  check_fields(kExpireSpan, c);
  if (c.d_head == 0) require_heads(kExpireSpan, c.d_model, c.n_head);
  check_spans(c);
  require(c.layer_drop == 0 || !is_reversible(c.memory), kExpireSpan,
          "layer_drop is {}, but reversible layers are never left out; set one of layer_drop and "
          "memory to its default",
          c.layer_drop);
}

DecoderOptions decoder_of(const ExpireSpanConfig& c) {
  require_consistent(c);
  DecoderOptions o = decoder_options(kExpireSpan, c);
  o.token = Scheme::normal(1);
  o.classifier = c.head_std > 0 ? Scheme::normal(c.head_std) : uniform_of(c.d_model);
  o.bias = c.head_std > 0 ? Scheme::zeros() : uniform_of(c.d_model);
  o.tie_embedding = c.tie_embedding;
  o.head_bias = c.head_bias;
  o.emb_scale = c.emb_scale;
  o.phantom_zero_memory = c.phantom_zero_memory > 0;
  return o;
}

ExpireOptions spans_of(const ExpireSpanConfig& c) {
  return {.most = c.span_max,
          .ramp = c.span_ramp,
          .start = c.span_init,
          .pre_div = c.pre_div,
          .always_keep = c.always_keep,
          .capacity = c.max_memory,
          .overflow = c.overflow,
          .penalty = c.span_penalty,
          .loss = c.span_loss};
}

}  // namespace

ExpireSpan::ExpireSpan(const ExpireSpanConfig& config, const Init& init)
    : CausalDecoder(decoder_of(config), init), config_(config) {
  const ExpireSpanConfig& c = config_;
  const int64_t width = head_width(c);
  if (c.positions > 0) {
    positions_ = init.at("positions").make({c.positions, width}, Scheme::normal(1));
  }
  // What is added to the residual stream begins smaller, the deeper the stack is; with pre-norm.
  const double depth = 2 * static_cast<double>(c.n_layer);
  const double share = c.norm == NormPlace::pre ? 1 / std::sqrt(depth) : 1;
  const AttentionOptions options{.d_model = c.d_model,
                                 .n_head = c.n_head,
                                 .d_head = width,
                                 .dropout = c.dropout,
                                 .weights = uniform_of(c.d_model),
                                 .out_weights = uniform_of(c.n_head * width).scaled(share)};
  std::vector<std::unique_ptr<Layer>> attention;
  for (int64_t i = 0; i < c.n_layer; ++i) {
    auto layer = std::make_unique<ExpireAttention>(options, spans_of(c), positions_,
                                                   attention_init(init, i));
    attention_.push_back(layer.get());
    attention.push_back(std::move(layer));
  }
  require(c.phantom_zero_memory <= memory_length(), kExpireSpan,
          "phantom_zero_memory is {}; expected at most the {} rows of the memory",
          c.phantom_zero_memory, memory_length());
  stack_ = attention_stack({.ff = {.d_model = c.d_model,
                                   .d_ff = c.d_ff,
                                   .activation = Activation::relu,
                                   .dropout = c.dropout,
                                   .weights = uniform_of(c.d_model),
                                   .out_weights = uniform_of(c.d_ff).scaled(share),
                                   .biases = uniform_of(c.d_model),
                                   .out_biases = uniform_of(c.d_ff).scaled(share)},
                            .norm = c.norm,
                            .norm_eps = c.norm_eps,
                            .final_norm = c.final_norm,
                            .memory = c.memory},
                           std::move(attention), init);
  stack_.set_layer_drop(c.layer_drop);
}

namespace {

/// Adds to a memory which of its rows exist and when they were made, before a stream begins.
LayerMemory first_memory(InputRows inputs, ExpiringRows expiring, int64_t batch, int64_t rows,
                         int64_t phantom, Device device) {
  inputs.begin_of_stream = rows - phantom;
  inputs.begin = in_memory(full({batch}, static_cast<double>(rows - phantom), DType::i64, device));
  expiring.births =
      in_memory(clone(expand(ExpiringRows::first_births(rows, device), {batch, rows})));
  return LayerMemory::of(std::move(inputs), std::move(expiring));
}

}  // namespace

SegmentMemory ExpireSpan::empty_memory(int64_t batch) const {
  const int64_t rows = memory_length();
  const Shape shape{batch, rows, config_.d_model};
  SegmentMemory memory;
  for (int64_t i = 0; i < config_.n_layer; ++i) {
    const InputRows inputs{Tensor::zeros(shape, compute(), device(), Category::memory), {}};
    memory.layers.push_back(
        first_memory(inputs, {}, batch, rows, config_.phantom_zero_memory, device()));
  }
  return memory;
}

SegmentMemory ExpireSpan::evaluation_memory(int64_t batch) const {
  if (config_.phantom_zero_memory > 0) return empty_memory(batch);
  const int64_t rows = memory_length();
  const Shape shape{batch, config_.n_head, rows, head_width(config_)};
  const DType spans = compute() == DType::f64 ? DType::f64 : DType::f32;
  SegmentMemory memory;
  for (int64_t i = 0; i < config_.n_layer; ++i) {
    KeyValues kept;
    kept.keys = Tensor::zeros(shape, compute(), device(), Category::memory);
    kept.values = Tensor::zeros(shape, compute(), device(), Category::memory);
    ExpiringRows expiring;
    expiring.spans = Tensor::zeros({batch, rows}, spans, device(), Category::memory);
    LayerMemory m = first_memory({}, expiring, batch, rows, 0, device());
    m.set(kept);
    memory.layers.push_back(std::move(m));
  }
  return memory;
}

/// Layers make their own pattern.
LayerContext ExpireSpan::layer_context(int64_t /*queries*/, int64_t /*keys*/,
                                       int64_t /*first_key*/) const {
  return {};
}

Stack::Result ExpireSpan::run(const Tensor& x, const LayerContext& ctx, StreamState* state,
                              Pass pass) const {
  if (!pass.training || !config_.shorten) return CausalDecoder::run(x, ctx, state, pass);
  LayerContext all = ctx;
  const DType dtype = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  // One draw for all layers and samples.
  all.own.set(SpanLimit{uniform({1}, pass.at("shorten").gen, 0,
                                static_cast<double>(config_.span_max), dtype, x.device())});
  return CausalDecoder::run(x, all, state, pass);
}

std::unique_ptr<DecodeState> ExpireSpan::start_decoding(int64_t batch) const {
  auto state = std::make_unique<StreamState>(batch);
  const Shape shape{batch, config_.phantom_zero_memory, config_.d_model};
  for (int64_t i = 0; i < config_.n_layer && config_.phantom_zero_memory > 0; ++i) {
    const Tensor rows = Tensor::zeros(shape, compute(), device(), Category::memory);
    state->memory.layers.push_back(LayerMemory::of(InputRows{.states = rows}));
  }
  return state;
}

AttentionOutline ExpireSpan::attention_outline(int64_t layer, int64_t length) const {
  const int64_t far = std::min(attention_.front()->reach(), std::max<int64_t>(length - 1, 1));
  LayerContext ctx;
  ctx.pattern = patterns::dilated(far, -1, 1);
  return outline_of(ctx, layer, config_.n_head, length, length);
}

Tensor ExpireSpan::read(int64_t i, const Tensor& x) const {
  return config_.norm == NormPlace::pre ? stack_.block(i).branch("attention").norm.forward(x) : x;
}

std::vector<Tensor> ExpireSpan::token_spans(const Tensor& tokens,
                                            const SegmentMemory& memory) const {
  const NoGrad off;
  std::vector<Tensor> inputs{embedded(tokens, 0, Pass{})}, all;
  stack_.forward(inputs[0], {}, memory, Pass{}, &inputs);
  for (int64_t i = 0; i < config_.n_layer; ++i) {
    const auto at = static_cast<size_t>(i);
    all.push_back(attention_[at]->spans({}, read(i, inputs[at])));
  }
  return all;
}

std::vector<double> ExpireSpan::living(const SegmentMemory& memory) const {
  const NoGrad off;
  std::vector<double> all;
  for (size_t i = 0; i < memory.layers.size(); ++i) {
    LayerMemory m = memory.layers[i];
    if (InputRows rows = m.get<InputRows>(); rows.states) {
      rows.states = read(static_cast<int64_t>(i), rows.states);
      m.set(std::move(rows));
    }
    const Tensor sees = greater(attention_[i]->lives(m), full({1}, 0, DType::f64, device()));
    const double samples = static_cast<double>(std::max<int64_t>(sees.dim(0), 1));
    all.push_back(sum(cast(sees, DType::f64)).item() / samples);
  }
  return all;
}

std::vector<double> stored_rows(const SegmentMemory& memory) {
  std::vector<double> all;
  for (const LayerMemory& m : memory.layers) {
    const Tensor &begin = m.get<InputRows>().begin, &births = m.get<ExpiringRows>().births;
    require(begin && births, kExpireSpan, "the memory is not one of this model");
    const double rows = static_cast<double>(births.dim(1));
    all.push_back(rows - mean(cast(begin, DType::f64)).item());
  }
  return all;
}

std::string ExpireSpan::remark(int64_t /*length*/) const {
  const ExpireSpanConfig& c = config_;
  return fmt::format(
      "memories live up to {} steps, {:.4g} at first, on a ramp of {:.4g}; layers have rows for {}",
      c.span_max, c.span_init * static_cast<double>(c.span_max), c.span_ramp, memory_length());
}

ExpireSpanConfig expire_span_preset(std::string_view name) {
  return preset_of<ExpireSpanConfig>(kExpireSpan, expire_span_presets, name);
}

const ModelEntry& expire_span_entry() {
  static const ModelEntry entry{
      kExpireSpan,
      "causal language model whose memories say how long they live, and are deleted then",
      expire_span_presets, expire_span_spec};
  return entry;
}

}  // namespace longspan
