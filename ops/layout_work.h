#pragma once

#include "core/tensor.h"
#include "ops/kernels/block_attention.h"

namespace longspan {

/// The order in which a device works through a layout, most of it first, so that no long piece is
/// left for the end; equals in ascending order of their places. See AttentionLayoutView.
struct LayoutWork {
  Tensor rows, columns;  // i32 [.., 2]
};

/// The work of a layout on the host over so many keys. Costs are counted, not timed: of a tile the
/// steps of kAttentionWorkKeys places that its runs touch, of such a step the pieces of 32 rows of
/// the tiles that touch it.
LayoutWork work_of(const kernels::AttentionLayoutView& layout, int64_t keys, int64_t side_keys);

}  // namespace longspan
