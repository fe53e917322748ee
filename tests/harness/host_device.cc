#include "tests/harness/host_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "all_kernels.h"
#include "core/best_fit.h"
#include "core/error.h"
#include "core/graph.h"
#include "core/memory.h"

namespace longspan::test {
namespace {

constexpr int64_t range_bytes = int64_t{4} << 30;

/// The device's memory. It is mapped twice: tensors have addresses that nothing can access, and
/// kernels are given those of the other mapping.
class Range {
 public:
  Range() {
    const int file = memfd_create("host device", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, range_bytes) != 0) fail();
    begin_ = map(PROT_NONE, file);
    accessible_ = map(PROT_READ | PROT_WRITE, file);
    ::close(file);
    blocks.open(begin_, range_bytes, range_bytes);
  }

  bool holds(const void* data) const { return data >= begin_ && data < begin_ + range_bytes; }
  /// Where a kernel finds what tensors have at `data`.
  template <class T>
  T* accessible(T* data) const {
    return reinterpret_cast<T*>(
        reinterpret_cast<uintptr_t>(accessible_) +
        (reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(begin_)));
  }

  BestFit blocks;

 private:
  [[noreturn]] static void fail() {
    std::perror("host device");
    std::abort();
  }
  static char* map(int access, int file) {
    void* const at = mmap(nullptr, range_bytes, access, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (at == MAP_FAILED) fail();
    return static_cast<char*>(at);
  }

  char *begin_ = nullptr, *accessible_ = nullptr;
};

Range& range() {
  static auto* instance = new Range;
  return *instance;
}

template <class V>
V view_on_cpu(V view) {
  if (view.data != nullptr && view.numel() > 0) {
    require<DeviceError>(view.device.kind == DeviceKind::cuda && range().holds(view.data), "host",
                         "a kernel of the device was given a tensor of {}", name_of(view.device));
    view.data = range().accessible(view.data);
  }
  view.device = {};
  return view;
}

/// Converts the numbers of an argument that lie in the device's memory (DeviceScalar).
template <class T>
void numbers_on_cpu(T& value) {
  if constexpr (requires { value.at; }) {
    if (range().holds(value.at)) value.at = range().accessible(value.at);
  }
  if constexpr (requires { value.key; }) numbers_on_cpu(value.key);
  if constexpr (requires { value.lr; }) numbers_on_cpu(value.lr);
  if constexpr (requires { value.beta2; }) numbers_on_cpu(value.beta2);
  if constexpr (requires { value.correction1; }) numbers_on_cpu(value.correction1);
  if constexpr (requires { value.correction2; }) numbers_on_cpu(value.correction2);
  if constexpr (requires { value.scale; }) numbers_on_cpu(value.scale);
  if constexpr (requires { value.dropout; }) numbers_on_cpu(value.dropout);
  if constexpr (requires { value.numbers; }) numbers_on_cpu(value.numbers);
}

/// Converts an argument for the CPU's kernel. Throws if it belongs to another device.
template <class T>
auto on_cpu(T value) {
  if constexpr (std::is_same_v<T, View> || std::is_same_v<T, ConstView>) {
    return view_on_cpu(value);
  } else if constexpr (std::is_class_v<T> && requires { T::visit_tensors([](auto&) {}, value); }) {
    T::visit_tensors([](auto& view) { view = view_on_cpu(view); }, value);
  } else if constexpr (std::is_pointer_v<T>) {
    if (range().holds(value)) value = range().accessible(value);
  }
  numbers_on_cpu(value);
  return value;
}
template <class T>
std::vector<std::remove_const_t<T>> on_cpu(std::span<T> values) {
  std::vector<std::remove_const_t<T>> all;
  for (const T& value : values) all.push_back(on_cpu(value));
  return all;
}

/// The calls of a recording, in order.
using Tape = std::vector<std::function<void()>>;
Tape* tape = nullptr;  // of the current recording

/// Runs a call of the device or, while recording, stores it for replays.
template <class F>
void submit(F call) {
  if (tape != nullptr) {
    tape->push_back(std::move(call));
    return;
  }
  call();
}

/// Fills the device's slot of a kernel with the CPU's function.
template <auto& kernel, class Signature = std::remove_cvref_t<decltype(kernel)>>
struct Shadowed;
template <auto& kernel, class... Args>
struct Shadowed<kernel, Kernel<void(Args...)>> {
  static void run(Args... args) {
    submit(
        [... on_host = on_cpu(std::remove_cvref_t<Args>(args))] { kernel(Device{}, on_host...); });
  }
  static void enable() {
    if (kernel.has(DeviceKind::cpu)) kernel.set(DeviceKind::cuda, run);
  }
};

void enable_recordings() {
  begin_recording.set(DeviceKind::cuda, [] { tape = new Tape; });
  end_recording.set(DeviceKind::cuda,
                    [](void** recorded) { *recorded = std::exchange(tape, nullptr); });
  abandon_recording.set(DeviceKind::cuda, [] { delete std::exchange(tape, nullptr); });
  replay_recording.set(DeviceKind::cuda, [](void* recorded) {
    for (const auto& call : *static_cast<Tape*>(recorded)) call();
  });
  drop_recording.set(DeviceKind::cuda, [](void* recorded) { delete static_cast<Tape*>(recorded); });
}

template <auto&... list>
void enable_all() {
  (Shadowed<list>::enable(), ...);
}

}  // namespace

void enable_host_device() {
  register_backends();
  range();
  memory::set_source(
      DeviceKind::cuda,
      {.allocate = [](int64_t bytes) -> void* { return range().blocks.allocate(bytes); },
       .release = [](void* at,
                     int64_t bytes) { range().blocks.release(static_cast<char*>(at), bytes); },
       .shrink =
           [](void* at, int64_t bytes, int64_t kept) {
             return range().blocks.shrink(static_cast<char*>(at), bytes, kept);
           },
       .held_free = [] { return range().blocks.held_free(); },
       .set_limit =
           [](int64_t bytes) { range().blocks.set_limit(bytes > 0 ? bytes : range_bytes); }});
  count_devices.set(DeviceKind::cuda, [](int* count) { *count = 1; });
  enable_all<wait_for_device, copy_to_host, copy_from_host, copy_within, set_zero>();
  enable_recordings();
  enable_all<LONGSPAN_ALL_KERNELS>();
  for (const KernelBase* kernel : KernelBase::all()) {
    require(!kernel->has(DeviceKind::cpu) || kernel->has(DeviceKind::cuda), "host",
            "{} is not declared in core/kernels, where the list of kernels is read",
            kernel->name());
  }
}

}  // namespace longspan::test
