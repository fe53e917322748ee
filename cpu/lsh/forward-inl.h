// LSH attention forward, for one SIMD target and one dtype of computation.

#if defined(LONGSPAN_CPU_LSH_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_LSH_FORWARD_INL_H_
#undef LONGSPAN_CPU_LSH_FORWARD_INL_H_
#else
#define LONGSPAN_CPU_LSH_FORWARD_INL_H_
#endif

#include <hwy/highway.h>

#include "cpu/lsh/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

// Columns of a score tile, for one group of rows: they stay in the L1 cache.
inline constexpr int64_t kLshColumns = 384;
inline constexpr int64_t kLshStride = kLshColumns + 16;
// Maximum rise (in powers of two) of a row's scores above its reference before sums are rescaled.
inline constexpr double kLshSlack = 8;

/// The state of a head between rounds: out times total, relative to 2^reference.
template <class T>
struct LshSums {
  LshSums(const LshData<T>& data, const View& out, const View& log_sums, Slab<T>& slab)
      : reference(slab.take(data.head.length)),
        total(slab.take(data.head.length)),
        accompanied(slab.take(data.head.length)),
        sink(head_sink<T>(out, data.batch, data.number, nullptr)),
        lse(log_sums.as<T>() + (data.batch * data.in.q.dim(1) + data.number) * data.head.length),
        own_(dtype_of<T> == out.dtype ? nullptr : slab.take(data.head.length * data.value_width)),
        width_(data.value_width) {}

  T* row(int64_t i) const { return own_ != nullptr ? own_ + i * width_ : sink.direct(i); }
  // Return all rows through an order, to read and to write.
  RowSource<T> source(const int32_t* order) const {
    return {reinterpret_cast<const char*>(row(0)), dtype_of<T>, stride(), width_, order};
  }
  RowSink<T> target(const int32_t* order) const {
    return {reinterpret_cast<char*>(row(0)), dtype_of<T>, stride(), width_, order, false};
  }

  T* const reference;
  T* const total;
  T* const accompanied;  // 1 if a query has seen another token
  const RowSink<T> sink;
  T* const lse;

 private:
  int64_t stride() const { return own_ != nullptr ? width_ : sink.stride; }

  T* const own_;  // used if out cannot hold the sums
  const int64_t width_;
};

/// Processes chunks of queries of one round, one after the other.
template <class T>
class LshForward {
 public:
  LshForward(const LshData<T>& data, const LshSums<T>& sums, Slab<T>& slab)
      : data_(data),
        state_(sums),
        keys_(data, false, kLshColumns, slab),
        over_width_(over_panels<T>(data.width, keys_.padded * N)),
        q_rows_(slab.take(keys_.width_panels * keys_.padded * N)),
        sums_(slab.take(keys_.value_panels * keys_.padded * N)),
        scores_(slab.take(kGroup * kLshStride)),
        weights_(slab.take(kGroup * kLshStride)),
        totals_(slab.take(keys_.padded * V)),
        reference_(slab.take(keys_.padded)) {}

  void run(int64_t round, int64_t chunk, int64_t chunk_end) {
    const int32_t* const order = data_.order(round);
    q_ = head_rows<T>(data_.in.q, data_.batch, data_.number, order);
    v_ = head_rows<T>(data_.in.v, data_.batch, data_.number, order);
    source_ = state_.source(order);
    target_ = state_.target(order);
    const auto leave = [](int64_t) {};
    for (; chunk < chunk_end; ++chunk) {
      chunk_ = {round, chunk};
      begin_ = chunk * data_.in.rule.chunk;
      rows_ = data_.head.chunk_end(chunk) - begin_;
      padded_ = round_up(rows_, kRest);
      keys_.enter(chunk_, leave);
      prefetch_next();
      begin();
      LshSight<T> sight(data_, chunk_);
      for (int64_t g = 0; g * kGroup < rows_; ++g) {
        for (int64_t n = 0; n < keys_.blocks_count(); ++n) attend(g, keys_.block(n), sight);
      }
      finish();
    }
    keys_.leave_all(leave);
  }

 private:
  static constexpr int64_t N = kPanel<T>;
  static constexpr int64_t V = kLanes<T>;
  static constexpr T kHidden = -std::numeric_limits<T>::infinity();

  int64_t token(int64_t r) const { return data_.order(chunk_.round)[begin_ + r]; }
  bool first_round() const { return chunk_.round == 0; }
  bool last_round() const { return chunk_.round + 1 == data_.head.rounds; }

  // Prefetches the rows that the next chunk adds, while this chunk's products run.
  void prefetch_next() {
    prefetcher_.clear();
    const int64_t end = begin_ + rows_,
                  next = std::min(end + data_.in.rule.chunk, data_.head.length);
    const int64_t keys = data_.in.rule.after * data_.in.rule.chunk;
    const int64_t from = std::min(end + keys, data_.head.length);
    const int64_t to = std::min(next + keys, data_.head.length);
    prefetcher_.add(q_, from, to);
    prefetcher_.add(v_, from, to);
    prefetcher_.add(target_, end, next);
    prefetcher_.spread(ceil_div(rows_, kGroup) *
                       (ceil_div(data_.head.window(), N) + keys_.value_panels));
  }

  void begin() {
    const auto scale = static_cast<T>(data_.in.rule.scale * kLog2E);
    pack_rows(q_, begin_, rows_, padded_, scale, q_rows_, keys_.padded);
    std::fill_n(totals_, padded_ * V, T{0});
    if (first_round()) {
      for (int64_t p = 0; p < keys_.value_panels; ++p) {
        std::fill_n(sums_ + p * keys_.padded * N, padded_ * N, T{0});
      }
      std::fill_n(reference_, padded_, kHidden);
      for (int64_t r = 0; r < rows_; ++r) state_.accompanied[token(r)] = T{0};
      return;
    }
    pack_rows(source_, begin_, rows_, padded_, T{1}, sums_, keys_.padded);
    for (int64_t r = 0; r < rows_; ++r) {
      reference_[r] = state_.reference[token(r)];
      totals_[r * V] = state_.total[token(r)];
    }
  }

  void attend(int64_t g, std::span<LshPiece> pieces, LshSight<T>& sight) {
    const int64_t first = g * kGroup, count = std::min(kGroup, rows_ - first);
    bool any = false;
    for (LshPiece& p : pieces) {
      keys_.narrow(p, chunk_, first, first + count);
      any = any || !p.empty();
    }
    if (!any) return;
    multiply_keys(g, pieces);
    for (int64_t i = 0; i < count; ++i) weigh(first + i, i, pieces, sight);
    multiply_values(g, pieces);
  }

  // S = scale log2(e) Q K^T of group g.
  void multiply_keys(int64_t g, std::span<const LshPiece> pieces) {
    const int64_t rows = std::min(kGroup, padded_ - g * kGroup);
    const T* const q = q_rows_ + g * kGroup * N;
    for (const LshPiece& p : pieces) {
      if (p.empty()) continue;
      for (int64_t j = p.from / N * N; j < p.to; j += N) {
        const T* const panel =
            keys_.key_columns + (p.entry * keys_.padded + p.first + j) * data_.width;
        T* const to = scores_ + p.column + j;
        if (p.to - j > V) {
          product<2, N, T>(rows, q, 1, panel, over_width_, to, kLshStride, false);
        } else {
          product<1, N, T>(rows, q, 1, panel, over_width_, to, kLshStride, false);
        }
        prefetcher_.step();
      }
    }
  }

  // Computes P of row r, the i-th of its group.
  void weigh(int64_t r, int64_t i, std::span<const LshPiece> pieces, LshSight<T>& sight) {
    const Tag<T> d;
    const Vec<T> hidden = hn::Set(d, kHidden);
    const Vec<T> self = hn::Set(d, static_cast<T>(data_.in.rule.self * kLog2E));
    sight.note_row(token(r));
    T* const row = scores_ + i * kLshStride;
    T* const weights = weights_ + i * kLshStride;
    Vec<T> high = hidden, high_others = hidden;
    for (const LshPiece& p : pieces) {
      if (p.empty()) continue;
      T* const s = row + p.column;
      if (data_.by_pair()) sight.weigh(keys_, p, weights + p.column);
      for (int64_t v = p.vector<T>(); v < p.vector_end<T>(); ++v) {
        Vec<T> x = hn::Load(d, s + v * V);
        const auto own = sight.itself(keys_, p, v);
        if (data_.by_pair()) {
          const auto counts = hn::Gt(hn::Load(d, weights + p.column + v * V), hn::Zero(d));
          x = hn::IfThenElse(counts, x, hidden);
          high_others = hn::Max(high_others, hn::IfThenElse(own, hidden, x));
          x = hn::IfThenElse(hn::And(own, counts), self, x);
        } else {
          x = hn::IfThenElse(sight.others(keys_, p, v), x, hidden);
          high_others = hn::Max(high_others, x);
          if (sight.self_counts()) x = hn::IfThenElse(own, self, x);
        }
        high = hn::Max(high, x);
        hn::Store(x, d, s + v * V);
      }
    }
    if (!hn::AllTrue(d, hn::Eq(high_others, hidden))) state_.accompanied[sight.query] = T{1};
    raise(r, hn::GetLane(hn::MaxOfLanes(d, high)));
    const Vec<T> base = hn::Set(d, reference_[r] == kHidden ? T{0} : reference_[r]);
    Vec<T> total = hn::Load(d, totals_ + r * V);
    for (const LshPiece& p : pieces) {
      if (p.empty()) continue;
      T* const s = row + p.column;
      for (int64_t v = p.vector<T>(); v < p.vector_end<T>(); ++v) {
        Vec<T> x = exp2(d, hn::Sub(hn::Load(d, s + v * V), base));
        if (data_.by_pair()) x = hn::Mul(x, hn::Load(d, weights + p.column + v * V));
        total = hn::Add(total, x);
        hn::Store(x, d, s + v * V);
      }
      if (data_.keep.active()) drop(p, s, sight);
    }
    hn::Store(total, d, totals_ + r * V);
  }

  HWY_NOINLINE void drop(const LshPiece& p, T* s, const LshSight<T>& sight) {
    const Tag<T> d;
    alignas(64) T factors[kLshStride];
    sight.drop(keys_, p, s, factors);
    for (int64_t v = p.vector<T>(); v < p.vector_end<T>(); ++v) {
      hn::Store(hn::Mul(hn::Load(d, s + v * V), hn::Load(d, factors + v * V)), d, s + v * V);
    }
  }

  // Raises the reference of row r to its largest score, and rescales the sums so far.
  void raise(int64_t r, T top) {
    if (!(top > reference_[r] + static_cast<T>(kLshSlack))) return;
    if (reference_[r] != kHidden) {
      const Tag<T> d;
      const Vec<T> factor = hn::Set(d, exp2(reference_[r] - top));
      hn::Store(hn::Mul(hn::Load(d, totals_ + r * V), factor), d, totals_ + r * V);
      for (int64_t p = 0; p < keys_.value_panels; ++p) {
        T* const sum = sums_ + (p * keys_.padded + r) * N;
        hn::Store(hn::Mul(hn::Load(d, sum), factor), d, sum);
        hn::Store(hn::Mul(hn::Load(d, sum + V), factor), d, sum + V);
      }
    }
    reference_[r] = top;
  }

  // sums += P V of group g
  void multiply_values(int64_t g, std::span<const LshPiece> pieces) {
    over_keys_.clear();
    for (const LshPiece& p : pieces) {
      if (p.empty()) continue;
      if (!keys_.finite(p.entry)) {
        multiply_key_ranges(g);
        multiply_values_seen(g, p);
        continue;
      }
      over_keys_.push_back(
          {p.column + p.from, (p.entry * keys_.padded + p.first + p.from) * N, p.to - p.from});
    }
    multiply_key_ranges(g);
  }

  void multiply_key_ranges(int64_t g) {
    if (over_keys_.empty()) return;
    for (int64_t p = 0; p < keys_.value_panels; ++p) {
      product<2, kLshStride, T>(std::min(kGroup, padded_ - g * kGroup), scores_, 1,
                                keys_.value_rows + p * keys_.entries * keys_.padded * N, over_keys_,
                                sums_ + (p * keys_.padded + g * kGroup) * N, N, true);
      prefetcher_.step();
    }
    over_keys_.clear();
  }

  // multiply_key_ranges() for nonfinite values: skips hidden keys.
  HWY_NOINLINE void multiply_values_seen(int64_t g, const LshPiece& piece) {
    const int64_t row = g * kGroup, key = piece.entry * keys_.padded + piece.first + piece.from;
    const T* const s = scores_ + piece.column + piece.from;
    for (int64_t p = 0; p < keys_.value_panels; ++p) {
      product_of_seen(std::min(kGroup, rows_ - row), s, kLshStride, 1,
                      keys_.value_rows + (p * keys_.entries * keys_.padded + key) * N,
                      piece.to - piece.from, sums_ + (p * keys_.padded + row) * N, N,
                      [s](int64_t r, int64_t k) { return s[r * kLshStride + k] != T{0}; });
    }
  }

  void finish() {
    const Tag<T> d;
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t i = token(r);
      const T total = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, totals_ + r * V)));
      if (!last_round()) {
        state_.reference[i] = reference_[r];
        state_.total[i] = total;
        write_row(sums_, keys_.padded, r, T{1}, target_, begin_ + r);
        continue;
      }
      state_.lse[i] = reference_[r] * static_cast<T>(kLn2) + std::log(total);
      if (state_.accompanied[i] == T{0} && !data_.keep.active()) {
        alignas(64) T temporary[kMaxWidth];
        const T* const value = v_.row(begin_ + r, temporary);
        state_.sink.write(i, value);  // its own value, without rounding
        // Recomputes lse, too: a distant self logit times log2(e) has lost digits.
        state_.lse[i] = static_cast<T>(data_.in.rule.self) + std::log(total);
        continue;
      }
      RowSink<T> sink = state_.sink;
      sink.stream = false;
      write_row(sums_, keys_.padded, r, T{1} / total, sink, i);
    }
  }

  const LshData<T>& data_;
  const LshSums<T>& state_;
  LshKeys<T> keys_;
  const std::vector<InnerRange> over_width_;
  T* const q_rows_;     // of a chunk, scaled: [panels][padded][NR]
  T* const sums_;       // of P V, stored as q_rows_
  T* const scores_;     // of a group of rows: S, then P
  T* const weights_;    // of its pairs, for rules that check each pair
  T* const totals_;     // sums of P by lane
  T* const reference_;  // of each row
  RowSource<T> q_, v_, source_;
  RowSink<T> target_;
  Prefetcher prefetcher_;
  std::vector<InnerRange> over_keys_;
  LshChunk chunk_{};
  int64_t begin_ = 0, rows_ = 0, padded_ = 0;
};

/// Processes one head after the other, or several at a time if there are enough for all threads;
/// rows are the same either way.
template <class T>
void lsh_forward(const LshInputs& in, const View& out, const View& lse) {
  const int64_t heads = in.q.dim(1), all = in.q.dim(0) * heads;
  Slab<T> head_count(nullptr), task_count(nullptr);
  {
    const LshData<T> data(in, 0, 0, head_count);
    const LshSums<T> sums(data, out, lse, head_count);
    LshForward<T>(data, sums, task_count);
  }
  const bool together = all >= num_threads();
  const Buffer<T> head_memory(head_count.used() * (together ? num_threads() : 1), in.q.device);
  const Buffer<T> task_memory(task_count.used() * num_threads(), in.q.device);
  if (in.q.device == meta_device) return;  // only allocates the workspace
  const auto run_head = [&](int64_t bh) {
    Slab<T> slab(head_memory.data() + head_count.used() * (together ? worker_index() : 0));
    LshData<T> data(in, bh / heads, bh % heads, slab);
    const LshSums<T> sums(data, out, lse, slab);
    constexpr int64_t kRows = 1024;
    parallel_ranges(data.head.length, kRows,
                    [&](int64_t from, int64_t to) { data.prepare(from, to); });
    parallel_for(data.head.rounds, [&](int64_t round) { data.sort_chunks(round); });
    const int64_t chunks = data.head.chunks();
    const int64_t step = std::max<int64_t>(1, kRows / in.rule.chunk);  // chunks per task
    for (int64_t round = 0; round < data.head.rounds; ++round) {
      parallel_ranges(chunks, together ? chunks : step, [&](int64_t from, int64_t to) {
        Slab<T> mine(task_memory.data() + task_count.used() * worker_index());
        LshForward<T>(data, sums, mine).run(round, from, to);
      });
    }
  };
  if (together) {
    parallel_for(all, run_head);
  } else {
    for (int64_t bh = 0; bh < all; ++bh) run_head(bh);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
