#pragma once

// Runs of tests over a short text, whole or step by step.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "app/step.h"
#include "app/training.h"
#include "app/training_steps.h"
#include "core/generator.h"
#include "tests/harness/scratch.h"

namespace longspan::test {

/// Writes so many bytes that repeat slowly, and returns the path of the file.
inline std::string text_in(const Folder& folder, int size = 6000) {
  std::string bytes;
  for (int i = 0; i < size; ++i) {
    bytes += static_cast<char>('a' + philox_word(3, i % 97 + i / 1000 * 7) % 16);
  }
  write_bytes(folder / "text", bytes);
  return folder / "text";
}

/// Runs `longspan train` into a folder, from a checkpoint in it if one is given.
inline void train_run(RunConfig config, const std::string& out,
                      const std::string& checkpoint = {}) {
  Beginning from{
      .out = out, .checkpoint = checkpoint, .newest = checkpoint, .resume = !checkpoint.empty()};
  Prepared prepared(std::move(from), {.config = std::move(config)});
  Training(prepared).run();
}

/// A run whose steps the test takes one by one.
struct SteppedRun {
  explicit SteppedRun(RunConfig config)
      : run(std::move(config), ""),
        data(open_task_data(run)),
        optimizer(make_optimizer(run.config.optimizer, named_parameters(*run.model))),
        steps(run, *data, *optimizer, memories) {
    data->prepare();
    for (int64_t i = 0; i < run.config.accumulate; ++i) {
      memories.push_back(empty_memory(*run.model, run.config.batch));
    }
  }
  double take(int64_t step) {
    const double loss = steps.gradients(step, 8, 1).loss;
    clip_gradients(*optimizer, run.config.optimizer.clip);
    steps.update(step, 1e-2);
    return loss;
  }

  TrainingRun run;
  std::unique_ptr<TaskData> data;
  std::unique_ptr<Optimizer> optimizer;
  std::vector<SegmentMemory> memories;
  TrainingSteps steps;
};

}  // namespace longspan::test
