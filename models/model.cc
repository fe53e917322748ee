#include "models/model.h"

namespace longspan {

std::unique_ptr<DecodeState> LanguageModel::start_decoding(int64_t) const {
  fail<NotImplemented>("model", "this model does not decode step by step");
}

Tensor LanguageModel::decode(const Tensor&, DecodeState&) const {
  fail<NotImplemented>("model", "this model does not decode step by step");
}

Tensor LanguageModel::attention_map(const Tensor&, int64_t) const {
  fail<NotImplemented>("model", "this model has no attention map");
}

}  // namespace longspan
