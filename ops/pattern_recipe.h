#pragma once

#include <cstdint>
#include <memory>

#include "ops/pattern.h"

namespace longspan {

/// Everything that the layout of a recipe depends on: the lengths, and of the pattern's rule the
/// position of query 0, the distances to either side, in steps, and the size of a step.
struct RecipeCall {
  Recipe recipe;
  int64_t queries, keys, q_start, left, right, stride;
  friend bool operator==(const RecipeCall&, const RecipeCall&) = default;
};

/// The layout of a recipe. Those in use are shared by content; building one is cheap beside a call
/// that reads it, so nothing is kept for later.
std::shared_ptr<const BlockLayout> layout_of(const RecipeCall& call);

}  // namespace longspan
