#include "models/encoder_hf.h"

#include <fmt/format.h>

#include "models/hf_keys.h"

namespace longspan {
namespace {

constexpr const char* kOp = detail::checkpoint_op;

constexpr NamePair bert_heads[] = {
    {"mlm.dense", "cls.predictions.transform.dense"},
    {"mlm.norm", "cls.predictions.transform.LayerNorm"},
    {"head.weight", "cls.predictions.decoder.weight"},
    {"head.bias", "cls.predictions.bias"},
    {"pool", "bert.pooler.dense"},
    {"classifier", "classifier"},
    {"spans", "qa_outputs"},
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
  c.activation = activation_of(k.hidden_act);
  c.emb_norm = c.out_bias = c.qkv_bias = true;
  c.tie_embedding = k.tie_word_embeddings;
  c.dropout = static_cast<float>(k.hidden_dropout_prob);
  c.dropout_attn = static_cast<float>(k.attention_probs_dropout_prob);
  c.dropout_classifier = static_cast<float>(k.classifier_dropout);
  c.mlm_gelu = false;
  c.init_std = k.initializer_range;
}

void get_shared(const EncoderConfig& c, EncoderKeys& k) {
  require(c.norm == NormPlace::post && c.emb_norm && c.out_bias && c.token_types > 0, kOp,
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
  require(same || c.mlm_gelu == gelu, kOp,
          "mlm_gelu is {}; the head for masked tokens of a model of type {} has {}", c.mlm_gelu,
          model_type, gelu ? "gelu, whatever activation is" : "the activation of the layers");
}

}  // namespace detail

void set_encoder(const EncoderKeys& keys, EncoderConfig& c) {
  require(keys.model_type == "roberta" || keys.model_type == "bert", kOp,
          "model_type is \"{}\"; expected \"roberta\" or \"bert\"", keys.model_type);
  const bool bert = keys.model_type == "bert";
  require(bert || keys.pad_token_id >= 0, kOp,
          "pad_token_id is {}; expected 0 or more, as positions start behind it",
          keys.pad_token_id);
  const int64_t reserved = bert ? 0 : keys.pad_token_id + 1;
  require(keys.max_position_embeddings > reserved, kOp,
          "max_position_embeddings is {}; expected more than the {} reserved rows",
          keys.max_position_embeddings, reserved);
  detail::set_shared(keys, c);
  c.position_offset = reserved;
  c.n_max = keys.max_position_embeddings - reserved;
  c.emb_scale = c.emb_dropout_first = false;
  c.mlm_gelu = !bert;
}

EncoderKeys encoder_keys(const EncoderConfig& c, std::string_view model_type) {
  const bool bert = model_type == "bert";
  require(bert ? c.position_offset == 0 : c.position_offset >= 1, kOp,
          "position_offset is {}; a model of type {} has {} before the first position",
          c.position_offset, model_type,
          bert ? "no row" : "the rows up to that of padding, 2 as a rule,");
  detail::require_mlm(c, model_type, !bert);
  require(c.qkv_bias && !c.emb_scale && !c.emb_dropout_first, kOp,
          "a model of type {} has qkv_bias, and neither emb_scale nor emb_dropout_first",
          model_type);
  EncoderKeys k;
  detail::get_shared(c, k);
  k.model_type = model_type;
  k.max_position_embeddings = c.n_max + c.position_offset;
  k.pad_token_id = bert ? 0 : c.position_offset - 1;
  return k;
}

}  // namespace longspan
