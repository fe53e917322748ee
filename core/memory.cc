#include "core/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "core/best_fit.h"
#include "core/error.h"
#include "core/node_pool.h"
#include "core/scope.h"

namespace longspan {

namespace {
struct Chunk;
}

struct memory::RegionState {
  RegionState(int64_t first, NodePool& nodes) : first_bytes(first), kept(&nodes) {}

  std::vector<Chunk*> chunks;                      // in the order of their allocation
  int64_t first_bytes;                             // of its first chunk
  int64_t bytes = 0;                               // of its chunks
  int64_t blocks = 0;                              // live blocks in its chunks
  int64_t largest = 0;                             // of all blocks that it ever had
  bool ended = false;                              // whether the Region is destroyed
  std::pmr::list<std::pair<void*, int64_t>> kept;  // released blocks of other owners
};

namespace {

/// Addresses that a Region has taken from the device.
struct Chunk {
  Chunk(char* begin, int64_t size, memory::RegionState* region)
      : bytes(size), blocks(begin, size, size), owner(region) {}

  int64_t bytes;
  BestFit blocks;
  memory::RegionState* owner;
};

/// The counters of one device; the mutex guards everything. Every live block has a node reserved,
/// with which a Region may retain it.
struct Ledger {
  std::mutex mutex;
  NodePool nodes;
  int64_t kept = 0;  // blocks retained by all Regions
  std::map<char*, Chunk> chunks;
  memory::Source source;
  Usage live, peak;
  int64_t total = 0, peak_total = 0, blocks = 0, allocations = 0, fail_after = -1;
  std::atomic<MemoryTrace*> trace = nullptr;
};

Ledger& ledger(Device device) {
  static auto* ledgers = new std::array<Ledger, device_kind_count>;
  return (*ledgers)[static_cast<size_t>(device.kind)];
}

Usage snapshot(const Ledger& l, const Usage& usage) {
  Usage u = usage;
  u.held_free = l.source.held_free != nullptr ? l.source.held_free() : 0;
  return u;
}

std::string bytes_text(int64_t bytes) {
  return fmt::format("{} bytes ({:.1f} MiB)", bytes, static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

std::string_view name_of(Category category) {
  constexpr std::string_view names[] = {"parameter", "gradient", "optimizer", "saved", "workspace",
                                        "memory",    "data",     "cache",     "graph", "other"};
  return names[static_cast<size_t>(category)];
}

int64_t Usage::total() const {
  int64_t sum = 0;
  for (const int64_t b : bytes) sum += b;
  return sum;
}

std::string to_string(const Usage& usage) {
  std::string text;
  const auto line = [&text](std::string_view name, int64_t bytes) {
    text += fmt::format("  {:<10} {:>16}  {:>10.1f} MiB\n", name, bytes,
                        static_cast<double>(bytes) / (1 << 20));
  };
  for (int i = 0; i < category_count; ++i) {
    const auto c = static_cast<Category>(i);
    if (usage[c] != 0) line(name_of(c), usage[c]);
  }
  line("total", usage.total());
  line("held free", usage.held_free);
  return text;
}

Usage MemoryTracker::live() const {
  Ledger& l = ledger(device_);
  const std::lock_guard lock(l.mutex);
  return snapshot(l, l.live);
}

Usage MemoryTracker::peak() const {
  Ledger& l = ledger(device_);
  const std::lock_guard lock(l.mutex);
  return l.peak;
}

void MemoryTracker::reset_peak() {
  Ledger& l = ledger(device_);
  const std::lock_guard lock(l.mutex);
  l.peak = snapshot(l, l.live);
  l.peak_total = l.total;
}

int64_t MemoryTracker::live_blocks() const {
  Ledger& l = ledger(device_);
  const std::lock_guard lock(l.mutex);
  return l.blocks;
}

int64_t MemoryTracker::allocations() const {
  Ledger& l = ledger(device_);
  const std::lock_guard lock(l.mutex);
  return l.allocations;
}

MemoryTracker& memory_tracker(Device device) {
  require<DeviceError>(is_available(device), "memory_tracker", "{} is not available",
                       name_of(device));
  static MemoryTracker trackers[] = {MemoryTracker(Device{DeviceKind::cpu, 0}),
                                     MemoryTracker(Device{DeviceKind::cuda, 0}),
                                     MemoryTracker(meta_device)};
  return trackers[static_cast<size_t>(device.kind)];
}

void set_memory_limit(Device device, int64_t bytes) {
  register_backends();
  Ledger& l = ledger(device);
  const std::lock_guard lock(l.mutex);
  require<DeviceError>(l.source.set_limit != nullptr, "set_memory_limit", "{} has no limit to set",
                       name_of(device));
  l.source.set_limit(bytes);
}

int64_t memory_limit(Device device) {
  register_backends();
  Ledger& l = ledger(device);
  const std::lock_guard lock(l.mutex);
  return l.source.limit != nullptr ? l.source.limit() : 0;
}

void fail_allocation_after(Device device, int64_t n) {
  Ledger& l = ledger(device);
  const std::lock_guard lock(l.mutex);
  l.fail_after = n;
}

MemoryTrace::MemoryTrace(Device device) : device_(device) {
  Ledger& l = ledger(device);
  const std::lock_guard lock(l.mutex);
  require(l.trace == nullptr, "memory trace", "{} has one already", name_of(device));
  l.trace = this;
}

MemoryTrace::~MemoryTrace() {
  Ledger& l = ledger(device_);
  const std::lock_guard lock(l.mutex);
  l.trace = nullptr;
}

MemoryTrace* MemoryTrace::of(Device device) { return ledger(device).trace; }

// Recording must not fail when a block is released: if the host has no memory for it, the trace is
// unusable from then on.
template <class F>
void MemoryTrace::note(F&& f) noexcept {
  if (broken_) return;
  try {
    f();
  } catch (const std::bad_alloc&) {
    broken_ = true;
  }
}

void MemoryTrace::require_whole() const {
  require<OutOfMemory>(!broken_, "memory trace",
                       "the host had no memory for all that happened; trace a smaller step");
}

void MemoryTrace::on_allocate(const void* data, int64_t bytes, Category category) noexcept {
  note([&] {
    at_[data] = blocks_.size();
    add(blocks_.size(), category, bytes);
    blocks_.push_back({bytes, category, true, Scope::path(), ""});
  });
}

void MemoryTrace::changed(const void* data, Category to) noexcept {
  const auto found = at_.find(data);
  if (found == at_.end()) return;  // allocated before the trace started
  note([&] {
    Block& block = blocks_[found->second];
    add(found->second, block.category, -block.bytes);
    add(found->second, to, block.bytes);
    block.category = to;
  });
}

void MemoryTrace::on_free(const void* data) noexcept {
  const auto found = at_.find(data);
  if (found == at_.end()) return;
  note([&] {
    Block& block = blocks_[found->second];
    add(found->second, block.category, -block.bytes);
    block.live = false;
    at_.erase(found);
  });
}

void MemoryTrace::kept(const void* data, std::string_view op, const Shape& shape,
                       DType dtype) noexcept {
  const auto found = at_.find(data);
  if (found == at_.end()) return;
  note([&] {
    Block& block = blocks_[found->second];
    const bool whole = memory::block_bytes(numel(shape) * size_of(dtype)) == block.bytes;
    const bool known =
        !block.op.empty() &&
        memory::block_bytes(numel(block.shape) * size_of(block.dtype)) == block.bytes;
    if (known || (!block.op.empty() && !whole)) return;
    block.op = op;
    block.shape = shape;
    block.dtype = dtype;
  });
}

void LeakCheck::step() {
  const Usage now = memory_tracker(device_).live();
  const auto uncached = [](const Usage& usage) { return usage.total() - usage[Category::cache]; };
  if (!started_ || uncached(now) <= uncached(last_)) {
    grown_ = 0;
    first_ = now;
    started_ = true;
  } else if (++grown_ >= patience_) {
    std::string text =
        fmt::format("leak check: live bytes grew in each of the last {} steps", grown_);
    for (int i = 0; i < category_count; ++i) {
      const auto c = static_cast<Category>(i);
      if (now[c] != first_[c]) {
        text += fmt::format("\n  {}  {} -> {}", name_of(c), first_[c], now[c]);
      }
    }
    throw Error(text +
                "\n  a tensor of every step is kept somewhere: keep values (item()) or detach()");
  }
  last_ = now;
}

namespace memory {
namespace {

// The region from which this thread's blocks come, and its kind of device.
thread_local RegionState* entered = nullptr;
thread_local DeviceKind entered_kind = DeviceKind::cpu;

bool enters(Device device) { return entered != nullptr && entered_kind == device.kind; }

// Adds bytes of the device that are reserved (negative: no longer reserved).
void set_apart(Ledger& l, int64_t bytes) {
  l.live[Category::graph] += bytes;
  l.total += bytes;
  if (l.total > l.peak_total) {
    l.peak_total = l.total;
    l.peak = snapshot(l, l.live);
  }
}

// Allocates a block of the region, which takes more memory from the device if needed. Returns null
// if there is no memory.
void* allocate_apart(Ledger& l, RegionState& region, int64_t block) {
  constexpr int64_t least = int64_t{1} << 16;
  char* data = nullptr;
  // Not in the order of addresses: the memory that a recording needs must not depend on them.
  for (Chunk* chunk : region.chunks) {
    data = chunk->blocks.allocate(block);
    if (data != nullptr) break;
  }
  if (data == nullptr) {
    const bool first = region.bytes == 0 && region.first_bytes > 0;
    const int64_t wanted = first ? region.first_bytes : region.bytes / 8;
    int64_t bytes = block_bytes(std::max({block, wanted, least}));
    void* at = l.source.allocate(bytes);
    if (at == nullptr) at = l.source.allocate(bytes = block);
    if (at == nullptr) return nullptr;
    auto* const begin = static_cast<char*>(at);
    auto chunk = l.chunks.end();
    try {
      region.chunks.reserve(region.chunks.size() + 1);
      chunk = l.chunks.try_emplace(begin, begin, bytes, &region).first;
      data = chunk->second.blocks.allocate(block);
    } catch (...) {
      if (chunk != l.chunks.end()) l.chunks.erase(chunk);
      l.source.release(at, bytes);
      throw;
    }
    region.chunks.push_back(&chunk->second);
    region.bytes += bytes;
    set_apart(l, bytes);
  }
  ++region.blocks;
  region.largest = std::max(region.largest, block);
  l.live[Category::graph] -= block;
  l.total -= block;  // it counts as a block instead
  return data;
}

// Returns the chunk that contains a block; null if the block is the device's own.
Chunk* chunk_of(Ledger& l, const void* data) {
  auto at = l.chunks.upper_bound(const_cast<char*>(static_cast<const char*>(data)));
  if (at == l.chunks.begin()) return nullptr;
  --at;
  return at->first + at->second.bytes > data ? &at->second : nullptr;
}

void give_back(Ledger& l, RegionState* region);

// Returns a block to its chunk.
void release_in(Ledger& l, Chunk& chunk, void* data, int64_t block) {
  RegionState* const region = chunk.owner;
  chunk.blocks.release(static_cast<char*>(data), block);
  if (--region->blocks == 0 && region->ended) give_back(l, region);
}

// Returns all memory of an ended region.
void give_back(Ledger& l, RegionState* region) {
  for (auto at = l.chunks.begin(); at != l.chunks.end();) {
    if (at->second.owner != region) {
      ++at;
      continue;
    }
    l.source.release(at->first, at->second.bytes);
    set_apart(l, -at->second.bytes);
    at = l.chunks.erase(at);
  }
  for (const auto& [data, bytes] : region->kept) {
    if (Chunk* chunk = chunk_of(l, data)) {
      release_in(l, *chunk, data, bytes);
    } else {
      l.source.release(data, bytes);
      set_apart(l, -bytes);
    }
  }
  l.kept -= static_cast<int64_t>(region->kept.size());
  delete region;
}

// Whether the block was returned to its region, or retained by the region that this thread has
// entered.
bool release_apart(Ledger& l, Device device, void* data, int64_t block) {
  Chunk* const chunk = chunk_of(l, data);
  const bool inside = enters(device);
  if (chunk == nullptr && !inside) return false;
  set_apart(l, block);
  if (inside && (chunk == nullptr || chunk->owner != entered)) {
    entered->kept.emplace_back(data, block);
    ++l.kept;
  } else {
    release_in(l, *chunk, data, block);
  }
  return true;
}

}  // namespace

Region::Region(Device device, int64_t bytes)
    : device_(device), state_(new RegionState(bytes, ledger(device).nodes)) {}

Region::~Region() {
  Ledger& l = ledger(device_);
  const std::lock_guard lock(l.mutex);
  state_->ended = true;
  if (state_->blocks == 0) give_back(l, state_);
}

void Region::enter() {
  require(entered == nullptr, "memory region", "this thread is in one already");
  entered = state_;
  entered_kind = device_.kind;
}

void Region::leave() { entered = nullptr; }

void Region::trim() {
  Ledger& l = ledger(device_);
  const std::lock_guard lock(l.mutex);
  for (auto& [at, chunk] : l.chunks) {
    if (chunk.owner != state_) continue;
    const int64_t used = chunk.blocks.trim(), rest = chunk.bytes - used;
    if (rest == 0 || used == 0 || l.source.shrink == nullptr) continue;
    if (!l.source.shrink(at, chunk.bytes, used)) continue;
    chunk.bytes = used;
    state_->bytes -= rest;
    set_apart(l, -rest);
  }
}

int64_t Region::bytes() const {
  const std::lock_guard lock(ledger(device_).mutex);
  return state_->bytes;
}

int64_t Region::largest_block() const {
  const std::lock_guard lock(ledger(device_).mutex);
  return state_->largest;
}

void set_source(DeviceKind kind, const Source& source) { ledger({kind, 0}).source = source; }

namespace {

/// Returns a block; null if there is no room, with `usage` as it is then. `drop`: whether more room
/// may be made with drop_retained().
void* try_allocate(Ledger& l, Device device, int64_t block, Category category, Usage& usage,
                   bool& drop) {
  const std::lock_guard lock(l.mutex);
  void* data = nullptr;
  const bool injected = l.fail_after == 0;
  if (l.fail_after >= 0) --l.fail_after;
  if (!injected) {
    try {
      l.nodes.reserve(l.blocks + l.kept + 1);
      data = enters(device) ? allocate_apart(l, *entered, block) : l.source.allocate(block);
      drop = data == nullptr;
    } catch (const std::bad_alloc&) {  // no host memory for the bookkeeping
    }
  }
  if (data == nullptr) {
    usage = snapshot(l, l.live);
    return nullptr;
  }
  l.live[category] += block;
  l.total += block;
  ++l.blocks;
  ++l.allocations;
  if (l.total > l.peak_total) {
    l.peak_total = l.total;
    l.peak = snapshot(l, l.live);
  }
  if (MemoryTrace* t = l.trace) t->on_allocate(data, block, category);
  return data;
}

}  // namespace

void* allocate(Device device, int64_t bytes, Category category) {
  register_backends();
  const int64_t block = block_bytes(bytes);
  Ledger& l = ledger(device);
  require<DeviceError>(device.index == 0 && l.source.allocate != nullptr, "memory",
                       "{} is not available in this build or on this machine; use cpu",
                       name_of(device));
  Usage usage;
  bool drop = false;
  if (void* data = try_allocate(l, device, block, category, usage, drop)) return data;
  if (drop) {
    drop_retained();
    if (void* data = try_allocate(l, device, block, category, usage, drop)) return data;
  }
  throw OutOfMemory(
      fmt::format("out of memory on {}: no room for {} of {}\n{}  shorten the sequence, shrink the "
                  "batch, or raise "
                  "the limit",
                  name_of(device), bytes_text(block), name_of(category), to_string(usage)));
}

void release(Device device, void* data, int64_t bytes, Category category) noexcept {
  const int64_t block = block_bytes(bytes);
  Ledger& l = ledger(device);
  const std::lock_guard lock(l.mutex);
  l.live[category] -= block;
  l.total -= block;
  --l.blocks;
  if (MemoryTrace* t = l.trace) t->on_free(data);
  if ((l.chunks.empty() && !enters(device)) || !release_apart(l, device, data, block)) {
    l.source.release(data, block);
  }
}

void recategorize(Device device, const void* data, int64_t bytes, Category from,
                  Category to) noexcept {
  const int64_t block = block_bytes(bytes);
  Ledger& l = ledger(device);
  const std::lock_guard lock(l.mutex);
  l.live[from] -= block;
  l.live[to] += block;
  if (MemoryTrace* t = l.trace) t->changed(data, to);
}

}  // namespace memory

Scratch::Scratch(int64_t bytes, Device device) : device_(device), bytes_(bytes) {
  if (bytes_ > 0) data_ = memory::allocate(device_, bytes_, Category::workspace);
}

Scratch::~Scratch() {
  if (data_ != nullptr) memory::release(device_, data_, bytes_, Category::workspace);
}

}  // namespace longspan
