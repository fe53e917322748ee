// The folders of runs: a run does not touch foreign files, and loses none of its own.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "core/tensor.h"
#include "data/io/bytes.h"
#include "data/io/json.h"
#include "tests/system/program.h"
#include "train/log.h"
#include "train/state.h"

namespace longspan::test {
namespace {

/// Returns the arguments that train a model of a few thousand parameters, with steps of less than a
/// millisecond.
Words tiny(const std::string& text, const std::string& out, const Words& more) {
  Words all = {"--set", "schedule.warmup=0"};
  all.insert(all.end(), more.begin(), more.end());
  return small_training(text, out, all);
}

/// Returns options that make the parameters overflow in a few steps.
Words diverging(const std::string& lr) {
  return {"--lr",         lr,
          "--set",        "optimizer.name=sgd",
          "--set",        "optimizer.clip=0",
          "--set",        "optimizer.momentum=0",
          "--save-every", "1"};
}

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Returns the rows of metrics.jsonl that have a member of that name.
std::vector<Json> rows_with(const std::string& out, const char* name) {
  if (!exists(out + "/metrics.jsonl")) return {};
  std::vector<Json> rows = read_rows(out + "/metrics.jsonl");
  std::erase_if(rows, [&](const Json& row) { return row.find(name) == nullptr; });
  return rows;
}

/// Rewrites state.json of a checkpoint, as another version of the program would have written it.
void rewrite_values(const std::string& checkpoint, const std::function<void(Members&)>& change) {
  Members values = read_values(checkpoint).object();
  std::erase_if(values, [](const JsonMember& m) { return m.name == "xxh3"; });
  change(values);
  std::string text = to_string(Json(values));
  text.pop_back();
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  write(checkpoint + "/state.json",
        text + ",\"xxh3\":\"" + checksum({bytes, text.size()}) + "\"}\n");
}

void drop(Members& values, const std::string& name) {
  std::erase_if(values, [&](const JsonMember& m) { return m.name == name; });
}

void set_member(Members& values, const std::string& name, const Json& value) {
  for (JsonMember& m : values) {
    if (m.name == name) m.value = value;
  }
}

/// Sets a parameter of a checkpoint to NaN. Earlier versions could write such checkpoints.
void spoil(const std::string& checkpoint) {
  TensorList tensors = read_tensors(checkpoint + "/model.safetensors");
  tensors.back().tensor.mut().as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  const std::string path = checkpoint + "/model.safetensors";
  write_tensors(path, tensors);
  std::string sum;
  for (const auto& [key, value] : read_tensor_header(path).metadata) {
    if (key == "xxh3") sum = value;
  }
  rewrite_values(checkpoint, [&](Members& values) {
    Members files = Json(values)["files"].object();
    set_member(files, "model.safetensors", sum);
    set_member(values, "files", Json(files));
  });
  verify_checkpoint(checkpoint);
}

class RunFolders : public testing::Test {
 protected:
  void SetUp() override { write(text, some_text(20'000)); }
  Outcome must(const Words& arguments) {
    Outcome o = run(arguments);
    EXPECT_EQ(o.code, 0) << o.err;
    return o;
  }
  /// Expects the program to fail with this message. Returns all of standard error.
  std::string refused(const Words& arguments, const std::string& message) {
    const Outcome o = run(arguments);
    EXPECT_EQ(o.code, 1) << o.out;
    EXPECT_NE(o.err.find(message), std::string::npos) << message << "\n" << o.err;
    return o.err;
  }
  Words train(const std::string& out, const Words& more) { return tiny(text, out, more); }
  Folder folder;
  const std::string text = folder / "text.txt";
};

TEST_F(RunFolders, OfOthersAreLeftAlone) {
  const std::pair<const char*, const char*> files[] = {{"config.toml", "[mine]\nlength = 3\n"},
                                                       {"metrics.jsonl", "{\"step\":1}\n"},
                                                       {"summary.json", "{\"b\":1}\n"},
                                                       {".tmp-rsync-partial/half", "x"},
                                                       {"pictures/pattern.png", "mine"},
                                                       {"checkpoints/step-3/notes", "x"},
                                                       {"memory.csv", "a,b\n"},
                                                       {"notes.txt", ""}};
  for (const auto& [name, content] : files) {
    const std::string out = folder / "stranger";
    std::filesystem::remove_all(out);
    write(out + "/" + name, content);
    const auto before = contents(out);
    const std::string message = "nothing is replaced";
    for (const Words& more : {Words{}, Words{"--resume"}}) {
      refused(train(out, Words{"--steps", "2"} + more), "holds no run of longspan");
    }
    refused({"draw", "--model", "transformer", "--length", "16", "--out", out},
            "holds no run of longspan");
    refused({"study", "memory", "--model", "local_transformer", "--length", "16", "--batch", "1",
             "--depths", "1", "--lengths", "16", "--strategies", "standard", "--out", out},
            message);
    EXPECT_EQ(contents(out), before) << name;
  }
  refused(train(text, {"--steps", "2"}), "is a file");
}

TEST_F(RunFolders, BeginWhereNothingIsLost) {
  const std::string out = folder / "run";
  // The files of a run that was stopped at its start.
  write(out + "/metrics.jsonl", "");
  std::filesystem::create_directories(out + "/checkpoints");
  write(out + "/.tmp-longspan-12-3ab4-0", "half");
  must(train(out, {"--steps", "2"}));
  EXPECT_FALSE(exists(out + "/.tmp-longspan-12-3ab4-0"));
  // The files of `draw`, which a later `draw` may replace.
  const Words draw = {"draw", "--model", "transformer",   "--length",
                      "16",   "--out",   folder / "drawn"};
  must(draw);
  must(draw);
  must(train(folder / "drawn", {"--steps", "2"}));
  must(draw);
  EXPECT_TRUE(exists(folder / "drawn/pictures/loss.png"));
}

TEST_F(RunFolders, OfEarlierVersionsGoOn) {
  const std::string out = folder / "run";
  must(train(out, {"--steps", "4"}));
  rewrite_values(checkpoint_path(out, 4), [](Members& values) {
    for (const char* name : {"data", "processor", "build", "schedule"}) drop(values, name);
  });
  const Outcome o = must({"train", "--out", out, "--resume", "--steps", "6"});
  EXPECT_NE(o.err.find("continuing from step 4"), std::string::npos) << o.err;
  EXPECT_EQ(o.err.find("may differ"), std::string::npos) << o.err;
  // Resumes from checkpoints alone, with the configuration on the command line.
  const std::string moved = folder / "moved";
  std::filesystem::create_directories(moved);
  std::filesystem::rename(out + "/checkpoints", moved + "/checkpoints");
  must(train(moved, {"--steps", "7", "--resume"}));
  EXPECT_EQ(saved_steps(moved), (std::vector<int64_t>{4, 6, 7}));
}

TEST_F(RunFolders, WithFiguresAndNoCheckpointAreNotBegunAgain) {
  const std::string out = folder / "run";
  must(train(out, {"--steps", "4"}));
  std::filesystem::remove_all(checkpoint_path(out, 4));
  const auto before = contents(out);
  refused(train(out, {"--steps", "4"}), "the figures of a run that has no checkpoint");
  EXPECT_EQ(contents(out), before);
  must(train(out, {"--steps", "4", "--resume"}));
}

TEST_F(RunFolders, SweepingSparesWhatIsNotOurs) {
  const std::string out = folder / "run";
  must(train(out, {"--steps", "2"}));
  const Words ours = {".tmp-longspan-1-2f-0", ".tmp-longspan-77-abc-12-old"};
  const Words foreign = {".tmp-rsync-partial", ".tmp-1-left",         ".tmp-longspan-",
                         ".tmp-longspan-1-2f", ".tmp-longspan-x-2-0", ".tmp-longspan-1-2f-0-mine"};
  for (const char* place : {"/", "/checkpoints/", "/pictures/"}) {
    for (const std::string& name : ours + foreign) write(out + place + name + "/half", "x");
  }
  must({"train", "--out", out, "--resume", "--steps", "3"});
  for (const char* place : {"/", "/checkpoints/", "/pictures/"}) {
    for (const std::string& name : ours) EXPECT_FALSE(exists(out + place + name)) << name;
    for (const std::string& name : foreign) {
      EXPECT_EQ(read(out + place + name + "/half"), "x") << place << name;
    }
  }
}

// Of many diverging runs, none leaves a checkpoint with nonfinite values. Each run that made
// progress names a checkpoint that can be scored and trained on. No run ends with status 0 if its
// model gives nonfinite results.
TEST_F(RunFolders, OfDivergedRunsKeepAGoodCheckpoint) {
  int diverged = 0, with_remedy = 0, unsaved = 0;
  for (const std::string lr : {"1e4", "1e10", "1e38", "1e40"}) {
    for (const std::string steps : {"1", "3", "30"}) {
      for (const Words& more : {Words{}, Words{"--eval-every", "1"}, Words{"--split", "100/0/0"}}) {
        const bool unscored = !more.empty() && more[0] == "--split";
        const std::string out = folder / ("run-" + lr + "-" + steps);
        std::filesystem::remove_all(out);
        const Outcome o =
            run(train(out, diverging(lr) + Words{"--steps", steps, "--keep", "1"} + more));
        SCOPED_TRACE(lr + " " + steps + "\n" + o.err);
        for (const int64_t step : saved_steps(out)) {
          const std::string path = checkpoint_path(out, step);
          EXPECT_EQ(first_nonfinite(read_tensors(path + "/model.safetensors")), "");
          EXPECT_EQ(first_nonfinite(read_tensors(path + "/optimizer.safetensors")), "");
        }
        if (o.code == 0) {
          EXPECT_TRUE(unscored || parse_json(o.last_line())["valid_bpb"].is_number());
          EXPECT_EQ(saved_steps(out), std::vector<int64_t>{std::stoll(steps)});
          continue;
        }
        ++diverged;
        unsaved += o.err.find("no checkpoint is written") != std::string::npos;
        EXPECT_NE(o.err.find("the run has diverged"), std::string::npos);
        const std::string said = "go on from it with --resume --step ";
        const size_t at = o.err.find(said);
        if (at == std::string::npos) {
          EXPECT_NE(o.err.find("start again"), std::string::npos);
          EXPECT_LE(saved_steps(out).size(), 1u);
          continue;
        }
        ++with_remedy;
        const std::string step = std::to_string(std::stoll(o.err.substr(at + said.size())));
        EXPECT_NE(o.err.find(checkpoint_path(out, std::stoll(step))), std::string::npos);
        if (!unscored) must({"eval", "--out", out, "--step", step});
        // Both remedies that it names: a gradient of 1e23 needs more than a lower rate.
        must({"train", "--out", out, "--resume", "--step", step, "--lr", "1e-6", "--set",
              "optimizer.clip=1", "--steps", std::to_string(std::stoll(step) + 1)});
      }
    }
  }
  EXPECT_GE(diverged, 20);
  EXPECT_GE(with_remedy, 3);
  EXPECT_GE(unsaved, 3);
}

TEST_F(RunFolders, StepsOfDivergedRunsAreThoseShown) {
  const std::string out = folder / "run";
  const Outcome o =
      run(train(out, diverging("1e4") + Words{"--steps", "30", "--keep", "1", "--log-every", "1"}));
  EXPECT_EQ(o.code, 1);
  const int64_t last = rows_with(out, "loss").back()["step"].integer();
  EXPECT_NE(o.err.find("step " + std::to_string(last + 1)), std::string::npos) << o.err;
  const std::vector<int64_t> steps = saved_steps(out);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[1], last);
  EXPECT_NE(o.err.find("--resume --step " + std::to_string(steps[0])), std::string::npos) << o.err;
}

TEST_F(RunFolders, NanParametersAreNoModel) {
  const std::string out = folder / "run";
  must(train(out, {"--steps", "6", "--save-every", "2"}));
  spoil(checkpoint_path(out, 6));
  const std::string message = "step-6: \"";
  for (const Words& command :
       {Words{"eval", "--out", out}, Words{"generate", "--out", out, "--tokens", "3"},
        Words{"draw", "--out", out}, Words{"train", "--out", out, "--resume", "--steps", "8"}}) {
    const std::string said = refused(command, message);
    EXPECT_NE(said.find("holds NaN or infinity"), std::string::npos) << said;
    EXPECT_NE(said.find("of step 4: --step 4"), std::string::npos) << said;
  }
  refused(train(folder / "other", {"--steps", "2", "--from", out}), "holds NaN or infinity");
  EXPECT_FALSE(exists(out + "/evals.jsonl"));
  must({"eval", "--out", out, "--step", "4"});
  spoil(checkpoint_path(out, 2));
  spoil(checkpoint_path(out, 4));
  refused({"eval", "--out", out}, "no checkpoint before it is finite");
}

TEST_F(RunFolders, GoOnFromAnyOfTheirSteps) {
  const std::string whole = folder / "whole", out = folder / "run";
  must(train(whole, {"--steps", "9", "--log-every", "1"}));
  must(train(out, {"--steps", "9", "--save-every", "3", "--log-every", "1"}));
  const std::string rows = read(out + "/metrics.jsonl"), summary = read(out + "/summary.json"),
                    newest = read(checkpoint_path(out, 9) + "/model.safetensors");
  const Outcome o = must({"train", "--out", out, "--resume", "--step", "3", "--save-every", "0"});
  EXPECT_NE(o.err.find("what lay beyond step 3 is in " + out + "/beyond-step-3"), std::string::npos)
      << o.err;
  // The weights equal those that were set aside and those of an uninterrupted run, bit for bit.
  EXPECT_EQ(saved_steps(out), (std::vector<int64_t>{3, 9}));
  EXPECT_EQ(read(checkpoint_path(out, 9) + "/model.safetensors"), newest);
  EXPECT_EQ(read(checkpoint_path(whole, 9) + "/model.safetensors"), newest);
  EXPECT_EQ(rows_with(out, "loss").size(), 9u);
  // The folder with the files set aside is complete, and is a run of its own.
  const std::string aside = out + "/beyond-step-3";
  EXPECT_EQ(saved_steps(aside), (std::vector<int64_t>{6, 9}));
  EXPECT_EQ(read(aside + "/metrics.jsonl"), rows);
  EXPECT_EQ(read(aside + "/summary.json"), summary);
  EXPECT_EQ(read(checkpoint_path(aside, 9) + "/model.safetensors"), newest);
  must({"eval", "--out", aside, "--step", "6"});
  // A second time, the files move to another folder. The newest step has no files beyond it.
  must({"train", "--out", out, "--resume", "--step", "3"});
  EXPECT_EQ(saved_steps(out + "/beyond-step-3-2"), std::vector<int64_t>{9});
  must({"train", "--out", out, "--resume", "--step", "9", "--steps", "10"});
  EXPECT_FALSE(exists(out + "/beyond-step-9"));
  refused({"train", "--out", out, "--resume", "--step", "8"}, "holds the steps 3, 9, 10");
  refused(train(folder / "new", {"--step", "5"}), "expected --resume too, or --steps");
}

TEST_F(RunFolders, KeepWhatTheyReachedWhenTheyAreScored) {
  const std::string out = folder / "run";
  must(train(out, {"--steps", "6", "--save-every", "3"}));
  const std::string summary = read(out + "/summary.json"), rows = read(out + "/metrics.jsonl");
  const double valid = parse_json(summary)["valid_bpb"].number();
  const Outcome plain = must({"eval", "--out", out});
  const Outcome other = must({"eval", "--out", out, "--step", "3", "--part", "test", "--length",
                              "8", "--set", "batch=1", "--stride", "4"});
  EXPECT_EQ(read(out + "/summary.json"), summary);
  EXPECT_EQ(read(out + "/metrics.jsonl"), rows);
  const std::vector<Json> kept = read_rows(out + "/evals.jsonl");
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(read(out + "/evals.jsonl"), plain.last_line() + "\n" + other.last_line() + "\n");
  EXPECT_EQ(kept[0]["step"].integer(), 6);
  EXPECT_EQ(kept[0]["part"].string(), "valid");
  EXPECT_TRUE(kept[0]["overrides"].object().empty());
  EXPECT_EQ(kept[0]["valid_bpb"].number(), valid);
  EXPECT_EQ(kept[1]["step"].integer(), 3);
  EXPECT_EQ(to_string(kept[1]["overrides"]), "{\"length\":\"8\",\"batch\":\"1\"}");
  EXPECT_EQ(kept[1]["stride"].integer(), 4);
  EXPECT_LT(kept[1]["test_sliding_bpb"].number(), 8.5);
  EXPECT_EQ(kept[1].find("valid_bpb"), nullptr);
}

TEST_F(RunFolders, AreScoredWhereNothingCanBeWritten) {
  const std::string disk = folder / "disk", out = disk + "/run";
  std::filesystem::create_directories(disk);
  if (geteuid() != 0 || mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "needs the right to mount";
  }
  must(train(out, {"--steps", "2"}));
  const auto check = [&](const char* reason) {
    const auto before = contents(out);
    const Outcome o = must({"eval", "--out", out});
    EXPECT_NE(o.err.find("the score is not kept: "), std::string::npos) << o.err;
    EXPECT_NE(o.err.find(reason), std::string::npos) << o.err;
    EXPECT_GT(parse_json(o.last_line())["valid_bpb"].number(), 0);
    EXPECT_EQ(contents(out), before);
  };
  must({"eval", "--out", out});
  const std::string kept = read(out + "/evals.jsonl");
  // Fills the disk with long rows until one fits only partly. No piece of that row may stay.
  std::ofstream(disk + "/filling") << std::string(4 << 20, 'x');
  bool full = false;
  for (int i = 0; i < 200 && !full; ++i) {
    const Outcome o = must({"eval", "--out", out, "--set", "data_root=" + std::string(2000, 'x')});
    full = o.err.find("the score is not kept: ") != std::string::npos;
  }
  EXPECT_TRUE(full);
  const std::string rows = read(out + "/evals.jsonl");
  EXPECT_EQ(rows.back(), '\n');
  EXPECT_EQ(rows.substr(0, kept.size()), kept);
  std::filesystem::remove(disk + "/filling");
  mount("tmpfs", disk.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "");
  check("EROFS");
  umount(disk.c_str());
}

TEST_F(RunFolders, AreScoredOnDataWithAnyName) {
  const std::string out = folder / "run", other = folder / "caf\xe9.txt";
  must(train(out, {"--steps", "2"}));
  write(other, some_text(20'000));
  const Outcome o = must({"eval", "--out", out, "--data", "bytes=" + other, "--other-data"});
  EXPECT_NE(o.last_line().find("a name that is not UTF-8"), std::string::npos) << o.last_line();
  EXPECT_EQ(read(out + "/evals.jsonl"), o.last_line() + "\n");
}

TEST_F(RunFolders, RepeatNoRows) {
  const std::string out = folder / "run";
  must(train(out, {"--steps", "6", "--eval-every", "3", "--log-every", "4"}));
  const std::string rows = read(out + "/metrics.jsonl"), summary = read(out + "/summary.json");
  for (int i = 0; i < 2; ++i) must({"train", "--out", out, "--resume"});
  EXPECT_EQ(read(out + "/metrics.jsonl"), rows);
  EXPECT_EQ(read(out + "/summary.json"), summary);
  // A score of another length is not a repetition.
  must({"train", "--out", out, "--resume", "--length", "8"});
  EXPECT_EQ(rows_with(out, "valid_bpb").size(), 3u);
}

TEST_F(RunFolders, OfStudiesAreNotOverwritten) {
  const Words study = {"study",        "memory",   "--model",   "local_transformer",
                       "--length",     "16",       "--batch",   "1",
                       "--depths",     "1",        "--lengths", "16",
                       "--strategies", "standard", "--out",     folder / "study"};
  must(study);
  const auto before = contents(folder / "study");
  refused(study, "is not empty");
  EXPECT_EQ(contents(folder / "study"), before);
}

TEST_F(RunFolders, KnowTheirData) {
  const std::string out = folder / "run", other = folder / "other.txt";
  must(train(out, {"--steps", "4"}));
  const Json values = read_values(checkpoint_path(out, 4));
  EXPECT_EQ(values["data"]["bytes"].integer(), 20'000);
  EXPECT_FALSE(values["processor"].string().empty());
  EXPECT_FALSE(values["build"].string().empty());
  std::string changed = read(text);
  changed[10'000] = 'Q';
  write(other, changed);
  const auto before = contents(out);
  refused({"train", "--out", out, "--resume", "--steps", "5", "--data", "bytes=" + other},
          "--other-data to go on with these");
  EXPECT_EQ(contents(out), before);
  // The same bytes under another path, or compressed, count as the same data.
  const std::string packed = folder / "copy.gz", copy = folder / "copy";
  write(copy, read(text));
  ASSERT_EQ(std::system(("gzip -c '" + text + "' > '" + packed + "'").c_str()), 0);
  must({"train", "--out", out, "--resume", "--steps", "5", "--data", "bytes=" + copy});
  must({"train", "--out", out, "--resume", "--steps", "6", "--data", "bytes=" + packed});
  const Outcome o = must({"train", "--out", out, "--resume", "--steps", "7", "--data",
                          "bytes=" + other, "--other-data"});
  EXPECT_NE(o.err.find("the data are others"), std::string::npos) << o.err;
  refused({"train", "--out", out, "--resume", "--steps", "8", "--data", "bytes=" + text},
          "--other-data");
}

// What the commands read besides parameters must be what the run was trained with.
TEST_F(RunFolders, AreReadWithTheTokensTheyWereTrainedWith) {
  const std::string out = folder / "run", model = folder / "t.model";
  const auto tokenizer = [&](const std::string& from) {
    must({"tokens", "train", "--data", "bytes=" + from, "--kind", "bpe", "--vocabulary", "320",
          "--out", model});
  };
  tokenizer(text);
  const Words tokens = {"--tokenizer", model, "--set", "model.vocab=320"};
  must(train(out, Words{"--steps", "4"} + tokens));
  const Words commands[] = {{"eval", "--out", out},
                            {"generate", "--out", out, "--tokens", "3"},
                            {"draw", "--out", out},
                            {"train", "--out", out, "--resume", "--steps", "5"},
                            train(folder / "other", Words{"--steps", "2", "--from", out} + tokens)};
  for (const Words& command : commands) {
    if (command[0] != "train") must(command);
  }
  std::string turned = read(text);
  for (char& c : turned)
    c = c >= 'a' && c <= 'z' ? static_cast<char>('a' + (c - 'a' + 13) % 26) : c;
  write(folder / "turned", turned);
  tokenizer(folder / "turned");
  const auto before = contents(out);
  for (const Words& command : commands) {
    const bool from = command[0] == "train" && command[3] != "--resume";
    refused(command, from ? "--from: the tokens of this run are " + model + " ("
                          : "the tokens of " + model + " are ");
    EXPECT_EQ(contents(out), before) << command[0];
  }
  const Outcome o = must({"eval", "--out", out, "--other-data"});
  EXPECT_NE(o.err.find("the tokens of " + model), std::string::npos) << o.err;
  EXPECT_NE(o.last_line().find("\"other_data\":[\"the tokens of "), std::string::npos)
      << o.last_line();
  must({"generate", "--out", out, "--tokens", "3", "--other-data"});
  must({"draw", "--out", out, "--other-data"});
}

// The vocabulary of words is made of the text.
TEST_F(RunFolders, AreReadWithTheWordsTheyWereTrainedWith) {
  std::string words;
  for (int i = 0; i < 3000; ++i) words += "w" + std::to_string(i * i % 37) + (i % 9 ? " " : "\n");
  write(text, words);
  const std::string out = folder / "run";
  const Words tokens = {"--task", "words", "--data", "words=" + text, "--set", "model.vocab=64"};
  must(train(out, Words{"--steps", "4"} + tokens));
  EXPECT_EQ(must({"eval", "--out", out}).last_line().find("other_data"), std::string::npos);
  for (char& c : words) c = c == '3' ? '4' : c == '4' ? '3' : c;
  write(text, words);
  const auto before = contents(out);
  refused({"eval", "--out", out}, "the data are others than those that");
  refused({"draw", "--out", out}, "the data are others than those that");
  refused({"train", "--out", out, "--resume", "--steps", "5"}, "the data are others");
  refused(train(folder / "other", Words{"--steps", "2", "--from", out} + tokens),
          "the tokens of this run are words of words (words of words: ");
  EXPECT_EQ(contents(out), before);
  // A checkpoint of an earlier version has the name alone.
  rewrite_values(checkpoint_path(out, 4), [](Members& values) {
    Members data = Json(values)["data"].object();
    set_member(data, "tokens", "words of words");
    set_member(values, "data", Json(data));
  });
  must(train(folder / "other", Words{"--steps", "2", "--from", out} + tokens));
}

TEST_F(RunFolders, AreScoredOnTheirDataAndSplit) {
  const std::string out = folder / "run", other = folder / "other.txt";
  must(train(out, {"--steps", "4"}));
  write(other, read(text) + "more");
  const std::string line = "the data are others than those that " + checkpoint_path(out, 4);
  for (const Words& command : {Words{"eval", "--out", out}, Words{"draw", "--out", out}}) {
    refused(command + Words{"--data", "bytes=" + other}, line);
    EXPECT_NE(must(command + Words{"--data", "bytes=" + other, "--other-data"}).err.find(line),
              std::string::npos);
  }
  EXPECT_NE(read(out + "/evals.jsonl").find("\"other_data\":[\"the data are others"),
            std::string::npos);
  must({"generate", "--out", out, "--tokens", "2"});
  // What was trained on must not move into validation.
  const std::string split = "the split is 80/10/10, and that of " + checkpoint_path(out, 4) +
                            " 90/5/5: what it was trained on moves into another part";
  for (const Words& command : {Words{"eval", "--out", out}, Words{"draw", "--out", out},
                               Words{"train", "--out", out, "--resume", "--steps", "5"}}) {
    refused(command + Words{"--split", "80/10/10"}, split);
    must(command + Words{"--split", "90/5/5"});
  }
  const Words from = {"--steps", "2", "--from", out, "--split", "80/10/10"};
  refused(train(folder / "from", from), "--from: the split is 80/10/10, and that of ");
  must(train(folder / "from", from + Words{"--other-data"}));
  must(train(folder / "of others", from + Words{"--data", "bytes=" + other}));
  EXPECT_NE(must({"train", "--out", out, "--resume", "--steps", "6", "--split", "70/15/15",
                  "--other-data"})
                .err.find("the split is 70/15/15, and that of "),
            std::string::npos);
  must({"eval", "--out", out});
  refused({"eval", "--out", out, "--step", "5"}, "the split is 70/15/15, and that of ");
  // A run that was killed before its first checkpoint with another split has it in config.toml.
  std::string config = read(out + "/config.toml");
  config.replace(config.find("split = \"70/15/15\""), 18, "split = \"50/25/25\"");
  write(out + "/config.toml", config);
  refused({"train", "--out", out, "--resume", "--steps", "7"}, "the split is 50/25/25, and that");
}

// Data that are missing are no other data.
TEST_F(RunFolders, NameDataThatAreMissing) {
  const std::string out = folder / "run", there = folder / "there.txt";
  write(there, read(text));
  must(train(out, {"--steps", "1", "--data", "bytes=" + there}));
  std::filesystem::remove(there);
  for (const char* command : {"eval", "draw"}) {
    refused({command, "--out", out}, "data: cannot open " + there);
  }
  must({"generate", "--out", out, "--tokens", "2"});
}

// The name of a folder may have any bytes; a line of JSON and a terminal may not.
TEST_F(RunFolders, WithAnyNameAreScoredOnOtherData) {
  const std::string out = folder / "a\xff\x1b[31m", other = folder / "other.txt";
  must(train(out, {"--steps", "1"}));
  write(other, read(text) + "more");
  const Words more = {"--out", out, "--other-data", "--data", "bytes=" + other};
  const Outcome o = must(Words{"eval"} + more);
  EXPECT_NE(o.err.find("a\\xff\\x1b[31m/"), std::string::npos) << o.err;
  EXPECT_NE(parse_json(o.last_line())["other_data"].array()[0].string().find("a\\xff\\x1b[31m/"),
            std::string::npos);
  for (const std::string& err : {o.err, must(Words{"draw"} + more).err}) {
    EXPECT_EQ(err.find('\x1b'), std::string::npos) << err;
    EXPECT_EQ(err.find('\xff'), std::string::npos) << err;
  }
}

// Bases of generated samples have the numbers of those of files.
TEST_F(RunFolders, OfGeneratedSamplesAreNotScoredOnFiles) {
  const std::string out = folder / "run", bases = folder / "promoter";
  std::filesystem::create_directory(bases);
  for (const char* file : {"/positive.fasta", "/negative.fasta"}) write(bases + file, ">a\nACGT\n");
  must({"train",
        "--model",
        "bigbird:motif",
        "--layers",
        "1",
        "--task",
        "motif-dna",
        "--set",
        "motifs.nearest=20",
        "--set",
        "motifs.furthest=60",
        "--set",
        "motifs.held_out=2",
        "--length",
        "128",
        "--batch",
        "1",
        "--steps",
        "1",
        "--out",
        out});
  refused({"eval", "--out", out, "--task", "promoter", "--data", "promoter=" + bases},
          "task is \"promoter\", and was \"motif-dna\"");
}

TEST_F(RunFolders, StartOnlyOnceFromAnother) {
  const std::string base = folder / "base", out = folder / "run";
  must(train(base, {"--steps", "1"}));
  must(train(out, {"--steps", "1", "--from", base}));
  must({"train", "--out", out, "--resume", "--steps", "2", "--from", base});
  refused({"train", "--out", out, "--resume", "--steps", "3", "--from", out},
          "--from: is for the first step");
  refused({"train", "--out", base, "--resume", "--steps", "3", "--from", out},
          "--from: is for the first step");
}

TEST_F(RunFolders, MayHaveFewerTokensThanBytes) {
  std::string pieces = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (char c = 'a'; c <= 'z'; ++c) pieces += std::string{c, '\n', '#', '#', c, '\n'};
  const std::string vocabulary = folder / "pieces.txt", out = folder / "run";
  write(vocabulary, pieces);
  const Words few = {"--steps", "1", "--tokenizer", vocabulary, "--set"};
  must(train(out, few + Words{"model.vocab=57"}));
  refused(train(folder / "less", few + Words{"model.vocab=56"}),
          "model.vocab: got 56; bytes has 57");
}

TEST_F(RunFolders, SayHowTheirDataWereRead) {
  const std::string out = folder / "run";
  must({"train", "--model", "transformer:encoder", "--layers", "1", "--set", "model.d_model=16",
        "--length", "32", "--batch", "1", "--steps", "1", "--data", "bytes=" + text, "--out", out});
  must({"train", "--out", out, "--resume", "--steps", "2", "--set", "whole_words=true"});
  EXPECT_NE(must({"eval", "--out", out, "--step", "1"})
                .err.find("whole_words is true, and was false when "),
            std::string::npos);
}

TEST_F(RunFolders, AreScoredOnTheSamplesTheyWereTrainedOn) {
  const std::string out = folder / "run";
  must({"train", "--model", "transformer:tiny", "--task", "period", "--set", "period.period=10",
        "--set", "model.vocab=64", "--length", "30", "--batch", "2", "--steps", "3", "--set",
        "period.held_out=4", "--out", out});
  must({"eval", "--out", out, "--set", "period.held_out=8"});
  refused({"eval", "--out", out, "--set", "period.period=12"},
          "other samples are generated than for " + checkpoint_path(out, 3) +
              ": period.period is 12, and was 10");
  refused({"train", "--out", out, "--resume", "--steps", "4", "--set", "period.period=12"},
          "period.period is 12, and was 10");
  must({"eval", "--out", out, "--set", "period.period=12", "--other-data"});
}

TEST_F(RunFolders, SayEverySettingThatChanges) {
  const std::string out = folder / "run";
  must(train(out, {"--steps", "4"}));
  const Outcome o = must({"train", "--out", out, "--resume", "--steps", "6", "--batch", "3",
                          "--seed", "2", "--set", "model.dropout=0.1", "--length", "8"});
  for (const char* line :
       {"\nsteps is 6, and was 4\n", "\nbatch is 3, and was 2\n", "\nseed is 2, and was 1\n",
        "\nlength is 8, and was 16\n", "\nmodel.dropout is 0.1, and was 0.0\n",
        "\nthe samples are others, or in another order, so that some of this epoch may be read "
        "again or left out, since other than before are: length, seed\n"}) {
    EXPECT_NE(o.err.find(line), std::string::npos) << line << o.err;
  }
  // So does whatever reads an earlier checkpoint with what was changed later.
  const std::string changed = "length is 8, and was 16 when " + checkpoint_path(out, 4);
  EXPECT_NE(must({"eval", "--out", out, "--step", "4"}).err.find(changed), std::string::npos);
  for (const Words& more : {Words{"--step", "4", "--length", "8"}, Words{"--step", "6"}}) {
    const Outcome same = must(Words{"eval", "--out", out} + more);
    EXPECT_EQ(same.err.find("length is "), std::string::npos) << same.err;
  }
  const Json values = read_values(checkpoint_path(out, 6));
  EXPECT_EQ(values["samples"].integer(), 4 * 2 + 2 * 3);
  EXPECT_EQ(values["config"]["batch"].integer(), 3);
}

TEST_F(RunFolders, ReadEachSampleOnceInOtherBatches) {
  expect_each_sample_once(train(folder / "", {}), folder / "next");
  expect_each_sample_once(
      train(folder / "", {"--model", "transformer:encoder", "--set", "model.vocab=257"}),
      folder / "hidden");
  for (const Words& model :
       {Words{"--model", "transformer:tiny", "--task", "duplicate", "--set", "model.vocab=16",
              "--length", "14"},
        Words{"--model", "bigbird:motif", "--task", "motif-dna", "--length", "64", "--layers", "1",
              "--set", "motifs.nearest=20"},
        Words{"--model", "longformer", "--task", "needle-qa", "--length", "64", "--layers", "1",
              "--set", "model.span_head=true", "--set", "model.mlm_head=false"}}) {
    expect_each_sample_once(Words{"train", "--set", "model.dropout=0"} + model, folder / model[3]);
  }
}

// Earlier versions kept no count of samples: it is that of their steps.
TEST_F(RunFolders, OfEarlierVersionsCountTheirSamplesBySteps) {
  const std::string out = folder / "run", old = folder / "old";
  must(train(out, {"--steps", "3", "--batch", "4"}));
  std::filesystem::copy(out, old, std::filesystem::copy_options::recursive);
  rewrite_values(checkpoint_path(old, 3), [](Members& values) {
    for (const char* name : {"samples", "origin", "config"}) drop(values, name);
  });
  for (const std::string& run : {out, old}) {
    const Outcome o = must({"train", "--out", run, "--resume", "--steps", "5", "--batch", "3"});
    EXPECT_NE(o.err.find("\nthe training data go on after the 12 samples read\n"),
              std::string::npos)
        << o.err;
    EXPECT_NE(o.err.find("\nbatch is 3, and was 4\n"), std::string::npos) << o.err;
    EXPECT_EQ(read_values(checkpoint_path(run, 5))["samples"].integer(), 12 + 2 * 3);
  }
  EXPECT_EQ(read(checkpoint_path(out, 5) + "/model.safetensors"),
            read(checkpoint_path(old, 5) + "/model.safetensors"));
}

TEST_F(RunFolders, SayWhenBitsMayDiffer) {
  const std::string out = folder / "run";
  must(train(out, {"--steps", "4"}));
  EXPECT_EQ(must({"train", "--out", out, "--resume", "--steps", "5"}).err.find("may differ"),
            std::string::npos);
  rewrite_values(checkpoint_path(out, 5), [](Members& values) {
    set_member(values, "processor", "sse9");
    set_member(values, "build", "0.0.9, cc 1");
  });
  const Outcome o = must({"train", "--out", out, "--resume", "--steps", "6"});
  EXPECT_NE(o.err.find("with the instructions sse9, and this process uses "), std::string::npos)
      << o.err;
  EXPECT_NE(o.err.find("another build (0.0.9, cc 1; this one: "), std::string::npos) << o.err;
}

/// Returns the learning rates of the rows after a step.
std::vector<double> rates_from(const std::string& out, int64_t step) {
  std::vector<double> rates;
  for (const Json& row : rows_with(out, "lr")) {
    if (row["step"].integer() > step) rates.push_back(row["lr"].number());
  }
  return rates;
}

TEST_F(RunFolders, ByTheClockKeepTheirLearningRateWhenTheyGoOn) {
  const std::string out = folder / "run";
  must(train(out, {"--seconds", "1.5", "--log-every", "1", "--lr", "1e-3"}));
  const int64_t step = saved_steps(out).back();
  const double last = rates_from(out, 0).back(), floor = 5e-5;
  EXPECT_LT(last, 2 * floor);
  const Outcome o = must({"train", "--out", out, "--resume", "--seconds", "0.2"});
  EXPECT_NE(o.err.find("the learning rate continues at "), std::string::npos) << o.err;
  if (last < 1.05 * floor) {
    EXPECT_NE(o.err.find("the floor of its schedule: --rewarm"), std::string::npos) << o.err;
  }
  const std::vector<double> rates = rates_from(out, step);
  ASSERT_FALSE(rates.empty());
  for (const double rate : rates) {
    EXPECT_LE(rate, last);
    EXPECT_GE(rate, floor * (1 - 1e-9));
  }
  // The warm-up restarts only with --rewarm.
  const int64_t then = saved_steps(out).back();
  const Outcome anew = must({"train", "--out", out, "--resume", "--seconds", "0.5", "--rewarm"});
  EXPECT_NE(anew.err.find("the learning rate rises from "), std::string::npos) << anew.err;
  const std::vector<double> again = rates_from(out, then);
  ASSERT_FALSE(again.empty());
  EXPECT_GT(again.front(), 0.5e-3);
  EXPECT_LT(again.back(), again.front());
}

TEST_F(RunFolders, ByTheClockFinishTheirScheduleWhenTheyWereStopped) {
  const std::string out = folder / "run";
  Program first(Start{train(out, {"--seconds", "3", "--log-every", "1", "--lr", "1e-3"})});
  for (int i = 0; i < 2000 && rates_from(out, 0).size() < 20 && first.running(); ++i) usleep(5000);
  first.send(SIGINT);
  ASSERT_EQ(first.wait().code, 0);
  const int64_t step = saved_steps(out).back();
  const double last = rates_from(out, 0).back();
  const Outcome o = must({"train", "--out", out, "--resume", "--seconds", "0.8"});
  EXPECT_NE(o.err.find("and falls to 5e-05 in the 0.8 s of this start"), std::string::npos)
      << o.err;
  const std::vector<double> rates = rates_from(out, step);
  ASSERT_GT(rates.size(), 3u);
  EXPECT_NEAR(rates.front(), last, 0.2 * last);
  for (size_t i = 1; i < rates.size(); ++i) EXPECT_LE(rates[i], rates[i - 1]);
  EXPECT_LE(rates.front(), last);
  EXPECT_LT(rates.back(), 0.3 * last);
}

TEST_F(RunFolders, ByStepsSayThatTheirLearningRateRises) {
  const std::string out = folder / "run";
  must(train(out, {"--steps", "20"}));
  EXPECT_NE(must({"train", "--out", out, "--resume", "--steps", "40"})
                .err.find("the learning rate rises from "),
            std::string::npos);
  // A restarted schedule resumes bit for bit.
  const std::string parts = folder / "parts", whole = folder / "whole";
  must(train(whole, {"--steps", "10"}));
  std::filesystem::copy(whole, parts, std::filesystem::copy_options::recursive);
  const Words anew = {"--resume", "--rewarm", "--steps", "30", "--save-every", "15"};
  must(Words{"train", "--out", whole} + anew);
  must(Words{"train", "--out", parts} + anew);
  std::filesystem::remove_all(checkpoint_path(parts, 30));
  must({"train", "--out", parts, "--resume"});
  EXPECT_EQ(read(checkpoint_path(parts, 30) + "/model.safetensors"),
            read(checkpoint_path(whole, 30) + "/model.safetensors"));
}

/// Returns the step and the score of the lowest validation in a run's figures.
std::pair<int64_t, double> lowest_validation(const std::string& out) {
  std::pair<int64_t, double> lowest{-1, HUGE_VAL};
  for (const Json& row : read_rows(out + "/metrics.jsonl")) {
    const Json* score = row.find("valid_bpb");
    if (score == nullptr || !score->is_number() || score->number() >= lowest.second) continue;
    lowest = {row["step"].integer(), score->number()};
  }
  return lowest;
}

// A rate that is far too high makes validations worse again.
TEST_F(RunFolders, TheBestCheckpointStaysAndPatienceEnds) {
  const std::string out = folder / "run";
  must(train(out, {"--lr", "0.01", "--steps", "12", "--eval-every", "3", "--keep", "1",
                   "--keep-best", "--set", "schedule.name=constant"}));
  const auto [best, score] = lowest_validation(out);
  must({"train", "--out", out, "--resume", "--steps", "60", "--lr", "1", "--save-every", "10"});
  ASSERT_EQ(lowest_validation(out), std::pair(best, score)) << "the rate is not too high";
  EXPECT_EQ(saved_steps(out), (std::vector<int64_t>{best, 60}));
  const Json figures = parse_json(must({"eval", "--out", out, "--step", "best"}).last_line());
  EXPECT_EQ(figures["step"], Json(best));
  EXPECT_EQ(figures["valid_bpb"], Json(score));

  // Validations before a stop count, and one that has stopped so stops at once.
  const std::vector<int64_t> ends = {best, best + 25 * 3};
  for (int i = 0; i < 2; ++i) {
    const Outcome o =
        must({"train", "--out", out, "--resume", "--steps", "600", "--patience", "25"});
    EXPECT_EQ(saved_steps(out), ends);
    EXPECT_NE(o.err.find("25 validations without one better"), std::string::npos) << o.err;
  }
  must({"train", "--out", out, "--resume", "--steps", "100", "--patience", "50"});
  EXPECT_EQ(saved_steps(out), (std::vector<int64_t>{best, 100}));

  // The best one is known without its row too; with other data both stay.
  std::filesystem::remove(out + "/metrics.jsonl");
  must({"train", "--out", out, "--resume", "--steps", "103", "--patience", "0"});
  EXPECT_EQ(saved_steps(out), (std::vector<int64_t>{best, 103}));
  write(folder / "other.txt", std::string(20000, 'a'));
  const Words other = {"--data", "bytes=" + folder / "other.txt", "--other-data", "--lr", "0.01"};
  must(Words{"train", "--out", out, "--resume", "--steps", "121"} + other);
  const std::vector<int64_t> steps = saved_steps(out);
  EXPECT_EQ(steps.front(), best);
  EXPECT_EQ(steps.back(), 121);
  const Json now = parse_json(
      must(Words{"eval", "--out", out, "--step", "best"} + Words(other.begin(), other.begin() + 3))
          .last_line());
  EXPECT_GT(now["step"].integer(), 103);

  refused(train(folder / "other", {"--steps", "2", "--keep-best"}), "--eval-every");
  refused(train(folder / "other",
                {"--steps", "2", "--patience", "2", "--eval-every", "1", "--split", "100/0/0"}),
          "--split");
  EXPECT_FALSE(exists(folder / "other"));
  refused({"eval", "--out", out, "--step", "worst"}, "got worst");
}

}  // namespace
}  // namespace longspan::test
