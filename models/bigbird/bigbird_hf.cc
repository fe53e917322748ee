#include "models/bigbird/bigbird_hf.h"

#include "models/hf_keys.h"

namespace longspan {
namespace {

constexpr NamePair bigbird_heads[] = {
    {"mlm.dense", "cls.predictions.transform.dense"},
    {"mlm.norm", "cls.predictions.transform.LayerNorm"},
    {"head.weight", "cls.predictions.decoder.weight"},
    {"head.bias", "cls.predictions.bias"},
    {"pool", "classifier.dense"},
    {"classifier", "classifier.out_proj"},
    {"tags", "classifier"},
    {"span_block.in", "qa_classifier.intermediate.dense"},
    {"span_block.out", "qa_classifier.output.dense"},
    {"span_norm", "qa_classifier.output.LayerNorm"},
    {"spans", "qa_classifier.qa_outputs"},
};
constexpr auto bigbird_unused = joined(detail::bert_head_unused, {"pooler.weight", "pooler.bias"});

}  // namespace

constinit const CheckpointFormat bigbird_format{
    "big_bird", "bert.", detail::encoder_names, bigbird_heads, bigbird_unused,
    nullptr,    {},      detail::bert_untied};

BigBirdKeys::BigBirdKeys() {
  model_type = "big_bird";
  hidden_act = "gelu_new";
  vocab_size = 50'358;
  max_position_embeddings = 4096;
  type_vocab_size = 2;
  pad_token_id = 0;
}

BigBirdConfig bigbird_config(const BigBirdKeys& k) {
  require(k.model_type == "big_bird", detail::checkpoint_op,
          "model_type is \"{}\"; expected \"big_bird\"", k.model_type);
  const bool full = k.attention_type == "original_full";
  require(full || k.attention_type == "block_sparse", detail::checkpoint_op,
          "attention_type is \"{}\"; expected \"block_sparse\" or \"original_full\"",
          k.attention_type);
  BigBirdConfig c;
  detail::set_shared(k, c);
  c.block = full ? k.max_position_embeddings : k.block_size;
  c.n_random = k.num_random_blocks;
  c.random = RandomPlan::package;
  c.global_last = GlobalLast::padded;
  c.qkv_bias = k.use_bias;
  c.emb_scale = k.rescale_embeddings;
  c.emb_dropout_first = true;
  if (!full) c.dropout_attn = 0;  // sparse attention has none there
  c.pool_activation = pool_activation(c.activation);
  c.pool_dropout = true;
  c.separator_id = k.sep_token_id;
  return c;
}

BigBirdKeys bigbird_keys(const BigBirdConfig& c) {
  require(c.position_offset == 0 && c.emb_dropout_first, detail::checkpoint_op,
          "a model of type big_bird has position_offset = 0 and emb_dropout_first");
  detail::require_mlm(c, "big_bird", false);
  BigBirdKeys k;
  detail::get_shared(c, k);
  if (c.separator_id >= 0) k.sep_token_id = c.separator_id;
  if (c.block >= c.n_max) k.attention_type = "original_full";
  if (c.block < c.n_max) k.block_size = c.block;
  k.num_random_blocks = c.n_random;
  k.use_bias = c.qkv_bias;
  k.rescale_embeddings = c.emb_scale;
  return k;
}

}  // namespace longspan
