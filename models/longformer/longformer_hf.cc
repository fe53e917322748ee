#include "models/longformer/longformer_hf.h"

#include "models/hf_keys.h"

namespace longspan {
namespace {

/// An encoder's names and the global projections.
constexpr auto longformer_names =
    joined(detail::encoder_names,
           {{"layers.#.attention.q_global", "encoder.layer.#.attention.self.query_global"},
            {"layers.#.attention.k_global", "encoder.layer.#.attention.self.key_global"},
            {"layers.#.attention.v_global", "encoder.layer.#.attention.self.value_global"}});

}  // namespace

constinit const CheckpointFormat longformer_format{"longformer",
                                                   "longformer.",
                                                   longformer_names,
                                                   detail::roberta_heads,
                                                   detail::roberta_unused,
                                                   nullptr,
                                                   {},
                                                   detail::roberta_untied};

LongformerKeys::LongformerKeys() {
  model_type = "longformer";
  vocab_size = 30'522;
}

LongformerConfig longformer_config(const LongformerKeys& k) {
  require(k.model_type == "longformer", detail::checkpoint_op,
          "model_type is \"{}\"; expected \"longformer\"", k.model_type);
  EncoderKeys shared = k;
  shared.model_type = "roberta";  // for its position tables
  LongformerConfig c;
  set_encoder(shared, c);
  const auto windows = std::ssize(k.attention_window);
  require(windows == 1 || windows == k.num_hidden_layers, detail::checkpoint_op,
          "attention_window has {} numbers; expected one, or num_hidden_layers, {}", windows,
          k.num_hidden_layers);
  c.one_sided_window = detail::one_sided(k.attention_window);
  c.separator_id = k.sep_token_id;
  return c;
}

LongformerKeys longformer_keys(const LongformerConfig& c) {
  require(!has_dilation(c.dilation, c.dilated_heads), detail::checkpoint_op,
          "a model of type longformer has no dilation");
  LongformerKeys k;
  static_cast<EncoderKeys&>(k) = encoder_keys(c, "roberta");
  k.model_type = "longformer";
  if (c.separator_id >= 0) k.sep_token_id = c.separator_id;
  k.attention_window.clear();
  for (int64_t i = 0; i < c.n_layer; ++i) {
    k.attention_window.push_back(2 * longformer_attention("longformer", c, i).one_sided_window);
  }
  return k;
}

}  // namespace longspan
