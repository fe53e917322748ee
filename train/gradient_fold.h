#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/named_tensor.h"
#include "core/tensor.h"

namespace longspan {

/// The sums of GradientFold, of any tensors: one for each of `count`.
class FoldSums {
 public:
  /// `batches` of a step, in groups of `group`.
  FoldSums(size_t count, int64_t batches, int64_t group);
  /// Sets what sum i has of steps before; it is never written while others hold it.
  void wait(size_t i, Tensor gradient) { sums_.back()[i] = std::move(gradient); }
  /// Adds the gradient of a batch, undefined if it has none. To be called for each batch in order.
  void add(size_t i, int64_t batch, Tensor gradient);
  /// Takes sum i: the sum of the step after its last batch, or before that the gradient that waits.
  Tensor taken(size_t i) { return std::exchange(sums_.back()[i], {}); }

 private:
  static constexpr size_t kLevels = 3;  // batches of a group, groups of a step, steps

  int64_t batches_, group_;
  std::array<std::vector<Tensor>, kLevels> sums_;
};

/// Sums the gradients of the batches of a step in an order that depends on nothing but their
/// number: first within each batch, then over the batches of each group of 8 from left to right,
/// then over the groups, then with the gradients of earlier steps (UpdatePeriod). So the sums do
/// not depend on how batches are distributed over passes, runs or processes.
///   GradientFold fold(optimizer.parameters(), batches);
///   for (int64_t i = 0; i < batches; ++i) fold.backward(loss_of(i));
/// Each gradient is folded as soon as it is complete (LeafWatch), so that two copies exist only of
/// those still open. More than 8 batches need room for another sum.
class GradientFold {
 public:
  static constexpr int64_t default_group = 8;

  /// Takes the gradients that the parameters have aside. `group`: batches of a group.
  GradientFold(const TensorList& parameters, int64_t batches, int64_t group = default_group);
  /// If batches are missing because of an error, gives back the gradients that the parameters had,
  /// so that the step can be taken again. After an error in the last batch gradients are missing.
  ~GradientFold();
  GradientFold(const GradientFold&) = delete;
  GradientFold& operator=(const GradientFold&) = delete;

  /// Runs backward(loss) for the next batch. After the last batch the parameters have the sums.
  void backward(const Tensor& loss);

  /// Returns how many passes, with groups of `rehearsed_group`, hold as much memory as a step of
  /// so many batches with groups of the default size.
  static int64_t rehearsal(int64_t batches);
  static constexpr int64_t rehearsed_group = 3;

 private:
  void fold(size_t parameter);

  std::vector<Tensor> parameters_;
  int64_t batches_, done_ = 0;
  FoldSums sums_;
  bool needed_ = false;
};

}  // namespace longspan
