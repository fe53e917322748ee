#include "data/tasks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "core/error.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::message_of;

TEST(TasksAndData, Test5_SamplesAreThoseOfTheirKey) {
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

TEST(TasksAndData, Test5_DuplicatesAreSolved) {
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

TEST(TasksAndData, Test5_MotifsAreSolved) {
  for (const MotifTask& task :
       {MotifTask{}, MotifTask{.length = 300, .pairs = 3, .nearest = 40, .furthest = 90, .kmer = 3},
        MotifTask{.length = 90, .motif = 5, .mismatches = 0, .nearest = 30, .furthest = 1000}}) {
    std::vector<int64_t> positive(static_cast<size_t>(task.pairs));
    constexpr int64_t samples = 200;
    for (uint64_t index = 0; index < samples; ++index) {
      const LabelledSample s = task.sample({.seed = 5, .index = index});
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
        EXPECT_EQ(s.labels[static_cast<size_t>(p)], found ? 1 : 0) << index;
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

TEST(TasksAndData, Test5_CopiesAreSolved) {
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

TEST(TasksAndData, Test5_NeedlesAreFound) {
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
      const NeedleSample s = task.sample({.index = index});
      ASSERT_EQ(s.tokens.size(), 60u);
      EXPECT_EQ(s.tokens[0], 0);
      EXPECT_EQ(std::count(s.tokens.begin(), s.tokens.end(), 1), 1);
      EXPECT_EQ(std::count(s.tokens.begin(), s.tokens.end(), 2), 4);
      EXPECT_EQ(std::count(s.tokens.begin(), s.tokens.end(), 3), 1);
      EXPECT_LT(*std::max_element(s.tokens.begin(), s.tokens.end()), task.vocabulary());
      const auto question = static_cast<size_t>(s.question_begin);
      EXPECT_EQ(s.tokens[question], 3);
      EXPECT_EQ(s.question_end - s.question_begin, 2);
      // Finds the fact with the key of the question.
      int found = 0;
      for (size_t i = 0; i + 4 < s.tokens.size(); ++i) {
        if (s.tokens[i] != 2) continue;
        for (size_t v = i + 2; v < i + 5; ++v) {
          EXPECT_TRUE(s.tokens[v] >= 10 && s.tokens[v] < 15) << s.tokens[v];
        }
        if (s.tokens[i + 1] != s.tokens[question + 1]) continue;
        ++found;
        EXPECT_EQ(s.start, static_cast<int32_t>(i) + 2);
        EXPECT_EQ(s.end, static_cast<int32_t>(i) + 4);
      }
      EXPECT_EQ(found, 1);
      places.insert(s.start);
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
      const LabelledSample s = task.sample({.seed = 1, .split = "test", .index = index});
      const auto first = begins(s.tokens, motifs[0], 6), second = begins(s.tokens, motifs[1], 6);
      const auto follows = [&](const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
        return !a.empty() && !b.empty() && b.back() - a.front() >= task.nearest;
      };
      const std::vector<bool> which{!first.empty(), !second.empty()};
      const auto yes = static_cast<size_t>(s.labels[0]);
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
    const NeedleSample s = task.sample({.seed = 3, .index = index});
    const NeedleQuestion q = question_of(s);
    EXPECT_EQ(q.question.size(), 2u);
    EXPECT_EQ(q.text.size(), 40u);
    EXPECT_EQ(q.text[static_cast<size_t>(q.answer.begin)].id,
              s.tokens[static_cast<size_t>(s.start)]);
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
}

}  // namespace
}  // namespace longspan
