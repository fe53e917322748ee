#pragma once

#include <cstdint>

#include "ops/patterns/pattern.h"

namespace longspan::patterns {

/// The chunks of m keys that a query sees besides its own chunk, floor(position / m).
struct ChunkWindow {
  int64_t chunk = 64;             ///< m
  int64_t before = 1, after = 0;  ///< a, z
  bool causal = false;            ///< only keys up to the query's own position
  /// With several chunks, the chunk before the first is the last one and the chunk after the last
  /// is the first one. A chunk that is reached twice counts twice.
  bool circle = false;
};

/// A query sees chunks floor(q / m) - a to floor(q / m) + z \cite kitaev2020 (local attention), for
/// these lengths; if there are more keys than queries, the queries are the last. The last chunk may
/// be shorter. Throws ValueError unless chunk >= 1, before, after >= 0 and keys >= queries.
AttentionPattern chunks(int64_t queries, int64_t keys, const ChunkWindow& window);

}  // namespace longspan::patterns
