#pragma once

#include <cstdint>
#include <vector>

#include "nn/attention.h"

namespace longspan {

/// BlockBERT's attention \cite qiu2020 as one writes it without a fused kernel: each block's scores
/// and probabilities are tensors, and the probabilities are kept for the backward pass, L^2 / n of
/// them for each head. The baseline of its memory figures; with one block that of full attention.
class MaterializedBlocks : public Layer {
 public:
  /// heads         the projections
  /// permutations  pi_a of each head
  /// unit          blocks are those of a multiple of so many tokens; 0: of the input
  /// dropout       of probabilities
  MaterializedBlocks(const MultiHead& heads, std::vector<std::vector<int64_t>> permutations,
                     int64_t unit, float dropout);

  /// Reads the lengths of given.pattern, and nothing else of it.
  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override;
  /// Those of the fused kernel, by given.pattern.
  Tensor probabilities(const Tensor& x, const LayerContext& ctx) const override {
    return heads_.probabilities(x, ctx);
  }
  void visit(Visitor& v) override { heads_.visit(v); }

 private:
  /// Heads first .. first + count - 1, which share a permutation: [B, count, L, d].
  Tensor attend(const Projected& p, int64_t first, int64_t count, const Tensor& lengths,
                Pass pass) const;

  MultiHead heads_;
  std::vector<std::vector<int64_t>> permutations_;
  int64_t unit_;
  float dropout_;
};

}  // namespace longspan
