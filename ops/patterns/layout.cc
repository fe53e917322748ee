#include "ops/patterns/layout.h"

#include <algorithm>
#include <utility>

#include "core/divide.h"

namespace longspan {
namespace {

constexpr int64_t kColumnKeys = kernels::kAttentionColumnKeys;

Tensor table(const std::vector<int32_t>& values, int64_t columns) {
  const auto rows = static_cast<int64_t>(values.size()) / columns;
  return columns == 1 ? Tensor::from(values, {rows}) : Tensor::from(values, {rows, columns});
}

// A run of a column tile while the column is built.
struct ColumnRun {
  int32_t tile, tiles;
  KeyRun run;
};

void add_to_column(std::vector<ColumnRun>& column, int32_t tile, const KeyRun& run) {
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

}  // namespace

KeyRun run_of(int64_t k0, int64_t k1, RunKind kind, int64_t multiplicity) {
  require(multiplicity >= 1 && multiplicity <= UINT8_MAX, "run_of",
          "keys {} to {} would count {} times; expected 1 to {}", k0, k1 - 1, multiplicity,
          UINT8_MAX);
  return {static_cast<int32_t>(k0), static_cast<int32_t>(k1 - k0), 0, kind,
          static_cast<uint8_t>(multiplicity)};
}

TileRuns tile_of(int64_t q0, int64_t q1, std::vector<KeyRun> runs) {
  return {static_cast<int32_t>(q0), static_cast<int32_t>(q1 - q0), std::move(runs)};
}

int64_t tile_height(int64_t rows, int64_t unit) {
  if (rows <= 0) return unit;
  return std::min(kernels::kAttentionTileRows,
                  round_up(ceil_div(rows, ceil_div(rows, kernels::kAttentionTileRows)), unit));
}

kernels::AttentionLayoutView BlockLayout::view() const {
  kernels::AttentionLayoutView v;
  AttentionLayout::visit_tensors([](ConstView& to, const Tensor& from) { to = from.view(); }, v,
                                 *this);
  v.row_work.workspace = row_work.workspace;
  v.column_work.workspace = column_work.workspace;
  v.uniform = uniform;
  v.multiplied = multiplied;
  return v;
}

namespace {

constexpr const char* kMakeLayout = "make_layout";
constexpr auto kFields = static_cast<size_t>(kernels::kRunFields);
constexpr auto kColumnFields = static_cast<size_t>(kernels::kColumnRunFields);

void check_runs(const TileRuns& t, int32_t number, const int64_t (&keys)[2]) {
  constexpr const char* op = kMakeLayout;
  int64_t end = 0;
  uint8_t segment = 0;
  for (const KeyRun& r : t.runs) {
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

// Checks an order and returns it as [orders, rows]; each row is a permutation.
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
  return Tensor::from(places, {orders, rows});
}

// Fills the table of members and the fields that summarise it.
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

// Returns, for each entry of the concatenated orders, the number of descents between neighbours so
// far.
std::vector<int32_t> descents(const Tensor& orders) {
  if (!orders) return {};
  const auto places = orders.to_vector<int32_t>();
  std::vector<int32_t> count(places.size(), 0);
  for (size_t i = 1; i < places.size(); ++i) {
    count[i] = count[i - 1] + (places[i] < places[i - 1] ? 1 : 0);
  }
  return count;
}

// Kernels search the keys of a run, and iterate over the rows of a tile, in ascending order.
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
      for (const KeyRun& r : t.runs) {
        require(order_k < 0 || r.segment > 0 || ascends(of_k, order_k * layout.keys + r.k0, r.kn),
                kMakeLayout, "order_k descends within run {} + {} of member {}", r.k0, r.kn, m);
      }
    }
  }
}

// Returns a copy of LayoutOptions::layout_index, checked against the number of layouts.
Tensor checked_index(const Tensor& layout_index, size_t layouts) {
  constexpr const char* op = kMakeLayout;
  if (!layout_index) return Tensor::from(std::vector<int32_t>{0}, {1, 1});
  require<DTypeError>(layout_index.dtype() == DType::i32, op, "layout_index is i32");
  require<ShapeError>(layout_index.rank() == 2 && layout_index.contiguous(), op,
                      "layout_index is [B or 1, H or 1], row-major");
  const std::vector<int32_t> values = layout_index.to_vector<int32_t>();
  for (const int32_t n : values) {
    require(n >= 0 && n < static_cast<int32_t>(layouts), op, "layout_index names layout {} of {}",
            n, layouts);
  }
  return Tensor::from(values, layout_index.shape());
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
  const int64_t main_columns = ceil_div(keys, kColumnKeys);
  bool multiplied = false;
  const int64_t columns = main_columns + ceil_div(options.side_keys, kColumnKeys);
  for (const std::vector<TileRuns>& layout : layouts) {
    std::vector<std::vector<ColumnRun>> by_column(static_cast<size_t>(columns));
    int64_t row = 0;
    int32_t number = 0;
    for (const TileRuns& t : layout) {
      require<ShapeError>(
          t.q0 == row && t.qn > 0 && t.qn <= kernels::kAttentionTileRows, op,
          "tile {} has rows {} + {}; expected it to begin at {} and to have 1 to {}", number, t.q0,
          t.qn, row, kernels::kAttentionTileRows);
      row += t.qn;
      tiles.insert(tiles.end(), {t.q0, t.qn});
      check_runs(t, number, segments);
      for (const KeyRun& r : t.runs) {
        const int64_t end = r.k0 + int64_t{r.kn}, first = r.segment > 0 ? main_columns : 0;
        runs.insert(runs.end(),
                    {r.k0, r.kn, r.segment, static_cast<int32_t>(r.kind), r.multiplicity});
        multiplied = multiplied || r.multiplicity != 1;
        for (int64_t c = r.k0 / kColumnKeys; c * kColumnKeys < end; ++c) {
          KeyRun part = r;
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
  const Tensor layout_index = checked_index(options.layout_index, layouts.size());

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
  layout->layout_index = layout_index;
  layout->order_q = checked_order(options.order_q, queries);
  layout->order_k = checked_order(options.order_k, keys);
  fill_members(options.members, layouts.size(), *layout);
  check_ascent(layouts, *layout);
  return layout;
}

std::vector<LayoutMember> members_of(const BlockLayout& layout) {
  const auto table = layout.members.to_vector<int32_t>();
  std::vector<LayoutMember> members;
  for (size_t n = 0; n < table.size(); n += 3) {
    members.push_back({table[n], table[n + 1], table[n + 2]});
  }
  return members;
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
      for (KeyRun& r : t.runs) {
        r.kn = static_cast<int32_t>(std::min<int64_t>(r.kn, ends[r.segment] - r.k0));
      }
      std::erase_if(t.runs, [](const KeyRun& r) { return r.kn <= 0; });
      tiles.push_back(std::move(t));
    }
    members.push_back(std::move(tiles));
  }
  return make_layout(
      queries, keys, members,
      {.layout_index = layout.layout_index, .members = members_of(layout), .side_keys = side_keys});
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

}  // namespace longspan
