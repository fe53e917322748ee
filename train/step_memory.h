#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/memory.h"
#include "core/tensor.h"
#include "train/optimizer.h"

namespace longspan {

/// What the forward pass keeps under one name, as a formula: `count` tensors of `bytes` each.
struct SavedTerm {
  std::string part;  ///< "layers.*.attention": the scope, the numbers of layers left out
  std::string op;    ///< what keeps it
  Shape shape;
  DType dtype = DType::f32;
  int64_t count = 0;
  int64_t bytes = 0;  ///< of one, as the arena counts them
};

/// The bytes of one training step on one device, and what they cost.
struct StepMemory {
  int64_t parameter = 0, gradient = 0, optimizer = 0;
  int64_t saved = 0;  ///< at the end of the forward pass
  /// The largest sum of all that is live but Category::cache, which is bounded apart: in each
  /// phase.
  int64_t forward_peak = 0, backward_peak = 0, update_peak = 0;
  Usage at_peak;  ///< the split at the instant of the largest
  /// Multiply-accumulates of the forward pass, and those that backward runs again.
  int64_t macs = 0, again = 0;
  std::vector<SavedTerm>
      terms;  ///< of `saved`, the largest first; where it was measured by a trace

  int64_t peak() const;
  double extra_forward() const {
    return macs > 0 ? static_cast<double>(again) / static_cast<double>(macs) : 0;
  }
};

/// Takes a training step: loss() forward, backward, clipping where `clip` > 0, and an update with
/// the learning rate 0; and says what it needed. On plan_device this is a prediction, in which
/// every op adds up the closed form of what it makes, keeps and frees, and nothing is computed or
/// allocated; elsewhere it is the measurement. `base` is what was live before the model was built.
StepMemory measure_step(Device device, Optimizer& optimizer, const std::function<Tensor()>& loss,
                        double clip = 0, const Usage& base = {}, MemoryTrace* trace = nullptr);

/// The terms of what is in Category::saved now, by a trace.
std::vector<SavedTerm> saved_terms(const MemoryTrace& trace);

/// Letters for sizes, e.g. {{512, "D"}, {2048, "F"}}; the first that fits is taken.
using Letters = std::vector<std::pair<int64_t, std::string>>;

/// A term as a product: "u T D" for f32[B, L, D] (u: bytes of an element of `element`), with a
/// number for what has no letter.
std::string formula(const SavedTerm& term, int64_t batch, int64_t length, const Letters& letters,
                    DType element);

/// "64 B", "1.5 KiB", "12.0 MiB", "3.25 GiB": for people.
std::string bytes_text(int64_t bytes);
/// Of "4GiB", "512 MiB", "64K" or a plain number. Throws ValueError on anything else.
int64_t parse_bytes(std::string_view text);

}  // namespace longspan
