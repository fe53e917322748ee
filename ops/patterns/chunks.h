#pragma once

#include <cstdint>

#include "ops/patterns/pattern.h"

namespace longspan::patterns {

/// Which chunks of m keys a query sees besides its own, floor(position / m).
struct ChunkWindow {
  int64_t chunk = 64;             ///< m
  int64_t before = 1, after = 0;  ///< a, z
  bool causal = false;            ///< and of these keys those up to its own position
  /// Chunks before the first are the last ones and the other way round, where there are several
  /// chunks. One that is met twice counts twice.
  bool circle = false;
};

/// Chunks floor(q / m) - a to floor(q / m) + z \cite kitaev2020 (local attention), for these
/// lengths; where there are more keys than queries, the queries are the last. The last chunk may be
/// shorter. Throws ValueError unless chunk >= 1 and before, after >= 0.
AttentionPattern chunks(int64_t queries, int64_t keys, const ChunkWindow& window);

}  // namespace longspan::patterns
