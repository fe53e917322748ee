#pragma once

#include <cstdint>
#include <memory>

#include "ops/patterns/pattern.h"

namespace longspan {

/// Holds everything that the layout of a layout spec depends on: the lengths, and from the
/// pattern's rule the position of query 0, the distances to either side in steps, and the size of a
/// step.
struct LayoutRequest {
  LayoutSpec layout_spec;
  int64_t queries, keys, q_start, left, right, stride;
};

/// Returns the layout of a layout spec from the cache, which builds it on a miss.
std::shared_ptr<const BlockLayout> layout_of(const LayoutRequest& call);

}  // namespace longspan
