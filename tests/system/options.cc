// Every option of every command with every kind of model: it is used, or the program says that it
// is not and ends with status 1 before any work. The table below says which; the options are those
// that the program lists.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/system/program.h"

namespace longspan::test {
namespace {

/// Kinds of models: a decoder, an encoder, an encoder-decoder of summaries, one of documents.
constexpr std::string_view kinds = "desh";

/// The kinds that use an option, by command; x where none does, - where the command does not have
/// it.
struct OptionRow {
  std::string option, value;
  std::string eval, generate, draw, summarise;
};

// `generate` has no texts of e and h, `draw` no outline of h, and `summarise` reads runs of s and
// h.
const std::vector<OptionRow>& option_table() {
  static const std::vector<OptionRow> rows = {
      {"--out", "", "desh", "ds", "des", "sh"},
      {"--step", "1", "desh", "ds", "-", "sh"},
      {"--other-data", "", "desh", "ds", "des", "sh"},
      {"--part", "train", "desh", "s", "-", "-"},
      {"--stride", "8", "d", "-", "-", "-"},
      {"--predictions", "p.csv", "x", "-", "-", "-"},  // of labelled tables alone
      {"--beams", "2", "s", "ds", "-", "s"},
      {"--early-stopping", "never", "s", "s", "-", "s"},
      {"--length-penalty", "2", "s", "s", "-", "s"},
      {"--length-divisor", "wu2016", "s", "s", "-", "s"},
      {"--no-repeat-ngram", "3", "s", "s", "-", "s"},
      {"--min-tokens", "2", "s", "s", "-", "s"},
      {"--repetition-penalty", "1.5", "s", "ds", "-", "s"},
      {"--prompt", "x", "-", "d", "-", "-"},
      {"--prompts", "TEXT", "-", "d", "-", "-"},
      {"--json", "", "desh", "x", "-", "sh"},
      {"--tokens", "3", "-", "d", "-", "-"},
      {"--temperature", "0.5", "-", "d", "-", "-"},
      {"--top-k", "3", "-", "d", "-", "-"},
      {"--top-p", "0.5", "-", "d", "-", "-"},
      {"--document", "TEXT", "-", "s", "-", "-"},
      {"--index", "0", "-", "s", "-", "-"},
      {"--layer", "0", "-", "-", "des", "-"},
      {"--sentences", "1", "-", "-", "-", "h"},
      {"--words", "9", "-", "-", "-", "h"},
      {"--scores", "", "-", "-", "-", "h"},
      {"--model", "MODEL", "desh", "ds", "", "sh"},
      {"--task", "TASK", "desh", "ds", "des", ""},
      {"--data", "DATA", "desh", "s", "des", ""},
      {"--data-root", "ROOT", "desh", "s", "des", ""},
      {"--split", "90/5/5", "desh", "s", "des", ""},
      {"--columns", "text=a", "x", "-", "x", "-"},  // of labelled tables alone
      {"--tokenizer", "bytes", "desh", "ds", "des", "sh"},
      {"--length", "16", "desh", "s", "des", "s"},
      {"--target-length", "9", "s", "s", "", "s"},
      {"--documents", "2", "sh", "s", "", ""},
      {"--gap-sentences", "0.3", "s", "-", "", ""},
      {"--batch", "2", "desh", "x", "", ""},
      {"--layers", "1", "desh", "ds", "des", "sh"},
      {"--steps", "9", "", "", "", ""},
      {"--seconds", "9", "", "", "", ""},
      {"--seed", "3", "desh", "d", "des", ""},
      {"--lr", "0.1", "", "", "", ""},
      {"--freeze", "*bias", "", "", "", ""},
      {"--train", "*bias", "", "", "", ""},
      {"--rates", "*=2", "", "", "", ""},
      {"--average", "0.9", "", "", "", ""},
      {"--best-by", "x", "", "", "", ""},
      {"--threads", "1", "desh", "ds", "des", "sh"},
      {"--device", "cpu", "desh", "ds", "des", "sh"},
      {"--dtype", "f32", "desh", "ds", "des", "sh"},
      {"--precision", "f32", "desh", "ds", "des", "sh"},
      {"--products", "own", "desh", "ds", "des", "sh"},
      {"--memory", "lean", "desh", "ds", "des", "sh"},
      {"--chunks", "2", "desh", "ds", "des", "sh"},
      {"--from", "RUN", "", "", "", ""},
      {"--save-every", "1", "", "", "", ""},
      {"--keep", "1", "", "", "", ""},
      {"--keep-best", "", "", "", "", ""},
      {"--patience", "1", "", "", "", ""},
      {"--log-every", "1", "", "", "", ""},
      {"--eval-every", "1", "", "", "", ""},
      {"--eval-tokens", "9", "", "", "", ""},
      {"--tensorboard", "", "", "", "", ""},
      {"--pictures", "pdf", "desh", "", "des", ""},
  };
  return rows;
}

const std::string& use_by(const OptionRow& row, const std::string& command) {
  return command == "eval"       ? row.eval
         : command == "generate" ? row.generate
         : command == "draw"     ? row.draw
                                 : row.summarise;
}

/// Returns the options that a command lists.
std::set<std::string> listed(const std::string& command) {
  const Outcome o = run({command, "--help"});
  std::set<std::string> all;
  for (size_t at = 0; (at = o.out.find("\n  --", at)) != std::string::npos; ++at) {
    const size_t begin = at + 3;
    all.insert(o.out.substr(begin, o.out.find_first_of(" ,\n", begin) - begin));
  }
  all.erase("--config");
  all.erase("--set");
  return all;
}

const std::map<std::string, std::string> read_kinds = {
    {"eval", "desh"}, {"generate", "ds"}, {"draw", "des"}, {"summarise", "h"}};

class Options : public testing::Test {
 protected:
  /// Makes a run of each kind, in the folder RUN of its letter.
  static void SetUpTestSuite() {
    shared_ = new Folder;
    const std::string text = *shared_ / "text";
    write(text, some_text(600));
    std::string articles, summaries;
    for (int i = 0; i < 4; ++i) {
      articles += "it is one <S_SEP> then it is two <S_SEP> and more of it\n";
      summaries += "then it is two\n";
    }
    for (const char* part : {"train", "valid", "test"}) {
      for (const char* folder : {"/documents/", "/wiki-leads/"}) {
        write(shared_->path() + folder + part + ".article", articles);
        write(shared_->path() + folder + part + ".summary", summaries);
      }
    }
    for (const char kind : kinds) {
      Words all = {"train",     "--model",  model(kind), "--task",    task(kind),
                   "--data",    data(kind), "--layers",  "1",         "--length",
                   "32",        "--batch",  "2",         "--steps",   "1",
                   "--threads", "1",        "--out",     folder(kind)};
      const Words more =
          kind == 's'   ? Words{"--target-length",          "12",    "--set",
                              "model.one_sided_window=9", "--set", "model.vocab=259"}
          : kind == 'h' ? Words{"--set", "model.sentence_length=24", "--set", "model.vocab=260"}
                        : Words{};
      all.insert(all.end(), more.begin(), more.end());
      for (const char* size : {"model.d_model=16", "model.n_head=2", "model.d_ff=16"}) {
        all.insert(all.end(), {"--set", size});
      }
      const Outcome o = run(all);
      ASSERT_EQ(o.code, 0) << o.err;
    }
  }
  static void TearDownTestSuite() { delete shared_; }

  static std::string folder(char kind) { return *shared_ / std::string(1, kind); }
  static std::string model(char kind) {
    return kind == 'd'   ? "transformer"
           : kind == 'e' ? "transformer:encoder"
           : kind == 's' ? "led"
                         : "hibert:labels";
  }
  static std::string task(char kind) {
    return kind == 's' ? "wiki-leads" : kind == 'h' ? "documents" : "bytes";
  }
  static std::string data(char kind) {
    return task(kind) + "=" +
           (kind == 's' || kind == 'h' ? *shared_ / task(kind) : *shared_ / "text");
  }
  /// Returns a command for a run of this kind, with an option of a row.
  static Words with(const std::string& command, char kind, const OptionRow& row) {
    Words all = {command};
    if (row.option != "--out") all.insert(all.end(), {"--out", folder(kind)});
    if (command == "summarise") all.push_back(*shared_ / "text");
    if (command == "generate" && kind == 'd' && row.option != "--tokens")
      all.insert(all.end(), {"--tokens", "2"});
    if (command == "generate" && kind == 's' && row.option != "--index" &&
        row.option != "--document") {
      all.insert(all.end(), {"--index", "0"});
    }
    std::string value = row.value;
    if (row.option == "--out") value = folder(kind);
    if (value == "TEXT") value = *shared_ / "text";
    if (value == "MODEL") value = model(kind);
    if (value == "TASK") value = task(kind);
    if (value == "DATA") value = data(kind);
    if (value == "ROOT") value = shared_->path();
    if (value == "RUN") value = folder('d');
    all.push_back(row.option);
    if (!value.empty()) all.push_back(value);
    return all;
  }

  /// Runs each command with each option, on a run of each kind that it reads, or of one of them.
  static void try_options(bool every) {
    for (const auto& [command, read] : read_kinds) {
      for (const char kind : read) {
        const auto before = contents(folder(kind) + "/checkpoints");
        for (size_t i = 0; i < option_table().size(); ++i) {
          if (!every && read[i % read.size()] != kind) continue;
          const OptionRow& row = option_table()[i];
          const std::string& used = use_by(row, command);
          if (used == "-" || (command == "draw" && row.option == "--model")) continue;
          SCOPED_TRACE(command + " of " + kind + " with " + row.option);
          const std::string scores = read_evals(kind);
          const Outcome o = run(with(command, kind, row));
          if (used.find(kind) != std::string::npos) {
            EXPECT_EQ(o.code, 0) << o.err;
            continue;
          }
          EXPECT_EQ(o.code, 1) << o.out;
          EXPECT_EQ(o.out, "");
          const std::string key = row.option.substr(2);
          const bool named = o.err.find(row.option) != std::string::npos ||
                             o.err.find(underlined(key)) != std::string::npos;
          EXPECT_TRUE(named) << o.err;
          EXPECT_NE(o.err.find("leave it out"), std::string::npos) << o.err;
          EXPECT_EQ(read_evals(kind), scores);
        }
        EXPECT_EQ(contents(folder(kind) + "/checkpoints"), before);
      }
    }
  }

  static std::string read_evals(char kind) {
    const std::string path = folder(kind) + "/evals.jsonl";
    return exists(path) ? test::read(path) : "";
  }
  /// Returns the name of an option as a key has it.
  static std::string underlined(std::string name) {
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
  }

  static Folder* shared_;
};
Folder* Options::shared_ = nullptr;

// A new option needs a row here, and a row an option.
TEST_F(Options, AreTheOnesThatCommandsList) {
  for (const auto& [command, read] : read_kinds) {
    SCOPED_TRACE(command);
    std::set<std::string> expected;
    for (const OptionRow& row : option_table()) {
      const std::string& used = use_by(row, command);
      if (used != "-" && !used.empty()) expected.insert(row.option);
    }
    if (command == "draw") expected.insert({"--model", "--from"});  // of a model without a run
    if (command == "eval") expected.insert("--steps");              // of generated tasks
    EXPECT_EQ(listed(command), expected);
  }
}

TEST_F(Options, AreUsedOrRefused) { try_options(false); }
TEST_F(Options, SlowAreUsedOrRefusedByEveryKindOfModel) { try_options(true); }

// What depends on more than the kind of the model, and commands without a run.
TEST_F(Options, AreRefusedWhereTheyDoNothing) {
  const std::string out = *shared_ / "none", text = *shared_ / "text", run_d = folder('d'),
                    run_s = folder('s'), run_h = folder('h');
  const auto train = [&](const Words& more) {
    Words all = {"train", "--steps", "1", "--data", "bytes=" + text, "--out", out};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const std::pair<Words, std::string> cases[] = {
      {{"train", "--task", "duplicate", "--out", out, "--data", "bytes=" + text}, "--data"},
      {{"train", "--task", "duplicate", "--out", out, "--split", "90/5/5"}, "--split"},
      {{"train", "--task", "duplicate", "--out", out, "--tokenizer", "bytes"}, "--tokenizer"},
      {train({"--set", "optimizer.momentum=0.5"}), "optimizer.momentum"},
      {train({"--set", "optimizer.name=sgd", "--set", "optimizer.beta1=0.5"}), "optimizer.beta1"},
      {train({"--set", "optimizer.step_clip=1"}), "optimizer.step_clip"},
      {train({"--set", "optimizer.update_from=3"}), "optimizer.update_from"},
      {train({"--set", "schedule.every=3"}), "schedule.every"},
      {train({"--set", "schedule.name=constant", "--set", "schedule.floor=0"}), "schedule.floor"},
      {train({"--set", "start.positions=keep"}), "start.positions"},
      {train({"--set", "whole_words=true"}), "whole_words"},
      {train({"--set", "profiles.kmer=3"}), "profiles.kmer"},
      {train({"--set", "questions.most=3"}), "questions.most"},
      {train({"--set", "extracts.chunk=3"}), "extracts.chunk"},
      {{"memory", "--model", "transformer", "--lr", "1"}, "--lr"},
      {{"memory", "--model", "transformer", "--steps", "1"}, "--steps"},
      {{"memory", "--model", "transformer", "--target-length", "5"}, "--target-length"},
      {{"memory", "--model", "transformer", "--json", "--terms"}, "--terms"},
      {{"study", "memory", "--model", "transformer", "--out", out, "--keep", "1"}, "--keep"},
      {{"draw", "--model", "transformer", "--out", out, "--batch", "1"}, "--batch"},
      {{"draw", "--model", "transformer", "--out", out, "--data", "bytes=" + text}, "--data"},
      {{"draw", "--out", run_d, "--from", run_d}, "--from"},
      {{"eval", "--out", run_d, "--set", "model.dropout=0.1"}, "model.dropout"},
      {{"eval", "--out", run_s, "--set", "model.label_smoothing=0.1"}, "model.label_smoothing"},
      {{"generate", "--out", run_d, "--set", "model.z_loss=0.1"}, "model.z_loss"},
      {{"draw", "--out", run_d, "--set", "model.dropout_attn=0.1"}, "model.dropout_attn"},
      {{"eval", "--out", run_h, "--set", "extracts.mask_share=0.5"}, "extracts.mask_share"},
      {{"summarise", "--out", run_h, text, "--set", "extracts.oracle=2"}, "extracts.oracle"},
      {{"generate", "--out", run_s, "--document", text, "--split", "90/5/5"}, "--split"},
      {{"generate", "--out", run_s, "--document", text, "--data", data('s')}, "--data"},
      {{"generate", "--out", run_s, "--document", text, "--documents", "2"}, "--documents"},
      {{"models", "--set", "model.n_layer=1"}, "--set"},
      {{"tasks", "--set", "task=bytes"}, "--set"},
      {{"data", "list", "--data", "bytes=" + text}, "--data"},
      {{"data", "list", "bytes"}, "\"bytes\" belongs to nothing"},
      {{"data", "check", "duplicate", "--data-root", out}, "--data-root"},
      {{"data", "check", "chars", "--data", "chars=" + text, "--tokenizer", "bytes"},
       "--tokenizer"},
      {{"tokens", "encode", "--text", "a", "--vocabulary", "300"}, "--vocabulary"},
      {{"tokens", "decode", "97", "--text", "a"}, "--text"},
      {{"tokens", "train", "--data", "bytes=" + text, "--out", out, "--text", "a"}, "--text"},
      {{"generate", "--out", run_s, "--index", "0", "--document", text}, "--document"},
      {{"generate", "--out", run_s, "--part", "train", "--document", text}, "--document"},
      {{"generate", "--out", run_s, "--index", "0", "--beams", "0"}, "--beams"},
      {{"generate", "--out", run_d, "--beams", "2", "--top-k", "3"}, "--top-k"},
      {{"generate", "--out", run_d, "--beams", "2", "--seed", "3"}, "--seed"},
      {{"generate", "--out", run_d, "--beams", "2", "--temperature", "1"}, "--temperature"},
      {{"generate", "--out", run_d, "--beams", "0"}, "--beams"},
      {{"generate", "--out", run_d, "--top-p", "0"}, "--top-p"},
      {{"generate", "--out", run_d, "--temperature", "0", "--top-k", "3"}, "--top-k"},
      {{"generate", "--out", run_d, "--temperature", "0", "--seed", "3"}, "--seed"},
      {{"generate", "--out", run_d, "--part", "all"}, "--part"},
      // Numbers that only the end of the work would refuse.
      {{"eval", "--out", run_d, "--stride", "0"}, "--stride"},
      {{"eval", "--out", run_d, "--stride", "33"}, "--stride"},
      {{"eval", "--out", run_s, "--min-tokens", "12"}, "--min-tokens"},
      {{"eval", "--out", run_d, "--part", "all"}, "--part"},
  };
  for (const auto& [words, named] : cases) {
    std::string all;
    for (const std::string& word : words) all += word + " ";
    SCOPED_TRACE(all);
    const Outcome o = run(words);
    EXPECT_EQ(o.code, 1);
    EXPECT_EQ(o.out, "");
    EXPECT_NE(o.err.find(named), std::string::npos) << o.err;
    EXPECT_EQ(o.err.find("bits per"), std::string::npos) << o.err;  // nothing was scored
    EXPECT_FALSE(exists(out));
  }
  // A file may have keys that are not used.
  write(*shared_ / "all.toml", "whole_words = true\n[optimizer]\nmomentum = 0.5\nlr = 0.1\n");
  const Outcome o = run({"eval", "--out", run_d, "--config", *shared_ / "all.toml"});
  EXPECT_EQ(o.code, 0) << o.err;
}

// A text that is given needs no data.
TEST_F(Options, OfGivenTextsNeedNoData) {
  const std::string there = *shared_ / "wiki-leads", away = *shared_ / "away";
  std::filesystem::rename(there, away);
  const Outcome o = run({"generate", "--out", folder('s'), "--document", *shared_ / "text"});
  const Outcome of_data = run({"generate", "--out", folder('s'), "--index", "0"});
  std::filesystem::rename(away, there);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(of_data.code, 1) << of_data.out;
}

TEST_F(Options, BeamsAndRepeatsOfDecoders) {
  const auto text = [&](Words more) {
    more.insert(more.begin(),
                {"generate", "--out", folder('d'), "--prompt", "the ", "--tokens", "20"});
    const Outcome o = run(more);
    EXPECT_EQ(o.code, 0) << o.err;
    return o.out;
  };
  const std::string greedy = text({"--temperature", "0"});
  EXPECT_EQ(text({"--beams", "1"}), greedy);
  EXPECT_EQ(text({"--beams", "1", "--temperature", "0"}), greedy);
  for (const Words& more : {Words{"--beams", "4"}, Words{"--temperature", "0"}}) {
    Words all = more;
    all.insert(all.end(), {"--no-repeat-ngram", "2"});
    const std::string free = text(all);
    ASSERT_EQ(free.size(), 4u + 20 + 1);
    std::set<std::string> pairs;
    for (size_t i = 0; i + 3 < free.size(); ++i) {
      EXPECT_TRUE(pairs.insert(free.substr(i, 2)).second) << free;
    }
  }
}

}  // namespace
}  // namespace longspan::test
