#include "core/parallel.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>

#include "core/error.h"

namespace longspan {
namespace {

class Threads : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    before_ = num_threads();
    set_num_threads(GetParam());
  }
  void TearDown() override { set_num_threads(before_); }

 private:
  int before_ = 0;
};

TEST_P(Threads, EveryIndexOnce) {
  EXPECT_EQ(num_threads(), GetParam());
  for (const int64_t n : {0, 1, 2, 3, 7, 1000, 100'000}) {
    std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
    parallel_for(n, [&](int64_t i) { ++seen[static_cast<size_t>(i)]; });
    for (const auto& s : seen) ASSERT_EQ(s.load(), 1);
  }
  parallel_for(-3, [](int64_t) { FAIL(); });
}

TEST_P(Threads, RangesDoNotDependOnTheirNumber) {
  for (const int64_t n : {0, 1, 9, 10, 11, 1001}) {
    std::vector<int64_t> piece(static_cast<size_t>(n), -1);
    parallel_ranges(n, 10, [&](int64_t i, int64_t end) {
      EXPECT_EQ(i % 10, 0);
      EXPECT_EQ(end, std::min(n, i + 10));
      for (int64_t j = i; j < end; ++j) piece[static_cast<size_t>(j)] = i;
    });
    for (int64_t j = 0; j < n; ++j) ASSERT_EQ(piece[static_cast<size_t>(j)], j / 10 * 10);
  }
}

TEST_P(Threads, TheFirstExceptionComesOutAndThePoolGoesOn) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int64_t> ran{0};
    try {
      parallel_for(10'000, [&](int64_t i) {
        ++ran;
        if (i == 17) throw ValueError("index 17");
      });
      FAIL() << "nothing was thrown";
    } catch (const ValueError& e) {
      EXPECT_STREQ(e.what(), "index 17");
    }
    // Other threads may have taken every index by the time that the exception arrives.
    if (GetParam() == 1) {
      EXPECT_EQ(ran.load(), 18);
    }
    std::atomic<int64_t> sum{0};
    parallel_for(100, [&](int64_t i) { sum += i; });
    EXPECT_EQ(sum.load(), 4950);
  }
}

TEST_P(Threads, NothingMoreBeginsAfterAnException) {
  std::atomic<int64_t> ran{0};
  const auto run = [&] {
    parallel_for(500, [&](int64_t i) {
      ++ran;
      if (i == 0) throw ValueError("index 0");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  };
  EXPECT_THROW(run(), ValueError);
  EXPECT_LT(ran.load(), 500);
}

TEST_P(Threads, NestedCallsStayInTheirThread) {
  std::atomic<int64_t> sum{0};
  parallel_for(20, [&](int64_t) {
    const int mine = worker_index();
    const std::thread::id id = std::this_thread::get_id();
    parallel_for(30, [&](int64_t j) {
      EXPECT_EQ(worker_index(), mine);
      EXPECT_EQ(std::this_thread::get_id(), id);
      sum += j;
    });
  });
  EXPECT_EQ(sum.load(), 20 * 435);
}

TEST_P(Threads, AnExceptionFromANestedCall) {
  EXPECT_THROW(parallel_for(8,
                            [](int64_t) {
                              parallel_for(8, [](int64_t j) {
                                if (j == 3) throw ShapeError("inner");
                              });
                            }),
               ShapeError);
  // The calling thread is no longer inside a parallel loop.
  std::atomic<int> workers{0};
  parallel_for(1000, [&](int64_t) { workers |= 1 << worker_index(); });
  EXPECT_LT(workers.load(), 1 << GetParam());
}

TEST_P(Threads, AllTakePart) {
  // Every index waits until all threads have arrived, so no thread can run two of them.
  std::atomic<int> here{0};
  parallel_for(GetParam(), [&](int64_t) {
    ++here;
    while (here.load() < GetParam()) std::this_thread::yield();
  });
  EXPECT_EQ(here.load(), GetParam());
}

TEST_P(Threads, WakeAfterSleep) {
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::atomic<int64_t> sum{0};
    parallel_for(64, [&](int64_t i) { sum += i; });
    ASSERT_EQ(sum.load(), 2016);
  }
}

TEST_P(Threads, ManySmallJobs) {
  int64_t total = 0;
  for (int round = 0; round < 20'000; ++round) {
    int64_t values[4] = {};
    parallel_for(4, [&](int64_t i) { values[i] = i + round; });
    total += values[0] + values[1] + values[2] + values[3] - 4 * round;
  }
  EXPECT_EQ(total, 20'000 * 6);
}

INSTANTIATE_TEST_SUITE_P(Parallel, Threads, testing::Values(1, 2, 3));

TEST(Parallel, OtherThreadsMayCallAtTheSameTime) {
  const int before = num_threads();
  set_num_threads(2);
  std::vector<std::thread> callers;
  std::atomic<int64_t> sum{0};
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) parallel_for(50, [&](int64_t i) { sum += i; });
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(sum.load(), 4 * 200 * 1225);
  set_num_threads(before);
}

int processors_allowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

TEST(Parallel, OneThreadIsNotPinned) {
  const int before = num_threads();
  set_num_threads(1);
  const int all = processors_allowed();
  set_num_threads(2);
  if (std::getenv("LONGSPAN_PIN") == nullptr) {
    EXPECT_EQ(processors_allowed(), 1);
  }
  set_num_threads(1);
  EXPECT_EQ(processors_allowed(), all);
  set_num_threads(before);
}

TEST(Parallel, AForkedChildWaitsForNobody) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "skipped: the sanitizer lets no forked child start threads";
#endif
  const int before = num_threads();
  set_num_threads(3);
  parallel_for(100, [](int64_t) {});
  EXPECT_EXIT(
      {
        std::atomic<int> sum{0};
        const auto add = [&](int64_t i) { sum += static_cast<int>(i); };
        parallel_for(10, add);
        const int alone = num_threads();
        set_num_threads(2);
        parallel_for(10, add);
        std::exit(alone == 1 && num_threads() == 2 && sum == 90 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
  set_num_threads(before);
}

TEST(Parallel, ThreadsThatCannotBeHadAreAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "skipped: the sanitizer needs the addresses that this test takes away";
#endif
  EXPECT_EXIT(
      {
        set_num_threads(2);
        rlimit limit{};
        getrlimit(RLIMIT_AS, &limit);
        limit.rlim_cur = 1 << 20;  // below what is in use: no stack for another thread
        setrlimit(RLIMIT_AS, &limit);
        int code = 1;
        try {
          set_num_threads(1000);
        } catch (const Error& e) {
          const bool told = std::strstr(e.what(), "threads: 1000 could not be started") != nullptr;
          std::atomic<int> sum{0};
          parallel_for(10, [&](int64_t i) { sum += static_cast<int>(i); });
          code = told && num_threads() == 2 && sum == 45 ? 0 : 2;
        }
        std::_Exit(code);
      },
      testing::ExitedWithCode(0), "");
}

TEST(Parallel, RefusesOddNumbersOfThreads) {
  EXPECT_THROW(set_num_threads(0), ValueError);
  EXPECT_THROW(set_num_threads(-1), ValueError);
  EXPECT_THROW(set_num_threads(1025), ValueError);
  const int before = num_threads();
  set_num_threads(2);
  EXPECT_THROW(parallel_for(2, [](int64_t) { set_num_threads(1); }), ValueError);
  EXPECT_EQ(num_threads(), 2);
  set_num_threads(before);
}

}  // namespace
}  // namespace longspan
