#pragma once

#include <cstdint>
#include <vector>

#include "ops/pattern.h"

namespace longspan {

/// The tiles of a recipe of kind `fixed`: rows of one block share a tile, so that its runs are the
/// columns of earlier blocks (full) and a part of the own block, which the causal rule borders.
std::vector<TileRuns> fixed_tiles(int64_t queries, int64_t keys, int64_t q_start,
                                  const Recipe& recipe);

}  // namespace longspan
