#include "core/device.h"

#include <fmt/format.h>

namespace longspan {

std::string name_of(Device device) {
  if (device.kind == DeviceKind::cuda) return fmt::format("cuda:{}", device.index);
  const std::string name = device.kind == DeviceKind::cpu ? "cpu" : "meta";
  return device.index == 0 ? name : fmt::format("{}:{}", name, device.index);
}

}  // namespace longspan
