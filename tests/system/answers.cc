// Encoders that answer about sequences and documents: runs from training to scores.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/harness/numpy_file.h"
#include "tests/system/program.h"
#include "train/json.h"
#include "train/state.h"

namespace longspan::test {
namespace {

class Answers : public testing::Test {
 protected:
  static Outcome must(const std::vector<std::string>& arguments) {
    const Outcome o = run(arguments);
    EXPECT_EQ(o.code, 0) << o.err;
    return o;
  }
  static void refused(const std::vector<std::string>& arguments, const std::string& message) {
    const Outcome o = run(arguments);
    EXPECT_EQ(o.code, 1);
    EXPECT_NE(o.err.find(message), std::string::npos) << o.err << "\nexpected: " << message;
  }
  static std::vector<std::string> joined(std::vector<std::string> all,
                                         const std::vector<std::string>& more) {
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  /// That a run which stops after 4 of 6 steps and goes on ends with the bits of one that does not.
  void expect_same_bits(const std::vector<std::string>& training) const {
    const std::string whole = folder / "whole", parts = folder / "parts";
    must(joined(training, {"--steps", "6", "--set", "model.dropout=0.1", "--out", whole}));
    must(joined(training, {"--steps", "6", "--set", "model.dropout=0.1", "--save-every", "4",
                           "--out", parts}));
    std::filesystem::remove_all(checkpoint_path(parts, 6));
    must({"train", "--resume", "--out", parts});
    EXPECT_EQ(read(checkpoint_path(whole, 6) + "/model.safetensors"),
              read(checkpoint_path(parts, 6) + "/model.safetensors"));
  }

  Folder data, folder;
};

/// Sequences whose promoters have more of A.
class Promoters : public Answers {
 protected:
  void SetUp() override {
    uint32_t state = 1;
    const auto record = [&](const std::string& letters) {
      std::string text = ">r\n";
      for (int i = 0; i < 40; ++i) {
        state = state * 1664525 + 1013904223;
        text += letters[(state >> 24) % letters.size()];
      }
      return text + "\n";
    };
    std::string positive, negative;
    for (int i = 0; i < 40; ++i) {
      positive += record("AAAAaaCGTN");
      negative += record("ACGTCCGTCG");
    }
    write(data / "positive.fasta", positive);
    write(data / "negative.fasta", negative);
  }

  std::vector<std::string> training(const std::vector<std::string>& more = {}) const {
    return joined({"train",
                   "--model",
                   "bigbird:motif",
                   "--task",
                   "promoter",
                   "--data",
                   "promoter=" + data.path(),
                   "--layers",
                   "1",
                   "--set",
                   "profiles.kmer=2",
                   "--set",
                   "model.vocab=18",
                   "--set",
                   "model.d_model=16",
                   "--set",
                   "model.d_ff=16",
                   "--length",
                   "40",
                   "--batch",
                   "8",
                   "--lr",
                   "0.01"},
                  more);
  }
};

TEST_F(Promoters, AreToldFromOtherSequences) {
  const std::string out = folder / "run";
  const Outcome trained = must(training({"--steps", "40", "--out", out}));
  EXPECT_NE(trained.err.find("64 samples to train on, 8 to validate"), std::string::npos)
      << trained.err;
  EXPECT_NE(trained.err.find("bits per answer"), std::string::npos) << trained.err;
  EXPECT_TRUE(exists(out + "/pictures/attention.png"));
  const Outcome scored = must({"eval", "--out", out, "--part", "train"});
  EXPECT_NE(scored.err.find("F1 "), std::string::npos) << scored.err;
  const Json figures = parse_json(scored.last_line());
  EXPECT_GT(figures["train_part_accuracy"].number(), 90);
  EXPECT_GT(figures["train_part_f1"].number(), 90);
  EXPECT_GT(figures["train_part_auc"].number(), 95);
}

TEST_F(Promoters, GoOnBitwise) { expect_same_bits(training()); }

TEST_F(Promoters, AreReadThroughATokenizer) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += i % 3 == 0 ? "ACGTAAC\n" : "TTGCAAAN\n";
  write(folder / "text", text);
  must({"tokens", "train", "--data", "bytes=" + (folder / "text"), "--kind", "bpe", "--vocabulary",
        "270", "--out", folder / "dna.model"});
  // Sequences have different numbers of pieces, and 20 are fewer than some have.
  must(training({"--tokenizer", folder / "dna.model", "--set", "model.vocab=270", "--length", "20",
                 "--steps", "3", "--out", folder / "run"}));
  must({"eval", "--out", folder / "run", "--part", "test"});
}

TEST_F(Promoters, SayWhatIsWrong) {
  const std::string out = folder / "run";
  const auto with = [&](const std::vector<std::string>& more) {
    return joined(training({"--out", out}), more);
  };
  refused(
      with({"--length", "39"}),
      "length: got 39; 40 bases are 40 tokens: choose --length 40, or a larger profiles.stride");
  refused(with({"--set", "model.vocab=17"}),
          "model.vocab: got 17; runs of profiles.kmer = 2 bases and two more are 18");
  refused(with({"--set", "model.classes=2"}), "model.classes: got 2; expected 1, as many as");
  refused(with({"--set", "profiles.kmer=9"}), "profiles.kmer is 9: expected 1 to 8");
  refused(with({"--set", "profiles.stride=0"}), "profiles.stride is 0: expected 1 to");
  refused(with({"--split", "0/50/50"}), "the training part of promoter has no samples");
  refused(with({"--model", "local_transformer"}), "choose an encoder such as bigbird:motif");
  refused(with({"--model", "led"}), "led maps a sequence to another");
  refused({"data", "check", "promoter", "--data", "promoter=" + folder.path()},
          "promoter lacks positive.fasta");
  write(data / "negative.fasta", ">a\nACGT\n");
  refused(with({}), "the record of line 1 has 4 bases and the first of ");
  EXPECT_FALSE(exists(out));
  std::filesystem::remove(data / "negative.fasta");  // then they are made
  const Outcome checked = must({"data", "stats", "promoter", "--data", "promoter=" + data.path()});
  EXPECT_NE(checked.out.find("train     64 samples"), std::string::npos) << checked.out;
  EXPECT_NE(checked.out.find("32 answers are yes"), std::string::npos) << checked.out;
}

TEST_F(Answers, AboutProfilesOfChromatin) {
  // 919 answers: whether the first base is A, and its opposite, in turns.
  for (const auto& [part, count] : {std::pair{"train", 12}, {"valid", 6}, {"test", 6}}) {
    std::string x, y;
    for (int i = 0; i < count; ++i) {
      for (int b = 0; b < 24; ++b) {
        for (int c = 0; c < 4; ++c) x += static_cast<char>(c == (i + b * b) % 4 ? 1 : 0);
      }
      for (int a = 0; a < 919; ++a) y += static_cast<char>((i % 4 == 0) == (a % 2 == 0) ? 1 : 0);
    }
    const std::string n = std::to_string(count);
    write(data / (std::string(part) + "_x.npy"), npy("|u1", "(" + n + ", 24, 4)", x));
    write(data / (std::string(part) + "_y.npy"), npy("|u1", "(" + n + ", 919)", y));
  }
  const std::string out = folder / "run";
  const std::vector<std::string> training = {"train",
                                             "--model",
                                             "bigbird:motif",
                                             "--task",
                                             "chromatin",
                                             "--data",
                                             "chromatin=" + data.path(),
                                             "--layers",
                                             "1",
                                             "--set",
                                             "model.d_model=16",
                                             "--set",
                                             "model.d_ff=16",
                                             "--set",
                                             "profiles.kmer=3",
                                             "--set",
                                             "profiles.positive_weight=8",
                                             "--length",
                                             "24",
                                             "--batch",
                                             "4"};
  refused(joined(training, {"--out", out}),
          "model.classes: got 1; expected 919, as many as chromatin has");
  const Outcome trained =
      must(joined(training, {"--set", "model.classes=919", "--lr", "0.005", "--set",
                             "schedule.warmup=5", "--steps", "80", "--out", out}));
  EXPECT_NE(trained.err.find("the train part has 12 samples; expected 4400000"), std::string::npos)
      << trained.err;
  const Outcome scored = must({"eval", "--out", out, "--part", "test"});
  for (const char* kind : {"dhs", "tf", "hm"}) {
    EXPECT_NE(scored.err.find(std::string(kind) + ": median area"), std::string::npos)
        << scored.err;
  }
  const Json figures = parse_json(scored.last_line());
  EXPECT_GT(figures["test_auc"].number(), 95);
  EXPECT_GT(figures["test_auc_tf"].number(), 95);
  const Outcome checked = run({"data", "check", "chromatin", "--data", "chromatin=" + data.path()});
  EXPECT_EQ(checked.code, 1);  // the counts are not those of the published data
  EXPECT_NE(checked.out.find("24 bases, 919 answers each"), std::string::npos) << checked.out;
  write(data / "valid_x.npy", npy("|u1", "(6, 24, 4)", std::string(6 * 24 * 3, '\0')));
  refused(joined(training, {"--out", folder / "never"}), "valid_x.npy is cut off");
}

}  // namespace
}  // namespace longspan::test
