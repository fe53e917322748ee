#include "models/causal_decoder.h"

#include <cmath>
#include <utility>

#include "autograd/mode.h"
#include "core/scope.h"
#include "models/own_rows.h"
#include "models/scoring.h"
#include "nn/segment.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/shape.h"

namespace longspan {

CausalDecoder::CausalDecoder(DecoderOptions options, const Init& init)
    : options_(std::move(options)), compute_(compute_dtype(options_.precision, init.dtype)) {
  const DecoderOptions& o = options_;
  const int64_t width = o.d_embed > 0 ? o.d_embed : o.d_model;
  const Init head = init.at("head");
  require(!o.cutoffs.empty() || (o.div_value == 1 && o.tie_projections.empty()), o.model,
          "div_value and tie_projections need cutoffs");
  if (!o.cutoffs.empty()) {
    make_adaptive(init);
    return;
  }
  token_ = Embedding(o.vocab, width, init.at("embed").at("token"), o.token);
  if (o.tie_embedding) {
    head_.weight = token_.weight;
  } else {
    head_ = Linear(o.d_exit > 0 ? o.d_exit : width, o.vocab, false, head, o.classifier);
  }
  if (o.head_bias) head_.bias = head.at("bias").make({o.vocab}, o.bias);
}

void CausalDecoder::make_adaptive(const Init& init) {
  const DecoderOptions& o = options_;
  require(o.d_exit == 0, o.model, "d_exit is {}; cutoffs need 0", o.d_exit);
  require(o.token_head.z_loss == 0 && o.token_head.soft_cap == 0, o.model,
          "z_loss and soft_cap are for one softmax over all tokens; leave them at 0 or leave out "
          "cutoffs");
  AdaptiveOptions clusters{.vocab = o.vocab,
                           .d_model = o.d_model,
                           .d_embed = o.d_embed,
                           .cutoffs = o.cutoffs,
                           .div_value = o.div_value,
                           .tables = o.token,
                           .projections = o.projections};
  adaptive_.emplace(clusters, init.at("embed").at("token"));
  clusters.tables = o.classifier;
  const AdaptiveSoftmaxOptions softmax{.bias = o.head_bias,
                                       .tie_weights = o.tie_embedding,
                                       .tie_projections = o.tie_projections,
                                       .cluster_order = o.cluster_order};
  adaptive_head_.emplace(clusters, softmax, init.at("head"), &*adaptive_);
}

Linear CausalDecoder::classifier() const {
  Linear head = head_;
  if (options_.constant_bias && head.bias) head.bias = head.bias.detach();
  return head;
}

void CausalDecoder::visit(Visitor& v) {
  v("embed.token", token_)("embed.token", adaptive_);
  visit_more(v);
  stack_.visit(v);
  v("head", head_)("head", adaptive_head_);
}

Device CausalDecoder::device() const {
  return (adaptive_ ? adaptive_->tables[0] : token_).weight.device();
}

int64_t CausalDecoder::max_length() const {
  return options_.n_max > 0 ? options_.n_max : LanguageModel::max_length();
}

Tensor CausalDecoder::embedded(const Tensor& tokens, int64_t first, Pass pass) const {
  return embedded(tokens, first, [&] { return embed(tokens, first, pass); });
}

Tensor CausalDecoder::embedded(const Tensor& tokens, int64_t first,
                               const std::function<Tensor()>& table) const {
  const Scope scope("embed");
  const DecoderOptions& o = options_;
  if (tokens.rank() != 2)
    fail_with<ShapeError>(o.model, "tokens must be [B, L]", {{"tokens", tokens}});
  const int64_t end = first + tokens.dim(1);
  require(o.n_max == 0 || end <= o.n_max, o.model,
          "position {} is beyond n_max = {}; shorten the sequence or build the "
          "model with n_max >= "
          "{}",
          end - 1, o.n_max, end);
  return cast(table(), compute_);
}

Tensor CausalDecoder::embed(const Tensor& tokens, int64_t /*first*/, Pass pass) const {
  Tensor x = token_rows(tokens);  // [B, L, D]
  if (options_.emb_scale) x = mul(x, std::sqrt(static_cast<double>(options_.d_model)));
  return dropout(x, options_.dropout, pass.at("emb"));
}

Stack::Result CausalDecoder::run(const Tensor& x, const LayerContext& ctx, StreamState* state,
                                 Pass pass) const {
  if (state == nullptr) return stack_.forward(x, ctx, {}, pass);
  Stack::Result result = stack_.forward(x, ctx, state->memory, pass);
  state->memory.layers = std::move(result.memory.layers);
  return result;
}

SegmentMemory CausalDecoder::empty_memory(int64_t batch) const {
  SegmentMemory memory;
  const int64_t rows = memory_length();
  for (int64_t i = 0; rows > 0 && i < options_.n_layer; ++i) {
    InputRows m = free_rows(batch, rows, options_.d_model, compute_, device());
    // All layers share one tensor of begins.
    if (i > 0) m.begin = memory.layers.front().get<InputRows>().begin;
    if (options_.phantom_zero_memory) m.begin = {};
    memory.layers.push_back(LayerMemory::of(std::move(m)));
  }
  return memory;
}

SegmentMemory CausalDecoder::evaluation_memory(int64_t batch) const {
  if (memory_length() == 0 || options_.phantom_zero_memory) return empty_memory(batch);
  SegmentMemory memory;
  memory.layers.resize(static_cast<size_t>(options_.n_layer));
  memory.projected = true;
  return memory;
}

Stack::Result CausalDecoder::states(const Tensor& tokens, const SegmentMemory& memory,
                                    Pass pass) const {
  const Scope scope(options_.model);
  const int64_t rows = memory_length();
  if (rows == 0) require_no_memory(options_.model, memory);
  StreamState state(tokens.dim(0));
  state.memory = memory;
  Stack::Result result;
  if (memory.projected) {
    require(!pass.training, options_.model,
            "the memory is one of evaluation_memory(); training takes empty_memory()");
    state.position = memory.position;
    result.y = continued(tokens, state);
  } else {
    const OwnRows own = own_rows(tokens, pass);
    const Tensor x = embedded(own.of(tokens), own.first(), own.pass());
    const int64_t keys = tokens.dim(1) + (memory.layers.empty() ? 0 : rows);
    LayerContext ctx = layer_context(tokens.dim(1), keys, 0);
    ctx.mem_len = rows;
    own.place(ctx);
    result = run(x, ctx, &state, own.pass());
  }
  if (rows > 0) {
    result.memory = std::move(state.memory);
    result.memory.position = memory.position + tokens.dim(1);
  }
  return result;
}

Tensor CausalDecoder::forward(const Tensor& tokens, Pass pass) const {
  const bool phantom = options_.phantom_zero_memory && tokens.rank() == 2;
  return states(tokens, phantom ? empty_memory(tokens.dim(0)) : SegmentMemory{}, pass).y;
}

Tensor CausalDecoder::head(const Tensor& hidden) const {
  const Scope scope("head");
  const Tensor h = head_input(hidden);
  if (adaptive_head_) return adaptive_head_->log_probabilities(h);
  return token_logits(h, classifier(), options_.token_head);
}

Tensor CausalDecoder::loss(const Tensor& hidden, const Tensor& targets, Pass pass) const {
  const Scope scope("loss");
  require_token_targets(options_.model, hidden, targets);
  return target_loss(head_input(hidden), targets, pass.training);
}

Tensor CausalDecoder::target_loss(const Tensor& h, const Tensor& targets, bool training,
                                  double smoothing) const {
  if (!adaptive_head_) {
    return token_loss(h, classifier(), targets, options_.token_head, training, smoothing);
  }
  require(!training || smoothing == 0, options_.model,
          "label smoothing is for one softmax over all tokens; leave it at 0 or leave out cutoffs");
  if (!training && Scoring::on())
    return mean_of_targets(adaptive_head_->loss(h, targets, Reduction::none), targets);
  return adaptive_head_->loss(h, targets, Reduction::mean, options_.token_head.loss_gradient);
}

LanguageModel::Losses CausalDecoder::loss(const Tensor& tokens, const Tensor& targets,
                                          const SegmentMemory& memory, Pass pass) const try {
  const OwnRows own = own_rows(tokens, pass);
  Stack::Result layers = states(tokens, memory, pass);
  Losses result;
  result.loss = own.share(loss(layers.y, own.of(targets), own.pass()), targets);
  if (memory_length() > 0) result.memory = std::move(layers.memory);
  result.auxiliary = own.share(std::move(layers.losses));
  result.statistics = std::move(layers.statistics);
  return result;
} catch (const std::bad_alloc&) {
  fail_for_memory(options_.model);
}

Tensor CausalDecoder::logits(const Tensor& tokens, Pass pass) const {
  return head(forward(tokens, pass));
}

Tensor CausalDecoder::logits_after(SegmentMemory& memory, const Tensor& tokens) const {
  const NoGrad off;
  require<NotImplemented>(memory_length() > 0, options_.model,
                          "this model keeps no memory between segments");
  Stack::Result layers = states(tokens, memory, Pass{});
  memory = std::move(layers.memory);
  return head(layers.y);
}

std::unique_ptr<DecodeState> CausalDecoder::start_decoding(int64_t batch) const {
  require<NotImplemented>(!options_.phantom_zero_memory, options_.model,
                          "decoding begins with an empty memory; set phantom_zero_memory to false");
  return std::make_unique<StreamState>(batch);
}

Tensor CausalDecoder::decode(const Tensor& tokens, DecodeState& opaque) const {
  const Scope scope(options_.model);
  StreamState& state = StreamState::of(opaque, options_.model, tokens);
  const NoGrad off;
  return head(select(continued(tokens, state), 1, -1));  // [B, V]
}

Tensor CausalDecoder::continued(const Tensor& tokens, StreamState& state) const {
  const NoGrad off;
  const int64_t first = state.position, n = tokens.dim(1), begin = first_visible(first);
  LayerContext ctx = layer_context(n, first + n - begin, begin);
  ctx.decoding = true;
  ctx.position = first;
  ctx.keep_from = begin;
  ctx.encoder_output = state.context;
  ctx.encoder_pattern = with_lengths(patterns::dense(), {}, state.lengths);
  if (state.hidden) {
    ctx.encoder_pattern = with_hidden_keys(std::move(ctx.encoder_pattern), state.hidden);
  }
  const Tensor y = run(embedded(tokens, first, Pass{}), ctx, &state, Pass{}).y;
  state.position = first + n;
  return y;
}

Tensor CausalDecoder::attention_map(const Tensor& tokens, int64_t layer) const {
  const NoGrad off;
  const Tensor x = embedded(tokens, 0, Pass{});
  return stack_.attention_map(layer, x, layer_context(x.dim(1), x.dim(1), 0));
}

AttentionOutline CausalDecoder::attention_outline(int64_t layer, int64_t length) const {
  return outline_of(layer_context(length, length, 0), layer, options_.n_head, length, length);
}

}  // namespace longspan
