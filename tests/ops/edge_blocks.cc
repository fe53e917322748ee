// The blocks and strips that the CPU's kernels compute hold the pairs of a layout, each once.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "core/generator.h"
#include "ops/patterns/edge_builder.h"
#include "ops/patterns/tree.h"

namespace longspan::test {
namespace {

using Pair = std::tuple<int64_t, int64_t, int64_t>;  // row, key, label; -1: a row of a strip

/// The tables of a layout, read as the kernels read them.
class Decoded {
 public:
  explicit Decoded(const EdgeLayout& layout) {
    const auto read = [](const Tensor& t) { return t.to_vector<int32_t>(); };
    const std::vector<int32_t> blocks = read(layout.blocks), parts = read(layout.parts);
    keys_ = read(layout.keys);
    groups_ = read(layout.groups);
    used_labels_ = read(layout.used_labels);
    runs_ = read(layout.runs);
    labels_ = read(layout.labels);
    strip_rows_ = read(layout.strip_rows);
    for (int64_t i = 0; i < layout.blocks.dim(0); ++i) {
      const bool starts_part = std::ranges::find(parts, i) != parts.end();
      EXPECT_TRUE(!starts_part || slots_.empty()) << "part " << i;
      const auto* const block = blocks.data() + kernels::kEdgeBlockFields * i;
      if (block[0] == kernels::kEdgeStrip) {
        add_strip(block);
      } else if (block[6] > 0) {
        add_together(block);
      } else {
        add_rows(block);
      }
    }
    EXPECT_TRUE(slots_.empty());
    for (const auto& [slot, keys] : most_of_slot_) EXPECT_LT(slot, layout.strip_slots);
    const std::vector<int32_t> cuts = read(layout.strip_cuts);
    int64_t pieces = 0;
    for (size_t i = 0; i < cuts.size(); i += 3) {
      EXPECT_EQ(cuts[i + 1], pieces);
      EXPECT_EQ(cuts[i + 2], pieces_of_row_.at(cuts[i])) << "row " << cuts[i];
      pieces += cuts[i + 2];
    }
    EXPECT_EQ(pieces, layout.strip_pieces);
    for (const auto& [row, count] : pieces_of_row_) {
      EXPECT_EQ(last_piece_.at(row) < 0, count == 1) << "row " << row;
    }
    std::ranges::sort(pairs);
  }

  std::vector<Pair> pairs;
  int64_t together = 0, strips = 0, single = 0;

 private:
  void add_strip(const int32_t* block) {
    ++strips;
    EXPECT_LE(block[2], kernels::kEdgeStripKeys);
    EXPECT_LE(block[4], kernels::kEdgeStripRows);
    std::vector<int64_t> ended;
    for (int32_t i = block[3]; i < block[3] + block[4]; ++i) {
      const int32_t* const x = strip_rows_.data() + kernels::kEdgeStripFields * i;
      const int64_t row = x[0], slot = x[2];
      if ((x[3] & kernels::kEdgePieceBegins) != 0) {
        EXPECT_TRUE(slots_.emplace(slot, row).second) << "slot " << slot << " is taken";
        most_of_slot_[slot] = 0;
        ++pieces_of_row_[row];
      }
      EXPECT_EQ(slots_.at(slot), row);
      for (int32_t key = 0; key < block[2]; ++key) {
        if ((x[1] >> key & 1) == 0) continue;
        pairs.emplace_back(row, block[1] + key, -1);
        EXPECT_LE(++most_of_slot_[slot], kernels::kEdgeStripPiece);
      }
      EXPECT_LT(x[1], 1 << block[2]);
      last_piece_[row] = x[4];
      if ((x[3] & kernels::kEdgePieceEnds) != 0) ended.push_back(slot);
    }
    for (const int64_t slot : ended) slots_.erase(slot);
  }

  void add_together(const int32_t* block) {
    ++together;
    std::map<int64_t, int32_t> rows_of_key;
    for (int32_t i = block[7]; i < block[7] + block[8]; ++i) {
      const int32_t* const x = groups_.data() + 5 * static_cast<size_t>(i);
      for (int32_t t = 0; t < x[1]; ++t) {
        const int64_t key = keys_[static_cast<size_t>(2 * (block[5] + x[0] + t))];
        EXPECT_LT(x[0] + t, block[6]);
        EXPECT_LT(x[2] + t * x[3], block[10]);
        const int32_t label = used_labels_[static_cast<size_t>(block[9] + x[2] + t * x[3])];
        for (int32_t r = 0; r < block[2]; ++r) {
          if ((x[4] >> r & 1) != 0) pairs.emplace_back(block[1] + r, key, label);
        }
        rows_of_key[key] |= x[4];
      }
    }
    for (int32_t i = block[5]; i < block[5] + block[6]; ++i) {
      const auto at = static_cast<size_t>(2 * i);
      EXPECT_TRUE(i == block[5] || keys_[at] > keys_[at - 2]);
      EXPECT_EQ(keys_[at + 1], rows_of_key.at(keys_[at]));
    }
  }

  void add_rows(const int32_t* block) {
    ++single;
    for (int32_t r = 0; r < block[2]; ++r) {
      for (int32_t o = 0; o < block[4]; ++o) {
        const int32_t* const x = runs_.data() + 3 * (block[3] + r * block[4] + o);
        for (int32_t t = 0; t < x[1]; ++t) {
          const int32_t label = x[2] < 0 ? -1 - x[2] : labels_[static_cast<size_t>(x[2] + t)];
          pairs.emplace_back(block[1] + r, x[0] + t, label);
        }
      }
    }
  }

  std::vector<int32_t> keys_, groups_, used_labels_, runs_, labels_, strip_rows_;
  std::map<int64_t, int64_t> slots_, most_of_slot_, pieces_of_row_, last_piece_;
};

/// Expects that the blocks of a layout hold its pairs, and returns them.
Decoded expect_all_pairs(const EdgeLayout& layout) {
  Decoded decoded(layout);
  std::map<std::pair<int64_t, int64_t>, int64_t> labels;
  for (const Edge& e : edges_of(layout)) labels[{e.row, e.key}] = e.label;
  EXPECT_EQ(std::ssize(decoded.pairs), layout.pairs);
  EXPECT_EQ(std::ssize(labels), layout.pairs);
  std::map<int64_t, int64_t> label_of_row;
  for (const auto& [row, key, label] : decoded.pairs) {
    const auto known = labels.find({row, key});
    if (known == labels.end()) {
      ADD_FAILURE() << "row " << row << " does not attend to key " << key;
      break;
    }
    if (label >= 0) {
      EXPECT_EQ(label, known->second) << row << " " << key;
    } else {  // a row of a strip has one label
      EXPECT_EQ(label_of_row.emplace(row, known->second).first->second, known->second);
    }
    labels.erase(known);
  }
  EXPECT_TRUE(labels.empty());
  return decoded;
}

TEST(EdgeBlocks, HoldAllPairsOfTrees) {
  for (const int64_t n : {1, 2, 3, 5, 16, 17, 100, 255, 256, 257, 700}) {
    for (const bool causal : {false, true}) {
      for (const int64_t k : {1, 4, 20}) {
        const TreeOptions o{.k = k, .clip = 2, .causal = causal};
        SCOPED_TRACE(n * 100 + k);
        const Decoded decoded = expect_all_pairs(*tree_edges(std::span(&n, 1), o));
        EXPECT_TRUE(n < 16 || decoded.strips == (n + 15) / 16) << decoded.strips;
        EXPECT_TRUE(n < 100 || k < 4 || decoded.together >= n / 16) << decoded.together;
        expect_all_pairs(
            *tree_edges(std::span(&n, 1), {.k = k, .clip = 1, .span_self_loop = true}));
      }
    }
  }
}

TEST(EdgeBlocks, HoldAllPairsOfSeveralTrees) {
  const std::vector<int64_t> leaves = {300, 1, 37, 600, 2};
  const Decoded decoded = expect_all_pairs(*tree_edges(leaves, {.k = 3, .clip = 1}));
  EXPECT_EQ(decoded.strips, 19 + 3 + 38);
  const Decoded roots = expect_all_pairs(*tree_edges(leaves, {.k = 3, .clip = 1}, TreeRows::root));
  EXPECT_EQ(roots.strips, 0) << "a strip of one row is not worth it";
}

// Rows of random runs with random labels, some without keys.
TEST(EdgeBlocks, HoldAllPairsOfAnyRuns) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    uint32_t drawn = 0;
    const auto below = [&](int64_t n) {
      return static_cast<int64_t>(philox(seed, drawn++, 0, 0, 0).word[0]) % n;
    };
    EdgeLayoutBuilder builder;
    std::vector<int32_t> labels(400);
    for (int32_t& label : labels) label = static_cast<int32_t>(below(9));
    const int64_t list = builder.label_list(labels);
    const int64_t rows = 1 + below(120), most = 1 + below(6);
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<EdgeRun> runs;
      int64_t key = below(3) == 0 ? r / 16 * 16 : 0;
      for (int64_t o = below(most + 1); o > 0 && key < 380; --o) {
        const int64_t keys = below(2) == 0 ? below(5) : std::min<int64_t>(below(380), 399 - key);
        runs.push_back({key, keys, below(2) == 0 ? EdgeLayoutBuilder::one_label(below(9)) : list});
        key += keys + below(4);
      }
      builder.add_row(runs);
      if (below(10) == 0) builder.start_block();
      if (below(40) == 0) builder.end_group();
    }
    SCOPED_TRACE(seed);
    expect_all_pairs(*builder.build(400, 9));
  }
}

}  // namespace
}  // namespace longspan::test
