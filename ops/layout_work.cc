#include "ops/layout_work.h"

#include <algorithm>
#include <numeric>

#include "core/divide.h"

namespace longspan {
namespace {

constexpr int64_t kUnit = kernels::kAttentionWorkKeys;
constexpr int64_t kPieceRows = 32;

using Numbers = std::vector<int32_t>;

// What the places of all members cost: those of member n are first[n] .. first[n + 1].
struct Costs {
  std::vector<int64_t> first{0}, cost;

  void begin(int64_t places) {
    first.push_back(first.back() + places);
    cost.resize(static_cast<size_t>(first.back()), 0);
  }
};

// The members' places by cost, each for all entries of `which` that name its member.
Tensor list_of(const Costs& costs, const Numbers& which) {
  const auto members = costs.first.size() - 1;
  std::vector<Numbers> entries(members);
  for (size_t w = 0; w < which.size(); ++w) {
    entries[static_cast<size_t>(which[w])].push_back(static_cast<int32_t>(w));
  }
  std::vector<int64_t> order(costs.cost.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return costs.cost[static_cast<size_t>(a)] > costs.cost[static_cast<size_t>(b)];
  });
  Numbers list;
  for (const int64_t at : order) {
    const auto above = std::upper_bound(costs.first.begin(), costs.first.end(), at);
    const auto member = static_cast<size_t>(above - costs.first.begin()) - 1;
    const auto place = static_cast<int32_t>(at - costs.first[member]);
    for (const int32_t w : entries[member]) list.insert(list.end(), {w, place});
  }
  return Tensor::from(list, {static_cast<int64_t>(list.size()) / 2, 2});
}

}  // namespace

LayoutWork work_of(const kernels::AttentionLayoutView& layout, int64_t keys, int64_t side_keys) {
  const auto* const first_tile = layout.first_tile.as<int32_t>();
  const auto* const tiles = layout.tiles.as<int32_t>();
  const auto* const start = layout.row_start.as<int32_t>();
  const int64_t main = ceil_div(keys, kUnit), steps = main + ceil_div(side_keys, kUnit);
  Costs rows, columns;
  for (int64_t n = 0; n + 1 < layout.first_tile.dim(0); ++n) {
    rows.begin(first_tile[n + 1] - first_tile[n]);
    columns.begin(steps);
    // What the cost changes by from each step to the next.
    std::vector<int64_t> change(static_cast<size_t>(steps) + 1, 0);
    for (int32_t t = first_tile[n]; t < first_tile[n + 1]; ++t) {
      const int64_t pieces = ceil_div(int64_t{tiles[2 * t + 1]}, kPieceRows);
      int64_t counted = 0;  // steps below are
      for (int32_t r = start[t]; r < start[t + 1]; ++r) {
        const int32_t* const run = layout.runs.as<int32_t>() + kernels::kRunFields * r;
        const int64_t base = run[2] == 0 ? 0 : main, last = int64_t{run[0]} + run[1] - 1;
        const int64_t from = std::max(counted, base + run[0] / kUnit);
        counted = base + last / kUnit + 1;
        if (counted <= from) continue;
        rows.cost[static_cast<size_t>(t)] += counted - from;
        change[static_cast<size_t>(from)] += pieces;
        change[static_cast<size_t>(counted)] -= pieces;
      }
    }
    std::partial_sum(change.begin(), change.end() - 1, columns.cost.end() - steps);
  }
  const auto* const which = layout.which.as<int32_t>();
  const Numbers entries(which, which + layout.which.numel());
  return {list_of(rows, entries), list_of(columns, entries)};
}

}  // namespace longspan
