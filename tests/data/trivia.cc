#include "data/trivia.h"

#include "core/error.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::message_of;

constexpr const char* trivia = R"({"Data": [
  {"Answer": {"Aliases": ["The Beatles", "Beatles", ""], "NormalizedAliases": ["beatles"],
              "Type": "WikipediaEntity", "Value": "Beatles"},
   "EntityPages": [{"DocSource": "TagMe", "Filename": "Beatles.txt", "Title": "Beatles"},
                   {"DocSource": "TagMe", "Filename": "Help!.txt", "Title": "Help!"}],
   "Question": "Who sang Help!?", "QuestionId": "tc_1", "QuestionSource": "x", "SearchResults": []},
  {"EntityPages": [], "Question": "Why?", "QuestionId": "tc_2"}], "Domain": "Wikipedia"})";

TEST(TriviaQa, ReadsQuestions) {
  const std::vector<TriviaQuestion> all = read_triviaqa(trivia, "x.json");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].id, "tc_1");
  EXPECT_EQ(all[0].text, "Who sang Help!?");
  EXPECT_EQ(all[0].aliases, (std::vector<std::string>{"Beatles", "The Beatles"}));
  EXPECT_EQ(all[0].documents, (std::vector<std::string>{"Beatles.txt", "Help!.txt"}));
  EXPECT_TRUE(all[1].aliases.empty());  // from a test set
}

TEST(TriviaQa, TakesDotsWithinNames) {
  std::string text = trivia;
  text.replace(text.find("Beatles.txt"), 11, "a../Apple_Inc..txt");
  EXPECT_EQ(read_triviaqa(text, "x.json")[0].documents[0], "a../Apple_Inc..txt");
}

TEST(TriviaQa, RefusesBadFiles) {
  const auto message = [](const std::string& from, const std::string& to) {
    std::string text = trivia;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return message_of<IoError>([&] { read_triviaqa(text, "x.json"); });
  };
  EXPECT_TRUE(contains(message("\"Help!.txt\"", "\"../Help!.txt\""),
                       "x.json: question tc_1: \"../Help!.txt\" is no file of the evidence"));
  EXPECT_TRUE(contains(message("\"Beatles.txt\"", "\"/etc/hosts\""), "no file of the evidence"));
  EXPECT_TRUE(contains(message("\"Beatles.txt\"", "\"a/..\""), "no file of the evidence"));
  EXPECT_TRUE(contains(message("\"Beatles.txt\"", "\"a/../b\""), "no file of the evidence"));
  EXPECT_TRUE(contains(message("\"Value\"", "\"Values\""), "x.json: question tc_1: "));
  EXPECT_TRUE(contains(message("\"Question\": \"Why?\"", "\"Question\": 1"), "question tc_2: "));
  EXPECT_TRUE(contains(message("\"QuestionId\": \"tc_2\"", "\"Id\": 1"), "question 1 of the file"));
  EXPECT_TRUE(contains(message("\"Data\"", "\"Dates\""), "x.json: "));
  EXPECT_TRUE(contains(message("}], \"Domain\"", "}, \"Domain\""), "x.json: "));
}

TEST(TriviaQa, FindsAliases) {
  const std::string text = "The BEATLES; beatlesque. Beatles-like, a beatle. éBeatles Beatles";
  const std::vector<std::string> aliases{"beatles", "the beatles", ""};
  const std::vector<Answer> found = find_aliases(text, aliases);
  const std::vector<Answer> expected{{"The BEATLES", 0},
                                     {"BEATLES", 4},
                                     {"Beatles", 25},
                                     {"Beatles", static_cast<int64_t>(text.size()) - 7}};
  EXPECT_EQ(found, expected);
  for (const Answer& a : found) {
    EXPECT_EQ(text.substr(static_cast<size_t>(a.begin), a.text.size()), a.text);
  }
  EXPECT_TRUE(find_aliases("", aliases).empty());
  EXPECT_TRUE(find_aliases(text, {}).empty());
  // The end of the read text does not end a word: "beatlesque" does not match "beatle".
  const size_t cut = text.find("sque");
  EXPECT_EQ(find_aliases(text, std::vector<std::string>{"beatle"}, cut).size(), 0u);
  EXPECT_EQ(find_aliases(text, aliases, 11).size(), 2u);
  EXPECT_EQ(find_aliases(text, aliases, 10).size(), 0u);
  // An alias that ends in punctuation needs no word boundary after it.
  EXPECT_EQ(find_aliases("Help!me Help!", std::vector<std::string>{"help!"}).size(), 2u);
}

// Takes time linear, not quadratic, in the length of the text.
TEST(TriviaQa, FindsAnAliasAnyNumberOfTimes) {
  std::string text;
  for (int i = 0; i < 300'000; ++i) text += "a ";
  const std::vector<std::string> aliases = {"a", "a a", "A"};
  const std::vector<Answer> found = find_aliases(text, aliases);
  ASSERT_EQ(found.size(), 599'999u);
  EXPECT_EQ(found[0], (Answer{"a", 0}));
  EXPECT_EQ(found[1], (Answer{"a a", 0}));
  EXPECT_EQ(found[2], (Answer{"a", 2}));
}

TEST(TriviaQa, ReadsTheBeginningOfLongTexts) {
  std::string text;
  for (int i = 0; i < 5000; ++i)
    text += "word" + std::to_string(i % 7) + (i % 3 == 0 ? ".  " : " ");
  for (const std::unique_ptr<Tokenizer>& t : {byte_tokenizer(), word_tokenizer(text)}) {
    const std::vector<Piece> all = t->pieces(text);
    for (const int64_t count : {0, 1, 10, 1000, 4000}) {
      const std::vector<Piece> first = first_pieces(text, *t, count);
      ASSERT_EQ(static_cast<int64_t>(first.size()), count);
      EXPECT_TRUE(std::equal(first.begin(), first.end(), all.begin()));
    }
    EXPECT_EQ(first_pieces(text, *t, 1'000'000).size(), all.size());
  }
  EXPECT_TRUE(first_pieces("", *byte_tokenizer(), 5).empty());
}

TEST(TriviaQa, HasIdsThatATokenizerLacks) {
  const QuestionIds ids(*byte_tokenizer());
  EXPECT_EQ(ids.special.begin, 256);
  EXPECT_EQ(ids.special.separator, 257);
  EXPECT_EQ(ids.vocabulary, 258);
}

}  // namespace
}  // namespace longspan
