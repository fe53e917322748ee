#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
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

/// Ends the training steps of a model: it calls after_step() of the model, then of every module
/// that it visits, once each, with the module's own sums and a generator of its own. The modules
/// are collected once, so they must stay where they are. For each update of the parameters, and for
/// no step without one:
///   prepare()  before the update: all that can fail but after_step() itself, so that only an
///              after_step() that needs memory can fail once parameters have changed
///   run()      after the update, outside recordings
class EndOfStep {
 public:
  explicit EndOfStep(Module& model);
  EndOfStep(const EndOfStep&) = delete;
  EndOfStep& operator=(const EndOfStep&) = delete;

  ///   step        index of the update
  ///   statistics  of all batches of the step
  ///   throws      ValueError if a module with statistics is not visited
  void prepare(int64_t step, Generator gen, std::vector<Statistics> statistics);
  /// Makes the calls that were prepared. Throws ValueError if none were since the last time.
  void run();

 private:
  struct Call {
    Module* module;
    std::string name;
    StepEnd end = {};
  };
  std::vector<Call> calls_;                             // in visiting order
  std::unordered_map<const Module*, size_t> place_of_;  // in calls_
  std::vector<Statistics> statistics_;                  // what the calls read
  bool prepared_ = false;
};

/// Ends a single step, for drivers that end when memory does.
inline void end_step(Module& model, int64_t step, Generator gen,
                     std::vector<Statistics> statistics) {
  EndOfStep end(model);
  end.prepare(step, gen, std::move(statistics));
  end.run();
}

/// Overwrites a buffer at its address, so that recorded steps read the new values. Throws
/// ShapeError, DTypeError and DeviceError unless the value is of its kind.
void write_buffer(Tensor& buffer, const Tensor& value);

}  // namespace longspan
