#include "models/transformer/transformer.h"

#include <algorithm>
#include <cmath>

#include "autograd/mode.h"
#include "core/graph.h"
#include "core/scope.h"
#include "models/own_rows.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {
AttentionPattern Transformer::pattern(bool causal, int64_t key_start) const {
  switch (config_.local) {
    case Locality::exact:
      return causal ? patterns::local(config_.window)
                    : patterns::local_bidirectional(config_.window);
    case Locality::block:
      return patterns::local_block(config_.window, key_start);
    case Locality::none:
      break;
  }
  return causal ? patterns::causal() : patterns::dense();
}

LayerContext Transformer::layer_context(int64_t /*queries*/, int64_t /*keys*/,
                                        int64_t first_key) const {
  LayerContext ctx;
  ctx.pattern = pattern(config_.wiring != Wiring::encoder, first_key);
  return ctx;
}

LayerContext Transformer::encoder_context(const Tensor& lengths, const Tensor& hidden) const {
  LayerContext ctx;
  ctx.pattern = with_lengths(pattern(false, 0), lengths, lengths);
  if (hidden) ctx.pattern = with_hidden_keys(std::move(ctx.pattern), hidden);
  return ctx;
}

int64_t Transformer::first_visible(int64_t position) const {
  const int64_t w = config_.window;
  switch (config_.local) {
    case Locality::exact:
      return std::max<int64_t>(position - (w - 1), 0);
    case Locality::block:
      return std::max<int64_t>((position / w - 1) * w, 0);
    case Locality::none:
      break;
  }
  return 0;
}

/// Sec. 3.4 and 3.5: sqrt(D) E[token] + P[position], with the options of later models.
Tensor Transformer::tables(bool source, const Tensor& tokens, int64_t first, const Tensor& types,
                           Pass pass) const {
  const TransformerConfig& c = config_;
  const bool own = source && c.source_tables;
  const int64_t length = tokens.dim(1);
  Tensor x = source && c.source_vocab > 0 ? source_.forward(tokens, c.padding_id)
                                          : token_rows(tokens, c.padding_id);  // [B, L, De]
  if (c.dropout_token > 0 && pass.training) {
    const int64_t rows = pass.split != nullptr ? pass.rows : length;
    const Tensor kept = bernoulli({x.dim(0), rows, 1}, pass.at("token").gen, 1 - c.dropout_token,
                                  x.dtype(), x.device());
    x = mul(x, rows == length ? kept : narrow(kept, 1, first, length));
  }
  if (c.projects()) x = embed_projection_.forward(x);  // [B, L, D]
  if (c.emb_scale) x = mul(x, std::sqrt(static_cast<double>(c.d_model)));
  if (c.positions == Positions::sinusoid) {
    x = add(x, first + length <= sinusoid_.dim(0)
                   ? narrow(sinusoid_, 0, first, length)
                   : longspan::sinusoid(first, length, c.d_model, c.sinusoid, x.dtype(), device()));
  }
  if (c.positions == Positions::learned) {
    const LearnedPositions& rows = own ? source_position_ : position_;
    x = add(x, rows.forward(c.position_offset + first, length));
  }
  if (c.token_types > 0) {
    x = add(x, types ? type_.forward(types) : select(type_.weight, 0, 0));
  }
  if (c.types_share_table && types) x = add(x, token_rows(types));
  if (c.emb_norm) x = (own ? source_norm_ : embed_norm_).forward(x);
  return dropout(x, or_default(c.dropout_emb, c.dropout), pass.at("emb"));
}

Tensor Transformer::embed_source(const Tensor& source, Pass pass) const {
  return embedded(source, 0, [&] { return tables(true, source, 0, {}, pass); });
}

Tensor Transformer::encode(const Tensor& source, const Tensor& lengths, Pass pass) const {
  require<NotImplemented>(config_.wiring == Wiring::encoder_decoder, TransformerConfig::model_name,
                          "only an encoder_decoder encodes a source; this is a {}",
                          name_of_value(config_.wiring));
  return run_encoder(source, encoder_context(lengths), pass).y;
}

Stack::Result Transformer::run_encoder(const Tensor& source, const LayerContext& ctx,
                                       Pass pass) const {
  const Scope scope("encoder");
  const OwnRows own(source, pass);
  const Pass site = own.pass().at("encoder");
  LayerContext here = ctx;
  own.place(here);
  const Tensor x = embedded(own.of(source), own.first(),
                            [&] { return tables(true, own.of(source), own.first(), {}, site); });
  return encoder_.forward(x, here, {}, site);
}

Stack::Result Transformer::run_both(const TransformerInputs& in, const LayerContext& encoder,
                                    Pass pass) const {
  Stack::Result all = run_encoder(in.source, encoder, pass);
  TransformerInputs rest = in;
  rest.context = all.y;
  Stack::Result decoder = states_of(rest, pass, nullptr);
  all.y = std::move(decoder.y);
  add_losses(all.losses, std::move(decoder.losses));
  add_statistics(all.statistics, std::move(decoder.statistics));
  return all;
}

Tensor Transformer::forward(const TransformerInputs& in, Pass pass) const {
  return states_of(in, pass, nullptr).y;
}

Stack::Result Transformer::states(const Tensor& tokens, const SegmentMemory& memory,
                                  Pass pass) const {
  require_no_memory(TransformerConfig::model_name, memory);
  return states_of({.tokens = tokens}, pass, nullptr);
}

Stack::Result Transformer::states_of(const TransformerInputs& in, Pass pass,
                                     std::vector<Tensor>* layers) const {
  const Scope scope(TransformerConfig::model_name);
  const bool seq2seq = config_.wiring == Wiring::encoder_decoder;
  require(!seq2seq || in.source || in.context, TransformerConfig::model_name,
          "an encoder_decoder needs a source");
  require(seq2seq || (!in.source && !in.context), TransformerConfig::model_name,
          "only an encoder_decoder takes a source");
  Tensor hidden;
  if (in.mask) hidden = equal(in.mask, zeros_like(in.mask));
  if (seq2seq && !in.context) return run_both(in, encoder_context(in.lengths, hidden), pass);
  LayerContext ctx = layer_context(0, 0, 0);
  if (seq2seq) {
    ctx.encoder_output = in.context;
    ctx.encoder_pattern = with_lengths(patterns::dense(), {}, in.lengths);
    if (hidden) ctx.encoder_pattern = with_hidden_keys(std::move(ctx.encoder_pattern), hidden);
  } else {
    if (in.lengths) ctx.pattern = with_lengths(ctx.pattern, in.lengths, in.lengths);
    if (hidden) ctx.pattern = with_hidden_keys(std::move(ctx.pattern), hidden);
  }
  const OwnRows own(in.tokens, pass);
  if (seq2seq && pass.split != nullptr) ctx.own.set(SourceRows{in.source.dim(1)});
  own.place(ctx);
  const Tensor x = embedded(own.of(in.tokens), own.first(), [&] {
    return tables(false, own.of(in.tokens), own.first(), own.of(in.types), own.pass());
  });
  return stack_.forward(x, ctx, {}, own.pass(), layers);
}

/// Applies BERT's transform and the projection to the width of the tables, if the model has them.
Tensor Transformer::head_input(const Tensor& hidden) const {
  const Tensor h = config_.mlm_head ? mlm_.forward(hidden) : hidden;
  return config_.projects() ? head_projection_.forward(h) : h;
}

Tensor Transformer::loss(const Tensor& hidden, const Tensor& targets, Pass pass) const {
  const Scope scope("loss");
  require_token_targets(TransformerConfig::model_name, hidden, targets);
  return further_loss(head_input(hidden), head_, targets, 0, pass);
}

Tensor Transformer::further_loss(Tensor h, const Linear& classifier, Tensor y, int64_t further,
                                 Pass pass) const {
  if (config_.half_loss && pass.training) {
    const int64_t from = h.dim(1) / 2;
    h = slice(h, 1, from);
    y = slice(y, 1, from);
  }
  if (further > 0) {  // y_i is the token after i, so y_{i + further} is the target
    further = std::min(further, h.dim(1));
    h = slice(h, 1, 0, h.dim(1) - further);
    y = slice(y, 1, further);
  }
  if (&classifier == &head_) return target_loss(h, y, pass.training, config_.label_smoothing);
  return token_loss(h, classifier, y, config_.token_head, pass.training, config_.label_smoothing);
}

/// Al-Rfou et al. 2019, "Auxiliary Losses". Lower layers stop predicting earlier.
Tensor Transformer::auxiliary_loss(const std::vector<Tensor>& layers, const Tensor& hidden,
                                   const Tensor& targets, Pass pass) const {
  const Scope scope("auxiliary");
  Tensor sum;
  const auto first = config_.n_layer - static_cast<int64_t>(auxiliary_.size());
  for (int64_t layer = first + 1; layer <= config_.n_layer; ++layer) {
    const bool last = layer == config_.n_layer;
    const double until = static_cast<double>(layer) / (2.0 * static_cast<double>(config_.n_layer));
    if (!last) graph::refuse("auxiliary losses", "layers stop predicting as training goes on");
    if (!last && pass.progress >= until) continue;
    const AuxiliaryHead& aux = auxiliary_[static_cast<size_t>(layer - first - 1)];
    Tensor h = last ? hidden : layers[static_cast<size_t>(layer - 1)];
    if (aux.norm) h = aux.norm->forward(h);
    int64_t further = last ? 1 : 0;
    for (const Linear& classifier : aux.targets) {
      Tensor term = further_loss(h, classifier, targets, further, pass);
      if (further > 0) term = mul(term, config_.target_weight);
      sum = sum ? add(sum, term) : term;
      ++further;
    }
  }
  return sum;
}

Tensor Transformer::classify(const Tensor& hidden) const {
  require<NotImplemented>(config_.classes > 0, TransformerConfig::model_name,
                          "classification needs classes > 0");
  return classes_.forward(hidden, 0, Pass{});
}

Tensor Transformer::states_of(const EncoderInputs& in, Pass pass) const {
  require<NotImplemented>(!in.global, TransformerConfig::model_name,
                          "this model has no global tokens");
  return forward({.tokens = in.tokens, .lengths = in.lengths, .types = in.types, .mask = in.mask},
                 pass);
}

Tensor Transformer::class_logits(const EncoderInputs& in, Pass pass) const {
  require<NotImplemented>(classes() > 0, TransformerConfig::model_name,
                          "classification needs classes > 0 in a decoder");
  const int64_t batch = in.tokens.dim(0), length = in.tokens.dim(1);
  const Tensor place = iota(length, DType::i64, device());
  Tensor last = full({batch, 1}, static_cast<double>(length - 1), DType::i64, device());
  if (in.mask || in.lengths) {
    const Tensor there =
        in.mask ? not_equal(in.mask, zeros_like(in.mask)) : less(place, unsqueeze(in.lengths, 1));
    const Tensor places = broadcast_to(place, {batch, length});
    last = max(where(there, places, zeros_like(places)), 1, true).values;
  }
  const Tensor row =
      select(permute_rows(states_of(in, undivided(TransformerConfig::model_name, pass)), last), 1,
             0);  // [B, D]
  return last_classes_.forward(row);
}

Tensor Transformer::tag_logits(const EncoderInputs& in, Pass pass) const {
  require<NotImplemented>(config_.tags > 0, TransformerConfig::model_name,
                          "labels of tokens need tags > 0");
  return tags_.forward(dropout(states_of(in, undivided(TransformerConfig::model_name, pass)),
                               config_.dropout, pass.at("tags")));
}

SpanLogits Transformer::span_logits(const EncoderInputs& in, Pass pass) const {
  require<NotImplemented>(config_.span_head, TransformerConfig::model_name,
                          "answers as spans need span_head");
  return span_logits_of(
      spans_.forward(states_of(in, undivided(TransformerConfig::model_name, pass))), in.lengths);
}

Objective Transformer::objective() const {
  switch (config_.wiring) {
    case Wiring::encoder:
      return Objective::masked_token;
    case Wiring::encoder_decoder:
      return Objective::sequence;
    case Wiring::decoder:
      break;
  }
  return Objective::next_token;
}

int64_t Transformer::mask_token() const {
  return config_.wiring == Wiring::encoder ? config_.vocab - 1 : -1;
}

int64_t Transformer::max_length() const {
  const bool table =
      config_.positions == Positions::learned || config_.positions == Positions::learned_per_layer;
  return table ? config_.n_max : LanguageModel::max_length();
}

std::string_view TransformerConfig::extend_positions(int64_t length) {
  if (positions != Positions::learned && positions != Positions::learned_per_layer) return {};
  const bool own = source_tables && positions == Positions::learned && source_n_max > 0;
  return own ? extend_table("source_n_max", source_n_max, length)
             : extend_table("n_max", n_max, length);
}

/// Counts positions of the source only; the decoder's table may have another size.
int64_t Transformer::max_source_length() const {
  const bool own = config_.source_tables && config_.positions == Positions::learned;
  return own && config_.source_n_max > 0 ? config_.source_n_max : max_length();
}

LanguageModel::Losses Transformer::loss(const Tensor& tokens, const Tensor& targets,
                                        const SegmentMemory& memory, Pass pass) const try {
  if (!pass.training || (!config_.layer_loss && config_.n_target == 1)) {
    return CausalDecoder::loss(tokens, targets, memory, pass);
  }
  require_no_memory(TransformerConfig::model_name, memory);
  std::vector<Tensor> layers;
  Stack::Result states = states_of({.tokens = tokens}, pass, &layers);
  Losses result;
  result.loss = loss(states.y, targets, pass);
  result.auxiliary = std::move(states.losses);
  result.statistics = std::move(states.statistics);
  if (const Tensor sum = auxiliary_loss(layers, states.y, targets, pass)) {
    add_losses(result.auxiliary, {{"auxiliary", sum}});
  }
  return result;
} catch (const std::bad_alloc&) {
  fail_for_memory(TransformerConfig::model_name);
}

LanguageModel::Losses Transformer::sequence_loss(const SourceTokens& source, const Tensor& tokens,
                                                 const Tensor& targets, Pass pass) const try {
  const OwnRows own(tokens, pass);
  Stack::Result states = states_of(
      {.tokens = tokens, .lengths = source.lengths, .source = source.tokens, .mask = source.mask},
      pass, nullptr);
  Losses result;
  result.loss = own.share(loss(states.y, own.of(targets), own.pass()), targets);
  result.auxiliary = own.share(std::move(states.losses));
  result.statistics = std::move(states.statistics);
  return result;
} catch (const std::bad_alloc&) {
  fail_for_memory(TransformerConfig::model_name);
}

std::unique_ptr<DecodeState> Transformer::start_decoding(int64_t batch) const {
  require<NotImplemented>(config_.wiring == Wiring::decoder, TransformerConfig::model_name,
                          "a {} does not decode without a source", name_of_value(config_.wiring));
  return CausalDecoder::start_decoding(batch);
}

std::unique_ptr<DecodeState> Transformer::start_after(const SourceTokens& source) const {
  const NoGrad off;
  if (!source.mask) return start_decoding(source.tokens, source.lengths);
  const Tensor hidden = equal(source.mask, zeros_like(source.mask));
  const Tensor context =
      run_encoder(source.tokens, encoder_context(source.lengths, hidden), Pass{}).y;
  return start_decoding_after(context, source.lengths, hidden);
}

std::unique_ptr<DecodeState> Transformer::start_decoding(const Tensor& source,
                                                         const Tensor& lengths) const {
  const NoGrad off;
  return start_decoding_after(encode(source, lengths, Pass{}), lengths);
}

std::unique_ptr<DecodeState> Transformer::start_decoding_after(const Tensor& context,
                                                               const Tensor& lengths,
                                                               const Tensor& hidden) const {
  auto state = std::make_unique<StreamState>(context.dim(0));
  state->context = context.detach();
  state->lengths = lengths;
  state->hidden = hidden;
  return state;
}

Tensor Transformer::attention_map(const Tensor& tokens, int64_t layer) const {
  if (config_.wiring != Wiring::encoder_decoder) return CausalDecoder::attention_map(tokens, layer);
  return encoder_attention_map(tokens, layer, encoder_context({}));
}

Tensor Transformer::encoder_attention_map(const Tensor& source, int64_t layer,
                                          const LayerContext& ctx) const {
  const NoGrad off;
  return encoder_.attention_map(layer, embed_source(source, Pass{}), ctx);
}

Tensor Transformer::decoder_map(const Tensor& source, const Tensor& tokens, int64_t layer,
                                bool cross) const {
  require<NotImplemented>(has_decoder(), TransformerConfig::model_name,
                          "only an encoder_decoder takes a source");
  const NoGrad off;
  return decoder_map_after(encode(source, {}, Pass{}), tokens, layer, cross);
}

Tensor Transformer::decoder_map_after(const Tensor& context, const Tensor& tokens, int64_t layer,
                                      bool cross) const {
  const NoGrad off;
  LayerContext ctx = layer_context(0, 0, 0);
  ctx.encoder_output = context;
  ctx.encoder_pattern = patterns::dense();
  return stack_.attention_map(layer, embedded(tokens, 0, Pass{}), ctx,
                              cross ? "cross" : "attention");
}

/// Losses over a part of the targets, or of several layers, need targets of other processes.
std::vector<int64_t> Transformer::divided_heads() const {
  const TransformerConfig& c = config_;
  if (c.half_loss || c.layer_loss || c.n_target > 1) return {};
  if (c.wiring != Wiring::encoder_decoder || c.target_n_head == 0) return {c.n_head};
  return {c.n_head, c.target_n_head};
}

AttentionOutline Transformer::attention_outline(int64_t layer, int64_t length) const {
  if (config_.wiring != Wiring::encoder_decoder) {
    return CausalDecoder::attention_outline(layer, length);
  }
  return outline_of(encoder_context({}), layer, config_.n_head, length, length);
}

}  // namespace longspan
