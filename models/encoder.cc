#include "models/encoder.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "autograd/mode.h"
#include "core/kernels/copy.h"
#include "core/scope.h"
#include "models/own_rows.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {
namespace {

void require_consistent(std::string_view model, const EncoderConfig& c) {
  check_fields(model, c);
  require_heads(model, c.d_model, c.n_head);
  require(c.mask_id >= -1 && c.mask_id < c.vocab, model,
          "mask_id is {}; expected a token below vocab = {}, or -1: the last one", c.mask_id,
          c.vocab);
  require(c.padding_id >= -1 && c.padding_id < c.vocab, model,
          "padding_id is {}; expected a token below vocab = {}, or -1: none", c.padding_id,
          c.vocab);
  require(
      !c.skip_padding || (c.padding_id >= 0 && c.position_offset > 0), model,
      "skip_padding needs padding_id and a position_offset of 1 or more, whose last row is that "
      "of padding; they are {} and {}",
      c.padding_id, c.position_offset);
}

Scheme scheme_of(const EncoderConfig& c) { return Scheme::truncated_normal(c.init_std); }

StackOptions stack_of(const EncoderConfig& c) {
  return {.ff = {.d_model = c.d_model,
                 .d_ff = c.d_ff,
                 .activation = c.activation,
                 .weights = scheme_of(c),
                 .out_weights = scheme_of(c)},
          .norm = c.norm,
          .norm_eps = c.norm_eps,
          .dropout = c.dropout,
          .memory = c.memory};
}

}  // namespace

std::vector<std::unique_ptr<Layer>> Encoder::multi_heads(std::string_view model,
                                                         const EncoderConfig& c, const Init& init) {
  check_fields(model, c);
  require_heads(model, c.d_model, c.n_head);
  const AttentionOptions options{.d_model = c.d_model,
                                 .n_head = c.n_head,
                                 .qkv_bias = c.qkv_bias,
                                 .out_bias = c.out_bias,
                                 .dropout = or_default(c.dropout_attn, c.dropout),
                                 .weights = scheme_of(c),
                                 .out_weights = scheme_of(c)};
  std::vector<std::unique_ptr<Layer>> layers;
  for (int64_t i = 0; i < c.n_layer; ++i) {
    layers.push_back(std::make_unique<MultiHead>(options, ShawTables{}, attention_init(init, i)));
  }
  return layers;
}

Encoder::Encoder(std::string name, const EncoderConfig& config,
                 std::vector<std::unique_ptr<Layer>> attention, const Init& init)
    : name_(std::move(name)),
      config_(config),
      compute_(compute_dtype(config.precision, init.dtype)) {
  const EncoderConfig& c = config_;
  require_consistent(name_, c);
  require(static_cast<int64_t>(attention.size()) == c.n_layer, name_,
          "{} attention layers for {} blocks", attention.size(), c.n_layer);
  const Scheme weights = scheme_of(c);
  const Init tables = init.at("embed");
  const int64_t width = table_width();
  token_ = Embedding(c.vocab, width, tables.at("token"), weights);
  position_ = LearnedPositions(c.position_offset + c.n_max, width, tables.at("position"), weights);
  if (c.position_init == PositionInit::sinusoid && !init.meta) {
    const NoGrad off;
    const Tensor rows = sinusoid(0, position_.weight.dim(0), width, SinusoidLayout::interleaved,
                                 init.dtype, init.device);
    kernels::copy(init.device, mul(rows, std::sqrt(2.0) * c.init_std).view(),
                  position_.weight.mut());
  }
  if (c.token_types > 0) {
    type_ = Embedding(c.token_types, width, tables.at("type"), weights);
  }
  if (c.emb_norm) embed_norm_ = {NormKind::layer, width, c.norm_eps, tables.at("norm")};
  if (c.d_embed > 0) {
    embed_projection_ = Linear(c.d_embed, c.d_model, true, tables.at("projection"), weights);
  }
  stack_ = attention_stack(stack_of(c), std::move(attention), init);
  if (c.mlm_head) {
    const Activation f = c.mlm_gelu ? Activation::gelu_erf : c.activation;
    mlm_ = TokenTransform(c.d_model, width, f, c.norm_eps, init.at("mlm"), weights);
    head_.weight = c.tie_embedding ? token_.weight
                                   : init.at("head").at("weight").make({c.vocab, width}, weights);
    head_.bias = init.at("head").at("bias").make({c.vocab}, Scheme::zeros());
  }
  if (c.classes > 0) {
    classes_ = PooledHead(c.d_model, c.classes, init, weights, c.pool_activation);
  }
  if (c.tags > 0) tags_ = Linear(c.d_model, c.tags, true, init.at("tags"), weights);
  if (c.span_head) spans_ = Linear(c.d_model, 2, true, init.at("spans"), weights);
  if (c.choice_head) choice_ = Linear(c.d_model, 1, false, init.at("choice"), weights);
}

void Encoder::visit(Visitor& v) {
  v("embed.token", token_)("embed.position", position_)("embed.type", type_)("embed.norm",
                                                                             embed_norm_);
  v("embed.projection", embed_projection_);
  stack_.visit(v);
  v("mlm", mlm_)("head", head_);
  classes_.visit(v);
  v("tags", tags_)("spans", spans_)("choice", choice_);
}

AttentionPattern Encoder::seen_in(AttentionPattern pattern, const EncoderInputs& in) {
  pattern = with_lengths(std::move(pattern), in.lengths, in.lengths);
  if (const Tensor hidden = hidden_tokens("encoder", in)) {
    pattern = with_hidden_keys(std::move(pattern), hidden);
  }
  return pattern;
}

Tensor Encoder::hidden_tokens(std::string_view model, const EncoderInputs& in) {
  if (!in.mask) return {};
  if (in.mask.shape() != in.tokens.shape()) {
    fail_with<ShapeError>(model, "the mask must be [B, L] as the tokens",
                          {{"tokens", in.tokens}, {"mask", in.mask}});
  }
  return equal(in.mask, zeros_like(in.mask));
}

/// RoBERTa: the n-th token that is not padding has position n; padding has the row before 0.
Tensor Encoder::positions(const Tensor& tokens, int64_t first, const OwnRows& own) const {
  const EncoderConfig& c = config_;
  if (!c.skip_padding) {
    return position_.forward(c.position_offset + first + own.first(), own.of(tokens).dim(1));
  }
  require(first == 0, name_, "positions that skip padding start with the sequence");
  const Tensor real = not_equal(tokens, full_like(tokens, static_cast<double>(c.padding_id)));
  const Tensor count = cumsum(real, 1);  // i64 [B, L]
  Embedding rows;                        // row 0 is for padding
  rows.weight = narrow(position_.weight, 0, c.position_offset - 1, c.n_max + 1);
  return rows.forward(own.of(where(real, count, zeros_like(count))), 0);
}

Tensor Encoder::embed(const EncoderInputs& in, Pass pass, int64_t first) const {
  const Scope scope("embed");
  const EncoderConfig& c = config_;
  const OwnRows own(in.tokens, pass);
  Tensor x = token_.forward(own.of(in.tokens), c.padding_id);  // [B, L, E]
  if (c.emb_scale) x = mul(x, std::sqrt(static_cast<double>(c.d_model)));
  x = add(x, positions(in.tokens, first, own));
  if (c.token_types > 0) {
    x = add(x, in.types ? type_.forward(own.of(in.types)) : select(type_.weight, 0, 0));
  }
  const Pass site = own.pass().at("emb");
  if (c.emb_dropout_first) x = dropout(x, c.dropout, site);
  if (c.emb_norm) x = embed_norm_.forward(x);
  if (!c.emb_dropout_first) x = dropout(x, c.dropout, site);
  if (c.d_embed > 0) x = embed_projection_.forward(x);
  return cast(x, compute_);
}

Tensor Encoder::forward(const EncoderInputs& in, Pass pass) const { return run(in, pass).y; }

Stack::Result Encoder::run(const EncoderInputs& in, Pass pass) const {
  const Scope scope(name_);
  if (in.tokens.rank() != 2) {
    fail_with<ShapeError>(name_, "tokens must be [B, L]", {{"tokens", in.tokens}});
  }
  require(in.tokens.dim(1) <= config_.n_max, name_,
          "{} tokens are more than the position table has; n_max is {}", in.tokens.dim(1),
          config_.n_max);
  require(config_.token_types > 0 || !in.types, name_, "token types need token_types > 0");
  const OwnRows own(in.tokens, pass);
  LayerContext ctx = layer_context(in, pass);
  own.place(ctx);
  return stack_.forward(embed(in, pass), ctx, {}, own.pass());
}

Tensor Encoder::head(const Tensor& hidden) const {
  const Scope scope("head");
  require(config_.mlm_head, name_, "predicting tokens needs mlm_head");
  return token_logits(mlm_.forward(hidden), head_, config_.token_head);
}

Tensor Encoder::loss(const Tensor& hidden, const Tensor& targets, Pass pass) const {
  const Scope scope("loss");
  require(config_.mlm_head, name_, "predicting tokens needs mlm_head");
  require_token_targets(name_, hidden, targets);
  return token_loss(mlm_.forward(hidden), head_, targets, config_.token_head, pass.training);
}

Tensor Encoder::classify(const Tensor& hidden, Pass pass) const {
  require(config_.classes > 0, name_, "classification needs classes > 0");
  const float p = or_default(config_.dropout_classifier, config_.dropout);
  const bool twice = config_.pool_dropout && pass.training;
  return classes_.forward(twice ? dropout(hidden, p, pass.at("pool")) : hidden, p, pass);
}

Tensor Encoder::tag(const Tensor& hidden, Pass pass) const {
  require(config_.tags > 0, name_, "labels of tokens need tags > 0");
  const float p = or_default(config_.dropout_classifier, config_.dropout);
  return tags_.forward(dropout(hidden, p, pass.at("tags")));
}

SpanLogits Encoder::spans(const Tensor& hidden, const Tensor& lengths, Pass pass) const {
  require(config_.span_head, name_, "answers as spans need span_head");
  const Tensor logits =
      spans_.forward(dropout(hidden, config_.dropout_spans, pass.at("spans")));  // [B, L, 2]
  return span_logits_of(logits, lengths);
}

Tensor Encoder::choose(const Tensor& hidden, const Tensor& places) const {
  require(config_.choice_head, name_, "scores of candidates need choice_head");
  if (hidden.rank() != 3 || places.rank() != 3 || places.dtype() != DType::i64) {
    fail_with<ShapeError>(name_, "scores of candidates take hidden [B, L, D] and i64 [Q, C, m]",
                          {{"hidden", hidden}, {"places", places}});
  }
  const DType dtype = hidden.dtype();
  const Tensor there = cast(greater_equal(places, zeros_like(places)), dtype);  // [Q, C, m]
  const Tensor count = sum(there, {-1}, true);                                  // [Q, C, 1]
  const Tensor found = permute_rows(flatten(hidden, 0, 1), flatten(places));
  const Tensor marks = reshape(found, {places.dim(0), places.dim(1), places.dim(2), hidden.dim(2)});
  const Tensor mean = div(sum(marks, {2}), maximum(count, ones_like(count)));  // [Q, C, D]
  const Tensor scores = select(choice_.forward(mean), -1, 0);                  // [Q, C]
  const double never = -std::numeric_limits<double>::infinity();
  return where(greater(select(count, -1, 0), zeros_like(scores.detach())), scores,
               full_like(scores.detach(), never));
}

int64_t Encoder::mask_token() const {
  return config_.mask_id >= 0 ? config_.mask_id : config_.vocab - 1;
}

LanguageModel::Losses Encoder::loss(const Tensor& tokens, const Tensor& targets,
                                    const SegmentMemory& memory, Pass pass) const try {
  require_no_memory(name_, memory);
  Losses result;
  const OwnRows own(tokens, pass);
  Stack::Result layers = run({.tokens = tokens}, pass);
  result.loss = own.share(loss(layers.y, own.of(targets), own.pass()), targets);
  result.auxiliary = own.share(std::move(layers.losses));
  result.statistics = std::move(layers.statistics);
  return result;
} catch (const std::bad_alloc&) {
  fail_for_memory(name_);
}

Tensor Encoder::logits(const Tensor& tokens, Pass pass) const {
  return head(forward({.tokens = tokens}, pass));
}

Tensor Encoder::decode_rows(const Tensor& tokens, LayerContext seen, StreamState& state) const {
  const NoGrad off;
  const Scope scope(name_);
  seen.decoding = true;
  seen.position = state.position;
  const Tensor x = embed({.tokens = tokens}, Pass{}, state.position);
  Stack::Result result = stack_.forward(x, seen, state.memory, Pass{});
  state.memory = std::move(result.memory);
  state.position += tokens.dim(1);
  return head(select(result.y, 1, -1));  // [B, V]
}

Tensor Encoder::attention_map(const Tensor& tokens, int64_t layer) const {
  return attention_map_of({.tokens = tokens}, layer);
}

Tensor Encoder::attention_map_of(const EncoderInputs& in, int64_t layer) const {
  const NoGrad off;
  return stack_.attention_map(layer, embed(in, Pass{}), layer_context(in, Pass{}));
}

AttentionOutline Encoder::attention_outline(int64_t layer, int64_t length) const {
  const EncoderInputs in{.tokens = zeros({1, length}, DType::i64)};
  return outline_of(layer_context(in, Pass{}), layer, config_.n_head, length, length);
}

namespace {

constexpr const char* kAny = "any_span_loss";

/// The correct positions of each sample.
struct Marks {
  Tensor there;           // u8 [B, L], 1 at correct positions
  std::vector<bool> any;  // whether a sample has any
};

Marks marks_of(const Tensor& places, const Tensor& logits, const char* name) {
  if (logits.rank() != 2 || places.rank() != 2 || places.dim(0) != logits.dim(0)) {
    fail_with<ShapeError>(kAny, fmt::format("{} must be [B, n] for logits [B, L]", name),
                          {{"logits", logits}, {name, places}});
  }
  const int64_t batch = logits.dim(0), length = logits.dim(1), n = places.dim(1);
  const std::vector<int64_t> at = places.to_vector<int64_t>();
  std::vector<uint8_t> there(static_cast<size_t>(batch * length), 0);
  Marks marks{.there = {}, .any = std::vector<bool>(static_cast<size_t>(batch), false)};
  for (int64_t i = 0; i < batch * n; ++i) {
    const int64_t place = at[static_cast<size_t>(i)], b = i / n;
    if (place == ignored_target) continue;
    require(place >= 0 && place < length, kAny, "{}[{}, {}] is {}; expected 0 to {}, or {}", name,
            b, i % n, place, length - 1, ignored_target);
    there[static_cast<size_t>(b * length + place)] = 1;
    marks.any[static_cast<size_t>(b)] = true;
  }
  marks.there = Tensor::from(there, {batch, length}, logits.device());
  return marks;
}

/// [B]: -log of the total probability of these positions.
Tensor any_place_loss(const Tensor& logits, const Tensor& there) {
  const double never = -std::numeric_limits<double>::infinity();
  // A common offset is taken out first, since the difference of two large numbers would round.
  const Tensor z = sub(logits, max(logits.detach(), -1, true).values);
  const Tensor right = where(there, z, full_like(z.detach(), never));
  return sub(logsumexp(z, -1), logsumexp(right, -1));
}

}  // namespace

Tensor profile_loss(const Tensor& logits, const Tensor& labels, double positive_weight) {
  return binary_cross_entropy_with_logits(logits, cast(labels, logits.dtype()),
                                          {.positive_weight = positive_weight});
}

Tensor span_loss(const SpanLogits& logits, const Tensor& starts, const Tensor& ends) {
  return mul(add(cross_entropy(logits.start, starts), cross_entropy(logits.end, ends)), 0.5);
}

Tensor any_span_loss(const SpanLogits& logits, const Tensor& starts, const Tensor& ends) {
  const Marks first = marks_of(starts, logits.start, "starts");
  const Marks last = marks_of(ends, logits.end, "ends");
  std::vector<float> share;
  int64_t answered = 0;
  for (size_t b = 0; b < first.any.size(); ++b) {
    require(first.any[b] == last.any[b], kAny, "sample {} has {} alone; expected both or neither",
            b, first.any[b] ? "starts" : "ends");
    share.push_back(first.any[b] ? 1 : 0);
    answered += first.any[b] ? 1 : 0;
  }
  const Tensor counts = Tensor::from(share, {logits.start.dim(0)}, logits.start.device());
  const Tensor loss = add(any_place_loss(logits.start, first.there),
                          any_place_loss(logits.end, last.there));  // [B]
  const Tensor counted =
      where(greater(counts, zeros_like(counts)), loss, zeros_like(loss.detach()));
  return mul(sum(counted), 0.5 / static_cast<double>(std::max<int64_t>(answered, 1)));
}

}  // namespace longspan
