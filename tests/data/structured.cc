#include "data/structured.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "core/error.h"

namespace longspan {
namespace {

std::span<const uint8_t> byte_span(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

const std::string kText =
    "Speak now. Who goes \"there?\" Nobody!\n\nA second paragraph, of\ntwo lines. And 3.14 "
    "more\n\n\n"
    "last";

TEST(Structured, SplitsIntoSentencesWithinParagraphs) {
  std::vector<std::string> parts;
  std::vector<int64_t> paragraphs;
  for (const Sentence& s : split_sentences(byte_span(kText))) {
    parts.push_back(kText.substr(static_cast<size_t>(s.begin), static_cast<size_t>(s.length)));
    paragraphs.push_back(s.paragraph);
  }
  EXPECT_EQ(parts, (std::vector<std::string>{"Speak now. ", "Who goes \"there?\" ", "Nobody!\n\n",
                                             "A second paragraph, of\ntwo lines. ",
                                             "And 3.14 more\n\n\n", "last"}));
  EXPECT_EQ(paragraphs, (std::vector<int64_t>{0, 0, 0, 1, 1, 2}));
  for (const int64_t longest : {1, 3, 7}) {
    int64_t at = 0;
    for (const Sentence& s : split_sentences(byte_span(kText), longest)) {
      EXPECT_EQ(s.begin, at);
      EXPECT_LE(s.length, longest);
      at += s.length;
    }
    EXPECT_EQ(at, static_cast<int64_t>(kText.size()));
  }
  EXPECT_TRUE(split_sentences(std::span<const uint8_t>{}).empty());
}

TEST(Structured, DotsOfTitlesAndInitialsEndNothing) {
  const auto parts_of = [](const std::string& text) {
    std::vector<std::string> parts;
    for (const Sentence& s : split_sentences(byte_span(text))) {
      parts.push_back(text.substr(static_cast<size_t>(s.begin), static_cast<size_t>(s.length)));
    }
    return parts;
  };
  using Parts = std::vector<std::string>;
  EXPECT_EQ(parts_of("Mr. J. Smith met Dr. Who. He ran."),
            (Parts{"Mr. J. Smith met Dr. Who. ", "He ran."}));
  EXPECT_EQ(parts_of("It was approx. five. Six came. So did I. We left."),
            (Parts{"It was approx. five. ", "Six came. ", "So did I. ", "We left."}));
  EXPECT_EQ(parts_of("Here is Mr.\n\nNext. \"A.\" Then"),
            (Parts{"Here is Mr.\n\n", "Next. ", "\"A.\" ", "Then"}));
}

TEST(Structured, WindowsHoldTheirHierarchy) {
  const StructuredOptions o{
      .n_long = 64, .paragraphs = 2, .sentences = 4, .word_share = 0, .sentence_share = 0};
  const StructuredBatches batches(byte_span(kText), 2, o);
  std::string read;
  for (int64_t i = 0; i < batches.size(); ++i) {
    const StructuredBatch b = batches.in_order(i);
    const auto tokens = b.tokens.to_vector<int32_t>(), owner = b.owner.to_vector<int32_t>(),
               example = b.example.to_vector<int32_t>(), level = b.level.to_vector<int32_t>(),
               parent = b.parent.to_vector<int32_t>();
    EXPECT_EQ(b.places.numel(), 0);
    for (size_t j = 0; j < tokens.size(); ++j) {
      EXPECT_EQ(example[j] == 0, owner[j] >= 0);
      if (example[j] != 0) continue;
      read += static_cast<char>(tokens[j]);
      const size_t row = j / 64 * 7;  // 1 + 2 + 4 globals
      const auto sentence = row + static_cast<size_t>(owner[j]);
      ASSERT_EQ(level[sentence], 2);
      const auto paragraph = row + static_cast<size_t>(parent[sentence]);
      ASSERT_EQ(level[paragraph], 1);
      EXPECT_EQ(parent[paragraph], 0);
      EXPECT_EQ(level[row], 0);
    }
  }
  EXPECT_EQ(read, kText);
}

TEST(Structured, BytesBelongToParagraphsAndTheDocumentToo) {
  StructuredOptions o{.n_long = 64, .paragraphs = 2, .sentences = 4};
  const StructuredBatches alone(byte_span(kText), 2, o);
  for (const int64_t owners : {2, 3}) {
    o.owners = owners;
    const StructuredBatches batches(byte_span(kText), 2, o);
    for (int64_t i = 0; i < batches.size(); ++i) {
      const StructuredBatch b = batches.in_order(i);
      const auto of = b.owner.to_vector<int32_t>(), parent = b.parent.to_vector<int32_t>(),
                 sentence = alone.in_order(i).owner.to_vector<int32_t>();
      ASSERT_EQ(of.size(), sentence.size() * static_cast<size_t>(owners));
      for (size_t j = 0; j < sentence.size(); ++j) {
        int32_t expected = sentence[j];
        for (int64_t n = 0; n < owners; ++n) {
          EXPECT_EQ(of[j * static_cast<size_t>(owners) + static_cast<size_t>(n)], expected) << j;
          if (expected >= 0) expected = parent[j / 64 * 7 + static_cast<size_t>(expected)];
        }
      }
    }
  }
  o.owners = 4;
  EXPECT_THROW(StructuredBatches(byte_span(kText), 2, o), ValueError);
}

TEST(Etc, WholeWordsAndWholeSentencesAreHidden) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += i % 9 == 8 ? "stop. " : i % 40 == 39 ? "end.\n\n" : "word ";
  const StructuredOptions o{.n_long = 512, .paragraphs = 7, .sentences = 24, .seed = 3};
  const StructuredBatches batches(byte_span(text), 4, o);
  int64_t chosen = 0, masked = 0, kept = 0, open = 0, hidden = 0, sentences = 0;
  for (int64_t step = 0; step < 40; ++step) {
    const StructuredBatch b = batches.at(step);
    const auto tokens = b.tokens.to_vector<int32_t>(), targets = b.targets.to_vector<int32_t>(),
               owner = b.owner.to_vector<int32_t>(), alone = b.hidden.to_vector<int32_t>(),
               alone_example = b.hidden_example.to_vector<int32_t>(),
               level = b.level.to_vector<int32_t>();
    const auto places = b.places.to_vector<int64_t>();
    const std::set<int64_t> whole(places.begin(), places.end());
    for (const int32_t l : level) sentences += l == 2;
    hidden += static_cast<int64_t>(places.size());
    std::map<int64_t, int64_t> lengths;
    for (size_t j = 0; j < tokens.size(); ++j) {
      if (owner[j] < 0) {
        EXPECT_EQ(targets[j], ignored_target);
        continue;
      }
      const int64_t place = static_cast<int64_t>(j / 512) * o.globals() + owner[j];
      if (whole.contains(place)) {  // a masked sentence: all its bytes, no targets
        EXPECT_EQ(tokens[j], 256);
        EXPECT_EQ(targets[j], ignored_target);
        ++lengths[place];
        continue;
      }
      ++open;
      if (targets[j] == ignored_target) continue;
      ++chosen;
      masked += tokens[j] == 256;
      kept += tokens[j] == targets[j];
      // If a letter is a target, so is the letter before it in the same word.
      const auto letter = [&](size_t i) {
        const int32_t c = targets[i] == ignored_target ? tokens[i] : targets[i];
        return c >= 'a' && c <= 'z';
      };
      if (letter(j) && j % 512 > 0 && owner[j - 1] == owner[j] && letter(j - 1)) {
        EXPECT_NE(targets[j - 1], ignored_target) << j;
      }
    }
    const size_t width = places.empty() ? 1 : alone.size() / places.size();
    for (size_t p = 0; p < places.size(); ++p) {
      int64_t n = 0;
      for (size_t j = 0; j < width; ++j) {
        if (alone_example[p * width + j] < 0) continue;
        EXPECT_NE(alone[p * width + j], 256);
        ++n;
      }
      EXPECT_EQ(n, lengths[places[p]]);
    }
  }
  const auto share = [](int64_t a, int64_t b) {
    return static_cast<double>(a) / static_cast<double>(b);
  };
  EXPECT_NEAR(share(chosen, open), 0.15, 0.01);
  EXPECT_NEAR(share(masked, chosen), 0.8, 0.03);
  EXPECT_NEAR(share(kept, chosen), 0.1, 0.03);
  EXPECT_NEAR(share(hidden, sentences), 0.1, 0.03);
}

TEST(Structured, DrawsFromSeedAndStep) {
  const auto tokens = [](uint64_t seed, int64_t step) {
    return StructuredBatches(byte_span(kText), 3, {.n_long = 64, .seed = seed})
        .at(step)
        .tokens.to_vector<int32_t>();
  };
  EXPECT_EQ(tokens(1, 5), tokens(1, 5));
  EXPECT_NE(tokens(1, 5), tokens(1, 6));
  EXPECT_NE(tokens(1, 5), tokens(2, 5));
  EXPECT_THROW(StructuredBatches({}, 1), ValueError);
  EXPECT_THROW(StructuredBatches(byte_span(kText), 0), ValueError);
  EXPECT_THROW(StructuredBatches(byte_span(kText), 1, {.word_share = 2}), ValueError);
}

}  // namespace
}  // namespace longspan
