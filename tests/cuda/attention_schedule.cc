#include "cuda/attention/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>

#include "cuda/attention/general.h"
#include "ops/copy.h"
#include "ops/patterns/layout_work.h"
#include "ops/patterns/pattern.h"

namespace longspan {
namespace {

using namespace cuda;

struct ScheduleCase {
  AttentionPattern pattern;
  int64_t queries, keys, batch = 1, heads = 1, side_keys = 0;
};

// Returns two layouts with runs of many lengths and positions, full and partial.
AttentionPattern ragged(int64_t queries, int64_t keys) {
  std::vector<std::vector<TileRuns>> layouts(2);
  for (int m = 0; m < 2; ++m) {
    for (int32_t q0 = 0, i = 0; q0 < queries; ++i) {
      const int32_t qn = std::min<int32_t>(m == 0 ? 96 : 31, static_cast<int32_t>(queries) - q0);
      TileRuns t{q0, qn, {}};
      for (int32_t k0 = (i * 7) % 13; k0 < keys && i % 5 != 2;) {
        const int32_t kn = std::min<int32_t>(1 + (k0 * 5 + i) % (m == 0 ? 300 : 9),
                                             static_cast<int32_t>(keys) - k0);
        t.runs.push_back({k0, kn, 0, (k0 + i) % 3 == 0 ? RunKind::partial : RunKind::full});
        k0 += kn + (k0 + i) % 4;
      }
      layouts[static_cast<size_t>(m)].push_back(t);
      q0 += qn;
    }
  }
  AttentionPattern p;
  p.name = "ragged";
  p.layout =
      make_layout(queries, keys, layouts,
                  {.layout_index = Tensor::from(std::vector<int32_t>{0, 1, 1, 0, 0, 1}, {2, 3})});
  return p;
}

Tensor table(const Shape& shape, DType dtype, const std::function<int64_t(int64_t)>& f) {
  std::vector<int32_t> values;
  for (int64_t i = 0; i < numel(shape); ++i) values.push_back(static_cast<int32_t>(f(i)));
  const std::vector<uint8_t> bytes(values.begin(), values.end());
  if (dtype == DType::i64) return cast(Tensor::from(values, shape), dtype);
  return dtype == DType::u8 ? Tensor::from(bytes, shape) : Tensor::from(values, shape);
}

// Returns a layout of two members, each with its own rules and orders, and with a second key
// segment, runs that count more than once, row bounds and hidden keys.
AttentionPattern everything(int64_t queries, int64_t keys, int64_t side_keys) {
  // Each order swaps a first and a last range of rows or keys; no tile and no run spans both
  // ranges.
  const int64_t row_cut = queries / 62 * 31, key_cuts[] = {keys / 2, keys - keys / 4};
  const auto swapped = [](int64_t i, int64_t cut, int64_t n) {
    return i < cut ? n - cut + i : i - cut;
  };
  std::vector<std::vector<TileRuns>> layouts(2);
  for (int m = 0; m < 2; ++m) {
    for (int32_t q0 = 0, i = 0; q0 < queries; ++i) {
      const int32_t qn = std::min<int32_t>(m == 0 ? 96 : 31, static_cast<int32_t>(queries) - q0);
      TileRuns t{q0, qn, {}};
      for (int32_t k0 = 0; k0 < keys && i % 5 != 2;) {
        int32_t kn = std::min<int32_t>(1 + (k0 * 5 + i) % 40, static_cast<int32_t>(keys) - k0);
        for (const int64_t cut : key_cuts) {
          if (k0 < cut) kn = std::min(kn, static_cast<int32_t>(cut) - k0);
        }
        t.runs.push_back({k0, kn, 0, RunKind::partial, static_cast<uint8_t>(1 + (k0 + i) % 3)});
        k0 += kn + (k0 + i) % 4;
      }
      for (int32_t k0 = i % 7; k0 < side_keys;) {
        const int32_t kn =
            std::min<int32_t>(1 + (k0 * 3 + i) % 90, static_cast<int32_t>(side_keys) - k0);
        t.runs.push_back({k0, kn, 1, m == 0 && i % 2 == 0 ? RunKind::full : RunKind::partial,
                          static_cast<uint8_t>(1 + i % 2)});
        k0 += kn + i % 3;
      }
      layouts[static_cast<size_t>(m)].push_back(t);
      q0 += qn;
    }
  }
  AttentionPattern p;
  p.name = "everything";
  LayoutOptions options;
  options.layout_index = Tensor::from(std::vector<int32_t>{0, 1, 1, 0, 0, 1}, {2, 3});
  options.side_keys = side_keys;
  options.order_q =
      table({1, queries}, DType::i32, [&](int64_t i) { return swapped(i, row_cut, queries); });
  options.order_k = table({2, keys}, DType::i32,
                          [&](int64_t i) { return swapped(i % keys, key_cuts[i / keys], keys); });
  options.members = {{0, -1, 1}, {1, 0, 0}};
  p.layout = make_layout(queries, keys, layouts, options);
  p.rules = {{.window = {200, 20}}, {.causal = true}};
  p.side_rules = {{.q_start = 0}, {.window = {kUnlimited, 50}, .q_start = 0}};
  p.mask.q_from = table({1, queries}, DType::i32, [](int64_t i) { return i / 3 - 5; });
  p.mask.q_to = table({1, queries}, DType::i32, [](int64_t i) { return i + 300; });
  p.side_mask.k_begin = table({2}, DType::i64, [](int64_t i) { return 3 * i; });
  p.side_mask.k_hidden = table({2, side_keys}, DType::u8, [](int64_t i) { return i % 5 == 1; });
  return p;
}

std::vector<ScheduleCase> schedule_cases() {
  std::vector<ScheduleCase> all;
  const std::vector<std::pair<int64_t, int64_t>> sizes = {
      {1, 1},     {2, 2},   {15, 15}, {17, 17},  {64, 64},   {65, 65},  {100, 100},
      {257, 257}, {1, 257}, {5, 130}, {130, 64}, {200, 850}, {800, 790}};
  for (const auto& [queries, keys] : sizes) {
    for (const AttentionPattern& p :
         {patterns::dense(), patterns::causal(), patterns::local(1), patterns::local(100),
          patterns::local_bidirectional(70), patterns::local_block(5), patterns::local_block(60),
          patterns::dilated(5, 3, 3), patterns::strided(7)}) {
      all.push_back({p, queries, keys});
    }
    if (queries > 1) all.push_back({ragged(queries, keys), queries, keys, 2, 3});
    if (keys > 300) continue;
    const int64_t side = 1 + keys / 3;
    all.push_back({everything(queries, keys, side), queries, keys, 2, 3, side});
  }
  return all;
}

struct Call {
  explicit Call(const ScheduleCase& c, const std::vector<int64_t>& q_lengths = {},
                const std::vector<int64_t>& k_lengths = {})
      : pattern(resolve(c.pattern, c.queries, c.keys, c.side_keys)) {
    if (!q_lengths.empty()) {
      const auto n = static_cast<int64_t>(q_lengths.size());
      q_valid = Tensor::from(q_lengths, {n});
      k_valid = Tensor::from(k_lengths, {n});
    }
    q = Tensor::zeros({c.batch, c.heads, c.queries, 8}, DType::bf16);
    k = Tensor::zeros({c.batch, c.heads, c.keys, 8}, DType::bf16);
    side_k = Tensor::zeros({c.batch, c.heads, c.side_keys, 8}, DType::bf16);
    kernels::AttentionProblem in;
    in.inputs.q = q.view();
    in.inputs.k[0] = in.inputs.v[0] = k.view();
    in.q_valid = q_valid.view();
    in.layout = pattern.layout->view();
    fill(pattern.rules, pattern.mask, 0, in);
    in.masks[0].k_valid = k_valid.view();
    if (c.side_keys > 0) {
      in.numbers.segments = 2;
      in.inputs.k[1] = in.inputs.v[1] = side_k.view();
      fill(pattern.side_rules, pattern.side_mask, 1, in);
    }
    work = work_of(in.layout, c.queries, c.keys, c.side_keys);
    in.layout.row_work = view_of(work.rows);
    in.layout.column_work = view_of(work.columns);
    sizes = sizes_of(in);
  }
  static void fill(const std::vector<Rule>& rules, const PairMask& mask, int s,
                   kernels::AttentionProblem& in) {
    in.numbers.q_start[s] = rules.front().q_start;
    for (size_t n = 0; n < rules.size(); ++n) {
      const Window& w = rules[n].window;
      in.numbers.windows[s][n] = {w.reach_left(), rules[n].causal ? 0 : w.reach_right()};
    }
    PairMask::visit_tensors([](ConstView& to, const Tensor& from) { to = from.view(); },
                            in.masks[s], mask);
  }

  AttentionPattern pattern;
  Tensor q, k, side_k, q_valid, k_valid;
  LayoutWork work;
  AttentionSizes sizes{};
};

// Multiplicity of each pair of positions of a head. Columns are the keys of the first segment, then
// those of the second.
using Pairs = std::vector<std::vector<int>>;

Pairs no_pairs(const AttentionSizes& x) {
  const int64_t side = x.segments > 1 ? x.segment[1].keys : 0;
  return Pairs(static_cast<size_t>(x.queries),
               std::vector<int>(static_cast<size_t>(x.segment[0].keys + side)));
}
size_t column_of(const AttentionSizes& x, int segment, int64_t place) {
  return static_cast<size_t>(place + (segment == 0 ? 0 : x.segment[0].keys));
}

int64_t key_steps(const AttentionSizes& x, int64_t unit) {
  return x.main_steps(unit) + (x.segments > 1 ? ceil_div(x.segment[1].keys, unit) : 0);
}

// Returns the visible pairs of a head: the pairs in its runs that rule, masks and lengths allow.
Pairs truth_of(const Call& call, int64_t b, int64_t h) {
  const AttentionSizes& x = call.sizes;
  const AttentionPattern& p = call.pattern;
  Pairs sees = no_pairs(x);
  const auto which = p.layout->layout_index.to_vector<int32_t>();
  const auto columns = p.layout->layout_index.dim(1);
  const int32_t member = which[static_cast<size_t>(which.size() == 1 ? 0 : b * columns + h)];
  const auto members = p.layout->members.to_vector<int32_t>();
  const auto rule_number = static_cast<size_t>(members[static_cast<size_t>(3 * member)]);
  const AttentionHead head(x, b, h);
  for (const TileRuns& t : tiles_of(*p.layout, member)) {
    for (const KeyRun& r : t.runs) {
      const auto& rules = r.segment == 0 ? p.rules : p.side_rules;
      const PairMask& mask = r.segment == 0 ? p.mask : p.side_mask;
      const auto hidden =
          mask.k_hidden ? mask.k_hidden.to_vector<uint8_t>() : std::vector<uint8_t>{};
      const auto from = mask.q_from ? mask.q_from.to_vector<int32_t>() : std::vector<int32_t>{};
      const auto to = mask.q_to ? mask.q_to.to_vector<int32_t>() : std::vector<int32_t>{};
      for (int32_t i = t.q0; i < t.q0 + t.qn; ++i) {
        for (int32_t j = r.k0; j < r.k0 + r.kn; ++j) {
          const int32_t query = head.query(x, i), key = head.key(x, r.segment, j);
          bool visible = (r.kind == RunKind::full || rule_allows(rules[rule_number], query, key)) &&
                         query < head.queries_valid && key < head.keys_valid(r.segment);
          const auto at = static_cast<size_t>(query);
          if (mask.q_from) visible = visible && key >= from[at] && key < to[at];
          if (mask.k_begin) visible = visible && key >= mask.k_begin.to_vector<int64_t>()[b];
          if (mask.k_hidden) {
            const int64_t sample = mask.k_hidden.dim(0) > 1 ? b : 0;
            visible =
                visible && hidden[static_cast<size_t>(sample * mask.k_hidden.dim(1) + key)] == 0;
          }
          sees[static_cast<size_t>(i)][column_of(x, r.segment, j)] = visible ? r.multiplicity : 0;
        }
      }
    }
  }
  return sees;
}

// Visits and counts every pair of a step, and checks the guarantees of a full step.
struct Visits {
  const AttentionSizes& x;
  const AttentionHead& head;
  const Pairs& truth;
  Pairs count;

  Visits(const AttentionSizes& sizes, const AttentionHead& h, const Pairs& t)
      : x(sizes), head(h), truth(t), count(no_pairs(sizes)) {}

  void visit(int32_t tile, int segment, int32_t k0, int unit, bool full, uint64_t mask) {
    ASSERT_NE(mask, 0u);
    ASSERT_EQ(k0 % unit, 0);
    for (int32_t r = 0; r < head.tile_rows(x, tile); ++r) {
      const int32_t row = head.tile_row(x, tile) + r, query = head.query(x, row);
      const KeyInterval seen = head.sees(x, segment, query);
      for (int j = 0; j < unit; ++j) {
        if ((mask >> j & 1) == 0) {
          ASSERT_FALSE(full);
          continue;
        }
        ASSERT_LT(k0 + j, x.segment[segment].keys);
        const int32_t key = head.key(x, segment, k0 + j);
        const bool visible = key >= seen.lo && key < seen.hi && head.shown(x, segment, key);
        if (full) {
          ASSERT_TRUE(visible || query >= head.queries_valid);
        }
        if (visible) {
          count[static_cast<size_t>(row)][column_of(x, segment, k0 + j)] +=
              head.times(x, tile, segment, k0 + j);
        }
      }
    }
  }
  void expect_each_once(const std::string& what) const {
    for (size_t i = 0; i < truth.size(); ++i) {
      for (size_t j = 0; j < truth[i].size(); ++j) {
        ASSERT_EQ(count[i][j], truth[i][j]) << what << " query " << i << " key " << j;
      }
    }
  }
};

template <int unit>
void check_steps(const Call& call, const std::string& name) {
  const AttentionSizes& x = call.sizes;
  for (int64_t bh = 0; bh < x.head_count(); ++bh) {
    const AttentionHead head(x, bh / x.heads, bh % x.heads);
    const Pairs truth = truth_of(call, head.b, head.h);
    Visits by_rows(x, head, truth), by_columns(x, head, truth);
    for (int32_t tile = 0; tile < head.tiles; ++tile) {
      KeySteps<unit> steps(x, head, tile);
      std::pair<int, int32_t> last{-1, -1};
      KeyStep step;
      while (steps.next(step)) {
        const std::pair<int, int32_t> at{step.segment, step.k0};
        ASSERT_GT(at, last);
        last = at;
        by_rows.visit(tile, step.segment, step.k0, unit, step.full, step.mask);
      }
      ASSERT_EQ(step.mask, 0u);
      ASSERT_FALSE(steps.next(step));
    }
    by_rows.expect_each_once(name + " by rows");
    for (int64_t place = 0; place < key_steps(x, unit); ++place) {
      const int segment = place < x.main_steps(unit) ? 0 : 1;
      const auto k0 =
          static_cast<int32_t>((place - (segment == 0 ? 0 : x.main_steps(unit))) * unit);
      TileSteps<unit> steps(x, head, segment, k0);
      int32_t last = -1;
      for (TileStep step; steps.next(step);) {
        ASSERT_GT(step.tile, last);
        last = step.tile;
        by_columns.visit(step.tile, segment, k0, unit, step.full, step.mask);
      }
    }
    by_columns.expect_each_once(name + " by columns");
  }
}

TEST(AttentionSchedule, EveryPairOnce) {
  for (const ScheduleCase& c : schedule_cases()) {
    const std::string name = fmt::format("{} {} {}", c.pattern.name, c.queries, c.keys);
    const Call call(c);
    check_steps<64>(call, name);
    check_steps<48>(call, name);
    check_steps<32>(call, name);
    if (HasFatalFailure()) return;
  }
}

TEST(AttentionSchedule, EveryPairOnceWithLengths) {
  for (ScheduleCase c : schedule_cases()) {
    const std::string name = fmt::format("{} {} {} lengths", c.pattern.name, c.queries, c.keys);
    c.batch = 2;
    const Call call(c, {c.queries / 2, c.queries}, {c.keys, c.keys * 2 / 3});
    check_steps<64>(call, name);
    check_steps<48>(call, name);
    check_steps<32>(call, name);
    if (HasFatalFailure()) return;
  }
}

TEST(AttentionSchedule, FullStepsAreFound) {
  const Call call({patterns::dense(), 192, 256});
  const AttentionHead head(call.sizes, 0, 0);
  KeySteps<64> steps(call.sizes, head, 1);
  int full = 0, all = 0;
  for (KeyStep step; steps.next(step); ++all) full += step.full;
  EXPECT_EQ(full, 4);
  EXPECT_EQ(all, 4);
  TileSteps<64> tiles(call.sizes, head, 0, 128);
  all = 0;
  for (TileStep step; tiles.next(step); ++all) EXPECT_TRUE(step.full);
  EXPECT_EQ(all, 2);
}

TEST(AttentionSchedule, ShortRunsShareAStep) {
  // Three runs within 64 positions are one step.
  const std::vector<TileRuns> tiles = {
      {0, 4, {{3, 5, 0, RunKind::full}, {10, 1, 0, RunKind::full}, {60, 10, 0, RunKind::full}}}};
  AttentionPattern p;
  p.layout = make_layout(4, 100, {tiles});
  const Call call({p, 4, 100});
  KeySteps<64> steps(call.sizes, AttentionHead(call.sizes, 0, 0), 0);
  KeyStep step;
  ASSERT_TRUE(steps.next(step));
  EXPECT_EQ(step.mask, bit_range(3, 8) | bit_range(10, 11) | bit_range(60, 64));
  ASSERT_TRUE(steps.next(step));
  EXPECT_EQ(step.k0, 64);
  EXPECT_EQ(step.mask, bit_range(0, 6));
  EXPECT_FALSE(steps.next(step));
}

TEST(AttentionSchedule, BitRanges) {
  for (int64_t lo = 0; lo <= 64; ++lo) {
    for (int64_t hi = 0; hi <= 64; ++hi) {
      uint64_t bits = 0;
      for (int64_t i = lo; i < hi; ++i) bits |= uint64_t{1} << i;
      EXPECT_EQ(bit_range(lo, hi), bits) << lo << " " << hi;
    }
  }
}

TEST(AttentionSchedule, PlacesInOrderAreCovered) {
  AttentionSizes x{};
  x.batch = 3;
  x.heads = 5;
  std::set<std::array<int64_t, 4>> seen;
  for (int64_t i = 0; i < 3 * 5 * 7 * 2; ++i) {
    const AttentionWork w(x, i, 2);
    EXPECT_TRUE(w.b < 3 && w.h < 5 && w.place >= 0 && w.place < 7 && w.chunk >= 0 && w.chunk < 2);
    seen.insert({w.b, w.h, w.place, w.chunk});
  }
  EXPECT_EQ(seen.size(), size_t{3 * 5 * 7 * 2});
}

// Returns a window for each tile, `rows` rows that attend to all keys, `keys` keys to which all
// rows attend, and `side_keys` keys of the second segment to which all rows attend.
AttentionPattern globals(int64_t length, int64_t reach, int64_t rows, int64_t keys,
                         int64_t side_keys) {
  std::vector<TileRuns> tiles;
  for (int64_t q0 = 0; q0 < length;) {
    const int64_t q1 = std::min(q0 < rows ? rows : length, q0 + kernels::kAttentionTileRows);
    TileRuns t = tile_of(q0, q1);
    if (q0 < rows) {
      t.runs.push_back(run_of(0, length, RunKind::full));
    } else {
      if (keys > 0) t.runs.push_back(run_of(0, keys, RunKind::full));
      const int64_t from = std::max(keys, q0 - reach), to = std::min(length, q1 + reach);
      if (from < to) t.runs.push_back(run_of(from, to, RunKind::full));
    }
    if (side_keys > 0) t.runs.push_back({0, static_cast<int32_t>(side_keys), 1, RunKind::full});
    tiles.push_back(t);
    q0 = q1;
  }
  AttentionPattern p;
  p.name = "globals";
  p.layout = make_layout(length, length, {tiles}, {.side_keys = side_keys});
  p.rules = p.side_rules = {{}};
  return p;
}

// Returns cases with long walks, most of them split: few queries with many keys, and windows with
// globals.
std::vector<ScheduleCase> long_cases() {
  std::vector<ScheduleCase> all;
  for (const int64_t queries : {1, 40, 100}) {
    for (const int64_t keys : {1536, 1537, 3100, 5000}) {
      for (const ScheduleCase& c :
           {ScheduleCase{patterns::dense(), queries, keys},
            ScheduleCase{patterns::causal(), queries, keys},
            ScheduleCase{patterns::local(900), queries, keys},
            ScheduleCase{patterns::dilated(40, 0, 2), queries, keys},
            ScheduleCase{ragged(queries, keys), queries, keys, 2, 3},
            ScheduleCase{everything(queries, keys, keys / 2), queries, keys, 2, 3, keys / 2},
            ScheduleCase{everything(queries, 300, keys), queries, 300, 2, 3, keys}}) {
        all.push_back(c);
      }
    }
  }
  for (const int64_t length : {1600, 2500}) {
    all.push_back({globals(length, 50, 1, 1, 0), length, length, 2, 2});
    all.push_back({globals(length, 50, 0, 0, 7), length, length, 2, 1, 7});
    all.push_back({globals(length, 50, 96, 70, 130), length, length, 1, 1, 130});
    all.push_back({patterns::causal(), length, length});
  }
  return all;
}

// Collects from the items of a work list the ranges of key steps of each tile, or of tiles of each
// key step. Checks that they cover every one once and that their workspaces do not overlap. The
// cost of an item is the length of its walk.
struct Worked {
  const AttentionSizes& x;
  const WorkTable& list;
  bool in_order;  // items are sorted by cost: no sample is shorter than others
  std::map<std::array<int64_t, 3>, std::vector<std::pair<int64_t, int64_t>>> met = {};  // ranges
  std::map<std::array<int64_t, 3>, std::vector<std::array<int64_t, 2>>> rooms = {};     // by first
  std::array<int64_t, 3> last{INT64_MIN, -1, -1};  // -cost, index within all members, first
  int64_t total = 0, longest = 0;

  void take(const AttentionWork& w, int64_t cost, int64_t place) {
    const std::array<int64_t, 3> at{-cost, place, w.range.first}, key{w.b, w.h, w.place};
    if (in_order) {
      EXPECT_LE(last, at);
    }
    last = at;
    met[key].emplace_back(w.range.first, w.range.end);
    if (w.workspace >= 0) rooms[key].push_back({w.range.first, w.workspace});
    total += cost;
    longest = std::max(longest, cost);
  }
  // `height` returns the number of rows or keys of a split item.
  template <class F>
  void check(F height) {
    for (auto& [key, ranges] : met) {
      std::sort(ranges.begin(), ranges.end());
      EXPECT_EQ(ranges.front().first, 0);
      EXPECT_EQ(ranges.back().second, kernels::kAllWork);
      for (size_t i = 1; i < ranges.size(); ++i) {
        EXPECT_EQ(ranges[i].first, ranges[i - 1].second);
        EXPECT_GT(ranges[i].first, ranges[i - 1].first);
      }
      EXPECT_EQ(rooms.count(key), ranges.size() > 1 ? 1u : 0u);
      if (ranges.size() > 1) {
        EXPECT_EQ(rooms[key].size(), ranges.size());
      }
    }
    const int64_t workspace = list.workspace * x.served_by_item();
    std::vector<bool> used(static_cast<size_t>(workspace), false);
    size_t cuts = 0;
    for (int64_t i = 0; i < cuts_of(x, list); ++i, ++cuts) {
      const CutWork cut(x, list, i);
      auto& splits = rooms[{cut.b, cut.h, cut.place}];
      std::sort(splits.begin(), splits.end());
      ASSERT_EQ(splits.size(), static_cast<size_t>(cut.splits));
      for (size_t s = 0; s < splits.size(); ++s) {
        const int64_t rows = height(cut);
        ASSERT_EQ(splits[s][1], cut.workspace + static_cast<int64_t>(s) * rows);
        ASSERT_LE(splits[s][1] + rows, workspace);
        for (int64_t r = 0; r < rows; ++r) {
          auto taken = used[static_cast<size_t>(splits[s][1] + r)];
          ASSERT_FALSE(taken);
          taken = true;
        }
      }
    }
    EXPECT_EQ(cuts, rooms.size());
    EXPECT_EQ(std::count(used.begin(), used.end(), true), workspace);
    const int64_t side = x.segments > 1 ? x.segment[1].keys : 0;
    EXPECT_LE(workspace, x.head_count() * ((x.queries + x.segment[0].keys + side) / 8));
  }
};

// Both work lists of a call, with checks of all their items.
struct BothLists {
  Worked rows, columns;

  explicit BothLists(const Call& call, bool in_order = true)
      : rows{call.sizes, call.sizes.layout.row_work, in_order},
        columns{call.sizes, call.sizes.layout.column_work, in_order} {
    constexpr int64_t unit = kernels::kAttentionWorkKeys;
    const AttentionSizes& x = call.sizes;
    for (int64_t i = 0; i < units_of(x, rows.list); ++i) {
      const AttentionWork w(x, rows.list, i, 1);
      const AttentionHead head(x, w.b, w.h);
      KeySteps<unit> steps(x, head, w.place, w.range);
      int64_t cost = 0;
      for (KeyStep step; steps.next(step);) ++cost;
      rows.take(w, cost, head.first_tile + w.place);
    }
    for (int64_t i = 0; i < units_of(x, columns.list); ++i) {
      const AttentionWork w(x, columns.list, i, 1);
      const AttentionHead head(x, w.b, w.h);
      const WorkPlace at(x, w.place);
      TileSteps<unit> steps(x, head, at.segment, at.k0, w.range);
      int64_t cost = 0;
      for (TileStep step; steps.next(step);) cost += ceil_div(head.tile_rows(x, step.tile), 32);
      columns.take(w, cost, x.layout.member(w.b, w.h) * key_steps(x, unit) + w.place);
    }
    rows.check(
        [&](const CutWork& cut) { return AttentionHead(x, cut.b, cut.h).tile_rows(x, cut.place); });
    columns.check([](const CutWork&) { return unit; });
    size_t tiles = 0;
    for (int64_t bh = 0; bh < x.head_count(); ++bh) {
      tiles += static_cast<size_t>(AttentionHead(x, bh / x.heads, bh % x.heads).tiles);
    }
    EXPECT_EQ(rows.met.size(), tiles);
    EXPECT_EQ(columns.met.size(), static_cast<size_t>(x.head_count() * key_steps(x, unit)));
  }
};

TEST(AttentionSchedule, WorkIsDoneOnceAndTheLongestFirst) {
  for (const auto& list : {schedule_cases(), long_cases()}) {
    for (const ScheduleCase& c : list) {
      const Call call(c);
      const BothLists lists(call);
      if (HasFailure()) FAIL() << c.pattern.name << " " << c.queries << " " << c.keys;
    }
  }
}

// Checks that the splits of a tile hold each of its steps once, and the splits of a step each of
// its tiles.
template <int unit>
void check_splits(const Call& call) {
  const AttentionSizes& x = call.sizes;
  const auto ranges_of = [&](const Worked& list, const AttentionHead& head, int64_t place) {
    return list.met.at({head.b, head.h, place});
  };
  const BothLists lists(call, !call.q_valid);
  for (int64_t bh = 0; bh < x.head_count(); ++bh) {
    const AttentionHead head(x, bh / x.heads, bh % x.heads);
    for (int32_t tile = 0; tile < head.tiles; ++tile) {
      KeySteps<unit> whole(x, head, tile);
      KeyStep expected, step;
      for (const auto& [first, end] : ranges_of(lists.rows, head, tile)) {
        const WorkRange range{static_cast<int32_t>(first), static_cast<int32_t>(end)};
        KeySteps<unit> steps(x, head, tile, range);
        while (steps.next(step)) {
          ASSERT_TRUE(whole.next(expected));
          ASSERT_EQ(step.k0, expected.k0);
          ASSERT_EQ(step.segment, expected.segment);
          ASSERT_EQ(step.full, expected.full);
          ASSERT_EQ(step.mask, expected.mask);
        }
      }
      ASSERT_FALSE(whole.next(expected));
    }
    for (int64_t place = 0; place < key_steps(x, kernels::kAttentionWorkKeys); ++place) {
      const WorkPlace at(x, place);
      for (int32_t k0 = at.k0; k0 < at.k0 + kernels::kAttentionWorkKeys; k0 += unit) {
        if (k0 >= x.segment[at.segment].keys || kernels::kAttentionWorkKeys % unit != 0) continue;
        TileSteps<unit> whole(x, head, at.segment, k0);
        TileStep expected, step;
        for (const auto& [first, end] : ranges_of(lists.columns, head, place)) {
          const WorkRange range{static_cast<int32_t>(first), static_cast<int32_t>(end)};
          TileSteps<unit> steps(x, head, at.segment, k0, range);
          while (steps.next(step)) {
            ASSERT_TRUE(whole.next(expected));
            ASSERT_EQ(step.tile, expected.tile);
            ASSERT_EQ(step.full, expected.full);
            ASSERT_EQ(step.mask, expected.mask);
          }
        }
        ASSERT_FALSE(whole.next(expected));
      }
    }
  }
}

TEST(AttentionSchedule, SplitsHoldEveryStepOnce) {
  for (ScheduleCase c : long_cases()) {
    for (const bool lengths : {false, true}) {
      if (lengths) c.batch = 2;
      const Call call =
          lengths ? Call(c, {c.queries / 2, c.queries}, {c.keys, c.keys * 2 / 3}) : Call(c);
      check_splits<64>(call);
      check_splits<48>(call);
      check_splits<32>(call);
      if (HasFatalFailure()) FAIL() << c.pattern.name << " " << c.queries << " " << c.keys;
    }
  }
}

// No item is much longer than the rest, and balanced work stays whole.
TEST(AttentionSchedule, LongPiecesAreCut) {
  const auto lists_of = [](const AttentionPattern& p, int64_t queries, int64_t keys,
                           int64_t side_keys = 0) {
    const Call call({p, queries, keys, 1, 1, side_keys});
    const BothLists lists(call);
    return std::array<int64_t, 4>{lists.rows.longest, call.sizes.layout.row_work.cut_count,
                                  lists.columns.longest, call.sizes.layout.column_work.cut_count};
  };
  for (const int64_t length : {2048, 4096, 16384}) {
    const int64_t steps = length / 64, pieces = length / 32, bound = 20;
    for (const int64_t number : {1, 64}) {  // globals in the sequence
      const auto [row, row_cuts, column, column_cuts] =
          lists_of(globals(length, 256, number, number, 0), length, length);
      EXPECT_TRUE(row_cuts == 1 && row <= bound && row < steps) << length << " " << row;
      EXPECT_TRUE(column_cuts == 1 && column <= 2 * bound && column < pieces) << column;
    }
    for (const int64_t number : {1, 64, 128}) {  // globals packed as side keys
      const auto [row, row_cuts, column, column_cuts] =
          lists_of(globals(length, 256, 0, 0, number), length, length, number);
      EXPECT_EQ(row_cuts, 0);
      EXPECT_EQ(column_cuts, ceil_div(number, 64));
      EXPECT_LE(column, 2 * bound);
    }
    // The rows of globals alone, and one decoded row.
    for (const int64_t rows : {1, 64}) {
      const auto [row, row_cuts, column, column_cuts] = lists_of(patterns::dense(), rows, length);
      EXPECT_EQ(row_cuts, 1);
      EXPECT_LE(row, bound);
      EXPECT_EQ(column_cuts, 0);
    }
    for (const AttentionPattern& p :
         {patterns::dense(), patterns::causal(), patterns::local(512), patterns::strided(128)}) {
      const auto [row, row_cuts, column, column_cuts] = lists_of(p, length, length);
      EXPECT_EQ(row_cuts + column_cuts, 0) << p.name << " " << length;
    }
  }
}

TEST(AttentionSchedule, CausalWorkBeginsWithTheLastRowsAndTheFirstKeys) {
  const Call call({patterns::causal(), 960, 960, 2, 3});
  const AttentionSizes& x = call.sizes;
  for (int64_t i = 0; i < 6; ++i) {  // heads vary fastest
    EXPECT_EQ(AttentionWork(x, x.layout.row_work, i, 1).place, 9);
    EXPECT_EQ(AttentionWork(x, x.layout.column_work, i, 1).place, 0);
  }
}

TEST(AttentionSchedule, DrawsAreThoseOfTheContract) {
  Draws d;
  d.key = 0x123456789ABCDEF0u;
  d.threshold = static_cast<uint32_t>(drop_threshold(0.3));
  d.active = true;
  for (uint32_t i = 0; i < 20; ++i) {
    for (uint32_t j = 0; j < 40; ++j) {
      for (uint32_t segment = 0; segment < 2; ++segment) {
        const uint32_t word = philox(d.key, j / 4, i, 7, segment).word[j % 4];
        EXPECT_EQ(d.keeps(7, i, j, segment), word >= drop_threshold(0.3));
      }
    }
  }
}

}  // namespace
}  // namespace longspan
