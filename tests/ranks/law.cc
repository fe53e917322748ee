// N processes with `accumulate` A give the bits of one process with N A.
#include <gtest/gtest.h>

#include <filesystem>

#include "data/io/json.h"
#include "models/all/registry.h"
#include "tests/app/small_runs.h"
#include "tests/ranks/mpirun.h"
#include "train/state.h"

namespace longspan::test {
namespace {

/// Trains in so many processes that compute `batches` batches in each step.
void train_in(int ranks, int64_t batches, Settings settings, const std::string& out,
              const std::vector<std::string>& more = {}) {
  settings.push_back(typed("accumulate", std::to_string(batches / ranks)));
  std::vector<std::string> words = train_words(settings, out);
  words.insert(words.end(), more.begin(), more.end());
  const Outcome o = run(on_ranks(ranks, words));
  ASSERT_EQ(o.code, 0) << o.err;
}

/// The lines of metrics.jsonl about validations.
std::vector<std::string> validations_of(const std::string& out) {
  std::vector<std::string> all;
  std::istringstream lines(read_bytes(out + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    if (line.find("valid_bpb") != std::string::npos) all.push_back(line);
  }
  return all;
}

void expect_law(std::string_view what, const Settings& settings, int64_t steps,
                const std::vector<int>& ranks, int64_t batches = 4) {
  SCOPED_TRACE(what);
  Settings all = settings;
  all.push_back(typed("steps", std::to_string(steps)));
  all.push_back(typed("eval_every", "2"));
  const Folder folder;
  train_in(1, batches, all, folder / "1");
  EXPECT_FALSE(validations_of(folder / "1").empty());
  for (const int n : ranks) {
    SCOPED_TRACE(fmt::format("{} processes", n));
    const std::string out = folder / std::to_string(n);
    train_in(n, batches, all, out);
    expect_same_files(folder / "1", out, steps);
    EXPECT_EQ(validations_of(folder / "1"), validations_of(out));
  }
}

TEST(Law, HoldsForAModelWithStreamsAndOneWithStatistics) {
  const SmallData data;
  expect_law("transformer_xl", small_run(data, "transformer_xl"), 4, {2});
  expect_law("routing", small_run(data, "routing"), 4, {2});
}

/// The settings of a small run on generated samples.
Settings generated(const SmallData& data, std::string_view model) {
  Settings all = small_run(data, model);
  std::erase_if(
      all, [](const Setting& s) { return s.key == "data" || s.key == "task" || s.key == "split"; });
  all.push_back(typed("task", "duplicate"));
  all.push_back(typed("length", "8"));
  all.push_back(typed("model.vocab", "64"));
  return all;
}

TEST(Law, HoldsForGeneratedSamples) {
  const SmallData data;
  expect_law("transformer", generated(data, "transformer"), 3, {2});
  expect_law("transformer_xl", generated(data, "transformer_xl"), 3, {2});
}

// Targets of masked texts differ in number; an update takes two steps; more than one group of
// batches.
TEST(Law, HoldsForUnequalTargetsPeriodsAndGroups) {
  const SmallData data;
  Settings masked = small_run(data, "bigbird");
  masked.push_back(typed("optimizer.update_period", "2"));
  masked.push_back(typed("optimizer.average", "0.9"));
  expect_law("bigbird", masked, 3, {2}, 10);
}

// 4 processes, then 1, then 2; between two updates.
TEST(Law, HoldsWhenTheNumberOfProcessesChanges) {
  const SmallData data;
  Settings settings = small_run(data, "transformer_xl");
  settings.push_back(typed("optimizer.update_period", "2"));
  const Folder folder;
  const auto until = [&](const char* steps) {
    Settings all = settings;
    all.push_back(typed("steps", steps));
    return all;
  };
  train_in(1, 4, until("9"), folder / "whole");
  train_in(4, 4, until("3"), folder / "parts");
  for (const auto& [ranks, steps] : {std::pair{1, "5"}, {2, "9"}}) {
    const Outcome o =
        run(on_ranks(ranks, {"train", "--resume", "--out", folder / "parts", "--steps", steps}));
    ASSERT_EQ(o.code, 0) << o.err;
  }
  expect_same_files(folder / "whole", folder / "parts", 9);
  const Outcome o =
      run(on_ranks(3, {"train", "--resume", "--out", folder / "parts", "--steps", "12"}));
  EXPECT_NE(o.code, 0);
  EXPECT_NE(o.err.find("has 4 batches in each step, and 3 processes compute 3 at a time"),
            std::string::npos)
      << o.err;
}

/// Expects the peak of the fullest of so many processes to be what `longspan memory` says, but for
/// layouts of attention, which a run keeps from step to step.
void expect_predicted(const std::string& model, int ranks, int batches) {
  SCOPED_TRACE(fmt::format("{}, {} processes, {} batches", model, ranks, batches));
  const Folder folder;
  write(folder / "text", some_text(40'000));
  std::vector<std::string> of{"--model", model,       "--length", "128",      "--batch",
                              "2",       "--threads", "1",        "--memory", "standard"};
  for (const std::string& set : {fmt::format("accumulate={}", batches / ranks),
                                 std::string("model.d_model=64"), std::string("model.vocab=257")}) {
    of.insert(of.end(), {"--set", set});
  }
  std::vector<std::string> train{"train",   "--data", "bytes=" + folder / "text",
                                 "--steps", "4",      "--save-every",
                                 "2",       "--out",  folder / "run"},
      memory{"memory", "--json", "--ranks", std::to_string(ranks)};
  train.insert(train.end(), of.begin(), of.end());
  memory.insert(memory.end(), of.begin(), of.end());
  const Outcome o = run(on_ranks(ranks, train));
  ASSERT_EQ(o.code, 0) << o.err;
  const Json end = parse_json(o.last_line());
  const auto measured = static_cast<double>(end["peak_bytes"]["total"].integer());
  const Outcome told = run(memory);
  ASSERT_EQ(told.code, 0) << told.err;
  const Json row = parse_json(told.out.substr(0, told.out.find('\n')));
  EXPECT_NEAR(static_cast<double>(row["peak"].integer()), measured, 0.001 * measured);
}

TEST(Memory, OfTheFullestIsPredicted) { expect_predicted("transformer_xl", 2, 4); }

TEST(Memory, SlowOfTheFullestIsPredictedForSevenModels) {
  for (const char* model : {"transformer", "transformer_xl", "routing", "reformer", "compressive",
                            "bigbird", "bp_transformer"}) {
    for (const int ranks : {2, 4}) {
      for (const int batches : {4, 12}) expect_predicted(model, ranks, batches);
    }
  }
}

TEST(Law, SlowHoldsForEveryModel) {
  const SmallData data;
  for (const ModelEntry& entry : models()) {
    expect_law(entry.name, small_run(data, entry.name), 12, {2, 4});
  }
}

TEST(Law, SlowHoldsForEveryOptimizerAndPolicy) {
  const SmallData data;
  for (const char* model : {"transformer", "routing", "transformer_xl"}) {
    for (const char* optimizer : {"adam", "adamw", "sgd", "adagrad", "lamb", "adafactor"}) {
      Settings settings = small_run(data, model);
      settings.push_back(typed("optimizer.name", optimizer));
      expect_law(fmt::format("{}, {}", model, optimizer), settings, 5, {2, 4});
    }
    for (const char* policy :
         {"checkpoint", "checkpoint:2", "lean", "selective", "reversible", "reversible:exact"}) {
      Settings settings = small_run(data, model);
      settings.push_back(typed("model.memory", policy));
      expect_law(fmt::format("{}, {}", model, policy), settings, 5, {2, 4});
    }
    Settings clipped = small_run(data, model);
    clipped.push_back(typed("optimizer.name", "adagrad"));
    clipped.push_back(typed("optimizer.step_clip", "0.03"));
    expect_law(fmt::format("{}, step_clip", model), clipped, 5, {2, 4});
    Settings half = small_run(data, model);
    half.push_back(typed("model.precision", "f16"));
    expect_law(fmt::format("{}, f16", model), half, 5, {2, 4});
  }
}

}  // namespace
}  // namespace longspan::test
