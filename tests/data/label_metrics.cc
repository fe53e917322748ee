#include <cmath>
#include <cstdlib>

#include "core/error.h"
#include "data/io/json.h"
#include "data/scores/classes.h"
#include "data/scores/entities.h"
#include "data/scores/squad.h"
#include "data/stemmer.h"
#include "tests/data/json_lists.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::message_of;
using test::numbers_of;
using test::texts_of;

/// What the packages say; tests/long/metrics.py gives a file with more cases.
const Json& label_metrics_golden() {
  static const Json json = [] {
    const char* path = std::getenv("LONGSPAN_TEST_METRICS");
    return parse_json(test::read_bytes(path != nullptr ? path
                                                       : LONGSPAN_SOURCE_DIR
                                           "/tests/oracles/golden/text/label_metrics.json"));
  }();
  return json;
}

Average average_named(const std::string& name) {
  return name == "micro"      ? Average::micro
         : name == "macro"    ? Average::macro
         : name == "weighted" ? Average::weighted
                              : Average::samples;
}

void expect_scores(const ClassScores& ours, const Json& expected, const std::string& of) {
  const std::vector<double> e = numbers_of<double>(expected);
  EXPECT_NEAR(ours.precision, e[0], 1e-12) << of;
  EXPECT_NEAR(ours.recall, e[1], 1e-12) << of;
  EXPECT_NEAR(ours.f1, e[2], 1e-12) << of;
}

TEST(LabelMetrics, ClassesOfScikitLearn) {
  for (const Json& c : label_metrics_golden()["classes"].array()) {
    const std::string text = to_string(c);
    ConfusionMatrix m(c["classes"].integer());
    m.add(numbers_of<int32_t>(c["predictions"]), numbers_of<int32_t>(c["labels"]));
    EXPECT_NEAR(m.accuracy(), c["accuracy"].number(), 1e-12) << text;
    EXPECT_NEAR(m.matthews(), c["matthews"].number(), 1e-12) << text;
    for (const JsonMember& a : c["averages"].object()) {
      expect_scores(m.average(average_named(a.name)), a.value, a.name + text);
    }
    for (int32_t i = 0; i < m.classes(); ++i) {
      EXPECT_NEAR(m.of(i).f1(), c["f1"].array()[static_cast<size_t>(i)].number(), 1e-12) << text;
      for (int32_t j = 0; j < m.classes(); ++j) {
        const Json& row = c["confusion"].array()[static_cast<size_t>(i)];
        EXPECT_EQ(m(i, j), row.array()[static_cast<size_t>(j)].integer()) << text;
      }
    }
    if (const Json* binary = c.find("binary")) {
      EXPECT_NEAR(m.of(1).f1(), binary->number(), 1e-12) << text;
    }
    const std::vector<float> weights = balanced_weights(numbers_of<int64_t>(c["samples"]));
    const std::vector<float> expected = numbers_of<float>(c["weights"]);
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(weights[i], expected[i], 1e-5) << text;
  }
}

TEST(LabelMetrics, SeveralLabelsOfScikitLearn) {
  for (const Json& c : label_metrics_golden()["several"].array()) {
    const std::string text = to_string(c);
    const std::vector<float> thresholds = numbers_of<float>(c["thresholds"]);
    LabelCounts counts(std::ssize(c["labels"].array()[0].array()));
    for (size_t i = 0; i < c["labels"].array().size(); ++i) {
      counts.add(numbers_of<float>(c["scores"].array()[i]), thresholds,
                 numbers_of<int32_t>(c["labels"].array()[i]));
    }
    EXPECT_NEAR(counts.accuracy(), c["accuracy"].number(), 1e-12) << text;
    for (const JsonMember& a : c["averages"].object()) {
      expect_scores(counts.average(average_named(a.name)), a.value, a.name + text);
    }
    for (size_t i = 0; i < c["f1"].array().size(); ++i) {
      EXPECT_NEAR(counts.of(static_cast<int64_t>(i)).f1(), c["f1"].array()[i].number(), 1e-12);
    }
  }
}

TEST(LabelMetrics, EntitiesOfSeqeval) {
  for (const Json& c : label_metrics_golden()["entities"].array()) {
    const std::string text = to_string(c);
    EntityScores scores;
    for (size_t i = 0; i < c["tags"].array().size(); ++i) {
      scores.add(texts_of(c["predictions"].array()[i]), texts_of(c["tags"].array()[i]));
    }
    EXPECT_NEAR(scores.accuracy(), c["accuracy"].number(), 1e-12) << text;
    expect_scores(scores.overall().scores(), c["overall"], text);
    EXPECT_EQ(scores.by_type().size(), c["types"].object().size()) << text;
    for (const JsonMember& type : c["types"].object()) {
      const auto found = scores.by_type().find(type.name);
      ASSERT_NE(found, scores.by_type().end()) << type.name << text;
      expect_scores(found->second.scores(), type.value, type.name + text);
      EXPECT_EQ(found->second.labelled, type.value.array()[3].number()) << text;
    }
    for (const JsonMember& a : c["averages"].object()) {
      expect_scores(scores.average(average_named(a.name)), a.value, a.name + text);
    }
  }
}

TEST(LabelMetrics, RougeWithStems) {
  RougeScores means;
  means.stem = Stem::porter;
  double sum = 0;
  for (const Json& c : label_metrics_golden()["summaries"].array()) {
    const std::string summary = c["summary"].string(), reference = c["reference"].string();
    const std::vector<std::string> ours = rouge_sentences(summary),
                                   right = rouge_sentences(reference);
    for (const Stem stem : {Stem::none, Stem::porter}) {
      const auto expect = [&](const std::string& name, const Overlap& o) {
        expect_scores({o.precision, o.recall, o.f1()},
                      c[name + (stem == Stem::porter ? "_stem" : "")], to_string(c));
      };
      expect("rouge1", rouge_n(summary, reference, 1, stem));
      expect("rouge2", rouge_n(summary, reference, 2, stem));
      expect("rougeL", rouge_l(summary, reference, stem));
      expect("rougeLsum", rouge_lsum(ours, right, stem));
    }
    means.add(ours, right);
    sum += numbers_of<double>(c["rougeLsum_stem"])[2];
  }
  EXPECT_NEAR(means.rouge_lsum, sum / static_cast<double>(means.documents), 1e-12);
}

TEST(LabelMetrics, SquadOfItsEvaluation) {
  for (const Json& c : label_metrics_golden()["squad"].array()) {
    const std::string text = to_string(c);
    SquadScores scores;
    for (size_t i = 0; i < c["answers"].array().size(); ++i) {
      scores.add(c["answers"].array()[i].string(), texts_of(c["references"].array()[i]),
                 c["scores"].array()[i].number());
    }
    const SquadFigures f = scores.figures(c["threshold"].number());
    const Json& e = c["figures"];
    const auto expect = [&](const std::string& name, const std::optional<AnswerFigures>& ours) {
      ASSERT_EQ(ours.has_value(), e.find(name + "exact") != nullptr) << name << text;
      if (!ours) return;
      EXPECT_NEAR(ours->exact, e[name + "exact"].number(), 1e-10) << name << text;
      EXPECT_NEAR(ours->f1, e[name + "f1"].number(), 1e-10) << name << text;
      EXPECT_EQ(static_cast<double>(ours->total), e[name + "total"].number()) << name << text;
    };
    expect("", f.all);
    expect("HasAns_", f.has_answer);
    expect("NoAns_", f.no_answer);
    EXPECT_NEAR(f.best_exact, e["best_exact"].number(), 1e-10) << text;
    EXPECT_NEAR(f.best_f1, e["best_f1"].number(), 1e-10) << text;
    EXPECT_EQ(f.best_exact_threshold, e["best_exact_thresh"].number()) << text;
    EXPECT_EQ(f.best_f1_threshold, e["best_f1_thresh"].number()) << text;
  }
}

/// Pieces of words that are separated by single spaces.
std::vector<Piece> pieces_of(const std::vector<std::string>& words, std::string& text) {
  std::vector<Piece> pieces;
  for (const std::string& word : words) {
    if (!text.empty()) text += ' ';
    const auto begin = std::ssize(text);
    text += word;
    pieces.push_back({.id = 3, .begin = begin, .end = std::ssize(text)});
  }
  return pieces;
}

std::vector<std::vector<float>> rows(const Json& array) {
  std::vector<std::vector<float>> all;
  for (const Json& row : array.array()) all.push_back(numbers_of<float>(row));
  return all;
}

TEST(LabelMetrics, AnswersOfTheLogits) {
  for (const Json& c : label_metrics_golden()["answers"].array()) {
    const std::string text = to_string(c);
    std::string context;
    const std::vector<Piece> pieces = pieces_of(texts_of(c["words"]), context);
    const std::vector<Piece> question(static_cast<size_t>(c["asked"].integer()), Piece{.id = 4});
    SpecialIds special;
    special.begin = 1;
    special.separator = 2;
    const std::vector<SpanWindow> windows =
        span_windows(question, pieces, nullptr, special,
                     {.length = c["length"].integer(), .stride = c["stride"].integer()});
    const FoundAnswer found =
        find_answer(context, windows, pieces, rows(c["starts"]), rows(c["ends"]),
                    {.candidates = c["candidates"].integer(),
                     .longest = c["longest"].integer(),
                     .no_answer = c["no_answer"].boolean(),
                     .threshold = c["threshold"].number()});
    EXPECT_EQ(found.text, c["text"].string()) << text;
    EXPECT_NEAR(found.null_difference, c["difference"].number(), 1e-12) << text;
    const Json::Array& expected = c["found"].array();
    ASSERT_EQ(found.candidates.size(), expected.size()) << text;
    for (size_t i = 0; i < expected.size(); ++i) {
      const Json::Array& e = expected[i].array();
      EXPECT_EQ(found.candidates[i].text, e[0].string()) << i << text;
      EXPECT_EQ(found.candidates[i].start, e[1].number()) << i << text;
      EXPECT_EQ(found.candidates[i].end, e[2].number()) << i << text;
      EXPECT_NEAR(found.candidates[i].probability, e[3].number(), 1e-12) << i << text;
    }
  }
}

TEST(LabelMetrics, WordsHaveStems) {
  const auto stem = [](const char* word) { return porter_stem(word); };
  EXPECT_EQ(stem("dies"), "die");
  EXPECT_EQ(stem("flies"), "fli");
  EXPECT_EQ(stem("enjoy"), "enjoy");
  EXPECT_EQ(stem("relational"), "relat");
  EXPECT_EQ(stem("hopping"), "hop");
  EXPECT_EQ(stem("filing"), "file");
  EXPECT_EQ(stem("skies"), "sky");
  EXPECT_EQ(stem("aging"), "age");
  EXPECT_EQ(stem("relationally"), "relat");
  EXPECT_EQ(stem("is"), "is");
  EXPECT_EQ(stem(""), "");
  EXPECT_EQ(stem("yyyy"), "yyyi");
}

TEST(LabelMetrics, RefuseWhatTheyCannotCount) {
  EXPECT_THROW(ConfusionMatrix(0), ValueError);
  EXPECT_THROW(ConfusionMatrix(40'000), ValueError);
  ConfusionMatrix m(2);
  EXPECT_TRUE(std::isnan(m.accuracy()));
  EXPECT_EQ(m.matthews(), 0);
  EXPECT_EQ(m.average(Average::macro).f1, 0);
  EXPECT_THROW(m.average(Average::samples), ValueError);
  EXPECT_TRUE(contains(message_of<ValueError>([&] { m.add(2, 0); }),
                       "got the prediction 2 and the label 0; expected 0 to 1"));
  EXPECT_THROW(m.add(0, -1), ValueError);
  EXPECT_THROW(m.of(2), ValueError);
  EXPECT_THROW(m.add(std::vector<int32_t>{0}, std::vector<int32_t>{}), ValueError);
  EXPECT_THROW(LabelCounts(0), ValueError);
  LabelCounts several(2);
  const std::vector<int32_t> two = {0, 1}, one = {1}, wrong = {0, 2};
  const std::vector<float> scores = {0, 1}, three = {0, 0, 0};
  EXPECT_TRUE(std::isnan(several.accuracy()));
  EXPECT_THROW(several.add(two, one), ValueError);
  EXPECT_THROW(several.add(two, wrong), ValueError);
  EXPECT_THROW(several.add(scores, three, two), ValueError);
  EXPECT_THROW(several.of(2), ValueError);
  EXPECT_THROW(balanced_weights(std::vector<int64_t>{0, 0}), ValueError);
  EXPECT_THROW(balanced_weights(std::vector<int64_t>{1, -1}), ValueError);
  EntityScores entities;
  EXPECT_THROW(entities.add(std::vector<std::string>{"O"}, std::vector<std::string>{}), ValueError);
  EXPECT_THROW(entities.add(std::vector<std::string>{"O"}, std::vector<std::string>{""}),
               ValueError);
  EXPECT_EQ(entities.words(), 0);
  EXPECT_EQ(entities.overall().f1(), 0);
  SquadScores squad;
  EXPECT_THROW(squad.figures(), ValueError);
  EXPECT_THROW(squad.add("", {}, std::nan("")), ValueError);
}

TEST(LabelMetrics, AnswersNeedScores) {
  const std::vector<float> few = {1}, nan(4, std::nanf("")), plenty(4, INFINITY);
  SpanWindow w;
  w.tokens = {1, 2, 3, 2};
  w.text_begin = 2;
  w.count = 1;
  const std::vector<SpanWindow> windows = {w};
  const std::vector<Piece> text = {{.id = 3, .begin = 0, .end = 2}};
  const auto find = [&](const std::vector<float>& scores, const AnswerSearch& search) {
    return find_answer("ab", windows, text, {{scores}}, {{scores}}, search);
  };
  EXPECT_THROW(find(few, {}), ShapeError);
  EXPECT_THROW(find_answer("ab", {}, text, {}, {}), ShapeError);
  EXPECT_THROW(find(plenty, {.candidates = 0}), ValueError);
  EXPECT_THROW(find(plenty, {.longest = 0}), ValueError);
  EXPECT_EQ(find(plenty, {}).text, "ab");
  EXPECT_EQ(find(nan, {.no_answer = true}).null_difference, 0);
  EXPECT_EQ(find({0, 0, 1, 9}, {.candidates = 1}).text, "");  // the padding takes the only place
  const FoundAnswer none = find({2, 0, 1, 0}, {.no_answer = true});
  EXPECT_EQ(none.text, "");
  EXPECT_EQ(none.null_difference, 2);
  EXPECT_EQ(find({2, 0, 1, 0}, {.no_answer = true, .threshold = 2}).text, "ab");
}

// The middle token has as much context in the second window, where its score is higher.
TEST(LabelMetrics, TheFirstOfWindowsWithEqualContextCounts) {
  SpanWindow w;
  w.tokens = {1, 2, 3, 3, 2};
  w.text_begin = 2;
  w.count = 2;
  std::vector<SpanWindow> windows = {w, w};
  windows[1].first = 1;
  const std::vector<Piece> text = {{.id = 3, .begin = 0, .end = 1},
                                   {.id = 3, .begin = 2, .end = 3},
                                   {.id = 3, .begin = 4, .end = 5}};
  const std::vector<std::vector<float>> scores = {{0, 0, 0, 2, 0}, {0, 0, 4, 1, 0}};
  const auto find = [&](bool most_context) {
    return find_answer("a b c", windows, text, scores, scores,
                       {.longest = 1, .most_context = most_context});
  };
  EXPECT_EQ(find(true).candidates[0].start, 2);
  EXPECT_EQ(find(true).candidates.size(), 3u);
  EXPECT_EQ(find(false).candidates[0].start, 4);
}

}  // namespace
}  // namespace longspan
