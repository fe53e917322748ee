#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace longspan {

/// What a block of a stack costs.
struct BlockCost {
  int64_t kept = 0;   ///< bytes that it saves where it is not run again
  int64_t input = 0;  ///< bytes of its input, all that stays of a segment that begins with it
};

/// Sizes of the segments of blocks, from the first block on, that are run again in the backward
/// pass; the blocks after them keep what they save, and release it before any segment is run again.
/// Of all such cuts that stay within `room` bytes the one that runs the fewest blocks again, by
/// dynamic programming over the boundaries: the fewest bytes that segments of blocks 0 .. i - 1
/// leave behind are
///   S(0) = 0,  S(i) = min over g of S(i - g) + input(i - g),  where
///   S(i - g) + input(i - g) + kept(i - g .. i - 1) <= room, as that segment is run again,
/// and the first m blocks are cut, m the smallest with S(m) + kept(m .. N - 1) <= room. Even cuts
/// are those of \cite chen2016. Empty where all blocks may keep all; {0} where no cut is small
/// enough.
std::vector<int64_t> plan_segments(std::span<const BlockCost> blocks, int64_t room);

}  // namespace longspan
