// Spans that heads learn, in runs of the program.
#include "models/adaptive_span/adaptive_span.h"
#include "app/make_config.h"

#include <gtest/gtest.h>

#include "app/training_steps.h"
#include "tests/harness/model_info.h"
#include "tests/harness/scratch.h"

namespace longspan::test {
namespace {

/// A run over 3,000 bytes in this folder, with other values for some keys.
RunConfig adaptive_span_config(const Folder& folder, const std::string& model,
                               const std::vector<std::pair<const char*, const char*>>& more) {
  std::string bytes;
  for (int i = 0; i < 3000; ++i) {
    bytes += static_cast<char>('a' + philox_word(3, i % 97) % 16);
  }
  write_bytes(folder.path() + "/text", bytes);
  Settings settings;
  const auto set = [&](const char* key, const std::string& value) {
    settings.push_back({key, Json(value), key, true});
  };
  set("task", "bytes");
  set("data", "bytes=" + folder.path() + "/text");
  set("model.name", model);
  set("model.vocab", "256");
  set("length", "6");
  set("batch", "2");
  set("steps", "4");
  for (const auto& [key, value] : more) set(key, value);
  return make_config(settings);
}

TEST(AdaptiveSpanRuns, PresetsOfThePaperClipTheStepsOfAdagrad) {
  const Folder folder;
  const RunConfig paper = adaptive_span_config(folder, "adaptive_span:enwik8_12", {});
  EXPECT_EQ(paper.optimizer.name, OptimizerName::adagrad);
  EXPECT_EQ(paper.optimizer.step_clip, 0.03);
  EXPECT_EQ(paper.optimizer.clip, 0);
  EXPECT_EQ(paper.schedule.warmup, 32'000);
  const RunConfig small = adaptive_span_config(folder, "adaptive_span", {});
  EXPECT_EQ(small.optimizer.name, OptimizerName::adam);
  EXPECT_EQ(small.optimizer.step_clip, 0);
}

// A step of 1 takes every span to an end; the next forward pass computes what it says.
TEST(AdaptiveSpanRuns, SpansStayBetweenTheirEnds) {
  const Folder folder;
  for (const char* penalty : {"0", "10"}) {
    TrainingRun run(adaptive_span_config(folder, "adaptive_span:tiny",
                                         {{"optimizer.name", "sgd"},
                                          {"optimizer.momentum", "0"},
                                          {"model.span_init", "0.5"},
                                          {"model.span_penalty", penalty}}),
                    "");
    const auto data = open_task_data(run);
    const auto optimizer = make_optimizer(run.config.optimizer, named_parameters(*run.model));
    std::vector<SegmentMemory> memories{empty_memory(*run.model, 2)};
    TrainingSteps steps(run, *data, *optimizer, memories);
    data->prepare();
    const auto& model = dynamic_cast<const AdaptiveSpan&>(*run.model);
    EXPECT_EQ(model.average_span(), 5);  // z = 3 and R = 2
    for (int64_t step = 0; step < 3; ++step) {
      steps.gradients(step, 4, 1);
      steps.update(step, 1);
      for (const NamedTensor& p : named_parameters(*run.model)) {
        if (!p.name.ends_with(".span")) continue;
        for (const float x : p.tensor.to_vector<float>()) {
          EXPECT_GE(x, 0) << p.name;
          EXPECT_LE(x, 1) << p.name;
        }
      }
    }
    if (std::string_view(penalty) == "10") {
      EXPECT_EQ(model.average_span(), 2);
    } else {
      EXPECT_NE(model.average_span(), 5);
    }
  }
}

}  // namespace
}  // namespace longspan::test
