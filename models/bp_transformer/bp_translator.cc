// BP-Transformer, Ye et al. 2019 (1911.04070), as an encoder-decoder: a document is read as one
// tree of all its tokens, and each sentence of the target attends to its own sentence of the
// source.

#include "models/bp_transformer/bp_translator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "autograd/mode.h"
#include "core/scope.h"
#include "nn/attention/decoding_memory.h"
#include "ops/copy.h"
#include "ops/index.h"
#include "ops/random.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kBpTranslator = "bp_translator";

constexpr TrainingDefaults bp_translator_published(int64_t length, int64_t batch, double lr,
                                                   int64_t warmup) {
  return {.length = length,
          .batch = batch,
          .steps = 100'000,
          .lr = lr,
          .warmup = warmup,
          .lr_floor = 0,
          .clip = 1,
          .beta2 = 0.98};
}

constexpr Preset bp_translator_presets[] = {
    {"small",
     "2 + 2 layers of 128, 4 neighbours on each level; copies marked spans",
     "",
     "n_layer=2 d_model=128 d_ff=512",
     {.length = 512, .batch = 8, .steps = 600, .lr = 1e-3, .clip = 1}},
    {"tiny",
     "2 + 2 layers of 8, 2 neighbours on each level, 17 tokens; for tests",
     "",
     "vocab=17 n_layer=2 n_head=2 d_model=8 d_ff=16 k=2 clip=2 embed_std=0.3",
     {.length = 13, .batch = 4, .steps = 200}},
    {"summaries",
     "2 + 2 layers of 128, 4096 tokens",
     "small",
     "vocab=4096",
     {.length = 512, .batch = 4, .steps = 1000, .lr = 1e-3, .clip = 1}},
    // The peak of Noam's schedule, factor d^-0.5 warmup^-0.5.
    {"iwslt15", "6 + 6 layers of 512, 4 neighbours on each level (IWSLT15 zh-en)", "",
     "vocab=32000 n_layer=6 n_head=8 d_model=512 d_ff=2048 clip=3 dropout=0.1 label_smoothing=0.1",
     bp_translator_published(64, 32, 4.94e-4, 8000)},
    {"wmt14", "6 + 6 layers of 512, 4 neighbours on each level (WMT14 en-de)", "iwslt15",
     "vocab=37000 clip=2", bp_translator_published(64, 512, 1.4e-3, 4000)},
};

std::unique_ptr<ModelSpec> bp_translator_spec(std::string_view preset) {
  return preset_spec<BpTranslator, BpTranslatorConfig>(kBpTranslator, bp_translator_presets,
                                                       preset);
}

void require_consistent(const BpTranslatorConfig& c) {
  require_tree_layers(kBpTranslator, c);
  check_fields(kBpTranslator, c);
  require(c.sentence_end >= -1 && c.sentence_end < c.vocab, kBpTranslator,
          "sentence_end is {}; expected -1 to {}", c.sentence_end, c.vocab - 1);
}

void require_tokens(const char* name, const Tensor& tokens) {
  if (tokens.rank() != 2 || tokens.dim(1) < 1) {
    fail_with<ShapeError>(kBpTranslator, fmt::format("the {} must be [B, L], L >= 1", name),
                          {{name, tokens}});
  }
}

/// What decoding has read so far. All rows of one source share its keys and values.
struct TranslationState final : DecodeState {
  void take_rows(const Tensor& rows, bool /*same_context*/) override {
    memory = longspan::take_rows(memory, rows, false);
    const auto taken = [ids = cast(to_device(rows, {}), DType::i64).to_vector<int64_t>()](
                           std::vector<int64_t>& of) {
      std::vector<int64_t> next;
      for (const int64_t row : ids) next.push_back(of.at(static_cast<size_t>(row)));
      of = std::move(next);
    };
    taken(sample);
    taken(sentence);
  }

  SegmentMemory memory;
  Tensor source;  // [1, rows, D]
  SourceSentences sentences;
  std::vector<int64_t> sample, sentence;  // of each row: its source, and the sentence that it is in
};

}  // namespace

BpTranslator::BpTranslator(const BpTranslatorConfig& config, const Init& init)
    : config_(config), compute_(compute_dtype(config.precision, init.dtype)) {
  const BpTranslatorConfig& c = config_;
  require_consistent(c);
  const Init encoder = init.at("encoder"), decoder = init.at("decoder");
  token_ = Embedding(c.vocab, c.d_model, init.at("embed").at("token"), Scheme::normal(c.embed_std));
  const auto norm = [&](const Init& at) {
    return Normalization(NormKind::layer, c.d_model, c.norm_eps, at.at("embed").at("norm"));
  };
  source_norm_ = norm(encoder);
  target_norm_ = norm(decoder);
  encoder_ = tree_stack(c, false, encoder);
  decoder_ = tree_stack(c, true, decoder);
  head_.weight = token_.weight;
  head_.bias = init.at("head").at("bias").make({c.vocab}, Scheme::zeros());
}

void BpTranslator::visit(Visitor& v) {
  v("embed.token", token_)("encoder.embed.norm", source_norm_)("decoder.embed.norm", target_norm_);
  v("encoder", encoder_)("decoder", decoder_)("head", head_);
}

Tensor BpTranslator::embed(const Tensor& tokens, const Normalization& norm, Pass pass) const {
  const Scope scope("embed");
  const float p = or_default(config_.dropout_in, config_.dropout);
  return cast(norm.forward(dropout(token_.forward(tokens), p, pass.at("emb"))), compute_);
}

LayerContext BpTranslator::encoder_context(int64_t length) const {
  LayerContext ctx;
  ctx.own.set(EdgeContext{tree_rows(length, config_.tree(false), TreeRows::all),
                          tree_rows(length, config_.tree(false), TreeRows::leaves), nullptr});
  return ctx;
}

Tensor BpTranslator::encode(const SourceTokens& in, Pass pass) const {
  require_no_mask(kBpTranslator, in);
  const Scope scope("encoder");
  require_tokens("source", in.tokens);
  const int64_t batch = in.tokens.dim(0), length = in.tokens.dim(1);
  const std::vector<int64_t> lengths = lengths_on_host(kBpTranslator, in);
  const Pass own = pass.at("encoder");
  if (lengths.empty()) {
    const Tensor x = with_zero_spans(embed(in.tokens, source_norm_, own));
    const Tensor y = encoder_.forward(x, encoder_context(length), {}, own).y;
    return reshape(y, {1, batch * length, config_.d_model});
  }
  const PackedTrees packed = packed_trees(lengths, length, config_.tree(false), device());
  const Tensor x =
      reshape(embed(in.tokens, source_norm_, own), {1, batch * length, config_.d_model});
  LayerContext ctx;
  ctx.own.set(EdgeContext{packed.all, packed.leaves, nullptr});
  return encoder_.forward(permute_rows(x, packed.tokens), ctx, {}, own).y;
}

LayerContext BpTranslator::decoder_context(const SourceTokens& source, const Tensor& tokens,
                                           Pass pass) const {
  require_tokens("target", tokens);
  LayerContext ctx;
  ctx.encoder_output = encode(source, pass);
  if (tokens.dim(0) != source.tokens.dim(0)) {
    fail_with<ShapeError>(kBpTranslator, "source and target must have as many samples",
                          {{"source", source.tokens}, {"target", tokens}});
  }
  const int64_t length = tokens.dim(1);
  std::vector<int64_t> sample(static_cast<size_t>(tokens.dim(0)));
  std::iota(sample.begin(), sample.end(), 0);
  const std::vector<int64_t> none(sample.size(), 0);
  ctx.own.set(EdgeContext{
      tree_rows(length, config_.tree(true), TreeRows::all),
      tree_rows(length, config_.tree(true), TreeRows::leaves),
      sentence_rows(
          sentences_of(kBpTranslator, source, config_.sentence_end), sample,
          sentences_of_targets(kBpTranslator, tokens, config_.sentence_end, none, true))});
  return ctx;
}

Tensor BpTranslator::forward(const SourceTokens& source, const Tensor& tokens, Pass pass) const {
  const Scope scope(kBpTranslator);
  const LayerContext ctx = decoder_context(source, tokens, pass);
  const Scope inner("decoder");
  const Pass own = pass.at("decoder");
  return decoder_.forward(with_zero_spans(embed(tokens, target_norm_, own)), ctx, {}, own).y;
}

Tensor BpTranslator::head(const Tensor& hidden) const {
  const Scope scope("head");
  return token_logits(hidden, head_, config_.token_head);
}

LanguageModel::Losses BpTranslator::sequence_loss(const SourceTokens& source, const Tensor& tokens,
                                                  const Tensor& targets, Pass pass) const try {
  Losses result;
  const Tensor hidden = forward(source, tokens, pass);
  require_token_targets(kBpTranslator, hidden, targets);
  const float p = or_default(config_.dropout_out, config_.dropout);
  result.loss = token_loss(dropout(hidden, p, pass.at("classifier")), head_, targets,
                           config_.token_head, pass.training, config_.label_smoothing);
  return result;
} catch (const std::bad_alloc&) {
  fail_for_memory(kBpTranslator);
}

std::unique_ptr<DecodeState> BpTranslator::start_after(const SourceTokens& source) const {
  const NoGrad off;
  auto state = std::make_unique<TranslationState>();
  state->source = encode(source, Pass{}).detach();
  state->sentences = sentences_of(kBpTranslator, source, config_.sentence_end);
  state->sample.resize(static_cast<size_t>(source.tokens.dim(0)));
  std::iota(state->sample.begin(), state->sample.end(), 0);
  state->sentence.assign(state->sample.size(), 0);
  return state;
}

Tensor BpTranslator::decode(const Tensor& tokens, DecodeState& opaque) const {
  const NoGrad off;
  const Scope scope(kBpTranslator);
  auto* state = dynamic_cast<TranslationState*>(&opaque);
  require(state != nullptr, kBpTranslator, "the decoding state is another model's");
  const int64_t batch = std::ssize(state->sample), first = state->position;
  if (tokens.rank() != 2 || tokens.dim(0) != batch || tokens.dim(1) < 1) {
    fail_with<ShapeError>(kBpTranslator,
                          fmt::format("decoding takes tokens [{}, n], n >= 1", batch),
                          {{"tokens", tokens}});
  }
  const int64_t n = tokens.dim(1);
  auto& layers = state->memory.layers;
  const int64_t slots = layers.empty() ? 0 : layers.front().get<KeyValues>().keys.dim(2);
  const GrowingTree nodes(first, n, slots, config_.tree(true));
  const std::vector<int64_t> sentence = sentences_of_targets(
      kBpTranslator, tokens, config_.sentence_end, state->sentence, first == 0);
  LayerContext ctx;
  ctx.encoder_output = state->source;
  ctx.own.set(EdgeContext{nodes.all, nodes.leaves,
                          sentence_rows(state->sentences, state->sample, sentence)});
  ctx.decoding = true;
  ctx.position = first;
  const Tensor x = embed(tokens, target_norm_, Pass{});
  const Tensor spans = Tensor::zeros({batch, nodes.spans, x.dim(2)}, x.dtype(), x.device());
  Stack::Result result = decoder_.forward(concat({x, spans}, 1), ctx, state->memory, Pass{});
  layers = std::move(result.memory.layers);
  for (size_t row = 0; row < state->sentence.size(); ++row) {
    state->sentence[row] = sentence[(row + 1) * static_cast<size_t>(n) - 1];
  }
  state->position = first + n;
  return head(select(result.y, 1, -1));
}

Tensor BpTranslator::attention_map(const Tensor& source, int64_t layer) const {
  const NoGrad off;
  require_tokens("source", source);
  const Tensor x = with_zero_spans(embed(source, source_norm_, Pass{}));
  return tree_map(encoder_, layer, x, encoder_context(source.dim(1)));
}

Tensor BpTranslator::decoder_map(const Tensor& source, const Tensor& tokens, int64_t layer,
                                 bool cross) const {
  const NoGrad off;
  const LayerContext ctx = decoder_context({.tokens = source}, tokens, Pass{});
  const Tensor x = with_zero_spans(embed(tokens, target_norm_, Pass{}));
  return cross ? decoder_.attention_map(layer, x, ctx, "cross") : tree_map(decoder_, layer, x, ctx);
}

AttentionOutline BpTranslator::attention_outline(int64_t layer, int64_t length) const {
  return tree_outline(length > 0 ? encoder_context(length) : LayerContext{}, layer, config_,
                      length);
}

LanguageModel::Losses BpTranslator::loss(const Tensor&, const Tensor&, const SegmentMemory&,
                                         Pass) const {
  fail<NotImplemented>(kBpTranslator, "an encoder-decoder needs a source; use sequence_loss()");
}
Tensor BpTranslator::logits(const Tensor&, Pass) const {
  fail<NotImplemented>(kBpTranslator,
                       "an encoder-decoder needs a source; use forward() and head()");
}

BpTranslatorConfig bp_translator_preset(std::string_view name) {
  return preset_of<BpTranslatorConfig>(kBpTranslator, bp_translator_presets, name);
}

const ModelEntry& bp_translator_entry() {
  static const ModelEntry entry{
      kBpTranslator, "encoder-decoder over binary trees, sentence by sentence of a document",
      bp_translator_presets, bp_translator_spec};
  return entry;
}

}  // namespace longspan
