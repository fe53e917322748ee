// HIBERT in whole runs: masked sentences, labels from there, extracts of texts.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "data/io/json.h"
#include "tests/system/program.h"
#include "train/state.h"

namespace longspan::test {
namespace {

/// Writes articles whose sentences with a number are their summaries.
class DocumentRuns : public testing::Test {
 protected:
  void SetUp() override {
    const char* words[] = {"alpha", "beta", "gamma", "delta"};
    std::string articles, summaries;
    for (int i = 0; i < 4; ++i) {
      const std::string word = words[i];
      articles += "it is " + word + " <S_SEP> then 1 " + word + " came <S_SEP> no more of it";
      articles += " <S_SEP> and 2 came later <S_SEP> the end\n";
      summaries += "then 1 " + word + " came <S_SEP> and 2 came later\n";
    }
    for (const char* part : {"train", "valid"}) {
      write(data / (std::string(part) + ".article"), articles);
      write(data / (std::string(part) + ".summary"), summaries);
    }
  }

  std::vector<std::string> training(const std::string& model, const std::string& out,
                                    const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"train",
                                    "--model",
                                    model,
                                    "--task",
                                    "documents",
                                    "--data",
                                    "documents=" + data.path(),
                                    "--set",
                                    "model.vocab=260",
                                    "--set",
                                    "model.d_model=32",
                                    "--set",
                                    "model.sentence_length=24",
                                    "--set",
                                    "extracts.take.sentences=2",
                                    "--threads",
                                    "1",
                                    "--batch",
                                    "4",
                                    "--out",
                                    out};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  Outcome must(const std::vector<std::string>& arguments) const {
    Outcome o = run(arguments);
    EXPECT_EQ(o.code, 0) << o.err;
    return o;
  }

  Folder data, folder;
};

// A run says how many sentences it cuts and which key sets where; the README's command, whose
// tokens are bytes, cuts none of a usual length.
TEST_F(DocumentRuns, SayWhatTheyCutAndTheReadmeCutsNothing) {
  const std::string readme = read(std::string(LONGSPAN_SOURCE_DIR) + "/README.md");
  const size_t begin = readme.find("train --model hibert:labels --task documents");
  ASSERT_NE(begin, std::string::npos);
  const std::string command = readme.substr(begin, readme.find("--out", begin) - begin);
  const std::string key = "model.sentence_length=";
  const size_t at = command.find(key);
  ASSERT_NE(at, std::string::npos) << command;
  const std::string of_readme = command.substr(at, command.find(' ', at) - at);
  const std::string sentence = "the quick brown fox of " + std::string(150, 'x') + " jumps";
  write(data / "train.article", "it is so <S_SEP> " + sentence + "\n");
  write(data / "train.summary", "it is so\n");
  const std::string cut =
      must(training("hibert:labels", folder / "cut", {"--steps", "1", "--set", key + "12"})).err;
  EXPECT_NE(cut.find("1 of 2 sentences of the train part have more than 11 tokens"),
            std::string::npos)
      << cut;
  EXPECT_NE(cut.find("a larger model.sentence_length reads more"), std::string::npos) << cut;
  const std::string whole =
      must(training("hibert:labels", folder / "whole", {"--steps", "1", "--set", of_readme})).err;
  EXPECT_EQ(whole.find("cut after them"), std::string::npos) << whole;
}

TEST_F(DocumentRuns, FromMaskedSentencesToExtracts) {
  const std::string masked = folder / "masked", labels = folder / "labels";
  const Outcome first = must(training("hibert", masked, {"--steps", "20"}));
  EXPECT_NE(first.err.find("4 pieces of documents to train on, 4 to validate"), std::string::npos)
      << first.err;
  EXPECT_EQ(parse_json(first.last_line())["unit"].string(), "hidden token");
  EXPECT_TRUE(exists(masked + "/pictures/attention.png"));
  const Json of_masked = parse_json(must({"eval", "--out", masked}).last_line());
  EXPECT_EQ(of_masked["valid_bpb"], parse_json(first.last_line())["valid_bpb"]);
  EXPECT_GE(of_masked["valid_accuracy"].number(), 0);
  const Outcome refused = run({"summarise", "--out", masked, "-"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("neither writes nor labels sentences"), std::string::npos)
      << refused.err;

  must(
      training("hibert:labels", labels,
               {"--steps", "60", "--from", masked, "--lr", "0.003", "--set", "schedule.warmup=5"}));
  const Outcome o = must({"eval", "--out", labels});
  const Json figures = parse_json(o.last_line());
  EXPECT_EQ(figures["valid_accuracy"].number(), 100) << o.err;
  EXPECT_EQ(figures["valid_rouge"]["rouge1"].number(), 100) << o.err;
  EXPECT_EQ(figures["valid_oracle"]["rouge_lsum"].number(), 100) << o.err;
  EXPECT_LT(figures["valid_lead"]["rouge1"].number(), 80) << o.err;

  write(folder / "text.txt", "It is beta. Then 1 beta came. No more of it.\nand 2 came later");
  const std::string plain = must({"summarise", "--out", labels, folder / "text.txt"}).out;
  EXPECT_EQ(std::count(plain.begin(), plain.end(), '\n'), 2) << plain;
  write(folder / "a.article", "it is beta <S_SEP> then 1 beta came <S_SEP> and 2 came later\n");
  write(folder / "b.story", "it is gamma\n\nthen 1 gamma came\n\n@highlight\n\nnot this\n");
  EXPECT_EQ(must({"summarise", "--out", labels, folder / "a.article", folder / "b.story"}).out,
            "== " + folder / "a.article" + " ==\nthen 1 beta came\nand 2 came later\n== " +
                folder / "b.story" + " ==\nit is gamma\nthen 1 gamma came\n");
  EXPECT_EQ(must({"summarise", "--out", labels, "--sentences", "1", folder / "b.story"}).out,
            "then 1 gamma came\n");
  const std::string scored =
      must({"summarise", "--out", labels, "--scores", folder / "b.story"}).out;
  EXPECT_NE(scored.find("   2  then 1 gamma came\n"), std::string::npos) << scored;
  const std::string command = std::string(LONGSPAN_PROGRAM) + " summarise --out " + labels +
                              " - < " + folder / "a.article" + " > " + folder / "out";
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(read(folder / "out"), "then 1 beta came\nand 2 came later\n");

  write(folder / "empty", "\n \n");
  for (const auto& [arguments, message] :
       {std::pair<std::vector<std::string>, std::string>{{"summarise", "--out", labels},
                                                         "got no text; expected files"},
        {{"summarise", "--out", labels, folder / "empty"}, "a text without sentences"},
        {{"summarise", "--out", labels, folder / "none"}, "none"}}) {
    const Outcome bad = run(arguments);
    EXPECT_EQ(bad.code, 1);
    EXPECT_NE(bad.err.find(message), std::string::npos) << bad.err;
  }
}

TEST_F(DocumentRuns, GoOnBitwiseWhereTheyStopped) {
  for (const std::string model : {"hibert", "hibert:labels"}) {
    const std::string whole = folder / (model + " whole"), parts = folder / (model + " parts");
    const std::vector<std::string> dropout{"--set", "model.dropout=0.1", "--steps", "6"};
    must(training(model, whole, dropout));
    std::vector<std::string> more = dropout;
    more.insert(more.end(), {"--save-every", "4"});
    must(training(model, parts, more));
    std::filesystem::remove_all(checkpoint_path(parts, 6));
    more = dropout;
    more.push_back("--resume");
    must(training(model, parts, more));
    EXPECT_EQ(read(checkpoint_path(whole, 6) + "/model.safetensors"),
              read(checkpoint_path(parts, 6) + "/model.safetensors"))
        << model;
  }
}

TEST_F(DocumentRuns, AreReadOnceInOtherBatches) {
  expect_each_sample_once(training("hibert:labels", folder / "", {"--set", "model.dropout=0"}),
                          folder.path());
}

TEST_F(DocumentRuns, AreSummarisedWithTheTokensTheyWereTrainedWith) {
  const std::string out = folder / "run", model = folder / "t.model", text = folder / "text";
  const auto tokenizer = [&](const std::string& words) {
    write(text, words);
    must({"tokens", "train", "--data", "bytes=" + text, "--kind", "bpe", "--vocabulary", "300",
          "--out", model});
  };
  const std::string words = [] {
    std::string all;
    for (int i = 0; i < 200; ++i) all += i % 3 == 0 ? "then it came\n" : "no more of it\n";
    return all;
  }();
  tokenizer(words);
  must(training("hibert:labels", out,
                {"--steps", "2", "--tokenizer", model, "--set", "model.vocab=310"}));
  must({"summarise", "--out", out, text});
  tokenizer(std::string(words.rbegin(), words.rend()));
  const Outcome o = run({"summarise", "--out", out, text});
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("the tokens of " + model + " are "), std::string::npos) << o.err;
  EXPECT_NE(must({"summarise", "--out", out, "--other-data", text}).err.find("the tokens of "),
            std::string::npos);
}

TEST_F(DocumentRuns, MemoryIsPredicted) {
  const std::string text = must({"memory", "--model", "hibert", "--length", "96"}).out;
  EXPECT_NE(text.find("hibert: 2 layers, 96 tokens x 16"), std::string::npos) << text;
}

}  // namespace
}  // namespace longspan::test
