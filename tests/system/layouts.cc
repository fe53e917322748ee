#include <gtest/gtest.h>

#include "core/memory.h"
#include "ops/patterns/layout_cache.h"
#include "ops/patterns/pattern.h"
#include "tests/harness/host_device.h"

namespace longspan::test {
namespace {

// The copy of a layout on a device is cached with the layout, counts as memory of that device and
// is freed with the layout.
TEST(LayoutCache, CopiesOnADeviceAreKept) {
  const Device other{DeviceKind::cuda, 0};
  if (!is_available(other)) enable_host_device();
  clear_layout_cache();
  const MemoryTracker& there = memory_tracker(other);
  const int64_t before = there.live().total();
  const auto copy_of = [other](int64_t length) {
    return on_device(resolve(patterns::causal(), length, length).layout, other).get();
  };
  const BlockLayout* const first = copy_of(200);
  const int64_t bytes = there.live()[Category::cache], copies = there.allocations();
  EXPECT_GT(bytes, 0);
  EXPECT_EQ(there.live().total() - before, bytes);
  EXPECT_EQ(layout_cache_state().bytes, bytes + memory_tracker().live()[Category::cache]);
  EXPECT_EQ(copy_of(200), first);
  EXPECT_EQ(there.allocations(), copies);

  // If the cache can hold only one layout, each new layout evicts the previous one on both devices.
  const int64_t limit = set_layout_cache_limit(layout_cache_state().bytes);
  for (int64_t step = 0; step < 100; ++step) {
    copy_of(100 + step % 50);
    ASSERT_LE(layout_cache_state().bytes, 3 * bytes);
    ASSERT_EQ(there.live().total() - before, there.live()[Category::cache]);
  }
  set_layout_cache_limit(limit);
  clear_layout_cache();
  EXPECT_EQ(there.live().total(), before);
}

}  // namespace
}  // namespace longspan::test
