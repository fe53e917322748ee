// Performers in runs of the program: projections in checkpoints, weights of a Transformer, and what
// a run says about its features.
#include "models/performer/performer.h"
#include "app/make_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "app/run_folder.h"
#include "app/training.h"
#include "app/training_steps.h"
#include "models/capabilities.h"
#include "ops/copy.h"
#include "tests/harness/device.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "tests/harness/scratch.h"
#include "train/state.h"

namespace longspan::test {
namespace {

using PerformerOptions = std::vector<std::pair<const char*, std::string>>;

RunConfig performer_config(const char* model, const PerformerOptions& more = {}) {
  Settings settings;
  const auto set = [&](const char* key, const std::string& value) {
    settings.push_back({key, Json(value), key, true});
  };
  set("task", "multi-query-recall");
  set("model.name", model);
  set("model.n_layer", "2");
  set("length", "16");
  set("batch", "3");
  set("steps", "6");
  set("log_every", "1");
  set("threads", "1");
  set("multi_query_recall.pairs", "2");
  set("multi_query_recall.held_out", "4");
  for (const auto& [key, value] : more) set(key, value);
  return make_config(settings);
}

/// Runs `longspan train` into a folder and returns the parameters and buffers in the end.
std::vector<std::vector<float>> trained_state(RunConfig config, const std::string& out,
                                              const std::string& checkpoint = {}) {
  Beginning from{
      .out = out, .checkpoint = checkpoint, .newest = checkpoint, .resume = !checkpoint.empty()};
  Prepared prepared(std::move(from), {.config = std::move(config)});
  Training(prepared).run();
  std::vector<std::vector<float>> all;
  for (const NamedTensor& t : named_state(*prepared.run.model)) {
    all.push_back(t.tensor.detach().to_vector<float>());
  }
  return all;
}

/// Steps 2 and 5 of six draw new projections; a run that goes on from step 4 has those of step 2.
TEST(PerformerRuns, CheckpointsRestoreProjections) {
  const Folder folder;
  const auto whole = trained_state(performer_config("performer:tiny"), folder.path() + "/whole");
  const PerformerOptions four{{"steps", "4"}, {"save_every", "4"}};
  const auto half =
      trained_state(performer_config("performer:tiny", four), folder.path() + "/half");
  EXPECT_NE(half, whole);
  const std::string checkpoint = newest_checkpoint(folder.path() + "/half");
  EXPECT_EQ(trained_state(performer_config("performer:tiny"), folder.path() + "/half", checkpoint),
            whole);
}

/// Steps that a device replays read the projections that were drawn since they were recorded.
TEST(PerformerRuns, HaveTheSameBitsInRecordedSteps) {
  if (!is_available(cuda)) GTEST_SKIP() << "skipped: no device";
  const auto trained = [&](bool graph) {
    RunConfig config = performer_config("performer:tiny", {{"device", "cuda"}});
    config.graph = graph;
    const TrainingRun run(std::move(config), "");
    const auto data = open_task_data(run);
    data->prepare();
    const auto optimizer = make_optimizer(run.config.optimizer, named_parameters(*run.model));
    std::vector<SegmentMemory> memories;
    TrainingSteps steps(run, *data, *optimizer, memories);
    std::vector<double> losses;
    for (int64_t step = 0; step < 8; ++step) {
      losses.push_back(steps.gradients(step, 8, 1).loss);
      steps.update(step, 1e-2);
    }
    EXPECT_EQ(steps.refusal(), "");
    for (const NamedTensor& b : named_buffers(*run.model)) {
      for (const float w : to_device(b.tensor, {}).to_vector<float>()) losses.push_back(w);
    }
    return losses;
  };
  EXPECT_EQ(trained(true), trained(false));
}

TEST(PerformerRuns, StartFromATransformer) {
  const Folder folder;
  const PerformerOptions same{{"model.positions", "sinusoid"}};
  trained_state(performer_config("transformer:tiny", same), folder.path() + "/transformer");
  RunConfig config = performer_config(
      "performer:tiny", {{"start.from", folder.path() + "/transformer"}, {"steps", "2"}});
  Prepared prepared({.out = folder.path() + "/performer"}, {.config = std::move(config)});
  ASSERT_TRUE(prepared.started.has_value());
  EXPECT_EQ(prepared.started->heads.size(), 2u);  // the projections, which are drawn anew
  Training(prepared).run();
}

TEST(PerformerRuns, ReportTheirFeatures) {
  const TrainingRun run(performer_config("performer:tiny"), "");
  const std::vector<std::string> lines = need<Remarks>(*run.model).report(some_tokens(1, 16, 17));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(contains(lines[1], "features of layer 1: |q|^2 ")) << lines[1];
  EXPECT_TRUE(contains(lines[1], "output differs from softmax by ")) << lines[1];
}

/// Proteins are scored by the share of residues that are right, too.
TEST(PerformerRuns, ScoreProteins) {
  for (const char* wiring : {"decoder", "encoder"}) {
    Settings settings;
    const PerformerOptions options{
        {"task", "proteins"},
        {"data", "proteins=" LONGSPAN_SOURCE_DIR "/data/samples/uniprot-500.fasta.gz"},
        {"model.name", "performer:tiny"},
        {"model.vocab", "27"},
        {"model.wiring", wiring},
        {"length", "2000"},
        {"batch", "1"},
        {"threads", "1"}};
    for (const auto& [key, value] : options) settings.push_back({key, Json(value), key, true});
    const TrainingRun run(make_config(settings), "");
    const auto data = open_task_data(run);
    const auto [bits, report] = data->evaluate("test");
    EXPECT_NEAR(bits, std::log2(27), 0.3);
    ASSERT_EQ(report.figures.size(), 1u);
    EXPECT_EQ(report.figures[0].name, "accuracy");
    EXPECT_GT(report.figures[0].value.number(), 0);
    EXPECT_LT(report.figures[0].value.number(), 15);
  }
}

}  // namespace
}  // namespace longspan::test
