// Block attention backward: the state of a task, and the gradients of its scores.

#if defined(LONGSPAN_CPU_ATTENTION_BACKWARD_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_ATTENTION_BACKWARD_SCORES_INL_H_
#undef LONGSPAN_CPU_ATTENTION_BACKWARD_SCORES_INL_H_
#else
#define LONGSPAN_CPU_ATTENTION_BACKWARD_SCORES_INL_H_
#endif

#include <hwy/highway.h>

#include <vector>

#include "cpu/attention/plan.h"
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

// The deltas of one head: dout . out - dlse for each row.
template <class T>
struct RowDeltas {
  RowDeltas() = default;
  RowDeltas(const ConstView& all_out, const ConstView& all_dout, const ConstView& all_dlse,
            int64_t b, int64_t h, const int32_t* order)
      : out(head_rows<T>(all_out, b, h, order)), dout(head_rows<T>(all_dout, b, h, order)) {
    if (!all_dlse) return;
    dlse = all_dlse.as<T>() + (b * all_dlse.stride(0) + h * all_dlse.stride(1));
    dlse_stride = all_dlse.stride(2);
  }

  // Returns the delta of a row, whose query is `query`.
  T of(int64_t row, int64_t query) const {
    constexpr int64_t V = kLanes<T>;
    const Tag<T> d;
    alignas(64) T out_row[kMaxWidth], dout_row[kMaxWidth];
    const T* const a = out.row(row, out_row);
    const T* const b = dout.row(row, dout_row);
    Vec<T> sum = hn::Zero(d);
    int64_t c = 0;
    for (; c + V <= out.width; c += V)
      sum = hn::MulAdd(hn::LoadU(d, a + c), hn::LoadU(d, b + c), sum);
    T total = hn::GetLane(hn::SumOfLanes(d, sum));
    for (; c < out.width; ++c) total += a[c] * b[c];
    return dlse != nullptr ? total - dlse[query * dlse_stride] : total;
  }

  RowSource<T> out, dout;
  const T* dlse = nullptr;
  int64_t dlse_stride = 0;
};

// State shared by all tasks of a call. One code serves three schedules: a whole head (all tiles,
// all keys), rows only (dq and the tables), and columns only (dk and dv). All add in the same
// order, so they agree in every bit.
template <class T>
struct BackwardCall {
  const AttentionProblem& in;
  const ConstView &out, &lse, &dout, &dlse;
  const AttentionGradients& grads;
  const RelationPanels<T>& relations;
  const SpanRows<T>& spans;
  T* delta;        // [B, H, L]
  bool has_delta;  // whether it is there; else each tile computes its own at its first visit
  bool rows, columns, tables;  // what to compute: dq; dk and dv; gradients of the tables
  T* span_sums;   // null, or gradient sums of mu: [B H][span_row] by key, else [tasks][lanes]
  T* query_sums;  // null, or gradient sums of mu by query: [B H][L]
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

// The inputs of a task of the backward pass, which all of its tiles share.
template <class T>
struct BackwardContext {
  BackwardContext(const BackwardCall<T>& of_call, const AttentionTask& of_task,
                  const RelationSums<T>& sums)
      : call(of_call), in(of_call.in), task(of_task), table_sums(sums) {}

  static constexpr int64_t N = kPanel<T>;

  const BackwardCall<T>& call;
  const AttentionProblem& in;
  const AttentionTask& task;
  const RelationSums<T> table_sums;
  const AttentionHead head{in, task.b, task.h};
  const SoftMask<T> soft = call.spans.of(in, task.b, task.h);

  const int64_t width = in.inputs.q.dim(3), value_width = in.inputs.v[0].dim(3);
  const int64_t width_panels = ceil_div(width, N), value_panels = ceil_div(value_width, N);
  // Keys of a step: as many as fit in the L2 cache together with their gradients.
  const int64_t step = std::max(width, value_width) <= 64 ? 2 * kBlock : kBlock;
  // Rows and elements of dQ of the task's largest tile. Tiles of small blocks have far fewer rows
  // than kTileRows, and thousands of them can be in flight.
  const int64_t sum_rows = largest_tile(), tile_size = width_panels * sum_rows * N;

  const bool relation_query = static_cast<bool>(in.inputs.relation_query);
  // Whether scores, and values, have relation terms, and whether to sum dS, and P, by id.
  const bool shift = call.relations.key_columns != nullptr || call.relations.bias != nullptr;
  const bool carry = call.relations.value_columns != nullptr;
  const bool bin = shift && (call.tables || call.rows);
  const bool bin_values = carry && call.tables;

 private:
  int64_t largest_tile() const {
    int64_t rows = 0;
    for (int64_t t = task.tile; t < task.tile_end; ++t) rows = std::max(rows, head.tile_rows(t));
    return round_up(rows, kRest);
  }
};

// The buffers of a task. Panels hold NR numbers of each row: [panels][rows][NR].
template <class T>
struct BackwardWorkspace {
  // `slots`: tiles in flight, which have been begun and not finished.
  BackwardWorkspace(const BackwardContext<T>& c, int64_t slots, Slab<T>& slab)
      : key_columns(slab.take(c.step * c.width)),
        value_columns(slab.take(c.step * c.value_width)),
        key_rows(slab.take(c.call.rows ? c.step * c.width_panels * c.N : 0)),
        key_sums(slab.take(c.call.columns ? c.step * c.width_panels * c.N : 0)),
        value_sums(slab.take(c.call.columns ? c.step * c.value_panels * c.N : 0)),
        tile_sums(slab.take(slots * c.tile_size)),
        relation_sums(slab.take(c.relation_query && c.call.rows ? slots * c.tile_size : 0)),
        q_rows(slab.take(c.width_panels * kTileRows * c.N)),
        relation_rows(c.relation_query ? slab.take(c.width_panels * kTileRows * c.N) : q_rows),
        out_rows(slab.take(c.value_panels * kTileRows * c.N)),
        scores(slab.take(kTileRows * kScoreStride)),
        dscores(slab.take(kTileRows * kScoreStride)),
        table(slab.take(c.shift ? kTileRows * ids(c).stride : 0)),
        value_table(slab.take(c.carry ? kTileRows * ids(c).stride : 0)),
        bins(slab.take(c.bin ? kTileRows * ids(c).stride : 0)),
        value_bins(slab.take(c.bin_values ? kTileRows * ids(c).stride : 0)),
        bin_panels(slab.take(c.bin || c.bin_values ? ids(c).padded() * kTileRows : 0)),
        collected(slab.take(c.N * std::max(c.width, c.value_width))) {}

  T* const key_columns;    // of a step: [panels][width][NR]
  T* const value_columns;  // of a step: [panels][value width][NR]
  T* const key_rows;       // of a step: [blocks][panels][kBlock][NR]
  T* const key_sums;       // dK of a step
  T* const value_sums;     // dV of a step
  T* const tile_sums;      // dQ of the tiles in flight: [tiles][panels][sum rows][NR]
  T* const relation_sums;  // gradient of relation_query, stored as dQ
  T* const q_rows;         // of a tile, scaled: [panels][kTileRows][NR]
  T* const relation_rows;  // of relation_query, stored as q_rows
  T* const out_rows;       // dO of a tile
  T* const scores;         // S, then P
  T* const dscores;        // dP, then dS
  T* const table;          // relation_table() of Q and of dO
  T* const value_table;
  T* const bins;        // sums by id: of dS
  T* const value_bins;  // of P
  T* const bin_panels;  // bins or value_bins, folded
  T* const collected;   // rows on their way into a panel

 private:
  static const Relation<T>& ids(const BackwardContext<T>& c) { return c.call.relations.shape; }
};

// The query tile that a task is at.
template <class T>
struct BackwardTile {
  int64_t row = 0, rows = 0, padded = 0;
  RowGroups groups;
  T base[kTileRows], lower[kTileRows];        // lse log2(e), delta
  bool finite = true;                         // Q and dO
  bool some_empty = false;                    // whether some row sees no key at all
  T *sum = nullptr, *relation_sum = nullptr;  // its place in tile_sums and relation_sums
  Relation<T> relation;                       // the ids of its pairs with the keys of the step
};

// Turns the scores of a tile into their gradients: S and dP of a span of keys become P and dS. The
// base of BackwardTask. It holds the state that both need by value, which spares inner loops a
// pointer.
template <class T>
class ScoreGradients {
 protected:
  ScoreGradients(const BackwardCall<T>& call, const AttentionTask& task,
                 const RelationSums<T>& sums, Slab<T>& slab)
      : c_(call, task, sums),
        slots_(call.rows ? tile_slots(c_.head, task, c_.step) : Slots()),
        w_(c_, slots_.count(), slab),
        keep_(c_.in.numbers.dropout, c_.task.b * c_.in.inputs.q.dim(1) + c_.task.h) {
    tile_.relation = call.relations.shape;
  }
  ScoreGradients(const ScoreGradients&) = delete;
  ScoreGradients& operator=(const ScoreGradients&) = delete;
  ~ScoreGradients() = default;

  // Whether a span needs only products, so that other spans can share its score tile.
  bool plain(const KeySpan& span) const {
    return !c_.shift && !c_.carry && !c_.soft.given() && has_intervals_only(c_.head, span);
  }

  // Prepares the terms that a span needs besides products, if it needs any.
  void enter(const KeySpan& span) {
    terms_ = false;
    if (plain(span)) return;
    const HeadSegment& s = c_.head.at_place(span.origin);
    labels_.begin(s, tile_.relation, c_.shift || c_.carry, span.origin,
                  c_.head.block_keys(span.origin));
    more_ = span.times == 1 ? T{0} : std::log2(static_cast<T>(span.times));
    soft_here_ = c_.soft.given() && s.number == 0;
    terms_ = c_.shift || c_.carry || soft_here_ || span.times != 1 || labels_.active();
    span_row_ = query_row_ = nullptr;
    if (!soft_here_) return;
    const int64_t head = c_.task.b * c_.in.inputs.q.dim(1) + c_.task.h;
    if (c_.call.query_sums != nullptr) {
      query_row_ = c_.call.query_sums + head * c_.in.inputs.q.dim(2);
    }
    if (c_.call.span_sums == nullptr) return;
    if (c_.soft.by_key) {
      span_row_ = c_.call.span_sums + head * span_row(c_.in) + span.origin;
    } else {
      span_row_ = c_.call.span_sums + c_.task.index * V;
    }
  }

  // P = 2^(S - lse) and dS = P (dP - delta) for the rows of group g. Both are 0 for pairs that a
  // row does not see, in every column that the products over rows read.
  void differentiate(int64_t g, const KeySpan& span) {
    const Visible& seen = span.seen;
    const int64_t first = tile_.groups.row(g), end = tile_.groups.end(g);
    const Vectors n = vectors_of<T>(seen, g);
    int64_t from = span.from / V, to = span.to / V;
    if (seen.ascending) {
      if (n.from == n.to) return;
      from = std::max(from, std::max<int64_t>(0, seen.first[g] - (kGroup - 1)) / V);
      to = std::min(to, ceil_div(seen.last[g] + kGroup - 1, V));
    }
    for (int64_t r = first; r < end; ++r) {
      T* const s = w_.scores + r * kScoreStride;
      T* const ds = w_.dscores + r * kScoreStride;
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
        keep_.fill(query(r), c_.head.at_place(span.origin), span.origin, n.from * V, n.to * V,
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

  // Whether a row of the tile sees a key of the block; enter() was called for the span.
  bool holds(const KeySpan& span, int64_t row, int64_t key) const {
    return span.seen.holds(row, key) && (!terms_ || labels_.shows(query(row), key)) &&
           (!soft_here_ || c_.soft.shows(key, distance(span.origin, row), span.origin,
                                         c_.soft.of_query(query(row))));
  }

  // Whether the soft mask is below 0 for all keys of a span and all rows of the tile, so that no
  // pair has a part in any gradient.
  bool ends_before(const KeySpan& span) const {
    if (!c_.soft.given() || c_.head.at_place(span.origin).number != 0) return false;
    const int64_t last = span.origin + c_.head.block_keys(span.origin) - 1;
    for (int64_t r = 0; r < tile_.rows; ++r) {
      if (!c_.soft.ends_before(distance(last, r), c_.soft.of_query(query(r)))) return false;
    }
    return true;
  }

  int64_t query(int64_t r) const { return c_.head.query(tile_.row + r); }

  const BackwardContext<T> c_;
  Slots slots_;  // of the tiles in flight
  const BackwardWorkspace<T> w_;
  BackwardTile<T> tile_;

 private:
  static constexpr int64_t V = kLanes<T>;

  template <bool kTerms, bool kDrop>
  HWY_INLINE void differentiate_row(int64_t r, const KeySpan& span, const Vectors& n) {
    const Tag<T> d;
    const Visible& seen = span.seen;
    const int64_t column = r * kScoreStride + span.column;
    const Vec<T> base = hn::Set(d, tile_.base[r]), lower = hn::Set(d, tile_.lower[r]);
    const int64_t at = r * tile_.relation.stride;
    const int64_t far = kTerms ? distance(span.origin, r) : 0;
    const T own = kTerms && soft_here_ ? c_.soft.of_query(query(r)) : T{0};
    Vec<T> of_mu = hn::Zero(d);  // gradients of mu
    const auto* const label = kTerms && labels_.active() ? labels_.of_row(query(r)) : nullptr;
    const bool by_label = kTerms && labels_.columns();
    const auto entry = [&](const T* table, int64_t v) {
      return by_label ? from_labels(table + at, label, v)
                      : from_table(tile_.relation, far + v * V, table + at);
    };
    const auto one = [&](int64_t v, auto hide) {
      T *const s = w_.scores + (column + v * V), *const ds = w_.dscores + (column + v * V);
      Vec<T> x = hn::Load(d, s), dp = hn::Load(d, ds);
      if (kTerms && c_.shift) x = hn::Add(x, entry(w_.table, v));
      if (kTerms && more_ != T{0}) x = hn::Add(x, hn::Set(d, more_));
      if (kTerms && c_.carry) dp = hn::Add(dp, entry(w_.value_table, v));
      x = hn::Sub(x, base);
      // If mu is 0, scores are not bounded by lse.
      if (kTerms && soft_here_) x = hn::Min(x, hn::Set(d, T{64}));
      Vec<T> p = exp2<true>(d, x);
      if (kDrop) dp = hn::Mul(dp, hn::Load(d, keep_row_ + v * V));
      Vec<T> dx = hide(v, hn::Mul(p, hn::Sub(dp, lower)));
      if (kTerms && soft_here_) {
        const Vec<T> mu = c_.soft.at(v, far, span.origin, own);
        of_mu = hn::Add(of_mu, add_span(v, mu, dx));
        const auto some = hn::Gt(mu, hn::Zero(d));
        dx = hn::IfThenElseZero(some, hn::Mul(dx, clamped<T>(mu)));
        p = hn::IfThenElseZero(some, hn::Mul(p, clamped<T>(mu)));
      }
      if (kDrop) p = hn::Mul(p, hn::Load(d, keep_row_ + v * V));
      p = hide(v, p);
      hn::Store(p, d, s);
      hn::Store(dx, d, ds);
      if (kTerms && !by_label && c_.bin) add_to_bins(tile_.relation, far + v * V, dx, w_.bins + at);
      if (kTerms && !by_label && c_.bin_values) {
        add_to_bins(tile_.relation, far + v * V, p, w_.value_bins + at);
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
    if (kTerms && query_row_ != nullptr) {
      query_row_[query(r)] += hn::GetLane(hn::SumOfLanes(d, of_mu));
    }
    if (by_label && c_.bin) {
      labels_.add(label, n.from * V, n.to * V, w_.dscores + column, w_.bins + at);
    }
    if (by_label && c_.bin_values) {
      labels_.add(label, n.from * V, n.to * V, w_.scores + column, w_.value_bins + at);
    }
  }

  // Adds the gradient of a vector of mu to that of the span and returns what it adds. It reaches
  // spans if mu is on its ramp, ends included, except that nonfinite values are dropped if mu is 0.
  HWY_INLINE Vec<T> add_span(int64_t v, Vec<T> mu, Vec<T> dmu) {
    const Tag<T> d;
    if (span_row_ == nullptr && query_row_ == nullptr) return hn::Zero(d);
    const auto ramp = hn::And(hn::Ge(mu, hn::Zero(d)), hn::Le(mu, hn::Set(d, T{1})));
    const auto on = hn::And(ramp, hn::Or(hn::Gt(mu, hn::Zero(d)), hn::IsFinite(dmu)));
    const Vec<T> passed = hn::IfThenElseZero(on, dmu);
    if (span_row_ != nullptr) {
      T* const to = span_row_ + (c_.soft.by_key ? v * V : 0);
      hn::StoreU(hn::Add(hn::LoadU(d, to), passed), d, to);
    }
    return passed;
  }

  // Returns the distance from row r to the first key of a block.
  int64_t distance(int64_t origin, int64_t r) const {
    const HeadSegment& s = c_.head.at_place(origin);
    return origin - s.first - (query(r) + s.q_start);
  }

  Labels<T> labels_;  // of the current block
  T more_ = 0;        // log2 of the multiplicity of its keys
  bool soft_here_ = false, terms_ = false;
  T* span_row_ = nullptr;   // gradient sums of the block's mu: for each key, or by lane
  T* query_row_ = nullptr;  // gradient sums of mu for each query of the head
  const KeepRow<T> keep_;
  alignas(64) T keep_row_[KeepRow<T>::kSize];
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
