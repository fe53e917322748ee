#include "models/transformer/encoder_decoder.h"

#include <utility>

#include "autograd/mode.h"
#include "models/own_rows.h"
#include "nn/objective.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/shape.h"

namespace longspan {

Tensor shifted_right(const Tensor& targets, int64_t start) {
  require_rank_is("shifted_right", targets, 2, "targets");
  const int64_t batch = targets.dim(0), length = targets.dim(1);
  const Tensor t = cast(targets, DType::i64);
  const Tensor first = full({batch, 1}, static_cast<double>(start), DType::i64, t.device());
  const Tensor shifted = concat({first, narrow(t, 1, 0, length - 1)}, 1);
  return where(equal(shifted, full_like(shifted, static_cast<double>(ignored_target))),
               zeros_like(shifted), shifted);
}

EncoderDecoder::EncoderDecoder(std::string name, const TransformerConfig& shell, const Init& init,
                               std::vector<std::unique_ptr<Layer>> encoder_attention)
    : name_(std::move(name)), shell_(shell, init, std::move(encoder_attention)) {}

Tensor EncoderDecoder::hidden_tokens(const SequenceInputs& in) {
  if (!in.mask) return {};
  if (in.mask.shape() != in.source.shape()) {
    fail_with<ShapeError>("encoder_decoder", "the mask must be [B, S] as the source",
                          {{"source", in.source}, {"mask", in.mask}});
  }
  return equal(in.mask, zeros_like(in.mask));
}

LayerContext EncoderDecoder::checked_context(const SequenceInputs& in, Pass pass) const {
  if (in.source.rank() != 2) {
    fail_with<ShapeError>(name_, "the source must be [B, S]", {{"source", in.source}});
  }
  return layer_context(in, pass);
}

Tensor EncoderDecoder::encode(const SequenceInputs& in, Pass pass) const {
  return shell_.run_encoder(in.source, checked_context(in, pass), pass).y;
}

Stack::Result EncoderDecoder::states(const SequenceInputs& in, Pass pass) const {
  return shell_.run_both(
      {.tokens = in.tokens, .lengths = in.lengths, .source = in.source, .mask = in.mask},
      checked_context(in, pass), pass);
}

Tensor EncoderDecoder::forward(const SequenceInputs& in, Pass pass) const {
  return states(in, pass).y;
}

Tensor EncoderDecoder::loss(const Tensor& hidden, const Tensor& targets, Pass pass) const {
  return shell_.loss(hidden, targets, pass);
}

std::unique_ptr<DecodeState> EncoderDecoder::start_decoding(const SequenceInputs& in) const {
  const NoGrad off;
  return shell_.start_decoding_after(encode(in, Pass{}), in.lengths, hidden_tokens(in));
}

LanguageModel::Losses EncoderDecoder::sequence_loss(const SourceTokens& source,
                                                    const Tensor& tokens, const Tensor& targets,
                                                    Pass pass) const try {
  const SequenceInputs in{
      .source = source.tokens, .lengths = source.lengths, .tokens = tokens, .mask = source.mask};
  const OwnRows own(tokens, pass);
  Stack::Result both = states(in, pass);
  Losses result;
  result.loss = own.share(loss(both.y, own.of(targets), own.pass()), targets);
  result.auxiliary = own.share(std::move(both.losses));
  result.statistics = std::move(both.statistics);
  return result;
} catch (const std::bad_alloc&) {
  fail_for_memory(name_);
}

std::unique_ptr<DecodeState> EncoderDecoder::start_after(const SourceTokens& source) const {
  return start_decoding({.source = source.tokens, .lengths = source.lengths, .mask = source.mask});
}

Tensor EncoderDecoder::attention_map(const Tensor& source, int64_t layer) const {
  return shell_.encoder_attention_map(source, layer, layer_context({.source = source}, Pass{}));
}

AttentionOutline EncoderDecoder::attention_outline(int64_t layer, int64_t length) const {
  const LayerContext seen = layer_context({.source = zeros({1, length}, DType::i64)}, Pass{});
  return outline_of(seen, layer, shell_.config().n_head, length, length);
}

Tensor EncoderDecoder::decoder_map(const Tensor& source, const Tensor& tokens, int64_t layer,
                                   bool cross) const {
  const NoGrad off;
  return shell_.decoder_map_after(encode({.source = source}, Pass{}), tokens, layer, cross);
}

Tensor EncoderDecoder::decode(const Tensor& tokens, DecodeState& state) const {
  return shell_.decode(tokens, state);
}

LanguageModel::Losses EncoderDecoder::loss(const Tensor&, const Tensor&, const SegmentMemory&,
                                           Pass) const {
  fail<NotImplemented>(name_, "an encoder-decoder needs a source; use sequence_loss()");
}
Tensor EncoderDecoder::logits(const Tensor&, Pass) const {
  fail<NotImplemented>(name_, "an encoder-decoder needs a source; use forward() and head()");
}

}  // namespace longspan
