#include "train/step_time.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "core/backends.h"
#include "core/error.h"

namespace longspan {

double StepTimes::best() const {
  return seconds.empty() ? std::numeric_limits<double>::quiet_NaN()
                         : *std::min_element(seconds.begin(), seconds.end());
}

double StepTimes::median() const {
  if (seconds.empty()) return best();
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

StepTimes time_steps(Device device, const std::function<void()>& step,
                     const StepTimeOptions& options) {
  require(options.steps >= 1 && options.warm >= 0, "time_steps",
          "got {} steps after {} others; expected 1 or more after 0 or more", options.steps,
          options.warm);
  for (int64_t i = 0; i < options.warm; ++i) step();
  synchronize(device);
  StepTimes times;
  double all = 0;
  while (std::ssize(times.seconds) < options.steps &&
         (times.seconds.empty() || all < options.most_seconds)) {
    const auto begin = std::chrono::steady_clock::now();
    step();
    synchronize(device);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    times.seconds.push_back(took.count());
    all += took.count();
  }
  return times;
}

}  // namespace longspan
