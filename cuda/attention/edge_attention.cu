#include "core/kernels/edge_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/kernels/maths.h"
#include "core/memory.h"
#include "cuda/attention/general.h"
#include "cuda/launch.h"
#include "cuda/register.h"
#include "cuda/rows.cuh"

namespace longspan::cuda {
namespace {

using kernels::EdgeAttentionInputs;
using kernels::EdgeGradients;

/// A warp takes a piece of a row or of a key, a chunk of pairs at a time. For dot products, the
/// lanes of a pair take its columns in turn; for sums over pairs, each lane has its own columns and
/// adds the pairs in order.
constexpr int edge_threads = 256, edge_warps = edge_threads / 32, lanes_of_pair = 8;
/// Memory of the relation tables' gradients, and their number, at most.
constexpr int64_t most_table_bytes = int64_t{64} << 20, most_tables = 1024;

/// The pieces of rows or of keys, see core/kernels/edge_attention.h.
struct PieceTables {
  const int32_t *items, *cuts;
  int64_t count, cut_count, slots = 0;  // slots: pieces of rows (keys) that have several

  PieceTables(const ConstView& pieces, const ConstView& cut, int64_t all_slots)
      : items(pieces.as<int32_t>()),
        cuts(cut.as<int32_t>()),
        count(pieces.dim(0)),
        cut_count(cut.dim(0)),
        slots(all_slots) {}
};

template <class T>
struct EdgeArguments {
  HeadRows<const T> q, k, v, given_out, dout;
  HeadRows<T> out, dq, dk, dv;
  const T* relation;
  const int32_t *rows, *runs, *labels, *sources;
  T *lse = nullptr, *delta = nullptr;  // [B, H, R]
  T* wide = nullptr;                   // [B H, slots, columns]: results of pieces
  T* tables = nullptr;                 // [groups, labels, d]: gradients of the relation table
  int64_t heads, head_count, row_count, label_count;
  int d, width;
  T scale;
  Draws draws;

  explicit EdgeArguments(const EdgeAttentionInputs& in)
      : q(head_rows<const T>(in.q)),
        k(head_rows<const T>(in.k)),
        v(head_rows<const T>(in.v)),
        relation(in.relation.as<T>()),
        rows(in.edges.rows.as<int32_t>()),
        runs(in.edges.runs.as<int32_t>()),
        labels(in.edges.labels.as<int32_t>()),
        sources(in.edges.sources.as<int32_t>()),
        heads(in.q.dim(1)),
        head_count(in.q.dim(0) * in.q.dim(1)),
        row_count(in.q.dim(2)),
        label_count(in.relation ? in.relation.dim(0) : 0),
        d(static_cast<int>(in.q.dim(3))),
        width(static_cast<int>(in.v.dim(3))),
        scale(static_cast<T>(in.scale)) {
    draws.key = in.dropout.key;
    draws.threshold = static_cast<uint32_t>(drop_threshold(in.dropout.p));
    draws.active = in.dropout.p > 0;
    draws.scale = 1 / (1 - in.dropout.p);
    draws.first_head = static_cast<uint32_t>(in.dropout.first_head);
  }

  template <class Rows>
  __device__ auto* head(const Rows& x, int64_t bh) const {
    return x.of(bh / heads, bh % heads);
  }
  __device__ T keep(int64_t bh, int32_t row, int32_t key) const {
    return draws.keeps(static_cast<uint32_t>(bh), static_cast<uint32_t>(row),
                       static_cast<uint32_t>(key), 0)
               ? static_cast<T>(draws.scale)
               : T(0);
  }
  /// The label of the t-th key of a run.
  __device__ int32_t label(const int32_t* run, int32_t t) const {
    return run[2] < 0 ? -1 - run[2] : labels[run[2] + t];
  }
};

/// What a warp knows of the pairs of a chunk, in shared memory.
template <class T>
struct EdgeChunk {
  static constexpr int size = 1024 / sizeof(T);
  T weight[size], slope[size];
  int32_t other[size], label[size];  // the key of a row's pair, the row of a key's pair
};

/// One piece, on the way through its pairs.
struct Piece {
  int32_t owner = 0, at = 0, before = 0, left = 0, slot = -1;

  Piece() = default;
  __device__ explicit Piece(const int32_t* item)
      : owner(item[0]), at(item[1]), before(item[2]), left(item[3]), slot(item[4]) {}
};

__device__ inline int edge_lane() { return static_cast<int>(threadIdx.x) % 32; }
__device__ inline int edge_warp() { return static_cast<int>(threadIdx.x) / 32; }

/// Takes the next pairs of a piece, whose runs or sources are rows of `table` with their numbers of
/// pairs second: calls store(the row of the table, the pair within it, the place in the chunk).
/// Returns how many there are, and waits for the warp.
template <class T, class Store>
__device__ int next_pairs(const int32_t* table, Piece& piece, Store store) {
  int n = 0;
  while (piece.left > 0 && n < EdgeChunk<T>::size) {
    const int32_t* const from = table + int64_t{3} * piece.at;
    const int32_t there = min(from[1] - piece.before, piece.left);
    const int32_t count = min(there, EdgeChunk<T>::size - n);
    for (int t = edge_lane(); t < count; t += 32) store(from, piece.before + t, n + t);
    n += count;
    piece.left -= count;
    piece.before += count;
    if (piece.before == from[1]) {
      ++piece.at;
      piece.before = 0;
    }
  }
  __syncwarp();
  return n;
}

/// The next pairs of a row: keys and labels.
template <class T>
__device__ int next_keys(const EdgeArguments<T>& x, Piece& piece, EdgeChunk<T>& to) {
  return next_pairs<T>(x.runs, piece, [&](const int32_t* run, int32_t t, int place) {
    to.other[place] = run[0] + t;
    to.label[place] = x.label(run, t);
  });
}

/// The next pairs of a key: rows and labels.
template <class T>
__device__ int next_rows(const EdgeArguments<T>& x, Piece& piece, EdgeChunk<T>& to) {
  return next_pairs<T>(x.sources, piece, [&](const int32_t* source, int32_t t, int place) {
    const int32_t row = source[0] + t;
    const int32_t* const run = x.runs + int64_t{3} * (x.rows[int64_t{2} * row] + source[2]);
    to.other[place] = row;
    to.label[place] = x.label(run, piece.owner - run[0]);
  });
}

/// Calls store(t, sum over c < width of term(t, c)) for t < n, then waits for the warp.
template <class T, class Term, class Store>
__device__ void sum_pairs(int n, int width, Term term, Store store) {
  const int team = edge_lane() / lanes_of_pair, part = edge_lane() % lanes_of_pair;
  for (int first = 0; first < n; first += 32 / lanes_of_pair) {
    const int t = first + team;
    T sum = 0;
    if (t < n) {
      for (int c = part; c < width; c += lanes_of_pair) sum += term(t, c);
    }
#pragma unroll
    for (int step = lanes_of_pair / 2; step > 0; step /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    if (part == 0 && t < n) store(t, sum);
  }
  __syncwarp();
}

/// The relation row of a label, if there is a table.
template <class T>
__device__ T relation_at(const EdgeArguments<T>& x, int32_t label, int c) {
  return x.relation == nullptr ? T(0) : x.relation[int64_t{label} * x.d + c];
}

/// Computes out and lse, or the parts of cut rows: [sum of weighted values, largest score, sum of
/// weights].
template <class T>
__global__ void __launch_bounds__(edge_threads, 2)
    edge_forward_kernel(const __grid_constant__ EdgeArguments<T> x, PieceTables pieces) {
  __shared__ EdgeChunk<T> chunks[edge_warps];
  EdgeChunk<T>& pairs = chunks[edge_warp()];
  const Team<32> warp{nullptr};
  const int lane = edge_lane();
  for (int64_t i = int64_t{blockIdx.x} * edge_warps + edge_warp(); i < x.head_count * pieces.count;
       i += int64_t{gridDim.x} * edge_warps) {
    const int64_t bh = i / pieces.count;
    Piece piece(pieces.items + 5 * (i % pieces.count));
    const T* const q = x.head(x.q, bh) + piece.owner * x.q.row;
    const T *const k = x.head(x.k, bh), *const v = x.head(x.v, bh);
    T* const to = piece.slot < 0 ? x.head(x.out, bh) + piece.owner * x.out.row
                                 : x.wide + (bh * pieces.slots + piece.slot) * (x.width + 2);
    T top = least<T>(), total = 0;
    for (int c = lane; c < x.width; c += 32) to[c] = 0;
    for (int n = next_keys(x, piece, pairs); n > 0; n = next_keys(x, piece, pairs)) {
      sum_pairs<T>(
          n, x.d,
          [&](int t, int c) {
            return q[c] * (k[pairs.other[t] * x.k.row + c] + relation_at(x, pairs.label[t], c));
          },
          [&](int t, T sum) { pairs.weight[t] = sum * x.scale; });
      T largest = top;
      for (int t = lane; t < n; t += 32) {
        largest = pairs.weight[t] > largest ? pairs.weight[t] : largest;
      }
      largest = warp.max(largest);
      const T shift = shift_of(largest);
      T sum = 0;
      for (int t = lane; t < n; t += 32) {
        const T p = kernels::exponential(pairs.weight[t] - shift);
        sum += p;
        pairs.weight[t] = x.draws.active ? p * x.keep(bh, piece.owner, pairs.other[t]) : p;
      }
      const T factor = top == least<T>() ? T(0) : kernels::exponential(top - shift);
      total = total * factor + warp.sum(sum);
      top = largest;
      __syncwarp();
      for (int c = lane; c < x.width; c += 32) {
        T value = to[c] * factor;
        for (int t = 0; t < n; ++t) value += pairs.weight[t] * v[pairs.other[t] * x.v.row + c];
        to[c] = value;
      }
      __syncwarp();
    }
    if (piece.slot >= 0) {
      if (lane == 0) to[x.width] = top;
      if (lane == 0) to[x.width + 1] = total;
      continue;
    }
    for (int c = lane; c < x.width; c += 32) to[c] = total == 0 ? T(0) : to[c] / total;
    if (lane == 0) {
      x.lse[bh * x.row_count + piece.owner] = total == 0 ? least<T>() : top + std::log(total);
    }
  }
}

/// Combines the pieces of cut rows, with a warp for each.
template <class T>
__global__ void __launch_bounds__(edge_threads)
    edge_join_kernel(const __grid_constant__ EdgeArguments<T> x, PieceTables pieces) {
  for (int64_t i = int64_t{blockIdx.x} * edge_warps + edge_warp();
       i < x.head_count * pieces.cut_count; i += int64_t{gridDim.x} * edge_warps) {
    const int64_t bh = i / pieces.cut_count, columns = x.width + 2;
    const int32_t* const cut = pieces.cuts + 3 * (i % pieces.cut_count);
    const T* const parts = x.wide + (bh * pieces.slots + cut[1]) * columns;
    T top = least<T>(), total = 0;
    for (int s = 0; s < cut[2]; ++s) {
      const T of_part = parts[s * columns + x.width];
      top = of_part > top ? of_part : top;
    }
    const T shift = shift_of(top);
    const auto factor = [&](int s) {
      return kernels::exponential(parts[s * columns + x.width] - shift);
    };
    for (int s = 0; s < cut[2]; ++s) total += factor(s) * parts[s * columns + x.width + 1];
    T* const to = x.head(x.out, bh) + cut[0] * x.out.row;
    for (int c = edge_lane(); c < x.width; c += 32) {
      T sum = 0;
      for (int s = 0; s < cut[2]; ++s) sum += factor(s) * parts[s * columns + c];
      to[c] = total == 0 ? T(0) : sum / total;
    }
    if (edge_lane() == 0) {
      x.lse[bh * x.row_count + cut[0]] = total == 0 ? least<T>() : top + std::log(total);
    }
  }
}

/// delta[row] = dout . out, with a warp for each row.
template <class T>
__global__ void __launch_bounds__(edge_threads)
    edge_delta_kernel(const __grid_constant__ EdgeArguments<T> x) {
  const Team<32> warp{nullptr};
  for (int64_t i = int64_t{blockIdx.x} * edge_warps + edge_warp(); i < x.head_count * x.row_count;
       i += int64_t{gridDim.x} * edge_warps) {
    const int64_t bh = i / x.row_count, row = i % x.row_count;
    const T* const a = x.head(x.dout, bh) + row * x.dout.row;
    const T* const b = x.head(x.given_out, bh) + row * x.given_out.row;
    T sum = 0;
    for (int c = edge_lane(); c < x.width; c += 32) sum += a[c] * b[c];
    sum = warp.sum(sum);
    if (edge_lane() == 0) x.delta[i] = sum;
  }
}

/// The probability of a score; 0 in a row without weights.
template <class T>
__device__ T probability(T score, T lse) {
  return lse == least<T>() ? T(0) : kernels::exponential(score - lse);
}

/// Adds what the warps' chunks give the relation table. A thread owns its columns for all labels of
/// one remainder modulo `lines`, so no two threads add to one element.
template <class T>
__device__ void add_to_table(const EdgeArguments<T>& x, const EdgeChunk<T>* chunks,
                             const int* counts, const T* const* rows_of_q, T* table) {
  const int columns = min((x.d + 31) / 32 * 32, edge_threads), lines = edge_threads / columns;
  const int line = static_cast<int>(threadIdx.x) / columns;
  const int first = static_cast<int>(threadIdx.x) % columns;
  if (line >= lines) return;
  for (int w = 0; w < edge_warps; ++w) {
    const EdgeChunk<T>& pairs = chunks[w];
    for (int t = 0; t < counts[w]; ++t) {
      const int32_t label = pairs.label[t];
      if (label % lines != line) continue;
      T sum = pairs.slope[t];
      while (t + 1 < counts[w] && pairs.label[t + 1] == label) sum += pairs.slope[++t];
      sum *= x.scale;
      for (int c = first; c < x.d; c += columns) {
        table[int64_t{label} * x.d + c] += sum * rows_of_q[w][c];
      }
    }
  }
}

/// Computes dq, or the parts of cut rows, and each block the gradient of a relation table.
template <class T>
__global__ void __launch_bounds__(edge_threads, 2)
    edge_rows_kernel(const __grid_constant__ EdgeArguments<T> x, PieceTables pieces) {
  __shared__ EdgeChunk<T> chunks[edge_warps];
  __shared__ int counts[edge_warps];
  __shared__ const T* rows_of_q[edge_warps];
  EdgeChunk<T>& pairs = chunks[edge_warp()];
  const int lane = edge_lane();
  const int64_t count = x.head_count * pieces.count, size = x.label_count * x.d;
  T* const table = x.tables + blockIdx.x * size;
  for (int64_t i = threadIdx.x; i < size; i += edge_threads) table[i] = 0;
  for (int64_t from = int64_t{blockIdx.x} * edge_warps; from < count;
       from += int64_t{gridDim.x} * edge_warps) {
    const int64_t i = from + edge_warp(), bh = min(i, count - 1) / pieces.count;
    Piece piece;
    if (i < count) piece = Piece(pieces.items + 5 * (i % pieces.count));
    const T* const q = x.head(x.q, bh) + piece.owner * x.q.row;
    const T *const k = x.head(x.k, bh), *const v = x.head(x.v, bh);
    const T* const dout = x.head(x.dout, bh) + piece.owner * x.dout.row;
    const T lse = x.lse[bh * x.row_count + piece.owner];
    const T delta = x.delta[bh * x.row_count + piece.owner];
    T* const to = piece.slot < 0 ? x.head(x.dq, bh) + piece.owner * x.dq.row
                                 : x.wide + (bh * pieces.slots + piece.slot) * x.d;
    for (int c = lane; i < count && c < x.d; c += 32) to[c] = 0;
    if (lane == 0) rows_of_q[edge_warp()] = q;
    for (;;) {
      const int n = next_keys(x, piece, pairs);
      sum_pairs<T>(
          n, x.d,
          [&](int t, int c) {
            return q[c] * (k[pairs.other[t] * x.k.row + c] + relation_at(x, pairs.label[t], c));
          },
          [&](int t, T sum) { pairs.weight[t] = sum * x.scale; });
      sum_pairs<T>(
          n, x.width, [&](int t, int c) { return dout[c] * v[pairs.other[t] * x.v.row + c]; },
          [&](int t, T sum) {
            if (x.draws.active) sum *= x.keep(bh, piece.owner, pairs.other[t]);
            pairs.slope[t] = probability(pairs.weight[t], lse) * (sum - delta);
          });
      for (int c = lane; n > 0 && c < x.d; c += 32) {
        T sum = 0;
        for (int t = 0; t < n; ++t) {
          sum += pairs.slope[t] *
                 (k[pairs.other[t] * x.k.row + c] + relation_at(x, pairs.label[t], c));
        }
        to[c] += sum * x.scale;
      }
      if (lane == 0) counts[edge_warp()] = n;
      if (__syncthreads_or(n) == 0) break;  // it is also the barrier before the chunks are read
      if (size > 0) add_to_table(x, chunks, counts, rows_of_q, table);
      __syncthreads();
    }
  }
}

/// Computes dk and dv, or the parts of cut keys.
template <class T>
__global__ void __launch_bounds__(edge_threads, 2)
    edge_keys_kernel(const __grid_constant__ EdgeArguments<T> x, PieceTables pieces) {
  __shared__ EdgeChunk<T> chunks[edge_warps];
  EdgeChunk<T>& pairs = chunks[edge_warp()];
  const int lane = edge_lane();
  for (int64_t i = int64_t{blockIdx.x} * edge_warps + edge_warp(); i < x.head_count * pieces.count;
       i += int64_t{gridDim.x} * edge_warps) {
    const int64_t bh = i / pieces.count;
    Piece piece(pieces.items + 5 * (i % pieces.count));
    const int32_t key = piece.owner;
    const T* const k = x.head(x.k, bh) + key * x.k.row;
    const T* const v = x.head(x.v, bh) + key * x.v.row;
    const T *const q = x.head(x.q, bh), *const dout = x.head(x.dout, bh);
    const T *const lse = x.lse + bh * x.row_count, *const delta = x.delta + bh * x.row_count;
    const int64_t place = (bh * pieces.slots + piece.slot) * (x.d + x.width);
    T* const dk = piece.slot < 0 ? x.head(x.dk, bh) + key * x.dk.row : x.wide + place;
    T* const dv = piece.slot < 0 ? x.head(x.dv, bh) + key * x.dv.row : x.wide + place + x.d;
    for (int c = lane; c < x.d; c += 32) dk[c] = 0;
    for (int c = lane; c < x.width; c += 32) dv[c] = 0;
    for (int n = next_rows(x, piece, pairs); n > 0; n = next_rows(x, piece, pairs)) {
      sum_pairs<T>(
          n, x.d,
          [&](int t, int c) {
            return q[pairs.other[t] * x.q.row + c] * (k[c] + relation_at(x, pairs.label[t], c));
          },
          [&](int t, T sum) { pairs.weight[t] = probability(sum * x.scale, lse[pairs.other[t]]); });
      sum_pairs<T>(
          n, x.width, [&](int t, int c) { return dout[pairs.other[t] * x.dout.row + c] * v[c]; },
          [&](int t, T sum) {
            const int32_t row = pairs.other[t];
            const T kept = x.draws.active ? x.keep(bh, row, key) : T(1), p = pairs.weight[t];
            pairs.slope[t] = p * (sum * kept - delta[row]);
            pairs.weight[t] = p * kept;
          });
      for (int c = lane; c < x.d; c += 32) {
        T sum = 0;
        for (int t = 0; t < n; ++t) sum += pairs.slope[t] * q[pairs.other[t] * x.q.row + c];
        dk[c] += sum * x.scale;
      }
      for (int c = lane; c < x.width; c += 32) {
        T sum = 0;
        for (int t = 0; t < n; ++t) sum += pairs.weight[t] * dout[pairs.other[t] * x.dout.row + c];
        dv[c] += sum;
      }
      __syncwarp();
    }
  }
}

/// Adds up the parts of cut rows (keys): columns 0 .. d to `first`, those up to `columns` to
/// `second`. A warp for each.
template <class T>
__global__ void __launch_bounds__(edge_threads)
    edge_sum_kernel(const __grid_constant__ EdgeArguments<T> x, PieceTables pieces,
                    HeadRows<T> first, HeadRows<T> second, int columns) {
  for (int64_t i = int64_t{blockIdx.x} * edge_warps + edge_warp();
       i < x.head_count * pieces.cut_count; i += int64_t{gridDim.x} * edge_warps) {
    const int64_t bh = i / pieces.cut_count;
    const int32_t* const cut = pieces.cuts + 3 * (i % pieces.cut_count);
    const T* const parts = x.wide + (bh * pieces.slots + cut[1]) * columns;
    for (int c = edge_lane(); c < columns; c += 32) {
      T sum = 0;
      for (int s = 0; s < cut[2]; ++s) sum += parts[int64_t{s} * columns + c];
      if (c < x.d) {
        x.head(first, bh)[cut[0] * first.row + c] = sum;
      } else {
        x.head(second, bh)[cut[0] * second.row + c - x.d] = sum;
      }
    }
  }
}

/// to[i] = the sum of the tables' element i, in the order of the tables.
template <class T>
__global__ void __launch_bounds__(edge_threads)
    edge_tables_kernel(const T* tables, int64_t count, int64_t size, T* to) {
  for (int64_t i = int64_t{blockIdx.x} * edge_threads + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * edge_threads) {
    T sum = 0;
    for (int64_t t = 0; t < count; ++t) sum += tables[t * size + i];
    to[i] = sum;
  }
}

/// Launches a kernel with a warp for each of `tasks`.
template <class... Parameters, class... Args>
void launch_warps(const char* name, void (*kernel)(Parameters...), int64_t tasks, Args... args) {
  launch(name, kernel, dim3(blocks_for(tasks, edge_warps)), edge_threads, 0, args...);
}

template <class T>
void forward_of(const EdgeAttentionInputs& in, const View& out, const View& lse) {
  constexpr const char* name = "edge_attention_forward";
  EdgeArguments<T> x(in);
  const PieceTables pieces(in.edges.row_pieces, in.edges.row_cuts, in.row_slots);
  const Scratch wide(x.head_count * pieces.slots * (x.width + 2) * static_cast<int64_t>(sizeof(T)),
                     in.q.device);
  x.out = head_rows<T>(out);
  x.lse = lse.as<T>();
  x.wide = wide.as<T>();
  launch_warps(name, edge_forward_kernel<T>, x.head_count * pieces.count, x, pieces);
  launch_warps(name, edge_join_kernel<T>, x.head_count * pieces.cut_count, x, pieces);
}

template <class T>
void backward_of(const EdgeAttentionInputs& in, const ConstView& out, const ConstView& lse,
                 const ConstView& dout, const EdgeGradients& to) {
  constexpr const char* name = "edge_attention_backward";
  constexpr auto bytes = static_cast<int64_t>(sizeof(T));
  EdgeArguments<T> x(in);
  const PieceTables by_row(in.edges.row_pieces, in.edges.row_cuts, in.row_slots);
  const PieceTables by_key(in.edges.key_pieces, in.edges.key_cuts, in.key_slots);
  x.given_out = head_rows<const T>(out);
  x.dout = head_rows<const T>(dout);
  x.lse = const_cast<T*>(lse.as<T>());  // the backward pass only reads it
  x.dq = head_rows<T>(to.dq);
  x.dk = head_rows<T>(to.dk);
  x.dv = head_rows<T>(to.dv);
  // The number of tables depends on the sizes only, and with it the order of their sums.
  const int64_t size = x.label_count * x.d, warps = x.head_count * by_row.count;
  const int64_t fitting = most_table_bytes / std::max<int64_t>(size * bytes, 1);
  const int64_t groups = std::clamp<int64_t>((warps + edge_warps - 1) / edge_warps, 1,
                                             std::clamp<int64_t>(fitting, 1, most_tables));
  const Scratch delta(x.head_count * x.row_count * bytes, in.q.device);
  const Scratch wide(
      x.head_count * bytes * std::max(by_row.slots * x.d, by_key.slots * (x.d + x.width)),
      in.q.device);
  const Scratch tables(groups * size * bytes, in.q.device);
  x.delta = delta.as<T>();
  x.wide = wide.as<T>();
  x.tables = tables.as<T>();
  launch_warps(name, edge_delta_kernel<T>, x.head_count * x.row_count, x);
  if (warps > 0) {
    launch(name, edge_rows_kernel<T>, dim3(static_cast<unsigned>(groups)), edge_threads, 0, x,
           by_row);
  }
  launch_warps(name, edge_sum_kernel<T>, x.head_count * by_row.cut_count, x, by_row, x.dq, x.dq,
               x.d);
  launch_warps(name, edge_keys_kernel<T>, x.head_count * by_key.count, x, by_key);
  launch_warps(name, edge_sum_kernel<T>, x.head_count * by_key.cut_count, x, by_key, x.dk, x.dv,
               x.d + x.width);
  if (size == 0) return;
  launch(name, edge_tables_kernel<T>, dim3(blocks_for(size, edge_threads)), edge_threads, 0,
         static_cast<const T*>(x.tables), warps > 0 ? groups : 0, size, to.drelation.as<T>());
}

void forward(const EdgeAttentionInputs& in, View out, View lse) {
  if (in.q.dtype == DType::f64) return forward_of<double>(in, out, lse);
  forward_of<float>(in, out, lse);
}

void backward(const EdgeAttentionInputs& in, ConstView out, ConstView lse, ConstView dout,
              const EdgeGradients& to) {
  if (in.q.dtype == DType::f64) return backward_of<double>(in, out, lse, dout, to);
  backward_of<float>(in, out, lse, dout, to);
}

}  // namespace

void register_edge_attention() {
  kernels::edge_attention_forward.set(DeviceKind::cuda, forward);
  kernels::edge_attention_backward.set(DeviceKind::cuda, backward);
}

}  // namespace longspan::cuda
