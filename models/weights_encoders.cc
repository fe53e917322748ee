// config.json of encoders: RoBERTa, BERT, BigBird, Longformer.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "models/weights.h"
#include "models/weights_keys.h"

namespace longspan {
namespace {

using detail::activation_name;
using detail::activation_of;

constexpr const char* kOp = detail::checkpoint_op;

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

/// Checks the activation of the head: gelu for a RoBERTa or Longformer, that of the layers for a
/// BERT or BigBird.
void require_mlm(const EncoderConfig& c, std::string_view model_type, bool gelu) {
  const bool same = c.activation == Activation::gelu_erf || !c.mlm_head;
  require(same || c.mlm_gelu == gelu, kOp,
          "mlm_gelu is {}; the head for masked tokens of a model of type {} has {}", c.mlm_gelu,
          model_type, gelu ? "gelu, whatever activation is" : "the activation of the layers");
}

}  // namespace

BigBirdKeys::BigBirdKeys() {
  model_type = "big_bird";
  hidden_act = "gelu_new";
  vocab_size = 50'358;
  max_position_embeddings = 4096;
  type_vocab_size = 2;
  pad_token_id = 0;
}

LongformerKeys::LongformerKeys() {
  model_type = "longformer";
  max_position_embeddings = 4098;
}

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
  set_shared(keys, c);
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
  require_mlm(c, model_type, !bert);
  require(c.qkv_bias && !c.emb_scale && !c.emb_dropout_first, kOp,
          "a model of type {} has qkv_bias, and neither emb_scale nor emb_dropout_first",
          model_type);
  EncoderKeys k;
  get_shared(c, k);
  k.model_type = model_type;
  k.max_position_embeddings = c.n_max + c.position_offset;
  k.pad_token_id = bert ? 0 : c.position_offset - 1;
  return k;
}

BigBirdConfig bigbird_config(const BigBirdKeys& k) {
  require(k.model_type == "big_bird", kOp, "model_type is \"{}\"; expected \"big_bird\"",
          k.model_type);
  require(k.attention_type == "block_sparse", kOp,
          "attention_type is \"{}\"; expected \"block_sparse\"", k.attention_type);
  BigBirdConfig c;
  set_shared(k, c);
  c.block = k.block_size;
  c.n_random = k.num_random_blocks;
  c.random = RandomPlan::first_1024;
  c.global_last = GlobalLast::padded;
  c.qkv_bias = k.use_bias;
  c.emb_scale = k.rescale_embeddings;
  c.emb_dropout_first = true;
  c.dropout_attn = 0;
  return c;
}

BigBirdKeys bigbird_keys(const BigBirdConfig& c) {
  require(c.position_offset == 0 && c.emb_dropout_first, kOp,
          "a model of type big_bird has position_offset = 0 and emb_dropout_first");
  require_mlm(c, "big_bird", false);
  BigBirdKeys k;
  get_shared(c, k);
  k.block_size = c.block;
  k.num_random_blocks = c.n_random;
  k.use_bias = c.qkv_bias;
  k.rescale_embeddings = c.emb_scale;
  return k;
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
  require(c.dilation == std::vector<int64_t>{1} || c.dilated_heads == 0, kOp,
          "a model of type longformer has no dilation");
  LongformerKeys k;
  static_cast<EncoderKeys&>(k) = encoder_keys(c, "roberta");
  k.model_type = "longformer";
  k.attention_window.clear();
  for (int64_t i = 0; i < c.n_layer; ++i) {
    k.attention_window.push_back(2 * longformer_attention(c, i).one_sided_window);
  }
  return k;
}

}  // namespace longspan
