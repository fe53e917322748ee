// Runs over documents: what HIBERT learns, and how its extracts are scored.
#include "app/tasks/documents.h"
#include "app/make_config.h"
#include "app/tasks/samples.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "models/capabilities.h"
#include "models/convert.h"
#include "ops/copy.h"
#include "ops/index.h"
#include "ops/shape.h"
#include "ops/softmax.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "tests/harness/scratch.h"
#include "train/optimizer.h"
#include "train/schedule.h"

namespace longspan::test {
namespace {

RunConfig documents_config(std::initializer_list<std::pair<const char*, std::string>> values) {
  Settings all{{"threads", Json("1"), "--threads", true}};
  for (const auto& [key, value] : values) all.push_back({key, Json(value), "--set", true});
  return make_config(all);
}

/// Trains for the steps of the configuration, as longspan train does.
void train_documents(const TrainingRun& run) {
  const RunConfig& c = run.config;
  const auto opened = open_task_data(run);
  TaskData& data = *opened;
  data.prepare();
  Adam adam(named_parameters(*run.model), {.beta2 = c.optimizer.beta2});
  const Cosine rate{c.optimizer.lr, c.schedule.warmup, c.steps, c.schedule.floor};
  const Generator gen = Generator{c.seed}.fork("step");
  for (int64_t step = 0; step < c.steps; ++step) {
    const Pass pass{.training = true, .gen = gen.fork(static_cast<uint64_t>(step))};
    backward(data.forward(step, {}, pass).losses.total());
    clip_gradients(adam, c.optimizer.clip);
    adam.step(rate(step));
  }
}

/// The mean loss in nats of the first token of masked sentences of validation documents, which is
/// their topic, and of all their tokens.
std::pair<double, double> masked_losses(const TrainingRun& run) {
  const NoGrad off;
  const auto& model = need<ReadsDocuments>(*run.model);
  const DocumentTokens special = model.special();
  double first = 0, all = 0;
  constexpr int documents = 256;
  for (uint64_t i = 0; i < documents; ++i) {
    const Sample s = samples_of(run.config).sample({.seed = 1, .split = "valid", .index = i});
    std::vector<std::vector<int32_t>> sentences(8);
    for (size_t k = 0; k < 32; ++k) {
      sentences[k / 4].push_back(s.tokens[k] == 0 ? special.sentence_end : s.tokens[k]);
    }
    const size_t slot = i % 8;
    std::vector<int32_t> target = sentences[slot];
    target.back() = special.end;
    PackedDocuments in;
    std::fill(sentences[slot].begin(), sentences[slot].end() - 1, special.mask);
    in.add(sentences);
    const SentenceTargets written{.slots = {static_cast<int64_t>(slot)},
                                  .lengths = {4},
                                  .inputs = {special.begin, target[0], target[1], target[2]},
                                  .targets = target};
    const Tensor p = log_softmax(cast(model.sentence_logits(in, written, Pass{}), DType::f64));
    for (int64_t j = 0; j < 4; ++j) {
      const double nats = -select(select(p, 0, j), 0, target[static_cast<size_t>(j)]).item();
      all += nats / 4;
      if (j == 0) first += nats;
    }
  }
  return {first / documents, all / documents};
}

// A context of other sentences is what brings the loss of a hidden topic below ln 16.
TEST(Hibert, LearnsToWriteHiddenSentencesOfATopic) {
  const auto run = [](const char* document_layers) {
    return TrainingRun(documents_config({{"model.name", "hibert"},
                                         {"task", "topic-docs"},
                                         {"steps", "1000"},
                                         {"model.vocab", "64"},
                                         {"model.document_layers", document_layers}}),
                       "");
  };
  const TrainingRun whole = run("2");
  EXPECT_EQ(whole.config.optimizer.lr, 1e-3);
  EXPECT_EQ(whole.config.schedule.warmup, 200);
  EXPECT_EQ(whole.config.batch, 16);
  train_documents(whole);
  const auto [first, all] = masked_losses(whole);
  EXPECT_LT(first, 0.05);
  EXPECT_LT(all, 0.05);
  const TrainingRun alone = run("0");
  train_documents(alone);
  const auto [topic, tokens] = masked_losses(alone);
  EXPECT_GT(topic, 0.98 * std::log(16.0));
  EXPECT_GT(tokens, 0.98 * std::log(16.0) / 4);
}

TEST(Hibert, LabelsMoreWithPreTrainingThanWithout) {
  const TrainingRun pretrained(documents_config({{"model.name", "hibert"},
                                                 {"task", "topic-labels"},
                                                 {"steps", "2000"},
                                                 {"model.vocab", "64"}}),
                               "");
  train_documents(pretrained);
  double right[2] = {};
  for (const bool from : {false, true}) {
    const TrainingRun run(documents_config({{"model.name", "hibert:labels"},
                                            {"task", "topic-labels"},
                                            {"steps", "200"},
                                            {"documents", "200"},
                                            {"model.vocab", "64"}}),
                          "");
    if (from) start_from(*run.model, *pretrained.model, 0);
    train_documents(run);
    const auto opened = open_task_data(run);
    const TaskData& data = *opened;
    EXPECT_EQ(data.size("train"), 200);
    const TaskData::Evaluation found = data.evaluate("valid");
    EXPECT_EQ(found.report.figures[0].name, "accuracy");
    right[from ? 1 : 0] = found.report.figures[0].value.number();
  }
  std::printf("pre-trained %.2f %%, from scratch %.2f %%\n", right[1], right[0]);
  EXPECT_GT(right[1], 95);
  EXPECT_GT(right[1], right[0]);
}

/// Eight articles of 12 sentences of random words in the folder, and summaries that three of the
/// sentences resemble.
void write_articles(const Folder& folder) {
  std::ofstream articles(folder / "train.article"), summaries(folder / "train.summary");
  for (uint64_t d = 0; d < 8; ++d) {
    for (uint64_t i = 0; i < 12; ++i) {
      std::string sentence;
      for (uint64_t j = 0; j < 6; ++j) {
        const auto word = static_cast<int>(philox_word(d, 6 * i + j) % 60);
        sentence += fmt::format("{}{} ", static_cast<char>('a' + word % 26), word);
        if (i % 4 == d % 4 && j < 5) summaries << sentence.substr(sentence.rfind(' ', 1) + 1);
      }
      articles << (i > 0 ? "<S_SEP> " : "") << sentence;
      if (i % 4 == d % 4) summaries << (i < 8 ? "<S_SEP> " : "");
    }
    articles << "\n";
    summaries << "\n";
  }
}

// Texts of this test's own; bench/learning.sh hibert-overfit learns eight of wiki-leads by heart.
TEST(Hibert, LearnsTheOracleOfEightDocumentsByHeart) {
  const Folder folder;
  write_articles(folder);
  const TrainingRun run(documents_config({{"model.name", "hibert:labels"},
                                          {"task", "documents"},
                                          {"data", "documents=" + folder.path()},
                                          {"steps", "150"},
                                          {"batch", "8"},
                                          {"model.sentence_length", "32"},
                                          {"schedule.warmup", "20"},
                                          {"optimizer.lr", "2e-3"},
                                          {"model.vocab", "260"}}),
                        "");
  const auto opened = open_task_data(run);
  auto& data = dynamic_cast<DocumentData&>(*opened);
  EXPECT_EQ(data.size("train"), 8);
  EXPECT_EQ(data.size("valid"), 0);
  const ExtractScores before = data.extract_scores("train");
  EXPECT_GT(before.oracle.rouge1, before.extracts.rouge1 + 0.05);
  EXPECT_GT(before.oracle.rouge1, before.lead.rouge1);
  train_documents(run);
  const ExtractScores after = data.extract_scores("train");
  EXPECT_EQ(after.extracts.documents, 8);
  EXPECT_EQ(after.oracle.rouge1, before.oracle.rouge1);
  EXPECT_NEAR(after.extracts.rouge1, after.oracle.rouge1, 0.02);
}

/// Returns a run over the articles of a folder.
RunConfig over(const Folder& folder, const std::string& model,
               std::initializer_list<std::pair<const char*, std::string>> more = {}) {
  RunConfig c = documents_config({{"model.name", model},
                                  {"task", "documents"},
                                  {"data", "documents=" + folder.path()},
                                  {"batch", "2"},
                                  {"model.vocab", "260"}});
  Settings settings;
  for (const auto& [key, value] : more) settings.push_back({key, Json(value), "--set", true});
  set_fields(c, settings);
  return c;
}

TEST(DocumentData, LongDocumentsAreReadInPiecesAndScoredWhole) {
  const Folder folder;
  write_bytes(folder / "train.article", "a <S_SEP> bc <S_SEP> def <S_SEP> g <S_SEP> hi\n\njkl\n");
  write_bytes(folder / "train.summary", "bc\nx\njkl\n");
  const TrainingRun run(over(folder, "hibert:labels", {{"extracts.chunk", "2"}}), "");
  const auto opened = open_task_data(run);
  const TaskData& data = *opened;
  EXPECT_EQ(data.size("train"), 4);  // 2 + 2 + 1 sentences, and 1
  ASSERT_EQ(data.warnings().size(), 1u);
  EXPECT_TRUE(contains(data.warnings()[0], "1 of 3 documents of the train part have no sentences"));
  const auto& model = need<ReadsDocuments>(*run.model);
  TokenDocument document;
  for (int32_t i = 0; i < 5; ++i) document.sentences.push_back({i, 258});
  const std::vector<double> all = sentence_scores(model, document, 2);
  ASSERT_EQ(all.size(), 5u);
  TokenDocument last{{{4, 258}}};
  EXPECT_EQ(sentence_scores(model, last, 2)[0], all[4]);
  EXPECT_NE(sentence_scores(model, document, 5)[4], all[4]);
}

TEST(DocumentData, NamesWhatIsMissingOrCut) {
  const Folder folder;
  write_bytes(folder / "train.article", "abcdefghijklmno <S_SEP> b\n");
  const std::string message = message_of<ValueError>([&] {
    const TrainingRun run(over(folder, "hibert:labels"), "");
    open_task_data(run)->prepare();
  });
  const std::string name = "documents=" + folder.path();
  EXPECT_TRUE(contains(message, "document 0 of " + name + " has neither labels nor a summary"))
      << message;
  const std::string pairs = message_of<ValueError>([&] {
    const TrainingRun run(over(folder, "led:tiny"), "");
    open_task_data(run)->prepare();
  });
  EXPECT_TRUE(contains(pairs, "none of the 1 training documents of " + name + " has a summary"))
      << pairs;
  {
    const TrainingRun run(over(folder, "hibert"), "");
    const auto opened = open_task_data(run);
    TaskData& data = *opened;
    data.prepare();  // sentences can be written without labels
    ASSERT_EQ(data.warnings().size(), 1u);
    EXPECT_TRUE(
        contains(data.warnings()[0], "1 of 2 sentences of the train part have more than 11"));
    EXPECT_TRUE(std::isnan(data.bits("valid")));
    EXPECT_GT(data.bits("train"), 0);
    EXPECT_EQ(data.bits("train"), data.bits("train"));
    EXPECT_EQ(data.evaluate("train").report.figures[0].name, "accuracy");
  }
  const auto refused = [&](std::initializer_list<std::pair<const char*, std::string>> values) {
    return message_of<Error>([&] {
      const TrainingRun run(documents_config(values), "");
      open_task_data(run);
    });
  };
  EXPECT_TRUE(contains(refused({{"model.name", "hibert"},
                                {"task", "documents"},
                                {"data", "documents=" + folder.path()},
                                {"model.vocab", "259"}}),
                       "got 259; bytes has 256 tokens, and 4 more mark sentences"));
  EXPECT_TRUE(
      contains(refused({{"model.name", "hibert"}, {"task", "topic-docs"}, {"model.vocab", "40"}}),
               "expected 45 or more"));
  EXPECT_TRUE(contains(refused({{"model.name", "transformer:tiny"}, {"task", "topic-docs"}}),
                       "choose hibert"));
  EXPECT_TRUE(contains(refused({{"model.name", "hibert"},
                                {"task", "documents"},
                                {"data", "documents=" + folder.path()},
                                {"target_length", "9"}}),
                       "is for encoder-decoders such as led, and hibert is none"));
  EXPECT_TRUE(
      contains(refused({{"model.name", "hibert"}, {"task", "topic-docs"}, {"model.labels", "3"}}),
               "got 3; expected 2"));
}

}  // namespace
}  // namespace longspan::test
