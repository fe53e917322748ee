#pragma once

#include <cstdint>
#include <string>

#include "app/run_config.h"
#include "data/io/json.h"

namespace longspan {

/// Progress of a run in its learning rate schedule; a member of state.json.
struct ScheduleState {
  int64_t start = 0;    ///< first step of the schedule
  double began = 0;     ///< seconds of training before that step
  double progress = 0;  ///< of the last step: 0 at the end of the warm-up, 1 at the floor
  double rate = 0;      ///< of the last step; 0 if there was none
  Json value() const;
  /// Reads the state of a checkpoint. A checkpoint of an earlier version, without schedule state,
  /// is assumed to have followed the clock for `planned` seconds, of which `trained` have passed.
  static ScheduleState read(const Json& values, double trained, double planned);
};

/// Returns a line if the warm-up that begins at step `start` does not end before step `last`, so
/// that the rate never reaches its peak; else "".
std::string remark_on_warmup(const RunConfig& config, int64_t start, int64_t last);

/// The learning rate of a run, by steps or, if the run has only a time limit, by the clock. A
/// resumed run that follows the clock begins with the rate of its last step and reaches the floor
/// at the end of this start's time, so stopping and resuming never raises the rate.
class LearningRate {
 public:
  ///   from     schedule state at this start
  ///   trained  seconds of training before this start
  LearningRate(const RunConfig& config, const ScheduleState& from, double trained);

  /// Returns the rate of a step that begins `elapsed` seconds after this start.
  double at(int64_t step, double elapsed);
  /// The last step, as estimated by the latest call of at().
  int64_t last() const { return last_; }
  const ScheduleState& state() const { return now_; }
  /// Describes the future of the rate, for the user of a run resumed at `step`.
  std::string outlook(int64_t step) const;

 private:
  double progress(int64_t step, double elapsed);

  const RunConfig& config_;
  ScheduleState from_, now_;
  double trained_;
  int64_t last_ = 1;
};

}  // namespace longspan
