// Hub folders: what they compute, what is refused, and what is written (hub/).

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "core/error.h"
#include "data/io/files.h"
#include "hub/export.h"
#include "hub/settings.h"
#include "models/blockbert/blockbert.h"
#include "models/transformer/transformer.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "tests/hub/hub_case.h"
#include "train/state.h"

namespace longspan::test {
namespace {

namespace fs = std::filesystem;

const std::string folders = std::string(LONGSPAN_SOURCE_DIR) + "/tests/oracles/hub_folders/";

std::vector<std::string> names_of_folders() {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folders)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// A copy of a folder that a test may change.
class Copy {
 public:
  explicit Copy(const std::string& name)
      : path_(fmt::format("{}hub_{}_{}", testing::TempDir(), getpid(), name)) {
    fs::remove_all(path_);
    fs::copy(folders + name, path_);
  }
  ~Copy() { fs::remove_all(path_); }

  const std::string& path() const { return path_; }
  Json config() const { return parse_json(read_file(path_ + "/config.json", "test")); }
  /// Sets a member of config.json; null removes it.
  void set(const std::string& name, const Json& value) const {
    Members members;
    const Json before = config();
    for (const JsonMember& m : before.object()) {
      if (m.name != name) members.push_back(m);
    }
    if (!value.is_null()) members.push_back({name, value});
    write("config.json", to_string(Json(std::move(members))));
  }
  void write(const std::string& file, const std::string& text) const {
    std::ofstream(path_ + "/" + file, std::ios::binary) << text;
  }
  /// Replaces the tensors by what `change` makes of them.
  void tensors(const std::function<void(TensorList&)>& change) const {
    TensorList all = read_tensors(path_ + "/model.safetensors");
    change(all);
    write_tensors(path_ + "/model.safetensors", all, {{"format", "pt"}});
  }

 private:
  std::string path_;
};

/// Reads a folder into a model.
std::unique_ptr<LanguageModel> read(const std::string& path) {
  const HubFolder folder = read_hub_folder(path);
  const std::unique_ptr<ModelSpec> spec = folder.spec();
  check_hub_shapes(folder, *spec);
  std::unique_ptr<LanguageModel> model = spec->build(Init{.gen = Generator{1}});
  load_hub_weights(folder, *model);
  return model;
}

/// Returns the message of what reading a folder throws; empty if it does not.
std::string refusal(const Copy& copy) {
  try {
    read(copy.path());
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

class HubFolders : public testing::TestWithParam<std::string> {};

TEST_P(HubFolders, ComputeWhatThePackageComputes) {
  EXPECT_EQ(fault_of_hub_folder(folders + GetParam()), "");
}

TEST_P(HubFolders, GoOutAsTheyCameIn) {
  const Copy copy(GetParam());
  const HubFolder folder = read_hub_folder(copy.path());
  const std::unique_ptr<LanguageModel> model =
      folder.spec()->build(Init{.gen = Generator{1}, .dtype = DType::f64});
  const HubTensors tensors = load_hub_weights(folder, *model);
  const std::string name = fmt::format("{}{}", folder.type->class_name, folder.head->name);
  const HubFolder out = hub_folder_for(
      folder.type->model, to_json(*folder.spec()),
      {.type = std::string(folder.type->name), .architecture = name, .origin = folder.members});
  EXPECT_EQ(out.head, folder.head);
  const std::string written = copy.path() + "/written";
  write_hub_folder(out, *model, written, hub_left_out(folder, tensors));
  std::map<std::string, Tensor> back;
  for (NamedTensor& t : read_tensors(written + "/model.safetensors")) back[t.name] = t.tensor;
  for (const NamedTensor& t : read_tensors(copy.path() + "/model.safetensors")) {
    ASSERT_TRUE(back.contains(t.name)) << t.name;
    EXPECT_EQ(back[t.name].shape(), t.tensor.shape()) << t.name;
    EXPECT_EQ(back[t.name].to_vector<float>(), t.tensor.to_vector<float>()) << t.name;
  }
  const HubFolder again = read_hub_folder(written);
  EXPECT_EQ(again.fields, folder.fields);
}

INSTANTIATE_TEST_SUITE_P(, HubFolders, testing::ValuesIn(names_of_folders()),
                         [](const auto& each) { return each.param; });

TEST(HubFolder, DefaultsAreThoseOfTheType) {
  const Copy copy("bert_masked_left");
  for (const char* name : {"type_vocab_size", "hidden_act", "layer_norm_eps", "pad_token_id",
                           "tie_word_embeddings", "classifier_dropout"}) {
    copy.set(name, {});
  }
  EXPECT_EQ(fault_of_hub_folder(copy.path()), "");
  copy.set("vocab_size", {});
  EXPECT_EQ(read_hub_folder(copy.path()).fields["vocab"], Json(30'522));
}

TEST(HubFolder, NamesEverythingThatItWouldNotDo) {
  const Copy copy("bert_classes");
  copy.set("hidden_act", "gelu_10");
  copy.set("position_embedding_type", "relative_key");
  copy.set("use_rotary", true);
  copy.set("quantization_config", Members{{"bits", 4}});
  copy.set("id2label", Members{{"0", "a"}, {"2", "b"}});
  const std::string text = refusal(copy);
  for (const char* name : {"gelu_10", "hidden_act", "position_embedding_type", "relative_key",
                           "use_rotary", "quantization_config", "id2label", "this is bert"}) {
    EXPECT_NE(text.find(name), std::string::npos) << name << " in " << text;
  }
}

/// A member of config.json, its value, and what the refusal says.
struct BadMember {
  std::string folder, name;
  Json value;
  std::string says;
};

TEST(HubFolder, RefusesBadMembers) {
  const std::vector<BadMember> table = {
      {"bert_masked_left", "num_hidden_layers", Json(-1), "num_hidden_layers is -1"},
      {"bert_masked_left", "num_hidden_layers", Json("2"), "num_hidden_layers"},
      {"bert_masked_left", "num_attention_heads", Json(3), "num_attention_heads is 3"},
      {"bert_masked_left", "vocab_size", Json(int64_t{1} << 40), "vocab_size is 1099511627776"},
      {"bert_masked_left", "vocab_size", Json(24), "word_embeddings"},
      {"bert_masked_left", "pad_token_id", Json(23), "pad_token_id is 23"},
      {"bert_masked_left", "architectures", Json(Json::Array{"BertForVideo"}), "BertForVideo"},
      {"bert_masked_left", "architectures", Json("BertModel"), "one name in brackets"},
      {"bert_masked_left", "is_decoder", Json(true), "is_decoder is true"},
      {"bert_masked_left", "model_type", Json("mamba"), "this is mamba"},
      {"bert_classes", "num_labels", Json(9), "num_labels is 9; expected 3"},
      {"bert_classes", "problem_type", Json("ranking"), "problem_type is \"ranking\""},
      {"longformer_inner", "attention_window", Json(5), "attention_window"},
      {"longformer_inner", "attention_window", Json(Json::Array{4, 4, 4}),
       "attention_window has 3"},
      {"bart_untied", "num_hidden_layers", Json(5), "num_hidden_layers is 5"},
      {"bart_untied", "normalize_before", Json(true), "normalize_before is true"},
      {"mbart", "normalize_before", Json(false), "normalize_before is false"},
      {"gpt2_types", "add_cross_attention", Json(true), "add_cross_attention is true"},
      {"reformer_hashed", "axial_pos_embds", Json(false), "axial_pos_embds is false"},
      {"reformer_hashed", "tie_word_embeddings", Json(true), "tie_word_embeddings is true"},
  };
  for (const BadMember& bad : table) {
    const Copy copy(bad.folder);
    copy.set(bad.name, bad.value);
    const std::string text = refusal(copy);
    EXPECT_NE(text.find(bad.says), std::string::npos)
        << bad.folder << " with " << bad.name << " = " << to_string(bad.value) << ": " << text;
  }
}

TEST(HubFolder, ReadsTheOtherNamesOfMembers) {
  const Copy copy("gpt2_types");
  copy.set("n_layer", {});
  copy.set("num_hidden_layers", Json(2));
  EXPECT_EQ(fault_of_hub_folder(copy.path()), "");
  copy.set("n_layer", Json(1));
  const std::string text = refusal(copy);
  EXPECT_NE(text.find("num_hidden_layers is 2, and n_layer"), std::string::npos) << text;
}

TEST(HubFolder, ReadsTheTypeFromItsArchitecture) {
  const Copy copy("bert_classes");
  copy.set("model_type", {});
  EXPECT_EQ(read_hub_folder(copy.path()).type->name, "bert");
  copy.set("architectures", {});
  EXPECT_NE(refusal(copy).find("has no model_type"), std::string::npos);
}

TEST(HubFolder, RefusesFilesThatAreNoConfiguration) {
  const Copy copy("bert_classes");
  for (const char* text : {"", "[]", "{", "{\"a\": 1}, 2", "{\"model_type\": \"bert\xff\"}"}) {
    copy.write("config.json", text);
    EXPECT_NE(refusal(copy).find("config.json"), std::string::npos) << text;
  }
}

TEST(HubFolder, ListsTensorsThatDoNotFit) {
  const Copy copy("bert_classes");
  copy.tensors([](TensorList& all) {
    std::erase_if(all, [](const NamedTensor& t) {
      return t.name == "bert.encoder.layer.0.output.dense.bias";
    });
    all.push_back({"bert.encoder.layer.0.adapter.weight", ones({2, 2})});
  });
  const std::string text = refusal(copy);
  EXPECT_NE(text.find("bert.encoder.layer.0.output.dense.bias"), std::string::npos) << text;
  EXPECT_NE(text.find("bert.encoder.layer.0.adapter.weight"), std::string::npos) << text;
}

TEST(HubFolder, RefusesWeightsThatAreNoNumbers) {
  const Copy copy("bert_classes");
  copy.tensors([](TensorList& all) {
    for (NamedTensor& t : all) {
      if (t.name == "classifier.bias") t.tensor = full_like(t.tensor, std::nan(""));
    }
  });
  EXPECT_NE(refusal(copy).find("classifier.bias"), std::string::npos);
}

TEST(HubFolder, DrawsHeadsThatItLacks) {
  const Copy copy("bert_masked_left");
  copy.set("architectures", Json(Json::Array{"BertForSequenceClassification"}));
  copy.set("id2label", Members{{"0", "a"}, {"1", "b"}, {"2", "c"}});
  const HubFolder folder = read_hub_folder(copy.path());
  EXPECT_EQ(folder.labels, (std::vector<std::string>{"a", "b", "c"}));
  const std::unique_ptr<LanguageModel> model = folder.spec()->build(Init{.gen = Generator{1}});
  const HubTensors tensors = load_hub_weights(folder, *model);
  EXPECT_EQ(tensors.drawn, (std::vector<std::string>{"classifier.bias", "classifier.weight",
                                                     "pooler.dense.bias", "pooler.dense.weight"}));
  const bool left = std::find(tensors.left_out.begin(), tensors.left_out.end(),
                              "cls.predictions.transform.dense.weight") != tensors.left_out.end();
  EXPECT_TRUE(left);
}

TEST(HubFolder, ReadsOldNamesOfNorms) {
  const Copy copy("bert_masked_left");
  copy.tensors([](TensorList& all) {
    for (NamedTensor& t : all) {
      const size_t at = t.name.find("LayerNorm.weight");
      if (at != std::string::npos) t.name.replace(at, 16, "LayerNorm.gamma");
      const size_t bias = t.name.find("LayerNorm.bias");
      if (bias != std::string::npos) t.name.replace(bias, 14, "LayerNorm.beta");
    }
  });
  EXPECT_EQ(fault_of_hub_folder(copy.path()), "");
}

/// Splits the weights of a folder into three files with an index. Returns the name of the second.
std::string split_weights(const Copy& copy) {
  const TensorList all = read_tensors(copy.path() + "/model.safetensors");
  fs::remove(copy.path() + "/model.safetensors");
  Members where;
  for (size_t part = 0; part < 3; ++part) {
    const std::string file = fmt::format("model-{}-of-3.safetensors", part + 1);
    TensorList own;
    for (size_t i = part; i < all.size(); i += 3) own.push_back(all[i]);
    for (const NamedTensor& t : own) where.push_back({t.name, file});
    write_tensors(copy.path() + "/" + file, own);
  }
  copy.write("model.safetensors.index.json",
             to_string(Json(Members{{"weight_map", Json(std::move(where))}})));
  return "model-2-of-3.safetensors";
}

TEST(HubFolder, ReadsWeightsInParts) {
  const Copy copy("mbart");
  const std::string second = split_weights(copy);
  EXPECT_EQ(fault_of_hub_folder(copy.path()), "");
  fs::remove(copy.path() + "/" + second);
  EXPECT_NE(refusal(copy).find(second), std::string::npos);
}

TEST(HubFolder, IsNotLedOutOfItsFolder) {
  const Copy copy("bert_classes");
  fs::remove(copy.path() + "/model.safetensors");
  for (const char* file : {"../model.safetensors", "/etc/passwd", "..", ""}) {
    copy.write("model.safetensors.index.json",
               to_string(Json(Members{{"weight_map", Json(Members{{"a", file}})}})));
    EXPECT_NE(refusal(copy).find("expected a file in the same folder"), std::string::npos) << file;
  }
}

TEST(HubFolder, SaysHowToConvertPickledWeights) {
  const Copy copy("bert_classes");
  fs::rename(copy.path() + "/model.safetensors", copy.path() + "/pytorch_model.bin");
  const std::string text = refusal(copy);
  EXPECT_NE(text.find("pytorch_model.bin"), std::string::npos);
  EXPECT_NE(text.find("save_pretrained"), std::string::npos);
}

TEST(HubFolder, ChecksSizesBeforeItAllocates) {
  const Copy copy("bert_classes");
  copy.write("model.safetensors", std::string("\xff\xff\xff\xff\xff\xff\xff\x3f{}", 10));
  EXPECT_NE(refusal(copy).find("model.safetensors"), std::string::npos);
}

TEST(HubExport, SaysWhatNoTypeExpresses) {
  BlockBertConfig c;
  c.n_block = 2;
  c.norm = NormPlace::pre;
  try {
    hub_folder_for("blockbert", to_json(c));
    FAIL() << "it was written";
  } catch (const NotImplemented& error) {
    const std::string text = error.what();
    for (const char* part : {"bert: ", "roberta: ", "distilbert: ", "electra: "}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
    }
  }
  EXPECT_THROW(hub_folder_for("compressive", {}), NotImplemented);
}

TEST(HubExport, ModelsOfTheirOwnFindTheirType) {
  TransformerConfig c = transformer_preset("gpt2");
  c.types_share_table = true;
  EXPECT_EQ(hub_folder_for("transformer", to_json(c)).type->name, "gpt2");
  BlockBertConfig bert;
  bert.n_block = 1;
  bert.token_types = 2;
  bert.padding_id = 0;
  bert.qkv_bias = bert.out_bias = true;
  bert.heads_per_shift = {};
  const HubFolder folder = hub_folder_for("blockbert", to_json(bert));
  EXPECT_EQ(folder.type->name, "bert");
  EXPECT_EQ(folder.head->name, "ForMaskedLM");
}

TEST(HubSettings, NameTheModelBeforeAllOthers) {
  const std::string path = folders + "bert_classes";
  const Settings model = with_hub_model({{"model.name", path, "--model", true}});
  EXPECT_EQ(model[0].value, Json("blockbert"));
  EXPECT_NE(last_setting(model, "model.classes"), nullptr);
  const Settings from = with_hub_model({{"start.from", path, "--from", true}});
  EXPECT_EQ(last_setting(from, "model.classes"), nullptr) << "heads follow from the task";
  EXPECT_NE(last_setting(from, "start.from"), nullptr);
  const Settings none = with_hub_model({{"model.name", "blockbert", "--model", true}});
  EXPECT_EQ(none.size(), 1u);
}

}  // namespace
}  // namespace longspan::test
