#include "data/gap_sentences.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/generator.h"
#include "data/metrics.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using Texts = std::vector<std::string>;

std::string joined_without(const Texts& sentences, size_t skip) {
  std::string text;
  for (size_t i = 0; i < sentences.size(); ++i) {
    if (i != skip) text += sentences[i] + " ";
  }
  return text;
}

TEST(GapSentences, HaveTheHighestRougeAgainstTheRest) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Texts sentences;
    for (int64_t s = 0; s < 12; ++s) {
      std::string text;
      const int64_t words = 1 + philox_word(seed, 1000 + s) % 9;
      for (int64_t w = 0; w < words; ++w) {
        text += fmt::format("w{} ", philox_word(seed, 20 * s + w) % 15);
      }
      sentences.push_back(text);
    }
    std::vector<double> scores;
    for (size_t i = 0; i < sentences.size(); ++i) {
      scores.push_back(rouge_n(sentences[i], joined_without(sentences, i), 1).f1());
    }
    const std::vector<int64_t> chosen = gap_sentences(sentences, 0.3);
    ASSERT_EQ(chosen.size(), 4u);  // 3.6 of 12
    EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
    double least = 2;
    for (const int64_t i : chosen) least = std::min(least, scores[static_cast<size_t>(i)]);
    for (size_t i = 0; i < scores.size(); ++i) {
      if (std::find(chosen.begin(), chosen.end(), static_cast<int64_t>(i)) == chosen.end()) {
        EXPECT_LE(scores[i], least + 1e-12) << i;
      }
    }
  }
}

TEST(GapSentences, OfFewAndEmpty) {
  EXPECT_TRUE(gap_sentences(Texts{}).empty());
  EXPECT_TRUE(gap_sentences(Texts{"one"}).empty());
  EXPECT_EQ(gap_sentences(Texts{"a", "a"}), std::vector<int64_t>{0});
  EXPECT_EQ(gap_sentences(Texts{"", "?"}), std::vector<int64_t>{0});
  EXPECT_EQ(gap_sentences(Texts{"a", "b", "a c"}, 0.99).size(), 2u);
  EXPECT_THROW(gap_sentences(Texts{"a", "b"}, 0), ValueError);
  EXPECT_THROW(gap_sentences(Texts{"a", "b"}, 1), ValueError);
}

TEST(GapPair, PutsAMaskForEachSentence) {
  const auto bytes = byte_tokenizer();
  const Texts sentences = {"One.", "Two.", "Three.", "Four."};
  const std::vector<int64_t> chosen = {0, 2};
  const GapPair pair = gap_pair(sentences, chosen, *bytes, 256);
  EXPECT_EQ(bytes->decode(pair.target), "One. Three.");
  std::string source;
  for (const int32_t id : pair.source) source += id == 256 ? '_' : static_cast<char>(id);
  EXPECT_EQ(source, "_ Two._ Four.");
  EXPECT_TRUE(gap_pair(sentences, {}, *bytes, 256).target.empty());
  for (const std::vector<int64_t>& bad : {std::vector<int64_t>{2, 2}, {3, 1}, {4}, {-1}}) {
    EXPECT_THROW(gap_pair(sentences, bad, *bytes, 256), ValueError);
  }
}

}  // namespace
}  // namespace longspan
