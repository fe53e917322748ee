#pragma once

#include <cstdint>
#include <vector>

#include "nn/attention/multi_head.h"

namespace longspan {

/// BlockBERT's attention \cite qiu2020 without a fused kernel: the scores and probabilities of each
/// block are tensors, and the probabilities are saved for the backward pass, L^2 / n of them for
/// each head. It is the baseline of the memory figures; with one block, that of full attention.
class MaterializedBlocks : public Layer {
 public:
  ///   heads         the projections
  ///   permutations  pi_a of each head
  ///   unit          block bounds are those of the length rounded up to a multiple of this; 0: of
  ///                 the length
  ///   dropout       rate on the probabilities
  MaterializedBlocks(const MultiHead& heads, std::vector<std::vector<int64_t>> permutations,
                     int64_t unit, float dropout);

  /// Reads only the lengths of ctx.pattern.
  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override;
  /// Returns the probabilities of the fused kernel for ctx.pattern.
  Tensor probabilities(const Tensor& x, const LayerContext& ctx) const override {
    return heads_.probabilities(x, ctx);
  }
  void visit(Visitor& v) override { heads_.visit(v); }

 private:
  /// Attention of heads first .. first + count - 1, which share a permutation: [B, count, L, d].
  Tensor attend(const Projected& p, int64_t first, int64_t count, const Tensor& lengths,
                Pass pass) const;

  MultiHead heads_;
  std::vector<std::vector<int64_t>> permutations_;
  int64_t unit_;
  float dropout_;
};

}  // namespace longspan
