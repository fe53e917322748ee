// Block attention backward, for one SIMD target and one dtype of computation.

#if defined(LONGSPAN_CPU_ATTENTION_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_ATTENTION_BACKWARD_INL_H_
#undef LONGSPAN_CPU_ATTENTION_BACKWARD_INL_H_
#else
#define LONGSPAN_CPU_ATTENTION_BACKWARD_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <vector>

#include "core/parallel.h"
#include "cpu/attention/backward_scores-inl.h"
#include "cpu/attention/plan.h"
#include "cpu/attention/prefetch.h"
#include "cpu/attention/terms-inl.h"
#include "cpu/attention/tile-inl.h"
#include "cpu/attention/visit-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

// One task: iterates over its keys step by step, keeping a step's keys and their gradients in
// cache, and in each step over the tiles that see them.
template <class T>
class BackwardTask : ScoreGradients<T> {
 public:
  BackwardTask(const BackwardCall<T>& call, const AttentionTask& task, const RelationSums<T>& sums,
               Slab<T>& slab)
      : ScoreGradients<T>(call, task, sums, slab),
        over_width_(over_panels<T>(c_.width, kTileRows * N)),
        over_value_width_(over_panels<T>(c_.value_width, kTileRows * N)) {}

  void run() {
    const int64_t b = c_.task.b, h = c_.task.h;
    for (int s = 0; s < c_.head.segments; ++s) {
      const int32_t* const order = c_.head.segment[s].order;
      k_[s] = head_rows<T>(c_.in.inputs.k[s], b, h, order);
      v_[s] = head_rows<T>(c_.in.inputs.v[s], b, h, order);
      if (!c_.call.columns) continue;
      dk_[s] = head_sink<T>(c_.call.grads.k[s], b, h, order, c_.in.accumulate);
      dv_[s] = head_sink<T>(c_.call.grads.v[s], b, h, order, c_.in.accumulate);
    }
    if (c_.relation_query) r_ = head_rows<T>(c_.in.inputs.relation_query, b, h, c_.head.order_q);
    q_ = head_rows<T>(c_.in.inputs.q, b, h, c_.head.order_q);
    g_out_ = head_rows<T>(c_.call.dout, b, h, c_.head.order_q);
    deltas_ = {c_.call.out, c_.call.dout, c_.call.dlse, b, h, c_.head.order_q};
    if (c_.call.rows) {
      if (c_.call.grads.q)
        dq_ = head_sink<T>(c_.call.grads.q, b, h, c_.head.order_q, c_.in.accumulate);
      if (c_.call.grads.relation_query) {
        dr_ = head_sink<T>(c_.call.grads.relation_query, b, h, c_.head.order_q, c_.in.accumulate);
      }
      if (!c_.in.accumulate) clear_unseen();
    }
    std::vector<int32_t> tiles, next;
    KeyBlock step = step_at(c_.task.key);
    tiles_of(step, tiles);
    while (step.key < c_.task.key_end) {
      const KeyBlock after = step_at(step.key + c_.step);
      tiles_of(after, next);
      do_step(step, tiles, after, next);
      step = after;
      tiles.swap(next);
    }
    hwy::FlushStream();
  }

 private:
  static constexpr int64_t N = kPanel<T>;
  static constexpr T kNothing = -std::numeric_limits<T>::infinity();
  using Gradients = ScoreGradients<T>;
  using Gradients::c_, Gradients::slots_, Gradients::w_, Gradients::tile_;

  // The keys that are processed at a time: [first, first + count) of a segment. Empty between the
  // segments and after the last.
  struct KeyBlock {
    int64_t key = 0;  // position of the first key
    int segment = 0;
    int64_t first = 0, count = 0;
  };

  KeyBlock step_at(int64_t key) const {
    if (key >= c_.task.key_end) return {key, 0, 0, 0};
    const HeadSegment& s = c_.head.at_place(key);
    const int64_t first = key - s.first;
    const int64_t count = std::min({c_.step, c_.task.key_end - key, s.keys - first});
    return {key, s.number, first, std::max<int64_t>(0, count)};
  }

  // Lists the task's tiles that see keys of a step.
  void tiles_of(const KeyBlock& step, std::vector<int32_t>& tiles) const {
    tiles.clear();
    if (step.count == 0) return;
    c_.head.tiles_of_columns(step.key, step.key + step.count, tiles);
    const auto outside = [this](int32_t t) { return t < c_.task.tile || t >= c_.task.tile_end; };
    tiles.erase(std::remove_if(tiles.begin(), tiles.end(), outside), tiles.end());
  }

  void do_step(const KeyBlock& step, const std::vector<int32_t>& tiles, const KeyBlock& after,
               const std::vector<int32_t>& next) {
    if (step.count == 0 || (c_.in.accumulate && tiles.empty())) return;
    if (c_.call.columns) {
      std::fill_n(w_.key_sums, c_.step * c_.width_panels * N, T{0});
      std::fill_n(w_.value_sums, c_.step * c_.value_panels * N, T{0});
    }
    if (!tiles.empty()) {
      pack_keys(k_[step.segment], v_[step.segment], step.first, step.count);
    }
    const auto process = [this](int64_t n) { do_spans(n); };
    const auto empty = [this](int64_t r) { return tile_.base[r] == kNothing; };
    const auto all = static_cast<int64_t>(tiles.size());
    for (int64_t i = 0; i < all; ++i) {
      const int32_t t = tiles[static_cast<size_t>(i)];
      c_.head.ranges(t, step.key, step.key + step.count, ranges_);
      if (ranges_.empty()) continue;
      begin(t, ranges_);
      const int64_t last = next.empty() ? -1 : next.front();
      prefetch_next(step, after, i, all, i + 1 < all ? tiles[static_cast<size_t>(i + 1)] : last);
      for (const KeyRange& range : ranges_) {
        for_blocks(c_.head, t, range, tile_.some_empty, empty, visit_, [&](KeySpan& span) {
          if (Gradients::ends_before(span)) return;
          span.at = span.origin - step.key;
          take(span, process);
        });
      }
      visit_.finish(process);
      finish(t, step.key / c_.step);
    }
    if (!c_.call.columns) return;
    for (int64_t j = 0; j < step.count; ++j) {
      const int64_t key = step.first + j;
      write_row(w_.key_sums, c_.step, j, static_cast<T>(kLn2), dk_[step.segment], key);
      write_row(w_.value_sums, c_.step, j, T{1}, dv_[step.segment], key);
    }
  }

  // Prefetches, during the products of tile i of n, the rows of the next tile (-1: there is none),
  // and the tile's share of the step's outputs and of the keys of the next step.
  void prefetch_next(const KeyBlock& step, const KeyBlock& after, int64_t i, int64_t n,
                     int64_t next_tile) {
    prefetcher_.clear();
    if (next_tile >= 0) {
      const int64_t row = c_.head.tile_row(next_tile), end = row + c_.head.tile_rows(next_tile);
      prefetcher_.add(q_, row, end);
      prefetcher_.add(g_out_, row, end);
      if (c_.in.accumulate) prefetcher_.add(dq_, row, end);
      const int64_t item = next_tile - c_.task.tile;
      if (!c_.call.has_delta && !slots_.has(item)) prefetcher_.add(deltas_.out, row, end);
      for (int64_t p = 0; c_.call.rows && slots_.has(item) && p < c_.width_panels; ++p) {
        prefetcher_.add(w_.tile_sums + slots_.at(item) * c_.tile_size + p * c_.sum_rows * N,
                        end - row, N);
      }
    }
    const auto share = [this, i, n](const KeyBlock& of, const auto* one, const auto* other) {
      const int64_t from = of.first + of.count * i / n, to = of.first + of.count * (i + 1) / n;
      prefetcher_.add(one[of.segment], from, to);
      prefetcher_.add(other[of.segment], from, to);
    };
    share(after, k_, v_);
    share(step, dk_, dv_);
    int64_t panels = 0;
    for (const KeyRange& range : ranges_) panels += ceil_div(range.k1 - range.k0, N);
    prefetcher_.spread(2 * panels * tile_.groups.count());
  }

  // Writes zeros to dq of rows that see no key.
  void clear_unseen() {
    alignas(64) T zeros[kMaxWidth] = {};
    for (int64_t t = c_.task.tile; t < c_.task.tile_end; ++t) {
      if (slots_.used(t - c_.task.tile)) continue;
      for (int64_t r = 0; r < c_.head.tile_rows(t); ++r) {
        if (dq_.base != nullptr) dq_.write(c_.head.tile_row(t) + r, zeros);
        if (dr_.base != nullptr) dr_.write(c_.head.tile_row(t) + r, zeros);
      }
    }
  }

  void pack_keys(const RowSource<T>& k, const RowSource<T>& v, int64_t key, int64_t count) {
    for (int64_t j = 0; j < count; j += kBlock) {
      const int64_t n = std::min(kBlock, count - j);
      pack_block_columns(k, key + j, n, w_.collected, w_.key_columns + j * c_.width);
      pack_block_columns(v, key + j, n, w_.collected, w_.value_columns + j * c_.value_width);
      if (c_.call.rows) {
        finite_keys_[j / kBlock] =
            pack_rows(k, key + j, n, n, T{1}, w_.key_rows + j * c_.width_panels * N, kBlock);
      }
    }
  }

  void begin(int64_t t, const std::vector<KeyRange>& ranges) {
    tile_.row = c_.head.tile_row(t);
    tile_.rows = c_.head.tile_rows(t);
    tile_.padded = round_up(tile_.rows, kRest);
    tile_.groups = RowGroups(tile_.rows);
    const bool finite_q =
        pack_rows(q_, tile_.row, tile_.rows, tile_.padded,
                  static_cast<T>(c_.in.numbers.scale * kLog2E), w_.q_rows, kTileRows);
    tile_.finite =
        pack_rows(g_out_, tile_.row, tile_.rows, tile_.padded, T{1}, w_.out_rows, kTileRows) &&
        finite_q;
    const int64_t first_row =
        (c_.task.b * c_.in.inputs.q.dim(1) + c_.task.h) * c_.in.inputs.q.dim(2);
    const int64_t item = t - c_.task.tile;
    const bool fresh = c_.call.rows && !slots_.has(item);
    tile_.some_empty = false;
    for (int64_t r = 0; r < tile_.rows; ++r) {
      const int64_t query = Gradients::query(r);
      T& delta = c_.call.delta[first_row + query];
      if (fresh && !c_.call.has_delta) delta = deltas_.of(tile_.row + r, query);
      tile_.lower[r] = delta;
      tile_.base[r] = c_.call.lse.template as<T>()[first_row + query] * static_cast<T>(kLog2E);
      tile_.some_empty = tile_.some_empty || tile_.base[r] == kNothing;
    }
    if (c_.call.rows) {
      const int64_t slot = fresh ? slots_.take(item) : slots_.at(item);
      tile_.sum = w_.tile_sums + slot * c_.tile_size;
      tile_.relation_sum = c_.relation_query ? w_.relation_sums + slot * c_.tile_size : tile_.sum;
      if (fresh) {
        clear(tile_.sum);
        if (c_.relation_query) clear(tile_.relation_sum);
      }
    }
    if (!c_.shift && !c_.carry) return;
    const RelationPanels<T>& relations = c_.call.relations;
    reach(c_.head, tile_.row, tile_.rows, ranges, tile_.relation);
    if (c_.relation_query) {
      pack_rows(r_, tile_.row, tile_.rows, tile_.padded,
                static_cast<T>(c_.in.numbers.scale * kLog2E), w_.relation_rows, kTileRows);
    }
    if (c_.shift) {
      relation_table(tile_.relation, tile_.padded, w_.relation_rows, c_.width,
                     relations.key_columns_of(c_.task.h), relations.bias_of(c_.task.h), w_.table);
    }
    if (c_.carry) {
      relation_table(tile_.relation, tile_.padded, w_.out_rows, c_.value_width,
                     relations.value_columns_of(c_.task.h), static_cast<const T*>(nullptr),
                     w_.value_table);
    }
    if (c_.bin) clear_sums(tile_.relation, tile_.rows, w_.bins);
    if (c_.bin_values) clear_sums(tile_.relation, tile_.rows, w_.value_bins);
  }

  // Products over rows also read scores of keys that a row does not see: up to kGroup - 1 on either
  // side of the visible ones, if rows differ.
  template <class Process>
  void take(const KeySpan& span, Process&& process) {
    const Visible& seen = span.seen;
    const int64_t beside = seen.alike ? 0 : kGroup - 1;
    visit_.take(!Gradients::plain(span), std::max<int64_t>(0, seen.all_first - beside),
                std::min<int64_t>(c_.head.block_keys(span.origin), seen.all_last + beside),
                process);
  }

  // Processes the first n spans of the visit.
  void do_spans(int64_t n) {
    Gradients::enter(visit_[0]);
    multiply_panels(n);
    for (int64_t g = 0; g < tile_.groups.count(); ++g) {
      for (int64_t i = 0; i < n; ++i) Gradients::differentiate(g, visit_[i]);
    }
    for (int64_t i = 0; c_.call.columns && i < n; ++i) multiply_queries(visit_[i]);
    if (c_.call.rows) multiply_keys(n);
  }

  // S = Q K^T and dP = dO V^T over n spans, only the vectors that a group sees; one after the
  // other, so that the rows of one stay in the L1 cache.
  void multiply_panels(int64_t n) {
    multiply_panels(n, w_.q_rows, w_.key_columns, c_.width, over_width_, w_.scores);
    multiply_panels(n, w_.out_rows, w_.value_columns, c_.value_width, over_value_width_,
                    w_.dscores);
  }

  void multiply_panels(int64_t n, const T* rows, const T* columns, int64_t width,
                       std::span<const InnerRange> over, T* scores) {
    const int64_t vectors = visit_.vectors(n);
    for (int64_t v = 0; v < vectors; v += 2) {
      for (int64_t g = 0; g < tile_.groups.count(); ++g) {
        const int64_t row = tile_.groups.row(g);
        product_seen<kScoreStride>(visit_, v, vectors, g, tile_.groups.padded(g), rows + row * N,
                                   columns, width, over, scores + row * kScoreStride);
        prefetcher_.step();
      }
    }
  }

  // dV += P^T dO and dK += dS^T Q, for each group of keys over the rows that see some of them.
  void multiply_queries(const KeySpan& span) {
    const Visible& seen = span.seen;
    const int64_t begin = seen.all_first / kRest * kRest;
    const RowGroups keys(seen.all_last - begin);
    for (int64_t g = 0; g < keys.count(); ++g) {
      const int64_t j = begin + keys.row(g), m = keys.end(g) - keys.row(g);
      int64_t from = 0, to = tile_.rows;
      if (!seen.alike) {
        while (from < to && (seen.lo[from] >= j + m || seen.hi[from] <= j)) ++from;
        while (from < to && (seen.lo[to - 1] >= j + m || seen.hi[to - 1] <= j)) --to;
        if (from == to) continue;
      }
      if (!tile_.finite) {
        multiply_queries_seen(span, j, m);
        continue;
      }
      const int64_t column = span.column + j;
      const InnerRange over[] = {{from * kScoreStride, from * N, to - from}};
      for (int64_t p = 0; p < c_.value_panels; ++p) {
        product<2, 1, T>(m, w_.scores + column, kScoreStride, w_.out_rows + p * kTileRows * N, over,
                         w_.value_sums + (p * c_.step + span.at + j) * N, N, true);
      }
      for (int64_t p = 0; p < c_.width_panels; ++p) {
        product<2, 1, T>(m, w_.dscores + column, kScoreStride, w_.q_rows + p * kTileRows * N, over,
                         w_.key_sums + (p * c_.step + span.at + j) * N, N, true);
      }
    }
  }

  // multiply_queries() for keys j .. j + m if dO or Q is nonfinite: skips hidden pairs.
  HWY_NOINLINE void multiply_queries_seen(const KeySpan& span, int64_t j, int64_t m) {
    const int64_t column = span.column + j, key = span.at + j;
    const auto sees = [&](int64_t k, int64_t row) { return Gradients::holds(span, row, j + k); };
    for (int64_t p = 0; p < c_.value_panels; ++p) {
      product_of_seen(m, w_.scores + column, 1, kScoreStride, w_.out_rows + p * kTileRows * N,
                      tile_.rows, w_.value_sums + (p * c_.step + key) * N, N, sees);
    }
    for (int64_t p = 0; p < c_.width_panels; ++p) {
      product_of_seen(m, w_.dscores + column, 1, kScoreStride, w_.q_rows + p * kTileRows * N,
                      tile_.rows, w_.key_sums + (p * c_.step + key) * N, N, sees);
    }
  }

  // dQ += dS K over n spans
  void multiply_keys(int64_t n) {
    for (int64_t g = 0; g < tile_.groups.count(); ++g) {
      over_keys_.clear();
      for (int64_t i = 0; i < n; ++i) {
        const KeySpan& span = visit_[i];
        const int64_t first = span.seen.first[g], count = span.seen.last[g] - first;
        if (count <= 0) continue;
        if (!finite_keys_[span.at / kBlock]) {
          multiply_key_ranges(g);
          over_keys_.clear();
          multiply_keys_seen(g, span);
          continue;
        }
        over_keys_.push_back({span.column + first, (span.at * c_.width_panels + first) * N, count});
      }
      multiply_key_ranges(g);
    }
  }

  void multiply_key_ranges(int64_t g) {
    if (over_keys_.empty()) return;
    for (int64_t p = 0; p < c_.width_panels; ++p) {
      const int64_t row = tile_.groups.row(g);
      product<2, kScoreStride, T>(tile_.groups.padded(g), w_.dscores + row * kScoreStride, 1,
                                  w_.key_rows + p * kBlock * N, over_keys_,
                                  tile_.sum + (p * c_.sum_rows + row) * N, N, true);
    }
  }

  // multiply_keys() for nonfinite keys: skips hidden pairs.
  HWY_NOINLINE void multiply_keys_seen(int64_t g, const KeySpan& span) {
    const int64_t first = span.seen.first[g], count = span.seen.last[g] - first;
    const int64_t row = tile_.groups.row(g);
    for (int64_t p = 0; p < c_.width_panels; ++p) {
      const T* const panel = w_.key_rows + (span.at * c_.width_panels + p * kBlock) * N;
      product_of_seen(
          tile_.groups.end(g) - row, w_.dscores + (row * kScoreStride + span.column + first),
          kScoreStride, 1, panel + first * N, count, tile_.sum + (p * c_.sum_rows + row) * N, N,
          [&](int64_t r, int64_t key) { return Gradients::holds(span, row + r, first + key); });
    }
  }

  // Adds the tile's contribution to the relation tables, and writes dq after the tile's last visit.
  void finish(int64_t t, int64_t index) {
    if (c_.bin) {
      fold_sums(tile_.relation, tile_.rows, w_.bins, w_.bin_panels);
      if (c_.call.rows && c_.call.relations.key_rows != nullptr) {
        add_bins_product(tile_.relation, tile_.padded, w_.bin_panels,
                         c_.call.relations.key_rows_of(c_.task.h), c_.width_panels, c_.sum_rows,
                         tile_.relation_sum);
      }
      if (c_.table_sums.key != nullptr) {
        add_table_gradient(tile_.relation, tile_.rows, w_.bin_panels, w_.relation_rows,
                           c_.width_panels, c_.table_sums.key);
      }
      if (c_.table_sums.bias != nullptr) {
        for_panels(tile_.relation, [&](const auto&, int64_t p, int64_t at) {
          for (int64_t r = 0; r < tile_.rows; ++r) {
            const T* const from = w_.bin_panels + (at * kTileRows + r) * N;
            T* const to = c_.table_sums.bias + p * N;
            for (int64_t c = 0; c < N; ++c) to[c] += from[c];
          }
        });
      }
    }
    if (c_.bin_values && c_.table_sums.value != nullptr) {
      fold_sums(tile_.relation, tile_.rows, w_.value_bins, w_.bin_panels);
      add_table_gradient(tile_.relation, tile_.rows, w_.bin_panels, w_.out_rows, c_.value_panels,
                         c_.table_sums.value);
    }
    if (c_.call.rows && slots_.ends(t - c_.task.tile, index)) {
      for (int64_t r = 0; r < tile_.rows; ++r) {
        const auto scale = static_cast<T>(c_.in.numbers.scale);
        if (dq_.base != nullptr) write_row(tile_.sum, c_.sum_rows, r, scale, dq_, tile_.row + r);
        if (dr_.base != nullptr)
          write_row(tile_.relation_sum, c_.sum_rows, r, scale, dr_, tile_.row + r);
      }
      slots_.give(t - c_.task.tile);
    }
  }

  // Sets the sums of the tile's rows to 0.
  void clear(T* sums) const {
    for (int64_t p = 0; p < c_.width_panels; ++p) {
      std::fill_n(sums + p * c_.sum_rows * N, tile_.padded * N, T{0});
    }
  }

  const std::vector<InnerRange> over_width_, over_value_width_;
  Visit<T> visit_{kBlock};
  std::vector<InnerRange> over_keys_;  // of a product with keys
  std::vector<KeyRange> ranges_;       // of the tile in the step
  Prefetcher prefetcher_;
  RowDeltas<T> deltas_;
  RowSource<T> q_, r_, g_out_, k_[kernels::kAttentionSegments], v_[kernels::kAttentionSegments];
  RowSink<T> dq_, dr_, dk_[kernels::kAttentionSegments], dv_[kernels::kAttentionSegments];
  bool finite_keys_[2] = {true, true};  // of the blocks of a step
};

// Computes delta, [B, H, L], of all rows.
template <class T>
void all_deltas(const AttentionProblem& in, const ConstView& out, const ConstView& dout,
                const ConstView& dlse, T* delta) {
  const int64_t heads = in.inputs.q.dim(1), rows = in.inputs.q.dim(2);
  constexpr int64_t kRows = 512;
  const int64_t pieces = ceil_div(rows, kRows);
  parallel_for(in.inputs.q.dim(0) * heads * pieces, [&](int64_t task) {
    const int64_t bh = task / pieces, from = task % pieces * kRows;
    const RowDeltas<T> deltas(out, dout, dlse, bh / heads, bh % heads, nullptr);
    for (int64_t r = from; r < std::min(rows, from + kRows); ++r) {
      delta[bh * rows + r] = deltas.of(r, r);
    }
  });
}

// Adds the table sums of all tasks in task order, and writes the gradient.
template <class T>
void write_table(const std::vector<AttentionTask>& tasks, const T* sums, int64_t task_size,
                 const Relation<T>& shape, T factor, const View& to, bool vector, bool add) {
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
              vector ? x[shape.row_of(id)]
                     : x[(c / N * shape.padded() + shape.row_of(id)) * N + c % N];
        }
      }
      RowSink<T> sink;
      sink.base = to.as<char>() + i * width * size_of(to.dtype);
      sink.dtype = to.dtype;
      sink.width = width;
      sink.add = add;
      for (T& value : row) value *= factor;
      sink.write(0, row.data());
    }
  });
}

// Adds the gradients of mu over the samples and heads that a span of queries serves, and writes its
// gradient.
template <class T>
void write_query_span(const AttentionProblem& in, const T* sums, const View& to) {
  const int64_t batch = in.inputs.q.dim(0), heads = in.inputs.q.dim(1), rows = in.inputs.q.dim(2);
  std::vector<double> total(static_cast<size_t>(to.numel()), 0.0);
  for (int64_t bh = 0; bh < batch * heads; ++bh) {
    const int64_t b = to.dim(0) > 1 ? bh / heads : 0, h = to.dim(1) > 1 ? bh % heads : 0;
    double* const at = total.data() + (b * to.dim(1) + h) * rows;
    for (int64_t i = 0; i < rows; ++i) at[i] += static_cast<double>(sums[bh * rows + i]);
  }
  T* const gradient = to.as<T>();
  for (size_t i = 0; i < total.size(); ++i) {
    const auto value = static_cast<T>(total[i] / in.numbers.ramp);
    gradient[i] = in.accumulate ? gradient[i] + value : value;
  }
}

// Adds the gradients of mu over all pairs that a span serves, and writes the span's gradient.
template <class T>
void write_span(const AttentionProblem& in, const std::vector<AttentionTask>& tasks, const T* sums,
                const View& to) {
  const int64_t batch = to.dim(0), heads = to.dim(1), keys = to.dim(2);
  const int64_t all_heads = in.inputs.q.dim(1), row = span_row(in);
  std::vector<double> total(static_cast<size_t>(to.numel()), 0.0);
  const auto place = [&](int64_t b, int64_t h) {
    return static_cast<size_t>(((batch > 1 ? b : 0) * heads + (heads > 1 ? h : 0)) * keys);
  };
  if (keys > 1) {
    for (int64_t bh = 0; bh < in.inputs.q.dim(0) * all_heads; ++bh) {
      double* const at = total.data() + place(bh / all_heads, bh % all_heads);
      for (int64_t j = 0; j < keys; ++j) at[j] += static_cast<double>(sums[bh * row + j]);
    }
  } else {
    std::vector<const AttentionTask*> ordered(tasks.size());
    for (const AttentionTask& task : tasks) ordered[static_cast<size_t>(task.index)] = &task;
    for (const AttentionTask* task : ordered) {
      for (int64_t lane = 0; lane < kLanes<T>; ++lane) {
        total[place(task->b, task->h)] += static_cast<double>(sums[task->index * kLanes<T> + lane]);
      }
    }
  }
  T* const gradient = to.as<T>();
  for (size_t i = 0; i < total.size(); ++i) {
    const auto value = static_cast<T>(total[i] / in.numbers.ramp);
    gradient[i] = in.accumulate ? gradient[i] + value : value;
  }
}

template <class T>
void backward(const AttentionProblem& in, const ConstView& out, const ConstView& lse,
              const ConstView& dout, const ConstView& dlse, const AttentionGradients& grads) {
  const int64_t batch = in.inputs.q.dim(0), heads = in.inputs.q.dim(1);
  const Device on = in.inputs.q.device;
  const bool runs = on != meta_device;
  const Buffer<T> delta(batch * heads * in.inputs.q.dim(2), on);
  const Buffer<T> packed(RelationPanels<T>::size(in, Direction::backward), on);
  const RelationPanels<T> relations(in, Direction::backward, packed.data());
  const SpanRows<T> spans(in);
  const bool rows = grads.q || grads.relation_query, columns = static_cast<bool>(grads.k[0]);
  const bool tables = grads.relation_key || grads.relation_bias || grads.relation_value;

  const bool whole_heads = batch * heads >= kSinglePassHeads;
  std::vector<AttentionTask> tasks = whole_heads
                                         ? tasks_by_rows(in, std::numeric_limits<int64_t>::max())
                                         : tasks_by_rows(in, kTaskRows);
  // Table sums of each task; with two passes the row pass computes them.
  const int64_t key_size = grads.relation_key ? round_up(relations.key_size(), 64) : 0;
  const int64_t value_size = grads.relation_value ? round_up(relations.value_size(), 64) : 0;
  const int64_t bias_size = grads.relation_bias ? round_up(relations.shape.padded(), 64) : 0;
  const int64_t size = key_size + value_size + bias_size;
  const Buffer<T> sums(size * static_cast<int64_t>(tasks.size()), on);
  if (runs) std::fill_n(sums.data(), size * static_cast<int64_t>(tasks.size()), T{0});
  const auto sums_of = [&](const AttentionTask& task) {
    T* const at = sums.data() + task.index * size;
    return RelationSums<T>{key_size > 0 ? at : nullptr, value_size > 0 ? at + key_size : nullptr,
                           bias_size > 0 ? at + key_size + value_size : nullptr};
  };

  const bool by_key = grads.span && grads.span.dim(2) > 1;
  const int64_t span_sizes[] = {static_cast<int64_t>(tasks.size()) * kLanes<T>,
                                batch * heads * span_row(in)};
  const int64_t span_size = grads.span ? span_sizes[by_key ? 1 : 0] : 0;
  const Buffer<T> span_sums(span_size, on);
  if (runs) std::fill_n(span_sums.data(), span_size, T{0});
  const int64_t query_size = grads.query_span ? batch * heads * in.inputs.q.dim(2) : 0;
  const Buffer<T> query_sums(query_size, on);
  if (runs) std::fill_n(query_sums.data(), query_size, T{0});

  // Tasks of whole heads compute delta with the tiles that they keep until dq is complete.
  const bool has_delta = !(whole_heads && rows);
  if (runs && has_delta) all_deltas<T>(in, out, dout, dlse, delta.data());
  const auto go = [&](const std::vector<AttentionTask>& parts, bool dq, bool dkv, bool dtables) {
    T* const dspan = grads.span && (by_key ? dkv : dq) ? span_sums.data() : nullptr;
    T* const dquery = grads.query_span && dq ? query_sums.data() : nullptr;
    const BackwardCall<T> call{in,           out,       lse, dout, dlse,    grads, relations, spans,
                               delta.data(), has_delta, dq,  dkv,  dtables, dspan, dquery};
    run_tasks<T>(parts, on, [&](const AttentionTask& task, Slab<T>& slab) {
      return BackwardTask<T>(call, task, dtables ? sums_of(task) : RelationSums<T>{}, slab);
    });
  };
  if (whole_heads) {
    go(tasks, rows, columns, tables);
  } else {
    if (rows || tables) go(tasks, rows, false, tables);
    if (columns) go(tasks_by_keys(in, kernels::kAttentionColumnKeys), false, true, false);
  }
  if (!runs) return;
  if (grads.relation_key) {
    write_table(tasks, sums.data(), size, relations.shape, static_cast<T>(kLn2), grads.relation_key,
                false, in.accumulate);
  }
  if (grads.relation_value) {
    write_table(tasks, sums.data() + key_size, size, relations.shape, T{1}, grads.relation_value,
                false, in.accumulate);
  }
  if (grads.span) write_span(in, tasks, span_sums.data(), grads.span);
  if (grads.query_span) write_query_span(in, query_sums.data(), grads.query_span);
  if (grads.relation_bias) {
    write_table(tasks, sums.data() + key_size + value_size, size, relations.shape,
                static_cast<T>(in.numbers.scale), grads.relation_bias, true, in.accumulate);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
