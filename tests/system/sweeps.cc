// longspan compare and sweep, on runs of some steps.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <thread>

#include <fmt/format.h>

#include "data/io/json.h"
#include "tests/system/program.h"
#include "train/state.h"

namespace longspan::test {
namespace {

std::vector<std::string> small_model(const std::string& folder) {
  write(folder + "/text", some_text(20'000));
  return {"--model",      "transformer:tiny",
          "--data",       "bytes=" + folder + "/text",
          "--length",     "32",
          "--batch",      "2",
          "--eval-every", "2",
          "--log-every",  "1",
          "--threads",    "1"};
}

Outcome run_with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return run(words);
}

TEST(Compare, ShowsFiguresKeysAndCurves) {
  const Folder folder;
  const std::vector<std::string> model = small_model(folder.path());
  for (const char* lr : {"0.001", "0.01"}) {
    const Outcome o =
        run_with({"train", "--out", folder / "runs" + "/" + lr, "--lr", lr, "--steps", "6"}, model);
    ASSERT_EQ(o.code, 0) << o.err;
  }
  const std::string a = folder / "runs/0.001", b = folder / "runs/0.01";
  const Outcome table = run({"compare", a, b, "--out", folder / "curves.png"});
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("\n0.001 "), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("optimizer.lr"), std::string::npos) << table.out;
  EXPECT_EQ(table.out.find("model.d_model"), std::string::npos) << table.out;  // does not differ
  EXPECT_TRUE(exists(folder / "curves.png"));
  const Outcome csv = run({"compare", "--csv", a, b});
  const Json summary = parse_json(read(a + "/summary.json"));
  EXPECT_NE(
      csv.out.find(fmt::format("0.001,transformer:tiny,{},6,", summary["parameters"].integer())),
      std::string::npos)
      << csv.out;
  EXPECT_NE(csv.out.find(fmt::format(",byte,{},{},", summary["train_bpb"].number(),
                                     summary["valid_bpb"].number())),
            std::string::npos)
      << csv.out;
  for (const char* over : {"steps", "tokens", "seconds", "macs"}) {
    EXPECT_EQ(run({"compare", a, b, "--over", over, "--out", folder / "over.svg"}).code, 0) << over;
    EXPECT_EQ(run({"compare", a, b, "--over", over, "--out", folder / "over.pdf"}).code, 0) << over;
  }
  // What is refused.
  EXPECT_NE(run({"compare", a, folder.path()}).err.find("is no run folder"), std::string::npos);
  EXPECT_NE(run({"compare"}).err.find("got no run folder"), std::string::npos);
  EXPECT_NE(run({"compare", a, "--over", "epochs", "--out", folder / "x.png"})
                .err.find("expected one of steps"),
            std::string::npos);
  EXPECT_NE(run({"compare", a, "--over", "tokens"}).err.find("none are drawn"), std::string::npos);
  EXPECT_NE(
      run({"compare", a, "--out", folder / "text"}).err.find("FILE.png, FILE.svg or FILE.pdf"),
      std::string::npos);
  write(folder / "other.png", "not ours");
  EXPECT_NE(run({"compare", a, "--out", folder / "other.png"}).err.find("no picture of Longspan"),
            std::string::npos);
}

TEST(Until, StopsAndGoesOnWithTheSameBits) {
  const Folder folder;
  const std::vector<std::string> model = small_model(folder.path());
  ASSERT_EQ(run_with({"train", "--out", folder / "whole", "--steps", "8"}, model).code, 0);
  ASSERT_EQ(
      run_with({"train", "--out", folder / "parts", "--steps", "8", "--until", "3"}, model).code,
      0);
  EXPECT_EQ(parse_json(read(folder / "parts/summary.json"))["steps"].integer(), 3);
  ASSERT_EQ(run({"train", "--resume", "--out", folder / "parts"}).code, 0);
  const std::string end = "/checkpoints/step-8/model.safetensors";
  EXPECT_TRUE(read(folder / "whole" + end) == read(folder / "parts" + end));
}

TEST(Sweep, TrainsAllCombinations) {
  const Folder folder;
  const std::vector<std::string> model = small_model(folder.path());
  const std::string out = folder / "sweep";
  const Outcome o =
      run_with({"sweep", "--out", out, "--steps", "4", "--lr", "1e-3,1e-2", "--set",
                "model.dropout=0,0.1", "--seeds", "2", "--jobs", "2", "--pictures", "svg,pdf"},
               model);
  ASSERT_EQ(o.code, 0) << o.out << o.err;
  EXPECT_NE(o.out.find("[8/8]"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("\n* lr="), std::string::npos) << o.out;
  EXPECT_EQ(names_in(out).size(), 8u + 7) << o.out;  // sweep.json, sweep.csv, four pictures, logs
  EXPECT_TRUE(exists(out + "/curves.svg") && exists(out + "/values.svg"));
  EXPECT_TRUE(exists(out + "/curves.pdf") && exists(out + "/values.pdf"));
  // A run is that of longspan train with these options.
  ASSERT_EQ(run_with({"train", "--out", folder / "one", "--steps", "4", "--lr", "1e-2", "--set",
                      "model.dropout=0.1", "--seed", "1"},
                     model)
                .code,
            0);
  const std::string end = "/checkpoints/step-4/model.safetensors";
  bool found = false;
  for (const std::string& name : names_in(out)) {
    if (!name.starts_with("lr=1e-2 dropout=0.1")) continue;
    found |= read(out + "/" + name + end) == read(folder / "one" + end);
  }
  EXPECT_TRUE(found) << "no run has the bits of longspan train --seed 1";
  // Mean and deviation of two seeds.
  const std::string csv = read(out + "/sweep.csv");
  EXPECT_TRUE(csv.starts_with("optimizer.lr,model.dropout,runs,steps,mean,deviation\n")) << csv;
  // Again: refused, and with --resume there is nothing left to do.
  EXPECT_NE(run_with({"sweep", "--out", out, "--lr", "1,2"}, model)
                .err.find("go on with it with --resume"),
            std::string::npos);
  const Outcome again = run({"sweep", "--out", out, "--resume"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.out.find("[1/"), std::string::npos) << again.out;
  EXPECT_EQ(read(out + "/sweep.csv"), csv);
}

TEST(Sweep, GoesOnAfterAKill) {
  const Folder folder;
  const std::vector<std::string> model = small_model(folder.path());
  const auto start = [&](const std::string& out) {
    std::vector<std::string> words = {"sweep",        "--out", out,    "--steps",  "200",
                                      "--save-every", "10",    "--lr", "1e-3,1e-2"};
    words.insert(words.end(), model.begin(), model.end());
    return words;
  };
  ASSERT_EQ(run(start(folder / "whole")).code, 0);
  for (const int signal : {SIGKILL, SIGTERM}) {
    const std::string out = folder / ("killed" + std::to_string(signal));
    {
      Program program(Start{start(out)});
      const double begin = now();
      while (!exists(out + "/lr=1e-3/checkpoints") && now() - begin < 30) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      program.send(signal);
      program.wait();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // its run hears of it, and saves
    // As if a run had been killed before its first checkpoint.
    if (signal == SIGKILL) std::filesystem::remove_all(out + "/lr=1e-3/checkpoints");
    const Outcome o = run({"sweep", "--out", out, "--resume"});
    ASSERT_EQ(o.code, 0) << o.out << o.err;
    for (const char* lr : {"1e-3", "1e-2"}) {
      const std::string end = std::string("/lr=") + lr + "/checkpoints/step-200/model.safetensors";
      EXPECT_TRUE(read(folder / "whole" + end) == read(out + end)) << lr;
    }
  }
}

TEST(Sweep, StopsAtASignalAndMarksTheBestByItsScore) {
  const Folder folder;
  const std::vector<std::string> model = small_model(folder.path());
  std::vector<std::string> words = {"sweep", "--out",     folder / "sweep", "--seconds", "20",
                                    "--lr",  "1e-3,1e-2", "--jobs",         "2"};
  words.insert(words.end(), model.begin(), model.end());
  {
    Program program(Start{words});
    const double begin = now();
    const auto has_begun = [&](const char* lr) {
      return exists(folder / (std::string("sweep/lr=") + lr + "/metrics.jsonl"));
    };
    while (!(has_begun("1e-3") && has_begun("1e-2")) && now() - begin < 30) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    program.send(SIGINT);
    const Outcome o = program.wait();
    EXPECT_NE(o.code, 0);
    EXPECT_LT(o.seconds, 15);
    EXPECT_NE(o.out.find("stopped; go on with --resume"), std::string::npos) << o.out;
  }
  for (const char* lr : {"1e-3", "1e-2"}) {  // each has saved what it had
    const std::string run = folder / (std::string("sweep/lr=") + lr);
    EXPECT_FALSE(names_in(run + "/checkpoints").empty());
    const Json summary = parse_json(read(run + "/summary.json"));
    EXPECT_NE(summary.find("stopped"), nullptr) << lr;
  }
  // The better score is best, however many steps it took; an option file counts in all runs.
  write(folder / "options.toml", "batch = 1\n");
  words = {"sweep",   "--out", folder / "steps", "--config=" + (folder / "options.toml"),
           "--steps", "2,30",  "--lr",           "0.01"};
  std::vector<std::string> others = model;
  const auto batch = std::find(others.begin(), others.end(), "--batch");
  others.erase(batch, batch + 2);
  words.insert(words.end(), others.begin(), others.end());
  const Outcome o = run(words);
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("* steps=30"), std::string::npos) << o.out;
  EXPECT_NE(read(folder / "steps/steps=2/config.toml").find("batch = 1\n"), std::string::npos);
}

TEST(Sweep, HalvesTheCombinations) {
  const Folder folder;
  const Outcome o = run_with({"sweep", "--out", folder / "sweep", "--steps", "16", "--lr",
                              "1e-5,1e-4,1e-3,1e-2", "--first", "0.25"},
                             small_model(folder.path()));
  ASSERT_EQ(o.code, 0) << o.out << o.err;
  std::map<int64_t, int> at;
  for (const char* lr : {"1e-5", "1e-4", "1e-3", "1e-2"}) {
    ++at[parse_json(read(folder / "sweep" + "/lr=" + lr + "/summary.json"))["steps"].integer()];
  }
  EXPECT_EQ(at, (std::map<int64_t, int>{{4, 2}, {8, 1}, {16, 1}})) << o.out;
  EXPECT_NE(o.out.find("4 runs up to 25 % of the steps"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("1 run up to the end"), std::string::npos) << o.out;
  // Again: no run goes farther than before.
  const Outcome again = run({"sweep", "--out", folder / "sweep", "--resume"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.out.find("[1/"), std::string::npos) << again.out;
}

// The processes of a sweep that is killed hold their folders a moment longer.
TEST(Sweep, GoesOnAtOnceAfterAKill) {
  const Folder folder;
  std::vector<std::string> words{"sweep",  "--out", folder / "sweep", "--lr",   "1e-3,1e-2",
                                 "--jobs", "2",     "--steps",        "100000", "--save-every",
                                 "50"};
  for (const std::string& word : small_model(folder.path())) words.push_back(word);
  Program first({words});
  const double begin = now();
  while (saved_steps(folder / "sweep/lr=1e-3").empty() && now() - begin < 30) {
  }
  first.send(SIGKILL);
  ASSERT_FALSE(saved_steps(folder / "sweep/lr=1e-3").empty()) << first.output();
  Program second({{"sweep", "--out", folder / "sweep", "--resume", "--jobs", "2"}});
  const int64_t before = saved_steps(folder / "sweep/lr=1e-3").back();
  while (second.running() && saved_steps(folder / "sweep/lr=1e-3").back() == before &&
         now() - begin < 60) {
  }
  EXPECT_TRUE(second.running()) << second.output();
  EXPECT_EQ(second.output().find("another process"), std::string::npos) << second.output();
  EXPECT_GT(saved_steps(folder / "sweep/lr=1e-3").back(), before);
}

TEST(Sweep, KeepsItsFileOfSettingsAndRefusesMissingDataAndLongNames) {
  const Folder folder;
  std::vector<std::string> words = small_model(folder.path());
  write(folder / "own.toml", "steps = 2\n");
  Outcome o = run_with(
      {"sweep", "--out", folder / "sweep", "--lr", "1e-3,1e-2", "--config", folder / "own.toml"},
      words);
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(read(folder / "sweep/config.toml"), "steps = 2\n");
  write(folder / "own.toml", "no such = thing");
  EXPECT_EQ(run({"sweep", "--out", folder / "sweep", "--resume"}).code, 0);

  words[3] = "bytes=" + (folder / "nowhere");
  o = run_with({"sweep", "--out", folder / "second", "--lr", "1e-3,1e-2", "--steps", "2"}, words);
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("nowhere"), std::string::npos) << o.err;
  EXPECT_FALSE(exists(folder / "second"));

  words = small_model(folder.path());
  o = run_with({"sweep", "--out", folder / "third", "--set",
                "labelled.columns=" + std::string(260, 'a') + "," + std::string(260, 'b')},
               words);
  EXPECT_EQ(o.code, 1) << o.out;
  EXPECT_FALSE(exists(folder / "third"));
  EXPECT_NE(run({"profile", "--model", "transformer:tiny", "--from", folder / "nothere"})
                .err.find("there is no folder"),
            std::string::npos);
}

TEST(Sweep, RefusesWhatNoRunWouldTake) {
  const Folder folder;
  const std::vector<std::string> model = small_model(folder.path());
  const auto refused = [&](const std::vector<std::string>& more, const std::string& message) {
    std::vector<std::string> words = {"sweep", "--out", folder / "sweep"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome o = run_with(words, model);
    EXPECT_NE(o.code, 0);
    EXPECT_NE(o.err.find(message), std::string::npos) << o.err;
    EXPECT_FALSE(exists(folder / "sweep"));
  };
  refused({"--steps", "4"}, "nothing has several values");
  refused({"--steps", "4", "--lr", "1e-3,fast"}, "fast");
  refused({"--steps", "4", "--seed", "1,2", "--seeds", "2"}, "expected one of the two");
  refused({"--steps", "4", "--lr", "1e-3,1e-2", "--lr", "1e-4,1e-5"}, "has several values twice");
  refused({"--seconds", "1", "--lr", "1e-3,1e-2", "--first", "0.5"}, "is a share of --steps");
  refused({"--steps", "4", "--lr", "1e-3,1e-2", "--jobs", "-1"}, "jobs");
  refused({"--steps", "4", "--lr", "1e-3,1e-2", "--first", "2"}, "first");
  refused({"--steps", "4", "--lr", "1e-3,1e-2", "--seeds", "0"}, "seeds");
  refused({"--steps", "4", "--lr", "1e-3,1e-3"}, "two runs would be called \"lr=1e-3\"");
  // A run that fails does not stop the others.
  const Outcome o = run_with({"sweep", "--out", folder / "failing", "--steps", "4", "--lr",
                              "1e30,1e-3", "--set", "optimizer.clip=0", "--jobs", "2"},
                             model);
  EXPECT_NE(o.code, 0);
  EXPECT_NE(o.out.find("lr=1e30: failed: "), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("* lr=1e-3"), std::string::npos) << o.out;
}

}  // namespace
}  // namespace longspan::test
