#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/checkpoint_format.h"
#include "models/reformer/reformer.h"

namespace longspan {

/// Checkpoints of Reformer \cite kitaev2020 in the format of the package transformers.
extern const CheckpointFormat reformer_format;

/// The keys of config.json for Reformer.
struct ReformerKeys {
  /// Keys of old files that the model never reads.
  static constexpr std::string_view passed_over[] = {"attention_probs_dropout_prob",
                                                     "intermediate_size", "num_chunks_after",
                                                     "num_chunks_before", "type_vocab_size"};
  std::string model_type = "reformer", hidden_act = "relu";
  int64_t vocab_size = 320, hidden_size = 256, feed_forward_size = 512, num_attention_heads = 12,
          attention_head_size = 64, num_hashes = 1, lsh_attn_chunk_length = 64,
          lsh_num_chunks_before = 1, lsh_num_chunks_after = 0, local_attn_chunk_length = 64,
          local_num_chunks_before = 1, local_num_chunks_after = 0, max_position_embeddings = 4096;
  std::vector<std::string> attn_layers = {"local", "lsh", "local", "lsh", "local", "lsh"};
  std::vector<int64_t> num_buckets;  ///< empty: chosen by the length
  std::vector<int64_t> axial_pos_shape = {64, 64}, axial_pos_embds_dim = {64, 192};
  bool axial_pos_embds = true, is_decoder = false, tie_word_embeddings = false;
  double hidden_dropout_prob = 0.05, lsh_attention_probs_dropout_prob = 0,
         local_attention_probs_dropout_prob = 0.05, layer_norm_eps = 1e-12, axial_norm_std = 1,
         initializer_range = 0.02;
  int64_t pad_token_id = 0;
  int64_t hash_seed = -1;  ///< of the rotations in every pass; -1, written as null: drawn anew

  void visit(auto& v) {
    v("model_type", model_type)("hidden_act", hidden_act)("vocab_size", vocab_size)(
        "hidden_size", hidden_size)("feed_forward_size", feed_forward_size)(
        "num_attention_heads", num_attention_heads)("attention_head_size", attention_head_size)(
        "num_hashes", num_hashes)("lsh_attn_chunk_length", lsh_attn_chunk_length)(
        "lsh_num_chunks_before", lsh_num_chunks_before)("lsh_num_chunks_after",
                                                        lsh_num_chunks_after);
    v("local_attn_chunk_length", local_attn_chunk_length)(
        "local_num_chunks_before", local_num_chunks_before)("local_num_chunks_after",
                                                            local_num_chunks_after)(
        "max_position_embeddings", max_position_embeddings)("attn_layers", attn_layers)(
        "num_buckets", num_buckets)("axial_pos_shape", axial_pos_shape)("axial_pos_embds_dim",
                                                                        axial_pos_embds_dim);
    v("axial_pos_embds", axial_pos_embds)("is_decoder", is_decoder)(
        "tie_word_embeddings", tie_word_embeddings)("hidden_dropout_prob", hidden_dropout_prob)(
        "lsh_attention_probs_dropout_prob", lsh_attention_probs_dropout_prob)(
        "local_attention_probs_dropout_prob", local_attention_probs_dropout_prob)(
        "layer_norm_eps", layer_norm_eps)("axial_norm_std", axial_norm_std)(
        "initializer_range", initializer_range)("pad_token_id", pad_token_id);
    v("hash_seed", hash_seed);
  }
};

/// Convert between keys and configuration, with axial positions, as transformers computes it. The
/// bias of the head is lm_head.decoder.bias, which transformers has since release 5.24, or else
/// lm_head.bias; releases 5.0 to 5.23 keep that but do not add it. Without num_buckets each length
/// has its own number of buckets, while the reference keeps the number for its first sequence; keys
/// written for such a model have the number for n_max. Throws ValueError on position tables of
/// another kind and on rules that differ from reformer_variant(hf).
ReformerConfig reformer_config(const ReformerKeys& keys);
ReformerKeys reformer_keys(const ReformerConfig& config);

}  // namespace longspan
