#include "core/kernel.h"

#include <algorithm>
#include <mutex>

#include "core/error.h"

namespace longspan {
namespace {

std::vector<const KernelBase*>& list() {
  static std::vector<const KernelBase*> kernels;
  return kernels;
}

}  // namespace

const std::vector<const KernelBase*>& KernelBase::all() {
  register_backends();
  return list();
}

void KernelBase::enlist(const KernelBase* kernel) {
  auto& kernels = list();
  if (std::find(kernels.begin(), kernels.end(), kernel) == kernels.end()) kernels.push_back(kernel);
}

void KernelBase::fail_missing(Device device) const {
  fail<NotImplemented>(name_, "this build has no such kernel for {}; use another device",
                       name_of(device));
}

void KernelBase::fail_memory() const { fail_for_memory(name_); }

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

}  // namespace longspan
