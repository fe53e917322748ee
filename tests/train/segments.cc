#include "train/segments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace longspan {
namespace {

/// Returns the peak bytes of a segmentation, which plan_segments() promises to bound.
int64_t most_live(const std::vector<BlockCost>& blocks, const std::vector<int64_t>& sizes) {
  int64_t live = 0, most = 0, i = 0;
  std::vector<int64_t> interiors;
  for (const int64_t size : sizes) {
    live += blocks[static_cast<size_t>(i)].input;
    int64_t interior = 0;
    for (int64_t j = i; j < i + size; ++j) interior += blocks[static_cast<size_t>(j)].kept;
    most = std::max(most, live + interior);
    i += size;
  }
  for (; i < static_cast<int64_t>(blocks.size()); ++i) live += blocks[static_cast<size_t>(i)].kept;
  return std::max(most, live);
}

/// Calls f for every segmentation.
void each_cut(int64_t blocks, std::vector<int64_t>& sizes,
              const std::function<void(const std::vector<int64_t>&)>& f) {
  f(sizes);
  for (int64_t g = 1; g <= blocks; ++g) {
    sizes.push_back(g);
    each_cut(blocks - g, sizes, f);
    sizes.pop_back();
  }
}

TEST(Segments, NoCutWithinTheBudgetRunsFewerBlocksAgain) {
  for (uint64_t seed = 1; seed < 60; ++seed) {
    std::vector<BlockCost> blocks;
    for (uint64_t i = 0; i < 3 + seed % 6; ++i) {
      const uint64_t hash = (seed * 7919 + i * 104729) * 2654435761U;
      blocks.push_back({static_cast<int64_t>(20 + hash % (seed % 2 == 0 ? 1 : 50)),
                        static_cast<int64_t>(3 + hash / 64 % (seed % 3 == 0 ? 1 : 9))});
    }
    for (int64_t room = 10; room < 400; room += 13) {
      int64_t fewest = -1;
      std::vector<int64_t> none;
      each_cut(static_cast<int64_t>(blocks.size()), none, [&](const std::vector<int64_t>& sizes) {
        int64_t again = 0;
        for (const int64_t g : sizes) again += g;
        if (most_live(blocks, sizes) <= room && (fewest < 0 || again < fewest)) fewest = again;
      });
      const std::vector<int64_t> found = plan_segments(blocks, room);
      if (fewest < 0) {
        EXPECT_EQ(found, std::vector<int64_t>{0});
        continue;
      }
      int64_t again = 0;
      for (const int64_t g : found) again += g;
      EXPECT_EQ(again, fewest) << "seed " << seed << " room " << room;
      EXPECT_LE(most_live(blocks, found), room);
    }
  }
}

TEST(Segments, EqualBlocksAreCutByTheRoot) {
  // M(g) = (N / g) b + g A is least at g = sqrt(N b / A): here 4 segments of 4.
  const std::vector<BlockCost> blocks(16, {10, 10});
  EXPECT_EQ(plan_segments(blocks, 160), std::vector<int64_t>{});
  EXPECT_EQ(plan_segments(blocks, 30), std::vector<int64_t>{0});
  int64_t least = 31;
  while (plan_segments(blocks, least) == std::vector<int64_t>{0}) ++least;
  EXPECT_LE(least, 80);
}

}  // namespace
}  // namespace longspan
