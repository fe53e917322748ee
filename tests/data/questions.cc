#include "data/questions.h"

#include <set>

#include "core/error.h"
#include "core/generator.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::message_of;

constexpr const char* squad = R"({"version": "2.0", "data": [{"title": "t", "paragraphs": [
  {"context": "Café Ünï was founded in Żnin.", "qas": [
    {"id": "q1", "question": "Where?", "answers": [{"text": "Żnin", "answer_start": 24},
                                                   {"text": "in Żnin", "answer_start": 21}]},
    {"id": "q2", "question": "Why?", "answers": [], "is_impossible": true}]}]}]})";

TEST(Squad, CountsCharactersNotBytes) {
  const std::vector<Question> all = read_squad(squad, "x.json");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].id, "q1");
  ASSERT_EQ(all[0].answers.size(), 2u);
  EXPECT_EQ(all[0].answers[0], (Answer{"Żnin", 27}));
  EXPECT_EQ(all[0].context.substr(27, 5), "Żnin");
  EXPECT_TRUE(all[1].answers.empty());
}

/// Many questions about a long text hold it once, and their answers are parts of it.
TEST(Squad, QuestionsAndAnswersShareTheirContext) {
  constexpr size_t length = 1 << 20;
  constexpr int count = 5000;
  std::string context, qas, spans;
  for (size_t i = 0; i < length / 2; ++i) context += "\xC3\xA9";
  for (int i = 0; i < count; ++i) {
    qas += fmt::format(
        R"({}{{"id":"{}","question":"?","answers":[{{"text":"é","answer_start":{}}}]}})",
        i > 0 ? "," : "", i, length / 2 - 1 - static_cast<size_t>(i));
    spans += fmt::format(
        R"({}{{"qid":"{}","question":"?","detected_answers":[{{"char_spans":[[0,{}]]}}]}})",
        i > 0 ? "," : "", i, length / 2 - 1);
  }
  const std::vector<Question> first = read_squad(
      fmt::format(R"({{"data":[{{"paragraphs":[{{"context":"{}","qas":[{}]}}]}}]}})", context, qas),
      "x");
  const std::vector<Question> second =
      read_mrqa(fmt::format(R"({{"context":"{}","qas":[{}]}})", context, spans), "x");
  for (const std::vector<Question>* all : {&first, &second}) {
    ASSERT_EQ(all->size(), size_t{count});
    for (const Question& q : *all) {
      ASSERT_EQ(q.context.data(), all->front().context.data());
      ASSERT_EQ(q.context.size(), length);
      ASSERT_EQ(q.answers.size(), 1u);
      ASSERT_EQ(q.answers[0].text.data(), q.context.data() + q.answers[0].begin);
    }
  }
  EXPECT_EQ(first[0].context, context);
  EXPECT_EQ(first[7].answers[0], (Answer{"é", static_cast<int64_t>(length) - 16}));
  EXPECT_EQ(second[7].answers[0].text.size(), length);
}

/// Characters are counted from the nearest of every 64th.
TEST(Squad, FindsEveryCharacter) {
  for (const int n : {1, 63, 64, 65, 128, 130}) {
    std::string context;
    for (int i = 0; i < n; ++i) context += i % 3 == 0 ? "é" : i % 3 == 1 ? "中" : "x";
    const auto read = [&](int at, const std::string& text) {
      return read_squad(
          fmt::format(R"({{"data":[{{"paragraphs":[{{"context":"{}","qas":[{{"id":"q",)"
                      R"("question":"?","answers":[{{"text":"{}","answer_start":{}}}]}}]}}]}}]}})",
                      context, text, at),
          "x");
    };
    int64_t begin = 0;
    for (int i = 0; i < n; ++i) {
      const std::string one = i % 3 == 0 ? "é" : i % 3 == 1 ? "中" : "x";
      EXPECT_EQ(read(i, one)[0].answers[0], (Answer{one, begin})) << n << ' ' << i;
      begin += static_cast<int64_t>(one.size());
    }
    EXPECT_THROW(read(n, "x"), IoError);
    EXPECT_THROW(read(n + 64, "x"), IoError);
    EXPECT_THROW(read(-1, "x"), IoError);
  }
}

TEST(Squad, RefusesBadFiles) {
  const auto message = [](std::string text) {
    return message_of<IoError>([&] { read_squad(text, "x.json"); });
  };
  std::string moved = squad;
  moved.replace(moved.find("24}"), 2, "23");
  EXPECT_TRUE(
      contains(message(moved), "x.json: question q1: the answer \"Żnin\" does not stand at"));
  moved.replace(moved.find("23}"), 2, "-1");
  EXPECT_TRUE(contains(message(moved), "character -1"));
  EXPECT_TRUE(contains(message("{}"), "x.json"));
  EXPECT_TRUE(contains(message("{\"data\": 1}"), "x.json"));
  EXPECT_TRUE(contains(message(std::string(squad).substr(0, 100)), "x.json"));
}

TEST(Mrqa, ReadsLines) {
  const std::string lines =
      "{\"header\": {\"dataset\": \"x\"}}\n"
      "{\"id\": \"\", \"context\": \"Śnieg pada. snow\", \"qas\": [{\"qid\": \"a\", \"question\": "
      "\"what?\", \"detected_answers\": [{\"text\": \"Snow\", \"char_spans\": [[12, 15], [0, "
      "4]]}]}]}\n";
  const std::vector<Question> all = read_mrqa(lines, "x");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].answers, (std::vector<Answer>{{"snow", 13}, {"Śnieg", 0}}));
  EXPECT_THROW(read_mrqa("{\"context\": \"a\"}\n", "x"), IoError);
  for (const std::string span :
       {"0, 1", "0, 9223372036854775807", "0, -9223372036854775808", "-1, 0", "1, 0"}) {
    EXPECT_TRUE(
        contains(message_of<IoError>([&] {
                   read_mrqa(
                       "{\"context\": \"a\", \"qas\": [{\"qid\": \"a\", \"question\": \"\", "
                       "\"detected_answers\": [{\"char_spans\": [[" +
                           span + "]]}]}]}",
                       "x");
                 }),
                 "outside its context"))
        << span;
  }
}

/// Returns pieces of five bytes each.
std::vector<Piece> numbered_pieces(int64_t count, int32_t first_id) {
  std::vector<Piece> all;
  for (int64_t i = 0; i < count; ++i) {
    all.push_back({first_id + static_cast<int32_t>(i), true, 5 * i, 5 * i + 5});
  }
  return all;
}

const SpecialIds kSpecialIds{.pad = 0, .unknown = 1, .begin = 2, .separator = 3, .mask = 4};

TEST(SpanWindows, SlideOverTheText) {
  const std::vector<Piece> question = numbered_pieces(3, 100), text = numbered_pieces(20, 1000);
  const Answer answer{"sevenandeight", 5 * 7 + 1};  // bytes 36 to 48: pieces 7 to 9
  const auto windows =
      span_windows(question, text, &answer, kSpecialIds, {.length = 14, .stride = 5});
  ASSERT_EQ(windows.size(), 4u);  // 8 text tokens each: from 0, 5, 10, 15
  std::set<int64_t> seen;
  for (size_t i = 0; i < windows.size(); ++i) {
    const SpanWindow& w = windows[i];
    EXPECT_LE(w.tokens.size(), 14u);
    EXPECT_EQ(w.types.size(), w.tokens.size());
    EXPECT_EQ(w.first, 5 * static_cast<int64_t>(i));
    EXPECT_EQ(w.tokens[0], 2);
    EXPECT_EQ(w.tokens[3], 102);
    EXPECT_EQ(w.question_end, 4);
    EXPECT_EQ(w.tokens[4], 3);
    EXPECT_EQ(w.types[4], 0);
    EXPECT_EQ(w.types[5], 1);
    EXPECT_EQ(w.text_begin, 5);
    EXPECT_EQ(w.tokens.back(), 3);
    for (int64_t k = 0; k < w.count; ++k) {
      EXPECT_EQ(w.tokens[static_cast<size_t>(w.text_begin + k)], 1000 + w.first + k);
      seen.insert(w.first + k);
    }
  }
  EXPECT_EQ(seen.size(), 20u);
  EXPECT_EQ(windows.back().count, 5);
  // Only the second window contains all of pieces 7 to 9.
  EXPECT_EQ(windows[0].start, 0);
  EXPECT_EQ(windows[1].start, 5 + 2);
  EXPECT_EQ(windows[1].end, 5 + 4);
  EXPECT_EQ(windows[2].end, 0);
}

TEST(SpanWindows, HaveSeveralAnswers) {
  const std::vector<Piece> question = numbered_pieces(3, 100), text = numbered_pieces(20, 1000);
  // Pieces 7 to 9, piece 1, pieces 7 to 9 again, the last piece, and an answer beyond the text.
  const std::vector<Answer> answers = {
      {"sevenandeight", 36}, {"two", 5}, {"eveandeig", 38}, {"last", 96}, {"beyond", 100}};
  const auto windows =
      span_windows(question, text, nullptr, kSpecialIds, {.length = 14, .stride = 5});
  const auto found = [&](size_t w) { return answers_in(windows[w], text, answers); };
  EXPECT_EQ(found(0), (std::vector<SpanPlace>{{5 + 1, 5 + 1}}));  // from 0
  EXPECT_EQ(found(1), (std::vector<SpanPlace>{{5 + 2, 5 + 4}}));  // from 5
  EXPECT_TRUE(found(2).empty());
  EXPECT_EQ(found(3), (std::vector<SpanPlace>{{5 + 4, 5 + 4}}));  // from 15
}

TEST(SpanWindows, OfShortAndOddTexts) {
  const std::vector<Piece> question = numbered_pieces(90, 100), text = numbered_pieces(4, 1000);
  const auto one = span_windows(question, text, nullptr, kSpecialIds);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].tokens.size(), 64u + 3 + 4);
  const auto empty = span_windows(question, {}, nullptr, kSpecialIds);
  ASSERT_EQ(empty.size(), 1u);
  EXPECT_EQ(empty[0].count, 0);
  const auto two = span_windows(question, text, nullptr, kSpecialIds, {.two_separators = true});
  EXPECT_EQ(two[0].tokens[66], 3);
  EXPECT_EQ(two[0].text_begin, 67);
  // A stride beyond the window's text length skips nothing.
  const auto narrow = span_windows(question, text, nullptr, kSpecialIds,
                                   {.length = 6, .stride = 100, .most_question = 2});
  EXPECT_EQ(narrow.size(), 4u);
  EXPECT_TRUE(contains(message_of<ValueError>([&] {
                         span_windows(question, text, nullptr, kSpecialIds, {.length = 67});
                       }),
                       "no room for text beside a question of 64 tokens; expected 68 or more"));
  EXPECT_THROW(span_windows(question, text, nullptr, kSpecialIds, {.stride = 0}), ValueError);
  EXPECT_THROW(span_windows(question, text, nullptr, SpecialIds{}), ValueError);
}

TEST(SpanBatch, IsPaddedToTheLongest) {
  const std::vector<Piece> question = numbered_pieces(2, 100), text = numbered_pieces(7, 1000);
  const Answer answer{"56", 5 * 5};
  const auto windows =
      span_windows(question, text, &answer, kSpecialIds, {.length = 9, .stride = 4});
  ASSERT_EQ(windows.size(), 2u);  // 4 text tokens each: pieces 0 to 3 and 4 to 6
  const SpanBatch b = span_batch(windows);
  EXPECT_EQ(b.tokens.to_vector<int64_t>(),
            (std::vector<int64_t>{2, 100, 101, 3, 1000, 1001, 1002, 1003, 3,  //
                                  2, 100, 101, 3, 1004, 1005, 1006, 3, 0}));
  EXPECT_EQ(b.types.to_vector<int64_t>(),
            (std::vector<int64_t>{0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0}));
  EXPECT_EQ(b.global.to_vector<uint8_t>(),
            (std::vector<uint8_t>{1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(b.lengths.to_vector<int64_t>(), (std::vector<int64_t>{9, 8}));
  EXPECT_EQ(b.starts.to_vector<int64_t>(), (std::vector<int64_t>{0, 5}));
  EXPECT_EQ(b.ends.to_vector<int64_t>(), (std::vector<int64_t>{0, 5}));
  EXPECT_THROW(span_batch({}), ShapeError);
  EXPECT_EQ(score_rows(Tensor::from(std::vector<float>{1, 2, 3, 4}, {2, 2})),
            (std::vector<std::vector<float>>{{1, 2}, {3, 4}}));
}

TEST(BestSpan, IsThatOfAllWindows) {
  const std::vector<Piece> question = numbered_pieces(2, 100), text = numbered_pieces(40, 1000);
  const auto windows =
      span_windows(question, text, nullptr, kSpecialIds, {.length = 20, .stride = 6});
  std::vector<std::vector<float>> starts, ends;
  for (size_t w = 0; w < windows.size(); ++w) {
    starts.emplace_back();
    ends.emplace_back();
    for (size_t i = 0; i < windows[w].tokens.size(); ++i) {
      const auto at = static_cast<int64_t>(100 * w + i);
      starts.back().push_back(to_uniform(philox_word(1, at)));
      ends.back().push_back(to_uniform(philox_word(2, at)));
    }
    // Scores outside the text are higher, and must not count.
    for (const size_t i : {size_t{0}, size_t{1}, size_t{2}, size_t{3}, starts[w].size() - 1}) {
      starts[w][i] = ends[w][i] = 5;
    }
  }
  starts[1][0] = -3;
  for (const int64_t longest : {1, 3, 30}) {
    double best = -1;
    for (size_t w = 0; w < windows.size(); ++w) {
      for (int64_t a = 4; a + 1 < static_cast<int64_t>(starts[w].size()); ++a) {
        for (int64_t b = a; b + 1 < static_cast<int64_t>(starts[w].size()) && b < a + longest;
             ++b) {
          best = std::max(best, double{starts[w][static_cast<size_t>(a)]} +
                                    double{ends[w][static_cast<size_t>(b)]});
        }
      }
    }
    const BestSpan span = best_span(windows, text, starts, ends, longest);
    EXPECT_EQ(span.score, best);
    EXPECT_EQ(span.none, 2);
    EXPECT_LE(span.end - span.begin, 5 * longest);
    const SpanWindow& w = windows[static_cast<size_t>(span.window)];
    const auto a = static_cast<size_t>(w.text_begin + span.begin / 5 - w.first),
               b = static_cast<size_t>(w.text_begin + span.end / 5 - 1 - w.first);
    EXPECT_EQ(double{starts[static_cast<size_t>(span.window)][a]} +
                  double{ends[static_cast<size_t>(span.window)][b]},
              best);
  }
  starts[0].pop_back();
  EXPECT_THROW(best_span(windows, text, starts, ends), ShapeError);
  const auto empty = span_windows(question, {}, nullptr, kSpecialIds);
  const std::vector<std::vector<float>> four = {{1, 1, 1, 1, 1}};
  EXPECT_EQ(best_span(empty, {}, four, four).window, -1);
}

TEST(SpanWindows, AnswersOfATokenizerAreWhatTheySay) {
  const auto tokenizer =
      open_tokenizer(LONGSPAN_SOURCE_DIR "/tests/oracles/golden/text/wordpiece.txt");
  const Question q = read_squad(squad, "x")[0];
  const std::vector<Piece> question = tokenizer->pieces(q.text),
                           text = tokenizer->pieces(q.context);
  const auto windows =
      span_windows(question, text, &q.answers[1], tokenizer->special(), {.length = 64});
  ASSERT_EQ(windows.size(), 1u);
  const SpanWindow& w = windows[0];
  EXPECT_GT(w.start, 0);
  std::vector<std::vector<float>> starts(1, std::vector<float>(w.tokens.size())), ends = starts;
  starts[0][static_cast<size_t>(w.start)] = 1;
  ends[0][static_cast<size_t>(w.end)] = 1;
  const BestSpan best = best_span(windows, text, starts, ends);
  EXPECT_EQ(
      q.context.substr(static_cast<size_t>(best.begin), static_cast<size_t>(best.end - best.begin)),
      "in Żnin");
}

}  // namespace
}  // namespace longspan
