#include "ops/patterns/pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/divide.h"
#include "ops/patterns/host_view.h"

namespace longspan {
namespace {

using detail::choose;
using detail::HostMasks;
using detail::order_of;
using detail::period_of;

/// Returns how many keys of [j0, j1) query i may see, from the allowed distances, without visiting
/// each key.
int64_t allowed_keys(const Rule& rule, int64_t period, int64_t i, int64_t j0, int64_t j1) {
  const int64_t place = i + rule.q_start;
  int64_t least = std::max(place - j1 + 1, -rule.window.reach_right());
  if (rule.causal) least = std::max<int64_t>(least, 0);
  const int64_t most = std::min(place - j0, rule.window.reach_left());
  if (most < least) return 0;
  // Counts the multiples of the period in [least, most].
  return ceil_div(most + 1, period) - ceil_div(least, period);
}

}  // namespace

int64_t side_keys_of(const AttentionPattern& pattern) {
  return pattern.layout != nullptr ? pattern.layout->side_keys : 0;
}

AttentionPattern without_masks(AttentionPattern pattern) {
  pattern.q_valid = {};
  pattern.mask = pattern.side_mask = {};
  return pattern;
}

PairCount count_pairs(const AttentionPattern& pattern, int64_t queries, int64_t keys,
                      int64_t side_keys, int64_t sample, int64_t head,
                      const std::function<void(int64_t i, int segment, int64_t j)>& visit) {
  const AttentionPattern p = resolve(pattern, queries, keys, side_keys);
  const BlockLayout& layout = *p.layout;
  const auto which = layout.layout_index.to_vector<int32_t>();  // [B or 1, H or 1]
  const int64_t rows = layout.layout_index.dim(0), columns = layout.layout_index.dim(1);
  const int32_t number =
      which[static_cast<size_t>((rows > 1 ? sample : 0) * columns + (columns > 1 ? head : 0))];
  const auto members = layout.members.to_vector<int32_t>();
  const int32_t* const member = members.data() + 3 * number;
  const auto order_q = order_of(layout.order_q, member[1]);
  const auto order_k = order_of(layout.order_k, member[2]);

  Rule anything;
  anything.q_start = 0;
  const Rule rules[] = {choose(p.rules, member[0]),
                        p.side_rules.empty() ? anything : choose(p.side_rules, member[0])};
  const HostMasks masks[] = {{p.mask, keys}, {p.side_mask, side_keys}};
  const kernels::SampleMasks shown[] = {masks[0].of(sample), masks[1].of(sample)};
  int64_t q_end = queries;
  if (p.q_valid) q_end = detail::length_of(p.q_valid.to_vector<int64_t>(), sample, queries);
  const int64_t periods[] = {period_of(rules[0]), period_of(rules[1])};
  const auto index = [](const std::vector<int32_t>& order, int64_t place) {
    return order.empty() ? place : int64_t{order[static_cast<size_t>(place)]};
  };

  PairCount n;
  for (const TileRuns& tile : tiles_of(layout, number)) {
    for (const KeyRun& run : tile.runs) {
      const int64_t covered = int64_t{tile.qn} * run.kn;
      n.computed += covered;
      const bool all_rows = !visit && !p.q_valid && masks[run.segment].empty();
      if (all_rows && run.kind == RunKind::full) {
        n.attended += covered;
        continue;
      }
      if (all_rows && (run.segment > 0 || order_k.empty())) {
        for (int64_t row = tile.q0; row < int64_t{tile.q0} + tile.qn; ++row) {
          n.attended += allowed_keys(rules[run.segment], periods[run.segment], index(order_q, row),
                                     run.k0, int64_t{run.k0} + run.kn);
        }
        continue;
      }
      for (int64_t row = tile.q0; row < int64_t{tile.q0} + tile.qn; ++row) {
        const int64_t i = index(order_q, row);
        if (i >= q_end) continue;
        for (int64_t place = run.k0; place < int64_t{run.k0} + run.kn; ++place) {
          const int64_t j = run.segment == 0 ? index(order_k, place) : place;
          const bool seen = run.kind == RunKind::full || rule_allows(rules[run.segment], i, j);
          if (!seen || !shown[run.segment].allows(i, j)) continue;
          ++n.attended;
          if (visit) visit(i, run.segment, j);
        }
      }
    }
  }
  return n;
}

int64_t attended_pairs(const AttentionPattern& pattern, int64_t batch, int64_t heads,
                       int64_t queries, int64_t keys) {
  const int64_t side_keys = side_keys_of(pattern);
  const AttentionPattern p = resolve(without_masks(pattern), queries, keys, side_keys);
  const auto which = p.layout->layout_index.to_vector<int32_t>();
  const int64_t rows = p.layout->layout_index.dim(0), columns = p.layout->layout_index.dim(1);
  std::vector<int64_t> of_member(static_cast<size_t>(p.layout->layouts()), -1);
  int64_t n = 0;
  for (int64_t at = 0; at < rows * columns; ++at) {
    int64_t& pairs = of_member[static_cast<size_t>(which[static_cast<size_t>(at)])];
    if (pairs < 0) {
      pairs = count_pairs(p, queries, keys, side_keys, at / columns, at % columns).attended;
    }
    n += pairs;
  }
  return n * (batch / rows) * (heads / columns);
}

int64_t PairsOfLayouts::count(const AttentionPattern& pattern, int64_t batch, int64_t heads,
                              int64_t queries, int64_t keys) {
  const AttentionPattern p = resolve(without_masks(pattern), queries, keys, side_keys_of(pattern));
  std::erase_if(known_, [](const Known& k) { return k.layout.expired(); });
  const auto at = std::find_if(known_.begin(), known_.end(), [&](const Known& k) {
    return k.layout.lock() == p.layout && k.rules == p.rules && k.side_rules == p.side_rules &&
           k.batch == batch && k.heads == heads;
  });
  if (at != known_.end()) return at->pairs;
  known_.push_back({p.layout, p.rules, p.side_rules, batch, heads,
                    attended_pairs(p, batch, heads, queries, keys)});
  return known_.back().pairs;
}

namespace {

// Counts the pairs that layout and rules allow for one head, without per-sample lengths and masks.
PairCount unmasked_pairs(const AttentionPattern& pattern, int64_t queries, int64_t keys,
                         int64_t head,
                         const std::function<void(int64_t, int, int64_t)>& visit = {}) {
  return count_pairs(without_masks(pattern), queries, keys, side_keys_of(pattern), 0, head, visit);
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
  const int64_t side = side_keys_of(pattern), width = side > 0 ? keys + 1 + side : keys;
  const bool drawn = queries <= 64 && width <= 128;
  std::string blank(static_cast<size_t>(width), '.');
  if (side > 0) blank[static_cast<size_t>(keys)] = '|';
  std::vector<std::string> picture(static_cast<size_t>(drawn ? queries : 0), blank);
  std::function<void(int64_t, int, int64_t)> draw;
  if (drawn) {
    draw = [&picture, keys](int64_t i, int segment, int64_t j) {
      picture[static_cast<size_t>(i)][static_cast<size_t>(segment > 0 ? keys + 1 + j : j)] = '#';
    };
  }
  const PairCount n = unmasked_pairs(pattern, queries, keys, 0, draw);
  std::string text =
      fmt::format("{}: {} queries, {} keys, {} of {} pairs visible, {} in runs\n", pattern.name,
                  queries, keys + side, n.attended, queries * (keys + side), n.computed);
  for (const std::string& line : picture) text += line + "\n";
  return text;
}

}  // namespace longspan
