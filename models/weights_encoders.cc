// config.json of encoders: RoBERTa, BERT, BigBird, Longformer.

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
  k.initializer_range = c.init_std;
}

/// Rows of the position table before the first position: one for padding, and those before it.
int64_t reserved_rows(std::string_view model_type) { return model_type == "bert" ? 0 : 2; }

}  // namespace

BigBirdKeys::BigBirdKeys() {
  model_type = "big_bird";
  hidden_act = "gelu_new";
  vocab_size = 50'358;
  max_position_embeddings = 4096;
  type_vocab_size = 2;
}

LongformerKeys::LongformerKeys() {
  model_type = "longformer";
  max_position_embeddings = 4098;
}

void set_encoder(const EncoderKeys& keys, EncoderConfig& c) {
  require(keys.model_type == "roberta" || keys.model_type == "bert", kOp,
          "model_type is \"{}\"; expected \"roberta\" or \"bert\"", keys.model_type);
  const int64_t reserved = reserved_rows(keys.model_type);
  require(keys.max_position_embeddings > reserved, kOp,
          "max_position_embeddings is {}; expected more than the {} reserved rows",
          keys.max_position_embeddings, reserved);
  set_shared(keys, c);
  c.position_offset = reserved;
  c.n_max = keys.max_position_embeddings - reserved;
  c.emb_scale = c.emb_dropout_first = false;
}

EncoderKeys encoder_keys(const EncoderConfig& c, std::string_view model_type) {
  const int64_t reserved = reserved_rows(model_type);
  require(c.position_offset == reserved, kOp,
          "position_offset is {}; a model of type {} has {} rows before the first position",
          c.position_offset, model_type, reserved);
  require(c.qkv_bias && !c.emb_scale && !c.emb_dropout_first, kOp,
          "a model of type {} has qkv_bias, and neither emb_scale nor emb_dropout_first",
          model_type);
  EncoderKeys k;
  get_shared(c, k);
  k.model_type = model_type;
  k.max_position_embeddings = c.n_max + reserved;
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
  shared.model_type = "roberta";  // whose tables these are
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
