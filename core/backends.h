#pragma once

#include <string>

#include "core/device.h"

/// The devices of this process.
namespace longspan {

/// Parses "cpu", "cuda" or "cuda:N". Throws ValueError on anything else and DeviceError if the
/// device is not available.
Device parse_device(const std::string& text);

/// Waits until everything submitted to `device` has finished. Returns immediately on the CPU.
void synchronize(Device device);

}  // namespace longspan
