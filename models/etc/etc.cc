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
#include <memory>

#include "autograd/checkpoint_scope.h"
#include "autograd/mode.h"
#include "core/divide.h"
#include "core/scope.h"
#include "models/bigbird/bigbird_blocks.h"
#include "nn/attention/multi_head.h"
#include "nn/checkpoint.h"
#include "ops/attention/block_attention.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/random.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kName = "etc";

/// Attends to one key segment or two; the second may be empty.
AttentionResult attend(const Tensor& q, const Keys& first, const Keys& second,
                       const AttentionPattern& see, const ScoreTerms& terms, const Dropout& drop) {
  if (!second.k) return block_attention(q, first.k, first.v, see, terms, drop);
  const Keys both[] = {first, second};
  return block_attention(q, both, see, terms, drop);
}

}  // namespace

EtcPatterns etc_patterns(const EtcConfig& config, const LinkedStructure& structure, int64_t batch,
                         int64_t n_l, int64_t n_g, Device device) {
  EtcPatterns all{patterns::linked(config.links(), structure, batch, n_l, n_g, device)};
  if (config.n_random > 0 && n_l > 0) {
    all.random = etc_random_blocks(config, n_l, all.long_side.mask);
  }
  return all;
}

EtcPatterns EtcPatterns::of_layer(int64_t i) const {
  EtcPatterns one = *this;
  if (!random.empty()) one.random = {random[static_cast<size_t>(i)]};
  return one;
}

std::vector<AttentionPattern> etc_random_blocks(const EtcConfig& c, int64_t n_l,
                                                const PairMask& mask) {
  const int64_t b = std::min(std::max<int64_t>(c.block > 0 ? c.block : c.radius, 1), n_l);
  const int64_t near = ceil_div(c.radius, b);  // blocks to either side that a window reaches
  BlockTable empty{.bounds = block_bounds(n_l, b), .keys = {}};
  const int64_t n = empty.blocks();
  std::vector<int32_t> heads;
  for (int64_t h = 0; h < c.n_head; ++h) heads.push_back(static_cast<int32_t>(h));
  const Tensor which = Tensor::from(heads, {1, c.n_head});
  std::vector<AttentionPattern> layers;
  for (int64_t layer = 0; layer < c.n_layer; ++layer) {
    std::vector<BlockTable> tables(static_cast<size_t>(c.n_head), empty);
    for (int64_t h = 0; h < c.n_head; ++h) {
      for (int64_t i = 0; i < n; ++i) {
        const BlockRange legal[] = {{0, i - near}, {i + near + 1, n}};
        tables[static_cast<size_t>(h)].keys.push_back(
            draw_blocks(legal, c.n_random, c.random_seed, layer, h, n, i));
      }
    }
    layers.push_back(patterns::block_lists(n_l, tables, which, "random"));
    layers.back().mask = mask;
  }
  return layers;
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
  return {split_heads(k_[at].forward(x)), split_heads(v_[at].forward(x))};
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
                                 const EtcPatterns& see, Pass pass) const {
  const float p = or_default(config_.dropout_attn, config_.dropout);
  const ScoreTerms t = terms(from_long, see.long_side, q.dtype());
  const AttentionResult windows = attend(q, of_l, of_g, see.long_side, t, {p, pass.at("long")});
  if (see.random.empty()) return windows.out;
  const AttentionPattern& random = see.random.front();
  const ScoreTerms more = terms(from_long, random, q.dtype());
  const AttentionResult parts[] = {
      windows, block_attention(q, of_l.k, of_l.v, random, more, {p, pass.at("random")})};
  return merge_attention(parts).out;
}

EtcStreams EtcAttention::forward(const EtcStreams& x, const EtcPatterns& see, Pass pass) const {
  const bool globals = static_cast<bool>(x.g), tokens = static_cast<bool>(x.l);
  const float p = or_default(config_.dropout_attn, config_.dropout);
  Keys of_l, of_g;  // keys of long queries
  if (tokens) of_l = keys(x.l, l2l);
  if (tokens && globals) of_g = keys(x.g, l2g);
  EtcStreams y;
  if (tokens) {
    const Tensor q = split_heads(q_[stored_query(from_long)].forward(x.l));  // [B, H, n_l, d]
    y.l = merge(attend_long(q, of_l, of_g, see, pass), from_long);
  }
  if (globals) {
    const Tensor q = split_heads(q_[stored_query(from_global)].forward(x.g));  // [B, H, n_g, d]
    const bool same = config_.share_qkv && tokens;
    const Keys first = same ? of_g : keys(x.g, g2g);
    const Keys second = same ? of_l : tokens ? keys(x.l, g2l) : Keys{};
    y.g = merge(attend(q, first, second, see.global_side,
                       terms(from_global, see.global_side, q.dtype()), {p, pass.at("global")})
                    .out,
                from_global);
  }
  return y;
}

Tensor EtcAttention::probabilities(const EtcStreams& x, const EtcPatterns& see) const {
  const NoGrad off;
  const int64_t n_l = x.l.dim(1), n_g = x.g.dim(1);
  std::vector<Tensor> sides;
  for (const Side side : {from_long, from_global}) {
    const bool of_long = side == from_long;
    const Tensor q = split_heads(q_[stored_query(side)].forward(of_long ? x.l : x.g));
    Keys local = keys(x.l, of_long ? l2l : g2l), global = keys(x.g, of_long ? l2g : g2g);
    sides.push_back(attention_weights(concat({local.v, global.v}, 2), [&](const Tensor& unit) {
      local.v = contiguous(narrow(unit, 2, 0, n_l));
      global.v = contiguous(narrow(unit, 2, n_l, n_g));
      if (of_long) return attend_long(q, local, global, see, Pass{});
      return attend(q, global, local, see.global_side, terms(side, see.global_side, q.dtype()), {})
          .out;
    }));
  }
  return concat(sides, 2);
}

EtcStreams EtcLayer::attention_input(const EtcStreams& x) const {
  if (place_ == NormPlace::post) return x;
  return {x.l ? norm_l_.forward(x.l) : x.l, x.g ? norm_g_.forward(x.g) : x.g};
}

EtcStreams EtcLayer::forward(EtcStreams x, const EtcPatterns& see, Pass pass) const {
  const auto stream = [&](Tensor& y, const Tensor& z, const Normalization& norm, const Block& ff,
                          Pass site) {
    if (!y) return;
    y = add(y, dropout(z, dropout_, site.at("resid")));
    if (place_ == NormPlace::post) y = norm.forward(y);
    y = ff.forward(y, {}, site).y;
  };
  const EtcStreams z = attention_.forward(attention_input(x), see, pass.at("attention"));
  autograd::CheckpointScope::end_branch();
  stream(x.l, z.l, norm_l_, ff_.front(), pass.at("long"));
  stream(x.g, z.g, norm_g_, ff_.back(), pass.at("global"));
  return x;
}

/// Sec. 2: tokens and token types; absolute positions only if the configuration has them; a norm
/// for each stream.
EtcStreams EtcEncoder::embed(const EtcInputs& in, Pass pass) const {
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
  EtcStreams x;
  if (in.tokens) {
    x.l = stream(in.tokens, in.types, 1);
    if (config_.n_positions > 0) x.l = add(x.l, position_.forward(0, in.tokens.dim(1)));
    x.l = finish(x.l, norm_l_, "emb_long");
  }
  if (in.globals) {
    x.g = stream(in.globals, in.global_types, 0);
    if (in.global_features) x.g = add(x.g, features_.forward(in.global_features));
    x.g = finish(x.g, norm_g_, "emb_global");
  }
  return x;
}

EtcPatterns EtcEncoder::patterns(const EtcInputs& in) const {
  const Tensor& any = in.tokens ? in.tokens : in.globals;
  require(static_cast<bool>(any), kName, "an input has neither tokens nor globals");
  for (const Tensor& x : {in.tokens, in.globals}) {
    if (x && (x.rank() != 2 || x.dim(0) != any.dim(0) || x.dim(1) < 1)) {
      fail_with<ShapeError>(kName, "tokens must be [B, n_l] and globals [B, n_g], of some length",
                            {{"tokens", in.tokens}, {"globals", in.globals}});
    }
  }
  require(config_.global_features > 0 || !in.global_features, kName,
          "features of globals need global_features > 0");
  return etc_patterns(config_, in.structure, any.dim(0), in.tokens ? in.tokens.dim(1) : 0,
                      in.globals ? in.globals.dim(1) : 0, token_.weight.device());
}

EtcStreams EtcEncoder::forward(const EtcInputs& in, Pass pass) const {
  const Scope scope(kName);
  const auto all = std::make_shared<const EtcPatterns>(patterns(in));
  EtcStreams x = embed(in, pass);
  std::vector<Tensor> streams{x.l, x.g};
  const auto step = [this, all, pass](int64_t i, std::vector<Tensor>& both, bool) {
    const Scope at("layers", static_cast<long>(i));
    const EtcStreams y =
        layer(i).forward({both[0], both[1]}, all->of_layer(i), pass.at("layers").at(i));
    both = {y.l, y.g};
  };
  if (is_reversible(config_.memory)) {
    x = forward_reversible(x, *all, pass);
  } else {
    run_layers(config_.n_layer, streams, config_.memory, step);
    x = {streams[0], streams[1]};
  }
  if (config_.norm == NormPlace::post) return x;
  return {x.l ? final_norm_.forward(x.l) : x.l, x.g ? final_norm_.forward(x.g) : x.g};
}

EtcStreams EtcEncoder::attention_input(int64_t index, const EtcInputs& in,
                                       const EtcPatterns& all) const {
  EtcStreams x = embed(in, Pass{});
  if (is_reversible(config_.memory)) return reversible_attention_input(index, x, all);
  for (int64_t i = 0; i < index; ++i) x = layer(i).forward(x, all.of_layer(i), Pass{});
  return layer(index).attention_input(x);
}

}  // namespace longspan
