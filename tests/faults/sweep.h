#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace longspan::test {

/// Something that may fail at any operator new, and what must be so before and after it. Made anew
/// in each process.
struct Trial {
  virtual ~Trial() = default;
  /// Makes everything as it was before the first act().
  virtual void reset() = 0;
  virtual void act() = 0;
  /// Whether all is as reset() left it; as a whole act() leaves it.
  virtual bool unchanged() = 0;
  virtual bool finished() = 0;
};

/// What came of the failures, each of one operator new.
struct Tally {
  int64_t injected = 0;    ///< all
  int64_t aborted = 0;     ///< killed the process
  int64_t half = 0;        ///< left something that is neither as before nor as after
  int64_t other_bits = 0;  ///< after which the same again did not end as it does without a failure
  int64_t unnamed = 0;     ///< came out as something else than an Error of the library
  int64_t survived = 0;    ///< were made good inside
  int64_t first_bad = -1;  ///< the first of which one of the above is true
};

std::string to_string(const Tally& tally);

/// Fails every `stride`-th operator new of act(), from `first` on, one at a time, and does the same
/// again after each failure; in processes of their own, so that one that dies is counted. With
/// `cold`, each failure has a new process, in which nothing was done before.
Tally sweep(const std::function<std::unique_ptr<Trial>()>& make, int64_t stride = 1,
            int64_t first = 0, bool cold = false);

}  // namespace longspan::test
