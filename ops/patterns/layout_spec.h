#pragma once

#include <cstdint>
#include <memory>

#include "ops/patterns/layout.h"

namespace longspan {

/// Says how to lay out blocks for the lengths of a call; the pattern builders fill it.
struct LayoutSpec {
  enum class Kind : uint8_t { none, dense, band, blocks, classes, fixed };
  Kind kind = Kind::none;
  int64_t block = 0;                      // blocks, fixed: block size
  int64_t key_start = 0;                  // blocks: position of key 0
  int64_t first_column = 0, columns = 0;  // fixed: the columns of each block that later rows see
  bool own_block = false;                 // fixed: a row sees all of its own block
  friend bool operator==(const LayoutSpec&, const LayoutSpec&) = default;
};

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
