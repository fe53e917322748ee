#include "models/model.h"

#include <algorithm>

#include "autograd/mode.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/index.h"

namespace longspan {

void DecodeState::take_rows(const Tensor& /*rows*/, bool /*same_context*/) {
  fail<NotImplemented>("beam_search", "the decoding state of this model cannot be reordered");
}

void StreamState::take_rows(const Tensor& rows, bool same_context) {
  const auto moved = [&](Tensor& x) {
    if (x) x = take(x, rows);
  };
  memory = longspan::take_rows(memory, rows, !same_context);
  for (Tensor& x : choices) moved(x);
  batch = rows.dim(0);
  if (same_context) return;
  moved(context);
  moved(lengths);
}

StreamState& StreamState::of(DecodeState& opaque, std::string_view model, const Tensor& tokens) {
  auto* state = dynamic_cast<StreamState*>(&opaque);
  require(state != nullptr, model, "the decoding state is another model's");
  if (tokens.rank() != 2 || tokens.dim(0) != state->batch || tokens.dim(1) < 1) {
    fail_with<ShapeError>(model, fmt::format("decoding takes tokens [{}, n], n >= 1", state->batch),
                          {{"tokens", tokens}});
  }
  return *state;
}

LanguageModel::Losses LanguageModel::sequence_loss(const SourceTokens&, const Tensor&,
                                                   const Tensor&, Pass) const {
  fail<NotImplemented>("model", "this model reads no source; expected an encoder-decoder");
}

std::unique_ptr<DecodeState> LanguageModel::start_after(const SourceTokens&) const {
  fail<NotImplemented>("model", "this model reads no source; expected an encoder-decoder");
}

std::unique_ptr<DecodeState> LanguageModel::start_decoding(int64_t) const {
  fail<NotImplemented>("model", "this model does not decode step by step");
}

Tensor LanguageModel::decode(const Tensor&, DecodeState&) const {
  fail<NotImplemented>("model", "this model does not decode step by step");
}

Tensor LanguageModel::class_logits(const SourceTokens& /*in*/, Pass /*pass*/) const {
  fail<NotImplemented>("model", "this model has no head for classes of whole sequences");
}

Tensor LanguageModel::logits_after(SegmentMemory&, const Tensor&) const {
  fail<NotImplemented>("model", "this model keeps no memory between segments");
}

AttentionOutline LanguageModel::attention_outline(int64_t, int64_t) const {
  fail<NotImplemented>("model", "this model has no outline of its attention");
}

Tensor LanguageModel::attention_map(const Tensor&, int64_t) const {
  fail<NoAttentionMap>("attention map", "this model has none");
}

int64_t forward_macs(const LanguageModel& model, int64_t length, int64_t batch) {
  const NoGrad off;
  const auto ids = [&](int64_t n) { return zeros({batch, n}, DType::i32, model.device()); };
  const MacCount macs;
  if (model.objective() == Objective::sequence) {
    const Tensor target = ids(std::min(length, model.max_length()));
    model.sequence_loss({ids(length)}, target, target, Pass{});
  } else {
    model.loss(ids(length), ids(length), model.empty_memory(batch), Pass{});
  }
  return macs.total();
}

}  // namespace longspan
