#include "core/kernels/routing.h"

#include <limits>
#include <type_traits>

#include "core/kernels/order.h"
#include "core/memory.h"
#include "cuda/elementwise.cuh"
#include "cuda/launch.h"
#include "cuda/product.cuh"
#include "cuda/register.h"

namespace longspan::cuda {
namespace {

constexpr int routing_threads = product_threads;
constexpr int64_t most_score_bytes = int64_t{64} << 20;  // of scores stored at a time
constexpr int byte_values = 256;
static_assert(routing_threads == byte_values);

/// What scores are computed from; see core/kernels/routing.h.
template <class T>
struct ScoreArguments {
  const T *x, *centroids;
  int64_t sample, head, row;  // strides of x
  int64_t heads, length;
  int width, clusters;
  const int64_t* lengths;

  ScoreArguments(const ConstView& tokens, const ConstView& means, const ConstView& existing)
      : x(tokens.as<T>()),
        centroids(means.as<T>()),
        sample(tokens.stride(0)),
        head(tokens.stride(1)),
        row(tokens.stride(2)),
        heads(tokens.dim(1)),
        length(tokens.dim(2)),
        width(static_cast<int>(tokens.dim(3))),
        clusters(static_cast<int>(means.dim(2))),
        lengths(existing.as<int64_t>()) {}

  /// Number of tokens that exist in sample b.
  __device__ int64_t existing(int64_t b) const {
    if (lengths == nullptr) return length;
    const int64_t n = lengths[b];
    return n < 0 ? 0 : n < length ? n : length;
  }

  /// Calls store(token - first, centroid, score) for `count` tokens of head bh and the centroids
  /// [from, from + columns).
  template <class Store>
  __device__ void scores(ProductTiles<T>& tiles, int64_t bh, int64_t first, int count, int from,
                         int columns, Store store) const {
    const T* const rows = x + bh / heads * sample + bh % heads * head + first * row;
    const T* const means = centroids + bh % heads * width * clusters + from;
    block_product<Along::depth, Along::line>(
        tiles, count, columns, width, [&](int i, int j) { return rows[i * row + j]; },
        [&](int j, int c) { return means[int64_t{j} * clusters + c]; },
        [&](int i, int c, T sum) {
          const T lowest = std::numeric_limits<T>::lowest();
          store(i, from + c, sum >= lowest ? sum : lowest);  // NaN too
        });
  }
};

template <class T>
using KeyOf = decltype(kernels::key_of(T{}));

/// keys[r - first, token] for the pairs r = (head, centroid) in [first, first + rows): integers in
/// the order of the scores. A block computes the scores of 64 tokens and 64 centroids of one head.
template <class T>
__global__ void __launch_bounds__(routing_threads, 2)
    score_keys_kernel(const __grid_constant__ ScoreArguments<T> x, int64_t first, int64_t rows,
                      KeyOf<T>* keys) {
  __shared__ ProductTiles<T> tiles;
  const int64_t token_tiles = (x.length + product_tile - 1) / product_tile;
  const int64_t begin = first / x.clusters, end = (first + rows - 1) / x.clusters + 1;
  const int64_t cluster_tiles = (x.clusters + product_tile - 1) / product_tile;
  for (int64_t i = blockIdx.x; i < (end - begin) * cluster_tiles * token_tiles; i += gridDim.x) {
    const int64_t bh = begin + i / token_tiles / cluster_tiles;
    const int64_t token = i % token_tiles * product_tile;
    const int cluster = static_cast<int>(i / token_tiles % cluster_tiles) * product_tile;
    const int64_t tokens = x.length - token;
    const int columns = x.clusters - cluster;
    x.scores(tiles, bh, token, tokens < product_tile ? static_cast<int>(tokens) : product_tile,
             cluster, columns < product_tile ? columns : product_tile, [&](int t, int c, T score) {
               const int64_t r = bh * x.clusters + c - first;
               if (r >= 0 && r < rows) keys[r * x.length + token + t] = kernels::key_of(score);
             });
  }
}

/// The sum of the values of all earlier threads of the block, and of all.
struct BlockSum {
  int before, all;
};
__device__ BlockSum block_sum(int value, int (&shared)[2][routing_threads]) {
  const int t = static_cast<int>(threadIdx.x);
  int from = 0;
  __syncthreads();
  shared[0][t] = value;
  for (int step = 1; step < routing_threads; step *= 2) {
    __syncthreads();
    shared[1 - from][t] = shared[from][t] + (t >= step ? shared[from][t - step] : 0);
    from = 1 - from;
  }
  __syncthreads();
  return {shared[from][t] - value, shared[from][routing_threads - 1]};
}

/// Writes the members of a pair (head, centroid) from its keys. One block each.
template <class Key>
__global__ void __launch_bounds__(routing_threads)
    choose_members_kernel(const Key* all_keys, int64_t first, int64_t rows, int64_t length,
                          int64_t pairs_of_sample, const int64_t* lengths, int window,
                          int32_t* all_members) {
  __shared__ int counts[byte_values];
  __shared__ int sums[2][routing_threads];
  const int t = static_cast<int>(threadIdx.x);
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const Key* const keys = all_keys + r * length;
    int32_t* const members = all_members + (first + r) * window;
    int64_t n = lengths == nullptr ? length : lengths[(first + r) / pairs_of_sample];
    n = n < 0 ? 0 : n < length ? n : length;
    // The key of the last member, from its highest byte to its lowest one; `left` of the keys that
    // have its bytes so far are members.
    Key last = 0, known = 0;
    int64_t left = window < n ? window : n;
    for (int shift = 8 * (static_cast<int>(sizeof(Key)) - 1); shift >= 0; shift -= 8) {
      __syncthreads();
      counts[t] = 0;
      __syncthreads();
      for (int64_t i = t; i < n; i += routing_threads) {
        if ((keys[i] & known) == last) atomicAdd(counts + (keys[i] >> shift & 0xff), 1);
      }
      __syncthreads();
      int byte = byte_values - 1;
      while (byte > 0 && counts[byte] < left) left -= counts[byte--];
      last |= static_cast<Key>(byte) << shift;
      known |= static_cast<Key>(0xff) << shift;
    }
    int written = 0, ties = 0;
    for (int64_t from = 0; from < n; from += routing_threads) {
      const int64_t i = from + t;
      const bool tie = i < n && keys[i] == last;
      const BlockSum earlier = block_sum(tie ? 1 : 0, sums);
      const bool member = i < n && (keys[i] > last || (tie && ties + earlier.before < left));
      const BlockSum place = block_sum(member ? 1 : 0, sums);
      if (member) members[written + place.before] = static_cast<int32_t>(i);
      written += place.all;
      ties += earlier.all;
    }
    for (int i = written + t; i < window; i += routing_threads) members[i] = -1;
  }
}

template <class T>
void members_of(const ConstView& x, const ConstView& centroids, const ConstView& lengths,
                const View& members) {
  constexpr const char* name = "routing_members";
  using Key = KeyOf<T>;
  const ScoreArguments<T> arguments(x, centroids, lengths);
  const int64_t pairs = x.dim(0) * arguments.heads * arguments.clusters;
  const int64_t row_bytes = arguments.length * static_cast<int64_t>(sizeof(Key));
  const int64_t together =
      std::clamp<int64_t>(most_score_bytes / std::max<int64_t>(row_bytes, 1), 1, pairs);
  const Scratch keys(together * row_bytes, x.device);
  for (int64_t first = 0; first < pairs; first += together) {
    const int64_t rows = std::min(together, pairs - first);
    const int64_t heads = (first + rows - 1) / arguments.clusters + 1 - first / arguments.clusters;
    const int64_t tiles = heads * ((arguments.clusters + product_tile - 1) / product_tile) *
                          ((arguments.length + product_tile - 1) / product_tile);
    launch(name, score_keys_kernel<T>, dim3(blocks_for(tiles, 1)), routing_threads, 0, arguments,
           first, rows, keys.as<Key>());
    launch(name, choose_members_kernel<Key>, dim3(blocks_for(rows, 1)), routing_threads, 0,
           static_cast<const Key*>(keys.as<Key>()), first, rows, arguments.length,
           arguments.heads * arguments.clusters, arguments.lengths,
           static_cast<int>(members.dim(3)), members.as<int32_t>());
  }
}

void routing_members(ConstView x, ConstView centroids, ConstView lengths, View, View members) {
  if (x.dtype == DType::f64) return members_of<double>(x, centroids, lengths, members);
  members_of<float>(x, centroids, lengths, members);
}

/// One block for 64 tokens of a head; each token has one thread that keeps its best centroid.
template <class T>
__global__ void __launch_bounds__(routing_threads, 2)
    nearest_kernel(const __grid_constant__ ScoreArguments<T> x, int64_t all_heads,
                   int32_t* nearest) {
  constexpr int columns_together = 32;
  __shared__ ProductTiles<T> tiles;
  __shared__ T scores[product_tile * (columns_together + 1)];
  const int t = static_cast<int>(threadIdx.x);
  const int64_t token_tiles = (x.length + product_tile - 1) / product_tile;
  for (int64_t i = blockIdx.x; i < all_heads * token_tiles; i += gridDim.x) {
    const int64_t bh = i / token_tiles, token = i % token_tiles * product_tile;
    const int64_t left = x.length - token;
    const int count = left < product_tile ? static_cast<int>(left) : product_tile;
    T best = -std::numeric_limits<T>::infinity();
    int32_t id = -1;
    for (int c = 0; c < x.clusters; c += columns_together) {
      const int columns = x.clusters - c < columns_together ? x.clusters - c : columns_together;
      x.scores(tiles, bh, token, count, c, columns, [&](int row, int cluster, T score) {
        scores[row * (columns_together + 1) + cluster - c] = score;
      });
      for (int n = 0; t < count && n < columns; ++n) {
        const T score = scores[t * (columns_together + 1) + n];
        if (!(score > best)) continue;
        best = score;
        id = c + n;
      }
    }
    if (t < count)
      nearest[bh * x.length + token + t] = token + t < x.existing(bh / x.heads) ? id : -1;
  }
}

template <class T>
void nearest_of(const ConstView& x, const ConstView& centroids, const ConstView& lengths,
                const View& nearest) {
  const ScoreArguments<T> arguments(x, centroids, lengths);
  const int64_t heads = x.dim(0) * x.dim(1);
  const int64_t tiles = heads * ((arguments.length + product_tile - 1) / product_tile);
  launch("nearest_centroid", nearest_kernel<T>, dim3(blocks_for(tiles, 1)), routing_threads, 0,
         arguments, heads, nearest.as<int32_t>());
}

void nearest_centroid(ConstView x, ConstView centroids, ConstView lengths, View nearest) {
  if (x.dtype == DType::f64) return nearest_of<double>(x, centroids, lengths, nearest);
  nearest_of<float>(x, centroids, lengths, nearest);
}

/// Sorts the tokens of a row by cluster, 256 at a time in their order. One block each.
__global__ void __launch_bounds__(routing_threads)
    cluster_order_kernel(const int32_t* clusters, int64_t rows, int64_t length, int64_t count,
                         int32_t* starts, int32_t* all_order, int32_t* all_begin) {
  __shared__ int32_t ids[routing_threads];
  const int t = static_cast<int>(threadIdx.x);
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const int32_t* const of = clusters + r * length;
    int32_t* const next = starts + r * (count + 1);  // [c] = the next place of cluster c
    int32_t *const order = all_order + r * length, *const begin = all_begin + r * length;
    __syncthreads();
    for (int64_t c = t; c <= count; c += routing_threads) next[c] = 0;
    __syncthreads();
    for (int64_t i = t; i < length; i += routing_threads) {
      if (of[i] >= 0) atomicAdd(next + of[i] + 1, 1);
    }
    __syncthreads();
    if (t == 0) {
      for (int64_t c = 1; c <= count; ++c) next[c] += next[c - 1];
    }
    __syncthreads();
    const int32_t all = next[count];
    for (int64_t i = all + t; i < length; i += routing_threads) {
      order[i] = -1;
      begin[i] = static_cast<int32_t>(i);
    }
    for (int64_t from = 0; from < length; from += routing_threads) {
      const int64_t left = length - from;
      const int tokens = left < routing_threads ? static_cast<int>(left) : routing_threads;
      const int32_t id = t < tokens ? of[from + t] : -1;
      __syncthreads();
      ids[t] = id;
      __syncthreads();
      int before = 0, of_chunk = 0;
      int32_t place = 0;
      if (id >= 0) {
        for (int n = 0; n < tokens; ++n) {
          if (ids[n] != id) continue;
          before += n < t ? 1 : 0;
          ++of_chunk;
        }
        place = next[id] + before;
        order[place] = static_cast<int32_t>(from + t);
      }
      __syncthreads();
      if (id >= 0 && before + 1 == of_chunk) next[id] = place + 1;
    }
    __syncthreads();
    // Now next[c] is where cluster c ends and the next one begins.
    for (int64_t i = t; i < all; i += routing_threads) {
      const int32_t id = of[order[i]];
      begin[i] = id == 0 ? 0 : next[id - 1];
    }
  }
}

void cluster_order(ConstView clusters, View starts, View order, View begin) {
  const int64_t rows = clusters.dim(0);
  launch("cluster_order", cluster_order_kernel, dim3(blocks_for(rows, 1)), routing_threads, 0,
         clusters.as<int32_t>(), rows, clusters.dim(1), starts.dim(1) - 1, starts.as<int32_t>(),
         order.as<int32_t>(), begin.as<int32_t>());
}

/// Both lists ascend, so a query's keys are found by halving.
__global__ void __launch_bounds__(elementwise_threads)
    keys_not_after_kernel(const int32_t* queries, const int32_t* all_keys, int64_t count, int64_t w,
                          int32_t* counts) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const int32_t query = queries[i];
    const int32_t* const keys = all_keys + i / w * w;
    int64_t low = 0, high = query < 0 ? 0 : w;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (keys[middle] >= 0 && keys[middle] <= query) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    counts[i] = static_cast<int32_t>(low);
  }
}

void keys_not_after(ConstView queries, ConstView keys, View counts) {
  const int64_t count = queries.numel();
  launch("keys_not_after", keys_not_after_kernel, dim3(blocks_for(count, elementwise_threads)),
         elementwise_threads, 0, queries.as<int32_t>(), keys.as<int32_t>(), count, queries.dim(1),
         counts.as<int32_t>());
}

}  // namespace

void register_routing() {
  kernels::routing_members.set(DeviceKind::cuda, routing_members);
  kernels::nearest_centroid.set(DeviceKind::cuda, nearest_centroid);
  kernels::cluster_order.set(DeviceKind::cuda, cluster_order);
  kernels::keys_not_after.set(DeviceKind::cuda, keys_not_after);
}

}  // namespace longspan::cuda
