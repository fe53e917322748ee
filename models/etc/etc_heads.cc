// Inputs and heads of ETC: text with and without structure, masked tokens, contrastive prediction,
// and task heads.

#include <cmath>
#include <optional>

#include "autograd/mode.h"
#include "core/divide.h"
#include "core/scope.h"
#include "models/etc/etc.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/shape.h"

namespace longspan {
EtcInputs Etc::plain(const Tensor& tokens) const {
  require_rank_is(EtcConfig::model_name, tokens, 2, "tokens");
  const int64_t share = (config_.n_long + config_.n_global - 1) / config_.n_global;
  const int64_t n_l = tokens.dim(1), n_g = ceil_div(n_l, share);
  std::vector<int32_t> owner;
  for (int64_t j = 0; j < n_l; ++j) owner.push_back(static_cast<int32_t>(j / share));
  return {.tokens = tokens,
          .globals = full({tokens.dim(0), n_g}, static_cast<double>(config_.global_id), DType::i32,
                          tokens.device()),
          .structure = {.owner = Tensor::from(owner, {1, n_l})}};
}

EtcInputs Etc::structured(const Tensor& tokens, const LinkedStructure& structure,
                          const Tensor& level, const Tensor& parent) const {
  EtcInputs in{.tokens = tokens,
               .globals = full(level.shape(), static_cast<double>(config_.global_id), DType::i32,
                               tokens.device()),
               .structure = structure};
  in.structure.global_labels = hierarchy_labels(config_.links(), level, parent);
  return in;
}

EtcHidden Etc::alone(const Tensor& places, const Tensor& tokens, const Tensor& example) const {
  const Device device = tokens.device();
  const Shape shape{tokens.dim(0), 1};
  return {places,
          {.tokens = tokens,
           .globals = full(shape, static_cast<double>(config_.global_id), DType::i32, device),
           .structure = {.owner = example,
                         .example = example,
                         .global_example = zeros(shape, DType::i32, device)}}};
}

Tensor Etc::head_input(const Tensor& hidden) const {
  const Tensor h = mlm_.forward(hidden);
  return config_.d_embed > 0 ? head_projection_.forward(h) : h;
}

Tensor Etc::head(const Tensor& hidden) const {
  const Scope scope("head");
  return token_logits(head_input(hidden), head_, config_.token_head);
}

Tensor Etc::mlm_loss(const Tensor& hidden, const Tensor& targets, Pass pass) const {
  const Scope scope("mlm");
  return token_loss(head_input(hidden), head_, targets, config_.token_head, pass.training);
}

/// Sec. 2.5. The score function and the positives are our choice: the paper gives only the idea.
Tensor Etc::cpc_loss(const LinkedStreams& main, const EtcHidden& hidden, Pass pass) const {
  const Scope scope("cpc");
  require(config_.cpc, EtcConfig::model_name, "contrastive prediction needs cpc = true");
  require(main.g && hidden.sentences.globals && hidden.sentences.globals.dim(1) == 1,
          EtcConfig::model_name,
          "contrastive prediction needs globals, and one for each sentence on its own");
  const EtcEncoder& encoder = cpc_encoder_ ? *cpc_encoder_ : encoder_;
  std::optional<NoGrad> off;
  if (config_.cpc_stop_gradient) off.emplace();
  const Tensor t = flatten(encoder.forward(hidden.sentences, pass.at("cpc")).g, 0, 1);  // [P, D]
  off.reset();
  const Tensor h = take(flatten(main.g, 0, 1), hidden.places);  // [P, D]
  if (h.dim(0) != t.dim(0)) {
    fail_with<ShapeError>(EtcConfig::model_name,
                          "a hidden sentence has one position and one sample",
                          {{"places", hidden.places}, {"sentences", hidden.sentences.globals}});
  }
  // W = I + cpc_weight_.
  const Tensor w = cpc_weight_ ? add(t, linear(t, cast(cpc_weight_, t.dtype()))) : t;
  const Tensor score =
      mul(matmul(h, transpose(w)), 1 / std::sqrt(static_cast<double>(config_.d_model)));  // [P, P]
  return cross_entropy(score, iota(h.dim(0), DType::i64, h.device()));
}

Etc::Pretraining Etc::pretraining_loss(const EtcInputs& in, const Tensor& targets,
                                       const EtcHidden& hidden, Pass pass) const {
  const LinkedStreams x = forward(in, pass);
  Pretraining all;
  all.mlm = mlm_loss(x.l, targets, pass);
  all.loss = mul(all.mlm, config_.mlm_weight);
  if (hidden.places && hidden.places.numel() > 0) {
    all.cpc = cpc_loss(x, hidden, pass);
    all.loss = add(all.loss, mul(all.cpc, config_.cpc_weight));
  }
  return all;
}

Tensor Etc::classify(const LinkedStreams& x, Pass pass) const {
  require(config_.classes > 0, EtcConfig::model_name, "classification needs classes > 0");
  return classes_.forward(x.g, config_.dropout, pass);
}

Tensor Etc::spans(const LinkedStreams& x) const {
  require(config_.span_head, EtcConfig::model_name, "answers as spans need span_head");
  return spans_.forward(x.l);
}

Tensor Etc::tag_globals(const LinkedStreams& x) const {
  require(config_.global_tags > 0, EtcConfig::model_name, "logits of globals need global_tags > 0");
  return global_tags_.forward(x.g);
}

Tensor Etc::score_phrases(const LinkedStreams& x) const {
  require(config_.phrases > 0, EtcConfig::model_name, "scores of phrases need phrases > 0");
  return phrases_.forward(x.l);
}

LanguageModel::Losses Etc::loss(const Tensor& tokens, const Tensor& targets,
                                const SegmentMemory& memory, Pass pass) const try {
  require_no_memory(EtcConfig::model_name, memory);
  Losses result;
  result.loss = mlm_loss(forward(plain(tokens), pass).l, targets, pass);
  return result;
} catch (const std::bad_alloc&) {
  fail_for_memory(EtcConfig::model_name);
}

Tensor Etc::logits(const Tensor& tokens, Pass pass) const {
  return head(forward(plain(tokens), pass).l);
}

Tensor Etc::attention_map(const Tensor& tokens, int64_t layer) const {
  const NoGrad off;
  require(layer >= 0 && layer < config_.n_layer, EtcConfig::model_name, "layer {} of {}", layer,
          config_.n_layer);
  const EtcInputs in = plain(tokens);
  const LinkedPatterns see = encoder_.patterns(in);
  const LinkedStreams x = encoder_.layers().attention_input(layer, encoder_.embed(in, Pass{}), see);
  const Tensor p = encoder_.layers().block(layer).attention().probabilities(x, see.of_layer(layer));
  return cast(select(p, 0, 0), DType::f32);  // [H, n_l + n_g, n_l + n_g]
}

AttentionOutline Etc::attention_outline(int64_t layer, int64_t length) const {
  require(layer >= 0 && layer < config_.n_layer, EtcConfig::model_name, "layer {} of {}", layer,
          config_.n_layer);
  const EtcInputs in = plain(zeros({1, length}, DType::i64));
  const LinkedPatterns see = encoder_.patterns(in);
  const int64_t n_g = in.globals.dim(1), n = length + n_g;
  std::vector<int32_t> behind;  // globals follow the long tokens
  for (int64_t m = length; m < n; ++m) behind.push_back(static_cast<int32_t>(m));
  AttentionOutline outline{.rows = n, .columns = n, .heads = config_.n_head, .calls = {}};
  outline.calls.push_back({.pattern = see.long_side,
                           .queries = length,
                           .keys = length,
                           .side_keys = n_g,
                           .side_at = behind});
  for (const AttentionPattern& more : see.of_layer(layer).more) {
    outline.calls.push_back({.pattern = more, .queries = length, .keys = length});
  }
  outline.calls.push_back({.pattern = see.global_side,
                           .queries = n_g,
                           .keys = n_g,
                           .side_keys = length,
                           .query_at = behind,
                           .key_at = behind});
  return outline;
}

}  // namespace longspan
