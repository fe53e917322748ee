#include "nn/outline.h"

#include <utility>

#include "core/error.h"
#include "ops/patterns/edges.h"
#include "ops/patterns/pairs.h"

namespace longspan {
namespace {

int64_t place(const std::vector<int32_t>& at, int64_t i) {
  return at.empty() ? i : at[static_cast<size_t>(i)];
}

}  // namespace

OutlineCount count_pairs(const AttentionOutline& outline, int64_t head,
                         const std::function<void(int64_t row, int64_t column)>& visit) {
  OutlineCount total;
  for (const AttentionCall& call : outline.calls) {
    if (call.edges != nullptr) {
      total.attended += call.edges->pairs;
      total.computed += call.edges->pairs;
      if (!visit) continue;
      for (const Edge& e : edges_of(*call.edges)) {
        visit(place(call.query_at, e.row), place(call.key_at, e.key));
      }
      continue;
    }
    const auto each = [&](int64_t i, int segment, int64_t j) {
      visit(place(call.query_at, i), place(segment == 0 ? call.key_at : call.side_at, j));
    };
    std::function<void(int64_t, int, int64_t)> pair;
    if (visit) pair = each;
    const PairCount n =
        count_pairs(call.pattern, call.queries, call.keys, call.side_keys, 0, head, pair);
    total.attended += n.attended;
    total.computed += n.computed;
  }
  return total;
}

AttentionOutline outline_of(const LayerContext& ctx, int64_t layer, int64_t heads, int64_t queries,
                            int64_t keys) {
  AttentionOutline outline{.rows = queries, .columns = keys, .heads = heads, .calls = {}};
  require(layer >= 0, "attention outline", "layer {}; expected 0 or more", layer);
  const bool own = !ctx.layer_patterns.empty();
  require(!own || layer < static_cast<int64_t>(ctx.layer_patterns.size()), "attention outline",
          "layer {} of {}", layer, ctx.layer_patterns.size());
  const AttentionPattern& first =
      own ? ctx.layer_patterns[static_cast<size_t>(layer)] : ctx.pattern;
  outline.calls.push_back({.pattern = first, .queries = queries, .keys = keys});
  for (const AttentionPattern& more : ctx.also) {
    outline.calls.push_back({.pattern = more, .queries = queries, .keys = keys});
  }
  return outline;
}

AttentionOutline outline_of(const EdgeRows& rows, int64_t heads, int64_t nodes) {
  AttentionOutline outline{.rows = nodes, .columns = nodes, .heads = heads, .calls = {}};
  AttentionCall call{
      .pattern = {}, .queries = rows.layout->n_rows, .keys = nodes, .edges = rows.layout};
  for (int64_t i = 0; i < call.queries; ++i) {
    call.query_at.push_back(static_cast<int32_t>(rows.first + i));
  }
  outline.calls.push_back(std::move(call));
  return outline;
}

}  // namespace longspan
