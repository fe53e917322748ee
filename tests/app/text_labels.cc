// Tasks of labelled texts: classes, pairs and regression (app/tasks/text_labels.h).

#include <gtest/gtest.h>

#include <cmath>

#include "app/tasks/text_labels.h"
#include "autograd/engine.h"
#include "core/error.h"
#include "nn/segment.h"
#include "tests/app/tables.h"

namespace longspan::test {
namespace {

const std::string reviews =
    "text,label\ngood,yes\nvery good,yes\nbad,no\n\"bad, bad\",no\nso-so,maybe\nunknown,\n";

TEST(TextLabels, NamesOfClassesAreThoseOfTheData) {
  const Tables tables;
  const TrainingRun run = run_of("classes", tables.write("train.csv", reviews));
  EXPECT_EQ(run.config.of_task->label_names(), (std::vector<std::string>{"maybe", "no", "yes"}));
  const std::unique_ptr<TaskData> data = open_task_data(run);
  data->prepare();
  EXPECT_EQ(data->size("train") + data->size("valid") + data->size("test"), 5)
      << "the row without a label is left out";
  const TaskData::Forward f = data->forward(0, {}, {.training = true, .gen = Generator{1}});
  EXPECT_EQ(f.counted, 4);
  EXPECT_TRUE(std::isfinite(f.losses.loss.item()));
  backward(f.losses.loss);
}

TEST(TextLabels, FilesAreTheirSplits) {
  const Tables tables;
  tables.write("train.jsonl", "{\"text\": \"a\", \"label\": 0}\n{\"text\": \"b\", \"label\": 1}\n");
  tables.write("valid.jsonl", "{\"text\": \"c\", \"label\": 1}\n");
  tables.write("test.jsonl", "{\"text\": \"d\", \"label\": 1}\n{\"text\": \"e\", \"label\": -1}\n");
  const TrainingRun run = run_of("classes", tables.path());
  const std::unique_ptr<TaskData> data = open_task_data(run);
  EXPECT_EQ(data->size("train"), 2);
  EXPECT_EQ(data->size("valid"), 1);
  EXPECT_EQ(data->size("test"), 1);
}

TEST(TextLabels, PredictionsAreProbabilities) {
  const Tables tables;
  const TrainingRun run = run_of("classes", tables.write("train.csv", reviews));
  const std::unique_ptr<TaskData> data = run.config.of_task->open(run, false);
  const std::string lines[] = {"good", "", "a much longer text than all of those before it"};
  const std::vector<TaskData::Prediction> found = data->predict(lines);
  ASSERT_EQ(found.size(), 3u);
  for (const TaskData::Prediction& p : found) {
    const Json figures(p.figures);
    double sum = 0;
    for (const JsonMember& m : figures["probabilities"].object()) sum += m.value.number();
    EXPECT_NEAR(sum, 1, 1e-6);
    EXPECT_EQ(figures["label"], Json(p.label));
    EXPECT_GE(p.probability, 1.0 / 3 - 1e-9);
  }
  // A text is answered alike alone and among others.
  const std::vector<TaskData::Prediction> alone = data->predict(std::span(lines).first(1));
  EXPECT_EQ(alone[0].probability, found[0].probability);
}

TEST(TextLabels, SeveralLabelsAreAnsweredOneByOne) {
  const Tables tables;
  const TrainingRun run =
      run_of("classes", tables.write("train.jsonl",
                                     "{\"text\": \"a\", \"labels\": [\"x\", \"y\"]}\n"
                                     "{\"text\": \"b\", \"labels\": []}\n"
                                     "{\"text\": \"c\", \"labels\": [\"y\"]}\n"));
  EXPECT_EQ(run.config.of_task->problem_type(), "multi_label_classification");
  const std::unique_ptr<TaskData> data = open_task_data(run);
  data->prepare();
  EXPECT_NEAR(data->forward(0, {}, {}).losses.loss.item(), std::log(2.0), 0.2);
  const TaskData::Evaluation e = data->evaluate("train");
  EXPECT_TRUE(std::isfinite(e.bits));
  const Json figures(e.report.figures);
  EXPECT_NE(figures.find("f1_micro"), nullptr);
}

TEST(TextLabels, PairsHaveTwoTexts) {
  const Tables tables;
  const TrainingRun run =
      run_of("pairs", tables.write("train.tsv", "premise\thypothesis\tlabel\na\tb\t0\nc\td\t1\n"));
  const std::unique_ptr<TaskData> data = open_task_data(run);
  data->prepare();
  const std::string good[] = {"a\tb"}, bad[] = {"a b"};
  EXPECT_EQ(data->predict(good).size(), 1u);
  try {
    data->predict(bad);
    FAIL() << "one text was taken as two";
  } catch (const ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("tab"), std::string::npos) << error.what();
  }
}

TEST(TextLabels, NumbersAreLearntByTheirSquares) {
  const Tables tables;
  const TrainingRun run =
      run_of("regression", tables.write("train.csv", "text,label\na,1.5\nb,-2\nc,0\nd,3\n"),
             {setting("split", "50/50/0")});
  EXPECT_EQ(run.config.of_task->problem_type(), "regression");
  const std::unique_ptr<TaskData> data = open_task_data(run);
  data->prepare();
  const TaskData::Evaluation e = data->evaluate("valid");
  const Json figures(e.report.figures);
  EXPECT_NEAR(e.bits * std::log(2.0), figures["mse"].number(), 1e-9);
  EXPECT_NE(figures.find("pearson"), nullptr);
  const std::string line[] = {"a"};
  EXPECT_TRUE(std::isnan(data->predict(line)[0].probability));
}

TEST(TextLabels, WeightsLetClassesCountTheSame) {
  const Tables tables;
  const std::string path = tables.write("train.csv", "text,label\na,x\nb,x\nc,x\nd,y\n");
  const Settings all = {setting("split", "100/0/0")};
  Settings balanced = all;
  balanced.push_back(setting("labelled.weights", "balanced"));
  const TrainingRun plain = run_of("classes", path, all),
                    weighted = run_of("classes", path, balanced);
  const auto loss = [](const TrainingRun& run) {
    const std::unique_ptr<TaskData> data = open_task_data(run);
    data->prepare();
    return data->forward(0, {}, {.training = true, .gen = Generator{1}}).losses.loss.item();
  };
  // The model is the same; its loss of x counts 3 of 4, or 1 of 2.
  EXPECT_NE(loss(plain), loss(weighted));
}

TEST(TextLabels, SayWhatTheyNeed) {
  const Tables tables;
  const std::string path = tables.write("train.csv", reviews);
  const auto refusal = [&](Settings more) -> std::string {
    try {
      open_task_data(run_of("classes", path, std::move(more)))->prepare();
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(refusal({}), "");
  EXPECT_NE(refusal({setting("model.classes", "2")}).find("got 2; expected 3"), std::string::npos);
  EXPECT_NE(refusal({setting("labelled.columns", "text=review")}).find("review"),
            std::string::npos);
  EXPECT_NE(refusal({setting("labelled.labels", "no,yes")}).find("maybe"), std::string::npos);
}

}  // namespace
}  // namespace longspan::test
