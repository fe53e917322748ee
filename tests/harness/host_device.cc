#include "tests/harness/host_device.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
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

/// The device's memory, accessible only between open() and close().
class Range {
 public:
  Range() {
    void* start =
        mmap(nullptr, range_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
      std::perror("host device");
      std::abort();
    }
    begin_ = static_cast<char*>(start);
    blocks.open(begin_, range_bytes, range_bytes);
  }

  void open() {
    const std::lock_guard lock(mutex_);
    if (depth_++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  void close() {
    const std::lock_guard lock(mutex_);
    if (--depth_ == 0) protect(PROT_NONE);
  }
  bool holds(const void* data) const { return data >= begin_ && data < begin_ + range_bytes; }

  BestFit blocks;

 private:
  void protect(int access) {
    if (mprotect(begin_, range_bytes, access) != 0) {
      std::perror("host device");
      std::abort();
    }
  }
  char* begin_ = nullptr;
  std::mutex mutex_;
  int depth_ = 0;
};

Range& range() {
  static auto* instance = new Range;
  return *instance;
}

struct Open {
  Open() { range().open(); }
  ~Open() { range().close(); }
};

template <class V>
V view_on_cpu(V view) {
  if (view.data != nullptr && view.numel() > 0) {
    require<DeviceError>(view.device.kind == DeviceKind::cuda && range().holds(view.data), "host",
                         "a kernel of the device was given a tensor of {}", name_of(view.device));
  }
  view.device = {};
  return view;
}

/// Converts an argument for the CPU's kernel. Throws if it belongs to another device.
template <class T>
T on_cpu(T value) {
  if constexpr (std::is_same_v<T, View> || std::is_same_v<T, ConstView>) {
    return view_on_cpu(value);
  } else if constexpr (std::is_class_v<T> && requires { T::visit_tensors([](auto&) {}, value); }) {
    T::visit_tensors([](auto& view) { view = view_on_cpu(view); }, value);
  }
  return value;
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
  const Open open;
  call();
}

/// Fills the device's slot of a kernel with the CPU's function.
template <auto& kernel, class Signature = std::remove_cvref_t<decltype(kernel)>>
struct Shadowed;
template <auto& kernel, class... Args>
struct Shadowed<kernel, Kernel<void(Args...)>> {
  static void run(Args... args) {
    submit(
        [... on_host = on_cpu<std::remove_cvref_t<Args>>(args)] { kernel(Device{}, on_host...); });
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
    const Open open;
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
