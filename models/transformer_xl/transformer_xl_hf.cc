#include "models/transformer_xl/transformer_xl_hf.h"

#include <algorithm>
#include <array>

#include "models/hf_keys.h"

namespace longspan {
namespace {

/// What all checkpoints have, besides the tables of clusters. qkv_net holds q, k and v; the bias v
/// of a layer is a parameter without an ending.
constexpr NamePair layers[] = {
    {"embed.token", "word_emb.emb_layers.0"},
    {"embed.token.projection.#.weight", "word_emb.emb_projs.#"},
    {"u", "r_w_bias"},
    {"v", "r_r_bias"},
    {"layers.#.norm1", "layers.#.dec_attn.layer_norm"},
    {"layers.#.attention.q", "layers.#.dec_attn.qkv_net"},
    {"layers.#.attention.k", "layers.#.dec_attn.qkv_net"},
    {"layers.#.attention.v.weight", "layers.#.dec_attn.qkv_net.weight"},
    {"layers.#.attention.relative", "layers.#.dec_attn.r_net"},
    {"layers.#.attention.out", "layers.#.dec_attn.o_net"},
    {"layers.#.attention.u", "layers.#.dec_attn.r_w_bias"},
    {"layers.#.attention.v", "layers.#.dec_attn.r_r_bias"},
    {"layers.#.norm2", "layers.#.pos_ff.layer_norm"},
    {"layers.#.ff.in", "layers.#.pos_ff.CoreNet.0"},
    {"layers.#.ff.out", "layers.#.pos_ff.CoreNet.3"},
};
constexpr NamePair softmax[] = {
    {"head", "crit.out_layers.0"},
    {"head.projection.#.weight", "crit.out_projs.#"},
    {"head.cluster.weight", "crit.cluster_weight"},
    {"head.cluster.bias", "crit.cluster_bias"},
};
// Tables of clusters: all in one tensor, or each in one.
constexpr auto one_table = joined(layers, {{"embed.token.table.#", "word_emb.emb_layers.0"}});
constexpr auto one_softmax = joined(softmax, {{"head.table.#", "crit.out_layers.0"}});
constexpr auto many_tables = joined(layers, {{"embed.token.table.#", "word_emb.emb_layers.#"}});
constexpr auto many_softmaxes = joined(softmax, {{"head.table.#", "crit.out_layers.#"}});

/// The frequencies of positions, and tied copies of up to four clusters.
constexpr std::string_view untie = "for tables of its own, set tie_word_embeddings to false",
                           untie_projections = "for projections of its own, set tie_projs to false";
constexpr OtherName copy_of(std::string_view name, std::string_view of, std::string_view remedy) {
  return {name, OtherName::Kind::copy, of, remedy};
}
constexpr OtherName transformer_xl_unused[] = {
    {"pos_emb.inv_freq", OtherName::Kind::frequencies},
    copy_of("crit.out_layers.0.weight", "word_emb.emb_layers.0.weight", untie),
    copy_of("crit.out_layers.1.weight", "word_emb.emb_layers.1.weight", untie),
    copy_of("crit.out_layers.2.weight", "word_emb.emb_layers.2.weight", untie),
    copy_of("crit.out_layers.3.weight", "word_emb.emb_layers.3.weight", untie),
    copy_of("crit.out_projs.0", "word_emb.emb_projs.0", untie_projections),
    copy_of("crit.out_projs.1", "word_emb.emb_projs.1", untie_projections),
    copy_of("crit.out_projs.2", "word_emb.emb_projs.2", untie_projections),
    copy_of("crit.out_projs.3", "word_emb.emb_projs.3", untie_projections),
};
constexpr NamePair transformer_xl_copies[] = {
    {"u", "transformer.layers.#.dec_attn.r_w_bias"},
    {"v", "transformer.layers.#.dec_attn.r_r_bias"},
};

constexpr CheckpointFormat one{"transfo-xl",         "transformer.",        one_table,
                               one_softmax,          transformer_xl_unused, nullptr,
                               transformer_xl_copies};
constexpr CheckpointFormat many{"transfo-xl",         "transformer.",        many_tables,
                                many_softmaxes,       transformer_xl_unused, nullptr,
                                transformer_xl_copies};

/// 0 for the first cluster and 1 for all others, or 0 for all.
std::vector<int64_t> all_but_first(size_t clusters, bool tied) {
  std::vector<int64_t> ties(clusters, tied ? 1 : 0);
  ties[0] = 0;
  return ties;
}

void require_consistent(const TransformerXLKeys& k) {
  require(k.model_type == "transfo-xl", detail::checkpoint_op,
          "model_type is \"{}\"; expected \"transfo-xl\"", k.model_type);
  require(k.d_embed == k.d_model, detail::checkpoint_op, "d_embed is {}; expected d_model, {}",
          k.d_embed, k.d_model);
  require(k.adaptive || k.cutoffs.empty(), detail::checkpoint_op,
          "adaptive is false; expected true or no cutoffs, since transformers reads cutoffs alone");
  require(k.div_val == 1 || !k.cutoffs.empty(), detail::checkpoint_op,
          "div_val is {}; without cutoffs expected 1", k.div_val);
  require(k.tie_projs.empty() || k.tie_projs.size() == k.cutoffs.size() + 1, detail::checkpoint_op,
          "tie_projs has {} entries; expected {}, one a cluster", k.tie_projs.size(),
          k.cutoffs.size() + 1);
  require(!k.same_length || k.mem_len > 0, detail::checkpoint_op,
          "same_length is true; expected false without a memory, mem_len = 0");
}

}  // namespace

const CheckpointFormat& transformer_xl_format(const TransformerXLConfig& config) {
  return config.div_value == 1 ? one : many;
}

TransformerXLConfig transformer_xl_config(const TransformerXLKeys& k) {
  require_consistent(k);
  TransformerXLConfig c;
  c.vocab = k.vocab_size;
  c.n_layer = k.n_layer;
  c.n_head = k.n_head;
  c.d_model = k.d_model;
  c.d_ff = k.d_inner;
  c.d_head = k.d_head;
  c.mem_len = k.mem_len;
  c.window = k.same_length ? k.mem_len : 0;
  c.clamp = std::max<int64_t>(k.clamp_len, 0);
  c.untie_biases = k.untie_r;
  c.norm = k.pre_lnorm ? NormPlace::pre : NormPlace::post;
  c.norm_eps = k.layer_norm_epsilon;
  c.final_norm = false;
  c.phantom_zero_memory = k.mem_len > 0;
  c.tie_embedding = k.tie_word_embeddings;
  c.head_bias = c.emb_scale = true;
  c.cutoffs = k.cutoffs;
  c.div_value = k.div_val;
  const std::vector<int64_t> ties =
      k.tie_projs.empty() ? all_but_first(k.cutoffs.size() + 1, k.proj_share_all_but_first)
                          : k.tie_projs;
  for (size_t i = 0; k.div_val != 1 && i < ties.size(); ++i) {  // else there are no projections
    if (ties[i] != 0) c.tie_projections.push_back(static_cast<int64_t>(i));
  }
  c.dropout = k.dropout;
  c.dropout_attn = k.dropatt;
  c.init_std = k.init_std;
  return c;
}

TransformerXLKeys transformer_xl_keys(const TransformerXLConfig& c) {
  require(c.head_bias && c.emb_scale && c.token_head.soft_cap == 0, detail::checkpoint_op,
          "a model of type transfo-xl has head_bias and emb_scale, and no soft_cap");
  require(c.norm == NormPlace::post || !c.final_norm, detail::checkpoint_op,
          "final_norm is true; a model of type transfo-xl has none");
  require(c.mem_len == 0 || c.phantom_zero_memory, detail::checkpoint_op,
          "phantom_zero_memory is false; a model of type transfo-xl begins with mem_len zeros");
  require(c.window == 0 || c.window == c.mem_len, detail::checkpoint_op,
          "window is {}; a model of type transfo-xl has 0 or mem_len, {}", c.window, c.mem_len);
  TransformerXLKeys k;
  k.vocab_size = c.vocab;
  k.n_layer = c.n_layer;
  k.n_head = c.n_head;
  k.d_model = k.d_embed = c.d_model;
  k.d_inner = c.d_ff;
  k.d_head = head_width(c);
  k.mem_len = c.mem_len;
  k.same_length = c.window > 0;
  k.clamp_len = c.clamp > 0 ? c.clamp : -1;
  k.untie_r = c.untie_biases;
  k.pre_lnorm = c.norm == NormPlace::pre;
  k.layer_norm_epsilon = c.norm_eps;
  k.tie_word_embeddings = c.tie_embedding;
  k.cutoffs = c.cutoffs;
  k.adaptive = !c.cutoffs.empty();
  k.div_val = c.div_value;
  // Without projections the package writes the ties that it would have.
  k.tie_projs = all_but_first(c.cutoffs.size() + 1, c.div_value == 1);
  for (const int64_t i : c.tie_projections) {
    require(i >= 0 && i <= std::ssize(c.cutoffs), detail::checkpoint_op,
            "tie_projections has {}; expected clusters from 0 to {}", i, c.cutoffs.size());
    k.tie_projs[static_cast<size_t>(i)] = 1;
  }
  k.dropout = c.dropout;
  k.dropatt = c.dropout_attn;
  k.init_std = c.init_std;
  return k;
}

}  // namespace longspan
