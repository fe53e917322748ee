#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention/entmax_tiles.cc"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "core/kernels/entmax_attention.h"
#include "core/parallel.h"
#include "cpu/attention/plan.h"
#include "cpu/attention/terms-inl.h"
#include "cpu/entmax-inl.h"
#include "cpu/register.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

using kernels::EntmaxTile;
using kernels::KeyInterval;

constexpr int64_t grain = 1 << 14;  // elements per task

template <class T>
void clear_unseen(const KeyInterval& seen, T* row, int64_t n) {
  std::fill(row, row + seen.lo, T(0));
  std::fill(row + seen.hi, row + n, T(0));
}

/// Calls f(b, h, r, index of the row, columns that it sees) for all rows of a tile [B, H, R, n], in
/// parallel.
template <class F>
void for_rows(const EntmaxTile& tile, const Shape& shape, F&& f) {
  const int64_t heads = shape[1], rows = shape[2], n = shape[3];
  const kernels::MaskTables masks(tile.masks, tile.keys);
  const auto* const valid = tile.q_valid.as<int64_t>();
  parallel_ranges(shape[0] * heads * rows, std::max<int64_t>(1, grain / std::max<int64_t>(n, 1)),
                  [&](int64_t i, int64_t end) {
                    for (; i < end; ++i) {
                      const int64_t b = i / rows / heads, h = i / rows % heads, r = i % rows;
                      KeyInterval seen = kernels::columns_of(tile, masks, valid, n, b, r);
                      if (seen.lo >= seen.hi) seen = {0, 0};
                      f(b, h, r, i, seen);
                    }
                  });
}

/// Multiplies what row `query` of a head has for keys first_key .. first_key + n by the factors of
/// dropout.
template <class T>
void drop(const KeepRow<T>& keep, int64_t query, int64_t first_key, int64_t n, T* row) {
  HeadSegment all;
  all.keys = std::numeric_limits<int32_t>::max();
  alignas(64) T factors[KeepRow<T>::kSize];
  while (n > 0) {
    const int64_t start = first_key % 4, some = std::min(n, kBlock - start);
    keep.fill(query, all, first_key - start, start, start + some, factors);
    for (int64_t j = 0; j < some; ++j) row[j] *= factors[start + j];
    first_key += some;
    row += some;
    n -= some;
  }
}

template <class T>
T& at(const View& x, int64_t b, int64_t h, int64_t r) {
  return x.as<T>()[b * x.strides[0] + h * x.strides[1] + r * x.strides[2]];
}

template <class T>
void forward_tile(const EntmaxTile& tile, const ConstView& alpha, const View& x, const View& tau) {
  const int64_t n = x.shape[3];
  for_rows(tile, x.shape, [&](int64_t b, int64_t h, int64_t r, int64_t i, const KeyInterval& seen) {
    T* const row = x.as<T>() + i * n;
    clear_unseen(seen, row, n);
    const int64_t count = seen.hi - seen.lo;
    at<T>(tau, b, h, r) = entmax::forward_row(row + seen.lo, alpha.as<T>()[h], row + seen.lo,
                                              static_cast<size_t>(count));
    const KeepRow<T> keep(tile.dropout, tile.head(b, h));
    if (!keep.active()) return;
    drop(keep, tile.first_query + r, tile.first_key + seen.lo, count, row + seen.lo);
  });
}

template <class T>
void backward_tile(const EntmaxTile& tile, const ConstView& alpha, const ConstView& tau,
                   const View& x, const View& dp, const View& dalpha) {
  const int64_t n = x.shape[3];
  for_rows(tile, x.shape, [&](int64_t b, int64_t h, int64_t r, int64_t i, const KeyInterval& seen) {
    T *const row = x.as<T>() + i * n, *const slopes = dp.as<T>() + i * n;
    clear_unseen(seen, row, n);
    clear_unseen(seen, slopes, n);
    const auto count = static_cast<size_t>(seen.hi - seen.lo);
    const T a = alpha.as<T>()[h],
            t = tau.as<T>()[b * tau.strides[0] + h * tau.strides[1] + r * tau.strides[2]];
    const KeepRow<T> keep(tile.dropout, tile.head(b, h));
    const auto dropped = [&](T* of) {
      if (!keep.active()) return;
      drop(keep, tile.first_query + r, tile.first_key + seen.lo, seen.hi - seen.lo, of + seen.lo);
    };
    dropped(slopes);
    entmax::probabilities_row(row + seen.lo, a, t, row + seen.lo, count);
    entmax::backward_row(row + seen.lo, a, slopes + seen.lo, slopes + seen.lo,
                         dalpha ? &at<T>(dalpha, b, h, r) : nullptr, count);
    dropped(row);
  });
}

void forward(const EntmaxTile& tile, const ConstView& alpha, const View& x, const View& tau) {
  if (x.dtype == DType::f64) return forward_tile<double>(tile, alpha, x, tau);
  forward_tile<float>(tile, alpha, x, tau);
}

void backward(const EntmaxTile& tile, const ConstView& alpha, const ConstView& tau, const View& x,
              const View& dp, const View& dalpha) {
  if (x.dtype == DType::f64) return backward_tile<double>(tile, alpha, tau, x, dp, dalpha);
  backward_tile<float>(tile, alpha, tau, x, dp, dalpha);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::cpu {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void register_entmax_attention() {
  using kernels::EntmaxTile;
  kernels::entmax_tile_forward.set(DeviceKind::cpu,
                                   [](EntmaxTile tile, ConstView alpha, View x, View tau) {
                                     HWY_DYNAMIC_DISPATCH(forward)(tile, alpha, x, tau);
                                   });
  kernels::entmax_tile_backward.set(
      DeviceKind::cpu,
      [](EntmaxTile tile, ConstView alpha, ConstView tau, View x, View dp, View dalpha) {
        HWY_DYNAMIC_DISPATCH(backward)(tile, alpha, tau, x, dp, dalpha);
      });
}

}  // namespace longspan::cpu
#endif
