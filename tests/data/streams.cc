#include "data/streams.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/error.h"
#include "data/memory_tasks.h"
#include "nn/objective.h"
#include "tests/harness/messages.h"

namespace longspan::test {
namespace {

/// Returns a split of n bytes, byte i being i mod 251; the byte before it is 250.
CorpusPart part(int64_t n) {
  static std::vector<uint8_t> bytes = [] {
    std::vector<uint8_t> all(4000);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint8_t>(i % 251);
    return all;
  }();
  CorpusPart p;
  p.bytes = std::span<const uint8_t>(bytes).first(static_cast<size_t>(n));
  p.before = 250;
  p.split = "train";
  p.path = "numbers";
  return p;
}

std::vector<int32_t> row(const Tensor& x, int64_t i) {
  const auto all = x.to_vector<int32_t>();
  return {all.begin() + i * x.dim(1), all.begin() + (i + 1) * x.dim(1)};
}

TEST(TextStreams, GoOnWhereTheLastSegmentEnded) {
  const TextStreams streams(part(1000), 4, 7, 3);
  for (int64_t s = 0; s < 4; ++s) {
    int32_t next = -1;
    for (int64_t i = 0; i < 2 * streams.segments() + 1; ++i) {
      const StreamBatch b = streams.at(i, 0, 4);
      ASSERT_EQ(b.tokens.shape(), (Shape{4, 7}));
      const bool begins = i % streams.segments() == 0;
      EXPECT_EQ(static_cast<bool>(b.reset), begins) << i;
      if (begins) {
        EXPECT_EQ(b.reset.to_vector<uint8_t>(), (std::vector<uint8_t>(4, 1)));
      }
      const auto tokens = row(b.tokens, s), targets = row(b.targets, s);
      if (!begins) {
        EXPECT_EQ(tokens[0], next);
      }
      for (size_t k = 0; k < tokens.size(); ++k) {
        EXPECT_EQ(targets[k], (tokens[k] + 1) % 251);
        if (k > 0) {
          EXPECT_EQ(tokens[k], targets[k - 1]);
        }
      }
      next = targets.back();
    }
  }
}

TEST(TextStreams, CoverMostOfTheTextOnceInAnEpoch) {
  for (const int64_t n : {30, 250}) {  // so few that bytes are positions
    const TextStreams streams(part(n), 3, 4, 5);
    std::vector<int> seen(static_cast<size_t>(n), 0);
    for (int64_t i = 0; i < streams.segments(); ++i) {
      for (const int32_t t : streams.at(i, 0, 3).tokens.to_vector<int32_t>()) ++seen[size_t(t)];
    }
    int64_t once = 0;
    for (const int count : seen) {
      EXPECT_LE(count, 1);
      once += count;
    }
    EXPECT_EQ(once, 3 * 4 * streams.segments());
    EXPECT_GT(once, n - 3 * 4 - 5);
  }
}

TEST(TextStreams, AreTheSameInParts) {
  const TextStreams streams(part(1000), 6, 5, 3);
  const StreamBatch all = streams.at(8, 0, 6), two = streams.at(8, 4, 2);
  EXPECT_EQ(row(all.tokens, 4), row(two.tokens, 0));
  EXPECT_EQ(row(all.targets, 5), row(two.targets, 1));
}

TEST(TextStreams, SayWhatDoesNotFit) {
  EXPECT_EQ(TextStreams(part(13), 3, 4, 1).segments(), 1);
  const auto refusal = [](const CorpusPart& p, int64_t streams, int64_t length) {
    return message_of<ValueError>([&] { TextStreams(p, streams, length, 1); });
  };
  EXPECT_TRUE(contains(refusal(part(12), 3, 4), "need 13"));
  EXPECT_TRUE(contains(refusal(part(0), 1, 1), "need 2"));
  EXPECT_TRUE(contains(refusal(part(100), 0, 4), "0 streams"));
  EXPECT_TRUE(contains(refusal(part(100), 1, 0), "length"));
  CorpusPart images = part(100);
  images.record = 10;
  EXPECT_TRUE(contains(refusal(images, 1, 10), "records"));
}

TEST(EvaluationStreams, CountEveryTokenOnce) {
  for (const int64_t n : {1, 2, 9, 100, 249}) {
    for (const int64_t streams : {1, 2, 3, 7}) {
      for (const int64_t warm_up : {0, 5, 8}) {
        const EvaluationStreams all(part(n), streams, 4, warm_up);
        std::vector<int> counted(static_cast<size_t>(n), 0);
        std::vector<int32_t> last(static_cast<size_t>(streams), -1);
        for (int64_t i = 0; i < all.size(); ++i) {
          const Batch b = all[i];
          EXPECT_TRUE(b.tokens.dim(1) == 4 || i + 1 == all.size());
          for (int64_t s = 0; s < streams; ++s) {
            const auto tokens = row(b.tokens, s), targets = row(b.targets, s);
            for (size_t k = 0; k < targets.size(); ++k) {
              if (targets[k] == ignored_target) continue;
              ++counted[static_cast<size_t>(targets[k])];
              EXPECT_EQ(tokens[k], targets[k] > 0 ? targets[k] - 1 : 250);
            }
          }
        }
        EXPECT_EQ(counted, std::vector<int>(static_cast<size_t>(n), 1))
            << n << " in " << streams << " streams after " << warm_up;
      }
    }
  }
  EXPECT_EQ(EvaluationStreams(part(0), 2, 4, 3).size(), 0);
}

TEST(EvaluationStreams, AreTheSameInGroups) {
  const EvaluationStreams all(part(100), 5, 4, 6);
  const EvaluationStreams some = all.some(1, 3), last = some.some(2, 1);
  ASSERT_EQ(some.size(), all.size());
  EXPECT_EQ(some.streams(), 3);
  for (int64_t i = 0; i < all.size(); ++i) {
    const Batch of_all = all[i], of_some = some[i], of_last = last[i];
    EXPECT_EQ(of_last.tokens.dim(0), 1);
    for (int64_t s = 0; s < 3; ++s) {
      EXPECT_EQ(row(of_some.tokens, s), row(of_all.tokens, s + 1));
      EXPECT_EQ(row(of_some.targets, s), row(of_all.targets, s + 1));
    }
    EXPECT_EQ(row(of_last.targets, 0), row(of_all.targets, 3));
  }
  EXPECT_THROW(all.some(3, 3), ValueError);
}

// The first tokens of each stream count, each once, and what is read before them is the same.
TEST(EvaluationStreams, EndEarlyInASample) {
  for (const int64_t tokens : {1, 3, 4, 9, 100}) {
    const EvaluationStreams all(part(40), 3, 4, 6);  // streams of 14, 14 and 12
    const EvaluationStreams some = all.shortened(tokens);
    std::vector<int32_t> counted, expected;
    for (int64_t i = 0; i < some.size(); ++i) {
      for (int64_t s = 0; s < 3; ++s) {
        const std::vector<int32_t> read = row(some[i].tokens, s), targets = row(some[i].targets, s);
        for (size_t k = 0; k < targets.size(); ++k) {
          if (targets[k] == ignored_target) continue;
          counted.push_back(targets[k]);
          EXPECT_EQ(read[k], row(all[i].tokens, s)[k]);
        }
      }
    }
    for (int32_t s = 0; s < 3; ++s) {
      const int32_t own = std::min<int32_t>(s == 2 ? 12 : 14, static_cast<int32_t>(tokens));
      for (int32_t i = 0; i < own; ++i) expected.push_back(14 * s + i);
    }
    std::sort(counted.begin(), counted.end());
    EXPECT_EQ(counted, expected) << tokens;
  }
  EXPECT_THROW(EvaluationStreams(part(40), 3, 4, 6).shortened(0), ValueError);
}

TEST(EvaluationStreams, ReadBeforeTheyCount) {
  const EvaluationStreams all(part(40), 2, 4, 6);
  const Batch first = all[0], second = all[1];
  EXPECT_EQ(row(first.tokens, 0), (std::vector<int32_t>{250, 0, 1, 2}));
  EXPECT_EQ(row(first.tokens, 1), (std::vector<int32_t>{13, 14, 15, 16}));
  const auto none = static_cast<int32_t>(ignored_target);
  EXPECT_EQ(row(first.targets, 1), (std::vector<int32_t>(4, none)));
  EXPECT_EQ(row(second.targets, 1), (std::vector<int32_t>{none, none, 20, 21}));
  EXPECT_THROW(EvaluationStreams(part(40), 2, 4, -1), ValueError);
}

/// Sample i has 7 tokens, 10 i to 10 i + 6, whose targets are a hundred more.
Sample numbered_sample(int64_t i) {
  Sample s;
  for (int64_t k = 0; k < 7; ++k) {
    s.tokens.push_back(static_cast<int32_t>(10 * i + k));
    s.targets.push_back(static_cast<int32_t>(10 * i + k + 100));
  }
  return s;
}

TEST(SampleStreams, ReadSamplesToTheirEnds) {
  int64_t made = 0;
  const SampleStreams streams([&](int64_t i) { return ++made, numbered_sample(i); }, 7, 3, 4);
  EXPECT_EQ(streams.segments(), 2);
  const StreamBatch first = streams.at(0, 0, 3), second = streams.at(1, 0, 3),
                    third = streams.at(2, 0, 3);
  EXPECT_EQ(row(first.tokens, 1), (std::vector<int32_t>{10, 11, 12, 13}));
  EXPECT_EQ(row(first.targets, 1), (std::vector<int32_t>{110, 111, 112, 113}));
  EXPECT_EQ(row(second.tokens, 2), (std::vector<int32_t>{24, 25, 26}));
  EXPECT_EQ(row(third.tokens, 0), (std::vector<int32_t>{30, 31, 32, 33}));
  EXPECT_EQ(first.reset.to_vector<uint8_t>(), (std::vector<uint8_t>(3, 1)));
  EXPECT_FALSE(second.reset);
  EXPECT_TRUE(third.reset);
  EXPECT_EQ(made, 6);  // each sample once
}

TEST(SampleStreams, AreTheSameInPartsAndInAnyOrder) {
  const SampleStreams whole(numbered_sample, 7, 4, 3), parts(numbered_sample, 7, 4, 3);
  for (const int64_t segment : {0, 1, 2, 5, 1}) {
    const StreamBatch all = whole.at(segment, 0, 4);
    for (int64_t s = 3; s >= 0; --s) {
      EXPECT_EQ(row(parts.at(segment, s, 1).tokens, 0), row(all.tokens, s));
    }
  }
}

TEST(SampleStreams, TakeATask) {
  const PeriodTask task{.length = 9, .period = 3};
  const SampleStreams streams(task, "valid", 2, 9, {}, 5);
  const Sample expected = task.sample({.seed = 5, .split = "valid", .index = 3});
  EXPECT_EQ(row(streams.at(1, 0, 2).tokens, 1), expected.tokens);
}

TEST(SampleStreams, SayWhatDoesNotFit) {
  EXPECT_THROW(SampleStreams(numbered_sample, 0, 1, 1), ValueError);
  EXPECT_THROW(SampleStreams(numbered_sample, 7, 0, 1), ValueError);
  EXPECT_THROW(SampleStreams(numbered_sample, 7, 1, 0), ValueError);
  const SampleStreams streams(numbered_sample, 7, 2, 4);
  EXPECT_THROW(streams.at(-1, 0, 2), ValueError);
  EXPECT_THROW(streams.at(0, 1, 2), ValueError);
}

}  // namespace
}  // namespace longspan::test
