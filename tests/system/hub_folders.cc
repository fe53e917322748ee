// Folders of the package transformers through the program: in, out, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "data/io/json.h"
#include "tests/system/program.h"
#include "train/state.h"

namespace longspan::test {
namespace {

namespace fs = std::filesystem;

const std::string golden = LONGSPAN_SOURCE_DIR "/tests/oracles/hub_folders/";

Outcome must(const std::vector<std::string>& arguments) {
  const Outcome o = run(arguments);
  EXPECT_EQ(o.code, 0) << o.err;
  return o;
}

void refused(const std::vector<std::string>& arguments, const std::vector<std::string>& messages) {
  const Outcome o = run(arguments);
  EXPECT_EQ(o.code, 1);
  for (const std::string& message : messages) {
    EXPECT_NE(o.err.find(message), std::string::npos) << o.err << "\nexpected: " << message;
  }
}

Json config_of(const std::string& folder) { return parse_json(read(folder + "/config.json")); }

/// Writes config.json of a folder again with another member.
void set_key(const std::string& folder, const std::string& name, const Json& value) {
  const Json before = config_of(folder);
  Members members = before.object();
  std::erase_if(members, [&](const JsonMember& m) { return m.name == name; });
  members.push_back({name, value});
  write(folder + "/config.json", to_string(Json(members)));
}

TEST(HubFolders, GoOutAsTheyCameIn) {
  for (const fs::directory_entry& entry : fs::directory_iterator(golden)) {
    const std::string from = entry.path().string();
    SCOPED_TRACE(from);
    const Folder folder;
    const std::string in = folder / "run", out = folder / "out";
    must({"import", from, "--out", in});
    must({"export", in, "--out", out});
    const Json before = config_of(from), after = config_of(out);
    for (const JsonMember& member : before.object()) {
      if (member.name == "transformers_version" || member.value.is_null()) continue;
      const Json* now = after.find(member.name);
      ASSERT_NE(now, nullptr) << member.name;
      EXPECT_EQ(*now, member.value) << member.name << ": " << to_string(*now);
    }
    // Nothing is added that would mean something else.
    EXPECT_EQ(after.find("problem_type") == nullptr, before.find("problem_type") == nullptr);
    const TensorList was = read_tensors(from + "/model.safetensors"),
                     is = read_tensors(out + "/model.safetensors");
    for (const NamedTensor& t : was) {
      const auto at = std::find_if(is.begin(), is.end(),
                                   [&](const NamedTensor& other) { return other.name == t.name; });
      ASSERT_NE(at, is.end()) << t.name;
      ASSERT_EQ(t.tensor.shape(), at->tensor.shape()) << t.name;
      EXPECT_EQ(t.tensor.to_vector<float>(), at->tensor.to_vector<float>()) << t.name;
    }
    EXPECT_EQ(was.size(), is.size());
    EXPECT_EQ(exists(from + "/tokenizer.json"), exists(out + "/tokenizer.json"));
  }
}

TEST(HubFolders, WhatIsWrongIsSaidBeforeAnythingIsWritten) {
  const Folder folder;
  const std::string copy = folder / "copy", out = folder / "run";
  fs::copy(golden + "bert_masked_left", copy);
  set_key(copy, "no_such_member", Json(7));
  set_key(copy, "quantization_config", Json(Members{{"bits", 4}}));
  refused({"import", copy, "--out", out}, {"no_such_member", "quantization_config"});
  EXPECT_FALSE(exists(out));
  refused({"import", folder / "nothing", "--out", out}, {"there is no folder"});
  EXPECT_FALSE(exists(out));
  write(folder / "full/file", "mine");
  refused({"import", golden + "bert_masked_left", "--out", folder / "full"}, {"full"});
  EXPECT_EQ(names_in(folder / "full"), (std::vector<std::string>{"file"}));
}

/// A folder with a head for classes and a tokenizer of 23 tokens.
class HubClassifier : public testing::Test {
 protected:
  void SetUp() override {
    fs::copy(golden + "bert_classes", from);
    Members vocabulary;
    Json::Array added;
    for (const char* name : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
      added.emplace_back(Members{{"id", vocabulary.size()}, {"content", name}, {"special", true}});
      vocabulary.push_back({name, vocabulary.size()});
    }
    while (vocabulary.size() < 23) {
      vocabulary.push_back({"w" + std::to_string(vocabulary.size()), vocabulary.size()});
    }
    const Json file =
        Members{{"version", "1.0"},
                {"added_tokens", std::move(added)},
                {"normalizer", Members{{"type", "BertNormalizer"},
                                       {"clean_text", true},
                                       {"handle_chinese_chars", true},
                                       {"strip_accents", Json()},
                                       {"lowercase", true}}},
                {"pre_tokenizer", Members{{"type", "BertPreTokenizer"}}},
                {"post_processor", Members{{"type", "BertProcessing"},
                                           {"sep", Json::Array{"[SEP]", 3}},
                                           {"cls", Json::Array{"[CLS]", 2}}}},
                {"decoder", Members{{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
                {"model", Members{{"type", "WordPiece"},
                                  {"unk_token", "[UNK]"},
                                  {"continuing_subword_prefix", "##"},
                                  {"max_input_chars_per_word", 100},
                                  {"vocab", std::move(vocabulary)}}}};
    write(from + "/tokenizer.json", to_string(file));
  }

  Folder folder;
  const std::string from = folder / "bert";
};

TEST_F(HubClassifier, AnswersTheSameAsTheRunMadeOfIt) {
  write(folder / "lines.txt", "a b\n\nw5 w6 w7\n");
  must({"import", from, "--out", folder / "run"});
  const Outcome direct = must({"predict", "--out", from, folder / "lines.txt", "--json"});
  const Outcome imported =
      must({"predict", "--out", folder / "run", folder / "lines.txt", "--json"});
  EXPECT_EQ(direct.out, imported.out);
  EXPECT_EQ(std::count(direct.out.begin(), direct.out.end(), '\n'), 3);
  EXPECT_NE(direct.out.find("so-so"), std::string::npos) << direct.out;
}

TEST_F(HubClassifier, BecomesARunWithoutStepsOrData) {
  must({"import", from, "--out", folder / "run"});
  refused({"train", "--resume", "--out", folder / "run", "--steps", "1"}, {"--from"});
  refused({"eval", "--out", folder / "run"}, {"--data"});
}

TEST_F(HubClassifier, StartsAFinerOneThatGoesOut) {
  std::string rows = "text,label\n";
  for (int i = 0; i < 60; ++i) {
    rows += i % 3 == 0 ? "w5 w6,yes\n" : i % 3 == 1 ? "w7 w8,no\n" : "w9,so-so\n";
  }
  write(folder / "rows.csv", rows);
  must({"train", "--from", from, "--task", "classes", "--data", "classes=" + folder / "rows.csv",
        "--steps", "2", "--out", folder / "run"});
  const std::string csv = folder / "predictions.csv";
  const Outcome scored = must({"eval", "--out", folder / "run", "--predictions", csv});
  EXPECT_EQ(read(csv).substr(0, 39), "text,label,predicted,probability,loss\r\n");
  refused({"eval", "--out", folder / "run", "--predictions", csv}, {"is there already"});
  refused({"eval", "--out", folder / "run", "--predictions", folder / "none/p.csv"},
          {"there is no folder"});
  must({"export", folder / "run", "--out", folder / "out"});
  const Json config = config_of(folder / "out");
  EXPECT_EQ(config["id2label"]["0"], Json("no"));
  EXPECT_EQ(config["id2label"]["2"], Json("yes"));
  EXPECT_EQ(config.find("num_labels"), nullptr);
  const Outcome run = must({"predict", "--out", folder / "run", folder / "rows.csv"});
  const Outcome out = must({"predict", "--out", folder / "out", folder / "rows.csv"});
  EXPECT_EQ(run.out, out.out);
}

TEST_F(HubClassifier, GetsAnyHead) {
  std::string tags, choices = "sent1,ending0,ending1,label\n",
                    questions = "question,context,answer_text,answer_start\n";
  for (int i = 0; i < 40; ++i) {
    tags += R"({"tokens": ["w5", "w6", "w7"], "tags": ["B-X", "I-X", "O"]})"
            "\n";
    choices += i % 2 == 0 ? "w5,w6,w7,0\n" : "w5,w7,w6,1\n";
    questions += "w5,w6 w7 w8,w7,3\n";
  }
  write(folder / "tags.jsonl", tags);
  write(folder / "choice.csv", choices);
  write(folder / "spans.csv", questions);
  for (const auto& [task, file, architecture] :
       {std::tuple{"tags", "tags.jsonl", "BertForTokenClassification"},
        {"spans", "spans.csv", "BertForQuestionAnswering"},
        {"choice", "choice.csv", "BertForMultipleChoice"}}) {
    SCOPED_TRACE(task);
    // A folder with classes is not one with another number of them.
    const std::string base = task == std::string("choice") ? folder / "hub-spans" : from;
    const std::string out = folder / task, hub = folder / (std::string("hub-") + task);
    must({"train", "--from", base, "--task", task, "--data",
          std::string(task) + "=" + (folder / file), "--steps", "2", "--length", "16", "--out",
          out});
    const Outcome scored = must({"eval", "--out", out});
    must({"export", out, "--out", hub});
    EXPECT_EQ(config_of(hub)["architectures"].array()[0], Json(architecture));
    // The folder is a run of the same task.
    const Outcome again = must({"eval", "--out", hub, "--length", "16", "--data",
                                std::string(task) + "=" + (folder / file)});
    const Json one = parse_json(scored.last_line()), two = parse_json(again.last_line());
    EXPECT_NEAR(one["valid_bpb"].number(), two["valid_bpb"].number(), 1e-5);
  }
  write(folder / "text", "w6 w7 w8\n");
  const Outcome answered = must({"answer", "--out", folder / "hub-spans", "--document",
                                 folder / "text", "--question", "w5", "--json"});
  EXPECT_TRUE(parse_json(answered.last_line())["probability"].is_number());
  write(folder / "line", "w5 w6 w7\n");
  const Outcome tagged = must({"predict", "--out", folder / "hub-tags", folder / "line"});
  EXPECT_EQ(std::count(tagged.out.begin(), tagged.out.end(), ' '), 2);
  refused({"predict", "--out", folder / "hub-spans", folder / "line"},
          {"predictions are of the tasks classes, pairs, regression, tags, choice;"});
  refused(
      {"answer", "--out", folder / "hub-tags", "--document", folder / "text", "--question", "w5"},
      {"answers are found"});
}

TEST_F(HubClassifier, StartsWithThePoolerOfAFolderWithoutClasses) {
  const std::string base = folder / "base", out = folder / "out";
  fs::copy(golden + "bert_headless", base);
  fs::copy(from + "/tokenizer.json", base + "/tokenizer.json");
  write(folder / "rows.csv", "text,label\nw5,a\nw6,b\nw7,a\nw8,b\n");
  const Outcome o = must({"train", "--from", base, "--task", "classes", "--data",
                          "classes=" + (folder / "rows.csv"), "--split", "100/0/0", "--steps", "1",
                          "--lr", "0", "--length", "16", "--out", folder / "run"});
  EXPECT_NE(o.err.find("drawn anew: classifier.weight, classifier.bias"), std::string::npos)
      << o.err;
  must({"export", folder / "run", "--out", out});
  const auto find = [](const TensorList& all, const std::string& name) {
    const auto at = std::find_if(all.begin(), all.end(), [&](auto& t) { return t.name == name; });
    return at == all.end() ? std::vector<float>{} : at->tensor.template to_vector<float>();
  };
  const TensorList before = read_tensors(base + "/model.safetensors"),
                   after = read_tensors(out + "/model.safetensors");
  EXPECT_FALSE(find(before, "pooler.dense.weight").empty());
  EXPECT_EQ(find(before, "pooler.dense.weight"), find(after, "bert.pooler.dense.weight"));
}

TEST_F(HubClassifier, KeepsItsLabelsAndTheirOrder) {
  write(folder / "rows.csv", "text,label\nw5,yes\nw6,no\nw7,so-so\nw8,no\n");
  const std::string data = "classes=" + (folder / "rows.csv");
  must({"train", "--from", from, "--task", "classes", "--data", data, "--split", "100/0/0",
        "--steps", "1", "--lr", "0", "--length", "16", "--out", folder / "run"});
  must({"export", folder / "run", "--out", folder / "out"});
  EXPECT_EQ(config_of(folder / "out")["id2label"], config_of(from)["id2label"]);
  write(folder / "others.csv", "text,label\nw5,left\nw6,right\n");
  refused({"train", "--from", from, "--task", "classes", "--data",
           "classes=" + (folder / "others.csv"), "--steps", "1", "--out", folder / "other"},
          {"left", "--new-head"});
}

TEST_F(HubClassifier, GetsANewHeadForOtherLabels) {
  write(folder / "rows.csv", "text,label\nw5,left\nw6,right\nw7,left\nw8,right\n");
  const auto train = [&](const std::string& start, const std::string& out, const char* file) {
    return must({"train", "--from", start, "--new-head", "--task", "classes", "--data",
                 "classes=" + (folder / file), "--split", "100/0/0", "--steps", "1", "--lr", "0",
                 "--length", "16", "--out", folder / out});
  };
  const Outcome o = train(from, "run", "rows.csv");
  EXPECT_NE(o.err.find("drawn anew: classifier.weight, classifier.bias"), std::string::npos)
      << o.err;
  must({"export", folder / "run", "--out", folder / "out"});
  EXPECT_EQ(config_of(folder / "out")["id2label"], (Json(Members{{"0", "left"}, {"1", "right"}})));
  const auto pooler = [](const std::string& at) {
    const TensorList all = read_tensors(at + "/model.safetensors");
    for (const NamedTensor& t : all) {
      if (t.name == "bert.pooler.dense.weight") return t.tensor.to_vector<float>();
    }
    return std::vector<float>{};
  };
  EXPECT_FALSE(pooler(from).empty());
  EXPECT_EQ(pooler(folder / "out"), pooler(from));
  // From a run, and with as many labels as before.
  write(folder / "same.csv", "text,label\nw5,up\nw6,down\nw7,up\nw8,down\n");
  train(folder / "run", "next", "same.csv");
  must({"export", folder / "next", "--out", folder / "last"});
  EXPECT_EQ(config_of(folder / "last")["id2label"], (Json(Members{{"0", "down"}, {"1", "up"}})));
  refused({"train", "--new-head", "--model", "blockbert", "--task", "classes", "--data",
           "classes=" + (folder / "rows.csv"), "--steps", "1", "--out", folder / "none"},
          {"--new-head", "--from"});
}

TEST_F(HubClassifier, IsTheBeginningOfARunThroughARunToo) {
  write(folder / "rows.csv", "text,label\nw5,yes\nw6,no\nw7,so-so\nw8,no\n");
  const std::string data = "classes=" + (folder / "rows.csv");
  must({"import", from, "--out", folder / "run"});
  const Outcome o =
      must({"train", "--from", folder / "run", "--task", "classes", "--data", data, "--split",
            "100/0/0", "--steps", "1", "--length", "16", "--out", folder / "next"});
  EXPECT_EQ(o.err.find("drawn anew"), std::string::npos) << o.err;
  refused({"train", "--from", folder / "none", "--task", "classes", "--data", data, "--out",
           folder / "x"},
          {"there is no folder", "nothing is downloaded"});
  refused({"train", "--from", folder.path(), "--task", "classes", "--data", data, "--out",
           folder / "x"},
          {"neither config.toml nor config.json"});
}

TEST_F(HubClassifier, PredictsTheRowsOfATable) {
  write(folder / "rows.csv", "text,label\nw5 w6,?\n\"w7\nw8\",?\n");
  write(folder / "lines.txt", "w5 w6\nw7 w8\n");
  EXPECT_EQ(must({"predict", "--out", from, folder / "rows.csv"}).out,
            must({"predict", "--out", from, folder / "lines.txt"}).out);
}

TEST_F(HubClassifier, NeedsATokenizerOrAWord) {
  fs::remove(from + "/tokenizer.json");
  write(folder / "lines.txt", "a\n");
  refused({"predict", "--out", from, folder / "lines.txt"}, {"none is named", "--tokenizer"});
}

TEST_F(HubClassifier, TakesSettingsOfItsTokenizer) {
  write(folder / "lines.txt", "W5 w6\n[SEP] w5\n");
  const auto answer = [&](const std::string& settings) {
    return must({"predict", "--out", from, "--tokenizer", from + settings, folder / "lines.txt"});
  };
  const std::string plain = answer("").out;
  EXPECT_EQ(answer(":special_in_text=true").out, plain);
  EXPECT_NE(answer(":special_in_text=false").out, plain);
  refused({"predict", "--out", from, "--tokenizer", from + ":lower=true", folder / "lines.txt"},
          {"there is no setting lower", "do_lower_case"});
  refused(
      {"predict", "--out", from, "--tokenizer", from + ":special_in_text=no", folder / "lines.txt"},
      {"expected true or false"});
}

TEST(HubFolders, ARunOverBytesTakesItsTokenizerAlong) {
  const Folder folder;
  write(folder / "text", some_text(20000));
  must({"train",
        "--model",
        "transformer:gpt2",
        "--data",
        "bytes=" + folder / "text",
        "--steps",
        "1",
        "--layers",
        "1",
        "--length",
        "32",
        "--set",
        "model.vocab=256",
        "--set",
        "model.d_model=16",
        "--set",
        "model.n_head=2",
        "--set",
        "model.d_ff=16",
        "--batch",
        "2",
        "--out",
        folder / "run"});
  must({"export", folder / "run", "--out", folder / "out"});
  EXPECT_TRUE(exists(folder / "out/tokenizer.json"));
  const Json config = config_of(folder / "out");
  ASSERT_NE(config.find("eos_token_id"), nullptr) << "by default it would be 50256";
  EXPECT_TRUE(config["eos_token_id"].is_null());
}

// Beside a config.json its class would be that of the model, which makes other ids.
TEST(HubFolders, ATokenizerWithoutAClassKeepsItsIds) {
  const Folder folder;
  write(folder / "text", some_text(20000));
  const std::string tokenizer = folder / "words";
  fs::copy(LONGSPAN_SOURCE_DIR "/tests/oracles/golden/hub/wordpiece", tokenizer);
  must({"train",
        "--model",
        "transformer:gpt2",
        "--data",
        "bytes=" + folder / "text",
        "--tokenizer",
        tokenizer,
        "--steps",
        "1",
        "--layers",
        "1",
        "--length",
        "32",
        "--set",
        "model.vocab=440",
        "--set",
        "model.d_model=16",
        "--set",
        "model.n_head=2",
        "--set",
        "model.d_ff=16",
        "--batch",
        "2",
        "--out",
        folder / "run"});
  must({"export", folder / "run", "--out", folder / "out"});
  const Json config = parse_json(read(folder / "out/tokenizer_config.json"));
  EXPECT_EQ(config["tokenizer_class"], Json("PreTrainedTokenizerFast"));
  const auto ids = [](const std::string& name) {
    return must({"tokens", "encode", "--tokenizer", name, "--text", "Hello, the cat [MASK]"}).out;
  };
  EXPECT_EQ(ids(folder / "out"), ids(tokenizer));

  // Nothing is written with a tokenizer that has changed since.
  fs::remove_all(tokenizer);
  fs::copy(LONGSPAN_SOURCE_DIR "/tests/oracles/golden/hub/wordpiece_cased", tokenizer);
  refused({"export", folder / "run", "--out", folder / "other"}, {"the tokens of"});
  EXPECT_FALSE(exists(folder / "other"));
}

TEST_F(HubClassifier, NeedsATokenizerThatFits) {
  const std::string large = LONGSPAN_SOURCE_DIR "/tests/oracles/golden/hub/wordpiece";
  refused({"import", from, "--tokenizer", large, "--out", folder / "run"}, {"more than the 23"});
  refused({"import", from, "--tokenizer", folder / "none", "--out", folder / "run"}, {"none"});
  EXPECT_FALSE(exists(folder / "run"));
}

}  // namespace
}  // namespace longspan::test
