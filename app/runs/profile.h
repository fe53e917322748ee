#pragma once

#include <optional>
#include <string>

#include "train/profiler.h"

namespace longspan {

/// Writes trace.json, ops.csv, layers.csv and profile.txt into a new folder. `peak` as in
/// to_string(). Throws IoError, also if the folder is there.
void write_profile(const std::string& folder, const Profiler& profiler, const Profile& profile,
                   double peak);

/// Returns the multiply-adds per second that all threads of this process can reach, measured; 0 on
/// a device.
double measured_peak(Device device);

/// Profiles some steps of a run that trains: `longspan train --profile N`.
class ProfiledSteps {
 public:
  /// The first steps of a process, which fill caches, are left out.
  static constexpr int64_t warm = 2;

  ProfiledSteps(int64_t steps, Device device) : steps_(steps), device_(device) {}
  /// Called before step `done` of this process, from 0, and with `last` after the last one. Returns
  /// tables after the last profiled step, whose files are then in a new folder; "" at other times.
  std::string before_step(int64_t done, const std::string& folder, bool last = false);

 private:
  int64_t steps_;
  bool written_ = false;
  Device device_;
  std::optional<Profiler> profiler_;
};

}  // namespace longspan
