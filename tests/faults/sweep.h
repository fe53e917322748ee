#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace longspan::test {

/// An action that may fail at any operator new, with the conditions to check before and after it.
/// Each process makes its own Trial.
struct Trial {
  virtual ~Trial() = default;
  /// Restores the state before the first act().
  virtual void reset() = 0;
  virtual void act() = 0;
  /// unchanged(): whether the state is as reset() left it. finished(): whether it is as a complete
  /// act() leaves it.
  virtual bool unchanged() = 0;
  virtual bool finished() = 0;
};

/// Counts the outcomes of the failures. Each failure is one failed operator new.
struct Tally {
  int64_t injected = 0;    ///< all injected failures
  int64_t aborted = 0;     ///< killed the process
  int64_t half = 0;        ///< left a state that is neither that before nor that after act()
  int64_t other_bits = 0;  ///< after which a repeated act() ended in another state
  int64_t unnamed = 0;     ///< threw something other than an Error of the library
  int64_t survived = 0;    ///< were handled internally
  int64_t first_bad = -1;  ///< index of the first bad failure, else -1
};

std::string to_string(const Tally& tally);

/// Fails every `stride`-th operator new of act(), from `first` on, one at a time, and repeats act()
/// after each failure. Runs in child processes, so that a failure that kills its process is
/// counted. With `cold`, each failure gets a new process that has run nothing before.
Tally sweep(const std::function<std::unique_ptr<Trial>()>& make, int64_t stride = 1,
            int64_t first = 0, bool cold = false);

}  // namespace longspan::test
