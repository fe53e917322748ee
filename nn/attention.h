#pragma once

#include <cstdint>
#include <functional>

#include "nn/layers.h"
#include "nn/position.h"

namespace longspan {

/// What a MultiHead is made of.
struct AttentionOptions {
  int64_t d_model = 0, n_head = 1;
  int64_t d_head = 0;   ///< 0: d_model / n_head
  int64_t d_value = 0;  ///< width of a head's values; 0: d_head
  bool qkv_bias = false, out_bias = false;
  bool share_qk = false;  ///< keys use the projection of queries
  bool cross = false;     ///< keys and values come from the context
  float dropout = 0;      ///< site "attn", on probabilities
  Scheme weights = {}, out_weights = {};
};

/// [B, H, L, T]: the weights of an attention, a block of columns at a time. Values that are unit
/// vectors turn its weighted sums into the weights.
///   values  any values [B, H, T, ..], whose sizes, dtype and device those unit vectors have
///   attend  values [B, H, T, n] -> weighted sums [B, H, L, n]
Tensor attention_weights(const Tensor& values, const std::function<Tensor(const Tensor&)>& attend);

/// [B, H, L, d] each, views of [B, L, H d].
struct Projected {
  Tensor q, k, v;
};

/// Multi-head attention \cite vaswani2017 (sec. 3.2): projections around a pattern.
///   q = x Wq^T (+ b), k = z Wk^T, v = z Wv^T; z = x, [earlier states; x] or the context; head h
///   owns columns h d ... h d + d - 1; s_ij = (q_i . k_j + relative terms) / sqrt(d);
///   y = concat(o) Wo^T (+ b)
/// One softmax runs over the keys of given.pattern and of given.also, which have none in common.
/// Shared relative tables are named by whoever visits them first.
class MultiHead : public Layer {
 public:
  MultiHead(const AttentionOptions& options, ShawTables tables, const Init& init);

  /// x [B, L, D] -> [B, L, D]. given.memory.states, where there are any, come before x as keys and
  /// values. Decoding appends the keys and values of x to those in given.memory and returns the new
  /// memory. Throws ShapeError, DTypeError; ValueError where cross-attention has no context and
  /// where the memory does not end at given.position; GradientError on decoding with recording on.
  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override;
  void visit(Visitor& v) override;

  Projected project(const Tensor& x) const;
  Projected project(const Tensor& x, const Tensor& z) const;
  Tensor merge(const Tensor& heads) const;  // [B, H, L, d] -> [B, L, D]
  Tensor probabilities(const Tensor& x, const LayerContext& ctx) const override;

 protected:
  /// What is added to scores and values. It may add to the queries, too.
  virtual ScoreTerms terms(Projected& p) const;
  const AttentionOptions& options() const { return options_; }

 private:
  Tensor split_heads(const Tensor& x) const;  // [B, L, H d] -> [B, H, L, d]
  /// Queries of x, and all keys and values that there are for them; `memory` then holds these too.
  Projected gather(const Tensor& x, const LayerContext& ctx, LayerMemory& memory) const;
  /// [B, H, L, dv] of all parts of the pattern.
  Tensor attend(const Projected& p, const LayerContext& ctx, const ScoreTerms& terms,
                const Dropout& dropout) const;

  AttentionOptions options_;
  Linear q_, k_, v_, out_;
  ShawTables tables_;
};

}  // namespace longspan
