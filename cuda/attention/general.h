#pragma once

#include <cmath>
#include <limits>

#include "cuda/attention/parts.h"
#include "cuda/attention/schedule.h"
#include "cuda/tile.cuh"

/// Attention for every dtype, width and term, in scalar arithmetic on tiles in shared memory. A
/// block of threads runs in phases with a barrier after each. Every sum is one chain in the order
/// of its keys or queries, so no bit depends on the layout, except where the layout cuts long
/// chains into splits (ops/patterns/layout_work.h).
namespace longspan::cuda {

/// Threads of a block.
inline constexpr int general_threads = 256;

/// Runs f(0) .. f(n - 1), distributed over the threads of a block, followed by a barrier.
template <class F>
LONGSPAN_HD void each(int n, F f) {
  for (int i = thread_index(); i < n; i += general_threads) f(i);
  block_barrier();
}

LONGSPAN_HD inline float exp2(float x) { return exp2f(x); }
LONGSPAN_HD inline double exp2(double x) { return ::exp2(x); }
LONGSPAN_HD inline float fused(float a, float b, float c) { return fmaf(a, b, c); }
LONGSPAN_HD inline double fused(double a, double b, double c) { return fma(a, b, c); }
LONGSPAN_HD inline float log_two(float x) { return log2f(x); }
LONGSPAN_HD inline double log_two(double x) { return log2(x); }

/// Returns lse from the reference of a row, in units of log 2, and the sum of its weights.
template <class A>
LONGSPAN_HD A lse_of(A reference, A total) {
  return total == A(0) ? -std::numeric_limits<A>::infinity()
                       : (reference + log_two(total)) * static_cast<A>(ln_2);
}

/// A relation table [1 or H, R, width].
template <class T>
struct Table {
  const T* data = nullptr;
  int64_t head = 0;  // stride; 0 if all heads share the table
  LONGSPAN_HD const T* of(int64_t h) const { return data == nullptr ? nullptr : data + h * head; }
};

/// The tensors `span` and `query_span` of AttentionOperands, read as [B, H, T] and [B, H, L]; null:
/// not given.
template <class A>
struct SpanTable {
  const A *of_key = nullptr, *of_query = nullptr;
  int64_t batch = 0, head = 0, key = 0;     // strides of span; 0 for a broadcast axis
  int64_t query_batch = 0, query_head = 0;  // strides of query_span, whose rows are contiguous
  double ramp = 1, offset = 0;

  LONGSPAN_HD bool given() const { return of_key != nullptr || of_query != nullptr; }
  /// The offset and the span of query i.
  LONGSPAN_HD A of_row(int64_t b, int64_t h, int64_t i) const {
    const A own = static_cast<A>(offset);
    return of_query == nullptr ? own : own + of_query[b * query_batch + h * query_head + i];
  }
  /// The span of key j.
  LONGSPAN_HD A of_column(int64_t b, int64_t h, int64_t j) const {
    return of_key == nullptr ? A{0} : of_key[b * batch + h * head + j * key];
  }
  /// Returns mu of a row and a column at `distance` = q - k, before it is clamped to 0 .. 1.
  LONGSPAN_HD A at(A row, A column, int64_t distance) const {
    return (row + column - static_cast<A>(distance)) / static_cast<A>(ramp);
  }
};

/// The arguments of the kernels of one call. A is the accumulator type of T.
template <class T, class A = Accumulator<T>>
struct AttentionArguments {
  AttentionSizes sizes;
  HeadRows<const T> q, dout, relation_query;  // relation_query is q if the call has none
  HeadRows<const T> k[kernels::kAttentionSegments], v[kernels::kAttentionSegments];
  HeadRows<T> out, dq, drelation_query;  // null data: not required
  HeadRows<T> dk[kernels::kAttentionSegments], dv[kernels::kAttentionSegments];
  bool own_relation_query = false;
  A* lse = nullptr;                      // [B, H, L]
  const A* delta = nullptr;              // [B, H, L]: dout . out - dlse
  Table<T> key, bias, value;             // relation terms
  int64_t left = 0, right = 0, ids = 0;  // their ids
  SpanTable<A> span;
  A* sums = nullptr;  // sums of the tables' gradients: [B H, splits, R, d + dv + 1]
  int64_t splits = 1;
  // Gradients of mu, times ramp: [B H, T], and in the pass for dq [B H, L]. Null: not required.
  A *span_sums = nullptr, *query_sums = nullptr;
  // Workspace of the splits, which write here instead of to the outputs. wide: [rows or keys,
  // columns], in the forward pass before the division by the sum of weights. statistics: [rows, 2],
  // the reference of a row in units of log 2 and its sum of weights.
  A *wide = nullptr, *statistics = nullptr;
  int32_t* nonfinite = nullptr;  // tensor cores only: 1 if a block's accumulators are nonfinite

  LONGSPAN_HD int64_t table_width() const { return sizes.width + sizes.value_width + 1; }
  /// Columns of `wide` in the pass for dq: dq, the gradient of relation_query if it is separate,
  /// and last, if required, the gradient of mu times its ramp.
  LONGSPAN_HD int64_t row_columns() const {
    return sizes.width * (own_relation_query ? 2 : 1) + (query_sums != nullptr ? 1 : 0);
  }
  /// Columns of `wide` in the pass over keys: dk, dv, and the gradient of mu times its ramp.
  LONGSPAN_HD int64_t key_columns() const { return table_width(); }
};

/// Tile sizes. Each of 16 x 16 threads computes every 16th row and column of a product.
template <class A>
struct GeneralTile {
  static constexpr int rows = sizeof(A) == 8 ? 32 : 48;
  static constexpr int keys = sizeof(A) == 8 ? 32 : 64;
  static constexpr int depth = 32;        // columns staged at a time
  static constexpr int pitch = keys + 1;  // of score tiles
  static constexpr int stage_pitch = depth + 1;
  static constexpr int parts = static_cast<int>(ceil_div(kernels::kAttentionTileRows, rows));
  /// Columns of results that one block accumulates: of a row, and of a key or an id.
  static constexpr int row_sums = 128, key_sums = 64;

  /// Bytes of shared memory for `tiles` score tiles and `sums` accumulators.
  static constexpr int64_t bytes(int tiles, int64_t sums) {
    return static_cast<int64_t>(sizeof(A)) *
               (int64_t{tiles} * rows * pitch + (rows + keys) * stage_pitch + sums + 7 * rows +
                2 * keys) +
           4 * (int64_t{5} * rows + keys * 3 + 1);
  }
  static constexpr int64_t forward_bytes = bytes(2, rows* row_sums);
  static constexpr int64_t rows_bytes = bytes(3, rows* row_sums);
  static constexpr int64_t keys_bytes = bytes(3, 2 * keys * key_sums);
  static constexpr int64_t tables_bytes = bytes(3, 2 * keys * key_sums + keys);
};

/// One block's tiles, and the phases that all passes share.
template <class T>
class General {
 public:
  using A = Accumulator<T>;
  using Tile = GeneralTile<A>;
  static constexpr int R = Tile::rows, K = Tile::keys, D = Tile::depth, P = Tile::pitch,
                       S = Tile::stage_pitch, parts = 4;

  /// Rows of a matrix operand: gathered through an index (-1: zeros), or `count` rows from `first`
  /// on.
  struct Source {
    const T* base;
    int64_t stride;
    const int32_t* index;
    int64_t first, count;
    int64_t columns;  // columns from here on read as zero

    LONGSPAN_HD A at(int row, int64_t column) const {
      if (column >= columns) return A(0);
      if (index == nullptr) {
        return row < count ? static_cast<A>(base[(first + row) * stride + column]) : A(0);
      }
      return index[row] >= 0 ? static_cast<A>(base[index[row] * stride + column]) : A(0);
    }
  };

  /// `shared` holds Tile::bytes(tiles, sums) bytes. A backward pass needs three tiles.
  LONGSPAN_HD General(const AttentionArguments<T>& arguments, const AttentionWork& of, A* shared,
                      int tiles, int64_t sums)
      : x(arguments),
        work(of),
        head(arguments.sizes, of.b, of.h),
        number(of.b * arguments.sizes.heads + of.h),
        factor(static_cast<A>(arguments.sizes.scale * log2_e)) {
    scores = take(shared, R * P);
    bins = take(shared, R * P);
    dscores = take(shared, tiles > 2 ? R * P : 0);
    left = take(shared, R * S);
    right = take(shared, K * S);
    sum = take(shared, sums);
    row_a = take(shared, R);
    row_b = take(shared, R);
    row_c = take(shared, R);
    part = take(shared, R * parts);
    times = take(shared, K);
    span_sum = take(shared, K);
    query = reinterpret_cast<int32_t*>(take(shared, 0));
    read = query + R;
    seen = reinterpret_cast<KeyInterval*>(read + R);
    key = reinterpret_cast<int32_t*>(seen + R);
    key_read = key + K;
    key_class = key_read + K;
    row_class = key_class + K;
    nonfinite = row_class + R;
  }

  // ------------------------------------------------------------------------------- loads

  /// Loads the queries of a tile from row `from` on. enter() computes which keys they attend to.
  LONGSPAN_HD void load_rows(int64_t number_of_tile, int64_t from) {
    tile = number_of_tile;
    segment = -1;
    const int64_t row = head.tile_row(x.sizes, tile) + from;
    const int64_t rows = head.tile_rows(x.sizes, tile) - from;
    first_row = row;
    each(R, [&](int r) {
      const int64_t i = r < rows ? head.query(x.sizes, row + r) : -1;
      if (r == 0) *nonfinite = 0;
      query[r] = static_cast<int32_t>(i);
      read[r] = i < head.queries_valid ? static_cast<int32_t>(i) : -1;
    });
  }
  /// Switches the rows to a key segment.
  LONGSPAN_HD void enter(int next) {
    if (segment == next) return;
    segment = next;
    labelled = x.sizes.segment[segment].masks.has_classes();
    straight = !labelled && !head.ordered(segment) && head.order_q < 0;
    const kernels::SampleMasks masks = head.masks(x.sizes, segment);
    each(R, [&](int r) {
      seen[r] = read[r] >= 0 ? head.sees(x.sizes, segment, read[r]) : KeyInterval{0, 0};
      if (labelled) row_class[r] = read[r] >= 0 ? masks.class_of_query(read[r]) : 0;
    });
  }
  /// Loads delta and lse in units of log 2; lse is +inf for a row without keys.
  LONGSPAN_HD void load_statistics() {
    const A none = std::numeric_limits<A>::infinity();
    each(R, [&](int r) {
      const bool valid = read[r] >= 0;
      const int64_t at = number * x.sizes.queries + (valid ? read[r] : 0);
      const A lse = valid ? x.lse[at] : -none;
      row_a[r] = lse == -none ? none : lse * static_cast<A>(log2_e);
      row_b[r] = lse == -none ? A(0) : x.delta[at];
    });
  }
  /// Loads the keys in slots k0 .. k0 + K of a segment. Only the keys whose bit is set in `bits`
  /// are used.
  LONGSPAN_HD void load_keys(int of_segment, int64_t k0, uint64_t bits) {
    const SegmentTables& s = x.sizes.segment[of_segment];
    const kernels::SampleMasks masks = head.masks(x.sizes, of_segment);
    each(K, [&](int j) {
      const bool there = k0 + j < s.keys && (bits >> j & 1) != 0;
      const int32_t index = there ? head.key(x.sizes, of_segment, k0 + j) : -1;
      const bool shown = index >= 0 && head.shown(x.sizes, of_segment, index);
      key[j] = index;
      key_read[j] = shown ? index : -1;
      if (s.masks.has_classes()) key_class[j] = shown ? masks.class_of_key(index) : 0;
    });
  }
  /// Loads the multiplicity of each of those keys for the rows of this tile.
  LONGSPAN_HD void load_times(int64_t k0, uint64_t bits) {
    if (!x.sizes.layout.multiplied) return;
    each(K, [&](int j) {
      const auto place = static_cast<int32_t>(k0 + j);
      const bool one = (bits >> j & 1) == 0;
      times[j] = one ? A(1) : static_cast<A>(head.times(x.sizes, tile, segment, place));
    });
  }
  LONGSPAN_HD Source rows_of(const HeadRows<const T>& from) const {
    return {from.of(head.b, head.h), from.row, read, 0, 0, from.width};
  }
  LONGSPAN_HD Source keys_of(const HeadRows<const T>& from) const {
    return {from.of(head.b, head.h), from.row, key_read, 0, 0, from.width};
  }
  LONGSPAN_HD Source ids_of(const Table<T>& from, int64_t id, int64_t width) const {
    return {from.of(head.h), width, nullptr, id, x.ids - id, width};
  }

  // ---------------------------------------------------------------------------- products

  /// to[r][j] = sum_c a(r, c) b(j, c).
  LONGSPAN_HD void multiply_rows(const Source& a, const Source& b, A* to) {
    constexpr int m = R / 16, n = K / 16;
    for (int64_t c0 = 0; c0 < a.columns; c0 += D) {
      each((R + K) * D, [&](int i) {
        const int r = i / D, c = i % D;
        if (r < R) {
          left[r * S + c] = a.at(r, c0 + c);
        } else {
          right[(r - R) * S + c] = b.at(r - R, c0 + c);
        }
      });
      each(256, [&](int i) {
        const int y = i / 16, z = i % 16;
        A total[m][n];
        LONGSPAN_UNROLL for (int u = 0; u < m; ++u) {
          LONGSPAN_UNROLL for (int w = 0; w < n; ++w) {
            total[u][w] = c0 == 0 ? A(0) : to[(y + 16 * u) * P + z + 16 * w];
          }
        }
        for (int c = 0; c < D; ++c) {
          LONGSPAN_UNROLL for (int u = 0; u < m; ++u) {
            LONGSPAN_UNROLL for (int w = 0; w < n; ++w) {
              total[u][w] =
                  fused(left[(y + 16 * u) * S + c], right[(z + 16 * w) * S + c], total[u][w]);
            }
          }
        }
        LONGSPAN_UNROLL for (int u = 0; u < m; ++u) {
          LONGSPAN_UNROLL for (int w = 0; w < n; ++w) {
            to[(y + 16 * u) * P + z + 16 * w] = total[u][w];
          }
        }
      });
    }
  }

  /// The weight of a pair that does not exist: -0, which the weight of an existing pair never is.
  LONGSPAN_HD static A absent() { return -A(0); }
  LONGSPAN_HD static bool is_absent(A weight) { return weight == A(0) && A(1) / weight < A(0); }
  /// Records that the operand of product number `stage` holds a nonfinite element. That product
  /// then skips pairs that do not exist, because 0 times Inf or NaN is not 0.
  LONGSPAN_HD A noted(A value) {
    if (value - value != A(0)) *nonfinite = stage;
    return value;
  }

  /// to[r][c] = to[r][c] f_r + sum_j p[r][j] b(j, from + c), c < width; f: row factors or null.
  LONGSPAN_HD void add_keys(const A* p, const Source& b, int64_t from, int width, const A* f,
                            A* to) {
    constexpr int m = R / 16;
    for (int c0 = 0; c0 < width && from + c0 < b.columns; c0 += D) {
      ++stage;
      each(K * D, [&](int i) { right[i / D * S + i % D] = noted(b.at(i / D, from + c0 + i % D)); });
      const bool careful = *nonfinite == stage;
      each(256, [&](int i) {
        const int y = i / 16, z = i % 16;
        LONGSPAN_UNROLL for (int u = 0; u < m; ++u) {
          const int r = y + 16 * u;
          A* const at = to + r * width + c0 + z;
          A one = at[0], two = at[16];
          if (f != nullptr) {
            one *= f[r];
            two *= f[r];
          }
          for (int j = 0; j < K; ++j) {
            if (careful && is_absent(p[r * P + j])) continue;
            one = fused(p[r * P + j], right[j * S + z], one);
            two = fused(p[r * P + j], right[j * S + z + 16], two);
          }
          at[0] = one;
          at[16] = two;
        }
      });
    }
  }

  /// to[j][c] += sum_r p[r][j] b(r, from + c), c < width.
  LONGSPAN_HD void add_rows(const A* p, const Source& b, int64_t from, int width, A* to) {
    constexpr int n = K / 16;
    for (int c0 = 0; c0 < width && from + c0 < b.columns; c0 += D) {
      ++stage;
      each(R * D, [&](int i) { left[i / D * S + i % D] = noted(b.at(i / D, from + c0 + i % D)); });
      const bool careful = *nonfinite == stage;
      each(256, [&](int i) {
        const int y = i / 16, z = i % 16;
        LONGSPAN_UNROLL for (int u = 0; u < n; ++u) {
          const int j = y + 16 * u;
          A* const at = to + j * width + c0 + z;
          A one = at[0], two = at[16];
          for (int r = 0; r < R; ++r) {
            if (careful && is_absent(p[r * P + j])) continue;
            one = fused(p[r * P + j], left[r * S + z], one);
            two = fused(p[r * P + j], left[r * S + z + 16], two);
          }
          at[0] = one;
          at[16] = two;
        }
      });
    }
  }
  LONGSPAN_HD void clear(A* to, int n) {
    each(n, [&](int i) { to[i] = A(0); });
  }

  // --------------------------------------------------------------------------- relations

  LONGSPAN_HD int64_t clip(int64_t distance) const {
    return clamped(distance, -x.left, x.right) + x.left;
  }
  /// k - q, in positions.
  LONGSPAN_HD int64_t distance(int r, int j) const {
    return int64_t{key_read[j]} - (read[r] + x.sizes.segment[segment].q_start);
  }
  /// The id of a pair; negative if its classes hide it or if the query or the key does not exist.
  LONGSPAN_HD int64_t id_of(int r, int j) const {
    if (read[r] < 0 || key_read[j] < 0) return -1;
    if (!labelled) return clip(distance(r, j));
    return head.masks(x.sizes, segment).label_of_classes(row_class[r], key_class[j]);
  }
  /// Returns bounds first .. last of the ids of the rows with the keys in slots k0 ..
  LONGSPAN_HD void reach(int64_t k0, int64_t& first, int64_t& last) const {
    first = 0;
    last = x.ids - 1;
    if (!straight) return;
    const int64_t position = first_row + x.sizes.segment[segment].q_start;
    first = clip(k0 - (position + R - 1));
    last = clip(k0 + K - 1 - position);
  }
  /// to[r][j] += a_row(r) . table[id] + shift[id].
  LONGSPAN_HD void add_relation(const Source& a, const Table<T>& table, const Table<T>& shift,
                                int64_t k0, A* workspace, A* to) {
    const T* const b = shift.of(head.h);
    if (b != nullptr) {
      each(R * K, [&](int i) {
        const int r = i / K, j = i % K;
        const int64_t id = id_of(r, j);
        if (id >= 0) to[r * P + j] += static_cast<A>(b[id]);
      });
    }
    if (table.data == nullptr) return;
    int64_t first, last;
    reach(k0, first, last);
    for (int64_t id0 = first; id0 <= last; id0 += K) {
      multiply_rows(a, ids_of(table, id0, a.columns), workspace);
      each(R * K, [&](int i) {
        const int r = i / K, j = i % K;
        const int64_t id = id_of(r, j) - id0;
        if (id >= 0 && id < K) to[r * P + j] += workspace[r * P + id];
      });
    }
  }
  /// to[r][i] = the sum of p[r][j] over the keys whose id is id0 + i.
  LONGSPAN_HD void gather(const A* p, int64_t k0, int64_t id0, A* to) {
    if (straight) {  // keys of one id are adjacent
      const int64_t position = first_row + x.sizes.segment[segment].q_start;
      each(R * K, [&](int i) {
        const int r = i / K;
        const int64_t id = id0 + i % K, place = position + r - k0 + id - x.left;
        const int64_t from = id == 0 ? 0 : clamped(place, 0, K);
        const int64_t end = id == x.left + x.right ? K : clamped(place + 1, 0, K);
        A total = 0;
        if (id <= x.left + x.right) {
          for (int64_t j = from; j < end; ++j) total += p[r * P + j];
        }
        to[r * P + i % K] = total;
      });
      return;
    }
    each(R, [&](int r) {
      for (int i = 0; i < K; ++i) to[r * P + i] = A(0);
      for (int j = 0; j < K; ++j) {
        const int64_t id = id_of(r, j) - id0;
        if (id >= 0 && id < K) to[r * P + id] += p[r * P + j];
      }
    });
  }
  /// to[r][c] += sum_j p[r][j] table[id(r, j)][from + c].
  LONGSPAN_HD void add_ids(const A* p, const Table<T>& table, int64_t columns, int64_t k0,
                           int64_t from, int width, A* workspace, A* to) {
    int64_t first, last;
    reach(k0, first, last);
    for (int64_t id0 = first; id0 <= last; id0 += K) {
      gather(p, k0, id0, workspace);
      add_keys(workspace, ids_of(table, id0, columns), from, width, nullptr, to);
    }
  }

  // ------------------------------------------------------------------------------ scores

  LONGSPAN_HD bool visible(uint64_t bits, int r, int j) const {
    const bool seen_by_row =
        (bits >> j & 1) != 0 && key_read[j] >= seen[r].lo && key_read[j] < seen[r].hi;
    return seen_by_row && (!labelled || id_of(r, j) >= 0);
  }
  LONGSPAN_HD bool soft() const { return x.span.given() && segment == 0; }
  /// mu before clamping.
  LONGSPAN_HD A ramp(int r, int j) const {
    return x.span.at(x.span.of_row(head.b, head.h, read[r]),
                     x.span.of_column(head.b, head.h, key_read[j]), -distance(r, j));
  }
  /// Whether a pair exists.
  LONGSPAN_HD bool counts(uint64_t bits, int r, int j) const {
    return visible(bits, r, j) && (!soft() || ramp(r, j) > A(0));
  }
  LONGSPAN_HD static A unit(A y) { return y < A(0) ? A(0) : (y > A(1) ? A(1) : y); }
  /// Dropout factor: 1 / (1 - p) or 0.
  LONGSPAN_HD A keep(int r, int j) const {
    const auto i = static_cast<uint32_t>(query[r]), k = static_cast<uint32_t>(key[j]);
    return x.sizes.draws.keeps(static_cast<uint32_t>(number), i, k, static_cast<uint32_t>(segment))
               ? static_cast<A>(x.sizes.draws.scale)
               : A(0);
  }
  /// scores = q . k plus the relation terms, without the softmax factor, for the keys from slot k0
  /// on.
  LONGSPAN_HD void score(int64_t k0) {
    multiply_rows(rows_of(x.q), keys_of(x.k[segment]), scores);
    if (x.key.data != nullptr || x.bias.data != nullptr) {
      add_relation(rows_of(x.relation_query), x.key, x.bias, k0, bins, scores);
    }
  }
  /// scores = P after dropout; dscores = dS without the scale; bins = gradients of mu times its
  /// ramp if `of_span`.
  LONGSPAN_HD void differentiate(int64_t k0, uint64_t bits, bool of_span = false) {
    score(k0);
    multiply_rows(rows_of(x.dout), keys_of(x.v[segment]), dscores);
    if (x.value.data != nullptr) {
      add_relation(rows_of(x.dout), x.value, {}, k0, bins, dscores);
    }
    each(R * K, [&](int i) {
      const int r = i / K, j = i % K, at = r * P + j;
      A p = absent(), ds = absent(), dmu = 0;
      if (visible(bits, r, j)) {
        const A above = fused(scores[at], factor, -row_a[r]);
        // Where mu is 0, lse does not bound the score.
        p = exp2(soft() && above > A(64) ? A(64) : above);
        if (x.sizes.layout.multiplied) p *= times[j];
        const A kept = x.sizes.draws.active ? keep(r, j) : A(1);
        ds = p * (dscores[at] * kept - row_b[r]) + A(0);  // 0 removes the sign of -0
        if (soft()) {
          const A mu = ramp(r, j);
          const bool some = mu > A(0);
          if (some ? mu <= A(1) : mu == A(0) && ds - ds == A(0)) dmu = ds;
          ds = some ? ds * unit(mu) + A(0) : absent();
          p = some ? p * unit(mu) : absent();
        }
        p *= kept;
      }
      scores[at] = p;
      dscores[at] = ds;
      if (of_span) bins[at] = dmu;
    });
  }

  // ------------------------------------------------------------------------------ passes

  /// Computes the columns of out from chunk * Tile::row_sums on, for the rows of a tile from `from`
  /// on; chunk 0 also computes lse.
  LONGSPAN_HD void forward(int64_t from, int64_t chunk) {
    constexpr int width = Tile::row_sums, share = K / parts;
    const A hidden = -std::numeric_limits<A>::infinity();
    A *const reference = row_a, *const total = row_b, *const change = row_c;
    load_rows(work.place, from);
    clear(sum, R * width);
    each(R, [&](int r) {
      reference[r] = hidden;
      total[r] = A(0);
    });
    KeySteps<K> steps(x.sizes, head, tile, work.range);
    for (KeyStep step; steps.next(step);) {
      enter(step.segment);
      load_keys(segment, step.k0, step.mask);
      load_times(step.k0, step.mask);
      score(step.k0);
      each(R * parts, [&](int i) {
        const int r = i / parts;
        A top = hidden;
        for (int j = i % parts * share; j < (i % parts + 1) * share; ++j) {
          A& s = scores[r * P + j];
          if (!counts(step.mask, r, j)) s = factor < A(0) ? -hidden : hidden;
          top = s * factor > top ? s * factor : top;
        }
        part[i] = top;
      });
      // Raises the reference of a row to its largest score if that exceeds it by more than 8 (a
      // factor of 2^8).
      each(R, [&](int r) {
        A top = part[r * parts];
        for (int i = 1; i < parts; ++i) top = max(top, part[r * parts + i]);
        change[r] = A(1);
        if (top > reference[r] + A(8)) {
          change[r] = exp2(reference[r] - top);
          reference[r] = top;
        }
      });
      each(R * parts, [&](int i) {
        const int r = i / parts;
        const A base = reference[r] == hidden ? A(0) : reference[r];
        A partial = 0;
        for (int j = i % parts * share; j < (i % parts + 1) * share; ++j) {
          A p = exp2(fused(scores[r * P + j], factor, -base));
          if (p != A(0) && x.sizes.layout.multiplied) p *= times[j];
          if (p != A(0) && soft()) p *= unit(ramp(r, j));
          partial += p;
          if (x.sizes.draws.active && p != A(0)) p *= keep(r, j);
          scores[r * P + j] = p == A(0) && !counts(step.mask, r, j) ? absent() : p;
        }
        part[i] = partial;
      });
      each(R, [&](int r) {
        total[r] *= change[r];
        for (int i = 0; i < parts; ++i) total[r] += part[r * parts + i];
      });
      add_keys(scores, keys_of(x.v[segment]), chunk * width, width, change, sum);
      if (x.value.data != nullptr) {
        add_ids(scores, x.value, x.sizes.value_width, step.k0, chunk * width, width, bins, sum);
      }
    }
    T* const out = x.out.of(head.b, head.h);
    each(R * width, [&](int i) {
      const int r = i / width;
      const int64_t c = chunk * width + i % width;
      if (query[r] < 0 || c >= x.sizes.value_width) return;
      // Without weights the sums are 0, or nonfinite because a value is.
      const A y = total[r] == A(0) ? sum[i] * A(0) : sum[i];
      if (work.workspace >= 0) {
        x.wide[(work.workspace + from + r) * x.sizes.value_width + c] = y;
      } else {
        out[query[r] * x.out.row + c] = static_cast<T>(total[r] == A(0) ? y : y / total[r]);
      }
    });
    if (chunk != 0) return;
    each(R, [&](int r) {
      if (query[r] < 0) return;
      const A base = reference[r] == hidden ? A(0) : reference[r];
      if (work.workspace >= 0) {
        A* const to = x.statistics + 2 * (work.workspace + from + r);
        to[0] = base;
        to[1] = total[r];
      } else {
        x.lse[number * x.sizes.queries + query[r]] = lse_of(base, total[r]);
      }
    });
  }

  /// Computes the columns of dq, or of the gradient of relation_query, from chunk * Tile::row_sums
  /// on, for the rows of a tile from `from` on; chunk 0 of dq also computes the gradients of mu.
  LONGSPAN_HD void row_gradients(int64_t from, int64_t chunk, bool of_relation) {
    constexpr int width = Tile::row_sums;
    const bool of_span = x.query_sums != nullptr && chunk == 0 && !of_relation;
    A* const of_mu = row_c;
    load_rows(work.place, from);
    load_statistics();
    clear(sum, R * width);
    clear(of_mu, R);
    KeySteps<K> steps(x.sizes, head, tile, work.range);
    for (KeyStep step; steps.next(step);) {
      enter(step.segment);
      load_keys(segment, step.k0, step.mask);
      load_times(step.k0, step.mask);
      differentiate(step.k0, step.mask, of_span);
      if (of_span) {
        each(R, [&](int r) {
          for (int j = 0; j < K; ++j) of_mu[r] += bins[r * P + j];
        });
      }
      if (!of_relation) {
        add_keys(dscores, keys_of(x.k[segment]), chunk * width, width, nullptr, sum);
      }
      if (x.key.data != nullptr && of_relation == x.own_relation_query) {
        add_ids(dscores, x.key, x.sizes.width, step.k0, chunk * width, width, bins, sum);
      }
    }
    const A scale = static_cast<A>(x.sizes.scale);
    const HeadRows<T>& rows = of_relation ? x.drelation_query : x.dq;
    T* const to = rows.of(head.b, head.h);
    each(R * width, [&](int i) {
      const int64_t r = i / width, c = chunk * width + i % width;
      if (query[r] < 0 || c >= x.sizes.width) return;
      if (work.workspace >= 0) {
        const int64_t row = work.workspace + from + r;
        x.wide[row * x.row_columns() + (of_relation ? x.sizes.width : 0) + c] = sum[i] * scale;
      } else {
        to[query[r] * rows.row + c] = static_cast<T>(sum[i] * scale);
      }
    });
    if (!of_span) return;
    each(R, [&](int r) {
      if (query[r] < 0) return;
      A& put = work.workspace >= 0 ? x.wide[(work.workspace + from + r + 1) * x.row_columns() - 1]
                                   : x.query_sums[number * x.sizes.queries + query[r]];
      put = of_mu[r];
    });
  }

  /// Computes the columns of dk and dv from chunk * Tile::key_sums on, for slots `from` .. from + K
  /// of a step; chunk 0 also computes the gradients of mu.
  LONGSPAN_HD void key_gradients(int64_t from, int64_t chunk) {
    constexpr int width = Tile::key_sums;
    const WorkPlace place(x.sizes, work.place);
    const int of_segment = place.segment;
    const int64_t k0 = place.k0 + from;
    A* const dv_sum = sum + K * width;
    const bool of_span = x.span_sums != nullptr && of_segment == 0 && chunk == 0;
    clear(sum, 2 * K * width);
    clear(span_sum, K);
    load_keys(of_segment, k0, ~uint64_t{0});
    TileSteps<K> steps(x.sizes, head, of_segment, k0, work.range);
    for (TileStep step; steps.next(step);) {
      const int64_t rows = head.tile_rows(x.sizes, step.tile);
      for (int64_t row = 0; row < rows; row += R) {
        load_rows(step.tile, row);
        load_statistics();
        enter(of_segment);
        load_times(k0, step.mask);
        differentiate(k0, step.mask, of_span);
        if (of_span) {
          each(K, [&](int j) {
            for (int r = 0; r < R; ++r) span_sum[j] += bins[r * P + j];
          });
        }
        add_rows(dscores, rows_of(x.q), chunk * width, width, sum);
        add_rows(scores, rows_of(x.dout), chunk * width, width, dv_sum);
      }
    }
    const bool split = work.workspace >= 0;
    A* const workspace = split ? x.wide + (work.workspace + from) * x.key_columns() : nullptr;
    if (of_span) {
      each(K, [&](int j) {
        if (key[j] < 0) return;
        A& to = split ? workspace[(j + 1) * x.key_columns() - 1]
                      : x.span_sums[number * x.sizes.segment[0].keys + key[j]];
        to = span_sum[j];
      });
    }
    const HeadRows<T>&to_k = x.dk[of_segment], &to_v = x.dv[of_segment];
    if (to_k.data == nullptr) return;
    const A scale = static_cast<A>(x.sizes.scale);
    T *const dk = to_k.of(head.b, head.h), *const dv = to_v.of(head.b, head.h);
    each(K * width, [&](int i) {
      const int64_t j = i / width, c = chunk * width + i % width;
      if (key[j] < 0) return;
      if (split) {
        A* const to = workspace + j * x.key_columns() + c;
        if (c < x.sizes.width) to[0] = sum[i] * scale;
        if (c < x.sizes.value_width) to[x.sizes.width] = dv_sum[i];
        return;
      }
      if (c < x.sizes.width) dk[key[j] * to_k.row + c] = static_cast<T>(sum[i] * scale);
      if (c < x.sizes.value_width) dv[key[j] * to_v.row + c] = static_cast<T>(dv_sum[i]);
    });
  }

  /// Computes this head's gradient sums of ids id0 .. id0 + K over the tiles of a split, for the
  /// columns from chunk * Tile::key_sums on, without the scale.
  LONGSPAN_HD void table_gradients(int64_t id0, int64_t split, int64_t chunk) {
    constexpr int width = Tile::key_sums;
    A *const value_sum = sum + K * width, *const bias_sum = value_sum + K * width;
    clear(sum, 2 * K * width + K);
    const int64_t tiles = ceil_div(head.tiles, x.splits), first = split * tiles;
    for (int64_t t = first; t < min<int64_t>(first + tiles, head.tiles); ++t) {
      const int64_t rows = head.tile_rows(x.sizes, t);
      for (int64_t from = 0; from < rows; from += R) {
        load_rows(t, from);
        load_statistics();
        KeySteps<K> steps(x.sizes, head, t);
        for (KeyStep step; steps.next(step);) {
          enter(step.segment);
          int64_t least, most;
          reach(step.k0, least, most);
          if (most < id0 || least >= id0 + K) continue;
          load_keys(segment, step.k0, step.mask);
          load_times(step.k0, step.mask);
          differentiate(step.k0, step.mask);
          gather(dscores, step.k0, id0, bins);
          add_rows(bins, rows_of(x.relation_query), chunk * width, width, sum);
          each(K, [&](int i) {
            for (int r = 0; r < R; ++r) bias_sum[i] += bins[r * P + i];
          });
          gather(scores, step.k0, id0, bins);
          add_rows(bins, rows_of(x.dout), chunk * width, width, value_sum);
        }
      }
    }
    const int64_t row = x.table_width();
    A* const to = x.sums + ((number * x.splits + split) * x.ids + id0) * row;
    each(K * width, [&](int i) {
      const int64_t id = i / width, c = chunk * width + i % width;
      if (id0 + id >= x.ids) return;
      if (c < x.sizes.width) to[id * row + c] = sum[i];
      if (c < x.sizes.value_width) to[id * row + x.sizes.width + c] = value_sum[i];
      if (c == 0) to[id * row + row - 1] = bias_sum[id];
    });
  }

  const AttentionArguments<T>& x;
  const AttentionWork work;
  const AttentionHead head;
  const int64_t number;  // b H + h
  const A factor;
  A *scores, *bins, *dscores, *left, *right, *sum, *row_a, *row_b, *row_c, *part, *times, *span_sum;
  int32_t *query, *read, *key, *key_read, *key_class, *row_class;
  int32_t* nonfinite;  // the latest product with a nonfinite operand
  int32_t stage = 0;   // number of the current product
  KeyInterval* seen;
  int64_t first_row = 0, tile = 0;
  int segment = -1;       // of the current keys
  bool labelled = false;  // pairs have classes
  bool straight = true;   // adjacent slots are adjacent positions, and ids are distances

 private:
  LONGSPAN_HD static A* take(A*& at, int64_t n) {
    A* const here = at;
    at += n;
    return here;
  }
};

// --------------------------------------------------------------------------------------- the grids

/// The work of one block in each pass, by block index, with Tile::..._bytes of shared memory.
template <class T>
struct GeneralPasses {
  using A = Accumulator<T>;
  using Tile = GeneralTile<A>;
  using Arguments = AttentionArguments<T>;

  /// Pieces of Tile::keys keys in one work item of the keys pass.
  static constexpr int64_t key_parts = kernels::kAttentionWorkKeys / Tile::keys;

  static LONGSPAN_HD int64_t forward_blocks(const Arguments& x) {
    return units_of(x.sizes, x.sizes.layout.row_work,
                    ceil_div(x.sizes.value_width, Tile::row_sums) * Tile::parts);
  }
  /// Column chunks of dq, before the chunks of the gradient of relation_query.
  static LONGSPAN_HD int64_t row_chunks(const Arguments& x) {
    return ceil_div(x.sizes.width, Tile::row_sums);
  }
  static LONGSPAN_HD int64_t row_blocks(const Arguments& x) {
    return units_of(x.sizes, x.sizes.layout.row_work,
                    row_chunks(x) * (x.own_relation_query ? 2 : 1) * Tile::parts);
  }
  static LONGSPAN_HD int64_t key_chunks(const Arguments& x) {
    return ceil_div(max(x.sizes.width, x.sizes.value_width), Tile::key_sums);
  }
  static LONGSPAN_HD int64_t key_blocks(const Arguments& x) {
    return units_of(x.sizes, x.sizes.layout.column_work, key_chunks(x) * key_parts);
  }
  static LONGSPAN_HD int64_t table_blocks(const Arguments& x) {
    return ceil_div(x.ids, Tile::keys) * x.splits * x.sizes.head_count() * key_chunks(x);
  }

  static LONGSPAN_HD void forward(const Arguments& x, A* shared, int64_t index) {
    const int64_t chunks = ceil_div(x.sizes.value_width, Tile::row_sums);
    const AttentionWork work(x.sizes, x.sizes.layout.row_work, index, chunks * Tile::parts);
    General<T> tile(x, work, shared, 2, Tile::rows * Tile::row_sums);
    const int64_t from = work.chunk / chunks * Tile::rows;
    if (from >= tile.head.tile_rows(x.sizes, work.place)) return;
    tile.forward(from, work.chunk % chunks);
  }
  static LONGSPAN_HD void row_gradients(const Arguments& x, A* shared, int64_t index) {
    const int64_t chunks = row_chunks(x);
    const int64_t results = chunks * (x.own_relation_query ? 2 : 1);
    const AttentionWork work(x.sizes, x.sizes.layout.row_work, index, results * Tile::parts);
    const bool of_relation = work.chunk % results >= chunks;
    if ((of_relation ? x.drelation_query : x.dq).data == nullptr) return;
    General<T> tile(x, work, shared, 3, Tile::rows * Tile::row_sums);
    const int64_t from = work.chunk / results * Tile::rows;
    if (from >= tile.head.tile_rows(x.sizes, work.place)) return;
    tile.row_gradients(from, work.chunk % chunks, of_relation);
  }
  static LONGSPAN_HD void key_gradients(const Arguments& x, A* shared, int64_t index) {
    const int64_t chunks = key_chunks(x);
    const AttentionWork work(x.sizes, x.sizes.layout.column_work, index, chunks * key_parts);
    const WorkPlace at(x.sizes, work.place);
    const int64_t from = work.chunk / chunks * Tile::keys;
    if (at.k0 + from >= x.sizes.segment[at.segment].keys) return;
    General<T> tile(x, work, shared, 3, 2 * Tile::keys * Tile::key_sums);
    tile.key_gradients(from, work.chunk % chunks);
  }
  static LONGSPAN_HD void table_gradients(const Arguments& x, A* shared, int64_t index) {
    const int64_t panels = ceil_div(x.ids, Tile::keys);
    const AttentionWork work(x.sizes, index, key_chunks(x));
    General<T> tile(x, work, shared, 3, 2 * Tile::keys * Tile::key_sums + Tile::keys);
    tile.table_gradients(work.place % panels * Tile::keys, work.place / panels, work.chunk);
  }
};

/// One thread's share of dout . out for query `row` of head (b, h): the columns rank, rank + team,
/// ... The caller subtracts dlse.
template <class T>
LONGSPAN_HD Accumulator<T> delta_part(const HeadRows<const T>& dout, const HeadRows<T>& out,
                                      int64_t b, int64_t h, int64_t row, int rank, int team) {
  using A = Accumulator<T>;
  const T *const x = dout.of(b, h) + row * dout.row, *const y = out.of(b, h) + row * out.row;
  A total = 0;
  for (int c = rank; c < dout.width; c += team)
    total += static_cast<A>(x[c]) * static_cast<A>(y[c]);
  return total;
}

/// Combines row i of out [B, H, L], which holds the first of two partial results, with the second:
/// columns rank, rank + team, ...
template <class T>
LONGSPAN_HD void join_row(const HeadRows<T>& out, int64_t heads, int64_t queries,
                          const JoinedParts<Accumulator<T>>& joined, const HeadRows<const T>& part,
                          int64_t i, int rank, int team) {
  using A = Accumulator<T>;
  if (joined.part == A(0)) return;
  const int64_t row = i % queries, bh = i / queries;
  const int64_t b = bh / heads, h = bh % heads;
  T* const to = out.of(b, h) + row * out.row;
  const T* const from = part.of(b, h) + row * part.row;
  for (int c = rank; c < part.width; c += team) {
    to[c] = static_cast<T>(static_cast<A>(to[c]) * joined.before +
                           static_cast<A>(from[c]) * joined.part);
  }
}

/// Row or key `at` of a tile or step that was split, and its results in each split.
struct SplitRow {
  int64_t first, step, splits;

  /// Its row in the workspace of a split.
  LONGSPAN_HD int64_t of(int64_t split) const { return first + split * step; }
  /// Adds a workspace column over the splits, in order.
  template <class A>
  LONGSPAN_HD A sum(const A* workspace, int64_t columns, int64_t column) const {
    A total = 0;
    for (int64_t s = 0; s < splits; ++s) total += workspace[of(s) * columns + column];
    return total;
  }
};

/// Calls f(cut, query, row) for row i of the split tiles, counted as kAttentionTileRows to a tile,
/// if the row exists.
template <class F>
LONGSPAN_HD void visit_cut_row(const AttentionSizes& x, int64_t i, F f) {
  constexpr int64_t most = kernels::kAttentionTileRows;
  const CutWork cut(x, x.layout.row_work, i / most);
  const AttentionHead head(x, cut.b, cut.h);
  const int64_t at = i % most, rows = head.tile_rows(x, cut.place);
  if (at >= rows) return;
  f(cut, head.query(x, head.tile_row(x, cut.place) + at),
    SplitRow{cut.workspace + at, rows, cut.splits});
}

/// Combines the splits of row i of the split tiles into out and lse: columns rank, rank + team, ...
/// Every sum runs over the splits in order.
template <class T>
LONGSPAN_HD void join_splits(const AttentionArguments<T>& x, int64_t i, int rank, int team) {
  using A = Accumulator<T>;
  visit_cut_row(x.sizes, i, [&](const CutWork& cut, int64_t query, const SplitRow& row) {
    const A none = -std::numeric_limits<A>::infinity();
    const auto base = [&](int64_t s) { return x.statistics[2 * row.of(s)]; };
    const auto weights = [&](int64_t s) { return x.statistics[2 * row.of(s) + 1]; };
    A top = none, total = 0;
    for (int64_t s = 0; s < row.splits; ++s) {
      if (weights(s) != A(0)) top = max(top, base(s));
    }
    const auto share = [&](int64_t s) { return weights(s) == A(0) ? A(1) : exp2(base(s) - top); };
    for (int64_t s = 0; s < row.splits; ++s) total += weights(s) * share(s);
    const int64_t width = x.sizes.value_width;
    T* const out = x.out.of(cut.b, cut.h) + query * x.out.row;
    for (int64_t c = rank; c < width; c += team) {
      A sum = 0;
      for (int64_t s = 0; s < row.splits; ++s) {
        sum = fused(x.wide[row.of(s) * width + c], share(s), sum);
      }
      out[c] = static_cast<T>(total == A(0) ? sum : sum / total);
    }
    if (rank == 0) {
      x.lse[(cut.b * x.sizes.heads + cut.h) * x.sizes.queries + query] = lse_of(top, total);
    }
  });
}

/// The same for dq, the gradient of relation_query and the sums of query_span.
template <class T>
LONGSPAN_HD void add_row_splits(const AttentionArguments<T>& x, int64_t i, int rank, int team) {
  visit_cut_row(x.sizes, i, [&](const CutWork& cut, int64_t query, const SplitRow& row) {
    const auto write = [&](const HeadRows<T>& to, int64_t column) {
      if (to.data == nullptr) return;
      T* const out = to.of(cut.b, cut.h) + query * to.row;
      for (int64_t c = rank; c < to.width; c += team) {
        out[c] = static_cast<T>(row.sum(x.wide, x.row_columns(), column + c));
      }
    };
    write(x.dq, 0);
    write(x.drelation_query, x.sizes.width);
    if (rank != 0 || x.query_sums == nullptr) return;
    x.query_sums[(cut.b * x.sizes.heads + cut.h) * x.sizes.queries + query] =
        row.sum(x.wide, x.row_columns(), x.row_columns() - 1);
  });
}

/// The same for key i of the split steps: dk, dv and the span sums.
template <class T>
LONGSPAN_HD void add_key_splits(const AttentionArguments<T>& x, int64_t i, int rank, int team) {
  constexpr int64_t unit = kernels::kAttentionWorkKeys;
  const CutWork cut(x.sizes, x.sizes.layout.column_work, i / unit);
  const AttentionHead head(x.sizes, cut.b, cut.h);
  const WorkPlace at(x.sizes, cut.place);
  const SegmentTables& segment = x.sizes.segment[at.segment];
  if (at.k0 + i % unit >= segment.keys) return;
  const int64_t key = head.key(x.sizes, at.segment, at.k0 + i % unit), columns = x.key_columns();
  const SplitRow row{cut.workspace + i % unit, unit, cut.splits};
  const auto write = [&](const HeadRows<T>& to, int64_t column) {
    if (to.data == nullptr) return;
    T* const out = to.of(cut.b, cut.h) + key * to.row;
    for (int64_t c = rank; c < to.width; c += team) {
      out[c] = static_cast<T>(row.sum(x.wide, columns, column + c));
    }
  };
  write(x.dk[at.segment], 0);
  write(x.dv[at.segment], x.sizes.width);
  if (rank != 0 || x.span_sums == nullptr || at.segment != 0) return;
  x.span_sums[(cut.b * x.sizes.heads + cut.h) * segment.keys + key] =
      row.sum(x.wide, columns, columns - 1);
}

/// Returns entry (h, id, c) of the gradient of a table whose columns begin at `column` of x.sums; h
/// is -1 if the heads share the table.
template <class T>
LONGSPAN_HD Accumulator<T> table_sum(const AttentionArguments<T>& x, int64_t h, int64_t id,
                                     int64_t column) {
  Accumulator<T> total = 0;
  for (int64_t b = 0; b < x.sizes.batch; ++b) {
    const int64_t first = h < 0 ? 0 : h, end = h < 0 ? x.sizes.heads : h + 1;
    for (int64_t head = first; head < end; ++head) {
      for (int64_t split = 0; split < x.splits; ++split) {
        const int64_t row = ((b * x.sizes.heads + head) * x.splits + split) * x.ids + id;
        total += x.sums[row * x.table_width() + column];
      }
    }
  }
  return total;
}

/// Returns share `rank` of `team` of element (b, h, j) of the gradient of span: its sum over the
/// samples, heads and keys that the element serves.
template <class T>
LONGSPAN_HD Accumulator<T> span_part(const AttentionArguments<T>& x, int64_t b, int64_t h,
                                     int64_t j, int rank, int team) {
  Accumulator<T> total = 0;
  const int64_t keys = x.sizes.segment[0].keys;
  const int64_t b_end = x.span.batch == 0 ? x.sizes.batch : b + 1,
                h_end = x.span.head == 0 ? x.sizes.heads : h + 1,
                j_end = x.span.key == 0 ? keys : j + 1;
  for (int64_t sample = b; sample < b_end; ++sample) {
    for (int64_t head = h; head < h_end; ++head) {
      const Accumulator<T>* const row = x.span_sums + (sample * x.sizes.heads + head) * keys;
      for (int64_t key = j + rank; key < j_end; key += team) total += row[key];
    }
  }
  return total / static_cast<Accumulator<T>>(x.span.ramp);
}

/// Returns element (b, h, i) of the gradient of query_span: its sum over the samples and heads that
/// the element serves.
template <class T>
LONGSPAN_HD Accumulator<T> query_span_sum(const AttentionArguments<T>& x, int64_t b, int64_t h,
                                          int64_t i) {
  Accumulator<T> total = 0;
  const int64_t b_end = x.span.query_batch == 0 ? x.sizes.batch : b + 1,
                h_end = x.span.query_head == 0 ? x.sizes.heads : h + 1;
  for (int64_t sample = b; sample < b_end; ++sample) {
    for (int64_t head = h; head < h_end; ++head) {
      total += x.query_sums[(sample * x.sizes.heads + head) * x.sizes.queries + i];
    }
  }
  return total / static_cast<Accumulator<T>>(x.span.ramp);
}

/// Owns the workspace of the splits of a list; empty if nothing is split.
template <class T>
class SplitWorkspace {
 public:
  /// Allocates rows of `columns` and, in the forward pass, their statistics.
  SplitWorkspace(AttentionArguments<T>& x, const WorkTable& list, int64_t columns, bool forward,
                 Device device) {
    const int64_t rows = list.workspace * x.sizes.served_by_item();
    if (rows == 0) return;
    x.wide = take(rows * columns, device);
    if (forward) x.statistics = take(rows * 2, device);
  }

 private:
  Accumulator<T>* take(int64_t numbers, Device device) {
    const auto bytes = numbers * static_cast<int64_t>(sizeof(Accumulator<T>));
    workspace_.push_back(std::make_unique<Scratch>(bytes, device));
    return workspace_.back()->template as<Accumulator<T>>();
  }
  std::vector<std::unique_ptr<Scratch>> workspace_;
};

// ---------------------------------------------------------------------------------- from the views

template <class T>
HeadRows<T> head_rows(const void* data, const Strides& strides, int64_t width) {
  return {static_cast<T*>(const_cast<void*>(data)), strides[0], strides[1], strides[2],
          static_cast<int32_t>(width)};
}
template <class T>
HeadRows<T> head_rows(const ConstView& x) {
  return x ? head_rows<T>(x.data, x.strides, x.dim(3)) : HeadRows<T>{};
}

inline SegmentTables segment_of(const kernels::AttentionProblem& in, int s) {
  SegmentTables t;
  t.keys = in.inputs.k[s].dim(2);
  t.q_start = in.numbers.q_start[s];
  for (int rule = 0; rule < kernels::kAttentionRules; ++rule) {
    t.left[rule] = in.numbers.windows[s][rule].left;
    t.right[rule] = in.numbers.windows[s][rule].right;
  }
  t.masks = kernels::MaskTables(in.masks[s], t.keys);
  return t;
}

/// Returns the arguments that the forward and the backward pass share.
inline AttentionSizes sizes_of(const kernels::AttentionProblem& in) {
  const auto& l = in.layout;
  const auto table = [](const ConstView& x) { return x.as<int32_t>(); };
  const auto work = [&](const kernels::AttentionWork<ConstView>& w) {
    return WorkTable{table(w.items), table(w.cuts), w.items.dim(0), w.cuts.dim(0), w.workspace};
  };
  AttentionSizes x;
  x.batch = in.inputs.q.dim(0);
  x.heads = in.inputs.q.dim(1);
  x.queries = in.inputs.q.dim(2);
  x.width = static_cast<int32_t>(in.inputs.q.dim(3));
  x.value_width = static_cast<int32_t>(in.inputs.v[0].dim(3));
  x.segments = in.numbers.segments;
  for (int s = 0; s < in.numbers.segments; ++s) x.segment[s] = segment_of(in, s);
  x.q_valid = in.q_valid.as<int64_t>();
  const int64_t rows = l.layout_index.dim(0), columns = l.layout_index.dim(1);
  x.layout = {table(l.first_tile),
              table(l.tiles),
              table(l.row_start),
              table(l.runs),
              table(l.first_column),
              table(l.col_start),
              table(l.col_runs),
              table(l.layout_index),
              table(l.members),
              table(l.order_q),
              table(l.order_k),
              work(l.row_work),
              work(l.column_work),
              rows,
              columns,
              l.multiplied};
  x.draws.key = in.numbers.dropout.key;
  x.draws.threshold = static_cast<uint32_t>(drop_threshold(in.numbers.dropout.p));
  x.draws.active = in.numbers.dropout.p > 0;
  x.draws.scale = 1 / (1 - in.numbers.dropout.p);
  x.draws.first_head = static_cast<uint32_t>(in.numbers.dropout.first_head);
  x.scale = in.numbers.scale;
  return x;
}

template <class T>
AttentionArguments<T> arguments_of(const kernels::AttentionProblem& in) {
  AttentionArguments<T> x;
  x.sizes = sizes_of(in);
  x.q = head_rows<const T>(in.inputs.q);
  for (int s = 0; s < in.numbers.segments; ++s) {
    x.k[s] = head_rows<const T>(in.inputs.k[s]);
    x.v[s] = head_rows<const T>(in.inputs.v[s]);
  }
  const auto table = [](const ConstView& t) {
    return Table<T>{t.as<T>(), t && t.dim(0) > 1 ? t.stride(0) : 0};
  };
  const auto& terms = in.inputs;
  x.own_relation_query = static_cast<bool>(terms.relation_query);
  x.relation_query = x.own_relation_query ? head_rows<const T>(terms.relation_query) : x.q;
  x.key = table(terms.relation_key);
  x.bias = table(terms.relation_bias);
  x.value = table(terms.relation_value);
  x.left = in.numbers.left;
  x.right = in.numbers.right;
  x.ids = in.numbers.ids;
  const auto step = [](const ConstView& of, int axis) {
    return of && of.dim(axis) > 1 ? of.stride(axis) : 0;
  };
  const ConstView &span = terms.span, &by_query = terms.query_span;
  x.span = {span.as<Accumulator<T>>(),
            by_query.as<Accumulator<T>>(),
            step(span, 0),
            step(span, 1),
            step(span, 2),
            step(by_query, 0),
            step(by_query, 1),
            in.numbers.ramp,
            in.numbers.offset};
  return x;
}

/// Adds the inputs and outputs of the backward pass.
template <class T>
void add_gradients(const kernels::AttentionProblem& in, const ConstView& lse, const ConstView& dout,
                   const kernels::AttentionGradients& grads, AttentionArguments<T>& x) {
  x.lse = const_cast<Accumulator<T>*>(lse.as<Accumulator<T>>());
  x.dout = head_rows<const T>(dout);
  x.dq = head_rows<T>(grads.q);
  x.drelation_query = head_rows<T>(grads.relation_query);
  for (int s = 0; s < in.numbers.segments; ++s) {
    x.dk[s] = head_rows<T>(grads.k[s]);
    x.dv[s] = head_rows<T>(grads.v[s]);
  }
}

/// Number of query splits whose table gradients are added at the end. It is small, because each
/// split has its own memory, and depends on the sizes only.
inline int64_t table_splits(const AttentionSizes& x) {
  return clamped(ceil_div(x.queries, 512), 1, 8);
}

}  // namespace longspan::cuda
