#include "ops/patterns/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "core/divide.h"
#include "ops/patterns/layout_cache.h"

namespace longspan {
namespace {

// Adds rows q0 .. q1 as tiles of nearly equal height.
void add_tiles(int64_t q0, int64_t q1, const std::vector<KeyRun>& runs,
               std::vector<TileRuns>& tiles) {
  const int64_t height = tile_height(q1 - q0, kRowGroup);
  for (int64_t q = q0; q < q1; q += height) {
    tiles.push_back(tile_of(q, std::min(q1, q + height), runs));
  }
}

// Merges adjacent blocks of equal multiplicity into one run. The own block of a causal table is a
// partial run, in which the rule decides.
std::vector<KeyRun> runs_of(const BlockTable& table, int64_t row) {
  const std::vector<int64_t>& blocks = table.keys[static_cast<size_t>(row)];
  constexpr int64_t most = std::numeric_limits<uint8_t>::max();
  std::vector<KeyRun> runs;
  int64_t last = 0;
  for (auto at = blocks.begin(); at != blocks.end();) {
    const int64_t k = *at;
    const auto next = std::find_if(at, blocks.end(), [k](int64_t other) { return other != k; });
    const int64_t times = next - at;
    at = next;
    require<ShapeError>(k >= last && k < table.blocks() && times <= most, "block_lists",
                        "block {} after {} of {}, {} times; expected them ascending, each {} times "
                        "at most",
                        k, last, table.blocks(), times, most);
    require<ShapeError>(!table.causal || k <= row, "block_lists",
                        "row {} of a causal table has block {}; expected none after its own", row,
                        k);
    last = k;
    const int64_t k0 = table.bounds[static_cast<size_t>(k)];
    const int64_t k1 = table.bounds[static_cast<size_t>(k) + 1];
    if (k0 == k1) continue;
    const bool own = table.causal && k == row;
    if (!own && !runs.empty() && runs.back().k0 + runs.back().kn == k0 &&
        runs.back().multiplicity == times) {
      runs.back().kn += static_cast<int32_t>(k1 - k0);
    } else {
      runs.push_back(run_of(k0, k1, own ? RunKind::partial : RunKind::full, times));
    }
  }
  return runs;
}

std::vector<TileRuns> tiles_of_table(int64_t length, const BlockTable& table, int64_t first) {
  const auto& bounds = table.bounds;
  require<ShapeError>(bounds.size() == table.keys.size() + 1 && bounds.front() == 0 &&
                          bounds.back() <= length && std::is_sorted(bounds.begin(), bounds.end()),
                      "block_lists", "{} bounds up to {} for {} blocks of {} tokens", bounds.size(),
                      bounds.empty() ? 0 : bounds.back(), table.keys.size(), length);
  std::vector<TileRuns> tiles;
  for (int64_t i = 0; i < table.blocks(); ++i) {
    const int64_t q0 = std::max(bounds[static_cast<size_t>(i)], first);
    const int64_t q1 = bounds[static_cast<size_t>(i) + 1];
    if (q0 < q1) add_tiles(q0 - first, q1 - first, runs_of(table, i), tiles);
  }
  add_tiles(std::max(bounds.back(), first) - first, length - first, {}, tiles);
  return tiles;
}

void require_permutation(const std::vector<int64_t>& pi, size_t n, size_t head) {
  std::vector<int64_t> sorted = pi;
  std::sort(sorted.begin(), sorted.end());
  bool bijection = pi.size() == n;
  for (size_t k = 0; bijection && k < n; ++k) bijection = sorted[k] == static_cast<int64_t>(k);
  require(bijection, "patterns::permuted_blocks",
          "the permutation of head {} is not one of 0 to {}: ({})", head,
          static_cast<int64_t>(n) - 1, fmt::join(pi, ", "));
}

}  // namespace

int64_t BlockTable::pairs() const {
  const auto size = [this](size_t k) { return bounds[k + 1] - bounds[k]; };
  int64_t n = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    int64_t last = -1;
    for (const int64_t k : keys[i]) {
      if (k == last) continue;
      last = k;
      const bool own = causal && k == static_cast<int64_t>(i);
      n += own ? size(i) * (size(i) + 1) / 2 : size(i) * size(static_cast<size_t>(k));
    }
  }
  return n;
}

std::vector<int64_t> block_bounds(int64_t length, int64_t block) {
  require(length >= 0 && block >= 1, "block_bounds",
          "{} tokens in blocks of {}; expected blocks of 1 or more", length, block);
  std::vector<int64_t> bounds;
  for (int64_t k = 0; k < length; k += block) bounds.push_back(k);
  bounds.push_back(length);
  return bounds;
}

// floor(i n / padded) >= k holds exactly for i >= ceil(k padded / n).
std::vector<int64_t> equal_block_bounds(int64_t length, int64_t n, int64_t padded) {
  require(length >= 0 && n >= 1 && padded >= length, "equal_block_bounds",
          "{} tokens, padded to {}, in {} blocks; expected 1 block or more, padded >= length",
          length, padded, n);
  std::vector<int64_t> bounds;
  for (int64_t k = 0; k <= n; ++k) bounds.push_back(std::min(length, ceil_div(k * padded, n)));
  return bounds;
}

BlockTable bigbird_blocks(int64_t length, int64_t block,
                          const std::vector<std::vector<int64_t>>& random, bool repeats) {
  constexpr const char* op = "bigbird_blocks";
  BlockTable table;
  table.bounds = block_bounds(length, block);
  const int64_t n = table.blocks();
  std::vector<int64_t> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), int64_t{0});
  table.keys.assign(static_cast<size_t>(n), all);
  if (random.empty()) return table;
  require(static_cast<int64_t>(random.size()) == n - 2, op,
          "random blocks of {} rows for {} blocks; expected {} rows", random.size(), n,
          std::max<int64_t>(n - 2, 0));
  for (int64_t i = 1; i + 1 < n; ++i) {
    std::vector<int64_t>& row = table.keys[static_cast<size_t>(i)];
    row = {0, i - 1, i, i + 1, n - 1};
    std::sort(row.begin(), row.end());
    row.erase(std::unique(row.begin(), row.end()), row.end());
    for (const int64_t k : random[static_cast<size_t>(i - 1)]) {
      const auto at = std::lower_bound(row.begin(), row.end(), k);
      require(k >= 0 && k < n, op, "row {} has random block {} of {}", i, k, n);
      require(repeats || at == row.end() || *at != k, op,
              "row {} sees block {} already, so that random block {} would count again; name "
              "another, or allow repeats",
              i, k, k);
      row.insert(at, k);
    }
  }
  return table;
}

BlockTable fixed_blocks(int64_t length, int64_t stride, int64_t columns) {
  require(
      length >= 0 && columns >= 1 && stride >= columns, "fixed_blocks",
      "{} tokens in blocks of {}, of which all rows see {}; expected 1 or more, and no more than "
      "a block has",
      length, stride, columns);
  BlockTable table;
  const std::vector<int64_t> starts = block_bounds(length, stride);
  const int64_t n = static_cast<int64_t>(starts.size()) - 1;
  for (int64_t k = 0; k < n; ++k) {
    const int64_t start = k * stride;
    table.bounds.push_back(start);
    table.bounds.push_back(std::min(length, start + stride - columns));
    std::vector<int64_t> row;
    for (int64_t m = 0; m < n; ++m) {
      if (m == k) row.push_back(2 * m);
      row.push_back(2 * m + 1);
    }
    table.keys.insert(table.keys.end(), 2, row);
  }
  table.bounds.push_back(length);
  return table;
}

namespace patterns {

AttentionPattern block_lists(int64_t length, const std::vector<BlockTable>& members,
                             const Tensor& which, std::string name, int64_t first) {
  constexpr const char* op = "block_lists";
  require<ShapeError>(first >= 0 && first <= length, op,
                      "queries from {} on of {}; expected 0 to {}", first, length, length);
  LayoutKey key(op);
  key.add(length).add(first).add(which).add(static_cast<int64_t>(members.size()));
  AttentionPattern p;
  p.rules.emplace_back();
  p.rules.front().causal = !members.empty() && members.front().causal;
  for (const BlockTable& table : members) {
    require<ShapeError>(table.causal == p.rules.front().causal, op,
                        "some tables are causal and some are not; expected all or none");
    key.add(table.causal ? 1 : 0).add(table.bounds).add(static_cast<int64_t>(table.keys.size()));
    for (const std::vector<int64_t>& blocks : table.keys) key.add(blocks);
  }
  p.layout = cached_layout(key, [&] {
    std::vector<std::vector<TileRuns>> tiles;
    for (const BlockTable& table : members) tiles.push_back(tiles_of_table(length, table, first));
    return make_layout(length - first, length, tiles, {.layout_index = which});
  });
  p.name = std::move(name);
  return p;
}

AttentionPattern permuted_blocks(int64_t length,
                                 const std::vector<std::vector<int64_t>>& permutations,
                                 int64_t padded) {
  require(!permutations.empty() && !permutations.front().empty(), "patterns::permuted_blocks",
          "expected a permutation of 1 block or more for each head");
  require(padded == 0 || padded >= length, "patterns::permuted_blocks",
          "padded = {} is less than the length {}", padded, length);
  const size_t n = permutations.front().size();
  std::vector<BlockTable> members;
  std::map<std::vector<int64_t>, int32_t> numbers;  // heads with the same permutation share a
                                                    // layout
  std::vector<int32_t> which;
  for (size_t head = 0; head < permutations.size(); ++head) {
    const std::vector<int64_t>& pi = permutations[head];
    require_permutation(pi, n, head);
    const auto [at, fresh] = numbers.emplace(pi, static_cast<int32_t>(members.size()));
    which.push_back(at->second);
    if (!fresh) continue;
    BlockTable table;
    table.bounds =
        equal_block_bounds(length, static_cast<int64_t>(n), padded > 0 ? padded : length);
    for (const int64_t k : pi) table.keys.push_back({k});
    members.push_back(std::move(table));
  }
  const auto heads = static_cast<int64_t>(which.size());
  return block_lists(length, members, Tensor::from(which, {1, heads}),
                     fmt::format("permuted_blocks({})", n));
}

}  // namespace patterns
}  // namespace longspan
