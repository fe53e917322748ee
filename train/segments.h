#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace longspan {

/// The memory cost of a block of a stack.
struct BlockCost {
  int64_t kept = 0;   ///< bytes that it saves if it is not recomputed
  int64_t input = 0;  ///< bytes of its input, which is all that a segment beginning with it keeps
};

/// Returns the sizes of the checkpoint segments, from the first block on, that the backward pass
/// recomputes. The blocks after them keep their saved tensors, and release them before any segment
/// is recomputed. Among all segmentations within `room` bytes, it chooses the one that recomputes
/// the fewest blocks, by dynamic programming over the boundaries. The fewest bytes that segments of
/// blocks 0 .. i - 1 keep are
///   S(0) = 0,  S(i) = min over g of S(i - g) + input(i - g),  subject to
///   S(i - g) + input(i - g) + kept(i - g .. i - 1) <= room while that segment is recomputed.
/// The first m blocks are segmented, with m the smallest for which S(m) + kept(m .. N - 1) <= room.
/// Even segments are those of \cite chen2016. Returns an empty list if all blocks can keep
/// everything, and {0} if no segmentation fits.
std::vector<int64_t> plan_segments(std::span<const BlockCost> blocks, int64_t room);

}  // namespace longspan
