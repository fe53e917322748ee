// Runs whose parameters are updated after several steps (optimizer.update_period).
#include <gtest/gtest.h>

#include <filesystem>
#include <tuple>

#include "app/make_config.h"
#include "app/step.h"
#include "app/training.h"
#include "app/training_steps.h"
#include "autograd/node.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "tests/app/small_runs.h"
#include "tests/app/stepped_run.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "tests/harness/scratch.h"
#include "train/state.h"

namespace longspan::test {
namespace {

RunConfig period_config(const Folder& folder, int64_t period, int64_t from = 0,
                        int64_t accumulate = 1) {
  const auto text = [](int64_t x) { return std::to_string(x); };
  return make_config(
      {typed("task", "bytes"), typed("data", "bytes=" + text_in(folder)),
       typed("model.name", "compressive:tiny"), typed("model.vocab", "256"), typed("length", "6"),
       typed("batch", "3"), typed("steps", "10"), typed("accumulate", text(accumulate)),
       typed("log_every", "1"), typed("eval_every", "0"), typed("schedule.warmup", "3"),
       typed("optimizer.update_period", text(period)), typed("optimizer.update_from", text(from))});
}

struct SteppedPeriod : SteppedRun {
  using SteppedRun::SteppedRun;
  /// Returns the gradients that would be taken after these steps, and clears them.
  std::vector<Tensor> gradients(int64_t first, int64_t count) {
    StepResult last;
    for (int64_t step = first; step < first + count; ++step) {
      last = steps.gradients(step, 10, 1);
      steps.pass_memories_on();
    }
    std::vector<Tensor> all;
    for (const NamedTensor& p : named_parameters(*run.model)) {
      const Tensor g = grad(p.tensor);
      all.push_back(g ? mul(g, last.rescale) : zeros_like(p.tensor.detach()));
    }
    optimizer->clear_gradients();
    return all;
  }
};

void expect_equal_memories(const SteppedPeriod& a, const SteppedPeriod& b) {
  for (size_t i = 0; i < a.memories.size(); ++i) {
    const TensorList x = named_tensors(a.memories[i]), y = named_tensors(b.memories[i]);
    ASSERT_EQ(x.size(), y.size());
    for (size_t j = 0; j < x.size(); ++j) EXPECT_TRUE(same_bits(x[j].tensor, y[j].tensor));
  }
}

TEST(Compressive, AnUpdateTakesTheMeanOfTheGradientsOfItsSteps) {
  for (const int64_t accumulate : {1, 2}) {
    const Folder folder;
    SteppedPeriod one(period_config(folder, 1, 0, accumulate)),
        three(period_config(folder, 3, 0, accumulate));
    for (int64_t first = 0; first < 9; first += 3) {
      std::vector<Tensor> mean;
      for (int64_t step = first; step < first + 3; ++step) {
        const std::vector<Tensor> g = one.gradients(step, 1);
        for (size_t i = 0; i < g.size(); ++i) {
          const Tensor part = div(g[i], 3);
          if (step == first) {
            mean.push_back(part);
          } else {
            mean[i] = add(mean[i], part);
          }
        }
      }
      const std::vector<Tensor> together = three.gradients(first, 3);
      for (size_t i = 0; i < mean.size(); ++i) EXPECT_LT(distance(together[i], mean[i]), 1e-6);
    }
    expect_equal_memories(one, three);
  }
}

TEST(Compressive, WithoutLearningMemoriesDoNotDependOnThePeriod) {
  const Folder folder;
  SteppedPeriod one(period_config(folder, 1)), four(period_config(folder, 4));
  for (int64_t step = 0; step < 9; ++step) {
    for (SteppedPeriod* r : {&one, &four}) {
      r->steps.gradients(step, 10, 1);
      if (r->run.config.optimizer.period().waits(step + 1)) {
        r->steps.pass_memories_on();
      } else {
        r->steps.update(step, 0);
      }
    }
    expect_equal_memories(one, four);
  }
}

TEST(UpdatePeriod, BeginsWithTheStepThatIsAskedFor) {
  const UpdatePeriod p{.every = 3, .from = 2};
  std::vector<int64_t> updates, sizes;
  for (int64_t step = 0; step < 9; ++step) {
    if (!p.waits(step + 1)) updates.push_back(step);
    sizes.push_back(p.at(step));
  }
  EXPECT_EQ(updates, (std::vector<int64_t>{0, 1, 4, 7}));
  EXPECT_EQ(sizes, (std::vector<int64_t>{1, 1, 3, 3, 3, 3, 3, 3, 3}));
}

TEST(UpdatePeriod, RunsUpdateTheirParametersAccordinglyAndResumeBetweenUpdates) {
  for (const int64_t accumulate : {1, 2}) {
    const Folder folder, whole, parts;
    RunConfig config = period_config(folder, 3, 2, accumulate);
    config.save_every = 1;
    train_run(std::move(config), whole.path());
    const auto bits = [](const std::string& out, int64_t step, const char* file) {
      return read_bytes(out + fmt::format("/checkpoints/step-{}/{}.safetensors", step, file));
    };
    for (int64_t step = 1; step < 10; ++step) {  // checkpoints of before and after step `step`
      const bool updated =
          bits(whole.path(), step, "model") != bits(whole.path(), step + 1, "model");
      EXPECT_EQ(updated, !(UpdatePeriod{3, 2}.waits(step + 1))) << step;
    }
    std::filesystem::create_directories(parts / "checkpoints");
    std::filesystem::copy(whole / "checkpoints/step-7", parts / "checkpoints/step-7",
                          std::filesystem::copy_options::recursive);
    train_run(period_config(folder, 3, 2, accumulate), parts.path(), parts / "checkpoints/step-7");
    for (const char* file : {"model", "optimizer"}) {
      EXPECT_FALSE(bits(whole.path(), 10, file).empty());
      EXPECT_EQ(bits(whole.path(), 10, file), bits(parts.path(), 10, file)) << file;
    }
  }
}

/// Trains to step 10 from the checkpoint of a step between two updates, with other settings, and
/// returns the parameters after `last` steps.
TensorList gone_on(const std::string& whole, int64_t step, int64_t last, RunConfig config) {
  const Folder parts;
  const std::string place = checkpoint_path(parts.path(), step);
  std::filesystem::create_directories(place);
  std::filesystem::copy(checkpoint_path(whole, step), place);
  config.save_every = 1;
  train_run(std::move(config), parts.path(), place);
  return read_tensors(checkpoint_path(parts.path(), last) + "/model.safetensors");
}

double farthest(const TensorList& a, const TensorList& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, distance(a[i].tensor, b[i].tensor));
  return most;
}

// Gradients of before and after the cut have the same weight, whatever they were multiplied by.
TEST(UpdatePeriod, GradientsThatWaitMayBeOfOtherBatchesAndScales) {
  const Folder whole;
  const SmallData data;
  const auto config = [&](int64_t batch, int64_t accumulate, double scale) {
    RunConfig c = make_config(small_run(data, "local_transformer"));
    set_fields(*c.model, {{"dropout", Json(0.0), ""}});  // drawn for each batch
    c.batch = batch;
    c.accumulate = accumulate;
    c.optimizer.update_period = 3;
    c.optimizer.loss_scale = scale;
    c.save_every = 1;
    return c;
  };
  train_run(config(2, 1, 1), whole.path());
  const TensorList before = read_tensors(checkpoint_path(whole.path(), 2) + "/model.safetensors"),
                   after = read_tensors(checkpoint_path(whole.path(), 3) + "/model.safetensors");
  const double moved = farthest(before, after);
  EXPECT_GT(moved, 1e-6);
  for (const auto& [batch, accumulate, scale] :
       {std::tuple{1, 2, 1.0}, std::tuple{2, 1, 64.0}, std::tuple{2, 1, 1 / 64.0}}) {
    const TensorList other = gone_on(whole.path(), 2, 3, config(batch, accumulate, scale));
    EXPECT_LT(farthest(after, other), 1e-3 * moved) << accumulate << ", " << scale;
  }
}

// A run may go on with another period, from any step.
TEST(UpdatePeriod, MayBeAnotherAfterACut) {
  const Folder folder, whole;
  RunConfig config = period_config(folder, 3, 2);
  config.save_every = 1;
  train_run(std::move(config), whole.path());
  testing::internal::CaptureStderr();
  gone_on(whole.path(), 7, 10, period_config(folder, 1));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(said, "the gradients that waited for an update after step 7 are left out"))
      << said;
  const Folder often;
  RunConfig one = period_config(folder, 1);
  one.save_every = 1;
  train_run(std::move(one), often.path());
  // The first update takes the one step since the last, as that of the other period does.
  const TensorList before = read_tensors(checkpoint_path(often.path(), 7) + "/model.safetensors"),
                   after = read_tensors(checkpoint_path(often.path(), 8) + "/model.safetensors");
  EXPECT_LT(farthest(after, gone_on(often.path(), 7, 8, period_config(folder, 3, 2))),
            1e-3 * farthest(before, after));
}

TEST(UpdatePeriod, NeedsTheMemoryThatWasPredicted) {
  const Folder folder;
  RunConfig config = period_config(folder, 3), often = period_config(folder, 1);
  StepPlanner planner(config), other(often);
  const StepMemory predicted = planner.step(planner.own()),
                   measured = planner.step(planner.own(), Device{});
  EXPECT_EQ(predicted.peak(), measured.peak());
  EXPECT_GT(measured.forward_peak, other.step(other.own(), Device{}).forward_peak);
}

TEST(UpdatePeriod, IsPartOfThePaperPreset) {
  const auto typed = [](const char* key, const char* value) {
    return Setting{key, Json(std::string(value)), key, true};
  };
  const RunConfig c = make_config({typed("model.name", "compressive:enwik8")});
  EXPECT_EQ(c.optimizer.update_period, 4);
  EXPECT_EQ(c.optimizer.update_from, 60'000);
  EXPECT_EQ(c.optimizer.clip, 0.1);
}

}  // namespace
}  // namespace longspan::test
