// Documents as sentences: files, tokens, masks, extracts and oracles.

#include "data/documents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "data/data_sets.h"
#include "data/extracts.h"
#include "data/io/stories.h"
#include "data/metrics.h"
#include "data/tasks.h"
#include "data/topic_documents.h"
#include "tests/harness/messages.h"
#include "tests/harness/scratch.h"

namespace longspan::test {
namespace {

using Strings = std::vector<std::string>;
using Places = std::vector<int64_t>;

/// Returns n sentences; sentence i of document d has the tokens 100 d + i, as many as i + 1, and an
/// end token.
TokenDocument numbered_document(int32_t d, int32_t n) {
  TokenDocument out;
  for (int32_t i = 0; i < n; ++i) {
    std::vector<int32_t> s(static_cast<size_t>(i + 1), 100 * d + i);
    s.push_back(999);
    out.sentences.push_back(s);
  }
  return out;
}

// ------------------------------------------------------------------------------ masks and extracts

TEST(Hibert, MasksHaveTheirStatistics) {
  const SentenceMasking masking{.token = 777};
  for (const auto& [n, expected] :
       {std::pair{1, 1}, {6, 1}, {13, 1}, {14, 2}, {20, 3}, {30, 4}, {33, 4}, {34, 5}, {200, 5}}) {
    EXPECT_EQ(masked_count(n, masking), expected) << n;
  }
  const TokenDocument a = numbered_document(1, 30), b = numbered_document(2, 13),
                      c = numbered_document(3, 1);
  const TokenDocument* batch[] = {&a, &b, &c};
  int64_t draws = 0, masked = 0, kept = 0, replaced = 0;
  std::vector<int64_t> of_a(30, 0);
  for (uint64_t i = 0; draws < 100'000; ++i) {
    const MaskedDocuments m = mask_sentences(batch, masking, Generator{5}.fork(i));
    ASSERT_EQ(m.masked.size(), 4u + 1 + 1);
    std::set<std::pair<int64_t, int64_t>> distinct;
    for (const MaskedSentence& s : m.masked) {
      const auto d = static_cast<size_t>(s.document), at = static_cast<size_t>(s.sentence);
      ASSERT_TRUE(distinct.insert({s.document, s.sentence}).second);
      ASSERT_EQ(s.original, batch[d]->sentences[at]);
      const std::vector<int32_t>& seen = m.documents[d][at];
      ASSERT_EQ(seen.back(), 999);
      if (seen == s.original) {
        ++kept;
      } else if (seen[0] == 777) {
        ASSERT_EQ(seen.size(), s.original.size());
        ASSERT_EQ(std::count(seen.begin(), seen.end(), 777), std::ssize(seen) - 1);
        ++masked;
      } else {
        ASSERT_NE(seen[0] / 100, s.document + 1);  // a sentence of another document
        ++replaced;
      }
      if (d == 0) ++of_a[at];
      ++draws;
    }
    for (size_t d = 0; d < 3; ++d) {  // all others are as they were
      for (size_t at = 0; at < batch[d]->sentences.size(); ++at) {
        if (distinct.contains({static_cast<int64_t>(d), static_cast<int64_t>(at)})) continue;
        ASSERT_EQ(m.documents[d][at], batch[d]->sentences[at]);
      }
    }
  }
  const auto expect_share = [](int64_t found, double share, int64_t of) {
    const double n = static_cast<double>(of), deviation = std::sqrt(share * (1 - share) * n);
    EXPECT_NEAR(static_cast<double>(found), share * n, 3 * deviation);
  };
  expect_share(masked, 0.8, draws);
  expect_share(kept, 0.1, draws);
  expect_share(replaced, 0.1, draws);
  const int64_t batches = draws / 6;
  for (const int64_t n : of_a) {  // 30 comparisons: 4 standard errors
    EXPECT_NEAR(static_cast<double>(n), static_cast<double>(batches) * 4 / 30,
                4 * std::sqrt(static_cast<double>(batches) * 4 / 30 * 26 / 30));
  }
  // A batch of one document takes replacements from that document.
  const SentenceMasking all{.masked = 0, .kept = 0, .token = 777};
  std::set<int32_t> from;
  for (uint64_t i = 0; i < 200; ++i) {
    const MaskedDocuments m = mask_sentences(std::span(batch).subspan(1, 1), all, Generator{i});
    from.insert(m.documents[0][static_cast<size_t>(m.masked[0].sentence)][0]);
  }
  EXPECT_GT(from.size(), 10u);
  EXPECT_GE(*from.begin(), 200);
  EXPECT_LT(*from.rbegin(), 213);
}

TEST(Hibert, SelectionTakesTheBestSentencesWithoutCommonTrigrams) {
  const Strings text{"a b c d", "e f g", "B C D now", "h i", "e f g h", "j k l"};
  const std::vector<double> scores{0.5, 0.9, 0.5, 0.2, 0.9, 0.5};
  const auto chosen = [&](ExtractOptions o) { return select_sentences(scores, text, o); };
  EXPECT_EQ(chosen({.sentences = 2, .blocking = false}), (Places{1, 4}));  // ties by place
  EXPECT_EQ(chosen({.sentences = 3, .blocking = false}), (Places{0, 1, 4}));
  EXPECT_EQ(chosen({.sentences = 2}), (Places{0, 1}));     // 4 shares e f g with 1
  EXPECT_EQ(chosen({.sentences = 3}), (Places{0, 1, 5}));  // 2 shares b c d with 0
  EXPECT_EQ(chosen({.sentences = 9}), (Places{0, 1, 3, 5}));
  EXPECT_EQ(chosen({.sentences = 9, .blocking = false}), (Places{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(chosen({.sentences = 9, .words = 5}), (Places{1, 3}));  // 0 and 5 do not fit
  EXPECT_EQ(chosen({.sentences = 0}), Places{});
  EXPECT_EQ(select_sentences({}, {}), Places{});
  // Random texts: no two chosen sentences share a trigram, and every one left out has a reason.
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Strings random;
    std::vector<double> s;
    for (uint64_t i = 0; i < 12; ++i) {
      std::string sentence;
      for (uint64_t j = 0; j < 6; ++j) {
        sentence += static_cast<char>('a' + philox_word(seed, 16 * i + j) % 3);
        sentence += ' ';
      }
      random.push_back(sentence);
      s.push_back(static_cast<double>(philox_word(seed, 1000 + i) % 4));
    }
    const auto trigrams = [&](int64_t i) {
      const Strings w = rouge_tokens(random[static_cast<size_t>(i)]);
      std::set<std::string> all;
      for (size_t k = 0; k + 3 <= w.size(); ++k) all.insert(w[k] + w[k + 1] + w[k + 2]);
      return all;
    };
    const Places places = select_sentences(s, random, {.sentences = 12});
    std::map<std::string, int64_t> owner;
    for (const int64_t i : places) {
      for (const std::string& g : trigrams(i)) ASSERT_TRUE(owner.emplace(g, i).second);
    }
    for (int64_t i = 0; i < 12; ++i) {
      if (std::count(places.begin(), places.end(), i) > 0) continue;
      const auto own = trigrams(i);
      EXPECT_TRUE(std::any_of(own.begin(), own.end(), [&](const std::string& g) {
        const auto at = owner.find(g);
        return at != owner.end() && s[static_cast<size_t>(at->second)] >= s[static_cast<size_t>(i)];
      }));
    }
  }
  EXPECT_TRUE(contains(message_of<ValueError>([&] { select_sentences(scores, {}); }),
                       "got 6 scores for 0 sentences"));
  const double nan = std::nan("");
  EXPECT_THROW(select_sentences({&nan, 1}, Strings{"a"}), ValueError);
  EXPECT_THROW(chosen({.sentences = -1}), ValueError);
}

TEST(Hibert, GoldenValuesOfRouge) {
  const std::string reference = "police killed the gunman";
  for (const int n : {1, 2}) EXPECT_EQ(rouge_n(reference, reference, n).f1(), 1);
  EXPECT_EQ(rouge_l(reference, reference).f1(), 1);
  const std::string one = "police kill the gunman", two = "the gunman kill police";
  EXPECT_DOUBLE_EQ(rouge_n(one, reference, 1).f1(), 0.75);
  EXPECT_DOUBLE_EQ(rouge_n(one, reference, 2).f1(), 1.0 / 3);
  EXPECT_DOUBLE_EQ(rouge_l(one, reference).f1(), 0.75);
  EXPECT_DOUBLE_EQ(rouge_l(two, reference).f1(), 0.5);
  // On a sentence a line each, Lsum joins the common subsequences that L cannot.
  const Strings summary{"a b c", "d e f"}, other{"d e f", "a b c"};
  RougeScores scores;
  scores.add(summary, other);
  EXPECT_DOUBLE_EQ(scores.rouge_l, 0.5);
  EXPECT_DOUBLE_EQ(scores.rouge_lsum, 1);
}

// A greedy choice need not be the best one: of random words, the lead of as many sentences can be
// better. On wiki-leads it never is: longspan eval counts where (bench/results/hibert).
TEST(Hibert, OraclesRiseAndAreNoWorseThanTheLead) {
  int64_t behind = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto text = [&](uint64_t first, uint64_t count) {
      Strings all;
      for (uint64_t i = 0; i < count; ++i) {
        std::string sentence;
        for (uint64_t j = 0; j < 2 + philox_word(seed, first + i) % 6; ++j) {
          sentence += fmt::format("w{} ", philox_word(seed, first + 50 * i + j + 9) % 15);
        }
        all.push_back(sentence);
      }
      return all;
    };
    const Strings article = text(0, 12), summary = text(10'000, 3);
    double last = 0;
    for (int64_t most = 0; most <= 12; ++most) {
      const Places places = greedy_oracle(article, summary, most);
      ASSERT_LE(std::ssize(places), most);
      const double score = oracle_overlap(sentences_at(article, places), summary);
      ASSERT_GE(score, last);
      last = score;
      const auto lead = std::span(article).first(static_cast<size_t>(most));
      behind += score < oracle_overlap(lead, summary) ? 1 : 0;
      if (most == 1) {
        for (const std::string& s : article) {
          ASSERT_GE(score, oracle_overlap(Strings{s}, summary));
        }
      }
    }
  }
  EXPECT_LE(behind, 40 * 13 / 50);
  EXPECT_EQ(greedy_oracle(Strings{"a", "b", "a b"}, Strings{"a b"}), (Places{2}));
  EXPECT_EQ(greedy_oracle(Strings{"x", "y"}, Strings{"a b"}), Places{});
  EXPECT_EQ(greedy_oracle({}, Strings{"a b"}), Places{});
  EXPECT_EQ(greedy_oracle(Strings{"a"}, {}), Places{});
  EXPECT_EQ(greedy_oracle(Strings{"c d", "a b"}, Strings{"a b c d"}), (Places{0, 1}));
  EXPECT_DOUBLE_EQ(oracle_overlap(Strings{"a b", "b a b"}, Strings{"A, b!"}),
                   1 + 2.0 / 3);  // each n-gram once
  EXPECT_THROW(greedy_oracle({}, {}, -1), ValueError);
}

// ------------------------------------------------------------------------------------- properties

TEST(Documents, AreTokenizedAndCut) {
  const auto tokenizer = byte_tokenizer();
  const Document text{{"abc", "", "abcdefg"}, {}, {1, 0, 1}};
  const TokenDocument d = token_document(text, *tokenizer, 300, 5);
  EXPECT_EQ(d.sentences, (std::vector<std::vector<int32_t>>{
                             {'a', 'b', 'c', 300}, {300}, {'a', 'b', 'c', 'd', 300}}));
  EXPECT_EQ(d.labels, (std::vector<int32_t>{1, 0, 1}));
  EXPECT_EQ(d.cut, 1);
  const std::vector<TokenDocument> pieces = pieces_of(d, 2);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].sentences.size(), 2u);
  EXPECT_EQ(pieces[1].labels, (std::vector<int32_t>{1}));
  EXPECT_EQ(pieces_of(d, 3).size(), 1u);
  EXPECT_TRUE(pieces_of({}, 3).empty());
  EXPECT_THROW(pieces_of(d, 0), ValueError);
  EXPECT_THROW(token_document(text, *tokenizer, 300, 1), ValueError);
  EXPECT_TRUE(contains(message_of<ValueError>([&] {
                         token_document({{"a", "b"}, {}, {1}}, *tokenizer, 300, 5);
                       }),
                       "1 labels for 2 sentences"));
  const TokenDocument none;
  const TokenDocument* batch[] = {&none};
  EXPECT_THROW(mask_sentences(batch, {}, Generator{1}), ValueError);
}

TEST(Documents, PlainTextIsSplitIntoSentences) {
  EXPECT_EQ(split_sentences("One.  Two!\tThree? four. \"Five.\" (Six.)\n\nSeven\r\n 8"),
            (Strings{"One.", "Two!", "Three? four.", "\"Five.\"", "(Six.)", "Seven", "8"}));
  EXPECT_EQ(split_sentences("Dr. No met J. F. K. in the U.S. Army. It was 3.5 km. 7 came."),
            (Strings{"Dr. No met J. F. K. in the U.S. Army.", "It was 3.5 km.", "7 came."}));
  EXPECT_EQ(split_sentences(""), Strings{});
  EXPECT_EQ(split_sentences(" \n\t\n"), Strings{});
  EXPECT_EQ(split_sentences("."), Strings{"."});
  EXPECT_EQ(split_sentences("No end"), Strings{"No end"});
}

TEST(Documents, StoriesHaveHighlights) {
  const Document d =
      read_story("One. Two.\n\nThree\n\n@highlight\n\nA high light .\n@highlight\nB\n", "x.story");
  EXPECT_EQ(d.article, (Strings{"One.", "Two.", "Three"}));
  EXPECT_EQ(d.summary, (Strings{"A high light .", "B"}));
  EXPECT_TRUE(read_story("", "x").article.empty());
  EXPECT_TRUE(contains(message_of<IoError>([] { read_story("a\n@highlight\n", "x.story"); }),
                       "x.story: nothing follows the last mark"));
  EXPECT_TRUE(
      contains(message_of<IoError>([] { read_story("a\n@highlight\n@highlight\nb", "x.story"); }),
               "follows another"));
}

void write_text(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST(Documents, AreReadFromArticlesSummariesAndLabels) {
  const Folder folder;
  const DataPlace place{.root = "", .data = "documents=" + folder.path()};
  const std::string missing = message_of<IoError>([&] { open_documents("documents", place, 0); });
  EXPECT_TRUE(contains(missing, "documents lacks train.article, plain or with .gz")) << missing;
  write_text(folder / "train.article", "a b <S_SEP> c\n\nd <S_SEP> e <S_SEP> f\n");
  std::vector<Document> all = open_documents("documents", place, 0);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].article, (Strings{"a b", "c"}));
  EXPECT_TRUE(all[1].article.empty());
  EXPECT_TRUE(all[2].summary.empty());
  EXPECT_TRUE(open_documents("documents", place, 1).empty());
  write_text(folder / "train.summary", "b\n\nd\n");
  write_text(folder / "train.label", "T F\n\nF  T F \n");
  all = open_documents("documents", place, 0);
  EXPECT_EQ(all[0].summary, Strings{"b"});
  EXPECT_EQ(all[0].labels, (std::vector<uint8_t>{1, 0}));
  EXPECT_EQ(all[2].labels, (std::vector<uint8_t>{0, 1, 0}));
  const auto message = [&](const std::string& labels) {
    write_text(folder / "train.label", labels);
    return message_of<IoError>([&] { open_documents("documents", place, 0); });
  };
  EXPECT_TRUE(contains(message("T\n\nF T F\n"), "line 1 has 1 labels, and the article 2"));
  EXPECT_TRUE(contains(message("T F F\n\nF T F\n"), "line 1 has 3 labels"));
  EXPECT_TRUE(contains(message("T F\n\nF X F\n"), "line 3 has other text than T and F"));
  EXPECT_TRUE(contains(message("T F\n\nF TT F\n"), "line 3 has other text than T and F"));
  EXPECT_TRUE(contains(message("T F\n"), "1 lines for 3 documents"));
  std::filesystem::remove(folder / "train.label");
  write_text(folder / "train.summary", "b\n");
  EXPECT_TRUE(contains(message_of<IoError>([&] { open_documents("documents", place, 0); }),
                       "3 articles and 1 summaries"));
}

TEST(Documents, AreReadFromStories) {
  const Folder folder;
  const DataPlace place{.root = "", .data = "documents=" + folder.path()};
  for (int i = 0; i < 10; ++i) {
    write_text(folder / fmt::format("{}.story", i),
               fmt::format("Text {}.\n\n@highlight\n\nh\n", i));
  }
  write_text(folder / "other.txt", "no story");
  const auto count = [&](int part, const std::string& split) {
    return open_documents("documents", place, part, split).size();
  };
  EXPECT_EQ(count(0, ""), 9u);
  EXPECT_EQ(count(0, "60/30/10"), 6u);
  EXPECT_EQ(count(1, "60/30/10"), 3u);
  EXPECT_EQ(open_documents("documents", place, 2, "60/30/10")[0].article, Strings{"Text 9."});
  EXPECT_EQ(missing_files(find_data_set("documents"), place), "");
  std::filesystem::create_directory(folder / "valid");
  write_text(folder / "valid/a.story", "One. Two.");
  EXPECT_EQ(count(0, ""), 0u);
  EXPECT_EQ(count(1, ""), 1u);
}

TEST(Documents, TopicsDetermineSentencesAndLabels) {
  const TopicTask shared, mixed{.mixed = true};
  int64_t yes = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    for (const TopicTask& task : {shared, mixed}) {
      const Sample s = task.sample({.seed = 3, .split = "train", .index = i});
      EXPECT_EQ(s, task.sample({.seed = 3, .split = "train", .index = i}));
      ASSERT_EQ(s.tokens.size(), 32u);
      std::map<int32_t, int64_t> count;
      for (size_t k = 0; k < 8; ++k) {
        const int32_t t = s.tokens[4 * k] - 1;
        ASSERT_TRUE(t >= 0 && t < 16);
        ASSERT_EQ(s.tokens[4 * k + 1], 17 + static_cast<int32_t>(k));
        ASSERT_EQ(s.tokens[4 * k + 2], 25 + (t + static_cast<int32_t>(k)) % 16);
        ASSERT_EQ(s.tokens[4 * k + 3], 0);
        ++count[t];
        for (size_t j = 0; j < 3; ++j) ASSERT_EQ(s.targets[4 * k + j], ignored_target);
      }
      ASSERT_TRUE(task.mixed || count.size() == 1);
      for (size_t k = 0; k < 8; ++k) {
        const bool majority = 2 * count[s.tokens[4 * k] - 1] > 8;
        ASSERT_EQ(s.targets[4 * k + 3], majority ? 1 : 0);
        yes += task.mixed && majority;
      }
    }
  }
  EXPECT_GT(yes, 300 * 8 / 2);
  EXPECT_LT(yes, 300 * 8);
  EXPECT_THROW((TopicTask{.topics = 1}.sample({})), ValueError);
  EXPECT_THROW((TopicTask{.sentences = 0}.sample({})), ValueError);
}

}  // namespace
}  // namespace longspan::test
