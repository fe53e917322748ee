#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "app/step.h"
#include "core/device.h"

namespace longspan {

/// The part of a training step in which something happens.
enum class StepPart : uint8_t { forward, backward, update };
/// Returns "forward", "backward" or "update".
const char* name_of(StepPart part);

/// The live bytes of one training step of a strategy, at instants of its allocations and releases
/// in their order. Memory of Category::cache is left out.
struct Timeline {
  /// The instant within a run of allocations and releases at which the most bytes were live.
  struct Instant {
    std::vector<int64_t> by_category;  ///< bytes, in the order of `categories`
    std::vector<int64_t> by_layer;     ///< bytes, in the order of `layers`
    StepPart part = StepPart::forward;
    /// What was computed: "block_attention in layers.3.attention", or of a backward pass "of
    /// softmax in head", with the op that its function ran, if any: "of checkpoint: matmul in ..".
    std::string op;
    int64_t total() const;
  };
  std::string title;
  std::vector<std::string> categories;  ///< that had bytes, in the order of Category
  /// "before the step", "embed", "layer 3", "encoder layer 3", ...: what allocated the bytes. What
  /// a backward pass allocates belongs to the layer whose op it reverses.
  std::vector<std::string> layers;
  std::vector<Instant> instants;
  size_t peak = 0;  ///< the instant of the most bytes in all
  /// Returns the first instant of a part; instants.size() if there is none.
  size_t begin_of(StepPart part) const;
};

/// Takes a training step of a shape on a device, where other work must not run meanwhile, and
/// returns its timeline. On meta_device it is a prediction. Throws as StepPlanner::step().
Timeline timeline_of(const StepPlanner& planner, const StepShape& shape, Device device,
                     const std::string& title);

}  // namespace longspan
