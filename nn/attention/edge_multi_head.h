#pragma once

#include <array>
#include <cstdint>

#include "nn/edge_rows.h"
#include "nn/layers.h"

namespace longspan {

/// Options of EdgeMultiHead.
struct EdgeMultiHeadOptions {
  int64_t d_model = 0, n_head = 1;
  int64_t labels = 0;   ///< rows of the table of labels; 0: pairs have none
  bool cross = false;   ///< keys and values come from LayerContext::encoder_output
  float dropout = 0;    ///< site "attn", on attention probabilities
  Scheme weights = {};  ///< of the matrices and of the table of labels
};

/// Multi-head attention over the pairs of an edge layout \cite ye2019 , without biases:
///   q = x Wq^T, k = z Wk^T, v = z Wv^T;  s_ij = q_i . (k_j + r_label(i,j)) / sqrt(d);
///   y = concat(o) Wo^T
/// z = x, in decoding also what is kept of earlier rows, in cross-attention the encoder's output.
/// All heads share the vectors r of the labels.
class EdgeMultiHead : public Layer {
 public:
  /// Throws ValueError unless n_head divides d_model.
  EdgeMultiHead(const EdgeMultiHeadOptions& options, const Init& init);

  /// x [B, N, D] -> [B, rows, D]: the rows that EdgeContext::rows names. In cross-attention the
  /// layout of EdgeContext::encoder_rows has n rows for each sample, one sample after the other,
  /// and its keys are the rows of ctx.encoder_output [1, S, D], those of all samples; rows of x
  /// beyond the first n of a sample get zeros. Decoding stores keys and values at the places that
  /// EdgeContext::rows names; cross-attention keeps the encoder's keys and values. Throws
  /// ValueError without a layout, GradientError when decoding with recording on.
  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override;
  /// [B, H, rows, N]; for layers that are not cross-attention.
  Tensor probabilities(const Tensor& x, const LayerContext& ctx) const override;
  void visit(Visitor& v) override;
  bool splits() const override { return !options_.cross; }

 private:
  Output forward_cross(const Tensor& x, const LayerContext& ctx, Pass pass) const;
  Tensor split_heads(const Tensor& x) const;  // [B, L, H d] -> [B, H, L, d]
  /// Returns the queries of these rows of x, and the keys and values of all: [B, H, n, d].
  std::array<Tensor, 3> project(const Tensor& x, const EdgeRows& rows) const;
  Tensor merge(const Tensor& heads) const;  // [B, H, L, d] -> [B, L, D]
  const EdgeMultiHeadOptions options_;
  Linear q_, k_, v_, out_;
  Tensor relation_;  // [labels, d]
};

}  // namespace longspan
