// BP-Transformer's entries in the table that tests every model.

#include "models/bp_transformer/bp_encoder.h"
#include "models/bp_transformer/bp_transformer.h"
#include "tests/models/costs.h"
#include "tests/models/small_models.h"

namespace longspan::test {
namespace {

template <class Model, class Config>
ModelInfo bp_info(const std::string& name, const Config& c) {
  ModelInfo m = entry_of<Model>(name, c);
  m.macs = [c](int64_t l) { return macs_of(c, l); };
  return m;
}

ModelInfo bp_transformer_info(const std::string& name, const BpTransformerConfig& c) {
  ModelInfo m = bp_info<BpTransformer>(name, c);
  // Within two layers: a span reads its tokens, and each later token reads the span.
  m.sees = [](int64_t i, int64_t j) { return j <= i; };
  m.task = period_three;
  m.counted_from = 4;
  m.steps = 400;
  if (c.intermediate_loss) m.unrecorded = "layers stop predicting as training goes on";
  return m;
}

const RegisteredModel bp_transformer = [] {
  BpTransformerConfig c = bp_transformer_preset("tiny");
  c.tie_embedding = false;  // the test of influence reads gradients of the table
  return bp_transformer_info("bp_transformer", c);
}();

const RegisteredModel bp_transformer_projected = [] {
  BpTransformerConfig c = bp_transformer_preset("tiny");
  c.d_embed = 5;
  c.tie_embedding = false;
  c.intermediate_loss = false;
  c.span_self_loop = true;
  c.n_layer = 3;
  c.k = 1;
  c.clip = 0;
  ModelInfo m = bp_transformer_info("bp_transformer_projected", c);
  m.steps = 1000;  // with 400 at 1e-2, rounding decides whether it learns
  m.lr = 5e-3;
  return m;
}();

ModelInfo bp_encoder_info(const std::string& name, const BpEncoderConfig& c) {
  ModelInfo m = bp_info<BpEncoder>(name, c);
  m.sees = [causal = c.causal](int64_t i, int64_t j) { return !causal || j <= i; };
  m.task = [](int64_t b, int64_t t) { return philox_word(5, b * 3 + t % 3) % 16; };
  m.counted_from = 4;
  m.steps = 500;
  m.masked = true;
  m.decodes = false;
  return m;
}

BpEncoderConfig bp_encoder_config() {
  BpEncoderConfig c = bp_encoder_preset("tiny");
  c.classes = 0;
  c.tie_embedding = false;
  return c;
}

const RegisteredModel bp_encoder = bp_encoder_info("bp_encoder", bp_encoder_config());

const RegisteredModel bp_encoder_causal = [] {
  BpEncoderConfig c = bp_encoder_config();
  c.causal = true;
  c.k = 3;
  return bp_encoder_info("bp_encoder_causal", c);
}();

}  // namespace
}  // namespace longspan::test
