#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nn/layer.h"
#include "nn/memory_policy.h"

namespace longspan {

/// The two streams of a reversible stack, [B, L, D] each, f32 or f64.
struct Halves {
  Tensor x1, x2;
};

/// How to compute the streams of a reversible stack, and what to save of them.
struct ReversibleOptions {
  DType layers = DType::f32;  ///< dtype in which a layer gets its stream and may return its result
  bool exact = false;         ///< streams are multiples of 2^-grid, so inversion has no error
  int grid = 16;
  int64_t checkpoint_every = 0;  ///< steps between saved true streams; 0: none are saved
  bool stored = false;           ///< compute these streams, save everything, recompute nothing
};

/// Returns the options of a reversible policy, for layers in a dtype and blocks of this many steps.
ReversibleOptions reversible_options(const MemoryPolicy& policy, DType layers,
                                     int64_t steps_of_a_block);

/// Measures the inversion error. While it lives, reversible stacks of this thread keep `rows` rows
/// of their input (-1: all rows), and compare them once backward has reconstructed it: the error is
/// |x - x'| / |x| over these rows, in the L2 norm, of the stream with the larger error.
class ReconstructionErrorMonitor {
 public:
  explicit ReconstructionErrorMonitor(int64_t rows = 8);
  ~ReconstructionErrorMonitor();
  ReconstructionErrorMonitor(const ReconstructionErrorMonitor&) = delete;
  ReconstructionErrorMonitor& operator=(const ReconstructionErrorMonitor&) = delete;

  int64_t inversions = 0;        ///< number observed so far
  double last = 0, largest = 0;  ///< errors of these inversions

  int64_t rows() const { return rows_; }
  /// Returns the innermost monitor of this thread; null if there is none.
  static ReconstructionErrorMonitor* current();

 private:
  int64_t rows_;
  ReconstructionErrorMonitor* outer_;
};

/// Residual layers over two streams, each of which can be recomputed from the later ones:
///   y1 = x1 + f(x2), y2 = x2 + g(y1)          x2 = y2 - g(y1), x1 = y1 - f(x2)
/// as a list of steps of any number: each step adds to one stream a function of the other, then the
/// two change roles. The forward pass saves the last streams and, for each step, its ctx, its
/// encoder output and its `choices`. Backward goes through the steps from the last to the first: it
/// recomputes the step's layer with recording on, subtracts the result from the stream in place,
/// and adds the gradients of the recomputed graph; no other tensors of a step are alive before or
/// after.
///
/// Subtraction undoes addition only up to rounding: (x + f) - f differs from x in the last bits,
/// which layers may amplify from step to step. With `exact`, streams and layer results are rounded
/// to multiples of 2^-grid (identity in backward), which f32 adds without error up to 2^(24 -
/// grid). If nothing is recorded, the streams are the same and nothing is saved. \cite gomez2017
/// \cite kitaev2020
class Reversible {
 public:
  /// Throws DTypeError if the streams are f16 or bf16, whose sums lose what inversion needs, and
  /// ShapeError if the two differ.
  Reversible(Halves x, const ReversibleOptions& options);

  /// acc <- acc + f(other), then the two change roles. Returns the output of f, with y detached.
  /// `losses` are differentiable and their gradients reach f; ctx.encoder_output is differentiable
  /// too.
  /// The output has the choices and statistics of this forward pass; the recomputation gets the
  /// choices as ctx.choices. f is kept alive until the graph is freed.
  Output step(std::shared_ptr<Layer> f, const LayerContext& ctx, Pass pass);
  /// The input of the next step's layer.
  Tensor input() const;
  /// x1: the stream that the next step adds to; x2: the one that it reads.
  const Halves& streams() const { return now_; }
  /// Returns the streams after the last step, which the graph saves. Throws ValueError if `exact`
  /// streams have grown beyond what f32 adds without error.
  Halves finish();

 private:
  class Graph;
  struct StepNode;

  Tensor residual(const Tensor& y) const;
  void watch_size(const Tensor& x);

  ReversibleOptions options_;
  DType dtype_;
  Halves now_;
  std::shared_ptr<Graph> graph_;  // null if nothing is recorded
  Tensor largest_;                // max of |x| so far, if it is checked
};

/// A block of two layers: y1 = x1 + f(x2), y2 = x2 + g(y1).
struct Coupling {
  std::unique_ptr<Layer> f, g;
};
struct ReversibleOutput {
  Halves y;
  std::vector<AuxiliaryLoss> losses;  ///< of the layers; those of one name are summed
  std::vector<Output> outputs;        ///< of each layer, for `statistics` and `memory`
};
/// Runs the couplings in sequence with the same ctx. If `layers` of the options is f32, it is
/// replaced by the dtype of the streams. The couplings must outlive the graph.
ReversibleOutput reversible(std::span<const Coupling> couplings, Halves x, const LayerContext& ctx,
                            Pass pass, ReversibleOptions options = {});

/// Returns the initial streams of a reversible stack: x twice, f32 if x is f16 or bf16, rounded to
/// the grid if `exact`.
Halves enter_reversible(const Tensor& x, const ReversibleOptions& options);
/// (x1 + x2) / 2.
Tensor mean_of(const Halves& x);
/// Returns [x1, x2] concatenated along the last axis, [B, L, 2 D].
Tensor concat_of(const Halves& x);

}  // namespace longspan
