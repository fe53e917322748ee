#include "core/kernels/entmax_attention.h"

#include "cuda/attention/schedule.h"
#include "cuda/entmax.cuh"
#include "cuda/register.h"

namespace longspan::cuda {
namespace {

/// A number for each row of a tile [B, H, R], in any strides.
template <class T>
struct PerRow {
  T* data = nullptr;
  int64_t sample = 0, head = 0, row = 0;

  template <class V>
  static PerRow of(const V& x) {
    if (!x) return {};
    return {x.template as<T>(), x.stride(0), x.stride(1), x.stride(2)};
  }
  __device__ T& at(int64_t b, int64_t h, int64_t r) const {
    return data[b * sample + h * head + r * row];
  }
};

/// Rows of a tile of scores [B, H, R, n].
struct TileRows {
  kernels::EntmaxTile tile;
  kernels::MaskTables masks;
  const int64_t* q_valid;
  int64_t heads, rows, n;
  Draws draws;

  TileRows(const kernels::EntmaxTile& t, const View& x)
      : tile(t),
        masks(t.masks, t.keys),
        q_valid(t.q_valid.as<int64_t>()),
        heads(x.dim(1)),
        rows(x.dim(2)),
        n(x.dim(3)) {
    draws.key = t.dropout.key;
    draws.threshold = static_cast<uint32_t>(drop_threshold(t.dropout.p));
    draws.active = t.dropout.p > 0;
    draws.scale = 1 / (1 - t.dropout.p);
    draws.first_head = static_cast<uint32_t>(t.dropout.first_head);
  }

  /// Clears the columns of row (b, r) that it does not see; returns the others.
  template <class T, int size>
  __device__ kernels::KeyInterval cleared(const Team<size>& team, int64_t b, int64_t r,
                                          T* row) const {
    kernels::KeyInterval seen = kernels::columns_of(tile, masks, q_valid, n, b, r);
    if (seen.lo >= seen.hi) seen = {0, 0};
    for_row<1>(team, n, [&](int64_t i) {
      if (i < seen.lo || i >= seen.hi) row[i] = T(0);
    });
    return seen;
  }

  /// Applies dropout to what row (b, h, r) has for the keys that it sees.
  template <class T, int size>
  __device__ void drop(const Team<size>& team, int64_t b, int64_t h, int64_t r,
                       const kernels::KeyInterval& seen, T* row) const {
    if (!draws.active) return;
    const auto head = static_cast<uint32_t>(tile.head(b, h)),
               query = static_cast<uint32_t>(tile.first_query + r);
    T* const x = row + seen.lo;
    for_row<1>(team, seen.hi - seen.lo, [&](int64_t j) {
      const auto key = static_cast<uint32_t>(tile.first_key + seen.lo + j);
      x[j] *= draws.keeps(head, query, key, 0) ? static_cast<T>(draws.scale) : T(0);
    });
  }
};

template <class T>
struct TileForward {
  TileRows of;
  const T* alpha;
  T* x;
  PerRow<T> tau;

  template <int size>
  __device__ void operator()(int64_t i, const Team<size>& team) const {
    const int64_t b = i / of.rows / of.heads, h = i / of.rows % of.heads, r = i % of.rows;
    T* const row = x + i * of.n;
    const kernels::KeyInterval seen = of.cleared(team, b, r, row);
    const T t = entmax_row(team, row + seen.lo, alpha[h], row + seen.lo, seen.hi - seen.lo);
    if (team.rank() == 0) tau.at(b, h, r) = t;
    of.drop(team, b, h, r, seen, row);
  }
};

template <class T>
struct TileBackward {
  TileRows of;
  const T* alpha;
  T *x, *dp;
  PerRow<const T> tau;
  PerRow<T> dalpha;

  template <int size>
  __device__ void operator()(int64_t i, const Team<size>& team) const {
    const int64_t b = i / of.rows / of.heads, h = i / of.rows % of.heads, r = i % of.rows;
    T *const row = x + i * of.n, *const slopes = dp + i * of.n;
    of.cleared(team, b, r, slopes);
    const kernels::KeyInterval seen = of.cleared(team, b, r, row);
    const int64_t count = seen.hi - seen.lo;
    const T a = alpha[h], t = tau.at(b, h, r);
    of.drop(team, b, h, r, seen, slopes);
    T *const p = row + seen.lo, *const g = slopes + seen.lo;
    entmax_row_again(team, p, a, t, p, count);
    const T slope = entmax_row_gradient(team, p, a, g, g, count, dalpha.data != nullptr);
    if (team.rank() == 0 && dalpha.data != nullptr) dalpha.at(b, h, r) = slope;
    of.drop(team, b, h, r, seen, row);
  }
};

template <class T>
void forward_tile(const kernels::EntmaxTile& tile, const ConstView& alpha, const View& x,
                  const View& tau) {
  for_rows("entmax_tile_forward", x.dim(0) * x.dim(1) * x.dim(2), x.dim(3),
           TileForward<T>{{tile, x}, alpha.as<T>(), x.as<T>(), PerRow<T>::of(tau)});
}

template <class T>
void backward_tile(const kernels::EntmaxTile& tile, const ConstView& alpha, const ConstView& tau,
                   const View& x, const View& dp, const View& dalpha) {
  for_rows("entmax_tile_backward", x.dim(0) * x.dim(1) * x.dim(2), x.dim(3),
           TileBackward<T>{{tile, x},
                           alpha.as<T>(),
                           x.as<T>(),
                           dp.as<T>(),
                           PerRow<const T>::of(tau),
                           PerRow<T>::of(dalpha)});
}

}  // namespace

void register_entmax_attention() {
  using kernels::EntmaxTile;
  kernels::entmax_tile_forward.set(DeviceKind::cuda,
                                   [](EntmaxTile tile, ConstView alpha, View x, View tau) {
                                     if (x.dtype == DType::f64)
                                       return forward_tile<double>(tile, alpha, x, tau);
                                     forward_tile<float>(tile, alpha, x, tau);
                                   });
  kernels::entmax_tile_backward.set(
      DeviceKind::cuda,
      [](EntmaxTile tile, ConstView alpha, ConstView tau, View x, View dp, View dalpha) {
        if (x.dtype == DType::f64) return backward_tile<double>(tile, alpha, tau, x, dp, dalpha);
        backward_tile<float>(tile, alpha, tau, x, dp, dalpha);
      });
}

}  // namespace longspan::cuda
