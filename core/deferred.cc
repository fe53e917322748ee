#include "core/deferred.h"

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

struct Pending {
  std::unique_ptr<Scratch> outcomes;
  std::vector<Complaint> complaints;
  std::vector<std::string> scopes;  // where they were added
};

// Of the one device that is not the host. Each thread has its own, so that what a check writes is
// read behind it in the stream, and a complaint reaches the thread that asked.
thread_local Pending pending;

}  // namespace

View add(Device device, Complaint complain) {
  Pending& p = pending;
  if (device.kind == DeviceKind::cuda && p.complaints.size() == kMost) settle(device);
  if (p.outcomes == nullptr) {
    p.outcomes = std::make_unique<Scratch>(static_cast<int64_t>(kMost) * kBytes, device);
  }
  View found;
  found.data = p.outcomes->as<int64_t>() + 2 * p.complaints.size();
  found.dtype = DType::i64;
  found.device = device;
  found.shape = {2};
  found.strides = {1};
  p.complaints.push_back(std::move(complain));
  p.scopes.push_back(Scope::path());
  return found;
}

void settle(Device device) {
  if (device.kind != DeviceKind::cuda) return;
  Pending done;
  std::swap(done, pending);
  if (done.complaints.empty()) return;
  std::vector<int64_t> found(2 * done.complaints.size());
  copy_to_host(device, found.data(), done.outcomes->data(),
               static_cast<int64_t>(done.complaints.size()) * kBytes);
  done.outcomes.reset();
  for (size_t i = 0; i < done.complaints.size(); ++i) {
    if (found[2 * i] < 0) continue;
    const ScopeAt scope(done.scopes[i]);
    done.complaints[i](found[2 * i], found[2 * i + 1]);
  }
}

}  // namespace longspan::deferred
