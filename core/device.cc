#include "core/device.h"

#include <charconv>

#include "core/deferred.h"
#include "core/error.h"
#include "core/memory.h"

namespace longspan {

std::string name_of(Device device) {
  if (device.kind == DeviceKind::cuda) return fmt::format("cuda:{}", device.index);
  const std::string name = device.kind == DeviceKind::cpu ? "cpu" : "meta";
  return device.index == 0 ? name : fmt::format("{}:{}", name, device.index);
}

Device parse_device(const std::string& text) {
  Device device;
  if (text != "cpu") {
    const std::string_view rest = std::string_view(text).substr(0, 4) == "cuda"
                                      ? std::string_view(text).substr(4)
                                      : std::string_view("?");
    int index = 0;
    if (!rest.empty()) {
      const auto [end, error] = std::from_chars(rest.data() + 1, rest.data() + rest.size(), index);
      require(rest[0] == ':' && error == std::errc{} && end == rest.data() + rest.size() &&
                  index >= 0 && index < 128,
              "device", "'{}' is not a device; use cpu, cuda or cuda:N", text);
    }
    device = {DeviceKind::cuda, static_cast<int8_t>(index)};
  }
  require<DeviceError>(is_available(device), "device",
                       "{} is not available in this build or on this machine; use cpu", text);
  return device;
}

bool is_available(Device device) {
  register_backends();
  int count = 0;
  if (count_devices.has(device.kind)) count_devices(device, &count);
  return device.index >= 0 && device.index < count;
}

Device best_device() {
  const Device cuda{DeviceKind::cuda, 0};
  return is_available(cuda) ? cuda : Device{};
}

void synchronize(Device device) {
  deferred::raise_pending(device);
  wait_for_device(device);
}

}  // namespace longspan
