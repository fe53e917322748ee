#pragma once

#include <cstdint>
#include <functional>

#include "nn/attention/head_share.h"
#include "nn/layers.h"
#include "nn/position.h"

namespace longspan {

/// Options of MultiHead.
struct AttentionOptions {
  int64_t d_model = 0, n_head = 1;
  int64_t d_head = 0;   ///< 0: d_model / n_head
  int64_t d_value = 0;  ///< width of a head's values; 0: d_head
  bool qkv_bias = false, out_bias = false;
  bool share_qk = false;  ///< keys use the projection of queries
  bool cross = false;     ///< keys and values come from LayerContext::encoder_output
  double scale = 0;       ///< of q . k; 0: 1 / sqrt(d)
  float dropout = 0;      ///< site "attn", on attention probabilities
  Scheme weights = {}, out_weights = {};
};

/// Returns the attention weights [B, H, L, T], computed a block of columns at a time: with unit
/// vectors as values, the weighted sums are the weights.
///   values  any values [B, H, T, ..]; the unit vectors take their sizes, dtype and device
///   attend  values [B, H, T, n] -> weighted sums [B, H, L, n]
Tensor attention_weights(const Tensor& values, const std::function<Tensor(const Tensor&)>& attend);

/// [B, H, L, d] each, views of [B, L, H d].
struct Projected {
  Tensor q, k, v;
  Tensor x = {};         ///< [B, L, D]: the rows that the queries are projections of
  HeadShare share = {};  ///< which of the heads these are; x has this process's rows
};

/// Multi-head attention \cite vaswani2017 (sec. 3.2): projections around an attention pattern.
///   q = x Wq^T (+ b), k = z Wk^T, v = z Wv^T; z = x, [earlier states; x] or encoder output; head h
///   owns columns h d ... h d + d - 1; s_ij = (q_i . k_j + relative terms) / sqrt(d);
///   y = concat(o) Wo^T (+ b)
/// One softmax runs over the keys of ctx.pattern and of ctx.also, which have no pair in common. The
/// first layer visited names shared relative tables.
class MultiHead : public Layer {
 public:
  MultiHead(const AttentionOptions& options, ShawTables tables, const Init& init);

  /// x [B, L, D] -> [B, L, D]. InputRows::states of ctx.memory, if there are any, come before x as
  /// keys and values.
  /// Decoding appends the keys and values of x to those in ctx.memory and returns the new memory.
  /// Throws ShapeError, DTypeError; ValueError if cross-attention has no encoder output and if the
  /// memory does not end at ctx.position; GradientError when decoding with recording on.
  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const final {
    return computed({}, x, ctx, pass);
  }
  Output forward_onto(const Tensor& onto, const Tensor& x, const LayerContext& ctx,
                      Pass pass) const final {
    return computed(onto, x, ctx, pass);
  }
  void visit(Visitor& v) override;
  /// terms() and attend() of a derived layer must read Projected::share, or it must say false.
  bool splits() const override { return true; }

  Projected project(const Tensor& x) const;
  Projected project(const Tensor& x, const Tensor& z) const;
  /// Queries of x; keys and values of [before; x], which are not joined.
  Projected project_after(const Tensor& before, const Tensor& x) const;
  /// [B, H, L, d] -> [B, L, D], added to `onto` if it is defined.
  Tensor merge(const Tensor& heads, const Tensor& onto = {}) const;
  Tensor probabilities(const Tensor& x, const LayerContext& ctx) const override;

 protected:
  /// forward(), or with `onto` forward_onto(): what layers override that compute more than terms()
  /// and attend().
  virtual Output computed(const Tensor& onto, const Tensor& x, const LayerContext& ctx,
                          Pass pass) const;
  /// Returns the terms added to scores and values. It may also add to the queries, and in decoding
  /// keep in `memory` what it projects.
  virtual ScoreTerms terms(Projected& p, const LayerContext& ctx, LayerMemory& memory) const;
  /// Returns what a layer pays for its terms in training, for Output::losses.
  virtual std::vector<AuxiliaryLoss> penalties(const ScoreTerms& /*terms*/) const { return {}; }
  /// Attends to the union of the patterns; returns [B, H, L, dv].
  virtual Tensor attend(const Projected& p, const LayerContext& ctx, const ScoreTerms& terms,
                        const Dropout& dropout) const;
  /// Drops outputs of heads [B, H, L, dv] where attend() has no probabilities to drop.
  ///   rows  of the queries of attend(), which may be more
  virtual Tensor drop_outputs(const Tensor& heads, int64_t /*rows*/, const Pass& /*site*/) const {
    return heads;
  }
  const AttentionOptions& options() const { return options_; }
  /// Returns the queries of x, and all keys and values that they may attend to; stores these in
  /// `memory`. With Pass::split, of this process's heads.
  Projected gather(const Tensor& x, const LayerContext& ctx, LayerMemory& memory,
                   const Pass& pass) const;
  /// Returns keys and values of z [B, n, D] by the projections as constants: gradients pass through
  /// to z, and the weights get none. There are no queries.
  Projected project_through(const Tensor& z) const;

 private:
  Tensor split_heads(const Tensor& x) const;  // [B, L, H d] -> [B, H, L, d]
  /// gather() where other processes have the other heads.
  Projected gather_share(const Tensor& x, const LayerContext& ctx, const Pass& pass) const;
  AttentionOptions options_;
  Linear q_, k_, v_, out_;
  ShawTables tables_;
};

}  // namespace longspan
