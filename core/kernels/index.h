#pragma once

#include <cstdint>
#include <optional>

#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

/// found = the row-major place of the first id that is neither `ignore`, where there is one, nor in
/// [low, high), -1 where there is none, and that id. checked, unless empty: ids with all such
/// replaced by max(low, 0). ids: any integers, any strides, at least one; checked: of its dtype and
/// shape, contiguous; found: i64 [2].
inline constinit Kernel<void(ConstView ids, int64_t low, int64_t high,
                             std::optional<int64_t> ignore, View checked, View found)>
    check_ids{"check_ids"};

/// y[g, i] = x[g, ids[g, i]]; zeros where the id is negative.
///   x [G, R, W] with rows of stride 1, any dtype; ids [G, n], any integers and strides;
///   y [G, n, W], contiguous
inline constinit Kernel<void(ConstView x, ConstView ids, View y)> gather_rows{"gather_rows"};

/// y[g, ids[g, i]] += x[g, i] for i in order, leaving out negative ids. The sum for a row is formed
/// in the accumulator type and added to y once.
///   x    [G, n, W], contiguous, floating
///   ids  [G, n]; a stride of 0 along G means one list for all
///   work i32 [lists, R + 1 + n], contiguous, where lists is 1 for a common list, else G
///   y    [G, R, W], contiguous, dtype of x
inline constinit Kernel<void(ConstView x, ConstView ids, View work, View y)> scatter_add_rows{
    "scatter_add_rows"};

/// y[r, v] += how many of ids[r, :] equal v. ids [rows, n], any integers; y i64 [rows, values];
/// both contiguous.
inline constinit Kernel<void(ConstView ids, View y)> bincount{"bincount"};

}  // namespace longspan::kernels
