#include "nn/outline.h"

#include <utility>

#include "core/error.h"
#include "ops/patterns/disjoint.h"
#include "ops/patterns/edges.h"
#include "ops/patterns/pairs.h"

namespace longspan {
namespace {

int64_t place(const std::vector<int32_t>& at, int64_t i) {
  return at.empty() ? i : at[static_cast<size_t>(i)];
}

// Checks that no pair of the picture is in two calls with the same queries and keys.
void require_disjoint_calls(const AttentionOutline& outline) {
  const auto& calls = outline.calls;
  for (size_t m = 1; m < calls.size(); ++m) {
    for (size_t n = 0; n < m; ++n) {
      const AttentionCall &a = calls[n], &b = calls[m];
      const bool same_side = a.side_keys == 0 || b.side_keys == 0 || a.side_at == b.side_at;
      if (a.edges != nullptr || b.edges != nullptr || a.queries != b.queries || a.keys != b.keys ||
          a.query_at != b.query_at || a.key_at != b.key_at || !same_side) {
        continue;
      }
      const AttentionPattern parts[] = {resolve(a.pattern, a.queries, a.keys, a.side_keys),
                                        resolve(b.pattern, b.queries, b.keys, b.side_keys)};
      require_disjoint("attention outline", parts, 1, outline.heads);
    }
  }
}

}  // namespace

OutlineCount count_pairs(const AttentionOutline& outline, int64_t head,
                         const std::function<void(int64_t row, int64_t column)>& visit) {
  require_disjoint_calls(outline);
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
