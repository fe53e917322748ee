#include "ops/patterns/chunks.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "ops/patterns/pairs.h"

namespace longspan::test {
namespace {

using patterns::ChunkWindow;

/// Counts by definition how often query i attends to key j. Query 0 has position keys - queries.
int64_t times(int64_t i, int64_t j, int64_t queries, int64_t keys, const ChunkWindow& w) {
  const int64_t position = i + keys - queries, count = (keys + w.chunk - 1) / w.chunk;
  const int64_t c = position / w.chunk;
  int64_t n = 0;
  for (int64_t k = c - w.before; k <= c + w.after; ++k) {
    int64_t chunk = k;
    if (k < 0 || k >= count) {
      if (!w.circle || count == 1) continue;
      while (chunk < 0) chunk += count;
      chunk %= count;
    }
    n += chunk == j / w.chunk && (!w.causal || j <= position) ? 1 : 0;
  }
  return n;
}

TEST(PatternChunks, AreTheDefinition) {
  const std::pair<int64_t, int64_t> lengths[] = {{1, 1},   {7, 7},  {40, 40}, {41, 41},
                                                 {16, 16}, {1, 23}, {5, 23},  {130, 130}};
  for (const auto& [queries, keys] : lengths) {
    for (const ChunkWindow& w :
         {ChunkWindow{8, 1, 0, true, false}, ChunkWindow{8, 2, 0, true, true},
          ChunkWindow{8, 1, 1, false, false}, ChunkWindow{8, 1, 1, false, true},
          ChunkWindow{5, 0, 2, false, true}, ChunkWindow{64, 1, 0, false, true},
          ChunkWindow{3, 0, 0, true, false}}) {
      const AttentionPattern p = patterns::chunks(queries, keys, w);
      std::map<std::pair<int64_t, int64_t>, int64_t> found;
      for (const TileRuns& tile : tiles_of(*p.layout, 0)) {
        for (const longspan::KeyRun& run : tile.runs) {
          for (int64_t i = tile.q0; i < tile.q0 + tile.qn; ++i) {
            for (int64_t j = run.k0; j < run.k0 + run.kn; ++j) {
              if (run.kind == RunKind::full || j <= i + keys - queries) {
                found[{i, j}] += run.multiplicity;
              }
            }
          }
        }
      }
      int64_t visible = 0;
      for (int64_t i = 0; i < queries; ++i) {
        for (int64_t j = 0; j < keys; ++j) {
          const int64_t n = times(i, j, queries, keys, w);
          visible += n > 0 ? 1 : 0;
          const auto at = found.find({i, j});
          ASSERT_EQ(at == found.end() ? 0 : at->second, n)
              << p.name << " of " << queries << " x " << keys << " at " << i << ", " << j;
        }
      }
      if (!p.layout->multiplied) {
        EXPECT_EQ(visible_pairs(p, queries, keys), visible);
      }
    }
  }
}

TEST(PatternChunks, RefuseWhatIsNoWindow) {
  EXPECT_THROW(patterns::chunks(4, 4, {.chunk = 0}), ValueError);
  EXPECT_THROW(patterns::chunks(4, 4, {.before = -1}), ValueError);
  EXPECT_THROW(patterns::chunks(5, 4, {}), ValueError);
}

}  // namespace
}  // namespace longspan::test
