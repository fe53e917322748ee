#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/device.h"

namespace longspan {

/// How time_steps() measures.
struct StepTimeOptions {
  int64_t warm = 1;          ///< steps before the clock starts, which fill caches
  int64_t steps = 3;         ///< timed steps
  double most_seconds = 10;  ///< no further step begins after so many seconds of timed ones
};

/// The times of training steps, in seconds, in the order of the steps.
struct StepTimes {
  std::vector<double> seconds;

  /// Returns the fastest: other work on the machine only makes steps slower. NaN without steps.
  double best() const;
  double median() const;
};

/// Times calls of step() by the clock on the wall. Each begins when the device has done all before
/// it and ends when it has done the step. One step is timed in any case. Throws ValueError unless
/// steps >= 1 and warm >= 0.
StepTimes time_steps(Device device, const std::function<void()>& step,
                     const StepTimeOptions& options = {});

}  // namespace longspan
