#include "ops/pattern.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <mutex>

#include "autograd/mode.h"
#include "ops/copy.h"
#include "ops/pattern_fixed.h"
#include "ops/pattern_pairs.h"

namespace longspan {
namespace {

constexpr int64_t kTileRows = kernels::kAttentionTileRows;
constexpr int64_t kColumnKeys = kernels::kAttentionColumnKeys;
// Where the rule decides the border, runs begin and end at multiples of it.
constexpr int64_t kGranularity = 16;

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
int64_t round_down(int64_t n, int64_t unit) { return floor_div(n, unit) * unit; }
int64_t round_up(int64_t n, int64_t unit) { return -round_down(-n, unit); }

Run make_run(int64_t k0, int64_t k1, RunKind kind) {
  return {static_cast<int32_t>(k0), static_cast<int32_t>(k1 - k0), 0, kind, 1};
}

// partial [k0, full0), full [full0, full1), partial [full1, k1): parts that are empty are left out,
// and there is no full part where full0 >= full1.
void add_runs(int64_t k0, int64_t k1, int64_t full0, int64_t full1, std::vector<Run>& runs) {
  if (k0 >= k1) return;
  full0 = std::clamp(full0, k0, k1);
  full1 = std::clamp(full1, k0, k1);
  if (full0 >= full1) {
    runs.push_back(make_run(k0, k1, RunKind::partial));
    return;
  }
  if (k0 < full0) runs.push_back(make_run(k0, full0, RunKind::partial));
  runs.push_back(make_run(full0, full1, RunKind::full));
  if (full1 < k1) runs.push_back(make_run(full1, k1, RunKind::partial));
}

TileRuns tile(int64_t q0, int64_t q1) {
  return {static_cast<int32_t>(q0), static_cast<int32_t>(q1 - q0), {}};
}

// Positions first .. last of a tile see position p - left .. p + right, of keys [0, keys).
void add_band(int64_t first, int64_t last, int64_t left, int64_t right, int64_t keys,
              int64_t granularity, int64_t offset, std::vector<Run>& runs) {
  const int64_t k0 =
      std::max<int64_t>(0, round_down(std::max<int64_t>(first - left, 0), granularity));
  const int64_t k1 = std::min(keys, round_up(std::min(last + right + 1, keys), granularity));
  int64_t full0 = last - left <= 0 ? 0 : round_up(last - left, granularity);
  int64_t full1 = first + right + 1 >= keys ? keys : round_down(first + right + 1, granularity);
  const size_t before = runs.size();
  add_runs(k0, k1, full0, full1, runs);
  for (size_t i = before; i < runs.size(); ++i) runs[i].k0 += static_cast<int32_t>(offset);
}

std::vector<TileRuns> band_tiles(int64_t queries, int64_t keys, int64_t q_start, int64_t left,
                                 int64_t right) {
  std::vector<TileRuns> tiles;
  for (int64_t q0 = 0; q0 < queries; q0 += kTileRows) {
    const int64_t q1 = std::min(queries, q0 + kTileRows);
    tiles.push_back(tile(q0, q1));
    add_band(q0 + q_start, q1 - 1 + q_start, left, right, keys, kGranularity, 0, tiles.back().runs);
  }
  return tiles;
}

std::vector<TileRuns> block_tiles(int64_t queries, int64_t keys, int64_t q_start, int64_t block,
                                  int64_t key_start) {
  std::vector<TileRuns> tiles;
  for (int64_t from = 0; from < queries;) {
    const int64_t number = floor_div(from + q_start + key_start, block);
    const int64_t to = std::min(queries, (number + 1) * block - q_start - key_start);
    const int64_t parts = (to - from + kTileRows - 1) / kTileRows;
    const int64_t rows = std::min(kTileRows, round_up((to - from + parts - 1) / parts, 12));
    for (int64_t q0 = from; q0 < to; q0 += rows) {
      const int64_t q1 = std::min(to, q0 + rows);
      tiles.push_back(tile(q0, q1));
      const int64_t k0 = std::max<int64_t>(0, (number - 1) * block - key_start);
      const int64_t k1 = std::min(keys, round_up(std::min(q1 + q_start, keys), kGranularity));
      add_runs(k0, k1, k0, std::min(keys, q0 + q_start + 1), tiles.back().runs);
    }
    from = to;
  }
  return tiles;
}

struct Classes {
  std::vector<int32_t> order;
  std::vector<int64_t> start;  // of each class, and the end
};

// Indices 0 .. count, whose positions are index + first, class by class.
Classes residue_classes(int64_t count, int64_t first, int64_t stride) {
  Classes c;
  for (int64_t residue = 0; residue < stride; ++residue) {
    c.start.push_back(static_cast<int64_t>(c.order.size()));
    const int64_t shift = (residue - first) - round_down(residue - first, stride);
    for (int64_t i = shift; i < count; i += stride) c.order.push_back(static_cast<int32_t>(i));
  }
  c.start.push_back(count);
  return c;
}

std::shared_ptr<const BlockLayout> class_layout(int64_t queries, int64_t keys, int64_t q_start,
                                                int64_t left, int64_t right, int64_t stride) {
  const Classes q = residue_classes(queries, q_start, stride);
  const Classes k = residue_classes(keys, 0, stride);
  std::vector<TileRuns> tiles;
  for (size_t c = 0; c < static_cast<size_t>(stride); ++c) {
    for (int64_t q0 = q.start[c]; q0 < q.start[c + 1]; q0 += kTileRows) {
      const int64_t q1 = std::min(q.start[c + 1], q0 + kTileRows);
      tiles.push_back(tile(q0, q1));
      const auto number = [&](int64_t at) {
        return floor_div(q.order[static_cast<size_t>(at)] + q_start, stride);
      };
      add_band(number(q0), number(q1 - 1), left, right, k.start[c + 1] - k.start[c], 1, k.start[c],
               tiles.back().runs);
    }
  }
  return make_layout(
      queries, keys, {tiles},
      {.order_q = Tensor::from(q.order, {queries}), .order_k = Tensor::from(k.order, {keys})});
}

// Everything that a recipe's layout depends on.
struct LayoutKey {
  Recipe recipe;
  int64_t queries, keys, q_start, left, right, stride;
  friend bool operator==(const LayoutKey&, const LayoutKey&) = default;
};

std::shared_ptr<const BlockLayout> build(const LayoutKey& key) {
  switch (key.recipe.kind) {
    case Recipe::Kind::blocks:
      return make_layout(key.queries, key.keys,
                         {block_tiles(key.queries, key.keys, key.q_start, key.recipe.block,
                                      key.recipe.key_start)});
    case Recipe::Kind::classes:
      return class_layout(key.queries, key.keys, key.q_start, key.left, key.right, key.stride);
    case Recipe::Kind::fixed:
      return make_layout(key.queries, key.keys,
                         {fixed_tiles(key.queries, key.keys, key.q_start, key.recipe)});
    default:
      return make_layout(key.queries, key.keys,
                         {band_tiles(key.queries, key.keys, key.q_start, key.left, key.right)});
  }
}

// Layouts in use, by content. Building one is cheap beside a call that reads it, so nothing is kept
// for later.
std::shared_ptr<const BlockLayout> shared(const LayoutKey& key) {
  struct Entry {
    LayoutKey key;
    std::weak_ptr<const BlockLayout> layout;
  };
  static std::mutex mutex;
  static std::vector<Entry> entries;
  const std::lock_guard lock(mutex);
  std::shared_ptr<const BlockLayout> found;
  std::erase_if(entries, [&](const Entry& e) {
    auto layout = e.layout.lock();
    if (layout != nullptr && e.key == key) found = std::move(layout);
    return e.layout.expired();
  });
  if (found == nullptr) {
    found = build(key);
    entries.push_back({key, found});
  }
  return found;
}

Tensor table(const std::vector<int32_t>& values, int64_t columns) {
  const auto rows = static_cast<int64_t>(values.size()) / columns;
  return columns == 1 ? Tensor::from(values, {rows}) : Tensor::from(values, {rows, columns});
}

// The runs of a column tile, while they are collected.
struct ColumnRun {
  int32_t tile, tiles;
  Run run;
};

void add_to_column(std::vector<ColumnRun>& column, int32_t tile, const Run& run) {
  for (size_t i = column.size(); i-- > 0;) {
    ColumnRun& c = column[i];
    if (c.tile + c.tiles < tile) break;
    if (c.tile + c.tiles == tile && c.run == run) {
      ++c.tiles;
      return;
    }
  }
  column.push_back({tile, 1, run});
}

AttentionPattern make_pattern(std::string name, const Rule& rule, const Recipe& recipe) {
  AttentionPattern p;
  p.rules = {rule};
  p.recipe = recipe;
  p.name = std::move(name);
  return p;
}

int64_t bounded(int64_t steps, int64_t dilation) {
  return steps >= kUnlimited / dilation ? kUnlimited : steps * dilation;
}

}  // namespace

kernels::AttentionLayoutView BlockLayout::view() const {
  return {first_tile.view(), tiles.view(),    row_start.view(), runs.view(),    first_column.view(),
          col_start.view(),  col_runs.view(), which.view(),     members.view(), order_q.view(),
          order_k.view(),    uniform,         multiplied};
}

std::shared_ptr<const BlockLayout> on_device(const std::shared_ptr<const BlockLayout>& layout,
                                             Device device) {
  if (layout->tiles.device() == device) return layout;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (auto known = layout->copy.lock(); known && known->tiles.device() == device) return known;
  const NoGrad off;
  auto moved = std::make_shared<BlockLayout>(*layout);
  for (Tensor* t : {&moved->first_tile, &moved->tiles, &moved->row_start, &moved->runs,
                    &moved->first_column, &moved->col_start, &moved->col_runs, &moved->which,
                    &moved->members, &moved->order_q, &moved->order_k}) {
    if (*t) *t = to_device(*t, device);
  }
  moved->original = layout;
  layout->copy = moved;
  return moved;
}

namespace {

constexpr const char* kMakeLayout = "make_layout";
constexpr auto kFields = static_cast<size_t>(kernels::kRunFields);
constexpr auto kColumnFields = static_cast<size_t>(kernels::kColumnRunFields);

void check_runs(const TileRuns& t, int32_t number, const int64_t (&keys)[2]) {
  constexpr const char* op = kMakeLayout;
  int64_t end = 0;
  uint8_t segment = 0;
  for (const Run& r : t.runs) {
    require<ShapeError>(r.segment < 2 && keys[r.segment] > 0, op,
                        "run {} + {} of tile {} is of key segment {}, which has no keys", r.k0,
                        r.kn, number, r.segment);
    require<ShapeError>(r.segment >= segment, op,
                        "tile {} has a run of segment 0 after those of segment 1", number);
    if (r.segment > segment) end = 0;
    segment = r.segment;
    require<ShapeError>(r.k0 >= end && r.kn > 0 && r.k0 + int64_t{r.kn} <= keys[segment], op,
                        "run {} + {} of tile {} overlaps the one before or leaves the {} keys",
                        r.k0, r.kn, number, keys[segment]);
    require(r.multiplicity > 0, op, "run {} + {} of tile {} has multiplicity 0", r.k0, r.kn,
            number);
    end = r.k0 + int64_t{r.kn};
  }
}

// [orders, rows], of permutations.
Tensor checked_order(const Tensor& order, int64_t rows) {
  if (!order) return order;
  constexpr const char* op = kMakeLayout;
  require<ShapeError>(
      (order.rank() == 1 || order.rank() == 2) && order.dim(-1) == rows && order.contiguous(), op,
      "an order has shape {}; expected [{}] or [orders, {}], row-major", to_string(order.shape()),
      rows, rows);
  require<DTypeError>(order.dtype() == DType::i32, op, "an order is i32");
  const auto places = order.to_vector<int32_t>();
  std::vector<bool> seen;
  for (size_t at = 0; at < places.size(); ++at) {
    if (at % static_cast<size_t>(rows) == 0) seen.assign(static_cast<size_t>(rows), false);
    const int32_t i = places[at];
    require<NotImplemented>(i >= 0 && i < rows && !seen[static_cast<size_t>(i)], op,
                            "an order that omits or repeats rows (order_q, order_k)");
    seen[static_cast<size_t>(i)] = true;
  }
  const int64_t orders = order.rank() == 1 ? 1 : order.dim(0);
  return order.rank() == 2 ? order : order.alias({orders, rows}, {rows, 1}, 0);
}

// The table of members, and what is known of all of them.
void fill_members(const std::vector<LayoutMember>& given, size_t layouts, BlockLayout& layout) {
  const Tensor &order_q = layout.order_q, &order_k = layout.order_k;
  constexpr const char* op = kMakeLayout;
  const LayoutMember first{0, order_q ? 0 : -1, order_k ? 0 : -1};
  require<ShapeError>(given.empty() || given.size() == layouts, op,
                      "{} members are described; the layout has {}", given.size(), layouts);
  const auto orders = [](const Tensor& order) {
    return static_cast<int32_t>(order ? order.dim(0) : 0);
  };
  std::vector<int32_t> table;
  layout.uniform = orders(order_q) <= 1 && orders(order_k) <= 1;
  for (size_t n = 0; n < layouts; ++n) {
    const LayoutMember m = given.empty() ? first : given[n];
    require(m.rule >= 0 && m.rule < kernels::kAttentionRules, op,
            "member {} has rule {}; expected 0 to {}", n, m.rule, kernels::kAttentionRules - 1);
    require(m.order_q >= -1 && m.order_q < orders(order_q), op,
            "member {} has order_q {} of {}; -1 is the identity", n, m.order_q, orders(order_q));
    require(m.order_k >= -1 && m.order_k < orders(order_k), op,
            "member {} has order_k {} of {}; -1 is the identity", n, m.order_k, orders(order_k));
    layout.uniform =
        layout.uniform && m.rule == 0 && m.order_q == first.order_q && m.order_k == first.order_k;
    layout.rules = std::max(layout.rules, m.rule + 1);
    table.insert(table.end(), {m.rule, m.order_q, m.order_k});
  }
  layout.members = Tensor::from(table, {static_cast<int64_t>(layouts), 3});
}

// How often neighbours of the orders descend, up to each of them, one order after the other.
std::vector<int32_t> descents(const Tensor& orders) {
  if (!orders) return {};
  const auto places = orders.to_vector<int32_t>();
  std::vector<int32_t> count(places.size(), 0);
  for (size_t i = 1; i < places.size(); ++i) {
    count[i] = count[i - 1] + (places[i] < places[i - 1] ? 1 : 0);
  }
  return count;
}

// Kernels search the keys of a run and follow the rows of a tile upwards.
void check_ascent(const std::vector<std::vector<TileRuns>>& layouts, const BlockLayout& layout) {
  if (!layout.order_q && !layout.order_k) return;
  const auto of_q = descents(layout.order_q), of_k = descents(layout.order_k);
  const auto ascends = [](const std::vector<int32_t>& count, int64_t from, int64_t n) {
    return count[static_cast<size_t>(from)] == count[static_cast<size_t>(from + n - 1)];
  };
  const auto members = layout.members.to_vector<int32_t>();
  for (size_t m = 0; m < layouts.size(); ++m) {
    const int64_t order_q = members[3 * m + 1], order_k = members[3 * m + 2];
    for (const TileRuns& t : layouts[m]) {
      require(order_q < 0 || ascends(of_q, order_q * layout.queries + t.q0, t.qn), kMakeLayout,
              "order_q descends within the tile of rows {} + {} of member {}", t.q0, t.qn, m);
      for (const Run& r : t.runs) {
        require(order_k < 0 || r.segment > 0 || ascends(of_k, order_k * layout.keys + r.k0, r.kn),
                kMakeLayout, "order_k descends within run {} + {} of member {}", r.k0, r.kn, m);
      }
    }
  }
}

}  // namespace

std::shared_ptr<const BlockLayout> make_layout(int64_t queries, int64_t keys,
                                               const std::vector<std::vector<TileRuns>>& layouts,
                                               const LayoutOptions& options) {
  constexpr const char* op = kMakeLayout;
  const int64_t segments[] = {keys, options.side_keys};
  require<ShapeError>(!layouts.empty(), op, "needs at least one member");
  for (const int64_t n : {queries, keys, options.side_keys}) {
    require<ShapeError>(n >= 0 && n < INT32_MAX, op, "{} rows or keys do not fit 32 bits", n);
  }
  std::vector<int32_t> first_tile{0}, tiles, row_start{0}, runs;
  std::vector<int32_t> first_column{0}, col_start{0}, col_runs;
  const int64_t main_columns = (keys + kColumnKeys - 1) / kColumnKeys;
  bool multiplied = false;
  const int64_t columns = main_columns + (options.side_keys + kColumnKeys - 1) / kColumnKeys;
  for (const std::vector<TileRuns>& layout : layouts) {
    std::vector<std::vector<ColumnRun>> by_column(static_cast<size_t>(columns));
    int64_t row = 0;
    int32_t number = 0;
    for (const TileRuns& t : layout) {
      require<ShapeError>(
          t.q0 == row && t.qn > 0 && t.qn <= kTileRows, op,
          "tile {} has rows {} + {}; expected it to begin at {} and to have 1 to {}", number, t.q0,
          t.qn, row, kTileRows);
      row += t.qn;
      tiles.insert(tiles.end(), {t.q0, t.qn});
      check_runs(t, number, segments);
      for (const Run& r : t.runs) {
        const int64_t end = r.k0 + int64_t{r.kn}, first = r.segment > 0 ? main_columns : 0;
        runs.insert(runs.end(),
                    {r.k0, r.kn, r.segment, static_cast<int32_t>(r.kind), r.multiplicity});
        multiplied = multiplied || r.multiplicity != 1;
        for (int64_t c = r.k0 / kColumnKeys; c * kColumnKeys < end; ++c) {
          Run part = r;
          part.k0 = static_cast<int32_t>(std::max<int64_t>(r.k0, c * kColumnKeys));
          part.kn = static_cast<int32_t>(std::min(end, (c + 1) * kColumnKeys) - part.k0);
          add_to_column(by_column[static_cast<size_t>(first + c)], number, part);
        }
      }
      row_start.push_back(static_cast<int32_t>(runs.size() / kFields));
      ++number;
    }
    require<ShapeError>(row == queries, op, "tiles hold {} rows; expected {}", row, queries);
    first_tile.push_back(static_cast<int32_t>(tiles.size() / 2));
    for (const std::vector<ColumnRun>& column : by_column) {
      for (const ColumnRun& c : column) {
        col_runs.insert(col_runs.end(), {c.tile, c.tiles, c.run.k0, c.run.kn, c.run.segment,
                                         static_cast<int32_t>(c.run.kind), c.run.multiplicity});
      }
      col_start.push_back(static_cast<int32_t>(col_runs.size() / kColumnFields));
    }
    first_column.push_back(static_cast<int32_t>(col_start.size() - 1));
  }
  if (const Tensor& which = options.which) {
    require<DTypeError>(which.dtype() == DType::i32, op, "which is i32");
    require<ShapeError>(which.rank() == 2 && which.contiguous(), op,
                        "which is [B or 1, H or 1], row-major");
    for (const int32_t n : which.to_vector<int32_t>()) {
      require(n >= 0 && n < static_cast<int32_t>(layouts.size()), op, "which names layout {} of {}",
              n, layouts.size());
    }
  }

  auto layout = std::make_shared<BlockLayout>();
  layout->queries = queries;
  layout->keys = keys;
  layout->side_keys = options.side_keys;
  layout->first_tile = table(first_tile, 1);
  layout->tiles = table(tiles, 2);
  layout->row_start = table(row_start, 1);
  layout->runs = table(runs, kernels::kRunFields);
  layout->first_column = table(first_column, 1);
  layout->col_start = table(col_start, 1);
  layout->col_runs = table(col_runs, kernels::kColumnRunFields);
  layout->multiplied = multiplied;
  layout->which = options.which ? options.which : Tensor::from(std::vector<int32_t>{0}, {1, 1});
  layout->order_q = checked_order(options.order_q, queries);
  layout->order_k = checked_order(options.order_k, keys);
  fill_members(options.members, layouts.size(), *layout);
  check_ascent(layouts, *layout);
  return layout;
}

std::shared_ptr<const BlockLayout> slice_layout(const BlockLayout& layout, int64_t queries,
                                                int64_t keys, int64_t side_keys) {
  constexpr const char* op = "slice_layout";
  require<NotImplemented>(!layout.order_q && !layout.order_k, op,
                          "a layout with order_q or order_k cannot be sliced");
  require<ShapeError>(
      0 <= queries && queries <= layout.queries && 0 <= keys && keys <= layout.keys &&
          0 <= side_keys && side_keys <= layout.side_keys,
      op, "{} queries, {} keys and {} of a second segment are more than the layout's {}, {} and {}",
      queries, keys, side_keys, layout.queries, layout.keys, layout.side_keys);
  const int64_t ends[] = {keys, side_keys};
  std::vector<std::vector<TileRuns>> members;
  for (int64_t n = 0; n < layout.layouts(); ++n) {
    std::vector<TileRuns> tiles;
    for (TileRuns& t : tiles_of(layout, n)) {
      if (t.q0 >= queries) break;
      t.qn = static_cast<int32_t>(std::min<int64_t>(t.qn, queries - t.q0));
      for (Run& r : t.runs) {
        r.kn = static_cast<int32_t>(std::min<int64_t>(r.kn, ends[r.segment] - r.k0));
      }
      std::erase_if(t.runs, [](const Run& r) { return r.kn <= 0; });
      tiles.push_back(std::move(t));
    }
    members.push_back(std::move(tiles));
  }
  LayoutOptions options{.which = layout.which, .side_keys = side_keys};
  const auto table = layout.members.to_vector<int32_t>();
  for (size_t n = 0; n < members.size(); ++n) options.members.push_back({table[3 * n], -1, -1});
  return make_layout(queries, keys, members, options);
}

std::vector<TileRuns> tiles_of(const BlockLayout& layout, int64_t member) {
  const auto first = layout.first_tile.to_vector<int32_t>();
  const auto tiles = layout.tiles.to_vector<int32_t>();
  const auto start = layout.row_start.to_vector<int32_t>();
  const auto runs = layout.runs.to_vector<int32_t>();
  std::vector<TileRuns> out;
  for (auto t = static_cast<size_t>(first[static_cast<size_t>(member)]);
       t < static_cast<size_t>(first[static_cast<size_t>(member) + 1]); ++t) {
    TileRuns tile_runs{tiles[2 * t], tiles[2 * t + 1], {}};
    for (auto i = static_cast<size_t>(start[t]); i < static_cast<size_t>(start[t + 1]); ++i) {
      const int32_t* r = &runs[kFields * i];
      tile_runs.runs.push_back({r[0], r[1], static_cast<uint8_t>(r[2]), static_cast<RunKind>(r[3]),
                                static_cast<uint8_t>(r[4])});
    }
    out.push_back(std::move(tile_runs));
  }
  return out;
}

AttentionPattern with_lengths(AttentionPattern pattern, const Tensor& q_valid,
                              const Tensor& k_valid) {
  pattern.q_valid = q_valid;
  pattern.mask.k_valid = k_valid;
  return pattern;
}

AttentionPattern resolve(const AttentionPattern& pattern, int64_t queries, int64_t keys,
                         int64_t side_keys) {
  constexpr const char* op = "attention pattern";
  AttentionPattern p = pattern;
  if (p.rules.empty()) p.rules.emplace_back();
  if (p.side_rules.empty()) p.side_rules.push_back({.q_start = 0});
  for (Rule& rule : p.rules) {
    if (rule.q_start == Rule::align_ends) rule.q_start = keys - queries;
  }
  for (Rule& rule : p.side_rules) {
    if (rule.q_start == Rule::align_ends) rule.q_start = side_keys - queries;
  }
  if (p.layout != nullptr) {
    require<ShapeError>(
        p.layout->queries == queries && p.layout->keys == keys && p.layout->side_keys == side_keys,
        op,
        "{} has a layout for {} queries, {} keys and {} of a second segment; got "
        "{}, {} and {}",
        p.name, p.layout->queries, p.layout->keys, p.layout->side_keys, queries, keys, side_keys);
    return p;
  }
  require(side_keys == 0, op, "{} has a recipe for one key segment, and {} keys of a second one",
          p.name, side_keys);
  require(p.recipe.kind != Recipe::Kind::none, op, "{} has neither a layout nor a recipe for one",
          p.name);
  const Rule& rule = p.rules.front();
  // Beyond all distances every class has one member, whatever the stride.
  const int64_t stride = std::min(rule.stride > 0 ? rule.stride : rule.window.dilation,
                                  queries + keys + std::abs(rule.q_start) + 1);
  const int64_t right = rule.causal ? std::min<int64_t>(0, rule.window.right) : rule.window.right;
  p.layout = shared({p.recipe, queries, keys, rule.q_start, rule.window.left, right, stride});
  return p;
}

bool rule_allows(const Rule& rule, int64_t i, int64_t j) {
  const int64_t distance = i + rule.q_start - j;
  if (rule.causal && distance < 0) return false;
  const Window& w = rule.window;
  if (distance > bounded(w.left, w.dilation) || -distance > bounded(w.right, w.dilation)) {
    return false;
  }
  if (distance % w.dilation != 0) return false;
  return rule.stride == 0 || distance % rule.stride == 0;
}

namespace {

// What layout and rules say of one head, whatever the samples' lengths and masks.
PairCount unmasked_pairs(AttentionPattern pattern, int64_t queries, int64_t keys, int64_t head,
                         const std::function<void(int64_t, int, int64_t)>& visit = {}) {
  pattern.q_valid = {};
  pattern.mask = pattern.side_mask = {};
  return count_pairs(pattern, queries, keys, 0, 0, head, visit);
}

}  // namespace

int64_t visible_pairs(const AttentionPattern& pattern, int64_t queries, int64_t keys,
                      int64_t head) {
  return unmasked_pairs(pattern, queries, keys, head).attended;
}

int64_t covered_pairs(const AttentionPattern& pattern, int64_t queries, int64_t keys,
                      int64_t head) {
  return unmasked_pairs(pattern, queries, keys, head).computed;
}

std::string describe(const AttentionPattern& pattern, int64_t queries, int64_t keys) {
  const bool drawn = queries <= 64 && keys <= 128;
  std::vector<std::string> picture(static_cast<size_t>(drawn ? queries : 0),
                                   std::string(static_cast<size_t>(keys), '.'));
  std::function<void(int64_t, int, int64_t)> draw;
  if (drawn) {
    draw = [&picture](int64_t i, int, int64_t j) {
      picture[static_cast<size_t>(i)][static_cast<size_t>(j)] = '#';
    };
  }
  const PairCount n = unmasked_pairs(pattern, queries, keys, 0, draw);
  std::string text =
      fmt::format("{}: {} queries, {} keys, {} of {} pairs visible, {} in runs\n", pattern.name,
                  queries, keys, n.attended, queries * keys, n.computed);
  for (const std::string& line : picture) text += line + "\n";
  return text;
}

namespace patterns {

AttentionPattern dense() { return make_pattern("dense", {}, {.kind = Recipe::Kind::dense}); }

AttentionPattern causal() {
  Rule rule;
  rule.causal = true;
  return make_pattern("causal", rule, {.kind = Recipe::Kind::band});
}

AttentionPattern local(int64_t width) {
  require(width >= 1, "patterns::local", "width is {}; a query sees at least itself: 1 or more",
          width);
  Rule rule;
  rule.causal = true;
  rule.window.left = width - 1;
  return make_pattern(fmt::format("local({})", width), rule, {.kind = Recipe::Kind::band});
}

AttentionPattern local_bidirectional(int64_t width) {
  require(width >= 0, "patterns::local_bidirectional", "width is {}; expected 0 or more", width);
  Rule rule;
  rule.window.left = rule.window.right = width / 2;
  return make_pattern(fmt::format("local_bidirectional({})", width), rule,
                      {.kind = Recipe::Kind::band});
}

AttentionPattern local_block(int64_t block, int64_t key_start) {
  require(block >= 1, "patterns::local_block", "block is {}; expected 1 or more", block);
  require(key_start >= 0, "patterns::local_block", "key_start is {}; expected 0 or more",
          key_start);
  Rule rule;
  rule.causal = true;
  return make_pattern(fmt::format("local_block({})", block), rule,
                      {.kind = Recipe::Kind::blocks, .block = block, .key_start = key_start});
}

AttentionPattern dilated(int64_t left, int64_t right, int64_t dilation) {
  require(left >= -right, "patterns::dilated",
          "the window is {} to the left and {} to the right, and holds nothing", left, right);
  require(dilation >= 1, "patterns::dilated", "dilation is {}; expected 1 or more", dilation);
  Rule rule;
  rule.window = {left, right, dilation};
  return make_pattern(fmt::format("dilated({}, {}, {})", left, right, dilation), rule,
                      {.kind = Recipe::Kind::classes});
}

AttentionPattern strided(int64_t stride) {
  require(stride >= 1, "patterns::strided", "stride is {}; expected 1 or more", stride);
  Rule rule;
  rule.causal = true;
  rule.stride = stride;
  return make_pattern(fmt::format("strided({})", stride), rule, {.kind = Recipe::Kind::classes});
}

}  // namespace patterns
}  // namespace longspan
