// Sparse Transformer, Child et al. 2019 (1904.10509): a decoder over bytes whose attention is
// factorized into index sets of about sqrt(L) keys each, so that two layers connect any two
// positions.
//
//   H_0 = W_e[x] + sum_j P_j[o_j(t)]
//   a = drop(W_p MHA(LN(H)))     b = drop(W_2 f(W_1 LN(H + a) + b_1) + b_2)     H <- H + a + b
//   logits = LN(H_N) W_out,      f(x) = x sigma(1.702 x)

#include "models/sparse_transformer/sparse_transformer.h"

#include <algorithm>
#include <cmath>

#include "nn/axial.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/shape.h"

namespace longspan {
namespace {

int64_t local_width(const SparseTransformerConfig& c) {
  return c.paper_window ? c.stride + 1 : c.stride;  // the paper's text has l + 1 keys, its code has
                                                    // l
}

bool has(const std::vector<IndexSet>& sets, IndexSet set) {
  return std::find(sets.begin(), sets.end(), set) != sets.end();
}

/// Whether merged heads support the union of these sets.
bool can_merge(const std::vector<IndexSet>& sets) {
  if (sets.size() == 1) return true;
  const bool strided = has(sets, IndexSet::local) && has(sets, IndexSet::strided);
  const bool fixed = has(sets, IndexSet::block) && has(sets, IndexSet::summary);
  return sets.size() == 2 && (strided || fixed);
}

void require_consistent(const SparseTransformerConfig& c) {
  check_fields(SparseTransformerConfig::model_name, c);
  require_heads(SparseTransformerConfig::model_name, c.d_model, c.n_head);
  const double width = static_cast<double>(c.d_model) * c.qk_ratio / static_cast<double>(c.n_head);
  require(width >= 1 && width == std::floor(width), SparseTransformerConfig::model_name,
          "qk_ratio {} gives each of {} heads {} of {} columns; expected a whole number from 1 on",
          c.qk_ratio, c.n_head, width, c.d_model);
  const std::vector<IndexSet> sets = c.sets();
  require(c.integration != Integration::merged || can_merge(sets),
          SparseTransformerConfig::model_name,
          "index_sets = {} cannot be merged; expected local,strided or block,summary or one set, "
          "or integration = interleave or multihead",
          c.index_sets);
  if (has(sets, IndexSet::summary)) {
    require(c.columns >= 1 && c.columns <= c.stride, SparseTransformerConfig::model_name,
            "columns is {}; expected 1 to stride = {}", c.columns, c.stride);
    require(c.sub_blocks >= 0 && c.sub_blocks <= c.stride / c.columns,
            SparseTransformerConfig::model_name,
            "sub_blocks is {}; expected 0 to {}: stride {} has so many times {} columns",
            c.sub_blocks, c.stride / c.columns, c.stride, c.columns);
  }
  int64_t places = 1;
  for (const int64_t size : c.position_shape) places *= std::max<int64_t>(size, 0);
  require(c.position_shape.empty() || places >= c.n_max, SparseTransformerConfig::model_name,
          "position_shape holds {} positions; expected n_max = {} or more", places, c.n_max);
  require(c.norm_eps > 0 && c.final_norm_eps > 0, SparseTransformerConfig::model_name,
          "norm_eps is {} and final_norm_eps {}; expected more than 0", c.norm_eps,
          c.final_norm_eps);
}

/// Sec. 6 of the paper; SparseInit lists the two readings of its deviation.
Scheme weights(const SparseTransformerConfig& c, int64_t fan_in) {
  const auto n = static_cast<double>(fan_in);
  return Scheme::normal(c.init == SparseInit::code ? std::sqrt(0.125 / n) : 0.125 / std::sqrt(n));
}

/// Of tokens.
Scheme table(const SparseTransformerConfig& c) {
  return c.embed_std > 0 ? Scheme::normal(c.embed_std) : weights(c, c.d_model);
}

/// Of each axis of the positions, whose sum has the deviation of tokens, as in the authors' code.
Scheme axis_table(const SparseTransformerConfig& c, int64_t axes) {
  return c.embed_std > 0 ? Scheme::normal(c.embed_std / std::sqrt(static_cast<double>(axes)))
                         : weights(c, c.d_model * axes);
}

DecoderOptions decoder_of(const SparseTransformerConfig& c) {
  require_consistent(c);
  DecoderOptions o = decoder_options(SparseTransformerConfig::model_name, c);
  o.n_max = c.n_max;
  o.token = table(c);
  o.classifier = Scheme::zeros();
  o.tie_embedding = c.tie_embedding;
  return o;
}

}  // namespace

std::string_view SparseTransformerConfig::extend_positions(int64_t length) {
  if (!position_shape.empty() && length > n_max) {
    position_shape = extended_axial_shape(position_shape, length);
  }
  return extend_table("n_max", n_max, length);
}

std::vector<IndexSet> SparseTransformerConfig::sets() const {
  std::vector<IndexSet> list;
  for (size_t at = 0; at <= index_sets.size();) {
    const size_t end = std::min(index_sets.find(',', at), index_sets.size());
    const std::string_view word = std::string_view(index_sets).substr(at, end - at);
    const auto& names = value_names<IndexSet>;
    const auto found = std::find(names.begin(), names.end(), word);
    require(found != names.end(), SparseTransformerConfig::model_name,
            "index_sets has \"{}\"; expected local, strided, block, summary and dense, separated "
            "by commas",
            word);
    list.push_back(static_cast<IndexSet>(found - names.begin()));
    at = end + 1;
  }
  return list;
}

int64_t SparseTransformerConfig::sub_block(int64_t head) const {
  if (!has(sets(), IndexSet::summary)) return 0;  // columns are not checked, and nobody uses them
  const int64_t n = sub_blocks > 0 ? sub_blocks : std::min(n_head, stride / columns);
  return head % n;
}

SparseTransformer::SparseTransformer(const SparseTransformerConfig& config, const Init& init)
    : CausalDecoder(decoder_of(config), init), config_(config), sets_(config.sets()) {
  const SparseTransformerConfig& c = config_;
  const Init embed = init.at("embed");
  if (c.begin_vector) begin_ = embed.at("begin").make({1, 1, c.d_model}, table(c));
  std::vector<int64_t> shape = c.position_shape;
  if (shape.empty()) shape = {(c.n_max + c.stride - 1) / c.stride, c.stride};
  position_ = FactorisedPositions(shape, c.d_model, embed.at("position"),
                                  axis_table(c, static_cast<int64_t>(shape.size())));

  const double residual = 1 / std::sqrt(2.0 * static_cast<double>(c.n_layer));
  const AttentionOptions options{
      .d_model = c.d_model,
      .n_head = c.n_head,
      .d_head = static_cast<int64_t>(static_cast<double>(c.d_model) * c.qk_ratio) / c.n_head,
      .d_value = c.d_model / c.n_head,
      .qkv_bias = true,  // the paper's formulas have biases in feed-forward only, its code
                         // everywhere
      .out_bias = true,
      .weights = weights(c, c.d_model),
      .out_weights = weights(c, c.d_model).scaled(residual)};
  std::vector<std::unique_ptr<Layer>> attention;
  for (int64_t i = 0; i < c.n_layer; ++i) {
    attention.push_back(
        std::make_unique<MultiHead>(options, ShawTables{}, attention_init(init, i)));
  }
  stack_ = attention_stack({.ff = {.d_model = c.d_model,
                                   .d_ff = c.d_ff,
                                   .activation = Activation::gelu_sigmoid,
                                   .weights = weights(c, c.d_model),
                                   .out_weights = weights(c, c.d_ff).scaled(residual)},
                            .norm_eps = c.norm_eps,
                            .final_norm_eps = c.final_norm_eps,
                            .dropout = c.dropout,
                            .memory = c.memory},
                           std::move(attention), init);
}

void SparseTransformer::visit_more(Visitor& v) {
  v("embed.begin", begin_)("embed.position", position_);
}

AttentionPattern SparseTransformer::pattern(IndexSet set, int64_t sub_block) const {
  const SparseTransformerConfig& c = config_;
  switch (set) {
    case IndexSet::local:
      return patterns::local(local_width(c));
    case IndexSet::strided:
      return patterns::strided(c.stride);
    case IndexSet::block:
      return patterns::fixed_block(c.stride);
    case IndexSet::summary:
      return patterns::fixed_summary(c.stride, c.columns, sub_block);
    case IndexSet::dense:
      break;
  }
  return patterns::causal();
}

AttentionPattern SparseTransformer::every_head(IndexSet set, int64_t queries, int64_t keys) const {
  if (set != IndexSet::summary) return resolve(pattern(set, 0), queries, keys);
  std::vector<AttentionPattern> heads;
  for (int64_t h = 0; h < config_.n_head; ++h) heads.push_back(pattern(set, config_.sub_block(h)));
  return patterns::by_head(heads, queries, keys);
}

/// Sec. 5.1. Each layout is built once for all layers. Its size is at most O(L), except for
/// summaries, whose layout has O((L / l)^2) runs.
LayerContext SparseTransformer::layer_context(int64_t queries, int64_t keys,
                                              int64_t /*first_key*/) const {
  const SparseTransformerConfig& c = config_;
  LayerContext ctx;
  std::vector<AttentionPattern> heads;
  switch (c.integration) {
    case Integration::interleave: {
      std::vector<AttentionPattern> turns;
      for (const IndexSet set : sets_) turns.push_back(every_head(set, queries, keys));
      for (int64_t i = 0; i < c.n_layer; ++i) {
        ctx.layer_patterns.push_back(turns[static_cast<size_t>(i) % turns.size()]);
      }
      return ctx;
    }
    case Integration::merged:
      if (sets_.size() == 1 || has(sets_, IndexSet::local)) {
        ctx.pattern =
            every_head(has(sets_, IndexSet::local) ? IndexSet::local : sets_[0], queries, keys);
        if (sets_.size() == 1) return ctx;
        // The strided pattern begins with the first multiple of l beyond the local window.
        const int64_t steps = (local_width(c) + c.stride - 1) / c.stride;
        ctx.also.push_back(resolve(patterns::dilated(kUnlimited, -steps, c.stride), queries, keys));
        return ctx;
      }
      for (int64_t h = 0; h < c.n_head; ++h) {
        heads.push_back(patterns::fixed(c.stride, c.columns, c.sub_block(h)));
      }
      break;
    case Integration::multihead: {
      const auto turns = static_cast<int64_t>(sets_.size());
      for (int64_t h = 0; h < c.n_head; ++h) {
        heads.push_back(pattern(sets_[static_cast<size_t>(h % turns)], c.sub_block(h / turns)));
      }
      break;
    }
  }
  ctx.pattern = patterns::by_head(heads, queries, keys);
  return ctx;
}

/// Slot t holds the token before the one that it predicts. Its position is the target's, t; with
/// pos_before_shift, as in the authors' later code, it is the token's, t - 1, and slot 0 has none.
Tensor SparseTransformer::embed(const Tensor& tokens, int64_t first, Pass /*pass*/) const {
  const int64_t length = tokens.dim(1);
  Tensor x = token_.forward(tokens);  // [B, L, D]
  if (begin_ && first == 0 && length > 0) {
    x = concat({expand(begin_, {x.dim(0), 1, x.dim(2)}), slice(x, 1, 1)}, 1);
  }
  if (!config_.pos_before_shift) return add(x, position_.forward(first, length));
  if (first > 0) return add(x, position_.forward(first - 1, length));
  const Tensor head = narrow(x, 1, 0, std::min<int64_t>(length, 1));
  if (length <= 1) return head;
  const Tensor rest = add(narrow(x, 1, 1, length - 1), position_.forward(0, length - 1));
  return concat({head, rest}, 1);
}

}  // namespace longspan
