#include "core/memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "core/arena.h"
#include "core/best_fit.h"
#include "core/divide.h"
#include "core/error.h"
#include "core/generator.h"
#include "core/tensor.h"

namespace longspan {
namespace {

/// A sequence of pseudorandom integers below `n`.
class Dice {
 public:
  explicit Dice(uint64_t key) : key_(key) {}
  int64_t operator()(int64_t n) {
    return static_cast<int64_t>(
        to_range(uint64_t{philox_word(key_, i_++)} << 32, static_cast<uint64_t>(n)));
  }

 private:
  uint64_t key_;
  int64_t i_ = 0;
};

TEST(Tracker, CountsByCategory) {
  const MemoryTracker& tracker = memory_tracker();
  const Usage before = tracker.live();
  const int64_t blocks = tracker.live_blocks(), allocations = tracker.allocations();
  {
    const Tensor p = Tensor::empty({100}, DType::f32, {}, Category::parameter);
    Tensor x = Tensor::empty({7}, DType::u8);
    const Scratch scratch(1000);
    const Tensor nothing = Tensor::empty({0});
    const Usage now = tracker.live();
    EXPECT_EQ(now[Category::parameter] - before[Category::parameter], 448);
    EXPECT_EQ(now[Category::other] - before[Category::other], 64 + 64);
    EXPECT_EQ(now[Category::workspace] - before[Category::workspace], 1024);
    EXPECT_EQ(now.total() - before.total(), 448 + 128 + 1024);
    EXPECT_EQ(tracker.live_blocks() - blocks, 4);
    x.set_category(Category::data);
    EXPECT_EQ(tracker.live()[Category::data] - before[Category::data], 64);
    EXPECT_EQ(tracker.live()[Category::other] - before[Category::other], 64);
    EXPECT_EQ(tracker.live().total(), now.total());
  }
  EXPECT_EQ(tracker.live().total(), before.total());
  EXPECT_EQ(tracker.live().bytes, before.bytes);
  EXPECT_EQ(tracker.live_blocks(), blocks);
  EXPECT_EQ(tracker.allocations() - allocations, 4);
}

TEST(Tracker, StorageCountsAsSavedWhileHeld) {
  const int64_t before = memory_tracker().live()[Category::saved];
  Storage x(100, {}, Category::other), p(100, {}, Category::parameter);
  x.retain();
  x.retain();
  p.retain();
  EXPECT_EQ(memory_tracker().live()[Category::saved] - before, 128);  // once, and only x
  x.release();
  EXPECT_EQ(x.category(), Category::saved);
  x.release();
  p.release();
  EXPECT_EQ(x.category(), Category::other);
  EXPECT_EQ(p.category(), Category::parameter);
  EXPECT_EQ(memory_tracker().live()[Category::saved], before);
}

TEST(Tracker, PeakIsTheSplitAtTheInstantOfThePeak) {
  MemoryTracker& tracker = memory_tracker();
  const Usage start = tracker.live();
  tracker.reset_peak();
  EXPECT_EQ(tracker.peak().bytes, start.bytes);
  {
    const Tensor a = Tensor::empty({1000}, DType::u8, {}, Category::gradient);
    const Tensor b = Tensor::empty({2000}, DType::u8, {}, Category::data);
  }
  // Less in total, although more of one category: no new peak.
  { const Tensor c = Tensor::empty({1500}, DType::u8, {}, Category::gradient); }
  const Usage peak = tracker.peak();
  EXPECT_EQ(peak[Category::gradient] - start[Category::gradient], 1024);
  EXPECT_EQ(peak[Category::data] - start[Category::data], 2048);
  EXPECT_EQ(peak.total() - start.total(), 3072);
  tracker.reset_peak();
  EXPECT_EQ(tracker.peak().total(), start.total());
}

/// The host's arena, and a record of the blocks that it hands out.
memory::Source below;
int64_t handed_out = 0, most = 0;
std::map<void*, int64_t> blocks_out;

TEST(Tracker, EqualsWhatTheSourceHandsOut) {
  const int64_t start = memory_tracker().live().total();
  const int64_t blocks = memory_tracker().live_blocks();
  memory_tracker().reset_peak();
  below = host_arena();
  handed_out = most = 0;
  memory::Source counting = below;
  counting.allocate = [](int64_t bytes) {
    void* at = below.allocate(bytes);
    EXPECT_EQ(bytes % 64, 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % 64, 0u);
    EXPECT_TRUE(blocks_out.emplace(at, bytes).second);
    handed_out += bytes;
    most = std::max(most, handed_out);
    return at;
  };
  counting.release = [](void* at, int64_t bytes) {
    EXPECT_EQ(blocks_out.at(at), bytes);
    blocks_out.erase(at);
    handed_out -= bytes;
    below.release(at, bytes);
  };
  memory::set_source(DeviceKind::cpu, counting);
  {
    Dice dice(1);
    std::vector<Tensor> alive;
    for (int i = 0; i < 5000; ++i) {
      if (alive.empty() || dice(3) != 0) {
        alive.push_back(Tensor::empty({dice(5) == 0 ? dice(300'000) : dice(2000)},
                                      static_cast<DType>(dice(dtype_count)), {},
                                      static_cast<Category>(dice(category_count))));
      } else {
        const auto at = static_cast<size_t>(dice(static_cast<int64_t>(alive.size())));
        if (dice(2) == 0) alive[at].set_category(static_cast<Category>(dice(category_count)));
        std::swap(alive[at], alive.back());
        alive.pop_back();
      }
      ASSERT_EQ(memory_tracker().live().total() - start, handed_out);
      ASSERT_EQ(memory_tracker().live_blocks() - blocks, static_cast<int64_t>(blocks_out.size()));
    }
    EXPECT_EQ(memory_tracker().peak().total() - start, most);
  }
  memory::set_source(DeviceKind::cpu, below);
  EXPECT_EQ(handed_out, 0);
  EXPECT_EQ(memory_tracker().live().total(), start);
  for (const int64_t b : memory_tracker().live().bytes) EXPECT_GE(b, 0);
}

TEST(Arena, RandomRequestsNeitherOverlapNorLeak) {
  const memory::Source arena = host_arena();
  Dice dice(2);
  struct Block {
    char* at;
    int64_t bytes;
    char mark;
  };
  std::vector<Block> alive;
  std::map<char*, int64_t> ranges;
  const auto check = [](const Block& b) {
    for (int64_t i = 0; i < b.bytes; i += b.bytes / 7 + 1) ASSERT_EQ(b.at[i], b.mark);
    ASSERT_EQ(b.at[b.bytes - 1], b.mark);
  };
  const auto release = [&](size_t i) {
    check(alive[i]);
    ranges.erase(alive[i].at);
    arena.release(alive[i].at, alive[i].bytes);
    alive[i] = alive.back();
    alive.pop_back();
  };
  const int64_t free_before = arena.held_free();
  for (int i = 0; i < 20'000; ++i) {
    if (alive.empty() || (dice(2) == 0 && alive.size() < 400)) {
      const int64_t bytes = 64 * (1 + (dice(8) == 0 ? dice(20'000) : dice(100)));
      auto* at = static_cast<char*>(arena.allocate(bytes));
      ASSERT_NE(at, nullptr);
      const auto next = ranges.lower_bound(at);
      if (next != ranges.end()) {
        ASSERT_LE(at + bytes, next->first);
      }
      if (next != ranges.begin()) {
        const auto previous = std::prev(next);
        ASSERT_LE(previous->first + previous->second, at);
      }
      ranges.emplace(at, bytes);
      alive.push_back({at, bytes, static_cast<char>(i)});
      std::memset(at, static_cast<char>(i), static_cast<size_t>(bytes));
    } else {
      release(static_cast<size_t>(dice(static_cast<int64_t>(alive.size()))));
    }
  }
  while (!alive.empty()) release(alive.size() - 1);
  EXPECT_GE(arena.held_free(), free_before);  // the arena keeps its memory
}

TEST(Arena, FreedNeighboursMerge) {
  constexpr int64_t size = 1 << 20;
  std::vector<char> range(20 * size);  // addresses that nobody reads
  BestFit blocks(range.data(), std::ssize(range), std::ssize(range));
  std::vector<char*> parts;
  for (int i = 0; i < 16; ++i) parts.push_back(blocks.allocate(size));
  EXPECT_EQ(blocks.held_free(), 0);
  for (const int i : {1, 0, 3, 2, 15, 14, 4, 13, 5, 12, 6, 11, 7, 10, 8, 9}) {
    blocks.release(parts[static_cast<size_t>(i)], size);
  }
  EXPECT_EQ(blocks.held_free(), 16 * size);
  EXPECT_EQ(blocks.allocate(16 * size), range.data()) << "it fits without taking more";
  EXPECT_EQ(blocks.held_free(), 0);
}

// Blocks are counted, so that a release never needs memory: a part of one is no block of its own.
TEST(Arena, ShrunkBlocksAreStillOne) {
  constexpr int64_t size = 1 << 24, large = 1 << 20;
  std::vector<char> range(size);  // addresses that nobody reads
  BestFit blocks(range.data(), size, size);
  EXPECT_FALSE(BestFit::divides(64, large));
  for (int i = 0; i < 1000; ++i) {
    char* const at = blocks.allocate(large);
    ASSERT_EQ(at, range.data()) << i;
    EXPECT_FALSE(blocks.shrink(at, large, large - 64));
    EXPECT_FALSE(blocks.shrink(at, large, 2048));
    ASSERT_TRUE(blocks.shrink(at, large, large / 4));
    char* const rest = blocks.allocate(large / 2);
    ASSERT_EQ(rest, range.data() + large / 4) << i;
    blocks.release(rest, large / 2);
    blocks.release(at, large / 4);
  }
  for (int i = 0; i < 1000; ++i) ASSERT_NE(blocks.allocate(64), nullptr) << i;
}

TEST(Arena, ASteadyLoopTakesNothingNew) {
  const auto addresses_of_a_step = [] {
    std::vector<const void*> addresses;
    std::vector<Tensor> tensors;
    for (int i = 1; i < 60; ++i) {
      tensors.push_back(Tensor::empty({i * 997}));
      addresses.push_back(tensors.back().view().data);
      if (i % 3 == 0) tensors.erase(tensors.begin());
    }
    return addresses;
  };
  addresses_of_a_step();
  const std::vector<const void*> first = addresses_of_a_step();
  for (int i = 0; i < 50; ++i) ASSERT_EQ(addresses_of_a_step(), first) << i;
}

TEST(Limit, BeyondItIsOutOfMemoryWithTheTable) {
  const Tensor kept = Tensor::from(std::vector<float>(5000, 1.0f), {5000});
  const Usage before = memory_tracker().live();
  const int64_t taken = before.total() + before.held_free;
  set_memory_limit({}, taken + (8 << 20));
  std::string text;
  try {
    Tensor::empty({taken + (64 << 20)}, DType::u8, {}, Category::gradient);
    FAIL() << "nothing was thrown";
  } catch (const OutOfMemory& e) {
    text = e.what();
  }
  for (const char* part : {"out of memory on cpu", "of gradient", "other", "total", "held free",
                           "shorten the sequence"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in " << text;
  }
  // The failure changed nothing, and allocations that fit still work.
  EXPECT_EQ(memory_tracker().live().bytes, before.bytes);
  const Tensor fits = Tensor::zeros({4 << 20}, DType::u8);
  EXPECT_EQ(kept.to_vector<float>()[4999], 1.0f);
  set_memory_limit({}, 0);
  const Tensor large = Tensor::empty({taken + (64 << 20)}, DType::u8);
  EXPECT_TRUE(large);
}

// If two blocks of four that are not neighbours are freed, a block as large as both fits into the
// limit, but for the pages at both ends of each gap, which neighbours may share.
TEST(Limit, GapsBetweenBlocksDoNotCount) {
  constexpr int64_t size = 6 << 20;
  Tensor::empty({1}, DType::u8);
  const Usage before = memory_tracker().live();
  const int64_t shared = 2 * 2 * sysconf(_SC_PAGESIZE);
  const int64_t limit = before.total() + before.held_free + 4 * size + shared;
  set_memory_limit({}, limit);
  const auto block = [](int64_t bytes) {
    return Tensor::from(std::vector<uint8_t>(static_cast<size_t>(bytes), 7), {bytes});
  };
  const auto held = [] {
    const Usage now = memory_tracker().live();
    return now.total() + now.held_free;
  };
  std::vector<Tensor> blocks;
  for (int64_t left = before.held_free + 4 * size; left >= size; left -= size) {
    blocks.push_back(block(size));
  }
  const size_t last = blocks.size() - 1;
  blocks[last - 3] = blocks[last - 1] = {};
  for (int turn = 0; turn < 3; ++turn) {  // memory that was given back and is used again counts
    const Tensor both = block(2 * size);
    EXPECT_LE(held(), limit);
    EXPECT_THROW(Tensor::empty({2 * size}, DType::u8), OutOfMemory);
  }
  const Tensor one = block(size), other = block(size);
  EXPECT_LE(held(), limit);
  EXPECT_THROW(Tensor::empty({size}, DType::u8), OutOfMemory);
  EXPECT_EQ(blocks[last].to_vector<uint8_t>()[size - 1], 7);
  set_memory_limit({}, 0);
}

/// Returns how many bytes of the whole pages within [from, from + bytes) are resident. The pages at
/// both ends may belong to neighbouring blocks too.
int64_t resident(char* from, int64_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(from), end = begin + static_cast<uintptr_t>(bytes);
  const uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
  std::vector<unsigned char> present((last - first) / page);
  EXPECT_EQ(mincore(from + (first - begin), last - first, present.data()), 0);
  return static_cast<int64_t>(page) *
         std::count_if(present.begin(), present.end(), [](auto p) { return p & 1; });
}

TEST(Limit, WhatWasGivenUpBesideABlockStaysAway) {
  constexpr int64_t size = 4 << 20, part = 5 << 19;
  const memory::Source arena = host_arena();
  const auto block = [&](int64_t bytes) {
    auto* at = static_cast<char*>(arena.allocate(bytes));
    if (at != nullptr) std::memset(at, 1, static_cast<size_t>(bytes));
    return at;
  };
  std::vector<char*> blocks, parts;
  for (int i = 0; i < 17; ++i) blocks.push_back(block(size));
  for (size_t i = 1; i < blocks.size(); i += 2) arena.release(blocks[i], size);
  arena.set_limit(1);
  EXPECT_EQ(arena.allocate(size), nullptr);  // after it has given back what it can
  EXPECT_EQ(resident(blocks[1], size), 0);
  arena.set_limit(0);
  int64_t highest = 0;
  for (size_t i = 1; i < blocks.size(); i += 2) {
    parts.push_back(block(part));
    if (std::count(blocks.begin(), blocks.end(), parts.back()) != 0) {
      highest = std::max(highest, resident(parts.back(), size));
    }
  }
  EXPECT_GE(highest, part - sysconf(_SC_PAGESIZE));
  EXPECT_LE(highest, part + sysconf(_SC_PAGESIZE));
  for (char* at : parts) arena.release(at, part);
  for (size_t i = 0; i < blocks.size(); i += 2) arena.release(blocks[i], size);
}

// The limit counts whole pages of the system: a page counts again with the first byte of it that is
// used. Only where blocks would else not find what the limit leaves for them may the pages that
// they share with gaps lie beyond it.
TEST(Limit, HoldsForPagesToo) {
  constexpr int64_t page = 4096, range = 4096 * page, limit = 600 * page;
  static std::vector<char> bytes(static_cast<size_t>(range));
  static std::set<int64_t> pages;  // resident pages
  BestFit blocks(
      bytes.data(), range, limit, nullptr,
      [](char* from, char* to) {
        const int64_t first = round_up(from - bytes.data(), page);
        const int64_t last = round_down(to - bytes.data(), page);
        for (int64_t at = first; at < last; at += page) pages.erase(at);
        return std::max<int64_t>(last - first, 0);
      },
      page);
  int64_t live = 0;
  const auto use = [&](int64_t wanted) {
    char* at = blocks.allocate(wanted);
    if (at == nullptr) return at;
    live += wanted;
    for (int64_t p = (at - bytes.data()) / page; p * page < at + wanted - bytes.data(); ++p) {
      pages.insert(p * page);
    }
    return at;
  };
  std::vector<char*> pairs;
  for (int i = 0; i < 300; ++i) pairs.push_back(use(2 * page));
  for (size_t i = 1; i < pairs.size(); i += 2) {
    blocks.release(pairs[i], 2 * page);
    live -= 2 * page;
  }
  EXPECT_NE(use(2 * page + 64), nullptr);  // beyond the pairs, because gaps were given back
  // 64 bytes bring back a gap's second page, so 148 blocks fill the limit with pages.
  for (int64_t cut = 0; use(page + 64) != nullptr; ++cut) {
    EXPECT_LE(std::ssize(pages), limit / page + std::max<int64_t>(cut - 147, 0) * 2) << cut;
  }
  EXPECT_LE(live, limit);
  EXPECT_GT(live + page + 64, limit);  // everything that the limit leaves for blocks was found
}

TEST(Limit, InjectedFailuresCountDown) {
  const int64_t before = memory_tracker().live().total();
  fail_allocation_after({}, 0);
  EXPECT_THROW(Tensor::empty({1}), OutOfMemory);
  EXPECT_NO_THROW(Tensor::empty({1}));
  fail_allocation_after({}, 2);
  {
    const Tensor a = Tensor::empty({1}), b = Tensor::empty({1});
    EXPECT_THROW(Scratch(100), OutOfMemory);
    EXPECT_NO_THROW(Scratch(100));
  }
  fail_allocation_after({}, 5);
  fail_allocation_after({}, -1);
  for (int i = 0; i < 10; ++i) EXPECT_NO_THROW(Tensor::empty({1}));
  EXPECT_EQ(memory_tracker().live().total(), before);
}

TEST(Leak, GrowthInEveryStepIsReported) {
  LeakCheck check({}, 4);
  std::vector<Tensor> kept;
  check.step();
  for (int i = 0; i < 3; ++i) {
    kept.push_back(Tensor::empty({100}, DType::f32, {}, Category::memory));
    EXPECT_NO_THROW(check.step());
  }
  kept.push_back(Tensor::empty({100}, DType::f32, {}, Category::memory));
  try {
    check.step();
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("memory  "), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("each of the last 4 steps"), std::string::npos);
  }
}

TEST(Leak, GrowthThatStopsIsNone) {
  LeakCheck check({}, 3);
  std::vector<Tensor> kept;
  for (int i = 0; i < 30; ++i) {
    if (i % 3 != 0) kept.push_back(Tensor::empty({100}));
    EXPECT_NO_THROW(check.step());
  }
}

TEST(Usage, TableForPeople) {
  Usage usage;
  usage[Category::parameter] = 3 << 20;
  usage[Category::saved] = 64;
  usage.held_free = 1 << 20;
  const std::string text = to_string(usage);
  EXPECT_NE(text.find("parameter"), std::string::npos);
  EXPECT_NE(text.find("3.0 MiB"), std::string::npos);
  EXPECT_NE(text.find("total"), std::string::npos);
  EXPECT_EQ(text.find("gradient"), std::string::npos);  // empty ones are left out
  EXPECT_EQ(usage.total(), (3 << 20) + 64);
}

}  // namespace
}  // namespace longspan
