#pragma once

#include <numbers>
#include <string>

namespace longspan {

/// What a loss is shown in: bits per byte, or per what a task has in place of bytes.
struct LossUnit {
  std::string name = "byte";  ///< "byte", "base", "hidden token", "answer", ...
  /// How many of them a target of the training part stands for, measured there: the bytes of a
  /// token. 1 where each target is one.
  double per_target = 1;

  /// Of a mean over targets, in nats.
  double bits(double nats) const { return nats / std::numbers::ln2 / per_target; }
  /// What stands before such a figure in a line: "bpb", or "bits/base".
  std::string label() const { return name == "byte" ? "bpb" : "bits/" + name; }
  friend bool operator==(const LossUnit&, const LossUnit&) = default;
};

}  // namespace longspan
