#pragma once

#include <algorithm>
#include <cstdint>

#include "core/divide.h"
#include "core/dtype.h"
#include "core/generator.h"
#include "core/host_device.h"
#include "core/kernels/block_attention.h"

/// Index arithmetic of the attention kernels: which work a block of threads has, in which order,
/// and which keys are visible. All of it also runs on the host, where it is tested.
///
/// Keys are processed in steps of `unit` slots. A slot is an index in the layout's order (order_q,
/// order_k). Steps begin at multiples of `unit`, wherever runs begin, so the order of a row's sums
/// depends only on the keys that the row sees, and short runs share a step.
namespace longspan::cuda {

using kernels::kColumnRunFields;
using kernels::kRunFields;

inline constexpr double log2_e = 1.4426950408889634074;
inline constexpr double ln_2 = 0.69314718055994530942;

template <class I>
LONGSPAN_HD constexpr I min(I a, I b) {
  return a < b ? a : b;
}
template <class I>
LONGSPAN_HD constexpr I max(I a, I b) {
  return a > b ? a : b;
}
LONGSPAN_HD constexpr int64_t clamped(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : (x > high ? high : x);
}

/// Returns a mask of bits lo .. hi of 64, empty if hi <= lo; 0 <= lo, hi <= 64.
LONGSPAN_HD constexpr uint64_t bit_range(int64_t lo, int64_t hi) {
  return hi <= lo ? 0 : (~uint64_t{0} >> (64 - (hi - lo))) << lo;
}

/// Range of the steps of kAttentionWorkKeys slots that a tile meets, or of the tiles that a step
/// meets.
struct WorkRange {
  int32_t first = 0, end = kernels::kAllWork;
};

/// Rows of [B, H, rows, width] with a last stride of 1.
template <class T>
struct HeadRows {
  T* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;  // strides
  int32_t width = 0;

  LONGSPAN_HD T* of(int64_t b, int64_t h) const { return data + b * batch + h * head; }
};

/// A work list of a layout, see kernels::AttentionWork.
struct WorkTable {
  const int32_t *items, *cuts;
  int64_t item_count, cut_count, workspace;
};

/// The tables of a layout, see kernels::AttentionLayout.
struct LayoutTables {
  const int32_t *first_tile, *tiles, *row_start, *runs, *first_column, *col_start, *col_runs,
      *layout_index, *members, *order_q, *order_k;
  WorkTable row_work, column_work;
  int64_t layout_index_rows,
      layout_index_columns;  // 1 if one layout serves all samples, or all heads
  bool multiplied;

  /// The layout index of a head.
  LONGSPAN_HD int32_t member(int64_t b, int64_t h) const {
    return layout_index[(layout_index_rows > 1 ? b * layout_index_columns : 0) +
                        (layout_index_columns > 1 ? h : 0)];
  }
};

/// A key segment without its keys and values.
struct SegmentTables {
  int64_t keys = 0, q_start = 0;
  int64_t left[kernels::kAttentionRules] = {}, right[kernels::kAttentionRules] = {};
  kernels::MaskTables masks;
};

/// Dropout of one call, see kernels::AttentionDropout.
struct Draws {
  DeviceScalar<uint64_t> key;
  uint32_t threshold = 0;
  bool active = false;
  double scale = 1;  // 1 / (1 - p)
  uint32_t first_head = 0;

  /// Whether element (head = b H + h, i, j) is kept. All are indices before any ordering.
  LONGSPAN_HD bool keeps(uint32_t head, uint32_t i, uint32_t j, uint32_t segment) const {
    const Philox4 w = philox(key, j / 4, i, first_head + head, segment);
    const uint32_t low = (j & 1) != 0 ? w.word[1] : w.word[0];
    const uint32_t high = (j & 1) != 0 ? w.word[3] : w.word[2];
    return ((j & 2) != 0 ? high : low) >= threshold;
  }
};

/// Sizes and all arguments that do not depend on the dtype: the same for every kernel of a call.
struct AttentionSizes {
  int64_t batch, heads, queries;
  int32_t width, value_width;
  int32_t segments;
  SegmentTables segment[kernels::kAttentionSegments];
  const int64_t* q_valid;
  LayoutTables layout;
  Draws draws;
  double scale;

  LONGSPAN_HD int64_t head_count() const { return batch * heads; }
  /// Number of steps of `unit` slots that hold the keys of the first segment.
  LONGSPAN_HD int64_t main_steps(int64_t unit) const { return ceil_div(segment[0].keys, unit); }
  /// Number of (sample, head) pairs that one work item stands for.
  LONGSPAN_HD int64_t served_by_item() const {
    return (layout.layout_index_rows > 1 ? 1 : batch) *
           (layout.layout_index_columns > 1 ? 1 : heads);
  }
};

/// Keys lo .. hi (indices) that window, bounds and lengths let a query see; none if lo == hi.
struct KeyInterval {
  int32_t lo, hi;
};

/// One head of one sample.
struct AttentionHead {
  int32_t b, h;
  int32_t first_tile, tiles, first_column;
  int32_t rule, order_q, order_k;                 // -1: the identity
  int32_t queries_valid, main_valid, side_valid;  // lengths of the sample, as indices

  LONGSPAN_HD AttentionHead(const AttentionSizes& x, int64_t sample, int64_t head)
      : b(static_cast<int32_t>(sample)), h(static_cast<int32_t>(head)) {
    const LayoutTables& t = x.layout;
    const int32_t n = t.member(b, h);
    first_tile = t.first_tile[n];
    tiles = t.first_tile[n + 1] - first_tile;
    first_column = t.first_column[n];
    rule = t.members[3 * n];
    order_q = t.members[3 * n + 1];
    order_k = t.members[3 * n + 2];
    queries_valid = static_cast<int32_t>(
        x.q_valid != nullptr ? clamped(x.q_valid[sample], 0, x.queries) : x.queries);
    main_valid = static_cast<int32_t>(x.segment[0].masks.keys_of(sample));
    side_valid = x.segments > 1 ? static_cast<int32_t>(x.segment[1].masks.keys_of(sample)) : 0;
  }

  LONGSPAN_HD int32_t tile_row(const AttentionSizes& x, int64_t t) const {
    return x.layout.tiles[2 * (first_tile + t)];
  }
  LONGSPAN_HD int32_t tile_rows(const AttentionSizes& x, int64_t t) const {
    return x.layout.tiles[2 * (first_tile + t) + 1];
  }
  /// Whether the slots of a segment differ from its keys' indices.
  LONGSPAN_HD bool ordered(int segment) const { return segment == 0 && order_k >= 0; }
  LONGSPAN_HD int32_t keys_valid(int segment) const {
    return segment == 0 ? main_valid : side_valid;
  }
  /// Slots from here on are invisible.
  LONGSPAN_HD int32_t key_end(const AttentionSizes& x, int segment) const {
    return ordered(segment) ? static_cast<int32_t>(x.segment[0].keys) : keys_valid(segment);
  }
  /// Whether every valid query sees the keys of full steps.
  LONGSPAN_HD bool exact(const AttentionSizes& x, int segment) const {
    return !x.segment[segment].masks.hides_any() &&
           (!ordered(segment) || main_valid == x.segment[0].keys);
  }
  /// The query in a slot of the order; key() does the same for keys.
  LONGSPAN_HD int32_t query(const AttentionSizes& x, int64_t place) const {
    return order_q >= 0 ? x.layout.order_q[order_q * x.queries + place]
                        : static_cast<int32_t>(place);
  }
  LONGSPAN_HD int32_t key(const AttentionSizes& x, int segment, int64_t place) const {
    return ordered(segment) ? x.layout.order_k[order_k * x.segment[0].keys + place]
                            : static_cast<int32_t>(place);
  }
  LONGSPAN_HD kernels::SampleMasks masks(const AttentionSizes& x, int segment) const {
    return x.segment[segment].masks.of(b, keys_valid(segment));
  }
  /// Whether a key (an index) exists in this sample and is not hidden from all queries.
  LONGSPAN_HD bool shown(const AttentionSizes& x, int segment, int32_t key) const {
    const kernels::SampleMasks all = masks(x, segment);
    return all.exists(key) && !all.hides_key(key);
  }
  LONGSPAN_HD KeyInterval sees(const AttentionSizes& x, int segment, int64_t query) const {
    if (query >= queries_valid) return {0, 0};
    const SegmentTables& s = x.segment[segment];
    const int64_t p = query + s.q_start, end = keys_valid(segment);
    const kernels::KeyInterval keys =
        masks(x, segment)
            .narrowed(query,
                      {clamped(p - s.left[rule], 0, end), clamped(p + s.right[rule] + 1, 0, end)});
    if (keys.lo >= keys.hi) return {0, 0};
    return {static_cast<int32_t>(keys.lo), static_cast<int32_t>(keys.hi)};
  }
  /// The first run of a tile that begins after a slot.
  LONGSPAN_HD int32_t run_after(const AttentionSizes& x, int64_t tile, int segment,
                                int32_t place) const {
    int32_t at = x.layout.row_start[first_tile + tile];
    int32_t end = x.layout.row_start[first_tile + tile + 1];
    while (at < end) {
      const int32_t middle = at + (end - at) / 2;
      const int32_t* const run = x.layout.runs + kRunFields * middle;
      const bool before = run[2] != segment ? run[2] < segment : run[0] <= place;
      if (before) {
        at = middle + 1;
      } else {
        end = middle;
      }
    }
    return at;
  }
  /// The multiplicity of the key in a slot for the rows of a tile, one of whose runs holds the
  /// slot.
  LONGSPAN_HD int32_t times(const AttentionSizes& x, int64_t tile, int segment,
                            int32_t place) const {
    return x.layout.runs[kRunFields * (run_after(x, tile, segment, place) - 1) + 4];
  }
};

/// The segment of a step of kAttentionWorkKeys slots, and its first slot.
struct WorkPlace {
  int segment;
  int32_t k0;

  LONGSPAN_HD WorkPlace(const AttentionSizes& x, int64_t step) {
    const int64_t main = x.main_steps(kernels::kAttentionWorkKeys);
    segment = step < main ? 0 : 1;
    k0 = static_cast<int32_t>((step - (segment == 0 ? 0 : main)) * kernels::kAttentionWorkKeys);
  }
};

/// Slots k0 .. k0 + unit of a segment's keys. A tile sees those in `mask`, as far as window and
/// masks allow. Full: it sees all of them, whatever the window (but queries may lie beyond the
/// sample's length).
struct KeyStep {
  int32_t k0;
  int16_t segment;
  bool full;
  uint64_t mask;
};

/// Iterates over the steps of one query tile in a range, ascending by segment and slot, each once.
/// After the last step next() returns false and leaves a step with an empty mask.
template <int unit>
class KeySteps {
  static_assert(unit <= 64 && kernels::kAttentionSplitKeys % unit == 0);

 public:
  LONGSPAN_HD KeySteps(const AttentionSizes& x, const AttentionHead& head, int64_t tile,
                       WorkRange range = {})
      : runs_(x.layout.runs),
        run_(x.layout.row_start[head.first_tile + tile]),
        end_(x.layout.row_start[head.first_tile + tile + 1]),
        main_limit_(head.key_end(x, 0)),
        side_limit_(head.side_valid),
        main_exact_(head.exact(x, 0)),
        side_exact_(head.exact(x, 1)) {
    if (range.first > 0) begin_at(x, head, tile, range.first);
    if (range.end != kernels::kAllWork) end_at(x, head, tile, range.end);
  }

  LONGSPAN_HD bool next(KeyStep& step) {
    while (run_ < end_) {
      const int32_t segment = runs_[kRunFields * run_ + 2];
      if (segment != segment_) at_ = 0;
      segment_ = segment;
      const int32_t limit = segment == 0 ? main_limit_ : side_limit_;
      const bool exact = segment == 0 ? main_exact_ : side_exact_;
      const int32_t first = max(runs_[kRunFields * run_], at_);
      if (first >= limit) {
        ++run_;
        continue;
      }
      const int32_t k0 = first / unit * unit;
      // The last step may end beyond 2^31 - 1 slots, where no run begins.
      at_ = k0 > INT32_MAX - unit ? INT32_MAX : k0 + unit;
      step.k0 = k0;
      step.segment = static_cast<int16_t>(segment);
      step.mask = 0;
      step.full = false;
      for (int32_t r = run_;
           r < end_ && runs_[kRunFields * r + 2] == segment && runs_[kRunFields * r] < at_; ++r) {
        const int32_t from = runs_[kRunFields * r], to = from + runs_[kRunFields * r + 1];
        const int32_t lo = max(from - k0, 0), hi = min(min(to, limit) - k0, unit);
        step.mask |= bit_range(lo, hi);
        step.full = exact && lo == 0 && hi == unit && runs_[kRunFields * r + 3] == 0;
        if (to <= at_) ++run_;
      }
      if (step.mask != 0) return true;
    }
    step.mask = 0;
    return false;
  }

 private:
  /// Skips the steps before step number `step`, whose first slot is a multiple of every unit.
  LONGSPAN_HD void begin_at(const AttentionSizes& x, const AttentionHead& head, int64_t tile,
                            int32_t step) {
    const WorkPlace from(x, step);
    segment_ = from.segment;
    at_ = from.k0;
    const int32_t first = run_;
    run_ = head.run_after(x, tile, segment_, at_);
    const int32_t* const before = runs_ + kRunFields * (run_ - 1);
    if (run_ > first && before[2] == segment_ && before[0] + before[1] > at_) --run_;
  }
  /// Drops the steps from number `step` on.
  LONGSPAN_HD void end_at(const AttentionSizes& x, const AttentionHead& head, int64_t tile,
                          int32_t step) {
    const WorkPlace to(x, step);
    const int32_t limit = min(to.segment == 0 ? main_limit_ : side_limit_, to.k0);
    if (to.segment == 0) main_limit_ = limit;
    if (to.segment == 1) side_limit_ = limit;
    end_ = max(run_, head.run_after(x, tile, to.segment, limit - 1));
  }

  const int32_t* runs_;
  int32_t run_, end_, at_ = 0, segment_ = 0, main_limit_, side_limit_;
  bool main_exact_, side_exact_;
};

/// A query tile that sees keys of one step, and the mask of these keys.
struct TileStep {
  int32_t tile;
  bool full;
  uint64_t mask;
};

/// Iterates over the query tiles of a range that see some of the slots k0 .. k0 + unit of a
/// segment, ascending, each once. k0 is a multiple of unit.
template <int unit>
class TileSteps {
  static_assert(unit <= 64 && kernels::kAttentionColumnKeys % unit == 0);

 public:
  LONGSPAN_HD TileSteps(const AttentionSizes& x, const AttentionHead& head, int segment, int64_t k0,
                        WorkRange range = {})
      : tile_(range.first),
        last_(range.end),
        k0_(static_cast<int32_t>(k0)),
        limit_(head.key_end(x, segment)),
        exact_(head.exact(x, segment)) {
    constexpr int64_t keys = kernels::kAttentionColumnKeys;
    const int64_t column = head.first_column + (segment == 0 ? 0 : x.main_steps(keys)) + k0 / keys;
    runs_ = x.layout.col_runs;
    begin_ = x.layout.col_start[column];
    end_ = x.layout.col_start[column + 1];
  }

  LONGSPAN_HD bool next(TileStep& step) {
    // Entries ascend by their first tile; the entries before begin_ have ended.
    while (begin_ < end_ && last_of(begin_) <= tile_) ++begin_;
    int32_t least = last_;
    uint64_t mask = 0;
    bool full = false;
    for (int32_t e = begin_; e < end_ && runs_[kColumnRunFields * e] <= max(least, tile_); ++e) {
      if (last_of(e) <= tile_) continue;
      const int32_t from = runs_[kColumnRunFields * e + 2],
                    to = from + runs_[kColumnRunFields * e + 3];
      const int32_t lo = max(from - k0_, 0), hi = min(min(to, limit_) - k0_, unit);
      const uint64_t bits = bit_range(lo, hi);
      if (bits == 0) continue;
      const int32_t tile = max(runs_[kColumnRunFields * e], tile_);
      if (tile > least) continue;
      if (tile < least) {
        least = tile;
        mask = 0;
        full = false;
      }
      mask |= bits;
      full = full || (exact_ && lo == 0 && hi == unit && runs_[kColumnRunFields * e + 5] == 0);
    }
    if (least == last_) return false;
    step = {least, full, mask};
    tile_ = least + 1;
    return true;
  }

 private:
  LONGSPAN_HD int32_t last_of(int32_t e) const {
    return runs_[kColumnRunFields * e] + runs_[kColumnRunFields * e + 1];
  }

  const int32_t* runs_;
  int32_t begin_, end_, tile_, last_, k0_, limit_;
  bool exact_;
};

/// One work unit of a grid: a head, a tile of queries or a step of keys, and one of several column
/// chunks.
struct AttentionWork {
  int64_t b = 0, h = 0, place = 0, chunk = 0;
  WorkRange range;         // the steps or tiles that it covers
  int64_t workspace = -1;  // first row of its results in the split workspace; -1: not split

  /// Takes tiles or steps in order. Adjacent units process one tile or step for different heads.
  LONGSPAN_HD AttentionWork(const AttentionSizes& x, int64_t index, int64_t chunks)
      : b(index % x.head_count() / x.heads),
        h(index % x.heads),
        place(index / x.head_count() / chunks),
        chunk(index / x.head_count() % chunks) {}

  /// Takes the items of a list in its order, longest first. Adjacent units are the heads that one
  /// item stands for.
  LONGSPAN_HD AttentionWork(const AttentionSizes& x, const WorkTable& list, int64_t index,
                            int64_t chunks) {
    const int64_t served = x.served_by_item(), one = index % served;
    index /= served;
    chunk = index % chunks;
    const int32_t* const item = list.items + kernels::kWorkFields * (index / chunks);
    set_head(x, item[0], one);
    place = item[1];
    range = {item[2], item[3]};
    if (item[4] >= 0) workspace = one * list.workspace + item[4];
  }

 protected:
  AttentionWork() = default;
  /// Selects one of the heads that an entry of `layout_index` stands for.
  LONGSPAN_HD void set_head(const AttentionSizes& x, int32_t entry, int64_t one) {
    const LayoutTables& t = x.layout;
    const int64_t heads = t.layout_index_columns > 1 ? 1 : x.heads;
    b = t.layout_index_rows > 1 ? entry / t.layout_index_columns : one / heads;
    h = t.layout_index_columns > 1 ? entry % t.layout_index_columns : one % heads;
  }
};

/// A tile or step that was split. The results of its splits are stored one after the other.
struct CutWork : AttentionWork {
  int64_t splits = 0;

  LONGSPAN_HD CutWork(const AttentionSizes& x, const WorkTable& list, int64_t index) {
    const int64_t served = x.served_by_item(), one = index % served;
    const int32_t* const cut = list.cuts + kernels::kCutFields * (index / served);
    set_head(x, cut[0], one);
    place = cut[1];
    workspace = one * list.workspace + cut[2];
    splits = cut[3];
  }
};

/// Number of work units of a list.
LONGSPAN_HD inline int64_t units_of(const AttentionSizes& x, const WorkTable& list,
                                    int64_t chunks = 1) {
  return list.item_count * x.served_by_item() * chunks;
}
/// Number of split tiles or steps, over all heads.
LONGSPAN_HD inline int64_t cuts_of(const AttentionSizes& x, const WorkTable& list) {
  return list.cut_count * x.served_by_item();
}

}  // namespace longspan::cuda
