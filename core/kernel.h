#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <new>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/device.h"

namespace longspan {

/// How many threads record the calls of kernels (core/graph.h).
inline constinit std::atomic<int> recording_threads{0};

/// What all kernels have in common: a name and a count of calls for each kind of device.
class KernelBase {
 public:
  /// `host`: whether the host reads or gives something in the call, so that no recording can hold
  /// it (core/graph.h).
  explicit constexpr KernelBase(const char* name, bool host = false) : name_(name), host_(host) {}
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
  /// Throws OutOfMemory, naming the kernel: the host has no memory for what it notes.
  [[noreturn]] void fail_memory() const;
  void count(size_t i) { calls_[i].fetch_add(1, std::memory_order_relaxed); }

  /// Throws where the device is recorded: NotImplemented if by this thread and the host has a part
  /// in the call, DeviceError if by another. `sum` tells calls apart as far as their numbers do.
  void note_recorded(Device device, uint64_t sum) const;

  template <class T>
  static void mix(uint64_t& sum, const T& argument) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      uint64_t bits = 0;
      if constexpr (std::is_floating_point_v<T>) {
        bits = std::bit_cast<uint64_t>(static_cast<double>(argument));
      } else {
        bits = static_cast<uint64_t>(argument);
      }
      sum = (sum ^ bits) * 0x100000001B3u;
    } else if constexpr (requires { argument.numel(); }) {
      sum = (sum ^ static_cast<uint64_t>(argument.numel())) * 0x100000001B3u;
    }
  }

 private:
  const char* name_;
  bool host_;
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

  explicit constexpr Kernel(const char* name, bool host = false) : KernelBase(name, host) {}

  void set(DeviceKind kind, Function f) {
    slots_[static_cast<size_t>(kind)] = f;
    enlist(this);
  }
  bool has(DeviceKind kind) const override { return slots_[static_cast<size_t>(kind)] != nullptr; }

  void operator()(Device device, Args... args) {
    const auto i = static_cast<size_t>(device.kind);
    if (slots_[i] == nullptr) {
      if (device.kind == DeviceKind::meta) return;
      fail_missing(device);
    }
    count(i);
    if (recording_threads.load(std::memory_order_relaxed) > 0) {
      uint64_t sum = 0;
      (mix(sum, args), ...);
      note_recorded(device, sum);
    }
    try {
      slots_[i](args...);
    } catch (const std::bad_alloc&) {
      fail_memory();
    }
  }

 private:
  std::array<Function, device_kind_count> slots_{};
};

/// Fills every slot of every backend of this build, once; later calls do nothing.
void register_backends();

}  // namespace longspan
