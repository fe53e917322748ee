#include "core/backends.h"

#include <charconv>
#include <cstring>
#include <mutex>

#include "core/arena.h"
#include "core/best_fit.h"
#include "core/deferred.h"
#include "core/error.h"
#include "core/kernel.h"
#include "core/memory.h"

namespace longspan {

namespace cpu {
void register_kernels();
}
#if LONGSPAN_CUDA
namespace cuda {
void register_kernels();
}
#endif

namespace {

void copy_bytes(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void register_host() {
  memory::set_source(DeviceKind::cpu, host_arena());
  copy_to_host.set(DeviceKind::cpu, copy_bytes);
  copy_from_host.set(DeviceKind::cpu, copy_bytes);
  copy_within.set(DeviceKind::cpu, copy_bytes);
  set_zero.set(DeviceKind::cpu,
               [](void* to, int64_t bytes) { std::memset(to, 0, static_cast<size_t>(bytes)); });
  wait_for_device.set(DeviceKind::cpu, [] {});
  count_devices.set(DeviceKind::cpu, [](int* count) { *count = 1; });
}

/// Returns addresses that are not mapped; reading one faults immediately.
void* next_address(int64_t bytes) {
  static int64_t next = int64_t{1} << 56;
  const int64_t at = next;
  next += bytes;
  return reinterpret_cast<void*>(at);  // NOLINT(performance-no-int-to-ptr)
}

void register_plan() {
  memory::set_source(DeviceKind::meta, {.allocate = next_address,
                                        .release = [](void*, int64_t) {},
                                        .shrink =
                                            [](void*, int64_t bytes, int64_t kept) {
                                              return BestFit::divides(
                                                  kept, bytes - kept);  // as devices do
                                            }});
  copy_to_host.set(DeviceKind::meta, [](void* to, const void*, int64_t bytes) {
    std::memset(to, 0, static_cast<size_t>(bytes));
  });
  count_devices.set(DeviceKind::meta, [](int* count) { *count = 1; });
}

}  // namespace

void register_backends() {
  static std::once_flag once;
  std::call_once(once, [] {
    register_host();
    register_plan();
    cpu::register_kernels();
#if LONGSPAN_CUDA
    cuda::register_kernels();
#endif
  });
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

void synchronize(Device device) {
  deferred::raise_pending(device);
  wait_for_device(device);
}

}  // namespace longspan
