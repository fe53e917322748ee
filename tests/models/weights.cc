// Reads and writes checkpoints of other implementations, see tests/oracles/checkpoints.py.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "autograd/mode.h"
#include "models/bigbird/bigbird_hf.h"
#include "models/bigbird/bigbird_pegasus_hf.h"
#include "models/blockbert/blockbert.h"
#include "models/convert.h"
#include "models/encoder_hf.h"
#include "models/longformer/led_hf.h"
#include "models/longformer/longformer_hf.h"
#include "models/reformer/reformer_hf.h"
#include "models/transformer/transformer_hf.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/random.h"
#include "ops/shape.h"
#include "tests/models/golden_file.h"
#include "train/pretrained.h"

namespace longspan::test {
namespace {

const std::string checkpoints = std::string(LONGSPAN_SOURCE_DIR) + "/tests/oracles/checkpoints/";

/// Holds the model of a checkpoint with its format and configuration, for export.
struct Loaded {
  std::unique_ptr<LanguageModel> model;
  const CheckpointFormat* format = nullptr;
  Json config;  ///< the keys that an export writes

  TensorList tensors() const { return named_as(*format, *model); }
  PretrainedNames names() const { return {.prefix = format->prefix, .unused = format->unused}; }
};

/// Loads a checkpoint whose keys determine the whole configuration of its model.
template <typename Model, typename Keys, typename Config>
Loaded made_of(const std::string& name, Config (*config_of)(const Keys&),
               Keys (*keys_of)(const Config&), const CheckpointFormat& format) {
  Keys keys;
  load_pretrained_config(checkpoints + name, keys);
  const Config c = config_of(keys);
  Keys back = keys_of(c);
  Loaded out{.model = std::make_unique<Model>(c, Init{.gen = Generator{1}}),
             .format = &format,
             .config = to_json(back)};
  EXPECT_EQ(out.config, to_json(keys)) << "keys go out as they came in";
  return out;
}

bool starts(const std::string& name, const char* with) { return name.starts_with(with); }

Loaded loaded_model(const std::string& name) {
  if (starts(name, "reformer")) {
    return made_of<Reformer>(name, reformer_config, reformer_keys, reformer_format);
  }
  if (name == "bart") return made_of<Transformer>(name, bart_config, bart_keys, bart_format);
  if (name == "led") return made_of<Led>(name, led_config, led_keys, led_format);
  if (name == "bigbird" || name == "bigbird_untied") {
    return made_of<BigBird>(name, bigbird_config, bigbird_keys, bigbird_format);
  }
  if (name == "bigbird_pegasus") {
    return made_of<BigBirdPegasus>(name, bigbird_pegasus_config, bigbird_pegasus_keys,
                                   bigbird_pegasus_format);
  }
  if (starts(name, "longformer")) {
    return made_of<Longformer>(name, longformer_config, longformer_keys, longformer_format);
  }
  const Init init{.gen = Generator{1}};
  Loaded out;
  EncoderKeys keys;
  load_pretrained_config(checkpoints + name, keys);
  BlockBertConfig c;
  set_encoder(keys, c);
  c.n_block = 1;
  c.heads_per_shift = {};
  c.mlm_head = name == "roberta" || starts(name, "bert") || name == "roberta_untied";
  if (name == "roberta_classes") c.classes = 2;
  if (name == "roberta_tags") c.tags = 2;
  c.span_head = name == "roberta_spans";
  out.model = std::make_unique<BlockBert>(c, init);
  out.format = starts(name, "bert") ? &bert_format : &roberta_format;
  EncoderKeys back = encoder_keys(c, out.format->model_type);
  out.config = to_json(back);
  EXPECT_EQ(out.config, to_json(keys)) << "keys go out as they came in";
  return out;
}

Tensor run(const LanguageModel& any, const std::string& name, const Tensor& tokens,
           const Tensor& lengths) {
  if (const auto* model = dynamic_cast<const EncoderDecoder*>(&any)) {
    return model->head(
        model->forward({.source = tokens, .lengths = lengths, .tokens = tokens}, {}));
  }
  if (const auto* model = dynamic_cast<const Reformer*>(&any)) {
    const Tensor hidden = model->forward({.tokens = tokens, .lengths = lengths}, {}).hidden;
    return without_padding(model->head(hidden), lengths);
  }
  if (const auto* model = dynamic_cast<const Transformer*>(&any)) {
    return model->head(
        model->forward({.tokens = tokens, .lengths = lengths, .source = tokens}, {}));
  }
  const auto& model = dynamic_cast<const Encoder&>(any);
  const Tensor hidden = model.forward({.tokens = tokens, .lengths = lengths}, Pass{});
  if (name == "roberta_classes") return model.classify(hidden, Pass{});
  if (name == "roberta_spans") {
    const SpanLogits s = model.spans(hidden, lengths);
    return stack({s.start, s.end}, 2);
  }
  return without_padding(name == "roberta_tags" ? model.tag(hidden, Pass{}) : model.head(hidden),
                         lengths);
}

std::map<std::string, Tensor> tensors_without_pooler(const std::string& path) {
  std::map<std::string, Tensor> all;
  for (NamedTensor& t : read_tensors(path + "/model.safetensors")) {
    if (t.name.find("pooler") == std::string::npos) all[t.name] = t.tensor;  // unused by the heads
  }
  return all;
}

class Weights : public testing::TestWithParam<std::string> {};

TEST_P(Weights, GoBothWays) {
  const NoGrad off;
  const std::string name = GetParam();
  const Loaded loaded = loaded_model(name);
  load_pretrained(checkpoints + name, loaded.tensors(), loaded.names());

  std::map<std::string, Tensor> expected;
  for (NamedTensor& t : read_tensors(checkpoints + name + "/expected.safetensors")) {
    expected[t.name] = t.tensor;
  }
  const Tensor y = run(*loaded.model, name, expected["tokens"], expected["lengths"]);
  EXPECT_LE(distance(y, expected["logits"]), 1e-5);

  // The export equals the import, name by name and bit by bit, but for dead biases, which are
  // written as those that are added, for releases of the package that add them. If the environment
  // variable names a folder, the export stays there for the reference implementation to read back.
  const char* keep = std::getenv("LONGSPAN_TEST_CHECKPOINTS");
  const std::string out =
      (keep != nullptr ? std::string(keep) + "/" : testing::TempDir() + "longspan_checkpoints_") +
      name;
  save_pretrained(out, loaded.tensors(), loaded.config);
  auto theirs = tensors_without_pooler(checkpoints + name);
  const auto ours = tensors_without_pooler(out);
  for (const std::string head : {"cls.predictions.", "lm_head."}) {
    if (theirs.contains(head + "decoder.bias")) {
      theirs[head + "bias"] = theirs[head + "decoder.bias"];
    } else if (name == "reformer") {  // of a release that has one bias
      theirs[head + "decoder.bias"] = theirs[head + "bias"];
    }
    std::erase_if(theirs, [](const auto& t) { return !t.second; });
  }
  ASSERT_EQ(ours.size(), theirs.size());
  for (const auto& [key, x] : theirs) {
    ASSERT_EQ(ours.count(key), 1u) << key;
    EXPECT_TRUE(same_bits(ours.at(key), x)) << key;
  }
  const Loaded again = loaded_model(name);
  load_pretrained(out, again.tensors(), again.names());
  EXPECT_TRUE(same_bits(run(*again.model, name, expected["tokens"], expected["lengths"]), y));
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Weights,
                         testing::Values("roberta", "roberta_classes", "roberta_spans",
                                         "roberta_tags", "roberta_untied", "bert", "bert_untied",
                                         "bigbird", "bigbird_untied", "bigbird_pegasus",
                                         "longformer", "longformer_untied", "bart", "led",
                                         "reformer", "reformer_two_biases"),
                         own_name);

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

/// Returns a folder with the config.json of a checkpoint, with `from` replaced by `to`, and these
/// tensors.
std::string folder_of(const std::string& name, const TensorList& tensors, const std::string& from,
                      const std::string& to) {
  const std::string path = testing::TempDir() + "longspan_other_names";
  std::filesystem::create_directories(path);
  std::ifstream file(checkpoints + name + "/config.json");
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!from.empty()) {
    EXPECT_NE(text.find(from), std::string::npos) << text;
    text.replace(text.find(from), from.size(), to);
  }
  std::ofstream(path + "/config.json") << text;
  write_tensors(path + "/model.safetensors", tensors, {});
  return path;
}

NamedTensor* named(TensorList& tensors, const std::string& name, std::string_view prefix) {
  const auto at = std::find_if(tensors.begin(), tensors.end(), [&](const NamedTensor& t) {
    return t.name == name || t.name == std::string(prefix) + name;
  });
  return at == tensors.end() ? nullptr : &*at;
}

/// Every name that a format may have besides is looked at: copies, tables of constants and names of
/// other releases.
TEST(OtherNames, AreHeldAgainstWhatTheyStandFor) {
  using Kind = OtherName::Kind;
  const NoGrad off;
  std::map<Kind, int> seen;
  for (const std::string name :
       {"roberta", "roberta_untied", "bert", "bert_untied", "bigbird", "bigbird_untied",
        "bigbird_pegasus", "longformer", "longformer_untied", "bart", "led", "reformer",
        "reformer_two_biases"}) {
    std::map<std::string, Tensor> expected;
    for (NamedTensor& t : read_tensors(checkpoints + name + "/expected.safetensors")) {
      expected[t.name] = t.tensor;
    }
    const auto distance_of = [&](const TensorList& tensors) {
      const Loaded loaded = loaded_model(name);
      load_pretrained(folder_of(name, tensors, "", ""), loaded.tensors(), loaded.names());
      return distance(run(*loaded.model, name, expected["tokens"], expected["lengths"]),
                      expected["logits"]);
    };
    const TensorList given = read_tensors(checkpoints + name + "/model.safetensors");
    const Loaded loaded = loaded_model(name);
    for (const OtherName& other : loaded.format->unused) {
      const std::string what = name + ": " + std::string(other.name);
      TensorList tensors = given;
      if (other.kind == Kind::ordinals) {
        tensors.push_back({std::string(other.name), iota(7)});
        EXPECT_LE(distance_of(tensors), 1e-5) << what;
        tensors.back().tensor = Tensor::from(std::vector<int64_t>{0, 1, 3}, {3});
        EXPECT_NE(error_of([&] { distance_of(tensors); }).find("expected 0, 1, 2"),
                  std::string::npos)
            << what;
        ++seen[other.kind];
        continue;
      }
      NamedTensor* of = named(tensors, std::string(other.of), loaded.format->prefix);
      const TensorList own = loaded.tensors();
      const auto has = [&](std::string_view parameter) {
        return std::any_of(own.begin(), own.end(),
                           [&](const NamedTensor& t) { return t.name == parameter; });
      };
      const bool wanted =
          of != nullptr && has(of->name) && (other.kind == Kind::instead || !has(other.name));
      if (!wanted) continue;
      ++seen[other.kind];
      if (other.kind == Kind::instead) {
        std::erase_if(tensors, [&](const NamedTensor& t) { return t.name == other.name; });
        named(tensors, std::string(other.of), loaded.format->prefix)->name = other.name;
        EXPECT_LE(distance_of(tensors), 1e-5) << what;
        std::erase_if(tensors, [&](const NamedTensor& t) { return t.name == other.name; });
        EXPECT_NE(error_of([&] { distance_of(tensors); }).find("1 missing"), std::string::npos)
            << what;
        continue;
      }
      ASSERT_EQ(other.kind, Kind::copy);
      const std::string original = of->name;
      const Tensor table = clone(of->tensor);
      tensors.push_back({std::string(other.name), table});
      EXPECT_LE(distance_of(tensors), 1e-5) << what;
      auto values = tensors.back().tensor.to_vector<float>();
      values.back() = std::nextafter(values.back(), 9.0f);
      tensors.back().tensor = Tensor::from(values, tensors.back().tensor.shape());
      const std::string text = error_of([&] { distance_of(tensors); });
      EXPECT_NE(text.find(std::string(other.name) + " and " + original), std::string::npos)
          << what << text;
      EXPECT_NE(text.find(other.remedy), std::string::npos) << text;
      TensorList renamed = given;
      named(renamed, std::string(other.of), loaded.format->prefix)->name = other.name;
      EXPECT_LE(distance_of(renamed), 1e-5) << what << " alone";
      // A copy may be wider than its table, but not more exact.
      renamed = given;
      const Tensor half = cast(table, DType::bf16);
      named(renamed, std::string(other.of), loaded.format->prefix)->tensor = half;
      renamed.push_back({std::string(other.name), cast(half, DType::f32)});
      EXPECT_EQ(error_of([&] { distance_of(renamed); }), "") << what;
      renamed.back().tensor = table;
      EXPECT_NE(error_of([&] { distance_of(renamed); }).find("with other values"),
                std::string::npos)
          << what;
    }
  }
  EXPECT_EQ(seen[Kind::copy], 4 * 3 + 3 * 3);
  EXPECT_EQ(seen[Kind::instead], 4 + 1);
  EXPECT_EQ(seen[Kind::ordinals], 8);
}

/// A file with a head of its own whose config.json does not say so is refused, and read where it is
/// told that the head is untied.
TEST(OtherNames, AHeadOfItsOwnIsReadWhereTheConfigurationSaysSo) {
  const NoGrad off;
  for (const std::string name :
       {"roberta_untied", "bert_untied", "bigbird_untied", "longformer_untied"}) {
    std::map<std::string, Tensor> expected;
    for (NamedTensor& t : read_tensors(checkpoints + name + "/expected.safetensors")) {
      expected[t.name] = t.tensor;
    }
    TensorList tensors = read_tensors(checkpoints + name + "/model.safetensors");
    const auto load = [&](const std::string& tie, const TensorList& from) {
      const std::string path = folder_of(name, from, "\"tie_word_embeddings\": false,", tie);
      const auto loaded = [&](auto model, const CheckpointFormat& format) {
        load_pretrained(path, named_as(format, *model),
                        {.prefix = format.prefix, .unused = format.unused});
        return distance(run(*model, name, expected["tokens"], expected["lengths"]),
                        expected["logits"]);
      };
      if (name == "bigbird_untied") {
        BigBirdKeys keys;
        load_pretrained_config(path, keys);
        return loaded(std::make_unique<BigBird>(bigbird_config(keys), Init{}), bigbird_format);
      }
      if (name == "longformer_untied") {
        LongformerKeys keys;
        load_pretrained_config(path, keys);
        return loaded(std::make_unique<Longformer>(longformer_config(keys), Init{}),
                      longformer_format);
      }
      EncoderKeys keys;
      load_pretrained_config(path, keys);
      BlockBertConfig c;
      set_encoder(keys, c);
      c.n_block = 1;
      c.heads_per_shift = {};
      return loaded(std::make_unique<BlockBert>(c, Init{}),
                    name == "bert_untied" ? bert_format : roberta_format);
    };
    for (const std::string tie : {"", "\"tie_word_embeddings\": true,"}) {
      const std::string text = error_of([&] { load(tie, tensors); });
      EXPECT_NE(text.find("decoder.weight and "), std::string::npos) << text;
      EXPECT_NE(text.find("tie_word_embeddings in config.json"), std::string::npos) << text;
    }
    EXPECT_LE(load("\"tie_word_embeddings\": false,", tensors), 1e-5);
    // Neither table stands for the other.
    for (const std::string lost : {"decoder.weight", "word_embeddings.weight"}) {
      TensorList fewer = tensors;
      std::erase_if(fewer, [&](const NamedTensor& t) { return t.name.ends_with(lost); });
      ASSERT_EQ(fewer.size() + 1, tensors.size());
      EXPECT_NE(error_of([&] { load("\"tie_word_embeddings\": false,", fewer); }).find("1 missing"),
                std::string::npos)
          << name << lost;
    }
  }
}

/// Only whole names are known: what merely ends like one belongs to another model.
TEST(OtherNames, AreNoEndingsOfOthers) {
  for (const std::string name : {"roberta", "bert", "bigbird"}) {
    const Loaded loaded = loaded_model(name);
    for (const OtherName& other : loaded.format->unused) {
      for (const std::string before : {"adapter_", "encoder.layer.0.", "encoder.layer.0.my_"}) {
        TensorList tensors = read_tensors(checkpoints + name + "/model.safetensors");
        tensors.push_back({before + std::string(other.name), iota(3)});
        const std::string path = folder_of(name, tensors, "", "");
        EXPECT_NE(error_of([&] {
                    load_pretrained(path, loaded.tensors(), loaded.names());
                  }).find("1 unknown:\n    " + tensors.back().name),
                  std::string::npos)
            << tensors.back().name;
      }
    }
  }
}

TEST(WeightsRefuse, ATensorWithAndWithoutThePrefix) {
  const Loaded loaded = loaded_model("bert");
  TensorList tensors = read_tensors(checkpoints + "bert/model.safetensors");
  tensors.push_back({"embeddings.LayerNorm.bias", zeros({8})});
  const std::string path = folder_of("bert", tensors, "", "");
  const std::string text =
      error_of([&] { load_pretrained(path, loaded.tensors(), loaded.names()); });
  EXPECT_NE(text.find("1 with and without their prefix"), std::string::npos) << text;
}

TEST(Checkpoints, ReformerWritesTheGridThatStandsForNone) {
  ReformerConfig c = reformer_preset("small_hf");
  c.head_bias = true;
  const ReformerKeys keys = reformer_keys(c);
  EXPECT_EQ(keys.axial_pos_shape, (std::vector<int64_t>{32, 32}));
  EXPECT_EQ(keys.axial_pos_embds_dim, (std::vector<int64_t>{64, 64}));
  Reformer one(c, Init{.gen = Generator{1}}), other(reformer_config(keys), Init{});
  const TensorList a = named_as(reformer_format, one), b = named_as(reformer_format, other);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_EQ(a[i].tensor.shape(), b[i].tensor.shape()) << a[i].name;
  }
}

TEST(Checkpoints, LedStartsFromOneOfBart) {
  const NoGrad off;
  const Loaded bart = loaded_model("bart");
  load_pretrained(checkpoints + "bart", bart.tensors(), bart.names());
  std::map<std::string, Tensor> expected;
  for (NamedTensor& t : read_tensors(checkpoints + "bart/expected.safetensors")) {
    expected[t.name] = t.tensor;
  }
  BartKeys keys;
  load_pretrained_config(checkpoints + "bart", keys);
  const TransformerConfig small = bart_config(keys);
  LedConfig c = led_preset("tiny");
  c.vocab = small.vocab;
  c.n_head = small.n_head;
  c.d_model = small.d_model;
  c.d_ff = small.d_ff;
  c.activation = small.activation;
  c.n_max = 100;
  c.n_max_target = small.n_max;
  c.one_sided_window = {21};  // covers the whole source
  // Checks offset 2, with BART's reserved rows, and offset 0, without them as in LED's checkpoints.
  for (const int64_t offset : {2, 0}) {
    c.position_offset = offset;
    Led led(c, Init{});
    start_from(led, *bart.model, offset, {.dropped_rows = 2 - offset});
    EXPECT_LE(distance(run(led, "", expected["tokens"], expected["lengths"]), expected["logits"]),
              1e-5)
        << offset;
  }
  c.position_offset = 0;
  EXPECT_EQ(led_keys(c).attention_window, (std::vector<int64_t>{42, 42}));
}

TEST(WeightsRefuse, WhatIsMissingUnknownOrOfAnotherShape) {
  // Loads a classifier's checkpoint into a model that predicts tokens.
  const Loaded tokens = loaded_model("roberta");
  const Tensor before = clone(parameter(*tokens.model, "embed.token.weight").detach());
  const std::string text = error_of(
      [&] { load_pretrained(checkpoints + "roberta_classes", tokens.tensors(), tokens.names()); });
  EXPECT_NE(text.find("5 missing:"), std::string::npos) << text;
  EXPECT_NE(text.find("lm_head.layer_norm.weight"), std::string::npos) << text;
  EXPECT_NE(text.find("4 unknown:"), std::string::npos) << text;
  EXPECT_NE(text.find("classifier.out_proj.bias"), std::string::npos) << text;
  EXPECT_TRUE(same_bits(before, parameter(*tokens.model, "embed.token.weight").detach()))
      << "nothing is written where something is wrong";

  // The reverse works if the heads may be newly initialised.
  const Loaded classes = loaded_model("roberta_classes");
  PretrainedNames names = classes.names();
  const std::string_view fresh[] = {"classifier."};
  const OtherName unused[] = {"lm_head.dense.weight", "lm_head.dense.bias",
                              "lm_head.layer_norm.weight", "lm_head.layer_norm.bias",
                              "lm_head.bias"};
  names.fresh = fresh;
  EXPECT_NE(error_of([&] {
              load_pretrained(checkpoints + "roberta", classes.tensors(), names);
            }).find("5 unknown"),
            std::string::npos);
  names.unused = unused;
  load_pretrained(checkpoints + "roberta", classes.tensors(), names);

  BlockBertConfig wide = blockbert_preset("tiny");
  wide.position_offset = 2;
  wide.token_types = 1;
  BlockBert other(wide, Init{});
  const std::string shapes = error_of([&] {
    load_pretrained(checkpoints + "roberta", named_as(roberta_format, other), tokens.names());
  });
  EXPECT_NE(shapes.find("of another kind"), std::string::npos) << shapes;
  EXPECT_NE(shapes.find("f32 [19, 8], expected f32 [23, 16]"), std::string::npos) << shapes;
}

TEST(WeightsRefuse, AFileWithoutItsHeadUnlessThatMayBeNew) {
  const std::string out = testing::TempDir() + "/weights_without_head";
  std::filesystem::create_directories(out);
  for (const char* name : {"roberta", "bert", "bigbird"}) {
    const Loaded whole = loaded_model(name);
    load_pretrained(checkpoints + name, whole.tensors(), whole.names());
    TensorList base;
    for (const NamedTensor& t : whole.tensors()) {
      const std::string_view prefix = whole.format->prefix;
      if (t.name.starts_with(prefix)) base.push_back({t.name.substr(prefix.size()), t.tensor});
    }
    EXPECT_LT(base.size(), whole.tensors().size());
    save_pretrained(out, base, whole.config);
    const Loaded other = loaded_model(name);
    const std::string text =
        error_of([&] { load_pretrained(out, other.tensors(), other.names()); });
    EXPECT_NE(text.find("missing:"), std::string::npos) << text;
    EXPECT_EQ(text.find("unknown:"), std::string::npos) << text;
    PretrainedNames names = other.names();
    const std::string_view fresh[] = {"lm_head.", "cls."};
    names.fresh = fresh;
    load_pretrained(out, other.tensors(), names);
    EXPECT_TRUE(same_bits(parameter(*other.model, "layers.1.ff.out.weight").detach(),
                          parameter(*whole.model, "layers.1.ff.out.weight").detach()));
  }
}

TEST(WeightsRefuse, AnotherArchitecture) {
  BigBirdKeys keys;
  load_pretrained_config(checkpoints + "roberta", keys);
  EXPECT_NE(error_of([&] { bigbird_config(keys); }).find("expected \"big_bird\""),
            std::string::npos);
  BigBirdPegasusKeys pegasus;
  pegasus.decoder_attention_heads = 3;
  EXPECT_NE(error_of([&] { bigbird_pegasus_config(pegasus); }).find("decoder_attention_heads is 3"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              bigbird_pegasus_keys(bigbird_pegasus_preset("base"));
            }).find("neither couple nor emb_norm"),
            std::string::npos);
  BartKeys bart;
  bart.encoder_attention_heads = 3;
  EXPECT_NE(error_of([&] { bart_config(bart); }).find("encoder_attention_heads is 3"),
            std::string::npos);
  EXPECT_NE(error_of([&] { bart_keys(transformer_preset("base")); }).find("positions = learned"),
            std::string::npos);
  TransformerConfig coupled = transformer_preset("bart");
  coupled.couple = true;
  EXPECT_NE(error_of([&] { bart_keys(coupled); }).find("neither d_embed nor couple"),
            std::string::npos);
  LedKeys led;
  EXPECT_NE(error_of([&] {
              load_pretrained_config(checkpoints + "bart", led);
            }).find("model_type \"bart\", says what this model would not do:\n  max_position"),
            std::string::npos);
  led.model_type = "bart";
  EXPECT_NE(error_of([&] { led_config(led); }).find("expected \"led\""), std::string::npos);
  LedConfig offset = led_preset("tiny");
  offset.position_offset = 2;
  EXPECT_NE(error_of([&] { led_keys(offset); }).find("position_offset = 0"), std::string::npos);
  offset.position_offset = 0;
  offset.one_sided_window = {};
  EXPECT_NE(error_of([&] { led_keys(offset); }).find("one_sided_window is empty"),
            std::string::npos);
  const ReformerConfig hashed = reformer_preset("small_hf");
  const auto refuses_reformer = [&](const auto& change) {
    ReformerConfig c = hashed;
    c.head_bias = true;
    change(c);
    EXPECT_NE(error_of([&] { reformer_keys(c); }).find("as reformer_variant(hf)"),
              std::string::npos);
  };
  refuses_reformer([](ReformerConfig& c) { c.head_bias = false; });
  refuses_reformer([](ReformerConfig& c) { c.self_logit = -5e4; });
  refuses_reformer([](ReformerConfig& c) { c.bucket_rule = BucketRule::paper; });
  refuses_reformer([](ReformerConfig& c) { c.position_shape = {c.n_max}; });
  LongformerKeys windows;
  windows.attention_window = {7};
  EXPECT_NE(error_of([&] { longformer_config(windows); }).find("expected even numbers"),
            std::string::npos);
  windows.model_type = "bert";
  EXPECT_NE(error_of([&] { longformer_config(windows); }).find("expected \"longformer\""),
            std::string::npos);
  EncoderKeys roberta;
  EXPECT_NE(error_of([&] {
              load_pretrained_config(checkpoints + "bigbird", roberta);
            }).find("rescale_embeddings is true, and is not known here"),
            std::string::npos);
  roberta.model_type = "big_bird";
  BlockBertConfig c;
  EXPECT_NE(error_of([&] { set_encoder(roberta, c); }).find("expected \"roberta\" or \"bert\""),
            std::string::npos);
  roberta.model_type = "bert";
  roberta.hidden_act = "tanhshrink";
  EXPECT_NE(error_of([&] { set_encoder(roberta, c); }).find("expected gelu, gelu_new"),
            std::string::npos);
  EXPECT_NE(error_of([&] { encoder_keys(bigbird_preset("base")); }).find("position_offset is 0"),
            std::string::npos);
  BigBird chooser = [] {
    BigBirdConfig b = bigbird_preset("tiny");
    b.choice_head = true;
    return BigBird(b, Init{});
  }();
  EXPECT_NE(error_of([&] { named_as(bigbird_format, chooser); }).find("no name for choice.weight"),
            std::string::npos);
}

/// Writes config.json and returns its folder.
std::string folder_with(const std::string& config) {
  const std::string path = testing::TempDir() + "longspan_config";
  std::filesystem::create_directories(path);
  std::ofstream(path + "/config.json") << config;
  return path;
}

/// Reads a config.json and builds the configuration of its model type. Only checks that this
/// succeeds.
void read_any(const std::string& config, std::vector<std::string> accepted = {}) {
  const std::string path = folder_with(config);
  const std::string type = parse_json(config)["model_type"].string();
  const auto load = [&](auto keys, auto config_of) {
    load_pretrained_config(path, keys, accepted);
    config_of(keys);
  };
  if (type == "big_bird") return load(BigBirdKeys(), bigbird_config);
  if (type == "bigbird_pegasus") return load(BigBirdPegasusKeys(), bigbird_pegasus_config);
  if (type == "longformer") return load(LongformerKeys(), longformer_config);
  if (type == "bart") return load(BartKeys(), bart_config);
  if (type == "led") return load(LedKeys(), led_config);
  if (type == "reformer") return load(ReformerKeys(), reformer_config);
  load(EncoderKeys(), [](const EncoderKeys& keys) {
    BlockBertConfig c;
    set_encoder(keys, c);
  });
}

/// Returns a config.json with these members and the model type.
std::string config_of(const std::string& type, const std::string& more) {
  return "{\"model_type\": \"" + type + "\"" + (more.empty() ? "" : ", ") + more + "}";
}

const char* const types[] = {"roberta",    "bert", "big_bird", "bigbird_pegasus",
                             "longformer", "bart", "led",      "reformer"};

TEST(ConfigMembers, ThoseThatThePackageWritesAreKnown) {
  std::ifstream file(checkpoints + "members.json");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const Json members = parse_json(text);
  ASSERT_EQ(members.object().size(), 11u);
  for (const JsonMember& m : members.object()) {
    EXPECT_EQ(error_of([&] { read_any(to_string(m.value)); }), "") << m.name;
  }
}

TEST(ConfigMembers, OthersAreRefusedByNameAndValue) {
  for (const std::string type : types) {
    const std::string config =
        config_of(type, R"("sliding_window": 7, "use_cache": true, "rope": {"theta": 1.5})");
    const std::string text = error_of([&] { read_any(config); });
    EXPECT_NE(text.find("sliding_window is 7, and is not known here"), std::string::npos) << text;
    EXPECT_NE(text.find("rope is {\"theta\":1.5}, and is not known"), std::string::npos) << text;
    EXPECT_NE(text.find("Name a member in `accepted`"), std::string::npos) << text;
    EXPECT_EQ(text.find("use_cache"), std::string::npos) << text;
    EXPECT_EQ(error_of([&] { read_any(config, {"sliding_window", "rope"}); }), "") << type;
    EXPECT_NE(error_of([&] { read_any(config, {"rope"}); }).find("sliding_window is 7"),
              std::string::npos);
  }
}

TEST(ConfigMembers, WhatAModelWouldNotDoIsRefused) {
  struct Case {
    const char *type, *member, *says;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"roberta", R"("is_decoder": true)", "is_decoder is true; expected false"},
           {"bert", R"("is_decoder": true)", "is_decoder is true; expected false"},
           {"big_bird", R"("is_decoder": true)", "is_decoder is true; expected false"},
           {"longformer", R"("is_decoder": true)", "is_decoder is true; expected false"},
           {"bart", R"("is_decoder": true)", "is_decoder is true; expected false"},
           {"bert", R"("is_encoder_decoder": true)", "is_encoder_decoder is true; expected false"},
           {"led", R"("is_encoder_decoder": false)", "is_encoder_decoder is false; expected true"},
           {"bert", R"("position_embedding_type": "relative_key")",
            "position_embedding_type is \"relative_key\"; expected \"absolute\""},
           {"bert", R"("add_cross_attention": true)", "add_cross_attention is true"},
           {"roberta", R"("pruned_heads": {"0": [1]})", "pruned_heads is {\"0\":[1]}"},
           {"bart", R"("encoder_layerdrop": 0.1)", "encoder_layerdrop is 0.1; expected 0"},
           {"bart", R"("normalize_before": true)", "normalize_before is true"},
           {"bart", R"("hidden_size": 16)", "hidden_size is 16, and is not known"},
           {"led", R"("attention_probs_dropout_prob": 0.1)", "attention_probs_dropout_prob is 0.1"},
           {"longformer", R"("attention_mode": "sliding_chunks")", "attention_mode is"},
           {"reformer", R"("sinusoidal_pos_embds": true)", "sinusoidal_pos_embds is true"},
           {"roberta", R"("hidden_act": "mish")", "hidden_act is \"mish\""},
           {"roberta", R"("pad_token_id": -1)", "pad_token_id is -1; expected 0 or more"},
           {"bert", R"("id2label": {"0": "a", "2": "b"})", "expected names for \"0\" to \"1\""},
           {"bert", R"("id2label": {"0": 3})", "id2label has \"0\": 3"},
           {"bigbird_pegasus", R"("label_smoothing": "some")", "label_smoothing"},
       }) {
    const std::string text = error_of([&] { read_any(config_of(c.type, c.member)); });
    EXPECT_NE(text.find(c.says), std::string::npos) << c.type << ' ' << c.member << ": " << text;
  }
  // Accepts values that match the fixed behaviour, and members that a type never reads.
  for (const auto& [type, members] : std::initializer_list<std::pair<const char*, const char*>>{
           {"bart", R"("encoder_layerdrop": 0, "normalize_before": false, "is_decoder": false)"},
           {"longformer", R"("attention_mode": "longformer", "ignore_attention_mask": false)"},
           {"reformer", R"("intermediate_size": 3072, "type_vocab_size": 2, "is_decoder": true)"},
           {"bert", R"("position_embedding_type": "absolute", "pooler_type": "first", "x": null)"},
       }) {
    EXPECT_EQ(error_of([&] { read_any(config_of(type, members)); }), "") << type << members;
  }
}

/// Where the number of layers has another name, num_hidden_layers must agree with it: the package
/// takes this one.
TEST(ConfigMembers, TwoNumbersOfLayersAgree) {
  const auto said = [](const std::string& type, const std::string& more) {
    return error_of([&] { read_any(config_of(type, more)); });
  };
  for (const std::string type : {"bart", "led", "bigbird_pegasus"}) {
    const std::string layers = R"("encoder_layers": 4, "decoder_layers": 4, "num_hidden_layers": )";
    EXPECT_EQ(said(type, layers + "4"), "");
    EXPECT_NE(said(type, layers + "3").find("num_hidden_layers is 3; expected 4"),
              std::string::npos);
  }
  EXPECT_NE(said("bart", R"("num_hidden_layers": 13)").find("is 13; expected 12"),
            std::string::npos);
  const std::string layers = R"("attn_layers": ["local", "lsh"], "num_hidden_layers": )";
  EXPECT_EQ(said("reformer", layers + "2"), "");
  EXPECT_NE(said("reformer", layers + "1").find("is 1; expected 2"), std::string::npos);
}

TEST(ConfigMembers, PositionsStartBehindThePaddingToken) {
  const NoGrad off;
  // The oracle's checkpoint with three additional rows before the first position.
  constexpr int64_t more = 3;
  std::map<std::string, Tensor> expected;
  for (NamedTensor& t : read_tensors(checkpoints + "roberta/expected.safetensors")) {
    expected[t.name] = t.tensor;
  }
  TensorList tensors = read_tensors(checkpoints + "roberta/model.safetensors");
  for (NamedTensor& t : tensors) {
    if (!t.name.ends_with("position_embeddings.weight")) continue;
    t.tensor = concat({full({more, t.tensor.dim(1)}, 9), t.tensor}, 0);
  }
  std::ifstream file(checkpoints + "roberta/config.json");
  std::string text(std::istreambuf_iterator<char>(file), {});
  const auto put = [&](const std::string& from, const std::string& to) {
    ASSERT_NE(text.find(from), std::string::npos);
    text.replace(text.find(from), from.size(), to);
  };
  put("\"pad_token_id\": 1", "\"pad_token_id\": 4");
  put("\"max_position_embeddings\": 34", "\"max_position_embeddings\": 37");
  const std::string path = folder_with(text);
  write_tensors(path + "/model.safetensors", tensors, {});
  EncoderKeys keys;
  load_pretrained_config(path, keys);
  BlockBertConfig c;
  set_encoder(keys, c);
  EXPECT_EQ(c.position_offset, 5);
  EXPECT_EQ(c.n_max, 32);
  c.n_block = 1;
  c.heads_per_shift = {};
  c.skip_padding = false;  // the oracle's tokens have id 4 in their midst
  BlockBert model(c, Init{});
  load_pretrained(path, named_as(roberta_format, model),
                  {.prefix = roberta_format.prefix, .unused = roberta_format.unused});
  const Tensor y = run(model, "roberta", expected["tokens"], expected["lengths"]);
  EXPECT_LE(distance(y, expected["logits"]), 1e-5);
  EXPECT_EQ(encoder_keys(c).pad_token_id, 4);
  EXPECT_EQ(encoder_keys(c).max_position_embeddings, 37);
  LongformerKeys window;
  window.pad_token_id = 0;
  EXPECT_EQ(longformer_config(window).position_offset, 1);
  EXPECT_EQ(longformer_keys(longformer_config(window)).pad_token_id, 0);
}

TEST(ConfigMembers, TheHeadOfARobertaHasGeluWhateverItsLayersHave) {
  const NoGrad off;
  for (const std::string type : {"roberta", "bert"}) {
    EncoderKeys keys;
    keys.model_type = type;
    keys.hidden_act = "relu";
    keys.vocab_size = 19;
    keys.hidden_size = 8;
    keys.intermediate_size = 12;
    keys.num_attention_heads = keys.num_hidden_layers = 2;
    BlockBertConfig c;
    set_encoder(keys, c);
    EXPECT_EQ(encoder_keys(c, type).hidden_act, "relu");
    c.n_block = 1;
    c.heads_per_shift = {};
    BlockBert model(c, Init{.gen = Generator{4}, .dtype = DType::f64});
    randomise(model, 0.5, 5);
    const Tensor h = normal({1, 3, 8}, Generator{6}, 0, 1, DType::f64);
    const auto p = [&](const char* name) { return parameter(model, name).detach(); };
    const Tensor z = linear(h, p("mlm.dense.weight"), p("mlm.dense.bias"));
    const Tensor a = type == "roberta" ? gelu_erf(z) : relu(z);
    const Tensor n = layer_norm(a, p("mlm.norm.weight"), p("mlm.norm.bias"), keys.layer_norm_eps);
    const Tensor want = linear(n, p("embed.token.weight"), p("head.bias"));
    EXPECT_LE(distance(model.head(h), want), 1e-12) << type;
    c.mlm_gelu = !c.mlm_gelu;
    EXPECT_NE(error_of([&] { encoder_keys(c, type); }).find("mlm_gelu is"), std::string::npos);
  }
  LongformerKeys keys;
  keys.hidden_act = "relu";
  EXPECT_TRUE(longformer_config(keys).mlm_gelu);
  EXPECT_FALSE(bigbird_config(BigBirdKeys()).mlm_gelu);
}

/// A list of ones for the layers is as good as one 1 for all, and heads that are not dilated have
/// no dilation whatever the list says.
TEST(ConfigMembers, ADilationOfOnesIsNone) {
  const auto exports = [](auto config, auto to_keys) {
    for (const auto& none : {std::vector<int64_t>{1}, {1, 1}}) {
      config.dilation = none;
      EXPECT_EQ(error_of([&] { to_keys(config); }), "");
    }
    for (const auto& some : {std::vector<int64_t>{2}, {1, 2}}) {
      config.dilation = some;
      EXPECT_NE(error_of([&] { to_keys(config); }).find("has no dilation"), std::string::npos);
    }
    config.dilated_heads = 0;
    EXPECT_EQ(error_of([&] { to_keys(config); }), "");
  };
  LongformerConfig longformer = longformer_preset("base");
  longformer.n_layer = 2;
  exports(longformer, longformer_keys);
  exports(led_preset("tiny"), led_keys);
}

TEST(ConfigMembers, LabelSmoothingIsThatOfTheFile) {
  EXPECT_EQ(bigbird_pegasus_config(BigBirdPegasusKeys()).label_smoothing, 0);
  EXPECT_EQ(bart_config(BartKeys()).label_smoothing, 0);
  BigBirdPegasusKeys keys;
  load_pretrained_config(folder_with(config_of("bigbird_pegasus", "\"label_smoothing\": 0.25")),
                         keys);
  EXPECT_EQ(bigbird_pegasus_config(keys).label_smoothing, 0.25);
  EXPECT_EQ(bigbird_pegasus_keys(bigbird_pegasus_config(keys)).label_smoothing, 0.25);
}

TEST(ConfigMembers, AFileThatIsNoJsonIsNamed) {
  for (const std::string text : {"", "{", "[1]", "7", "no", "{\"vocab_size\": 7", "PK\x03"}) {
    EncoderKeys keys;
    const std::string path = folder_with(text);
    const std::string said = error_of([&] { load_pretrained_config(path, keys); });
    EXPECT_NE(said.find(path + "/config.json: "), std::string::npos) << text << said;
  }
}

/// The time of names of labels grows as their number does.
TEST(ConfigMembers, ManyLabelsTakeNoLongerEach) {
  constexpr int count = 50'000;
  std::string labels;
  for (int i = 0; i < count; ++i) {
    labels += fmt::format("{}\"{}\": \"name {}\"", i > 0 ? ", " : "", count - 1 - i, i);
  }
  EncoderKeys keys;
  load_pretrained_config(folder_with(config_of("bert", "\"id2label\": {" + labels + "}")), keys);
  ASSERT_EQ(keys.id2label.size(), size_t{count});
  EXPECT_EQ(keys.id2label[7], fmt::format("name {}", count - 8));
  const std::string path = testing::TempDir() + "longspan_labels";
  save_pretrained(path, {}, to_json(keys));
  EncoderKeys again;
  load_pretrained_config(path, again);
  EXPECT_EQ(again.id2label, keys.id2label);
  EXPECT_NE(error_of([&] {
              load_pretrained_config(
                  folder_with(config_of("bert", R"("id2label": {"0": "a", "01": "b"})")), again);
            }).find("id2label has \"01\""),
            std::string::npos);
  keys.id2label = {"same", "other", "same"};
  save_pretrained(path, {}, to_json(keys));
  std::ifstream file(path + "/config.json");
  const Json json = parse_json(std::string(std::istreambuf_iterator<char>(file), {}));
  EXPECT_EQ(to_string(json["label2id"]), R"({"same":0,"other":1})");
}

/// Returns the config.json of an export with these keys and no tensors.
template <class Keys>
Json exported(Keys keys) {
  const std::string path = testing::TempDir() + "longspan_export";
  save_pretrained(path, {}, to_json(keys));
  std::ifstream file(path + "/config.json");
  return parse_json(std::string(std::istreambuf_iterator<char>(file), {}));
}

TEST(ConfigMembers, ExportsCarryLabelsAndIds) {
  EncoderKeys roberta;
  BlockBertConfig c;
  set_encoder(roberta, c);
  c.classes = 3;
  const Json classes = exported(encoder_keys(c));
  EXPECT_EQ(to_string(classes["id2label"]), R"({"0":"LABEL_0","1":"LABEL_1","2":"LABEL_2"})");
  EXPECT_EQ(to_string(classes["label2id"]), R"({"LABEL_0":0,"LABEL_1":1,"LABEL_2":2})");
  EXPECT_EQ(classes["pad_token_id"], Json(1));
  EXPECT_TRUE(classes["classifier_dropout"].is_null());
  c.classes = 0;
  c.tags = 5;
  EXPECT_EQ(exported(encoder_keys(c))["id2label"].object().size(), 5u);
  c.tags = 2;
  const Json two = exported(encoder_keys(c));
  EXPECT_EQ(two.find("id2label"), nullptr) << "two are the default";
  c.dropout_classifier = 0.25f;
  EXPECT_EQ(exported(encoder_keys(c))["classifier_dropout"], Json(0.25));

  EncoderKeys named;
  load_pretrained_config(folder_with(config_of("bert", R"("id2label": {"1": "yes", "0": "no"})")),
                         named);
  EXPECT_EQ(named.id2label, (std::vector<std::string>{"no", "yes"}));
  EXPECT_EQ(to_string(exported(named)["label2id"]), R"({"no":0,"yes":1})");

  const Json bart = exported(BartKeys());
  EXPECT_EQ(bart["decoder_start_token_id"], Json(2));
  EXPECT_EQ(bart["pad_token_id"], Json(1));
  EXPECT_EQ(bart["is_encoder_decoder"], Json(true));
  EXPECT_EQ(bart["id2label"].object().size(), 3u);
  const Json led = exported(led_keys(led_config(LedKeys())));
  EXPECT_EQ(led["decoder_start_token_id"], Json(2));
  EXPECT_EQ(led["pad_token_id"], Json(1));
  const Json pegasus = exported(bigbird_pegasus_keys(bigbird_pegasus_config(BigBirdPegasusKeys())));
  EXPECT_EQ(pegasus["decoder_start_token_id"], Json(2));
  EXPECT_EQ(pegasus["pad_token_id"], Json(0));
  EXPECT_EQ(exported(BigBirdKeys())["pad_token_id"], Json(0));
  EXPECT_EQ(exported(ReformerKeys())["pad_token_id"], Json(0));
}

}  // namespace
}  // namespace longspan::test
