#include "train/spans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/error.h"

namespace longspan::test {
namespace {

TEST(Spans, WindowsHoldEveryTokenAndTheQuestion) {
  const std::vector<int32_t> question{7, 8};
  for (const int64_t n : {1, 4, 5, 6, 9, 23}) {
    std::vector<int32_t> document;
    for (int64_t t = 0; t < n; ++t) document.push_back(static_cast<int32_t>(100 + t));
    for (const int64_t stride : {1, 3, 5}) {
      const auto windows = span_windows(question, document, 10, stride);  // room for 5
      std::set<int32_t> seen;
      for (size_t w = 0; w < windows.size(); ++w) {
        const DocumentWindow& x = windows[w];
        EXPECT_LE(x.tokens.size(), 10u);
        EXPECT_EQ(x.first, static_cast<int64_t>(w) * stride);
        EXPECT_EQ(std::vector<int32_t>(x.tokens.begin(), x.tokens.begin() + 4),
                  (std::vector<int32_t>{1, 7, 8, 2}));
        EXPECT_EQ(x.tokens.back(), 2);
        for (int64_t i = 0; i < x.count; ++i) {
          const int32_t token = x.tokens[static_cast<size_t>(x.place + i)];
          EXPECT_EQ(token, 100 + x.first + i);
          seen.insert(token);
        }
      }
      EXPECT_EQ(seen.size(), static_cast<size_t>(n));
      EXPECT_EQ(windows.back().first + windows.back().count, n) << "no window after the last token";
    }
  }
  const std::vector<int32_t> document(20, 9);
  EXPECT_THROW(span_windows(question, document, 5, 1), ValueError);
  EXPECT_THROW(span_windows(question, document, 10, 0), ValueError);
  EXPECT_THROW(span_windows(question, document, 10, 6), ValueError) << "a gap";
}

TEST(Spans, TheBestSpanOverWindows) {
  const std::vector<int32_t> question{7}, document{20, 21, 22, 23, 24, 25};
  const auto windows = span_windows(question, document, 8, 2);  // rooms of 4: 0..3 and 2..5
  ASSERT_EQ(windows.size(), 2u);
  std::vector<std::vector<float>> start, end;
  for (const DocumentWindow& w : windows) {
    start.emplace_back(w.tokens.size(), 0.0f);
    end.emplace_back(w.tokens.size(), 0.0f);
  }
  start[0][1] = end[0][1] = 50;  // the question is no answer
  start[0][3] = 2;               // document token 0
  end[0][6] = 2;                 // document token 3
  start[1][4] = 3;               // document token 3
  end[1][3] = 9;                 // before its start
  const AnswerSpan four = best_span(windows, start, end, 4);
  EXPECT_EQ(four.first, 2);  // tokens 2 and 2 of the second window: 0 + 9
  EXPECT_EQ(four.last, 2);
  EXPECT_EQ(four.score, 9);
  end[1][3] = 0;
  const AnswerSpan joined = best_span(windows, start, end, 4);
  EXPECT_EQ(joined.first, 0);
  EXPECT_EQ(joined.last, 3);
  const AnswerSpan shorter = best_span(windows, start, end, 3);
  EXPECT_EQ(shorter.first, 3) << "four tokens are too many";
  EXPECT_EQ(shorter.score, 3);
  start[0][0] = start[1][0] = 3.5;
  EXPECT_EQ(best_span(windows, start, end, 4, true).first, 0) << "4 beats no answer";
  EXPECT_EQ(best_span(windows, start, end, 3, true).first, -1) << "3 does not";
  start[1][0] = 1;
  EXPECT_EQ(best_span(windows, start, end, 3, true).first, 3)
      << "one window that has an answer is enough";
}

TEST(Spans, NeedleQaIsSolvableAndRepeatable) {
  const NeedleQa task;
  std::set<int64_t> places;
  for (uint64_t i = 0; i < 200; ++i) {
    const NeedleDocument s = task.sample(0, i);
    EXPECT_EQ(s.document, task.sample(0, i).document);
    EXPECT_NE(s.document, task.sample(1, i).document);
    ASSERT_EQ(s.question.size(), 1u);
    ASSERT_EQ(static_cast<int64_t>(s.document.size()), task.length);
    // Solved without knowledge of how it was made: the key stands once, the answer follows it.
    const auto key = std::find(s.document.begin(), s.document.end(), s.question[0]);
    ASSERT_EQ(std::count(s.document.begin(), s.document.end(), s.question[0]), 1);
    EXPECT_EQ(key - s.document.begin() + 1, s.first);
    EXPECT_EQ(s.last, s.first + 1);
    int64_t keys = 0;
    for (const int32_t token : s.document) {
      EXPECT_TRUE(token >= NeedleQa::special && token < task.vocab());
      keys += token < NeedleQa::special + task.keys ? 1 : 0;
    }
    EXPECT_EQ(keys, task.facts);
    for (int64_t t = s.first; t <= s.last; ++t) {
      EXPECT_GE(s.document[static_cast<size_t>(t)], NeedleQa::special + task.keys);
    }
    places.insert(s.first);
  }
  EXPECT_GT(places.size(), 60u);
  NeedleQa full = task;
  full.length = 11;
  EXPECT_THROW(full.sample(0, 0), ValueError);
}

}  // namespace
}  // namespace longspan::test
