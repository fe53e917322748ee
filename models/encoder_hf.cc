#include "models/encoder_hf.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/hf_keys.h"

namespace longspan {
namespace {

constexpr NamePair bert_heads[] = {
    {"mlm.dense", "cls.predictions.transform.dense"},
    {"mlm.norm", "cls.predictions.transform.LayerNorm"},
    {"head.weight", "cls.predictions.decoder.weight"},
    {"head.bias", "cls.predictions.bias"},
    {"pool", "bert.pooler.dense"},
    {"classifier", "classifier"},
    {"tags", "classifier"},
    {"spans", "qa_outputs"},
};
constexpr NamePair distilbert_names[] = {
    {"embed.token", "embeddings.word_embeddings"},
    {"embed.position", "embeddings.position_embeddings"},
    {"embed.norm", "embeddings.LayerNorm"},
    {"layers.#.attention.q", "transformer.layer.#.attention.q_lin"},
    {"layers.#.attention.k", "transformer.layer.#.attention.k_lin"},
    {"layers.#.attention.v", "transformer.layer.#.attention.v_lin"},
    {"layers.#.attention.out", "transformer.layer.#.attention.out_lin"},
    {"layers.#.norm1", "transformer.layer.#.sa_layer_norm"},
    {"layers.#.ff.in", "transformer.layer.#.ffn.lin1"},
    {"layers.#.ff.out", "transformer.layer.#.ffn.lin2"},
    {"layers.#.norm2", "transformer.layer.#.output_layer_norm"},
};
constexpr NamePair distilbert_heads[] = {
    {"mlm.dense", "vocab_transform"},
    {"mlm.norm", "vocab_layer_norm"},
    {"head.weight", "vocab_projector.weight"},
    {"head.bias", "vocab_projector.bias"},
    {"pool", "pre_classifier"},
    {"classifier", "classifier"},
    {"tags", "classifier"},
    {"spans", "qa_outputs"},
};
constexpr OtherName distilbert_unused[] = {
    {"vocab_projector.weight", OtherName::Kind::copy, detail::word_table, detail::untie},
    {"embeddings.position_ids", OtherName::Kind::ordinals},
};
constexpr auto electra_names =
    joined(detail::encoder_names, {{"embed.projection", "embeddings_project"}});
constexpr NamePair electra_heads[] = {
    {"mlm.dense", "generator_predictions.dense"},
    {"mlm.norm", "generator_predictions.LayerNorm"},
    {"head.weight", "generator_lm_head.weight"},
    {"head.bias", "generator_lm_head.bias"},
    {"pool", "classifier.dense"},
    {"classifier", "classifier.out_proj"},
    {"tags", "classifier"},
    {"spans", "qa_outputs"},
};
constexpr OtherName electra_unused[] = {
    {"generator_lm_head.weight", OtherName::Kind::copy, detail::word_table, detail::untie},
    {"embeddings.position_ids", OtherName::Kind::ordinals},
    "discriminator_predictions.dense.weight",
    "discriminator_predictions.dense.bias",
    "discriminator_predictions.dense_prediction.weight",
    "discriminator_predictions.dense_prediction.bias",
};
constexpr auto bert_unused =
    joined(detail::bert_head_unused, {"pooler.dense.weight", "pooler.dense.bias"});

}  // namespace

constinit const CheckpointFormat roberta_format{
    "roberta", "roberta.", detail::encoder_names, detail::roberta_heads, detail::roberta_unused,
    nullptr,   {},         detail::roberta_untied};
constinit const CheckpointFormat bert_format{
    "bert",  "bert.", detail::encoder_names, bert_heads, bert_unused,
    nullptr, {},      detail::bert_untied};
constinit const CheckpointFormat distilbert_format{"distilbert", "distilbert.", distilbert_names,
                                                   distilbert_heads, distilbert_unused};
constinit const CheckpointFormat electra_format{"electra", "electra.", electra_names, electra_heads,
                                                electra_unused};

namespace detail {

void set_shared(const EncoderKeys& k, EncoderConfig& c) {
  c.vocab = k.vocab_size;
  c.n_layer = k.num_hidden_layers;
  c.n_head = k.num_attention_heads;
  c.d_model = k.hidden_size;
  c.d_ff = k.intermediate_size;
  c.n_max = k.max_position_embeddings;
  c.token_types = k.type_vocab_size;
  c.norm = NormPlace::post;
  c.norm_eps = k.layer_norm_eps;
  require(k.hidden_size % k.num_attention_heads == 0, detail::checkpoint_op,
          "num_attention_heads is {}; expected a divisor of hidden_size, {}", k.num_attention_heads,
          k.hidden_size);
  require(k.pad_token_id < k.vocab_size, detail::checkpoint_op,
          "pad_token_id is {}; expected a token below vocab_size, {}", k.pad_token_id,
          k.vocab_size);
  c.activation = activation_of(k.hidden_act);
  c.emb_norm = c.out_bias = c.qkv_bias = true;
  c.tie_embedding = k.tie_word_embeddings;
  c.dropout = static_cast<float>(k.hidden_dropout_prob);
  c.dropout_attn = static_cast<float>(k.attention_probs_dropout_prob);
  c.dropout_classifier = static_cast<float>(k.classifier_dropout);
  c.mlm_gelu = false;
  c.padding_id = k.pad_token_id;
  c.init_std = k.initializer_range;
}

void get_shared(const EncoderConfig& c, EncoderKeys& k) {
  require(c.norm == NormPlace::post && c.emb_norm && c.out_bias && c.token_types > 0,
          detail::checkpoint_op,
          "such models have norm = post, emb_norm, out_bias and token_types > 0");
  k.vocab_size = c.vocab;
  k.num_hidden_layers = c.n_layer;
  k.num_attention_heads = c.n_head;
  k.hidden_size = c.d_model;
  k.intermediate_size = c.d_ff;
  k.max_position_embeddings = c.n_max;
  k.type_vocab_size = c.token_types;
  k.layer_norm_eps = c.norm_eps;
  k.hidden_act = activation_name(c.activation);
  k.tie_word_embeddings = c.tie_embedding;
  k.hidden_dropout_prob = static_cast<double>(c.dropout);
  k.attention_probs_dropout_prob = static_cast<double>(or_default(c.dropout_attn, c.dropout));
  k.classifier_dropout = static_cast<double>(c.dropout_classifier);
  k.initializer_range = c.init_std;
  const int64_t labels = c.classes > 0 ? c.classes : c.tags;
  k.id2label.clear();
  for (int64_t i = 0; labels != 2 && i < labels; ++i) {  // a file without labels means two
    k.id2label.push_back(fmt::format("LABEL_{}", i));
  }
}

void require_mlm(const EncoderConfig& c, std::string_view model_type, bool gelu) {
  const bool same = c.activation == Activation::gelu_erf || !c.mlm_head;
  require(same || c.mlm_gelu == gelu, detail::checkpoint_op,
          "mlm_gelu is {}; the head for masked tokens of a model of type {} has {}", c.mlm_gelu,
          model_type, gelu ? "gelu, whatever activation is" : "the activation of the layers");
}

}  // namespace detail

void set_encoder(const EncoderKeys& keys, EncoderConfig& c) {
  require(keys.model_type == "roberta" || keys.model_type == "bert", detail::checkpoint_op,
          "model_type is \"{}\"; expected \"roberta\" or \"bert\"", keys.model_type);
  const bool bert = keys.model_type == "bert";
  require(bert || keys.pad_token_id >= 0, detail::checkpoint_op,
          "pad_token_id is {}; expected 0 or more, as positions start behind it",
          keys.pad_token_id);
  const int64_t reserved = bert ? 0 : keys.pad_token_id + 1;
  require(keys.max_position_embeddings > reserved, detail::checkpoint_op,
          "max_position_embeddings is {}; expected more than the {} reserved rows",
          keys.max_position_embeddings, reserved);
  detail::set_shared(keys, c);
  c.position_offset = reserved;
  c.n_max = keys.max_position_embeddings - reserved;
  c.emb_scale = c.emb_dropout_first = false;
  c.mlm_gelu = !bert;
  c.skip_padding = c.pool_dropout = !bert;
}

void set_encoder(const ElectraKeys& keys, EncoderConfig& c) {
  require(keys.model_type == "electra", detail::checkpoint_op,
          "model_type is \"{}\"; expected \"electra\"", keys.model_type);
  EncoderKeys shared = keys;
  shared.model_type = "bert";
  set_encoder(shared, c);
  c.d_embed = keys.embedding_size == keys.hidden_size ? 0 : keys.embedding_size;
  c.mlm_gelu = c.pool_dropout = true;
  c.pool_activation = PoolActivation::gelu_erf;
}

void set_encoder(const DistilBertKeys& k, EncoderConfig& c) {
  require(k.model_type == "distilbert", detail::checkpoint_op,
          "model_type is \"{}\"; expected \"distilbert\"", k.model_type);
  EncoderKeys shared = BertKeys{};
  shared.hidden_act = k.activation;
  shared.vocab_size = k.vocab_size;
  shared.hidden_size = k.dim;
  shared.num_hidden_layers = k.n_layers;
  shared.num_attention_heads = k.n_heads;
  shared.intermediate_size = k.hidden_dim;
  shared.max_position_embeddings = k.max_position_embeddings;
  shared.pad_token_id = k.pad_token_id;
  shared.hidden_dropout_prob = k.dropout;
  shared.attention_probs_dropout_prob = k.attention_dropout;
  shared.classifier_dropout = k.seq_classif_dropout;
  shared.initializer_range = k.initializer_range;
  shared.tie_word_embeddings = k.tie_word_embeddings;
  set_encoder(shared, c);
  c.token_types = 0;
  c.pool_activation = PoolActivation::relu;
  c.dropout_spans = static_cast<float>(k.qa_dropout);
  c.position_init = k.sinusoidal_pos_embds ? PositionInit::sinusoid : PositionInit::normal;
}

EncoderKeys encoder_keys(const EncoderConfig& c, std::string_view model_type) {
  const bool bert = model_type == "bert";
  require(bert ? c.position_offset == 0 : c.position_offset >= 1, detail::checkpoint_op,
          "position_offset is {}; a model of type {} has {} before the first position",
          c.position_offset, model_type,
          bert ? "no row" : "the rows up to that of padding, 2 as a rule,");
  detail::require_mlm(c, model_type, !bert);
  require(c.qkv_bias && !c.emb_scale && !c.emb_dropout_first, detail::checkpoint_op,
          "a model of type {} has qkv_bias, and neither emb_scale nor emb_dropout_first",
          model_type);
  EncoderKeys k;
  detail::get_shared(c, k);
  k.model_type = model_type;
  k.max_position_embeddings = c.n_max + c.position_offset;
  k.pad_token_id = bert ? std::max<int64_t>(c.padding_id, 0) : c.position_offset - 1;
  return k;
}

ElectraKeys electra_keys(const EncoderConfig& config) {
  EncoderConfig shared = config;
  shared.mlm_gelu = false;  // said by the type
  ElectraKeys k;
  static_cast<EncoderKeys&>(k) = encoder_keys(shared, "bert");
  k.model_type = "electra";
  k.embedding_size = config.d_embed > 0 ? config.d_embed : config.d_model;
  if (config.padding_id >= 0) k.pad_token_id = config.padding_id;
  return k;
}

DistilBertKeys distilbert_keys(const EncoderConfig& c) {
  DistilBertKeys k;
  k.activation = detail::activation_name(c.activation);
  k.vocab_size = c.vocab;
  k.dim = c.d_model;
  k.n_layers = c.n_layer;
  k.n_heads = c.n_head;
  k.hidden_dim = c.d_ff;
  k.max_position_embeddings = c.n_max;
  if (c.padding_id >= 0) k.pad_token_id = c.padding_id;
  k.dropout = static_cast<double>(c.dropout);
  k.attention_dropout = static_cast<double>(or_default(c.dropout_attn, c.dropout));
  k.seq_classif_dropout = static_cast<double>(or_default(c.dropout_classifier, c.dropout));
  k.qa_dropout = static_cast<double>(c.dropout_spans);
  k.initializer_range = c.init_std;
  k.tie_word_embeddings = c.tie_embedding;
  k.sinusoidal_pos_embds = c.position_init == PositionInit::sinusoid;
  return k;
}

}  // namespace longspan
