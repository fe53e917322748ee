#pragma once

#include <cstdint>
#include <optional>

#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

/// found = {the row-major index of the first invalid id, that id}, or -1 if there is none. An id is
/// invalid if it is outside [low, high) and not equal to `ignore` (if given). checked, unless
/// empty: ids with every invalid one replaced by max(low, 0). ids: any integer dtype, any strides,
/// at least one; checked: same dtype and shape, contiguous; found: i64 [2].
inline constinit Kernel<void(ConstView ids, int64_t low, int64_t high,
                             std::optional<int64_t> ignore, View checked, View found)>
    check_ids{"check_ids"};

/// y[g, i] = x[g, ids[g, i]]; zeros if the id is negative.
///   x [G, R, W] with rows of stride 1, any dtype; ids [G, n], any integers and strides;
///   y [G, n, W], contiguous
inline constinit Kernel<void(ConstView x, ConstView ids, View y)> gather_rows{"gather_rows"};

/// y[g, ids[g, i]] += x[g, i] for i in order, skipping negative ids. The sum for a row is computed
/// in the accumulator type and added to y once.
///   x    [G, n, W], contiguous, floating
///   ids  [G, n]; a stride of 0 along G means one list for all
///   work i32 [lists, R + 1 + n], contiguous; lists is 1 for a common list, else G
///   y    [G, R, W], contiguous, dtype of x
inline constinit Kernel<void(ConstView x, ConstView ids, View work, View y)> scatter_add_rows{
    "scatter_add_rows"};

/// y[r, v] += number of ids[r, :] that equal v. ids [rows, n], any integer dtype; y i64 [rows,
/// values]; both contiguous.
inline constinit Kernel<void(ConstView ids, View y)> bincount{"bincount"};

}  // namespace longspan::kernels
