#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "nn/layer.h"

namespace longspan {

/// One call of attention in a layer: its pattern, and where its queries and keys lie among the rows
/// and columns of the layer's picture (empty: where they are).
struct AttentionCall {
  AttentionPattern pattern;
  int64_t queries = 0, keys = 0, side_keys = 0;
  std::vector<int32_t> query_at = {}, key_at = {}, side_at = {};
};

/// Who sees whom in one layer, over one segment: for pictures and counts.
struct AttentionOutline {
  int64_t rows = 0, columns = 0, heads = 0;
  std::vector<AttentionCall> calls;
};

/// Pairs of one head, of all calls of a layer. Calls visit(row, column) for every pair attended to.
struct OutlineCount {
  int64_t attended = 0, computed = 0;
};
OutlineCount count_pairs(const AttentionOutline& outline, int64_t head,
                         const std::function<void(int64_t row, int64_t column)>& visit = {});

/// The outline of layer `layer` of a stack whose `heads` heads attend as `given` says: `queries`
/// rows, the last of `keys` keys.
AttentionOutline outline_of(const LayerContext& ctx, int64_t layer, int64_t heads, int64_t queries,
                            int64_t keys);

}  // namespace longspan
