#pragma once

#include <cstdint>
#include <span>

#include "ops/patterns/pattern.h"

namespace longspan::patterns {

// Sequences of different lengths, one after another without padding: segment s has the next
// queries[s] rows and the next keys[s] keys, and attention stays inside it. A layout has one tile
// of rows for each segment, or several if it is long, so that a row's result has the same bits
// wherever its segment lies and whatever the others are. Use them with a batch of 1.

/// Rows see all keys of their segment; rows of a segment without keys see none. Throws ShapeError
/// if the numbers of segments differ or a length is negative.
AttentionPattern segments(std::span<const int64_t> queries, std::span<const int64_t> keys);
/// The same for self-attention: as many keys as rows.
AttentionPattern segments(std::span<const int64_t> lengths);
/// Rows see their own and the earlier keys of their segment.
AttentionPattern causal_segments(std::span<const int64_t> lengths);

}  // namespace longspan::patterns
