#pragma once

namespace longspan::test {

/// Puts the second device that the environment's LONGSPAN_TEST_DEVICE names behind
/// DeviceKind::cuda, before the tests: "host" (host_device.h), or "emulated" or "guarded", the CUDA
/// backend on the host (tests/cuda/emulated/device.h). Without it there is the GPU, where there is
/// one.
void enable_device_if_asked();

}  // namespace longspan::test
