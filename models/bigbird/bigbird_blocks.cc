#include "models/bigbird/bigbird_blocks.h"

#include <algorithm>
#include <utility>

#include "core/divide.h"
#include "core/error.h"
#include "core/generator.h"
#include "models/parts.h"
#include "ops/copy.h"

namespace longspan {
namespace {

// The number of tokens that first_1024 draws from.
constexpr int64_t kFirstTokens = 1024;

}  // namespace

/// Runs the first steps of a Fisher-Yates shuffle of 0 to size - 1 and stores only the entries that
/// have moved.
std::vector<int64_t> draw_blocks(std::span<const BlockRange> from, int64_t count, uint64_t seed,
                                 int64_t layer, int64_t head, int64_t n, int64_t row) {
  const Generator gen = Generator{seed}
                            .fork("bigbird")
                            .fork(static_cast<uint64_t>(layer))
                            .fork(static_cast<uint64_t>(head))
                            .fork(static_cast<uint64_t>(n))
                            .fork(static_cast<uint64_t>(row));
  int64_t size = 0;
  for (const BlockRange& r : from) size += std::max<int64_t>(r.end - r.begin, 0);
  std::vector<std::pair<int64_t, int64_t>> moved;  // position, and the entry that is there now
  const auto at = [&](int64_t place) {
    for (const auto& [where, number] : moved) {
      if (where == place) return number;
    }
    return place;
  };
  std::vector<int64_t> blocks;
  for (int64_t i = 0; i < std::min(count, size); ++i) {
    const auto pick = static_cast<int64_t>(
        (uint64_t{philox_word(gen.key, i)} * static_cast<uint64_t>(size - i)) >> 32);
    int64_t number = at(i + pick);
    moved.insert(moved.begin(), {i + pick, at(i)});  // the latest entry for a position comes first
    for (const BlockRange& r : from) {
      const int64_t own = std::max<int64_t>(r.end - r.begin, 0);
      if (number < own) {
        blocks.push_back(r.begin + number);
        break;
      }
      number -= own;
    }
  }
  std::sort(blocks.begin(), blocks.end());
  return blocks;
}

std::vector<std::vector<int64_t>> random_blocks(const BigBirdBlocks& c, int64_t layer, int64_t head,
                                                int64_t n) {
  const int64_t r = c.n_random;
  require(n >= 5 + r, "bigbird",
          "{} blocks are too few for {} random ones a row; expected {} or more", n, r, 5 + r);
  // With r + 5 blocks to draw from, every row has at least r valid ones.
  int64_t end = n - 1;
  if (c.random != RandomPlan::uniform) {
    end = std::min(end, std::max(ceil_div(kFirstTokens, c.block), r + 5));
  }
  std::vector<std::vector<int64_t>> rows;
  for (int64_t i = 1; i + 1 < n; ++i) {
    const BlockRange legal[] = {{1, std::min(end, i - 1)}, {i + 2, end}};
    rows.push_back(draw_blocks(legal, r, c.random_seed, layer, head, n, i));
  }
  return rows;
}

std::vector<int64_t> past_random_blocks(const BigBirdBlocks& c, int64_t layer, int64_t head,
                                        int64_t row) {
  int64_t end = row - 1;
  if (c.random != RandomPlan::uniform) {
    end = std::min(end, ceil_div(kFirstTokens, c.block));
  }
  const BlockRange legal[] = {{1, end}};
  return draw_blocks(legal, c.n_random, c.random_seed, layer, head, 0, row);
}

std::vector<AttentionPattern> far_random_blocks(const BigBirdBlocks& blocks, int64_t near,
                                                int64_t n_layer, int64_t n_head, int64_t length,
                                                const PairMask& mask) {
  BlockTable empty{.bounds = block_bounds(length, blocks.block), .keys = {}};
  const int64_t n = empty.blocks();
  std::vector<int32_t> heads;
  for (int64_t h = 0; h < n_head; ++h) heads.push_back(static_cast<int32_t>(h));
  const Tensor which = Tensor::from(heads, {1, n_head});
  std::vector<AttentionPattern> layers;
  for (int64_t layer = 0; layer < n_layer; ++layer) {
    std::vector<BlockTable> tables(static_cast<size_t>(n_head), empty);
    for (int64_t h = 0; h < n_head; ++h) {
      for (int64_t i = 0; i < n; ++i) {
        const BlockRange legal[] = {{0, i - near}, {i + near + 1, n}};
        tables[static_cast<size_t>(h)].keys.push_back(
            draw_blocks(legal, blocks.n_random, blocks.random_seed, layer, h, n, i));
      }
    }
    layers.push_back(patterns::block_lists(length, tables, which, "random"));
    layers.back().mask = mask;
  }
  return layers;
}

int64_t bigbird_pairs(int64_t n, int64_t b, int64_t r) {
  return b * b * (2 * n + 2 * (4 + r) + (n - 4) * (5 + r));
}

BigBirdPatterns::BigBirdPatterns(std::string model, const BigBirdBlocks& blocks, int64_t n_layer,
                                 int64_t n_head, int64_t n_max, bool causal)
    : model_(std::move(model)),
      blocks_(blocks),
      n_layer_(n_layer),
      n_head_(n_head),
      causal_(causal) {
  const BigBirdBlocks& c = blocks_;
  check_fields(model_, c);
  require(c.n_random >= 0 && c.n_random <= n_max, model_,
          "n_random is {}; expected 0 or more, and no more blocks than n_max = {} tokens",
          c.n_random, n_max);
  require(!c.count_repeats || c.random == RandomPlan::given, model_,
          "count_repeats is for random = given; random = {} repeats no block",
          name_of_value(c.random));
  require(!causal || c.random == RandomPlan::uniform || c.random == RandomPlan::first_1024, model_,
          "random = {} is for rows that see later blocks; expected uniform or first_1024",
          name_of_value(c.random));
}

void BigBirdPatterns::set_random_blocks(const Tensor& blocks) {
  require(blocks_.random == RandomPlan::given, model_,
          "random = {} draws its own blocks; expected random = given",
          name_of_value(blocks_.random));
  const bool fits = blocks.rank() == 4 && blocks.dim(0) == n_layer_ && blocks.dim(1) == n_head_ &&
                    blocks.dim(3) == blocks_.n_random;
  if (!fits || blocks.dtype() != DType::i64) {
    fail_with<ShapeError>(model_,
                          fmt::format("random blocks must be i64 [{}, {}, blocks - 2, {}]",
                                      n_layer_, n_head_, blocks_.n_random),
                          {{"random_blocks", blocks}});
  }
  random_blocks_ = blocks;
}

BlockTable BigBirdPatterns::table(int64_t layer, int64_t head, int64_t length,
                                  bool training) const {
  if (causal_) return causal_table(layer, head, 0, length);
  const int64_t b = std::min(blocks_.block, std::max<int64_t>(length, 1));
  const int64_t r = blocks_.n_random, n = ceil_div(length, b);
  if (n < 5 + r) return bigbird_blocks(length, std::max<int64_t>(length, 1), {});
  if (blocks_.random == RandomPlan::package) {
    if (length <= (5 + 2 * r) * blocks_.block)
      return bigbird_blocks(length, std::max<int64_t>(length, 1), {});
    if (!training) {
      const std::vector<int64_t> first(static_cast<size_t>(r), 0);
      const std::vector<std::vector<int64_t>> rows(static_cast<size_t>(n - 2), first);
      return bigbird_blocks(length, b, rows, true);
    }
  }
  if (blocks_.random != RandomPlan::given) {
    return bigbird_blocks(length, b, random_blocks(blocks_, layer, head, n));
  }
  require(static_cast<bool>(random_blocks_), model_,
          "random = given has no blocks yet; call set_random_blocks()");
  const int64_t rows = random_blocks_.dim(2);
  const auto all = random_blocks_.to_vector<int64_t>();
  std::vector<std::vector<int64_t>> random;
  auto at = all.begin() + (layer * n_head_ + head) * rows * r;
  for (int64_t i = 0; i < rows; ++i, at += r) random.emplace_back(at, at + r);
  return bigbird_blocks(length, b, random, blocks_.count_repeats);
}

/// Leaves the rows before the one of token `first` without keys.
BlockTable BigBirdPatterns::causal_table(int64_t layer, int64_t head, int64_t first,
                                         int64_t length) const {
  const int64_t b = std::min(blocks_.block, std::max<int64_t>(length, 1));
  BlockTable table;
  table.bounds = block_bounds(length, b);
  table.causal = true;
  table.keys.resize(static_cast<size_t>(table.blocks()));
  for (int64_t i = first / b; i < table.blocks(); ++i) {
    std::vector<int64_t>& row = table.keys[static_cast<size_t>(i)];
    row = past_random_blocks(blocks_, layer, head, i);
    row.insert(row.end(), {0, i});
    if (i > 1) row.push_back(i - 1);
    std::sort(row.begin(), row.end());
    row.erase(std::unique(row.begin(), row.end()), row.end());  // row 0
  }
  return table;
}

std::vector<AttentionPattern> BigBirdPatterns::make(int64_t length,
                                                    const std::vector<int64_t>& valid,
                                                    int64_t first, bool training) const {
  std::vector<int64_t> distinct = valid;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  std::vector<int32_t> which;  // index of the (length, head) pair
  for (const int64_t l : valid) {
    const auto at = std::lower_bound(distinct.begin(), distinct.end(), l) - distinct.begin();
    for (int64_t h = 0; h < n_head_; ++h) which.push_back(static_cast<int32_t>(at * n_head_ + h));
  }
  const Tensor members = Tensor::from(which, {static_cast<int64_t>(valid.size()), n_head_});
  std::vector<AttentionPattern> patterns;
  for (int64_t layer = 0; layer < n_layer_; ++layer) {
    std::vector<BlockTable> tables;
    for (const int64_t l : distinct) {
      for (int64_t h = 0; h < n_head_; ++h) {
        tables.push_back(causal_ ? causal_table(layer, h, first, l) : table(layer, h, l, training));
      }
    }
    patterns.push_back(patterns::block_lists(
        length, tables, members, fmt::format("bigbird({}, {})", blocks_.block, blocks_.n_random),
        first));
  }
  return patterns;
}

std::vector<AttentionPattern> BigBirdPatterns::of(int64_t length, const Tensor& lengths,
                                                  bool training) const {
  std::vector<int64_t> valid{length};
  if (lengths && blocks_.global_last == GlobalLast::real && !causal_) {
    valid = to_device(lengths, {}).to_vector<int64_t>();
    for (int64_t& l : valid) l = std::clamp<int64_t>(l, 0, length);
  }
  std::vector<AttentionPattern> seen = make(length, valid, 0, training);
  for (AttentionPattern& p : seen) p = with_lengths(p, lengths, lengths);
  return seen;
}

std::vector<AttentionPattern> BigBirdPatterns::rows(int64_t first, int64_t length) const {
  require(causal_, model_, "rows of their own are for causal = true");
  return make(length, {length}, first, false);
}

}  // namespace longspan
