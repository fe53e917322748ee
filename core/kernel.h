#pragma once

#include <array>
#include <atomic>
#include <string_view>
#include <vector>

#include "core/device.h"

namespace longspan {

/// What all kernels have in common: a name and a count of calls for each kind of device.
class KernelBase {
 public:
  explicit constexpr KernelBase(const char* name) : name_(name) {}
  KernelBase(const KernelBase&) = delete;
  KernelBase& operator=(const KernelBase&) = delete;

  std::string_view name() const { return name_; }
  virtual bool has(DeviceKind kind) const = 0;
  /// How often it has been called, for the test that every kernel is exercised.
  long calls(DeviceKind kind) const {
    return calls_[static_cast<size_t>(kind)].load(std::memory_order_relaxed);
  }

  /// Every kernel that some backend has filled, in order of registration.
  static const std::vector<const KernelBase*>& all();

 protected:
  ~KernelBase() = default;
  static void enlist(const KernelBase* kernel);
  /// Throws NotImplemented, naming the kernel and the device.
  [[noreturn]] void fail_missing(Device device) const;
  void count(size_t i) { calls_[i].fetch_add(1, std::memory_order_relaxed); }

 private:
  const char* name_;
  std::array<std::atomic<long>, device_kind_count> calls_{};
};

/// A kernel with a signature: Kernel<void(ConstView x, View y)>.
template <class Signature>
class Kernel;

/// One function slot per kind of device. Calling picks by device; an empty slot throws
/// NotImplemented, but on the plan does nothing: there, slots are for kernels that take workspace.
/// Slots are filled once, by the backends' register_kernels().
template <class... Args>
class Kernel<void(Args...)> final : public KernelBase {
 public:
  using Function = void (*)(Args...);

  explicit constexpr Kernel(const char* name) : KernelBase(name) {}

  void set(DeviceKind kind, Function f) {
    slots_[static_cast<size_t>(kind)] = f;
    enlist(this);
  }
  bool has(DeviceKind kind) const override { return slots_[static_cast<size_t>(kind)] != nullptr; }

  void operator()(Device device, Args... args) {
    const auto i = static_cast<size_t>(device.kind);
    if (slots_[i] == nullptr) {
      if (device.kind == DeviceKind::plan) return;
      fail_missing(device);
    }
    count(i);
    slots_[i](args...);
  }

 private:
  std::array<Function, device_kind_count> slots_{};
};

/// Fills every slot of every backend of this build, once; later calls do nothing.
void register_backends();

}  // namespace longspan
