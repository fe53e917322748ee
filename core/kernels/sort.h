#pragma once

#include <cstdint>

#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

// Rows of x [rows, n], any dtype, contiguous. Order: numbers as they compare, -0 equal to 0, NaN
// above everything. Equal elements keep their order, ascending and descending.

/// Rows of the workspace of argsort and topk.
constexpr int64_t sort_slots(int64_t rows) { return rows < 16 ? rows : 16; }

/// indices[r, :] sorts row r.
///   indices i64 [rows, n], contiguous
///   work    i64 [sort_slots(rows), 4 n], contiguous
inline constinit Kernel<void(ConstView x, bool descending, View work, View indices)> argsort{
    "argsort"};
/// indices[r, :] are the first k of argsort's.
///   indices i64 [rows, k], k <= n, contiguous; work as for argsort
inline constinit Kernel<void(ConstView x, bool descending, View work, View indices)> topk{"topk"};
/// inverse[r, order[r, i]] = i. order: integers in [0, n), [rows, n], contiguous; inverse i64 of
/// that shape, -1 where no i is, and any of them where several are. found: i64 [2], the place
/// (row-major) of an id that an earlier place of its row holds too, -1 where there is none, and it.
inline constinit Kernel<void(ConstView order, View inverse, View found)> invert_permutation{
    "invert_permutation"};

}  // namespace longspan::kernels
