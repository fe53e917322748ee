#include "ops/pattern_fixed.h"

#include <algorithm>

#include "ops/copy.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr int64_t kTileRows = kernels::kAttentionTileRows;

void add_run(int64_t k0, int64_t k1, RunKind kind, std::vector<Run>& runs) {
  if (k0 >= k1) return;
  if (kind == RunKind::full && !runs.empty() && runs.back().kind == kind &&
      runs.back().k0 + runs.back().kn == k0) {
    runs.back().kn += static_cast<int32_t>(k1 - k0);
    return;
  }
  runs.push_back({static_cast<int32_t>(k0), static_cast<int32_t>(k1 - k0), 0, kind});
}

// What rows of block `number` see, the last of them at position `last`.
std::vector<Run> runs_of(int64_t number, int64_t last, const Recipe& r) {
  std::vector<Run> runs;
  for (int64_t start = 0; start < number * r.block; start += r.block) {
    add_run(start + r.first_column, start + r.first_column + r.columns, RunKind::full, runs);
  }
  const int64_t start = number * r.block;
  const int64_t k0 = r.own_block ? start : start + r.first_column;
  const int64_t k1 = r.own_block ? start + r.block : k0 + r.columns;
  add_run(k0, std::min(k1, last + 1), RunKind::partial, runs);
  return runs;
}

AttentionPattern make(std::string name, const Recipe& recipe) {
  AttentionPattern p;
  p.rules.resize(1);
  p.rules.front().causal = true;
  p.recipe = recipe;
  p.name = std::move(name);
  return p;
}

Recipe recipe_of(const char* op, int64_t block, int64_t columns, int64_t sub_block) {
  require(block >= 1, op, "block is {}; expected 1 or more", block);
  require(columns >= 1 && columns <= block, op, "columns is {}; expected 1 to block = {}", columns,
          block);
  require(sub_block >= 0 && sub_block < block / columns, op,
          "sub_block is {}; expected 0 to {}, for block {} has so many times {} columns", sub_block,
          block / columns - 1, block, columns);
  return {.kind = Recipe::Kind::fixed,
          .block = block,
          .first_column = block - (sub_block + 1) * columns,
          .columns = columns};
}

// The place of a rule in a list, at the end of which it is put where it is new.
int32_t place_in(std::vector<Rule>& rules, const Rule& rule) {
  const auto known = std::find(rules.begin(), rules.end(), rule);
  const auto place = static_cast<int32_t>(known - rules.begin());
  if (known == rules.end()) rules.push_back(rule);
  return place;
}

// The place of order `number` of a layout in a list, at the end of which it is put; -1 without one.
int32_t add_order(const Tensor& all, int32_t number, std::vector<Tensor>& orders) {
  if (number < 0) return -1;
  orders.push_back(narrow(all, 0, number, 1));
  return static_cast<int32_t>(orders.size()) - 1;
}

}  // namespace

std::vector<TileRuns> fixed_tiles(int64_t queries, int64_t keys, int64_t q_start, const Recipe& r) {
  std::vector<TileRuns> tiles;
  for (int64_t from = 0; from < queries;) {
    const int64_t position = from + q_start;  // below 0 where there are fewer keys than queries
    const int64_t number = position < 0 ? -1 : position / r.block;
    const int64_t to = std::min(queries, (number + 1) * r.block - q_start);
    const int64_t parts = (to - from + kTileRows - 1) / kTileRows;
    const int64_t rows = (to - from + parts - 1) / parts;
    for (int64_t q0 = from; q0 < to; q0 += rows) {
      const int64_t q1 = std::min(to, q0 + rows);
      tiles.push_back({static_cast<int32_t>(q0), static_cast<int32_t>(q1 - q0), {}});
      if (number >= 0) {
        tiles.back().runs = runs_of(number, std::min(q1 + q_start, keys) - 1, r);
      }
    }
    from = to;
  }
  return tiles;
}

namespace patterns {

AttentionPattern fixed_block(int64_t block) {
  require(block >= 1, "patterns::fixed_block", "block is {}; expected 1 or more", block);
  return make(fmt::format("fixed_block({})", block),
              {.kind = Recipe::Kind::fixed, .block = block, .own_block = true});
}

AttentionPattern fixed_summary(int64_t block, int64_t columns, int64_t sub_block) {
  return make(fmt::format("fixed_summary({}, {}, {})", block, columns, sub_block),
              recipe_of("patterns::fixed_summary", block, columns, sub_block));
}

AttentionPattern fixed(int64_t block, int64_t columns, int64_t sub_block) {
  Recipe recipe = recipe_of("patterns::fixed", block, columns, sub_block);
  recipe.own_block = true;
  return make(fmt::format("fixed({}, {}, {})", block, columns, sub_block), recipe);
}

AttentionPattern by_head(const std::vector<AttentionPattern>& heads, int64_t queries,
                         int64_t keys) {
  constexpr const char* op = "patterns::by_head";
  require(!heads.empty(), op, "needs a pattern for each head, got none");
  std::vector<AttentionPattern> members;  // equal patterns share a layout
  std::vector<int32_t> which;
  AttentionPattern all;
  all.name = "";
  for (const AttentionPattern& head : heads) {
    AttentionPattern p = resolve(head, queries, keys);
    require<NotImplemented>(p.layout->layouts() == 1, op,
                            "{}, whose heads or samples differ already", p.name);
    const auto known = std::find_if(members.begin(), members.end(), [&](const auto& m) {
      return m.layout == p.layout && m.rules == p.rules;
    });
    which.push_back(static_cast<int32_t>(known - members.begin()));
    if (known != members.end()) continue;
    all.name += (all.name.empty() ? "" : " | ") + head.name;
    members.push_back(std::move(p));
  }
  if (members.size() == 1) return members.front();

  std::vector<std::vector<TileRuns>> tiles;
  std::vector<Tensor> orders_q, orders_k;
  LayoutOptions options;
  for (const AttentionPattern& m : members) {
    tiles.push_back(tiles_of(*m.layout, 0));
    const auto member = m.layout->members.to_vector<int32_t>();  // [1, 3]
    const Rule& rule = m.rules[m.rules.size() > 1 ? static_cast<size_t>(member[0]) : 0];
    options.members.push_back({place_in(all.rules, rule),
                               add_order(m.layout->order_q, member[1], orders_q),
                               add_order(m.layout->order_k, member[2], orders_k)});
    if (m.recipe.kind == Recipe::Kind::classes) all.recipe.kind = m.recipe.kind;
  }
  options.which = Tensor::from(which, {1, static_cast<int64_t>(which.size())});
  if (!orders_q.empty()) options.order_q = concat(orders_q, 0);
  if (!orders_k.empty()) options.order_k = concat(orders_k, 0);
  all.layout = make_layout(queries, keys, tiles, options);
  return all;
}

}  // namespace patterns
}  // namespace longspan
