// Block attention forward, for one SIMD target and one dtype of computation.

#if defined(LONGSPAN_CPU_ATTENTION_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_ATTENTION_FORWARD_INL_H_
#undef LONGSPAN_CPU_ATTENTION_FORWARD_INL_H_
#else
#define LONGSPAN_CPU_ATTENTION_FORWARD_INL_H_
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

// Maximum rise (in powers of two) of a row's scores above its reference before sums are rescaled.
inline constexpr double kSlack = 8;

// Keys whose scores a group of rows holds at a time: two blocks, which stay in the L1 cache.
inline constexpr int64_t kColumns = 2 * kBlock;
inline constexpr int64_t kStride = kColumns + 16;  // keeps rows in different cache sets

// Blocks of keys that a task needs, from `first` on: an item for each block, a step for each tile.
struct BlockSlots : Slots {
  int64_t first = 0;

  BlockSlots(int64_t from, int64_t blocks) : Slots(blocks), first(from) {}
};

inline BlockSlots find_blocks(const AttentionHead& head, const AttentionTask& task) {
  std::vector<KeyRange> ranges;
  int64_t from = head.place_end(), to = 0;
  for (int64_t t = task.tile; t < task.tile_end; ++t) {
    const KeyRange e = head.extent(t);
    if (e.k0 == e.k1) continue;
    from = std::min(from, e.k0);
    to = std::max(to, e.k1);
  }
  if (from >= to) return {0, 0};
  BlockSlots blocks(from / kBlock, ceil_div(to, kBlock) - from / kBlock);
  for (int64_t t = task.tile; t < task.tile_end; ++t) {
    head.ranges(t, 0, head.place_end(), ranges);
    for (const KeyRange& k : ranges) {
      for (int64_t block = k.k0 / kBlock; block * kBlock < k.k1; ++block) {
        blocks.use(block - blocks.first, t - task.tile);
      }
    }
  }
  blocks.plan(task.tile_end - task.tile);
  return blocks;
}

// The tiles of one task, one after the other, with an online softmax. Keys are packed when the
// first tile needs them and kept until the last tile has used them.
template <class T>
class ForwardTask {
 public:
  ForwardTask(const AttentionProblem& in, const AttentionTask& task,
              const RelationPanels<T>& relations, const SpanRows<T>& spans, const View& out,
              const View& lse, Slab<T>& slab)
      : in_(in),
        task_(task),
        relations_(relations),
        out_(out),
        lse_(lse),
        head_(in, task.b, task.h),
        width_(in.inputs.q.dim(3)),
        width_panels_(ceil_div(width_, N)),
        over_width_(over_panels<T>(width_, kTileRows * N)),
        value_panels_(ceil_div(in.inputs.v[0].dim(3), N)),
        blocks_(find_blocks(head_, task)),
        key_columns_(slab.take(blocks_.count() * kBlock * width_)),
        value_rows_(slab.take(blocks_.count() * kBlock * value_panels_ * N)),
        finite_(static_cast<size_t>(blocks_.count())),
        q_rows_(slab.take(width_panels_ * kTileRows * N)),
        relation_rows_(in.inputs.relation_query ? slab.take(width_panels_ * kTileRows * N)
                                                : q_rows_),
        sums_(slab.take(value_panels_ * kTileRows * N)),
        scores_(slab.take(kGroup * kStride)),
        totals_(slab.take(kTileRows * V)),
        shift_(relations.key_columns != nullptr || relations.bias != nullptr),
        carry_(relations.value_rows != nullptr),
        relation_(relations.shape),
        table_(slab.take(shift_ ? kTileRows * relation_.stride : 0)),
        bins_(slab.take(carry_ ? kTileRows * relation_.stride : 0)),
        bin_panels_(slab.take(carry_ ? relation_.padded() * kTileRows : 0)),
        collected_(slab.take(N * width_)),
        soft_(spans.of(in, task.b, task.h)),
        keep_(in.numbers.dropout, task.b * in.inputs.q.dim(1) + task.h) {}

  void run() {
    q_ = head_rows<T>(in_.inputs.q, task_.b, task_.h, head_.order_q);
    if (in_.inputs.relation_query) {
      r_ = head_rows<T>(in_.inputs.relation_query, task_.b, task_.h, head_.order_q);
    }
    for (int s = 0; s < head_.segments; ++s) {
      const int32_t* const order = head_.segment[s].order;
      k_[s] = head_rows<T>(in_.inputs.k[s], task_.b, task_.h, order);
      v_[s] = head_rows<T>(in_.inputs.v[s], task_.b, task_.h, order);
    }
    out_sink_ = head_sink<T>(out_, task_.b, task_.h, head_.order_q);
    if (in_.accumulate) {
      out_sink_.stream = false;
      before_ = head_rows<T>(out_, task_.b, task_.h, head_.order_q);
    }
    row_lse_ = lse_.as<T>() + (task_.b * in_.inputs.q.dim(1) + task_.h) * in_.inputs.q.dim(2);
    std::vector<KeyRange> ranges, next;
    for (int64_t t = task_.tile; t < task_.tile_end; ++t) {
      head_.ranges(t, 0, head_.place_end(), ranges);
      if (in_.accumulate && ranges.empty()) continue;
      prefetch_next(t, ranges, next);
      begin(t, ranges);
      const auto process = [this](int64_t n) { attend(n); };
      for (const KeyRange& range : ranges) {
        const auto none = [](int64_t) { return false; };
        for_blocks(head_, t, range, false, none, visit_, [&](KeySpan& span) {
          if (ends_before(span)) return;
          span.at = packed_block(span.origin / kBlock) * kBlock;
          visit_.take(!plain(span), span.seen.all_first, span.seen.all_last, process);
        });
      }
      visit_.finish(process);
      finish(!ranges.empty());
      release(t, ranges);
    }
    hwy::FlushStream();
  }

 private:
  static constexpr int64_t N = kPanel<T>;
  static constexpr int64_t V = kLanes<T>;
  static constexpr T kHidden = -std::numeric_limits<T>::infinity();

  // The vectors of a span that a group of rows sees.
  struct VisibleSpan {
    const KeySpan* span;
    Vectors vectors;
  };

  // Prefetches, during the products of the tile's `ranges`, the keys and values that it packs after
  // its first block, its outputs, and the rows that the next tile reads for the first time.
  void prefetch_next(int64_t t, const std::vector<KeyRange>& ranges, std::vector<KeyRange>& next) {
    prefetcher_.clear();
    prefetch_blocks(ranges, 1, 0);
    const int64_t row = head_.tile_row(t), end = row + head_.tile_rows(t);
    if (!in_.accumulate) prefetcher_.add(out_sink_, row, end);
    if (t + 1 < task_.tile_end) {
      const int64_t next_end = end + head_.tile_rows(t + 1);
      prefetcher_.add(q_, end, next_end);
      if (in_.accumulate) prefetcher_.add(out_sink_, end, next_end);
      head_.ranges(t + 1, 0, head_.place_end(), next);
      prefetch_blocks(next, 0, ranges.empty() ? 0 : ceil_div(ranges.back().k1, kBlock));
    }
    int64_t panels = value_panels_;
    for (const KeyRange& k : ranges) panels += ceil_div(k.k1 - k.k0, N);
    prefetcher_.spread(panels * RowGroups(head_.tile_rows(t)).count());
  }

  // Queues the blocks of `ranges`, from block `from` on, that are not packed yet, but for the first
  // `skip` of them.
  void prefetch_blocks(const std::vector<KeyRange>& ranges, int64_t skip, int64_t from) {
    int64_t done = from - 1;
    for (const KeyRange& k : ranges) {
      for (int64_t block = std::max(k.k0 / kBlock, done + 1); block * kBlock < k.k1; ++block) {
        done = block;
        if (blocks_.has(block - blocks_.first) || skip-- > 0) continue;
        const HeadSegment& s = head_.at_place(block * kBlock);
        const int64_t key = block * kBlock - s.first, stop = std::min(s.keys, key + kBlock);
        prefetcher_.add(k_[s.number], key, stop);
        prefetcher_.add(v_[s.number], key, stop);
      }
    }
  }

  // Returns the slot of a block; packs it at its first use.
  int64_t packed_block(int64_t block) {
    const int64_t item = block - blocks_.first;
    if (blocks_.has(item)) return blocks_.at(item);
    const int64_t slot = blocks_.take(item);
    const HeadSegment& s = head_.at_place(block * kBlock);
    const int64_t key = block * kBlock - s.first, count = head_.block_keys(block * kBlock);
    pack_block_columns(k_[s.number], key, count, collected_, key_columns_ + slot * kBlock * width_);
    finite_[static_cast<size_t>(slot)] =
        pack_rows(v_[s.number], key, count, count, T{1},
                  value_rows_ + slot * kBlock * value_panels_ * N, kBlock);
    return slot;
  }

  // Releases the blocks that no later tile of the task needs.
  void release(int64_t t, const std::vector<KeyRange>& ranges) {
    for (const KeyRange& k : ranges) {
      for (int64_t block = k.k0 / kBlock; block * kBlock < k.k1; ++block) {
        const int64_t item = block - blocks_.first;
        if (blocks_.has(item) && blocks_.ends(item, t - task_.tile)) blocks_.give(item);
      }
    }
  }

  void begin(int64_t t, const std::vector<KeyRange>& ranges) {
    row_ = head_.tile_row(t);
    rows_ = head_.tile_rows(t);
    padded_ = round_up(rows_, kRest);
    groups_ = RowGroups(rows_);
    pack_rows(q_, row_, rows_, padded_, static_cast<T>(in_.numbers.scale * kLog2E), q_rows_,
              kTileRows);
    std::fill_n(totals_, padded_ * V, T{0});
    std::fill_n(reference_, padded_, kHidden);
    if (in_.accumulate) {
      go_on();
    } else {
      for (int64_t p = 0; p < value_panels_; ++p) {
        std::fill_n(sums_ + p * kTileRows * N, padded_ * N, T{0});
      }
    }
    if ((!shift_ && !carry_) || ranges.empty()) return;
    reach(head_, row_, rows_, ranges, relation_);
    if (shift_) {
      if (in_.inputs.relation_query) {
        pack_rows(r_, row_, rows_, padded_, static_cast<T>(in_.numbers.scale * kLog2E),
                  relation_rows_, kTileRows);
      }
      relation_table(relation_, padded_, relation_rows_, width_, relations_.key_columns_of(task_.h),
                     relations_.bias_of(task_.h), table_);
    }
    if (carry_) clear_sums(relation_, rows_, bins_);
  }

  // Restores the state after earlier keys: out = sums / total with total = 1 and lse as the
  // reference.
  void go_on() {
    pack_rows(before_, row_, rows_, padded_, T{1}, sums_, kTileRows);
    for (int64_t r = 0; r < rows_; ++r) {
      const T lse = row_lse_[query(r)];
      if (lse == kHidden) continue;
      reference_[r] = lse * static_cast<T>(kLog2E);
      totals_[r * V] = T{1};
    }
  }

  // Whether a span needs only products, so that other spans can share its score tile.
  bool plain(const KeySpan& span) const {
    return !shift_ && !carry_ && !soft_.given() && has_intervals_only(head_, span);
  }

  // Whether the soft mask hides all keys of a span from all rows of the tile.
  bool ends_before(const KeySpan& span) const {
    if (!soft_.given() || head_.at_place(span.origin).number != 0) return false;
    const int64_t last = span.origin + head_.block_keys(span.origin) - 1;
    for (int64_t r = 0; r < rows_; ++r) {
      if (!soft_.ends_before(distance(last, r), soft_.of_query(query(r)))) return false;
    }
    return true;
  }

  // Prepares the terms that a span needs besides products.
  void enter(const KeySpan& span) {
    const HeadSegment& s = head_.at_place(span.origin);
    labels_.begin(s, relation_, shift_ || carry_, span.origin, head_.block_keys(span.origin));
    more_ = span.times == 1 ? T{0} : std::log2(static_cast<T>(span.times));
    soft_here_ = soft_.given() && s.number == 0;
    terms_ = shift_ || carry_ || soft_here_ || span.times != 1 || labels_.active();
  }

  // Processes the first n spans of the visit.
  void attend(int64_t n) {
    terms_ = false;
    if (!plain(visit_[0])) enter(visit_[0]);
    for (int64_t g = 0; g < groups_.count(); ++g) {
      parts_.clear();
      for (int64_t i = 0; i < n; ++i) {
        const Vectors v = vectors_of<T>(visit_[i].seen, g);
        if (v.from < v.to) parts_.push_back({&visit_[i], v});
      }
      if (parts_.empty()) continue;
      multiply_keys(g, n);
      if (terms_) {
        weigh<true>(g);
      } else {
        weigh<false>(g);
      }
    }
  }

  // S = scale log2(e) Q K^T of group g over n spans, only the vectors that it sees.
  void multiply_keys(int64_t g, int64_t n) {
    const int64_t vectors = visit_.vectors(n), m = groups_.padded(g);
    const T* const rows = q_rows_ + groups_.row(g) * N;
    for (int64_t v = 0; v < vectors; v += 2) {
      product_seen<kStride>(visit_, v, vectors, g, m, rows, key_columns_, width_, over_width_,
                            scores_);
      prefetcher_.step();
    }
  }

  // Computes P and sums += P V of group g. References rise block by block, however spans are
  // grouped; usually none rises. A row is masked before the previous one is exponentiated, so that
  // the wait for its maximum is filled with arithmetic.
  template <bool kTerms>
  void weigh(int64_t g) {
    const size_t all = parts_.size();
    const int64_t count = groups_.end(g) - groups_.row(g);
    int64_t masked = 0, done = 0;
    bool rises = false;
    while (masked < count && !rises) {
      rises = mask_row<kTerms>(g, masked++);
      if (masked > 1) exponentiate<kTerms>(g, done++, 0, all);
    }
    if (!rises) {
      exponentiate<kTerms>(g, done, 0, all);
      multiply_values(g, 0, all);
      return;
    }
    while (masked < count) mask_row<kTerms>(g, masked++);
    for (size_t from = 0, to = 0; from < all; from = to) {
      while (to < all && parts_[to].span->origin == parts_[from].span->origin) ++to;
      for (int64_t i = done; i < count; ++i) {
        raise_row(g, i, from, to);
        exponentiate<kTerms>(g, i, from, to);
      }
      multiply_values(g, from, to);
    }
  }

  // Completes the scores of row i of group g, with -inf for pairs that it does not see. A row that
  // has seen no key so far takes its reference from the first block in which it sees one. Returns
  // whether a score is too far above the row's reference.
  template <bool kTerms>
  HWY_INLINE bool mask_row(int64_t g, int64_t i) {
    const Tag<T> d;
    const Vec<T> hidden = hn::Set(d, kHidden);
    const int64_t r = groups_.row(g) + i;
    const T* const table = kTerms && shift_ ? table_ + r * relation_.stride : nullptr;
    const auto* const label = kTerms && labels_.active() ? labels_.of_row(query(r)) : nullptr;
    Vec<T> high = hidden;
    int64_t origin = parts_[0].span->origin;
    for (const VisibleSpan& part : parts_) {
      const KeySpan& span = *part.span;
      const Vectors n = part.vectors;
      const int64_t far = kTerms ? distance(span.origin, r) : 0;
      const T own = kTerms && soft_here_ ? soft_.of_query(query(r)) : T{0};
      if (span.origin != origin && reference_[r] == kHidden) {
        reference_[r] = hn::GetLane(hn::MaxOfLanes(d, high));
      }
      origin = span.origin;
      T* const row = scores_ + (i * kStride + span.column);
      const auto score = [&](int64_t v) {
        Vec<T> x = hn::Load(d, row + v * V);
        if (!kTerms) return x;
        if (table != nullptr) {
          x = hn::Add(x, labels_.columns() ? from_labels(table, label, v)
                                           : from_table(relation_, far + v * V, table));
        }
        if (more_ != T{0}) x = hn::Add(x, hn::Set(d, more_));
        if (labels_.hides()) x = hn::IfThenElse(shown<T>(label, v), x, hidden);
        if (soft_here_) {
          const auto some = hn::Gt(soft_.at(v, far, span.origin, own), hn::Zero(d));
          x = hn::IfThenElse(some, x, hidden);
        }
        return x;
      };
      const int32_t lo = span.seen.lo[r], hi = span.seen.hi[r];
      const auto hide = [&](int64_t from, int64_t to) {
        for (int64_t v = from; v < to; ++v) {
          const Vec<T> x = hn::IfThenElse(inside<T>(v, lo, hi), score(v), hidden);
          high = hn::Max(high, x);
          hn::Store(x, d, row + v * V);
        }
      };
      hide(n.from, n.a);
      int64_t v = n.a;
      if (!kTerms && n.e - v >= 4) {  // two maxima, since each waits for itself
        Vec<T> other = score(v++);
        for (; v + 2 <= n.e; v += 2) {
          high = hn::Max(high, score(v));
          other = hn::Max(other, score(v + 1));
        }
        high = hn::Max(high, other);
      }
      for (; v < n.e; ++v) {
        const Vec<T> x = score(v);
        high = hn::Max(high, x);
        if (kTerms) hn::Store(x, d, row + v * V);
      }
      hide(n.e, n.to);
    }
    if (reference_[r] == kHidden) reference_[r] = hn::GetLane(hn::MaxOfLanes(d, high));
    const Vec<T> most = hn::Set(d, reference_[r] + static_cast<T>(kSlack));
    return !hn::AllFalse(d, hn::Gt(high, most));
  }

  // Raises the reference of row i of group g to the scores of some spans, all of one block.
  HWY_NOINLINE void raise_row(int64_t g, int64_t i, size_t from, size_t to) {
    const Tag<T> d;
    Vec<T> high = hn::Set(d, kHidden);
    for (size_t p = from; p < to; ++p) {
      const T* const s = scores_ + (i * kStride + parts_[p].span->column);
      for (int64_t v = parts_[p].vectors.from; v < parts_[p].vectors.to; ++v) {
        high = hn::Max(high, hn::Load(d, s + v * V));
      }
    }
    raise(groups_.row(g) + i, hn::GetLane(hn::MaxOfLanes(d, high)));
  }

  // P = 2^(S - reference) of some spans for row i of group g, 0 for pairs that it does not see.
  template <bool kTerms>
  HWY_INLINE void exponentiate(int64_t g, int64_t i, size_t from, size_t to) {
    const Tag<T> d;
    const int64_t r = groups_.row(g) + i;
    const Vec<T> base = hn::Set(d, reference_[r] == kHidden ? T{0} : reference_[r]);
    Vec<T> total = hn::Load(d, totals_ + r * V);
    for (size_t p = from; p < to; ++p) {
      const KeySpan& span = *parts_[p].span;
      const Vectors n = parts_[p].vectors;
      T* const row = scores_ + (i * kStride + span.column);
      const int64_t far = kTerms ? distance(span.origin, r) : 0;
      const T own = kTerms && soft_here_ ? soft_.of_query(query(r)) : T{0};
      for (int64_t v = n.from; v < n.to; ++v) {
        Vec<T> x = exp2<true>(d, hn::Sub(hn::Load(d, row + v * V), base));
        if (kTerms && soft_here_) x = hn::Mul(x, clamped<T>(soft_.at(v, far, span.origin, own)));
        total = hn::Add(total, x);
        hn::Store(x, d, row + v * V);
      }
    }
    hn::Store(total, d, totals_ + r * V);
    for (size_t p = from; (keep_.active() || (kTerms && carry_)) && p < to; ++p) {
      drop_and_sum<kTerms>(i, r, parts_[p]);
    }
  }

  // Applies dropout to row r, the i-th of its group, and adds its P to the sums by id.
  template <bool kTerms>
  HWY_INLINE void drop_and_sum(int64_t i, int64_t r, const VisibleSpan& part) {
    const Tag<T> d;
    const KeySpan& span = *part.span;
    const Vectors& n = part.vectors;
    const int64_t row = i * kStride + span.column;
    if (keep_.active()) {
      keep_.fill(query(r), head_.at_place(span.origin), span.origin, n.from * V, n.to * V,
                 keep_row_);
      for (int64_t v = n.from; v < n.to; ++v) {
        T* const x = scores_ + (row + v * V);
        hn::Store(hn::Mul(hn::Load(d, x), hn::Load(d, keep_row_ + v * V)), d, x);
      }
    }
    if (!kTerms || !carry_) return;
    T* const bins = bins_ + r * relation_.stride;
    if (labels_.columns()) {
      labels_.add(labels_.of_row(query(r)), n.from * V, n.to * V, scores_ + row, bins);
      return;
    }
    const int64_t far = distance(span.origin, r);
    for (int64_t v = n.from; v < n.to; ++v) {
      add_to_bins(relation_, far + v * V, hn::Load(d, scores_ + (row + v * V)), bins);
    }
  }

  // Raises the reference of row r to its largest score, and rescales the sums so far.
  void raise(int64_t r, T top) {
    if (top <= reference_[r] + static_cast<T>(kSlack)) return;
    if (reference_[r] != kHidden) {
      const Tag<T> d;
      const Vec<T> factor = hn::Set(d, exp2(reference_[r] - top));
      T* const total = totals_ + r * V;
      hn::Store(hn::Mul(hn::Load(d, total), factor), d, total);
      for (int64_t p = 0; p < value_panels_; ++p) {
        T* const sum = sums_ + (p * kTileRows + r) * N;
        hn::Store(hn::Mul(hn::Load(d, sum), factor), d, sum);
        hn::Store(hn::Mul(hn::Load(d, sum + V), factor), d, sum + V);
      }
      if (carry_) {
        T* const bin = bins_ + r * relation_.stride;
        for (int64_t c = 0; c < relation_.stride; c += V) {
          hn::StoreU(hn::Mul(hn::LoadU(d, bin + c), factor), d, bin + c);
        }
      }
    }
    reference_[r] = top;
  }

  // sums += P V of some spans for group g
  void multiply_values(int64_t g, size_t from, size_t to) {
    over_keys_.clear();
    for (size_t p = from; p < to; ++p) {
      const KeySpan& span = *parts_[p].span;
      if (!finite_[static_cast<size_t>(span.at / kBlock)]) {
        multiply_key_ranges(g);
        over_keys_.clear();
        multiply_values_seen(g, span);
        continue;
      }
      const int64_t first = span.seen.first[g];
      over_keys_.push_back({span.column + first, span.at * value_panels_ * N + first * N,
                            span.seen.last[g] - first});
    }
    multiply_key_ranges(g);
  }

  void multiply_key_ranges(int64_t g) {
    if (over_keys_.empty()) return;
    for (int64_t p = 0; p < value_panels_; ++p) {
      product<2, kStride, T>(groups_.padded(g), scores_, 1, value_rows_ + p * kBlock * N,
                             over_keys_, sums_ + (p * kTileRows + groups_.row(g)) * N, N, true);
      prefetcher_.step();
    }
  }

  // multiply_values() for nonfinite values: skips hidden pairs.
  HWY_NOINLINE void multiply_values_seen(int64_t g, const KeySpan& span) {
    const Visible& seen = span.seen;
    const int64_t first = seen.first[g], count = seen.last[g] - first, row = groups_.row(g);
    for (int64_t p = 0; p < value_panels_; ++p) {
      const T* const panel = value_rows_ + (span.at * value_panels_ + p * kBlock) * N;
      product_of_seen(
          groups_.end(g) - row, scores_ + (span.column + first), kStride, 1, panel + first * N,
          count, sums_ + (p * kTileRows + row) * N, N, [&](int64_t r, int64_t k) {
            return seen.holds(row + r, first + k) &&
                   (!terms_ || labels_.shows(query(row + r), first + k)) &&
                   (!soft_here_ || soft_.shows(first + k, distance(span.origin, row + r),
                                               span.origin, soft_.of_query(query(row + r))));
          });
    }
  }

  void finish(bool sees) {
    const Tag<T> d;
    if (carry_ && sees) {
      fold_sums(relation_, rows_, bins_, bin_panels_);
      add_bins_product(relation_, padded_, bin_panels_, relations_.value_rows_of(task_.h),
                       value_panels_, kTileRows, sums_);
    }
    for (int64_t r = 0; r < rows_; ++r) {
      const T total = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, totals_ + r * V)));
      write_row(sums_, kTileRows, r, total == T{0} ? T{0} : T{1} / total, out_sink_, row_ + r);
      T& lse = row_lse_[query(r)];
      const T before = in_.accumulate ? lse * static_cast<T>(kLog2E) : kHidden;
      if (before == kHidden) {
        lse = total == T{0} ? kHidden : reference_[r] * static_cast<T>(kLn2) + std::log(total);
      } else {  // a row that sees no further keys keeps its bits
        lse += (reference_[r] - before) * static_cast<T>(kLn2) + std::log(total);
      }
    }
  }

  int64_t query(int64_t r) const { return head_.query(row_ + r); }
  // Returns the distance from row r to the first key of a block.
  int64_t distance(int64_t origin, int64_t r) const {
    const HeadSegment& s = head_.at_place(origin);
    return origin - s.first - (query(r) + s.q_start);
  }

  const AttentionProblem& in_;
  const AttentionTask& task_;
  const RelationPanels<T>& relations_;
  const View &out_, &lse_;
  const AttentionHead head_;
  const int64_t width_, width_panels_;
  const std::vector<InnerRange> over_width_;
  const int64_t value_panels_;
  BlockSlots blocks_;
  T* const key_columns_;         // per block: [panels][width][NR]
  T* const value_rows_;          // per block: [panels][kBlock][NR]
  std::vector<uint8_t> finite_;  // per block: whether its values are finite
  T* const q_rows_;              // [panels][kTileRows][NR], scaled
  T* const relation_rows_;       // of relation_query, if it is given; else q_rows_
  T* const sums_;                // sums of P V: [panels][kTileRows][NR]
  T* const scores_;              // of a group: S, then P
  T* const totals_;              // sums of P by lane
  const bool shift_, carry_;     // whether scores, and values, have relation terms
  Relation<T> relation_;
  T* const table_;       // relation_table() of the tile
  T* const bins_;        // sums of P by id
  T* const bin_panels_;  // the same, folded
  T* const collected_;   // rows on their way into a panel
  const SoftMask<T> soft_;
  Visit<T> visit_{kColumns};
  std::vector<VisibleSpan> parts_;     // of the current group of rows
  std::vector<InnerRange> over_keys_;  // of a product with values
  Labels<T> labels_;                   // of the current block
  T more_ = 0;                         // log2 of the multiplicity of its keys
  bool soft_here_ = false, terms_ = false;
  const KeepRow<T> keep_;
  alignas(64) T keep_row_[KeepRow<T>::kSize];
  RowSource<T> q_, r_, k_[kernels::kAttentionSegments], v_[kernels::kAttentionSegments];
  RowSink<T> out_sink_;
  RowSource<T> before_;  // out over earlier keys
  T* row_lse_ = nullptr;
  Prefetcher prefetcher_;
  T reference_[kTileRows];
  int64_t row_ = 0, rows_ = 0, padded_ = 0;
  RowGroups groups_;
};

template <class T>
void forward(const AttentionProblem& in, const View& out, const View& lse) {
  const Buffer<T> packed(RelationPanels<T>::size(in, Direction::forward), in.inputs.q.device);
  const RelationPanels<T> relations(in, Direction::forward, packed.data());
  const SpanRows<T> spans(in);
  // A task packs the keys that it sees, so it should be long; results do not depend on its length.
  constexpr int64_t kTasks = 4;  // per thread
  const int64_t all_rows = in.inputs.q.dim(0) * in.inputs.q.dim(1) * in.inputs.q.dim(2);
  const int64_t rows = std::max(kTaskRows, all_rows / (kTasks * num_threads()));
  const auto make = [&](const AttentionTask& task, Slab<T>& slab) {
    return ForwardTask<T>(in, task, relations, spans, out, lse, slab);
  };
  run_tasks<T>(tasks_by_rows(in, rows), in.inputs.q.device, make);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
