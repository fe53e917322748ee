#include "data/labelled/examples.h"

#include <cmath>

#include "core/error.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::Folder;
using test::message_of;
using test::write_bytes;

using Texts = std::vector<std::string>;
using Ids = std::vector<int32_t>;

/// A folder of files, and sources that read them.
struct Files {
  Folder folder;

  TableSource source(const std::string& name, std::string_view bytes, const char* columns = "",
                     bool labelled = true) {
    write_bytes(folder / name, bytes);
    return {{folder / name}, ColumnNames(columns), labelled};
  }
};

LabelSurvey survey_of(const TableSource& source, TextCount count = TextCount::one) {
  return survey_text_labels({&source, 1}, count);
}

TEST(Columns, AreGivenByName) {
  const ColumnNames names("text=review,label=stars of 5");
  EXPECT_EQ(names.find("text"), "review");
  EXPECT_EQ(names.find("label"), "stars of 5");
  EXPECT_EQ(names.find("weight"), std::nullopt);
  EXPECT_TRUE(ColumnNames("").all().empty());
  for (const char* bad : {"text", "=a", "text=", "text=a,,label=b", "a=b,a=c"}) {
    EXPECT_THROW(ColumnNames{bad}, ValueError) << bad;
  }
}

TEST(Columns, MissingOnesAreListed) {
  Files files;
  const auto message = [&](const char* header, const char* columns, TextCount count) {
    const TableSource source = files.source("x.csv", std::string(header) + "\n1,2\n", columns);
    return message_of<IoError>([&] { read_number_texts(source, count); });
  };
  EXPECT_TRUE(contains(
      message("body,stars", "", TextCount::one),
      "row 1 (line 2) has none of the columns text, sentence, content, review, for text; it "
      "has body, stars: say which one is meant with --columns text=NAME"));
  EXPECT_TRUE(contains(message("text,stars", "", TextCount::one), "--columns label=NAME"));
  EXPECT_TRUE(
      contains(message("text,stars", "label=star", TextCount::one), "no column star, for label"));
  EXPECT_TRUE(contains(message("premise,label", "", TextCount::two),
                       "no pair sentence1 and sentence2, premise and"));
  const TableSource source = files.source("x.csv", "a,b\n1,2\n", "summary=a");
  EXPECT_TRUE(
      contains(message_of<ValueError>([&] { read_number_texts(source, TextCount::one); }),
               "this task has no use for summary; expected columns for text, label, weight"));
}

TEST(Columns, TheFirstUsualNameCounts) {
  Files files;
  const TableSource source =
      files.source("x.jsonl", R"({"review": "b", "sentence": "a", "labels": 1, "label": 0}
{"review": "c", "label": 1})");
  const std::vector<LabelledText> rows = read_texts(source, TextCount::one, survey_of(source));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].text, "a");
  EXPECT_EQ(rows[0].labels, Ids{0});
  EXPECT_EQ(rows[1].text, "c");  // found again where rows differ
  EXPECT_EQ(rows[1].labels, Ids{1});
}

TEST(Labels, IntegersStay) {
  Files files;
  const TableSource source = files.source("x.csv", "text,label\na,3\nb,1\nc,-1\nd,\n");
  const LabelSurvey survey = survey_of(source);
  EXPECT_EQ(survey.labels.names(), (Texts{"0", "1", "2", "3"}));
  EXPECT_FALSE(survey.several);
  const std::vector<LabelledText> rows = read_texts(source, TextCount::one, survey);
  EXPECT_EQ(rows[0].labels, Ids{3});
  EXPECT_TRUE(rows[2].labels.empty());
  EXPECT_FALSE(rows[2].labelled);
  EXPECT_FALSE(rows[3].labelled);
  EXPECT_EQ(count_labels(rows, 4), (std::vector<int64_t>{0, 1, 0, 1}));
  EXPECT_THROW(count_labels(rows, 2), ValueError);
}

TEST(Labels, NamesAreSorted) {
  Files files;
  const TableSource csv = files.source("x.csv", "text,label\na,pos\nb,neg\nc,10\nd,9\n");
  EXPECT_EQ(survey_of(csv).labels.names(), (Texts{"10", "9", "neg", "pos"}));
  const TableSource json = files.source("x.jsonl", R"({"text": "", "label": "10"}
{"text": "", "label": "9"})");
  EXPECT_EQ(survey_of(json).labels.names(), (Texts{"10", "9"}));
  const TableSource bools = files.source("y.jsonl", R"({"text": "", "label": true}
{"text": "", "label": false})");
  EXPECT_EQ(read_texts(bools, TextCount::one, survey_of(bools))[0].labels, Ids{1});
}

TEST(Labels, OfARunMustMatch) {
  const Labels labels(Texts{"neg", "pos"});
  EXPECT_EQ(labels.id_of("pos", false, ""), 1);
  EXPECT_EQ(labels.id_of(1, false, ""), 1);
  EXPECT_EQ(labels.id_of(1.0, false, ""), 1);
  EXPECT_EQ(labels.id_of("1", true, ""), 1);
  EXPECT_EQ(labels.id_of(false, false, ""), 0);
  EXPECT_EQ(labels.id_of(-1, false, ""), -1);
  EXPECT_EQ(labels.id_of(Json(), false, ""), -1);
  EXPECT_TRUE(
      contains(message_of<IoError>([&] { labels.id_of("good", false, "x.csv: row 3"); }),
               "x.csv: row 3: got \"good\"; expected one of the 2 labels of this model: neg, pos"));
  EXPECT_THROW(labels.id_of("1", false, ""), IoError);
  EXPECT_THROW(labels.id_of(2, false, ""), IoError);
  EXPECT_THROW(labels.id_of(0.5, false, ""), IoError);
  EXPECT_THROW(labels.id_of(Json::Array{}, false, ""), IoError);
  const Labels stars(Texts{"1", "2", "5"});
  EXPECT_EQ(stars.id_of(5, false, ""), 2);
  EXPECT_THROW(stars.id_of(0, false, ""), IoError);
  EXPECT_EQ(stars.name(0), "1");
  EXPECT_THROW(stars.name(3), ValueError);
  EXPECT_THROW(Labels(Texts{"a", "a"}), ValueError);
  EXPECT_THROW(Labels(Texts{""}), ValueError);
}

TEST(Labels, RefuseMixturesAndNumbers) {
  Files files;
  const auto message = [&](const std::string& lines) {
    const TableSource source = files.source("x.jsonl", lines);
    return message_of<IoError>([&] { survey_of(source); });
  };
  EXPECT_TRUE(contains(message("{\"text\":\"\",\"label\":\"a\"}\n{\"text\":\"\",\"label\":1}"),
                       "row 2 (line 2), column label: got the integer 1, and \"a\" in "));
  EXPECT_TRUE(contains(message("{\"text\":\"\",\"label\":0}\n{\"text\":\"\",\"label\":\"b\"}"),
                       "expected only integers or only names"));
  EXPECT_TRUE(
      contains(message("{\"text\":\"\",\"label\":0.5}"), "other numbers are for regression"));
  EXPECT_TRUE(contains(message("{\"text\":\"\",\"label\":{}}"), "got an object"));
  EXPECT_TRUE(contains(message("{\"text\":\"\",\"label\":-2}"), "expected 0 to 65535"));
  EXPECT_TRUE(
      contains(message("{\"text\":\"\",\"label\":123456}"), "give larger numbers as strings"));
  EXPECT_TRUE(
      contains(message("{\"text\":\"\",\"label\":[\"a\"]}\n{\"text\":\"\",\"label\":\"b\"}"),
               "has a list of labels, and "));
  const TableSource none = files.source("x.csv", "text,label\na,\nb,-1\n");
  EXPECT_TRUE(contains(message_of<ValueError>([&] { survey_of(none); }), "no row has a label"));
  std::string many = "text,label\n";
  for (int i = 0; i < 66'000; ++i) many += fmt::format("a,x{}\n", i);
  const TableSource names = files.source("x.csv", many);
  EXPECT_TRUE(
      contains(message_of<IoError>([&] { survey_of(names); }), "more than 65536 different labels"));
}

TEST(Labels, SeveralOfARow) {
  Files files;
  const TableSource names = files.source("x.jsonl", R"({"text": "a", "labels": ["y", "x", "y"]}
{"text": "b", "labels": []}
{"text": "c", "labels": null})");
  const LabelSurvey survey = survey_of(names);
  EXPECT_TRUE(survey.several);
  const std::vector<LabelledText> rows = read_texts(names, TextCount::one, survey);
  EXPECT_EQ(rows[0].labels, (Ids{0, 1}));
  EXPECT_TRUE(rows[1].labelled);
  EXPECT_TRUE(rows[1].labels.empty());
  EXPECT_FALSE(rows[2].labelled);
  const TableSource flags = files.source("x.jsonl", R"({"text": "a", "labels": [0.0, 1.0, 1.0]})");
  const LabelSurvey three = survey_of(flags);
  EXPECT_EQ(three.labels.size(), 3);
  EXPECT_EQ(read_texts(flags, TextCount::one, three)[0].labels, (Ids{1, 2}));
  EXPECT_THROW(read_texts(flags, TextCount::one, survey), IoError);
  EXPECT_THROW(read_texts(names, TextCount::one, {Labels(Texts{"x", "y"}), false}), IoError);
  const TableSource half = files.source("x.jsonl", R"({"text": "a", "labels": [0.5]})");
  EXPECT_THROW(read_texts(half, TextCount::one, {Labels(Texts{"x"}), true}), IoError);
  const TableSource csv = files.source("x.csv", "text,labels\na,\"[\"\"x\"\"]\"\nb,[]\n");
  EXPECT_EQ(read_texts(csv, TextCount::one, survey_of(csv))[0].labels, Ids{0});
  const TableSource broken = files.source("x.csv", "text,labels\na,[x\n");
  EXPECT_THROW(survey_of(broken), IoError);
}

TEST(Examples, PairsAndNumbers) {
  Files files;
  const TableSource pairs =
      files.source("x.tsv", "question\tsentence\tlabel\tscore\nq\ts\tno\t2.5\n", "label=score");
  const std::vector<LabelledText> rows = read_number_texts(pairs, TextCount::two);
  EXPECT_EQ(rows[0].text, "q");
  EXPECT_EQ(rows[0].second, "s");
  EXPECT_EQ(rows[0].number, 2.5);
  const TableSource given = files.source(
      "x.csv", "premise,hypothesis,a,text_pair,label,w\n1,2,3,4,,0.5\n", "text=a,weight=w");
  const std::vector<LabelledText> own = read_number_texts(given, TextCount::two);
  EXPECT_EQ(own[0].text, "3");
  EXPECT_EQ(own[0].second, "4");
  EXPECT_EQ(own[0].weight, 0.5);
  EXPECT_FALSE(own[0].labelled);
  EXPECT_TRUE(std::isnan(own[0].number));
  for (const char* bad : {"nan", "1e999", "x", "1,5", " 1"}) {
    const TableSource source = files.source("x.csv", fmt::format("text,label\na,\"{}\"\n", bad));
    EXPECT_THROW(read_number_texts(source, TextCount::one), IoError) << bad;
  }
  const TableSource negative = files.source("x.csv", "text,label,w\na,1,-1\n", "weight=w");
  EXPECT_THROW(read_number_texts(negative, TextCount::one), IoError);
}

TEST(Examples, ReadSeveralFilesAndTestsWithoutLabels) {
  Files files;
  TableSource both = files.source("a.csv", "text,label\na,x\n");
  both.paths.push_back(files.source("b.jsonl", "{\"sentence\": \"b\", \"label\": \"y\"}").paths[0]);
  const LabelSurvey survey = survey_of(both);
  const std::vector<LabelledText> rows = read_texts(both, TextCount::one, survey);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].text, "b");
  EXPECT_EQ(rows[1].labels, Ids{1});
  const TableSource test = files.source("test.csv", "text\nc\n", "label=stars", false);
  EXPECT_FALSE(read_texts(test, TextCount::one, survey)[0].labelled);
  const TableSource number = files.source("x.jsonl", "{\"text\": 5, \"label\": 1}");
  EXPECT_TRUE(contains(message_of<IoError>([&] { read_number_texts(number, TextCount::one); }),
                       "row 1 (line 1), column text: got an integer; expected a string"));
}

TEST(Examples, TaggedWords) {
  Files files;
  const TableSource json =
      files.source("x.jsonl", R"({"tokens": ["Ada", "ran"], "ner_tags": ["B-P", "O"]}
{"tokens": [], "ner_tags": []}
{"tokens": ["x"], "ner_tags": null})");
  const Labels tags = survey_tags({&json, 1});
  EXPECT_EQ(tags.names(), (Texts{"B-P", "O"}));
  const std::vector<TaggedWords> rows = read_tagged(json, tags);
  EXPECT_EQ(rows[0].words, (Texts{"Ada", "ran"}));
  EXPECT_EQ(rows[0].tags, (Ids{0, 1}));
  EXPECT_TRUE(rows[1].words.empty());
  EXPECT_TRUE(rows[2].tags.empty());
  const TableSource csv =
      files.source("x.csv", "words,tags\nAda  ran ,B-P O\n\"[\"\"a b\"\"]\",[-100]\n");
  const std::vector<TaggedWords> words = read_tagged(csv, tags);
  EXPECT_EQ(words[0].words, (Texts{"Ada", "ran"}));
  EXPECT_EQ(words[0].tags, (Ids{0, 1}));
  EXPECT_EQ(words[1].words, (Texts{"a b"}));
  EXPECT_EQ(words[1].tags, Ids{-1});
  const auto refuses = [&](const char* line) {
    const TableSource source = files.source("y.jsonl", line);
    return message_of<IoError>([&] { read_tagged(source, tags); });
  };
  EXPECT_TRUE(
      contains(refuses(R"({"tokens": ["a", "b"], "tags": ["O"]})"), "has 1 tags for 2 words"));
  EXPECT_TRUE(
      contains(refuses(R"({"tokens": "a", "tags": ["O"]})"), "got a string; expected a list"));
  EXPECT_TRUE(contains(refuses(R"({"tokens": [1], "tags": ["O"]})"), "got an integer as word 0"));
  EXPECT_TRUE(contains(refuses(R"({"tokens": null, "tags": ["O"]})"), "got null"));
  EXPECT_TRUE(contains(refuses(R"({"tokens": ["a"], "tags": ["B-L"]})"),
                       "got \"B-L\"; expected one of the 2"));
}

TEST(Examples, AnswersAtCodePoints) {
  Files files;
  const TableSource json = files.source(
      "x.jsonl",
      R"({"id": "a", "context": "é 😀 cat", "question": "q", "answers": {"text": ["cat", "dog"], "answer_start": [4, 0]}}
{"context": "é 😀 cat", "question": "r", "answers": {"text": [], "answer_start": []}}
{"context": "x", "question": "s", "answers": [{"text": "y", "answer_start": 99}]}
{"context": "x", "question": "s", "answers": [{"text": "", "answer_start": -1}]})");
  const QuestionRows all = read_questions(json);
  ASSERT_EQ(all.rows.size(), 4u);
  EXPECT_EQ(all.answers, 3);
  EXPECT_EQ(all.misplaced, 2);
  EXPECT_TRUE(contains(all.first_misplaced,
                       "row 1 (line 1): the answer \"dog\" does not stand at character 0"));
  const LabelledQuestion& first = all.rows[0];
  EXPECT_EQ(first.question.id, "a");
  ASSERT_EQ(first.question.answers.size(), 1u);
  EXPECT_EQ(first.question.answers[0].text, "cat");
  EXPECT_EQ(first.question.answers[0].begin, 8);
  EXPECT_EQ(first.references, (Texts{"cat", "dog"}));
  EXPECT_FALSE(first.misplaced);
  EXPECT_EQ(all.rows[1].question.id, "2");
  EXPECT_EQ(all.rows[1].question.context.data(), first.question.context.data());  // shared
  EXPECT_TRUE(all.rows[1].references.empty());
  EXPECT_TRUE(all.rows[2].misplaced);
  EXPECT_TRUE(all.rows[3].references.empty());
}

TEST(Examples, QuestionsOfOtherLayouts) {
  Files files;
  const TableSource csv = files.source(
      "x.csv", "id,question,context,answer,answer_start\n7,q,a cat,cat,2\n8,r,a cat,,\n");
  const QuestionRows flat = read_questions(csv);
  EXPECT_EQ(flat.rows[0].question.answers[0].begin, 2);
  EXPECT_EQ(flat.rows[1].question.id, "8");
  EXPECT_TRUE(flat.rows[1].labelled);
  EXPECT_TRUE(flat.rows[1].references.empty());
  const TableSource json = files.source("y.csv",
                                        "question,context,answers\nq,a cat,\"{\"\"text\"\": "
                                        "[\"\"cat\"\"], \"\"answer_start\"\": [2]}\"\n");
  EXPECT_EQ(read_questions(json).rows[0].references, (Texts{"cat"}));
  const TableSource test = files.source("z.csv", "question,context\nq,c\n", "", false);
  EXPECT_FALSE(read_questions(test).rows[0].labelled);
  const TableSource squad = files.source("s.json", R"({"data": [{"paragraphs": [{"context": "a cat",
      "qas": [{"id": "1", "question": "q", "answers": [{"text": "cat", "answer_start": 2}]}]}]}]})");
  EXPECT_EQ(read_questions(squad).rows[0].question.answers[0].begin, 2);
  const auto refuses = [&](const std::string& answers) {
    const TableSource source =
        files.source("b.jsonl", fmt::format(R"({{"question": "q", "context": "c", {}}})", answers));
    return message_of<IoError>([&] { read_questions(source); });
  };
  EXPECT_TRUE(
      contains(refuses(R"("x": 1)"), "has no column answers, nor answer_text and answer_start"));
  EXPECT_TRUE(contains(refuses(R"("answers": {"text": ["a"], "answer_start": []})"),
                       "got 1 texts and 0 offsets"));
  EXPECT_TRUE(contains(refuses(R"("answers": {"text": "a"})"), "expected an array"));
  EXPECT_TRUE(contains(refuses(R"("answers": [{"text": 1, "answer_start": 0}])"),
                       "got an integer as text"));
  EXPECT_TRUE(contains(refuses(R"("answers": 3)"), "column answers: "));
  EXPECT_TRUE(contains(refuses(R"("answer_text": "a")"), "got an answer without answer_start"));
}

TEST(Examples, Choices) {
  Files files;
  const TableSource csv =
      files.source("x.csv", "sent1,sent2,ending0,ending1,ending2,label\na,b,c,d,e,2\na,b,c,d,e,\n");
  const std::vector<ChoiceExample> rows = read_choices(csv);
  EXPECT_EQ(rows[0].first, "a");
  EXPECT_EQ(rows[0].endings, (Texts{"c", "d", "e"}));
  EXPECT_EQ(rows[0].candidate(1), "b d");
  EXPECT_EQ(rows[0].answer, 2);
  EXPECT_EQ(rows[1].answer, -1);
  EXPECT_THROW(rows[0].candidate(3), ValueError);
  const TableSource without =
      files.source("y.jsonl", R"({"sent1": "a", "ending0": "b", "ending1": "c", "label": 0})");
  EXPECT_EQ(read_choices(without)[0].candidate(1), "c");
  const TableSource wrong = files.source("z.csv", "sent1,ending0,ending1,label\na,b,c,2\n");
  EXPECT_TRUE(contains(message_of<IoError>([&] { read_choices(wrong); }),
                       "got 2; expected the number of an ending, 0 to 1"));
  const TableSource one = files.source("z.csv", "sent1,ending0,label\na,b,0\n");
  EXPECT_TRUE(
      contains(message_of<IoError>([&] { read_choices(one); }), "none of the columns ending1"));
}

TEST(Examples, SummariesAndCompletions) {
  Files files;
  const TableSource news = files.source("x.jsonl", R"({"article": "a", "highlights": "h"}
{"article": "b", "highlights": null})");
  const std::vector<SummaryExample> summaries = read_summaries(news);
  EXPECT_EQ(summaries[0].summary, "h");
  EXPECT_EQ(summaries[1].summary, std::nullopt);
  const TableSource test = files.source("t.csv", "text\na\n", "", false);
  EXPECT_EQ(read_summaries(test)[0].document, "a");
  const TableSource chat =
      files.source("y.jsonl", R"({"prompt": "p", "completion": "c", "text": "t"})");
  EXPECT_EQ(read_completions(chat)[0].prompt, "p");
  EXPECT_EQ(read_completions(chat)[0].completion, "c");
  const TableSource plain = files.source("z.csv", "text\nt\n");
  EXPECT_EQ(read_completions(plain)[0].prompt, "");
  EXPECT_EQ(read_completions(plain)[0].completion, "t");
  const TableSource named =
      files.source("y.jsonl", R"({"q": "p", "completion": "c", "b": "t"})", "text=b");
  EXPECT_EQ(read_completions(named)[0].completion, "t");
  const TableSource none = files.source("z.csv", "body\nt\n");
  EXPECT_TRUE(contains(message_of<IoError>([&] { read_completions(none); }),
                       "has neither prompt and completion nor text"));
}

}  // namespace
}  // namespace longspan
