#pragma once

#include <cstdint>
#include <span>

#include "ops/patterns/pattern.h"

namespace longspan::patterns {

// Sequences of different lengths, one after another without padding: segment s has the next
// queries[s] rows and the next keys[s] keys, and attention stays inside it. A layout has one tile
// of rows for each segment, or several if it is long. So a row's result depends on its segment
// alone, up to rounding: kernels take keys in blocks of kSegmentBlock. On the CPU its bits, and
// those of gradients, are the same at any two places of the segment whose first keys are apart by
//   - a multiple of kSegmentBlock, or
//   - a multiple of 32, if no multiple of kSegmentBlock lies between the segment's keys at either
//     place,
// whatever the others are. Use them with a batch of 1.

/// Keys of a block of attention on the CPU.
inline constexpr int64_t kSegmentBlock = 192;

/// Rows see all keys of their segment; rows of a segment without keys see none. Throws ShapeError
/// if the numbers of segments differ or a length is negative.
AttentionPattern segments(std::span<const int64_t> queries, std::span<const int64_t> keys);
/// The same for self-attention: as many keys as rows.
AttentionPattern segments(std::span<const int64_t> lengths);
/// Rows see their own and the earlier keys of their segment.
AttentionPattern causal_segments(std::span<const int64_t> lengths);

}  // namespace longspan::patterns
