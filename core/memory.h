#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/kernel.h"
#include "core/shape.h"

namespace longspan {

/// What bytes are for. `other` becomes `saved` while an op keeps it for its backward; `cache` is
/// kept for later calls within a bound, and could be made anew; `graph` is set apart for a recorded
/// step and holds no block now.
enum class Category : uint8_t {
  parameter,
  gradient,
  optimizer,
  saved,
  workspace,
  memory,
  data,
  cache,
  graph,
  other
};
inline constexpr int category_count = 10;
/// "parameter" and so on: the keys of files and tables.
std::string_view name_of(Category category);

/// Bytes by category at one instant.
struct Usage {
  std::array<int64_t, category_count> bytes{};
  int64_t held_free = 0;  ///< taken from the system and free for reuse in the arena

  int64_t operator[](Category c) const { return bytes[static_cast<size_t>(c)]; }
  int64_t& operator[](Category c) { return bytes[static_cast<size_t>(c)]; }
  int64_t total() const;
};

/// A table for people: a line for each category that is not empty, and the total.
std::string to_string(const Usage& usage);

/// Counts every byte that tensors and scratch of one device hold: exactly the bytes of the arena's
/// blocks, which are rounded up to 64. Thread-safe.
class MemoryTracker {
 public:
  Usage live() const;
  /// The split at the instant at which the total was largest since the last reset_peak().
  Usage peak() const;
  void reset_peak();
  /// Blocks alive, and blocks handed out since the start.
  int64_t live_blocks() const;
  int64_t allocations() const;

 private:
  friend MemoryTracker& memory_tracker(Device);
  explicit MemoryTracker(Device device) : device_(device) {}
  Device device_;
};

/// The tracker of a device. Throws DeviceError where the device does not exist.
MemoryTracker& memory_tracker(Device device = {});

/// Most bytes that the arena may take from the system; 0 means what the machine has.
/// Allocations beyond it throw OutOfMemory with the tracker's table.
void set_memory_limit(Device device, int64_t bytes);
/// That of a device, or what it has; 0 where blocks have no bytes.
int64_t memory_limit(Device device);

/// What happens to every block of a device while it lives: which part of the program asked for it
/// (its Scope), what op keeps it, and when it came, changed its category and went. For tables of
/// terms and pictures over time; one for each device at a time. Where the host has no memory to
/// note it all, what asks for it throws OutOfMemory.
class MemoryTrace {
 public:
  struct Block {
    int64_t bytes;      ///< as the arena counts them
    Category category;  ///< now, or when it went
    bool live = true;
    std::string scope;  ///< where it was made
    std::string op;     ///< what first kept it for its backward; empty: nothing did
    Shape shape = {};   ///< what that op saw
    DType dtype = DType::f32;
  };
  /// `bytes` more (or fewer) of a category, by a block.
  struct Event {
    size_t block;
    Category category;
    int64_t bytes;
  };

  explicit MemoryTrace(Device device);
  ~MemoryTrace();
  MemoryTrace(const MemoryTrace&) = delete;
  MemoryTrace& operator=(const MemoryTrace&) = delete;

  const std::vector<Block>& blocks() const {
    require_whole();
    return blocks_;
  }
  const std::vector<Event>& events() const {
    require_whole();
    return events_;
  }

  // What the tracker and SavedTensor tell it.
  void on_allocate(const void* data, int64_t bytes, Category category) noexcept;
  void changed(const void* data, Category to) noexcept;
  void on_free(const void* data) noexcept;
  void kept(const void* data, std::string_view op, const Shape& shape, DType dtype) noexcept;
  /// The one of a device; null where there is none.
  static MemoryTrace* of(Device device);

 private:
  void add(size_t block, Category category, int64_t bytes) {
    events_.push_back({block, category, bytes});
  }
  template <class F>
  void note(F&& f) noexcept;
  void require_whole() const;

  Device device_;
  bool broken_ = false;
  std::vector<Block> blocks_;
  std::vector<Event> events_;
  std::unordered_map<const void*, size_t> at_;  // blocks that are live
};

/// Fails the n-th allocation from now with OutOfMemory (0: the next one); negative: never.
/// For tests of what survives a failure.
void fail_allocation_after(Device device, int64_t n);

/// Throws Error once live bytes, Category::cache left out, have grown in each of `patience`
/// consecutive steps: a leak from step to step. The message holds the growth by category.
class LeakCheck {
 public:
  explicit LeakCheck(Device device = {}, int patience = 16)
      : device_(device), patience_(patience) {}
  /// Call at the end of each step.
  void step();

 private:
  Device device_;
  int patience_, grown_ = 0;
  Usage last_{}, first_{};
  bool started_ = false;
};

namespace memory {  // what Storage and Scratch stand on

/// 64-byte aligned block of at least `bytes` (> 0). Throws OutOfMemory.
void* allocate(Device device, int64_t bytes, Category category);
void release(Device device, void* data, int64_t bytes, Category category) noexcept;
void recategorize(Device device, const void* data, int64_t bytes, Category from,
                  Category to) noexcept;
/// Bytes of the block that serves a request of `bytes`.
constexpr int64_t block_bytes(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// A device's raw memory, filled by its backend.
struct Source {
  void* (*allocate)(int64_t bytes) = nullptr;  ///< null where there is no room
  void (*release)(void* data, int64_t bytes) = nullptr;
  int64_t (*held_free)() = nullptr;
  void (*set_limit)(int64_t bytes) = nullptr;
  int64_t (*limit)() = nullptr;
};
void set_source(DeviceKind kind, const Source& source);

struct RegionState;
/// Memory of one device that is set apart. What a thread asks for between enter() and leave() comes
/// from it, and goes back to it alone, whenever that is; what others had before and release in
/// between is kept as well. All of it is given back with the Region, or, where some of its blocks
/// live on, with the last of them. Counts as Category::graph where no block lives.
class Region {
 public:
  /// Its first request takes `bytes` from the device.
  Region(Device device, int64_t bytes);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  void enter();
  void leave();
  /// Gives back what none of its blocks has reached. Blocks may come from it afterwards, too.
  void trim();
  /// What it has taken from the device, without what it keeps of others.
  int64_t bytes() const;

 private:
  Device device_;
  RegionState* state_;
};

}  // namespace memory

/// Copies bytes between devices, in order with the work submitted before.
inline constinit Kernel<void(void* to, const void* from, int64_t bytes)> copy_to_host{
    "copy_to_host", true};
inline constinit Kernel<void(void* to, const void* from, int64_t bytes)> copy_from_host{
    "copy_from_host", true};
inline constinit Kernel<void(void* to, const void* from, int64_t bytes)> copy_within{"copy_within"};
inline constinit Kernel<void(void* to, int64_t bytes)> set_zero{"set_zero"};
inline constinit Kernel<void()> wait_for_device{"wait_for_device", true};
/// *count = how many devices of the kind this process can use; a backend may be built in without.
inline constinit Kernel<void(int* count)> count_devices{"count_devices"};

/// Temporary memory of a kernel's caller, counted as Category::workspace while it lives.
class Scratch {
 public:
  explicit Scratch(int64_t bytes, Device device = {});
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  Device device_;
  void* data_ = nullptr;
  int64_t bytes_;
};

}  // namespace longspan
