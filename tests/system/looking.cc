// What a run shows while it trains and when it ends: validations on a sample, pictures, samples,
// and lines for people.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "data/io/json.h"
#include "tests/system/program.h"
#include "train/log.h"
#include "train/plot.h"

namespace longspan::test {
namespace {

class Looking : public testing::Test {
 protected:
  void SetUp() override { write(text, some_text(20'000)); }
  Words training(const std::string& out, const Words& more) const {
    Words all{"--threads", "1", "--log-every", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return small_training(text, out, all);
  }
  static Outcome must(const Start& start) {
    Outcome o = run(start);
    EXPECT_EQ(o.code, 0) << o.err;
    return o;
  }
  /// The rows of validations.
  static std::vector<Json> validations(const std::string& out) {
    std::vector<Json> all;
    for (const Json& row : read_rows(out + "/metrics.jsonl")) {
      if (row.find("valid_bpb") != nullptr) all.push_back(row);
    }
    return all;
  }
  Folder folder;
  const std::string text = folder / "text.txt";
};

TEST_F(Looking, ARunEndsWithTwoLinesForPeople) {
  const std::string out = folder / "run";
  const Outcome o = must({.arguments = training(out, {"--steps", "5"}), .json = false});
  EXPECT_EQ(std::count(o.out.begin(), o.out.end(), '\n'), 2) << o.out;
  EXPECT_TRUE(o.out.starts_with("transformer: 5 steps, 160 tokens in 0:0")) << o.out;
  const Json summary = parse_json(read(out + "/summary.json"));
  const double bits = summary["valid_bpb"].number();
  EXPECT_NE(o.out.find(
                fmt::format("validation {:.4f} bits per byte (perplexity {:.4g}); the run is in {}",
                            bits, std::exp2(bits), out)),
            std::string::npos)
      << o.out;
  EXPECT_DOUBLE_EQ(summary["valid_perplexity"].number(), std::exp2(bits));
  EXPECT_NE(o.err.find(fmt::format(
                "ppl {:.4g}", std::exp(read_rows(out + "/metrics.jsonl")[0]["loss"].number()))),
            std::string::npos)
      << o.err;
  const Outcome scored = must({.arguments = {"eval", "--out", out}, .json = false});
  EXPECT_TRUE(scored.out.starts_with(
      fmt::format("step 5, valid part of bytes: {:.4f} bits per byte, perplexity {:.4g} (", bits,
                  std::exp2(bits))))
      << scored.out;
  EXPECT_EQ(scored.out.find('{'), std::string::npos) << "JSON is for --json";
}

// The sample has whole segments; more of them cost more and say more.
TEST_F(Looking, ValidatesOnASample) {
  const auto score = [&](const char* name, const Words& more) {
    Words all{"--steps", "4", "--eval-every", "2", "--split", "50/50/0"};
    all.insert(all.end(), more.begin(), more.end());
    const Outcome o = must({.arguments = training(folder / name, all)});
    EXPECT_EQ(o.err.find("a sample of about") != std::string::npos, !more.empty()) << o.err;
    std::vector<double> bits;
    for (const Json& row : validations(folder / name)) bits.push_back(row["valid_bpb"].number());
    EXPECT_EQ(bits.size(), 2u);
    return bits;
  };
  const auto whole = score("whole", {}), some = score("some", {"--eval-tokens", "320"}),
             again = score("again", {"--eval-tokens", "320"}),
             most = score("most", {"--eval-tokens", "1000000"});
  EXPECT_EQ(some, again);
  EXPECT_EQ(most, whole);
  EXPECT_NE(some, whole);
  EXPECT_NEAR(some[1], whole[1], 0.1);
  EXPECT_EQ(parse_json(read(folder / "some/summary.json"))["eval_tokens"].integer(), 320);
  // The training is the same, and eval scores all.
  EXPECT_EQ(read(folder / "some/checkpoints/step-4/model.safetensors"),
            read(folder / "whole/checkpoints/step-4/model.safetensors"));
  const Outcome scored = must({.arguments = {"eval", "--out", folder / "some"}});
  EXPECT_EQ(parse_json(scored.last_line())["valid_bpb"].number(), whole[1]);
  // Scores of another sample cannot be compared.
  const Outcome on = must({.arguments = {"train", "--resume", "--out", folder / "some", "--steps",
                                         "6", "--eval-tokens", "640"}});
  EXPECT_NE(on.err.find("eval_tokens"), std::string::npos) << on.err;
}

// The clock of --seconds stands still while a run validates, which here takes most of the time.
TEST_F(Looking, ValidationsDoNotCountInSeconds) {
  const std::string out = folder / "run";
  const Outcome o =
      must({.arguments =
                training(out, {"--seconds", "0.1", "--eval-every", "1", "--split", "20/80/0"})});
  const Json summary = parse_json(o.last_line());
  EXPECT_GT(summary["seconds"].number(), 0.09);
  EXPECT_GT(o.seconds, 1) << "of which most went into validations";
}

// A model with a memory reads the beginnings of its streams.
TEST_F(Looking, ValidatesStreamsOnASample) {
  const auto score = [&](const char* name, const Words& more) {
    Words all{"train",
              "--model",
              "transformer_xl:tiny",
              "--data",
              "bytes=" + text,
              "--set",
              "model.vocab=256",
              "--steps",
              "2",
              "--split",
              "50/50/0",
              "--threads",
              "1",
              "--out",
              folder / name};
    all.insert(all.end(), more.begin(), more.end());
    must({.arguments = all});
    return validations(folder / name).back()["valid_bpb"].number();
  };
  const double whole = score("whole", {}), some = score("some", {"--eval-tokens", "500"});
  EXPECT_NE(some, whole);
  EXPECT_NEAR(some, whole, 0.2);
  EXPECT_EQ(score("most", {"--eval-tokens", "100000"}), whole);
}

TEST_F(Looking, RenewsPicturesAndSamplesAtValidations) {
  const std::string out = folder / "run";
  Program program(
      {training(out, {"--steps", "1000000", "--eval-every", "3", "--eval-tokens", "64"})});
  const double begin = now();
  while (program.running() && !exists(out + "/samples/step-6.txt") && now() - begin < 60) {
  }
  EXPECT_TRUE(is_own_picture(out + "/pictures/loss.png")) << program.output();
  EXPECT_TRUE(is_own_picture(out + "/pictures/attention.png"));
  program.send(SIGTERM);
  EXPECT_EQ(program.wait().code, 0);
  const std::string sample = read(out + "/samples/step-3.txt");
  EXPECT_NE(sample.find("-- written: 128 tokens"), std::string::npos) << sample;
  // Renewed by hand, all of them.
  for (const char* name : {"loss", "attention"}) {
    ASSERT_EQ(remove(fmt::format("{}/pictures/{}.png", out, name).c_str()), 0);
  }
  const Outcome o = must({.arguments = {"draw", "--out", out}});
  EXPECT_NE(o.err.find("losses: " + out + "/pictures/loss.png"), std::string::npos) << o.err;
  EXPECT_TRUE(is_own_picture(out + "/pictures/loss.png"));
  EXPECT_TRUE(is_own_picture(out + "/pictures/attention.png"));
}

// What the best is chosen by is known before the first step.
TEST_F(Looking, AFigureThatIsNotThereIsRefusedAtOnce) {
  const auto start = [&](const char* figure) {
    return run(Start{.arguments = training(folder / figure, {"--steps", "4", "--eval-every", "2",
                                                             "--keep-best", "--best-by", figure})});
  };
  const Outcome o = start("foo");
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("no figure foo; expected perplexity"), std::string::npos) << o.err;
  EXPECT_EQ(o.err.find("step 1/4"), std::string::npos) << o.err;
  EXPECT_EQ(start("perplexity").code, 0);
}

// Perplexity is a figure of completions too, which has one place in a row.
TEST_F(Looking, RowsHaveEachFigureOnce) {
  std::string table;
  for (int i = 0; i < 40; ++i)
    table += fmt::format("{{\"prompt\":\"{} is\",\"completion\":\" {}\"}}\n", i, i % 3);
  write(folder / "t.jsonl", table);
  const std::string out = folder / "run";
  must({.arguments = {"train",
                      "--model",
                      "transformer:tiny",
                      "--task",
                      "completions",
                      "--data",
                      "completions=" + folder / "t.jsonl",
                      "--length",
                      "16",
                      "--batch",
                      "2",
                      "--steps",
                      "4",
                      "--eval-every",
                      "2",
                      "--keep-best",
                      "--best-by",
                      "perplexity",
                      "--threads",
                      "1",
                      "--out",
                      out}});
  const std::vector<Json> rows = validations(out);
  ASSERT_EQ(rows.size(), 2u);  // a key given twice is no JSON that is read
  EXPECT_NEAR(rows[1]["valid_perplexity"].number(), std::exp2(rows[1]["valid_bpb"].number()), 1e-6);
}

// What is packed is in memory as a whole, which a budget must have room for.
TEST_F(Looking, ABudgetHasRoomForTheData) {
  std::string noise;
  for (uint32_t i = 0, x = 1; i < 12'000'000; ++i)
    noise += static_cast<char>('a' + ((x = x * 1664525 + 1013904223) >> 28));
  write(folder / "noise", noise);
  ASSERT_EQ(std::system(fmt::format("gzip -1 {}", folder / "noise").c_str()), 0);
  const auto start = [&](const char* budget) {
    return run({"train", "--model", "transformer:tiny", "--data", "bytes=" + folder / "noise.gz",
                "--set", "model.vocab=256", "--steps", "1", "--eval-tokens", "100", "--split",
                "99/1/0", "--threads", "1", "--budget", budget, "--out", folder / budget});
  };
  const Outcome o = start("56MiB");
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("the data 11."), std::string::npos) << o.err;
  EXPECT_FALSE(exists(folder / "56MiB/metrics.jsonl"));
  EXPECT_EQ(start("64MiB").code, 0);
}

// Samples of steps that a run leaves behind go with them.
TEST_F(Looking, SamplesBeyondAStepAreSetAside) {
  const std::string out = folder / "run";
  must({.arguments = training(out, {"--steps", "6", "--eval-every", "2", "--save-every", "2"})});
  must({.arguments = {"train", "--resume", "--step", "2", "--out", out, "--steps", "4"}});
  EXPECT_EQ(names_in(out + "/samples"), (std::vector<std::string>{"step-2.txt", "step-4.txt"}));
  EXPECT_EQ(names_in(out + "/beyond-step-2/samples"),
            (std::vector<std::string>{"step-4.txt", "step-6.txt"}));
}

// What cannot be drawn or written while a run trains is said, and the run goes on.
TEST_F(Looking, GoesOnWithoutASample) {
  const std::string out = folder / "run";
  must({.arguments = training(out, {"--steps", "2"})});
  std::filesystem::remove_all(out + "/samples");
  write(out + "/samples", "a file in the place of the folder");
  const Outcome o = must({.arguments = {"train", "--resume", "--out", out, "--steps", "4"}});
  EXPECT_NE(o.err.find("no sample of step 4"), std::string::npos) << o.err;
  std::filesystem::remove_all(out + "/pictures");
  write(out + "/pictures", "this too");
  const Outcome on = must({.arguments = {"train", "--resume", "--out", out, "--steps", "6"}});
  EXPECT_NE(on.err.find("no pictures of step 6"), std::string::npos) << on.err;
  EXPECT_EQ(parse_json(read(out + "/summary.json"))["steps"].integer(), 6);
}

TEST_F(Looking, SaysThatAWarmUpDoesNotEnd) {
  const auto said = [&](const char* name, const Words& more) {
    const Outcome o = must({.arguments = training(folder / name, more)});
    return o.err.find("the warm-up of") != std::string::npos;
  };
  EXPECT_TRUE(said("long", {"--steps", "5", "--set", "schedule.warmup=5"}));
  EXPECT_FALSE(said("short", {"--steps", "5", "--set", "schedule.warmup=4"}));
  EXPECT_TRUE(said("clock", {"--seconds", "0.01", "--set", "schedule.warmup=100000"}));
  EXPECT_FALSE(said("none", {"--seconds", "0.01", "--set", "schedule.warmup=0"}));
}

TEST_F(Looking, WritesForTensorBoard) {
  const std::string out = folder / "run";
  must({.arguments = training(out, {"--steps", "2", "--tensorboard"})});
  ASSERT_EQ(names_in(out + "/tensorboard").size(), 1u);
  must({.arguments = {"train", "--resume", "--out", out, "--steps", "4"}});
  EXPECT_EQ(names_in(out + "/tensorboard").size(), 2u) << "a file for each start";
  const std::string first = read(out + "/tensorboard/" + names_in(out + "/tensorboard")[0]);
  EXPECT_NE(first.find("train/loss"), std::string::npos);
  EXPECT_NE(first.find("valid/perplexity"), std::string::npos);
  must({.arguments = training(folder / "without", {"--steps", "1"})});
  EXPECT_FALSE(exists(folder / "without/tensorboard"));
}

}  // namespace
}  // namespace longspan::test
