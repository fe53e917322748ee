#include "core/deferred.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/memory.h"
#include "core/scope.h"
#include "core/shape.h"

namespace longspan::deferred {

namespace {

constexpr size_t kMost = 256;
constexpr int64_t kBytes = 2 * static_cast<int64_t>(sizeof(int64_t));  // of an outcome

}  // namespace

struct Batch {
  explicit Batch(Device on) : device(on), outcomes(static_cast<int64_t>(kMost) * kBytes, on) {}

  bool full() const { return handlers.size() == kMost; }
  View add(ErrorHandler on_error) {
    View found;
    found.data = outcomes.as<int64_t>() + 2 * handlers.size();
    found.dtype = DType::i64;
    found.device = device;
    found.shape = {2};
    found.strides = {1};
    handlers.push_back(std::move(on_error));
    scopes.push_back(Scope::path());
    return found;
  }
  void take_back() {
    handlers.pop_back();
    scopes.pop_back();
  }

  Device device;
  Scratch outcomes;
  std::vector<ErrorHandler> handlers;
  std::vector<std::string> scopes;  // of the add() calls
};

namespace {

using Batches = std::vector<std::shared_ptr<Batch>>;

// Batches of the one device that is not the host. Each thread has its own, so that an outcome is
// read after its check in the stream, and an error reaches the thread that ran the check. New
// checks go to the last batch, unless it belongs to a replay.
thread_local Batches pending;
thread_local Batch* open = nullptr;         // the last of `pending`, if it takes more checks
thread_local Batches* recording = nullptr;  // if not null, receives the checks instead

void raise_errors_of(const Batch& batch, const std::vector<int64_t>& found) {
  for (size_t i = 0; i < batch.handlers.size(); ++i) {
    if (found[2 * i] < 0) continue;
    const ScopeAt scope(batch.scopes[i]);
    batch.handlers[i](found[2 * i], found[2 * i + 1]);
  }
}

std::vector<int64_t> outcomes_of(const Batch& batch) {
  std::vector<int64_t> found(2 * batch.handlers.size());
  copy_to_host(batch.device, found.data(), batch.outcomes.data(),
               static_cast<int64_t>(found.size() * sizeof(int64_t)));
  return found;
}

View place_for(Device device, ErrorHandler on_error) {
  if (recording != nullptr) {
    if (recording->empty() || recording->back()->full()) {
      recording->push_back(std::make_shared<Batch>(device));
    }
    return recording->back()->add(std::move(on_error));
  }
  if (open != nullptr && open->full()) raise_pending(device);
  if (open == nullptr) {
    pending.push_back(std::make_shared<Batch>(device));
    open = pending.back().get();
  }
  return open->add(std::move(on_error));
}

}  // namespace

int64_t outcome_bytes() { return memory::block_bytes(static_cast<int64_t>(kMost) * kBytes); }

void check(Device device, const std::function<void(View found)>& run, ErrorHandler on_error) {
  if (device.kind == DeviceKind::cuda) {
    const View found = place_for(device, std::move(on_error));
    try {
      run(found);
    } catch (...) {  // no submitted work writes to this outcome
      (recording != nullptr ? *recording->back() : *open).take_back();
      throw;
    }
    return;
  }
  int64_t found[] = {-1, 0};
  run({found, DType::i64, device, {2}, {1}});
  if (found[0] >= 0) on_error(found[0], found[1]);
}

void raise_pending(Device device) {
  if (device.kind != DeviceKind::cuda || recording != nullptr) return;
  open = nullptr;
  // All outcomes are read before the first error is thrown, and before the batches are cleared.
  std::vector<std::vector<int64_t>> found;
  for (const auto& batch : pending) found.push_back(outcomes_of(*batch));
  const Batches done = std::exchange(pending, {});
  for (size_t i = 0; i < done.size(); ++i) raise_errors_of(*done[i], found[i]);
}

Recorded::Recorded() = default;
Recorded::~Recorded() = default;

void Recorded::start() { recording = &batches_; }
void Recorded::stop() { recording = nullptr; }

void Recorded::raise_pending() {
  for (const auto& batch : batches_) {
    if (std::find(pending.begin(), pending.end(), batch) == pending.end()) continue;
    return deferred::raise_pending(batch->device);
  }
}

void Recorded::enqueue() {
  if (batches_.empty()) return;
  pending.insert(pending.end(), batches_.begin(), batches_.end());
  open = nullptr;
}

}  // namespace longspan::deferred
