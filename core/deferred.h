#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/view.h"

/// Checks of values on a device whose outcome the host does not wait for.
namespace longspan::deferred {

/// Called with the index of the first wrong element and its value; throws.
using ErrorHandler = std::function<void(int64_t place, int64_t value)>;

/// Calls run(found), whose kernel writes its result on `device`: found is i64 [2], the index of the
/// first wrong element (-1 if there is none) and its value. On the host this throws immediately. On
/// CUDA raise_pending() throws later, so the code that the check guards must be safe whatever the
/// outcome.
void check(Device device, const std::function<void(View found)>& run, ErrorHandler on_error);

/// The bytes on a device that outcomes take from the first check on.
int64_t outcome_bytes();

/// Reads and clears the outcomes of this thread's checks on `device` and throws the error of the
/// first check that failed. Waits for the device if there were any checks. Called before the host
/// reads from the device or waits for it, and by check() when very many checks are pending. A
/// parameter update made before this call may have used the wrong values: read the loss, or clip
/// the gradients, before the update.
void raise_pending(Device device);

struct Batch;

/// The checks of a recorded step, repeated by each replay (core/graph.h).
class Recorded {
 public:
  Recorded();
  ~Recorded();
  /// Between start() and stop(), this thread's checks are collected here.
  void start();
  void stop();
  /// Called before a replay: raises pending errors of the previous replay, if that has not been
  /// done.
  void raise_pending();
  /// Called after a replay: a later raise_pending() reads its checks.
  void enqueue();

 private:
  std::vector<std::shared_ptr<Batch>> batches_;
};

}  // namespace longspan::deferred
