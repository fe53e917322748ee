#pragma once

#include "core/kernel.h"

namespace longspan::test {

/// The device of these tests besides the CPU.
inline constexpr Device cuda{DeviceKind::cuda, 0};

/// Whether there is one.
inline bool has_device() { return is_available(cuda); }

/// Installs the second device named by LONGSPAN_TEST_DEVICE as DeviceKind::cuda, before the tests:
/// "host" (host_device.h), or "emulated" or "guarded", the CUDA backend emulated on the host
/// (tests/cuda/emulated/device.h). Without the variable it is the GPU, if there is one.
void enable_device_if_asked();

}  // namespace longspan::test
