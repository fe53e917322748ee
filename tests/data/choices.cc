#include "data/choices.h"

#include "core/error.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::message_of;

constexpr const char* wikihop = R"([
  {"id": "WH_train_0", "query": "country żnin", "answer": "poland",
   "candidates": ["france", "poland"], "supports": ["Żnin is a town.", "Poland is a country."]},
  {"id": "WH_test_1", "query": "height it", "candidates": ["tall"], "supports": []}])";

TEST(WikiHop, ReadsQuestions) {
  const std::vector<ChoiceQuestion> all = read_wikihop(wikihop, "x.json");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].id, "WH_train_0");
  EXPECT_EQ(all[0].query, "country żnin");
  EXPECT_EQ(all[0].candidates, (std::vector<std::string>{"france", "poland"}));
  EXPECT_EQ(all[0].supports.size(), 2u);
  EXPECT_EQ(all[0].answer, 1);
  EXPECT_EQ(all[1].answer, -1);  // from a test set
  EXPECT_TRUE(read_wikihop("[]", "x.json").empty());
}

TEST(WikiHop, HasIdsThatATokenizerLacks) {
  const ChoiceIds ids(*byte_tokenizer());
  EXPECT_EQ(ids.tokens.begin, 256);
  EXPECT_EQ(ids.tokens.separator, 257);
  EXPECT_EQ(ids.tokens.question, 258);
  EXPECT_EQ(ids.tokens.candidate_end, 261);
  EXPECT_EQ(ids.vocabulary, 262);
}

TEST(WikiHop, RefusesBadFiles) {
  const auto message = [](const std::string& from, const std::string& to) {
    std::string text = wikihop;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return message_of<IoError>([&] { read_wikihop(text, "x.json"); });
  };
  EXPECT_TRUE(contains(message("\"answer\": \"poland\"", "\"answer\": \"spain\""),
                       "x.json: question WH_train_0: the answer \"spain\" is none of the 2"));
  EXPECT_TRUE(contains(message("\"france\"", "\"poland\""), "\"poland\" is repeated"));
  EXPECT_TRUE(contains(message("[\"tall\"]", "[]"), "WH_test_1 has no candidates"));
  EXPECT_TRUE(contains(message("[\"tall\"]", "[1]"), "question WH_test_1: "));
  EXPECT_TRUE(contains(message("\"supports\": []", "\"sources\": []"), "supports"));
  EXPECT_TRUE(contains(message("\"id\": \"WH_test_1\", ", ""), "question 1 of the file: "));
  EXPECT_TRUE(contains(message("[\"tall\"]", "7"), "question WH_test_1: "));
  EXPECT_TRUE(contains(message("}]", "}"), "x.json: "));
  EXPECT_TRUE(contains(message_of<IoError>([] { read_wikihop("{}", "x.json"); }), "x.json: "));
}

std::vector<Piece> pieces_of(const std::vector<int32_t>& ids) {
  std::vector<Piece> all;
  for (const int32_t id : ids) all.push_back({.id = id});
  return all;
}

constexpr ChoiceTokens kChoiceTokens{.begin = 1,
                                     .separator = 2,
                                     .question = 3,
                                     .question_end = 4,
                                     .candidate = 5,
                                     .candidate_end = 6};

const ChoicePieces kChoiceQuestion{.query = pieces_of({10, 11}),
                                   .candidates = {pieces_of({20}), pieces_of({21, 22})},
                                   .supports = {pieces_of({30, 31, 32}), pieces_of({40, 41})}};

using Ids = std::vector<int32_t>;

TEST(ChoiceWindows, ShareOutTheSupports) {
  const Ids head = {1, 3, 10, 11, 4, 5, 20, 6, 5, 21, 22, 6, 2};
  const auto expect = [&](const ChoiceWindow& w, Ids text) {
    Ids all = head;
    all.insert(all.end(), text.begin(), text.end());
    all.push_back(2);
    EXPECT_EQ(w.tokens, all);
    EXPECT_EQ(w.question_end, 12);  // the separator is not global
    EXPECT_EQ(w.marks, (std::vector<int64_t>{5, 8}));
  };
  const auto one = choice_windows(kChoiceQuestion, kChoiceTokens, 20);  // as many windows as needed
  ASSERT_EQ(one.size(), 1u);
  expect(one[0], {30, 31, 32, 2, 40, 41});
  const auto two = choice_windows(kChoiceQuestion, kChoiceTokens, 18);
  ASSERT_EQ(two.size(), 2u);
  expect(two[0], {30, 31, 32, 2});
  expect(two[1], {40, 41});
  EXPECT_EQ(choice_windows(kChoiceQuestion, kChoiceTokens, 15).size(), 6u);

  ChoicePieces bare = kChoiceQuestion;
  bare.supports = {};
  const auto none = choice_windows(bare, kChoiceTokens, 15);
  ASSERT_EQ(none.size(), 1u);
  expect(none[0], {});
}

TEST(ChoiceWindows, Rejects) {
  EXPECT_TRUE(
      contains(message_of<ValueError>([] { choice_windows(kChoiceQuestion, kChoiceTokens, 14); }),
               "2 candidates of 14 tokens; expected 15 or more"));
  ChoicePieces bare = kChoiceQuestion;
  bare.candidates = {};
  EXPECT_TRUE(contains(message_of<ValueError>([&] { choice_windows(bare, kChoiceTokens, 99); }),
                       "no candidates"));
  ChoiceTokens lacking = kChoiceTokens;
  lacking.candidate_end = -1;
  EXPECT_TRUE(
      contains(message_of<ValueError>([&] { choice_windows(kChoiceQuestion, lacking, 99); }),
               "candidate_end is -1"));
  EXPECT_THROW(choice_batch({}), ValueError);
}

TEST(ChoiceBatch, KnowsThePlacesOfEveryMark) {
  const ChoicePieces small{
      .query = pieces_of({10}), .candidates = {pieces_of({20})}, .supports = {}};
  const std::vector<std::vector<ChoiceWindow>> questions = {
      choice_windows(small, kChoiceTokens, 20), choice_windows(kChoiceQuestion, kChoiceTokens, 18)};
  const ChoiceBatch b = choice_batch(questions);
  ASSERT_EQ(to_string(b.tokens.shape()), "[3, 18]");
  EXPECT_EQ(b.lengths.to_vector<int64_t>(), (std::vector<int64_t>{9, 18, 16}));
  ASSERT_EQ(to_string(b.places.shape()), "[2, 2, 2]");  // questions, candidates, windows
  EXPECT_EQ(b.places.to_vector<int64_t>(),
            (std::vector<int64_t>{4, -1, -1, -1, 18 + 5, 36 + 5, 18 + 8, 36 + 8}));
  const std::vector<int64_t> tokens = b.tokens.to_vector<int64_t>();
  for (const int64_t place : b.places.to_vector<int64_t>()) {
    if (place < 0) continue;
    EXPECT_EQ(tokens[static_cast<size_t>(place)], kChoiceTokens.candidate);
  }
  const std::vector<uint8_t> global = b.global.to_vector<uint8_t>();
  for (size_t i = 0; i < 54; ++i) {
    EXPECT_EQ(global[i], i % 18 < (i < 18 ? 7u : 12u) ? 1 : 0) << i;
  }
}

}  // namespace
}  // namespace longspan
