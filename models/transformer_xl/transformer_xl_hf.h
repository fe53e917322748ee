#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/checkpoint_format.h"
#include "models/transformer_xl/transformer_xl.h"

namespace longspan {

/// Checkpoints of Transformer-XL \cite dai2019 in the format of the package transformers, which has
/// the model up to release 4. With div_value = 1 the tables of all clusters are one tensor there,
/// otherwise each has its own. u is r_w_bias there, v r_r_bias.
const CheckpointFormat& transformer_xl_format(const TransformerXLConfig& config);

/// The keys of config.json for Transformer-XL.
struct TransformerXLKeys {
  /// Keys that the model never reads: the length of segments, the width of a distribution of
  /// initial weights that is not used here, and the order of what the package returns.
  static constexpr std::string_view passed_over[] = {"init_range", "tgt_len", "trainer_compatible"};
  std::string model_type = "transfo-xl";
  int64_t vocab_size = 267735, d_model = 1024, d_embed = 1024, n_head = 16, d_head = 64,
          d_inner = 4096, n_layer = 18, mem_len = 1600;
  int64_t clamp_len = 1000;  ///< 0 or less: all distances are told apart
  std::vector<int64_t> cutoffs = {20000, 40000, 200000};
  int64_t div_val = 4;
  /// Of each cluster 1 if the projections of embedding and softmax are one, else 0; empty: as
  /// proj_share_all_but_first says.
  std::vector<int64_t> tie_projs;
  bool proj_share_all_but_first = true, tie_word_embeddings = true;
  bool adaptive = true, same_length = true, pre_lnorm = false, untie_r = true;
  float dropout = 0.1f, dropatt = 0;
  double layer_norm_epsilon = 1e-5, init_std = 0.02;
  int64_t eos_token_id = 0;

  void visit(auto& v) {
    v("model_type", model_type)("vocab_size", vocab_size)("d_model", d_model)("d_embed", d_embed)(
        "n_head", n_head)("d_head", d_head)("d_inner", d_inner)("n_layer", n_layer)(
        "mem_len", mem_len)("clamp_len", clamp_len)("cutoffs", cutoffs)("div_val", div_val)(
        "tie_projs", tie_projs)("proj_share_all_but_first", proj_share_all_but_first)(
        "tie_word_embeddings", tie_word_embeddings);
    v("adaptive", adaptive)("same_length", same_length)("pre_lnorm", pre_lnorm)("untie_r", untie_r)(
        "dropout", dropout)("dropatt", dropatt)("layer_norm_epsilon", layer_norm_epsilon)(
        "init_std", init_std)("eos_token_id", eos_token_id);
  }
};

/// Convert between keys and configuration, as transformers computes it: the first memory is zero
/// vectors, same_length is window = mem_len, and clusters are in their order, unlike in the code of
/// the authors. A model does not store ids of special tokens: keep those of the keys. Throw
/// ValueError that names the key or field when such a model cannot have it: d_embed other than
/// d_model, div_val without cutoffs, tie_projs of another length, cutoffs without adaptive,
/// same_length without a memory; a window other than mem_len, an empty first memory, final_norm
/// with norm = pre, no head_bias, no emb_scale, a soft_cap.
TransformerXLConfig transformer_xl_config(const TransformerXLKeys& keys);
TransformerXLKeys transformer_xl_keys(const TransformerXLConfig& config);

}  // namespace longspan
