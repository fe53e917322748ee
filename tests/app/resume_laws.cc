// A run that is cut after any of its steps and goes on has the bits of one that is not: for every
// model, update period, accumulation and dtype.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "models/all/registry.h"
#include "tests/app/small_runs.h"
#include "tests/harness/messages.h"
#include "train/log.h"
#include "train/state.h"

namespace longspan::test {
namespace {

struct Cut {
  int64_t period = 1, accumulate = 1;
  const char* dtype = "f32";
};

std::string name_of(std::string_view model, const Cut& cut) {
  return fmt::format("{}, update_period {}, accumulate {}, {}", model, cut.period, cut.accumulate,
                     cut.dtype);
}

/// Returns the rows of a run after a step, and what else its last checkpoint says of them, without
/// times, speeds and bytes.
std::string figures_after(const std::string& out, int64_t step, int64_t last) {
  std::string all;
  const auto add = [&](const Json& members, std::initializer_list<std::string_view> left_out) {
    Members kept;
    for (const JsonMember& m : members.object()) {
      if (std::find(left_out.begin(), left_out.end(), m.name) == left_out.end()) kept.push_back(m);
    }
    all += to_string(Json(std::move(kept))) + "\n";
  };
  for (const Json& row : read_rows(out + "/metrics.jsonl")) {
    if (row["step"].integer() <= step) continue;
    add(row, {"seconds", "tokens_per_second", "peak_bytes"});
  }
  add(read_values(checkpoint_path(out, last)), {"seconds", "peak_bytes", "schedule", "xxh3"});
  return all;
}

/// Trains once, then from each of the checkpoints but the last, and compares what they end with.
void expect_same_bits(const SmallData& data, std::string_view model, const Cut& cut,
                      const Settings& more = {}) {
  SCOPED_TRACE(name_of(model, cut));
  const int64_t steps = cut.period == 1 ? 3 : 2 * cut.period;
  Settings settings = small_run(data, model);
  settings.push_back(typed("steps", std::to_string(steps)));
  settings.push_back(typed("save_every", "1"));
  settings.push_back(typed("accumulate", std::to_string(cut.accumulate)));
  settings.push_back(typed("optimizer.update_period", std::to_string(cut.period)));
  settings.push_back(typed("model.precision", cut.dtype));
  settings.insert(settings.end(), more.begin(), more.end());
  const Folder whole;
  train_small(settings, whole.path());
  for (int64_t step = 1; step < steps; ++step) {
    SCOPED_TRACE(fmt::format("cut after step {}", step));
    const Folder parts;
    const std::string place = checkpoint_path(parts.path(), step);
    std::filesystem::create_directories(place);
    std::filesystem::copy(checkpoint_path(whole.path(), step), place);
    train_small(settings, parts.path(), place);
    for (const char* file : {"/model.safetensors", "/optimizer.safetensors"}) {
      const std::string expected = read_bytes(checkpoint_path(whole.path(), steps) + file);
      EXPECT_FALSE(expected.empty());
      EXPECT_EQ(expected == read_bytes(checkpoint_path(parts.path(), steps) + file), true) << file;
    }
    EXPECT_EQ(figures_after(whole.path(), step, steps), figures_after(parts.path(), step, steps));
  }
}

TEST(ResumeLaws, EveryModelGoesOnWithTheSameBits) {
  const SmallData data;
  const Cut cuts[] = {{2, 1, "f32"}, {2, 2, "f16"}, {3, 1, "bf16"}};
  size_t next = 0;
  for (const ModelEntry& entry : models()) expect_same_bits(data, entry.name, cuts[next++ % 3]);
  for (const Cut& cut : cuts) expect_same_bits(data, "routing", cut);
}

// Rows of later steps say what steps before the cut had: the largest error of an inversion since
// the last row, the norm of the last update, the loss of the last step with a target.
TEST(ResumeLaws, RowsAfterACutSayWhatTheyWouldHaveSaid) {
  const SmallData data;
  expect_same_bits(data, "transformer", {3, 1, "f32"},
                   {typed("model.memory", "reversible"), typed("log_every", "4")});
  expect_same_bits(data, "transformer_xl", {2, 1, "f32"},
                   {typed("task", "marked-recall"), typed("data", ""), typed("split", ""),
                    typed("marked_recall.length", "18"), typed("model.vocab", "64")});
}

/// Returns the numbers that a tensor file of the last checkpoint holds, and the steps left out.
std::pair<std::string, int64_t> end_of(const std::string& out, int64_t step) {
  const std::string checkpoint = checkpoint_path(out, step);
  return {read_bytes(checkpoint + "/model.safetensors"),
          read_values(checkpoint)["skipped_steps"].integer()};
}

// Gradients of f16 that overflow cost an update, and no run, also where a checkpoint is due before
// that update.
TEST(ResumeLaws, CheckpointsMayHoldGradientsThatOverflow) {
  const SmallData data;
  Settings settings = small_run(data, "transformer");
  for (const auto& [key, value] : {std::pair{"steps", "12"},
                                   {"model.n_layer", "1"},
                                   {"model.init_std", "1"},
                                   {"model.precision", "f16"},
                                   {"optimizer.clip", "0"},
                                   {"optimizer.update_period", "2"}}) {
    settings.push_back(typed(key, value));
  }
  Settings each = settings;
  each.push_back(typed("save_every", "1"));
  settings.push_back(typed("save_every", "2"));
  const Folder after_updates, after_steps;
  train_small(settings, after_updates.path());
  train_small(each, after_steps.path());
  EXPECT_GT(end_of(after_updates.path(), 12).second, 0);
  EXPECT_EQ(end_of(after_updates.path(), 12), end_of(after_steps.path(), 12));
  int64_t overflowed = 0;
  for (int64_t step = 1; step < 12; ++step) {
    const std::string checkpoint = checkpoint_path(after_steps.path(), step);
    if (first_nonfinite(read_tensors(checkpoint + "/optimizer.safetensors")).empty()) continue;
    ++overflowed;
    EXPECT_EQ(first_nonfinite(read_tensors(checkpoint + "/model.safetensors")), "");
    const Folder parts;
    const std::string place = checkpoint_path(parts.path(), step);
    std::filesystem::create_directories(place);
    std::filesystem::copy(checkpoint, place);
    train_small(each, parts.path(), place);
    EXPECT_EQ(end_of(after_steps.path(), 12), end_of(parts.path(), 12)) << step;
  }
  EXPECT_GT(overflowed, 0);
  // With a scale that does not adapt, such a state is the end of the run.
  each.push_back(typed("optimizer.loss_scale", "65536"));
  const Folder fixed;
  const std::string message = message_of<ValueError>([&] { train_small(each, fixed.path()); });
  EXPECT_TRUE(contains(message, "the run has diverged")) << message;
}

// Earlier versions wrote zeros for no gradient, the targets under names of their own, no figures
// and no sums of layers.
TEST(ResumeLaws, CheckpointsOfEarlierVersionsGoOn) {
  const SmallData data;
  Settings settings = small_run(data, "transformer");
  settings.push_back(typed("optimizer.update_period", "2"));
  settings.push_back(typed("save_every", "1"));
  const Folder whole, old;
  train_small(settings, whole.path());
  const std::string from = checkpoint_path(whole.path(), 3);
  const Json values = read_values(from);
  Members before{{"waiting_first", values["waiting"]["first"]},
                 {"waiting_targets", values["waiting"]["targets"]}};
  for (const JsonMember& m : values.object()) {
    constexpr std::string_view others[] = {"step", "files", "xxh3", "waiting", "figures"};
    if (std::find(std::begin(others), std::end(others), m.name) == std::end(others)) {
      before.push_back(m);
    }
  }
  write_state(old.path(), 3, read_tensors(from + "/model.safetensors"),
              read_tensors(from + "/optimizer.safetensors"), before);
  train_small(settings, old.path(), checkpoint_path(old.path(), 3));
  for (const char* file : {"/model.safetensors", "/optimizer.safetensors"}) {
    EXPECT_EQ(read_bytes(checkpoint_path(whole.path(), 6) + file) ==
                  read_bytes(checkpoint_path(old.path(), 6) + file),
              true)
        << file;
  }
}

TEST(ResumeLaws, SlowEveryModelPeriodAccumulationAndDtype) {
  const SmallData data;
  for (const ModelEntry& entry : models()) {
    for (const int64_t period : {1, 2, 3}) {
      for (const int64_t accumulate : {1, 2}) {
        for (const char* dtype : {"f32", "bf16", "f16"}) {
          expect_same_bits(data, entry.name, {period, accumulate, dtype});
        }
      }
    }
  }
}

}  // namespace
}  // namespace longspan::test
