#pragma once

#include <cmath>
#include <numbers>
#include <string>

namespace longspan {

/// The unit in which a loss is shown: bits per byte, or per unit that a task uses instead of bytes.
struct LossUnit {
  std::string name = "byte";  ///< "byte", "base", "hidden token", "answer", ...
  /// Units per target, measured on the training split: the bytes of a token. 1 if each target is
  /// one unit.
  double per_target = 1;

  /// Converts a mean over targets, in nats, to bits per unit.
  double bits(double nats) const { return nats / std::numbers::ln2 / per_target; }
  /// Returns the perplexity of a target that these bits per unit mean: 2^(bits of a target).
  double perplexity(double bits_per_unit) const { return std::exp2(bits_per_unit * per_target); }
  /// Returns the label of such a figure: "bpb", or "bits/base".
  std::string label() const { return name == "byte" ? "bpb" : "bits/" + name; }
  friend bool operator==(const LossUnit&, const LossUnit&) = default;
};

}  // namespace longspan
