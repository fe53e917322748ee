// Layouts of trees against a builder that works on sets of tokens.

#include "ops/patterns/tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "ops/patterns/edge_builder.h"
#include "tests/harness/messages.h"

namespace longspan::test {
namespace {

template <class F>
void expect_error(F&& f, std::string_view part) {
  const std::string message = message_of<ValueError>(std::forward<F>(f));
  EXPECT_TRUE(contains(message, part)) << message;
}

using Tokens = std::pair<int64_t, int64_t>;  // first and end

struct Node {
  int64_t level, place;
  Tokens tokens;
};

std::vector<Node> nodes_of(int64_t n) {
  std::vector<Node> nodes;
  for (int64_t i = 0; i < n; ++i) nodes.push_back({0, i, {i, i + 1}});
  size_t from = 0;
  for (int64_t level = 1; nodes.size() - from > 1; ++level) {
    const size_t end = nodes.size();
    for (size_t i = from; i < end; i += 2) {
      const Node last = nodes[std::min(i + 1, end - 1)];
      nodes.push_back(
          {level, static_cast<int64_t>(i - from) / 2, {nodes[i].tokens.first, last.tokens.second}});
    }
    from = end;
  }
  return nodes;
}

/// All pairs of the tree over n tokens as (row, key) with their labels, by sets of tokens: on each
/// level and side take the next k nodes that are not entirely seen; of one that is partly seen take
/// the child that is not.
std::map<std::pair<int64_t, int64_t>, int64_t> expected(int64_t n, const TreeOptions& o) {
  const std::vector<Node> nodes = nodes_of(n);
  const auto id = [&](int64_t level, int64_t place) -> int64_t {
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].level == level && nodes[i].place == place) return static_cast<int64_t>(i);
    }
    return -1;
  };
  const auto label = [&](int64_t level, int64_t slot) {
    return (2 * o.k + 1) * std::min(level, o.clip) + slot;
  };
  std::map<std::pair<int64_t, int64_t>, int64_t> pairs;
  for (size_t u = static_cast<size_t>(n); u < nodes.size(); ++u) {
    for (int64_t t = nodes[u].tokens.first; t < nodes[u].tokens.second; ++t) {
      pairs[{static_cast<int64_t>(u), t}] = label(nodes[u].level, 0);
    }
    if (o.span_self_loop) {
      pairs[{static_cast<int64_t>(u), static_cast<int64_t>(u)}] = label(nodes[u].level, 0);
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    pairs[{i, i}] = label(0, 0);
    for (const int64_t side : {-1, 1}) {
      if (side > 0 && o.causal) continue;
      std::set<int64_t> seen{i};
      int64_t nearest = i;  // the token seen furthest away
      for (int64_t level = 0; nearest + side >= 0 && nearest + side < n; ++level) {
        // The node of this level that holds the next token.
        int64_t place = (nearest + side) >> level;
        for (int64_t t = 0; t < o.k; ++t, place += side) {
          const int64_t node = id(level, place);
          if (node < 0) break;
          const Tokens& of = nodes[static_cast<size_t>(node)].tokens;
          const int64_t known = side < 0 ? of.second - 1 : of.first;
          int64_t taken = node;
          if (seen.contains(known)) {  // partly seen: its other child
            taken = id(level - 1, 2 * place + (side < 0 ? 0 : 1));
            if (taken < 0) continue;
          }
          const Tokens& now = nodes[static_cast<size_t>(taken)].tokens;
          for (int64_t x = now.first; x < now.second; ++x) {
            EXPECT_TRUE(seen.insert(x).second) << "token " << x << " twice";
          }
          nearest = side < 0 ? now.first : now.second - 1;
          pairs[{i, taken}] = label(level, 2 * t + (side < 0 ? 1 : 2));
        }
      }
    }
  }
  return pairs;
}

std::map<std::pair<int64_t, int64_t>, int64_t> labels_of_pairs(const EdgeLayout& layout) {
  std::map<std::pair<int64_t, int64_t>, int64_t> pairs;
  for (const Edge& e : edges_of(layout)) {
    EXPECT_TRUE(pairs.emplace(std::pair{e.row, e.key}, e.label).second) << "a pair twice";
  }
  return pairs;
}

std::shared_ptr<const EdgeLayout> tree_layout(int64_t n, const TreeOptions& o,
                                              TreeRows rows = TreeRows::all) {
  return tree_edges(std::span(&n, 1), o, rows);
}

TEST(Tree, SizesOfLevels) {
  EXPECT_EQ(Tree{1}.levels(), 1);
  EXPECT_EQ(Tree{1}.nodes(), 1);
  EXPECT_EQ(Tree{2}.levels(), 2);
  EXPECT_EQ(Tree{8}.nodes(), 15);
  EXPECT_EQ(Tree{100}.nodes(), 202);
  for (int64_t n = 1; n <= 200; ++n) {
    const std::vector<Node> nodes = nodes_of(n);
    ASSERT_EQ(Tree{n}.nodes(), std::ssize(nodes)) << n;
    for (size_t u = 0; u < nodes.size(); ++u) {
      ASSERT_EQ(Tree{n}.level_of(static_cast<int64_t>(u)), nodes[u].level) << n << " " << u;
    }
  }
}

TEST(Tree, SmallTreesHaveThePairsOfTheRulesOnTokenSets) {
  for (int64_t n = 1; n <= 40; ++n) {
    for (const int64_t k : {1, 2, 3, 4, 8}) {
      for (const bool causal : {false, true}) {
        for (const int64_t clip : {0, 2, 9}) {
          const TreeOptions o{.k = k, .clip = clip, .causal = causal, .span_self_loop = n % 2 == 0};
          ASSERT_EQ(labels_of_pairs(*tree_layout(n, o)), expected(n, o))
              << "n " << n << " k " << k << " causal " << causal << " clip " << clip;
        }
      }
    }
  }
}

// The table of the paper's graph, by size and k: nodes, causal pairs, pairs of both sides.
TEST(Tree, PublishedNumbersOfPairs) {
  const std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t> rows[] = {
      {8, 1, 15, 49, 66},
      {8, 8, 15, 60, 88},
      {16, 2, 31, 148, 216},
      {64, 4, 127, 1193, 1938},
      {512, 64, 1023, 73016, 140912},
      {8192, 64, 16383, 3036767, 5958846},
      {8192, 4, 16383, 430237, 745786},
  };
  for (const auto& [n, k, nodes, causal, both] : rows) {
    EXPECT_EQ(Tree{n}.nodes(), nodes);
    EXPECT_EQ(tree_layout(n, {.k = k, .causal = true})->pairs, causal) << n << " " << k;
    EXPECT_EQ(tree_layout(n, {.k = k})->pairs, both) << n << " " << k;
  }
  const std::tuple<int64_t, int64_t, int64_t, int64_t> odd[] = {
      {3, 1, 15, 12}, {5, 2, 39, 29}, {7, 2, 64, 45}, {13, 3, 184, 122}, {100, 4, 3617, 2187}};
  for (const auto& [n, k, both, causal] : odd) {
    EXPECT_EQ(tree_layout(n, {.k = k})->pairs, both) << n << " " << k;
    EXPECT_EQ(tree_layout(n, {.k = k, .causal = true})->pairs, causal) << n << " " << k;
  }
}

TEST(Tree, PairsFollowTheClosedFormulas) {
  for (int64_t n = 1; n <= 200; ++n) {
    for (const int64_t k : {1, 2, 3, 4, 8, 16, 64}) {
      const Tree shape{n};
      int64_t left = 0;
      for (int64_t i = 0; i < n; ++i) {
        int64_t levels = 0;  // ceil(log2(1 + i / k))
        while ((k << levels) < k + i) ++levels;
        const int64_t up = levels > 0 ? ((i + k - 1) >> (levels - 1)) + 1 : 0;
        left += levels > 0 ? k * (levels - 1) + up - k : 0;
      }
      for (const bool causal : {true, false}) {
        const TreeOptions o{.k = k, .clip = 3, .causal = causal};
        const int64_t pairs = tree_layout(n, o)->pairs;
        ASSERT_EQ(pairs, tree_pairs(n, o)) << n << " " << k << " " << causal;
        if (causal) {
          ASSERT_EQ(pairs, n * shape.levels() + left) << n << " " << k;
        } else if ((n & (n - 1)) == 0) {
          ASSERT_EQ(pairs, n * shape.levels() + 2 * left) << n << " " << k;
        }
      }
      const TreeOptions o{.k = k, .span_self_loop = true};
      ASSERT_EQ(tree_layout(n, o)->pairs, tree_pairs(n, o));
    }
  }
}

// Short sequences have more pairs in a tree than in full causal attention.
TEST(Tree, CausalTreesAreSmallerFromACertainLengthOn) {
  for (const auto& [k, n] : {std::pair{1, 17}, {2, 20}, {4, 25}, {8, 37}, {16, 52}, {64, 129}}) {
    const TreeOptions o{.k = k, .causal = true};
    EXPECT_GE(tree_pairs(n, o), int64_t{n} * (n + 1) / 2) << k;
    for (int64_t more = n + 1; more < 2 * n + 200; ++more) {
      ASSERT_LT(tree_pairs(more, o), more * (more + 1) / 2) << k << " " << more;
    }
  }
}

TEST(Tree, NeighboursOfALeafTileAllTokensOnEachSide) {
  for (int64_t n = 1; n < 200; n = n < 80 ? n + 1 : n + 17) {
    const std::vector<Node> nodes = nodes_of(n);
    for (const int64_t k : {1, 2, 3, 5, 8, 64}) {
      for (const bool causal : {true, false}) {
        std::vector<std::vector<int>> seen(static_cast<size_t>(n),
                                           std::vector<int>(static_cast<size_t>(n)));
        for (const Edge& e :
             edges_of(*tree_layout(n, {.k = k, .causal = causal}, TreeRows::leaves))) {
          const Tokens& of = nodes[static_cast<size_t>(e.key)].tokens;
          for (int64_t t = of.first; t < of.second; ++t) {
            ++seen[static_cast<size_t>(e.row)][static_cast<size_t>(t)];
          }
        }
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t t = 0; t < n; ++t) {
            ASSERT_EQ(seen[static_cast<size_t>(i)][static_cast<size_t>(t)], causal && t > i ? 0 : 1)
                << "n " << n << " k " << k << " leaf " << i << " token " << t;
          }
        }
      }
    }
  }
}

TEST(Tree, HandExample) {
  const TreeOptions o{.k = 1, .clip = 9, .causal = true};
  const std::vector<Edge> edges = edges_of(*tree_layout(4, o, TreeRows::leaves));
  std::set<int64_t> of_last;
  for (const Edge& e : edges) {
    if (e.row == 3) of_last.insert(e.key);
  }
  EXPECT_EQ(of_last, (std::set<int64_t>{3, 2, 4}));  // itself, the leaf before, the span of 0 and 1
}

TEST(Tree, LabelsAreSmallAndWithoutClippingDistinctForALeaf) {
  for (const int64_t n : {1, 2, 7, 33, 100}) {
    for (const int64_t k : {1, 3, 8}) {
      const TreeOptions clipped{.k = k, .clip = 1}, whole{.k = k, .clip = Tree{n}.levels()};
      for (const Edge& e : edges_of(*tree_layout(n, clipped))) ASSERT_LT(e.label, clipped.labels());
      std::set<std::pair<int64_t, int64_t>> seen;
      for (const Edge& e : edges_of(*tree_layout(n, whole, TreeRows::leaves))) {
        ASSERT_LT(e.label, whole.labels());
        ASSERT_TRUE(seen.insert({e.row, e.label}).second) << n << " " << k << " leaf " << e.row;
      }
    }
  }
}

TEST(Tree, RowsOfLeavesAndOfTheRootAreThoseOfAllNodes) {
  for (const int64_t n : {1, 2, 13, 40}) {
    const TreeOptions o{.k = 2, .clip = 2};
    const auto all = labels_of_pairs(*tree_layout(n, o));
    const int64_t nodes = Tree{n}.nodes();
    for (const auto& [pair, label] : labels_of_pairs(*tree_layout(n, o, TreeRows::leaves))) {
      EXPECT_EQ(all.at(pair), label);
    }
    std::map<std::pair<int64_t, int64_t>, int64_t> root;
    for (const auto& [pair, label] : all) {
      if (pair.first == nodes - 1) root[{0, pair.second}] = label;
    }
    EXPECT_EQ(labels_of_pairs(*tree_layout(n, o, TreeRows::root)), root);
    std::vector<int64_t> order(static_cast<size_t>(nodes));
    std::iota(order.rbegin(), order.rend(), 0);
    std::map<std::pair<int64_t, int64_t>, int64_t> reversed;
    for (const auto& [pair, label] : all) reversed[{nodes - 1 - pair.first, pair.second}] = label;
    EXPECT_EQ(labels_of_pairs(*tree_edges_of(n, o, order)), reversed);
  }
}

TEST(Tree, SeveralTreesStandBesideEachOther) {
  const std::vector<int64_t> lengths = {5, 1, 17};
  const TreeOptions o{.k = 2, .clip = 1};
  std::map<std::pair<int64_t, int64_t>, int64_t> all;
  int64_t offset = 0;
  for (const int64_t n : lengths) {
    for (const auto& [pair, label] : labels_of_pairs(*tree_layout(n, o))) {
      all[{pair.first + offset, pair.second + offset}] = label;
    }
    offset += Tree{n}.nodes();
  }
  const auto layout = tree_edges(lengths, o);
  EXPECT_EQ(labels_of_pairs(*layout), all);
  EXPECT_EQ(layout->n_rows, offset);
  EXPECT_EQ(layout, tree_edges(lengths, o)) << "it comes from the cache";
  EXPECT_EQ(tree_edges(lengths, o, TreeRows::root)->n_rows, 3);
  EXPECT_EQ(tree_edges(lengths, o, TreeRows::leaves)->n_rows, 23);
}

TEST(Tree, WrongArguments) {
  expect_error([&] { tree_layout(0, {}); }, "a tree has 0 tokens; expected at least 1");
  expect_error([&] { tree_layout(4, {.k = 0}); }, "k is 0; expected at least 1");
  expect_error([&] { tree_layout(4, {.clip = -1}); }, "clip is -1; expected 0 or more");
  const int64_t node = 7;
  expect_error([&] { tree_edges_of(4, {}, std::span(&node, 1)); }, "node 7 of a tree of 7 nodes");
  expect_error([&] { tree_layout(int64_t{1} << 31, {}); }, "expected less than 2^30");
}

TEST(Edges, WrongRuns) {
  const auto built = [](std::vector<EdgeRun> runs, int64_t keys = 5, int64_t labels = 3) {
    EdgeLayoutBuilder builder;
    builder.label_list(std::vector<int32_t>{0, 1, 2});
    builder.add_row(runs);
    return builder.build(keys, labels);
  };
  EXPECT_EQ(built({{0, 2, 0}, {3, 2, EdgeLayoutBuilder::one_label(2)}})->pairs, 4);
  EXPECT_EQ(built({})->pairs, 0);
  expect_error([&] { built({{3, 3, -1}}); }, "a run of 3 keys from 3 on; there are 5");
  expect_error([&] { built({{-1, 3, -1}}); }, "a run of 3 keys from -1 on");
  expect_error([&] { built({{0, 3, 1}}); }, "whose labels begin at 1 of 3");
  expect_error([&] { built({{0, 2, -4}}); }, "whose labels begin at -4 of 3");
  expect_error([&] { built({{0, 2, 0}}, 5, 2); }, "label 2; expected 0 to 1");
  expect_error([&] { built({{0, 3, -1}, {2, 1, -1}}); }, "attends to key 2 twice");
}

// Also where the pairs of the last rows make a part full.
TEST(Edges, PartsCoverAllRows) {
  for (const int64_t rows : {0, 1, 7, 8, 9, 16, 24}) {
    EdgeLayoutBuilder builder;
    for (int64_t r = 0; r < rows; ++r) {
      builder.add_row(std::vector<EdgeRun>{{0, 4096, EdgeLayoutBuilder::one_label(0)}});
      builder.end_group();
    }
    const auto layout = builder.build(4096, 1);
    const std::vector<int32_t> parts = layout->parts.to_vector<int32_t>();
    ASSERT_FALSE(parts.empty());
    EXPECT_EQ(parts.front(), 0) << rows;
    EXPECT_EQ(parts.back(), layout->blocks.dim(0)) << rows;
    EXPECT_EQ(layout->blocks.dim(0), rows);
  }
}

TEST(Edges, EqualListsOfLabelsAreKeptOnce) {
  EdgeLayoutBuilder builder;
  const std::vector<int32_t> a = {4, 5}, b = {4};
  EXPECT_EQ(builder.label_list(a), 0);
  EXPECT_EQ(builder.label_list(b), 2);
  EXPECT_EQ(builder.label_list(a), 0);
  EXPECT_EQ(builder.build(0, 6)->labels.numel(), 3);
}

}  // namespace
}  // namespace longspan::test
