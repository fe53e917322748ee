#pragma once

#include "core/kernels/block_attention.h"
#include "core/tensor.h"

namespace longspan {

/// The order in which a device works through a layout: expensive items first, so that no long one
/// is left for the end. Items of equal cost are sorted by index. See AttentionWork.
struct LayoutWork {
  kernels::AttentionWork<Tensor> rows, columns;
};
/// Returns a work list as kernels take it.
kernels::AttentionWork<ConstView> view_of(const kernels::AttentionWork<Tensor>& work);

/// Returns the work lists of a layout on the host for these numbers of queries and keys. Costs are
/// counted, not timed: a tile costs the number of key steps (kAttentionWorkKeys keys each) that its
/// runs touch; a key step costs the number of 32-row pieces of the tiles that touch it.
///
/// Items that cost much more than the rest, because few rows see all keys or few keys are seen by
/// all rows, are cut into splits of nearly equal cost. A split has at least 12 steps or 768 rows;
/// splits get longer until the workspace of a head's splits is at most an eighth of its rows and
/// keys. Nothing is cut unless the longest item gets shorter by a third. The cuts of a member
/// depend on its own layout only, so that no sample's bits depend on the others.
LayoutWork work_of(const kernels::AttentionLayoutView& layout, int64_t queries, int64_t keys,
                   int64_t side_keys);

}  // namespace longspan
