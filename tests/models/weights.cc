// Checkpoints of other implementations, read and written; tests/oracles/checkpoints.py.

#include "models/weights.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "autograd/mode.h"
#include "models/blockbert.h"
#include "models/convert.h"
#include "models/led.h"
#include "models/transformer.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/shape.h"
#include "tests/models/golden_file.h"
#include "train/pretrained.h"

namespace longspan::test {
namespace {

const std::string folder = std::string(LONGSPAN_SOURCE_DIR) + "/tests/oracles/checkpoints/";

/// A checkpoint's model, and the way there and back.
struct Loaded {
  std::unique_ptr<LanguageModel> model;
  const CheckpointFormat* format = nullptr;
  Json config;  ///< the keys as they go out again

  TensorList tensors() const { return named_as(*format, *model); }
  PretrainedNames names() const { return {.prefix = format->prefix, .unused = format->unused}; }
};

/// Of a checkpoint whose keys say all of its model's configuration.
template <typename Model, typename Keys, typename Config>
Loaded made_of(const std::string& name, Config (*config_of)(const Keys&),
               Keys (*keys_of)(const Config&), const CheckpointFormat& format) {
  Keys keys;
  load_pretrained_config(folder + name, keys);
  const Config c = config_of(keys);
  Keys back = keys_of(c);
  Loaded out{.model = std::make_unique<Model>(c, Init{.gen = Generator{1}}),
             .format = &format,
             .config = to_json(back)};
  EXPECT_EQ(out.config, to_json(keys)) << "keys go out as they came in";
  return out;
}

Loaded made(const std::string& name) {
  if (name == "reformer") {
    return made_of<Reformer>(name, reformer_config, reformer_keys, reformer_format);
  }
  if (name == "bart") return made_of<Transformer>(name, bart_config, bart_keys, bart_format);
  if (name == "led") return made_of<Led>(name, led_config, led_keys, led_format);
  if (name == "bigbird") {
    return made_of<BigBird>(name, bigbird_config, bigbird_keys, bigbird_format);
  }
  if (name == "bigbird_pegasus") {
    return made_of<BigBirdPegasus>(name, bigbird_pegasus_config, bigbird_pegasus_keys,
                                   bigbird_pegasus_format);
  }
  if (name == "longformer") {
    return made_of<Longformer>(name, longformer_config, longformer_keys, longformer_format);
  }
  const Init init{.gen = Generator{1}};
  Loaded out;
  EncoderKeys keys;
  load_pretrained_config(folder + name, keys);
  BlockBertConfig c;
  set_encoder(keys, c);
  c.n_block = 1;
  c.heads_per_shift = {};
  c.mlm_head = name == "roberta" || name == "bert";
  if (name == "roberta_classes") c.classes = 2;
  if (name == "roberta_tags") c.tags = 2;
  c.span_head = name == "roberta_spans";
  out.model = std::make_unique<BlockBert>(c, init);
  out.format = name == "bert" ? &bert_format : &roberta_format;
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

std::map<std::string, Tensor> tensors_of(const std::string& path) {
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
  const Loaded loaded = made(name);
  load_pretrained(folder + name, loaded.tensors(), loaded.names());

  std::map<std::string, Tensor> expected;
  for (NamedTensor& t : read_tensors(folder + name + "/expected.safetensors")) {
    expected[t.name] = t.tensor;
  }
  const Tensor y = run(*loaded.model, name, expected["tokens"], expected["lengths"]);
  EXPECT_LE(distance(y, expected["logits"]), 1e-5);

  // What goes out is what came in, name by name and bit by bit. The reference implementation reads
  // it back where the variable says where to keep it.
  const char* keep = std::getenv("LONGSPAN_TEST_CHECKPOINTS");
  const std::string out =
      (keep != nullptr ? std::string(keep) + "/" : testing::TempDir() + "longspan_checkpoints_") +
      name;
  save_pretrained(out, loaded.tensors(), loaded.config);
  const auto theirs = tensors_of(folder + name), ours = tensors_of(out);
  ASSERT_EQ(ours.size(), theirs.size());
  for (const auto& [key, x] : theirs) {
    ASSERT_EQ(ours.count(key), 1u) << key;
    EXPECT_TRUE(same_bits(ours.at(key), x)) << key;
  }
  const Loaded again = made(name);
  load_pretrained(out, again.tensors(), again.names());
  EXPECT_TRUE(same_bits(run(*again.model, name, expected["tokens"], expected["lengths"]), y));
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Weights,
                         testing::Values("roberta", "roberta_classes", "roberta_spans",
                                         "roberta_tags", "bert", "bigbird", "bigbird_pegasus",
                                         "longformer", "bart", "led", "reformer"),
                         [](const auto& param) { return param.param; });

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
  const Loaded bart = made("bart");
  load_pretrained(folder + "bart", bart.tensors(), bart.names());
  std::map<std::string, Tensor> expected;
  for (NamedTensor& t : read_tensors(folder + "bart/expected.safetensors")) {
    expected[t.name] = t.tensor;
  }
  BartKeys keys;
  load_pretrained_config(folder + "bart", keys);
  const TransformerConfig small = bart_config(keys);
  LedConfig c = led_preset("tiny");
  c.vocab = small.vocab;
  c.n_head = small.n_head;
  c.d_model = small.d_model;
  c.d_ff = small.d_ff;
  c.activation = small.activation;
  c.n_max = 100;
  c.n_max_target = small.n_max;
  c.one_sided_window = {21};  // all of the source
  // With BART's reserved rows, and without them, as LED's checkpoints are.
  for (const int64_t offset : {2, 0}) {
    c.position_offset = offset;
    Led led(c, Init{});
    start_from(led, *bart.model, offset, NewPositions::repeat, 2 - offset);
    EXPECT_LE(distance(run(led, "", expected["tokens"], expected["lengths"]), expected["logits"]),
              1e-5)
        << offset;
  }
  c.position_offset = 0;
  EXPECT_EQ(led_keys(c).attention_window, (std::vector<int64_t>{42, 42}));
}

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(WeightsRefuse, WhatIsMissingUnknownOrOfAnotherShape) {
  // A classifier's checkpoint for a model that predicts tokens.
  const Loaded tokens = made("roberta");
  const Tensor before = clone(parameter(*tokens.model, "embed.token.weight").detach());
  const std::string text = refusal(
      [&] { load_pretrained(folder + "roberta_classes", tokens.tensors(), tokens.names()); });
  EXPECT_NE(text.find("5 missing:"), std::string::npos) << text;
  EXPECT_NE(text.find("lm_head.layer_norm.weight"), std::string::npos) << text;
  EXPECT_NE(text.find("4 unknown:"), std::string::npos) << text;
  EXPECT_NE(text.find("classifier.out_proj.bias"), std::string::npos) << text;
  EXPECT_TRUE(same_bits(before, parameter(*tokens.model, "embed.token.weight").detach()))
      << "nothing is written where something is wrong";

  // The other way round heads may be fresh.
  const Loaded classes = made("roberta_classes");
  PretrainedNames names = classes.names();
  const std::string_view fresh[] = {"classifier."}, unused[] = {"weight", "bias"};
  names.fresh = fresh;
  EXPECT_NE(refusal([&] {
              load_pretrained(folder + "roberta", classes.tensors(), names);
            }).find("5 unknown"),
            std::string::npos);
  names.unused = unused;
  load_pretrained(folder + "roberta", classes.tensors(), names);

  BlockBertConfig wide = blockbert_preset("tiny");
  wide.position_offset = 2;
  wide.token_types = 1;
  BlockBert other(wide, Init{});
  const std::string shapes = refusal([&] {
    load_pretrained(folder + "roberta", named_as(roberta_format, other), tokens.names());
  });
  EXPECT_NE(shapes.find("of another kind"), std::string::npos) << shapes;
  EXPECT_NE(shapes.find("f32 [19, 8], expected f32 [23, 16]"), std::string::npos) << shapes;
}

TEST(WeightsRefuse, AnotherArchitecture) {
  BigBirdKeys keys;
  load_pretrained_config(folder + "roberta", keys);
  EXPECT_NE(refusal([&] { bigbird_config(keys); }).find("expected \"big_bird\""),
            std::string::npos);
  BigBirdPegasusKeys pegasus;
  pegasus.decoder_layers = 3;
  EXPECT_NE(refusal([&] { bigbird_pegasus_config(pegasus); }).find("16 and 3 layers"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              bigbird_pegasus_keys(bigbird_pegasus_preset("base"));
            }).find("neither couple nor emb_norm"),
            std::string::npos);
  BartKeys bart;
  bart.encoder_ffn_dim = 3;
  EXPECT_NE(refusal([&] { bart_config(bart); }).find("widths 3 and 4096"), std::string::npos);
  EXPECT_NE(refusal([&] { bart_keys(transformer_preset("base")); }).find("positions = learned"),
            std::string::npos);
  TransformerConfig coupled = transformer_preset("bart");
  coupled.couple = true;
  EXPECT_NE(refusal([&] { bart_keys(coupled); }).find("source_vocab and couple"),
            std::string::npos);
  LedKeys led;
  load_pretrained_config(folder + "bart", led);
  EXPECT_NE(refusal([&] { led_config(led); }).find("expected \"led\""), std::string::npos);
  LedConfig offset = led_preset("tiny");
  offset.position_offset = 2;
  EXPECT_NE(refusal([&] { led_keys(offset); }).find("position_offset = 0"), std::string::npos);
  offset.position_offset = 0;
  offset.one_sided_window = {};
  EXPECT_NE(refusal([&] { led_keys(offset); }).find("one_sided_window is empty"),
            std::string::npos);
  const ReformerConfig hashed = reformer_preset("small_hf");
  const auto refuses_reformer = [&](const auto& change) {
    ReformerConfig c = hashed;
    c.head_bias = true;
    change(c);
    EXPECT_NE(refusal([&] { reformer_keys(c); }).find("as reformer_variant(hf)"),
              std::string::npos);
  };
  refuses_reformer([](ReformerConfig& c) { c.head_bias = false; });
  refuses_reformer([](ReformerConfig& c) { c.self_logit = -5e4; });
  refuses_reformer([](ReformerConfig& c) { c.bucket_rule = BucketRule::paper; });
  refuses_reformer([](ReformerConfig& c) { c.position_shape = {c.n_max}; });
  LongformerKeys windows;
  windows.attention_window = {7};
  EXPECT_NE(refusal([&] { longformer_config(windows); }).find("expected even numbers"),
            std::string::npos);
  windows.model_type = "bert";
  EXPECT_NE(refusal([&] { longformer_config(windows); }).find("expected \"longformer\""),
            std::string::npos);
  EncoderKeys roberta;
  load_pretrained_config(folder + "bigbird", roberta);
  BlockBertConfig c;
  EXPECT_NE(refusal([&] { set_encoder(roberta, c); }).find("expected \"roberta\" or \"bert\""),
            std::string::npos);
  roberta.model_type = "bert";
  roberta.hidden_act = "tanhshrink";
  EXPECT_NE(refusal([&] { set_encoder(roberta, c); }).find("expected gelu, gelu_new"),
            std::string::npos);
  EXPECT_NE(refusal([&] { encoder_keys(bigbird_preset("base")); }).find("position_offset is 0"),
            std::string::npos);
  BigBird spans = [] {
    BigBirdConfig b = bigbird_preset("tiny");
    b.span_head = true;
    return BigBird(b, Init{});
  }();
  EXPECT_NE(refusal([&] { named_as(bigbird_format, spans); }).find("no name for spans.weight"),
            std::string::npos);
}

}  // namespace
}  // namespace longspan::test
