#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/generator.h"
#include "core/tensor.h"
#include "nn/auxiliary_loss.h"
#include "nn/layer.h"

namespace longspan {

/// Returns the pass. Throws NotImplemented if processes split sequences: `model` names what reads
/// all rows, such as a head for a whole sequence.
const Pass& undivided(std::string_view model, const Pass& pass);

/// The rows of a batch [B, L] that this process computes: all, or with Pass::split its own, of one
/// sample. A model gets all tokens in all processes, so that masks, positions and layouts need no
/// messages, and takes its own rows of what it computes row by row.
class OwnRows {
 public:
  /// Throws ShapeError if the rows are split and B is not 1.
  ///   rows  of the layers, of which the tokens are the first; -1: as many
  OwnRows(const Tensor& tokens, const Pass& pass, int64_t rows = -1);

  /// The pass of the layers above, which draws for these rows.
  const Pass& pass() const { return pass_; }
  /// Index of the first of these rows.
  int64_t first() const { return first_; }
  /// x [B, L, ..] -> the rows of tokens that are here; x may be undefined.
  Tensor of(const Tensor& x) const;
  /// Moves the position in the context of the layers above by the first of these rows.
  void place(LayerContext& ctx) const;

  /// This process's share of the mean loss over all targets [B, L], from the mean over its own:
  /// shares add up to the loss.
  Tensor share(const Tensor& mean, const Tensor& targets) const;
  /// Likewise of the losses of layers, which are means over rows and heads.
  std::vector<AuxiliaryLoss> share(std::vector<AuxiliaryLoss> losses) const;

 private:
  Pass pass_;
  int64_t first_ = 0, count_ = 0;
};

}  // namespace longspan
