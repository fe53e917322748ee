#include "models/transformer/transformer.h"
#include "tests/models/costs.h"
#include "tests/models/small_models.h"

namespace longspan::test {
namespace {

std::unique_ptr<LanguageModel> transformer_of(const TransformerConfig& c, const Init& init) {
  return std::make_unique<Transformer>(c, init);
}

ModelInfo decoder_info(const std::string& name,
                       const std::function<void(TransformerConfig&)>& change) {
  TransformerConfig c = transformer_preset("tiny");
  c.init_std = 0.3;
  c.dropout = 0;
  change(c);
  ModelInfo m;
  m.name = name;
  m.make = [c](const Init& init) { return transformer_of(c, init); };
  TransformerConfig dropping = c;
  if (dropping.dropout == 0) dropping.dropout = 0.1f;
  if (dropping.dropout_token == 0) dropping.dropout_token = 0.05f;
  m.make_with_dropout = [dropping](const Init& init, const MemoryPolicy& memory) mutable {
    dropping.memory = memory;
    return transformer_of(dropping, init);
  };
  m.sees = [c](int64_t i, int64_t j) {
    if (j > i && c.wiring == Wiring::decoder) return false;
    if (c.local == Locality::block) return i / c.window - j / c.window <= 1;
    if (c.local == Locality::none) return true;
    if (c.wiring == Wiring::decoder) return i - j < c.window;
    return std::abs(i - j) <= c.window / 2;
  };
  m.macs = [c](int64_t l) { return macs_of(c, l); };
  m.task = period_three;
  m.counted_from = 4;
  return m;
}

ModelInfo encoder_info(const std::string& name,
                       const std::function<void(TransformerConfig&)>& change) {
  ModelInfo m = decoder_info(name, [&](TransformerConfig& c) {
    c.wiring = Wiring::encoder;
    c.vocab = 18;
    c.mlm_head = c.head_bias = true;
    c.activation = Activation::gelu_erf;
    change(c);
  });
  m.masked = true;
  m.decodes = false;
  m.counted_from = 0;
  m.steps = 400;
  return m;
}

const RegisteredModel decoder_shaw_pre =
    decoder_info("decoder_shaw_pre", [](TransformerConfig&) {});
const RegisteredModel decoder_none_geglu = [] {
  ModelInfo m = decoder_info("decoder_none_geglu", [](TransformerConfig& c) {
    c.positions = Positions::none;
    c.activation = Activation::geglu;
  });
  m.task = successor;  // needs no positions
  m.counted_from = 0;
  return m;
}();
const RegisteredModel decoder_sinusoid_post_dropout = [] {
  ModelInfo m = decoder_info("decoder_sinusoid_post_dropout", [](TransformerConfig& c) {
    c.positions = Positions::sinusoid;
    c.norm = NormPlace::post;
    c.emb_scale = true;
    c.dropout = 0.05f;
    c.dropout_attn = 0.1f;
    c.label_smoothing = 0.1;
    c.init = Weights::xavier_uniform;
  });
  m.steps = 800;  // with 400, rounding decides whether it learns
  m.reach = 1.3;
  return m;
}();
// So mild that all keys count, as the laws of pairs want it.
const RegisteredModel decoder_entmax = decoder_info("decoder_entmax", [](TransformerConfig& c) {
  c.positions = Positions::sinusoid;
  c.alpha = 1.05;
  c.dropout_attn = 0;
});
const RegisteredModel decoder_learned_biases_wide =
    decoder_info("decoder_learned_biases_wide", [](TransformerConfig& c) {
      c.positions = Positions::learned;
      c.qkv_bias = c.out_bias = c.head_bias = true;
      c.n_head = 3;
      c.d_head = 7;
      c.activation = Activation::gelu_tanh;
    });
const RegisteredModel decoder_learned_per_layer =
    decoder_info("decoder_learned_per_layer", [](TransformerConfig& c) {
      c.positions = Positions::learned_per_layer;
      c.activation = Activation::gelu_sigmoid;
    });
const RegisteredModel decoder_auxiliary_losses = [] {
  ModelInfo m = decoder_info("decoder_auxiliary_losses", [](TransformerConfig& c) {
    c.positions = Positions::learned_per_layer;
    c.layer_loss = true;
    c.n_target = 2;
    c.dropout_token = 0.05f;
  });
  m.unrecorded = "layers stop predicting as training goes on";
  return m;
}();
const RegisteredModel decoder_shaw_shared_per_head =
    decoder_info("decoder_shaw_shared_per_head", [](TransformerConfig& c) {
      c.shaw_share_layers = c.shaw_per_head = c.shaw_two_sided = true;
      c.share_qk = true;
      c.d_embed = 6;
    });
const RegisteredModel local_exact = decoder_info("local_exact", [](TransformerConfig& c) {
  c.local = Locality::exact;
  c.window = 4;
});
const RegisteredModel local_exact_wider_than_text =
    decoder_info("local_exact_wider_than_text", [](TransformerConfig& c) {
      c.local = Locality::exact;
      c.window = 30;
      c.positions = Positions::sinusoid;
    });
const RegisteredModel local_block = decoder_info("local_block", [](TransformerConfig& c) {
  c.local = Locality::block;
  c.window = 4;
  c.activation = Activation::silu;
});
const RegisteredModel encoder_shaw = encoder_info("encoder_shaw", [](TransformerConfig&) {});
const RegisteredModel encoder_bert = encoder_info("encoder_bert", [](TransformerConfig& c) {
  c.positions = Positions::learned;
  c.norm = NormPlace::post;
  c.emb_norm = true;
  c.token_types = 2;
  c.qkv_bias = c.out_bias = true;
});
const RegisteredModel encoder_local_exact =
    encoder_info("encoder_local_exact", [](TransformerConfig& c) {
      c.local = Locality::exact;
      c.window = 6;
    });

}  // namespace
}  // namespace longspan::test
