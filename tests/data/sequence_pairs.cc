#include "data/sequence_pairs.h"

#include <set>

#include "core/error.h"
#include "data/gap_sentences.h"
#include "nn/objective.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

const std::unique_ptr<Tokenizer> kByteTokenizer = byte_tokenizer();

Document document() {
  return {.article = {"a b .", "a b c d .", "x y .", "a b c ."}, .summary = {"a b .", "c d ."}};
}

std::string text_of_ids(std::span<const int32_t> ids) {
  std::string text;
  for (const int32_t id : ids) text += id < 256 ? std::string(1, static_cast<char>(id)) : "|";
  return text;
}

TEST(SequencePairs, HaveTheIdsThatTheTokenizerLacksBehindItsVocabulary) {
  const SequenceIds ids(*kByteTokenizer);
  EXPECT_EQ(ids.vocabulary, 259);
  EXPECT_EQ((std::set<int32_t>{ids.begin, ids.end, ids.mask}), (std::set<int32_t>{256, 257, 258}));
}

TEST(SequencePairs, AreAnArticleAndItsSummary) {
  const SequenceIds ids(*kByteTokenizer);
  const SequencePair pair = summary_pair(document(), *kByteTokenizer, {});
  EXPECT_EQ(text_of_ids(pair.source), "|a b . a b c d . x y . a b c .|");
  EXPECT_EQ(pair.source.front(), ids.begin);
  EXPECT_EQ(pair.source.back(), ids.end);
  EXPECT_EQ(text_of_ids(pair.target), "a b .\nc d .|");
  EXPECT_EQ(pair.target.back(), ids.end);
  EXPECT_EQ(pair.bytes, 11);
  EXPECT_EQ(summary_sentences(summary_text(document())), document().summary);
  EXPECT_EQ(summary_sentences("\n\na\n"), std::vector<std::string>{"a"});

  const SequencePair cut = summary_pair(document(), *kByteTokenizer, {.source = 5, .target = 4});
  EXPECT_EQ(text_of_ids(cut.source), "|a b|");
  EXPECT_EQ(text_of_ids(cut.target), "a b|");
  EXPECT_EQ(cut.bytes, 3);
  const SequencePair least = summary_pair(document(), *kByteTokenizer, {.source = 1, .target = 1});
  EXPECT_EQ(least.source, std::vector<int32_t>{ids.begin});
  EXPECT_EQ(least.target, std::vector<int32_t>{ids.end});
  EXPECT_EQ(least.bytes, 0);
  EXPECT_THROW(summary_pair(document(), *kByteTokenizer, {.source = 0, .target = 1}), ValueError);
  EXPECT_THROW(summary_pair(document(), *kByteTokenizer, {.source = 1, .target = 0}), ValueError);

  const SequencePair empty = summary_pair({}, *kByteTokenizer, {});
  EXPECT_EQ(empty.source, (std::vector<int32_t>{ids.begin, ids.end}));
  EXPECT_EQ(empty.target, std::vector<int32_t>{ids.end});
}

TEST(SequencePairs, AreReadBackUpToTheirEnd) {
  const SequenceIds ids(*kByteTokenizer);
  const std::vector<int64_t> said = {'a', ids.mask, 300, 'b', ids.begin, '\n', 'c', ids.end, 'd'};
  EXPECT_EQ(written_text(said, *kByteTokenizer, ids), "ab\nc");
  EXPECT_EQ(written_text(std::vector<int64_t>{'x'}, *kByteTokenizer, ids), "x");
}

TEST(SequencePairs, LeaveGapSentencesOut) {
  const SequenceIds ids(*kByteTokenizer);
  // All four sentences fit. The two that overlap most with the rest are left out.
  const auto whole = gap_pairs(document(), 0.5, *kByteTokenizer, {.source = 100, .target = 100});
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(gap_sentences(document().article, 0.5), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(text_of_ids(whole[0].source), "|a b .| x y .||");
  EXPECT_EQ(whole[0].source[6], ids.mask);
  EXPECT_EQ(text_of_ids(whole[0].target), "a b c d .\na b c .|");
  EXPECT_EQ(whole[0].bytes, 17);

  // Two runs of whole sentences, with a space before each sentence: 6 + 10, 6 + 8.
  const auto runs = gap_pairs(document(), 0.5, *kByteTokenizer, {.source = 18, .target = 100});
  ASSERT_EQ(runs.size(), 2u);
  for (const SequencePair& pair : runs) {
    EXPECT_LE(pair.source.size(), 18u);
    EXPECT_EQ(std::count(pair.source.begin(), pair.source.end(), ids.mask), 1);
  }
  EXPECT_EQ(gap_pairs(document(), 0.5, *kByteTokenizer, {.source = 5, .target = 9}).size(), 0u)
      << "no run has two sentences";
}

TEST(SequencePairs, ArePaddedWhereNothingCounts) {
  const SequenceIds ids(*kByteTokenizer);
  const SequencePair a{.source = {256, 7, 257}, .target = {8, 9, 257}, .bytes = 2};
  const SequencePair b{.source = {256, 257}, .target = {257}, .bytes = 0};
  const SequencePair* rows[] = {&a, &b};
  const SequenceBatch batch = stack(rows, ids);
  EXPECT_EQ(batch.lengths.to_vector<int64_t>(), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(batch.source.to_vector<int32_t>(), (std::vector<int32_t>{256, 7, 257, 256, 257, 257}));
  EXPECT_EQ(batch.tokens.to_vector<int32_t>(), (std::vector<int32_t>{257, 8, 9, 257, 257, 257}));
  EXPECT_EQ(batch.targets.to_vector<int32_t>(),
            (std::vector<int32_t>{8, 9, 257, 257, ignored_target, ignored_target}));
  EXPECT_EQ(batch.count, 9);
  EXPECT_THROW(stack(std::span<const SequencePair* const>{}, ids), ShapeError);
}

TEST(SequencePairs, ComeOnceAnEpoch) {
  const SequenceIds ids(*kByteTokenizer);
  std::vector<SequencePair> pairs;
  for (int32_t i = 0; i < 7; ++i) pairs.push_back({{i}, {i}, 1});
  const SequenceBatches batches(pairs, 3, ids, 5), again(pairs, 3, ids, 5);
  std::vector<int32_t> seen;
  for (int64_t step = 0; step < 7; ++step) {
    const std::vector<int32_t> rows = batches.at(step).source.to_vector<int32_t>();
    EXPECT_EQ(rows, again.at(step).source.to_vector<int32_t>());
    seen.insert(seen.end(), rows.begin(), rows.end());
  }
  std::vector<std::vector<int32_t>> epochs;
  for (size_t e = 0; e < 3; ++e) {
    const auto begin = seen.begin() + static_cast<std::ptrdiff_t>(7 * e);
    epochs.emplace_back(begin, begin + 7);
    EXPECT_EQ(std::set<int32_t>(begin, begin + 7).size(), 7u);
  }
  EXPECT_FALSE(epochs[0] == epochs[1] && epochs[1] == epochs[2]) << "each in an order of its own";
  EXPECT_THROW(SequenceBatches({}, 1, ids, 1), ValueError);
  EXPECT_THROW(SequenceBatches(pairs, 0, ids, 1), ValueError);
}

}  // namespace
}  // namespace longspan
