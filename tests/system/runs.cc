// The files of a run, and their independence of interruptions.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/build.h"
#include "core/kernel.h"
#include "data/io/json.h"
#include "tests/system/program.h"
#include "train/config.h"
#include "train/log.h"
#include "train/state.h"

namespace longspan::test {
namespace {

/// Returns the arguments of a run of a small model with dropout, with a few milliseconds per step.
std::vector<std::string> small_run(const std::string& text, const std::string& out, int steps,
                                   const std::vector<std::string>& more = {}) {
  return joined({"train",
                 "--model",
                 "local_transformer",
                 "--task",
                 "bytes",
                 "--data",
                 "bytes=" + text,
                 "--length",
                 "24",
                 "--batch",
                 "3",
                 "--layers",
                 "2",
                 "--set",
                 "model.d_model=32",
                 "--set",
                 "model.d_ff=48",
                 "--set",
                 "model.window=9",
                 "--set",
                 "model.dropout=0.1",
                 "--steps",
                 std::to_string(steps),
                 "--seed",
                 "7",
                 "--out",
                 out},
                more);
}

struct Weights {
  std::string model, optimizer;
  friend bool operator==(const Weights&, const Weights&) = default;
};

Weights weights_of(const std::string& out, int64_t step) {
  const std::string folder = checkpoint_path(out, step);
  Weights w{read(folder + "/model.safetensors"), read(folder + "/optimizer.safetensors")};
  EXPECT_FALSE(w.model.empty()) << folder;
  EXPECT_FALSE(w.optimizer.empty()) << folder;
  return w;
}

/// Returns the losses of all steps in metrics.jsonl, as written.
std::vector<std::string> losses_of(const std::string& out) {
  std::vector<std::string> losses;
  std::ifstream file(out + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json row = parse_json(line);
    if (const Json* loss = row.find("loss")) {
      losses.push_back(to_string(row["step"]) + ": " + to_string(*loss));
    }
  }
  return losses;
}

/// Returns the line of a key of config.toml.
std::string setting_of(const std::string& out, const std::string& key) {
  std::ifstream file(out + "/config.toml");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key + " =", 0) == 0) return line;
  }
  return {};
}

class Runs : public testing::Test {
 protected:
  void SetUp() override { write(text, some_text(20'000)); }
  Outcome must(const std::vector<std::string>& arguments) {
    Outcome o = run(arguments);
    EXPECT_EQ(o.code, 0) << o.err;
    return o;
  }
  Folder folder;
  const std::string text = folder / "text.txt";
};

TEST_F(Runs, LeaveWhatTheyPromise) {
  const std::string out = folder / "run";
  const Outcome o = must(small_run(text, out, 20, {"--save-every", "8"}));
  for (const char* name : {"config.toml", "metrics.jsonl", "summary.json", "pictures/loss.png",
                           "pictures/attention.png"}) {
    EXPECT_TRUE(exists(out + "/" + name)) << name;
  }
  EXPECT_EQ(saved_steps(out), (std::vector<int64_t>{8, 16, 20}));
  EXPECT_EQ(names_in(checkpoint_path(out, 20)),
            (std::vector<std::string>{"model.safetensors", "optimizer.safetensors", "state.json"}));

  // Compares the last line with the file, and the keys with their order.
  EXPECT_EQ(o.last_line() + "\n", read(out + "/summary.json"));
  const Json summary = parse_json(o.last_line());
  std::vector<std::string> keys;
  for (const JsonMember& m : summary.object()) keys.push_back(m.name);
  EXPECT_EQ(keys,
            (std::vector<std::string>{
                "model", "parameters", "steps", "tokens", "unit", "units_per_target", "train_bpb",
                "valid_bpb", "valid_perplexity", "seconds", "tokens_per_second", "peak_bytes"}));
  EXPECT_EQ(summary["model"].string(), "local_transformer");
  EXPECT_GT(summary["parameters"].integer(), 0);
  EXPECT_EQ(summary["steps"].integer(), 20);
  EXPECT_EQ(summary["tokens"].integer(), 20 * 3 * 24);
  EXPECT_GT(summary["train_bpb"].number(), 0);
  EXPECT_LT(summary["train_bpb"].number(), 8.5);
  EXPECT_GT(summary["valid_bpb"].number(), 0);
  EXPECT_LT(summary["valid_bpb"].number(), 8.5);
  EXPECT_GT(summary["seconds"].number(), 0);
  EXPECT_GT(summary["tokens_per_second"].number(), 0);
  std::vector<std::string> categories;
  int64_t sum = 0;
  for (const JsonMember& m : summary["peak_bytes"].object()) {
    categories.push_back(m.name);
    if (m.name != "total") sum += m.value.integer();
  }
  EXPECT_EQ(categories,
            (std::vector<std::string>{"total", "parameter", "gradient", "optimizer", "saved",
                                      "workspace", "memory", "data", "cache", "graph", "other"}));
  EXPECT_EQ(summary["peak_bytes"]["total"].integer(), sum);
  EXPECT_GE(summary["peak_bytes"]["parameter"].integer(), 4 * summary["parameters"].integer());

  // Evaluating the checkpoint again gives the same score.
  const Outcome again = must({"eval", "--out", out});
  EXPECT_EQ(parse_json(again.last_line())["valid_bpb"], summary["valid_bpb"]);
  EXPECT_EQ(read(out + "/summary.json"), o.last_line() + "\n");
  const Outcome sliding = must({"eval", "--out", out, "--stride", "8"});
  EXPECT_NE(sliding.err.find("in windows of 24 that move by 8: "), std::string::npos);

  // Sampling depends only on the seed.
  const std::vector<std::string> sample = {"generate", "--out", out,      "--prompt", "the quick",
                                           "--tokens", "40",    "--seed", "5"};
  const Outcome first = must(sample), second = must(sample);
  EXPECT_EQ(first.out, second.out);
  EXPECT_EQ(first.out.substr(0, 9), "the quick");
  EXPECT_EQ(first.out.size(), 9u + 40u + 1u);
}

TEST_F(Runs, AreScoredOnEachPartAtEachStep) {
  const std::string out = folder / "run";
  const Json trained = parse_json(must(small_run(text, out, 9, {"--save-every", "5"})).last_line());
  const auto score = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"eval", "--out", out});
    return parse_json(must(more).last_line());
  };
  const Json tested = score({"--part", "test"}), part = score({"--part", "train"});
  EXPECT_NE(tested["test_bpb"].number(), trained["valid_bpb"].number());
  EXPECT_NE(part["train_part_bpb"].number(), tested["test_bpb"].number());
  EXPECT_EQ(part.find("test_bpb"), nullptr);
  const Json earlier = score({"--part", "test", "--step", "5"});
  EXPECT_EQ(earlier["step"].integer(), 5);
  EXPECT_NE(earlier["test_bpb"].number(), tested["test_bpb"].number());
  EXPECT_EQ(score({})["valid_bpb"], trained["valid_bpb"]);
}

TEST_F(Runs, FiguresAddUpOverPartsOfARun) {
  const std::string out = folder / "run";
  const Json first = parse_json(must(small_run(text, out, 4, {"--batch", "8"})).last_line());
  const Json second =
      parse_json(must(small_run(text, out, 6, {"--batch", "2", "--resume"})).last_line());
  EXPECT_EQ(second["tokens"].integer(), (4 * 8 + 2 * 2) * 24);
  EXPECT_GT(second["seconds"].number(), first["seconds"].number());
  EXPECT_TRUE(second["peak_bytes"] == first["peak_bytes"]);  // that of the larger batch
  // No step is left: the figures stay.
  const Outcome third = must(small_run(text, out, 6, {"--batch", "2", "--resume"}));
  EXPECT_TRUE(parse_json(third.last_line()) == second);
  EXPECT_NE(third.err.find("no step is left: more with --steps"), std::string::npos) << third.err;
}

TEST_F(Runs, LogTheirLastStepHoweverTheyEnd) {
  const std::string out = folder / "run";
  // No row is due before the time is over, and there is nothing to validate.
  const Outcome o = must(small_run(
      text, out, 0, {"--seconds", "0.001", "--split", "100/0/0", "--log-every", "1000000"}));
  const int64_t steps = parse_json(o.last_line())["steps"].integer();
  ASSERT_EQ(losses_of(out).size(), 1u);
  EXPECT_EQ(losses_of(out)[0].rfind(std::to_string(steps) + ": ", 0), 0u);
  EXPECT_TRUE(parse_json(o.last_line())["valid_bpb"].is_null());
  EXPECT_TRUE(exists(out + "/pictures/loss.png"));
  // Without any step there is no curve to draw.
  const Outcome none =
      must(small_run(text, folder / "none", 0, {"--seconds", "1e-9", "--split", "100/0/0"}));
  EXPECT_EQ(parse_json(none.last_line())["steps"].integer(), 0);
  EXPECT_TRUE(parse_json(none.last_line())["train_bpb"].is_null());
}

TEST_F(Runs, LearnInHalfPrecisionAsInSingle) {
  const auto bits_of = [&](const char* dtype) {
    const Json summary = parse_json(
        must(small_run(text, folder / dtype, 150, {"--dtype", dtype, "--lr", "0.01"})).last_line());
    return summary["valid_bpb"].number();
  };
  const double f32 = bits_of("f32"), bf16 = bits_of("bf16"), f16 = bits_of("f16");
  EXPECT_LT(f32, 2.5);  // starts at 8
  EXPECT_NEAR(bf16, f32, 0.1);
  EXPECT_NEAR(f16, f32, 0.1);
}

TEST_F(Runs, TakeTheLastValueOfAnOption) {
  const std::string out = folder / "run", first = folder / "first.toml",
                    last = folder / "last.toml";
  write(first, "keep = 5\nlog_every = 2\n");
  write(last, "keep = 6\n[model]\ndropout = 0.25\nn_layer = 3\n");
  must(small_run(
      text, folder / "other", 3,
      {"--out", out, "--seed", "8", "--seed", "9", "--config", first, "--config", last, "--set",
       "seed=10", "--set", "model.dropout=0.5", "--save-every", "1", "--save-every", "2"}));
  EXPECT_FALSE(exists(folder / "other"));
  const std::string config = read(out + "/config.toml");
  for (const char* line : {"seed = 10\n", "keep = 6\n", "log_every = 10\n", "dropout = 0.5\n",
                           "n_layer = 2\n", "save_every = 2\n"}) {
    EXPECT_NE(config.find(line), std::string::npos) << line << config;
  }
  // The config.toml of a run reproduces the run.
  const std::string again = folder / "again";
  must({"train", "--config", out + "/config.toml", "--out", again});
  EXPECT_EQ(read(again + "/config.toml"), config);
  EXPECT_TRUE(weights_of(again, 3) == weights_of(out, 3));
}

TEST_F(Runs, DocumentEveryOption) {
  const std::string docs = read(LONGSPAN_SOURCE_DIR "/docs/options.md");
  for (const char* command : {"train", "eval", "generate", "data", "tokens"}) {
    const std::string help = must({command, "--help"}).out;
    EXPECT_NE(help.find("Usage: longspan " + std::string(command)), std::string::npos) << help;
    size_t options = 0;
    for (size_t at = 0; (at = help.find("\n  --", at)) != std::string::npos; ++options) {
      const size_t end = help.find_first_of(" ,\n", at += 3);
      const std::string option = help.substr(at, end - at);
      EXPECT_NE(docs.find(option), std::string::npos) << command << " " << option;
    }
    EXPECT_GE(options, 4u) << help;
    // Keys without an option: "  KEY [DEFAULT]   MEANING", or the meaning in a line of its own.
    const size_t keys = help.find("\nKeys of --set");
    const bool of_runs = command != std::string("data") && command != std::string("tokens");
    EXPECT_EQ(keys != std::string::npos, of_runs) << help;
    std::istringstream lines(keys == std::string::npos ? "" : help.substr(keys + 1));
    std::string line;
    for (std::getline(lines, line); std::getline(lines, line);) {
      const std::string key = line.substr(2, line.find(' ', 2) - 2);
      EXPECT_NE(docs.find("`" + key + "`"), std::string::npos) << command << " " << key;
      if (line.back() == ']') std::getline(lines, line);
      EXPECT_GT(line.size(), 30u) << key << " has no meaning";
    }
  }
  must(small_run(text, folder / "run", 1));
  size_t keys = 0;
  std::string table;
  std::ifstream config(folder / "run/config.toml");
  for (std::string line; std::getline(config, line);) {
    if (!line.empty() && line[0] == '[') {
      table = line.substr(1, line.size() - 2) + ".";
    } else if (const size_t end = line.find(" = "); end != std::string::npos && table != "model.") {
      EXPECT_NE(docs.find("`" + table + line.substr(0, end) + "`"), std::string::npos) << line;
      ++keys;
    }
  }
  EXPECT_GE(keys, 30u);
}

TEST_F(Runs, ListTasksAndTheirKeys) {
  const std::string all = must({"tasks"}).out;
  for (const char* part : {"bytes ", "\nduplicate ", "\nwiki-leads ", "\ntriviaqa "}) {
    EXPECT_NE(("\n" + all).find(part), std::string::npos) << part;
  }
  // What is printed of a task is a file of --config.
  const std::string promoter = must({"tasks", "promoter"}).out;
  EXPECT_NE(promoter.find("[profiles]\n"), std::string::npos) << promoter;
  EXPECT_NE(promoter.find("# bases that a token represents\n"), std::string::npos) << promoter;
  const Settings settings = parse_toml(promoter, "tasks");
  const Setting* kmer = last_setting(settings, "profiles.kmer");
  ASSERT_NE(kmer, nullptr) << promoter;
  EXPECT_TRUE(kmer->value.is_integer());
  EXPECT_NE(must({"tasks", "retrieval"}).out.find("[retrieval]\n"), std::string::npos);
  EXPECT_EQ(must({"tasks", "bytes"}).out.find('['), std::string::npos);
  const Outcome o = run({"tasks", "duplicat"});
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("duplicate"), std::string::npos) << o.err;
}

// No length needs padding, and every run ends with all of its pictures.
TEST_F(Runs, TrainEveryModelAtAnyLength) {
  for (const std::string model :
       {"transformer", "transformer:encoder", "local_transformer", "sparse_transformer",
        "sparse_transformer:small_images", "blockbert", "bigbird", "bigbird:causal", "bigbird_etc",
        "etc", "linformer", "longformer", "longformer_lm"}) {
    for (const std::string length : {"1", "2", "33"}) {
      const std::string out = folder / (model + length);
      must({"train", "--model", model, "--data", "bytes=" + text, "--length", length, "--batch",
            "2", "--layers", "1", "--steps", "2", "--out", out});
      EXPECT_TRUE(std::filesystem::exists(out + "/pictures/attention.png")) << model;
      must({"eval", "--out", out});
    }
  }
}

TEST_F(Runs, SayAWordAgain) {
  const std::string out = folder / "duplicate";
  const Outcome trained =
      must({"train", "--model", "transformer:tiny", "--task", "duplicate", "--length", "10",
            "--batch", "3", "--steps", "4", "--set", "duplicate.held_out=7", "--out", out});
  EXPECT_NE(trained.err.find("12 samples to train on, 7 to validate"), std::string::npos)
      << trained.err;
  EXPECT_NE(trained.err.find("bits per symbol"), std::string::npos) << trained.err;
  const Outcome scored = must({"eval", "--out", out, "--part", "test"});
  EXPECT_NE(scored.err.find("% of symbols right"), std::string::npos) << scored.err;
  const Json figures = parse_json(scored.last_line());
  EXPECT_GT(figures["test_bpb"].number(), 0);
  EXPECT_GE(figures["test_accuracy"].number(), 0);
  EXPECT_LE(figures["test_accuracy"].number(), 100);
  EXPECT_NE(run({"eval", "--out", out, "--length", "9"}).err.find("an even number from 4 on"),
            std::string::npos);
  EXPECT_NE(
      run({"train", "--model", "bigbird:tiny", "--task", "duplicate", "--out", folder / "none"})
          .err.find("is for decoders"),
      std::string::npos);
  EXPECT_EQ(run({"data", "check", "duplicate"}).code, 0);
}

TEST_F(Runs, AnswerYesOrNoAboutMotifs) {
  const std::string out = folder / "motifs";
  const std::vector<std::string> arguments = {"train",
                                              "--model",
                                              "bigbird:motif",
                                              "--task",
                                              "motif-dna",
                                              "--length",
                                              "80",
                                              "--batch",
                                              "3",
                                              "--steps",
                                              "4",
                                              "--layers",
                                              "1",
                                              "--set",
                                              "motifs.nearest=20",
                                              "--set",
                                              "motifs.kmer=3",
                                              "--set",
                                              "motifs.held_out=7",
                                              "--out",
                                              out};
  const Outcome trained = must(arguments);
  EXPECT_NE(trained.err.find("12 samples to train on, 7 to validate"), std::string::npos)
      << trained.err;
  EXPECT_TRUE(std::filesystem::exists(out + "/pictures/attention.png"));
  const Json figures = parse_json(must({"eval", "--out", out}).last_line());
  EXPECT_GT(figures["valid_bpb"].number(), 0);
  EXPECT_GE(figures["valid_accuracy"].number(), 0);
  EXPECT_LE(figures["valid_auc"].number(), 100);
  EXPECT_NE(run({"eval", "--out", out, "--part", "dev"}).err.find("expected train, valid or test"),
            std::string::npos);
  // Profiles have one answer for each pair of motifs.
  std::vector<std::string> more = arguments;
  more.back() = folder / "profiles";
  more.insert(more.end(), {"--set", "motifs.pairs=5", "--set", "motifs.positive_weight=8"});
  std::vector<std::string> wrong = more;
  wrong.insert(wrong.end(), {"--set", "model.classes=1"});
  EXPECT_NE(run(wrong).err.find("model.classes: got 1; expected 5, as many as motif-dna asks for"),
            std::string::npos);
  const Outcome filled = must(more);
  EXPECT_NE(filled.err.find("model.classes = 5: an output for each answer of motif-dna"),
            std::string::npos);
  // The error comes before anything is written.
  more.insert(more.end(), {"--set", "motifs.mismatches=8", "--out", folder / "never"});
  EXPECT_NE(run(more).err.find("fewer mismatches than bases"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder / "never"));
  EXPECT_NE(run({"train", "--model", "sparse_transformer", "--task", "motif-dna", "--out",
                 folder / "none"})
                .err.find("choose an encoder such as bigbird:motif"),
            std::string::npos);
  EXPECT_EQ(run({"data", "check", "motif-dna"}).code, 0);
}

TEST_F(Runs, DecayWeightsAsPapersDo) {
  const auto optimizer_of = [&](const std::string& model) {
    const std::string out = folder / ("run-" + model);
    must({"train", "--model", model, "--data", "bytes=" + text, "--length", "8", "--batch", "1",
          "--layers", "1", "--set", "model.d_model=16", "--set", "model.d_ff=16", "--steps", "1",
          "--out", out});
    const std::string config = read(out + "/config.toml");
    return config.substr(config.find("[optimizer]"));
  };
  EXPECT_NE(optimizer_of("longformer_lm").find("name = \"adam\"\n"), std::string::npos);
  const std::string base = optimizer_of("longformer_lm:base");
  EXPECT_NE(base.find("name = \"adamw\"\n"), std::string::npos) << base;
  EXPECT_NE(base.find("weight_decay = 0.01\n"), std::string::npos) << base;
}

TEST_F(Runs, StartFromAShorterRun) {
  const auto training = [&](const std::string& model, const std::string& length,
                            const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"train",
                                          "--model",
                                          model,
                                          "--data",
                                          "bytes=" + text,
                                          "--length",
                                          length,
                                          "--batch",
                                          "4",
                                          "--layers",
                                          "1",
                                          "--set",
                                          "model.d_model=16",
                                          "--set",
                                          "model.d_ff=16",
                                          "--set",
                                          "model.norm_eps=1e-5"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  const std::string base = folder / "base", same = folder / "same", longer = folder / "longer";
  const Json trained =
      parse_json(must(training("blockbert", "16",
                               {"--set", "model.n_block=1", "--set", "model.heads_per_shift=[4]",
                                "--set", "model.n_max=16", "--steps", "30", "--out", base}))
                     .last_line());
  // A window that covers everything equals the full attention of the other run: before any step it
  // has the same score.
  const Outcome o = must(training(
      "longformer", "16",
      {"--set", "model.n_max=16", "--from", base, "--lr", "0", "--steps", "1", "--out", same}));
  EXPECT_NE(o.err.find("starting from step 30 of " + base), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("step 0: "), std::string::npos) << o.err;
  const double bits = trained["valid_bpb"].number();
  EXPECT_NEAR(parse_json(o.last_line())["valid_bpb"].number(), bits, 1e-5);
  must(training("longformer", "64",
                {"--set", "model.n_max=64", "--set", "model.one_sided_window=[8]", "--from", base,
                 "--steps", "2", "--out", longer}));
  // The run resumes from its own checkpoint, as every run does.
  const Outcome on = must({"train", "--out", longer, "--resume", "--steps", "3"});
  EXPECT_EQ(on.err.find("starting from"), std::string::npos) << on.err;
}

/// A run is killed between a checkpoint and its validation, or after both. Every row is there,
/// once.
TEST_F(Runs, RowsStandOnceHoweverTheyWereInterrupted) {
  const std::string out = folder / "run", rows = out + "/metrics.jsonl";
  const auto figures = [&] {  // all but times
    std::vector<std::string> all;
    for (const Json& row : read_rows(rows)) {
      std::string line;
      for (const char* key : {"step", "loss", "gradient_norm", "lr", "valid_bpb", "unit"}) {
        if (const Json* value = row.find(key))
          line += fmt::format("{} {} ", key, to_string(*value));
      }
      all.push_back(line);
    }
    return all;
  };
  const std::vector<std::string> more = {"--save-every", "4", "--eval-every", "4",
                                         "--log-every",  "3"};
  must(small_run(text, out, 8, more));
  const std::vector<std::string> whole = figures();
  EXPECT_EQ(whole.size(), 5u);  // steps 3, 6 and the last one; validations of 4 and 8
  must({"train", "--out", out, "--resume"});
  EXPECT_EQ(figures(), whole);
  std::filesystem::remove_all(checkpoint_path(out, 8));
  std::string kept;
  for (const Json& row : read_rows(rows)) {
    if (row["step"].integer() < 4) kept += to_string(row) + "\n";
  }
  write(rows, kept);
  must({"train", "--out", out, "--resume"});
  EXPECT_EQ(figures(), whole);
}

TEST_F(Runs, PositionsAreThoseTheRunBeganWith) {
  const auto training = [&](const std::string& length, std::vector<std::string> more) {
    more.insert(more.begin(), {"train", "--out", folder / "run", "--length", length});
    return run(more);
  };
  Outcome o = training("1100", {"--model", "transformer", "--set", "model.positions=learned",
                                "--set", "model.d_model=16", "--set", "model.d_ff=16", "--layers",
                                "1", "--batch", "1", "--steps", "1", "--data", "bytes=" + text});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("model.n_max = 1100: positions for as many"), std::string::npos) << o.err;
  EXPECT_NE(read(folder / "run/config.toml").find("\nn_max = 1100\n"), std::string::npos);
  o = training("64", {"--resume", "--steps", "2"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.err.find("model.n_max"), std::string::npos) << o.err;
  o = training("1200", {"--resume", "--steps", "3"});
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("got 1200; transformer takes at most 1100"), std::string::npos) << o.err;
}

/// Sizes are written as they are read. config.toml of earlier versions has plain integers.
TEST_F(Runs, SizesOfMemory) {
  const std::string out = folder / "run", config = out + "/config.toml";
  must(small_run(text, out, 1,
                 {"--set", "memory_limit=20MB", "--budget", "1e9", "--memory", "standard"}));
  EXPECT_EQ(setting_of(out, "memory_limit"), "memory_limit = \"20000000\"");
  std::string old = read(config);
  old.replace(old.find("\"20000000\""), 10, "20000000");
  write(config, old);
  must({"train", "--out", out, "--resume", "--steps", "2"});
  EXPECT_EQ(setting_of(out, "memory_limit"), "memory_limit = \"20000000\"");
  must({"eval", "--out", out});
}

/// In anomaly mode, which checks each op, a run without anomalies computes the same values.
TEST_F(Runs, AnomalyModeChangesNothingThatIsSound) {
  must(small_run(text, folder / "plain", 5));
  must(small_run(text, folder / "watched", 5, {"--set", "anomaly=true"}));
  EXPECT_TRUE(weights_of(folder / "plain", 5) == weights_of(folder / "watched", 5));
}

TEST_F(Runs, TellTheirVersion) {
  const Outcome o = must({"--version"});
  EXPECT_EQ(o.out.substr(0, o.out.find("\nbuild")), "longspan " LONGSPAN_VERSION);
  EXPECT_EQ(o.err, "");
}

/// Behind the version stand the build, the processor, devices and the module for MPI, as they are.
TEST_F(Runs, TellTheirBuild) {
  const auto line = [](const Outcome& o, const std::string& name) {
    const size_t at = o.out.find("\n" + name);
    const size_t value = o.out.find_first_not_of(' ', at + 1 + name.size());
    return at == std::string::npos ? "" : o.out.substr(value, o.out.find('\n', value) - value);
  };
  const Outcome plain = must({"--version"});
  EXPECT_EQ(line(plain, "build"), build_description());
  register_backends();
  EXPECT_EQ(line(plain, "processor"), cpu_instructions());
  EXPECT_EQ(line(run(Start{.arguments = {"--version"}, .with_device = true}), "CUDA"), "1 device");
  const Outcome named =
      run(Start{.arguments = {"--version"}, .environment = {{"LONGSPAN_MPI", text}}});
  EXPECT_EQ(line(named, "MPI"), text);
}

TEST_F(Runs, ResumeFromTheStartWhereThereIsNothing) {
  must(small_run(text, folder / "a", 5));
  must(small_run(text, folder / "b", 5, {"--resume"}));
  EXPECT_TRUE(weights_of(folder / "a", 5) == weights_of(folder / "b", 5));
}

TEST_F(Runs, LiveInFoldersWithOddNames) {
  const std::string odd = folder / "a folder, \"quoted\" 100% \xC3\xA9/text file";
  write(odd, read(text));
  const std::string out = folder / "the run's folder";
  must(small_run(odd, out, 3));
  must(small_run(odd, out, 5, {"--resume"}));
  must({"eval", "--out", out});
  must({"generate", "--out", out, "--tokens", "3"});
  EXPECT_EQ(saved_steps(out), (std::vector<int64_t>{3, 5}));
}

TEST_F(Runs, DoWithoutStandardStreams) {
  const std::string out = folder / "run";
  const Outcome o = run(Start{.arguments = small_run(text, out, 3), .closed = true});
  EXPECT_EQ(o.code, 0) << o.err;
  const std::string metrics = read(out + "/metrics.jsonl");  // must not contain the summary's line
  EXPECT_EQ(metrics.find("\"model\""), std::string::npos) << metrics;
  EXPECT_EQ(parse_json(read(out + "/summary.json"))["steps"].integer(), 3);
  EXPECT_NO_THROW(verify_checkpoint(checkpoint_path(out, 3)));
}

TEST_F(Runs, SameBitsForOneTwoAndThreeThreads) {
  std::vector<Weights> weights;
  std::vector<std::vector<std::string>> losses;
  for (int threads : {1, 2, 3}) {
    const std::string out = folder / ("threads-" + std::to_string(threads));
    must(small_run(text, out, 50,
                   {"--threads", std::to_string(threads), "--length", "200", "--set",
                    "model.d_model=64", "--set", "log_every=1"}));
    weights.push_back(weights_of(out, 50));
    losses.push_back(losses_of(out));
  }
  EXPECT_GE(losses[0].size(), 50u);
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[0], losses[2]);
  EXPECT_TRUE(weights[0] == weights[1]);
  EXPECT_TRUE(weights[0] == weights[2]);
}

TEST_F(Runs, GoOnBitwiseWhereTheyStopped) {
  const std::string whole = folder / "whole", parts = folder / "parts";
  must(small_run(text, whole, 30));
  must(small_run(text, parts, 30, {"--save-every", "11"}));
  std::filesystem::remove_all(checkpoint_path(parts, 30));
  must(small_run(text, parts, 30, {"--resume"}));
  EXPECT_TRUE(weights_of(whole, 30) == weights_of(parts, 30));
  EXPECT_EQ(losses_of(whole), losses_of(parts));
  const Json a = parse_json(read(whole + "/summary.json"));
  const Json b = parse_json(read(parts + "/summary.json"));
  for (const char* key : {"steps", "tokens", "train_bpb", "valid_bpb"}) {
    EXPECT_TRUE(a[key] == b[key]) << key;
  }
}

// Centroids that k-means places before the first step are not placed again.
TEST_F(Runs, OfCentroidsFromTheFirstBatchGoOnBitwise) {
  const auto routing = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"train",
                                          "--model",
                                          "routing:tiny",
                                          "--data",
                                          "bytes=" + text,
                                          "--set",
                                          "model.vocab=256",
                                          "--set",
                                          "model.centroid_init=data",
                                          "--steps",
                                          "6",
                                          "--out",
                                          out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    must(arguments);
  };
  const std::string whole = folder / "whole", parts = folder / "parts", random = folder / "random";
  routing(whole, {});
  routing(parts, {"--save-every", "4"});
  std::filesystem::remove_all(checkpoint_path(parts, 6));
  must({"train", "--resume", "--out", parts});
  EXPECT_TRUE(weights_of(whole, 6) == weights_of(parts, 6));
  EXPECT_EQ(losses_of(whole), losses_of(parts));
  routing(random, {"--set", "model.centroid_init=random"});
  EXPECT_NE(losses_of(whole), losses_of(random));
}

TEST_F(Runs, KeepThePrecisionOfTheirProducts) {
  const std::string whole = folder / "whole", parts = folder / "parts";
  must(small_run(text, whole, 12, {"--precision", "bf16"}));
  must(small_run(text, parts, 12, {"--precision", "bf16", "--save-every", "5"}));
  std::filesystem::remove_all(checkpoint_path(parts, 12));
  std::filesystem::remove_all(checkpoint_path(parts, 10));
  must(small_run(text, parts, 12, {"--resume"}));
  EXPECT_EQ(setting_of(parts, "matmul_precision"), "matmul_precision = \"bf16\"");
  EXPECT_TRUE(weights_of(whole, 12) == weights_of(parts, 12));
  must({"eval", "--out", parts});
}

TEST_F(Runs, KeepTheLibraryOfTheirProducts) {
  const std::string own = folder / "own", whole = folder / "whole", parts = folder / "parts";
  // Uses sums over many tokens. Short sums have the same bits with both libraries.
  const auto long_run = [&](const std::string& out, std::vector<std::string> more) {
    more.insert(more.end(), {"--batch", "64"});
    return must(small_run(text, out, 6, more));
  };
  long_run(own, {});
  long_run(whole, {"--products", "openblas", "--threads", "1"});
  const Outcome o =
      long_run(parts, {"--products", "openblas", "--save-every", "2", "--threads", "2"});
  EXPECT_NE((o.out + o.err).find("products by OpenBLAS "), std::string::npos) << o.out << o.err;
  std::filesystem::remove_all(checkpoint_path(parts, 6));
  std::filesystem::remove_all(checkpoint_path(parts, 4));
  long_run(parts, {"--resume", "--threads", "3"});
  EXPECT_EQ(setting_of(own, "matmul_library"), "matmul_library = \"own\"");
  EXPECT_EQ(setting_of(parts, "matmul_library"), "matmul_library = \"openblas\"");
  EXPECT_TRUE(weights_of(whole, 6) == weights_of(parts, 6));
  EXPECT_FALSE(weights_of(whole, 6) == weights_of(own, 6));
  must({"eval", "--out", parts});
}

TEST_F(Runs, SignalsSaveAndLeave) {
  const std::string whole = folder / "whole";
  must(small_run(text, whole, 400));
  for (int signal : {SIGINT, SIGTERM}) {
    const std::string out = folder / ("signal-" + std::to_string(signal));
    Program program(Start{small_run(text, out, 400, {"--set", "log_every=1"})});
    for (int i = 0; i < 2000 && losses_of(out).size() < 3 && program.running(); ++i) usleep(5000);
    program.send(signal);
    const Outcome o = program.wait();
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_EQ(o.signal, 0);
    const std::vector<int64_t> steps = saved_steps(out);
    ASSERT_EQ(steps.size(), 1u);
    EXPECT_LT(steps[0], 400);
    EXPECT_EQ(parse_json(o.last_line())["steps"].integer(), steps[0]);
    must(small_run(text, out, 400, {"--resume"}));
    EXPECT_TRUE(weights_of(whole, 400) == weights_of(out, 400));
  }
}

/// Kills runs that save after every step at random moments, `kills` times in all. After each kill
/// every checkpoint can be read, and the run ends as if uninterrupted.
void kill_and_resume(const std::string& text, const Folder& folder, int kills) {
  constexpr int steps = 40;
  const std::string whole = folder / "whole";
  const Outcome all = run(small_run(text, whole, steps, {"--save-every", "1", "--keep", "3"}));
  ASSERT_EQ(all.code, 0) << all.err;
  const Weights expected = weights_of(whole, steps);
  const std::string expected_loss = to_string(parse_json(all.last_line())["train_bpb"]);

  uint64_t random = 42;
  int killed = 0;
  for (int round = 0; killed < kills; ++round) {
    const std::string out = folder / ("killed-" + std::to_string(round));
    for (bool done = false; !done;) {
      Program program(
          Start{small_run(text, out, steps, {"--save-every", "1", "--keep", "3", "--resume"})});
      if (killed < kills) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const double moment = static_cast<double>(random >> 40) / (1 << 24) * all.seconds;
        usleep(static_cast<useconds_t>(moment * 1e6));
        if (program.running()) ++killed;
        program.send(SIGKILL);
      }
      const Outcome o = program.wait();
      ASSERT_TRUE(o.code == 0 || o.signal == SIGKILL) << o.code << " " << o.err;
      for (const int64_t step : saved_steps(out)) {
        ASSERT_NO_THROW(verify_checkpoint(checkpoint_path(out, step)));
      }
      done = o.code == 0;
      if (done) {
        EXPECT_EQ(to_string(parse_json(o.last_line())["train_bpb"]), expected_loss);
      }
    }
    EXPECT_TRUE(weights_of(out, steps) == expected);
    EXPECT_EQ(saved_steps(out), saved_steps(whole));
    // No temporary files of the killed runs remain.
    for (const std::string& name : names_in(out + "/checkpoints")) EXPECT_NE(name[0], '.') << name;
    std::filesystem::remove_all(out);
  }
}

// A process may be killed after its last checkpoint, before it has removed the older ones.
TEST_F(Runs, AFinishedRunThatIsResumedRemovesTheCheckpointsThatAKillHasLeft) {
  const std::string out = folder / "left";
  must(small_run(text, out, 4, {"--save-every", "1", "--keep", "0"}));
  ASSERT_EQ(saved_steps(out).size(), 4u);
  must(small_run(text, out, 4, {"--save-every", "1", "--keep", "2", "--resume"}));
  EXPECT_EQ(saved_steps(out), (std::vector<int64_t>{3, 4}));
}

TEST_F(Runs, SurviveBeingKilled) { kill_and_resume(text, folder, 8); }

TEST_F(Runs, SlowSurviveBeingKilledAHundredTimes) { kill_and_resume(text, folder, 100); }

// Recorded steps of a device match unrecorded steps bit for bit. If the device cannot record, the
// run says so.
TEST_F(Runs, RecordedStepsAreTheSameSteps) {
  const auto train = [&](const std::string& name, std::vector<std::string> more, bool device) {
    more.insert(more.end(), {"--set", "accumulate=2", "--set", "optimizer.clip=0.3"});
    if (device) more.insert(more.end(), {"--device", "cuda"});
    Start start;
    start.with_device = device;
    start.arguments = small_run(text, folder / name, 6, more);
    const Outcome o = run(start);
    EXPECT_EQ(o.code, 0) << o.err;
    return o.err;
  };
  const std::string said = "run kernel by kernel: ";
  for (const std::string optimizer : {"adam", "lamb"}) {
    const std::vector<std::string> by = {"--set", "optimizer.name=" + optimizer};
    const std::string eager = optimizer + "-eager", graph = optimizer + "-graph";
    train(eager, by, true);
    EXPECT_EQ(train(graph, {by[0], by[1], "--set", "graph=true"}, true).find(said),
              std::string::npos);
    EXPECT_TRUE(weights_of(folder / eager, 6) == weights_of(folder / graph, 6));
    EXPECT_EQ(losses_of(folder / eager), losses_of(folder / graph));
  }
  EXPECT_NE(train("host", {"--set", "graph=true"}, false)
                .find("steps " + said + "graph: cpu has no recordings"),
            std::string::npos);
}

}  // namespace
}  // namespace longspan::test
