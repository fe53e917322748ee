#include "data/metrics.h"

#include <cmath>

#include "core/error.h"
#include "core/generator.h"
#include "core/memory.h"
#include "data/io/json.h"
#include "tests/data/json_lists.h"
#include "tests/harness/scratch.h"
#include "train/roc_areas.h"

namespace longspan {
namespace {

using test::contains;
using test::message_of;
using test::numbers_of;
using test::texts_of;

const Json& metrics_golden() {
  static const Json json =
      parse_json(test::read_bytes(LONGSPAN_SOURCE_DIR "/tests/oracles/golden/text/metrics.json"));
  return json;
}

std::string joined(const std::vector<std::string>& sentences) {
  std::string text;
  for (const std::string& s : sentences) text += (text.empty() ? "" : " ") + s;
  return text;
}

TEST(TasksAndData, RougeOfTheReference) {
  RougeScores mean;
  double sum = 0;
  for (const Json& c : metrics_golden()["rouge"].array()) {
    const std::vector<std::string> summary = texts_of(c["summary"]),
                                   reference = texts_of(c["reference"]);
    const auto expect = [&](const char* name, const Overlap& ours) {
      const std::vector<double> expected = numbers_of<double>(c[name]);
      EXPECT_NEAR(ours.precision, expected[0], 1e-12) << name << ' ' << joined(summary);
      EXPECT_NEAR(ours.recall, expected[1], 1e-12) << name << ' ' << joined(summary);
    };
    expect("rouge1", rouge_n(joined(summary), joined(reference), 1));
    expect("rouge2", rouge_n(joined(summary), joined(reference), 2));
    expect("rougeL", rouge_l(joined(summary), joined(reference)));
    expect("rougeLsum", rouge_lsum(summary, reference));
    mean.add(summary, reference);
    sum += rouge_n(joined(summary), joined(reference), 2).f1();
  }
  EXPECT_EQ(mean.documents, 15);
  EXPECT_NEAR(mean.rouge2, sum / 15, 1e-12);
}

// Of the common subsequences "alpha" and "beta" of one token, the first counts, twice.
TEST(Rouge, TakesTheCommonSubsequenceOfTheReference) {
  const Overlap o = rouge_lsum(std::vector<std::string>{"beta alpha", "alpha"},
                               std::vector<std::string>{"alpha beta"});
  EXPECT_DOUBLE_EQ(o.recall, 1.0 / 2);
  EXPECT_DOUBLE_EQ(o.precision, 1.0 / 3);
}

TEST(Rouge, Tokens) {
  EXPECT_EQ(rouge_tokens("The cat-sat 2x, caf\xC3\xA9!"),
            (std::vector<std::string>{"the", "cat", "sat", "2x", "caf"}));
  EXPECT_TRUE(rouge_tokens("").empty());
  EXPECT_EQ(rouge_n("", "a", 1).f1(), 0);
  EXPECT_EQ(rouge_n("a", "a", 2).f1(), 0);
  EXPECT_EQ(rouge_n("a b", "b a", 1).f1(), 1);
  EXPECT_THROW(rouge_n("a", "a", 0), ValueError);
}

TEST(TasksAndData, AnswersOfSquad) {
  EXPECT_NEAR(answer_overlap("the cat sat", std::vector<std::string>{"cat sat down"}).f1(), 0.8,
              1e-15);
  EXPECT_EQ(normal_answer("The  U.S.A.'s \"An\" apple, a_b"), "usas apple ab");
  EXPECT_EQ(normal_answer("\xC3\x89t\xC3\xA9 the\xE2\x80\x94"
                          "a theatre"),
            "\xC3\xA9t\xC3\xA9 \xE2\x80\x94 theatre");
  EXPECT_TRUE(answer_matches("the Answer.", std::vector<std::string>{"other", "answer"}));
  EXPECT_FALSE(answer_matches("answers", std::vector<std::string>{"answer"}));
  // A word counts as often as it occurs in both texts. The best reference counts.
  const Overlap twice =
      answer_overlap("no no no yes", std::vector<std::string>{"maybe", "no yes no"});
  EXPECT_EQ(twice.precision, 0.75);
  EXPECT_EQ(twice.recall, 1);
  EXPECT_EQ(answer_overlap("", std::vector<std::string>{"the"}).f1(), 1);
  EXPECT_EQ(answer_overlap("a", std::vector<std::string>{"word"}).f1(), 0);
  EXPECT_EQ(answer_overlap("word", std::vector<std::string>{}).f1(), 0);
  const Overlap both = joint({0.5, 1}, {0.5, 0.25});
  EXPECT_EQ(both.precision, 0.25);
  EXPECT_EQ(both.recall, 0.25);
}

TEST(ClassMeans, AreMeansOfEachClass) {
  ClassMeans means(3);
  means.add(std::vector<float>{1, 2, 4, 8}, std::vector<int32_t>{0, 2, 0, 7});
  means.add(std::vector<float>{0}, std::vector<int32_t>{0});
  EXPECT_DOUBLE_EQ(means[0], 5.0 / 3);
  EXPECT_TRUE(std::isnan(means[1]));
  EXPECT_DOUBLE_EQ(means[2], 5);  // larger ones count as the last
  EXPECT_THROW(means.add(std::vector<float>{1}, std::vector<int32_t>{}), ValueError);
  EXPECT_THROW(means.add(std::vector<float>{1}, std::vector<int32_t>{-1}), ValueError);
  EXPECT_THROW(means[3], ValueError);
  EXPECT_THROW(ClassMeans(0), ValueError);
}

TEST(TasksAndData, CorrelationsOfTheReferences) {
  for (const Json& c : metrics_golden()["numbers"].array()) {
    const auto x = numbers_of<double>(c["x"]), y = numbers_of<double>(c["y"]);
    const auto labels = numbers_of<int32_t>(c["labels"]);
    const auto predictions = numbers_of<int32_t>(c["predictions"]);
    EXPECT_NEAR(pearson(x, y), c["pearson"].number(), 1e-12);
    EXPECT_NEAR(spearman(x, y), c["spearman"].number(), 1e-12);
    EXPECT_NEAR(*roc_auc(numbers_of<double>(c["scores"]), labels), c["auc"].number(), 1e-12);
    EXPECT_NEAR(matthews(predictions, labels), c["matthews"].number(), 1e-12);
    EXPECT_NEAR(accuracy(predictions, labels), c["accuracy"].number(), 1e-12);
    EXPECT_NEAR(binary_overlap(predictions, labels).f1(), c["f1"].number(), 1e-12);
  }
}

TEST(TasksAndData, AreaUnderTheCurve) {
  const std::vector<double> scores = {.1, .4, .35, .8}, same = {1, 1, 1, 1};
  const std::vector<int32_t> labels = {0, 0, 1, 1}, ones = {1, 1, 1, 1};
  EXPECT_EQ(roc_auc(scores, labels), 0.75);
  EXPECT_EQ(roc_auc(same, labels), 0.5);
  EXPECT_EQ(roc_auc(scores, ones), std::nullopt);
  EXPECT_EQ(matthews(ones, labels), 0);
  EXPECT_EQ(pearson(same, scores), 0);
  EXPECT_DOUBLE_EQ(spearman(scores, scores), 1);
  EXPECT_EQ(binary_overlap(std::vector<int32_t>{0}, std::vector<int32_t>{1}).f1(), 0);
}

TEST(TasksAndData, BleuOfTheReference) {
  for (const Json& c : metrics_golden()["bleu"].array()) {
    EXPECT_NEAR(bleu(texts_of(c["translations"]), texts_of(c["references"])), c["bleu"].number(),
                1e-9);
  }
  const std::vector<std::string> same = {"a b c d e", "f g h i."};
  EXPECT_NEAR(bleu(same, same), 100, 1e-9);
  EXPECT_EQ(bleu_tokens("3,000.5 a.b,c $5-x"),
            (std::vector<std::string>{"3,000.5", "a", ".", "b", ",", "c", "$", "5", "-", "x"}));
}

TEST(Metrics, RefuseWhatDoesNotMatch) {
  const std::vector<int32_t> one = {1}, two = {1, 0}, three = {3};
  const std::vector<double> x = {1}, xy = {1, 2};
  EXPECT_TRUE(contains(message_of<ValueError>([&] { accuracy(one, two); }),
                       "got 1 predictions and 2 labels"));
  EXPECT_THROW(accuracy({}, {}), ValueError);
  EXPECT_THROW(pearson(x, xy), ValueError);
  EXPECT_THROW(spearman({}, {}), ValueError);
  EXPECT_THROW(roc_auc(x, two), ValueError);
  EXPECT_TRUE(contains(message_of<ValueError>([&] { roc_auc(x, three); }), "expected 0 or 1"));
  EXPECT_THROW(matthews(three, one), ValueError);
  EXPECT_THROW(bleu(std::vector<std::string>{"a"}, std::vector<std::string>{}), ValueError);
}

TEST(TasksAndData, MedianAreaUnderTheCurve) {
  // Three answers: 0.75 as in AreaUnderTheCurve, 1, and one with all labels equal.
  const std::vector<double> scores = {.1, .1, 5, .4, .2, 5, .35, .3, 5, .8, .9, 5};
  const std::vector<int32_t> labels = {0, 0, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1};
  for (const int64_t most : {int64_t{100}, int64_t{0}, int64_t{6}}) {
    RocAreas areas(3, most);
    const auto half = std::span(scores).first(6);
    areas.add(half, std::span(labels).first(6));
    areas.add(std::span(scores).subspan(6), std::span(labels).subspan(6));
    const MedianAuc m = median_auc(areas.areas());
    EXPECT_EQ(m.answers, 2);
    EXPECT_EQ(m.skipped, 1);
    if (most == 100) {
      EXPECT_DOUBLE_EQ(m.median, (0.75 + 1) / 2);
    }
    RocAreas at_once(3, most);
    at_once.add(scores, labels);
    EXPECT_DOUBLE_EQ(median_auc(at_once.areas()).median, (0.75 + 1) / 2);
  }
  EXPECT_TRUE(std::isnan(median_auc(RocAreas(2).areas()).median));
  EXPECT_THROW(RocAreas(0), ValueError);
  RocAreas areas(3);
  EXPECT_THROW(areas.add(std::span(scores).first(4), std::span(labels).first(4)), ValueError);
  EXPECT_THROW(areas.add(scores, std::span(labels).first(3)), ValueError);
  EXPECT_THROW(areas.add(std::vector<double>{1, 2, 3}, std::vector<int32_t>{0, 1, 2}), ValueError);
}

// Adds ten times as many scores as are stored. Memory stays constant, and the areas are those of
// all scores.
TEST(RocAreas, AreBoundedInMemory) {
  constexpr int64_t answers = 7, rows = 1000, batches = 100, most = 10 * rows * answers;
  const Generator gen{3};
  std::vector<std::vector<double>> scores(answers);
  std::vector<std::vector<int32_t>> labels(answers);
  RocAreas areas(answers, most);
  const int64_t before = memory_tracker().live()[Category::data];
  memory_tracker().reset_peak();
  for (int64_t b = 0; b < batches; ++b) {
    std::vector<double> z;
    std::vector<int32_t> y;
    for (int64_t i = 0; i < rows * answers; ++i) {
      const auto a = static_cast<size_t>(i % answers);
      const int64_t at = b * rows * answers + i;
      y.push_back(to_uniform(philox_word(gen.fork("y").key, at)) < 0.1 ? 1 : 0);
      // Scores with few distinct values, nearly equal scores, and scores far apart.
      const double u = to_uniform(philox_word(gen.fork("z").key, at)) + 0.3 * y.back();
      z.push_back(double{static_cast<float>(a == 0   ? std::floor(4 * u)
                                            : a == 1 ? 1e-3 * u - 5
                                                     : 10.0 * u * static_cast<double>(a))});
      scores[a].push_back(z.back());
      labels[a].push_back(y.back());
    }
    areas.add(z, y);
  }
  EXPECT_LT(memory_tracker().peak()[Category::data] - before,
            most * 6 + answers * 4096 * (4 + 2 * 8));
  const std::vector<std::optional<double>> found = areas.areas();
  for (size_t a = 0; a < answers; ++a) EXPECT_NEAR(*found[a], *roc_auc(scores[a], labels[a]), 1e-5);
  EXPECT_DOUBLE_EQ(*found[0], *roc_auc(scores[0], labels[0]));  // exact for few distinct values
}

}  // namespace
}  // namespace longspan
