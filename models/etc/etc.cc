// ETC, Ainslie et al. 2020 (2004.08483): an encoder of two streams. Long tokens X^l attend to their
// neighbours and to all globals X^g; globals attend to each other and to long tokens. Relation
// labels replace positions and carry structure: which global owns a token, and which context a
// global belongs to.
//
//   z_i = sum_j alpha_ij x_j W^V,  alpha_ij = softmax of e_ij over the keys of both pieces
//   e_ij = (x_i W^Q (x_j W^K + a_ij)^T + b_ij) / sqrt(d)                      (eq. 1, with b)
//
// The paper adds -(1 - M_ij) 10000 to e_ij; here masked pairs are skipped. b is from the published
// code, and is initialized to 0.

#include "models/etc/etc.h"

#include <algorithm>
#include <utility>

#include "autograd/mode.h"
#include "core/divide.h"
#include "core/scope.h"
#include "models/bigbird/bigbird_blocks.h"
#include "ops/attention/block_attention.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/random.h"
#include "ops/shape.h"

namespace longspan {
namespace {

/// Attends to one key segment or two; the second may be empty.
AttentionResult attend(const Tensor& q, const Keys& first, const Keys& second,
                       const AttentionPattern& see, const ScoreTerms& terms, const Dropout& drop) {
  if (!second.k) return block_attention(q, first.k, first.v, see, terms, drop);
  const Keys both[] = {first, second};
  return block_attention(q, both, see, terms, drop);
}

}  // namespace

LinkedPatterns etc_patterns(const EtcConfig& c, const LinkedStructure& structure, int64_t batch,
                            int64_t n_l, int64_t n_g, Device device) {
  LinkedPatterns all = patterns::linked(c.links(), structure, batch, n_l, n_g, device);
  if (c.n_random > 0 && n_l > 0) {
    const int64_t b = std::min(std::max<int64_t>(c.block > 0 ? c.block : c.radius, 1), n_l);
    all.more =
        far_random_blocks({.block = b, .n_random = c.n_random, .random_seed = c.random_seed},
                          ceil_div(c.radius, b),  // blocks to either side that a window reaches
                          c.n_layer, c.n_head, n_l, all.long_side.mask);
  }
  return all;
}

size_t EtcAttention::stored(Piece piece) const {
  if (config_.share_qkv) return l2l;
  if (config_.share_kv) return piece == l2l || piece == l2g ? l2l : g2g;
  return piece;
}

Tensor EtcAttention::split_heads(const Tensor& x) const {
  const int64_t heads = config_.n_head;
  return transpose(unflatten(x, -1, heads, config_.d_model / heads), 1, 2);
}

Tensor EtcAttention::merge(const Tensor& heads, Side side) const {
  return out_[stored_out(side)].forward(flatten(transpose(heads, 1, 2), 2, 3));  // [B, n, D]
}

Keys EtcAttention::keys(const Tensor& x, Piece piece) const {
  const size_t at = stored(piece);
  const auto [k, v] = forward_each(x, k_[at], v_[at]);
  return {split_heads(k), split_heads(v)};
}

Projected EtcAttention::project(const Tensor& x, Side side, Piece piece) const {
  const size_t at = stored(piece);
  const auto [q, k, v] = forward_each(x, q_[stored_query(side)], k_[at], v_[at]);
  return {split_heads(q), split_heads(k), split_heads(v), x};
}

/// Returns a and b with their rows in the order of attention's ids. Without pair classes only the
/// rows of distances are reachable, so the tables end there.
ScoreTerms EtcAttention::terms(Side side, const AttentionPattern& see, DType dtype) const {
  ScoreTerms t;
  if (!config_.labels) return t;
  const int64_t k = config_.max_distance;
  const bool classes = see.mask.class_id || see.side_mask.class_id;
  const Tensor rows = classes ? rows_ : narrow(rows_, 0, 0, 2 * k + 1);
  t.id = {k, k};
  const auto table = [&](const Tensor& x) {
    return contiguous(transpose(cast(take(x, rows), dtype), 0, 1));  // [R, H, ..] -> [H, R, ..]
  };
  t.relation_key = table(a_[side]);
  if (config_.rel_bias) t.relation_bias = table(b_[side]);
  return t;
}

Tensor EtcAttention::attend_long(const Tensor& q, const Keys& of_l, const Keys& of_g,
                                 const LinkedPatterns& see, Pass pass) const {
  const float p = or_default(config_.dropout_attn, config_.dropout);
  const ScoreTerms t = terms(from_long, see.long_side, q.dtype());
  const AttentionResult windows = attend(q, of_l, of_g, see.long_side, t, {p, pass.at("long")});
  if (see.more.empty()) return windows.out;
  const AttentionPattern& random = see.more.front();
  const ScoreTerms more = terms(from_long, random, q.dtype());
  const AttentionResult parts[] = {
      windows, block_attention(q, of_l.k, of_l.v, random, more, {p, pass.at("random")})};
  return merge_attention(parts).out;
}

LinkedStreams EtcAttention::forward(const LinkedStreams& x, const LinkedPatterns& see,
                                    Pass pass) const {
  const bool globals = static_cast<bool>(x.g), tokens = static_cast<bool>(x.l);
  const float p = or_default(config_.dropout_attn, config_.dropout);
  Projected l, g;
  if (tokens) l = project(x.l, from_long, l2l);
  if (globals) g = project(x.g, from_global, g2g);
  // Keys of the other stream's rows; with share_qkv they are projected already.
  const auto others = [&](const Tensor& rows, const Projected& there, Piece piece) {
    return !rows ? Keys{} : config_.share_qkv ? Keys{there.k, there.v} : keys(rows, piece);
  };
  LinkedStreams y;
  if (tokens) {
    y.l = merge(attend_long(std::exchange(l.q, {}), {l.k, l.v}, others(x.g, g, l2g), see, pass),
                from_long);
  }
  if (globals) {
    y.g = merge(attend(g.q, {g.k, g.v}, others(x.l, l, g2l), see.global_side,
                       terms(from_global, see.global_side, g.q.dtype()), {p, pass.at("global")})
                    .out,
                from_global);
  }
  return y;
}

Tensor EtcAttention::probabilities(const LinkedStreams& x, const LinkedPatterns& see) const {
  const NoGrad off;
  const int64_t n_l = x.l.dim(1), n_g = x.g.dim(1);
  std::vector<Tensor> sides;
  for (const Side side : {from_long, from_global}) {
    const bool of_long = side == from_long;
    const Projected own = of_long ? project(x.l, side, l2l) : project(x.g, side, g2g);
    Keys local = of_long ? Keys{own.k, own.v} : keys(x.l, g2l);
    Keys global = of_long ? keys(x.g, l2g) : Keys{own.k, own.v};
    sides.push_back(attention_weights(concat({local.v, global.v}, 2), [&](const Tensor& unit) {
      local.v = contiguous(narrow(unit, 2, 0, n_l));
      global.v = contiguous(narrow(unit, 2, n_l, n_g));
      if (of_long) return attend_long(own.q, local, global, see, Pass{});
      const ScoreTerms t = terms(side, see.global_side, own.q.dtype());
      return attend(own.q, global, local, see.global_side, t, {}).out;
    }));
  }
  return concat(sides, 2);
}

/// Sec. 2: tokens and token types; absolute positions only if the configuration has them; a norm
/// for each stream.
LinkedStreams EtcEncoder::embed(const EtcInputs& in, Pass pass) const {
  const Scope scope("embed");
  const auto stream = [&](const Tensor& ids, const Tensor& types, int64_t type) {
    Tensor x = token_.forward(ids);  // [B, n, E]
    if (config_.d_embed > 0) x = projection_.forward(x);
    if (config_.token_types > 0) {
      x = add(x, types ? type_.forward(types) : select(type_.weight, 0, type));
    }
    return x;
  };
  const auto finish = [&](const Tensor& x, const Normalization& norm, const char* label) {
    return cast(dropout(norm.forward(x), config_.dropout, pass.at(label)), compute_);
  };
  LinkedStreams x;
  if (in.tokens) {
    x.l = stream(in.tokens, in.types, 1);
    if (config_.n_positions > 0) x.l = add(x.l, position_.forward(0, in.tokens.dim(1)));
    x.l = finish(x.l, norm_l_, "emb_long");
  }
  if (in.globals) {
    x.g = stream(in.globals, in.global_types, 0);
    if (config_.global_positions) x.g = add(x.g, global_position_.forward(0, in.globals.dim(1)));
    if (in.global_features) x.g = add(x.g, features_.forward(in.global_features));
    x.g = finish(x.g, norm_g_, "emb_global");
  }
  return x;
}

LinkedPatterns EtcEncoder::patterns(const EtcInputs& in) const {
  const Tensor& any = in.tokens ? in.tokens : in.globals;
  require(static_cast<bool>(any), EtcConfig::model_name, "an input has neither tokens nor globals");
  for (const Tensor& x : {in.tokens, in.globals}) {
    if (x && (x.rank() != 2 || x.dim(0) != any.dim(0) || x.dim(1) < 1)) {
      fail_with<ShapeError>(EtcConfig::model_name,
                            "tokens must be [B, n_l] and globals [B, n_g], of some length",
                            {{"tokens", in.tokens}, {"globals", in.globals}});
    }
  }
  require(config_.global_features > 0 || !in.global_features, EtcConfig::model_name,
          "features of globals need global_features > 0");
  return etc_patterns(config_, in.structure, any.dim(0), in.tokens ? in.tokens.dim(1) : 0,
                      in.globals ? in.globals.dim(1) : 0, token_.weight.device());
}

LinkedStreams EtcEncoder::forward(const EtcInputs& in, Pass pass) const {
  const Scope scope(EtcConfig::model_name);
  const LinkedPatterns all = patterns(in);
  return layers_.forward(embed(in, pass), all, pass);
}

}  // namespace longspan
