// State that models learn without gradients, in runs of the program: once for each update, under
// every policy, in recorded steps, in checkpoints and in what is predicted.
#include <gtest/gtest.h>

#include <filesystem>

#include "app/pictures.h"
#include "app/step.h"
#include "app/training_steps.h"
#include "core/graph.h"
#include "models/convert.h"
#include "models/evaluate.h"
#include "tests/app/clusters_run.h"
#include "tests/harness/device.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "tests/harness/scratch.h"
#include "train/state.h"

namespace longspan::test {
namespace {

/// A run whose steps the test takes one by one.
struct SteppedClusters {
  explicit SteppedClusters(RunConfig config)
      : run(std::move(config), ""),
        data(open_task_data(run)),
        optimizer(make_optimizer(run.config.optimizer, named_parameters(*run.model))),
        steps(run, *data, *optimizer, memories) {
    data->prepare();
  }
  void gradients(int64_t step) { steps.gradients(step, 6, 1); }
  void update(int64_t step) {
    clip_gradients(*optimizer, run.config.optimizer.clip);
    steps.update(step, 1e-2);
  }
  /// Takes steps from the first to `count`.
  void take(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      gradients(i);
      if (!run.config.optimizer.period().waits(i + 1)) update(i);
    }
  }
  /// Returns the values of all that later steps depend on, by name.
  std::vector<std::pair<std::string, std::vector<float>>> state() const {
    TensorList all = named_state(*run.model);
    for (NamedTensor& t : optimizer->state()) all.push_back(std::move(t));
    std::vector<std::pair<std::string, std::vector<float>>> values;
    for (const NamedTensor& t : all) {
      if (t.tensor.dtype() != DType::f32) continue;
      values.emplace_back(t.name, t.tensor.detach().to_vector<float>());
    }
    return values;
  }
  /// Expects that each layer has counted so many updates.
  void expect_updates(double count) const {
    int layers = 0;
    for (const NamedTensor& b : named_buffers(*run.model)) {
      if (!b.name.ends_with("updates")) continue;
      ++layers;
      EXPECT_EQ(b.tensor.item(), count) << b.name;
    }
    EXPECT_EQ(layers, 3);
  }

  TrainingRun run;
  std::unique_ptr<TaskData> data;
  std::unique_ptr<Optimizer> optimizer;
  std::vector<SegmentMemory> memories;
  TrainingSteps steps;
};

RunConfig with_policy(const char* policy) {
  ClusterConfig model;
  model.memory = policy;
  return clusters_config(model);
}

TEST(StateOutsideGradients, IsTheSameUnderEveryPolicy) {
  const std::pair<const char*, const char*> pairs[] = {
      {"checkpoint", "standard"},
      {"checkpoint:2", "standard"},
      {"lean", "standard"},
      {"selective", "standard"},
      {"reversible:exact", "reversible:exact:stored"}};
  for (const auto& [policy, kept] : pairs) {
    SCOPED_TRACE(policy);
    SteppedClusters found(with_policy(policy)), expected(with_policy(kept));
    const auto before = found.state();
    found.take(4);
    expected.take(4);
    EXPECT_EQ(found.state(), expected.state());
    EXPECT_NE(found.state(), before);
    found.expect_updates(4);
  }
}

// Two batches of 4 samples are the batch of 8 with the same samples, up to rounding.
TEST(StateOutsideGradients, SumsOverTheBatchesOfAStep) {
  ClusterConfig model;
  model.dropout = 0;
  RunConfig halves = clusters_config(model), whole = clusters_config(model);
  whole.accumulate = 1;
  whole.batch = 8;
  SteppedClusters a(std::move(halves)), b(std::move(whole));
  a.gradients(0);
  b.gradients(0);
  a.update(0);
  b.update(0);
  const TensorList of_a = named_buffers(*a.run.model), of_b = named_buffers(*b.run.model);
  for (size_t i = 0; i < of_a.size(); ++i) {
    EXPECT_LT(distance(of_a[i].tensor, of_b[i].tensor), 1e-5) << of_a[i].name;
  }
  a.expect_updates(1);
}

TEST(StateOutsideGradients, IgnoresStepsWithoutAnUpdateAndEvaluation) {
  SteppedClusters a(clusters_config()), b(clusters_config());
  a.gradients(0);
  a.optimizer->clear_gradients();  // as when a loss scale skips the step
  const auto before = a.state();
  a.data->bits("valid");
  a.steps.loss_of(3);
  EXPECT_EQ(a.state(), before);
  a.expect_updates(0);
  for (SteppedClusters* r : {&a, &b}) {
    r->gradients(1);
    r->update(1);
  }
  EXPECT_EQ(a.state(), b.state());
}

TEST(StateOutsideGradients, HasTheSameBitsInRecordedSteps) {
  if (!is_available(cuda)) GTEST_SKIP() << "skipped: no device";
  const auto config = [](bool graph) {
    RunConfig c = clusters_config();
    c.device = "cuda";
    c.graph = graph;
    return c;
  };
  SteppedClusters replayed(config(true)), plain(config(false));
  std::vector<const void*> places;
  for (const NamedTensor& b : named_buffers(*replayed.run.model)) {
    places.push_back(b.tensor.view().data);
  }
  for (int64_t i = 0; i < 6; ++i) {
    const StepResult a = replayed.steps.gradients(i, 6, 1), b = plain.steps.gradients(i, 6, 1);
    EXPECT_EQ(a.loss, b.loss) << i;
    EXPECT_EQ(a.auxiliary, b.auxiliary) << i;
    replayed.update(i);
    plain.update(i);
    EXPECT_EQ(replayed.state(), plain.state()) << i;
  }
  EXPECT_EQ(replayed.steps.refusal(), "");
  EXPECT_EQ(replayed.steps.update_refusal(), "");
  replayed.expect_updates(6);
  EXPECT_THROW(Graph::record(cuda, [&] { end_step(*plain.run.model, 6, Generator{1}, {}); }),
               NotImplemented);  // a replay would repeat it
  plain.expect_updates(6);
  const TensorList buffers = named_buffers(*replayed.run.model);
  for (size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_EQ(buffers[i].tensor.view().data, places[i]) << buffers[i].name;
  }
}

TEST(StateOutsideGradients, IsInCheckpointsAndResumedToTheBit) {
  const Folder whole, parts;
  RunConfig config = clusters_config();
  config.save_every = 3;
  train_run(std::move(config), whole.path());
  std::filesystem::create_directories(parts / "checkpoints");
  std::filesystem::copy(whole / "checkpoints/step-3", parts / "checkpoints/step-3",
                        std::filesystem::copy_options::recursive);
  train_run(clusters_config(), parts.path(), parts / "checkpoints/step-3");
  for (const char* file : {"model", "optimizer"}) {
    const std::string name = fmt::format("checkpoints/step-6/{}.safetensors", file);
    EXPECT_FALSE(read_bytes(whole / name).empty());
    EXPECT_EQ(read_bytes(whole / name), read_bytes(parts / name)) << name;
  }
  int counted = 0;
  for (const NamedTensor& t : read_tensors(parts / "checkpoints/step-6/model.safetensors")) {
    if (!t.name.ends_with("clusters.updates")) continue;
    ++counted;
    EXPECT_EQ(t.tensor.item(), 6);
  }
  EXPECT_EQ(counted, 3);
}

TEST(StateOutsideGradients, MissingFromACheckpointIsAnError) {
  const Folder folder;
  const TrainingRun run(clusters_config(), "");
  write_state(folder.path(), 1, named_parameters(*run.model), {});
  const std::string message = message_of<IoError>(
      [&] { read_parameters(newest_checkpoint(folder.path()), named_state(*run.model)); });
  EXPECT_TRUE(contains(message, "stack.layers.0.clusters.centroids")) << message;
}

TEST(StateOutsideGradients, IsTakenFromAnotherRun) {
  SteppedClusters from(clusters_config()), to(clusters_config());
  from.take(3);
  TensorList into = named_buffers(*to.run.model);
  const void* const place = into[0].tensor.view().data;
  EXPECT_TRUE(start_from(*to.run.model, *from.run.model, 0).empty());
  const TensorList expected = named_state(*from.run.model), found = named_state(*to.run.model);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(same_bits(found[i].tensor, expected[i].tensor)) << found[i].name;
  }
  EXPECT_EQ(into[0].tensor.view().data, place);
}

TEST(StateOutsideGradients, IsPredicted) {
  for (const auto& [accumulate, period] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {2, 1}, {4, 1}, {9, 1}, {12, 1}, {18, 1}, {1, 2}, {2, 2}, {4, 2}, {12, 2}}) {
    SCOPED_TRACE(fmt::format("{} batches, {} steps", accumulate, period));
    ClusterConfig model;
    model.d_model = 64;
    RunConfig config = clusters_config(model);
    config.accumulate = accumulate;
    config.optimizer.update_period = period;
    config.batch = 32;
    const StepPlanner planner(config);
    const StepMemory predicted = planner.step(planner.own()),
                     measured = planner.step(planner.own(), Device{});
    EXPECT_EQ(predicted.parameter, measured.parameter);
    EXPECT_EQ(predicted.saved, measured.saved);
    EXPECT_EQ(predicted.forward_peak, measured.forward_peak);
    EXPECT_EQ(predicted.backward_peak, measured.backward_peak);
    EXPECT_EQ(predicted.update_peak, measured.update_peak);

    const int64_t before = memory_tracker().live().total();
    RunConfig same = clusters_config(model);
    same.accumulate = accumulate;
    same.optimizer.update_period = period;
    same.batch = 32;
    SteppedClusters run(std::move(same));
    int64_t bytes = 0;
    for (const NamedTensor& t : named_state(*run.run.model)) {
      bytes += memory::block_bytes(t.tensor.nbytes());
    }
    EXPECT_EQ(predicted.parameter, bytes);
    run.take(3);
    memory_tracker().reset_peak();
    run.take(1);
    const auto peak = static_cast<double>(memory_tracker().peak().total() - before);
    EXPECT_NEAR(static_cast<double>(predicted.peak()), peak, 0.02 * peak) << predicted.peak();
  }
}

// A model of one's own may have no attention.
TEST(Pictures, OfAModelWithoutAttentionMapsAreTheOthers) {
  const Folder folder;
  train_run(clusters_config(), folder / "run");
  EXPECT_TRUE(std::filesystem::exists(folder / "run/pictures/loss.png"));
  EXPECT_FALSE(std::filesystem::exists(folder / "run/pictures/attention.png"));
  const TrainingRun run(clusters_config(), folder / "run");
  const auto data = open_task_data(run);
  ASSERT_FALSE(data->first_tokens(12).empty());
  EXPECT_FALSE(draw_attention(run, *data));
}

}  // namespace
}  // namespace longspan::test
