// BP-Transformer's entries in the table that tests every model.

#include "models/bp_transformer/bp_encoder.h"
#include "models/bp_transformer/bp_transformer.h"
#include "tests/harness/model_info.h"
#include "tests/models/costs.h"

namespace longspan::test {
namespace {

template <class Model, class Config>
ModelInfo entry(const std::string& name, const Config& c) {
  ModelInfo m;
  m.name = name;
  m.make = [c](const Init& init) { return std::make_unique<Model>(c, init); };
  Config dropping = c;
  dropping.dropout = 0.1f;
  m.make_with_dropout = [dropping](const Init& init, const MemoryPolicy& memory) mutable {
    dropping.memory = memory;
    return std::make_unique<Model>(dropping, init);
  };
  m.macs = [c](int64_t l) { return macs_of(c, l); };
  return m;
}

ModelInfo decoder(const std::string& name, const BpTransformerConfig& c) {
  ModelInfo m = entry<BpTransformer>(name, c);
  // Within two layers: a span reads its tokens, and each later token reads the span.
  m.sees = [](int64_t i, int64_t j) { return j <= i; };
  m.task = [](int64_t b, int64_t t) { return philox_word(5, b * 3 + t % 3) % 17; };
  m.counted_from = 4;
  m.steps = 400;
  if (c.intermediate_loss) m.unrecorded = "layers stop predicting as training goes on";
  return m;
}

const RegisteredModel plain = [] {
  BpTransformerConfig c = bp_transformer_preset("tiny");
  c.tie_embedding = false;  // the test of influence reads gradients of the table
  return decoder("bp_transformer", c);
}();

const RegisteredModel projected = [] {
  BpTransformerConfig c = bp_transformer_preset("tiny");
  c.d_embed = 5;
  c.tie_embedding = false;
  c.intermediate_loss = false;
  c.span_self_loop = true;
  c.n_layer = 3;
  c.k = 1;
  c.clip = 0;
  ModelInfo m = decoder("bp_transformer_projected", c);
  m.steps = 1000;  // with 400 at 1e-2, rounding decides whether it learns
  m.lr = 5e-3;
  return m;
}();

ModelInfo encoder(const std::string& name, const BpEncoderConfig& c) {
  ModelInfo m = entry<BpEncoder>(name, c);
  m.sees = [causal = c.causal](int64_t i, int64_t j) { return !causal || j <= i; };
  m.task = [](int64_t b, int64_t t) { return philox_word(5, b * 3 + t % 3) % 16; };
  m.counted_from = 4;
  m.steps = 500;
  m.masked = true;
  m.decodes = false;
  return m;
}

BpEncoderConfig encoder_config() {
  BpEncoderConfig c = bp_encoder_preset("tiny");
  c.classes = 0;
  c.tie_embedding = false;
  return c;
}

const RegisteredModel both_sides = encoder("bp_encoder", encoder_config());

const RegisteredModel one_side = [] {
  BpEncoderConfig c = encoder_config();
  c.causal = true;
  c.k = 3;
  return encoder("bp_encoder_causal", c);
}();

}  // namespace
}  // namespace longspan::test
