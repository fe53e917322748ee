#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/view.h"

/// Checks of numbers on a device whose outcome the host does not wait for.
namespace longspan::deferred {

/// Called with the place of the first number that is wrong and with that number; throws.
using ErrorHandler = std::function<void(int64_t place, int64_t value)>;

/// Calls run(found), whose kernel writes what it finds on `device`: i64 [2], the place, -1 where
/// nothing is wrong, and the number. On the host it complains at once; elsewhere raise_pending()
/// will, and what the check guards must be safe whatever it finds.
void check(Device device, const std::function<void(View found)>& run, ErrorHandler on_error);

/// Looks at what this thread's checks on `device` have found, all of which are forgotten then, and
/// complains of the first that found something. Waits for the device where there were any. Called
/// before the host reads from the device or waits for it, and by check() once there are very many.
/// A parameter that is updated before then may have been updated by what was wrong: read the loss,
/// or clip the gradients, before the update.
void raise_pending(Device device);

struct Batch;

/// The checks of a recorded step, made again by each replay (core/graph.h).
class Recorded {
 public:
  Recorded();
  ~Recorded();
  /// Between these two, this thread's checks are collected here.
  void start();
  void stop();
  /// Before a replay: settles the checks of the one before, where that has not been done.
  void raise_pending();
  /// After a replay: raise_pending() will look at them.
  void enqueue();

 private:
  std::vector<std::shared_ptr<Batch>> batches_;
};

}  // namespace longspan::deferred
