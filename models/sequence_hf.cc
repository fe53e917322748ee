#include "models/sequence_hf.h"

namespace longspan::detail {

Tensor stored_sequence(std::string_view theirs, const Tensor& parameter) {
  if (theirs != logits_bias) return parameter;
  const int64_t vocab = parameter.dim(0);
  return parameter.alias({1, vocab}, Strides{vocab, 1}, 0);
}

}  // namespace longspan::detail
