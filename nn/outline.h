#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "nn/edge_rows.h"
#include "nn/layer.h"

namespace longspan {

/// One attention call of a layer: its pattern, and the rows and columns of the layer's picture that
/// its queries and keys map to (empty: the same indices).
struct AttentionCall {
  AttentionPattern pattern;
  int64_t queries = 0, keys = 0, side_keys = 0;
  std::vector<int32_t> query_at = {}, key_at = {}, side_at = {};
  std::shared_ptr<const EdgeLayout> edges =
      nullptr;  ///< if given, the pairs, in place of `pattern`
};

/// Which tokens see which in one layer, over one segment: for plots and counts.
struct AttentionOutline {
  int64_t rows = 0, columns = 0, heads = 0;
  std::vector<AttentionCall> calls;
};

/// Pairs of one head, summed over all calls of a layer.
struct OutlineCount {
  int64_t attended = 0, computed = 0;
};
/// Counts the pairs of a head, and calls visit(row, column) for each. Throws ValueError if two
/// calls with the same queries and keys share a pair, as block_attention() does.
OutlineCount count_pairs(const AttentionOutline& outline, int64_t head,
                         const std::function<void(int64_t row, int64_t column)>& visit = {});

/// Returns the outline of layer `layer` of a stack with `heads` heads that attend according to ctx:
/// `queries` rows, the last of `keys` keys.
AttentionOutline outline_of(const LayerContext& ctx, int64_t layer, int64_t heads, int64_t queries,
                            int64_t keys);
/// Returns the outline of a layer of edge attention over `nodes` nodes, which are rows and columns;
/// rows that the layer does not compute have no pairs.
AttentionOutline outline_of(const EdgeRows& rows, int64_t heads, int64_t nodes);

}  // namespace longspan
