#include "models/encoder_decoder.h"

#include <utility>

#include "autograd/mode.h"

namespace longspan {

EncoderDecoder::EncoderDecoder(std::string name, const TransformerConfig& shell, const Init& init,
                               std::vector<std::unique_ptr<Layer>> encoder_attention)
    : name_(std::move(name)), shell_(shell, init, std::move(encoder_attention)) {}

Tensor EncoderDecoder::encode(const SequenceInputs& in, Pass pass) const {
  if (in.source.rank() != 2) {
    fail_with<ShapeError>(name_, "the source must be [B, S]", {{"source", in.source}});
  }
  return shell_.run_encoder(in.source, given(in), pass);
}

Tensor EncoderDecoder::forward(const SequenceInputs& in, Pass pass) const {
  return shell_.forward({.tokens = in.tokens, .lengths = in.lengths, .context = encode(in, pass)},
                        pass);
}

Tensor EncoderDecoder::loss(const Tensor& hidden, const Tensor& targets, Pass pass) const {
  return shell_.loss(hidden, targets, pass);
}

std::unique_ptr<DecodeState> EncoderDecoder::start_decoding(const SequenceInputs& in) const {
  const NoGrad off;
  return shell_.start_decoding_after(encode(in, Pass{}), in.lengths);
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
std::unique_ptr<DecodeState> EncoderDecoder::start_decoding(int64_t) const {
  fail<NotImplemented>(name_, "an encoder-decoder needs a source; use start_after()");
}

/// What the Transformer does, with the model's own attention in the encoder.
int64_t EncoderDecoder::macs(int64_t length) const {
  const int64_t l = length, d = shell_.config().d_model;
  return shell_.macs(l) - shell_.config().n_layer * (4 * l * d * d + 2 * l * l * d) +
         encoder_attention_macs(l);
}

}  // namespace longspan
