// What the tracker says is what the system sees, and a long run does not grow.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "autograd/engine.h"
#include "core/memory.h"
#include "models/registry.h"
#include "tests/system/program.h"
#include "train/data.h"
#include "train/optimizer.h"

namespace longspan::test {
namespace {

/// A figure of /proc/self/status, e.g. "VmHWM" (the peak) or "VmRSS", in bytes.
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

/// Sanitizers keep freed blocks and shadows of everything in the process's memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

/// Training steps of a model by name.
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

/// Runs first and alone (each test is a process of its own under ctest), so that the peak is its
/// own.
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

TEST(Memory, DoesNotGrowOverAThousandSteps) {
  const Folder folder;
  write(folder / "text", some_text(50'000));
  const ByteCorpus corpus = ByteCorpus::open(folder / "text");
  Loop loop("transformer", corpus, 1, 12);
  LeakCheck leaks;
  const auto all = [] {
    return memory_tracker().live().total() + memory_tracker().live().held_free;
  };
  for (int i = 0; i < 20; ++i) loop.step();
  const int64_t live = memory_tracker().live().total(), held = all();
  const int64_t blocks = memory_tracker().live_blocks(), resident = status("VmRSS");
  for (int i = 0; i < 1000; ++i) {
    loop.step();
    leaks.step();
  }
  EXPECT_EQ(memory_tracker().live().total(), live);
  EXPECT_EQ(memory_tracker().live_blocks(), blocks);
  // How much scratch threads hold at one moment depends on how they meet, so a new peak may come.
  EXPECT_LE(all(), held + (1 << 20));
  if (!sanitized) {
    EXPECT_LE(status("VmRSS"), resident + (1 << 20));
  }
}

}  // namespace
}  // namespace longspan::test
