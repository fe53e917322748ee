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

/// The use of a block. `other` becomes `saved` while an op keeps it for its backward. `cache` is
/// retained for later calls, up to a bound, and can be recomputed. `graph` is reserved for a
/// recorded step and holds no block at present.
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
/// Returns "parameter" and so on: the keys of files and tables.
std::string_view name_of(Category category);

/// Bytes by category at one instant.
struct Usage {
  std::array<int64_t, category_count> bytes{};
  int64_t held_free = 0;  ///< taken from the system, and free for reuse in the arena

  int64_t operator[](Category c) const { return bytes[static_cast<size_t>(c)]; }
  int64_t& operator[](Category c) { return bytes[static_cast<size_t>(c)]; }
  int64_t total() const;
};

/// Returns a readable table: a line for each category that is not empty, and the total.
std::string to_string(const Usage& usage);

/// Counts every byte of one device's tensors and scratch memory: exactly the bytes of the arena's
/// blocks, which are rounded up to 64. Thread-safe.
class MemoryTracker {
 public:
  Usage live() const;
  /// Returns the usage at the instant of the largest total since the last reset_peak().
  Usage peak() const;
  void reset_peak();
  /// Return the blocks alive now, and the blocks allocated since the start.
  int64_t live_blocks() const;
  int64_t allocations() const;

 private:
  friend MemoryTracker& memory_tracker(Device);
  explicit MemoryTracker(Device device) : device_(device) {}
  Device device_;
};

/// Returns the tracker of a device. Throws DeviceError if the device does not exist.
MemoryTracker& memory_tracker(Device device = {});

/// Sets the maximum of bytes that the arena may take from the system; 0: all memory of the machine.
/// Allocations beyond the limit throw OutOfMemory with the tracker's table.
void set_memory_limit(Device device, int64_t bytes);
/// Returns the limit of a device, or its memory size if none is set; 0 if blocks have no bytes.
int64_t memory_limit(Device device);

/// Records the life of every block of a device: the Scope that allocated it, the op that saves it,
/// and when it was allocated, changed its category and was freed. The record serves tables by
/// module and plots over time. A device has at most one trace at a time. If the host has no memory
/// for the record, blocks() and events() throw OutOfMemory.
class MemoryTrace {
 public:
  struct Block {
    int64_t bytes;      ///< as the arena counts them
    Category category;  ///< now, or when the block was freed
    bool live = true;
    std::string scope;  ///< scope of the allocation
    std::string op;     ///< the op that first saved it for its backward; empty if none did
    Shape shape = {};   ///< shape of the tensor that this op saved
    DType dtype = DType::f32;
  };
  /// A block adds `bytes` (negative: removes) to a category.
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

  // Called by the tracker and by SavedTensor.
  void on_allocate(const void* data, int64_t bytes, Category category) noexcept;
  void changed(const void* data, Category to) noexcept;
  void on_free(const void* data) noexcept;
  void kept(const void* data, std::string_view op, const Shape& shape, DType dtype) noexcept;
  /// Returns the trace of a device; null if there is none.
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
  std::unordered_map<const void*, size_t> at_;  // live blocks
};

/// Makes the n-th allocation from now throw OutOfMemory (0: the next one); negative: none. For
/// tests of recovery after a failure.
void fail_allocation_after(Device device, int64_t n);

/// Throws Error once the live bytes, without Category::cache, have grown in each of `patience`
/// consecutive steps: a leak from step to step. The message lists the growth by category.
class LeakCheck {
 public:
  explicit LeakCheck(Device device = {}, int patience = 16)
      : device_(device), patience_(patience) {}
  /// Called at the end of each step.
  void step();

 private:
  Device device_;
  int patience_, grown_ = 0;
  Usage last_{}, first_{};
  bool started_ = false;
};

namespace memory {  // used by Storage and Scratch

/// Returns a 64-byte aligned block of at least `bytes` (> 0). Throws OutOfMemory.
void* allocate(Device device, int64_t bytes, Category category);
void release(Device device, void* data, int64_t bytes, Category category) noexcept;
void recategorize(Device device, const void* data, int64_t bytes, Category from,
                  Category to) noexcept;
/// Returns the size of the block that serves a request of `bytes`.
constexpr int64_t block_bytes(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// A device's raw memory; its backend fills the functions.
struct Source {
  void* (*allocate)(int64_t bytes) = nullptr;  ///< null if there is no memory
  void (*release)(void* data, int64_t bytes) = nullptr;
  /// Releases what lies behind the first `kept` bytes of a block; returns whether it has. Null if
  /// blocks cannot be cut.
  bool (*shrink)(void* data, int64_t bytes, int64_t kept) = nullptr;
  int64_t (*held_free)() = nullptr;
  void (*set_limit)(int64_t bytes) = nullptr;
  int64_t (*limit)() = nullptr;
};
void set_source(DeviceKind kind, const Source& source);

struct RegionState;
/// Memory of one device that is reserved. Blocks that a thread allocates between enter() and
/// leave() come from it and return only to it, whenever they are freed. Other blocks that the
/// thread frees between the two calls are retained as well. All memory returns to the device when
/// the Region is destroyed or, if blocks outlive it, when the last of them is freed. Memory without
/// a live block counts as Category::graph.
class Region {
 public:
  /// The first request takes `bytes` from the device.
  Region(Device device, int64_t bytes);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  void enter();
  void leave();
  /// Returns memory beyond its highest blocks to the device. Later requests may still allocate from
  /// it.
  void trim();
  /// Returns the size to begin with for work that needs `bytes` at most at a time: an eighth more,
  /// for the gaps between its blocks. Where that does not suffice a region grows.
  static int64_t roomy(int64_t bytes) { return bytes + bytes / 8; }
  /// Returns the bytes that it has taken from the device, without the retained blocks of others.
  int64_t bytes() const;
  /// Returns the size of the largest block that was ever allocated from it.
  int64_t largest_block() const;

 private:
  Device device_;
  RegionState* state_;
};

}  // namespace memory

/// Copies bytes between devices, in order with previously submitted work.
inline constinit Kernel<void(void* to, const void* from, int64_t bytes)> copy_to_host{
    "copy_to_host", true};
inline constinit Kernel<void(void* to, const void* from, int64_t bytes)> copy_from_host{
    "copy_from_host", true};
inline constinit Kernel<void(void* to, const void* from, int64_t bytes)> copy_within{"copy_within"};
inline constinit Kernel<void(void* to, int64_t bytes)> set_zero{"set_zero"};
inline constinit Kernel<void()> wait_for_device{"wait_for_device", true};

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
