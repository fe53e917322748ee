// Encoders that answer questions about sequences and documents: runs from training to scores.
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "data/io/json.h"
#include "tests/harness/numpy_file.h"
#include "tests/system/program.h"
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
  /// Expects a run that stops after 4 of 6 steps and resumes to end with the bits of an
  /// uninterrupted run.
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

/// Writes sequences whose promoters contain more A.
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

TEST_F(Promoters, AreReadOnceInOtherBatches) {
  expect_each_sample_once(training({"--set", "model.dropout=0"}), folder.path());
}

TEST_F(Promoters, AreReadThroughATokenizer) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += i % 3 == 0 ? "ACGTAAC\n" : "TTGCAAAN\n";
  write(folder / "text", text);
  must({"tokens", "train", "--data", "bytes=" + (folder / "text"), "--kind", "bpe", "--vocabulary",
        "270", "--out", folder / "dna.model"});
  // Sequences have different numbers of tokens, and some have more than the length of 20.
  must(training({"--tokenizer", folder / "dna.model", "--set", "model.vocab=270", "--length", "20",
                 "--steps", "3", "--out", folder / "run"}));
  must({"eval", "--out", folder / "run", "--part", "test"});
  // Byte tokens do not match runs of bases.
  must(training({"--steps", "1", "--out", folder / "runs"}));
  refused(training({"--tokenizer", "bytes", "--set", "model.vocab=270", "--from", folder / "runs",
                    "--out", folder / "bytes"}),
          "--from: the tokens of this run are bytes, and those of " + (folder / "runs") +
              " are runs of 2 bases");
}

TEST_F(Promoters, SayWhyTheyAreNotRecorded) {
  const Outcome o =
      must(training({"--steps", "1", "--set", "graph=true", "--out", folder / "run"}));
  EXPECT_NE(o.err.find("steps run kernel by kernel: the batches of promoter"), std::string::npos)
      << o.err;
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
  refused(with({"--split", "0/50/50"}), " has no samples");
  refused(with({"--model", "sparse_transformer"}), "choose an encoder such as bigbird:motif");
  refused(with({"--model", "led"}), "led maps a sequence to another");
  refused({"data", "check", "promoter", "--data", "promoter=" + folder.path()},
          "promoter lacks positive.fasta");
  write(data / "negative.fasta", ">a\nACGT\n");
  refused(with({}), "the record of line 1 has 4 bases and the first of ");
  EXPECT_FALSE(exists(out));
  std::filesystem::remove(data / "negative.fasta");  // the negatives are then generated
  const Outcome checked = must({"data", "stats", "promoter", "--data", "promoter=" + data.path()});
  EXPECT_NE(checked.out.find("train     64 samples"), std::string::npos) << checked.out;
  EXPECT_NE(checked.out.find("32 answers are yes"), std::string::npos) << checked.out;
}

TEST_F(Answers, AboutProfilesOfChromatin) {
  // The 919 answers alternate between "the first base is A" and its negation.
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
  EXPECT_EQ(checked.code, 1);  // the counts differ from those of the published data
  EXPECT_NE(checked.out.find("24 bases, 919 answers each"), std::string::npos) << checked.out;
  write(data / "valid_x.npy", npy("|u1", "(6, 24, 4)", std::string(6 * 24 * 3, '\0')));
  refused(joined(training, {"--out", folder / "never"}), "valid_x.npy is cut off");
}

// Encoders without a token head are measured with the head that they have.
TEST_F(Answers, AreWithinTheMemoryThatIsPlanned) {
  const std::vector<std::string> small = {"--layers", "2", "--length", "64", "--batch", "2"};
  for (const std::vector<std::string>& model : std::vector<std::vector<std::string>>{
           {"--model", "bigbird:motif", "--task", "motif-dna"},
           {"--model", "longformer", "--set", "model.span_head=true", "--set",
            "model.mlm_head=false"},
           {"--model", "blockbert", "--set", "model.choice_head=true", "--set",
            "model.mlm_head=false"}}) {
    const Outcome o = must(joined(joined({"memory"}, model), small));
    EXPECT_EQ(o.out.find("needs mlm_head"), std::string::npos) << o.out;
    EXPECT_NE(o.out.find("KiB"), std::string::npos) << o.out;
  }
  const std::vector<std::string> motifs =
      joined({"train", "--model", "bigbird:motif", "--task", "motif-dna", "--set",
              "motifs.nearest=20", "--steps", "2", "--out", folder / "run"},
             small);
  refused(joined(motifs, {"--budget", "1KiB"}), "the budget is 1.0 KiB");
  const Outcome o = must(joined(motifs, {"--budget", "112MiB"}));
  EXPECT_NE(o.err.find("--memory standard: a step needs "), std::string::npos) << o.err;
}

/// Writes questions in the layout of WikiHop. Their supports are longer than a window.
class WikiHop : public Answers {
 protected:
  void SetUp() override {
    const char* names[] = {"anna", "bert", "cleo", "dora", "emil", "fred"};
    const char* places[] = {"rome", "oslo", "bonn"};
    for (const auto& [part, count] : {std::pair{"train", 6}, {"dev", 3}}) {
      std::string text;
      for (int i = 0; i < count; ++i) {
        const std::string name = names[i], place = places[i % 3];
        text += std::string(i == 0 ? "[" : ", ") + R"({"id": "WH_)" + part + std::to_string(i) +
                R"(", "query": "home )" + name + R"(", "answer": ")" + place +
                R"(", "candidates": [")" + (i < 4 ? "rome\", \"oslo\", \"bonn" : "bonn\", \"oslo") +
                (i == 3 ? "\", \"rome"
                          "2"
                        : "") +
                R"("], "supports": [")" + name + " lives in " + place +
                R"(.", "It rains there, as it does nearly everywhere."]})";
      }
      write(data / (std::string(part) + ".json"), text + "]");
    }
  }

  std::vector<std::string> training(const std::string& model,
                                    const std::vector<std::string>& more = {}) const {
    return joined({"train",
                   "--model",
                   model,
                   "--task",
                   "wikihop",
                   "--data",
                   "wikihop=" + data.path(),
                   "--layers",
                   "1",
                   "--set",
                   "model.choice_head=true",
                   "--set",
                   "model.mlm_head=false",
                   "--set",
                   "model.vocab=262",
                   "--set",
                   "model.d_model=32",
                   "--set",
                   "model.d_ff=32",
                   "--length",
                   "64",
                   "--batch",
                   "3",
                   "--lr",
                   "0.01"},
                  more);
  }
};

TEST_F(WikiHop, IsLearntByHeart) {
  for (const std::string model : {"longformer", "bigbird", "blockbert"}) {
    const std::string out = folder / model;
    const Outcome trained = must(training(
        model, {"--steps", "150", "--lr", "5e-3", "--set", "schedule.warmup=5", "--out", out}));
    EXPECT_NE(trained.err.find("6 questions to train on, 3 to validate"), std::string::npos)
        << trained.err;
    EXPECT_NE(trained.err.find("bits per question"), std::string::npos) << trained.err;
    EXPECT_TRUE(exists(out + "/pictures/attention.png"));
    const Outcome scored = must({"eval", "--out", out, "--part", "train"});
    EXPECT_NE(scored.err.find("100.00 % of questions right"), std::string::npos) << scored.err;
    EXPECT_EQ(parse_json(scored.last_line())["train_part_accuracy"].number(), 100);
    EXPECT_LT(parse_json(scored.last_line())["train_part_bpb"].number(), 0.5);
    refused({"eval", "--out", out, "--part", "test"},
            {" is empty: there is no file of it; expected --part "
             "train or valid"});
  }
}

TEST_F(WikiHop, ValidatesOnASample) {
  const std::string out = folder / "run";
  must(training("longformer", {"--steps", "2", "--eval-tokens", "64", "--out", out}));
  const Json summary = parse_json(read(out + "/summary.json"));
  EXPECT_EQ(summary["eval_tokens"].integer(), 64);
  // One question of three.
  const Json all = parse_json(must({"eval", "--out", out}).last_line());
  EXPECT_NE(summary["valid_bpb"].number(), all["valid_bpb"].number());
}

TEST_F(WikiHop, StartsFromMaskedTokens) {
  write(folder / "text", some_text(4000));
  const std::string base = folder / "base", out = folder / "run";
  must({"train", "--model", "longformer", "--data", "bytes=" + (folder / "text"), "--layers", "1",
        "--set", "model.d_model=32", "--set", "model.d_ff=32", "--length", "64", "--batch", "2",
        "--steps", "3", "--out", base});
  const Outcome o = must(training("longformer", {"--from", base, "--steps", "2", "--out", out}));
  EXPECT_NE(o.err.find("starting from step 3 of " + base), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("drawn anew: choice."), std::string::npos) << o.err;
}

TEST_F(WikiHop, GoesOnBitwise) { expect_same_bits(training("longformer")); }

TEST_F(WikiHop, IsReadOnceInOtherBatches) {
  expect_each_sample_once(training("longformer", {"--set", "model.dropout=0"}), folder.path());
}

TEST_F(WikiHop, SaysWhatIsWrong) {
  const std::string out = folder / "run";
  const auto with = [&](const std::vector<std::string>& more) {
    return training("longformer", joined({"--out", out}, more));
  };
  refused(with({"--set", "model.choice_head=false"}),
          "model.choice_head: got false; wikihop needs");
  refused(with({"--set", "model.vocab=261"}), "model.vocab: got 261; bytes has 262 tokens");
  refused(with({"--length", "32"}),
          "and its 3 candidates are 32 tokens, which leaves no room for "
          "texts: expected 33 or more");
  refused({"train", "--model", "transformer", "--task", "wikihop", "--out", out},
          "choose an encoder such as longformer:wikihop");
  refused({"data", "check", "wikihop", "--data", "wikihop=" + folder.path()},
          "wikihop lacks train.json, dev.json, plain or with .gz, in ");
  const Outcome stats = run({"data", "stats", "wikihop", "--data", "wikihop=" + data.path()});
  EXPECT_NE(stats.out.find("train     6 questions; expected 43738"), std::string::npos)
      << stats.out;
  EXPECT_NE(stats.out.find("12 texts, 17 candidates"), std::string::npos) << stats.out;
  write(data / "dev.json", "[{\"id\": \"x\"}]");
  refused(with({}), "dev.json: question x: ");
  EXPECT_FALSE(exists(out));
}

/// Writes questions in the layout of TriviaQA. One of two documents contains the answer.
class TriviaQa : public Answers {
 protected:
  void SetUp() override {
    const char* names[] = {"Anna", "Bert", "Cleo", "Dora"};
    const char* places[] = {"Rome", "Oslo", "Bonn", "Bern"};
    const std::string filler =
        " It rains there, as it does nearly everywhere, and after the rain the sun comes out "
        "again.";
    write(data / "evidence/wikipedia/Rain.txt", "Rain falls." + filler);
    for (const auto& [part, count] : {std::pair{"train", 4}, {"dev", 2}}) {
      std::string text = "{\"Data\": [";
      for (int i = 0; i < count; ++i) {
        const std::string name = names[i], place = places[i];
        write(data / ("evidence/wikipedia/" + name + ".txt"),
              name + " lives in " + place + "." + filler);
        text += std::string(i == 0 ? "" : ", ") + R"({"QuestionId": "tc_)" + std::to_string(i) +
                R"(", "Question": "Home of )" + name + R"(?", "Answer": {"Value": ")" + place +
                R"(", "Aliases": [")" + place + R"(", "city of )" + place +
                R"("]}, "EntityPages": [{"Filename": "Rain.txt"}, {"Filename": ")" + name +
                R"(.txt"}]})";
      }
      write(data / ("qa/wikipedia-" + std::string(part) + ".json"), text + "]}");
    }
  }

  std::vector<std::string> training(const std::string& model,
                                    const std::vector<std::string>& more = {}) const {
    return joined({"train",
                   "--model",
                   model,
                   "--task",
                   "triviaqa",
                   "--data",
                   "triviaqa=" + data.path(),
                   "--layers",
                   "1",
                   "--set",
                   "model.span_head=true",
                   "--set",
                   "model.mlm_head=false",
                   "--set",
                   "model.vocab=258",
                   "--set",
                   "model.d_model=32",
                   "--set",
                   "model.d_ff=32",
                   "--length",
                   "72",
                   "--set",
                   "questions.most=20",
                   "--set",
                   "questions.longest=8",
                   "--batch",
                   "4",
                   "--lr",
                   "0.01"},
                  more);
  }
};

TEST_F(TriviaQa, IsLearntByHeart) {
  for (const std::string model : {"longformer", "bigbird"}) {
    const std::string out = folder / model;
    const Outcome trained =
        must(training(model, {"--steps", "60", "--set", "schedule.warmup=5", "--out", out}));
    EXPECT_NE(trained.err.find("8 documents of questions to train on, 4 to validate"),
              std::string::npos)
        << trained.err;
    EXPECT_NE(trained.err.find("bits per place"), std::string::npos) << trained.err;
    const Json figures = parse_json(must({"eval", "--out", out, "--part", "train"}).last_line());
    EXPECT_LT(figures["train_part_bpb"].number(), 0.5);
    // Documents without the answer are not trained on, but may still score highest.
    EXPECT_GE(figures["train_part_exact"].number(), 25);
    EXPECT_GE(figures["train_part_f1"].number(), figures["train_part_exact"].number());
  }
}

// The loss of a step is the mean over the documents with an answer, however the documents are
// divided into batches. Half of the documents have no answer.
TEST_F(TriviaQa, AccumulatesWhatHasAnAnswer) {
  const auto losses = [&](const std::string& batch, const std::string& accumulate) {
    const std::string out = folder / ("run" + batch);
    must(training("longformer",
                  {"--set", "optimizer.name=sgd", "--lr", "0.1", "--set", "schedule.warmup=0",
                   "--set", "model.dropout=0", "--set", "log_every=1", "--steps", "4", "--batch",
                   batch, "--set", "accumulate=" + accumulate, "--out", out}));
    std::vector<double> all;
    std::istringstream lines(read(out + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const Json row = parse_json(line);
      if (const Json* loss = row.find("loss")) all.push_back(loss->number());
    }
    return all;
  };
  const std::vector<double> whole = losses("5", "1"), cut = losses("1", "5");
  ASSERT_EQ(whole.size(), 4u);
  ASSERT_EQ(cut.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(cut[i], whole[i], 1e-4) << i;
}

TEST_F(TriviaQa, IsReadOnceInOtherBatches) {
  expect_each_sample_once(training("longformer", {"--set", "model.dropout=0", "--seed", "2"}),
                          folder.path());
}

TEST_F(TriviaQa, GoesOnBitwise) { expect_same_bits(training("longformer", {"--batch", "1"})); }

TEST_F(TriviaQa, SaysWhatIsWrong) {
  const std::string out = folder / "run";
  const auto with = [&](const std::vector<std::string>& more) {
    return training("longformer", joined({"--out", out}, more));
  };
  refused(with({"--set", "model.span_head=false"}), "model.span_head: got false; triviaqa needs");
  refused(with({"--set", "model.vocab=257"}), "model.vocab: got 257; bytes has 258 tokens");
  refused(with({"--length", "24"}),
          "length: got 24; questions have up to questions.most = 20 tokens, and some stand around "
          "them: expected 25 or more");
  refused(with({"--set", "questions.longest=0"}), "questions.longest is 0: expected 1 to");
  refused({"train", "--model", "sparse_transformer", "--task", "triviaqa", "--out", out},
          "choose an encoder such as longformer:triviaqa");
  std::filesystem::remove(data / "evidence/wikipedia/Cleo.txt");
  refused(with({}), "question tc_2 has a document ");
  EXPECT_FALSE(exists(out));
  const Outcome stats = run({"data", "stats", "triviaqa", "--data", "triviaqa=" + data.path()});
  EXPECT_NE(stats.out.find("8 texts, 8 ways to write answers"), std::string::npos) << stats.out;
}

}  // namespace
}  // namespace longspan::test
