#include "ops/patterns/layout_cache.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/memory.h"
#include "ops/patterns/blocks.h"
#include "ops/patterns/pattern.h"
#include "ops/patterns/tree.h"
#include "ops/patterns/window.h"

namespace longspan {
namespace {

/// Clears the layout cache and limits it to `bytes` for the lifetime of the object.
class Bound {
 public:
  explicit Bound(int64_t bytes) : before_(set_layout_cache_limit(bytes)) { clear_layout_cache(); }
  ~Bound() {
    clear_layout_cache();
    set_layout_cache_limit(before_);
  }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

 private:
  int64_t before_;
};

constexpr int64_t kAmple = int64_t{64} << 20;

int64_t made() { return layout_cache_state().made; }
int64_t cached_bytes() { return memory_tracker().live()[Category::cache]; }

std::shared_ptr<const BlockLayout> local_layout(int64_t length) {
  return resolve(patterns::local(8), length, length).layout;
}

AttentionPattern random_blocks(int64_t length, int64_t block) {
  return patterns::block_lists(length, {bigbird_blocks(length, 8, {{block}, {0}, {0}, {0}}, true)},
                               {}, "random");
}

using Builder = std::function<AttentionPattern()>;

// Returns pairs of calls whose layouts differ, for every builder.
std::vector<std::pair<Builder, Builder>> builders() {
  const auto heads = [](int64_t stride) {
    return patterns::by_head({patterns::local(4), patterns::strided(stride)}, 40, 40);
  };
  const auto window = [](int64_t dilation, int64_t global) {
    return patterns::window_and_globals(40, 3, {1, dilation}, {{0, global}, {1}});
  };
  return {
      {[] { return resolve(patterns::local(4), 40, 40); },
       [] { return resolve(patterns::local(5), 40, 40); }},
      {[] { return resolve(patterns::strided(4), 40, 40); },
       [] { return resolve(patterns::strided(4), 40, 41); }},
      {[heads] { return heads(4); }, [heads] { return heads(5); }},
      {[] { return random_blocks(48, 2); }, [] { return random_blocks(48, 3); }},
      {[window] { return window(2, 7); }, [window] { return window(3, 7); }},
      {[] {
         return patterns::permuted_blocks(40, {{1, 2, 0}});
       },
       [] {
         return patterns::permuted_blocks(40, {{2, 1, 0}});
       }},
  };
}

TEST(LayoutCache, TheSecondCallBuildsNothing) {
  const Bound bound(kAmple);
  for (const auto& [one, other] : builders()) {
    const auto* const first = one().layout.get();
    const int64_t so_far = made();
    EXPECT_EQ(one().layout.get(), first);
    EXPECT_EQ(made(), so_far);
    EXPECT_NE(other().layout.get(), first) << one().name;
    EXPECT_GT(made(), so_far) << one().name;
  }
}

TEST(LayoutCache, WhatIsNotContentIsNotLookedAt) {
  const Bound bound(kAmple);
  // With other global tokens, equal in number, the layout is the same and the masks differ.
  const auto window = [](int64_t global) {
    return patterns::window_and_globals(40, 3, {1}, {{0, global}});
  };
  const AttentionPattern a = window(7), b = window(9);
  EXPECT_EQ(a.layout, b.layout);
  EXPECT_NE(a.mask.k_hidden.to_vector<uint8_t>(), b.mask.k_hidden.to_vector<uint8_t>());
}

// Writing a tensor after a call does not change the cached layout, which keeps the old content.
TEST(LayoutCache, ChangedContentBuildsAnew) {
  const Bound bound(kAmple);
  const std::vector<BlockTable> members{{{0, 8, 16}, {{0}, {1}}}, {{0, 8, 16}, {{1}, {0}}}};
  Tensor which = Tensor::from(std::vector<int32_t>{0, 1}, {1, 2});
  const auto first = patterns::block_lists(16, members, which, "lists").layout;
  *static_cast<int32_t*>(which.mut().data) = 1;
  const auto second = patterns::block_lists(16, members, which, "lists").layout;
  EXPECT_NE(first, second);
  EXPECT_EQ(first->layout_index.to_vector<int32_t>(), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(second->layout_index.to_vector<int32_t>(), (std::vector<int32_t>{1, 1}));
}

TEST(LayoutCache, KeysDoNotRunTogether) {
  using List = std::vector<int64_t>;
  EXPECT_NE(LayoutKey("a").add(List{1, 2}).add(List{3}).words(),
            LayoutKey("a").add(List{1}).add(List{2, 3}).words());
  EXPECT_NE(LayoutKey("ab").add(1).words(), LayoutKey("a").add('b').add(1).words());
  EXPECT_NE(LayoutKey("a").add(Tensor()).words(),
            LayoutKey("a").add(Tensor::from(std::vector<int32_t>{}, {0})).words());
  const BlockLayout own = *make_layout(4, 4, {{{0, 4, {}}}});
  const BlockLayout like = *make_layout(4, 4, {{{0, 4, {}}}});
  const BlockLayout unlike = *make_layout(4, 4, {{{0, 4, {{0, 1, 0, RunKind::full}}}}});
  EXPECT_EQ(LayoutKey("a").add(own).words(), LayoutKey("a").add(like).words());
  EXPECT_NE(LayoutKey("a").add(own).words(), LayoutKey("a").add(unlike).words());
}

TEST(LayoutCache, BytesAreThoseOfTheTracker) {
  const Bound bound(kAmple);
  const int64_t before = cached_bytes();
  for (const auto& [one, other] : builders()) one();
  EXPECT_GT(cached_bytes(), before);
  EXPECT_EQ(cached_bytes() - before, layout_cache_state().bytes);
  clear_layout_cache();
  EXPECT_EQ(cached_bytes(), before);
  EXPECT_EQ(layout_cache_state().layouts, 0);
  EXPECT_EQ(layout_cache_state().bytes, 0);
}

TEST(LayoutCache, TheBoundHoldsOverAThousandLengths) {
  constexpr int64_t limit = int64_t{1} << 18;
  const Bound bound(limit);
  const int64_t before = cached_bytes();
  LeakCheck leaks;
  for (int64_t step = 1; step <= 1000; ++step) {
    const auto layout = local_layout(step);
    EXPECT_EQ(layout->queries, step);
    leaks.step();
    ASSERT_LE(layout_cache_state().bytes, limit);
  }
  EXPECT_LE(cached_bytes() - before, limit);
  EXPECT_GT(layout_cache_state().layouts, 1);
}

TEST(LayoutCache, GivesWayWhereRoomIsShort) {
  const Bound bound(kAmple);
  const auto used = local_layout(50);
  for (int64_t length = 2000; length < 2020; ++length) local_layout(length);
  const int64_t bytes = layout_cache_state().bytes;
  ASSERT_GT(bytes, 1 << 15);
  set_memory_limit({}, memory_tracker().live().total() + 64);
  const Tensor kept = Tensor::empty({bytes / 2}, DType::u8);
  EXPECT_EQ(layout_cache_state().layouts, 0);
  EXPECT_THROW(Tensor::empty({bytes}, DType::u8), OutOfMemory);  // what there is may not be enough
  set_memory_limit({}, 0);
  EXPECT_EQ(local_layout(50), used);
}

TEST(LayoutCache, CountsWhatIsAskedForOnce) {
  const Bound bound(kAmple);
  const auto asked = [](const std::function<void()>& work) {
    count_asked_layouts();
    work();
    return layout_cache_state().asked;
  };
  EXPECT_EQ(asked([] {}), 0);
  const int64_t one = asked([] { local_layout(100); });
  EXPECT_EQ(one, layout_cache_state().bytes);
  EXPECT_EQ(asked([] { local_layout(100), local_layout(100); }), one);  // also where it is known
  const int64_t two = asked([] { local_layout(200), local_layout(100); });
  EXPECT_EQ(two, layout_cache_state().bytes);
  const Bound narrow(0);  // layouts in use count, whether they are kept or not
  EXPECT_EQ(asked([] { local_layout(100); }), one);
  const TreeOptions options{.k = 2};
  const std::vector<int64_t> leaves{9, 30};
  const int64_t before = cached_bytes();
  const int64_t tree = asked([&] { tree_edges(leaves, options); });
  EXPECT_EQ(tree, cached_bytes() - before);
  EXPECT_EQ(asked([&] { tree_edges(leaves, options), tree_edges(leaves, options); }), tree);
}

TEST(LayoutCache, TheOldestGoFirst) {
  const Bound bound(kAmple);
  const auto bytes = [](int64_t length) {
    clear_layout_cache();
    local_layout(length);
    return layout_cache_state().bytes;
  };
  const int64_t two = bytes(100) + bytes(101);
  const Bound narrow(two);
  const auto* const a = local_layout(100).get();
  local_layout(101);
  EXPECT_EQ(local_layout(100).get(), a);  // used again, so that 101 is the oldest
  local_layout(99);
  const int64_t so_far = made();
  EXPECT_EQ(local_layout(100).get(), a);
  EXPECT_EQ(made(), so_far);
  local_layout(101);
  EXPECT_EQ(made(), so_far + 1);
}

TEST(LayoutCache, LayoutsInUseAreSharedThoughNotKept) {
  const Bound bound(0);
  const int64_t before = cached_bytes(), so_far = made();
  {
    const auto a = local_layout(50);
    EXPECT_EQ(local_layout(50), a);
    EXPECT_EQ(made(), so_far + 1);
    EXPECT_EQ(layout_cache_state().layouts, 0);
  }
  EXPECT_EQ(cached_bytes(), before);
  local_layout(50);  // nothing stale is found
  EXPECT_EQ(made(), so_far + 2);
}

TEST(LayoutCache, ThreadsThatAskAtOnceShareOneLayout) {
  const Bound bound(kAmple);
  for (int64_t round = 0; round < 20; ++round) {
    std::vector<std::shared_ptr<const BlockLayout>> found(8);
    std::vector<std::thread> threads;
    for (auto& layout : found) {
      threads.emplace_back([&layout, round] {
        for (int64_t n = 0; n < 5; ++n) layout = local_layout(64 + round * 5 + n);
      });
    }
    for (std::thread& t : threads) t.join();
    for (const auto& layout : found) EXPECT_EQ(layout, found.front());
  }
}

TEST(LayoutCache, AFailureLeavesNothingBehind) {
  const Bound bound(kAmple);
  const Usage before = memory_tracker().live();
  EXPECT_THROW(patterns::block_lists(8, {{{0, 8}, {{1}}}}, {}, "no such block"), ShapeError);
  int64_t failures = 0;
  for (bool failed = true; failed;) {
    fail_allocation_after({}, failures);
    try {
      local_layout(77);
      failed = false;
    } catch (const OutOfMemory&) {
      ++failures;
    }
    fail_allocation_after({}, -1);
    if (failed) {
      ASSERT_EQ(memory_tracker().live().bytes, before.bytes) << failures;
    }
  }
  EXPECT_GE(failures, 10);
  EXPECT_EQ(local_layout(77)->queries, 77);
}

}  // namespace
}  // namespace longspan
