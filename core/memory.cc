#include "core/memory.h"

#include <fmt/format.h>

#include <atomic>
#include <mutex>

#include "core/error.h"
#include "core/scope.h"

namespace longspan {
namespace {

/// The counts of one device; everything under its mutex.
struct Ledger {
  std::mutex mutex;
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
                                        "memory",    "data",     "cache",     "other"};
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
                                     MemoryTracker(plan_device)};
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

void MemoryTrace::came(const void* data, int64_t bytes, Category category) {
  at_[data] = blocks_.size();
  add(blocks_.size(), category, bytes);
  blocks_.push_back({bytes, category, true, Scope::path(), ""});
}

void MemoryTrace::changed(const void* data, Category to) {
  const auto found = at_.find(data);
  if (found == at_.end()) return;  // older than the trace
  Block& block = blocks_[found->second];
  add(found->second, block.category, -block.bytes);
  add(found->second, to, block.bytes);
  block.category = to;
}

void MemoryTrace::went(const void* data) {
  const auto found = at_.find(data);
  if (found == at_.end()) return;
  Block& block = blocks_[found->second];
  add(found->second, block.category, -block.bytes);
  block.live = false;
  at_.erase(found);
}

void MemoryTrace::kept(const void* data, std::string_view op, const Shape& shape, DType dtype) {
  const auto found = at_.find(data);
  if (found == at_.end()) return;
  Block& block = blocks_[found->second];
  const bool whole = memory::block_bytes(numel(shape) * size_of(dtype)) == block.bytes;
  const bool known = !block.op.empty() &&
                     memory::block_bytes(numel(block.shape) * size_of(block.dtype)) == block.bytes;
  if (known || (!block.op.empty() && !whole)) return;
  block.op = op;
  block.shape = shape;
  block.dtype = dtype;
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

void set_source(DeviceKind kind, const Source& source) { ledger({kind, 0}).source = source; }

void* allocate(Device device, int64_t bytes, Category category) {
  register_backends();
  const int64_t block = block_bytes(bytes);
  Ledger& l = ledger(device);
  Usage usage;
  {
    const std::lock_guard lock(l.mutex);
    void* data = nullptr;
    const bool injected = l.fail_after == 0;
    if (l.fail_after >= 0) --l.fail_after;
    if (!injected && l.source.allocate != nullptr) data = l.source.allocate(block);
    if (data != nullptr) {
      l.live[category] += block;
      l.total += block;
      ++l.blocks;
      ++l.allocations;
      if (l.total > l.peak_total) {
        l.peak_total = l.total;
        l.peak = snapshot(l, l.live);
      }
      if (MemoryTrace* t = l.trace) t->came(data, block, category);
      return data;
    }
    usage = snapshot(l, l.live);
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
  if (MemoryTrace* t = l.trace) t->went(data);
  l.source.release(data, block);
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
