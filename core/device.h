#pragma once

#include <cstdint>
#include <string>

namespace longspan {

/// The kinds of device that a kernel has a slot for. `plan` counts and does not compute: its blocks
/// have sizes and no bytes, so that a step on it says what memory the CPU would need.
enum class DeviceKind : uint8_t { cpu, cuda, meta };
inline constexpr int device_kind_count = 3;

/// Where bytes live and kernels run. `Device{}` is the CPU.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int8_t index = 0;

  friend bool operator==(const Device&, const Device&) = default;
};

/// Where what a run would need is counted, in place of running it.
inline constexpr Device meta_device{DeviceKind::meta, 0};

/// "cpu", "cuda:0" or "meta".
std::string name_of(Device device);

/// Parses "cpu", "cuda" or "cuda:N". Throws ValueError on anything else and DeviceError where the
/// device is not available.
Device parse_device(const std::string& text);

/// True where this process can run kernels on `device`.
bool is_available(Device device);

/// A CUDA device where one is available, else the CPU.
Device best_device();

/// Waits until everything submitted to `device` has finished. Nothing to do on the CPU.
void synchronize(Device device);

}  // namespace longspan
