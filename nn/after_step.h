#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/generator.h"
#include "core/tensor.h"
#include "nn/module.h"

namespace longspan {

/// What a module has counted in a training forward pass, for its after_step().
struct Statistics {
  const Module* of = nullptr;  ///< the module that counted
  std::vector<Tensor> sums;    ///< over tokens, so that those of several batches add up
};

/// Adds statistics to `all`, without history: the sums of one module are added up. Throws
/// ValueError if a module has another number of sums than before, ShapeError if their shapes
/// differ.
void add_statistics(std::vector<Statistics>& all, std::vector<Statistics> more);

/// The end of a training step: run() calls after_step() of the model, then of every module that it
/// visits, once each. Every module gets its own sums and a generator of its own. Run it once after
/// each update of the parameters, with the statistics of all batches of the step, outside
/// recordings; steps without an update, evaluations and recomputations do not count. Make it before
/// the update: then only an after_step() that needs memory itself can fail once parameters have
/// changed.
///   step    index of the update
///   throws  ValueError if a module with statistics is not visited; OutOfMemory
class EndOfStep {
 public:
  EndOfStep(Module& model, int64_t step, Generator gen, std::vector<Statistics> statistics);
  EndOfStep(const EndOfStep&) = delete;
  EndOfStep& operator=(const EndOfStep&) = delete;
  void run();

 private:
  struct Call {
    Module* module;
    StepEnd end;
  };
  std::vector<Statistics> statistics_;
  std::vector<Call> calls_;
};

/// Makes and runs an EndOfStep, for drivers that end when memory does.
inline void end_step(Module& model, int64_t step, Generator gen,
                     std::vector<Statistics> statistics) {
  EndOfStep(model, step, gen, std::move(statistics)).run();
}

/// Overwrites a buffer at its address, so that recorded steps read the new values. Throws
/// ShapeError, DTypeError and DeviceError unless the value is of its kind.
void write_buffer(Tensor& buffer, const Tensor& value);

}  // namespace longspan
