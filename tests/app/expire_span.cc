// Memories that expire, in runs of the program.
#include "models/expire_span/expire_span.h"
#include "app/make_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "app/step.h"
#include "app/training.h"
#include "app/training_steps.h"
#include "ops/copy.h"
#include "tests/app/small_runs.h"
#include "tests/app/stepped_run.h"
#include "tests/harness/device.h"
#include "tests/harness/model_info.h"
#include "tests/harness/scratch.h"
#include "train/log.h"
#include "train/plot.h"
#include "train/state.h"

namespace longspan::test {
namespace {

/// A run over 3,000 bytes in this folder, in segments of 6, with other values for some keys.
RunConfig expire_span_config(const Folder& folder,
                             const std::vector<std::pair<const char*, const char*>>& more = {},
                             bool penalty = true) {
  Settings settings;
  const auto set = [&](const char* key, const std::string& value) {
    settings.push_back(typed(key, value));
  };
  set("task", "bytes");
  set("data", "bytes=" + text_in(folder, 3000));
  set("model.name", "expire_span:tiny");
  set("model.vocab", "256");
  if (penalty) set("model.span_penalty", "1e-3");
  set("length", "6");
  set("batch", "3");
  set("steps", "8");
  set("log_every", "1");
  set("eval_every", "0");
  for (const auto& [key, value] : more) set(key, value);
  return make_config(settings);
}

std::vector<std::vector<double>> memory_in_f64(const SegmentMemory& memory) {
  std::vector<std::vector<double>> all;
  for (const NamedTensor& t : named_tensors(memory)) {
    all.push_back(to_device(cast(t.tensor.detach(), DType::f64), {}).to_vector<double>());
  }
  return all;
}

// Which memories stay is decided on the device, in steps that the host only replays.
TEST(ExpireSpanRuns, HaveTheSameBitsInRecordedSteps) {
  if (!is_available(cuda)) GTEST_SKIP() << "skipped: no device";
  for (const char* overflow : {"error", "drop"}) {
    const Folder folder;
    const std::vector<std::pair<const char*, const char*>> options{
        {"device", "cuda"},
        {"model.overflow", overflow},
        {"model.shorten", "true"},
        {"length", "60"},
        {"batch", "15"},  // three segments in each stream, then the next epoch begins
        {"model.max_memory", std::string_view(overflow) == "drop" ? "5" : "0"}};
    RunConfig graph = expire_span_config(folder, options);
    graph.graph = true;
    SteppedRun replayed(std::move(graph)), plain(expire_span_config(folder, options));
    for (int64_t step = 0; step < 7; ++step) {
      EXPECT_EQ(replayed.take(step), plain.take(step)) << step;
    }
    EXPECT_EQ(replayed.steps.refusal(), "");
    EXPECT_EQ(memory_in_f64(replayed.memories[0]), memory_in_f64(plain.memories[0]));
  }
}

TEST(ExpireSpanRuns, BeginAnewWithTheNextEpoch) {
  for (const char* phantom : {"0", "4"}) {
    const Folder folder;
    SteppedRun r(expire_span_config(
        folder, {{"length", "60"}, {"batch", "15"}, {"model.phantom_zero_memory", phantom}}));
    r.take(0);
    const SegmentMemory empty = empty_memory(*r.run.model, 15);
    EXPECT_NE(memory_in_f64(r.memories[0]), memory_in_f64(empty));
    int64_t step = 1;
    while (!r.data->reset(step)) ++step;
    EXPECT_EQ(memory_in_f64(forget(r.memories[0], r.data->reset(step))), memory_in_f64(empty));
  }
}

// A span of 3.6 with a ramp of 3 is seen for 6 steps: at first all 6 tokens of a segment live.
TEST(ExpireSpanRuns, LogHowManyMemoriesLive) {
  const Folder folder, out;
  train_run(expire_span_config(folder), out.path());
  std::vector<double> living;
  for (const Json& row : read_rows(out / "metrics.jsonl")) {
    if (const Json* rows = row.find("living_memories")) living.push_back(rows->number());
  }
  ASSERT_EQ(living.size(), 8u);
  EXPECT_NEAR(living[0], 6, 0.5);
  for (const double rows : living) {
    EXPECT_GT(rows, 2);
    EXPECT_LE(rows, 14);
  }
  EXPECT_TRUE(is_own_picture(out / "pictures/living.png"));
  EXPECT_TRUE(is_own_picture(out / "pictures/lifetimes.png"));
}

TEST(ExpireSpanRuns, DrawNoLivesOfMemoriesThatDoNotEnd) {
  const Folder folder, out;
  train_run(expire_span_config(folder, {{"model.name", "transformer_xl:tiny"}}, false), out.path());
  for (const Json& row : read_rows(out / "metrics.jsonl")) {
    EXPECT_EQ(row.find("living_memories"), nullptr);
  }
  EXPECT_FALSE(is_own_picture(out / "pictures/living.png"));
  EXPECT_FALSE(is_own_picture(out / "pictures/lifetimes.png"));
}

TEST(ExpireSpanRuns, ResumeWithTheSameBits) {
  const Folder folder, whole, parts;
  RunConfig config = expire_span_config(folder);
  config.save_every = 5;
  train_run(std::move(config), whole.path());
  std::filesystem::create_directories(parts / "checkpoints");
  std::filesystem::copy(whole / "checkpoints/step-5", parts / "checkpoints/step-5",
                        std::filesystem::copy_options::recursive);
  train_run(expire_span_config(folder), parts.path(), parts / "checkpoints/step-5");
  for (const char* file : {"model", "optimizer"}) {
    const std::string name = fmt::format("checkpoints/step-8/{}.safetensors", file);
    EXPECT_FALSE(read_bytes(whole / name).empty());
    EXPECT_EQ(read_bytes(whole / name), read_bytes(parts / name)) << name;
  }
}

TEST(ExpireSpanRuns, NeedTheMemoryThatWasPredicted) {
  const Folder folder;
  for (const char* policy : {"standard", "checkpoint"}) {
    RunConfig config = expire_span_config(folder, {{"model.memory", policy}});
    StepPlanner planner(config);
    const StepMemory predicted = planner.step(planner.own()),
                     measured = planner.step(planner.own(), Device{});
    EXPECT_EQ(predicted.peak(), measured.peak());
    EXPECT_EQ(predicted.at_peak[Category::memory], measured.at_peak[Category::memory]);
  }
}

// Which layers will be left out is not known: what is predicted is enough for all of them.
TEST(ExpireSpanRuns, NeedNoMoreWhereLayersAreLeftOut) {
  const Folder folder;
  RunConfig config = expire_span_config(folder, {{"model.layer_drop", "0.5"}}),
            whole = expire_span_config(folder);
  StepPlanner planner(config), all(whole);
  EXPECT_EQ(planner.step(planner.own()).peak(), all.step(all.own()).peak());
  EXPECT_LE(planner.step(planner.own(), Device{}).peak(), planner.step(planner.own()).peak());
}

TEST(ExpireSpanRuns, AreScoredWithTheirMemory) {
  const Folder folder;
  const TrainingRun run(expire_span_config(folder), "");
  const auto data = open_task_data(run);
  EXPECT_TRUE(std::isfinite(data->bits("valid")));
  EXPECT_EQ(data->protocol("valid"), "segments of 6 tokens after a memory of 14, in 1 stream");
}

}  // namespace
}  // namespace longspan::test
