// What is predicted to fit does fit, and the program works under the limits of its environment.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <csignal>
#include <sstream>
#include <string>
#include <vector>

#include "data/io/json.h"
#include "tests/system/program.h"
#include "train/log.h"
#include "train/state.h"

namespace longspan::test {
namespace {

/// A run, and the policy that is asked for.
struct LimitedRun {
  const char* memory;
  Words options;
};

std::ostream& operator<<(std::ostream& out, const LimitedRun& s) {
  return out << fmt::format("{} --memory {}", fmt::join(s.options, " "), s.memory);
}

/// What `longspan memory` predicts for a shape: the peak of tensors, and the process besides.
struct Predicted {
  int64_t peak = 0, process = 0;
  std::string total(int64_t more = 0) const { return std::to_string(peak + process + more); }
};
Predicted predicted(const LimitedRun& shape) {
  const Outcome told =
      run(joined({"memory", "--json", "--threads", "1", "--memory", shape.memory}, shape.options));
  EXPECT_EQ(told.code, 0) << told.err;
  std::istringstream in(told.out);
  for (std::string line; std::getline(in, line);) {
    const Json row = parse_json(line);
    if (row["memory"] != Json(shape.memory)) continue;
    EXPECT_EQ(row["total"].integer(), row["peak"].integer() + row["process"].integer());
    return {row["peak"].integer(), row["process"].integer()};
  }
  ADD_FAILURE() << told.out;
  return {};
}

/// Returns the last validation in metrics.jsonl, and expects as many as `count`.
double last_validation(const std::string& out, int count) {
  double last = std::nan("");
  int found = 0;
  for (const Json& row : read_rows(out + "/metrics.jsonl")) {
    if (const Json* score = row.find("valid_bpb")) {
      last = score->number();
      ++found;
    }
  }
  EXPECT_EQ(found, count);
  return last;
}

class WholeRuns : public testing::TestWithParam<LimitedRun> {};

// The smallest budget that is accepted is enough for everything that a run does: steps,
// validations, checkpoints, pictures, and going on.
TEST_P(WholeRuns, NeedNoMoreThanTheSmallestBudget) {
  const LimitedRun& shape = GetParam();
  const Predicted need = predicted(shape);
  const int64_t peak = need.peak;
  const Folder folder;
  write(folder / "text", some_text(12'000));
  const Words train = joined({"train", "--data", "bytes=" + folder / "text", "--split", "70/30/0",
                              "--threads", "1", "--eval-every", "2", "--save-every", "2"},
                             shape.options);
  const auto start = [&](const char* out, int steps, const Words& more) {
    return run(
        joined(joined(train, {"--out", folder / out, "--steps", std::to_string(steps)}), more));
  };
  const Words exactly{"--memory", shape.memory, "--budget", need.total()};
  const Words limit{"--set", fmt::format("memory_limit={}", peak)};
  Outcome o = start("limited", 4, joined(exactly, limit));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_LE(parse_json(o.last_line())["peak_bytes"]["total"].integer(), peak);
  EXPECT_EQ(saved_steps(folder / "limited"), (std::vector<int64_t>{2, 4}));
  EXPECT_TRUE(exists(folder / "limited/pictures/loss.png"));
  EXPECT_TRUE(exists(folder / "limited/pictures/attention.png"));
  const double limited = last_validation(folder / "limited", 2);
  o = run({"train", "--resume", "--out", folder / "limited", "--steps", "6"});
  ASSERT_EQ(o.code, 0) << o.err;
  o = run({"eval", "--out", folder / "limited"});
  EXPECT_EQ(o.code, 0) << o.err;

  // The figure does not depend on the rows that are read at a time.
  o = start("free", 4, {"--memory", shape.memory});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NEAR(limited, last_validation(folder / "free", 2), 1e-5);

  o = start("refused", 4, {"--memory", shape.memory, "--budget", need.total(-1)});
  EXPECT_EQ(o.code, 1);
  EXPECT_EQ(o.err.find("--budget: a step needs"), 0u) << o.err;
  EXPECT_FALSE(exists(folder / "refused"));
}

/// Returns the options of a model at a length and a batch, and more settings.
Words options_of(const std::string& model, const std::string& length, const std::string& batch,
                 const Words& settings = {}) {
  Words all{"--model", model, "--length", length, "--batch", batch};
  for (const std::string& s : settings) all.insert(all.end(), {"--set", s});
  return all;
}

const std::string kNarrowWidth = "model.d_model=64";

std::string name_of(const testing::TestParamInfo<LimitedRun>& of) {
  std::string name = fmt::format("{}_{}_{}", of.index, of.param.options[1], of.param.memory);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

// Layouts need most where heads are strided; validation of 4,096 tokens at a time would need most
// where steps are short; of models with a memory where they keep what they project; and pictures
// where trees are small. What the first table leaves out is in the second, a slow one.
INSTANTIATE_TEST_SUITE_P(
    Budgets, WholeRuns,
    testing::Values(LimitedRun{"standard", options_of("sparse_transformer", "1024", "1")},
                    LimitedRun{"reversible", options_of("transformer", "96", "2",
                                                        {kNarrowWidth, "accumulate=2"})},
                    LimitedRun{"lean", options_of("transformer", "60", "1",
                                                  {kNarrowWidth, "optimizer.update_period=2"})},
                    LimitedRun{"checkpoint", options_of("transformer_xl", "512", "1",
                                                        {"model.d_model=32", "model.n_layer=12"})},
                    LimitedRun{"selective", options_of("routing", "128", "1",
                                                       {kNarrowWidth, "optimizer.name=adafactor"})},
                    LimitedRun{"standard", options_of("transformer", "64", "1",
                                                      {"model.precision=bf16", kNarrowWidth})}),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    SlowBudgets, WholeRuns,
    testing::Values(
        LimitedRun{"standard", options_of("local_transformer", "1024", "1")},
        LimitedRun{"standard", options_of("longformer_lm", "1024", "1")},
        LimitedRun{"standard", options_of("transformer", "128", "1", {"model.n_layer=4"})},
        LimitedRun{"checkpoint", options_of("transformer", "96", "1", {kNarrowWidth})},
        LimitedRun{"standard",
                   options_of("transformer", "48", "1", {kNarrowWidth, "accumulate=11"})},
        LimitedRun{"standard",
                   options_of("compressive", "32", "2", {kNarrowWidth, "optimizer.clip=0.25"})},
        LimitedRun{"checkpoint", options_of("expire_span", "64", "1", {kNarrowWidth})},
        LimitedRun{"standard", options_of("adaptive_span", "64", "1", {kNarrowWidth})},
        LimitedRun{"checkpoint:2", options_of("reformer", "128", "1", {kNarrowWidth})},
        LimitedRun{"checkpoint", options_of("bp_transformer", "200", "1", {kNarrowWidth})},
        LimitedRun{"standard", options_of("bigbird", "256", "1", {kNarrowWidth})}),
    name_of);

// Documents have the tokens of their sentences, 30 of 11 at most here, whatever --length says.
TEST(Limits, OfDocumentsFollowTheirSentences) {
  const Folder folder;
  std::string article = "some words of it";
  for (int i = 0; i < 40; ++i) article += " <S_SEP> then some more words of it";
  for (const char* part : {"train", "valid"}) {
    write(folder / (std::string(part) + ".article"), article + "\n" + article + "\n");
    write(folder / (std::string(part) + ".summary"), "some words of it\nsome words of it\n");
  }
  for (const std::string model : {"hibert:labels", "hibert"}) {
    SCOPED_TRACE(model);
    const Predicted need =
        predicted({"standard", options_of(model, "330", "2", {"model.vocab=260"})});
    const auto start = [&](int64_t more) {
      return run(joined(
          {"train", "--task", "documents", "--data", "documents=" + folder.path(), "--memory",
           "standard", "--threads", "1", "--steps", "2", "--out", folder / model, "--budget",
           need.total(more), "--set", fmt::format("memory_limit={}", need.peak + more)},
          options_of(model, "64", "2", {"model.vocab=260"})));
    };
    EXPECT_EQ(start(-1).err.find("--budget: a step needs"), 0u);
    const Outcome o = start(0);
    EXPECT_EQ(o.code, 0) << o.err;
  }
}

/// Returns limits, in MiB, under which a small run fails although it works under a smaller one.
std::vector<int64_t> failing_limits(int64_t Start::*limit, int64_t most, const char* threads) {
  const Folder folder;
  write(folder / "text", some_text(2'000));
  std::vector<int64_t> failing;
  bool works = false;
  for (int64_t mib = 24; mib <= most; mib += works ? 16 : 24) {
    Start start;
    start.arguments = {"train",
                       "--model",
                       "transformer",
                       "--layers",
                       "1",
                       "--length",
                       "32",
                       "--batch",
                       "1",
                       "--steps",
                       "1",
                       "--threads",
                       threads,
                       "--data",
                       "bytes=" + folder / "text",
                       "--out",
                       folder / std::to_string(mib)};
    start.*limit = mib << 20;
    const bool success = run(start).code == 0;
    if (works && !success) failing.push_back(mib);
    works = works || success;
  }
  EXPECT_TRUE(works);
  return failing;
}

// The arena's range leaves room for the rest of the program.
TEST(Limits, OfAddressesLeaveRoomForTheProgram) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "skipped: sanitizers need all addresses";
#endif
  EXPECT_EQ(failing_limits(&Start::memory_limit, 660, "16"), std::vector<int64_t>{});
  EXPECT_EQ(failing_limits(&Start::data_limit, 180, "4"), std::vector<int64_t>{});
}

TEST(Limits, CommandsReadBesideARunThatKeepsOneCheckpoint) {
  const Folder folder;
  write(folder / "text", some_text(4'000));
  Start start;
  start.arguments = {"train",
                     "--model",
                     "transformer",
                     "--layers",
                     "1",
                     "--length",
                     "16",
                     "--batch",
                     "1",
                     "--seconds",
                     "60",
                     "--threads",
                     "1",
                     "--save-every",
                     "1",
                     "--keep",
                     "1",
                     "--data",
                     "bytes=" + folder / "text",
                     "--out",
                     folder / "run"};
  Program training(start);
  while (training.running() && saved_steps(folder / "run").empty()) {
  }
  for (int turn = 0; turn < 12; ++turn) {
    Outcome o = run({"eval", "--out", folder / "run", "--threads", "1"});
    EXPECT_EQ(o.code, 0) << o.err;
    o = run({"generate", "--out", folder / "run", "--tokens", "1", "--threads", "1"});
    EXPECT_EQ(o.code, 0) << o.err;
  }
  ASSERT_TRUE(training.running()) << training.wait().err;
  training.send(SIGINT);
  EXPECT_EQ(training.wait().code, 0);
}

}  // namespace
}  // namespace longspan::test
