#pragma once

#include <cstdint>
#include <memory>

#include "ops/patterns/pattern.h"

namespace longspan {

/// Everything that the layout of a layout_spec depends on: the lengths, and of the pattern's rule
/// the position of query 0, the distances to either side, in steps, and the size of a step.
struct RecipeCall {
  LayoutSpec layout_spec;
  int64_t queries, keys, q_start, left, right, stride;
};

/// The layout of a layout_spec, from the cache.
std::shared_ptr<const BlockLayout> layout_of(const RecipeCall& call);

}  // namespace longspan
