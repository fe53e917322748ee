// Encoder-decoders that learn to summarise: runs from training to ROUGE.
#include <gtest/gtest.h>

#include <filesystem>

#include "data/io/json.h"
#include "tests/system/program.h"
#include "train/state.h"

namespace longspan::test {
namespace {

/// Writes documents in the layout of wiki-leads. Their summaries say which word the article begins
/// with.
class Sequences : public testing::Test {
 protected:
  void SetUp() override {
    const char* words[] = {"alpha", "beta", "gamma", "delta"};
    for (const auto& [part, count] : {std::pair{"train", 4}, {"valid", 2}, {"test", 1}}) {
      std::string articles, summaries;
      for (int i = 0; i < count; ++i) {
        const std::string word = words[i];
        articles += word + " is first . <S_SEP> then comes more about it . <S_SEP> and " + word +
                    " again . <S_SEP> the end .\n";
        summaries += "it is " + word + " . <S_SEP> so it is .\n";
      }
      write(data / (std::string(part) + ".article"), articles);
      write(data / (std::string(part) + ".summary"), summaries);
    }
  }

  std::vector<std::string> small_run(const std::string& model, const std::string& out, int steps,
                                     const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"train",
                                    "--model",
                                    model,
                                    "--task",
                                    "wiki-leads",
                                    "--data",
                                    "wiki-leads=" + data.path(),
                                    "--layers",
                                    "1",
                                    "--set",
                                    "model.vocab=259",
                                    "--set",
                                    "model.d_model=32",
                                    "--set",
                                    "model.d_ff=48",
                                    "--set",
                                    "model.n_head=2",
                                    "--length",
                                    "60",
                                    "--batch",
                                    "3",
                                    "--lr",
                                    "0.01",
                                    "--set",
                                    "schedule.warmup=10",
                                    "--set",
                                    "schedule.floor=1",
                                    "--steps",
                                    std::to_string(steps),
                                    "--out",
                                    out};
    if (model == "led") {
      all.insert(all.end(), {"--set", "model.one_sided_window=9"});
    }
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

TEST_F(Sequences, LearnByHeartAndAreScoredBesideTheLead) {
  const std::string out = folder / "run";
  const Outcome trained = must(small_run("led", out, 400, {"--lr", "0.005"}));
  EXPECT_NE(trained.err.find("4 pairs to train on, 2 to validate"), std::string::npos)
      << trained.err;
  EXPECT_NE(trained.err.find("the train part has 4 documents; expected 70"), std::string::npos);
  // The end token of a target is no byte, so a token has less than one byte on average.
  const Json summary = parse_json(trained.last_line());
  EXPECT_EQ(summary["unit"].string(), "byte");
  const double length = static_cast<double>(std::string("it is alpha .\nso it is .").size());
  EXPECT_NEAR(summary["units_per_target"].number(), length / (length + 1), 0.01);
  EXPECT_EQ(parse_json(must({"eval", "--out", out, "--beams", "0"}).last_line())["valid_bpb"],
            summary["valid_bpb"]);
  for (const char* part : {"attention", "attention_decoder", "attention_cross"}) {
    EXPECT_TRUE(exists(out + "/pictures/" + part + ".png")) << part;
  }
  EXPECT_TRUE(exists(out + "/pictures/loss.png"));

  const Outcome o = must({"eval", "--out", out, "--part", "train", "--beams", "2"});
  const Json figures = parse_json(o.last_line());
  EXPECT_LT(figures["train_part_bpb"].number(), 0.3) << o.err;
  EXPECT_GT(figures["train_part_rouge"]["rouge1"].number(), 90) << o.err;
  EXPECT_GT(figures["train_part_rouge"]["rouge_lsum"].number(), 90) << o.err;
  // The first three sentences of each document have 11 words. They share "it", "is" and the word
  // with the 6 words of "it is WORD so it is".
  EXPECT_NEAR(figures["train_part_lead3"]["rouge1"].number(), 200.0 * 3 / 17, 1e-9) << o.err;
  EXPECT_NE(o.err.find("first 10 sentences"), std::string::npos);

  // Without beams there is no search.
  const Json plain = parse_json(must({"eval", "--out", out, "--beams", "0"}).last_line());
  EXPECT_GT(plain["valid_bpb"].number(), 0);
  EXPECT_EQ(plain.find("valid_rouge"), nullptr);
  EXPECT_EQ(to_string(figures["overrides"]), "{\"search.beams\":\"2\"}");

  const Outcome said = must({"generate", "--out", out, "--part", "train", "--index", "1"});
  EXPECT_EQ(said.out, "it is beta .\nso it is .\n");
  const std::string text = "beta is first .\nthen comes more about it . and beta again . the end .";
  for (const std::string mark : {"", "\xEF\xBB\xBF"}) {  // a byte order mark is no text
    write(folder / "text", mark + text);
    EXPECT_EQ(must({"generate", "--out", out, "--document", folder / "text"}).out, said.out);
  }
}

TEST_F(Sequences, GoOnBitwiseWhereTheyStopped) {
  for (const std::string model : {"led", "transformer:base", "bigbird_pegasus"}) {
    const std::string whole = folder / (model + " whole"), parts = folder / (model + " parts");
    const std::vector<std::string> dropout = {"--set", "model.dropout=0.1"};
    must(small_run(model, whole, 6, dropout));
    must(small_run(model, parts, 6, {"--set", "model.dropout=0.1", "--save-every", "4"}));
    std::filesystem::remove_all(checkpoint_path(parts, 6));
    must(small_run(model, parts, 6, {"--set", "model.dropout=0.1", "--resume"}));
    EXPECT_EQ(read(checkpoint_path(whole, 6) + "/model.safetensors"),
              read(checkpoint_path(parts, 6) + "/model.safetensors"))
        << model;
  }
}

TEST_F(Sequences, AreReadOnceInOtherBatches) {
  expect_each_sample_once(small_run("led", folder / "", 1, {"--set", "model.dropout=0"}),
                          folder.path());
}

TEST_F(Sequences, TakeAnyLengthAndLeaveSentencesOut) {
  for (const std::string length : {"1", "2", "33"}) {
    const std::string out = folder / ("length" + length);
    const Outcome o =
        must(small_run("led", out, 2, {"--length", length, "--target-length", length}));
    // A target of one token is only the end token, which has no byte.
    EXPECT_EQ(parse_json(o.last_line())["unit"].string(), length == "1" ? "token" : "byte");
    must({"eval", "--out", out, "--beams", "3"});
    must(small_run("bigbird_pegasus:coupled", out + "coupled", 2,
                   {"--length", length, "--target-length", length, "--set", "model.block=4"}));
  }
  const std::string out = folder / "gaps";
  const Outcome gaps =
      must(small_run("led", out, 2, {"--gap-sentences", "0.3", "--documents", "3"}));
  EXPECT_NE(gaps.err.find("pairs to train on"), std::string::npos) << gaps.err;
  EXPECT_EQ(must({"eval", "--out", out}).err.find("ROUGE"), std::string::npos);
  must({"generate", "--out", out, "--index", "0", "--beams", "2"});
  // The same run resumes with summaries.
  must(small_run("led", out, 4, {"--resume"}));
}

TEST_F(Sequences, SayWhatIsWrong) {
  const std::string out = folder / "run";
  const auto refused = [&](std::vector<std::string> arguments, const char* message) {
    const Outcome o = run(std::move(arguments));
    EXPECT_EQ(o.code, 1);
    EXPECT_NE(o.err.find(message), std::string::npos) << o.err;
  };
  refused({"train", "--model", "longformer", "--task", "wiki-leads", "--out", out},
          "task: wiki-leads has documents and summaries, and longformer reads one sequence; choose "
          "an encoder-decoder such as led");
  for (const char* option : {"--documents", "--target-length", "--gap-sentences"}) {
    const char* value = option == std::string_view("--gap-sentences") ? "0.5" : "5";
    refused({"train", "--model", "longformer", "--out", out, option, value},
            "wiki-leads, documents, and the task is bytes: leave it out");
  }
  refused({"train", "--model", "led", "--out", out, "--set", "model.vocab=259", "--data",
           "bytes=" + (data / "train.article")},
          "task: led maps a sequence to another and the task bytes has only one");
  refused(small_run("led", out, 1, {"--set", "model.vocab=258"}),
          "model.vocab: got 258; bytes has 259 tokens with those around a text");
  refused(small_run("led", out, 1, {"--length", "513", "--set", "model.n_max=512"}),
          "led takes at most 512 tokens");
  refused(small_run("led", out, 1, {"--target-length", "65"}), "led writes at most 64 tokens");
  refused(small_run("led", out, 1, {"--documents", "5"}), "the training part of wiki-leads has 4");
  refused(small_run("led", out, 1, {"--gap-sentences", "1"}),
          "gap_sentences is 1.0: expected 0 to 0.99");
  must(small_run("led", out, 1));
  refused({"generate", "--out", out}, "expected --document FILE, or --index N");
  refused({"generate", "--out", out, "--index", "2"}, "--index: got 2; expected 0 to 1");
  refused({"eval", "--out", out, "--beams", "-1"}, "beams is -1: expected 0 to");
  refused({"eval", "--out", out, "--stride", "4"},
          "--stride: is for decoders that read one long text, and led on");
  refused({"eval", "--out", out, "--part", "all"}, "expected train, valid or test");
}

}  // namespace
}  // namespace longspan::test
