#include "models/model.h"

namespace longspan {

void DecodeState::take_rows(const Tensor& /*rows*/, bool /*same_context*/) {
  fail<NotImplemented>("beam_search", "the decoding state of this model cannot be reordered");
}

std::unique_ptr<DecodeState> LanguageModel::start_decoding(int64_t) const {
  fail<NotImplemented>("model", "this model does not decode step by step");
}

Tensor LanguageModel::decode(const Tensor&, DecodeState&) const {
  fail<NotImplemented>("model", "this model does not decode step by step");
}

AttentionOutline LanguageModel::attention_outline(int64_t, int64_t) const {
  fail<NotImplemented>("model", "this model has no outline of its attention");
}

Tensor LanguageModel::attention_map(const Tensor&, int64_t) const {
  fail<NotImplemented>("model", "this model has no attention map");
}

}  // namespace longspan
