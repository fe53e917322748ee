#pragma once

#include "nn/attention/multi_head.h"

namespace longspan {

/// Options of EntmaxAttention.
struct EntmaxOptions {
  double alpha = 1.5;    ///< of all heads: 1 is softmax, 2 sparsemax
  bool learned = false;  ///< each head learns its own, between 1.01 and 2
};

/// Multi-head attention with alpha-entmax in place of the softmax \cite correia2019 (sec. 3): most
/// probabilities are exactly 0 (ops/attention/entmax_attention.h). A learned alpha of head h is
///   alpha_h = clamp(1 + sigmoid(a_h), 1.01, 2)
/// with the parameter "alpha", a [H], N(0, 1) at first. There are no relative terms, and one
/// pattern.
class EntmaxAttention final : public MultiHead {
 public:
  /// Throws ValueError that names the option.
  EntmaxAttention(const AttentionOptions& options, const EntmaxOptions& entmax, const Init& init);
  void visit(Visitor& v) override;
  /// [H], differentiable if it is learned, else of one element, f64.
  Tensor alpha() const;
  /// Returns for the rows x [B, L, D] what fraction of the keys that it sees each head uses: [B, H,
  /// L].
  Tensor density(const Tensor& x, const LayerContext& ctx) const;

 protected:
  Tensor attend(const Projected& p, const LayerContext& ctx, const ScoreTerms& terms,
                const Dropout& dropout) const override;

 private:
  AttentionPattern pattern_of(const LayerContext& ctx) const;
  EntmaxOptions entmax_;
  Device device_;
  Tensor a_;  // [H] if learned
};

}  // namespace longspan
