// Compressive Transformer, Rae et al. 2019 (1911.05507): what falls out of Transformer-XL's memory
// is compressed, c rows into one, and remembered for c times as long.
//
//   pairs of a head    sum_i (C + M + 1 + i)
//
// The last token of a segment depends on exactly N (n_m + c n_cm) + n_s - 1 tokens before it (c a
// divisor of n_s; with eviction = floor, n_s / floor(n_s / c) in place of c), where N counts layers
// with memories. The paper says "relative embeddings as in Transformer-XL" and no more; here a
// compressed row is one step.

#include "models/compressive/compressive.h"

#include <algorithm>

#include "autograd/mode.h"
#include "core/scope.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kCompressive = "compressive";

// The paper gives the learning rate and how it falls, not the steps after that.
constexpr TrainingDefaults compressive_published(int64_t length, int64_t batch, int64_t steps,
                                                 int64_t warmup) {
  return {.length = length,
          .batch = batch,
          .steps = steps,
          .lr = 3e-4,
          .warmup = warmup,
          .lr_floor = 1e-6 / 3e-4,
          .clip = 0.1};
}

constexpr TrainingDefaults with_fewer_updates(TrainingDefaults d, int64_t from, int64_t period) {
  d.update_from = from;
  d.update_period = period;
  return d;
}

constexpr Preset compressive_presets[] = {
    {"small",
     "4 layers of 128, memories of 128 and 64 for 4 rows each; trains on bytes in minutes",
     "",
     "",
     {}},
    {"tiny",
     "2 layers of 12, memories of 4 and 4 for 2 rows each, 17 tokens; for tests",
     "",
     "vocab=17 n_layer=2 n_head=3 d_model=12 d_head=4 d_ff=20 segment=4 mem_len=4 "
     "compressed_len=4 rate=2",
     {.length = 4, .batch = 2, .steps = 200}},
    {"enwik8", "24 layers of 1024, memories of 768 and 1152 for 3 rows each", "",
     "vocab=204 n_layer=24 n_head=8 d_model=1024 d_ff=3072 segment=768 mem_len=768 "
     "compressed_len=1152 rate=3",
     with_fewer_updates(compressive_published(768, 32, 104'000, 4000), 60'000, 4)},
    {"wikitext103", "18 layers of 1024, words in 4 clusters, memories of 512 and 512 for 4 rows",
     "",
     "vocab=267735 n_layer=18 n_head=16 d_model=1024 d_ff=4096 segment=512 mem_len=512 "
     "compressed_len=512 rate=4 untie_biases=true cutoffs=20000,40000,200000 "
     "div_value=4 tie_projections=1,2,3",
     compressive_published(512, 128, 516'000, 16'000)},
};

std::unique_ptr<ModelSpec> compressive_spec(std::string_view preset) {
  return preset_spec<Compressive, CompressiveConfig>(kCompressive, compressive_presets, preset);
}

void require_consistent(const CompressiveConfig& c) {
  check_fields(kCompressive, c);
  if (c.d_head == 0) require_heads(kCompressive, c.d_model, c.n_head);
  for (size_t i = 0; i < c.memory_layers.size(); ++i) {
    const int64_t layer = c.memory_layers[i], least = i == 0 ? 0 : c.memory_layers[i - 1] + 1;
    require(layer >= least && layer < c.n_layer, kCompressive,
            "memory_layers[{}] is {}; expected layers from 0 to {}, ascending", i, layer,
            c.n_layer - 1);
  }
  require(c.d_model % 2 == 0, kCompressive, "d_model is {}; expected an even number, for sinusoids",
          c.d_model);
}

/// The largest distance that positions tell apart.
int64_t reach(const CompressiveConfig& c) { return c.clamp > 0 ? c.clamp : kUnlimited; }

DecoderOptions decoder_of(const CompressiveConfig& c) {
  require_consistent(c);
  DecoderOptions o = decoder_options(kCompressive, c);
  o.token = Scheme::normal(c.embed_std > 0 ? c.embed_std : c.init_std);
  o.classifier = Scheme::normal(c.init_std);
  o.tie_embedding = c.tie_embedding;
  o.head_bias = c.head_bias;
  o.emb_scale = c.emb_scale;
  o.phantom_zero_memory = c.start == MemoryStart::zeros;
  o.cutoffs = c.cutoffs;
  o.div_value = c.div_value;
  o.tie_projections = c.tie_projections;
  o.projections = Scheme::normal(0.01);
  o.dropout = c.dropout;
  return o;
}

CompressiveOptions compressive_of(const CompressiveConfig& c, int64_t layer) {
  return {.queue = c.remembers(layer) ? c.queue() : CompressedQueue{},
          .segment = c.segment,
          .compression = {.function = c.compression,
                          .d_model = c.d_model,
                          .rate = c.rate,
                          .dilation = c.dilation,
                          .start = c.conv_init,
                          .deviation = c.init_std},
          .loss = c.loss,
          .norm = c.loss_norm,
          .history = c.history};
}

}  // namespace

Compressive::Compressive(const CompressiveConfig& config, const Init& init)
    : CausalDecoder(decoder_of(config), init),
      config_(config),
      rows_(config.compressed_len > 0 ? config.queue().capacity() : config.mem_len) {
  const CompressiveConfig& c = config_;
  const Scheme weights = Scheme::normal(c.init_std);
  const auto bias = [&](const Init& at) { return at.make({c.n_head, head_width(c)}, weights); };
  if (!c.untie_biases) {
    u_ = bias(init.at("u"));
    v_ = bias(init.at("v"));
  }
  const int64_t usual = 2 * std::min<int64_t>(rows_, 1 << 13) + 2048;  // keys of a segment
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
    auto layer = std::make_unique<CompressiveAttention>(
        options, compressive_of(c, i), reach(c), c.untie_biases ? bias(at.at("u")) : u_,
        c.untie_biases ? bias(at.at("v")) : v_, at, c.untie_biases);
    attention_.push_back(layer.get());
    attention.push_back(std::move(layer));
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

int64_t Compressive::memory_tokens() const {
  const CompressiveConfig& c = config_;
  const int64_t groups = std::max<int64_t>(c.segment / c.rate, 1);  // of a segment, with floor
  const int64_t of_a_row =
      c.eviction == Eviction::carry ? c.rate : (c.segment + groups - 1) / groups;
  return c.mem_len + of_a_row * c.compressed_len;
}

void Compressive::add_queue(LayerMemory& m, int64_t batch, int64_t phantom,
                            int64_t phantom_fine) const {
  const auto begin_at = [&](int64_t row) {
    return in_memory(full({batch}, static_cast<double>(row), DType::i64, device()));
  };
  InputRows inputs = m.get<InputRows>();
  inputs.begin_of_stream = rows_ - phantom;
  inputs.begin = begin_at(inputs.begin_of_stream);
  m.set(std::move(inputs));
  if (config_.compressed_len == 0) return;
  CompressedRows compressed{.fine_begin_of_stream = rows_ - phantom_fine};
  compressed.fine_begin = begin_at(compressed.fine_begin_of_stream);
  if (config_.compression == Compression::most_used) {
    const DType dtype = accumulator_of(compute());
    compressed.usage = Tensor::zeros({batch, rows_, 2}, dtype, device(), Category::memory);
  }
  m.set(std::move(compressed));
}

SegmentMemory Compressive::empty_memory(int64_t batch) const {
  const CompressiveConfig& c = config_;
  SegmentMemory memory = CausalDecoder::empty_memory(batch);
  const bool zeros = c.start == MemoryStart::zeros;
  const int64_t phantom_fine = zeros ? c.mem_len : 0,
                phantom = zeros ? c.mem_len + c.compressed_len : 0;
  for (int64_t i = 0; i < layers(); ++i) {
    LayerMemory& m = memory.layers[static_cast<size_t>(i)];
    if (!c.remembers(i)) {
      m = {};
    } else if (c.compressed_len > 0) {
      add_queue(m, batch, phantom, phantom_fine);
    }
  }
  return memory;
}

SegmentMemory Compressive::evaluation_memory(int64_t batch) const {
  if (config_.start == MemoryStart::zeros) return empty_memory(batch);
  SegmentMemory memory;
  for (int64_t i = 0; i < layers(); ++i) {
    const CompressiveAttention& attention = *attention_[static_cast<size_t>(i)];
    memory.layers.push_back(attention.evaluation(batch, compute(), device()));
    if (config_.remembers(i)) add_queue(memory.layers.back(), batch, 0, 0);
  }
  return memory;
}

LayerContext Compressive::layer_context(int64_t /*queries*/, int64_t keys,
                                        int64_t /*first_key*/) const {
  LayerContext ctx;
  ctx.pattern = patterns::causal();
  ctx.own.set(Distances{distances_.rows(keys)});
  return ctx;
}

/// Without a memory, a stream begins.
Stack::Result Compressive::states(const Tensor& tokens, const SegmentMemory& memory,
                                  Pass pass) const {
  const bool begins = memory.layers.empty() && config_.compressed_len > 0 && tokens.rank() == 2;
  return CausalDecoder::states(tokens, begins ? empty_memory(tokens.dim(0)) : memory, pass);
}

Stack::Result Compressive::run(const Tensor& x, const LayerContext& ctx, StreamState* state,
                               Pass pass) const {
  LayerContext dropped = ctx;
  const Tensor& all = ctx.own.find<Distances>()->sinusoids;
  dropped.own.set(Distances{dropout(all, config_.dropout, pass.at("positions"))});
  Stack::Result result = CausalDecoder::run(x, dropped, state, pass);
  result.y = dropout(result.y, config_.dropout, pass.at("final"));
  return result;
}

std::unique_ptr<DecodeState> Compressive::start_decoding(int64_t batch) const {
  auto state = std::make_unique<StreamState>(batch);
  state->memory = evaluation_memory(batch);
  return state;
}

Tensor Compressive::decode(const Tensor& tokens, DecodeState& opaque) const {
  const Scope scope(kCompressive);
  StreamState& state = StreamState::of(opaque, kCompressive, tokens);
  const NoGrad off;
  Tensor y;
  for (int64_t at = 0; at < tokens.dim(1);) {
    const int64_t open = state.position % config_.segment;
    const int64_t n = std::min(tokens.dim(1) - at, config_.segment - open);
    LayerContext ctx = layer_context(n, rows_ + open + n, 0);
    ctx.decoding = true;
    ctx.position = open;
    const Tensor part = contiguous(narrow(tokens, 1, at, n));
    y = run(embedded(part, state.position, Pass{}), ctx, &state, Pass{}).y;
    state.position += n;
    at += n;
  }
  return head(select(y, 1, -1));  // [B, V]
}

std::string Compressive::remark(int64_t length) const {
  if (length == config_.segment) return {};
  return fmt::format(
      "segments have {} tokens, and decoding moves the memory on after {}: set "
      "model.segment",
      length, config_.segment);
}

Tensor Compressive::attention_shares(const Tensor& tokens, const SegmentMemory& memory) const {
  const NoGrad off;
  const SegmentMemory before = memory.layers.empty() ? empty_memory(tokens.dim(0)) : memory;
  Tensor x = embedded(tokens, 0, Pass{});
  const int64_t keys = rows_ + x.dim(1);
  const LayerContext ctx = layer_context(x.dim(1), keys, 0);
  std::vector<Tensor> all;
  for (int64_t i = 0; i < layers(); ++i) {
    LayerContext local = ctx;
    local.memory = before.layers.at(static_cast<size_t>(i));
    const Branch& branch = stack_.block(i).branch("attention");
    LayerContext inside = local;
    InputRows inputs = local.memory.get<InputRows>();
    if (config_.norm == NormPlace::pre && inputs.states) {
      inputs.states = branch.norm.forward(inputs.states);
      inside.memory.set(std::move(inputs));
    }
    const Tensor in = stack_.block(i).branch_input("attention", x, local);
    const Tensor mass = attention_[static_cast<size_t>(i)]->mass(in, inside);
    const auto rows = static_cast<double>(x.dim(0) * x.dim(1) * options().n_head);
    const Tensor share = div(sum(cast(mass, DType::f64), {0}), rows);
    all.push_back(pad(share, 0, keys - share.dim(0), 0));
    x = stack_.block(i).forward(x, local, Pass{}).y;
  }
  return stack(all, 0);
}

std::vector<double> in_buckets(const std::vector<double>& shares, int64_t buckets) {
  require(buckets >= 1, kCompressive, "{} buckets; expected 1 or more", buckets);
  std::vector<double> sums(static_cast<size_t>(buckets), 0.0);
  for (size_t j = 0; j < shares.size(); ++j) sums[j * sums.size() / shares.size()] += shares[j];
  return sums;
}

CompressiveConfig compressive_preset(std::string_view name) {
  return preset_of<CompressiveConfig>(kCompressive, compressive_presets, name);
}

const ModelEntry& compressive_entry() {
  static const ModelEntry entry{kCompressive,
                                "Transformer-XL that compresses its oldest states and keeps them",
                                compressive_presets, compressive_spec};
  return entry;
}

}  // namespace longspan
