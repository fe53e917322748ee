#pragma once

#include <cstdint>
#include <functional>

#include "core/view.h"

/// Checks of numbers on a device whose outcome the host does not wait for.
namespace longspan::deferred {

/// Called with the place of the first number that is wrong and with that number; throws.
using Complaint = std::function<void(int64_t place, int64_t value)>;

/// Where a check on `device` is to write what it finds: i64 [2], the place, -1 where nothing is
/// wrong, and the number. What the check guards must be safe whatever it finds.
View add(Device device, Complaint complain);

/// Looks at what this thread's checks on `device` have found, all of which are forgotten then, and
/// complains of the first that found something. Waits for the device where there were any. Called
/// before the host reads from the device or waits for it, and by add() once there are very many.
void settle(Device device);

}  // namespace longspan::deferred
