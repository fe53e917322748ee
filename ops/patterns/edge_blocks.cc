#include "ops/patterns/edge_blocks.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <tuple>
#include <utility>

namespace longspan::detail {
namespace {

/// Pairs of a block whose rows are computed one by one, and of a part, at most unless a row has
/// more.
constexpr int64_t kBlockPairs = 512, kPartPairs = 32768;
/// Rows are computed together if their keys, as one list for all, are at most this many times as
/// many pairs as there are.
constexpr int64_t kWaste = 4;
/// Rows of a strip at least, on average, for strips to be worth it.
constexpr int64_t kStripRows = 4;

/// Labels of a list are members of a set by their place, a label for all keys after those.
constexpr int64_t kSingleLabels = int64_t{1} << 40;
int64_t member_of(int64_t label) { return label < 0 ? kSingleLabels - 1 - label : label; }

}  // namespace

void EdgeBlocks::NumberedSet::clear() {
  ranges_.clear();
  size_ = 0;
}

void EdgeBlocks::NumberedSet::join() {
  std::ranges::sort(ranges_, {}, &Range::from);
  size_t last = 0;
  for (size_t i = 1; i < ranges_.size(); ++i) {
    if (ranges_[i].from <= ranges_[last].end) {
      ranges_[last].end = std::max(ranges_[last].end, ranges_[i].end);
    } else {
      ranges_[++last] = ranges_[i];
    }
  }
  if (!ranges_.empty()) ranges_.resize(last + 1);
  for (Range& x : ranges_) x.number = std::exchange(size_, size_ + x.end - x.from);
}

int64_t EdgeBlocks::NumberedSet::number_of(int64_t x) const {
  const Range& range = *--std::ranges::upper_bound(ranges_, x, {}, &Range::from);
  return range.number + x - range.from;
}

std::vector<int64_t> EdgeBlocks::NumberedSet::members() const {
  std::vector<int64_t> all;
  for (const Range& x : ranges_) {
    for (int64_t i = x.from; i < x.end; ++i) all.push_back(i);
  }
  return all;
}

std::span<const EdgeRun> EdgeBlocks::runs_of(int64_t row) const {
  const auto at = static_cast<size_t>(row);
  return std::span(runs_).subspan(static_cast<size_t>(row_begin_[at]),
                                  static_cast<size_t>(row_begin_[at + 1] - row_begin_[at]));
}

int64_t EdgeBlocks::pairs_of(int64_t from, int64_t to) const {
  int64_t pairs = 0;
  for (int64_t r = from; r < to; ++r) {
    for (const EdgeRun& x : runs_of(r)) pairs += x.keys;
  }
  return pairs;
}

void EdgeBlocks::append(int64_t from, int64_t to, std::span<const int64_t> starts) {
  for (auto start = std::ranges::upper_bound(starts, from); start != starts.end() && *start < to;
       ++start) {
    append_range(std::exchange(from, *start), *start);
  }
  append_range(from, to);
  append_long_rows();
}

void EdgeBlocks::append_range(int64_t from, int64_t to) {
  while (from < to) {
    const int64_t most = std::min(to - from, kernels::kEdgeBlockRows);
    int64_t rows = most;
    const bool together = most > 1 && share(from, from + most);
    if (!together) {
      rows = 1;
      while (rows < most && pairs_of(from, from + rows + 1) <= kBlockPairs) ++rows;
    }
    Block block = block_of(from, rows);
    bool may_be_strips = !together;
    for (int64_t r = from; r < from + rows; ++r) may_be_strips = may_be_strips && has_one_run(r);
    if (together) add_shared(block);
    (may_be_strips ? long_blocks_ : blocks_).push_back(block);
    from += rows;
  }
}

/// Returns a block of these rows, which are added to the tables of rows and runs.
EdgeBlocks::Block EdgeBlocks::block_of(int64_t from, int64_t rows) {
  int64_t runs = 0;
  for (int64_t r = from; r < from + rows; ++r) runs = std::max(runs, std::ssize(runs_of(r)));
  Block block;
  block.fields = {kernels::kEdgeRows, edge_number(from), edge_number(rows),
                  edge_number(std::ssize(run_table_) / 3), edge_number(runs)};
  for (int64_t r = from; r < from + rows; ++r) {
    row_table_.push_back(edge_number(std::ssize(run_table_) / 3));
    row_table_.push_back(edge_number(runs));
    const std::span<const EdgeRun> given = runs_of(r);
    if (!given.empty()) block.reach = std::max(block.reach, given[0].first + given[0].keys);
    for (int64_t o = 0; o < runs; ++o) {
      const EdgeRun x = o < std::ssize(given) ? given[static_cast<size_t>(o)] : EdgeRun{};
      for (const int64_t n : {x.first, x.keys, x.label}) run_table_.push_back(edge_number(n));
      block.pairs += x.keys;
    }
  }
  pairs_ += block.pairs;
  return block;
}

/// Finds what rows from .. to read together, and returns whether that is worth it.
bool EdgeBlocks::share(int64_t from, int64_t to) {
  key_set_.clear();
  label_set_.clear();
  shared_.clear();
  for (int64_t r = from; r < to; ++r) {
    for (const EdgeRun& x : runs_of(r)) {
      if (x.keys == 0) continue;
      key_set_.add(x.first, x.first + x.keys);
      const int64_t label = member_of(x.label);
      label_set_.add(label, label + (x.label < 0 ? 1 : x.keys));
      shared_.push_back({x, 1 << (r - from)});
    }
  }
  key_set_.join();
  label_set_.join();
  return key_set_.size() > 0 && key_set_.size() <= kernels::kEdgeBlockKeys &&
         label_set_.size() <= kernels::kEdgeBlockKeys &&
         key_set_.size() * kernels::kEdgeBlockRows <= kWaste * pairs_of(from, to);
}

/// Adds the keys and groups that share() found to the tables.
void EdgeBlocks::add_shared(Block& block) {
  const auto first_key = std::ssize(key_table_) / 2, first_group = std::ssize(group_table_) / 5;
  for (const int64_t key : key_set_.members()) {
    key_table_.push_back(edge_number(key));
    key_table_.push_back(0);
  }
  const auto place = [](const Group& x) {
    return std::tuple(x.run.first, x.run.keys, x.run.label);
  };
  std::ranges::sort(shared_, {}, place);
  for (size_t i = 0; i < shared_.size();) {
    const EdgeRun& run = shared_[i].run;
    const auto here = place(shared_[i]);
    int32_t rows = 0;
    for (; i < shared_.size() && place(shared_[i]) == here; ++i) rows |= shared_[i].rows;
    const int64_t key = key_set_.number_of(run.first);
    const int64_t label = label_set_.number_of(member_of(run.label)), step = run.label < 0 ? 0 : 1;
    for (const int64_t n : {key, run.keys, label, step, int64_t{rows}}) {
      group_table_.push_back(edge_number(n));
    }
    for (int64_t t = key; t < key + run.keys; ++t) {
      key_table_[static_cast<size_t>(2 * (first_key + t) + 1)] |= rows;
    }
  }
  std::vector<int32_t> labels;
  for (const int64_t x : label_set_.members()) {
    labels.push_back(x < kSingleLabels ? labels_[static_cast<size_t>(x)]
                                       : edge_number(x - kSingleLabels));
  }
  const auto [known, made] = label_lists_.emplace(labels, std::ssize(used_labels_));
  if (made) used_labels_.insert(used_labels_.end(), labels.begin(), labels.end());
  size_t field = 5;
  for (const int64_t n :
       {first_key, key_set_.size(), first_group, std::ssize(group_table_) / 5 - first_group,
        known->second, label_set_.size()}) {
    block.fields[field++] = edge_number(n);
  }
  most_keys_ = std::max(most_keys_, key_set_.size());
  most_labels_ = std::max(most_labels_, label_set_.size());
}

/// Returns whether the row has one run and that one label: such rows may be rows of strips.
bool EdgeBlocks::has_one_run(int64_t row) const {
  const std::span<const EdgeRun> runs = runs_of(row);
  return runs.size() == 1 && runs[0].keys > 0 && runs[0].label < 0;
}

/// Appends the rows of a group that have one run: as strips where several attend to the same keys,
/// else as they are.
void EdgeBlocks::append_long_rows() {
  int64_t first = std::numeric_limits<int64_t>::max(), end = 0;
  std::vector<int64_t> rows;
  for (const Block& block : long_blocks_) {
    for (int64_t r = block.fields[1]; r < block.fields[1] + block.fields[2]; ++r) {
      rows.push_back(r);
      first = std::min(first, runs_of(r)[0].first);
      end = std::max(end, runs_of(r)[0].first + runs_of(r)[0].keys);
    }
  }
  const std::vector<Block> blocks = std::exchange(long_blocks_, {});
  const auto number_of = [&](int64_t key) { return (key - first) / kernels::kEdgeStripKeys; };
  const int64_t count = rows.empty() ? 0 : number_of(end - 1) + 1;
  int64_t total = 0;
  for (const int64_t r : rows) {
    const EdgeRun& run = runs_of(r)[0];
    total += number_of(run.first + run.keys - 1) - number_of(run.first) + 1;
  }
  if (total < kStripRows * count) {
    blocks_.insert(blocks_.end(), blocks.begin(), blocks.end());
    return;
  }
  std::vector<std::vector<StripRow>> strips(static_cast<size_t>(count));
  for (const int64_t r : rows) {
    const EdgeRun& run = runs_of(r)[0];
    const auto piece_of = [&](int64_t key) { return (key - first) / kernels::kEdgeStripPiece; };
    const int64_t last_key = run.first + run.keys - 1;
    const int64_t pieces = piece_of(last_key) - piece_of(run.first) + 1;
    if (pieces > 1) {
      for (const int64_t n : {r, pieces_, pieces}) cut_table_.push_back(edge_number(n));
    }
    for (int64_t i = number_of(run.first); i <= number_of(last_key); ++i) {
      const int64_t key = first + i * kernels::kEdgeStripKeys;
      const int64_t from = std::max(run.first, key),
                    to = std::min(last_key + 1, key + kernels::kEdgeStripKeys);
      const int64_t piece = piece_of(from) - piece_of(run.first);
      strips[static_cast<size_t>(i)].push_back(
          {.row = r,
           .keys = ((1 << (to - from)) - 1) << (from - key),
           .begins = from == run.first || piece_of(from - 1) != piece_of(from),
           .ends = to > last_key || piece_of(to) != piece_of(from),
           .piece = pieces > 1 ? pieces_ + piece : -1});
    }
    if (pieces > 1) pieces_ += pieces;
  }
  for (int64_t i = 0; i < count; ++i) {
    const std::span<const StripRow> all = strips[static_cast<size_t>(i)];
    for (size_t at = 0; at < all.size(); at += kernels::kEdgeStripRows) {
      const auto some = all.subspan(at, std::min<size_t>(kernels::kEdgeStripRows, all.size() - at));
      const int64_t key = first + i * kernels::kEdgeStripKeys;
      const int64_t keys = std::min(kernels::kEdgeStripKeys, end - key);
      Block block;
      block.fields = {kernels::kEdgeStrip, edge_number(key), edge_number(keys)};
      block.reach = key + keys;
      for (const StripRow& x : some) block.pairs += std::popcount(static_cast<uint32_t>(x.keys));
      block.strip = std::ssize(strips_);
      strips_.emplace_back(some.begin(), some.end());
      blocks_.push_back(block);
    }
  }
}

/// Gives the rows of strips their slots, in the order in which blocks are computed.
class EdgeBlocks::Slots {
 public:
  void add(const Strip& strip, std::vector<int32_t>& table) {
    for (const StripRow& x : strip) {
      if (x.begins) of_row_[x.row] = take();
      const int64_t slot = of_row_.at(x.row);
      const int64_t state =
          (x.begins ? kernels::kEdgePieceBegins : 0) | (x.ends ? kernels::kEdgePieceEnds : 0);
      for (const int64_t n : {x.row, int64_t{x.keys}, slot, state, x.piece}) {
        table.push_back(edge_number(n));
      }
    }
    // Rows of one strip have slots of their own, also where one ends.
    for (const StripRow& x : strip) {
      if (!x.ends) continue;
      free_.push_back(of_row_.at(x.row));
      of_row_.erase(x.row);
    }
  }
  bool all_free() const { return of_row_.empty(); }
  int64_t most() const { return most_; }

 private:
  int64_t take() {
    if (free_.empty()) return most_++;
    const int64_t slot = free_.back();
    free_.pop_back();
    return slot;
  }

  std::map<int64_t, int64_t> of_row_;
  std::vector<int64_t> free_;
  int64_t most_ = 0;
};

void EdgeBlocks::fill(EdgeLayout& to) {
  // Blocks whose first runs end at the same key become adjacent, so that the keys are still in a
  // cache: in a tree, spans follow the leaves that they cover.
  std::ranges::stable_sort(blocks_, {}, &Block::reach);
  std::vector<int32_t> blocks, parts, strip_rows;
  Slots slots;
  int64_t pairs = kPartPairs;
  for (Block& block : blocks_) {
    if (pairs >= kPartPairs && slots.all_free()) {
      parts.push_back(edge_number(std::ssize(blocks) / kernels::kEdgeBlockFields));
      pairs = 0;
    }
    pairs += block.pairs;
    if (block.strip >= 0) {
      const Strip& strip = strips_[static_cast<size_t>(block.strip)];
      block.fields[3] = edge_number(std::ssize(strip_rows) / kernels::kEdgeStripFields);
      block.fields[4] = edge_number(std::ssize(strip));
      slots.add(strip, strip_rows);
    }
    blocks.insert(blocks.end(), block.fields.begin(), block.fields.end());
  }
  parts.push_back(edge_number(std::ssize(blocks) / kernels::kEdgeBlockFields));
  to.blocks = edge_table(blocks, kernels::kEdgeBlockFields);
  to.keys = edge_table(key_table_, 2);
  to.groups = edge_table(group_table_, 5);
  to.used_labels = edge_table(used_labels_, 1);
  to.strip_rows = edge_table(strip_rows, kernels::kEdgeStripFields);
  to.strip_cuts = edge_table(cut_table_, 3);
  to.runs = edge_table(run_table_, 3);
  to.parts = edge_table(parts, 1);
  to.rows = edge_table(row_table_, 2);
  to.block_keys = most_keys_;
  to.block_labels = most_labels_;
  to.strip_slots = slots.most();
  to.strip_pieces = pieces_;
  to.pairs = pairs_;
}

}  // namespace longspan::detail
