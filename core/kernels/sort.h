#pragma once

#include <cstdint>

#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

// Rows of x [rows, n], any dtype, contiguous. Order: numeric, -0 equal to 0, NaN above everything.
// Equal elements keep their order, both ascending and descending.

/// Returns the rows of the workspace of argsort and topk.
constexpr int64_t sort_slots(int64_t rows) { return rows < 16 ? rows : 16; }

/// indices[r, :] sorts row r.
///   indices i64 [rows, n], contiguous
///   work    i64 [sort_slots(rows), 4 n], contiguous
inline constinit Kernel<void(ConstView x, bool descending, View work, View indices)> argsort{
    "argsort"};
/// indices[r, :] are the first k indices of argsort.
///   indices i64 [rows, k], k <= n, contiguous; work as for argsort
inline constinit Kernel<void(ConstView x, bool descending, View work, View indices)> topk{"topk"};
/// inverse[r, order[r, i]] = i. order: integers in [0, n), [rows, n], contiguous; inverse: i64 of
/// the same shape, -1 at values that order[r, :] lacks, and any of the i at duplicates. found: i64
/// [2], the row-major index of an id that occurs earlier in its row (-1 if there is none), and that
/// id.
inline constinit Kernel<void(ConstView order, View inverse, View found)> invert_permutation{
    "invert_permutation"};

}  // namespace longspan::kernels
