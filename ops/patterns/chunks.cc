#include "ops/patterns/chunks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "core/divide.h"
#include "ops/patterns/layout_cache.h"

namespace longspan::patterns {
namespace {

/// Returns the runs of a tile whose rows, up to position `last`, are in chunk c of `count`.
std::vector<KeyRun> runs_of(int64_t c, int64_t count, int64_t last, int64_t keys,
                            const ChunkWindow& w) {
  std::map<int64_t, int64_t> times;  // multiplicity of each chunk
  for (int64_t k = c - w.before; k <= c + w.after; ++k) {
    const bool inside = k >= 0 && k < count;
    if (inside || (w.circle && count > 1)) ++times[(k % count + count) % count];
  }
  std::vector<KeyRun> runs;
  for (const auto& [k, n] : times) {
    if (w.causal && k > c) break;
    const bool cut = w.causal && k == c;
    const int64_t begin = k * w.chunk, end = cut ? last + 1 : std::min(begin + w.chunk, keys);
    runs.push_back(run_of(begin, end, cut ? RunKind::partial : RunKind::full, n));
  }
  return runs;
}

}  // namespace

AttentionPattern chunks(int64_t queries, int64_t keys, const ChunkWindow& w) {
  require(w.chunk >= 1 && w.before >= 0 && w.after >= 0, "patterns::chunks",
          "chunks of {}, {} before and {} after; expected 1 or more, and 0 or more", w.chunk,
          w.before, w.after);
  require(keys >= queries, "patterns::chunks", "{} queries of {} keys; expected as many or fewer",
          queries, keys);
  LayoutKey key("patterns::chunks");
  for (const int64_t n : {queries, keys, w.chunk, w.before, w.after}) key.add(n);
  key.add(w.circle ? 1 : 0).add(w.causal ? 1 : 0);
  AttentionPattern p;
  p.layout = cached_layout(key, [&] {
    const int64_t first = keys - queries;  // position of query 0
    const int64_t height = tile_height(w.chunk), count = ceil_div(keys, w.chunk);
    std::vector<TileRuns> tiles;
    for (int64_t i = 0; i < queries;) {
      const int64_t c = (first + i) / w.chunk;
      const int64_t end = std::min({queries, (c + 1) * w.chunk - first, i + height});
      tiles.push_back(tile_of(i, end, runs_of(c, count, first + end - 1, keys, w)));
      i = end;
    }
    return make_layout(queries, keys, {tiles});
  });
  p.rules = {Rule{.causal = w.causal}};
  p.name = fmt::format("chunks({}, {} before, {} after{})", w.chunk, w.before, w.after,
                       w.causal ? ", causal" : "");
  return p;
}

}  // namespace longspan::patterns
