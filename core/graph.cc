#include "core/graph.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/deferred.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/scope.h"

namespace longspan {
namespace {

constexpr size_t kNumbersOfBlock = 512;  // device scalars that are copied in one transfer

constexpr uint64_t mixed(uint64_t sum, uint64_t with) {
  return ((sum ^ with) * 0xff51afd7ed558ccdu) ^ (sum >> 29);
}

uint64_t mixed(uint64_t sum, std::string_view text) {
  for (const char c : text) sum = mixed(sum, static_cast<uint8_t>(c));
  return sum;
}

}  // namespace

struct Graph::Parts {
  /// Blocks of 8-byte scalars on the device, and their next values on the host.
  struct Numbers {
    std::unique_ptr<Scratch> there;
    std::vector<uint64_t> here;
  };
  /// A generator: an external one, or a fork of another.
  struct Key {
    const Generator* source;
    uint32_t parent;
    uint64_t tag;
    uint64_t value = 0;
    size_t number = SIZE_MAX;  // index of the scalar that kernels read, if any
  };
  struct Constant {  // each replay copies it from `there` to its destination
    std::unique_ptr<Scratch> there;
    std::vector<char> bytes;
  };

  Parts(Device on, int64_t bytes) : device(on), region(on, bytes) {}

  Device device;
  memory::Region region;  // outlives the memory allocated from it
  void* recorded = nullptr;
  std::vector<Numbers> numbers;
  size_t count = 0;                                               // number of device scalars
  std::vector<std::pair<size_t, std::function<double()>>> asked;  // scalar index, its source
  std::vector<Key> keys{{nullptr, 0, 0}};                         // 0: none
  std::vector<Constant> constants;
  std::vector<std::shared_ptr<const void>> kept;
  deferred::Recorded checks;
  uint64_t signature = 0;

  /// Allocates memory that the recorded work does not reuse: its contents are intact when a replay
  /// begins.
  std::unique_ptr<Scratch> own(int64_t bytes) {
    region.leave();
    try {
      auto memory = std::make_unique<Scratch>(bytes, device);
      region.enter();
      return memory;
    } catch (...) {
      region.enter();
      throw;
    }
  }

  void note(uint64_t what) { signature = mixed(signature, what); }

  size_t new_number() {
    if (count % kNumbersOfBlock == 0) {
      const auto bytes = static_cast<int64_t>(kNumbersOfBlock * sizeof(uint64_t));
      numbers.push_back({own(bytes), std::vector<uint64_t>(kNumbersOfBlock)});
    }
    return count++;
  }
  template <class T>
  const T* place_of(size_t number) const {
    return numbers[number / kNumbersOfBlock].there->as<T>() + number % kNumbersOfBlock;
  }
  void set(size_t number, uint64_t bits) {
    numbers[number / kNumbersOfBlock].here[number % kNumbersOfBlock] = bits;
  }

  void refresh() {
    for (Key& key : keys) {
      if (key.source != nullptr) {
        key.value = key.source->key;
      } else if (key.parent != 0) {
        key.value = Generator::forked_key(keys[key.parent].value, key.tag);
      }
      if (key.number != SIZE_MAX) set(key.number, key.value);
    }
    for (const auto& [number, now] : asked) set(number, std::bit_cast<uint64_t>(now()));
    size_t left = count;
    for (const Numbers& block : numbers) {
      const size_t used = std::min(left, kNumbersOfBlock);
      copy_from_host(device, block.there->data(), block.here.data(),
                     static_cast<int64_t>(used * sizeof(uint64_t)));
      left -= used;
    }
  }
};

namespace {

thread_local Graph::Parts* current = nullptr;  // the graph that this thread records

/// The thread that records a device, identified by the address of its `current`; null if none does.
std::atomic<const void*>& recorder_of(Device device) {
  static std::array<std::atomic<const void*>, device_kind_count> recorders{};
  return recorders[static_cast<size_t>(device.kind)];
}

constexpr const char* kUsedInBetween =
    "another thread records a step of {}, of which this would become a part: wait until it has "
    "done so";

/// Makes this thread the recorder of the device while it lives.
class Recorder {
 public:
  explicit Recorder(Device device) : recorder_(recorder_of(device)) {
    const void* none = nullptr;
    require<DeviceError>(recorder_.compare_exchange_strong(none, &current), "graph", kUsedInBetween,
                         name_of(device));
    ++recording_threads;
  }
  ~Recorder() {
    --recording_threads;
    recorder_ = nullptr;
  }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

 private:
  std::atomic<const void*>& recorder_;
};

/// Lasts from the first recorded kernel to the last.
class Recording {
 public:
  explicit Recording(Graph::Parts& parts) : parts_(parts), recorder_(parts.device) {
    parts.region.enter();
    try {
      begin_recording(parts.device);
    } catch (...) {
      parts.region.leave();
      throw;
    }
    parts.checks.start();
    current = &parts;
  }
  ~Recording() {
    if (current == nullptr) return;
    leave();
    abandon_recording(parts_.device);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  void* end() {
    void* recorded = nullptr;
    leave();
    end_recording(parts_.device, &recorded);
    return recorded;
  }

 private:
  void leave() {
    current = nullptr;
    parts_.checks.stop();
    parts_.region.leave();
  }

  Graph::Parts& parts_;
  Recorder recorder_;
};

std::string place() { return Scope::path().empty() ? "" : " in " + Scope::path(); }

}  // namespace

void KernelBase::note_recorded(Device device, uint64_t sum) const {
  if (this == &drop_recording || this == &count_devices) return;  // these two submit nothing
  const void* const recorder = recorder_of(device);
  require<DeviceError>(recorder == nullptr || recorder == &current, name_, kUsedInBetween,
                       name_of(device));
  if (current == nullptr || device != current->device) return;
  if (host_) graph::refuse(name_, "the host waits for the device, or gives it numbers of its own");
  current->signature = mixed(mixed(current->signature, name_), sum);
}

Graph::Graph(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

std::unique_ptr<Graph> Graph::record(Device device, const std::function<void()>& f, int64_t bytes) {
  register_backends();
  require<NotImplemented>(begin_recording.has(device.kind), "graph",
                          "{} has no recordings: its kernels run as they are called",
                          name_of(device));
  require(current == nullptr, "graph", "this thread is recording already");
  auto parts = std::make_unique<Parts>(device, bytes);
  {
    Recording recording(*parts);
    f();
    parts->recorded = recording.end();
  }
  std::unique_ptr<Graph> graph(new Graph(std::move(parts)));
  graph->parts_->region.trim();
  for (Parts::Constant& constant : graph->parts_->constants) {
    copy_from_host(device, constant.there->data(), constant.bytes.data(),
                   static_cast<int64_t>(constant.bytes.size()));
    constant.bytes = {};
  }
  return graph;
}

Graph::~Graph() {
  if (parts_->recorded != nullptr) drop_recording(parts_->device, parts_->recorded);
}

void Graph::replay() {
  require(current == nullptr, "graph", "a replay within a recording");
  parts_->checks.raise_pending();
  parts_->refresh();
  replay_recording(parts_->device, parts_->recorded);
  parts_->checks.enqueue();
}

int64_t Graph::bytes() const {
  int64_t bytes = parts_->region.bytes();
  for (const Parts::Numbers& n : parts_->numbers) bytes += memory::block_bytes(n.there->bytes());
  for (const Parts::Constant& c : parts_->constants) bytes += memory::block_bytes(c.there->bytes());
  return bytes;
}
uint64_t Graph::signature() const { return parts_->signature; }

DeviceScalar<double> live(std::function<double()> now) {
  const double value = now();
  if (current == nullptr) return value;
  const size_t number = current->new_number();
  current->asked.emplace_back(number, std::move(now));
  return {value, current->place_of<double>(number)};
}

Generator live(const Generator& source) {
  if (current == nullptr) return source;
  current->keys.push_back({&source, 0, 0});
  return {source.key, static_cast<uint32_t>(current->keys.size() - 1)};
}

uint32_t Generator::recorded_fork(uint64_t tag) const {
  if (current == nullptr || recorded >= current->keys.size()) return 0;
  current->keys.push_back({nullptr, recorded, tag});
  return static_cast<uint32_t>(current->keys.size() - 1);
}

DeviceScalar<uint64_t> Generator::recorded_key() const {
  if (current == nullptr || recorded >= current->keys.size()) return key;
  size_t& number = current->keys[recorded].number;
  if (number == SIZE_MAX) number = current->new_number();
  return {key, current->place_of<uint64_t>(number)};
}

namespace graph {

bool recording() { return current != nullptr; }

void refuse(std::string_view op, std::string_view reason) {
  require<NotImplemented>(current == nullptr, op, "cannot be recorded{}: {}", place(), reason);
}

namespace {
thread_local Rehearsal* rehearsal = nullptr;
}  // namespace

Rehearsal::Rehearsal() {
  rehearsal = this;
  restart();
}
Rehearsal::~Rehearsal() { rehearsal = nullptr; }

bool rehearsing() { return rehearsal != nullptr; }

// One block of numbers and one of outcomes serve most steps.
void Rehearsal::restart() {
  constexpr auto numbers = static_cast<int64_t>(kNumbersOfBlock * sizeof(uint64_t));
  bytes_ = memory::block_bytes(numbers) + deferred::outcome_bytes();
}

void upload(Device device, void* to, const void* from, int64_t bytes) {
  if (device == meta_device) {
    if (rehearsal != nullptr) rehearsal->bytes_ += memory::block_bytes(bytes);
    return;
  }
  if (current == nullptr || device != current->device) {
    copy_from_host(device, to, from, bytes);
    return;
  }
  const auto* const begin = static_cast<const char*>(from);
  current->note(static_cast<uint64_t>(bytes));
  for (int64_t i = 0; i < bytes; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, begin + i, static_cast<size_t>(std::min<int64_t>(8, bytes - i)));
    current->note(word);
  }
  Graph::Parts::Constant constant{current->own(bytes), std::vector<char>(begin, begin + bytes)};
  copy_within(device, to, constant.there->data(), bytes);
  current->constants.push_back(std::move(constant));
}

void keep(std::shared_ptr<const void> used) {
  if (current == nullptr) return;
  current->note(std::bit_cast<uintptr_t>(used.get()));
  current->kept.push_back(std::move(used));
}

}  // namespace graph
}  // namespace longspan
