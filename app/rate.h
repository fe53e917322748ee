#pragma once

#include <cstdint>
#include <string>

#include "app/run_config.h"
#include "data/io/json.h"

namespace longspan {

/// Where a run stands in the schedule of its learning rate; a member of state.json.
struct ScheduleState {
  int64_t start = 0;    ///< the step at which the schedule began
  double began = 0;     ///< seconds of training before that
  double progress = 0;  ///< of the last step: from the end of the warm-up, 0, to the floor, 1
  double rate = 0;      ///< of the last step; 0: there was none
  Json value() const;
  /// Of a checkpoint. One without it, of an earlier version, is taken to have followed the clock
  /// for `planned` seconds, of which `trained` are behind it.
  static ScheduleState read(const Json& values, double trained, double planned);
};

/// The learning rate of a run, by its steps or, where it has time alone, by the clock. A run that
/// goes on by the clock has the rate that its last step had, which reaches the floor at the end of
/// this start's time: it never rises by stopping and going on.
class LearningRate {
 public:
  ///   from     where the run stood
  ///   trained  seconds of training behind it
  LearningRate(const RunConfig& config, const ScheduleState& from, double trained);

  /// The rate of a step that begins `elapsed` seconds after this start.
  double at(int64_t step, double elapsed);
  /// The last step as it looked at the latest call of at().
  int64_t last() const { return last_; }
  const ScheduleState& state() const { return now_; }
  /// What happens to the rate from here on, for the user of a run that goes on at `step`.
  std::string outlook(int64_t step) const;

 private:
  double progress(int64_t step, double elapsed);

  const RunConfig& config_;
  ScheduleState from_, now_;
  double trained_;
  int64_t last_ = 1;
};

}  // namespace longspan
