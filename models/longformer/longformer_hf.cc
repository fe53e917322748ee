#include "models/longformer/longformer_hf.h"

#include "models/hf_keys.h"

namespace longspan {
namespace {

constexpr const char* kOp = detail::checkpoint_op;

/// An encoder's names and the global projections.
constexpr auto names =
    joined(detail::encoder_names,
           {{"layers.#.attention.q_global", "encoder.layer.#.attention.self.query_global"},
            {"layers.#.attention.k_global", "encoder.layer.#.attention.self.key_global"},
            {"layers.#.attention.v_global", "encoder.layer.#.attention.self.value_global"}});

}  // namespace

constinit const CheckpointFormat longformer_format{
    "longformer",           "longformer.", names, detail::roberta_heads,
    detail::roberta_unused, nullptr,       {},    detail::roberta_untied};

LongformerKeys::LongformerKeys() {
  model_type = "longformer";
  max_position_embeddings = 4098;
}

LongformerConfig longformer_config(const LongformerKeys& k) {
  require(k.model_type == "longformer", kOp, "model_type is \"{}\"; expected \"longformer\"",
          k.model_type);
  EncoderKeys shared = k;
  shared.model_type = "roberta";  // for its position tables
  LongformerConfig c;
  set_encoder(shared, c);
  c.one_sided_window = detail::one_sided(k.attention_window);
  return c;
}

LongformerKeys longformer_keys(const LongformerConfig& c) {
  require(!has_dilation(c.dilation, c.dilated_heads), kOp,
          "a model of type longformer has no dilation");
  LongformerKeys k;
  static_cast<EncoderKeys&>(k) = encoder_keys(c, "roberta");
  k.model_type = "longformer";
  k.attention_window.clear();
  for (int64_t i = 0; i < c.n_layer; ++i) {
    k.attention_window.push_back(2 * longformer_attention("longformer", c, i).one_sided_window);
  }
  return k;
}

}  // namespace longspan
