// The tracker agrees with the operating system, and the memory of a long run does not grow.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "autograd/engine.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "data/corpus.h"
#include "models/all/registry.h"
#include "tests/system/program.h"
#include "train/optimizer.h"

namespace {

/// Counts the live blocks that this program has allocated with operator new.
std::atomic<int64_t> heap_blocks{0};

void* take(size_t bytes, size_t alignment) {
  void* block = nullptr;
  if (posix_memalign(&block, alignment, bytes) != 0) throw std::bad_alloc();
  ++heap_blocks;
  return block;
}

void give_back(void* block) {
  if (block != nullptr) --heap_blocks;
  std::free(block);
}

}  // namespace

// The array forms call these functions. So do the nothrow forms, but not those of sanitizers.
void* operator new(size_t bytes) { return take(bytes, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return take(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept try {
  return ::operator new(bytes);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept try {
  return ::operator new(bytes, alignment);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void operator delete(void* block) noexcept { give_back(block); }
void operator delete(void* block, size_t) noexcept { give_back(block); }
void operator delete(void* block, std::align_val_t) noexcept { give_back(block); }
void operator delete(void* block, size_t, std::align_val_t) noexcept { give_back(block); }

namespace longspan::test {
namespace {

/// Returns a value of /proc/self/status in bytes, e.g. "VmHWM" (the peak) or "VmRSS".
int64_t status(const char* name) {
  int64_t kilobytes = -1;
  if (std::FILE* file = std::fopen("/proc/self/status", "r")) {
    char line[256];
    while (std::fgets(line, sizeof line, file) != nullptr) {
      if (std::strncmp(line, name, std::strlen(name)) == 0) {
        std::sscanf(line + std::strlen(name), ": %ld", &kilobytes);
      }
    }
    std::fclose(file);
  }
  return kilobytes * 1024;
}

/// Sanitizers keep freed blocks and shadow memory in the process.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

/// Runs training steps of a model by name.
struct Loop {
  Loop(const char* name, const ByteCorpus& corpus, int64_t batch, int64_t length)
      : model(find_model(name)->build(Init{Generator{1}.fork("init"), Device{}})),
        batches(corpus.train(), batch, length),
        adam(named_parameters(*model)) {}

  void step() {
    const Batch batch = batches.next();
    const auto losses = model->loss(batch.tokens, batch.targets, {}, Pass{true, Generator{2}});
    backward(losses.loss);
    adam.step(1e-4);
  }

  std::unique_ptr<LanguageModel> model;
  SegmentBatches batches;
  Adam adam;
};

/// Runs first and alone (under ctest each test is a separate process), so that the peak is its own.
TEST(MemoryOfAProcess, IsWhatTheTrackerSays) {
  if (sanitized) GTEST_SKIP() << "skipped: the process's memory is mostly the sanitizer's";
  const Folder folder;
  write(folder / "text", some_text(50'000));
  const int64_t before = status("VmHWM");
  ASSERT_GT(before, 0);
  const ByteCorpus corpus = ByteCorpus::open(folder / "text");
  Loop loop("local_transformer", corpus, 8, 512);
  for (int i = 0; i < 3; ++i) loop.step();
  const int64_t grown = status("VmHWM") - before;
  const Usage peak = memory_tracker().peak();
  const int64_t said = peak.total() + peak.held_free;
  EXPECT_GT(peak.total(), int64_t{64} << 20);
  EXPECT_LE(std::abs(grown - said), said / 50 + (int64_t{8} << 20))
      << "the process grew by " << grown << ", the tracker says\n"
      << to_string(peak);
}

/// Holds the memory that is live between two steps, in bytes and blocks.
struct Held {
  int64_t bytes = 0, blocks = 0, peak = 0, free = 0, on_heap = 0;

  static Held now() {
    const MemoryTracker& tracker = memory_tracker();
    return {tracker.live().total(), tracker.live_blocks(), tracker.peak().total(),
            tracker.live().held_free, heap_blocks.load()};
  }
};

TEST(Memory, DoesNotGrowOverAThousandSteps) {
  const Folder folder;
  write(folder / "text", some_text(50'000));
  const ByteCorpus corpus = ByteCorpus::open(folder / "text");
  const int threads = num_threads();
  // With several threads the peak depends on their timing, so only one thread gives an exact peak
  // and free memory.
  for (const int n : {1, std::max(2, threads)}) {
    SCOPED_TRACE(n);
    set_num_threads(n);
    Loop loop("transformer", corpus, 1, 12);
    LeakCheck leaks;
    for (int i = 0; i < 20; ++i) loop.step();
    memory_tracker().reset_peak();
    loop.step();
    const Held before = Held::now();
    const int64_t allocations = memory_tracker().allocations();
    loop.step();
    const int64_t of_a_step = memory_tracker().allocations() - allocations;
    const int steps = n == 1 ? 1000 : 100;
    for (int i = 1; i < steps; ++i) {
      loop.step();
      leaks.step();
    }
    const Held after = Held::now();
    EXPECT_EQ(after.bytes, before.bytes);
    EXPECT_EQ(after.blocks, before.blocks);
    if (n > 1) continue;
    EXPECT_EQ(after.on_heap, before.on_heap);
    EXPECT_EQ(after.peak, before.peak);
    EXPECT_EQ(after.free, before.free);
    EXPECT_EQ(memory_tracker().allocations() - allocations, steps * of_a_step);
  }
  set_num_threads(threads);
}

}  // namespace
}  // namespace longspan::test
