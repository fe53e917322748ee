// Tasks that ask for something a known number of tokens back: every target follows from the tokens.
#include "data/memory_tasks.h"

#include <cmath>
#include <map>
#include <set>

#include "core/error.h"
#include "tests/harness/messages.h"

namespace longspan {
namespace {

using test::contains;
using test::message_of;

/// Returns the share of `count` in `all` minus the expected share, in standard deviations.
double deviations(int64_t count, int64_t all, double share) {
  const auto n = static_cast<double>(all);
  return (static_cast<double>(count) - n * share) / std::sqrt(n * share * (1 - share));
}

/// How often each scored target occurs.
using Histogram = std::map<int32_t, int64_t>;

int64_t total(const Histogram& seen) {
  int64_t all = 0;
  for (const auto& [target, count] : seen) all += count;
  return all;
}

/// Expects every answer of [first, first + count) to be equally frequent, and no others.
void expect_uniform(const Histogram& seen, int32_t first, int32_t count) {
  ASSERT_EQ(std::ssize(seen), count);
  for (const auto& [target, times] : seen) {
    EXPECT_TRUE(target >= first && target < first + count) << target;
    EXPECT_LT(std::abs(deviations(times, total(seen), 1.0 / count)), 4) << target;
  }
}

void expect_keyed(const auto& task) {
  const SampleKey key{.seed = 3, .split = "test", .index = 5};
  EXPECT_EQ(task.sample(key), task.sample(key));
  for (const SampleKey& other :
       {SampleKey{4, "test", 5}, SampleKey{3, "train", 5}, SampleKey{3, "test", 6}}) {
    EXPECT_NE(task.sample(key).tokens, task.sample(other).tokens);
  }
}

TEST(MemoryTasks, AreThoseOfTheirKey) {
  expect_keyed(PeriodTask{.length = 200});
  expect_keyed(RecallTask{.documents = 2, .document = 50});
  expect_keyed(MultiQueryRecallTask{.length = 200});
  expect_keyed(CorridorTask{.length = 200});
  expect_keyed(TwoDistanceTask{.length = 200});
  expect_keyed(LookupTask{.length = 300});
  expect_keyed(MarkedRecallTask{.length = 100});
}

TEST(MemoryTasks, TakeTheLengthOfTheRunOrTheirOwn) {
  const auto fitted = [](auto task) {
    task.fit(1100, 7);
    return task.shape().length;
  };
  EXPECT_EQ(fitted(PeriodTask{}), 1100);
  EXPECT_EQ(fitted(PeriodTask{.length = 5000}), 5000);
  EXPECT_EQ(fitted(RecallTask{}), 1024);
  EXPECT_EQ(fitted(RecallTask{.documents = 5}), 2560);
  EXPECT_EQ(fitted(MultiQueryRecallTask{.pairs = 2}), 1100);
  EXPECT_EQ(fitted(MultiQueryRecallTask{.length = 5000, .pairs = 2}), 5000);
  EXPECT_EQ(fitted(CorridorTask{}), 1100);
  EXPECT_EQ(fitted(CorridorTask{.length = 5000}), 5000);
  EXPECT_EQ(fitted(TwoDistanceTask{}), 1100);
  EXPECT_EQ(fitted(TwoDistanceTask{.length = 5000}), 5000);
  EXPECT_EQ(fitted(LookupTask{}), 1100);
  EXPECT_EQ(fitted(LookupTask{.length = 5000}), 5000);
  EXPECT_EQ(fitted(MarkedRecallTask{}), 1100);
  EXPECT_EQ(fitted(MarkedRecallTask{.length = 5000}), 5000);
}

TEST(MemoryTasks, PeriodsRepeat) {
  for (const auto& [length, period] : {std::pair{40, 12}, {13, 12}, {300, 1}, {2, 1}}) {
    const PeriodTask task{.length = length, .period = period, .symbols = 5};
    EXPECT_EQ(task.shape().scored, length - period);
    Histogram seen;
    for (uint64_t index = 0; index < 400; ++index) {
      const Sample s = task.sample({.index = index});
      ASSERT_EQ(std::ssize(s.tokens), length);
      ASSERT_EQ(std::ssize(s.targets), length);
      for (int64_t i = 0; i < length; ++i) {
        const auto at = static_cast<size_t>(i), back = static_cast<size_t>(period);
        if (i < period) {
          EXPECT_EQ(s.targets[at], ignored_target);
          ++seen[s.tokens[at]];
          continue;
        }
        EXPECT_EQ(s.tokens[at], s.tokens[at - back]);
        EXPECT_EQ(s.targets[at], s.tokens[at + 1 - back]);
        if (i + 1 < length) {
          EXPECT_EQ(s.targets[at], s.tokens[at + 1]) << "the next token";
        }
      }
    }
    expect_uniform(seen, 0, 5);
  }
}

TEST(MemoryTasks, KeysAskForTheirValues) {
  for (const bool noise : {false, true}) {
    for (const auto& [length, pairs, tokens] :
         {std::tuple{64, 4, 64}, {16, 4, 11}, {4, 1, 4}, {200, 30, 65}}) {
      const MultiQueryRecallTask task{
          .length = length, .pairs = pairs, .vocabulary = tokens, .noise = noise};
      const int32_t half = tokens / 2;
      EXPECT_EQ(task.shape().scored, pairs);
      Histogram values;
      for (uint64_t index = 0; index < 300; ++index) {
        const Sample s = task.sample({.index = index});
        ASSERT_EQ(std::ssize(s.tokens), length);
        ASSERT_EQ(s.targets.size(), s.tokens.size());
        std::map<int32_t, int32_t> value_of;
        std::set<int32_t> different;
        for (size_t i = 0; i < 2 * static_cast<size_t>(pairs); i += 2) {
          EXPECT_TRUE(s.tokens[i] >= 1 && s.tokens[i] < half) << s.tokens[i];
          EXPECT_TRUE(s.tokens[i + 1] >= half && s.tokens[i + 1] < tokens) << s.tokens[i + 1];
          EXPECT_EQ(s.targets[i], ignored_target);
          EXPECT_EQ(s.targets[i + 1], ignored_target);
          value_of[s.tokens[i]] = s.tokens[i + 1];
          different.insert(s.tokens[i + 1]);
          ++values[s.tokens[i + 1]];
        }
        EXPECT_EQ(std::ssize(value_of), pairs);
        EXPECT_EQ(std::ssize(different), pairs);
        int64_t asked = 0;
        for (size_t i = 2 * static_cast<size_t>(pairs); i < s.tokens.size(); ++i) {
          if (s.targets[i] == ignored_target) {
            EXPECT_TRUE(noise || s.tokens[i] == 0);
            continue;
          }
          EXPECT_EQ(i % 2, 0u);
          ASSERT_TRUE(value_of.contains(s.tokens[i]));
          EXPECT_EQ(s.targets[i], value_of[s.tokens[i]]);
          value_of.erase(s.tokens[i]);  // every key is asked for once
          ++asked;
        }
        EXPECT_EQ(asked, pairs);
      }
      expect_uniform(values, half, tokens - half);
    }
  }
}

// Of two gaps g and h, g is (h + 1) / (g + 1) times as frequent.
TEST(MemoryTasks, KeysComeAgainSoon) {
  const MultiQueryRecallTask task{.length = 10, .pairs = 1, .vocabulary = 8, .power = 0};
  std::map<size_t, int64_t> places;
  constexpr int64_t samples = 8000;
  for (uint64_t index = 0; index < samples; ++index) {
    const Sample s = task.sample({.index = index});
    for (size_t i = 0; i < 10; ++i) places[i] += s.targets[i] != ignored_target;
  }
  const double sum = 1 + 1.0 / 2 + 1.0 / 3 + 1.0 / 4;
  for (size_t g = 0; g < 4; ++g) {
    EXPECT_LT(std::abs(deviations(places[2 + 2 * g], samples, 1 / (sum * double(g + 1)))), 4) << g;
  }
}

TEST(MemoryTasks, PairsMustFit) {
  const auto message = [](const MultiQueryRecallTask& task) {
    return message_of<ValueError>([&] { task.sample({}); });
  };
  EXPECT_TRUE(contains(message({.length = 64, .pairs = 0}), "pairs"));
  EXPECT_TRUE(contains(message({.length = 64, .pairs = 4, .vocabulary = 8}), "fewer than 4"));
  EXPECT_TRUE(contains(message({.length = 15, .pairs = 4}), "samples of 16 or more"));
  EXPECT_TRUE(contains(message({.length = 64, .power = NAN}), "power"));
}

TEST(MemoryTasks, DocumentsAskForTheirLabel) {
  for (const auto& [documents, document] : {std::pair{1, 2}, {3, 2}, {1, 3}, {4, 20}}) {
    const RecallTask task{.documents = documents, .document = document, .labels = 3, .symbols = 4};
    EXPECT_EQ(task.shape().length, documents * document);
    EXPECT_EQ(task.shape().vocabulary, 8);
    Histogram labels, noise;
    for (uint64_t index = 0; index < 300; ++index) {
      const Sample s = task.sample({.index = index});
      ASSERT_EQ(std::ssize(s.tokens), documents * document);
      ASSERT_EQ(s.targets.size(), s.tokens.size());
      int32_t label = 0;  // the latest
      int64_t scored = 0;
      for (size_t i = 0; i < s.tokens.size(); ++i) {
        const int32_t token = s.tokens[i];
        const auto place = static_cast<int64_t>(i) % document;
        EXPECT_EQ(token >= 1 && token < 4, place == 0);
        EXPECT_EQ(token == 0, place == document - 1);
        if (place == 0) label = token;
        EXPECT_EQ(s.targets[i], place == document - 1 ? label : ignored_target);
        if (s.targets[i] != ignored_target) {
          ++scored;
          ++labels[s.targets[i]];
        }
        if (token >= 4) ++noise[token];
      }
      EXPECT_EQ(scored, task.shape().scored);
    }
    expect_uniform(labels, 1, 3);
    if (document > 2) expect_uniform(noise, 4, 4);
  }
}

TEST(MemoryTasks, CorridorsAskForTheLatestMark) {
  const CorridorTask task{.length = 400, .nearest = 5, .distance = 24, .colours = 3, .symbols = 6};
  EXPECT_EQ(task.shape().vocabulary, 10);
  EXPECT_EQ(task.shape().scored, -1);
  Histogram colours, distances;
  int64_t unasked = 0;
  for (uint64_t index = 0; index < 500; ++index) {
    const Sample s = task.sample({.index = index});
    ASSERT_EQ(s.tokens.size(), 400u);
    ASSERT_EQ(s.targets.size(), 400u);
    EXPECT_TRUE(s.tokens[0] >= 1 && s.tokens[0] <= 3);
    int64_t mark = -1, query = -1;
    for (int64_t i = 0; i < 400; ++i) {
      const int32_t token = s.tokens[static_cast<size_t>(i)];
      const int32_t target = s.targets[static_cast<size_t>(i)];
      EXPECT_EQ(target != ignored_target, token == 0) << "only queries have targets";
      if (token >= 1 && token <= 3) {
        EXPECT_EQ(i, query + 1) << "a mark follows the query";
        mark = i;
      }
      if (token != 0) continue;
      ASSERT_GT(mark, query);
      query = i;
      EXPECT_EQ(target, s.tokens[static_cast<size_t>(mark)]);
      ++colours[target];
      if (query < 376) ++distances[static_cast<int32_t>(query - mark)];  // not cut by the end
    }
    EXPECT_GT(query, 0) << "every sample has a target";
    unasked += mark > query ? 1 : 0;
  }
  expect_uniform(colours, 1, 3);
  EXPECT_GT(unasked, 100) << "a last mark stays without its query";
  EXPECT_EQ(distances.begin()->first, 5);
  EXPECT_EQ(distances.rbegin()->first, 24);
  // Corridors that begin before 352 are uniform; the few later ones favour short distances.
  for (const auto& [distance, count] : distances) {
    EXPECT_NEAR(static_cast<double>(count) / static_cast<double>(total(distances)), 0.05, 0.008)
        << distance;
  }
}

// Chance finds half of two colours, and a memory of m tokens also those that are at most m back.
TEST(MemoryTasks, CorridorsOfOneDistanceEndAtTheQuery) {
  const CorridorTask task{.length = 102, .nearest = 101, .distance = 101};
  std::set<int32_t> colours;
  for (uint64_t index = 0; index < 20; ++index) {
    const Sample s = task.sample({.index = index});
    EXPECT_EQ(s.tokens.back(), 0);
    EXPECT_EQ(s.targets.back(), s.tokens[0]);
    for (size_t i = 0; i + 1 < 102; ++i) EXPECT_EQ(s.targets[i], ignored_target);
    colours.insert(s.tokens[0]);
  }
  EXPECT_EQ(colours, (std::set<int32_t>{1, 2}));
  // The first query fits whatever the distance may be.
  const CorridorTask shortest{.length = 2};
  EXPECT_EQ(shortest.sample({}).tokens[1], 0);
  EXPECT_EQ(shortest.sample({}).targets[1], shortest.sample({}).tokens[0]);
}

TEST(MemoryTasks, NextTokensAreAtTwoDistances) {
  const TwoDistanceTask task{.length = 600, .near = 3, .far = 40, .symbols = 8};
  EXPECT_EQ(task.shape().vocabulary, 10);
  Histogram answers, marks;
  std::map<int64_t, int64_t> agreeing;  // far targets that equal the token at a distance
  int64_t free = 0;
  for (uint64_t index = 0; index < 60; ++index) {
    const Sample s = task.sample({.index = index});
    ASSERT_EQ(s.tokens.size(), 600u);
    ASSERT_EQ(s.targets.size(), 600u);
    for (int64_t i = 0; i < 600; ++i) {
      const auto token = [&](int64_t place) { return s.tokens[static_cast<size_t>(place)]; };
      const int32_t target = s.targets[static_cast<size_t>(i)];
      const bool answer = i > 0 && token(i - 1) < 2;
      if (answer) {
        EXPECT_EQ(token(i), s.targets[static_cast<size_t>(i - 1)]) << "the next token";
        EXPECT_GE(token(i), 2);
      }
      if (token(i) >= 2) {
        EXPECT_EQ(target, ignored_target);
        free += answer || i < 80 ? 0 : 1;
        continue;
      }
      const int64_t distance = token(i) == 0 ? 3 : 40;
      ASSERT_GE(i, distance);
      EXPECT_EQ(target, token(i - distance));
      ++answers[target];
      if (i < 80) continue;  // far marks begin at 40
      ++marks[token(i)];
      if (token(i) == 1) {
        for (int64_t d = 0; d <= 80; ++d) agreeing[d] += token(i - d) == target ? 1 : 0;
      }
    }
  }
  expect_uniform(answers, 2, 8);
  ASSERT_EQ(std::ssize(marks), 2);
  EXPECT_LT(std::abs(deviations(marks[0], marks[0] + marks[1], 0.5)), 4) << "both distances";
  EXPECT_GT(free, marks[0]) << "new symbols keep coming";
  // A far answer is elsewhere only by chance, 1/8, or as a copy at a near mark, of which it may be
  // the source or the answer.
  for (const auto& [distance, count] : agreeing) {
    const double share = static_cast<double>(count) / static_cast<double>(marks[1]);
    EXPECT_EQ(share == 1, distance == 40) << distance;
    EXPECT_TRUE(distance == 40 || share < 0.36) << distance << ": " << share;
  }
}

TEST(MemoryTasks, MarkersNeedADistantToken) {
  const LookupTask task{.length = 500, .near = 3, .far = 60, .every = 5, .symbols = 8};
  EXPECT_EQ(task.shape().vocabulary, 9);
  Histogram near, far;
  int64_t markers = 0, tokens = 0;
  for (uint64_t index = 0; index < 60; ++index) {
    const Sample s = task.sample({.index = index});
    ASSERT_EQ(s.tokens.size(), 500u);
    ASSERT_EQ(s.targets.size(), 500u);
    for (size_t i = 0; i < 500; ++i) {
      const bool marker = s.tokens[i] == 0;
      markers += marker ? 1 : 0;
      ++tokens;
      const size_t back = marker ? 60 : 3;
      const bool known = i >= back && s.tokens[i - back] != 0;
      EXPECT_EQ(s.targets[i], known ? s.tokens[i - back] : ignored_target);
      if (known) ++(marker ? far : near)[s.targets[i]];
    }
  }
  EXPECT_LT(std::abs(deviations(markers, tokens, 0.2)), 4);
  expect_uniform(near, 1, 8);
  expect_uniform(far, 1, 8);
}

TEST(MemoryTasks, MarkedLabelsAreAskedForAtTheEnd) {
  for (const bool decoys : {false, true}) {
    std::set<int32_t> labels, noise;
    for (uint64_t index = 0; index < 200; ++index) {
      const MarkedRecallTask task{.length = 12, .labels = 3, .symbols = 2, .decoys = decoys};
      const Sample s = task.sample({.index = index});
      ASSERT_EQ(s.tokens.size(), 12u);
      EXPECT_EQ(s.tokens.front(), 1);
      EXPECT_EQ(s.tokens.back(), 0);
      EXPECT_EQ(s.targets.back(), s.tokens[1]);
      EXPECT_EQ(std::count(s.targets.begin(), s.targets.end(), ignored_target), 11);
      labels.insert(s.tokens[1]);
      noise.insert(s.tokens.begin() + 2, s.tokens.end() - 1);
    }
    EXPECT_EQ(labels, (std::set<int32_t>{2, 3, 4}));
    EXPECT_EQ(noise, decoys ? (std::set<int32_t>{2, 3, 4, 5, 6}) : (std::set<int32_t>{5, 6}));
  }
}

TEST(MemoryTasks, OfOneSymbolHaveOneAnswer) {
  const auto answers = [](const auto& task) {
    std::set<int32_t> seen;
    for (const int32_t target : task.sample({}).targets) seen.insert(target);
    seen.erase(ignored_target);
    return seen;
  };
  using Set = std::set<int32_t>;
  EXPECT_EQ(answers(PeriodTask{.length = 9, .period = 4, .symbols = 1}), Set{0});
  EXPECT_EQ(answers(RecallTask{.documents = 2, .document = 3, .labels = 1, .symbols = 1}), Set{1});
  EXPECT_EQ(answers(CorridorTask{.length = 9, .colours = 1, .symbols = 1}), Set{1});
  EXPECT_EQ(answers(TwoDistanceTask{.length = 40, .near = 1, .far = 2, .symbols = 1}), Set{2});
  EXPECT_EQ(answers(LookupTask{.length = 40, .near = 1, .far = 2, .symbols = 1}), Set{1});
  EXPECT_EQ(answers(MarkedRecallTask{.length = 9, .labels = 1, .symbols = 1}), Set{2});
}

/// Expects that neither a sample nor a run of 600 tokens takes the options.
void expect_refused(auto task, std::string_view option, std::string_view reason) {
  const auto says = [&](const std::string& message) {
    EXPECT_TRUE(message.starts_with(option) && contains(message, reason)) << message;
  };
  says(message_of<ValueError>([&] { task.sample({}); }));
  says(message_of<ValueError>([&] { task.fit(600, 100); }));
}

TEST(MemoryTasks, NameTheOptionThatIsWrong) {
  expect_refused(PeriodTask{.length = 9, .period = 0}, "period.period: ", "got 0; expected 1");
  expect_refused(PeriodTask{.length = 96}, "period.period: ", "got 96 and samples of 96 tokens");
  expect_refused(PeriodTask{.length = 99, .symbols = 0}, "period.symbols: ", "got 0; expected 1");
  expect_refused(RecallTask{.documents = -1}, "recall.documents: ", "got -1; expected 1");
  expect_refused(RecallTask{.documents = 1, .document = 1}, "recall.document: ", "expected 2");
  expect_refused(RecallTask{.documents = 1, .labels = 0}, "recall.labels: ", "expected 1");
  expect_refused(RecallTask{.documents = 1, .symbols = 0}, "recall.symbols: ", "expected 1");
  expect_refused(RecallTask{.documents = 1 << 30, .document = 8},
                 "recall.documents: ", "expected 268435455 or fewer");
  expect_refused(CorridorTask{.length = 9, .nearest = 0}, "corridor.nearest: ", "expected 1");
  expect_refused(CorridorTask{.length = 9, .nearest = 5, .distance = 4},
                 "corridor.distance: ", "got 4; expected 5 or more");
  expect_refused(CorridorTask{.length = 9, .colours = 0}, "corridor.colours: ", "expected 1");
  expect_refused(CorridorTask{.length = 9, .symbols = 0}, "corridor.symbols: ", "expected 1");
  expect_refused(CorridorTask{.length = 9, .nearest = 9, .distance = 9},
                 "corridor.nearest: ", "got 9 and samples of 9 tokens");
  expect_refused(TwoDistanceTask{.length = 9, .near = 0}, "two_distance.near: ", "expected 1");
  expect_refused(TwoDistanceTask{.length = 9, .near = 3, .far = 3},
                 "two_distance.far: ", "got 3; expected 4 or more");
  expect_refused(TwoDistanceTask{.length = 100}, "two_distance.far: ", "samples of 100 tokens");
  expect_refused(TwoDistanceTask{.length = 101, .symbols = 0}, "two_distance.symbols: ", "got 0");
  expect_refused(LookupTask{.length = 201, .near = 0}, "lookup.near: ", "expected 1");
  expect_refused(LookupTask{.length = 201, .near = 200}, "lookup.far: ", "expected 201");
  expect_refused(LookupTask{.length = 200}, "lookup.far: ", "samples of 200 tokens");
  expect_refused(LookupTask{.length = 201, .every = 1}, "lookup.every: ", "expected 2");
  expect_refused(LookupTask{.length = 201, .symbols = 0}, "lookup.symbols: ", "got 0");
  expect_refused(MarkedRecallTask{.length = 2}, "marked_recall.length: ", "got 2; expected 3");
  expect_refused(MarkedRecallTask{.length = 9, .labels = 0}, "marked_recall.labels: ", "got 0");
  expect_refused(MarkedRecallTask{.length = 9, .symbols = 0}, "marked_recall.symbols: ", "got 0");
  const std::string none = message_of<ValueError>([] { RecallTask{}.fit(511, 100); });
  EXPECT_TRUE(contains(none, "recall.document: got 512, and samples of 511")) << none;
}

}  // namespace
}  // namespace longspan
