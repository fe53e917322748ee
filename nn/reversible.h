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

/// How the streams of a reversible stack are computed and what is kept of them.
struct ReversibleOptions {
  DType layers = DType::f32;  ///< what a layer gets its stream in, and may return its result in
  bool exact = false;         ///< streams are multiples of 2^-grid, so inversion has no error
  int grid = 16;
  int64_t checkpoint_every = 0;  ///< steps after which the true streams are kept too; 0: never
  bool stored = false;  ///< the same streams with all that the ops save kept: nothing is run again
};

/// Those of a reversible policy, for layers in a dtype and blocks of so many steps.
ReversibleOptions reversible_options(const MemoryPolicy& policy, DType layers,
                                     int64_t steps_of_a_block);

/// Measures what inverting costs. While it lives, reversible stacks of this thread keep `rows` rows
/// of their input (-1: all of them), and once backward has come back to it compare: the error is
/// |x - x'| / |x| over these rows, in the norm of L2, of the stream where it is larger.
class ReconstructionErrorMonitor {
 public:
  explicit ReconstructionErrorMonitor(int64_t rows = 8);
  ~ReconstructionErrorMonitor();
  ReconstructionErrorMonitor(const ReconstructionErrorMonitor&) = delete;
  ReconstructionErrorMonitor& operator=(const ReconstructionErrorMonitor&) = delete;

  int64_t inversions = 0;        ///< seen so far
  double last = 0, largest = 0;  ///< their errors

  int64_t rows() const { return rows_; }
  /// The innermost one of this thread; null where there is none.
  static ReconstructionErrorMonitor* current();

 private:
  int64_t rows_;
  ReconstructionErrorMonitor* outer_;
};

/// Residual layers over two streams of which one can be computed from what comes after it:
///   y1 = x1 + f(x2), y2 = x2 + g(y1)          x2 = y2 - g(y1), x1 = y1 - f(x2)
/// as a list of steps of any number: each adds to one stream a function of the other, whereupon the
/// two change roles. Of the forward pass are kept the last streams and, of each step, what it was
/// given, its context and its `choices`. Backward goes through the steps from the last to the
/// first: it runs the step's layer again, recording, subtracts what it returns from the stream in
/// place, and adds the gradient of that run; nothing else of the step is alive before or after.
///
/// Subtracting undoes adding to rounding only: (x + f) - f differs from x in the last bits, which a
/// layer may amplify from step to step. With `exact` streams and results of layers are rounded to
/// multiples of 2^-grid (identity in backward), which f32 adds without error up to 2^(24 - grid).
/// Where nothing is recorded the streams are the same and nothing is kept. \cite gomez2017
/// \cite kitaev2020
class Reversible {
 public:
  /// Throws DTypeError on streams in f16 or bf16, whose sums lose what inversion needs, ShapeError
  /// where the two differ.
  Reversible(Halves x, const ReversibleOptions& options);

  /// acc <- acc + f(other), and the two change roles. Returns what f returns; y without history.
  /// `loss` is differentiable and its gradient reaches f; so is given.context. Choices and
  /// statistics are those of this run: backward hands the choices back as given.choices. f is kept
  /// until the graph is gone.
  Output step(std::shared_ptr<Layer> f, const LayerContext& ctx, Pass pass);
  /// What the next step's layer gets.
  Tensor input() const;
  /// x1: the stream that the next step adds to; x2: the one that it reads.
  const Halves& streams() const { return now_; }
  /// The streams after the last step, which the graph keeps from here on. Throws ValueError where
  /// `exact` streams have grown beyond what f32 adds without error.
  Halves finish();

 private:
  class Graph;
  struct StepNode;

  Tensor residual(const Tensor& y) const;
  void watch_size(const Tensor& x);

  ReversibleOptions options_;
  DType dtype_;
  Halves now_;
  std::shared_ptr<Graph> graph_;  // null where nothing is to be recorded
  Tensor largest_;                // of |x| so far, where it is watched
};

/// A block of two layers: y1 = x1 + f(x2), y2 = x2 + g(y1).
struct Coupling {
  std::unique_ptr<Layer> f, g;
};
struct ReversibleOutput {
  Halves y;
  Tensor loss;                  ///< sum of the layers' auxiliary losses; undefined without any
  std::vector<Output> outputs;  ///< of each layer, for `state` and `memory`
};
/// The couplings one after another, with one `given` for all. `layers` of the options is taken to
/// be the dtype of the streams unless it is f16 or bf16. They must outlive the graph.
ReversibleOutput reversible(std::span<const Coupling> couplings, Halves x, const LayerContext& ctx,
                            Pass pass, ReversibleOptions options = {});

/// The streams with which a reversible stack begins: both x, in f32 where x is in f16 or bf16, on
/// the grid where `exact`.
Halves enter_reversible(const Tensor& x, const ReversibleOptions& options);
/// (x1 + x2) / 2.
Tensor mean_of(const Halves& x);
/// [x1, x2] along the last axis, [B, L, 2 D].
Tensor concat_of(const Halves& x);

}  // namespace longspan
