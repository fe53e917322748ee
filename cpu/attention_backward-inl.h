// Backward of block attention, for one SIMD target and one dtype of computation.

#if defined(LONGSPAN_CPU_ATTENTION_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_ATTENTION_BACKWARD_INL_H_
#undef LONGSPAN_CPU_ATTENTION_BACKWARD_INL_H_
#else
#define LONGSPAN_CPU_ATTENTION_BACKWARD_INL_H_
#endif

#include <hwy/highway.h>

#include <vector>

#include "core/parallel.h"
#include "cpu/attention_plan.h"
#include "cpu/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

// Sums of gradients of the relation tables of one task: rows as panels [panels of width][ids][NR].
template <class T>
struct RelationSums {
  T *key, *value, *bias;
};

// One direction for three schedules: a whole head (all tiles, all keys), rows only (dq), or columns
// only (dk and dv). All three add in the same order, so they agree in every bit.
template <class T>
struct Backward {
  const AttentionInputs& in;
  const ConstView& lse;
  const ConstView& dout;
  const AttentionGradients& grads;
  const RelationPanels<T>& relations;
  const T* delta;              // [B, H, L]: dout . out - dlse
  bool rows, columns, tables;  // what to compute: dq; dk and dv; gradients of the tables

  void run(const AttentionTask& task, const RelationSums<T>& table_sums) const;
};

// Places for the running dq of the tiles in flight: taken at the first keys that a tile sees, given
// back after the last.
struct TileSlots {
  std::vector<int32_t> first, last, slot;  // per tile of the task; first > last: sees nothing
  int64_t count = 0;

  TileSlots() = default;
  TileSlots(const AttentionHead& head, const AttentionTask& task, int64_t step) {
    const auto n = static_cast<size_t>(task.tile_end - task.tile);
    first.assign(n, 1);
    last.assign(n, 0);
    slot.assign(n, -1);
    const auto steps = static_cast<size_t>(task.key_end / step + 2);
    std::vector<int32_t> change(steps, 0);
    for (size_t i = 0; i < n; ++i) {
      const KeyRange e = head.extent(task.tile + static_cast<int64_t>(i));
      if (e.k0 == e.k1) continue;
      first[i] = static_cast<int32_t>(e.k0 / step);
      last[i] = static_cast<int32_t>((e.k1 - 1) / step);
      ++change[static_cast<size_t>(first[i])];
      --change[static_cast<size_t>(last[i]) + 1];
    }
    int64_t alive = 0;
    for (const int32_t c : change) count = std::max(count, alive += c);
    for (int64_t i = count; i-- > 0;) free_.push_back(static_cast<int32_t>(i));
  }
  void take(size_t i) {
    slot[i] = free_.back();
    free_.pop_back();
  }
  void give(size_t i) { free_.push_back(slot[i]); }

 private:
  std::vector<int32_t> free_;
};

// Row r of panels [panels][panel_rows][NR], times factor, to row `to` of a tensor.
template <class T>
void write_row(const T* panels, int64_t panel_rows, int64_t r, T factor, const RowSink<T>& sink,
               int64_t to) {
  constexpr int64_t N = kPanel<T>;
  constexpr int64_t V = kLanes<T>;
  const Tag<T> d;
  alignas(64) T values[kMaxWidth + N];
  const Vec<T> f = hn::Set(d, factor);
  for (int64_t c = 0; c < sink.width; c += V) {
    const T* from = panels + (c / N * panel_rows + r) * N + c % N;
    hn::Store(hn::Mul(hn::Load(d, from), f), d, values + c);
  }
  sink.write(to, values);
}

template <class T>
void Backward<T>::run(const AttentionTask& task, const RelationSums<T>& table_sums) const {
  constexpr int64_t N = kPanel<T>;
  constexpr int64_t V = kLanes<T>;
  const Tag<T> d;
  const T infinity = std::numeric_limits<T>::infinity();
  const AttentionHead head(in, task.b, task.h);
  const int64_t keys = in.k.dim(2), width = in.q.dim(3), value_width = in.v.dim(3);
  const int64_t width_panels = ceil_div(width, N), value_panels = ceil_div(value_width, N);
  const int64_t last_width = width - (width_panels - 1) * N;
  const int64_t last_value = value_width - (value_panels - 1) * N;
  const RowSource<T> q = head_rows<T>(in.q, task.b, task.h, head.order_q);
  const RowSource<T> k = head_rows<T>(in.k, task.b, task.h, head.order_k);
  const RowSource<T> v = head_rows<T>(in.v, task.b, task.h, head.order_k);
  const RowSource<T> g_out = head_rows<T>(dout, task.b, task.h, head.order_q);
  RowSink<T> dq, dk, dv;
  if (rows) dq = head_sink<T>(grads.q, task.b, task.h, head.order_q);
  if (columns) {
    dk = head_sink<T>(grads.k, task.b, task.h, head.order_k);
    dv = head_sink<T>(grads.v, task.b, task.h, head.order_k);
  }
  const int64_t first_row = (task.b * in.q.dim(1) + task.h) * in.q.dim(2);
  const T* const row_lse = lse.as<T>() + first_row;
  const T* const row_delta = delta + first_row;
  const T scale = static_cast<T>(in.terms.scale);
  const T log2_scale = static_cast<T>(in.terms.scale * kLog2E);
  const T ln2 = static_cast<T>(kLn2);

  // Keys of a step: as many as fit in the second-level cache with their gradients.
  const int64_t step = std::max(width, value_width) <= 64 ? 2 * kBlock : kBlock;
  const Buffer<T> key_columns(step * width);
  const Buffer<T> value_columns(step * value_width);
  const Buffer<T> key_rows(rows ? step * width_panels * N : 0);
  const Buffer<T> key_sums(columns ? step * width_panels * N : 0);
  const Buffer<T> value_sums(columns ? step * value_panels * N : 0);
  const int64_t tile_size = width_panels * kTileRows * N;
  TileSlots slots = rows ? TileSlots(head, task, step) : TileSlots();
  const Buffer<T> tile_sums(rows ? slots.count * tile_size : 0);
  const Buffer<T> q_rows(tile_size);
  const Buffer<T> out_rows(value_panels * kTileRows * N);
  const Buffer<T> scores(kTileRows * kScoreStride);
  const Buffer<T> dscores(kTileRows * kScoreStride);

  const bool shift = relations.key_columns != nullptr || relations.bias != nullptr;
  const bool carry = relations.value_rows != nullptr;
  const bool bin = shift && (tables || rows), bin_values = carry && tables;
  Relation<T> relation = relations.shape;
  const int64_t table_size = kTileRows * relation.stride;
  const Buffer<T> table(shift ? table_size : 0);
  const Buffer<T> value_table(carry ? table_size : 0);
  const Buffer<T> bins(bin ? table_size : 0);
  const Buffer<T> value_bins(bin_values ? table_size : 0);
  const Buffer<T> bin_panels(bin || bin_values ? relation.padded() * kTileRows : 0);

  const KeepRow<T> keep(in.dropout, task.b * in.q.dim(1) + task.h);
  alignas(64) T keep_row[KeepRow<T>::kRoom];
  T base[kTileRows], lower[kTileRows];
  std::vector<KeyRange> ranges;
  std::vector<int32_t> tiles;
  Visible all, seen;

  if (rows) {
    alignas(64) T zeros[kMaxWidth] = {};
    for (int64_t t = task.tile; t < task.tile_end; ++t) {
      const auto i = static_cast<size_t>(t - task.tile);
      if (slots.first[i] <= slots.last[i]) continue;
      for (int64_t r = 0; r < head.tile_rows(t); ++r) dq.write(head.tile_row(t) + r, zeros);
    }
  }

  for (int64_t key = task.key; key < task.key_end; key += step) {
    const int64_t count = std::min(step, task.key_end - key);
    const int64_t index = key / step;
    if (columns) {
      std::fill_n(key_sums.data(), step * width_panels * N, T{0});
      std::fill_n(value_sums.data(), step * value_panels * N, T{0});
    }
    head.tiles_of_columns(key, key + count, tiles);
    const auto outside = [&task](int32_t t) { return t < task.tile || t >= task.tile_end; };
    tiles.erase(std::remove_if(tiles.begin(), tiles.end(), outside), tiles.end());
    if (!tiles.empty()) {
      for (int64_t j = 0; j < count; j += kBlock) {
        const int64_t n = std::min(kBlock, count - j);
        pack_block_columns(k, key + j, n, key_columns.data() + j * width);
        pack_block_columns(v, key + j, n, value_columns.data() + j * value_width);
        if (rows) {
          pack_rows(k, key + j, n, n, T{1}, key_rows.data() + j * width_panels * N, kBlock);
        }
      }
    }

    for (const int32_t t : tiles) {
      const auto place = static_cast<size_t>(t - task.tile);
      const int64_t row = head.tile_row(t), n_rows = head.tile_rows(t);
      const int64_t padded = round_up(n_rows, kRest);
      head.ranges(t, key, key + count, ranges);
      if (ranges.empty()) continue;
      pack_rows(q, row, n_rows, padded, log2_scale, q_rows.data(), kTileRows);
      pack_rows(g_out, row, n_rows, padded, T{1}, out_rows.data(), kTileRows);
      for (int64_t r = 0; r < n_rows; ++r) {
        const int64_t i = head.order_q != nullptr ? head.order_q[row + r] : row + r;
        base[r] = row_lse[i] * static_cast<T>(kLog2E);
        lower[r] = row_delta[i];
      }
      T* tile_sum = nullptr;
      if (rows) {
        if (slots.slot[place] < 0) {
          slots.take(place);
          std::fill_n(tile_sums.data() + slots.slot[place] * tile_size, tile_size, T{0});
        }
        tile_sum = tile_sums.data() + slots.slot[place] * tile_size;
      }
      if (shift || carry) {
        const int64_t position = row + head.q_start;
        relation.reach(ranges.front().k0 - (position + n_rows - 1),
                       ranges.back().k1 - 1 - position);
        if (shift) {
          relation_table(relation, padded, q_rows.data(), width, relations.key_columns_of(task.h),
                         relations.bias_of(task.h), table.data());
        }
        if (carry) {
          relation_table(relation, padded, out_rows.data(), value_width,
                         relations.value_columns_of(task.h), static_cast<const T*>(nullptr),
                         value_table.data());
        }
        if (bin) clear_sums(relation, n_rows, bins.data());
        if (bin_values) clear_sums(relation, n_rows, value_bins.data());
      }

      for (const KeyRange& range : ranges) {
        head.visible(t, range, all.lo, all.hi);
        for (int64_t r = 0; r < n_rows; ++r) {
          if (base[r] == -infinity) all.lo[r] = all.hi[r] = 0;
        }
        unite(n_rows, all);
        for (int64_t block = all.all_first / kBlock; block * kBlock < all.all_last; ++block) {
          const int64_t origin = block * kBlock, at = origin - key;
          const int64_t n = std::min(kBlock, keys - origin);
          clip(all, n_rows, origin, n, seen);

          // S = Q K^T and dP = dO V^T, only panels that a group of rows sees
          for (int64_t j = seen.all_first / N * N; j < seen.all_last; j += N) {
            const T* const k_panel = key_columns.data() + (at + j) * width;
            const T* const v_panel = value_columns.data() + (at + j) * value_width;
            for (int64_t g = 0; g * kGroup < n_rows; ++g) {
              if (seen.first[g] >= j + N || seen.last[g] <= j) continue;
              const int64_t m = std::min(kGroup, padded - g * kGroup);
              const int64_t to = g * kGroup * kScoreStride + j;
              product<N>(m, q_rows.data() + g * kGroup * N, 1, kTileRows * N, k_panel, width_panels,
                         N, last_width, scores.data() + to, kScoreStride, false);
              product<N>(m, out_rows.data() + g * kGroup * N, 1, kTileRows * N, v_panel,
                         value_panels, N, last_value, dscores.data() + to, kScoreStride, false);
            }
          }

          // P = 2^(S - lse), dS = P (dP - delta); both 0 where a row does not see
          const int64_t vectors = ceil_div(n, V);
          for (int64_t r = 0; r < n_rows; ++r) {
            T* const s = scores.data() + r * kScoreStride;
            T* const ds = dscores.data() + r * kScoreStride;
            const int64_t lo = seen.lo[r], hi = seen.hi[r];
            if (lo >= hi) {
              zero_vectors(s, 0, vectors);
              zero_vectors(ds, 0, vectors);
              continue;
            }
            const int64_t a = lo / V, e = ceil_div(hi, V);
            zero_vectors(s, 0, a);
            zero_vectors(ds, 0, a);
            zero_vectors(s, e, vectors);
            zero_vectors(ds, e, vectors);
            const int64_t distance = origin - (row + r + head.q_start);
            if (shift) {
              const T* const added = table.data() + r * relation.stride;
              for (int64_t i = a; i < e; ++i) {
                const Vec<T> x = hn::LoadU(d, added + relation.column(distance + i * V));
                hn::Store(hn::Add(hn::Load(d, s + i * V), x), d, s + i * V);
              }
            }
            if (carry) {
              const T* const added = value_table.data() + r * relation.stride;
              for (int64_t i = a; i < e; ++i) {
                const Vec<T> x = hn::LoadU(d, added + relation.column(distance + i * V));
                hn::Store(hn::Add(hn::Load(d, ds + i * V), x), d, ds + i * V);
              }
            }
            const Vec<T> row_base = hn::Set(d, base[r]), row_lower = hn::Set(d, lower[r]);
            if (keep.active()) {
              const int64_t i_q = head.order_q != nullptr ? head.order_q[row + r] : row + r;
              keep.fill(i_q, origin, head.order_k, keys, a * V, e * V, keep_row);
              for (int64_t i = a; i < e; ++i) {
                const Vec<T> factor = hn::Load(d, keep_row + i * V);
                const Vec<T> p = exp2(d, hn::Sub(hn::Load(d, s + i * V), row_base));
                const Vec<T> dp = hn::Mul(hn::Load(d, ds + i * V), factor);
                hn::Store(hn::Mul(p, factor), d, s + i * V);
                hn::Store(hn::Mul(p, hn::Sub(dp, row_lower)), d, ds + i * V);
              }
            } else {
              for (int64_t i = a; i < e; ++i) {
                const Vec<T> p = exp2(d, hn::Sub(hn::Load(d, s + i * V), row_base));
                const Vec<T> dp = hn::Load(d, ds + i * V);
                hn::Store(p, d, s + i * V);
                hn::Store(hn::Mul(p, hn::Sub(dp, row_lower)), d, ds + i * V);
              }
            }
            zero_ends(s, lo, hi);
            zero_ends(ds, lo, hi);
            if (bin) add_to_bins(relation, distance, a, e, ds, bins.data() + r * relation.stride);
            if (bin_values) {
              add_to_bins(relation, distance, a, e, s, value_bins.data() + r * relation.stride);
            }
          }

          if (columns) {  // dV += P^T dO, dK += dS^T Q
            for (int64_t j = 0; j < n; j += kGroup) {
              const int64_t m = std::min(kGroup, n - j);
              int64_t from = 0, to = n_rows;
              if (!seen.whole) {
                while (from < to && (seen.lo[from] >= j + m || seen.hi[from] <= j)) ++from;
                while (from < to && (seen.lo[to - 1] >= j + m || seen.hi[to - 1] <= j)) --to;
                if (from == to) continue;
              }
              for (int64_t p = 0; p < value_panels; ++p) {
                product<1>(m, scores.data() + from * kScoreStride + j, kScoreStride, 0,
                           out_rows.data() + (p * kTileRows + from) * N, 1, 0, to - from,
                           value_sums.data() + (p * step + at + j) * N, N, true);
              }
              for (int64_t p = 0; p < width_panels; ++p) {
                product<1>(m, dscores.data() + from * kScoreStride + j, kScoreStride, 0,
                           q_rows.data() + (p * kTileRows + from) * N, 1, 0, to - from,
                           key_sums.data() + (p * step + at + j) * N, N, true);
              }
            }
          }
          if (rows) {  // dQ += dS K
            for (int64_t p = 0; p < width_panels; ++p) {
              const T* const panel = key_rows.data() + at * width_panels * N + p * kBlock * N;
              for (int64_t g = 0; g * kGroup < n_rows; ++g) {
                const int64_t first = seen.first[g], last = seen.last[g];
                if (first >= last) continue;
                product<kScoreStride>(std::min(kGroup, padded - g * kGroup),
                                      dscores.data() + g * kGroup * kScoreStride + first, 1, 0,
                                      panel + first * N, 1, 0, last - first,
                                      tile_sum + (p * kTileRows + g * kGroup) * N, N, true);
              }
            }
          }
        }
      }

      if (bin) {
        fold_sums(relation, n_rows, bins.data(), bin_panels.data());
        if (rows && relations.key_rows != nullptr) {
          for (int64_t p = 0; p < width_panels; ++p) {
            product<N>(
                padded, bin_panels.data(), 1, kTileRows * N,
                relations.key_rows_of(task.h) + (p * relation.padded() + relation.first * N) * N,
                relation.panels(), N, N, tile_sum + p * kTileRows * N, N, true);
          }
        }
        if (tables) {
          if (table_sums.key != nullptr) {
            add_table_gradient(relation, n_rows, bin_panels.data(), q_rows.data(), width_panels,
                               table_sums.key);
          }
          if (table_sums.bias != nullptr) {
            for (int64_t p = 0; p < relation.panels(); ++p) {
              for (int64_t r = 0; r < n_rows; ++r) {
                const T* from = bin_panels.data() + (p * kTileRows + r) * N;
                T* to = table_sums.bias + (relation.first + p) * N;
                for (int64_t c = 0; c < N; ++c) to[c] += from[c];
              }
            }
          }
        }
      }
      if (bin_values) {
        fold_sums(relation, n_rows, value_bins.data(), bin_panels.data());
        add_table_gradient(relation, n_rows, bin_panels.data(), out_rows.data(), value_panels,
                           table_sums.value);
      }
      if (rows && slots.last[place] == index) {
        for (int64_t r = 0; r < n_rows; ++r) {
          write_row(tile_sum, kTileRows, r, scale, dq, row + r);
        }
        slots.give(place);
      }
    }

    if (columns) {
      for (int64_t j = 0; j < count; ++j) {
        write_row(key_sums.data(), step, j, ln2, dk, key + j);
        write_row(value_sums.data(), step, j, T{1}, dv, key + j);
      }
    }
  }
}

// delta = dout . out - dlse, row by row.
template <class T>
void row_delta(const AttentionInputs& in, const ConstView& out, const ConstView& dout,
               const ConstView& dlse, T* delta) {
  const int64_t heads = in.q.dim(1), rows = in.q.dim(2);
  constexpr int64_t kRows = 512;
  const int64_t pieces = ceil_div(rows, kRows);
  parallel_for(in.q.dim(0) * heads * pieces, [&](int64_t task) {
    const int64_t bh = task / pieces, from = task % pieces * kRows;
    const RowSource<T> x = head_rows<T>(out, bh / heads, bh % heads, nullptr);
    const RowSource<T> y = head_rows<T>(dout, bh / heads, bh % heads, nullptr);
    constexpr int64_t V = kLanes<T>;
    const Tag<T> d;
    alignas(64) T x_row[kMaxWidth], y_row[kMaxWidth];
    for (int64_t r = from; r < std::min(rows, from + kRows); ++r) {
      const T* const a = x.row(r, x_row);
      const T* const b = y.row(r, y_row);
      Vec<T> sum = hn::Zero(d);
      int64_t c = 0;
      for (; c + V <= x.width; c += V)
        sum = hn::MulAdd(hn::LoadU(d, a + c), hn::LoadU(d, b + c), sum);
      T total = hn::GetLane(hn::SumOfLanes(d, sum));
      for (; c < x.width; ++c) total += a[c] * b[c];
      if (dlse) {
        total -= dlse.as<T>()[bh / heads * dlse.stride(0) + bh % heads * dlse.stride(1) +
                              r * dlse.stride(2)];
      }
      delta[bh * rows + r] = total;
    }
  });
}

// Adds the sums of all tasks of a table in the order of the tasks, and writes the gradient.
template <class T>
void write_table(const std::vector<AttentionTask>& tasks, const T* sums, int64_t task_size,
                 const Relation<T>& shape, T factor, const View& to, bool vector) {
  constexpr int64_t N = kPanel<T>;
  const int64_t heads = to.dim(0), ids = shape.ids(), width = vector ? 1 : to.dim(2);
  std::vector<const AttentionTask*> ordered(tasks.size());
  for (const AttentionTask& task : tasks) ordered[static_cast<size_t>(task.index)] = &task;
  parallel_ranges(heads * ids, 64, [&](int64_t from, int64_t end) {
    std::vector<T> row(static_cast<size_t>(width));
    for (int64_t i = from; i < end; ++i) {
      const int64_t h = i / ids, id = i % ids;
      std::fill(row.begin(), row.end(), T{0});
      for (const AttentionTask* task : ordered) {
        if (heads > 1 && task->h != h) continue;
        const T* x = sums + task->index * task_size;
        for (int64_t c = 0; c < width; ++c) {
          row[static_cast<size_t>(c)] +=
              vector ? x[id] : x[(c / N * shape.padded() + id) * N + c % N];
        }
      }
      RowSink<T> sink;
      sink.base = to.as<char>() + i * width * size_of(to.dtype);
      sink.dtype = to.dtype;
      sink.width = width;
      for (T& value : row) value *= factor;
      sink.write(0, row.data());
    }
  });
}

template <class T>
void backward(const AttentionInputs& in, const ConstView& out, const ConstView& lse,
              const ConstView& dout, const ConstView& dlse, const AttentionGradients& grads) {
  const int64_t batch = in.q.dim(0), heads = in.q.dim(1);
  const Buffer<T> delta(batch * heads * in.q.dim(2));
  row_delta<T>(in, out, dout, dlse, delta.data());
  const Buffer<T> packed(RelationPanels<T>::size(in));
  const RelationPanels<T> relations(in, packed.data());
  const bool rows = static_cast<bool>(grads.q), columns = static_cast<bool>(grads.k);
  const bool tables = grads.relation_key || grads.relation_bias || grads.relation_value;

  const bool whole_heads = batch * heads >= kSinglePassHeads;
  std::vector<AttentionTask> tasks = whole_heads
                                         ? tasks_by_rows(in, std::numeric_limits<int64_t>::max())
                                         : tasks_by_rows(in, kTaskRows);
  // Sums of the tables of each task; in two passes the rows keep them.
  const int64_t key_size = grads.relation_key ? round_up(relations.key_size(), 64) : 0;
  const int64_t value_size = grads.relation_value ? round_up(relations.value_size(), 64) : 0;
  const int64_t bias_size = grads.relation_bias ? round_up(relations.shape.padded(), 64) : 0;
  const int64_t size = key_size + value_size + bias_size;
  const Buffer<T> sums(size * static_cast<int64_t>(tasks.size()));
  std::fill_n(sums.data(), size * static_cast<int64_t>(tasks.size()), T{0});
  const auto sums_of = [&](const AttentionTask& task) {
    T* const at = sums.data() + task.index * size;
    return RelationSums<T>{key_size > 0 ? at : nullptr, value_size > 0 ? at + key_size : nullptr,
                           bias_size > 0 ? at + key_size + value_size : nullptr};
  };

  if (rows || tables || (whole_heads && columns)) {
    const Backward<T> pass{
        in, lse, dout, grads, relations, delta.data(), rows, whole_heads && columns, tables};
    parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
      const AttentionTask& task = tasks[static_cast<size_t>(i)];
      pass.run(task, sums_of(task));
    });
  }
  if (!whole_heads && columns) {
    const Backward<T> pass{in, lse, dout, grads, relations, delta.data(), false, true, false};
    const std::vector<AttentionTask> parts = tasks_by_keys(in, kernels::kAttentionColumnKeys);
    parallel_for(static_cast<int64_t>(parts.size()), [&](int64_t i) {
      pass.run(parts[static_cast<size_t>(i)], RelationSums<T>{nullptr, nullptr, nullptr});
    });
  }
  if (grads.relation_key) {
    write_table(tasks, sums.data(), size, relations.shape, static_cast<T>(kLn2), grads.relation_key,
                false);
  }
  if (grads.relation_value) {
    write_table(tasks, sums.data() + key_size, size, relations.shape, T{1}, grads.relation_value,
                false);
  }
  if (grads.relation_bias) {
    write_table(tasks, sums.data() + key_size + value_size, size, relations.shape,
                static_cast<T>(in.terms.scale), grads.relation_bias, true);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
