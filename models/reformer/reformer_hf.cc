#include "models/reformer/reformer_hf.h"

#include "models/hf_keys.h"

namespace longspan {
namespace {

constexpr NamePair reformer_names[] = {
    {"embed.token", "embeddings.word_embeddings"},
    {"layers.#.norm1", "encoder.layers.#.attention.layer_norm"},
    {"layers.#.attention.qk", "encoder.layers.#.attention.self_attention.query_key"},
    {"layers.#.attention.q", "encoder.layers.#.attention.self_attention.query"},
    {"layers.#.attention.k", "encoder.layers.#.attention.self_attention.key"},
    {"layers.#.attention.v", "encoder.layers.#.attention.self_attention.value"},
    {"layers.#.attention.out", "encoder.layers.#.attention.output.dense"},
    {"layers.#.norm2", "encoder.layers.#.feed_forward.layer_norm"},
    {"layers.#.ff.in", "encoder.layers.#.feed_forward.dense.dense"},
    {"layers.#.ff.out", "encoder.layers.#.feed_forward.output.dense"},
    {"final_norm", "encoder.layer_norm"},
};
constexpr NamePair reformer_heads[] = {
    {"embed.position.axes.0.weight", "reformer.embeddings.position_embeddings.weights.0"},
    {"embed.position.axes.1.weight", "reformer.embeddings.position_embeddings.weights.1"},
    {"head.weight", "lm_head.decoder.weight"},
    {"head.bias", "lm_head.bias"},
    {"pool", "classifier.dense"},
    {"classifier", "classifier.out_proj"},
    {"spans", "qa_outputs"},
};
constexpr std::string_view axial_table = "position_embeddings.weights.";
/// Since release 5.24 transformers adds the bias of the decoder, and keeps the other without adding
/// it. Earlier files have the other alone.
constexpr NamePair untied[] = {{"head.bias", "lm_head.decoder.bias"}};
constexpr OtherName reformer_unused[] = {
    {"lm_head.bias", OtherName::Kind::instead, "lm_head.decoder.bias"}};

/// Tables of axial positions have shapes [n1, 1, d1] and [1, n2, d2].
Tensor stored(std::string_view theirs, const Tensor& parameter) {
  if (theirs.find(axial_table) == std::string_view::npos) return parameter;
  const int64_t n = parameter.dim(0), d = parameter.dim(1);
  return theirs.back() == '0' ? parameter.alias({n, 1, d}, Strides{d, d, 1}, 0)
                              : parameter.alias({1, n, d}, Strides{n * d, d, 1}, 0);
}

}  // namespace

constinit const CheckpointFormat reformer_format{
    "reformer", "reformer.", reformer_names, reformer_heads, reformer_unused, stored, {}, untied};

ReformerConfig reformer_config(const ReformerKeys& k) {
  require(k.model_type == "reformer", detail::checkpoint_op,
          "model_type is \"{}\"; expected \"reformer\"", k.model_type);
  require(k.axial_pos_embds, detail::checkpoint_op,
          "axial_pos_embds is false; expected axial positions");
  require(k.axial_pos_shape.size() == 2, detail::checkpoint_op,
          "axial_pos_shape has {} axes; expected 2", k.axial_pos_shape.size());
  require(!k.tie_word_embeddings, detail::checkpoint_op,
          "tie_word_embeddings is true; expected tables that are not tied");
  ReformerConfig c = reformer_variant({}, ReformerVariant::hf);
  c.vocab = k.vocab_size;
  c.n_layer = static_cast<int64_t>(k.attn_layers.size());
  c.n_head = k.num_attention_heads;
  c.d_model = k.hidden_size;
  c.d_ff = k.feed_forward_size;
  c.d_head = k.attention_head_size;
  c.n_max = k.max_position_embeddings;
  c.causal = k.is_decoder;
  c.layers.clear();
  for (const std::string& layer : k.attn_layers) {
    c.layers += (c.layers.empty() ? "" : ",") + layer;
  }
  c.rounds = k.num_hashes;
  c.chunk = k.lsh_attn_chunk_length;
  c.look_back = k.lsh_num_chunks_before;
  c.look_ahead = k.lsh_num_chunks_after;
  c.buckets = k.num_buckets;
  c.local_chunk = k.local_attn_chunk_length;
  c.local_back = k.local_num_chunks_before;
  c.local_ahead = k.local_num_chunks_after;
  c.position_shape = k.axial_pos_shape;
  c.position_widths = k.axial_pos_embds_dim;
  c.activation = detail::activation_of(k.hidden_act);
  c.norm_eps = k.layer_norm_eps;
  c.head_bias = true;
  c.dropout = static_cast<float>(k.hidden_dropout_prob);
  c.dropout_attn = static_cast<float>(k.lsh_attention_probs_dropout_prob);
  c.dropout_local = static_cast<float>(k.local_attention_probs_dropout_prob);
  c.init_std = c.embed_std = k.initializer_range;
  c.position_std = k.axial_norm_std;
  if (!c.buckets.empty()) c.torch_seed = k.hash_seed;
  return c;
}

ReformerKeys reformer_keys(const ReformerConfig& c) {
  const bool by_hf_rule = !c.buckets.empty() || c.bucket_rule == BucketRule::hf;
  require(!c.same_bucket && c.duplicates == LshDuplicates::off && c.wrap == LshWrap::global &&
              c.whole_chunks && c.full_below == 0 && by_hf_rule &&
              c.logit_scale == LshScale::official && c.self_logit == -1e5 && !c.mean_exit &&
              c.axes().size() == 2 && c.head_bias,
          detail::checkpoint_op,
          "such models attend as reformer_variant(hf), with head_bias and a position_shape of two "
          "axes");
  ReformerKeys k;
  k.vocab_size = c.vocab;
  k.num_attention_heads = c.n_head;
  k.hidden_size = c.d_model;
  k.feed_forward_size = c.d_ff;
  k.attention_head_size = head_width(c);
  k.max_position_embeddings = c.n_max;
  k.is_decoder = c.causal;
  k.attn_layers.clear();
  for (const ReformerLayer kind : c.layer_kinds()) k.attn_layers.emplace_back(name_of_value(kind));
  k.num_hashes = c.rounds;
  k.lsh_attn_chunk_length = c.chunk;
  k.lsh_num_chunks_before = c.look_back;
  k.lsh_num_chunks_after = c.look_ahead;
  const LshBuckets by_rule = lsh_auto_buckets_hf(c.n_max, c.chunk, c.n_max);
  k.num_buckets = c.buckets;
  if (c.buckets.empty()) k.num_buckets = {by_rule.first};
  if (c.buckets.empty() && by_rule.second > 1) k.num_buckets.push_back(by_rule.second);
  k.local_attn_chunk_length = c.local_chunk > 0 ? c.local_chunk : c.chunk;
  k.local_num_chunks_before = c.local_back;
  k.local_num_chunks_after = c.local_ahead;
  k.axial_pos_shape = c.axes();
  k.axial_pos_embds_dim = c.axis_widths();
  k.hidden_act = detail::activation_name(c.activation);
  k.layer_norm_eps = c.norm_eps;
  k.hidden_dropout_prob = static_cast<double>(c.dropout);
  k.lsh_attention_probs_dropout_prob = static_cast<double>(c.dropout_attn);
  k.local_attention_probs_dropout_prob = static_cast<double>(c.dropout_local);
  k.initializer_range = c.init_std;
  k.axial_norm_std = c.position_std;
  k.hash_seed = c.torch_seed;
  return k;
}

}  // namespace longspan
