#include "ops/patterns/segments.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.h"

namespace longspan::patterns {
namespace {

AttentionPattern segments_of(std::span<const int64_t> queries, std::span<const int64_t> keys,
                             bool causal) {
  constexpr const char* kOp = "segments";
  require<ShapeError>(queries.size() == keys.size(), kOp,
                      "got {} segments of queries and {} of keys; expected as many", queries.size(),
                      keys.size());
  std::vector<TileRuns> tiles;
  int64_t q = 0, k = 0;
  for (size_t s = 0; s < queries.size(); ++s) {
    require<ShapeError>(queries[s] >= 0 && keys[s] >= 0, kOp,
                        "segment {} has {} queries and {} keys; expected 0 or more", s, queries[s],
                        keys[s]);
    const int64_t height = tile_height(queries[s], kRowGroup);
    for (int64_t i = 0; i < queries[s]; i += height) {
      const int64_t end = std::min(queries[s], i + height), seen = causal ? end : keys[s];
      std::vector<KeyRun> runs;
      if (seen > 0) runs = {run_of(k, k + seen, causal ? RunKind::partial : RunKind::full)};
      tiles.push_back(tile_of(q + i, q + end, std::move(runs)));
    }
    q += queries[s];
    k += keys[s];
  }
  AttentionPattern p;
  p.layout = make_layout(q, k, {tiles});
  p.rules = {Rule{.causal = causal, .q_start = 0}};
  p.name = causal ? "causal_segments" : "segments";
  return p;
}

}  // namespace

AttentionPattern segments(std::span<const int64_t> queries, std::span<const int64_t> keys) {
  return segments_of(queries, keys, false);
}

AttentionPattern segments(std::span<const int64_t> lengths) {
  return segments_of(lengths, lengths, false);
}

AttentionPattern causal_segments(std::span<const int64_t> lengths) {
  return segments_of(lengths, lengths, true);
}

}  // namespace longspan::patterns
