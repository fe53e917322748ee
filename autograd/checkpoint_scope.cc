#include "autograd/checkpoint_scope.h"

#include <algorithm>
#include <cstring>

#include "autograd/mode.h"
#include "core/error.h"

namespace longspan::autograd {
namespace {

thread_local bool checking = false;

/// Computes a checksum of the bits of x's elements, in row-major order.
uint64_t checksum_of(const Tensor& x) {
  return visit_dtype(x.dtype(), [&](auto tag) {
    const auto values = x.to_vector<typename decltype(tag)::type>();
    const auto* bytes = reinterpret_cast<const char*>(values.data());
    uint64_t sum = 0x9e3779b97f4a7c15;
    for (int64_t at = 0; at < x.nbytes(); at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + at, static_cast<size_t>(std::min<int64_t>(8, x.nbytes() - at)));
      sum = (sum ^ word) * 0xff51afd7ed558ccd;
      sum ^= sum >> 32;
    }
    return sum;
  });
}

size_t defined(std::span<const Tensor> tensors) {
  return static_cast<size_t>(std::count_if(tensors.begin(), tensors.end(),
                                           [](const Tensor& t) { return static_cast<bool>(t); }));
}

/// Thrown to end a recomputation that has saved everything needed.
struct Enough {};

}  // namespace

CheckReplays::CheckReplays() : outer_(checking) { checking = true; }
CheckReplays::~CheckReplays() { checking = outer_; }
bool CheckReplays::on() { return checking; }

CheckpointScope* CheckpointScope::current() {
  return static_cast<CheckpointScope*>(SaveSlots::current());  // no other class has slots
}

CheckpointScope::Guard::Guard(CheckpointScope* scope) : outer_(SaveSlots::current()) {
  SaveSlots::current() = scope;
}
CheckpointScope::Guard::~Guard() { SaveSlots::current() = outer_; }

int64_t CheckpointScope::keep(std::string_view op, const Tensor& tensor) {
  const uint64_t version = tensor.storage().version();
  if (!replaying_) {
    slots_.push_back({op,
                      tensor.shape(),
                      tensor.dtype(),
                      version,
                      true,
                      checking ? std::optional(checksum_of(tensor)) : std::nullopt,
                      {}});
    return static_cast<int64_t>(slots_.size()) - 1;
  }
  Slot& slot = slots_[static_cast<size_t>(next_++)];
  if (op != slot.op || tensor.shape() != slot.shape || tensor.dtype() != slot.dtype) {
    fail_with<GradientError>(
        "checkpoint",
        fmt::format("the re-run of a checkpointed part differs from its first run: save {} is of "
                    "{}; it was {}{} of {}",
                    next_ - 1, op, name_of(slot.dtype), to_string(slot.shape), slot.op),
        {{"saved", tensor}});
  }
  if (version != slot.version) {
    fail_with<GradientError>(
        op,
        fmt::format("a tensor that a checkpointed part reads was written before backward (version "
                    "{}, now {}); write only after backward, or to a copy",
                    slot.version, version),
        {{"saved", tensor}});
  }
  if (slot.checksum && checksum_of(tensor) != *slot.checksum) {
    fail_with<GradientError>(
        "checkpoint",
        fmt::format("the re-run of a checkpointed part differs from its first run: save {}, of {}, "
                    "holds other numbers; a layer must do the same for equal arguments and Pass",
                    next_ - 1, op),
        {{"saved", tensor}});
  }
  if (slot.wanted && !slot.tensor) {
    slot.tensor = tensor.detach();
    slot.tensor.storage().retain();
  }
  if (next_ > last_) throw Enough{};
  return -1;
}

void CheckpointScope::offer(std::string_view op, std::span<const Tensor> saves) {
  if (!replaying_) return;
  if (next_ + static_cast<int64_t>(defined(saves)) <= last_) return;
  for (const Tensor& t : saves) {
    if (t) keep(op, t);
  }
}

Tensor CheckpointScope::recall(std::string_view op) {
  if (!replaying_ || kept_ == Results::none) return {};
  const size_t i = next_result_++;
  require<GradientError>(i < results_.size() && results_[i].op == op, "checkpoint",
                         "the re-run of a checkpointed part differs from its first run: result {} "
                         "is of {}; it was {}",
                         i, op, i < results_.size() ? results_[i].op : "none");
  return results_[i].tensor.get(op);
}

void CheckpointScope::remember(std::string_view op, const Tensor& result,
                               std::span<const Tensor> saves) {
  if (replaying_ || kept_ == Results::none) return;
  const Guard outside(nullptr);
  results_.push_back({op, SavedTensor(result, op), slots_.size() + defined(saves)});
}

void CheckpointScope::forget_last() {
  for (size_t i = results_.size(); i > 0 && results_[i - 1].slots == slots_.size(); --i) {
    results_[i - 1].tensor = {};
  }
}

void CheckpointScope::end_branch() {
  CheckpointScope* const scope = current();
  if (scope != nullptr && !scope->replaying_ && scope->kept_ == Results::inner) {
    scope->forget_last();
  }
}

void CheckpointScope::fill() {
  next_ = 0;
  next_result_ = 0;
  last_ = static_cast<int64_t>(slots_.size()) - 1;
  while (!slots_[static_cast<size_t>(last_)].wanted) --last_;
  struct Replaying {
    explicit Replaying(bool& flag) : flag_(flag) { flag_ = true; }
    ~Replaying() { flag_ = false; }
    bool& flag_;
  };
  const Guard run(this);
  const EnableGrad on;
  const Replay mark;
  const Replaying replaying(replaying_);
  try {
    replay();
  } catch (const Enough&) {
  }
  require<GradientError>(next_ > last_, "checkpoint",
                         "the re-run of a checkpointed part differs from its first run: it saves "
                         "{} tensors, the first run {} or more",
                         next_, last_ + 1);
  results_.clear();
}

const Tensor& CheckpointScope::get(int64_t i, std::string_view op) {
  Slot& slot = slots_[static_cast<size_t>(i)];
  if (!slot.tensor) fill();
  if (slot.tensor.storage().version() != slot.version) {
    fail_with<GradientError>(op, "a tensor saved for backward was written since",
                             {{"saved", slot.tensor}});
  }
  return slot.tensor;
}

void CheckpointScope::drop(int64_t i) {
  Slot& slot = slots_[static_cast<size_t>(i)];
  slot.wanted = false;
  if (slot.tensor) slot.tensor.storage().release();
  slot.tensor = {};
}

}  // namespace longspan::autograd
