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
#include "cpu/attention/plan.h"
#include "cpu/attention/prefetch.h"
#include "cpu/attention/terms-inl.h"
#include "cpu/attention/tile-inl.h"
#include "cpu/attention/visit-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

// Gradient sums of the relation tables of one task: rows as panels [panels of width][ids][NR].
template <class T>
struct RelationSums {
  T *key = nullptr, *value = nullptr, *bias = nullptr;
};

// State shared by all tasks of a call. One code serves three schedules: a whole head (all tiles,
// all keys), rows only (dq and the tables), and columns only (dk and dv). All add in the same
// order, so they agree in every bit.
template <class T>
struct BackwardCall {
  const AttentionProblem& in;
  const ConstView& lse;
  const ConstView& dout;
  const AttentionGradients& grads;
  const RelationPanels<T>& relations;
  const SpanRows<T>& spans;
  const T* delta;              // [B, H, L]: dout . out - dlse
  bool rows, columns, tables;  // what to compute: dq; dk and dv; gradients of the tables
  T* span_sums;  // null, or gradient sums of mu: [B H][span_row] by key, else [tasks][lanes]
};

// Elements of a head's gradient sums of mu: its keys, and padding for whole vectors.
inline int64_t span_row(const AttentionProblem& in) { return in.inputs.k[0].dim(2) + kBlock; }

// Slots for the running dq of the tiles in flight: an item for each tile, a step for each `step`
// keys.
inline Slots tile_slots(const AttentionHead& head, const AttentionTask& task, int64_t step) {
  Slots slots(task.tile_end - task.tile);
  for (int64_t t = task.tile; t < task.tile_end; ++t) {
    const KeyRange e = head.extent(t);
    if (e.k0 == e.k1) continue;
    slots.use(t - task.tile, e.k0 / step);
    slots.use(t - task.tile, (e.k1 - 1) / step);
  }
  slots.plan(task.key_end / step + 1);
  return slots;
}

// One task: iterates over its keys step by step, keeping a step's keys and their gradients in
// cache, and in each step over the tiles that see them.
template <class T>
class BackwardTask {
 public:
  BackwardTask(const BackwardCall<T>& call, const AttentionTask& task, const RelationSums<T>& sums,
               Slab<T>& slab)
      : call_(call),
        in_(call.in),
        task_(task),
        table_sums_(sums),
        head_(call.in, task.b, task.h),
        width_(in_.inputs.q.dim(3)),
        value_width_(in_.inputs.v[0].dim(3)),
        width_panels_(ceil_div(width_, N)),
        value_panels_(ceil_div(value_width_, N)),
        over_width_(over_panels<T>(width_, kTileRows * N)),
        over_value_width_(over_panels<T>(value_width_, kTileRows * N)),
        // As many keys as fit in the L2 cache together with their gradients.
        step_(std::max(width_, value_width_) <= 64 ? 2 * kBlock : kBlock),
        tile_size_(width_panels_ * kTileRows * N),
        slots_(call.rows ? tile_slots(head_, task, step_) : Slots()),
        key_columns_(slab.take(step_ * width_)),
        value_columns_(slab.take(step_ * value_width_)),
        key_rows_(slab.take(call.rows ? step_ * width_panels_ * N : 0)),
        key_sums_(slab.take(call.columns ? step_ * width_panels_ * N : 0)),
        value_sums_(slab.take(call.columns ? step_ * value_panels_ * N : 0)),
        tile_sums_(slab.take(slots_.count() * tile_size_)),
        relation_query_(static_cast<bool>(in_.inputs.relation_query)),
        relation_sums_(slab.take(relation_query_ && call.rows ? slots_.count() * tile_size_ : 0)),
        q_rows_(slab.take(tile_size_)),
        relation_rows_(relation_query_ ? slab.take(tile_size_) : q_rows_),
        out_rows_(slab.take(value_panels_ * kTileRows * N)),
        scores_(slab.take(kTileRows * kScoreStride)),
        dscores_(slab.take(kTileRows * kScoreStride)),
        shift_(call.relations.key_columns != nullptr || call.relations.bias != nullptr),
        carry_(call.relations.value_rows != nullptr),
        bin_(shift_ && (call.tables || call.rows)),
        bin_values_(carry_ && call.tables),
        relation_(call.relations.shape),
        table_(slab.take(shift_ ? kTileRows * relation_.stride : 0)),
        value_table_(slab.take(carry_ ? kTileRows * relation_.stride : 0)),
        bins_(slab.take(bin_ ? kTileRows * relation_.stride : 0)),
        value_bins_(slab.take(bin_values_ ? kTileRows * relation_.stride : 0)),
        bin_panels_(slab.take(bin_ || bin_values_ ? relation_.padded() * kTileRows : 0)),
        collected_(slab.take(N * std::max(width_, value_width_))),
        soft_(call.spans.of(in_, task.b, task.h)),
        keep_(in_.numbers.dropout, task.b * in_.inputs.q.dim(1) + task.h) {}

  void run() {
    const int64_t b = task_.b, h = task_.h;
    for (int s = 0; s < head_.segments; ++s) {
      const int32_t* const order = head_.segment[s].order;
      k_[s] = head_rows<T>(in_.inputs.k[s], b, h, order);
      v_[s] = head_rows<T>(in_.inputs.v[s], b, h, order);
      if (!call_.columns) continue;
      dk_[s] = head_sink<T>(call_.grads.k[s], b, h, order, in_.accumulate);
      dv_[s] = head_sink<T>(call_.grads.v[s], b, h, order, in_.accumulate);
    }
    if (relation_query_) r_ = head_rows<T>(in_.inputs.relation_query, b, h, head_.order_q);
    q_ = head_rows<T>(in_.inputs.q, b, h, head_.order_q);
    g_out_ = head_rows<T>(call_.dout, b, h, head_.order_q);
    if (call_.rows) {
      if (call_.grads.q) dq_ = head_sink<T>(call_.grads.q, b, h, head_.order_q, in_.accumulate);
      if (call_.grads.relation_query) {
        dr_ = head_sink<T>(call_.grads.relation_query, b, h, head_.order_q, in_.accumulate);
      }
      if (!in_.accumulate) clear_unseen();
    }
    std::vector<int32_t> tiles, next;
    KeyBlock step = step_at(task_.key);
    tiles_of(step, tiles);
    while (step.key < task_.key_end) {
      const KeyBlock after = step_at(step.key + step_);
      tiles_of(after, next);
      do_step(step, tiles, after, next);
      step = after;
      tiles.swap(next);
    }
    hwy::FlushStream();
  }

 private:
  static constexpr int64_t N = kPanel<T>;
  static constexpr int64_t V = kLanes<T>;
  static constexpr T kNothing = -std::numeric_limits<T>::infinity();

  // The keys that are processed at a time: [first, first + count) of a segment. Empty between the
  // segments and after the last.
  struct KeyBlock {
    int64_t key = 0;  // position of the first key
    int segment = 0;
    int64_t first = 0, count = 0;
  };

  KeyBlock step_at(int64_t key) const {
    if (key >= task_.key_end) return {key, 0, 0, 0};
    const HeadSegment& s = head_.at_place(key);
    const int64_t first = key - s.first;
    const int64_t count = std::min({step_, task_.key_end - key, s.keys - first});
    return {key, s.number, first, std::max<int64_t>(0, count)};
  }

  // Lists the task's tiles that see keys of a step.
  void tiles_of(const KeyBlock& step, std::vector<int32_t>& tiles) const {
    tiles.clear();
    if (step.count == 0) return;
    head_.tiles_of_columns(step.key, step.key + step.count, tiles);
    const auto outside = [this](int32_t t) { return t < task_.tile || t >= task_.tile_end; };
    tiles.erase(std::remove_if(tiles.begin(), tiles.end(), outside), tiles.end());
  }

  void do_step(const KeyBlock& step, const std::vector<int32_t>& tiles, const KeyBlock& after,
               const std::vector<int32_t>& next) {
    if (step.count == 0 || (in_.accumulate && tiles.empty())) return;
    if (call_.columns) {
      std::fill_n(key_sums_, step_ * width_panels_ * N, T{0});
      std::fill_n(value_sums_, step_ * value_panels_ * N, T{0});
    }
    if (!tiles.empty()) {
      pack_keys(k_[step.segment], v_[step.segment], step.first, step.count);
    }
    const auto process = [this](int64_t n) { do_spans(n); };
    const auto empty = [this](int64_t r) { return base_[r] == kNothing; };
    const auto all = static_cast<int64_t>(tiles.size());
    for (int64_t i = 0; i < all; ++i) {
      const int32_t t = tiles[static_cast<size_t>(i)];
      head_.ranges(t, step.key, step.key + step.count, ranges_);
      if (ranges_.empty()) continue;
      begin(t, ranges_);
      const int64_t last = next.empty() ? -1 : next.front();
      prefetch_next(step, after, i, all, i + 1 < all ? tiles[static_cast<size_t>(i + 1)] : last);
      for (const KeyRange& range : ranges_) {
        for_blocks(head_, t, range, some_empty_, empty, visit_, [&](KeySpan& span) {
          span.at = span.origin - step.key;
          take(span, process);
        });
      }
      visit_.finish(process);
      finish(t, step.key / step_);
    }
    if (!call_.columns) return;
    for (int64_t j = 0; j < step.count; ++j) {
      const int64_t key = step.first + j;
      write_row(key_sums_, step_, j, static_cast<T>(kLn2), dk_[step.segment], key);
      write_row(value_sums_, step_, j, T{1}, dv_[step.segment], key);
    }
  }

  // Prefetches, during the products of tile i of n, the rows of the next tile (-1: there is none),
  // and the tile's share of the step's outputs and of the keys of the next step.
  void prefetch_next(const KeyBlock& step, const KeyBlock& after, int64_t i, int64_t n,
                     int64_t next_tile) {
    prefetcher_.clear();
    if (next_tile >= 0) {
      const int64_t row = head_.tile_row(next_tile), end = row + head_.tile_rows(next_tile);
      prefetcher_.add(q_, row, end);
      prefetcher_.add(g_out_, row, end);
      if (in_.accumulate) prefetcher_.add(dq_, row, end);
      const int64_t item = next_tile - task_.tile;
      for (int64_t p = 0; call_.rows && slots_.has(item) && p < width_panels_; ++p) {
        prefetcher_.add(tile_sums_ + slots_.at(item) * tile_size_ + p * kTileRows * N, end - row,
                        N);
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
    prefetcher_.spread(panels * ceil_div(rows_, kGroup));
  }

  // Writes zeros to dq of rows that see no key.
  void clear_unseen() {
    alignas(64) T zeros[kMaxWidth] = {};
    for (int64_t t = task_.tile; t < task_.tile_end; ++t) {
      if (slots_.used(t - task_.tile)) continue;
      for (int64_t r = 0; r < head_.tile_rows(t); ++r) {
        if (dq_.base != nullptr) dq_.write(head_.tile_row(t) + r, zeros);
        if (dr_.base != nullptr) dr_.write(head_.tile_row(t) + r, zeros);
      }
    }
  }

  void pack_keys(const RowSource<T>& k, const RowSource<T>& v, int64_t key, int64_t count) {
    for (int64_t j = 0; j < count; j += kBlock) {
      const int64_t n = std::min(kBlock, count - j);
      pack_block_columns(k, key + j, n, collected_, key_columns_ + j * width_);
      pack_block_columns(v, key + j, n, collected_, value_columns_ + j * value_width_);
      if (call_.rows) {
        finite_keys_[j / kBlock] =
            pack_rows(k, key + j, n, n, T{1}, key_rows_ + j * width_panels_ * N, kBlock);
      }
    }
  }

  void begin(int64_t t, const std::vector<KeyRange>& ranges) {
    row_ = head_.tile_row(t);
    rows_ = head_.tile_rows(t);
    padded_ = round_up(rows_, kRest);
    const bool finite_q = pack_rows(q_, row_, rows_, padded_,
                                    static_cast<T>(in_.numbers.scale * kLog2E), q_rows_, kTileRows);
    finite_rows_ = pack_rows(g_out_, row_, rows_, padded_, T{1}, out_rows_, kTileRows) && finite_q;
    const int64_t first_row = (task_.b * in_.inputs.q.dim(1) + task_.h) * in_.inputs.q.dim(2);
    some_empty_ = false;
    for (int64_t r = 0; r < rows_; ++r) {
      base_[r] = call_.lse.template as<T>()[first_row + query(r)] * static_cast<T>(kLog2E);
      lower_[r] = call_.delta[first_row + query(r)];
      some_empty_ = some_empty_ || base_[r] == kNothing;
    }
    if (call_.rows) {
      const int64_t item = t - task_.tile;
      const bool fresh = !slots_.has(item);
      const int64_t slot = fresh ? slots_.take(item) : slots_.at(item);
      tile_sum_ = tile_sums_ + slot * tile_size_;
      relation_sum_ = relation_query_ ? relation_sums_ + slot * tile_size_ : tile_sum_;
      if (fresh) {
        std::fill_n(tile_sum_, tile_size_, T{0});
        std::fill_n(relation_sum_, tile_size_, T{0});
      }
    }
    if (!shift_ && !carry_) return;
    const RelationPanels<T>& relations = call_.relations;
    reach(head_, row_, rows_, ranges, relation_);
    if (relation_query_) {
      pack_rows(r_, row_, rows_, padded_, static_cast<T>(in_.numbers.scale * kLog2E),
                relation_rows_, kTileRows);
    }
    if (shift_) {
      relation_table(relation_, padded_, relation_rows_, width_, relations.key_columns_of(task_.h),
                     relations.bias_of(task_.h), table_);
    }
    if (carry_) {
      relation_table(relation_, padded_, out_rows_, value_width_,
                     relations.value_columns_of(task_.h), static_cast<const T*>(nullptr),
                     value_table_);
    }
    if (bin_) clear_sums(relation_, rows_, bins_);
    if (bin_values_) clear_sums(relation_, rows_, value_bins_);
  }

  // Whether a span needs only products, so that other spans can share its score tile.
  bool plain(const KeySpan& span) const {
    return !shift_ && !carry_ && !soft_.given() && has_intervals_only(head_, span);
  }

  // Prepares the terms that a span needs besides products.
  void enter(const KeySpan& span) {
    const HeadSegment& s = head_.at_place(span.origin);
    labels_.begin(s, relation_, shift_ || carry_, span.origin, head_.block_keys(span.origin));
    more_ = span.times == 1 ? T{0} : std::log2(static_cast<T>(span.times));
    soft_here_ = soft_.given() && s.number == 0;
    terms_ = shift_ || carry_ || soft_here_ || span.times != 1 || labels_.active();
    span_row_ = nullptr;
    if (!soft_here_ || call_.span_sums == nullptr) return;
    if (soft_.by_key) {
      const int64_t head = task_.b * in_.inputs.q.dim(1) + task_.h;
      span_row_ = call_.span_sums + head * span_row(in_) + span.origin;
    } else {
      span_row_ = call_.span_sums + task_.index * V;
    }
  }

  // Products over rows also read scores of keys that a row does not see: up to kGroup - 1 on either
  // side of the visible ones, if rows differ.
  template <class Process>
  void take(const KeySpan& span, Process&& process) {
    const Visible& seen = span.seen;
    const int64_t beside = seen.alike ? 0 : kGroup - 1;
    visit_.take(!plain(span), std::max<int64_t>(0, seen.all_first - beside),
                std::min<int64_t>(head_.block_keys(span.origin), seen.all_last + beside), process);
  }

  // Processes the first n spans of the visit.
  void do_spans(int64_t n) {
    terms_ = false;
    if (!plain(visit_[0])) enter(visit_[0]);
    multiply_panels(n);
    for (int64_t g = 0; g * kGroup < rows_; ++g) {
      for (int64_t i = 0; i < n; ++i) differentiate(g, visit_[i]);
    }
    for (int64_t i = 0; call_.columns && i < n; ++i) multiply_queries(visit_[i]);
    if (call_.rows) multiply_keys(n);
  }

  // S = Q K^T and dP = dO V^T over n spans, only the vectors that a group sees
  void multiply_panels(int64_t n) {
    const int64_t vectors = visit_.vectors(n);
    for (int64_t v = 0; v < vectors; v += 2) {
      for (int64_t g = 0; g * kGroup < rows_; ++g) {
        const int64_t m = std::min(kGroup, padded_ - g * kGroup), to = g * kGroup * kScoreStride;
        product_seen<kScoreStride>(visit_, v, vectors, g, m, q_rows_, key_columns_, width_,
                                   over_width_, scores_ + to);
        prefetcher_.step();
        product_seen<kScoreStride>(visit_, v, vectors, g, m, out_rows_, value_columns_,
                                   value_width_, over_value_width_, dscores_ + to);
      }
    }
  }

  // P = 2^(S - lse) and dS = P (dP - delta) for the rows of group g. Both are 0 for pairs that a
  // row does not see, in every column that the products over rows read.
  void differentiate(int64_t g, const KeySpan& span) {
    const Visible& seen = span.seen;
    const int64_t first = g * kGroup, end = std::min(first + kGroup, rows_);
    const Vectors n = vectors_of<T>(seen, g);
    int64_t from = span.from / V, to = span.to / V;
    if (seen.ascending) {
      if (n.from == n.to) return;
      from = std::max(from, std::max<int64_t>(0, seen.first[g] - (kGroup - 1)) / V);
      to = std::min(to, ceil_div(seen.last[g] + kGroup - 1, V));
    }
    for (int64_t r = first; r < end; ++r) {
      T* const s = scores_ + r * kScoreStride;
      T* const ds = dscores_ + r * kScoreStride;
      const auto clear = [&](int64_t v0, int64_t v1) {
        zero_vectors(s, span.column + v0 * V, v1 - v0);
        zero_vectors(ds, span.column + v0 * V, v1 - v0);
      };
      if (n.from == n.to) {
        clear(from, to);
        continue;
      }
      clear(from, n.from);
      clear(n.to, to);
      if (keep_.active()) {
        keep_.fill(query(r), head_.at_place(span.origin), span.origin, n.from * V, n.to * V,
                   keep_row_);
        if (terms_) {
          differentiate_row<true, true>(r, span, n);
        } else {
          differentiate_row<false, true>(r, span, n);
        }
      } else if (terms_) {
        differentiate_row<true, false>(r, span, n);
      } else {
        differentiate_row<false, false>(r, span, n);
      }
    }
  }

  template <bool kTerms, bool kDrop>
  HWY_INLINE void differentiate_row(int64_t r, const KeySpan& span, const Vectors& n) {
    const Tag<T> d;
    const Visible& seen = span.seen;
    const int64_t column = r * kScoreStride + span.column;
    const Vec<T> base = hn::Set(d, base_[r]), lower = hn::Set(d, lower_[r]);
    const int64_t at = r * relation_.stride;
    const int64_t far = kTerms ? distance(span.origin, r) : 0;
    const auto* const label = kTerms && labels_.active() ? labels_.of_row(query(r)) : nullptr;
    const bool by_label = kTerms && labels_.columns();
    const auto entry = [&](const T* table, int64_t v) {
      return by_label ? from_labels(table + at, label, v)
                      : from_table(relation_, far + v * V, table + at);
    };
    const auto one = [&](int64_t v, auto hide) {
      T *const s = scores_ + (column + v * V), *const ds = dscores_ + (column + v * V);
      Vec<T> x = hn::Load(d, s), dp = hn::Load(d, ds);
      if (kTerms && shift_) x = hn::Add(x, entry(table_, v));
      if (kTerms && more_ != T{0}) x = hn::Add(x, hn::Set(d, more_));
      if (kTerms && carry_) dp = hn::Add(dp, entry(value_table_, v));
      x = hn::Sub(x, base);
      // If mu is 0, scores are not bounded by lse.
      if (kTerms && soft_here_) x = hn::Min(x, hn::Set(d, T{64}));
      Vec<T> p = exp2(d, x);
      if (kDrop) dp = hn::Mul(dp, hn::Load(d, keep_row_ + v * V));
      Vec<T> dx = hide(v, hn::Mul(p, hn::Sub(dp, lower)));
      if (kTerms && soft_here_) {
        const Vec<T> mu = soft_.at(v, far, span.origin);
        add_span(v, mu, dx);
        const auto some = hn::Gt(mu, hn::Zero(d));
        dx = hn::IfThenElseZero(some, hn::Mul(dx, clamped<T>(mu)));
        p = hn::IfThenElseZero(some, hn::Mul(p, clamped<T>(mu)));
      }
      if (kDrop) p = hn::Mul(p, hn::Load(d, keep_row_ + v * V));
      p = hide(v, p);
      hn::Store(p, d, s);
      hn::Store(dx, d, ds);
      if (kTerms && !by_label && bin_) add_to_bins(relation_, far + v * V, dx, bins_ + at);
      if (kTerms && !by_label && bin_values_) {
        add_to_bins(relation_, far + v * V, p, value_bins_ + at);
      }
    };
    const auto labelled = [&](int64_t v, Vec<T> x) {
      return kTerms && labels_.hides() ? hn::IfThenElseZero(shown<T>(label, v), x) : x;
    };
    const auto outside = [&](int64_t v, Vec<T> x) {
      return hn::IfThenElseZero(inside<T>(v, seen.lo[r], seen.hi[r]), labelled(v, x));
    };
    for (int64_t v = n.from; v < n.a; ++v) one(v, outside);
    for (int64_t v = n.a; v < n.e; ++v) one(v, labelled);
    for (int64_t v = n.e; v < n.to; ++v) one(v, outside);
    if (by_label && bin_) {
      labels_.add(label, n.from * V, n.to * V, dscores_ + column, bins_ + at);
    }
    if (by_label && bin_values_) {
      labels_.add(label, n.from * V, n.to * V, scores_ + column, value_bins_ + at);
    }
  }

  // Adds the gradient of a vector of mu. It reaches the span if mu is on its ramp, ends included,
  // except that nonfinite values are dropped if mu is 0.
  HWY_INLINE void add_span(int64_t v, Vec<T> mu, Vec<T> dmu) {
    if (span_row_ == nullptr) return;
    const Tag<T> d;
    const auto ramp = hn::And(hn::Ge(mu, hn::Zero(d)), hn::Le(mu, hn::Set(d, T{1})));
    const auto on = hn::And(ramp, hn::Or(hn::Gt(mu, hn::Zero(d)), hn::IsFinite(dmu)));
    T* const to = span_row_ + (soft_.by_key ? v * V : 0);
    hn::StoreU(hn::Add(hn::LoadU(d, to), hn::IfThenElseZero(on, dmu)), d, to);
  }

  // dV += P^T dO and dK += dS^T Q, for each group of keys over the rows that see some of them.
  void multiply_queries(const KeySpan& span) {
    const Visible& seen = span.seen;
    for (int64_t j = seen.all_first / kRest * kRest; j < seen.all_last; j += kGroup) {
      const int64_t m = std::min(kGroup, seen.all_last - j);
      int64_t from = 0, to = rows_;
      if (!seen.alike) {
        while (from < to && (seen.lo[from] >= j + m || seen.hi[from] <= j)) ++from;
        while (from < to && (seen.lo[to - 1] >= j + m || seen.hi[to - 1] <= j)) --to;
        if (from == to) continue;
      }
      if (!finite_rows_) {
        multiply_queries_seen(span, j, m);
        continue;
      }
      const int64_t column = span.column + j;
      const InnerRange over[] = {{from * kScoreStride, from * N, to - from}};
      for (int64_t p = 0; p < value_panels_; ++p) {
        product<2, 1, T>(m, scores_ + column, kScoreStride, out_rows_ + p * kTileRows * N, over,
                         value_sums_ + (p * step_ + span.at + j) * N, N, true);
      }
      for (int64_t p = 0; p < width_panels_; ++p) {
        product<2, 1, T>(m, dscores_ + column, kScoreStride, q_rows_ + p * kTileRows * N, over,
                         key_sums_ + (p * step_ + span.at + j) * N, N, true);
      }
    }
  }

  // Does the same for keys j .. j + m if dO or Q is nonfinite.
  HWY_NOINLINE void multiply_queries_seen(const KeySpan& span, int64_t j, int64_t m) {
    const int64_t column = span.column + j, key = span.at + j;
    const auto sees = [&](int64_t k, int64_t row) { return holds(span, row, j + k); };
    for (int64_t p = 0; p < value_panels_; ++p) {
      product_of_seen(m, scores_ + column, 1, kScoreStride, out_rows_ + p * kTileRows * N, rows_,
                      value_sums_ + (p * step_ + key) * N, N, sees);
    }
    for (int64_t p = 0; p < width_panels_; ++p) {
      product_of_seen(m, dscores_ + column, 1, kScoreStride, q_rows_ + p * kTileRows * N, rows_,
                      key_sums_ + (p * step_ + key) * N, N, sees);
    }
  }

  // dQ += dS K over n spans
  void multiply_keys(int64_t n) {
    for (int64_t g = 0; g * kGroup < rows_; ++g) {
      over_keys_.clear();
      for (int64_t i = 0; i < n; ++i) {
        const KeySpan& span = visit_[i];
        const int64_t first = span.seen.first[g], count = span.seen.last[g] - first;
        if (count <= 0) continue;
        if (!finite_keys_[span.at / kBlock]) {
          multiply_stretches(g);
          over_keys_.clear();
          multiply_keys_seen(g, span);
          continue;
        }
        over_keys_.push_back({span.column + first, (span.at * width_panels_ + first) * N, count});
      }
      multiply_stretches(g);
    }
  }

  void multiply_stretches(int64_t g) {
    if (over_keys_.empty()) return;
    for (int64_t p = 0; p < width_panels_; ++p) {
      product<2, kScoreStride, T>(std::min(kGroup, padded_ - g * kGroup),
                                  dscores_ + g * kGroup * kScoreStride, 1,
                                  key_rows_ + p * kBlock * N, over_keys_,
                                  tile_sum_ + (p * kTileRows + g * kGroup) * N, N, true);
    }
  }

  // Does the same for nonfinite keys.
  HWY_NOINLINE void multiply_keys_seen(int64_t g, const KeySpan& span) {
    const int64_t first = span.seen.first[g], count = span.seen.last[g] - first, row = g * kGroup;
    for (int64_t p = 0; p < width_panels_; ++p) {
      const T* const panel = key_rows_ + (span.at * width_panels_ + p * kBlock) * N;
      product_of_seen(std::min(kGroup, rows_ - row),
                      dscores_ + (row * kScoreStride + span.column + first), kScoreStride, 1,
                      panel + first * N, count, tile_sum_ + (p * kTileRows + row) * N, N,
                      [&](int64_t r, int64_t key) { return holds(span, row + r, first + key); });
    }
  }

  // Adds the tile's contribution to the relation tables, and writes dq after the tile's last visit.
  void finish(int64_t t, int64_t index) {
    if (bin_) {
      fold_sums(relation_, rows_, bins_, bin_panels_);
      if (call_.rows && call_.relations.key_rows != nullptr) {
        add_bins_product(relation_, padded_, bin_panels_, call_.relations.key_rows_of(task_.h),
                         width_panels_, relation_sum_);
      }
      if (table_sums_.key != nullptr) {
        add_table_gradient(relation_, rows_, bin_panels_, relation_rows_, width_panels_,
                           table_sums_.key);
      }
      if (table_sums_.bias != nullptr) {
        for_panels(relation_, [&](const auto&, int64_t p, int64_t at) {
          for (int64_t r = 0; r < rows_; ++r) {
            const T* const from = bin_panels_ + (at * kTileRows + r) * N;
            T* const to = table_sums_.bias + p * N;
            for (int64_t c = 0; c < N; ++c) to[c] += from[c];
          }
        });
      }
    }
    if (bin_values_ && table_sums_.value != nullptr) {
      fold_sums(relation_, rows_, value_bins_, bin_panels_);
      add_table_gradient(relation_, rows_, bin_panels_, out_rows_, value_panels_,
                         table_sums_.value);
    }
    if (call_.rows && slots_.ends(t - task_.tile, index)) {
      for (int64_t r = 0; r < rows_; ++r) {
        const auto scale = static_cast<T>(in_.numbers.scale);
        if (dq_.base != nullptr) write_row(tile_sum_, kTileRows, r, scale, dq_, row_ + r);
        if (dr_.base != nullptr) write_row(relation_sum_, kTileRows, r, scale, dr_, row_ + r);
      }
      slots_.give(t - task_.tile);
    }
  }

  int64_t query(int64_t r) const { return head_.query(row_ + r); }
  // Returns the distance from row r to the first key of a block.
  int64_t distance(int64_t origin, int64_t r) const {
    const HeadSegment& s = head_.at_place(origin);
    return origin - s.first - (query(r) + s.q_start);
  }
  bool holds(const KeySpan& span, int64_t row, int64_t key) const {
    return span.seen.holds(row, key) && (!terms_ || labels_.shows(query(row), key)) &&
           (!soft_here_ || soft_.shows(key, distance(span.origin, row), span.origin));
  }

  const BackwardCall<T>& call_;
  const AttentionProblem& in_;
  const AttentionTask& task_;
  const RelationSums<T> table_sums_;
  const AttentionHead head_;
  const int64_t width_, value_width_, width_panels_, value_panels_;
  const std::vector<InnerRange> over_width_, over_value_width_;
  const int64_t step_, tile_size_;
  Slots slots_;
  T* const key_columns_;         // of a step: [panels][width][NR]
  T* const value_columns_;       // of a step: [panels][value width][NR]
  T* const key_rows_;            // of a step: [blocks][panels][kBlock][NR]
  T* const key_sums_;            // dK of a step: [panels][step][NR]
  T* const value_sums_;          // dV of a step
  T* const tile_sums_;           // dQ of the tiles in flight: [panels][kTileRows][NR]
  const bool relation_query_;    // whether relation_query is a tensor other than q
  T* const relation_sums_;       // gradient of relation_query, stored as dQ
  T* const q_rows_;              // of a tile, scaled: [panels][kTileRows][NR]
  T* const relation_rows_;       // of relation_query, stored as q_rows_
  T* const out_rows_;            // dO of a tile
  T* const scores_;              // S, then P
  T* const dscores_;             // dP, then dS
  const bool shift_, carry_;     // whether scores, and values, have relation terms
  const bool bin_, bin_values_;  // whether to sum dS, and P, by id
  Relation<T> relation_;
  T* const table_;  // relation_table() of Q and of dO
  T* const value_table_;
  T* const bins_;        // sums by id: of dS
  T* const value_bins_;  // of P
  T* const bin_panels_;  // bins_ or value_bins_, folded
  T* const collected_;   // rows on their way into a panel
  const SoftMask<T> soft_;
  Visit<T> visit_{kBlock};
  std::vector<InnerRange> over_keys_;  // of a product with keys
  Labels<T> labels_;                   // of the current block
  T more_ = 0;                         // log2 of the multiplicity of its keys
  bool soft_here_ = false, terms_ = false;
  T* span_row_ = nullptr;  // gradient sums of the block's mu: for each key, or by lane
  const KeepRow<T> keep_;
  alignas(64) T keep_row_[KeepRow<T>::kRoom];
  T base_[kTileRows], lower_[kTileRows];  // lse log2(e), delta
  RowSource<T> q_, r_, g_out_, k_[kernels::kAttentionSegments], v_[kernels::kAttentionSegments];
  RowSink<T> dq_, dr_, dk_[kernels::kAttentionSegments], dv_[kernels::kAttentionSegments];
  std::vector<KeyRange> ranges_;  // of the tile in the step
  Prefetcher prefetcher_;
  T *tile_sum_ = nullptr, *relation_sum_ = nullptr;
  bool finite_keys_[2] = {true, true};  // of the blocks of a step
  bool finite_rows_ = true;             // Q and dO of the tile
  bool some_empty_ = false;             // whether some row of the tile sees no key at all
  int64_t row_ = 0, rows_ = 0, padded_ = 0;
};

// delta = dout . out - dlse for each row.
template <class T>
void row_delta(const AttentionProblem& in, const ConstView& out, const ConstView& dout,
               const ConstView& dlse, T* delta) {
  const int64_t heads = in.inputs.q.dim(1), rows = in.inputs.q.dim(2);
  constexpr int64_t kRows = 512;
  const int64_t pieces = ceil_div(rows, kRows);
  parallel_for(in.inputs.q.dim(0) * heads * pieces, [&](int64_t task) {
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
  if (runs) row_delta<T>(in, out, dout, dlse, delta.data());
  const Buffer<T> packed(RelationPanels<T>::size(in), on);
  const RelationPanels<T> relations(in, packed.data());
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

  const auto go = [&](const std::vector<AttentionTask>& parts, bool dq, bool dkv, bool dtables) {
    T* const dspan = grads.span && (by_key ? dkv : dq) ? span_sums.data() : nullptr;
    const BackwardCall<T> call{in,           lse, dout, grads,   relations, spans,
                               delta.data(), dq,  dkv,  dtables, dspan};
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
