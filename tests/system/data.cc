// What the program reports about data, and training on every kind of data.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "core/generator.h"
#include "data/data_sets.h"
#include "data/io/json.h"
#include "tests/harness/messages.h"
#include "tests/system/program.h"
#include "train/log.h"
#include "train/state.h"

namespace longspan::test {
namespace {

/// Writes small files of every kind, with a pattern of four symbols that any model learns.
class Data : public testing::Test {
 protected:
  void SetUp() override {
    std::string letters, dna = ">d\n", lines, wav, images;
    for (int i = 0; i < 4000; ++i) {
      letters += "abc "[i % 4];
      dna += "ACGT"[i % 4];
      lines += "w" + std::to_string(i % 4) + (i % 10 == 9 ? "\n" : " ");
      const auto sample = static_cast<uint16_t>(1000 * (i % 4));
      wav += {static_cast<char>(sample & 0xFF), static_cast<char>(sample >> 8)};
    }
    for (int i = 0; i < 20; ++i) {
      images += static_cast<char>(i);
      for (int at = 0; at < 3072; ++at) images += static_cast<char>(40 * (at % 2));
    }
    write(folder / "letters", letters);
    write(folder / "dna", dna + "\n");
    write(folder / "words", lines);
    write(folder / "images", images);
    write(folder / "wav", "RIFF" + number(36 + 8000) + "WAVEfmt " + number(16) +
                              std::string("\1\0\1\0", 4) + number(8000) + number(16000) +
                              std::string("\2\0\20\0", 4) + "data" + number(8000) + wav);
    std::string proteins;
    for (int i = 0; i < 40; ++i) proteins += ">p\n" + std::string("ACDEFGHIKLMNPQRSTVWY") + "\n";
    write(folder / "proteins", proteins);
  }

  static std::string number(uint32_t n) {
    return {static_cast<char>(n & 0xFF), static_cast<char>(n >> 8 & 0xFF),
            static_cast<char>(n >> 16 & 0xFF), static_cast<char>(n >> 24)};
  }

  Json train(const std::string& task, const std::string& file, const std::vector<std::string>& more,
             int length = 24) {
    std::vector<std::string> arguments = {
        "train",
        "--model",
        "local_transformer",
        "--task",
        task,
        "--data",
        task + "=" + (folder / file),
        "--length",
        std::to_string(length),
        "--batch",
        "8",
        "--layers",
        "1",
        "--steps",
        "60",
        "--lr",
        "0.01",
        "--seed",
        "1",
        "--set",
        "model.d_model=32",
        "--set",
        "model.d_ff=48",
        "--set",
        "model.window=9",
        "--out",
        folder / ("run-" + task + file + std::to_string(more.size()))};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome o = run(arguments);
    EXPECT_EQ(o.code, 0) << o.err;
    return parse_json(o.last_line());
  }

  Folder folder;
};

TEST_F(Data, EveryKindIsLearntFrom) {
  // The loss falls below half the entropy of single tokens.
  const auto bits = [](const Json& summary) { return summary["valid_bpb"].number(); };
  EXPECT_LT(bits(train("bytes", "letters", {})), std::log2(4) / 2);
  EXPECT_LT(bits(train("chars", "letters", {})), std::log2(4) / 2);
  EXPECT_LT(bits(train("dna", "dna", {})), std::log2(4) / 2);
  EXPECT_LT(bits(train("words", "words", {})), std::log2(4.4) / 2);
  EXPECT_LT(bits(train("wav", "wav", {})), std::log2(4) / 2);
  EXPECT_LT(bits(train("fasta", "proteins", {})), std::log2(21) / 2);
  EXPECT_LT(bits(train("images", "images", {}, 96)), std::log2(2) / 2);
}

TEST_F(Data, TokensOfATokenizerAreScoredPerByte) {
  const std::string model = LONGSPAN_SOURCE_DIR "/tests/oracles/golden/text/bpe.model";
  const Json summary = train("bytes", "letters",
                             {"--tokenizer", model, "--set", "model.vocab=800", "--steps", "300"});
  EXPECT_LT(summary["valid_bpb"].number(), std::log2(4) / 2);
  const Outcome few =
      run({"train", "--task", "bytes", "--data", "bytes=" + (folder / "letters"), "--tokenizer",
           model, "--steps", "1", "--out", folder / "few", "--set", "model.vocab=256"});
  EXPECT_EQ(few.code, 1);
  EXPECT_NE(few.err.find("model.vocab: got 256; bytes has 800 tokens: expected 800 or more"),
            std::string::npos)
      << few.err;
  const Outcome text = run({"generate", "--out", folder / "run-bytesletters6", "--prompt",
                            "abc abc", "--tokens", "8", "--temperature", "0"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out.substr(0, 15), "abc abc abc abc");
}

/// A run with a tokenizer reports every figure per byte: training, validation, console and files.
TEST_F(Data, FiguresOfATokenizerAgree) {
  const std::string model = LONGSPAN_SOURCE_DIR "/tests/oracles/golden/text/bpe.model";
  const std::string out = folder / "run";
  const std::vector<std::string> small = {"--layers",    "1",
                                          "--set",       "model.d_model=32",
                                          "--set",       "model.d_ff=48",
                                          "--length",    "24",
                                          "--tokenizer", model,
                                          "--data",      "bytes=" + (folder / "letters")};
  std::vector<std::string> arguments = {
      "train", "--set", "model.vocab=800", "--set", "model.window=9", "--steps", "150",
      "--lr",  "0.01",  "--eval-every",    "50",    "--out",          out};
  arguments.insert(arguments.end(), small.begin(), small.end());
  const Outcome o = run(arguments);
  ASSERT_EQ(o.code, 0) << o.err;
  const Corpus corpus = open_corpus("bytes", {.root = "", .data = "bytes=" + (folder / "letters")},
                                    {.split = "", .tokenizer = model});
  const double per_token =
      static_cast<double>(corpus.train.symbols) / static_cast<double>(corpus.train.size());
  ASSERT_GT(per_token, 1.2);
  const Json summary = parse_json(o.last_line());
  EXPECT_EQ(summary["unit"].string(), "byte");
  EXPECT_EQ(summary["units_per_target"].number(), per_token);
  const Json recent = read_values(newest_checkpoint(out))["recent"];
  double sum = 0;
  for (const Json& loss : recent.array()) sum += bits(loss.number());
  EXPECT_EQ(recent.array().size(), 100u);
  EXPECT_NEAR(summary["train_bpb"].number(), sum / 100 / per_token, 1e-9);
  int rows = 0;
  for (const Json& row : read_rows(out + "/metrics.jsonl")) {
    EXPECT_EQ(row["unit"].string(), "byte");
    if (row.find("loss") == nullptr) continue;
    EXPECT_NEAR(row["bpb"].number(), bits(row["loss"].number()) / per_token, 1e-9);
    ++rows;
  }
  EXPECT_EQ(rows, 15);
  EXPECT_NE(o.err.find(fmt::format("a token stands for {:.3f} bytes", per_token)),
            std::string::npos)
      << o.err;
  EXPECT_NE(o.err.find("  loss/token "), std::string::npos) << o.err;

  // A run of an earlier version has no unit in its checkpoint, and its rows have "bpb" per token.
  const std::string checkpoint = newest_checkpoint(out);
  Members values;
  const Json state = read_values(checkpoint);
  const std::set<std::string> not_theirs = {"unit", "units_per_target", "step", "files", "xxh3"};
  for (const JsonMember& m : state.object()) {
    if (not_theirs.count(m.name) == 0) values.push_back(m);
  }
  write_state(out, 150, read_tensors(checkpoint + "/model.safetensors"),
              read_tensors(checkpoint + "/optimizer.safetensors"), values);
  std::filesystem::remove(out + "/summary.json");
  const Outcome old = run({"eval", "--out", out});
  ASSERT_EQ(old.code, 0) << old.err;
  for (const char* key : {"unit", "valid_bpb"}) {
    EXPECT_EQ(parse_json(old.last_line())[key], summary[key]) << key;
  }
  const Outcome on = run({"train", "--resume", "--out", out, "--steps", "151"});
  EXPECT_EQ(on.code, 0) << on.err;

  // With masked tokens the unit is not the byte, and the summary says so.
  arguments = {"train", "--model", "transformer:encoder", "--set", "model.vocab=801", "--steps",
               "2",     "--out",   folder / "masked"};
  arguments.insert(arguments.end(), small.begin(), small.end());
  const Outcome masked = run(arguments);
  ASSERT_EQ(masked.code, 0) << masked.err;
  EXPECT_EQ(parse_json(masked.last_line())["unit"].string(), "hidden token");
  EXPECT_EQ(parse_json(masked.last_line())["units_per_target"].number(), 1);
  EXPECT_NE(masked.err.find(" bits per hidden token (perplexity "), std::string::npos)
      << masked.err;
  EXPECT_NE(masked.err.find("  bits/hidden token "), std::string::npos) << masked.err;
  EXPECT_EQ(masked.err.find("byte"), std::string::npos) << masked.err;
}

TEST_F(Data, WholeWordsAreHidden) {
  const std::vector<std::string> words = {"--model", "transformer:encoder", "--set",
                                          "whole_words=true"};
  std::vector<std::string> arguments = {"train",
                                        "--data",
                                        "bytes=" + (folder / "words"),
                                        "--length",
                                        "24",
                                        "--batch",
                                        "4",
                                        "--layers",
                                        "1",
                                        "--set",
                                        "model.d_model=32",
                                        "--set",
                                        "model.d_ff=48",
                                        "--steps",
                                        "3",
                                        "--seed",
                                        "1",
                                        "--out"};
  arguments.insert(arguments.end() - 1, words.begin(), words.end());
  std::vector<std::string> one = arguments, other = arguments;
  one.push_back(folder / "whole");
  other.insert(other.end() - 1, {"--set", "whole_words=false"});
  other.push_back(folder / "single");
  const Outcome whole = run(one), single = run(other);
  ASSERT_EQ(whole.code, 0) << whole.err;
  ASSERT_EQ(single.code, 0) << single.err;
  EXPECT_NE(parse_json(whole.last_line())["valid_bpb"],
            parse_json(single.last_line())["valid_bpb"]);
}

TEST_F(Data, TokenizersAreTrainedAndUsed) {
  const std::string model = folder / "m.model";
  const Outcome made = run({"tokens", "train", "--data", "bytes=" + (folder / "words"), "--kind",
                            "bpe", "--vocabulary", "268", "--symbols", "[MASK]", "--out", model});
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_NE(made.out.find("268 tokens"), std::string::npos) << made.out;
  const Outcome encoded =
      run({"tokens", "encode", "--tokenizer", model, "--text", "w1 w2 \xC3\xA9"});
  EXPECT_EQ(encoded.code, 0) << encoded.err;
  std::vector<std::string> back = {"tokens", "decode", "--tokenizer", model};
  std::string id;
  for (const char c : encoded.out) {
    if (c != ' ' && c != '\n') {
      id += c;
    } else if (!id.empty()) {
      back.push_back(id);
      id.clear();
    }
  }
  EXPECT_EQ(run(back).out, "w1 w2 \xC3\xA9\n");
  // A model file may be overwritten. Any other file may not.
  const std::vector<std::string> again = {
      "tokens",    "train",  "--data",       "bytes=" + (folder / "words"),
      "--kind",    "bpe",    "--vocabulary", "268",
      "--symbols", "[MASK]", "--out"};
  const auto into = [&](const std::string& path) {
    std::vector<std::string> all = again;
    all.push_back(path);
    return run(all);
  };
  EXPECT_EQ(into(model).code, 0);
  write(folder / "notes", "mine");
  EXPECT_NE(into(folder / "notes").err.find("is no SentencePiece model"), std::string::npos);
  EXPECT_EQ(read(folder / "notes"), "mine");
  for (const std::vector<std::string>& bad :
       {std::vector<std::string>{"tokens"},
        {"tokens", "make"},
        {"tokens", "decode", "x"},
        {"tokens", "decode", "999"},
        {"tokens", "train", "--data", "bytes=" + (folder / "words")},
        {"tokens", "encode", "--tokenizer", folder / "none"}}) {
    const Outcome o = run(bad);
    EXPECT_EQ(o.code, 1);
    EXPECT_FALSE(o.err.empty());
  }
}

TEST_F(Data, GenerateSaysWhatItCannotWrite) {
  train("dna", "dna", {});
  const Outcome o = run({"generate", "--out", folder / "run-dnadna0", "--prompt", "ACGT"});
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("the task dna has bases; expected bytes, characters or words"),
            std::string::npos)
      << o.err;
  train("chars", "letters", {});
  const Outcome text = run({"generate", "--out", folder / "run-charsletters0", "--prompt", "abc ab",
                            "--tokens", "6", "--temperature", "0"});
  EXPECT_EQ(text.out, "abc abc abc \n");
}

TEST_F(Data, TablesAreListedAndNoSingleSequence) {
  EXPECT_TRUE(contains(run({"data", "list"}).out, "\nclasses  "));
  const Outcome o = run({"data", "check", "classes", "--data", "classes=" + (folder / "letters")});
  EXPECT_EQ(o.code, 1);
  EXPECT_TRUE(contains(o.err, "classes are texts with labels")) << o.err;
  const Outcome unknown = run({"data", "check", "enwik9"});
  EXPECT_TRUE(contains(unknown.err, "there is no data set \"enwik9\"")) << unknown.err;
}

TEST_F(Data, CheckTellsWhatIsThere) {
  const Outcome all = run({"data", "list"});
  EXPECT_EQ(all.code, 0);
  for (const char* id : {"bytes", "enwik8", "photo-crops-32", "genomes"}) {
    EXPECT_NE(all.out.find(id), std::string::npos) << id;
  }
  for (const std::string id : {"motif-dna", "duplicate", "two-distance"}) {  // without files
    EXPECT_NE(all.out.find("--task " + id + ": no files"), std::string::npos) << all.out;
    EXPECT_EQ(all.out.find("--data " + id), std::string::npos) << all.out;
  }
  const Outcome missing = run({.arguments = {"data", "check", "enwik8"},
                               .environment = {{"LONGSPAN_DATA", folder.path()}}});
  EXPECT_EQ(missing.code, 1);
  EXPECT_NE(missing.err.find("enwik8 lacks enwik8 (100000000 bytes), plain or with .gz, in " +
                             (folder / "enwik8")),
            std::string::npos)
      << missing.err;
  const Outcome short_one =
      run({"data", "check", "enwik8", "--data", "enwik8=" + (folder / "letters")});
  EXPECT_EQ(short_one.code, 1);
  EXPECT_NE(short_one.out.find("4000 bytes; expected 100000000"), std::string::npos)
      << short_one.out;
  EXPECT_NE(short_one.out.find("the train part has 3600 bytes; expected 90000000"),
            std::string::npos)
      << short_one.out;
  const Outcome stats = run({"data", "stats", "dna", "--data", "dna=" + (folder / "dna")});
  EXPECT_EQ(stats.code, 0) << stats.err;
  EXPECT_NE(stats.out.find("3600 train, 200 valid, 200 test"), std::string::npos) << stats.out;
  EXPECT_NE(stats.out.find("2.000 bits per base alone, 0.000 after the one before"),
            std::string::npos)
      << stats.out;
}

}  // namespace
}  // namespace longspan::test
