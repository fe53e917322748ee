#pragma once

#include <optional>

#include "core/deferred.h"
#include "core/tensor.h"

namespace longspan {

// Ids are i64, i32 or u8. An id out of range is a ValueError that names its index, its value and
// the range. On the host it is thrown before any work; for a device see detail::checked_ids.
// Gradients of repeated ids are summed in index order and added in place to the input's gradient,
// so they cost as much as the elements taken, not the size of the table.

/// y[..., :] = weight[ids[...], :].
///   weight  [V, ...]  any dtype
///   ids     [...]
///   returns ids' axes, then weight's without the first
///   saves   ids
Tensor embedding(const Tensor& weight, const Tensor& ids);

/// Returns elements ids[0], ids[1], ... of one axis.
///   x       any dtype
///   ids     [n]; negative ones are not allowed
///   returns x with n elements along the axis
///   saves   ids
Tensor take(const Tensor& x, const Tensor& ids, int axis = 0);

/// y[..., i, ...] = x[..., ids[..., i, ...], ...] along one axis.
///   ids     rank of x and its sizes, except along the axis
///   returns shape of ids
///   saves   ids
Tensor take_along_axis(const Tensor& x, const Tensor& ids, int axis = -1);

/// y[..., i, :] = x[..., order[..., i], :]: gathers rows by lists that may omit or repeat rows. An
/// id of -1 gives a row of zeros.
///   x       [..., L, D]  any dtype
///   order   [..., n]     leading axes of x; a size of 1 or a missing axis shares one list
///   returns [..., n, D]
///   saves   order
Tensor permute_rows(const Tensor& x, const Tensor& order);

/// The transpose of permute_rows: y[..., r, :] = sum of x[..., i, :] over i with order[..., i] = r.
/// Rows that no id names are zero.
///   x       [..., n, D]  floating
///   order   [..., n]     as for permute_rows, with ids in [-1, rows)
///   returns [..., rows, D]
///   saves   order
Tensor scatter_rows(const Tensor& x, const Tensor& order, int64_t rows);

/// Returns x with updates added: y[..., ids[i], ...] = x[...] + sum of updates[..., i, ...].
///   x        floating
///   ids      [n]
///   updates  x with n elements along the axis
///   returns  shape of x
///   saves    ids
Tensor scatter_add(const Tensor& x, const Tensor& ids, const Tensor& updates, int axis = 0);

/// y[..., v] = how many of ids[..., :] equal v.
///   ids     [..., n]
///   returns [..., values]  i64
Tensor bincount(const Tensor& ids, int64_t values);

namespace detail {
/// Returns ids that are safe to use: each lies in [low, high) or equals `ignore`. Reports an id
/// that does not, on the host at once, on a device when the host next reads from it or waits for it
/// (core/deferred.h). In the latter case the result is a copy with such ids replaced by max(low,
/// 0), so that nothing is read out of range. Ids into an empty range are always reported at once.
Tensor checked_ids(const Tensor& ids, int64_t low, int64_t high, std::optional<int64_t> ignore,
                   deferred::ErrorHandler on_error);
/// The same, reporting a ValueError that names the op and the ids.
Tensor checked_ids(std::string_view op, const Tensor& ids, int64_t low, int64_t high,
                   std::string_view name = "ids");
/// Checks the ids at once, waiting for the device.
void require_ids(std::string_view op, const Tensor& ids, int64_t low, int64_t high,
                 std::string_view name = "ids");
}  // namespace detail

}  // namespace longspan
