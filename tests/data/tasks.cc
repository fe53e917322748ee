#include "data/tasks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <span>

#include "core/error.h"
#include "data/cluster_task.h"
#include "data/collision.h"
#include "data/memory_tasks.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::message_of;

TEST(TasksAndData, SamplesAreThoseOfTheirKey) {
  const DuplicateTask duplicate{.symbols = 20, .vocabulary = 32};
  const CopyTask copy;
  const NeedleTask needle;
  const SampleKey key{.seed = 3, .split = "test", .index = 5};
  for (const SampleKey& other :
       {SampleKey{4, "test", 5}, SampleKey{3, "train", 5}, SampleKey{3, "test", 6}}) {
    EXPECT_NE(duplicate.sample(key), duplicate.sample(other));
    EXPECT_NE(copy.sample(key), copy.sample(other));
    EXPECT_NE(needle.sample(key), needle.sample(other));
  }
  EXPECT_EQ(duplicate.sample(key), duplicate.sample(key));
  // Samples are the same on every machine.
  const std::vector<int32_t> begin =
      DuplicateTask{.symbols = 4, .vocabulary = 128}.sample({}).tokens;
  EXPECT_EQ(begin, (std::vector<int32_t>{0, 12, 53, 78, 44, 0, 12, 53, 78, 44}));
}

TEST(TasksAndData, DuplicatesAreSolved) {
  const DuplicateTask task{.symbols = 50, .vocabulary = 7};
  std::map<int32_t, int> seen;
  for (uint64_t index = 0; index < 100; ++index) {
    const Sample s = task.sample({.index = index});
    ASSERT_EQ(static_cast<int64_t>(s.tokens.size()), task.length());
    EXPECT_EQ(s.tokens[0], 0);
    EXPECT_EQ(s.tokens[51], 0);
    int64_t scored = 0;
    for (size_t i = 0; i < s.targets.size(); ++i) {
      if (s.targets[i] == ignored_target) continue;
      ++scored;
      EXPECT_EQ(s.targets[i], s.tokens[i + 1]);   // the next token
      EXPECT_EQ(s.targets[i], s.tokens[i - 50]);  // repeats the first half
      ++seen[s.targets[i]];
    }
    EXPECT_EQ(scored, 50);
  }
  ASSERT_EQ(seen.size(), 6u);
  for (const auto& [token, count] : seen) {
    EXPECT_TRUE(token >= 1 && token <= 6);
    EXPECT_NEAR(count, 5000 / 6, 4 * 26.4);  // four standard deviations
  }
}

/// Says whether `motif` occurs at `at` with at most `wrong` mismatches.
bool stands(const std::vector<int32_t>& bases, int64_t at, const std::vector<int32_t>& motif,
            int64_t wrong) {
  for (size_t j = 0; j < motif.size(); ++j) {
    wrong -= bases[static_cast<size_t>(at) + j] != motif[j] ? 1 : 0;
  }
  return wrong >= 0;
}

TEST(TasksAndData, MotifsAreSolved) {
  for (const MotifTask& task :
       {MotifTask{}, MotifTask{.length = 300, .pairs = 3, .nearest = 40, .furthest = 90, .kmer = 3},
        MotifTask{.length = 90, .motif = 5, .mismatches = 0, .nearest = 30, .furthest = 1000}}) {
    std::vector<int64_t> positive(static_cast<size_t>(task.pairs));
    constexpr int64_t samples = 200;
    for (uint64_t index = 0; index < samples; ++index) {
      const Sample s = task.sample({.seed = 5, .index = index});
      ASSERT_EQ(static_cast<int64_t>(s.tokens.size()), task.tokens());
      EXPECT_EQ(s.tokens[0], task.first_token());
      EXPECT_LT(*std::max_element(s.tokens.begin(), s.tokens.end()), task.vocabulary());
      // Decodes bases: the first base of each token, and all bases of the last token.
      std::vector<int32_t> bases;
      const auto base = [&](int32_t token, int64_t j) {
        return token >> 2 * (task.kmer - 1 - j) & 3;
      };
      for (size_t i = 1; i < s.tokens.size(); ++i) bases.push_back(base(s.tokens[i], 0));
      for (int64_t j = 1; j < task.kmer; ++j) bases.push_back(base(s.tokens.back(), j));
      ASSERT_EQ(static_cast<int64_t>(bases.size()), task.length);
      for (int64_t p = 0; p < task.pairs; ++p) {
        const auto motifs = task.motifs(5, p);
        bool found = false;
        for (int64_t i = 0; i + task.motif <= task.length; ++i) {
          if (!stands(bases, i, motifs[0], task.mismatches)) continue;
          const int64_t last = std::min(i + task.furthest, task.length - task.motif);
          for (int64_t j = i + task.nearest; j <= last; ++j) {
            found = found || stands(bases, j, motifs[1], task.mismatches);
          }
        }
        EXPECT_EQ(s.targets[static_cast<size_t>(p)], found ? 1 : 0) << index;
        positive[static_cast<size_t>(p)] += found ? 1 : 0;
      }
    }
    for (const int64_t n : positive) EXPECT_NEAR(n, samples / 2, 4 * 7.1) << "half of them";
  }
  EXPECT_EQ(MotifTask{}.sample({.index = 3}), MotifTask{}.sample({.index = 3}));
  EXPECT_NE(MotifTask{}.motifs(1, 0), MotifTask{}.motifs(2, 0));
  EXPECT_NE(MotifTask{}.motifs(1, 0), MotifTask{}.motifs(1, 1));
  EXPECT_THROW((MotifTask{.length = 100}.sample({})), ValueError) << "200 bases apart in 100";
  EXPECT_THROW((MotifTask{.mismatches = 8}.sample({})), ValueError);
  EXPECT_THROW((MotifTask{.kmer = 9}.sample({})), ValueError);
}

TEST(TasksAndData, CopiesAreSolved) {
  const CopyTask task{.symbols = 5, .alphabet = 3, .blanks = 7};
  const Sample s = task.sample({.index = 2});
  ASSERT_EQ(task.length(), 17);
  ASSERT_EQ(s.tokens.size(), 17u);
  EXPECT_EQ(s.tokens[11], 4);
  for (size_t i = 0; i < 17; ++i) {
    if (i >= 5 && i != 11) {
      EXPECT_EQ(s.tokens[i], 0);
    }
    EXPECT_EQ(s.targets[i], i < 12 ? ignored_target : s.tokens[i - 12]);
  }
}

TEST(TasksAndData, NeedlesAreFound) {
  for (const bool first : {true, false}) {
    const NeedleTask task{.length = 60,
                          .facts = 4,
                          .keys = 6,
                          .values = 5,
                          .value_length = 3,
                          .filler = 9,
                          .question_first = first};
    std::set<int32_t> places;
    for (uint64_t index = 0; index < 300; ++index) {
      const Sample s = task.sample({.index = index});
      ASSERT_EQ(s.tokens.size(), 60u);
      EXPECT_EQ(s.tokens[0], 0);
      EXPECT_EQ(std::count(s.tokens.begin(), s.tokens.end(), 1), 1);
      EXPECT_EQ(std::count(s.tokens.begin(), s.tokens.end(), 2), 4);
      EXPECT_EQ(std::count(s.tokens.begin(), s.tokens.end(), 3), 1);
      EXPECT_LT(*std::max_element(s.tokens.begin(), s.tokens.end()), task.vocabulary());
      ASSERT_EQ(s.global.size(), 2u);
      const auto question = static_cast<size_t>(s.global[0]);
      EXPECT_EQ(s.tokens[question], 3);
      EXPECT_EQ(s.global[1], s.global[0] + 1);
      // Finds the fact with the key of the question.
      int found = 0;
      for (size_t i = 0; i + 4 < s.tokens.size(); ++i) {
        if (s.tokens[i] != 2) continue;
        for (size_t v = i + 2; v < i + 5; ++v) {
          EXPECT_TRUE(s.tokens[v] >= 10 && s.tokens[v] < 15) << s.tokens[v];
        }
        if (s.tokens[i + 1] != s.tokens[question + 1]) continue;
        ++found;
        EXPECT_EQ(s.targets.at(0), static_cast<int32_t>(i) + 2);
        EXPECT_EQ(s.targets.at(1), static_cast<int32_t>(i) + 4);
      }
      EXPECT_EQ(found, 1);
      places.insert(s.targets.at(0));
    }
    EXPECT_GT(places.size(), 40u);
  }
  // The tightest sample contains nothing but facts.
  const NeedleTask tight{.length = 4 + 3 * 4,
                         .facts = 4,
                         .keys = 4,
                         .values = 1,
                         .value_length = 1,
                         .filler = 1,
                         .question_first = true};
  EXPECT_EQ(tight.sample({}).tokens[4], 2);
  EXPECT_TRUE(contains(message_of<ValueError>([] { NeedleTask{.length = 20}.sample({}); }),
                       "8 facts of 4 tokens do not fit into 20; expected 36 or more"));
  EXPECT_THROW((NeedleTask{.facts = 5, .keys = 4}.sample({})), ValueError);
}

/// Returns the positions where a motif would begin, given its k-mers that occur in a sample.
std::vector<int64_t> begins(const std::vector<int32_t>& tokens, const std::vector<int32_t>& motif,
                            int64_t k) {
  std::set<int64_t> places;
  for (int64_t o = 0; o + k <= static_cast<int64_t>(motif.size()); ++o) {
    int32_t run = 0;
    for (int64_t j = o; j < o + k; ++j) run = 4 * run + motif[static_cast<size_t>(j)];
    for (size_t i = 1; i < tokens.size(); ++i) {
      if (tokens[i] == run) places.insert(static_cast<int64_t>(i) - 1 - o);
    }
  }
  return {places.begin(), places.end()};
}

/// Returns the conditional entropy of an answer in bits, given the observed features.
double bits_left(const std::map<std::vector<bool>, std::array<double, 2>>& seen, double samples) {
  double bits = 0;
  for (const auto& [what, n] : seen) {
    for (const double one : n) bits -= one > 0 ? one / samples * std::log2(one / (n[0] + n[1])) : 0;
  }
  return bits;
}

// docs/bigbird.md says what follows for learning. A motif with a mismatch in its middle has no
// exact 6-mer left, so exact k-mers carry less information. The mere presence of k-mers, with which
// learning begins, carries even less.
TEST(Tasks, MotifsWithMismatchesHideFromRunsOfBases) {
  struct Expected {
    int64_t mismatches;
    double there, order;
  };
  for (const Expected e : {Expected{0, 0.69, 0.18}, Expected{1, 0.91, 0.60}}) {
    const MotifTask task{.length = 516, .mismatches = e.mismatches, .kmer = 6};
    constexpr uint64_t samples = 3000;
    const auto motifs = task.motifs(1, 0);
    std::map<std::vector<bool>, std::array<double, 2>> there, order;
    for (uint64_t index = 0; index < samples; ++index) {
      const Sample s = task.sample({.seed = 1, .split = "test", .index = index});
      const auto first = begins(s.tokens, motifs[0], 6), second = begins(s.tokens, motifs[1], 6);
      const auto follows = [&](const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
        return !a.empty() && !b.empty() && b.back() - a.front() >= task.nearest;
      };
      const std::vector<bool> which{!first.empty(), !second.empty()};
      const auto yes = static_cast<size_t>(s.targets[0]);
      ++there[which][yes];
      ++order[{which[0], which[1], follows(first, second), follows(second, first)}][yes];
    }
    EXPECT_NEAR(bits_left(there, samples), e.there, 0.03) << e.mismatches;
    EXPECT_NEAR(bits_left(order, samples), e.order, 0.04) << e.mismatches;
  }
}

TEST(Tasks, NeedlesAreQuestionsInWindows) {
  const NeedleTask task{.length = 44, .facts = 3, .keys = 6, .values = 5, .filler = 9};
  const WindowOptions options{.length = 20, .stride = 7};  // 15 text tokens
  std::vector<SpanWindow> expected;
  for (uint64_t index = 0; index < 5; ++index) {
    const Sample s = task.sample({.seed = 3, .index = index});
    const NeedleQuestion q = question_of(s);
    EXPECT_EQ(q.question.size(), 2u);
    EXPECT_EQ(q.text.size(), 40u);
    EXPECT_EQ(q.text[static_cast<size_t>(q.answer.begin)].id,
              s.tokens[static_cast<size_t>(s.targets.at(0))]);
    for (const SpanWindow& w : span_windows(q.question, q.text, &q.answer, needle_ids, options)) {
      expected.push_back(w);
      EXPECT_EQ(w.tokens[0], 0);
      EXPECT_EQ(w.tokens[1], 3);  // the mark of a question
      if (w.start == 0) continue;
      EXPECT_EQ(w.tokens[static_cast<size_t>(w.start) - 1], q.question[1].id);
      EXPECT_EQ(w.end - w.start + 1, task.value_length);
    }
  }
  NeedleBatches batches(task, 4, options, 3);
  for (size_t b = 0; b + 4 <= expected.size(); b += 4) {
    const SpanBatch got = batches.next(), wanted = span_batch({expected.data() + b, 4});
    EXPECT_EQ(got.tokens.to_vector<int64_t>(), wanted.tokens.to_vector<int64_t>());
    EXPECT_EQ(got.starts.to_vector<int64_t>(), wanted.starts.to_vector<int64_t>());
    EXPECT_EQ(got.ends.to_vector<int64_t>(), wanted.ends.to_vector<int64_t>());
  }
  const NeedleTask last{.question_first = false};
  EXPECT_THROW(NeedleBatches(last, 4, options, 3), ValueError);
  EXPECT_THROW(NeedleBatches(task, 4, {.length = 5}, 3), ValueError);
}

TEST(Tasks, RefuseSizesOfNothing) {
  EXPECT_THROW((DuplicateTask{.symbols = 0}.sample({})), ValueError);
  EXPECT_THROW((DuplicateTask{.vocabulary = 1}.sample({})), ValueError);
  EXPECT_THROW((CopyTask{.blanks = 0}.sample({})), ValueError);
}

TEST(Tasks, Stack) {
  const CopyTask task{.symbols = 2, .alphabet = 3, .blanks = 1};
  const std::vector<Sample> samples = {task.sample({.index = 0}), task.sample({.index = 1})};
  const Batch batch = stack(samples);
  EXPECT_EQ(batch.tokens.shape(), (Shape{2, 5}));
  const std::vector<int32_t> targets = batch.targets.to_vector<int32_t>();
  EXPECT_EQ(targets[5 + 4], samples[1].targets[4]);
  const std::vector<Sample> odd = {samples[0], CopyTask{}.sample({})};
  EXPECT_THROW(stack(odd), ShapeError);
  EXPECT_THROW(stack({}), ShapeError);
  const Batch last = stack_segment(samples, 1, 3);
  EXPECT_EQ(last.tokens.shape(), (Shape{2, 2}));
  EXPECT_EQ(last.targets.to_vector<int32_t>()[3], samples[1].targets[4]);
  EXPECT_EQ(stack_segment(samples, 2, 3).tokens.shape(), (Shape{2, 0}));
}

/// Returns a checksum of the first samples of a task.
uint64_t checksum(const auto& task) {
  uint64_t sum = 0xcbf29ce484222325;
  for (const char* split : {"train", "valid"}) {
    for (uint64_t index = 0; index < 20; ++index) {
      const Sample s = task.sample({.seed = 3, .split = split, .index = index});
      for (const std::vector<int32_t>* values : {&s.tokens, &s.targets}) {
        for (const int32_t value : *values) {
          sum = (sum ^ static_cast<uint32_t>(value)) * 0x100000001b3;
        }
      }
    }
  }
  return sum;
}

// The samples of a task are part of the meaning of its results: they never change.
TEST(Tasks, SamplesNeverChange) {
  EXPECT_EQ(checksum(DuplicateTask{.symbols = 20, .vocabulary = 32}), 9495926226260070050u);
  EXPECT_EQ(checksum(CopyTask{.symbols = 5, .alphabet = 3, .blanks = 7}), 12218922584447711915u);
  EXPECT_EQ(checksum(NeedleTask{}), 16680914592547838004u);
  EXPECT_EQ(checksum(NeedleTask{.length = 60, .facts = 4, .question_first = false}),
            2463149341839115765u);
  EXPECT_EQ(
      checksum(MotifTask{.length = 300, .pairs = 3, .nearest = 40, .furthest = 90, .kmer = 3}),
      13094515040973437708u);
  EXPECT_EQ(checksum(MarkerTask{}), 13794184480460491778u);
  EXPECT_EQ(checksum(PeriodTask{.length = 200}), 4554482964454640622u);
  EXPECT_EQ(checksum(RecallTask{.documents = 3, .document = 40}), 5032790127225916566u);
  EXPECT_EQ(checksum(CorridorTask{.length = 200, .nearest = 3, .distance = 50}),
            6943681939937942160u);
  EXPECT_EQ(checksum(CollisionTask{.steps = 400}), 4632926221041414276u);
  EXPECT_EQ(checksum(TwoDistanceTask{.length = 300}), 5073468645277531340u);
  EXPECT_EQ(checksum(LookupTask{.length = 300}), 1042672593982481356u);
  EXPECT_EQ(checksum(MarkedRecallTask{.length = 100}), 13628398581543365034u);
  EXPECT_EQ(checksum(SortTask{.symbols = 20, .vocabulary = 32}), 18095452906293576025u);
  EXPECT_EQ(checksum(RetrievalTask{.length = 100}), 9714527034112217868u);
}

TEST(Tasks, SortedSymbolsAreThoseDrawn) {
  const SortTask task{.symbols = 9, .vocabulary = 6};
  std::map<int32_t, int64_t> seen;
  for (uint64_t index = 0; index < 300; ++index) {
    const Sample s = task.sample({.index = index});
    ASSERT_EQ(s.tokens.size(), 18u);
    ASSERT_EQ(s.targets.size(), 18u);
    EXPECT_EQ(s.tokens[9], 0);
    std::vector<int32_t> first(s.tokens.begin(), s.tokens.begin() + 9);
    const std::vector<int32_t> second(s.targets.begin() + 9, s.targets.end());
    for (const int32_t token : first) ++seen[token];
    EXPECT_TRUE(std::is_sorted(second.begin(), second.end()));
    std::sort(first.begin(), first.end());
    EXPECT_EQ(first, second);
    for (size_t i = 0; i < 17; ++i) {
      EXPECT_EQ(s.targets[i], i >= 9 ? s.tokens[i + 1] : ignored_target) << i;
    }
  }
  ASSERT_EQ(seen.size(), 5u);
  for (const auto& [token, count] : seen) EXPECT_NEAR(double(count) / 2700, 0.2, 0.04) << token;
  EXPECT_NE(task.sample({.index = 1}), task.sample({.index = 2}));
  EXPECT_NE(task.sample({.seed = 1}), task.sample({.seed = 2}));
  SortTask other;
  other.fit(34, 12);
  EXPECT_EQ(other.symbols, 17);
  EXPECT_EQ(other.vocabulary, 12);
  EXPECT_THROW(other.fit(33, 12), ValueError);
  EXPECT_THROW(other.fit(0, 12), ValueError);
  EXPECT_THROW(SortTask({.symbols = 0}).sample({}), ValueError);
}

TEST(Tasks, RetrievedValuesAreThoseOfTheKey) {
  const RetrievalTask task{
      .length = 40, .facts = 6, .questions = 3, .keys = 7, .values = 3, .symbols = 5};
  EXPECT_EQ(task.vocabulary(), 3 + 7 + 21 + 5);
  std::map<int32_t, int64_t> answers;
  std::set<size_t> places;
  for (uint64_t index = 0; index < 400; ++index) {
    const Sample s = task.sample({.index = index});
    ASSERT_EQ(s.tokens.size(), 40u);
    ASSERT_EQ(s.targets.size(), 40u);
    std::map<int64_t, int64_t> facts;
    for (size_t i = 0; i < 37; ++i) {
      EXPECT_EQ(s.targets[i], ignored_target);
      EXPECT_GE(s.tokens[i], 10);
      if (s.tokens[i] >= 31) continue;
      const int64_t at = s.tokens[i] - 10;
      EXPECT_TRUE(facts.emplace(at / 3, at % 3).second) << "a key twice";
      places.insert(i);
    }
    EXPECT_EQ(facts.size(), 6u);
    std::set<int32_t> asked;
    for (size_t i = 37; i < 40; ++i) {
      EXPECT_TRUE(s.tokens[i] >= 3 && s.tokens[i] < 10);
      EXPECT_TRUE(asked.insert(s.tokens[i]).second);
      EXPECT_EQ(facts.at(s.tokens[i] - 3), s.targets[i]);
      ++answers[s.targets[i]];
    }
  }
  EXPECT_EQ(places.size(), 37u);
  ASSERT_EQ(answers.size(), 3u);
  for (const auto& [value, count] : answers) EXPECT_NEAR(double(count) / 1200, 1.0 / 3, 0.06);
  EXPECT_NE(task.sample({.split = "train"}), task.sample({.split = "test"}));
  EXPECT_NE(task.sample({.seed = 1}), task.sample({.seed = 2}));
}

TEST(Tasks, RetrievalNamesTheOptionThatIsWrong) {
  const auto refused = [](const RetrievalTask& task, std::string_view start) {
    const std::string message = test::message_of<ValueError>([&] { task.sample({}); });
    EXPECT_TRUE(message.starts_with(start)) << message;
    RetrievalTask run = task;
    EXPECT_THROW(run.fit(task.length, 100), ValueError);
  };
  refused({.keys = 0}, "retrieval.keys: got 0; expected 1 to 32768");
  refused({.values = 0}, "retrieval.values: got 0");
  refused({.symbols = 0}, "retrieval.symbols: got 0");
  refused({.symbols = 1 << 16}, "retrieval.symbols: got 65536");
  refused({.facts = 17}, "retrieval.facts: got 17; expected 1 to 16");
  refused({.questions = 9}, "retrieval.questions: got 9; expected 1 to 8");
  refused({.length = 11}, "length: got 11; expected 12 or more");
  EXPECT_EQ(RetrievalTask({.length = 12}).sample({}).tokens.size(), 12u);
}

TEST(Tasks, EachTokenAsksForTheOneBeforeItInItsGroup) {
  const ClusterTask task{.length = 300, .groups = 5, .symbols = 4};
  int64_t first = 0;
  std::set<int32_t> answers;
  for (uint64_t index = 0; index < 20; ++index) {
    const Sample s = task.sample({.index = index});
    ASSERT_EQ(s.tokens.size(), 300u);
    std::vector<int32_t> last(5, ignored_target);
    for (size_t t = 0; t < s.tokens.size(); ++t) {
      const auto group = static_cast<size_t>(s.tokens[t] / 4);
      ASSERT_LT(group, 5u);
      ASSERT_EQ(s.targets[t], last[group]) << t;
      first += s.targets[t] == ignored_target;
      if (s.targets[t] != ignored_target) answers.insert(s.targets[t]);
      last[group] = s.tokens[t];
    }
  }
  EXPECT_EQ(first, 100);
  EXPECT_EQ(answers.size(), 20u);
  EXPECT_THROW((ClusterTask{.length = 0}.sample({})), ValueError);
  EXPECT_THROW((ClusterTask{.length = 9, .groups = 0}.sample({})), ValueError);
  EXPECT_THROW((ClusterTask{.length = 9, .symbols = 0}.sample({})), ValueError);
  EXPECT_THROW((ClusterTask{.length = 9, .groups = int64_t{1} << 40}.sample({})), ValueError);
}

TEST(Tasks, MarkersAreFound) {
  const MarkerTask task{.length = 31, .vocabulary = 5};
  std::set<size_t> places;
  int64_t positive = 0;
  for (uint64_t index = 0; index < 400; ++index) {
    const Sample s = task.sample({.index = index});
    ASSERT_EQ(s.tokens.size(), 31u);
    EXPECT_EQ(s.global, std::vector<int32_t>{0});
    const auto marker = std::find(s.tokens.begin(), s.tokens.end(), 4);
    EXPECT_EQ(std::count(s.tokens.begin(), s.tokens.end(), 4), s.targets.at(0));
    positive += s.targets.at(0);
    if (marker != s.tokens.end()) places.insert(static_cast<size_t>(marker - s.tokens.begin()));
  }
  EXPECT_EQ(places.size(), 16u);
  EXPECT_EQ(*places.begin(), 15u);
  EXPECT_NEAR(positive, 200, 4 * 10);
  EXPECT_THROW((MarkerTask{.length = 1}.sample({})), ValueError);
}

/// Sets every field to the number 1, and collects the names.
struct Ones final : Fields {
  void field(std::string_view name, bool& v) override { set(name, v = true); }
  void field(std::string_view name, int64_t& v) override { set(name, v = 1); }
  void field(std::string_view name, uint64_t& v) override { set(name, v = 1); }
  void field(std::string_view name, float& v) override { set(name, v = 1); }
  void field(std::string_view name, double& v) override { set(name, v = 1); }
  void field(std::string_view name, std::string&) override { set(name, 0); }
  void field(std::string_view name, std::vector<int64_t>&) override { set(name, 0); }
  void field(std::string_view name, std::vector<std::string>&) override { set(name, 0); }
  void choice(std::string_view name, int&, std::span<const std::string_view>) override {
    set(name, 0);
  }
  void written(std::string_view name, std::string&, bool (*)(std::string_view),
               std::string_view) override {
    set(name, 0);
  }
  void enter(std::string_view) override {}
  void leave() override {}
  void set(std::string_view name, double) { names.emplace(name); }
  std::set<std::string, std::less<>> names;
};

// Every entry of the table: samples fit the length and the vocabulary that a model has, targets are
// of the promised kind, and the same key gives the same sample.
TEST(Tasks, OfTheTableKeepTheirPromises) {
  std::set<std::string_view> ids, sections;
  for (const SampleTaskEntry& entry : sample_tasks()) {
    SCOPED_TRACE(entry.id);
    EXPECT_TRUE(ids.insert(entry.id).second);
    EXPECT_TRUE(sections.insert(entry.section).second);
    EXPECT_TRUE(entry.about.starts_with("generated: "));
    const auto task = entry.make()->fitted(516, 5000);
    const SampleShape shape = task->shape();
    EXPECT_LE(shape.length, 516);
    EXPECT_LE(shape.vocabulary, 5000);
    for (uint64_t index = 0; index < 10; ++index) {
      const SampleKey key{.seed = 2, .split = "test", .index = index};
      const Sample s = task->sample(key);
      EXPECT_EQ(s, entry.make()->fitted(516, 5000)->sample(key));
      EXPECT_LE(std::ssize(s.tokens), shape.length);
      for (const int32_t token : s.tokens) EXPECT_TRUE(token >= 0 && token < shape.vocabulary);
      for (const int32_t at : s.global) EXPECT_TRUE(at >= 0 && at < std::ssize(s.tokens));
      int64_t scored = 0;
      for (const int32_t target : s.targets) {
        if (target == ignored_target) continue;
        ++scored;
        const int64_t below = task->targets() == TargetKind::tokens ? shape.vocabulary
                              : task->targets() == TargetKind::span ? std::ssize(s.tokens)
                                                                    : 2;
        EXPECT_TRUE(target >= 0 && target < below) << target;
      }
      EXPECT_TRUE(shape.scored < 0 || scored == shape.scored) << scored;
      const bool sentences = task->targets() == TargetKind::sentences;
      if (sentences || task->targets() == TargetKind::tokens) {
        EXPECT_EQ(s.targets.size(), s.tokens.size());
      }
      for (size_t i = 0; sentences && i < s.tokens.size(); ++i) {
        EXPECT_EQ(s.targets[i] == ignored_target, s.tokens[i] != 0) << i;
      }
    }
    Ones ones;
    task->visit(ones);
    EXPECT_TRUE(ones.names.contains("held_out"));
    EXPECT_EQ(ones.names.contains("positive_weight"), task->targets() == TargetKind::labels);
    EXPECT_EQ(task->held_out, 1);
  }
  EXPECT_EQ(ids,
            (std::set<std::string_view>{
                "motif-dna", "duplicate", "copy-memory", "needle-qa", "marker", "sort", "retrieval",
                "period", "recall", "multi-query-recall", "corridor", "collision", "two-distance",
                "lookup", "marked-recall", "clusters", "topic-docs", "topic-labels"}));
  EXPECT_THROW(sample_tasks()[1].make()->fitted(7, 20), ValueError);  // no word twice
}

}  // namespace
}  // namespace longspan
