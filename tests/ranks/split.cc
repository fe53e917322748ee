// Sequences that processes split (ranks.sequence): the bits of any number of groups, and the
// figures of one process up to rounding.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "app/ranks/batch_report.h"
#include "data/io/json.h"
#include "models/all/registry.h"
#include "models/capabilities.h"
#include "ops/copy.h"
#include "tests/app/small_runs.h"
#include "tests/ranks/mpirun.h"
#include "train/state.h"

namespace longspan::test {
namespace {

/// The numbers of a run's metrics.jsonl with this name, in order.
std::vector<double> figures_of(const std::string& out, const std::string& name) {
  std::vector<double> all;
  std::istringstream lines(read_bytes(out + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    if (const Json row = parse_json(line); const Json* x = row.find(name)) {
      all.push_back(x->number());
    }
  }
  EXPECT_FALSE(all.empty()) << name;
  return all;
}

/// How many processes split the sequences of a model's small run; 1: none do.
struct SplitRun {
  SplitRun(const SmallData& data, std::string_view model) : settings(small_run(data, model)) {
    settings.push_back(typed("batch", "1"));
    settings.push_back(typed("eval_every", "2"));
    if (model == "routing") {
      settings.push_back(typed("model.local_heads", "2"));
      settings.push_back(typed("model.routing_heads", "2"));
    }
    const auto spec = find_model(std::string(model) + ":tiny");
    const auto built = spec->build(Init{.meta = true});
    const auto* const splits = ask<SplitsSequences>(*built);
    if (splits == nullptr) return;
    for (int n = 2; n <= 3 && together == 1; ++n) {
      const auto heads = model == "routing" ? std::vector<int64_t>{2} : splits->divided_heads();
      const bool fits =
          std::all_of(heads.begin(), heads.end(), [&](int64_t h) { return h % n == 0; });
      if (fits) together = n;
    }
  }

  /// Trains for some steps of `batches` batches.
  void train(int ranks, int sequence, int64_t batches, const std::string& out,
             int64_t steps) const {
    Settings all = settings;
    all.push_back(typed("steps", std::to_string(steps)));
    all.push_back(typed("ranks.sequence", std::to_string(sequence)));
    all.push_back(typed("accumulate", std::to_string(batches * sequence / ranks)));
    const Outcome o = run(on_ranks(ranks, train_words(all, out)));
    ASSERT_EQ(o.code, 0) << o.err;
  }

  Settings settings;
  int together = 1;
};

void expect_split(std::string_view model) {
  SCOPED_TRACE(model);
  const SmallData data;
  const SplitRun run(data, model);
  if (run.together == 1) return;
  const Folder folder;
  constexpr int64_t batches = 2, steps = 4;
  run.train(1, 1, batches, folder / "whole", steps);
  run.train(run.together, run.together, batches, folder / "one", steps);
  run.train(2 * run.together, run.together, batches, folder / "two", steps);
  expect_same_files(folder / "one", folder / "two", steps);
  for (const char* name : {"loss", "gradient_norm", "valid_bpb"}) {
    const std::vector<double> whole = figures_of(folder / "whole", name),
                              one = figures_of(folder / "one", name);
    EXPECT_EQ(one, figures_of(folder / "two", name)) << name;
    ASSERT_EQ(one.size(), whole.size()) << name;
    // The first step starts from equal parameters; Adam makes more of what rounding leaves.
    const bool of_steps = std::string_view(name) != "valid_bpb";
    const double first = of_steps ? 2e-6 : 2e-3;
    EXPECT_NEAR(one[0], whole[0], first * std::abs(whole[0])) << name;
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(one[i], whole[i], 2e-3 * std::abs(whole[i])) << name << " " << i;
    }
  }
}

TEST(Split, SharesAddUp) {
  const auto share = [](double loss, double count) {
    return BatchReport{.loss = loss,
                       .auxiliary = {{"commitment", 2 * loss}},
                       .tokens = 96,
                       .counted = 90,
                       .peak = static_cast<int64_t>(1000 * count),
                       .statistics = {{.of = nullptr, .sums = {full({2}, count)}}}};
  };
  std::vector<BatchReport> shares{share(0.5, 3), share(0.25, 4)};
  const BatchReport sum = sum_of_shares(shares);
  EXPECT_EQ(sum.loss, 0.75);
  EXPECT_EQ(sum.auxiliary, (NamedNumbers{{"commitment", 1.5}}));
  EXPECT_EQ(sum.tokens, 96);
  EXPECT_EQ(sum.counted, 90);
  EXPECT_EQ(sum.peak, 4000);
  ASSERT_EQ(sum.statistics.size(), 1);
  EXPECT_EQ(sum.statistics[0].sums[0].to_vector<float>(), (std::vector<float>{7, 7}));
}

TEST(Split, HasTheBitsOfAnyNumberOfGroups) {
  expect_split("transformer_xl");
  expect_split("routing");
}

TEST(Split, SlowHoldsForEveryModel) {
  for (const ModelEntry& entry : models()) expect_split(entry.name);
}

// 4 processes in two groups, then 2 in one.
TEST(Split, GoesOnInAnotherNumberOfGroups) {
  const SmallData data;
  const SplitRun split(data, "performer");
  ASSERT_EQ(split.together, 2);
  const Folder folder;
  SplitRun run = split;
  run.settings.push_back(typed("schedule.name", "constant"));
  run.train(2, 2, 2, folder / "whole", 6);
  run.train(4, 2, 2, folder / "parts", 3);
  const Outcome o =
      test::run(on_ranks(2, {"train", "--resume", "--out", folder / "parts", "--steps", "6"}));
  ASSERT_EQ(o.code, 0) << o.err;
  expect_same_files(folder / "whole", folder / "parts", 6);
  // One process cannot split, and says so; it goes on by itself.
  const Outcome alone =
      test::run(Start{{"train", "--resume", "--out", folder / "parts", "--steps", "7"}});
  EXPECT_NE(alone.code, 0);
  EXPECT_NE(
      alone.err.find("ranks.sequence is 2, and there is 1 process; start a multiple of 2 with "
                     "mpirun -np, or set ranks.sequence to 1"),
      std::string::npos)
      << alone.err;
  const Outcome whole = test::run(Start{{"train", "--resume", "--out", folder / "parts", "--steps",
                                         "7", "--set", "ranks.sequence=1"}});
  EXPECT_EQ(whole.code, 0) << whole.err;
}

void expect_refused(const std::string& model, const Settings& more, const std::string& message) {
  SCOPED_TRACE(message);
  const SmallData data;
  const Folder folder;
  SplitRun run(data, model);
  run.settings.push_back(typed("ranks.sequence", "2"));
  run.settings.insert(run.settings.end(), more.begin(), more.end());
  const Outcome o = test::run(on_ranks(2, train_words(run.settings, folder / "run")));
  EXPECT_NE(o.code, 0);
  EXPECT_NE(o.err.find(message), std::string::npos) << o.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

TEST(Split, IsRefusedBeforeTheFirstStep) {
  expect_refused("transformer", {typed("batch", "2")},
                 "batch is 2, and processes split one sequence at a time; set batch to 1, and "
                 "accumulate to the number of sequences, or ranks.sequence to 1");
  expect_refused("compressive", {},
                 "compressive:tiny, as it is configured, splits no sequence over processes "
                 "(docs/several-processes.md says which models and options do); set ranks.sequence "
                 "to 1");
  expect_refused("hibert", {typed("batch", "1")}, "set ranks.sequence to 1");
  expect_refused("transformer", {typed("model.n_head", "1")},
                 "the 1 heads of transformer:tiny cannot be divided by 2 processes");
  expect_refused("transformer", {typed("ranks.sequence", "3")},
                 "ranks.sequence is 3, and there are 2 processes; start a multiple of 3");
}

/// Expects the peak of the fullest of so many processes to be what `longspan memory` says.
void expect_split_predicted(const std::string& model, int ranks) {
  SCOPED_TRACE(fmt::format("{}, {} processes", model, ranks));
  const Folder folder;
  write_bytes(folder / "text", std::string(40'000, 'x'));
  std::vector<std::string> of{"--model", model,       "--length", "512",      "--batch",
                              "1",       "--threads", "1",        "--memory", "standard"};
  for (const char* set :
       {"accumulate=2", "model.d_model=64", "model.vocab=257", "model.dropout=0.1"}) {
    of.insert(of.end(), {"--set", set});
  }
  std::vector<std::string> train{"train",
                                 "--data",
                                 "bytes=" + folder / "text",
                                 "--steps",
                                 "4",
                                 "--save-every",
                                 "4",
                                 "--out",
                                 folder / "run",
                                 "--set",
                                 "ranks.sequence=2",
                                 "--log-every",
                                 "1"},
      memory{"memory", "--json", "--ranks", std::to_string(ranks) + ",2"};
  train.insert(train.end(), of.begin(), of.end());
  memory.insert(memory.end(), of.begin(), of.end());
  const Outcome o = test::run(on_ranks(ranks, train));
  ASSERT_EQ(o.code, 0) << o.err;
  const Json end = parse_json(o.last_line());
  const auto measured = static_cast<double>(end["peak_bytes"]["total"].integer());
  const Outcome told = test::run(memory);
  ASSERT_EQ(told.code, 0) << told.err;
  const Json row = parse_json(told.out.substr(0, told.out.find('\n')));
  EXPECT_NEAR(static_cast<double>(row["peak"].integer()), measured, 0.001 * measured);
  // What the first process sends in a step without validation and checkpoint.
  const std::vector<double> all = figures_of(folder / "run", "sent_bytes");
  ASSERT_EQ(all.size(), 4);
  const double sent = all[2] - all[1];
  EXPECT_NEAR(static_cast<double>(row["sent_bytes"].integer()), sent, 0.02 * sent);
}

TEST(Split, MemoryOfTheFullestIsPredicted) { expect_split_predicted("transformer", 2); }

TEST(Split, SlowMemoryIsPredictedForSevenModels) {
  for (const char* model : {"transformer", "transformer_xl", "local_transformer", "reformer",
                            "performer", "bigbird", "adaptive_span"}) {
    for (const int ranks : {2, 4}) expect_split_predicted(model, ranks);
  }
}

}  // namespace
}  // namespace longspan::test
