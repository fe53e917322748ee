#pragma once

#include <cstdint>
#include <string>

namespace longspan {

/// The kinds of device that a kernel has a slot for. `meta` counts memory and does not compute: its
/// blocks have sizes but no bytes, so a step on it tells how much memory the CPU would need.
enum class DeviceKind : uint8_t { cpu, cuda, meta };
inline constexpr int device_kind_count = 3;

/// The device on which bytes are stored and kernels run. `Device{}` is the CPU.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int8_t index = 0;

  friend bool operator==(const Device&, const Device&) = default;
};

/// The meta device, which counts the memory that a run would need and computes nothing.
inline constexpr Device meta_device{DeviceKind::meta, 0};

/// Returns "cpu", "cuda:0" or "meta".
std::string name_of(Device device);

}  // namespace longspan
