#pragma once

#include <cmath>
#include <limits>

#include "cuda/attention_schedule.h"
#include "cuda/tile.cuh"

/// Attention for every dtype, width and term, by plain arithmetic on tiles in shared memory. A
/// block of threads goes through phases; the same code runs on the host, one thread doing all of a
/// phase. Every sum is one chain in the order of its keys or queries, so that no bit depends on the
/// layout.
namespace longspan::cuda {

/// Threads of a block.
inline constexpr int general_threads = 256;

/// f(0) .. f(n - 1), shared out among the threads of a block, which then wait for each other.
template <class F>
LONGSPAN_HD void each(int n, F f) {
#if defined(__CUDA_ARCH__)
  for (int i = static_cast<int>(threadIdx.x); i < n; i += general_threads) f(i);
  __syncthreads();
#else
  for (int i = 0; i < n; ++i) f(i);
#endif
}

LONGSPAN_HD inline float two_to(float x) { return exp2f(x); }
LONGSPAN_HD inline double two_to(double x) { return exp2(x); }
LONGSPAN_HD inline float fused(float a, float b, float c) { return fmaf(a, b, c); }
LONGSPAN_HD inline double fused(double a, double b, double c) { return fma(a, b, c); }
LONGSPAN_HD inline float log_two(float x) { return log2f(x); }
LONGSPAN_HD inline double log_two(double x) { return log2(x); }

/// A relation table [1 or H, R, width].
template <class T>
struct Table {
  const T* data = nullptr;
  int64_t head = 0;  // stride; 0 where all heads share it
  LONGSPAN_HD const T* of(int64_t h) const { return data == nullptr ? nullptr : data + h * head; }
};

/// What the kernels of one call are given. A is what T is computed in.
template <class T, class A = Accumulator<T>>
struct AttentionArguments {
  AttentionSizes sizes;
  HeadRows<const T> q, k, v, dout;
  HeadRows<T> out, dq, dk, dv;
  A* lse = nullptr;             // [B, H, L]
  const A* delta = nullptr;     // [B, H, L]: dout . out - dlse
  Table<T> key, bias, value;    // relation terms
  int64_t left = 0, right = 0;  // their ids
  A* sums = nullptr;            // of the tables: [B H, splits, R, d + dv + 1]
  int64_t splits = 1;

  LONGSPAN_HD int64_t ids() const { return left + right + 1; }
  LONGSPAN_HD int64_t table_width() const { return sizes.width + sizes.value_width + 1; }
};

/// Sizes of the tiles. A thread of 16 x 16 computes every 16th row and column of a product.
template <class A>
struct GeneralTile {
  static constexpr int rows = sizeof(A) == 8 ? 32 : 48;
  static constexpr int keys = sizeof(A) == 8 ? 32 : 64;
  static constexpr int depth = 32;        // columns staged at a time
  static constexpr int pitch = keys + 1;  // of score tiles
  static constexpr int stage_pitch = depth + 1;
  static constexpr int parts = static_cast<int>(ceil_div(kernels::kAttentionTileRows, rows));
  /// Columns of the results that one block sums up: those of a row, and of a key or an id.
  static constexpr int row_sums = 128, key_sums = 64;

  /// Bytes of shared memory: `tiles` score tiles, and sums.
  static constexpr int64_t bytes(int tiles, int64_t sums) {
    return static_cast<int64_t>(sizeof(A)) *
               (int64_t{tiles} * rows * pitch + (rows + keys) * stage_pitch + sums + 8 * rows) +
           4 * (int64_t{4} * rows + keys * 2);
  }
  static constexpr int64_t forward_bytes = bytes(2, rows* row_sums);
  static constexpr int64_t rows_bytes = bytes(3, rows* row_sums);
  static constexpr int64_t keys_bytes = bytes(3, 2 * keys * key_sums);
  static constexpr int64_t tables_bytes = bytes(3, 2 * keys * key_sums + keys);
};

/// One block's tiles, and the phases that all passes are made of.
template <class T>
class General {
 public:
  using A = Accumulator<T>;
  using Tile = GeneralTile<A>;
  static constexpr int R = Tile::rows, K = Tile::keys, D = Tile::depth, P = Tile::pitch,
                       S = Tile::stage_pitch, parts = 4;

  /// Rows of a matrix to multiply with: through an index (-1: zeros), or `count` from `first` on.
  struct Source {
    const T* base;
    int64_t stride;
    const int32_t* index;
    int64_t first, count;
    int64_t columns;  // zeros from here on

    LONGSPAN_HD A at(int row, int64_t column) const {
      if (column >= columns) return A(0);
      if (index == nullptr) {
        return row < count ? static_cast<A>(base[(first + row) * stride + column]) : A(0);
      }
      return index[row] >= 0 ? static_cast<A>(base[index[row] * stride + column]) : A(0);
    }
  };

  /// `shared` holds Tile::bytes(tiles, sums); a pass over gradients needs three tiles.
  LONGSPAN_HD General(const AttentionArguments<T>& arguments, const AttentionWork& work, A* shared,
                      int tiles, int64_t sums)
      : x(arguments),
        head(arguments.sizes, work.b, work.h),
        number(work.b * arguments.sizes.heads + work.h),
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
    query = reinterpret_cast<int32_t*>(take(shared, 0));
    read = query + R;
    seen = reinterpret_cast<KeyInterval*>(read + R);
    key = reinterpret_cast<int32_t*>(seen + R);
    key_read = key + K;
  }

  // ------------------------------------------------------------------------------- loads

  /// Rows from .. of a tile: their queries and what they see.
  LONGSPAN_HD void load_rows(int64_t tile, int64_t from) {
    const int64_t row = head.tile_row(x.sizes, tile) + from;
    const int64_t rows = head.tile_rows(x.sizes, tile) - from;
    first_position = row + x.sizes.bounds.q_start;
    each(R, [&](int r) {
      const int64_t i = r < rows ? head.query(x.sizes, row + r) : -1;
      query[r] = static_cast<int32_t>(i);
      read[r] = i < head.queries_valid ? static_cast<int32_t>(i) : -1;
      seen[r] = i >= 0 ? head.sees(x.sizes, i) : KeyInterval{0, 0};
    });
  }
  /// lse in units of log 2, +inf where a row sees nothing, and delta.
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
  /// Places k0 .. k0 + K, of which `bits` matter.
  LONGSPAN_HD void load_keys(int64_t k0, uint64_t bits) {
    each(K, [&](int j) {
      const bool there = k0 + j < x.sizes.keys && (bits >> j & 1) != 0;
      const int64_t index = there ? head.key(x.sizes, k0 + j) : -1;
      key[j] = static_cast<int32_t>(index);
      key_read[j] = index < head.keys_valid ? static_cast<int32_t>(index) : -1;
    });
  }
  LONGSPAN_HD Source rows_of(const HeadRows<const T>& from) const {
    return {from.of(head.b, head.h), from.row, read, 0, 0, from.width};
  }
  LONGSPAN_HD Source keys_of(const HeadRows<const T>& from) const {
    return {from.of(head.b, head.h), from.row, key_read, 0, 0, from.width};
  }
  LONGSPAN_HD Source ids_of(const Table<T>& from, int64_t id, int64_t width) const {
    return {from.of(head.h), width, nullptr, id, x.ids() - id, width};
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

  /// to[r][c] = to[r][c] f_r + sum_j p[r][j] b(j, from + c), c < width; f: row factors or null.
  LONGSPAN_HD void add_keys(const A* p, const Source& b, int64_t from, int width, const A* f,
                            A* to) {
    constexpr int m = R / 16;
    for (int c0 = 0; c0 < width && from + c0 < b.columns; c0 += D) {
      each(K * D, [&](int i) { right[i / D * S + i % D] = b.at(i / D, from + c0 + i % D); });
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
      each(R * D, [&](int i) { left[i / D * S + i % D] = b.at(i / D, from + c0 + i % D); });
      each(256, [&](int i) {
        const int y = i / 16, z = i % 16;
        LONGSPAN_UNROLL for (int u = 0; u < n; ++u) {
          const int j = y + 16 * u;
          A* const at = to + j * width + c0 + z;
          A one = at[0], two = at[16];
          for (int r = 0; r < R; ++r) {
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
  /// Ids of the rows with the keys k0 ..: first .. last.
  LONGSPAN_HD void reach(int64_t k0, int64_t& first, int64_t& last) const {
    first = clip(k0 - (first_position + R - 1));
    last = clip(k0 + K - 1 - first_position);
  }
  /// to[r][j] += a_row(r) . table[id] + bias[id].
  LONGSPAN_HD void add_relation(const Source& a, const Table<T>& table, const Table<T>& shift,
                                int64_t k0, A* room, A* to) {
    int64_t first, last;
    reach(k0, first, last);
    const T* const b = shift.of(head.h);
    for (int64_t id0 = first; id0 <= last; id0 += K) {
      if (table.data != nullptr) multiply_rows(a, ids_of(table, id0, a.columns), room);
      each(R * K, [&](int i) {
        const int r = i / K, j = i % K;
        const int64_t id = clip(k0 + j - (first_position + r)) - id0;
        if (id < 0 || id >= K) return;
        if (table.data != nullptr) to[r * P + j] += room[r * P + id];
        if (b != nullptr) to[r * P + j] += static_cast<A>(b[id0 + id]);
      });
    }
  }
  /// to[r][i] = the sum of p[r][j] over the keys whose id is id0 + i.
  LONGSPAN_HD void gather(const A* p, int64_t k0, int64_t id0, A* to) {
    each(R * K, [&](int i) {
      const int r = i / K;
      const int64_t id = id0 + i % K, place = first_position + r - k0 + id - x.left;
      const int64_t from = id == 0 ? 0 : clamped(place, 0, K);
      const int64_t end = id == x.ids() - 1 ? K : clamped(place + 1, 0, K);
      A total = 0;
      if (id < x.ids()) {
        for (int64_t j = from; j < end; ++j) total += p[r * P + j];
      }
      to[r * P + i % K] = total;
    });
  }
  /// to[r][c] += sum_j p[r][j] table[id(r, j)][from + c].
  LONGSPAN_HD void add_ids(const A* p, const Table<T>& table, int64_t columns, int64_t k0,
                           int64_t from, int width, A* room, A* to) {
    int64_t first, last;
    reach(k0, first, last);
    for (int64_t id0 = first; id0 <= last; id0 += K) {
      gather(p, k0, id0, room);
      add_keys(room, ids_of(table, id0, columns), from, width, nullptr, to);
    }
  }

  // ------------------------------------------------------------------------------ scores

  LONGSPAN_HD bool visible(uint64_t bits, int r, int j) const {
    return (bits >> j & 1) != 0 && key[j] >= seen[r].lo && key[j] < seen[r].hi;
  }
  /// 1 / (1 - p) or 0.
  LONGSPAN_HD A keep(int r, int j) const {
    const auto i = static_cast<uint32_t>(query[r]), k = static_cast<uint32_t>(key[j]);
    return x.sizes.draws.keeps(static_cast<uint32_t>(number), i, k)
               ? static_cast<A>(x.sizes.draws.scale)
               : A(0);
  }
  /// scores = q . k and the terms, without the factor, of keys that begin at place k0.
  LONGSPAN_HD void score(int64_t k0) {
    multiply_rows(rows_of(x.q), keys_of(x.k), scores);
    if (x.key.data != nullptr || x.bias.data != nullptr) {
      add_relation(rows_of(x.q), x.key, x.bias, k0, bins, scores);
    }
  }
  /// scores = P, dropped; dscores = dS, without the scale.
  LONGSPAN_HD void differentiate(int64_t k0, uint64_t bits) {
    score(k0);
    multiply_rows(rows_of(x.dout), keys_of(x.v), dscores);
    if (x.value.data != nullptr) {
      add_relation(rows_of(x.dout), x.value, {}, k0, bins, dscores);
    }
    each(R * K, [&](int i) {
      const int r = i / K, j = i % K, at = r * P + j;
      A p = 0, ds = 0;
      if (visible(bits, r, j)) {
        p = two_to(fused(scores[at], factor, -row_a[r]));
        const A kept = x.sizes.draws.active ? keep(r, j) : A(1);
        ds = p * (dscores[at] * kept - row_b[r]);
        p *= kept;
      }
      scores[at] = p;
      dscores[at] = ds;
    });
  }

  // ------------------------------------------------------------------------------ passes

  /// Columns chunk Tile::row_sums of out, of rows `from` .. of a tile; chunk 0 also lse.
  LONGSPAN_HD void forward(int64_t tile, int64_t from, int64_t chunk) {
    constexpr int width = Tile::row_sums, share = K / parts;
    const A hidden = -std::numeric_limits<A>::infinity();
    A *const reference = row_a, *const total = row_b, *const change = row_c;
    load_rows(tile, from);
    clear(sum, R * width);
    each(R, [&](int r) {
      reference[r] = hidden;
      total[r] = A(0);
    });
    KeySteps<K> steps(x.sizes, head, tile);
    for (KeyStep step; steps.next(step);) {
      load_keys(step.k0, step.mask);
      score(step.k0);
      each(R * parts, [&](int i) {
        const int r = i / parts;
        A top = hidden;
        for (int j = i % parts * share; j < (i % parts + 1) * share; ++j) {
          A& s = scores[r * P + j];
          if (!visible(step.mask, r, j)) s = factor < A(0) ? -hidden : hidden;
          top = s * factor > top ? s * factor : top;
        }
        part[i] = top;
      });
      // The reference of a row follows its largest score where that rises by more than 2^8.
      each(R, [&](int r) {
        A top = part[r * parts];
        for (int i = 1; i < parts; ++i) top = most_of(top, part[r * parts + i]);
        change[r] = A(1);
        if (top > reference[r] + A(8)) {
          change[r] = two_to(reference[r] - top);
          reference[r] = top;
        }
      });
      each(R * parts, [&](int i) {
        const int r = i / parts;
        const A base = reference[r] == hidden ? A(0) : reference[r];
        A partial = 0;
        for (int j = i % parts * share; j < (i % parts + 1) * share; ++j) {
          A p = two_to(fused(scores[r * P + j], factor, -base));
          partial += p;
          if (x.sizes.draws.active && p != A(0)) p *= keep(r, j);
          scores[r * P + j] = p;
        }
        part[i] = partial;
      });
      each(R, [&](int r) {
        total[r] *= change[r];
        for (int i = 0; i < parts; ++i) total[r] += part[r * parts + i];
      });
      add_keys(scores, keys_of(x.v), chunk * width, width, change, sum);
      if (x.value.data != nullptr) {
        add_ids(scores, x.value, x.sizes.value_width, step.k0, chunk * width, width, bins, sum);
      }
    }
    T* const out = x.out.of(head.b, head.h);
    each(R * width, [&](int i) {
      const int r = i / width;
      const int64_t c = chunk * width + i % width;
      if (query[r] < 0 || c >= x.sizes.value_width) return;
      const A y = total[r] == A(0) ? A(0) : sum[i] / total[r];
      out[query[r] * x.out.row + c] = static_cast<T>(y);
    });
    if (chunk != 0) return;
    each(R, [&](int r) {
      if (query[r] < 0) return;
      const A base = reference[r] == hidden ? A(0) : reference[r];
      const A lse = total[r] == A(0) ? hidden : (base + log_two(total[r])) * static_cast<A>(ln_2);
      x.lse[number * x.sizes.queries + query[r]] = lse;
    });
  }

  /// Columns chunk Tile::row_sums of dq, of rows `from` .. of a tile.
  LONGSPAN_HD void row_gradients(int64_t tile, int64_t from, int64_t chunk) {
    constexpr int width = Tile::row_sums;
    load_rows(tile, from);
    load_statistics();
    clear(sum, R * width);
    KeySteps<K> steps(x.sizes, head, tile);
    for (KeyStep step; steps.next(step);) {
      load_keys(step.k0, step.mask);
      differentiate(step.k0, step.mask);
      add_keys(dscores, keys_of(x.k), chunk * width, width, nullptr, sum);
      if (x.key.data != nullptr) {
        add_ids(dscores, x.key, x.sizes.width, step.k0, chunk * width, width, bins, sum);
      }
    }
    const A scale = static_cast<A>(x.sizes.scale);
    T* const dq = x.dq.of(head.b, head.h);
    each(R * width, [&](int i) {
      const int64_t r = i / width, c = chunk * width + i % width;
      if (query[r] < 0 || c >= x.sizes.width) return;
      dq[query[r] * x.dq.row + c] = static_cast<T>(sum[i] * scale);
    });
  }

  /// Columns chunk Tile::key_sums of dk and dv, of places k0 .. k0 + K.
  LONGSPAN_HD void key_gradients(int64_t k0, int64_t chunk) {
    constexpr int width = Tile::key_sums;
    A* const dv_sum = sum + K * width;
    clear(sum, 2 * K * width);
    load_keys(k0, ~uint64_t{0});
    TileSteps<K> steps(x.sizes, head, k0);
    for (TileStep step; steps.next(step);) {
      const int64_t rows = head.tile_rows(x.sizes, step.tile);
      for (int64_t from = 0; from < rows; from += R) {
        load_rows(step.tile, from);
        load_statistics();
        differentiate(k0, step.mask);
        add_rows(dscores, rows_of(x.q), chunk * width, width, sum);
        add_rows(scores, rows_of(x.dout), chunk * width, width, dv_sum);
      }
    }
    const A scale = static_cast<A>(x.sizes.scale);
    T *const dk = x.dk.of(head.b, head.h), *const dv = x.dv.of(head.b, head.h);
    each(K * width, [&](int i) {
      const int64_t j = i / width, c = chunk * width + i % width;
      if (key[j] < 0) return;
      if (c < x.sizes.width) dk[key[j] * x.dk.row + c] = static_cast<T>(sum[i] * scale);
      if (c < x.sizes.value_width) dv[key[j] * x.dv.row + c] = static_cast<T>(dv_sum[i]);
    });
  }

  /// This head's sums of the gradients of ids id0 .. id0 + K over the tiles of a split, columns
  /// chunk Tile::key_sums, without the scale.
  LONGSPAN_HD void table_gradients(int64_t id0, int64_t split, int64_t chunk) {
    constexpr int width = Tile::key_sums;
    A *const value_sum = sum + K * width, *const bias_sum = value_sum + K * width;
    clear(sum, 2 * K * width + K);
    const int64_t tiles = ceil_div(head.tiles, x.splits), first = split * tiles;
    for (int64_t tile = first; tile < least_of<int64_t>(first + tiles, head.tiles); ++tile) {
      const int64_t rows = head.tile_rows(x.sizes, tile);
      for (int64_t from = 0; from < rows; from += R) {
        load_rows(tile, from);
        load_statistics();
        KeySteps<K> steps(x.sizes, head, tile);
        for (KeyStep step; steps.next(step);) {
          int64_t least, most;
          reach(step.k0, least, most);
          if (most < id0 || least >= id0 + K) continue;
          load_keys(step.k0, step.mask);
          differentiate(step.k0, step.mask);
          gather(dscores, step.k0, id0, bins);
          add_rows(bins, rows_of(x.q), chunk * width, width, sum);
          each(K, [&](int i) {
            for (int r = 0; r < R; ++r) bias_sum[i] += bins[r * P + i];
          });
          gather(scores, step.k0, id0, bins);
          add_rows(bins, rows_of(x.dout), chunk * width, width, value_sum);
        }
      }
    }
    const int64_t row = x.table_width();
    A* const to = x.sums + ((number * x.splits + split) * x.ids() + id0) * row;
    each(K * width, [&](int i) {
      const int64_t id = i / width, c = chunk * width + i % width;
      if (id0 + id >= x.ids()) return;
      if (c < x.sizes.width) to[id * row + c] = sum[i];
      if (c < x.sizes.value_width) to[id * row + x.sizes.width + c] = value_sum[i];
      if (c == 0) to[id * row + row - 1] = bias_sum[id];
    });
  }

  const AttentionArguments<T>& x;
  const AttentionHead head;
  const int64_t number;  // b H + h
  const A factor;
  A *scores, *bins, *dscores, *left, *right, *sum, *row_a, *row_b, *row_c, *part;
  int32_t *query, *read, *key, *key_read;
  KeyInterval* seen;
  int64_t first_position = 0;

 private:
  LONGSPAN_HD static A* take(A*& at, int64_t n) {
    A* const here = at;
    at += n;
    return here;
  }
};

// --------------------------------------------------------------------------------------- the grids

/// What a block of each pass does, by its index, with Tile::..._bytes of shared memory.
template <class T>
struct GeneralPasses {
  using A = Accumulator<T>;
  using Tile = GeneralTile<A>;
  using Arguments = AttentionArguments<T>;

  static LONGSPAN_HD int64_t row_places(const AttentionSizes& x) {
    return x.layout.most_tiles(x.queries) * Tile::parts;
  }
  static LONGSPAN_HD int64_t forward_blocks(const Arguments& x) {
    return row_places(x.sizes) * x.sizes.head_count() *
           ceil_div(x.sizes.value_width, Tile::row_sums);
  }
  static LONGSPAN_HD int64_t row_blocks(const Arguments& x) {
    return row_places(x.sizes) * x.sizes.head_count() * ceil_div(x.sizes.width, Tile::row_sums);
  }
  static LONGSPAN_HD int64_t key_chunks(const Arguments& x) {
    return ceil_div(most_of(x.sizes.width, x.sizes.value_width), Tile::key_sums);
  }
  static LONGSPAN_HD int64_t key_blocks(const Arguments& x) {
    return ceil_div(x.sizes.keys, Tile::keys) * x.sizes.head_count() * key_chunks(x);
  }
  static LONGSPAN_HD int64_t table_blocks(const Arguments& x) {
    return ceil_div(x.ids(), Tile::keys) * x.splits * x.sizes.head_count() * key_chunks(x);
  }

  static LONGSPAN_HD void forward(const Arguments& x, A* shared, int64_t index) {
    const int64_t chunks = ceil_div(x.sizes.value_width, Tile::row_sums);
    const AttentionWork work(x.sizes, index, row_places(x.sizes), chunks, true);
    General<T> tile(x, work, shared, 2, Tile::rows * Tile::row_sums);
    const int64_t t = work.place / Tile::parts, from = work.place % Tile::parts * Tile::rows;
    if (t >= tile.head.tiles || from >= tile.head.tile_rows(x.sizes, t)) return;
    tile.forward(t, from, work.chunk);
  }
  static LONGSPAN_HD void row_gradients(const Arguments& x, A* shared, int64_t index) {
    const int64_t chunks = ceil_div(x.sizes.width, Tile::row_sums);
    const AttentionWork work(x.sizes, index, row_places(x.sizes), chunks, true);
    General<T> tile(x, work, shared, 3, Tile::rows * Tile::row_sums);
    const int64_t t = work.place / Tile::parts, from = work.place % Tile::parts * Tile::rows;
    if (t >= tile.head.tiles || from >= tile.head.tile_rows(x.sizes, t)) return;
    tile.row_gradients(t, from, work.chunk);
  }
  static LONGSPAN_HD void key_gradients(const Arguments& x, A* shared, int64_t index) {
    const int64_t places = ceil_div(x.sizes.keys, Tile::keys);
    const AttentionWork work(x.sizes, index, places, key_chunks(x), false);
    General<T> tile(x, work, shared, 3, 2 * Tile::keys * Tile::key_sums);
    tile.key_gradients(work.place * Tile::keys, work.chunk);
  }
  static LONGSPAN_HD void table_gradients(const Arguments& x, A* shared, int64_t index) {
    const int64_t panels = ceil_div(x.ids(), Tile::keys);
    const AttentionWork work(x.sizes, index, panels * x.splits, key_chunks(x), false);
    General<T> tile(x, work, shared, 3, 2 * Tile::keys * Tile::key_sums + Tile::keys);
    tile.table_gradients(work.place % panels * Tile::keys, work.place / panels, work.chunk);
  }
};

/// dout . out - dlse of query `row` of head b, h: columns rank, rank + team, ... of it.
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

/// Entry (h, id, c) of the gradient of a table whose columns begin at `column` of x.sums; h is -1
/// where heads share it.
template <class T>
LONGSPAN_HD Accumulator<T> table_sum(const AttentionArguments<T>& x, int64_t h, int64_t id,
                                     int64_t column) {
  Accumulator<T> total = 0;
  for (int64_t b = 0; b < x.sizes.batch; ++b) {
    const int64_t first = h < 0 ? 0 : h, end = h < 0 ? x.sizes.heads : h + 1;
    for (int64_t head = first; head < end; ++head) {
      for (int64_t split = 0; split < x.splits; ++split) {
        const int64_t row = ((b * x.sizes.heads + head) * x.splits + split) * x.ids() + id;
        total += x.sums[row * x.table_width() + column];
      }
    }
  }
  return total;
}

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

/// The arguments of a call, without what forward or backward adds.
inline AttentionSizes sizes_of(const kernels::AttentionInputs& in) {
  const auto& l = in.layout;
  const auto table = [](const ConstView& x) { return x.as<int32_t>(); };
  AttentionSizes x;
  x.batch = in.q.dim(0);
  x.heads = in.q.dim(1);
  x.queries = in.q.dim(2);
  x.keys = in.segment[0].k.dim(2);
  x.width = static_cast<int32_t>(in.q.dim(3));
  x.value_width = static_cast<int32_t>(in.segment[0].v.dim(3));
  const int64_t rows = l.which.dim(0), columns = l.which.dim(1);
  x.layout = {table(l.first_tile),     table(l.tiles),         table(l.row_start),
              table(l.runs),           table(l.first_column),  table(l.col_start),
              table(l.col_runs),       table(l.which),         table(l.order_q),
              table(l.order_k),        rows > 1 ? columns : 0, columns > 1 ? 1 : 0,
              l.first_tile.dim(0) - 1, l.tiles.dim(0)};
  const kernels::AttentionSegment& s = in.segment[0];
  x.bounds = {s.q_start, s.windows[0].left, s.windows[0].right, in.q_valid.as<int64_t>(),
              s.k_valid.as<int64_t>()};
  x.draws.key = in.dropout.key;
  x.draws.threshold = static_cast<uint32_t>(drop_threshold(in.dropout.p));
  x.draws.active = in.dropout.p > 0;
  x.draws.scale = 1 / (1 - in.dropout.p);
  x.scale = in.terms.scale;
  return x;
}

template <class T>
AttentionArguments<T> arguments_of(const kernels::AttentionInputs& in) {
  AttentionArguments<T> x;
  x.sizes = sizes_of(in);
  x.q = head_rows<const T>(in.q);
  x.k = head_rows<const T>(in.segment[0].k);
  x.v = head_rows<const T>(in.segment[0].v);
  const auto table = [](const ConstView& t) {
    return Table<T>{t.as<T>(), t && t.dim(0) > 1 ? t.stride(0) : 0};
  };
  x.key = table(in.terms.relation_key);
  x.bias = table(in.terms.relation_bias);
  x.value = table(in.terms.relation_value);
  x.left = in.terms.left;
  x.right = in.terms.right;
  return x;
}

/// Parts of the queries whose sums of the tables' gradients are added up at the end: few, since
/// each has memory of its own, and decided by the sizes alone.
inline int64_t table_splits(const AttentionSizes& x) {
  return clamped(ceil_div(x.queries, 512), 1, 8);
}

}  // namespace longspan::cuda
