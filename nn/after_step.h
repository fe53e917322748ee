#pragma once

#include <cstdint>
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

/// Ends a training step: calls after_step() of the model, then of every module that it visits, once
/// each. Every module gets its own sums and a generator of its own. Call it once after each update
/// of the parameters, with the statistics of all batches of the step, outside recordings; steps
/// without an update, evaluations and recomputations do not count.
///   step    index of the update
///   throws  ValueError if a module with statistics is not visited
void end_step(Module& model, int64_t step, Generator gen,
              const std::vector<Statistics>& statistics);

/// Overwrites a buffer at its address, so that recorded steps read the new values. Throws
/// ShapeError, DTypeError and DeviceError unless the value is of its kind.
void write_buffer(Tensor& buffer, const Tensor& value);

}  // namespace longspan
