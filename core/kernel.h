#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <new>
#include <ranges>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/device.h"
#include "core/scope.h"

namespace longspan {

/// Number of threads that are recording kernel calls (core/graph.h).
inline constinit std::atomic<int> recording_threads{0};

/// The common base of all kernels: a name and a call count for each kind of device.
class KernelBase {
 public:
  /// `host`: whether the host reads or supplies data in the call, so that no recording can contain
  /// it (core/graph.h).
  explicit constexpr KernelBase(const char* name, bool host = false) : name_(name), host_(host) {}
  KernelBase(const KernelBase&) = delete;
  KernelBase& operator=(const KernelBase&) = delete;

  std::string_view name() const { return name_; }
  virtual bool has(DeviceKind kind) const = 0;
  /// Returns the number of calls, for the test that every kernel is exercised.
  long calls(DeviceKind kind) const {
    return calls_[static_cast<size_t>(kind)].load(std::memory_order_relaxed);
  }

  /// Returns every kernel that some backend has registered, in order of registration.
  static const std::vector<const KernelBase*>& all();

 protected:
  ~KernelBase() = default;
  static void enlist(const KernelBase* kernel);
  /// Throws NotImplemented, naming the kernel and the device.
  [[noreturn]] void fail_missing(Device device) const;
  /// Throws OutOfMemory, naming the kernel: the host has no memory for its bookkeeping.
  [[noreturn]] void fail_memory() const;
  void count(size_t i) { calls_[i].fetch_add(1, std::memory_order_relaxed); }

  /// Throws if the device is being recorded: NotImplemented if by this thread and the kernel has
  /// `host`, DeviceError if by another thread. Otherwise adds the call to the recording's
  /// signature; `sum` is a hash of the scalar arguments and element counts.
  void note_recorded(Device device, uint64_t sum) const;

  template <class T>
  static constexpr bool has_tensors = std::is_class_v<T>&& requires(const T& t) {
    T::visit_tensors([](auto&) {}, t);
  };

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
    } else if constexpr (has_tensors<T>) {
      T::visit_tensors([&](const auto& view) { mix(sum, view); }, argument);
      if constexpr (requires { argument.epilogue; }) mix(sum, argument.epilogue);
      if constexpr (requires { argument.accumulate; }) mix(sum, argument.accumulate);
    } else if constexpr (std::ranges::range<T>) {
      for (const auto& one : argument) mix(sum, one);
    }
  }

  /// Appends the tensors among an argument.
  template <class T>
  static void add_operands(std::vector<Watch::Operand>& all, const T& argument) {
    if constexpr (requires { argument.numel(), argument.dtype; }) {
      const int rank = argument.shape.rank();
      const int64_t last = rank > 0 ? argument.shape[rank - 1] : 1;
      const int64_t n = argument ? argument.numel() : 0;
      all.push_back({n, last, n * static_cast<int64_t>(size_of(argument.dtype))});
    } else if constexpr (has_tensors<T>) {
      T::visit_tensors([&](const auto& view) { add_operands(all, view); }, argument);
    } else if constexpr (std::ranges::range<T>) {
      for (const auto& one : argument) add_operands(all, one);
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

/// One function slot for each kind of device. A call selects the slot by device. An empty slot
/// throws NotImplemented, except on the meta device, where the call does nothing: slots there exist
/// only for kernels that allocate workspace. Each backend's register_kernels() fills its slots
/// once.
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
    Watch* const watch = Watch::of_thread();
    if (watch != nullptr) watch->kernel_begins(name());
    try {
      slots_[i](args...);
    } catch (const std::bad_alloc&) {
      fail_memory();
    }
    if (watch != nullptr) {
      std::vector<Watch::Operand> operands;
      (add_operands(operands, args), ...);
      watch->kernel_ends(operands);
    }
  }

 private:
  std::array<Function, device_kind_count> slots_{};
};

/// Fills every slot of every backend of this build; later calls do nothing.
void register_backends();

/// *count = the number of devices of this kind that the process can use; 0 for a backend that is
/// built in but finds none.
inline constinit Kernel<void(int* count)> count_devices{"count_devices"};

/// Whether this process can run kernels on `device`.
bool is_available(Device device);

/// Returns a CUDA device if one is available, else the CPU.
Device best_device();

}  // namespace longspan
