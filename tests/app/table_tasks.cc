// Tasks over tables: tags, answers and endings (app/tasks/tags.h, spans.h, endings.h).

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "autograd/engine.h"
#include "core/error.h"
#include "hub/type.h"
#include "nn/segment.h"
#include "tests/app/tables.h"

namespace longspan::test {
namespace {

const std::string sentences =
    "{\"tokens\": [\"Ann\", \"sees\", \"Rome\"], \"ner_tags\": [\"B-PER\", \"O\", \"B-LOC\"]}\n"
    "{\"tokens\": [\"It\", \"rains\"], \"ner_tags\": [\"O\", \"O\"]}\n";

/// The first loss of a run, and gradients that can be computed.
TaskData::Forward step_of(const TrainingRun& run) {
  const std::unique_ptr<TaskData> data = open_task_data(run);
  data->prepare();
  const TaskData::Forward f = data->forward(0, {}, {.training = true, .gen = Generator{1}});
  EXPECT_TRUE(std::isfinite(f.losses.loss.item()));
  backward(f.losses.loss);
  return f;
}

Json figures_of(const TrainingRun& run, const std::string& part = "valid") {
  return Json(open_task_data(run)->evaluate(part).report.figures);
}

std::string refusal_of(const std::string& task, const std::string& data, Settings more = {}) {
  try {
    open_task_data(run_of(task, data, std::move(more)))->prepare();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Tags, CountWordsAndNotTokens) {
  const Tables tables;
  const TrainingRun run = run_of("tags", tables.write("train.jsonl", sentences),
                                 {setting("split", "100/0/0"), setting("batch", "2")});
  EXPECT_EQ(run.config.of_task->label_names(), (std::vector<std::string>{"B-LOC", "B-PER", "O"}));
  EXPECT_EQ(run.config.of_task->hub_task(), HubTask::tags);
  EXPECT_EQ(step_of(run).counted, 5) << "3 words and 2";
}

TEST(Tags, AreReportedAsEntitiesIfTheyNameSome) {
  const Tables tables;
  const std::string path = tables.write("valid.jsonl", sentences);
  tables.write("train.jsonl", sentences);
  const Json found = figures_of(run_of("tags", tables.path()));
  for (const char* name : {"precision", "recall", "f1", "accuracy", "types"}) {
    EXPECT_NE(found.find(name), nullptr) << name;
  }
  EXPECT_NE(found["types"].find("PER"), nullptr);
  const Json plain =
      figures_of(run_of("tags", tables.write("train.csv", "words,tags\na b c,DET NOUN VERB\n"),
                        {setting("split", "100/0/0")}),
                 "train");
  EXPECT_NE(plain.find("f1_macro"), nullptr);
  EXPECT_EQ(plain.find("types"), nullptr);
}

TEST(Tags, OfWordsBehindTheEndOfARowCountNowhere) {
  const Tables tables;
  const TrainingRun run =
      run_of("tags", tables.write("train.csv", "words,tags\naaaa bbbb cccc dddd,X Y X Y\n"),
             {setting("split", "100/0/0"), setting("length", "11"), setting("batch", "1")});
  EXPECT_EQ(step_of(run).counted, 2) << "a token before the text, four for a word, one between two";
  const std::unique_ptr<TaskData> data = open_task_data(run);
  data->prepare();
  ASSERT_EQ(data->warnings().size(), 1u);
  EXPECT_NE(data->warnings()[0].find("1 of 1 sentences"), std::string::npos);
  EXPECT_EQ(Json(data->evaluate("train").report.figures)["unread"], Json(2));
  const std::string lines[] = {"aaaa bbbb cccc dddd", "", "  a  b "};
  const auto found = data->predict(lines);
  EXPECT_TRUE(Json(found[0].figures)["tags"].array()[3].is_null());
  EXPECT_EQ(Json(found[1].figures)["tags"].array().size(), 0u);
  EXPECT_EQ(Json(found[2].figures)["tags"].array().size(), 2u);
}

TEST(Tags, SayWhatTheyNeed) {
  const Tables tables;
  const std::string path = tables.write("train.jsonl", sentences);
  EXPECT_EQ(refusal_of("tags", path, {setting("split", "100/0/0")}), "");
  EXPECT_NE(refusal_of("tags", path, {setting("model.tags", "2")}).find("got 2; expected 3"),
            std::string::npos);
  EXPECT_NE(refusal_of("tags", tables.write("other.jsonl",
                                            "{\"tokens\": [\"a\"], \"tags\": [\"X\", \"Y\"]}\n"))
                .find("2 tags for 1 words"),
            std::string::npos);
}

const std::string questions =
    "question,context,answer_text,answer_start,id\n"
    "where?,Ann lives in Rome.,Rome,13,q1\n"
    "who?,Ann lives in Rome.,Ann,0,q2\n";

TEST(Spans, LearnTheFirstAnswer) {
  const Tables tables;
  const TrainingRun run =
      run_of("spans", tables.write("train.csv", questions),
             {setting("split", "100/0/0"), setting("batch", "2"), setting("length", "40")});
  EXPECT_EQ(run.config.of_task->hub_task(), HubTask::spans);
  EXPECT_EQ(step_of(run).counted, 2);
  const Json found = figures_of(run, "train");
  EXPECT_NE(found.find("exact"), nullptr);
  EXPECT_EQ(found.find("best_f1"), nullptr) << "all questions have an answer";
}

TEST(Spans, WindowsCoverALongText) {
  const Tables tables;
  const TrainingRun run =
      run_of("spans", tables.write("train.csv", questions),
             {setting("split", "100/0/0"), setting("length", "20"), setting("batch", "1")});
  const std::unique_ptr<TaskData> data = open_task_data(run);
  const std::string text(40, 'x'), asked[] = {"who?"};
  const Json found(data->find_answers(text, asked)[0].figures);
  // 20 tokens have room for 13 of the text, of which 6 are those of the window before.
  EXPECT_EQ(found["windows"], Json(5));
  ASSERT_NE(found.find("start"), nullptr);
  const int64_t begin = found["start"].integer(), end = found["end"].integer();
  EXPECT_EQ(text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
            found["answer"].string());
  EXPECT_EQ(data->find_answers("", asked)[0].label, "");
  EXPECT_EQ(data->find_answers(text, {}).size(), 0u);
}

TEST(Spans, QuestionsWithoutAnAnswerAreFoundInTheData) {
  const Tables tables;
  const TrainingRun run =
      run_of("spans", tables.write("train.csv", questions + "when?,Ann lives in Rome.,,,q3\n"),
             {setting("split", "100/0/0"), setting("length", "40")});
  EXPECT_EQ(to_json(*run.config.of_task)["labelled"]["no_answer"], Json(true));
  const Json found = figures_of(run, "train");
  for (const char* name : {"HasAns_f1", "NoAns_f1", "best_f1", "best_f1_thresh"}) {
    EXPECT_NE(found.find(name), nullptr) << name;
  }
}

TEST(Spans, AnswersThatStandElsewhereAreNotTrainedOn) {
  const Tables tables;
  const std::string head = questions.substr(0, questions.find('\n') + 1);
  const std::string wrong = "where?,Ann lives in Rome.,Rome,12,q1\n";
  EXPECT_NE(refusal_of("spans", tables.write("train.csv", head + wrong),
                       {setting("split", "100/0/0"), setting("length", "40")})
                .find("no question to train on"),
            std::string::npos);
  const TrainingRun run = run_of("spans", tables.write("train.csv", questions + wrong),
                                 {setting("split", "100/0/0"), setting("length", "40")});
  const std::unique_ptr<TaskData> data = open_task_data(run);
  ASSERT_EQ(data->warnings().size(), 1u);
  EXPECT_NE(data->warnings()[0].find("1 of 3 answers"), std::string::npos) << data->warnings()[0];
}

TEST(Spans, SayWhatTheyNeed) {
  const Tables tables;
  const std::string path = tables.write("train.csv", questions);
  EXPECT_NE(refusal_of("spans", path, {setting("length", "6"), setting("split", "100/0/0")})
                .find("no room for text"),
            std::string::npos);
  EXPECT_NE(refusal_of("spans", path, {setting("model.span_head", "false")}).find("span_head"),
            std::string::npos);
}

const std::string endings =
    "sent1,sent2,ending0,ending1,ending2,label\n"
    "a,b,c,d,e,1\nf,g,h,i,j,2\nk,l,m,n,o,-1\n";

TEST(Endings, AreScoredOneByOne) {
  const Tables tables;
  const TrainingRun run = run_of("choice", tables.write("train.csv", endings),
                                 {setting("split", "100/0/0"), setting("batch", "2")});
  EXPECT_EQ(run.config.of_task->hub_task(), HubTask::choice);
  EXPECT_EQ(step_of(run).counted, 2);
  const std::unique_ptr<TaskData> data = open_task_data(run);
  EXPECT_EQ(data->size("train"), 2) << "the row without an answer is left out";
  EXPECT_TRUE(Json(data->evaluate("train").report.figures)["accuracy"].is_number());
  const std::string line[] = {"a b\tc\td", "a\tx\tyy\tzzz\tw"}, bad[] = {"a\tb"};
  const auto found = data->predict(line);
  EXPECT_EQ(Json(found[1].figures)["probabilities"].array().size(), 4u);
  EXPECT_THROW(data->predict(bad), ValueError);
}

TEST(Endings, MayBeFewerInSomeRows) {
  const Tables tables;
  const TrainingRun run = run_of(
      "choice",
      tables.write("train.jsonl",
                   "{\"sent1\": \"a\", \"ending0\": \"b\", \"ending1\": \"c\", \"label\": 1}\n"
                   "{\"sent1\": \"d\", \"ending0\": \"e\", \"ending1\": \"f\", \"ending2\": \"g\", "
                   "\"label\": 0}\n"),
      {setting("split", "100/0/0"), setting("batch", "2"), setting("model.dropout", "0")});
  const std::unique_ptr<TaskData> data = open_task_data(run);
  data->prepare();
  // The mean of both, of two candidates and of three.
  const double both = data->forward(0, {}, {}).losses.loss.item();
  EXPECT_NEAR(both, data->bits("train") * std::log(2.0), 1e-5);
}

TrainingRun writer_of(const std::string& task, const std::string& data, Settings more = {}) {
  more.push_back(
      setting("model.name", task == "summaries" ? "transformer:base" : "transformer:tiny"));
  if (task == "summaries") {
    for (const char* size : {"n_layer=1", "d_model=16", "n_head=2", "d_ff=16"}) {
      const std::string text = size;
      const size_t at = text.find('=');
      more.push_back(setting("model." + text.substr(0, at), text.substr(at + 1)));
    }
  }
  Settings settings{setting("task", task), setting("data", task + "=" + data),
                    setting("length", "32"), setting("batch", "2"), setting("split", "100/0/0")};
  settings.insert(settings.end(), more.begin(), more.end());
  RunConfig config = make_config(settings);
  fill_sizes(config, settings);
  return TrainingRun(std::move(config), "");
}

TEST(Spans, QuestionsAboutOneTextComeIntoOneSplit) {
  const Tables tables;
  std::string rows = "question,context,answer_text,answer_start,id\n";
  for (int text = 0; text < 10; ++text) {
    for (int q = 0; q < 4; ++q) rows += fmt::format("q{},text {},text,0,{}-{}\n", q, text, text, q);
  }
  const TrainingRun run = run_of("spans", tables.write("train.csv", rows),
                                 {setting("split", "50/30/20"), setting("length", "40")});
  const std::unique_ptr<TaskData> data = open_task_data(run);
  EXPECT_EQ(data->size("train"), 20);
  EXPECT_EQ(data->size("valid"), 12);
  EXPECT_EQ(data->size("test"), 8);
}

TEST(TableSplits, LoseNoRow) {
  const Tables tables;
  std::string rows = "text,label\n";
  for (int i = 0; i < 40; ++i) rows += fmt::format("t{},{}\n", i, i % 2);
  tables.write("train.csv", rows);
  tables.write("test.csv", "text,label\na,0\n");
  const std::unique_ptr<TaskData> data = open_task_data(run_of("classes", tables.path()));
  EXPECT_EQ(data->size("train") + data->size("valid"), 40);
  EXPECT_EQ(data->size("test"), 1);
  tables.write("valid.csv", "text,label\nb,\n");
  EXPECT_NE(refusal_of("classes", tables.path()).find("no row that can be validated with"),
            std::string::npos);
  tables.write("valid.csv", "text,label\nb,1\n");
  EXPECT_NE(
      refusal_of("classes", tables.path(), {setting("split", "50/50/0")}).find("leave it out"),
      std::string::npos);
}

TEST(Endings, AreReadWithoutGaps) {
  const Tables tables;
  const std::string gap = "sent1,ending0,ending1,ending3,label\na,b,c,d,0\n";
  EXPECT_NE(refusal_of("choice", tables.write("gap.csv", gap), {setting("split", "100/0/0")})
                .find("ending3 and no ending2"),
            std::string::npos);
  const std::string fewer = "sent1,ending0,ending1,ending2,label\na,b,c,,0\n";
  EXPECT_EQ(refusal_of("choice", tables.write("fewer.csv", fewer), {setting("split", "100/0/0")}),
            "");
}

TEST(Summaries, AreWrittenAndScored) {
  const Tables tables;
  const TrainingRun run =
      writer_of("summaries", tables.write("train.jsonl",
                                          "{\"article\": \"a b c\", \"highlights\": \"b\"}\n"
                                          "{\"article\": \"d\\ne\", \"highlights\": \"e\\nf\"}\n"));
  EXPECT_EQ(run.config.of_task->hub_task(), HubTask::sequence);
  EXPECT_EQ(step_of(run).counted, 6) << "two bytes less the end, three and an end each";
  const std::unique_ptr<TaskData> data = open_task_data(run);
  EXPECT_EQ(std::set({data->input("train", 0), data->input("train", 1)}),
            (std::set<std::string>{"a b c", "d\ne"}));
  const Json found(data->written("train", {.beams = 2}).figures);
  for (const char* name : {"rouge1", "rouge2", "rouge_l", "rouge_lsum", "rouge1_stem"}) {
    EXPECT_TRUE(found["rouge"][name].is_number()) << name;
  }
  EXPECT_EQ(found.find("lead3"), nullptr);
}

TEST(Completions, TrainOnWhatFollowsThePrompt) {
  const Tables tables;
  const std::string path = tables.write("train.csv", "prompt,completion\nab,cd\nabcd,e\n");
  const TrainingRun run = writer_of("completions", path);
  EXPECT_EQ(run.config.of_task->end_token(run.config), 256);
  EXPECT_EQ(step_of(run).counted, 5) << "cd and an end, e and an end";
  const Json found = figures_of(run, "train");
  EXPECT_NEAR(std::log2(found["perplexity"].number()), open_task_data(run)->bits("train"), 1e-9);
  // A prompt changes what follows it, and is no target itself.
  const TrainingRun whole =
      writer_of("completions", tables.write("all.csv", "text\nabcd\n"), {setting("batch", "1")});
  EXPECT_EQ(step_of(whole).counted, 4) << "the first token follows nothing";
}

TEST(Completions, LeaveOutWhatIsCutToItsPrompt) {
  const Tables tables;
  const TrainingRun run = writer_of(
      "completions",
      tables.write("train.csv", "prompt,completion\n" + std::string(40, 'a') + ",b\nc,d\n"));
  const std::unique_ptr<TaskData> data = open_task_data(run);
  data->prepare();
  EXPECT_EQ(data->size("train"), 1);
  ASSERT_EQ(data->warnings().size(), 2u);
  EXPECT_NE(data->warnings()[1].find("1 of 2 texts have nothing"), std::string::npos);
}

}  // namespace
}  // namespace longspan::test
