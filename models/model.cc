#include "models/model.h"

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
  moved(hidden);
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

}  // namespace longspan
