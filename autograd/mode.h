#pragma once

namespace longspan {

namespace autograd {

/// Whether ops of this thread record the backward pass.
bool recording();
/// Whether this thread recomputes a forward pass (inside a wrapper's backward).
bool replaying();
/// Whether ops and the engine check for NaN and Inf.
bool anomaly_mode();

namespace detail {
bool& recording_flag();
bool& replaying_flag();
bool& anomaly_flag();

class FlagGuard {
 public:
  FlagGuard(bool& flag, bool value) : flag_(flag), before_(flag) { flag_ = value; }
  ~FlagGuard() { flag_ = before_; }
  FlagGuard(const FlagGuard&) = delete;
  FlagGuard& operator=(const FlagGuard&) = delete;

 private:
  bool& flag_;
  bool before_;
};
}  // namespace detail
}  // namespace autograd

/// While it lives, ops of this thread record nothing.
struct NoGrad : autograd::detail::FlagGuard {
  NoGrad() : FlagGuard(autograd::detail::recording_flag(), false) {}
};

/// While it lives, ops of this thread record again; for wrappers that recompute a forward pass.
struct EnableGrad : autograd::detail::FlagGuard {
  EnableGrad() : FlagGuard(autograd::detail::recording_flag(), true) {}
};

/// Marks a recomputation of a forward pass.
struct Replay : autograd::detail::FlagGuard {
  Replay() : FlagGuard(autograd::detail::replaying_flag(), true) {}
};

/// While it lives, the first op, forward or backward, that produces NaN or Inf throws ValueError
/// with its name and scope. Slow: reads every result.
struct AnomalyMode : autograd::detail::FlagGuard {
  AnomalyMode() : FlagGuard(autograd::detail::anomaly_flag(), true) {}
};

}  // namespace longspan
