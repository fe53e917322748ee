#pragma once

#include "core/kernels/block_attention.h"
#include "ops/patterns/layout.h"

namespace longspan {

/// The order in which a device works through a layout, most of it first, so that no long piece is
/// left for the end; equals in ascending order of their places. See AttentionWorkView.
struct LayoutWork {
  BlockWork rows, columns;
};

/// The work of a layout on the host over so many queries and keys. Costs are counted, not timed: of
/// a tile the steps of kAttentionWorkKeys places that its runs touch, of such a step the pieces of
/// 32 rows of the tiles that touch it.
///
/// What costs much more than the rest, because few rows see all keys or few keys are seen by all
/// rows, is cut into splits of nearly equal cost: of 12 steps or 768 rows, at least, and longer
/// ones until the room of a head's splits is an eighth of its rows and keys at most. Nothing is
/// cut unless the longest piece gets shorter by a third. Each member's layout alone decides about
/// its cuts, so that no sample's bits depend on the others.
LayoutWork work_of(const kernels::AttentionLayoutView& layout, int64_t queries, int64_t keys,
                   int64_t side_keys);

}  // namespace longspan
